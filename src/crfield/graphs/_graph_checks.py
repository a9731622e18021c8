"""Checks on what factor graphs are made of."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import LARGEST_COST, InputError, as_array, as_floats, first_index

Doubles = NDArray[np.float64]
Variables = NDArray[np.int32]

_DOUBLE = np.dtype(np.float64)


def as_numbers(values: Any, name: str) -> Doubles:
    """Finite float64 numbers, C-contiguous."""
    array: Doubles = as_floats(values, name, _DOUBLE).astype(np.float64, copy=True)
    largest = float(np.abs(array).max(initial=0.0))
    if largest > LARGEST_COST:
        raise InputError(
            f"{name} must not exceed {LARGEST_COST:g} in magnitude, got {largest:.3g}; "
            "a cost of 1e6 forbids a state just as well."
        )
    return array


def as_cost_array(values: Any, name: str) -> Doubles:
    """float64 costs, infinity where a state is forbidden."""
    array = np.array(as_array(values, name), np.float64, order="C")  # a copy: callers go on
    bad = np.isnan(array) | (array < -LARGEST_COST) | ((array > LARGEST_COST) & np.isfinite(array))
    if bad.any():
        index = first_index(bad)
        raise InputError(
            f"{name} must be within {LARGEST_COST:g}, or infinite for what is forbidden, got "
            f"{array[index]:g} at index {index}; replace such values."
        )
    return array


def as_one_each(
    values: Any, n: int, name: str, *, may_be_infinite: bool = False
) -> Doubles:
    """(n,) numbers, from one for all or one for each."""
    array = as_cost_array(values, name) if may_be_infinite else as_numbers(values, name)
    if array.shape not in ((), (n,)):
        raise InputError(
            f"{name} must be one number or have shape ({n},), got {array.shape}; "
            "give one for each factor."
        )
    return np.ascontiguousarray(np.broadcast_to(array, (n,)))


def check_not_below_zero(array: Doubles, name: str) -> None:
    """Refuse negative numbers."""
    bad = array < 0
    if bad.any():
        index = first_index(bad)
        raise InputError(
            f"{name} must not be negative, got {array[index]:g} at index {index}; "
            "use 0 or more."
        )


def as_variables(values: Any, order: int | None = None, name: str = "variables") -> Variables:
    """(M, K) numbers of variables, all different in a row."""
    array = as_array(values, name)
    expected = "(M, K)" if order is None else f"(M, {order})"
    if array.size == 0 and array.ndim < 2:
        array = array.reshape(0, order or 1).astype(np.int32)
    if array.ndim != 2 or array.dtype.kind not in "iu" or order not in (None, array.shape[1]):
        raise InputError(
            f"{name} must be whole numbers of shape {expected}, got {array.dtype} of shape "
            f"{array.shape}; number the variables from 0 and give each factor a row."
        )
    if array.shape[1] == 0:
        raise InputError(f"{name} must have at least one column, got none; name some variables.")
    bad = (array < 0) | (array > np.iinfo(np.int32).max - 1)
    if bad.any():
        index = first_index(bad)
        raise InputError(
            f"{name} must be numbered from 0, got {array[index]} at index {index}; "
            "use the places of the variables in costs."
        )
    in_order = np.sort(array, 1)
    twice = (in_order[:, 1:] == in_order[:, :-1]).any(1)
    if twice.any():
        row = int(np.argmax(twice))
        raise InputError(
            f"{name} of a factor must differ, got {array[row].tolist()} in row {row}; "
            "make it a cost of that variable alone."
        )
    return np.array(array, np.int32, order="C")
