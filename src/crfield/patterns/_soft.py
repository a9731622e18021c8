"""Maxima and thresholds at a temperature T > 0, in float64 and for any T."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def soft_threshold(x: NDArray[Any], temperature: float) -> Array:
    """sigmoid(x / T)."""
    with np.errstate(over="ignore"):
        return np.asarray(0.5 + 0.5 * np.tanh(np.multiply(x, 0.5, dtype=np.float64) / temperature))


def soft_excess(x: NDArray[Any], temperature: float) -> Array:
    """T log(1 + exp(-|x| / T)), by which T softplus(x / T) exceeds max(x, 0)."""
    with np.errstate(over="ignore"):
        small = np.exp(-np.abs(x, dtype=np.float64) / temperature)
    return np.asarray(temperature * np.log1p(small))


def relative_weights(x: NDArray[Any], temperature: float) -> Array:
    """exp(x / T) divided by the largest of the row."""
    with np.errstate(over="ignore"):
        shifted = np.subtract(x, x.max(1, keepdims=True), dtype=np.float64) / temperature
    return np.asarray(np.exp(shifted))


def soft_maximum(x: NDArray[Any], temperature: float) -> Array:
    """T log sum_j exp(x_j / T) of each row."""
    return np.asarray(x.max(1) + temperature * np.log(relative_weights(x, temperature).sum(1)))
