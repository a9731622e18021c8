"""Arrays that are read and written part by part, and how a grid is cut into blocks."""

from __future__ import annotations

import itertools
import math
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.atomic import file_to_replace
from crfield._core.foreign import UnusableArray, is_from, is_spatial_image, turned_voxels
from crfield._core.locks import hold
from crfield._core.validate import (
    InputError,
    as_array,
    as_count,
    as_image,
    as_path,
    check_memory,
    shown,
)
from crfield.blocks.unfinished import unfinished_npy, writing

Slices = tuple[slice, ...]


@dataclass(frozen=True)
class Block:
    """One block of a grid: what it contributes, and what it is computed from.

    index : which block along each axis, (d,).
    core : the part of the grid that it decides.
    window : the core with the overlap around it, cut at the ends of the grid.
    """

    index: tuple[int, ...]
    core: Slices
    window: Slices

    @property
    def inner(self) -> Slices:
        """The core within the window."""
        return tuple(
            slice(c.start - w.start, c.stop - w.start)
            for c, w in zip(self.core, self.window, strict=True)
        )


def cut(grid: Sequence[int], block: Sequence[int], overlap: Sequence[int]) -> list[Block]:
    """Blocks of at most `block` points along each axis (d,), as even as can be, last axis first."""
    edges = [
        [round(k * n / count) for k in range(count + 1)]
        for n, count in ((n, math.ceil(n / side)) for n, side in zip(grid, block, strict=True))
    ]
    blocks = []
    for index in itertools.product(*(range(len(along) - 1) for along in edges)):
        core = tuple(slice(e[k], e[k + 1]) for e, k in zip(edges, index, strict=True))
        window = tuple(
            slice(max(0, c.start - margin), min(n, c.stop + margin))
            for c, margin, n in zip(core, overlap, grid, strict=True)
        )
        blocks.append(Block(index, core, window))
    return blocks


def as_sides(value: Any, name: str, grid_dim: int, minimum: int) -> tuple[int, ...]:
    """One whole number for all axes, or one for each."""
    listed = isinstance(value, Sequence | np.ndarray) and not isinstance(value, str | bytes)
    if listed and getattr(value, "ndim", 1) > 0:
        if len(value) != grid_dim:
            raise InputError(
                f"{name} must be one number or {grid_dim} numbers, got {shown(value)}; "
                "give one for each axis of the grid."
            )
        return tuple(as_count(side, name, minimum) for side in value)
    return (as_count(value, name, minimum),) * grid_dim


class Source:
    """An array of any kind that is read part by part; what cannot be is read whole at once.

    values : NumPy arrays and memory maps, zarr, h5py, dask and xarray arrays, tensors and nibabel
        images (as (Z, H, W[, C])) are cut before they are converted.
    """

    def __init__(self, values: Any, name: str) -> None:
        self._name = name
        self._source: Any
        if is_spatial_image(values):
            self._source = _TurnedImage(values, name)
        elif is_from(values, "PIL") and name == "image":
            self._source = as_image(values)
        elif all(hasattr(values, needed) for needed in ("shape", "dtype", "__getitem__")):
            self._source = values
        else:
            self._source = as_array(values, name)
        self.shape = tuple(int(n) for n in self._source.shape)
        first = self.read(tuple(slice(0, 1) for _ in self.shape))
        self.dtype = first.dtype

    def read(self, part: Slices) -> NDArray[Any]:
        """One part as an array of real numbers; axes beyond those of `part` are whole."""
        return as_array(self._source[part], self._name)


class _TurnedImage:
    """A nibabel image (X, Y, Z[, C]) whose parts are read as (Z, H, W[, C])."""

    def __init__(self, image: Any, name: str) -> None:
        self._stored, self._name = image.dataobj, name
        self._corner = tuple(image.shape[:3])
        first, self._grid_dim = self._turned((slice(0, 1),) * len(self._corner))
        self.shape = (*self._corner[::-1], *first.shape[self._grid_dim:])

    def __getitem__(self, part: Slices) -> NDArray[Any]:
        grid, rest = part[: self._grid_dim], part[self._grid_dim :]
        whole = tuple(slice(None) for _ in range(self._grid_dim - len(grid)))
        turned = self._turned((grid + whole)[::-1])[0]
        everywhere = tuple(slice(None) for _ in range(self._grid_dim))
        return np.asarray(turned[everywhere + rest])

    def _turned(self, part: Slices) -> tuple[NDArray[Any], int]:
        try:
            return turned_voxels(self._stored[part])
        except UnusableArray as error:
            raise InputError(f"{self._name} must be one volume, got {error}.") from None
        except (OSError, EOFError, ValueError, zlib.error) as error:  # of a file cut short
            detail = " ".join(str(error).split())[:200]
            raise InputError(
                f"{self._name} cannot be read: its file is damaged or was cut short ({detail}); "
                "copy or export it again."
            ) from error


