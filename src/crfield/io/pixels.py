"""Images of other libraries as arrays, with the spacing they bring along."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from crfield._core.foreign import is_from, is_spatial_image, voxel_spacing
from crfield._core.validate import as_array


def image_array(image: Any) -> NDArray[Any]:
    """An image (*grid[, C]) as an array of real numbers, from whatever `as_array` takes; Pillow
    pictures upright, in colors and without transparency.
    """
    if is_from(image, "PIL"):
        from crfield.io.pillow import picture_pixels

        return picture_pixels(image)
    return as_array(image, "image")


def image_spacing(image: Any, grid_dim: int) -> tuple[float, ...] | None:
    """The size of a voxel that an image brings along: a nibabel image's, (d,); None otherwise."""
    return voxel_spacing(image, grid_dim) if is_spatial_image(image) else None
