"""Pixels of Pillow pictures, as a person sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps


def picture_pixels(picture: Image.Image) -> NDArray[Any]:
    """Grey (H, W) or RGB (H, W, 3) pixels, upright as EXIF says, what is transparent white."""
    picture = ImageOps.exif_transpose(picture)
    if picture.has_transparency_data:
        coloured = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, coloured).convert("RGB")
    elif picture.mode == "1":
        picture = picture.convert("L")
    elif picture.mode not in ("L", "RGB", "I", "F") and "I;16" not in picture.mode:
        picture = picture.convert("RGB")
    pixels = np.array(picture)
    if picture.mode == "I" and pixels.min() >= 0 and pixels.max() <= 65535:
        return pixels.astype(np.uint16)
    return pixels.astype(pixels.dtype.newbyteorder("="))
