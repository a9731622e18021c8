"""Checks that the parts of the pattern model share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._validate import (
    FloatArray,
    InputError,
    as_array,
    as_count,
    as_floats,
    first_index,
    shown,
)


def as_masks(values: Any, n_visible: int, name: str = "y") -> NDArray[Any]:
    """Binary labels as (B, I), not copied where they are in order; (B, H, W) is flattened."""
    array = as_array(values, name)
    if array.ndim < 2 or math.prod(array.shape[1:]) != n_visible:
        raise InputError(
            f"{name} must have shape (B, {n_visible}), one row of labels an image, got "
            f"{array.shape}; a single image needs a leading axis of 1."
        )
    if array.dtype.kind != "b":
        bad = array > 1 if array.dtype.kind == "u" else (array != 0) & (array != 1)
        if bad.any():
            index = first_index(bad)
            raise InputError(
                f"{name} must hold only 0 and 1, got {array[index]} at index {index}; "
                "threshold it or pick one class first."
            )
    return array.reshape(len(array), n_visible)


def as_rows(values: Any, width: int, name: str, dtype: np.dtype[Any]) -> FloatArray:
    """A finite (B, width) array."""
    array = as_floats(values, name, dtype)
    if array.ndim != 2 or array.shape[1] != width:
        raise InputError(
            f"{name} must have shape (B, {width}), one row an image, got {array.shape}; "
            "check what it was computed for."
        )
    return array


def as_vector(values: Any, length: int, name: str, dtype: np.dtype[Any]) -> FloatArray:
    """A finite (length,) array; a single number stands for all entries."""
    array = as_floats(values, name, dtype)
    if array.ndim == 0:
        array = np.full(length, array, dtype)
    if array.shape != (length,):
        raise InputError(
            f"{name} must have shape ({length},), got {array.shape}; give one number an entry."
        )
    return array


def as_grid(value: Any, name: str = "grid") -> tuple[int, int]:
    """Height and width."""
    sizes = tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else ()
    if len(sizes) != 2:
        raise InputError(f"{name} must be (height, width), got {shown(value)}; pass two numbers.")
    return as_count(sizes[0], f"{name}[0]"), as_count(sizes[1], f"{name}[1]")


def as_nonnegative(array: FloatArray, name: str, why: str) -> FloatArray:
    """`array`, of which no entry may be negative."""
    bad = array < 0
    if bad.any():
        index = first_index(bad)
        where = f" at index {index}" if array.ndim else ""
        raise InputError(f"{name} must not be negative, got {array[index]:g}{where}; {why}.")
    return array
