"""Factor graphs by enumeration: an independent reference in float64."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

Cost = Callable[[tuple[int, ...]], float]


@dataclass
class Reference:
    """Variables with costs, and factors as functions of their states."""

    costs: list[np.ndarray]
    factors: list[tuple[tuple[int, ...], Cost]]

    def energy(self, x: tuple[int, ...]) -> float:
        total = sum(float(c[s]) for c, s in zip(self.costs, x, strict=True))
        for variables, cost in self.factors:
            total += cost(tuple(x[v] for v in variables))
        return total

    def joint(self) -> tuple[np.ndarray, np.ndarray]:
        """All states (S, N) and their energies (S,)."""
        states = np.array(list(itertools.product(*(range(len(c)) for c in self.costs))))
        return states, np.array([self.energy(tuple(x)) for x in states])

    def log_partition(self, t: float) -> float:
        _, energies = self.joint()
        least = energies.min()
        return float(-least + t * np.log(np.exp((least - energies) / t).sum()))

    def probabilities(self, t: float) -> tuple[np.ndarray, np.ndarray]:
        states, energies = self.joint()
        weights = np.exp((energies.min() - energies) / t)
        return states, weights / weights.sum()

    def marginals(self, t: float) -> list[np.ndarray]:
        states, p = self.probabilities(t)
        return [
            np.array([p[states[:, v] == s].sum() for s in range(len(c))])
            for v, c in enumerate(self.costs)
        ]

    def factor_marginals(self, variables: tuple[int, ...], t: float) -> np.ndarray:
        states, p = self.probabilities(t)
        out = np.zeros([len(self.costs[v]) for v in variables])
        for x, q in zip(states, p, strict=True):
            out[tuple(x[v] for v in variables)] += q
        return out

    def min_marginals(self) -> list[np.ndarray]:
        states, energies = self.joint()
        return [
            np.array([energies[states[:, v] == s].min() for s in range(len(c))]) - energies.min()
            for v, c in enumerate(self.costs)
        ]


def table_cost(table: np.ndarray) -> Cost:
    return lambda x: float(table[x])


def pattern_cost(w: np.ndarray, c: np.ndarray, composition: str, t: float) -> Cost:
    """w (J, K), c (J,)."""

    def cost(y: tuple[int, ...]) -> float:
        a = c + w @ np.array(y, float)
        if t == 0:
            return -float(np.maximum(a, 0).sum() if composition == "sum" else a.max())
        if composition == "sum":
            return -float(t * np.logaddexp(0, a / t).sum())
        return -float(t * np.logaddexp.reduce(a / t))

    return cost


def ray_cost(scores: np.ndarray, empty: float) -> Cost:
    def cost(o: tuple[int, ...]) -> float:
        score = next((s for s, x in zip(scores, o, strict=True) if x), empty)
        return -float(np.log(score)) if score > 0 else np.inf

    return cost
