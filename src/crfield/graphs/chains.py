"""Exact inference on chains: marginals, labels of least energy, samples.

E(x) = sum_t costs[t, x_t] + sum_t transitions[x_t, x_{t+1}]; P(x) = exp(-E(x) / temperature) / Z.

Every function takes many chains at once: `costs` is a list of arrays (T, L), an array (C, T, L),
one chain (T, L), or with `lengths` (C,) the rows (N, L) of all chains one after the other.
`transitions` is (L, L) for all edges, or (N - C, L, L) with a table for each edge (or a list with
such an array for each chain): a chain of T nodes has T - 1 edges, and they follow each other as the
chains do. Work is done in float32 if everything is float32 or float16, else in float64 (also for
longdouble and whole numbers); sums are always formed in float64. No result depends on `threads`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.threads import thread_count
from crfield._core.validate import FloatArray, as_count, check_memory
from crfield.graphs._chain_inputs import (
    ChainBatch,
    Labels,
    Offsets,
    as_batch,
    as_labels,
    as_temperature,
    check_edges,
    check_room,
    sum_bytes,
)

Doubles = NDArray[np.float64]


@dataclass(frozen=True)
class BestChains:
    """Labels of least energy; of several the last node takes the lowest, then the one before it.

    Attributes
    ----------
    labels : (N,) int32, chain after chain.
    energies : (C,) float64.
    offsets : (C + 1,), chain c has the nodes offsets[c] to offsets[c + 1].
    """

    labels: Labels
    energies: Doubles
    offsets: Offsets

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Values (N, ...), one row a node, as a list with one array (T, ...) a chain."""
        return np.split(values, self.offsets[1:-1])


@dataclass(frozen=True)
class ChainResult(BestChains):
    """What is known about the labels of chains.

    Attributes
    ----------
    labels, energies : as in `BestChains`.
    log_partition : (C,) float64, T log sum_x exp(-E(x) / T) for temperature T: log Z for T = 1, the
        negative of the least energy for T = 0.
    marginals : (N, L), P(x_t = l).
    transition_marginals : (L, L) float64, the pairwise marginals of all edges of all chains added
        up: how often a pair of successive states is expected.
    edge_marginals : (N - C, L, L), P(x_t = k, x_{t+1} = l) of each edge, if asked for.
    """

    log_partition: Doubles
    marginals: FloatArray
    transition_marginals: Doubles
    edge_marginals: FloatArray | None = None


@dataclass(frozen=True)
class RankedChains:
    """The labelings of least energy of each chain, the best first.

    Attributes
    ----------
    labels : list of (k, T) int32, an array a chain; fewer rows where there are fewer labelings.
    energies : list of (k,) float64.
    """

    labels: list[Labels]
    energies: list[Doubles]


def infer_chains(
    costs: Any, transitions: Any, *, lengths: Any = None, temperature: float = 1.0,
    edge_marginals: bool = False, threads: int | None = None,
) -> ChainResult:
    """Marginals, partition functions and labels of least energy, exactly (L7, sum-product).

    P(x) = exp(-E(x) / T) / Z, E(x) = sum_t costs[t, x_t] + sum_t transitions[x_t, x_{t+1}].

    costs : a list of (T, L), one a chain; (C, T, L); one chain (T, L); or with `lengths` (C,) the
        rows (N, L) of all chains one after the other.
    transitions : (L, L) for all edges, or (N - C, L, L) with a table for each, or a list of these.
    temperature : 1e-6 to 1e100, or 0, which puts all probability on the labels of least energy.
    edge_marginals : whether to keep the pairwise marginals of every edge.
    threads : native threads, None for all cores; no result depends on them.
    """
    batch = as_batch(costs, transitions, lengths)
    value = as_temperature(temperature, may_be_zero=True)
    best = minimize_batch(batch, threads)
    edges = None
    if edge_marginals:
        check_edges(batch)
        shape = (batch.n_nodes - batch.n_chains, batch.n_states, batch.n_states)
        edges = np.zeros(shape, batch.costs.dtype)
    sums = (
        sum_batch(batch, value, edges, threads) if value > 0.0 else _certain(batch, best, edges)
    )
    return ChainResult(best.labels, best.energies, batch.offsets, *sums, edges)


def best_chains(
    costs: Any, transitions: Any, *, lengths: Any = None, threads: int | None = None
) -> BestChains:
    """Labels of least energy (Viterbi); exact for whole numbers whose sums stay below 2^53.

    Inputs are as for `infer_chains`.
    """
    return minimize_batch(as_batch(costs, transitions, lengths), threads)


