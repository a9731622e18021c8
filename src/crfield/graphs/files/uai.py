"""The text files of the UAI inference competitions: models, evidence, and models with evidence.

A file holds potentials, weights >= 0 that are multiplied; a graph their costs -log w, which add up.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from crfield._core.atomic import atomic_path
from crfield._core.validate import InputError, as_count, as_path, check_memory, shown
from crfield.graphs.conditioning import of_one_shape, rows_of_costs
from crfield.graphs.factors import Doubles, Factors, TableFactors, Whole
from crfield.graphs.files.numbers import NumberFile, potential_words
from crfield.graphs.graph import FactorGraph, check_graph

PREAMBLES = ("MARKOV", "BAYES")

# Costs beyond this have exponents that no program reads.
_LARGEST_WRITTEN = 1e18
_ENTRIES_AT_A_TIME = 1 << 16
# States that a file may give to variables of which no table is in it.
_FREE_STATES = 1_000_000

Path = str | os.PathLike[str]


def read_uai(path: Path) -> FactorGraph:
    """The model in the `.uai` file at `path`, MARKOV or BAYES, as a graph of tables.

    Zero potentials become infinite costs. Potentials of single variables, and constants, which go
    to variable 0, become costs of variables, so that log Z is that of the file. Variables with one
    state are left out of the tables.
    """
    return _build_model(NumberFile(path, PREAMBLES))


def write_uai(graph: FactorGraph, path: Path) -> None:
    """Write a graph to `path` as MARKOV, exp(-cost) for costs; it appears whole or not at all.

    Potts, distance and grid factors are written as tables; patterns and rays have none.
    """
    check_graph(graph)
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
            f"observation, from 0 to {len(begins) - 1}."
        )
    begin = begins[as_count(observation or 0, "observation", 0, len(begins) - 1)]
    evidence: dict[int, int] = {}
    for k in range(begin + 1, begin + 1 + 2 * values[begin], 2):
        if values[k] in evidence:
            raise file.refusal(k, "a variable that has no state yet", "observe every variable once")
        evidence[values[k]] = values[k + 1]
    return evidence


@dataclass(frozen=True)
class _Scopes:
    """Which variables each of M factors joins.

    orders : (M,); variables : (sum of orders,); sizes : (M,) entries of the tables, as floats
        because a file may claim any number.
    position : where the tables begin in the file.
    """

    orders: Whole
    variables: Whole
    sizes: Doubles
    position: int

    def of(self, factor: int) -> list[int]:
        """The variables of one factor."""
        end = int(self.orders[:factor + 1].sum())
        return [int(v) for v in self.variables[end - int(self.orders[factor]):end]]


def _build_model(file: NumberFile) -> FactorGraph:
    """The graph of a file, whose numbers are checked one part after the other."""
    check_memory(48.0 * len(file), f"the model in {file.path}", "use a smaller one")
    n_states, position = _read_states(file)
    scopes = _read_scopes(file, position, n_states)
    return _build(file, n_states, scopes, _read_costs(file, scopes))


def _read_states(file: NumberFile) -> tuple[Whole, int]:
    """States of the variables, and where the number of factors stands."""
    n = file.whole(0, "the number of variables, from 1 on", 1)
    if n >= len(file):
        raise file.refusal(len(file), f"the number of states of variable {max(0, len(file) - 1)}")
    bad = file.first_not_whole(np.arange(1, n + 1), 1)
    if bad is not None:
        raise file.refusal(1 + bad, f"the number of states of variable {bad}, from 1 on")
    n_states = file.values[1:n + 1].astype(np.int64)
    # Whatever is in a table has fewer states than the file has words.
    if n_states.sum(dtype=np.float64) > len(file) + _FREE_STATES:
        most = int(np.argmax(n_states))
        raise file.refusal(
            1 + most, f"a number of states of variable {most} that a file of {len(file)} numbers "
            "has tables for",
        )
    return n_states, n + 1


def _read_scopes(file: NumberFile, position: int, n_states: Whole) -> _Scopes:
    n, n_words = len(n_states), len(file)
    n_factors = file.whole(position, "the number of factors, from 0 on", 0)
    values = file.values.data
    found: list[int] = []
    cursor = position + 1
    for factor in range(n_factors):
        order = values[cursor] if cursor < n_words else np.nan
        if not (0 <= order <= n and order % 1 == 0):
            raise file.refusal(
                cursor, f"the number of variables that factor {factor} joins, 0 to {n}",
                doubt=_doubt(np.diff([*found, cursor]) - 1),
            )
        found.append(cursor)
        cursor += 1 + int(order)
    if cursor > n_words:
        raise file.refusal(
            n_words, f"the variables of factor {n_factors - 1}",
            doubt=_doubt(np.diff([*found, cursor]) - 1),
        )
    begins = np.array([*found, cursor], np.int64)
    orders = begins[1:] - begins[:-1] - 1
    is_name = np.ones(cursor - position - 1, bool)
    is_name[begins[:-1] - position - 1] = False
    names = np.flatnonzero(is_name) + position + 1
    factor_of = np.repeat(np.arange(n_factors), orders)
    bad = file.first_not_whole(names, 0, n - 1)
    if bad is not None:
        raise file.refusal(
            int(names[bad]), f"a variable of factor {factor_of[bad]}, 0 to {n - 1}",
            doubt=_doubt(orders[:factor_of[bad]]),
        )
    variables = file.values[names].astype(np.int64)
    place = np.argsort(factor_of * n + variables, kind="stable")
    twice = (np.diff(variables[place]) == 0) & (np.diff(factor_of[place]) == 0)
    if twice.any():
        bad = int(place[1:][twice].min())
        raise file.refusal(
            int(names[bad]), f"variables of factor {factor_of[bad]} that differ",
            doubt=_doubt(orders[:factor_of[bad]]),
        )
    sizes = np.ones(n_factors)
    joined = orders > 0
    if joined.any():
        with np.errstate(over="ignore"):
            sizes[joined] = np.multiply.reduceat(
                n_states[variables].astype(np.float64), (np.cumsum(orders) - orders)[joined]
            )
    return _Scopes(orders, variables, sizes, cursor)


def _read_costs(file: NumberFile, scopes: _Scopes) -> Doubles:
    """-log of the entries of all tables, one after the other."""
    position, left = scopes.position, len(file) - scopes.position
    large = scopes.sizes > left
    if large.any():
        factor = int(np.argmax(large))
        raise InputError(
            f"{file.path}, {file.place(position)}: expected {scopes.sizes[factor]:.6g} entries in "
            f"the table of factor {factor}, one for each joint state of variables "
            f"{shown(scopes.of(factor))}, got {left} numbers in all tables; the file seems to be "
            f"cut short, or its states are wrong{_doubt(scopes.orders)}."
        )
    sizes = scopes.sizes.astype(np.int64)
    begins = position + np.concatenate([[0], np.cumsum(1 + sizes)])
    present = begins[:-1][begins[:-1] < len(file)]
    wrong = file.values[present] != sizes[:len(present)]
    if wrong.any():
        factor = int(np.argmax(wrong))
        before = f" and that table {factor - 1} has {sizes[factor - 1]} entries" if factor else ""
        raise file.refusal(
            int(present[factor]), f"{sizes[factor]}, the number of entries in the table of factor "
            f"{factor}, which joins variables {shown(scopes.of(factor))}", f"check it{before}",
            _doubt(scopes.orders),
        )
    if begins[-1] > len(file):
        factor = int(np.argmax(begins[1:] > len(file)))
        raise file.refusal(
            len(file), f"{sizes[factor]} entries in the table of factor {factor}",
            doubt=_doubt(scopes.orders),
        )
    if begins[-1] < len(file):
        raise file.refusal(
            int(begins[-1]), "the end of the file after the last table",
            "remove what is left, or correct the number of factors", _doubt(scopes.orders),
        )
    is_entry = np.ones(left, bool)
    is_entry[begins[:-1] - position] = False
    entries = file.values[position:][is_entry]
    if (entries < 0).any():
        index = position + int(np.flatnonzero(is_entry)[np.argmax(entries < 0)])
        factor = int(np.searchsorted(begins, index, "right")) - 1
        raise file.refusal(index, f"an entry of the table of factor {factor}, 0 or more")
    if len(sizes):
        zero = np.maximum.reduceat(entries, np.cumsum(sizes) - sizes) == 0
        if zero.any():
            factor = int(np.argmax(zero))
            raise file.refusal(
                int(begins[factor]) + 1, f"an entry above 0 in the table of factor {factor}",
                "a table of zeros forbids everything",
            )
    with np.errstate(divide="ignore"):
        costs = 0.0 - np.log(entries)
    for index, log in file.logs.items():
        costs[index - position - int(np.searchsorted(begins, index, "right"))] = -log
    return costs


def _doubt(orders: Whole) -> str:
    """A number that is missing makes the next ones be read as something else, and then most often
    a variable 0 as a factor of no variables, which is allowed but rare."""
    empty = np.flatnonzero(orders == 0)
    if len(empty) == 0:
        return ""
    return (
        f" (factor {empty[0]} joins no variables: check the numbers of states and the scopes "
        "before it)"
    )


def _build(file: NumberFile, n_states: Whole, scopes: _Scopes, costs: Doubles) -> FactorGraph:
    """Tables of one shape together; those of less than two variables as costs of variables."""
    sizes = scopes.sizes.astype(np.int64)
    offsets = np.cumsum(sizes) - sizes
    kept = n_states[scopes.variables] > 1
    variables = scopes.variables[kept]
    factor_of = np.repeat(np.arange(len(sizes)), scopes.orders)[kept]
    orders = np.bincount(factor_of, minlength=len(sizes))
    starts = np.cumsum(orders) - orders
    first = np.cumsum(n_states) - n_states
    nodes = np.zeros(int(n_states.sum()))
    nodes[:n_states[0]] += costs[offsets[orders == 0]].sum()
    factors: list[Factors] = []
    for order in np.unique(orders[orders > 0]).tolist():
        factor = np.flatnonzero(orders == order)
        names = variables[starts[factor][:, None] + np.arange(order)]
        for rows in of_one_shape(n_states[names]):
            shape = n_states[names[rows[0]]].tolist()
            entries = offsets[factor[rows]][:, None] + np.arange(int(np.prod(shape)))
            tables = costs[entries].reshape(-1, *shape)
            if order == 1:
                np.add.at(nodes, first[names[rows]] + np.arange(shape[0]), tables)
            else:
                factors.append(TableFactors(names[rows], tables))
    impossible = np.isinf(np.minimum.reduceat(nodes, first))
    if impossible.any():
        raise InputError(
            f"{file.path}: expected a state of variable {np.argmax(impossible)} that its tables "
            "allow, got zeros for all of them; correct these tables."
        )
    return FactorGraph(rows_of_costs(nodes, n_states), factors)


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
