"""Arrays in `.npy`, `.npz`, NIfTI and multi-page TIFF files, their size checked before decoding.

Volumes are `(Z, H, W[, C])`: NIfTI's `(X, Y, Z[, C])` is turned round on reading and on writing.
The packages for NIfTI and TIFF are optional and imported only when such a file turns up.
"""

from __future__ import annotations

import importlib
import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crfield._validate import InputError

Array = npt.NDArray[Any]


def check_size(path: Path, grid: Sequence[int], max_pixels: int) -> None:
    """Refuse a file whose header announces more than `max_pixels` pixels."""
    pixels = math.prod(grid)
    if pixels > max_pixels:
        size = " x ".join(str(extent) for extent in grid)
        raise InputError(
            f"expected at most {max_pixels:,} pixels, but {path} announces {pixels:,} ({size}); "
            "make it smaller, or raise the limit with --max-pixels if you trust the file."
        )


def require(module: str, extra: str, files: str) -> Any:
    """Import an optional package, or tell how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"{files} need the package {module}, which is not installed; "
            f"install it with: pip install 'crfield[{extra}]'."
        ) from error


def read_npy(path: Path, check_shape: Callable[[tuple[int, ...]], None]) -> Array:
    """Array of a `.npy`, once its shape has passed `check_shape`."""
    mapped = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(mapped, np.ndarray):
        mapped.close()
        raise InputError(f"expected one array in {path}, but it is a .npz; rename it to .npz.")
    check_shape(mapped.shape)
    return np.array(mapped)


def read_npz(
    path: Path, names: Sequence[str], check_shape: Callable[[tuple[int, ...]], None]
) -> Array:
    """The only array of a `.npz`, or the first of `names`, once its shape has passed."""
    with zipfile.ZipFile(path) as archive:
        held = [member.removesuffix(".npy") for member in archive.namelist()]
        chosen = held if len(held) == 1 else [name for name in names if name in held]
        if not chosen:
            raise InputError(
                f"expected one array in {path}, or one named {' or '.join(names)}, but it holds "
                f"{', '.join(held) or 'none'}; save that array alone."
            )
        with archive.open(f"{chosen[0]}.npy") as stream:
            first_version = np.lib.format.read_magic(stream) == (1, 0)
            if first_version:
                shape = np.lib.format.read_array_header_1_0(stream)[0]
            else:
                shape = np.lib.format.read_array_header_2_0(stream)[0]
        check_shape(shape)
        with archive.open(f"{chosen[0]}.npy") as stream:
            return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def read_nifti(path: Path, max_pixels: int) -> tuple[Array, tuple[int, ...], Any]:
    """Voxels `(*grid[, C])`, their grid and the nibabel image that knows affine and header."""
    nibabel = require("nibabel", "nifti", "NIfTI files")
    image = nibabel.load(path)
    shape = image.shape
    check_size(path, shape[:3], max_pixels)
    voxels = np.asarray(image.dataobj)
    if voxels.dtype.names is not None:  # NIfTI's RGB voxels are records of three bytes
        voxels = np.stack([voxels[name] for name in voxels.dtype.names[:3]], axis=-1)
        shape = voxels.shape
    if len(shape) == 5 and shape[3] == 1:  # vector images leave the time axis at length one
        voxels = voxels[:, :, :, 0]
    if voxels.ndim == 4 and voxels.shape[3] == 1:
        voxels = voxels[..., 0]
    if not 2 <= voxels.ndim <= 4:
        raise InputError(
            f"expected a volume with at most one axis of channels, but {path} has shape {shape}; "
            "extract one volume from it."
        )
    spatial = min(voxels.ndim, 3)
    turned = voxels.transpose(*reversed(range(spatial)), *range(spatial, voxels.ndim))
    return np.ascontiguousarray(turned), turned.shape[:spatial], image


def write_nifti(path: Path, labels: Array, reference: Any) -> None:
    """Write labels `(Z, H, W)` with the affine and the units of `reference`, if there is one."""
    nibabel = require("nibabel", "nifti", "NIfTI files")
    if reference is None:
        image = nibabel.Nifti1Image(labels.T, np.eye(4), dtype=labels.dtype)
    else:
        header = reference.header.copy()
        header["cal_min"] = header["cal_max"] = 0  # the display window of the image, not of labels
        image = type(reference)(labels.T, reference.affine, header, dtype=labels.dtype)
    nibabel.save(image, path)


def read_tiff_volume(path: Path, max_pixels: int) -> tuple[Array, tuple[int, ...]]:
    """Pixels `(*grid[, C])` of the first series of a TIFF file, and their grid."""
    tifffile = require("tifffile", "tiff", "multi-page TIFF files")
    with tifffile.TiffFile(path) as tiff:
        series = tiff.series[0]
        channel = next((axis for axis in "SC" if axis in series.axes), None)
        position = series.axes.index(channel) if channel is not None else None
        grid = tuple(n for axis, n in enumerate(series.shape) if axis != position)
        check_size(path, grid, max_pixels)
        if not 2 <= len(grid) <= 3:
            raise InputError(
                f"expected a TIFF with two or three axes and channels, but {path} has the axes "
                f"{series.axes} of shape {series.shape}; extract one volume from it."
            )
        pixels = series.asarray()
    return (pixels if position is None else np.moveaxis(pixels, position, -1)), grid


def write_tiff_volume(path: Path, labels: Array) -> None:
    """Write labels `(Z, H, W)` as the pages of a TIFF file."""
    tifffile = require("tifffile", "tiff", "TIFF volumes")
    tifffile.imwrite(path, labels, photometric="minisblack", metadata={"axes": "ZYX"})
