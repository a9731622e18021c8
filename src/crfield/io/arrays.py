"""Arrays in `.npy`, `.npz`, NIfTI and multi-page TIFF files, their size checked before decoding.

Volumes are `(Z, H, W[, C])`: NIfTI's `(X, Y, Z[, C])` is turned round on reading and on writing.
The packages for NIfTI and TIFF are optional and imported only when such a file turns up.
"""

from __future__ import annotations

import importlib
import io
import math
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from crfield._core.atomic import atomic_path
from crfield._core.foreign import UnusableArray, turned_voxels
from crfield._core.validate import InputError, check_memory

Array = npt.NDArray[Any]
ShapeCheck = Callable[[tuple[int, ...]], None]


def check_size(path: Path, grid: Sequence[int], max_pixels: int) -> None:
    """Refuse a file whose header announces more than `max_pixels` pixels."""
    pixels = math.prod(grid)
    if pixels > max_pixels:
        size = " x ".join(str(extent) for extent in grid)
        raise InputError(
            f"expected at most {max_pixels:,} pixels, but {path} announces {pixels:,} ({size}); "
            "make it smaller, or raise max_pixels if you trust the file."
        )


def label_dtype(smallest: int, largest: int) -> np.dtype[Any]:
    """The smallest type of whole numbers that label files of all kinds can hold for this range."""
    kinds = (np.uint8, np.uint16, np.int16, np.int32, np.int64)
    return np.dtype(next(
        kind for kind in kinds
        if int(np.iinfo(kind).min) <= smallest and largest <= int(np.iinfo(kind).max)
    ))


def require(module: str, extra: str, files: str) -> Any:
    """Import an optional package, or tell how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"{files} need the package {module}, which is not installed; "
            f"install it with: pip install 'crfield[{extra}]'."
        ) from error


def read_npy(path: Path, check_shape: ShapeCheck) -> Array:
    """Array of a `.npy`, once its shape has passed `check_shape`."""
    # Not mapped into memory: a file that others cut short meanwhile would end the program.
    with path.open("rb") as stream:
        _refuse_npz(stream, path)
        _check_header(stream, path, path.stat().st_size, check_shape)
        stream.seek(0)
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


class StoredArray:
    """The array of a `.npy` file, of any shape, read part by part: cut it by slices of step 1.

    Nothing is mapped into memory: a file that is cut short meanwhile is refused.
    """

    def __init__(self, path: Path) -> None:
        with path.open("rb") as stream:
            _refuse_npz(stream, path)
            self.shape, self._turned, self.dtype = _header(stream, path.stat().st_size)
            self._start = stream.tell()
        if self.dtype.kind not in "fiub":
            raise InputError(
                f"expected real numbers in {path}, but it holds {self.dtype}; convert them first."
            )
        self._path = path

    def __getitem__(self, part: Any) -> Array:
        given = part if isinstance(part, tuple) else (part,)
        slices = (*given, *[slice(None)] * (len(self.shape) - len(given)))
        bounds = [range(n)[each] for n, each in zip(self.shape, slices, strict=True)]
        # Fortran's order is that of C with the axes turned round.
        shape, bounds = (self.shape[::-1], bounds[::-1]) if self._turned else (self.shape, bounds)
        found = self._read(shape, bounds)
        return found.T if self._turned else found

    def _read(self, shape: tuple[int, ...], bounds: Sequence[range]) -> Array:
        """The part of an array in C order, run by run of what lies together in the file."""
        found = np.empty(tuple(map(len, bounds)), self.dtype)
        if found.size == 0:
            return found
        split = len(shape)  # all axes from here on are whole
        while split > 0 and len(bounds[split - 1]) == shape[split - 1]:
            split -= 1
        outer, run = max(0, split - 1), math.prod(found.shape[max(0, split - 1):])
        # Bytes from one index to the next along each axis.
        steps = [math.prod(shape[axis + 1:]) * self.dtype.itemsize for axis in range(len(shape))]
        first = self._start + sum(b.start * n for b, n in zip(bounds, steps, strict=True))
        rows = found.reshape(-1, run).view(np.uint8)
        with self._path.open("rb") as stream:
            for row, index in zip(rows, np.ndindex(found.shape[:outer]), strict=True):
                stream.seek(first + sum(k * n for k, n in zip(index, steps, strict=False)))
                if stream.readinto(row.data) < row.size:
                    raise InputError(
                        f"cannot read {self._path}: it was cut short meanwhile; copy it again."
                    )
        return found


def read_npz(path: Path, names: Sequence[str], check_shape: ShapeCheck) -> Array:
    """The only array of a `.npz`, or the first of `names`, once its shape has passed."""
    with zipfile.ZipFile(path) as archive:
        held = [member.removesuffix(".npy") for member in archive.namelist()]
        chosen = held if len(held) == 1 else [name for name in names if name in held]
        if not chosen:
            raise InputError(
                f"expected one array in {path}, or one named {' or '.join(names)}, but it holds "
                f"{', '.join(held) or 'none'}; save that array alone."
            )
        return read_member(archive, path, chosen[0], check_shape)


def read_member(archive: zipfile.ZipFile, path: Path, name: str, check_shape: ShapeCheck) -> Array:
    """One array of an open `.npz`, once its shape has passed `check_shape`."""
    member = f"{name}.npy"
    with archive.open(member) as stream:
        _check_header(stream, path, archive.getinfo(member).file_size, check_shape)
    with archive.open(member) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def write_array(path: Path, array: Array) -> None:
    """Write an array as `.npy`."""
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.save(_Writer(stream), array, allow_pickle=False)


class _Writer:
    """A stream that NumPy cannot write to behind Python's back, where a full disk goes unnoticed
    if all but the last few bytes had room.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.write = stream.write