class Target:
    """Where parts of a result go; `array` is None once a file has taken its place.

    path : the file that is being written, if it is one.
    """

    def __init__(self, array: Any, name: str, path: Path | None = None) -> None:
        self.array, self._name, self.path = array, name, path

    def write(self, part: Slices, values: NDArray[Any]) -> None:
        """Write one part of the grid."""
        self.array[part] = values

    def read(self, part: Slices) -> NDArray[Any]:
        """One part of the grid as it was written."""
        return as_array(self.array[part], self._name)

    def sync(self) -> None:
        """Bring what was written to the disk."""
        if self.path is not None:
            with writing(self.path):
                self.array.flush()


def is_file(out: Any) -> bool:
    """Whether a result goes to a file that is named."""
    return isinstance(out, str | os.PathLike)


def check_apart(out: Any, marginals: Any, inputs: Mapping[str, Any]) -> None:
    """Refuse one file for both results, or for a result and an input that is mapped from it."""
    files = [each for each in (out, marginals) if is_file(each)]
    if len(files) == 2 and os.path.realpath(files[0]) == os.path.realpath(files[1]):
        raise InputError(
            f"out and marginals must be different files, got {files[0]} for both; rename one."
        )
    mapped = {name: given for name, given in inputs.items() if hasattr(given, "filename")}
    for name, given in mapped.items():
        for path in files:
            with suppress(OSError, TypeError):  # there is no such file, or it has no name
                if os.path.samefile(path, given.filename):
                    raise InputError(
                        f"out and marginals must be no input, got {path}, which {name} is read "
                        "from; choose another name."
                    )


@contextmanager
def open_target(
    out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str,
    keeps: Callable[[bool], bool],
) -> Iterator[Target]:
    """Somewhere to write an array part by part: `out` itself, a new array for None, or for the name
    of a .npy file a memory map that becomes this file when all is written.

    keeps : whether the unfinished file stays after an error, given whether it was there before.
    """
    if out is None:
        check_memory(
            float(math.prod(shape)) * dtype.itemsize, f"{name} of shape {shape} as {dtype}",
            "pass the name of a .npy file to write to",
        )
        yield Target(np.zeros(shape, dtype), name)
    elif is_file(out):
        path = as_path(out)
        if path.suffix.lower() != ".npy":
            raise InputError(
                f"{name} must be an array or a file ending in .npy, got {path}; choose such a name."
            )
        with (
            hold(file_to_replace(path), path, within=True),
            unfinished_npy(path, shape, dtype, keeps) as mapped,
        ):
            target = Target(mapped, name, path)
            del mapped
            yield target
            target.sync()
            target.array = None  # closed before the file is renamed, as some systems require
    else:
        _check_target(out, shape, dtype, name)
        yield Target(out, name)


def _check_target(out: Any, shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    if not hasattr(out, "__setitem__") or tuple(getattr(out, "shape", ())) != shape:
        raise InputError(
            f"{name} must be an array of shape {shape} that can be written to, got "
            f"{type(out).__name__} of shape {getattr(out, 'shape', None)}; create it first, or "
            "pass the name of a .npy file."
        )
    if not getattr(getattr(out, "flags", None), "writeable", True):
        raise InputError(
            f"{name} must be an array that can be written to, got a read-only one; pass a copy, or "
            "open its file for writing."
        )
    stored = getattr(out, "dtype", dtype)
    if not isinstance(stored, np.dtype) or not np.can_cast(dtype, stored, "same_kind"):
        raise InputError(
            f"{name} must be a NumPy-like array that can hold {dtype}, got {stored}; "
            "create it with a wider type."
        )
    if dtype.kind in "iu" and stored.kind in "iu" and not np.can_cast(dtype, stored):
        raise InputError(
            f"{name} must hold every label, which needs {dtype}, got {stored}; "
            "create it with a wider type."
        )
