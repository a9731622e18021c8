"""Checks on what callers pass, in pydensecrf's layout: labels or features first, (L, N)."""

from __future__ import annotations

from typing import Any

import numpy as np

from crfield._core.validate import (
    FloatArray,
    InputError,
    as_array,
    as_count,
    as_floats,
    check_memory,
    first_index,
    shown,
)
from crfield.dense.filters.base import check_features

FLOAT32 = np.dtype(np.float32)


def as_whole(value: Any, name: str, minimum: int = 0, maximum: int | None = None) -> int:
    """A whole number; 5.0 will do, which the original takes as well."""
    if isinstance(value, float | np.floating) and float(value).is_integer():
        value = int(value)
    return as_count(value, name, minimum, maximum)


def as_rows(values: Any, name: str, shape: tuple[int | None, int | None]) -> FloatArray:
    """A float32 copy (columns, rows) of `values` (rows, columns); None leaves a size open."""
    array = as_array(values, name)
    fits = array.ndim == 2 and all(
        want is None or want == got for want, got in zip(shape, array.shape, strict=True)
    )
    if not fits:
        swapped = array.ndim == 2 and None not in shape and array.shape == shape[::-1]
        wanted = ", ".join("any" if size is None else str(size) for size in shape)
        remedy = "transpose it" if swapped else "put one pixel or variable in each column"
        if array.ndim == 3 and array.shape[0] == shape[0]:
            remedy = f"use its reshape(({shape[0]}, -1))"
        elif array.ndim == 3 and array.shape[-1] == shape[0]:
            remedy = f"its labels come last: use its transpose(2, 0, 1).reshape({shape[0]}, -1)"
        raise InputError(f"{name} must have shape ({wanted}), got {array.shape}; {remedy}.")
    check_memory(
        2.0 * FLOAT32.itemsize * array.size, f"{name} of shape {array.shape}",
        "work on a smaller image or on tiles",
    )
    return np.array(as_floats(array, name, FLOAT32).T, order="C")


def as_widths(values: Any, name: str, count: int) -> FloatArray:
    """`count` positive float32 widths, all alike if one number is given; infinity drops a feature.
    """
    array = np.atleast_1d(as_array(values, name))
    if array.ndim != 1 or (np.ndim(values) and len(array) != count):
        wanted = "one number" if count == 1 else f"one number or {count} numbers"
        raise InputError(
            f"{name} must be {wanted}, got {shown(values)}; "
            "give one number, or one for each feature."
        )
    with np.errstate(over="ignore", under="ignore"):
        widths = array.astype(np.float32)
    bad = ~(widths > 0)
    if bad.any():
        raise InputError(
            f"{name} must be positive in float32, got {float(array[first_index(bad)]):g}; "
            "use a larger number."
        )
    return np.broadcast_to(widths, (count,))


def divide(values: FloatArray, widths: FloatArray) -> FloatArray:
    """Divide each row of `values` by its width, in place."""
    with np.errstate(over="ignore", under="ignore"):
        for row, width in zip(values, widths, strict=True):
            row /= width
    check_features(values)
    return values
