"""Weights of neighboring cells, (n_offsets, *grid): what it costs if their labels differ.

Entry [k, p] is for p and q = p + offsets[k] in the order of `grid_offsets`, 0 where q is off the
grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from crfield._core.validate import (
    FloatArray,
    InputError,
    as_array,
    as_count,
    as_floats,
    as_not_negative,
    as_scalar,
    refuse_where,
    shown,
    working_dtype,
)
from crfield.graphcut._checks import check_room
from crfield.graphcut.neighborhood import NEIGHBORS, grid_offsets, pairs_region

Offset = tuple[int, ...]

# Sums of squares of numbers up to this, over any image, are finite.
_LARGEST_COLOR = 1e100


def constant_weights(grid: Any, neighbors: int) -> FloatArray:
    """1 for every pair of neighbors, (n_offsets, *grid).

    grid : 2 or 3 lengths.
    neighbors : 4 or 8, in 3-D 6 or 26.
    """
    ndim = _axes_of(neighbors)
    if not isinstance(grid, Sequence) or len(grid) != ndim:
        raise InputError(
            f"grid must be {ndim} lengths for {neighbors} neighbors, got {shown(grid)}; "
            "choose neighbors for its axes."
        )
    lengths = tuple(as_count(length, "grid") for length in grid)
    return _fill(lengths, neighbors, np.dtype(np.float32), lambda p, q, offset: 1.0)


def contrast_weights(image: Any, neighbors: int, beta: float | None = None) -> FloatArray:
    """exp(-beta |I_p - I_q|^2) / |p - q|: small where colors change.

    image : (*grid, C) or (*grid,).
    neighbors : 4 or 8 for an image, 6 or 26 for a volume.
    beta : by default 1 / (2 <|I_p - I_q|^2>), the mean over all pairs of neighbors.
    """
    ndim = _axes_of(neighbors)
    given = as_array(image, "image")
    if given.ndim not in (ndim, ndim + 1) or given.size == 0:
        raise InputError(
            f"image must have {ndim} axes and perhaps one of channels for {neighbors} neighbors, "
            f"got shape {given.shape}; choose neighbors for its axes."
        )
    dtype = working_dtype(given)
    colors = as_floats(given, "image", np.dtype(np.float64))
    if colors.ndim == ndim:
        colors = colors[..., None]
    grid = colors.shape[:-1]

    largest = float(np.abs(colors).max())
    if largest > _LARGEST_COLOR:
        raise InputError(
            f"image must not exceed {_LARGEST_COLOR:g} in magnitude, got {largest:.3g}; scale it."
        )

    def squared(p: Any, q: Any) -> FloatArray:
        return np.asarray(((colors[p] - colors[q]) ** 2).sum(-1))

    if beta is None:
        # Weights do not depend on the origin and scale of the colors. Relative to the first cell
        # and scaled to about 1, squares of tiny differences do not underflow.
        colors = colors - colors[(0,) * ndim]
        colors = np.ldexp(colors, -int(np.frexp(np.abs(colors).max())[1]))
        found = [squared(p, q) for p, q, _ in _pairs(grid, neighbors)]
        mean = sum(float(part.sum()) for part in found) / max(sum(part.size for part in found), 1)
        sharpness = 0.5 / mean if mean > 0 else 0.0
    else:
        sharpness = as_not_negative(beta, "beta")
    with np.errstate(over="ignore"):  # exp(-inf) is the weight
        return _fill(
            grid, neighbors, dtype,
            lambda p, q, offset: np.exp(-sharpness * squared(p, q)) / math.hypot(*offset),
        )


def boundary_weights(boundary: Any, neighbors: int, floor: float = 1e-3) -> FloatArray:
    """-max(log Pb_p, log Pb_q): small where there is a boundary, between 0 and -log `floor`.

    The result is (n_offsets, *grid), with neighbors as for `constant_weights`.

    boundary : Pb (*grid,), probabilities of a boundary; those below `floor` count as `floor`.
    """
    ndim = _axes_of(neighbors)
    given = as_array(boundary, "boundary")
    lowest = as_scalar(floor, "floor")
    if not 0 < lowest <= 1:
        raise InputError(
            f"floor must be above 0 and at most 1, got {lowest:g}; a small probability such as "
            "1e-3 keeps the weights finite."
        )
    if given.ndim != ndim or given.size == 0:
        raise InputError(
            f"boundary must have {ndim} axes for {neighbors} neighbors, got shape {given.shape}; "
            "choose neighbors for its axes."
        )
    probabilities = as_floats(given, "boundary")
    refuse_where(
        (probabilities < 0) | (probabilities > 1), probabilities,
        "boundary must hold probabilities from 0 to 1", "scale or clip it",
    )
    costs = -np.log(np.maximum(probabilities, lowest))
    return _fill(
        given.shape, neighbors, probabilities.dtype,
        lambda p, q, offset: np.maximum(np.minimum(costs[p], costs[q]), 0.0),
    )


def _axes_of(neighbors: Any) -> int:
    for ndim, known in NEIGHBORS.items():
        if as_count(neighbors, "neighbors") in known:
            return ndim
    raise InputError(
        f"neighbors must be 4 or 8 for an image, 6 or 26 for a volume, got {neighbors}; "
        "choose one of them."
    )


def _pairs(
    grid: tuple[int, ...], neighbors: int
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...], Offset]]:
    """For each offset: the region of p, the region of q, and the offset."""
    for offset in grid_offsets(len(grid), neighbors):
        opposite = tuple(-step for step in offset)
        yield pairs_region(grid, offset), pairs_region(grid, opposite), offset


def _fill(
    grid: tuple[int, ...], neighbors: int, dtype: np.dtype[Any],
    weight: Callable[[Any, Any, Offset], Any],
) -> FloatArray:
    shape = (neighbors // 2, *grid)
    check_room(
        float(math.prod(shape)) * dtype.itemsize, f"An array of weights {shape}",
        "work on tiles of the grid",
    )
    weights = np.zeros(shape, dtype)
    for plane, (p, q, offset) in zip(weights, _pairs(grid, neighbors), strict=True):
        plane[p] = weight(p, q, offset)
    return weights
