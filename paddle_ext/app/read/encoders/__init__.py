"""Image-text encoders on the user's disk: open_clip, transformers, ONNX.

Each has two towers, which map images and texts to one space. Nothing is ever downloaded.
"""

from .opening import open_encoder
from .towers import Encoder, check_widths

__all__ = ["Encoder", "check_widths", "open_encoder"]
