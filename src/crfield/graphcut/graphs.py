"""Maximal flows and binary labels of least energy on graphs given by their edges."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.validate import InputError, as_array, as_count
from crfield.graphcut._checks import (
    Array,
    as_capacities,
    as_costs,
    as_edges,
    check_not_negative,
)
from crfield.graphcut.results import BinaryResult, FlowResult

_DOUBLE = np.dtype(np.float64)


def max_flow(
    n_nodes: int, edges: Any, capacities: Any, reverse_capacities: Any = None, *, source: int,
    sink: int,
) -> FlowResult:
    """The largest flow from source to sink, by the algorithm of Boykov and Kolmogorov (PAMI 2004).

    It is made for grids and other sparse graphs with short paths. A hub that joins thousands of
    nodes, or paths of thousands of edges, can take time quadratic in the number of nodes.

    n_nodes : N, including source and sink.
    edges : (E, 2), from and to; several edges may join the same nodes.
    capacities : (E,) >= 0; work is done in int64 if all are whole numbers, else in float64.
    reverse_capacities : (E,) >= 0 from the second node to the first, 0 by default.
    """
    count = as_count(n_nodes, "n_nodes", 2)
    ends = as_edges(edges, count)
    start, end = (
        as_count(node, name, 0, count - 1) for node, name in ((source, "source"), (sink, "sink"))
    )
    if start == end:
        raise InputError(
            f"source and sink must be two nodes, got {start} twice; choose another sink."
        )
    if reverse_capacities is None:
        reverse_capacities = np.zeros(len(ends), np.int8)
    given = as_capacities(capacities=capacities, reverse_capacities=reverse_capacities)
    wide = np.int64 if given[0].dtype.kind == "i" else np.float64
    both = [np.ascontiguousarray(values, wide) for values in given]
    for name, values in zip(("capacities", "reverse_capacities"), both, strict=True):
        if values.shape != (len(ends),):
            raise InputError(
                f"{name} must have one number for each of {len(ends)} edges, got shape "
                f"{values.shape}; match edges."
            )
        check_not_negative(values, name)
    supply, demand, passed = _fold_terminals(count, ends, both, start, end)
    inner = ~np.isin(ends, (start, end)).any(1)
    direct = np.minimum(supply, demand)
    side = np.empty(count, np.uint8)
    flow = _native.cut_graph(
        demand - supply, ends[inner], both[0][inner], both[1][inner], side
    )
    side[start] = 1
    value = flow + passed + direct.sum()
    return FlowResult(int(value) if wide is np.int64 else float(value), side.astype(bool))


def _fold_terminals(
    n_nodes: int, ends: NDArray[np.int32], both: list[Array], source: int, sink: int
) -> tuple[Array, Array, Any]:
    """Capacity from the source to each node, from each node to the sink, and between the two."""
    supply, demand = (np.zeros(n_nodes, both[0].dtype) for _ in range(2))
    for tails, heads, values in ((*ends.T, both[0]), (*ends.T[::-1], both[1])):
        leaves, arrives = tails == source, heads == sink
        np.add.at(supply, heads[leaves], values[leaves])
        np.add.at(demand, tails[arrives], values[arrives])
    passed = supply[sink]
    for folded in (supply, demand):
        folded[[source, sink]] = 0
    return supply, demand, passed


def minimize_binary(unary: Any, edges: Any, pairwise: Any) -> BinaryResult:
    """Minimize sum_i unary[i, y_i] + sum_e tables[e, y_i, y_j], e = (i, j), in float64.

    unary : (N, 2).
    edges : (E, 2).
    pairwise : tables (E, 2, 2) with t[0, 0] + t[1, 1] <= t[0, 1] + t[1, 0] (submodular), or weights
        (E,) >= 0 of different labels.
    """
    costs = as_costs(unary, "unary", _DOUBLE)
    if costs.ndim != 2 or costs.shape[1] != 2 or len(costs) == 0:
        raise InputError(
            f"unary must have shape (N, 2), N >= 1, got {costs.shape}; give the costs of labels 0 "
            "and 1 of each node."
        )
    ends = as_edges(edges, len(costs))
    tables, saved = _as_tables(pairwise, len(ends))
    difference = costs[:, 1] - costs[:, 0]
    # A table is a constant, a cost for each end, and half of what equal labels save for each order.
    np.add.at(difference, ends[:, 0], tables[:, 1, 0] - tables[:, 0, 0] - saved)
    np.add.at(difference, ends[:, 1], tables[:, 0, 1] - tables[:, 0, 0] - saved)
    labels = np.empty(len(costs), np.uint8)
    _native.cut_graph(difference, ends, saved, saved, labels)
    first, second = labels[ends].T
    energy = costs[np.arange(len(costs)), labels].sum()
    energy += tables[np.arange(len(ends)), first, second].sum()
    return BinaryResult(labels, float(energy))


def _as_tables(pairwise: Any, n_edges: int) -> tuple[Array, Array]:
    """Tables (E, 2, 2) and half of what equal labels save, (E,) >= 0."""
    given = as_array(pairwise, "pairwise")
    if n_edges + given.size == 0:  # an empty array may have any shape
        given = np.zeros(0)
    if given.shape not in ((n_edges,), (n_edges, 2, 2)):
        raise InputError(
            f"pairwise must have shape ({n_edges},) or ({n_edges}, 2, 2) for {n_edges} edges, got "
            f"{given.shape}; give a weight or a table for each edge."
        )
    values = as_costs(given, "pairwise", _DOUBLE)
    if values.ndim == 1:
        check_not_negative(values, "pairwise")
        return values[:, None, None] * np.array([[0.0, 1.0], [1.0, 0.0]]), values
    saved = values[:, 0, 1] + values[:, 1, 0] - values[:, 0, 0] - values[:, 1, 1]
    precision = np.finfo(given.dtype if given.dtype.kind == "f" else _DOUBLE).eps
    bad = saved < -4 * precision * np.abs(values).sum((1, 2))
    if bad.any():
        edge = int(np.argmax(bad))
        (a, b), (c, d) = values[edge].tolist()
        raise InputError(
            "pairwise must have tables with t[0, 0] + t[1, 1] <= t[0, 1] + t[1, 0], got "
            f"{a:g} + {d:g} > {b:g} + {c:g} at edge {edge}; such an edge prefers different labels "
            "and cannot be cut: lower its diagonal or leave it out."
        )
    return values, np.maximum(saved, 0.0) / 2
