"""Belief propagation on factor graphs: exact on forests, damped and iterated on loops.

One implementation for sum-product (temperature 1) and max-product (temperature 0): messages are
costs, and sums over states are soft minima -T log sum exp(-cost / T).
"""

from __future__ import annotations

import numpy as np

from crfield._core.validate import InputError, as_choice, as_count, as_damping, as_scalar
from crfield.graphs._chain_inputs import as_temperature
from crfield.graphs._graph_checks import Doubles
from crfield.graphs._graph_messages import Messages, Planes
from crfield.graphs.factor_graph import FactorGraph, check_graph
from crfield.graphs.graph_results import GraphResult
from crfield.graphs.high_orders import PatternFactors

SCHEDULES = ("auto", "exact", "flooding", "sequential", "residual")


def infer_graph(
    graph: FactorGraph, *, temperature: float = 1.0, schedule: str = "auto", n_iter: int = 200,
    damping: float = 0.5, tol: float = 1e-6, convex: bool = False,
    start: GraphResult | None = None, threads: int | None = None,
) -> GraphResult:
    """Marginals, log Z and labels by belief propagation (L7, sum-product and max-product).

    P(x) = exp(-E(x) / T) / Z; messages are costs, sums over states -T log sum exp(-cost / T).

    Parameters
    ----------
    temperature : 1 for sum-product, 0 for max-product, or anything between and above.
    schedule : "auto" takes two passes, which are exact, on forests and floods other graphs;
        "flooding" updates all factors at once, in threads; "sequential" one after the other, to
        and fro; "residual" first those whose incoming messages have changed most. The last two
        take time in the square of a variable's number of factors: flood graphs with hubs.
    n_iter : iterations at most; of "residual", an iteration is as many updates as there are
        factors.
    damping : share of an old message, as a cost, that stays, within [0, 1); forests need none.
    tol : the largest change of a message to stop at.
    convex : whether to reweight messages on loops by `FactorGraph.forest_shares` (Wainwright et
        al., 2005): there is one fixed point, and there log_partition is an upper bound of T log Z
        and convex in all costs; marginals are less certain than Bethe's. Not for patterns.
    start : a result on a graph with the same edges, whose messages are gone on from; of no use to
        exact inference.
    """
    check_graph(graph)
    t = as_temperature(temperature, may_be_zero=True)
    how = as_choice(schedule, "schedule", SCHEDULES)
    count = as_count(n_iter, "n_iter")
    kept, least = as_damping(damping), as_scalar(tol, "tol")
    if least < 0:
        raise InputError(f"tol must not be negative, got {least:g}; use 0 to do all iterations.")
    if how == "auto":
        how = "flooding" if graph.planes is not None or not graph.is_forest else "exact"
    if how == "exact":
        return infer_forest(graph, t, graph.costs, threads)
    steps: Planes | Messages
    if how == "flooding" and graph.planes is not None and not convex:
        steps = Planes(graph, t, threads)
    else:
        if convex and any(isinstance(group, PatternFactors) for group in graph.factors):
            raise InputError(
                "convex must be False with patterns, whose cost is that of one temperature, got "
                "True; leave it out."
            )
        steps = Messages(
            graph, t, graph.costs, threads, graph.forest_shares if convex else None
        )
    if start is not None:
        if not isinstance(start, GraphResult):
            raise InputError(
                f"start must be a GraphResult, got {type(start).__name__}; leave it out."
            )
        steps.start_from(start)
    if least > 0:
        least = max(least, steps.rounding)
    residuals: list[float] = []
    for residual in steps.iterate(how, kept):
        residuals.append(residual)
        if residual <= least or len(residuals) == count:
            break
    converged = bool(residuals[-1] <= least)
    return steps.result(np.array(residuals), converged, exact=False)


def infer_forest(
    graph: FactorGraph, temperature: float, costs: Doubles, threads: int | None
) -> GraphResult:
    """Exact inference with other costs of single variables than the graph's."""
    check_graph(graph)
    if not graph.is_forest:
        raise InputError(
            "the graph must have no loops for this, got one that has; use infer_graph with "
            "schedule='auto', or condition(graph, {variable: state}) on variables that cut them."
        )
    steps = Messages(graph, temperature, costs, threads)
    steps.propagation.two_pass()
    return steps.result(np.zeros(0), True, exact=True)
