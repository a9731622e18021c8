"""The verbs: `infer`, `best`, `k_best` and `sample`, over factor graphs, chains, rays and poses.

Each finds the engine that serves its problem: two exact passes or iterated messages on factor
graphs, vectors on grids, the compiled chains, rays, and distance transforms for poses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_count
from crfield.graphs.chains import Chains
from crfield.graphs.engines import chains, forests, poses, rays
from crfield.graphs.engines.messages import Messages, Passing, infer_forest
from crfield.graphs.engines.planes import Planes
from crfield.graphs.factors import PatternFactors
from crfield.graphs.graph import FactorGraph
from crfield.graphs.results import Ranked, Result
from crfield.graphs.settings import InferSettings, as_settings, as_temperature
from crfield.graphs.vision.poses import Poses
from crfield.graphs.vision.rays import RayModel

# What "None" means on factor graphs.
MAX_ITER, TOL = 200, 1e-6


def infer(
    problem: FactorGraph | Chains | RayModel | Poses, *, temperature: float = 1.0,
    schedule: str = "auto", max_iter: int | None = None, damping: float = 0.5,
    tol: float | None = None, convex: bool = False, init: Result | None = None,
    threads: int | None = None,
) -> Result:
    """Marginals, log Z and labels by belief propagation (L7, sum-product and max-product).

    P(x) = exp(-E(x) / T) / Z; messages are costs, sums over states -T log sum exp(-cost / T).
    Exact, in two passes, for chains, poses and factor graphs without loops; all settings but the
    temperature are for loops.

    Parameters
    ----------
    problem : a `FactorGraph`, `Chains`, a `RayModel` or `Poses`.
    temperature : 1 for sum-product, 0 for max-product, or anything between and above, which rays
        and poses do not have.
    schedule : "auto" is "exact", two passes, without loops and floods other graphs; "flooding"
        updates all factors at once, in threads; "sequential" one after the other, to and fro;
        "residual" first those whose incoming messages have changed most. The last two are for
        factor graphs and take time in the square of a variable's number of factors: flood graphs
        with hubs.
    max_iter : most iterations, 200 by default and 10 for rays; of "residual", an iteration is as
        many updates as there are factors.
    damping : share of an old message, as a cost or in log-odds, that stays, within [0, 1). With 0
        messages often swing for ever on loops.
    tol : the largest change of a message to stop at, 1e-6 by default and 1e-4 for rays.
    convex : whether to reweight messages on loops by `FactorGraph.forest_shares` (Wainwright et
        al., 2005): there is one fixed point, and there log_partition is an upper bound of T log Z
        and convex in all costs; marginals are less certain than Bethe's. Not for patterns or rays.
    init : a result on a graph with the same edges, whose messages are gone on from; of no use to
        exact inference.
    threads : native threads, None for all cores; no result depends on them.
    """
    engine = _engine(problem, "infer", _INFER)
    found: Result = engine(problem, as_settings(
        temperature, schedule, max_iter, damping, tol, convex, init, threads
    ))
    return found


def best(problem: FactorGraph | Chains | RayModel | Poses, **settings: Any) -> Result:
    """The labels of least energy, on loops of low energy: `infer` at temperature 0 (L7, MAP).

    problem and settings : as for `infer`.
    """
    return infer(problem, temperature=0.0, **settings)


def k_best(problem: FactorGraph | Chains, k: int, *, threads: int | None = None) -> Ranked:
    """The k labelings of least energy of a forest, or of each of many chains, exactly.

    problem : a `FactorGraph` without loops, or `Chains`, for which labels and energies are lists
        with one array per chain.
    k : how many; there are fewer if there are fewer labelings.
    threads : native threads, None for all cores; no result depends on them.
    """
    found: Ranked = _engine(problem, "k_best", _K_BEST)(problem, k, threads)
    return found


def sample(
    problem: FactorGraph | Chains | Poses, n_samples: int = 1, *, temperature: float = 1.0,
    seed: int = 0, threads: int | None = None,
) -> NDArray[Any]:
    """Independent labels (n_samples, N) drawn from P(x) = exp(-E(x) / T) / Z.

    problem : a `FactorGraph` without loops, `Chains`, or `Poses`, whose temperature is 1.
    seed : the same seed gives the same labels, whatever `threads`.
    """
    engine = _engine(problem, "sample", _SAMPLE)
    count = as_count(n_samples, "n_samples")
    t = as_temperature(temperature, may_be_zero=False)
    number = as_count(seed, "seed", 0, 2**64 - 1)
    labels: NDArray[Any] = engine(problem, count, t, number, threads)
    return labels


def _infer_graph(graph: FactorGraph, settings: InferSettings) -> Result:
    how, t, threads = settings.schedule, settings.temperature, settings.threads
    planes = how in ("auto", "flooding") and graph.planes is not None
    if how == "auto":
        how = "flooding" if planes or not graph.is_forest else "exact"
    if how == "exact":
        return infer_forest(graph, t, graph.costs, threads)
    messages: Passing
    if planes and not settings.convex:
        messages = Planes(graph, t, threads)
    else:
        if settings.convex and any(isinstance(g, PatternFactors) for g in graph.factors):
            raise InputError(
                "convex must be False with patterns, whose cost is that of one temperature, got "
                "True; leave it out."
            )
        shares = graph.forest_shares if settings.convex else None
        messages = Messages(graph, t, graph.costs, threads, shares)
    if settings.init is not None:
        if not isinstance(settings.init, Result):
            raise InputError(
                f"init must be a Result, got {type(settings.init).__name__}; leave it out."
            )
        messages.start_from(settings.init)
    count = MAX_ITER if settings.max_iter is None else settings.max_iter
    tol = TOL if settings.tol is None else settings.tol
    if tol > 0:
        tol = max(tol, messages.rounding)
    residuals: list[float] = []
    for residual in messages.iterate(how, settings.damping):
        residuals.append(residual)
        if residual <= tol or len(residuals) == count:
            break
    return messages.result(np.array(residuals), bool(residuals[-1] <= tol))


_Engines = dict[type, Callable[..., Any]]
_INFER: _Engines = {
    FactorGraph: _infer_graph, Chains: chains.infer, RayModel: rays.infer, Poses: poses.infer,
}
_K_BEST: _Engines = {FactorGraph: forests.k_best, Chains: chains.k_best}
_SAMPLE: _Engines = {FactorGraph: forests.sample, Chains: chains.sample, Poses: poses.sample}


def _engine(problem: Any, verb: str, engines: _Engines) -> Callable[..., Any]:
    for kind in type(problem).__mro__:
        if kind in engines:
            return engines[kind]
    *most, last = (kind.__name__ for kind in engines)
    raise InputError(
        f"problem must be a {', '.join(most)} or {last} for {verb}, got {type(problem).__name__}; "
        "build one first."
    )
