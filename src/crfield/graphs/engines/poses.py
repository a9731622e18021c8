"""Exact inference on trees of parts: messages from the leaves to the roots and back.

Each message is a distance transform (`crfield.graphs.vision.distances`): the best pose of all takes
time linear in the number of positions, not quadratic. A term is table[a, b] +
sum_axes w (x + d - y)^2 for orientations a of the sender and b of the receiver, at positions y and
x, where w and d may depend on a, on b, on both or on neither.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfield._core.threads import thread_count, without_locks
from crfield._core.validate import InputError
from crfield.graphs.results import NO_RESIDUALS, Result, certain
from crfield.graphs.settings import InferSettings, require_sum_or_max
from crfield.graphs.vision.distances import Doubles, sum_images, transform_images
from crfield.graphs.vision.poses import PictorialStructure, Poses
from crfield.graphs.vision.springs import Indices


class _Gathered(NamedTuple):
    """Messages at the roots: costs with all below, what children sent, and what attains minima."""

    tree: _PartTree
    totals: Doubles
    ups: dict[int, Doubles]
    states: dict[int, Indices]


@without_locks
@dataclass(frozen=True, eq=False, repr=False)
class PoseResult(Result):
    """At temperature 1 marginals and log Z are known, at 0 the labels."""

    problem: Poses
    messages: _Gathered | None
    threads: int
    sums: tuple[Doubles, float] | None = None

    @cached_property
    def marginals(self) -> Doubles:
        if self.sums is not None:
            return self.sums[0]
        rows = self.problem.costs.reshape(len(self.labels), -1)
        return certain(rows, self.labels).reshape(self.problem.shape)

    @cached_property
    def labels(self) -> Indices:
        if self.messages is not None:
            return self.messages.tree.decode(self.messages.totals, self.messages.states)
        return np.asarray(self.marginals.reshape(len(self.marginals), -1).argmax(1), np.int64)

    @cached_property
    def positions(self) -> Indices:
        return self.problem.places(self.labels)[0]

    @cached_property
    def orientations(self) -> Indices:
        return self.problem.places(self.labels)[1]

    @cached_property
    def energy(self) -> float:
        return float(self.problem.energies_of(self.positions, self.orientations))

    @cached_property
    def log_partition(self) -> float:
        return self.sums[1] if self.sums else -self.energy

    @cached_property
    def min_marginals(self) -> Doubles | None:
        if self.messages is None:
            return None
        tree, totals, ups, _ = self.messages
        energy = self.energy  # before the messages it is read from are added to
        least = tree.spread(self.problem.costs, totals, ups, False, self.threads)
        # A tree's own least energy is in it; those of the other trees are not.
        least += energy - least.min((1, 2, 3), keepdims=True)
        return least.reshape(self.problem.shape)


def infer(poses: Poses, settings: InferSettings) -> Result:
    """The marginals of all parts, at temperature 0 a pose of least energy."""
    settings.require(("auto", "exact"), "Poses")
    require_sum_or_max(settings.temperature, "Poses")
    threads = thread_count(settings.threads)
    costs, tree = poses.costs, _PartTree(poses.body)
    if settings.temperature == 0:
        found = _Gathered(tree, *tree.gather(costs, threads))
        return PoseResult(poses, 0.0, NO_RESIDUALS, True, True, found, threads)
    totals, ups = tree.gather_sums(costs, threads)
    beliefs = tree.spread(costs, totals, ups, True, threads)
    rows = beliefs.reshape(len(costs), -1)
    # All parts of a tree have the same sum; rounding apart, so that marginals sum to 1.
    norms = soft_minimum(rows.T)
    log_partition = -float(norms[tree.parents < 0].sum())
    marginals = np.exp(norms[:, None] - rows).reshape(poses.shape)
    return PoseResult(
        poses, 1.0, NO_RESIDUALS, True, True, None, threads, (marginals, log_partition)
    )


def sample(
    poses: Poses, n_samples: int, temperature: float, seed: int, threads: int | None
) -> Indices:
    """Labels (n_samples, P): messages to the roots, then each part given its parent.

    A sample takes one look at all positions of each part.
    """
    if temperature != 1:
        raise InputError(
            f"temperature must be 1 for Poses, got {temperature:g}; scale costs and springs."
        )
    rng, tree = np.random.default_rng(seed), _PartTree(poses.body)
    totals, _ = tree.gather_sums(poses.costs, thread_count(threads))
    states = np.empty((n_samples, len(totals)), np.int64)
    for part in reversed(tree.order):
        parent = tree.parents[part]
        if parent < 0:
            states[:, part] = _draw_states(totals[part], rng.random(n_samples))
            continue
        for state in np.unique(states[:, parent]):
            where = np.flatnonzero(states[:, parent] == state)
            given = totals[part] + _term(poses, part, int(state))
            states[where, part] = _draw_states(given, rng.random(len(where)))
    return states


@dataclass(frozen=True)
class Link:
    """The term between a sender and a receiver.

    table : (A, B).
    weights, offsets : (A or 1, B or 1, 2); 1 where they do not depend on that orientation.
    """

    table: Doubles
    weights: Doubles
    offsets: Doubles

    def reversed(self) -> Link:
        """The same term, the receiver sending."""
        return Link(self.table.T, self.weights.swapaxes(0, 1), -self.offsets.swapaxes(0, 1))

    @property
    def depends_on_sender(self) -> bool:
        """Whether weights or offsets differ between the sender's orientations."""
        return len(self.weights) > 1 or len(self.offsets) > 1

    def prepared(self, images: Doubles, sender: int) -> tuple[Doubles, Doubles, Doubles]:
        """Images (n, H, W) of one of the sender's orientations, with weights and offsets (n, 2).

        n is 1 where one image was given and all orientations of the receiver are alike, else B.
        """
        weights, offsets = (
            values[sender % len(values)] for values in (self.weights, self.offsets)
        )
        n = max(len(images), len(weights), len(offsets))
        images, weights, offsets = (
            np.ascontiguousarray(np.broadcast_to(array, (n, *array.shape[1:])))
            for array in (images, weights, offsets)
        )
        return images, weights, offsets


