"""Image-text encoders that the user has on disk: open_clip, transformers, ONNX.

Each has two towers, which bring pictures and texts into one space. Nothing is ever downloaded.
"""

from .opening import open_encoder
from .towers import Encoder, check_widths

__all__ = ["Encoder", "check_widths", "open_encoder"]
