"""Coarse grids of probabilities brought to the size of an image, whole or part by part."""

from __future__ import annotations

import itertools
import math

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray, check_memory
from crfield.dense.inputs import Shape


def resize_linearly(
    values: FloatArray, grid: Shape, stored: Shape | None = None,
    part: tuple[slice, ...] | None = None,
) -> FloatArray:
    """Linear interpolation of each plane of (*coarse, C) to (*grid, C).

    The center of pixel i of n lies at (i + 1/2) / n of the side. Beyond the outermost centers the
    outermost values are repeated.

    stored, part : if `values` are only the `stored_part` of a coarse grid of this shape, and of the
        finer one only the `part` is asked for.
    """
    whole = values.shape[:-1] if stored is None else stored
    check_memory(
        3.0 * values.itemsize * values.shape[-1] * math.prod(grid if part is None else [
            side.stop - side.start for side in part
        ]), f"A segmentation of shape {values.shape} at the size {grid}", "use a smaller image",
    )
    for axis, (n, length) in enumerate(zip(whole, grid, strict=True)):
        if n == length:
            continue
        positions = _positions(n, length, slice(0, length) if part is None else part[axis])
        values = interpolate_axis(values, axis, positions)
    return values


def points_seen(
    selected: NDArray[np.bool_], stored: Shape, grid: Shape, part: tuple[slice, ...] | None = None
) -> NDArray[np.bool_]:
    """Which points of a coarse grid `resize_linearly` looks at for the `selected` ones of the finer
    grid (*grid), or of its `part`; then of the `stored_part`.
    """
    for axis, (n, length) in enumerate(zip(stored, grid, strict=True)):
        if n == length:
            continue
        side = slice(0, length) if part is None else part[axis]
        below = _positions(n, length, side).astype(np.intp)
        count = len(range(n)[_reach(n, length, side)])
        rows = np.moveaxis(selected, axis, 0)
        starts = np.flatnonzero(np.diff(below, prepend=-1))
        either = np.logical_or.reduceat(rows, starts, axis=0)
        lower = below[starts]
        seen = np.zeros((count, *rows.shape[1:]), bool)
        seen[lower] = either
        inner = lower < count - 1
        seen[lower[inner] + 1] |= either[inner]
        selected = np.moveaxis(seen, 0, axis)
    return selected


def stored_part(stored: Shape, grid: Shape, part: tuple[slice, ...]) -> tuple[slice, ...]:
    """What of a coarse grid the `part` of a finer one is interpolated from."""
    return tuple(itertools.starmap(_reach, zip(stored, grid, part, strict=True)))


def _positions(n: int, length: int, side: slice) -> NDArray[np.float64]:
    """Where the points of a `side`, a part of `length`, lie between the `n` points of a coarse one,
    counted from the first in its reach.
    """
    positions = (np.arange(side.start, side.stop) + 0.5) * (n / length) - 0.5
    found: NDArray[np.float64] = np.clip(positions, 0, n - 1) - _reach(n, length, side).start
    return found


def _reach(n: int, length: int, side: slice) -> slice:
    """The same along one axis, of `n` points and `length`."""
    if n == length:
        return side
    first = math.floor((side.start + 0.5) * n / length - 0.5)
    last = math.floor((side.stop - 0.5) * n / length - 0.5) + 1
    return slice(min(max(first, 0), n - 1), max(min(last, n - 1), 0) + 1)


def interpolate_axis(
    values: FloatArray, axis: int, positions: NDArray[np.float64]
) -> FloatArray:
    """Values at `positions` (n,) between the planes along an axis; the outermost are repeated."""
    last = values.shape[axis] - 1
    positions = np.clip(positions, 0, last)
    below = positions.astype(np.intp)
    weight = (positions - below).astype(np.float32)
    lower = np.take(values, below, axis=axis)
    upper: FloatArray = np.take(values, np.minimum(below + 1, last), axis=axis)
    upper -= lower
    upper *= weight.reshape(-1, *(1,) * (values.ndim - 1 - axis))
    upper += lower
    return upper
