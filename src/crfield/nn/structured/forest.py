"""Forests as tensors are worked through them: all nodes of one depth at once."""

from __future__ import annotations

import functools
from collections.abc import Sequence
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