def _refuse_npz(stream: IO[bytes], path: Path) -> None:
    if stream.read(4) == b"PK\3\4":
        raise InputError(f"expected one array in {path}, but it is a .npz; rename it to .npz.")
    stream.seek(0)


def _header(
    stream: IO[bytes], n_bytes: int, check_shape: ShapeCheck | None = None
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran's order, and type of a `.npy` of no more bytes than there are."""
    if np.lib.format.read_magic(stream) == (1, 0):
        shape, turned, dtype = np.lib.format.read_array_header_1_0(stream)
    else:
        shape, turned, dtype = np.lib.format.read_array_header_2_0(stream)
    if dtype.hasobject:
        raise ValueError("Python objects, which are never unpickled")
    if check_shape is not None:
        check_shape(shape)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > n_bytes:
        raise ValueError(f"an array of shape {shape} in {n_bytes} bytes")
    return shape, turned, dtype


def _check_header(stream: IO[bytes], path: Path, n_bytes: int, check_shape: ShapeCheck) -> None:
    """Refuse an array of the wrong shape, of more bytes than there are, or than memory holds."""
    shape, _, dtype = _header(stream, n_bytes, check_shape)
    _check_room(path, math.prod(shape) * dtype.itemsize)


def _check_room(path: Path, n_bytes: float) -> None:
    check_memory(n_bytes, f"reading {path}", "make it smaller")


def read_nifti(path: Path, max_pixels: int) -> tuple[Array, tuple[int, ...], Any]:
    """Voxels `(*grid[, C])`, their grid and the nibabel image that knows affine and header."""
    nibabel = require("nibabel", "nifti", "NIfTI files")
    image = nibabel.load(path, mmap=False)
    shape = image.shape
    check_size(path, shape[:3], max_pixels)
    _check_room(path, math.prod(shape) * (8.0 + image.get_data_dtype().itemsize))
    try:
        voxels, grid_dim = turned_voxels(image.dataobj)
    except UnusableArray as error:
        raise InputError(f"expected one volume, but {path} is {error}.") from error
    return voxels, voxels.shape[:grid_dim], image


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
        _check_room(path, series.nbytes)
        pixels = series.asarray()
    return (pixels if position is None else np.moveaxis(pixels, position, -1)), grid


def write_tiff_volume(path: Path, labels: Array) -> None:
    """Write labels `(Z, H, W)` as the pages of a TIFF file."""
    tifffile = require("tifffile", "tiff", "TIFF volumes")
    # Not into the file itself: a disk that fills up with the last few bytes would go unnoticed.
    content = io.BytesIO()
    tifffile.imwrite(content, labels, photometric="minisblack", metadata={"axes": "ZYX"})
    path.write_bytes(content.getbuffer())
