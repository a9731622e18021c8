"""The few functions that NumPy arrays and torch tensors do not share as methods.

A formula that is written over them serves both. Torch itself is never imported here: whoever
brings a tensor has it.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

Array = Any  # of NumPy, or a tensor of torch


def library_of(x: Array) -> Any:
    """The module of an array: numpy, or torch. Both know exp, log, sqrt, where, stack, clip, ..."""
    if isinstance(x, np.ndarray) or isinstance(x, np.generic):  # noqa: SIM101, compiled graphs
        return np
    return sys.modules["torch"]


def softmax(x: Array) -> Array:
    """exp(x) of each row (N, L), divided by its sum."""
    if not isinstance(x, np.ndarray):
        return library_of(x).softmax(x, 1)
    e = np.exp(x - x.max(1, keepdims=True))
    return e / e.sum(1, keepdims=True)


def logsumexp(x: Array) -> Array:
    """log sum exp(x) of each row, (N, 1)."""
    if not isinstance(x, np.ndarray):
        return library_of(x).logsumexp(x, 1, keepdim=True)
    top = x.max(1, keepdims=True)
    return top + np.log(np.exp(x - top).sum(1, keepdims=True))


def row_sums(x: Array) -> Array:
    """sum_l x_il, (N,); NumPy's own sum is slow along short rows."""
    return np.einsum("il->i", x) if isinstance(x, np.ndarray) else x.sum(1)


def row_dots(x: Array, y: Array) -> Array:
    """sum_l x_il y_il, (N,)."""
    return np.einsum("il,il->i", x, y) if isinstance(x, np.ndarray) else (x * y).sum(1)


def cast(x: Array, like: Array) -> Array:
    """x in the type of `like`, and on its device."""
    return x.astype(like.dtype) if isinstance(x, np.ndarray) else x.to(like)


def zeros(like: Array, *shape: int) -> Array:
    """Zeros to sum up numbers such as those of `like`; sums of arrays are in float64."""
    return np.zeros(shape) if isinstance(like, np.ndarray) else like.new_zeros(shape)
