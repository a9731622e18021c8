"""The text files of the UAI inference competitions: models, evidence, and models with evidence.

A file holds potentials, weights >= 0 that are multiplied; a graph their costs -log w, which add up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

import numpy as np
from numpy.typing import NDArray

from crfield._core.atomic import atomic_path
from crfield._core.validate import (
    InputError,
    as_count,
    as_path,
)
from crfield.graphs._graph_checks import Doubles
from crfield.graphs._uai_model import Whole, build_model, of_one_shape, rows_of_costs
from crfield.graphs._uai_text import NumberFile, potential_words
from crfield.graphs.factor_graph import FactorGraph
from crfield.graphs.factors import Factors, TableFactors

PREAMBLES = ("MARKOV", "BAYES")

# Costs beyond this have exponents that no program reads.
_LARGEST_WRITTEN = 1e18
_ENTRIES_AT_A_TIME = 1 << 16

Path = str | os.PathLike[str]


def read_uai(path: Path) -> FactorGraph:
    """The model in the `.uai` file at `path`, MARKOV or BAYES, as a graph of tables.

    Zero potentials become infinite costs. Potentials of single variables, and constants, which go
    to variable 0, become costs of variables, so that log Z is that of the file. Variables with one
    state are left out of the tables.
    """
    return build_model(NumberFile(path, PREAMBLES))


def write_uai(graph: FactorGraph, path: Path) -> None:
    """Write a graph to `path` as MARKOV, exp(-cost) for costs; it appears whole or not at all.

    Potts, distance and grid factors are written as tables; patterns and rays have none.
    """
    if not isinstance(graph, FactorGraph):
        raise InputError(
            f"graph must be a FactorGraph, got {type(graph).__name__}; build one first."
        )
    for group in graph.factors:
        if not group.has_tables:
            raise InputError(
                f"a UAI file holds tables only, got {type(group).__name__}; leave them out."
            )
    groups = [group for group in (*_costs_as_tables(graph), *graph.factors) if len(group)]
    with atomic_path(as_path(path)) as temporary, temporary.open("w", encoding="ascii") as out:
        out.write(f"MARKOV\n{graph.n_variables}\n{' '.join(map(str, graph.n_states.tolist()))}\n")
        out.write(f"{sum(map(len, groups))}\n")
        for group in groups:
            rows = group.variables.reshape(len(group), -1)
            out.writelines(f"{len(row)} {' '.join(map(str, row))}\n" for row in rows.tolist())
        for group in groups:
            n_states = graph.n_states[group.variables]
            size = group.tables(n_states, slice(1)).size
            step = max(1, _ENTRIES_AT_A_TIME // size)
            for begin in range(0, len(group), step):
                words = _potentials(group.tables(n_states, slice(begin, begin + step)).ravel())
                out.writelines(
                    f"\n{size}\n{' '.join(words[i:i + size])}\n"
                    for i in range(0, len(words), size)
                )


def read_evidence(path: Path, observation: int | None = None) -> dict[int, int]:
    """Observed states by their variables, from the `.evid` file at `path`.

    Either `n v1 s1 ... vn sn`, or the older form, which has the number of observations before such
    lines; `observation` chooses one of several, counted from 0.
    """
    file = NumberFile(path)
    bad = file.first_not_whole(np.arange(len(file)), 0)
    if bad is not None:
        raise file.refusal(bad, "a whole number from 0 on")
    values = [int(value) for value in file.values]
    begins = _old_form(values)
    counts = file.words_by_line
    if begins and counts[0] > 1 and not any(values[begin] for begin in begins):
        begins = None  # rather pairs that were cut off than observations of nothing
    # Both forms fit a few files; then the older one has every observation on a line of its own.
    if len(values) == 1 + 2 * values[0] and not (
        begins and counts == [1, *(1 + 2 * values[begin] for begin in begins)]
    ):
        begins = [0]
    elif begins is None:
        raise InputError(
            f"{file.path}, line 1: expected the number n of observed variables and n pairs of "
            f"variable and state, {1 + 2 * values[0]} numbers for n = {values[0]}, got "
            f"{len(values)}; correct the count or the pairs."
        )
    if not begins:
        return {}
    if observation is None and len(begins) > 1:
        raise InputError(
            f"{file.path} holds {len(begins)} observations, expected one; choose one by "
            f"observation (--observation), from 0 to {len(begins) - 1}."
        )
    begin = begins[as_count(observation or 0, "observation", 0, len(begins) - 1)]
    evidence: dict[int, int] = {}
    for k in range(begin + 1, begin + 1 + 2 * values[begin], 2):
        if values[k] in evidence:
            raise file.refusal(k, "a variable that has no state yet", "observe every variable once")
        evidence[values[k]] = values[k + 1]
    return evidence


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


def _costs_as_tables(graph: FactorGraph) -> Iterator[TableFactors]:
    """Costs of single variables, where there are any, as factors."""
    first = np.cumsum(graph.n_states) - graph.n_states
    variables = np.flatnonzero(np.logical_or.reduceat(graph.costs != 0, first))
    if len(variables):
        for rows in of_one_shape(graph.n_states[variables][:, None]):
            names = variables[rows][:, None]
            states = np.arange(graph.n_states[names[0, 0]])
            yield TableFactors(names, graph.costs[first[names] + states])


def _potentials(costs: Doubles) -> list[str]:
    largest = np.abs(costs[np.isfinite(costs)]).max(initial=0.0)
    if largest > _LARGEST_WRITTEN:
        raise InputError(
            f"costs must not exceed {_LARGEST_WRITTEN:g} in magnitude to be written, got "
            f"{largest:g}; use infinity for what is forbidden."
        )
    return potential_words(costs)


def _old_form(values: list[int]) -> list[int] | None:
    """Where the observations begin in evidence whose first number counts them, None if it has none.
    """
    begins: list[int] = []
    cursor = 1
    while cursor < len(values) and len(begins) < values[0]:
        begins.append(cursor)
        cursor += 1 + 2 * values[cursor]
    return begins if cursor == len(values) and len(begins) == values[0] else None


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