def min_message(
    costs: Doubles, link: Link, threads: int
) -> tuple[Doubles, NDArray[np.int64]]:
    """min over the sender's states of costs (A, H, W) + term, (B, H, W), and which state it is.

    The state of orientation a at pixel i is a H W + i.
    """
    n_pixels = costs[0].size
    if not link.depends_on_sender:
        # The term of positions is the same for all of them: the orientation is chosen first.
        shape = (link.table.shape[1], *costs.shape[1:])
        least, chosen = np.empty(shape), np.empty(shape, np.int64)
        for b, column in enumerate(link.table.T):
            options = costs + column[:, None, None]
            options.argmin(0, out=chosen[b])
            options.min(0, out=least[b])
        values, pixels = transform_images(*link.prepared(least, 0), threads)
        flat = pixels.reshape(len(pixels), -1).astype(np.int64)
        states = np.take_along_axis(chosen.reshape(flat.shape), flat, 1) * n_pixels + flat
        return values, states.reshape(values.shape)
    values = np.full((link.table.shape[1], *costs.shape[1:]), np.inf)
    states = np.zeros(values.shape, np.int64)
    for a, row in enumerate(link.table):
        least, pixels = transform_images(*link.prepared(costs[a, None], a), threads)
        found = least + row[:, None, None]
        is_lower = found < values
        np.copyto(values, found, where=is_lower)
        np.copyto(states, a * n_pixels + pixels.astype(np.int64), where=is_lower)
    return values, states


def sum_message(costs: Doubles, link: Link, threads: int) -> Doubles:
    """-log sum over the sender's states of exp(-(costs (A, H, W) + term)), (B, H, W)."""
    if not link.depends_on_sender:
        joined = np.stack([soft_minimum(costs + row[:, None, None]) for row in link.table.T])
        return sum_images(*link.prepared(joined, 0), threads)
    parts = np.empty((len(costs), link.table.shape[1], *costs.shape[1:]))
    for a, row in enumerate(link.table):
        sums = sum_images(*link.prepared(costs[a, None], a), threads)
        parts[a] = sums + row[:, None, None]
    return soft_minimum(parts)


def soft_minimum(values: Doubles) -> Doubles:
    """-log sum_a exp(-values[a]), +inf where all are."""
    if len(values) == 1:
        return np.asarray(values[0])
    least = np.asarray(values.min(0))
    least[np.isinf(least)] = 0.0  # so that nothing is inf - inf
    with np.errstate(divide="ignore"):
        return np.asarray(least - np.log(np.exp(least - values).sum(0)))


