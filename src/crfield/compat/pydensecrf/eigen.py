"""The original wraps its matrices; here they are NumPy arrays, float32 and column-major like them.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from crfield._core.validate import FloatArray, InputError, as_floats
from crfield.compat.pydensecrf._inputs import FLOAT32, as_rows

__all__ = ["MatrixXf", "VectorXf", "matrixXf", "vectorXf"]


def MatrixXf() -> FloatArray:
    """An empty matrix, (0, 0)."""
    return np.zeros((0, 0), FLOAT32)


def VectorXf() -> FloatArray:
    """An empty vector, (0,)."""
    return np.zeros(0, FLOAT32)


def matrixXf(arr: Any) -> FloatArray:
    """A column-major copy of a matrix."""
    return as_rows(arr, "arr", (None, None)).T


def vectorXf(arr: Any) -> FloatArray:
    """A copy of a vector."""
    vector = as_floats(arr, "arr", FLOAT32)
    if vector.ndim != 1:
        raise InputError(f"arr must be a vector, got shape {vector.shape}; use matrixXf.")
    return vector.copy()
