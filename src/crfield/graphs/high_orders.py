"""Factors of many binary variables that have messages in linear time: patterns and rays."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.validate import InputError, as_array, as_choice, check_memory
from crfield.graphs._graph_checks import (
    as_numbers,
    as_one_each,
    as_variables,
    check_not_below_zero,
)
from crfield.graphs.factors import Factors

COMPOSITIONS = ("sum", "min")


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

    def sizes(self, n_states: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(self.variables), 2)

    def native(self, n_states: NDArray[np.int64], temperature: float) -> _native.FactorGroup:
        n_units, weights, biases, shared = self._units
        return _native.pattern_factors(
            len(self), n_units, self._arity, weights, biases, shared, self.composition == "sum"
        )


class RayFactors(Factors):
    """-log(sum_i o_i prod_{j < i} (1 - o_j) s_i + s_inf prod_i (1 - o_i)), see `RayModel`.

    For millions of voxels `infer_rays` is faster; here rays may be mixed with other factors.

    offsets : (M + 1,), variables : (S,) binary ones of each ray in order, at least one a ray.
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

    def sizes(self, n_states: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.full(len(self.variables), 2)

    def native(self, n_states: NDArray[np.int64], temperature: float) -> _native.FactorGroup:
        return _native.ray_factors(self.starts, self.costs, self.empty_costs)
