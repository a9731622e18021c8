"""Forests as tensors are worked through them, all nodes of one depth at once: sums, minima and the
derivative of marginals.

Everything is in logarithms; messages have their maximum at 0, and what was taken off is added up in
float64, so that long chains lose nothing in float32.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from crfield._core.validate import InputError, as_array
from crfield.nn.tensors import check_tensor

Parents = NDArray[np.int64]


class Level(NamedTuple):
    """Nodes of one depth: places start to stop in the order of a `Schedule`.

    parents : (n,), the place of each one's parent among the level above; None where every node of
        that level has one child, in its own order.
    """

    start: int
    stop: int
    parents: Tensor | None

    def from_above(self, values: Tensor) -> Tensor:
        """Rows (B, n, ...) of the parents, from those of the level above."""
        return values if self.parents is None else values[:, self.parents]

    def add_above(self, values: Tensor, n_above: int) -> Tensor:
        """Rows (B, n, ...) summed over the children of each node of the level above."""
        if self.parents is None:
            return values
        empty = values.new_zeros((len(values), n_above, *values.shape[2:]))
        return empty.index_add(1, self.parents, values)


class Schedule(NamedTuple):
    """The order in which a forest is worked through, on one device.

    nodes, edges : the node or edge at each place; None where that is as it comes.
    node_places, edge_places : their inverses.
    levels : from the roots, which are first in the order, to the deepest leaves.
    """

    nodes: Tensor | None
    edges: Tensor | None
    node_places: Tensor | None
    edge_places: Tensor | None
    levels: Sequence[Level]


class Forest:
    """Nodes with at most one parent each; nothing in it recurses.

    parents : (T,), -1 for a root. Every other node has an edge to its parent; edges are numbered as
        their children are, so that edge t of a chain joins nodes t and t + 1.
    """

    def __init__(self, parents: Parents) -> None:
        self.parents = parents
        self.n_nodes = len(parents)
        self.children = np.flatnonzero(parents >= 0)
        self.n_edges = len(self.children)
        # Of paths through successive nodes the compiled core knows more.
        self.is_path = bool((parents[self.children] == self.children - 1).all())
        self._schedules: dict[torch.device, Schedule] = {}
        self._ends: dict[torch.device, tuple[Tensor, Tensor]] = {}

    def ends(self, device: torch.device) -> tuple[Tensor, Tensor]:
        """The parent and the child of each edge, (E,)."""
        if device not in self._ends:
            parents, children = self.parents[self.children], self.children
            self._ends[device] = (
                torch.from_numpy(parents).to(device), torch.from_numpy(children).to(device)
            )
        return self._ends[device]

    def schedule(self, device: torch.device) -> Schedule:
        """How to work through it on a device."""
        if device not in self._schedules:
            self._schedules[device] = self._make_schedule(device)
        return self._schedules[device]

    @functools.cached_property
    def depths(self) -> NDArray[np.int64]:
        """How many edges lie between each node and its root, by doubling the stride of a walk."""
        n = self.n_nodes
        above = np.append(np.where(self.parents < 0, n, self.parents), n)
        depths = (above != n).astype(np.int64)
        for _ in range(n.bit_length()):
            depths += depths[above]
            above = above[above]
        if (above != n).any():
            node = int(np.argmax(above != n))
            raise InputError(
                f"parents must not run in a circle, got one above node {node}; use "
                "crfield.nn.propagate_graph for graphs with loops."
            )
        return depths[:n]

    def _make_schedule(self, device: torch.device) -> Schedule:
        order = np.argsort(self.depths, kind="stable")
        places = np.argsort(order)
        bounds = np.append(0, np.cumsum(np.bincount(self.depths)))
        n_roots = int(bounds[1])
        rank = np.cumsum(self.parents >= 0) - 1
        edges = rank[order[n_roots:]]
        above = places[self.parents[order[n_roots:]]]
        levels = [Level(0, n_roots, None)]
        for d in range(1, len(bounds) - 1):
            start, stop = int(bounds[d]), int(bounds[d + 1])
            local = above[start - n_roots : stop - n_roots] - bounds[d - 1]
            paired = stop - start == start - bounds[d - 1] and bool(
                (local == np.arange(stop - start)).all()
            )
            found = None if paired else torch.from_numpy(local).to(device)
            levels.append(Level(start, stop, found))
        return Schedule(
            _as_index(order, device), _as_index(edges, device), _as_index(places, device),
            _as_index(np.argsort(edges), device), levels,
        )


def _as_index(order: NDArray[np.int64], device: torch.device) -> Tensor | None:
    is_plain = bool((order == np.arange(len(order))).all())
    return None if is_plain else torch.from_numpy(order).to(device)


def as_forest(parents: Any) -> Forest:
    """The forest of checked parents, remembered for the last few."""
    if isinstance(parents, Forest):
        return parents
    if isinstance(parents, Tensor):
        check_tensor(parents, "parents")
        parents = parents.tolist()
    array = as_array(parents, "parents")
    if array.ndim != 1 or array.dtype.kind not in "iu" or len(array) == 0:
        raise InputError(
            f"parents must be whole numbers of shape (T,), got {array.dtype} of shape "
            f"{array.shape}; give the parent of each node, -1 for a root."
        )
    bad = (array < -1) | (array >= len(array))
    if bad.any():
        index = int(np.argmax(bad))
        raise InputError(
            f"parents must lie between -1 and {len(array) - 1}, got {array[index]} at index "
            f"{index}; number the nodes from 0."
        )
    return _remembered_forest(array.astype(np.int64).tobytes())


@functools.lru_cache(maxsize=64)
def _remembered_forest(parents: bytes) -> Forest:
    forest = Forest(np.frombuffer(parents, np.int64).copy())
    if not forest.is_path:
        _ = forest.depths  # refuses circles
    return forest


@functools.lru_cache(maxsize=256)
def chain_forest(n_nodes: int) -> Forest:
    """A chain of nodes, the first its root."""
    return Forest(np.arange(-1, n_nodes - 1))


@dataclass(frozen=True)
class Structure:
    """A forest, and which of its parts exist in each member of a batch (None: all).

    nodes : (B, T), edges : (B, E); an edge needs both its nodes.
    """

    forest: Forest
    nodes: Tensor | None = None
    edges: Tensor | None = None


class _Ordered:
    """Node and edge arrays of a structure in the order of its schedule, cut into levels."""

    def __init__(self, structure: Structure, device: torch.device) -> None:
        self.schedule = structure.forest.schedule(device)
        self.levels = self.schedule.levels
        self.n_roots = self.levels[0].stop
        self.exists = None if structure.nodes is None else self.nodes(structure.nodes)
        self.joined = None if structure.edges is None else self.edges(structure.edges)[..., None]

    def nodes(self, values: Tensor) -> Tensor:
        order = self.schedule.nodes
        return values if order is None else values[:, order]

    def edges(self, values: Tensor) -> Tensor:
        """In order, unless one row stands for all edges."""
        order = self.schedule.edges
        return values if order is None or values.shape[1] == 1 else values[:, order]

    def of_nodes(self, values: Tensor, level: Level) -> Tensor:
        """The rows of a level."""
        return values[:, level.start : level.stop]

    def of_edges(self, values: Tensor, level: Level) -> Tensor:
        """The rows of the edges above a level."""
        if values.shape[1] == 1:
            return values
        return values[:, level.start - self.n_roots : level.stop - self.n_roots]

    def is_joined(self, level: Level) -> Tensor | None:
        """Which edges above a level exist, (B, n, 1)."""
        return None if self.joined is None else self.of_edges(self.joined, level)

    def climb(
        self, values: Tensor, send: Callable[[Level, Tensor], Tensor]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """From the leaves to the roots: of each level the rows of `values` plus what came from
        below, and what it sends to the level above, send(level, rows); of the roots nothing.
        """
        found = [self.of_nodes(values, level) for level in self.levels]
        sent = list(found)
        for d in range(len(self.levels) - 1, 0, -1):
            level, above = self.levels[d], self.levels[d - 1]
            sent[d] = send(level, found[d])
            found[d - 1] = found[d - 1] + level.add_above(sent[d], above.stop - above.start)
        return found, sent

    def to_nodes(self, values: Tensor) -> Tensor:
        """Back in the order of the nodes."""
        places = self.schedule.node_places
        return values if places is None else values[:, places]

    def to_edges(self, values: Tensor) -> Tensor:
        """Back in the order of the edges."""
        places = self.schedule.edge_places
        return values if places is None else values[:, places]


def _rows(parts: list[Tensor], like: Tensor) -> Tensor:
    """Parts (B, n, L) of all levels but the roots, one after the other."""
    return torch.cat(parts[1:], 1) if len(parts) > 1 else like[:, :0]


def sum_forest(
    structure: Structure, costs: Tensor, tables: Tensor, *, nodes: bool, edges: bool
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """log Z (B,) in float64; P(x_t) (B, T, L) and P(x_parent, x_child) (B, E, L, L) if asked for.

    costs : (B, T, L); tables : (B or 1, E or 1, L, L), parents' labels first.
    """
    ordered = _Ordered(structure, costs.device)
    costs, tables = ordered.nodes(costs), ordered.edges(tables)
    beliefs, messages, log_partition = _upward(ordered, -costs, tables)
    if not (nodes or edges):
        return log_partition, None, None
    full, cavities = [beliefs[0]], [beliefs[0]]
    for d, level in enumerate(ordered.levels[1:], 1):
        # What the parent knows without this child.
        cavities.append(level.from_above(full[-1]) - messages[d])
        down = torch.logsumexp(cavities[d][..., None] - ordered.of_edges(tables, level), -2)
        down = down - down.amax(-1, keepdim=True)
        joined = ordered.is_joined(level)
        full.append(beliefs[d] + (down if joined is None else down.where(joined, 0.0)))
    found_nodes = found_edges = None
    if nodes:
        found_nodes = ordered.to_nodes(torch.softmax(torch.cat(full, 1), -1))
        if structure.nodes is not None:
            found_nodes = found_nodes * structure.nodes[..., None]
    if edges:
        pairs = _rows(cavities, costs)[..., None] - tables + _rows(beliefs, costs)[..., None, :]
        joint = torch.softmax(pairs.flatten(-2), -1)
        joint = joint if ordered.joined is None else joint * ordered.joined
        found_edges = ordered.to_edges(joint.reshape(pairs.shape))
    return log_partition, found_nodes, found_edges


def _upward(
    ordered: _Ordered, scores: Tensor, tables: Tensor
) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Of each level the scores of its nodes with all below, and messages to the level above."""
    totals = []

    def send(level: Level, own: Tensor) -> Tensor:
        message = torch.logsumexp(own[..., None, :] - ordered.of_edges(tables, level), -1)
        shift = message.amax(-1, keepdim=True)
        message = message - shift
        joined = ordered.is_joined(level)
        if joined is not None and ordered.exists is not None:
            message = message.where(joined, 0.0)
            # Without its edge an existing node is the root of what is below it.
            alone = torch.logsumexp(own, -1, keepdim=True)
            exists = ordered.of_nodes(ordered.exists, level)[..., None]
            shift = torch.where(joined, shift, alone * exists)
        totals.append(shift[..., 0])
        return message

    beliefs, messages = ordered.climb(scores, send)
    roots = torch.logsumexp(beliefs[0], -1)
    if ordered.exists is not None:
        roots = roots * ordered.exists[:, : ordered.n_roots]
    return beliefs, messages, torch.cat([*totals, roots], 1).sum(1, dtype=torch.float64)


