"""Exact inference on chains: sums, labels of least energy, the best few, samples.

No result depends on `threads`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.threads import thread_count, without_locks
from crfield._core.validate import FloatArray, as_count, check_memory
from crfield.graphs.chains import Chains, Doubles, Labels, edge_starts, energies_of
from crfield.graphs.results import NO_RESIDUALS, Ranked, Result, certain
from crfield.graphs.settings import InferSettings

# Chains are dealt out to threads in so many blocks at most.
_MOST_BLOCKS = 64


@without_locks
@dataclass(frozen=True, eq=False, repr=False)
class ChainResult(Result):
    """At a temperature above 0 `sums` are known, at 0 `best`, the labels and their energies."""

    problem: Chains
    threads: int | None
    sums: tuple[Doubles, FloatArray, Doubles] | None = None
    best: tuple[Labels, Doubles] | None = None

    @cached_property
    def marginals(self) -> FloatArray:
        if self.best is not None:
            return certain(self.problem.costs, self.best[0])
        assert self.sums is not None
        return self.sums[1]

    @cached_property
    def labels(self) -> Labels:
        return self.best[0] if self.best else self.marginals.argmax(1).astype(np.int32)

    @cached_property
    def energy(self) -> Doubles:
        return self.best[1] if self.best else energies_of(self.problem, self.labels)

    @cached_property
    def log_partition(self) -> Doubles:
        return self.sums[0] if self.sums else -self.energy

    @cached_property
    def transition_marginals(self) -> Doubles:
        if self.sums is not None:
            return self.sums[2]
        counts = np.zeros((self.problem.n_states, self.problem.n_states))
        np.add.at(counts, self._pairs, 1.0)
        return counts

    @property
    def _pairs(self) -> tuple[Labels, Labels]:
        firsts = edge_starts(self.problem.offsets)
        return self.labels[firsts], self.labels[firsts + 1]

    def factor_marginals(self, group: int = 0) -> FloatArray:
        as_count(group, "group", 0, 0)
        edges = empty_edges(self.problem)
        if self.temperature > 0.0:
            sum_chains(self.problem, self.temperature, edges, self.threads)
        else:
            edges[(np.arange(len(edges)), *self._pairs)] = 1
        return edges


def infer(chains: Chains, settings: InferSettings) -> Result:
    """Marginals and partition functions, at temperature 0 labels of least energy (Viterbi).

    Minima are exact for whole numbers whose sums stay below 2^53; of several labels the last node
    takes the lowest, then the one before it (L7, sum-product and max-product).
    """
    settings.require(("auto", "exact"), "Chains")
    if settings.temperature > 0.0:
        sums = sum_chains(chains, settings.temperature, None, settings.threads)
        return ChainResult(
            chains, settings.temperature, NO_RESIDUALS, True, True, None, settings.threads, sums
        )
    best = minimize_chains(chains, settings.threads)
    return ChainResult(chains, 0.0, NO_RESIDUALS, True, True, None, settings.threads, None, best)


def k_best(chains: Chains, k: int, threads: int | None) -> Ranked:
    """The k labelings of least energy of each chain (list Viterbi).

    Equal ones come in the order of their last labels, then of those before.
    """
    asked = as_count(k, "k", 1, (2**31 - 1) // chains.n_states)
    longest = _longest(chains)
    # No chain has more labelings than this; the exponent is cut where k is reached anyway.
    count = min(asked, chains.n_states ** min(longest, 31))
    workers = min(thread_count(threads), chains.n_chains)
    # What is given back; for each thread the lists of two nodes, and where all entries came from.
    given = count * (4.0 * chains.n_nodes + 8.0 * chains.n_chains)
    lists = count * chains.n_states * (16.0 + 4.0 * longest)
    check_room(
        chains, thread_count(threads), tables=2, node_bytes=0.0, more=given + workers * lists
    )
    labels = np.empty(count * chains.n_nodes, np.int32)
    energies = np.empty((chains.n_chains, count))
    _native.k_best_chains(*chains.arguments, labels, energies, thread_count(threads))
    parts = np.split(labels, count * chains.offsets[1:-1])
    known = [int(np.isfinite(row).sum()) for row in energies]
    return Ranked(
        [part.reshape(count, -1)[:n] for part, n in zip(parts, known, strict=True)],
        [row[:n] for row, n in zip(energies, known, strict=True)],
    )


def sample(
    chains: Chains, n_samples: int, temperature: float, seed: int, threads: int | None
) -> Labels:
    """Labels (n_samples, N): filtering forward, sampling backward.

    They depend on the seed, and for each chain on its place among the chains.
    """
    check_memory(
        4.0 * n_samples * chains.n_nodes, f"{n_samples} samples", "draw fewer samples at a time"
    )
    check_room(
        chains, thread_count(threads), tables=4, node_bytes=36.0,
        more=4.0 * n_samples * chains.n_nodes,
    )
    labels = np.empty((n_samples, chains.n_nodes), np.int32)
    _native.sample_chains(*chains.arguments, temperature, seed, labels, thread_count(threads))
    return labels


def sum_chains(
    chains: Chains, temperature: float, edges: FloatArray | None, threads: int | None
) -> tuple[Doubles, FloatArray, Doubles]:
    """`log_partition`, `marginals` and `transition_marginals`; fills `edges` where given."""
    # Two tables by rows and by columns and the pairs of an edge; rows of four numbers per state.
    check_room(chains, thread_count(threads), tables=5, node_bytes=36.0, more=_sum_bytes(chains))
    log_partition = np.empty(chains.n_chains)
    marginals = np.empty_like(chains.costs)
    counts = np.empty((chains.n_states, chains.n_states))
    _native.sum_chains(
        *chains.arguments, temperature, log_partition, marginals, counts, edges,
        thread_count(threads),
    )
    return temperature * log_partition, marginals, counts


def minimize_chains(chains: Chains, threads: int | None) -> tuple[Labels, Doubles]:
    """Labels (N,) of least energy, and the energies (C,)."""
    check_room(chains, thread_count(threads), tables=1, node_bytes=4.0, more=4.0 * chains.n_nodes)
    labels, energies = np.empty(chains.n_nodes, np.int32), np.empty(chains.n_chains)
    _native.best_chains(*chains.arguments, labels, energies, thread_count(threads))
    return labels, energies


def empty_edges(chains: Chains) -> FloatArray:
    """Room for the marginals of all edges (N - C, L, L), zeros; refused where there is none."""
    shape = (chains.n_nodes - chains.n_chains, chains.n_states, chains.n_states)
    check_memory(
        float(math.prod(shape)) * chains.costs.itemsize, f"Marginals of edges of shape {shape}",
        "use one table for all edges, or take fewer chains at a time",
    )
    edges: NDArray[np.floating] = np.zeros(shape, chains.costs.dtype)
    return edges


def check_room(
    chains: Chains, threads: int, *, tables: int, node_bytes: float, more: float
) -> None:
    """Refuse chains whose working memory cannot be had.

    tables : tables (L, L) of float64 that each thread makes; node_bytes : what it keeps for each
    node of the longest chain and each state; more : bytes whatever the number of threads.
    """
    longest, stride = _longest(chains), _stride(chains)
    one = tables * 8.0 * chains.n_states * stride + node_bytes * longest * stride
    check_memory(
        min(threads, chains.n_chains, _MOST_BLOCKS) * one + more,
        f"Inference on chains of up to {longest} nodes and {chains.n_states} states",
        "use fewer threads, states or chains at a time, or cut long chains",
    )


def _sum_bytes(chains: Chains) -> float:
    """What sums over labels need whatever the number of threads: counts of blocks of chains, with
    the table multiplied in and without, and what is given back."""
    size = chains.n_states * _stride(chains)
    blocks = min(chains.n_chains, max(1, min(_MOST_BLOCKS, 2**22 // size)))
    return 8.0 * (2 * blocks + 1) * size + float(chains.costs.nbytes) + 8.0 * chains.n_chains


def _longest(chains: Chains) -> int:
    return int(np.diff(chains.offsets).max())


def _stride(chains: Chains) -> int:
    """Numbers that the core keeps for the states of a node."""
    return (chains.n_states + 3) // 4 * 4
