"""Random factor graphs, each as the library's and as the reference's."""

import numpy as np

from crfield.graphs import (
    DistanceFactors,
    FactorGraph,
    PatternFactors,
    PottsFactors,
    RayFactors,
    TableFactors,
)
from graph_reference import Reference, pattern_cost, ray_cost, table_cost


def random_graph(
    rng: np.random.Generator, n: int, forest: bool, t: float, hard: bool = False,
    most_joint: int | None = None,
) -> tuple[FactorGraph, Reference]:
    """n variables with 1 to 4 states and factors of all kinds, tables of orders 1 to 4.

    Where there would be more than `most_joint` joint states, the largest variables shrink.
    """
    sizes = rng.choice([1, 2, 2, 2, 3, 3, 4], n)
    while most_joint is not None and sizes.prod() > most_joint:
        sizes[sizes.argmax()] -= 1
    costs = [rng.normal(0, 2, s) for s in sizes]
    factors, reference = [], []
    # Sets of variables that grow together; a forest's factor takes one of each set.
    part = np.arange(n)

    def pick(order: int, chosen: np.ndarray) -> list[int] | None:
        names = [int(v) for v in rng.permutation(chosen)]
        out: list[int] = []
        for v in names:
            if len(out) == order:
                break
            if not forest or part[v] not in {part[u] for u in out}:
                out.append(v)
        if len(out) < order:
            return None
        for u in out[1:]:
            part[part == part[u]] = part[out[0]]
        return out

    for _ in range(int(rng.integers(1, 2 * n))):
        kind = rng.choice(["table", "table", "potts", "distance", "pattern", "ray"])
        if kind == "table":
            variables = pick(int(rng.integers(1, min(4, n) + 1)), np.arange(n))
            if variables is None:
                continue
            table = rng.normal(0, 2, [sizes[v] for v in variables])
            if hard:
                table[rng.random(table.shape) < 0.15] = np.inf
            factors.append(TableFactors([variables], table))
            reference.append((tuple(variables), table_cost(table)))
        elif kind in ("potts", "distance"):
            size = int(rng.choice(sizes))
            variables = pick(2, np.flatnonzero(sizes == size))
            if variables is None:
                continue
            gaps = np.abs(np.subtract.outer(np.arange(size), np.arange(size))).astype(float)
            weight = float(rng.normal(0, 2))
            if kind == "potts":
                factors.append(PottsFactors([variables], weight))
                table = weight * (gaps > 0)
            else:
                power, ceiling = int(rng.integers(1, 3)), float(rng.choice([np.inf, 1.5]))
                factors.append(DistanceFactors([variables], abs(weight), ceiling, power))
                table = np.minimum(abs(weight) * gaps**power, ceiling)
            reference.append((tuple(variables), table_cost(table)))
        else:
            variables = pick(int(rng.integers(1, 6)), np.flatnonzero(sizes == 2))
            if variables is None:
                continue
            order = len(variables)
            if kind == "pattern":
                composition = "min"
                units = int(rng.integers(1, 4))
                if rng.random() < 0.5:
                    composition, units = "sum", 1 if forest else units
                w, c = rng.normal(0, 2, (units, order)), rng.normal(0, 2, units)
                factors.append(PatternFactors([variables], w, c, composition))
                reference.append((tuple(variables), pattern_cost(w, c, composition, t)))
            else:
                scores, empty = rng.random(order) * (rng.random(order) > 0.2), rng.random()
                factors.append(RayFactors([0, order], variables, scores, empty))
                reference.append((tuple(variables), ray_cost(scores, empty)))
    return FactorGraph(costs, factors), Reference(costs, reference)
