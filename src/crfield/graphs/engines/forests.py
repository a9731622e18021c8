"""Several joint states of factor graphs without loops: the k of least energy, and samples."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np

from crfield._core.validate import as_count, check_memory
from crfield.graphs.engines.messages import Messages, infer_forest
from crfield.graphs.factors import Doubles
from crfield.graphs.graph import FactorGraph
from crfield.graphs.results import Labels, Ranked


def k_best(graph: FactorGraph, k: int, threads: int | None) -> Ranked:
    """The k joint states of least energy of a forest, exactly, in 2 k inferences.

    Joint states are split into parts by what single variables may be. Min-marginals of a part tell
    its second best joint state, and where that differs from the best: there it is split in two
    (Yanover and Weiss, "Finding the M most probable configurations", 2003).
    """
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
    return Ranked(np.stack(found)[order], energies[order])


def sample(
    graph: FactorGraph, n_samples: int, temperature: float, seed: int, threads: int | None
) -> Labels:
    """Joint states (n_samples, N) of a forest, from the roots outwards."""
    check_memory(
        4.0 * n_samples * graph.n_variables, f"{n_samples} samples", "draw fewer at a time"
    )
    messages = infer_forest(graph, temperature, graph.costs, threads).messages
    assert isinstance(messages, Messages)
    labels = np.empty((n_samples, graph.n_variables), np.int32)
    messages.propagation.choose(seed, labels)
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
    def of(
        cls, graph: FactorGraph, costs: Doubles, threads: int | None, best: Labels | None = None
    ) -> _Part:
        """What costs leave open; `best` is given where it is known."""
        result = infer_forest(graph, 0.0, costs, threads)
        assert result.min_marginals is not None
        best = result.labels if best is None else best
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
        return _Part.of(graph, inside, threads), _Part.of(graph, outside, threads, self.best)
