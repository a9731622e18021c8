"""Costs and starts as a user may write them: shapes, layouts and sizes."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.validate import (
    LARGEST_COST,
    FloatArray,
    InputError,
    as_choice,
    as_floats,
    check_magnitude,
    check_memory,
)
from crfield.dense.observation import Observation, looks_swapped

_ENOUGH_ROWS, _LOOKED_AT = 64, 1000  # to tell probabilities from costs
LAYOUTS = ("channels_last", "channels_first")


def grid_of(shape: tuple[int, ...], n_labels: int, layout: str) -> tuple[int, ...]:
    """The grid of a unary of this shape."""
    first = as_choice(layout, "layout", LAYOUTS) == "channels_first"
    if len(shape) < 2 or shape[0 if first else -1] != n_labels:
        hint = "match n_labels"
        if len(shape) >= 3 and shape[-1 if first else 0] == n_labels:
            hint = (
                'its labels come last: pass layout="channels_last"' if first
                else 'its labels come first: pass layout="channels_first"'
            )
        wanted = f"({n_labels}, *grid)" if first else f"(*grid, {n_labels})"
        raise InputError(
            f"unary must have shape {wanted} for {n_labels} labels, got {shape}; {hint}."
        )
    if math.prod(shape) == 0:
        raise InputError(
            f"unary must have at least one variable, got shape {shape}; pass a non-empty grid."
        )
    return shape[1:] if first else shape[:-1]


def as_costs(
    unary: NDArray[Any], layout: str, threads: int = 1
) -> tuple[FloatArray, float | None]:
    """The unary as contiguous floats (*grid, L) of sane size, and the largest if it is known."""
    ready = unary.dtype in (np.float32, np.float64) and unary.flags.c_contiguous
    if ready and layout == "channels_last" and unary.dtype.isnative:
        flat = unary.reshape(-1, unary.shape[-1])
        most = _native.largest(flat, threads)
        if most <= LARGEST_COST:  # False for NaN as well
            return unary, most
    costs = _labels_last(as_floats(unary, "unary"), layout)
    check_magnitude(costs, "unary")
    return costs, None


def warn_of_probabilities(costs: FloatArray, most: float | None) -> None:
    """Say so where costs (*grid, L) look like probabilities; most : their largest magnitude."""
    n_labels = costs.shape[-1]
    if n_labels < 2 or (most is not None and most > 1.0):
        return
    rows = costs.reshape(-1, n_labels)
    some = rows[:: max(1, len(rows) // _LOOKED_AT)]
    # Few rows may be so by chance, and costs of 0 and 1 are as likely as certain labels.
    if len(rows) < _ENOUGH_ROWS or some.min() < 0.0 or ((some == 0.0) | (some == 1.0)).all():
        return
    if np.ptp(some) > 0.0 and np.abs(some.sum(1) - 1.0).max() < 1e-3:
        warnings.warn(
            "unary looks like probabilities, and costs are expected, small for likely labels: "
            "pass unary_from_probabilities(p).",
            stacklevel=3,
        )


def as_start(
    init: Any, costs: FloatArray, layout: str, observation: Observation
) -> FloatArray:
    """Marginals (N, L) to start from, of the variables that take part."""
    q = _labels_last(as_floats(init, "init", costs.dtype), layout)
    if q.shape != costs.shape:
        hint = "pass marginals of the same grid"
        if looks_swapped(q.shape, observation.grid):
            hint = "width and height look swapped: transpose it"
        raise InputError(f"init must have the unary's shape {costs.shape}, got {q.shape}; {hint}.")
    flat = np.ascontiguousarray(observation.select(q.reshape(-1, q.shape[-1])))
    sums = flat.sum(1, dtype=np.float64)
    if flat.min() < 0 or not np.allclose(sums, 1.0, atol=1e-3):
        raise InputError(
            "init must hold probabilities that sum to 1 over the labels, got values from "
            f"{flat.min():.3g} and sums between {sums.min():.3g} and {sums.max():.3g}; "
            "normalize it."
        )
    return np.asarray(flat / flat.sum(1, keepdims=True))


def check_inference_memory(
    dtype: np.dtype[Any], n_labels: int, n_terms: int, observation: Observation
) -> None:
    """Refuse at once what cannot fit even when fused (`crfield.dense.problem`): costs that are
    centered, two states; indices, weights and ranks of a lattice and scales for each term;
    features off the grid.
    """
    n = observation.n_variables
    channels = 0 if observation.image is None else observation.image.size // math.prod(
        observation.grid
    )
    columns = sum(values.shape[1] for values in observation.features.values())
    dims = len(observation.grid) + channels + columns
    on_grid = observation.positions is None and observation.selected is None and not columns
    per_term = (dims + 1) * (4 + dtype.itemsize) + 8 + 3 * dtype.itemsize
    per_variable = 3 * dtype.itemsize * n_labels + n_terms * per_term
    if not on_grid:
        per_variable += 8 * dims * 3
    check_memory(
        float(n) * per_variable,
        f"Inference on {n} variables with {n_labels} labels",
        "work on a smaller image or on tiles",
    )


def _labels_last(array: NDArray[Any], layout: str) -> NDArray[Any]:
    if as_choice(layout, "layout", LAYOUTS) == "channels_first" and array.ndim >= 2:
        return np.ascontiguousarray(np.moveaxis(array, 0, -1))
    return array
