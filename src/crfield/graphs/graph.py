"""Factor graphs: variables with any number of states, and factors that join them.

E(x) = sum_v costs_v[x_v] + sum_f cost_f(x_f), P(x) = exp(-E(x) / T) / Z (lecture, "Factor graphs").
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.threads import without_locks
from crfield._core.validate import (
    InputError,
    as_array,
    as_floats,
    check_magnitude,
    check_memory,
    shown,
)
from crfield.graphs.factors import Doubles, Factors, GridFactors, TableFactors, as_cost_array
from crfield.graphs.settings import as_temperature


@without_locks
class FactorGraph:
    """Variables with costs, and factors: E(x) = sum_v costs[v, x_v] + sum_f cost_f(x_f).

    costs : (N, L) where all variables have L states, or a list of N arrays (L_v,); the costs of
        single variables' states, infinite for what is forbidden. Zeros if there are none.
    factors : objects such as `TableFactors`, each with many factors of one kind.

    Examples
    --------
    >>> import numpy as np
    >>> edges = [[0, 1], [1, 2]]
    >>> graph = FactorGraph(np.zeros((3, 2)), [TableFactors(edges, [[0.0, 1.0], [1.0, 0.0]])])
    >>> graph.is_forest
    True
    """

    def __init__(self, costs: Any, factors: Sequence[Factors] = ()):
        self.n_states, self._costs = _as_node_costs(costs)
        self._costs.setflags(write=False)
        if isinstance(factors, Factors) or not isinstance(factors, Sequence):
            raise InputError(
                f"factors must be a list of factors, got {shown(factors)}; put them in a list."
            )
        self.factors = tuple(factors)
        self._groups: tuple[float, list[_native.FactorGroup]] | None = None
        for i, group in enumerate(self.factors):
            self._check(group, f"factors[{i}]")
        n_messages = sum(int(self.n_states[group.variables].sum()) for group in self.factors)
        check_memory(
            48.0 * n_messages, f"a graph with {n_messages} costs of messages",
            "use fewer factors or states",
        )

    @property
    def n_variables(self) -> int:
        """N."""
        return len(self.n_states)

    @property
    def n_factors(self) -> int:
        """Number of factors of all kinds together."""
        return sum(map(len, self.factors))

    @property
    def costs(self) -> Doubles:
        """Costs of all states of all variables one after the other, (sum L_v,), not writable."""
        return np.asarray(self._costs, np.float64)

    @property
    def is_forest(self) -> bool:
        """Whether there are no loops, so that inference is exact."""
        return bool(self.structure.is_forest)

    @cached_property
    def forest_shares(self) -> Doubles:
        """(n_factors,), 1 / the number of forests that the factors of a component are parted into.

        1 in trees, 1/2 in grids: every factor is in this share of the forests, which is what
        reweighted propagation needs.
        """
        shares = np.empty(self.n_factors)
        self.structure.forest_shares(shares)
        return shares

    @property
    def is_uniform(self) -> bool:
        """Whether all variables have the same number of states."""
        return bool((self.n_states == self.n_states[0]).all())

    @cached_property
    def structure(self) -> _native.GraphStructure:
        """What is joined with what."""
        starts, n_slots = [np.zeros(1, np.int64)], 0
        for group in self.factors:
            starts.append(group.starts[1:] + n_slots)
            n_slots += len(group.variables)
        none = np.zeros(0, np.int32)
        variables = np.concatenate([none, *(group.variables for group in self.factors)])
        return _native.GraphStructure(self.n_states, np.concatenate(starts), variables)

    def groups(self, temperature: float) -> list[_native.FactorGroup]:
        """The factors as the compiled core works with them, fastest at this `temperature`."""
        known = self._groups  # another thread may replace it
        if known is None or known[0] != temperature:
            known = self._groups = temperature, [
                group.native(self.n_states[group.variables], temperature) for group in self.factors
            ]
        return known[1]

    @property
    def planes(self) -> NDArray[Any] | None:
        """Costs (H W, L) where the faster form for grids will do, else None."""
        if len(self.factors) != 1 or not self.is_uniform:
            return None
        (grid,) = self.factors
        fits = isinstance(grid, GridFactors) and grid.may_be_planes and (
            grid.shape[0] * grid.shape[1] == self.n_variables and min(grid.shape) > 1
        )
        return self._costs.reshape(self.n_variables, -1) if fits and self._is_finite else None

    @cached_property
    def _is_finite(self) -> bool:
        return bool(np.isfinite(self._costs).all())

    def with_costs(self, costs: Any, factors: Sequence[Factors] | None = None) -> FactorGraph:
        """The same variables and edges with other costs, and with other factors in the same places.

        What was found out about the structure is kept.
        """
        other = FactorGraph(costs, self.factors if factors is None else factors)
        same = len(other.factors) == len(self.factors) and all(
            np.array_equal(a.variables, b.variables) and np.array_equal(a.starts, b.starts)
            for a, b in zip(other.factors, self.factors, strict=True)
        )
        if same and np.array_equal(other.n_states, self.n_states):
            other.__dict__["structure"] = self.structure
            if "forest_shares" in self.__dict__:
                other.__dict__["forest_shares"] = self.forest_shares
            if factors is None:
                other._groups = self._groups
        return other

    def padded(self, values: NDArray[Any], fill: float = 0.0) -> NDArray[Any]:
        """The `values` (sum L_v,) as (N, max L_v), with `fill` for states that do not exist."""
        most = int(self.n_states.max())
        if self.is_uniform:
            return values.reshape(self.n_variables, most)
        check_memory(
            float(self.n_variables) * most * values.itemsize,
            f"a row of {most} states, as many as the largest variable has, for each of "
            f"{self.n_variables} variables",
            "split variables with many states, or leave them out",
        )
        out = np.full((self.n_variables, most), fill, values.dtype)
        out[np.arange(most) < self.n_states[:, None]] = values
        return out

    def as_labels(self, labels: Any) -> NDArray[np.int32]:
        """Checked `labels` (N,)."""
        array = as_array(labels, "labels")
        if array.shape != (self.n_variables,) or array.dtype.kind not in "iu":
            raise InputError(
                f"labels must be whole numbers of shape ({self.n_variables},), got {array.dtype} "
                f"of shape {array.shape}; give one state per variable."
            )
        bad = (array < 0) | (array >= self.n_states)
        if bad.any():
            v = int(np.argmax(bad))
            raise InputError(
                f"the label of variable {v} must lie between 0 and {self.n_states[v] - 1}, got "
                f"{array[v]}; number the states from 0."
            )
        return np.ascontiguousarray(array, np.int32)

    def energy(self, labels: Any, temperature: float = 1.0) -> float:
        """E(x) of labels (N,); only the cost of patterns depends on the temperature."""
        found, t = self.as_labels(labels), as_temperature(temperature)
        groups = self.groups(t) if self._groups is None else self._groups[1]
        own = _native.Propagation(self.structure, groups, self.costs, t, None, 1)
        return float(own.energy(found))

    def __getstate__(self) -> dict[str, Any]:
        """What is compiled is made again where it is needed."""
        return {**self.__dict__, "_groups": None, "structure": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({k: v for k, v in state.items() if k != "structure"})

    def __repr__(self) -> str:
        kinds = ", ".join(f"{len(group)} {type(group).__name__}" for group in self.factors)
        return f"FactorGraph({self.n_variables} variables, {kinds or 'no factors'})"

    def _check(self, group: Any, name: str) -> None:
        if not isinstance(group, Factors):
            raise InputError(
                f"{name} must be factors such as TableFactors, got {shown(group)}; "
                "make factors of it first."
            )
        outside = group.variables >= self.n_variables
        if outside.any():
            raise InputError(
                f"{name} must name variables 0 to {self.n_variables - 1}, got "
                f"{group.variables[outside][0]}; give costs for all variables."
            )
        found = self.n_states[group.variables]
        expected = group.sizes(found)
        wrong = found != expected
        if wrong.any():
            slot = int(np.argmax(wrong))
            factor = int(np.searchsorted(group.starts, slot, "right")) - 1
            raise InputError(
                f"factor {factor} of {name} has {expected[slot]} states for variable "
                f"{group.variables[slot]}, which has {found[slot]}; use TableFactors with an axis "
                "of that length, or table_factors for tables of several shapes."
            )


def check_graph(graph: Any) -> None:
    """Refuse what is not a factor graph."""
    if not isinstance(graph, FactorGraph):
        raise InputError(
            f"graph must be a FactorGraph, got {type(graph).__name__}; build one first."
        )


def table_factors(tables: Sequence[tuple[Any, Any]]) -> list[TableFactors]:
    """Factors of all shapes from `tables`, a list of (variables (K,), costs (L_1, ..., L_K)).

    Those of one shape are put together; the order of the list is kept within them only.
    """
    by_shape: dict[tuple[int, ...], tuple[list[Any], list[Any]]] = {}
    for i, pair in enumerate(_as_sequence(tables)):
        try:
            variables, costs = pair
        except (TypeError, ValueError):
            raise InputError(
                f"table {i} must be a pair of variables and costs, got {shown(pair)}; "
                "for example ([0, 1], np.zeros((2, 2)))."
            ) from None
        table = as_cost_array(costs, f"the costs of table {i}")
        names = np.atleast_1d(as_array(variables, f"the variables of table {i}"))
        if names.shape != (table.ndim,):
            raise InputError(
                f"table {i} must have an axis for each of its variables {names.tolist()}, got "
                f"shape {table.shape}; match variables and costs."
            )
        rows, stack = by_shape.setdefault(table.shape, ([], []))
        rows.append(names)
        stack.append(table)
    return [TableFactors(np.stack(rows), np.stack(stack)) for rows, stack in by_shape.values()]


def _as_sequence(tables: Any) -> Sequence[Any]:
    if not isinstance(tables, Sequence) or isinstance(tables, str | bytes):
        raise InputError(
            f"tables must be a list of pairs of variables and costs, got {shown(tables)}; "
            "put them in a list."
        )
    return tables


def _as_node_costs(costs: Any) -> tuple[NDArray[np.int64], NDArray[Any]]:
    if isinstance(costs, np.ndarray) and costs.dtype != object:
        if costs.ndim != 2 or costs.size == 0:
            raise InputError(
                f"costs must have shape (N, L), N and L >= 1, got {costs.shape}; "
                "give every variable a row, or pass a list of arrays."
            )
        if costs.dtype == np.float32 and np.isfinite(costs).all():
            found = as_floats(costs, "costs")
            check_magnitude(found, "costs")
        else:
            found = as_cost_array(costs, "costs")
        n_states = np.full(len(costs), costs.shape[1], np.int64)
        flat = found.reshape(-1).copy()  # the caller may go on changing it
    else:
        if not isinstance(costs, Sequence | np.ndarray) or isinstance(costs, str | bytes):
            raise InputError(
                f"costs must be an array (N, L) or a list of arrays, got {shown(costs)}; "
                "pass zeros for variables without costs."
            )
        parts = [as_cost_array(part, f"costs[{v}]") for v, part in enumerate(costs)]
        if not parts:
            raise InputError("costs must hold at least one variable, got none; add a variable.")
        for v, part in enumerate(parts):
            if part.ndim != 1 or part.size == 0:
                raise InputError(
                    f"costs[{v}] must have shape (L,), L >= 1, got {part.shape}; "
                    "give every state of the variable a cost."
                )
        n_states = np.array([len(part) for part in parts], np.int64)
        flat = np.concatenate(parts)
    least = np.minimum.reduceat(flat, np.cumsum(n_states) - n_states)
    if np.isinf(least).any():
        v = int(np.argmax(np.isinf(least)))
        raise InputError(
            f"costs must allow at least one state of every variable, got none for variable {v}; "
            "make one of them finite."
        )
    return n_states, flat
