"""Factor graphs with some of their variables observed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_count
from crfield.graphs.factors import Doubles, Factors, TableFactors, Whole
from crfield.graphs.graph import FactorGraph


def condition(graph: FactorGraph, evidence: Mapping[int, int]) -> FactorGraph:
    """The graph with variables fixed to states, E(x) unchanged for the joint states that agree.

    Their other states cost infinity. Tables lose their axes, and edges with an observed end become
    costs of the other one, which cuts loops; patterns and rays stay as they are. log Z becomes the
    log of the evidence's share of Z.
    """
    if not isinstance(graph, FactorGraph) or not isinstance(evidence, Mapping):
        raise InputError(
            f"condition expects a FactorGraph and states by variables, got {type(graph).__name__} "
            f"and {type(evidence).__name__}; pass evidence such as {{3: 0}}."
        )
    states = _as_states(graph, evidence)
    first = np.cumsum(graph.n_states) - graph.n_states
    variable = np.repeat(np.arange(graph.n_variables), graph.n_states)
    state = np.arange(len(variable)) - first[variable]
    costs = graph.costs.copy()
    costs[(states[variable] >= 0) & (states[variable] != state)] = np.inf
    constant = 0.0
    factors: list[Factors] = []
    for group in graph.factors:
        if not group.has_tables or (states[group.variables] < 0).all():
            factors.append(group)
            continue
        is_free = (states[group.variables] < 0).reshape(len(group), -1).all(1)
        if is_free.any():
            factors.append(group.taken(np.flatnonzero(is_free)))
        for names, tables in _sliced(group, states, graph.n_states[group.variables]):
            order = names.shape[1]
            if order == 0:
                constant += float(tables.sum())
            elif order == 1:
                np.add.at(costs, first[names] + np.arange(tables.shape[1]), tables)
            else:
                factors.append(TableFactors(names, tables))
    costs[:graph.n_states[0]] += constant
    impossible = np.isinf(np.minimum.reduceat(costs, first))
    if impossible.any():
        raise InputError(
            "the evidence must have a probability above 0, got states that the model forbids "
            f"(nothing is left for variable {np.argmax(impossible)}); correct the evidence."
        )
    same = len(factors) == len(graph.factors) and all(
        a is b for a, b in zip(factors, graph.factors, strict=True)
    )
    return graph.with_costs(rows_of_costs(costs, graph.n_states), None if same else factors)


def of_one_shape(shapes: Whole) -> Iterator[Whole]:
    """Rows (m,) of shapes (M, K) that are equal, by and by."""
    key = np.zeros(len(shapes), np.int64)
    for column in shapes.T:
        if (column != column[0]).any():
            key = np.unique(key * (column.max() + 1) + column, return_inverse=True)[1].ravel()
    order = np.argsort(key, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def rows_of_costs(costs: Doubles, n_states: Whole) -> Doubles | list[Doubles]:
    """Costs of all states as FactorGraph takes them."""
    if (n_states == n_states[0]).all():
        return costs.reshape(len(n_states), -1)
    return np.split(costs, np.cumsum(n_states)[:-1])


def _as_states(graph: FactorGraph, evidence: Mapping[int, int]) -> Whole:
    """States (N,), -1 for variables that are not observed."""
    states = np.full(graph.n_variables, -1, np.int64)
    for variable, state in evidence.items():
        v = as_count(variable, "an observed variable", 0, graph.n_variables - 1)
        most = int(graph.n_states[v]) - 1
        states[v] = as_count(state, f"the observed state of variable {v}", 0, most)
    return states


def _sliced(
    group: Factors, states: Whole, n_states: Whole
) -> Iterator[tuple[NDArray[np.int32], Doubles]]:
    """Of factors with observed variables the others (m, k), and tables (m, L_1, ..., L_k) of them.
    """
    names = group.variables.reshape(len(group), -1)
    observed = states[names] >= 0
    touched = np.flatnonzero(observed.any(1))
    for part in of_one_shape(observed[touched].astype(np.int64)):
        rows = touched[part]
        fixed = observed[rows[0]]
        tables = group.tables(n_states, rows)
        index = [
            states[names[rows, k]] if is_fixed else slice(None)
            for k, is_fixed in enumerate(fixed)
        ]
        # The index of rows comes first, so that the axis of factors stays in front.
        yield names[rows][:, ~fixed], np.ascontiguousarray(tables[(np.arange(len(rows)), *index)])