def k_best_chains(
    costs: Any, transitions: Any, k: int, *, lengths: Any = None, threads: int | None = None
) -> RankedChains:
    """The k labelings of least energy of each chain (list Viterbi).

    Equal ones come in the order of their last labels, then of those before. Inputs are as for
    `infer_chains`.
    """
    batch = as_batch(costs, transitions, lengths)
    asked = as_count(k, "k", 1, (2**31 - 1) // batch.n_states)
    # No chain has more labelings than this; the exponent is cut where k is reached anyway.
    count = min(asked, batch.n_states ** min(batch.longest, 31))
    workers = min(thread_count(threads), batch.n_chains)
    # What is given back; for each thread the lists of two nodes, and where all entries came from.
    given = count * (4.0 * batch.n_nodes + 8.0 * batch.n_chains)
    lists = count * batch.n_states * (16.0 + 4.0 * batch.longest)
    check_room(
        batch, thread_count(threads), tables=2, node_bytes=0.0, more=given + workers * lists
    )
    labels = np.empty(count * batch.n_nodes, np.int32)
    energies = np.empty((batch.n_chains, count))
    _native.k_best_chains(*batch.arguments, labels, energies, thread_count(threads))
    parts = np.split(labels, count * batch.offsets[1:-1])
    known = [int(np.isfinite(row).sum()) for row in energies]
    return RankedChains(
        [part.reshape(count, -1)[:n] for part, n in zip(parts, known, strict=True)],
        [row[:n] for row, n in zip(energies, known, strict=True)],
    )


def sample_chains(
    costs: Any, transitions: Any, *, lengths: Any = None, n_samples: int = 1,
    temperature: float = 1.0, seed: int = 0, threads: int | None = None,
) -> Labels:
    """Independent labels (n_samples, N) drawn from P: filtering forward, sampling backward.

    They depend on the seed, and for each chain on its place in the batch. Inputs are as for
    `infer_chains`.
    """
    batch = as_batch(costs, transitions, lengths)
    count = as_count(n_samples, "n_samples")
    value = as_temperature(temperature, may_be_zero=False)
    number = as_count(seed, "seed", 0, 2**64 - 1)
    check_memory(4.0 * count * batch.n_nodes, f"{count} samples", "draw fewer samples at a time")
    check_room(
        batch, thread_count(threads), tables=4, node_bytes=36.0, more=4.0 * count * batch.n_nodes
    )
    labels = np.empty((count, batch.n_nodes), np.int32)
    _native.sample_chains(*batch.arguments, value, number, labels, thread_count(threads))
    return labels


def chain_energies(
    costs: Any, transitions: Any, labels: Any, *, lengths: Any = None
) -> Doubles:
    """E(x) = sum_t costs[t, x_t] + sum_t transitions[x_t, x_{t+1}] of given labels, (C,).

    labels : (N,), or a list of (T,); other inputs are as for `infer_chains`.
    """
    batch = as_batch(costs, transitions, lengths)
    return energies_of(batch, as_labels(labels, batch))


def energies_of(batch: ChainBatch, labels: Labels) -> Doubles:
    """E(x) of each chain, (C,)."""
    firsts = edge_starts(batch.offsets)
    tables = np.arange(len(firsts)) if batch.per_edge else 0
    costs = batch.costs[np.arange(batch.n_nodes), labels].astype(np.float64)
    costs[firsts] += batch.transitions[tables, labels[firsts], labels[firsts + 1]]
    result: Doubles = np.add.reduceat(costs, batch.offsets[:-1])
    return result


def edge_starts(offsets: Offsets) -> NDArray[np.int64]:
    """The first node of every edge, (N - C,)."""
    return np.delete(np.arange(offsets[-1]), offsets[1:] - 1)


def sum_batch(
    batch: ChainBatch, temperature: float, edges: FloatArray | None, threads: int | None
) -> tuple[Doubles, FloatArray, Doubles]:
    """`log_partition`, `marginals` and `transition_marginals`; fills `edges` where given."""
    # Two tables by rows and by columns and the pairs of an edge; rows of four numbers a state.
    check_room(batch, thread_count(threads), tables=5, node_bytes=36.0, more=sum_bytes(batch))
    log_partition = np.empty(batch.n_chains)
    marginals = np.empty_like(batch.costs)
    counts = np.empty((batch.n_states, batch.n_states))
    _native.sum_chains(
        *batch.arguments, temperature, log_partition, marginals, counts, edges,
        thread_count(threads),
    )
    return temperature * log_partition, marginals, counts


def minimize_batch(batch: ChainBatch, threads: int | None) -> BestChains:
    """Labels of least energy of checked chains."""
    check_room(batch, thread_count(threads), tables=1, node_bytes=4.0, more=4.0 * batch.n_nodes)
    labels, energies = np.empty(batch.n_nodes, np.int32), np.empty(batch.n_chains)
    _native.best_chains(*batch.arguments, labels, energies, thread_count(threads))
    return BestChains(labels, energies, batch.offsets)


def _certain(
    batch: ChainBatch, best: BestChains, edges: FloatArray | None
) -> tuple[Doubles, FloatArray, Doubles]:
    """`sum_batch` at temperature 0."""
    marginals = np.zeros_like(batch.costs)
    marginals[np.arange(batch.n_nodes), best.labels] = 1
    firsts = edge_starts(batch.offsets)
    counts = np.zeros((batch.n_states, batch.n_states))
    pairs = best.labels[firsts], best.labels[firsts + 1]
    np.add.at(counts, pairs, 1.0)
    if edges is not None:
        edges[(np.arange(len(firsts)), *pairs)] = 1
    return -best.energies, marginals, counts
