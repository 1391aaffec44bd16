"""Feature banks, and the images they are computed from."""

from .bank import FeatureBank
from .glyphs import glyph_images
from .images import EncodedImages, ImageArray, ImageSet
from .layouts import image_arrays, image_folder, open_images

__all__ = [
    "EncodedImages",
    "FeatureBank",
    "ImageArray",
    "ImageSet",
    "glyph_images",
    "image_arrays",
    "image_folder",
    "open_images",
]
