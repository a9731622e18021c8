"""Energies by the book, all labelings one by one, and SciPy's maximum flow."""

import itertools
from functools import cache

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow


@cache
def grid_pairs(grid, offsets):
    """Plane k, cell p and cell q, one row for each pair of neighbors."""
    index = np.arange(int(np.prod(grid))).reshape(grid)
    rows = []
    for k, offset in enumerate(offsets):
        for p in np.ndindex(*grid):
            q = tuple(np.add(p, offset).tolist())
            if all(0 <= c < length for c, length in zip(q, grid, strict=True)):
                rows.append((k, index[p], index[q]))
    return np.array(rows, int).reshape(-1, 3)


def pair_values(weights, pairs):
    """The weights (n_offsets, *grid) of the rows of `grid_pairs`."""
    return weights.reshape(len(weights), -1)[pairs[:, 0], pairs[:, 1]]


def binary_energy(labels, costs, ends, forward, backward):
    """Energies of labelings (..., N), in float64 or whole numbers."""
    y = np.asarray(labels, np.int64)
    p, q = y[..., ends[:, 0]], y[..., ends[:, 1]]
    wide = np.int64 if np.asarray(costs).dtype.kind == "i" else np.float64
    costs, forward, backward = (np.asarray(a, wide) for a in (costs, forward, backward))
    return (y * costs).sum(-1) + (p * (1 - q) * forward + (1 - p) * q * backward).sum(-1)


def label_energy(labels, unary, ends, weights, mu):
    """Energies of labelings (..., N) with any number of labels, in float64."""
    labels = np.asarray(labels)
    unary, weights, mu = (np.asarray(a, np.float64) for a in (unary, weights, mu))
    return unary[np.arange(len(unary)), labels].sum(-1) + (
        weights * mu[labels[..., ends[:, 0]], labels[..., ends[:, 1]]]
    ).sum(-1)


@cache
def labelings(n, n_labels):
    """All of them, (n_labels**n, n)."""
    return np.array(list(itertools.product(range(n_labels), repeat=n)), np.int64)


def scipy_flow(n_nodes, tails, heads, capacities, source, sink):
    """SciPy's maximum flow; arcs between the same nodes add up."""
    graph = coo_array(
        (np.asarray(capacities, np.int32), (np.asarray(tails), np.asarray(heads))),
        shape=(n_nodes, n_nodes),
    ).tocsr()
    graph.indices, graph.indptr = (a.astype(np.int32) for a in (graph.indices, graph.indptr))
    return int(maximum_flow(graph, source, sink).flow_value)


def scipy_energy(costs, ends, forward, backward):
    """The least energy of binary labels with whole-number costs, by SciPy."""
    n = len(costs)
    source, sink = n, n + 1
    ones, zeros = np.flatnonzero(costs < 0), np.flatnonzero(costs > 0)
    flow = scipy_flow(
        n + 2,
        np.concatenate([np.full(len(ones), source), zeros, ends[:, 0], ends[:, 1]]),
        np.concatenate([ones, np.full(len(zeros), sink), ends[:, 1], ends[:, 0]]),
        np.concatenate([-costs[ones], costs[zeros], forward, backward]), source, sink,
    )
    return flow + int(costs[ones].sum())
