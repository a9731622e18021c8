"""Which cells of a grid are neighbors."""

from __future__ import annotations

import itertools
from functools import cache

from crfield._core.validate import InputError, as_count

Offsets = tuple[tuple[int, ...], ...]

# How many neighbors a cell may have, by the number of axes: those that share a face, or all.
NEIGHBORS = {2: (4, 8), 3: (6, 26)}


def grid_offsets(ndim: int, neighbors: int) -> Offsets:
    """Offsets to half of a cell's neighbors, those above (0, ..., 0), so each pair counts once.

    ndim : 2 or 3.
    neighbors : 4 or 8, in 3-D 6 or 26. The nearest come first: ((0, 1), (1, 0)) for 4, and
        (1, 1), (1, -1) after them for 8.
    """
    n_axes = as_count(ndim, "ndim", 2, 3)
    known = NEIGHBORS[n_axes]
    if as_count(neighbors, "neighbors") not in known:
        raise InputError(
            f"neighbors must be {known[0]} or {known[1]} on a grid of {n_axes} axes, got "
            f"{neighbors}; choose one of them."
        )
    return _half_neighborhood(n_axes)[: neighbors // 2]


@cache
def _half_neighborhood(n_axes: int) -> Offsets:
    start = (0,) * n_axes
    half = [offset for offset in itertools.product((1, 0, -1), repeat=n_axes) if offset > start]
    return tuple(sorted(half, key=lambda o: (sum(map(abs, o)), tuple(map(abs, o)))))


def offsets_for(
    weights_shape: tuple[int, ...], grid: tuple[int, ...], neighbors: int | None = None
) -> Offsets:
    """The offsets of `neighbors`, by default what weights (..., n_offsets, *grid) are made for."""
    known = NEIGHBORS[len(grid)]
    if neighbors is None:
        implied = 2 * sum(weights_shape[-len(grid) - 1 : -len(grid)])
        neighbors = implied if implied in known else known[0]
    return grid_offsets(len(grid), neighbors)


def pairs_region(grid: tuple[int, ...], offset: tuple[int, ...]) -> tuple[slice, ...]:
    """The region of cells whose neighbor at the offset is on the grid."""
    return tuple(
        slice(max(0, -step), max(0, length - max(0, step)))
        for length, step in zip(grid, offset, strict=True)
    )


def native_grid(
    grid: tuple[int, ...], offsets: Offsets
) -> tuple[tuple[int, ...], list[tuple[int, ...]]]:
    """A grid and offsets as the compiled core takes them, with three axes."""
    missing = (0,) * (3 - len(grid))
    return tuple(1 for _ in missing) + grid, [missing + offset for offset in offsets]