def minimize_forest(structure: Structure, costs: Tensor, tables: Tensor) -> Tensor:
    """Labels (B, T) of least energy, -1 for nodes that do not exist."""
    ordered = _Ordered(structure, costs.device)
    costs, tables, levels = ordered.nodes(costs), ordered.edges(tables), ordered.levels
    choices: list[Tensor] = []  # of the deepest level first

    def send(level: Level, own: Tensor) -> Tensor:
        message, choice = (own[..., None, :] + ordered.of_edges(tables, level)).min(-1)
        choices.append(choice)
        message = message - message.amin(-1, keepdim=True)
        joined = ordered.is_joined(level)
        return message if joined is None else message.where(joined, 0.0)

    beliefs, _ = ordered.climb(costs, send)
    labels = beliefs[0].argmin(-1)
    parts = [labels]
    for d, level in enumerate(levels[1:], 1):
        labels = choices[-d].gather(-1, level.from_above(labels)[..., None])[..., 0]
        joined = ordered.is_joined(level)
        if joined is not None:
            labels = labels.where(joined[..., 0], beliefs[d].argmin(-1))
        parts.append(labels)
    found = ordered.to_nodes(torch.cat(parts, 1))
    return found if structure.nodes is None else found.masked_fill(~structure.nodes, -1)


