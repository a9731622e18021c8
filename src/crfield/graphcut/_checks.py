"""Costs, capacities, weights and edges as the compiled core takes them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.validate import (
    LARGEST_COST,
    InputError,
    as_array,
    as_floats,
    check_magnitude,
    check_memory,
    refuse_where,
    working_dtype,
)
from crfield.graphcut.neighborhood import Offsets, pairs_region

Array = NDArray[Any]

# The residual capacities of an edge's two directions add up in one number.
_LARGEST_INT32 = 2**30 - 1
_LARGEST_SUM = 2**62
_SMALL_MEMORY = 2**24
# The compiled core counts nodes and both directions of all edges in 32 bits.
_MOST_NODES = 2**31 - 1
_MOST_EDGES = 2**30 - 1


def as_capacities(**named: Any) -> list[Array]:
    """The arrays, C-contiguous and of one type: int32 or int64 if all hold whole numbers, float64
    if any is float64, else float32."""
    arrays = {name: as_array(values, name) for name, values in named.items()}
    if all(array.dtype.kind in "iub" for array in arrays.values()):
        return _as_integers(arrays)
    dtype = max((working_dtype(array) for array in arrays.values()), key=lambda d: d.itemsize)
    return [as_costs(array, name, dtype) for name, array in arrays.items()]


def as_costs(values: Any, name: str, dtype: np.dtype[Any] | None = None) -> Array:
    """Finite floating-point costs of sane size."""
    given = as_array(values, name)
    is_ready = given.dtype == (dtype or working_dtype(given)) and given.flags.c_contiguous
    if is_ready and _native.largest(given.reshape(1, -1), 1) <= LARGEST_COST:  # False for NaN
        return given
    costs = as_floats(given, name, dtype)
    check_magnitude(costs, name)
    return costs


def check_room(n_bytes: float, purpose: str, remedy: str) -> None:
    """Refuse what does not fit into memory; small amounts are not checked."""
    if n_bytes > _SMALL_MEMORY:
        check_memory(n_bytes, purpose, remedy)


def padded_cells(grid: tuple[int, ...]) -> int:
    """How many cells the compiled core stores for a grid: it adds a border after every row and
    every slice, and before the first and after the last cell as far as an offset reaches."""
    *slices, rows, columns = grid
    row = columns + 1
    plane = row * (rows + 1)
    reach = (plane if slices else 0) + row + 1
    return plane * math.prod(slices) + 2 * reach


def _as_integers(arrays: dict[str, Array]) -> list[Array]:
    largest = [max(int(a.max(initial=0)), -int(a.min(initial=0))) for a in arrays.values()]
    bound = sum(most * a.size for most, a in zip(largest, arrays.values(), strict=True))
    if bound > _LARGEST_SUM:  # the bound may be far above the sum, so compute the sum
        total = sum(float(np.abs(a.astype(np.float64)).sum()) for a in arrays.values())
        if total >= _LARGEST_SUM:
            raise InputError(
                f"{' and '.join(arrays)} must have magnitudes whose sum fits in 64 bits, below "
                f"{_LARGEST_SUM:.3g} in all, got {total:.3g}; divide all of them by a common "
                "factor or pass float64."
            )
    dtype = np.int32 if max(largest) <= _LARGEST_INT32 else np.int64
    return [np.ascontiguousarray(array, dtype) for array in arrays.values()]


def check_not_negative(
    values: Array, name: str, remedy: str = "use 0 for pairs that do not matter"
) -> None:
    """Refuse negative numbers, naming the first."""
    if values.size and values.min() < 0:
        refuse_where(values < 0, values, f"{name} must not be negative", remedy)


def as_grid_weights(
    weights: Any, name: str, leading: tuple[int, ...], grid: tuple[int, ...], offsets: Offsets
) -> Array:
    """Weights >= 0 of shape (B, n_offsets, *grid), B one of `leading`; entries whose neighbor is
    off the grid are not checked."""
    array = as_array(weights, name)
    if array.shape[1:] != (len(offsets), *grid) or array.shape[0] not in leading:
        first = " or ".join(map(str, sorted(set(leading))))
        raise InputError(
            f"{name} must have shape ({first}, {len(offsets)}, {', '.join(map(str, grid))}) for "
            f"{2 * len(offsets)} neighbors, got {array.shape}; give a plane for each offset of "
            "grid_offsets."
        )
    most = LARGEST_COST if array.dtype.kind == "f" else _LARGEST_INT32
    with np.errstate(invalid="ignore"):
        is_fine = array.size == 0 or (array.min() >= 0 and float(array.max()) <= most)
    if is_fine:
        return array
    inside = np.zeros_like(array)
    for k, offset in enumerate(offsets):
        region = (slice(None), *pairs_region(grid, offset))
        inside[:, k][region] = array[:, k][region]
    check_not_negative(inside, name)
    return inside


def as_edges(edges: Any, n_nodes: int) -> NDArray[np.int32]:
    """Pairs of different nodes (E, 2)."""
    array = as_array(edges, "edges")
    if array.size == 0:
        array = np.zeros((0, 2), np.int32)
    if array.ndim != 2 or array.shape[1] != 2 or array.dtype.kind not in "iu":
        raise InputError(
            f"edges must be whole numbers of shape (E, 2), got {array.dtype} of shape "
            f"{array.shape}; give the indices of both ends of each edge."
        )
    if n_nodes > _MOST_NODES or len(array) > _MOST_EDGES:
        raise InputError(
            f"a graph may have {_MOST_NODES} nodes and {_MOST_EDGES} edges, got {n_nodes} and "
            f"{len(array)}; cut it into parts."
        )
    for bad, what in (
        ((array < 0).any(1) | (array >= n_nodes).any(1), f"nodes between 0 and {n_nodes - 1}"),
        (array[:, 0] == array[:, 1], "two different nodes"),
    ):
        if bad.any():
            edge = int(np.argmax(bad))
            raise InputError(
                f"edges must join {what}, got {tuple(array[edge].tolist())} at edge {edge}; "
                "correct or leave out that edge."
            )
    return np.ascontiguousarray(array, np.int32)
