"""Pixels of Pillow pictures, as a person sees them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps


def picture_pixels(picture: Image.Image) -> NDArray[Any]:
    """Gray (H, W) or RGB (H, W, 3) pixels, upright as EXIF says, what is transparent white."""
    picture = ImageOps.exif_transpose(picture)
    if picture.has_transparency_data:
        colored = picture.convert("RGBA")
        white = Image.new("RGBA", picture.size, "white")
        picture = Image.alpha_composite(white, colored).convert("RGB")
    elif picture.mode == "1":
        picture = picture.convert("L")
    elif picture.mode not in ("L", "RGB", "I", "F") and "I;16" not in picture.mode:
        picture = picture.convert("RGB")
    pixels = np.array(picture)
    if picture.mode == "I" and pixels.min() >= 0 and pixels.max() <= 65535:
        return pixels.astype(np.uint16)
    return pixels.astype(pixels.dtype.newbyteorder("="))


class _Limit:
    """Pillow's own limit, which belongs to the whole process, while it is lifted."""

    lock = threading.Lock()
    users = 0
    kept: int | None = None


@contextmanager
def pillow_unlimited() -> Iterator[None]:
    """Lift Pillow's limit on pixels; the last of all threads that asked for it puts it back."""
    with _Limit.lock:
        if _Limit.users == 0:
            _Limit.kept, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        _Limit.users += 1
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.users -= 1
            if _Limit.users == 0:
                Image.MAX_IMAGE_PIXELS = _Limit.kept
