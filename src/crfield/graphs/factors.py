"""The kinds of factors that a factor graph is made of, many of one kind in one object.

A factor costs its variables' joint state; all costs add up to E(x). Infinite costs forbid states.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.validate import (
    LARGEST_COST,
    InputError,
    as_array,
    as_choice,
    as_count,
    as_floats,
    check_memory,
    refuse_where,
    shown,
)

Doubles = NDArray[np.float64]
Variables = NDArray[np.int32]
Whole = NDArray[np.int64]

COMPOSITIONS = ("sum", "min")

_DOUBLE = np.dtype(np.float64)
_ALL = slice(None)


class Factors(ABC):
    """Factors of one kind over numbered variables.

    Attributes
    ----------
    variables : (S,) int32, the variables of all factors, one factor after the other.
    starts : (M + 1,) int64: factor m joins variables[starts[m]:starts[m + 1]].
    """

    variables: Variables
    starts: Whole

    def __len__(self) -> int:
        return len(self.starts) - 1

    @abstractmethod
    def sizes(self, n_states: Whole) -> Whole:
        """States that the factors expect of their variables (S,), given `n_states` (S,)."""

    @abstractmethod
    def native(self, n_states: Whole, temperature: float) -> _native.FactorGroup:
        """What the compiled core works with for `n_states` (S,), fastest at this temperature."""

    @property
    def has_tables(self) -> bool:
        """Whether the costs of all joint states can be listed."""
        return type(self).tables is not Factors.tables

    def tables(self, n_states: Whole, chosen: slice | Whole = _ALL) -> Doubles:
        """Costs of all joint states, (M, L_1, ..., L_K), where there are tables.

        n_states : (S,), of the variables of all factors.
        chosen : a slice or the numbers (m,) of the factors wanted, all by default.
        """
        raise InputError(
            f"{type(self).__name__} must have tables of joint states for this, got factors of too "
            "many variables; ask for the marginals of the variables."
        )

    def taken(self, rows: Whole) -> Factors:
        """Those factors whose numbers are in `rows` (m,)."""
        raise NotImplementedError


class TableFactors(Factors):
    """Tables of any order.

    variables : (M, K), the variables of each factor, all different.
    costs : (L_1, ..., L_K) for all factors, or (M, L_1, ..., L_K) with a table for each.
    """

    def __init__(self, variables: Any, costs: Any):
        joined = as_variables(variables)
        n_factors, order = joined.shape
        table = as_cost_array(costs, "costs")
        if order == 0 or table.ndim not in (order, order + 1):
            raise InputError(
                f"costs must have {order} axes, or {order + 1} with a table for each factor, got "
                f"shape {table.shape}; give every variable of a factor an axis."
            )
        self.shared = table.ndim == order
        if not self.shared and len(table) != n_factors:
            raise InputError(
                f"costs must hold a table for each of {n_factors} factors, got {len(table)}; "
                "match variables."
            )
        if 0 in table.shape[-order:] or (table.size == 0 and n_factors):
            raise InputError(
                f"costs must hold at least one number, got shape {table.shape}; "
                "give every joint state a cost."
            )
        self.costs = table
        self.variables = joined.reshape(-1)
        self.starts = order * np.arange(n_factors + 1, dtype=np.int64)

    @property
    def shape(self) -> tuple[int, ...]:
        """(L_1, ..., L_K)."""
        return self.costs.shape if self.shared else self.costs.shape[1:]

    def sizes(self, n_states: Whole) -> Whole:
        return np.tile(np.array(self.shape, np.int64), len(self))

    def native(self, n_states: Whole, temperature: float) -> _native.FactorGroup:
        return _native.table_factors(
            len(self), list(self.shape), self.costs.reshape(-1), self.shared, temperature
        )

    def tables(self, n_states: Whole, chosen: slice | Whole = _ALL) -> Doubles:
        return np.broadcast_to(self.costs, (len(self), *self.shape))[chosen]

    def taken(self, rows: Whole) -> Factors:
        names = self.variables.reshape(len(self), -1)[rows]
        return TableFactors(names, self.costs if self.shared else self.costs[rows])


class _PairFactors(Factors):
    """Pairs of variables with equally many states and a cost that is a formula, not a table."""

    def __init__(self, edges: Any, weights: Any):
        self.edges = as_variables(edges, order=2, name="edges")
        self.variables = self.edges.reshape(-1)
        self.starts = 2 * np.arange(len(self.edges) + 1, dtype=np.int64)
        self.weights = as_one_each(weights, len(self.edges), "weights")

    def sizes(self, n_states: Whole) -> Whole:
        return np.full(len(self.variables), self._n(n_states))

    def _n(self, n_states: Whole) -> int:
        return int(n_states[0]) if len(n_states) else 1


class PottsFactors(_PairFactors):
    """cost(x, y) = weight [x != y]; no table is stored.

    edges : (M, 2) variables with equally many states.
    weights : one or (M,); negative ones favor different states.
    """

    def native(self, n_states: Whole, temperature: float) -> _native.FactorGroup:
        return _native.potts_factors(self._n(n_states), self.weights)

    def tables(self, n_states: Whole, chosen: slice | Whole = _ALL) -> Doubles:
        return self.weights[chosen, None, None] * (1 - np.eye(self._n(n_states)))

    def taken(self, rows: Whole) -> Factors:
        return PottsFactors(self.edges[rows], self.weights[rows])


class DistanceFactors(_PairFactors):
    """cost(x, y) = min(weight |x - y|^power, ceiling): truncated linear or quadratic, no tables.

    Max-product takes O(L) per message (distance transforms), sum-product O(L^2).

    edges : (M, 2) variables with equally many states, whose order means something.
    weights : >= 0, one or (M,).
    ceilings : >= 0, one or (M,), infinite for none.
    power : 1 or 2.
    """

    def __init__(self, edges: Any, weights: Any, ceilings: Any = np.inf, power: int = 1):
        super().__init__(edges, weights)
        check_not_below_zero(self.weights, "weights")
        self.ceilings = as_one_each(ceilings, len(self.edges), "ceilings", may_be_infinite=True)
        check_not_below_zero(self.ceilings, "ceilings")
        self.power = as_count(power, "power", 1, 2)

    def native(self, n_states: Whole, temperature: float) -> _native.FactorGroup:
        return _native.distance_factors(
            self._n(n_states), self.weights, self.ceilings, self.power
        )

    def tables(self, n_states: Whole, chosen: slice | Whole = _ALL) -> Doubles:
        states = np.arange(self._n(n_states), dtype=np.float64)
        gaps = np.abs(states[:, None] - states) ** self.power
        return np.asarray(np.minimum(
            self.weights[chosen, None, None] * gaps, self.ceilings[chosen, None, None]
        ))

    def taken(self, rows: Whole) -> Factors:
        return DistanceFactors(
            self.edges[rows], self.weights[rows], self.ceilings[rows], self.power
        )


class GridFactors(Factors):
    """Neighbors on a grid (H, W) whose pixels are the variables 0 to H W - 1, row by row.

    An edge costs weight * table[k, l], k at its left or upper end; without a table
    weight [k != l]. Inference on a graph of this alone has a faster form.

    shape : (H, W).
    horizontal_weights, vertical_weights : one, or (H, W - 1) and (H - 1, W).
    horizontal_table, vertical_table : (L, L), finite, or None for Potts.
    """

    def __init__(
        self, shape: tuple[int, int], horizontal_weights: Any = 1.0, vertical_weights: Any = 1.0,
        horizontal_table: Any = None, vertical_table: Any = None,
    ):
        if not isinstance(shape, tuple) or len(shape) != 2:
            raise InputError(f"shape must be (H, W), got {shown(shape)}; pass two whole numbers.")
        self.shape = as_count(shape[0], "H"), as_count(shape[1], "W")
        height, width = self.shape
        check_memory(
            80.0 * height * width, f"a grid of shape {self.shape}", "use a smaller one, or parts"
        )
        self.weights = tuple(
            _plane(values, expected, name)
            for values, expected, name in (
                (horizontal_weights, (height, width - 1), "horizontal_weights"),
                (vertical_weights, (height - 1, width), "vertical_weights"),
            )
        )
        self.tables_by_axis = tuple(
            None if table is None else _square(table, name)
            for table, name in (
                (horizontal_table, "horizontal_table"), (vertical_table, "vertical_table")
            )
        )
        sizes = {len(table) for table in self.tables_by_axis if table is not None}
        if len(sizes) > 1:
            raise InputError(
                f"tables must have the same number of states, got {sorted(sizes)}; match them."
            )
        steepest = max(float(np.abs(plane).max(initial=0.0)) for plane in self.weights)
        if steepest * self.largest_table > LARGEST_COST:
            raise InputError(
                f"weights times tables must not exceed {LARGEST_COST:g}, got "
                f"{steepest * self.largest_table:.3g}; a cost of 1e6 forbids a state just as well."
            )
        pixels = np.arange(height * width, dtype=np.int32).reshape(self.shape)
        edges = np.concatenate([
            np.stack([pixels[:, :-1].ravel(), pixels[:, 1:].ravel()], 1),
            np.stack([pixels[:-1].ravel(), pixels[1:].ravel()], 1),
        ])
        self.variables = edges.reshape(-1)
        self.starts = 2 * np.arange(len(edges) + 1, dtype=np.int64)

    @property
    def edges(self) -> Variables:
        """(M, 2): those to the right of pixels first, then those downwards, each row by row."""
        return self.variables.reshape(-1, 2)

    @property
    def largest_table(self) -> float:
        """The largest magnitude in a table, 1 for Potts."""
        return max(
            1.0 if table is None else float(np.abs(table).max()) for table in self.tables_by_axis
        )

    @property
    def may_be_planes(self) -> bool:
        """Whether the faster form can have these costs."""
        return all(
            table is not None or weights.min(initial=0) >= 0
            for table, weights in zip(self.tables_by_axis, self.weights, strict=True)
        )

    def sizes(self, n_states: Whole) -> Whole:
        known = [len(table) for table in self.tables_by_axis if table is not None]
        return np.full(len(self.variables), known[0] if known else n_states[:1].sum())

    def native(self, n_states: Whole, temperature: float) -> _native.FactorGroup:
        if all(table is None for table in self.tables_by_axis):
            weights = np.concatenate([plane.ravel() for plane in self.weights])
            return _native.potts_factors(int(n_states[:1].sum()) or 1, weights)
        n = int(n_states[:1].sum()) or 1
        check_memory(
            16.0 * len(self) * n * n, f"tables of {len(self)} edges", "use a smaller grid"
        )
        table = self.tables(n_states)
        return _native.table_factors(
            len(self), list(table.shape[1:]), table.ravel(), False, temperature
        )

    def tables(self, n_states: Whole, chosen: slice | Whole = _ALL) -> Doubles:
        n = int(n_states[:1].sum()) or 1
        edges = np.arange(len(self))[chosen]
        weights = np.concatenate([plane.ravel() for plane in self.weights])[edges]
        right, down = (
            1 - np.eye(n) if table is None else table for table in self.tables_by_axis
        )
        is_right = edges < self.weights[0].size
        return np.asarray(
            weights[:, None, None] * np.where(is_right[:, None, None], right, down)
        )

    def taken(self, rows: Whole) -> Factors:
        known = [table for table in self.tables_by_axis if table is not None]
        if not known:
            weights = np.concatenate([plane.ravel() for plane in self.weights])
            return PottsFactors(self.edges[rows], weights[rows])
        n_states = np.full(1, len(known[0]))
        return TableFactors(self.edges[rows], self.tables(n_states, rows))


class PatternFactors(Factors):
    """High-order patterns over binary variables (CHOPP eq. 4), at inference's own temperature T.

    "sum" costs -T sum_j log(1 + exp((c_j + w_j'y) / T)), a free hidden unit for each j; "min"
    -T log sum_j exp((c_j + w_j'y) / T), exactly one of them active. At T = 0 both take maxima.

    variables : (M, K).
    weights : w (J, K) for all factors, or (M, J, K).
    biases : c (J,) or (M, J).
    composition : "sum" or "min".
    """

    def __init__(self, variables: Any, weights: Any, biases: Any, composition: str = "sum"):
        joined = as_variables(variables)
        n_factors, arity = joined.shape
        self.composition = as_choice(composition, "composition", COMPOSITIONS)
        w = as_numbers(weights, "weights")
        if w.ndim not in (2, 3) or w.shape[-1] != arity or w.size == 0 or (
            w.ndim == 3 and len(w) != n_factors
        ):
            raise InputError(
                f"weights must have shape (J, {arity}) or ({n_factors}, J, {arity}), got {w.shape};"
                " give every variable of a factor a weight."
            )
        c = as_numbers(biases, "biases")
        if c.shape != w.shape[:-1]:
            raise InputError(
                f"biases must have shape {w.shape[:-1]} like the units of weights, got {c.shape}; "
                "give every unit a bias."
            )
        self.shared = w.ndim == 2
        self.weights, self.biases = w, c
        n_units = w.shape[-2]
        if self.composition == "sum":  # a factor of its own for each unit
            check_memory(
                12.0 * n_factors * n_units * arity, f"{n_units} free units for each of {n_factors} "
                "factors", "use fewer factors or units",
            )
            joined = np.repeat(joined, n_units, 0)
            w, c = (
                (np.tile(part, (n_factors, *[1] * (part.ndim - 1))) if self.shared else part)
                for part in (w, c)
            )
            self._units = 1, w.reshape(-1), c.reshape(-1), False
        else:
            self._units = n_units, w.reshape(-1), c.reshape(-1), self.shared
        self._arity = arity
        self.variables = joined.reshape(-1)
        self.starts = arity * np.arange(len(joined) + 1, dtype=np.int64)

    def sizes(self, n_states: Whole) -> Whole:
        return np.full(len(self.variables), 2)

    def native(self, n_states: Whole, temperature: float) -> _native.FactorGroup:
        n_units, weights, biases, shared = self._units
        return _native.pattern_factors(
            len(self), n_units, self._arity, weights, biases, shared, self.composition == "sum"
        )


class RayFactors(Factors):
    """-log(sum_i o_i prod_{j < i} (1 - o_j) s_i + s_inf prod_i (1 - o_i)), see `RayModel`.

    For millions of voxels a `RayModel` is faster; here rays may be mixed with other factors.

    offsets : (M + 1,), variables : (S,) binary ones of each ray in order, at least one per ray.
    scores : (S,) >= 0.
    empty_scores : >= 0, one or (M,).
    """

    def __init__(self, offsets: Any, variables: Any, scores: Any, empty_scores: Any = 0.0):
        starts = as_array(offsets, "offsets")
        joined = as_array(variables, "variables")
        if starts.ndim != 1 or starts.dtype.kind not in "iu" or len(starts) == 0:
            raise InputError(
                f"offsets must be whole numbers of shape (M + 1,), got {starts.dtype} of shape "
                f"{starts.shape}; say where the variables of each ray begin."
            )
        self.starts = starts.astype(np.int64)
        if self.starts[0] != 0 or self.starts[-1] != joined.size:
            raise InputError(
                f"offsets must run from 0 to the {joined.size} variables, got {starts[0]} to "
                f"{starts[-1]}; match both."
            )
        falls = np.diff(self.starts) < 1
        if falls.any():
            ray = int(np.argmax(falls))
            raise InputError(
                f"offsets must rise, got {starts[ray]} and then {starts[ray + 1]} at ray {ray}; "
                "list the rays one after the other, and leave empty ones out."
            )
        self.variables = as_variables(joined.reshape(-1, 1)).reshape(-1)
        rays = np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))
        order = np.lexsort((self.variables, rays))
        twice = (np.diff(self.variables[order]) == 0) & (np.diff(rays[order]) == 0)
        if twice.any():
            raise InputError(
                f"a ray must meet every variable once, got ray {rays[order][:-1][twice][0]} twice "
                f"at {self.variables[order][:-1][twice][0]}; leave repetitions out."
            )
        costs = []
        for values, n, name in (
            (scores, len(self.variables), "scores"), (empty_scores, len(self), "empty_scores")
        ):
            found = as_one_each(values, n, name)
            check_not_below_zero(found, name)
            with np.errstate(divide="ignore"):
                costs.append(-np.log(found))
        self.costs, self.empty_costs = costs

    def sizes(self, n_states: Whole) -> Whole:
        return np.full(len(self.variables), 2)

    def native(self, n_states: Whole, temperature: float) -> _native.FactorGroup:
        return _native.ray_factors(self.starts, self.costs, self.empty_costs)


def as_numbers(values: Any, name: str) -> Doubles:
    """Finite float64 numbers, C-contiguous."""
    array: Doubles = as_floats(values, name, _DOUBLE).astype(np.float64, copy=True)
    largest = float(np.abs(array).max(initial=0.0))
    if largest > LARGEST_COST:
        raise InputError(
            f"{name} must not exceed {LARGEST_COST:g} in magnitude, got {largest:.3g}; "
            "a cost of 1e6 forbids a state just as well."
        )
    return array


def as_cost_array(values: Any, name: str) -> Doubles:
    """float64 costs, infinity where a state is forbidden."""
    array = np.array(as_array(values, name), np.float64, order="C")  # a copy: callers go on
    bad = np.isnan(array) | (array < -LARGEST_COST) | ((array > LARGEST_COST) & np.isfinite(array))
    refuse_where(
        bad, array, f"{name} must be within {LARGEST_COST:g}, or infinite for what is forbidden",
        "replace such values",
    )
    return array


def as_one_each(values: Any, n: int, name: str, *, may_be_infinite: bool = False) -> Doubles:
    """(n,) numbers, from one for all or one for each."""
    array = as_cost_array(values, name) if may_be_infinite else as_numbers(values, name)
    if array.shape not in ((), (n,)):
        raise InputError(
            f"{name} must be one number or have shape ({n},), got {array.shape}; "
            "give one for each factor."
        )
    return np.ascontiguousarray(np.broadcast_to(array, (n,)))


def check_not_below_zero(array: Doubles, name: str) -> None:
    """Refuse negative numbers."""
    refuse_where(array < 0, array, f"{name} must not be negative", "use 0 or more")


def as_variables(values: Any, order: int | None = None, name: str = "variables") -> Variables:
    """(M, K) numbers of variables, all different in a row."""
    array = as_array(values, name)
    expected = "(M, K)" if order is None else f"(M, {order})"
    if array.size == 0 and array.ndim < 2:
        array = array.reshape(0, order or 1).astype(np.int32)
    if array.ndim != 2 or array.dtype.kind not in "iu" or order not in (None, array.shape[1]):
        raise InputError(
            f"{name} must be whole numbers of shape {expected}, got {array.dtype} of shape "
            f"{array.shape}; number the variables from 0 and give each factor a row."
        )
    if array.shape[1] == 0:
        raise InputError(f"{name} must have at least one column, got none; name some variables.")
    refuse_where(
        (array < 0) | (array > np.iinfo(np.int32).max - 1), array,
        f"{name} must be numbered from 0", "use the places of the variables in costs",
    )
    in_order = np.sort(array, 1)
    twice = (in_order[:, 1:] == in_order[:, :-1]).any(1)
    if twice.any():
        row = int(np.argmax(twice))
        raise InputError(
            f"{name} of a factor must differ, got {array[row].tolist()} in row {row}; "
            "make it a cost of that variable alone."
        )
    return np.array(array, np.int32, order="C")


def _plane(values: Any, shape: tuple[int, int], name: str) -> Doubles:
    array = as_numbers(values, name)
    if array.shape not in ((), shape):
        raise InputError(
            f"{name} must be one number or have shape {shape}, got {array.shape}; "
            "give every edge a weight."
        )
    return np.ascontiguousarray(np.broadcast_to(array, shape))


def _square(values: Any, name: str) -> Doubles:
    table = as_numbers(values, name)
    if table.ndim != 2 or table.shape[0] != table.shape[1] or table.size == 0:
        raise InputError(
            f"{name} must have shape (L, L), got {table.shape}; give every pair of states a cost."
        )
    return table
