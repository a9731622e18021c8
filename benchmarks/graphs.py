"""Time belief propagation on grids, against PGMax where that is installed, and learning on graphs.

Nothing is timed whose beliefs differ from those of the general form of inference, or from PGMax's;
the exit status is 1 then. For comparison: pip install pgmax "jax<0.5".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cases import Disagreement
from benchmarks.measure import Section, fastest, milliseconds, ratio, run_sections, times
from crfield._core.resources import usable_cores
from crfield.graphs import (
    FactorGraph,
    FeatureGraph,
    FeatureTerm,
    GridFactors,
    TableFactors,
    infer,
    log_linear_loss,
)
from experiments.common import REPOSITORY, provenance

RESULTS = REPOSITORY / "benchmarks" / "results"
# Float32 messages after a hundred iterations.
TOLERANCE = 1e-3
DAMPING, WEIGHT = 0.5, 1.0


@dataclass(frozen=True)
class Scale:
    """How large the cases are and how often they run."""

    repeats: int = 5
    side: int = 100
    large_side: int = 1000
    n_states: int = 5
    n_iter: int = 100
    # Examples, factors per example, states and features from which each is doubled.
    learning: tuple[int, int, int, int] = (100, 40, 8, 16)


FULL = Scale()
# For the tests: every line runs, but the figures mean nothing.
TINY = Scale(repeats=1, side=8, large_side=12, n_states=3, n_iter=5, learning=(2, 3, 2, 2))


def potts_grid(side: int, n_states: int) -> tuple[FactorGraph, NDArray[np.float32]]:
    """Neighbors on a grid that prefer to be equal, and random costs (side, side, n_states)."""
    costs = np.random.default_rng(0).normal(size=(side, side, n_states)).astype(np.float32)
    grid = GridFactors((side, side), WEIGHT, WEIGHT)
    return FactorGraph(costs.reshape(-1, n_states), [grid]), costs


def pgmax_runner(costs: NDArray[np.float32], n_iter: int) -> Callable[[float], Any] | None:
    """temperature -> beliefs (side, side, n_states) of PGMax, compiled; None where it is not."""
    try:
        import jax
        from pgmax import fgraph, fgroup, vgroup
        from pgmax import infer as pgmax_infer
    except ImportError:
        return None
    height, width, n_states = costs.shape
    pixels = vgroup.NDVarArray(num_states=n_states, shape=(height, width))
    graph = fgraph.FactorGraph(variable_groups=pixels)
    pairs = [[pixels[i, j], pixels[i, j + 1]] for i in range(height) for j in range(width - 1)]
    pairs += [[pixels[i, j], pixels[i + 1, j]] for i in range(height - 1) for j in range(width)]
    table = -WEIGHT * (1 - np.eye(n_states))
    graph.add_factors(
        fgroup.PairwiseFactorGroup(variables_for_factors=pairs, log_potential_matrix=table)
    )
    inferer = pgmax_infer.build_inferer(graph.bp_state, backend="bp")
    start = inferer.init(evidence_updates={pixels: jax.numpy.asarray(-costs)})

    def run(temperature: float) -> Any:
        found = inferer.run(
            start, num_iters=n_iter, damping=DAMPING, temperature=temperature
        )
        return inferer.get_beliefs(found)[pixels].block_until_ready()

    return run


def check_grid(
    graph: FactorGraph, n_iter: int, temperature: float, theirs: Any | None
) -> float:
    """The largest error of a belief, as a cost, against the general form and against PGMax."""
    result = infer(graph, temperature=temperature, max_iter=n_iter, damping=DAMPING, tol=0)
    (grid,) = graph.factors
    n_states = int(graph.n_states[0])
    general = FactorGraph(
        graph.costs.reshape(-1, n_states),
        [TableFactors(np.asarray(grid.variables).reshape(-1, 2), WEIGHT * (1 - np.eye(n_states)))],
    )
    exact = infer(
        general, temperature=temperature, max_iter=n_iter, damping=DAMPING, tol=0,
        schedule="flooding",
    )
    pairs = [(result.marginals, exact.marginals)]
    if temperature == 0:
        assert result.min_marginals is not None
        assert exact.min_marginals is not None
        pairs = [(result.min_marginals, exact.min_marginals)]
    if theirs is not None:
        beliefs = np.asarray(theirs, np.float64).reshape(result.marginals.shape)
        beliefs = beliefs.max(1, keepdims=True) - beliefs
        if temperature > 0:
            beliefs = np.exp(-beliefs)
            beliefs /= beliefs.sum(1, keepdims=True)
        pairs.append((pairs[0][0], beliefs))
    worst = max(float(np.abs(a - b).max()) for a, b in pairs)
    if not worst <= TOLERANCE:
        kind = "sum-product" if temperature > 0 else "max-product"
        raise Disagreement(f"beliefs of {kind} differ by {worst:.2g}, not timed")
    return worst


def grids(scale: Scale) -> Section:
    """Flooding on a Potts grid, its growth, and PGMax beside it."""
    section = Section("grids", f"Potts grids, {scale.n_states} labels, {scale.n_iter} iterations")
    graph, costs = potts_grid(scale.side, scale.n_states)
    large, _ = potts_grid(scale.large_side, scale.n_states)
    pgmax = pgmax_runner(costs, scale.n_iter)
    rows = []
    for name, t in (("sum-product", 1.0), ("max-product", 0.0)):
        theirs = None if pgmax is None else pgmax(t)
        error = section.accepts(partial(check_grid, graph, scale.n_iter, t, theirs))
        if error is None:
            continue

        def ours(grid: FactorGraph, n_iter: int, threads: int, t: float = t) -> Any:
            return infer(
                grid, temperature=t, max_iter=n_iter, damping=DAMPING, tol=0, threads=threads
            )

        candidates: dict[str, Callable[[], Any]] = {
            "one thread": partial(ours, graph, scale.n_iter, 1),
            "all threads": partial(ours, graph, scale.n_iter, usable_cores()),
            "large": partial(ours, large, scale.n_iter, usable_cores()),
        }
        if pgmax is not None:
            candidates["PGMax"] = partial(pgmax, t)
        took = fastest(candidates, scale.repeats)
        pixels = (scale.large_side / scale.side) ** 2
        growth = took["large"] / (pixels * took["all threads"])
        speedup = ratio(took.get("PGMax"), took["all threads"])
        section.data[name] = {
            "seconds": took, "error": error, "times_linear": growth, "times_pgmax": speedup,
        }
        rows.append([
            name, milliseconds(took["one thread"]), milliseconds(took["all threads"]),
            milliseconds(took["PGMax"]) if "PGMax" in took else "", times(speedup),
            milliseconds(took["large"]), times(growth),
        ])
    section.add_table(
        [
            f"{scale.side} x {scale.side}", "one thread, ms", f"{usable_cores()} threads, ms",
            "PGMax, ms", "PGMax / ours",
            f"{scale.large_side} x {scale.large_side}, ms", "of linear growth",
        ],
        rows,
    )
    return section


def learning_case(
    n_examples: int, n_factors: int, n_states: int, n_features: int
) -> tuple[FeatureGraph, tuple[NDArray[np.float64], ...], NDArray[np.int32]]:
    """Chains whose nodes and edges both have features, with random weights and labels."""
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(n_examples):
        nodes = np.arange(n_factors + 1, dtype=np.int32)
        edges = np.stack([nodes[:-1], nodes[1:]], 1)
        parts.append(FeatureGraph(
            np.full(len(nodes), n_states, np.int64),
            (FeatureTerm(nodes[:, None], rng.normal(size=(len(nodes), n_features))),
             FeatureTerm(edges, rng.normal(size=(len(edges), n_features)))),
        ))
    data = FeatureGraph.join(parts)
    weights = (
        0.1 * rng.normal(size=(n_features, n_states)),
        0.1 * rng.normal(size=(n_features, n_states, n_states)),
    )
    return data, weights, rng.integers(0, n_states, len(data.n_states)).astype(np.int32)


def learning(scale: Scale) -> Section:
    """One evaluation of the likelihood and its gradient, and what doubling each size does."""
    section = Section("learning", "Likelihood and gradient of log-linear chains, O(N K C^F D)")
    names = ("N examples", "K factors", "C states", "D features")
    cases = {"as it is": scale.learning}
    for i, name in enumerate(names):
        n, k, c, d = (size * (1 + (i == j)) for j, size in enumerate(scale.learning))
        cases[f"twice the {name}"] = n, k, c, d
    runs: dict[str, Callable[[], Any]] = {}
    for name, sizes in cases.items():
        data, weights, labels = learning_case(*sizes)
        like = log_linear_loss(data, weights, labels).result
        runs[name] = partial(log_linear_loss, data, weights, labels, like=like)
    took = fastest(runs, scale.repeats)
    section.data["seconds"] = took
    section.add_table(
        ["", *names, "ms", "of the first"],
        [
            [name, *map(str, cases[name]), milliseconds(seconds),
             times(ratio(seconds, took["as it is"]))]
            for name, seconds in took.items()
        ],
    )
    return section


def run(scale: Scale, folder: Path) -> int:
    """Measure both parts, print them and write them to the folder; 1 if a case was refused."""
    parts = [partial(part, scale) for part in (grids, learning)]
    return run_sections(parts, folder, provenance(), [f"Fastest of {scale.repeats} runs."])


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=FULL.repeats)
    options = parser.parse_args(words)
    if options.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {options.repeats}; use 5.")
    return run(Scale(repeats=options.repeats), RESULTS)


if __name__ == "__main__":
    sys.exit(main())
