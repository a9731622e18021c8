"""Several joint states of factor graphs without loops: the k of least energy, and samples."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import as_count, check_memory
from crfield.graphs._chain_inputs import as_temperature
from crfield.graphs._graph_checks import Doubles
from crfield.graphs.factor_graph import FactorGraph, check_graph
from crfield.graphs.graph_results import GraphResult
from crfield.graphs.propagation import infer_forest

Labels = NDArray[np.int32]


@dataclass(frozen=True)
class RankedLabels:
    """Joint states by their energy, the least first.

    Attributes
    ----------
    labels : (k, N) int32; fewer rows where there are fewer joint states.
    energies : (k,) float64.
    """

    labels: Labels
    energies: Doubles


def k_best_graph(graph: FactorGraph, k: int, *, threads: int | None = None) -> RankedLabels:
    """The k joint states of least energy of a `graph` that is a forest, exactly, in 2 k inferences.

    Joint states are split into parts by what single variables may be. Min-marginals of a part tell
    its second best joint state, and where that differs from the best: there it is split in two
    (Yanover and Weiss, "Finding the M most probable configurations", 2003). No result depends on
    `threads`.
    """
    check_graph(graph)
    count = as_count(k, "k")
    check_memory(4.0 * count * graph.n_variables, f"{count} labelings", "use a smaller k")
    first = _Part.of(graph, graph.costs, threads)
    found = [first.best]
    parts = [(first.next_energy, 0, first)]
    number = 1  # of equals the first found comes first
    while len(found) < count and parts:
        energy, _, part = heapq.heappop(parts)
        if not np.isfinite(energy):
            break
        inside, outside = part.split(graph, threads)
        found.append(inside.best)
        for piece in (inside, outside):
            heapq.heappush(parts, (piece.next_energy, number, piece))
            number += 1
    energies = np.array([graph.energy(labels, 0.0) for labels in found])
    order = np.argsort(energies, kind="stable")
    return RankedLabels(np.stack(found)[order], energies[order])


def sample_graph(
    graph: FactorGraph, n_samples: int = 1, *, temperature: float = 1.0, seed: int = 0,
    threads: int | None = None,
) -> Labels:
    """Independent joint states (n_samples, N) of a forest drawn from P, from the roots outwards.

    graph : without loops; P(x) = exp(-E(x) / temperature) / Z.
    seed : the same seed gives the same states, whatever `threads`.
    """
    check_graph(graph)
    count = as_count(n_samples, "n_samples")
    t = as_temperature(temperature, may_be_zero=False, best="infer_graph")
    number = as_count(seed, "seed", 0, 2**64 - 1)
    check_memory(4.0 * count * graph.n_variables, f"{count} samples", "draw fewer at a time")
    result = infer_forest(graph, t, graph.costs, threads)
    labels = np.empty((count, graph.n_variables), np.int32)
    result._messages.propagation.choose(number, labels)
    return labels


@dataclass(frozen=True)
class _Part:
    """Joint states that costs leave open: the best, and where the second best differs from it."""

    costs: Doubles
    best: Labels
    next_energy: float
    variable: int
    state: int

    @classmethod
    def of(cls, graph: FactorGraph, costs: Doubles, threads: int | None) -> _Part:
        result = infer_forest(graph, 0.0, costs, threads)
        assert result.min_marginals is not None
        return cls._with_best(graph, costs, result, result.labels)

    @classmethod
    def _with_best(
        cls, graph: FactorGraph, costs: Doubles, result: GraphResult, best: Labels
    ) -> _Part:
        assert result.min_marginals is not None
        others = result.min_marginals.astype(np.float64)
        others[np.arange(len(best)), best] = np.inf
        variable, state = np.unravel_index(int(np.argmin(others)), others.shape)
        energy = float(others[variable, state] - result.log_partition)
        return cls(costs, best, energy, int(variable), int(state))

    def split(self, graph: FactorGraph, threads: int | None) -> tuple[_Part, _Part]:
        """With the variable in that state, and with it in another."""
        start = int(graph.n_states[:self.variable].sum())
        end = start + int(graph.n_states[self.variable])
        inside, outside = self.costs.copy(), self.costs.copy()
        inside[start:end] = np.inf
        inside[start + self.state] = self.costs[start + self.state]
        outside[start + self.state] = np.inf
        return _Part.of(graph, inside, threads), _Part._with_best(
            graph, outside, infer_forest(graph, 0.0, outside, threads), self.best
        )
