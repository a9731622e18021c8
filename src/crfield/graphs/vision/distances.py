"""Generalized distance transforms on lines and images: messages through quadratic terms.

With a cost f and for each axis a weight w >= 0 and an offset d, at every position x of the grid

    values(x) = min_y f(y) + sum_axes w (x + d - y)^2,

which is the max-product message between two positions that want to be d apart, in linear time by
lower envelopes of parabolas (Felzenszwalb & Huttenlocher 2012), one axis after the other. The
sum-product message, -log sum_y exp(-(...)), is a pass along each axis too, n sums of n terms on a
line of n: O(N^1.5) for a square of N pixels. Work is in float64; no result depends on `threads`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.threads import thread_count
from crfield._core.validate import (
    InputError,
    as_array,
    as_floats,
    check_memory,
    refuse_where,
)

Doubles = NDArray[np.float64]
Indices = NDArray[np.int32]

LARGEST_WEIGHT, LARGEST_OFFSET = 1e12, 1e9
# Differences of two such costs are still numbers.
_LARGEST_VALUE = 1e300
_MOST_PIXELS = 2**31 - 1


def distance_transform(
    costs: Any, weights: Any, offsets: Any = 0.0, *, threads: int | None = None
) -> tuple[Doubles, Indices]:
    """min_y f(y) + sum_axes w (x + d - y)^2 at every x, and the y that attain it, like `costs`.

    costs : (..., n), or (..., H, W); +inf forbids a position.
    weights : w for the last axis, or (w_rows, w_columns) for the last two: the first counts steps
        from row to row.
    offsets : d, one number or (d_rows, d_columns); fractions are allowed.

    Positions y of images are row * W + column. Of equal minima the first is taken; where all costs
    are +inf it is 0. No result depends on `threads`.
    """
    images, springs, steps = _as_problem(costs, weights, offsets)
    values, argmins = transform_images(images, springs, steps, thread_count(threads))
    shape = np.shape(costs)
    return values.reshape(shape), argmins.reshape(shape)


def soft_distance_transform(
    costs: Any, weights: Any, offsets: Any = 0.0, *, threads: int | None = None
) -> Doubles:
    """-log sum_y exp(-(f(y) + sum_axes w (x + d - y)^2)) at every x, in the shape of `costs`.

    Inputs are as for `distance_transform`.
    """
    images, springs, steps = _as_problem(costs, weights, offsets)
    values = sum_images(images, springs, steps, thread_count(threads))
    return values.reshape(np.shape(costs))


def transform_images(
    images: Doubles, weights: Doubles, offsets: Doubles, threads: int
) -> tuple[Doubles, Indices]:
    """Minima and where they are for checked images (B, H, W), weights and offsets (B, 2)."""
    values, argmins = np.empty(images.shape), np.empty(images.shape, np.int32)
    _native.distance_transform(images, weights, offsets, values, argmins, threads)
    return values, argmins


def sum_images(images: Doubles, weights: Doubles, offsets: Doubles, threads: int) -> Doubles:
    """Negative log-sums for checked images (B, H, W), weights and offsets (B, 2)."""
    values = np.empty(images.shape)
    _native.soft_distance_transform(images, weights, offsets, values, threads)
    return values


def as_position_costs(costs: Any, limit: float, remedy: str, name: str = "costs") -> Doubles:
    """Costs as float64, +inf allowed, all others within the limit."""
    array = as_array(costs, name)
    check_memory(8.0 * array.size, f"{name} of shape {array.shape} as float64", remedy)
    values: Doubles = np.asarray(array, np.float64, order="C")
    refuse_where(
        ~((values >= -limit) & ((values <= limit) | (values == np.inf))), values,
        f"{name} must be +inf or within {limit:g} of 0", "use inf for what is ruled out",
    )
    return values


def as_springs(weights: Any, offsets: Any) -> tuple[Doubles, Doubles]:
    """Weights and offsets of any shape, within range."""
    springs = as_floats(weights, "weights", np.dtype(np.float64))
    steps = as_floats(offsets, "offsets", np.dtype(np.float64))
    bad = ~((springs >= 0) & (springs <= LARGEST_WEIGHT))
    refuse_where(
        bad, springs, f"weights must lie between 0 and {LARGEST_WEIGHT:g}",
        "a weight is 1 / (2 variance) of a distance in pixels",
    )
    refuse_where(
        np.abs(steps) > LARGEST_OFFSET, steps,
        f"offsets must not exceed {LARGEST_OFFSET:g} in magnitude", "give distances in pixels",
    )
    return np.asarray(springs, np.float64), np.asarray(steps, np.float64)


def check_grid(height: int, width: int) -> None:
    """Refuse grids without positions, or with more than the compiled core can number."""
    if not 1 <= height * width <= _MOST_PIXELS:
        raise InputError(
            f"costs must have between 1 and {_MOST_PIXELS} positions, got {height} x {width}; "
            "use a coarser grid."
        )


def _as_problem(costs: Any, weights: Any, offsets: Any) -> tuple[Doubles, Doubles, Doubles]:
    """Images (B, H, W), weights (B, 2) and offsets (B, 2); a line is an image of one row."""
    springs, steps = as_springs(weights, offsets)
    n_axes = springs.size
    if springs.ndim > 1 or n_axes not in (1, 2):
        raise InputError(
            f"weights must be a number or two, got shape {springs.shape}; give one for each of the "
            "last axes of costs."
        )
    if steps.shape not in ((), (n_axes,)):
        raise InputError(
            f"offsets must be one number or have shape ({n_axes},) as weights do, got shape "
            f"{steps.shape}; give one for each weight."
        )
    values = as_position_costs(costs, _LARGEST_VALUE, "transform fewer images at a time")
    if values.ndim < n_axes:
        raise InputError(
            f"costs must have at least {n_axes} axes for {n_axes} weights, got shape "
            f"{values.shape}; give fewer weights."
        )
    sides = values.shape[-n_axes:]
    height, width = (1, sides[0]) if n_axes == 1 else sides
    check_grid(height, width)
    images = values.reshape(-1, height, width)
    check_memory(12.0 * images.size, "The distance transform", "transform fewer images at a time")
    rows = [np.zeros((2,)), np.zeros((2,))]
    for row, given in zip(rows, (springs, steps), strict=True):
        row[2 - n_axes :] = given
    pairs = [np.tile(row, (len(images), 1)) for row in rows]
    return images, pairs[0], pairs[1]
