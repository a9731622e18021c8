"""Checks that the parts of the pattern model share."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    FloatArray,
    InputError,
    as_array,
    as_count,
    as_floats,
    as_scalar,
    refuse_where,
    shown,
)


def check_binary(array: NDArray[Any], name: str) -> None:
    """Refuse other numbers than 0 and 1 in an array of any shape; messages call it `name`."""
    if array.dtype.kind == "b":
        return
    bad = array > 1 if array.dtype.kind == "u" else (array != 0) & (array != 1)
    refuse_where(
        bad, array, f"{name} must hold only 0 and 1", "threshold it or pick one class first"
    )


def as_masks(values: Any, n_visible: int, name: str = "y") -> NDArray[Any]:
    """Binary labels as (B, I), not copied where they are in order; (B, H, W) is flattened."""
    array = as_array(values, name)
    if array.ndim < 2 or math.prod(array.shape[1:]) != n_visible:
        raise InputError(
            f"{name} must have shape (B, {n_visible}), one row of labels per image, got "
            f"{array.shape}; a single image needs a leading axis of 1."
        )
    check_binary(array, name)
    return array.reshape(len(array), n_visible)


def as_rows(values: Any, width: int, name: str, dtype: np.dtype[Any]) -> FloatArray:
    """A finite (B, width) array."""
    array = as_floats(values, name, dtype)
    if array.ndim != 2 or array.shape[1] != width:
        raise InputError(
            f"{name} must have shape (B, {width}), one row per image, got {array.shape}; "
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
            f"{name} must have shape ({length},), got {array.shape}; give one number per entry."
        )
    return array


def as_grid(value: Any, name: str = "grid") -> tuple[int, int]:
    """Height and width."""
    try:
        height, width = value
    except (TypeError, ValueError):
        raise InputError(
            f"{name} must be (height, width), got {shown(value)}; pass two numbers."
        ) from None
    return as_count(height, f"{name}[0]"), as_count(width, f"{name}[1]")


def as_temperature(value: Any) -> float:
    """A number T >= 0."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not 0 <= number < math.inf:
        raise InputError(
            f"temperature must be a number from 0, got {shown(value)}; "
            "use 1 to sum the hidden units out and 0 to maximize them out."
        )
    return number


def as_share(value: Any, name: str, lowest: float = 1e-6) -> float:
    """A number below 1."""
    number = as_scalar(value, name)
    if not lowest <= number < 1:
        raise InputError(f"{name} must be between 0 and 1, got {number:g}; try 0.1.")
    return number
