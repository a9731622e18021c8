"""Arrays of other packages as NumPy arrays, without importing any of those packages.

Values are recognized by the modules of their classes or by their attributes. NumPy converts xarray,
zarr, dask and h5py arrays, memory maps and lists without help.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray


class UnusableArray(ValueError):
    """A value that has no array of numbers to give; the text says what it is and what to do."""


def is_from(values: Any, package: str) -> bool:
    """Whether a value is of a class of this package, or of one that inherits from such a class."""
    return any(kind.__module__.partition(".")[0] == package for kind in type(values).__mro__)


def is_spatial_image(values: Any) -> bool:
    """Whether a value is a nibabel image: voxels (X, Y, Z[, C]) with an affine and a header."""
    return all(hasattr(values, name) for name in ("dataobj", "affine", "header"))


def picture_pixels(picture: Any) -> NDArray[Any]:
    """Gray (H, W) or RGB (H, W, 3) pixels of a Pillow picture as a person sees it: upright as EXIF
    says, what is transparent white.
    """
    from PIL import Image, ImageOps

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


def plain_array(values: Any) -> Any:
    """What `np.asarray` turns into the array that is meant: Pillow pictures upright and palettes as
    indices, tensors from wherever they are, nibabel images as (Z, H, W[, C]).
    """
    if isinstance(values, np.ma.MaskedArray):
        if np.ma.is_masked(values):
            raise UnusableArray(
                "a masked array that hides entries; fill them with .filled(value) and tell where "
                "they are by a mask"
            )
        return values.data
    if is_from(values, "PIL") and hasattr(values, "getexif"):
        from PIL import ImageOps

        return ImageOps.exif_transpose(values)
    if is_from(values, "torch") and hasattr(values, "detach"):
        return _tensor_values(values)
    if is_spatial_image(values):
        return turned_voxels(values.dataobj)[0]
    return values


def turned_voxels(voxels: Any) -> tuple[NDArray[Any], int]:
    """Voxels (X, Y, Z[, C]) or (X, Y) as (Z, H, W[, C]) or (H, W), and the number of grid axes."""
    array = np.asarray(voxels)
    if array.dtype.names is not None:  # NIfTI's RGB voxels are records of three bytes
        array = np.stack([array[name] for name in array.dtype.names[:3]], axis=-1)
    shape = array.shape
    array = array.reshape(_without_time(shape))
    if not 2 <= array.ndim <= 4:
        raise UnusableArray(
            f"an image of shape {shape}, which has more than one axis of channels or less than two "
            "of space; extract one volume from it"
        )
    spatial = min(array.ndim, 3)
    turned = array.transpose(*reversed(range(spatial)), *range(spatial, array.ndim))
    return np.ascontiguousarray(turned), spatial


def turned_shape(shape: tuple[int, ...]) -> tuple[int, ...]:
    """The shape that `turned_voxels` gives voxels of this shape."""
    shape = _without_time(shape)
    return (*shape[:3][::-1], *shape[3:])


def _without_time(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) == 5 and shape[3] == 1:  # vector images leave the time axis at length one
        shape = (*shape[:3], shape[4])
    return shape[:3] if len(shape) == 4 and shape[3] == 1 else shape


def voxel_spacing(image: Any, grid_dim: int) -> tuple[float, ...] | None:
    """Size of a voxel of a nibabel image along (Z, H, W), where its header tells it."""
    zooms = tuple(float(zoom) for zoom in image.header.get_zooms()[:grid_dim])
    known = len(zooms) == grid_dim and all(0 < zoom < math.inf for zoom in zooms)
    return zooms[::-1] if known else None


def _tensor_values(tensor: Any) -> Any:
    if str(tensor.layout) != "torch.strided":
        raise UnusableArray("a sparse tensor; pass its .to_dense()")
    if tensor.device.type == "meta":
        raise UnusableArray("a tensor on the device meta, without values; pass one that has them")
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    plain = tensor.detach().cpu().resolve_conj().resolve_neg()
    try:
        return plain.numpy()
    except TypeError:  # NumPy has no bfloat16 and no floats of 8 bits
        if not plain.is_floating_point():
            raise
        return plain.float().numpy()
