"""Poses: parts at positions of a grid, held together by springs that form trees.

Part p is at a position x_p = (row, column) and, if there are K > 1 of them, in an orientation k_p;
q is its parent, if it has one:

    E(x, k) = sum_p costs[p, k_p, x_p]
            + sum_{p with parent q} transitions[p, k_q, k_p]
              + sum_axes weights[p, k_q, k_p] (x_p - x_q - offsets[p, k_q, k_p])^2,

P(x, k) = exp(-E) / Z. The first sum holds local confidences, the second the geometric fit of L7's
slide on pose estimation. On trees two passes of messages are exact, and each is a distance
transform (`crfield.graphs.distances`): the best pose of all takes time linear in the
number of positions, not quadratic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from crfield._core.threads import thread_count
from crfield._core.validate import (
    InputError,
    as_choice,
    as_count,
    as_positive,
    as_scalar,
    check_memory,
)
from crfield.graphs._pose_checks import (
    Indices,
    as_examples,
    as_geometry,
    as_parents,
    as_part_costs,
    as_pose,
)
from crfield.graphs._pose_learning import DEPENDENCES, fit_springs
from crfield.graphs._pose_messages import Link, soft_minimum
from crfield.graphs._pose_tree import PartTree, draw_states, split_states
from crfield.graphs.distances import Doubles

# Its square is still a number.
LARGEST_DEVIATION = 1e100


@dataclass(frozen=True)
class PoseResult:
    """What is known about a pose.

    Attributes
    ----------
    positions : (P, 2), row and column of each part in a pose of least energy.
    orientations : (P,), 0 where there is only one.
    energy : E of that pose.
    log_partition : log Z, where marginals were asked for.
    marginals : (P, H, W) or (P, K, H, W), like the costs: the probability of part p being there.
    min_marginals : in the same shape, if asked for: the least energy of poses with part p there.
    """

    positions: Indices
    orientations: Indices
    energy: float
    log_partition: float | None = None
    marginals: Doubles | None = None
    min_marginals: Doubles | None = None


@dataclass(frozen=True)
class PoseSamples:
    """Poses drawn from a model: positions (S, P, 2) and orientations (S, P)."""

    positions: Indices
    orientations: Indices


class PictorialStructure:
    """Parts with springs between each and its parent (L7, pose estimation).

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
        self.parents = as_parents(parents)
        self.offsets, self.weights, self.transitions = as_geometry(
            offsets, weights, transitions, self.n_parts
        )
        links = [Link(*term) for term in zip(
            self.transitions, self.weights, -self.offsets, strict=True
        )]
        self._tree = PartTree(self.parents, links)

    @property
    def n_parts(self) -> int:
        """P."""
        return len(self.parents)

    @property
    def n_orientations(self) -> int:
        """K."""
        return int(self.transitions.shape[1])

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
        tree = as_parents(parents)
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

    def infer(
        self, costs: Any, *, marginals: bool = True, min_marginals: bool = False,
        threads: int | None = None,
    ) -> PoseResult:
        """A pose of least energy, and the marginals of all parts, exactly.

        costs : (P, H, W), or (P, K, H, W) for K > 1 orientations; +inf rules a position out.
        marginals, min_marginals : whether to compute them.
        threads : native threads, None for all cores.
        """
        values = self._as_costs(costs)
        n_threads = thread_count(threads)
        given = np.shape(costs)
        totals, ups, states = self._tree.gather(values, n_threads)
        positions, orientations = self._tree.decode(totals, states)
        energy = float(self._energies(values, positions, orientations))
        least = log_partition = probabilities = None
        if min_marginals:
            least = self._tree.spread(values, totals, ups, False, n_threads)
            # A tree's own least energy is in it; those of the other trees are not.
            least += energy - least.min((1, 2, 3), keepdims=True)
            least = least.reshape(given)
        if marginals:
            totals, ups = self._tree.gather_sums(values, n_threads)
            beliefs = self._tree.spread(values, totals, ups, True, n_threads)
            rows = beliefs.reshape(self.n_parts, -1)
            # All parts of a tree have the same sum; rounding apart, so that marginals sum to 1.
            norms = soft_minimum(rows.T)
            log_partition = -float(norms[self.parents < 0].sum())
            probabilities = np.exp(norms[:, None] - rows).reshape(given)
        return PoseResult(positions, orientations, energy, log_partition, probabilities, least)

    def energy(self, costs: Any, positions: Any, orientations: Any = None) -> Doubles:
        """E of poses: positions (..., P, 2), orientations (..., P) where K > 1; shape (...).

        costs : as for `infer`.
        """
        values = self._as_costs(costs)
        places, turns = as_pose(
            positions, orientations, self.n_parts, self.n_orientations, values.shape[2:]
        )
        return self._energies(values, places, turns)

    def sample(
        self, costs: Any, n_samples: int = 1, *, seed: int = 0, threads: int | None = None
    ) -> PoseSamples:
        """Independent poses drawn from P: messages to the roots, then each part given its parent.

        A sample takes one look at all positions of each part. `n_samples` of them depend on `seed`,
        not on `threads`; costs are as for `infer`.
        """
        values = self._as_costs(costs)
        count = as_count(n_samples, "n_samples")
        rng = np.random.default_rng(as_count(seed, "seed", 0))
        totals, _ = self._tree.gather_sums(values, thread_count(threads))
        self._tree.require_possible(totals)
        states = np.empty((count, self.n_parts), np.int64)
        for part in reversed(self._tree.order):
            parent = self.parents[part]
            if parent < 0:
                states[:, part] = draw_states(totals[part], rng.random(count))
                continue
            for state in np.unique(states[:, parent]):
                where = np.flatnonzero(states[:, parent] == state)
                given = totals[part] + self._term(part, int(state), values.shape)
                states[where, part] = draw_states(given, rng.random(len(where)))
        return PoseSamples(*split_states(states, values.shape))

    def _as_costs(self, costs: Any) -> Doubles:
        values = as_part_costs(costs, self.n_parts, self.n_orientations)
        n_tables = self.n_orientations + 8
        check_memory(
            6.0 * values.nbytes + 8.0 * n_tables * values[0].size,
            f"Messages for costs of shape {values.shape}", "use a coarser grid",
        )
        return values

    def _energies(self, costs: Doubles, positions: Indices, orientations: Indices) -> Doubles:
        parts = np.arange(self.n_parts)
        rows, columns = positions[..., 0], positions[..., 1]
        total = costs[parts, orientations, rows, columns].sum(-1)
        held = np.flatnonzero(self.parents >= 0)
        above = self.parents[held]
        pair = orientations[..., above], orientations[..., held]
        weights, offsets = (
            values[held, pair[0] % values.shape[1], pair[1] % values.shape[2]]
            for values in (self.weights, self.offsets)
        )
        stretch = positions[..., held, :] - positions[..., above, :] - offsets
        total = total + self.transitions[held, pair[0], pair[1]].sum(-1)
        return np.asarray(total + (weights * stretch**2).sum((-2, -1)))

    def _term(self, part: int, state: int, shape: tuple[int, ...]) -> Doubles:
        """What the states (K, H, W) of a part cost given its parent's."""
        above, turn = split_states(np.array(state), shape)
        table = self.transitions[part, turn]
        steps = []
        for axis, size in enumerate(shape[2:]):
            weights, offsets = (
                np.broadcast_to(values[part, turn % values.shape[1], :, axis], table.shape)
                for values in (self.weights, self.offsets)
            )
            stretch = np.arange(size) - above[axis] - offsets[:, None]
            steps.append(weights[:, None] * stretch**2)
        return np.asarray(table[:, None, None] + steps[0][:, :, None] + steps[1][:, None])
