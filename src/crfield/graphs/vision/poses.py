"""Poses: parts at positions of a grid, held together by springs that form trees.

Part p is at a position x_p = (row, column) and, if there are K > 1 of them, in an orientation k_p;
q is its parent, if it has one:

    E(x, k) = sum_p costs[p, k_p, x_p]
            + sum_{p with parent q} transitions[p, k_q, k_p]
              + sum_axes weights[p, k_q, k_p] (x_p - x_q - offsets[p, k_q, k_p])^2,

P(x, k) = exp(-E) / Z. The first sum holds local confidences, the second the geometric fit of L7's
slide on pose estimation.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    LARGEST_COST,
    InputError,
    as_array,
    as_choice,
    as_positive,
    as_scalar,
    as_whole_numbers,
    check_memory,
    refuse_where,
)
from crfield.graphs.vision.distances import Doubles, as_position_costs, as_springs, check_grid
from crfield.graphs.vision.springs import DEPENDENCES, Indices, as_examples, fit_springs

# Its square is still a number.
LARGEST_DEVIATION = 1e100


class PictorialStructure:
    """Parts with springs between each and its parent (L7, pose estimation); see `Poses`.

    E(x, k) = sum_p costs[p, k_p, x_p] + sum_p (transitions[p, k_q, k_p] + sum_axes
    weights[p, k_q, k_p] (x_p - x_q - offsets[p, k_q, k_p])^2), q the parent of p.

    parents : (P,), the number of each part's parent, -1 for one without: a tree or several.
    offsets : (P, 2), where a part is from its parent, in rows and columns; or (P, A, B, 2) with A
        and B either 1 or the number K of orientations, of the parent and of the part itself.
    weights : >= 0, a number or like `offsets`: 1 / (2 variance) of the position. Offsets and
        weights of parts without a parent do not count.
    transitions : (P, K, K), the cost of a part's orientation, last, given its parent's; 0 if left
        out. +inf forbids a pair.
    """

    def __init__(self, parents: Any, offsets: Any, weights: Any, transitions: Any = None):
        self.parents = _as_parents(parents)
        self.offsets, self.weights, self.transitions = _as_geometry(
            offsets, weights, transitions, self.n_parts
        )
        self.leaves_first = _leaves_first(self.parents)

    @property
    def n_parts(self) -> int:
        """P."""
        return len(self.parents)

    @property
    def n_orientations(self) -> int:
        """K."""
        return int(self.transitions.shape[1])

    def __repr__(self) -> str:
        return f"PictorialStructure({self.n_parts} parts, {self.n_orientations} orientations)"

    @classmethod
    def fit(
        cls, positions: Any, parents: Any, *, orientations: Any = None,
        n_orientations: int | None = None, depends_on: str = "both", least_deviation: float = 0.5,
        pseudo_count: float = 1.0,
    ) -> PictorialStructure:
        """Maximum likelihood from annotated poses: offsets are means, weights 1 / (2 variance).

        Parameters
        ----------
        positions : (N, P, 2), rows and columns, NaN for parts that were not seen.
        parents : as for the constructor.
        orientations : (N, P), if parts have several.
        n_orientations : K, by default the largest of them plus 1.
        depends_on : which orientations tell offsets and weights: "own", "parent", "both" or
            "neither". Those with fewer than two examples take the numbers of all together.
        least_deviation : standard deviations are at least this, in pixels.
        pseudo_count : added to how often each pair of orientations was seen. Transitions are
            -log P(k_p | k_q), and with it the normalizer of the Gaussian that belongs to the pair.
        """
        tree = _as_parents(parents)
        dependence = as_choice(depends_on, "depends_on", DEPENDENCES)
        floor = float(as_positive(as_scalar(least_deviation, "least_deviation"), "least_deviation"))
        if floor > LARGEST_DEVIATION:
            raise InputError(
                f"least_deviation must not exceed {LARGEST_DEVIATION:g}, got {floor:g}; try 0.5."
            )
        extra = float(as_positive(as_scalar(pseudo_count, "pseudo_count"), "pseudo_count"))
        places, turns, count = as_examples(positions, orientations, n_orientations, len(tree))
        if count == 1:
            dependence = "neither"
        springs = fit_springs(places, turns, tree, count, dependence, floor, extra)
        return cls(tree, *springs)


class Poses:
    """Poses of a body in an image, for `infer`, `best` and `sample`.

    body : the parts and springs.
    costs : (P, H, W), or (P, K, H, W) for K > 1 orientations; +inf rules a position out.

    A label is the state of a part, (orientation * H + row) * W + column; see `places`. Costs in
    float64 are not copied: leave them as they are while results are read.

    Attributes
    ----------
    costs : (P, K, H, W) float64.
    shape : that of the costs as they were given.
    """

    def __init__(self, body: PictorialStructure, costs: Any) -> None:
        if not isinstance(body, PictorialStructure):
            raise InputError(
                f"body must be a PictorialStructure, got {type(body).__name__}; build one first."
            )
        self.body = body
        self.costs = _as_part_costs(costs, body.n_parts, body.n_orientations)
        self.shape = np.shape(costs)
        n_tables = body.n_orientations + 8
        check_memory(
            6.0 * self.costs.nbytes + 8.0 * n_tables * self.costs[0].size,
            f"Messages for costs of shape {self.costs.shape}", "use a coarser grid",
        )

    def places(self, labels: NDArray[Any]) -> tuple[Indices, Indices]:
        """Positions (..., P, 2) and orientations (..., P) of labels (..., P)."""
        turns, rows, columns = np.unravel_index(labels, self.costs.shape[1:])
        return np.stack([rows, columns], -1).astype(np.int64), np.asarray(turns, np.int64)

    def energy(self, positions: Any, orientations: Any = None) -> Doubles:
        """E of poses: positions (..., P, 2), orientations (..., P) where K > 1; shape (...)."""
        body = self.body
        return self.energies_of(*_as_pose(
            positions, orientations, body.n_parts, body.n_orientations, self.costs.shape[2:]
        ))

    def energies_of(self, positions: Indices, orientations: Indices) -> Doubles:
        """E of checked poses, positions (..., P, 2) and orientations (..., P); shape (...)."""
        body = self.body
        parts = np.arange(body.n_parts)
        rows, columns = positions[..., 0], positions[..., 1]
        total = self.costs[parts, orientations, rows, columns].sum(-1)
        held = np.flatnonzero(body.parents >= 0)
        above = body.parents[held]
        pair = orientations[..., above], orientations[..., held]
        weights, offsets = (
            values[held, pair[0] % values.shape[1], pair[1] % values.shape[2]]
            for values in (body.weights, body.offsets)
        )
        stretch = positions[..., held, :] - positions[..., above, :] - offsets
        total = total + body.transitions[held, pair[0], pair[1]].sum(-1)
        return np.asarray(total + (weights * stretch**2).sum((-2, -1)))

    def __repr__(self) -> str:
        return f"Poses({self.body!r}, costs of shape {self.shape})"


def _as_parents(parents: Any) -> Indices:
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


def _leaves_first(parents: Indices) -> list[int]:
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


def _as_geometry(
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


def _as_part_costs(costs: Any, n_parts: int, n_orientations: int) -> Doubles:
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


def _as_pose(
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
    as_whole_numbers(turns, "orientations", places.shape[:-1], "give one for each position")
    for name, values, limits in (
        ("positions", places, np.array(grid)), ("orientations", turns, np.array(n_orientations))
    ):
        refuse_where(
            (values < 0) | (values >= limits), values,
            f"{name} must be at least 0 and less than {limits.tolist()}",
            "leave out poses beyond the grid",
        )
    return places.astype(np.int64), turns.astype(np.int64)
