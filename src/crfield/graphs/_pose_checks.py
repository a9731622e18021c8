"""Checks on what makes up a pictorial structure, and on what it is asked about."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    LARGEST_COST,
    InputError,
    as_array,
    as_count,
    first_index,
)
from crfield.graphs.distances import (
    Doubles,
    as_position_costs,
    as_springs,
    check_grid,
)

Indices = NDArray[np.int64]

# Sums of squares of such positions are still numbers.
LARGEST_POSITION = 1e100


def as_parents(parents: Any) -> Indices:
    """The parent of each part, (P,), -1 where it has none."""
    values = as_array(parents, "parents")
    if values.ndim != 1 or len(values) == 0 or values.dtype.kind not in "iu":
        raise InputError(
            f"parents must be a list of whole numbers, got {values.dtype} of shape {values.shape}; "
            "give the number of each part's parent, -1 where it has none."
        )
    own = np.arange(len(values))
    bad = (values < -1) | (values >= len(values)) | (values == own)
    if bad.any():
        part = int(np.argmax(bad))
        raise InputError(
            f"parents must be other parts, 0 to {len(values) - 1}, or -1, got {values[part]} for "
            f"part {part}; number the parts from 0."
        )
    return values.astype(np.int64)


def leaves_first(parents: Indices) -> list[int]:
    """An order of the parts in which each comes before its parent; refuses cycles."""
    waiting = np.bincount(parents[parents >= 0], minlength=len(parents))
    order = [int(part) for part in np.flatnonzero(waiting == 0)]
    for part in order:  # which grows
        parent = int(parents[part])
        if parent >= 0:
            waiting[parent] -= 1
            if waiting[parent] == 0:
                order.append(parent)
    if len(order) < len(parents):
        part = int(np.argmax(waiting > 0))
        raise InputError(
            f"parents must form trees, got a cycle through or above part {part}; set the parent of "
            "one of its parts to -1."
        )
    return order


def as_geometry(
    offsets: Any, weights: Any, transitions: Any, n_parts: int
) -> tuple[Doubles, Doubles, Doubles]:
    """Offsets and weights (P, K or 1, K or 1, 2) and transitions (P, K, K)."""
    springs, steps = as_springs(weights, offsets)
    tables = np.zeros((n_parts, 1, 1)) if transitions is None else _as_tables(transitions)
    shaped = []
    for name, values in (("offsets", steps), ("weights", springs)):
        if values.ndim == 0:
            values = np.broadcast_to(values, (n_parts, 2))
        if values.ndim == 2:
            values = values[:, None, None]
        if values.ndim != 4 or len(values) != n_parts or values.shape[3] != 2:
            raise InputError(
                f"{name} must have shape ({n_parts}, 2), or ({n_parts}, K, K, 2) for K "
                f"orientations, got {np.shape(values)}; give rows and columns for each part."
            )
        shaped.append(values)
    sizes = {size for values in shaped for size in values.shape[1:3]} | set(tables.shape[1:])
    n_states = max(sizes, default=1)
    if transitions is None:
        tables = np.zeros((n_parts, n_states, n_states))
    if not sizes <= {1, n_states} or tables.shape != (n_parts, n_states, n_states):
        raise InputError(
            f"transitions must have shape ({n_parts}, K, K), offsets and weights K or 1 on their "
            f"second and third axes, got {tables.shape}, {shaped[0].shape} and {shaped[1].shape}; "
            "use one number of orientations for all parts."
        )
    # Copies: the caller's arrays may change.
    return np.array(shaped[0]), np.array(shaped[1]), np.array(tables)


def _as_tables(transitions: Any) -> Doubles:
    values = as_position_costs(transitions, LARGEST_COST, "use fewer orientations", "transitions")
    if values.ndim != 3:
        raise InputError(
            f"transitions must have shape (P, K, K), got {values.shape}; give a table for each "
            "part, its parent's orientation first."
        )
    return values


def as_part_costs(costs: Any, n_parts: int, n_orientations: int) -> Doubles:
    """Costs (P, K, H, W)."""
    values = as_position_costs(costs, LARGEST_COST, "use a coarser grid")
    if values.ndim == 3 and n_orientations == 1:
        values = values[:, None]
    if values.ndim != 4 or values.shape[:2] != (n_parts, n_orientations):
        expected = f"({n_parts}, H, W)" if n_orientations == 1 else (
            f"({n_parts}, {n_orientations}, H, W)"
        )
        raise InputError(
            f"costs must have shape {expected}, got {np.shape(costs)}; give a map for each part, "
            "and for each orientation that transitions know."
        )
    check_grid(*values.shape[2:])
    return values


def as_pose(
    positions: Any, orientations: Any, n_parts: int, n_orientations: int, grid: tuple[int, ...]
) -> tuple[Indices, Indices]:
    """Positions (..., P, 2) within the grid and orientations (..., P)."""
    places = as_array(positions, "positions")
    if places.dtype.kind not in "iu" or places.ndim < 2 or places.shape[-2:] != (n_parts, 2):
        raise InputError(
            f"positions must be whole numbers of shape (..., {n_parts}, 2), got {places.dtype} of "
            f"shape {places.shape}; give the row and column of each part."
        )
    if orientations is None:
        turns = np.zeros(places.shape[:-1], np.int64)
        if n_orientations > 1:
            raise InputError(
                f"orientations must be given, got None where parts have {n_orientations}; pass the "
                "number of each part's orientation."
            )
    else:
        turns = as_array(orientations, "orientations")
    if turns.dtype.kind not in "iu" or turns.shape != places.shape[:-1]:
        raise InputError(
            f"orientations must be whole numbers of shape {places.shape[:-1]}, got {turns.dtype} "
            f"of shape {turns.shape}; give one for each position."
        )
    for name, values, limits in (
        ("positions", places, np.array(grid)), ("orientations", turns, np.array(n_orientations))
    ):
        bad = (values < 0) | (values >= limits)
        if bad.any():
            index = first_index(bad)
            raise InputError(
                f"{name} must be at least 0 and less than {limits.tolist()}, got {values[index]} "
                f"at index {index}; leave out poses beyond the grid."
            )
    return places.astype(np.int64), turns.astype(np.int64)


def as_examples(
    positions: Any, orientations: Any, n_orientations: Any, n_parts: int
) -> tuple[Doubles, Indices, int]:
    """Annotated positions (N, P, 2), NaN where a part was not seen, orientations (N, P), and K."""
    places: Doubles = np.asarray(as_array(positions, "positions"), np.float64)
    if places.ndim != 3 or places.shape[1:] != (n_parts, 2) or len(places) == 0:
        raise InputError(
            f"positions must have shape (N, {n_parts}, 2) with N >= 1 examples, got "
            f"{places.shape}; give the row and column of each part."
        )
    if (np.abs(places) > LARGEST_POSITION).any():
        raise InputError(
            f"positions must be finite or NaN, and within {LARGEST_POSITION:g}, got one that is "
            "not; use NaN for parts that were not seen."
        )
    turns = np.zeros(places.shape[:2], np.int64)
    if orientations is not None:
        turns = as_array(orientations, "orientations")
    if turns.dtype.kind not in "iu" or turns.shape != places.shape[:2]:
        raise InputError(
            f"orientations must be whole numbers of shape {places.shape[:2]}, got {turns.dtype} "
            f"of shape {turns.shape}; give one for each position."
        )
    largest = int(turns.max())
    count = largest + 1 if n_orientations is None else as_count(n_orientations, "n_orientations")
    if turns.min() < 0 or largest >= count:
        raise InputError(
            f"orientations must be at least 0 and less than n_orientations, {count}, got "
            f"{turns.min()} to {largest}; number them from 0."
        )
    return places, turns.astype(np.int64), count
