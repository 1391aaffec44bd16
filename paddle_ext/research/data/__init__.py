"""Feature banks, and the images they are computed from."""

from .arrays import image_arrays
from .bank import FeatureBank
from .glyphs import glyph_images
from .images import EncodedImages, ImageArray, ImageSet, in_memory
from .layouts import (
    image_folder,
    image_list,
    inaturalist,
    mini_imagenet,
    open_images,
    tiered_imagenet,
)

__all__ = [
    "EncodedImages",
    "FeatureBank",
    "ImageArray",
    "ImageSet",
    "glyph_images",
    "image_arrays",
    "image_folder",
    "image_list",
    "in_memory",
    "inaturalist",
    "mini_imagenet",
    "open_images",
    "tiered_imagenet",
]