def differentiate_marginals(
    structure: Structure, nodes: Tensor, edges: Tensor, by_nodes: Tensor, by_edges: Tensor
) -> tuple[Tensor, Tensor]:
    """From a loss's derivatives by the marginals to those by costs (B, T, L) and tables (B, E,...).

    The derivative is -Cov(1[x_t = l], G) = -P(l) (E[G | x_t = l] - E[G]) with G the sum of all
    `by_nodes` and `by_edges` that a labeling collects: marginals are first derivatives of log Z,
    and second ones are symmetric. Conditional expectations need one pass up and one down. All in
    differentiable operations; constants along a tree cancel and are taken off on the way.
    """
    ordered = _Ordered(structure, nodes.device)
    nodes, by_nodes = ordered.nodes(nodes), ordered.nodes(by_nodes)
    edges, by_edges = ordered.edges(edges), ordered.edges(by_edges)
    tiny = torch.finfo(nodes.dtype).tiny
    given_parent = edges / edges.sum(-1, keepdim=True).clamp_min(tiny)
    given_child = edges / edges.sum(-2, keepdim=True).clamp_min(tiny)
    from_edge_up = (given_parent * by_edges).sum(-1)
    from_edge_down = (given_child * by_edges).sum(-2)

    # E[what a node and all below it collect | its label], and of that what its parent's label tells
    below: list[Tensor] = []

    def send(level: Level, own: Tensor) -> Tensor:
        below.append(_centered(own, ordered.of_nodes(nodes, level)))
        expected = (ordered.of_edges(given_parent, level) * below[-1][..., None, :]).sum(-1)
        return expected + ordered.of_edges(from_edge_up, level)

    (roots, *_), sent = ordered.climb(by_nodes, send)
    below.append(_centered(roots, ordered.of_nodes(nodes, ordered.levels[0])))
    below.reverse()
    total, rests = [below[0]], [below[0]]
    for d, level in enumerate(ordered.levels[1:], 1):
        rests.append(level.from_above(total[-1]) - sent[d])
        expected = (ordered.of_edges(given_child, level) * rests[d][..., None]).sum(-2)
        everything = below[d] + expected + ordered.of_edges(from_edge_down, level)
        total.append(_centered(everything, ordered.of_nodes(nodes, level)))
    by_costs = -nodes * torch.cat(total, 1)
    pairs = by_edges + _rows(rests, nodes)[..., None] + _rows(below, nodes)[..., None, :]
    by_tables = -edges * (pairs - (edges * pairs).sum((-2, -1), keepdim=True))
    return ordered.to_nodes(by_costs), ordered.to_edges(by_tables)


def _centered(values: Tensor, chances: Tensor) -> Tensor:
    return values - (chances * values).sum(-1, keepdim=True)
