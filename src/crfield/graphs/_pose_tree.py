"""The two passes of messages on trees of parts, and what is read off them."""

from __future__ import annotations

import numpy as np

from crfield._core.validate import InputError
from crfield.graphs._pose_checks import Indices, leaves_first
from crfield.graphs._pose_messages import Link, min_message, sum_message
from crfield.graphs.distances import Doubles


class PartTree:
    """Parts (P,) with parents, and the term of each with its parent.

    links : (P,), from the parent to the part; those of parts without a parent do not count.
    """

    def __init__(self, parents: Indices, links: list[Link]):
        self.parents = parents
        self.links = links
        self.order = leaves_first(parents)
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
        self.require_possible(totals)
        return totals, ups, states

    def gather_sums(self, costs: Doubles, threads: int) -> tuple[Doubles, dict[int, Doubles]]:
        """The same for sum-product."""
        totals, ups = costs.copy(), {}
        for part in self.order:
            if self.parents[part] >= 0:
                ups[part] = sum_message(totals[part], self.links[part].reversed(), threads)
                totals[self.parents[part]] += ups[part]
        return totals, ups

    def require_possible(self, totals: Doubles) -> None:
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
            sums = sums_without_each(base, [ups[child] for child in children])
            for child, rest in zip(children, sums, strict=True):
                link = self.links[child]
                downs[child] = (
                    sum_message(rest, link, threads) if soft
                    else min_message(rest, link, threads)[0]
                )
        return totals

    def decode(
        self, totals: Doubles, states: dict[int, Indices]
    ) -> tuple[Indices, Indices]:
        """Positions and orientations of least energy: from the roots on, what attained minima."""
        best = np.empty(len(self.parents), np.int64)
        for part in reversed(self.order):
            parent = self.parents[part]
            best[part] = (
                totals[part].argmin() if parent < 0 else states[part].flat[best[parent]]
            )
        return split_states(best, totals.shape)


def sums_without_each(base: Doubles, messages: list[Doubles]) -> list[Doubles]:
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


def split_states(states: Indices, shape: tuple[int, ...]) -> tuple[Indices, Indices]:
    """Positions (..., 2) and orientations (...) of numbered states, for costs (P, K, H, W)."""
    turns, rows, columns = np.unravel_index(states, shape[1:])
    return np.stack([rows, columns], -1).astype(np.int64), np.asarray(turns, np.int64)


def draw_states(energies: Doubles, uniforms: Doubles) -> Indices:
    """States with probability in proportion to exp(-energies), one for each number in [0, 1)."""
    sums = np.cumsum(np.exp(energies.min() - energies))
    last = np.searchsorted(sums, sums[-1])  # the last that is possible at all
    found = np.searchsorted(sums, uniforms * sums[-1], "right")
    return np.asarray(np.minimum(found, last), np.int64)
