"""Springs of pictorial structures by maximum likelihood."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_array, as_count, as_whole_numbers, check_memory
from crfield.graphs.vision.distances import Doubles

Indices = NDArray[np.int64]

# Whether offsets and weights depend on the orientation of the parent, and on the part's own.
DEPENDENCES = {
    "neither": (False, False), "own": (False, True), "parent": (True, False), "both": (True, True),
}

# Sums of squares of such positions are still numbers.
LARGEST_POSITION = 1e100


def fit_springs(
    positions: Doubles, orientations: Indices, parents: Indices, n_orientations: int,
    dependence: str, least_deviation: float, pseudo_count: float,
) -> tuple[Doubles, Doubles, Doubles]:
    """Offsets and weights (P, A, B, 2) and transitions (P, K, K), see `PictorialStructure.fit`."""
    by_parent, by_own = DEPENDENCES[dependence]
    sizes = n_orientations if by_parent else 1, n_orientations if by_own else 1
    n_parts = len(parents)
    check_memory(
        8.0 * n_parts * (6.0 * sizes[0] * sizes[1] + 2.0 * n_orientations**2),
        f"springs of {n_parts} parts in {n_orientations} orientations", "use fewer orientations",
    )
    offsets, variances = np.zeros((n_parts, *sizes, 2)), np.ones((n_parts, *sizes, 2))
    transitions = np.zeros((n_parts, n_orientations, n_orientations))
    for part in np.flatnonzero(parents >= 0):
        above = parents[part]
        steps = positions[:, part] - positions[:, above]
        seen = np.isfinite(steps).all(1)
        if not seen.any():
            raise InputError(
                f"positions must show part {part} together with its parent {above} in at least one "
                "example, got none; add such an example or another parent."
            )
        steps = steps[seen]
        turns = orientations[seen, above], orientations[seen, part]
        groups = turns[0] % sizes[0] * sizes[1] + turns[1] % sizes[1]
        offsets[part], variances[part] = (
            values.reshape(*sizes, 2) for values in _moments(steps, groups, sizes[0] * sizes[1])
        )
        if n_orientations > 1:
            counts = np.full((n_orientations, n_orientations), pseudo_count)
            np.add.at(counts, turns, 1.0)
            transitions[part] = -np.log(counts / counts.sum(1, keepdims=True))
    variances = np.maximum(variances, least_deviation**2)
    if n_orientations > 1:
        held = parents >= 0
        # A wide Gaussian is a low one: without this it would win for being indifferent.
        transitions[held] += 0.5 * np.log(2 * np.pi * variances[held]).sum(-1)
    return offsets, 1 / (2 * variances), transitions


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
    as_whole_numbers(turns, "orientations", places.shape[:2], "give one for each position")
    largest = int(turns.max())
    count = largest + 1 if n_orientations is None else as_count(n_orientations, "n_orientations")
    if turns.min() < 0 or largest >= count:
        raise InputError(
            f"orientations must be at least 0 and less than n_orientations, {count}, got "
            f"{turns.min()} to {largest}; number them from 0."
        )
    return places, turns.astype(np.int64), count


def _moments(steps: Doubles, groups: Indices, n_groups: int) -> tuple[Doubles, Doubles]:
    """Mean and variance (n_groups, 2) of the steps of each group, of all for groups of one."""
    counts = np.bincount(groups, minlength=n_groups)
    sums, squares = np.zeros((n_groups, 2)), np.zeros((n_groups, 2))
    np.add.at(sums, groups, steps)
    share = np.maximum(counts, 1)[:, None]
    means = sums / share
    np.add.at(squares, groups, (steps - means[groups]) ** 2)
    variances = squares / share
    rare = counts < 2
    means[rare], variances[rare] = steps.mean(0), steps.var(0)
    return means, variances
