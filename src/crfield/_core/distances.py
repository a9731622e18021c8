"""Exact Euclidean distances on grids."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native

_APART = 1e12  # a weight that keeps the columns of a distance transform to themselves


def squared_distances(
    marked: NDArray[np.bool_], threads: int, spacing: Any = 1.0
) -> NDArray[np.float64]:
    """Squared distances (P, *grid) to the nearest of those marked (P, *grid), the squared diagonal
    where none is.

    spacing : distance between neighbors, or (d,) along each axis.
    """
    sides = marked.shape[1:]
    weights = np.broadcast_to(spacing, len(sides)).astype(np.float64) ** 2
    far = float((weights * np.square(sides, dtype=np.float64)).sum())
    squared = np.where(marked, 0.0, far)
    if squared.size == 0:
        return squared
    if len(sides) > 1:
        squared = _transformed(squared.reshape(-1, *sides[-2:]), weights[-2:], threads)
    # Along each other axis alone, columns apart.
    for axis in range(len(sides) - 3 if len(sides) > 1 else 0, -1, -1):
        columns = math.prod(sides[axis + 1 :])
        apart = np.array([weights[axis], _APART * max(1.0, weights.max())])
        squared = _transformed(squared.reshape(-1, sides[axis], columns), apart, threads)
    return squared.reshape(marked.shape)


def distances_to(
    marked: NDArray[np.bool_], threads: int, spacing: Any = 1.0
) -> NDArray[np.float32]:
    """The square roots of `squared_distances` (P, *grid), in float32."""
    return np.sqrt(squared_distances(marked, threads, spacing).astype(np.float32))


def _transformed(
    squared: NDArray[np.float64], axis_weights: NDArray[np.float64], threads: int
) -> NDArray[np.float64]:
    """Squared distances (B, H, W) after steps along both axes (Felzenszwalb & Huttenlocher), whose
    squares have these weights, (2,).
    """
    images = np.ascontiguousarray(squared)
    weights = np.tile(axis_weights, (len(images), 1))
    values, where = np.empty(images.shape), np.empty(images.shape, np.int32)
    _native.distance_transform(images, weights, np.zeros_like(weights), values, where, threads)
    return values