class _PartTree:
    """Two passes of messages over the parts of a body, and what is read off them."""

    def __init__(self, body: PictorialStructure):
        parents = self.parents = body.parents
        # From the parent to the part; those of parts without a parent do not count.
        self.links = [Link(*term) for term in zip(
            body.transitions, body.weights, -body.offsets, strict=True
        )]
        self.order = body.leaves_first
        self.children: list[list[int]] = [[] for _ in self.order]
        for part in self.order:
            if parents[part] >= 0:
                self.children[parents[part]].append(part)

    def gather(
        self, costs: Doubles, threads: int
    ) -> tuple[Doubles, dict[int, Doubles], dict[int, Indices]]:
        """Costs with messages from children, (P, K, H, W), those messages, what attains them."""
        totals, ups, states = costs.copy(), {}, {}
        for part in self.order:
            if self.parents[part] >= 0:
                link = self.links[part].reversed()
                ups[part], states[part] = min_message(totals[part], link, threads)
                totals[self.parents[part]] += ups[part]
        self._require_possible(totals)
        return totals, ups, states

    def gather_sums(self, costs: Doubles, threads: int) -> tuple[Doubles, dict[int, Doubles]]:
        """The same for sum-product."""
        totals, ups = costs.copy(), {}
        for part in self.order:
            if self.parents[part] >= 0:
                ups[part] = sum_message(totals[part], self.links[part].reversed(), threads)
                totals[self.parents[part]] += ups[part]
        self._require_possible(totals)
        return totals, ups

    def _require_possible(self, totals: Doubles) -> None:
        """Refuse trees whose poses all have infinite energy."""
        for part in np.flatnonzero(self.parents < 0):
            if np.isinf(totals[part].min()):
                raise InputError(
                    "costs and transitions must allow at least one pose, got none for the tree of "
                    f"part {part}; make some position of each of its parts finite."
                )

    def spread(
        self, costs: Doubles, totals: Doubles, ups: dict[int, Doubles], soft: bool, threads: int
    ) -> Doubles:
        """Beliefs (P, K, H, W): `totals`, to which messages from parents are added in place."""
        downs: dict[int, Doubles] = {}
        for parent in reversed(self.order):
            base = costs[parent]
            if parent in downs:
                base = base + downs[parent]
                totals[parent] += downs.pop(parent)
            children = self.children[parent]
            sums = _sums_without_each(base, [ups[child] for child in children])
            for child, rest in zip(children, sums, strict=True):
                link = self.links[child]
                downs[child] = (
                    sum_message(rest, link, threads) if soft
                    else min_message(rest, link, threads)[0]
                )
        return totals

    def decode(self, totals: Doubles, states: dict[int, Indices]) -> Indices:
        """States (P,) of least energy: from the roots on, what attained minima."""
        best = np.empty(len(self.parents), np.int64)
        for part in reversed(self.order):
            parent = self.parents[part]
            best[part] = (
                totals[part].argmin() if parent < 0 else states[part].flat[best[parent]]
            )
        return best


def _sums_without_each(base: Doubles, messages: list[Doubles]) -> list[Doubles]:
    """base + all messages but one, for each of them; no differences, so they may be infinite."""
    before = [base]
    for message in messages[:-1]:
        before.append(before[-1] + message)
    after: Doubles | None = None
    result: list[Doubles] = []
    for message, rest in zip(messages[::-1], before[: len(messages)][::-1], strict=True):
        result.append(rest if after is None else rest + after)
        after = message if after is None else after + message
    return result[::-1]


def _draw_states(energies: Doubles, uniforms: Doubles) -> Indices:
    """States with probability in proportion to exp(-energies), one for each number in [0, 1)."""
    sums = np.cumsum(np.exp(energies.min() - energies))
    last = np.searchsorted(sums, sums[-1])  # the last that is possible at all
    found = np.searchsorted(sums, uniforms * sums[-1], "right")
    return np.asarray(np.minimum(found, last), np.int64)


def _term(poses: Poses, part: int, state: int) -> Doubles:
    """What the states (K, H, W) of a part cost given its parent's."""
    body, (above, turn) = poses.body, poses.places(np.array(state))
    table = body.transitions[part, turn]
    steps = []
    for axis, size in enumerate(poses.costs.shape[2:]):
        weights, offsets = (
            np.broadcast_to(values[part, turn % values.shape[1], :, axis], table.shape)
            for values in (body.weights, body.offsets)
        )
        stretch = np.arange(size) - above[axis] - offsets[:, None]
        steps.append(weights[:, None] * stretch**2)
    return np.asarray(table[:, None, None] + steps[0][:, :, None] + steps[1][:, None])
