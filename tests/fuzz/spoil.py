"""Right arguments made wrong, one or two at a time, and results looked at for what cannot be."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tests.fuzz.calls import Call, require
from tests.fuzz.values import (
    FLOAT_TYPES,
    SPECIAL_FLOATS,
    WHOLE_TYPES,
    WRONG_ARRAYS,
    WRONG_COUNTS,
    WRONG_NUMBERS,
    WRONG_WORDS,
    Maker,
)

ANYTHING: tuple[Any, ...] = (
    None, 0, -1, 3.5, "x", b"x", [], {}, (), object(), np.zeros(3), float("nan"), {"a": 1}, int,
    [None], [[1], [1, 2]], range(3),
)
HOW_OFTEN = ("max_iter", "n", "n_blocks", "n_epochs", "n_iter", "n_passes",
             "n_resamples", "n_restarts", "n_samples", "n_steps", "niter")
MOST_OFTEN = 1000


def spoiled(maker: Maker, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, in a hostile case with one or two of them changed."""
    changed = {name: formed(maker, value) for name, value in arguments.items()}
    if maker.hostile and changed:
        names = maker.rng.permutation(sorted(changed))[:maker.pick([1, 1, 1, 2])]
        for name in map(str, names):
            wrong = spoil(maker, changed[name])
            if name in HOW_OFTEN and isinstance(wrong, int | float) and wrong > MOST_OFTEN:
                wrong = -wrong  # what takes long because it was asked for is no finding
            changed[name] = wrong
    return changed


def formed(maker: Maker, value: Any) -> Any:
    """Arrays in some memory layout."""
    return maker.formed(value) if isinstance(value, np.ndarray) else value


def spoil(maker: Maker, value: Any) -> Any:
    """Something else in the place of a right value, most often of its own kind."""
    if isinstance(value, bool):  # anything that is true or false will do
        return maker.pick([0, 1, None, "x", 2.5, ()])
    if maker.chance(0.1):
        return maker.pick(ANYTHING)
    if isinstance(value, np.ndarray) and value.dtype != object:
        return spoil_array(maker, value)
    if value is None:
        return maker.pick((*ANYTHING, *WRONG_ARRAYS))
    if isinstance(value, int | np.integer):
        return maker.pick((*WRONG_COUNTS, *WRONG_NUMBERS, int(value) + 1, -int(value)))
    if isinstance(value, float):
        return maker.pick((*WRONG_NUMBERS, -value, value * 1e30, 10**12))
    if isinstance(value, str):
        return maker.pick(WRONG_WORDS)
    if isinstance(value, list) and value:
        parts = list(value)
        where = maker.count(0, len(parts) - 1)
        kind = maker.pick(["part", "part", "drop", "twice", "other"])
        if kind == "part":
            parts[where] = spoil(maker, parts[where])
        elif kind == "drop":
            del parts[where]
        elif kind == "twice":
            parts.append(parts[where])
        else:
            return maker.pick((*ANYTHING, *WRONG_ARRAYS))
        return parts
    return maker.pick((*ANYTHING, *WRONG_ARRAYS))


def spoil_array(maker: Maker, array: Any) -> Any:
    """An array of another shape or type, or with numbers that are out of place."""
    kind = maker.pick(["value", "value", "value", "shape", "type", "empty", "wrong"])
    if kind == "value" and array.size:
        spoilt = np.array(array)
        where = maker.count(0, spoilt.size - 1)
        with np.errstate(all="ignore"):
            if spoilt.dtype.kind == "f":
                spoilt.flat[where] = maker.pick((*SPECIAL_FLOATS, -1.0, 2.0))
            elif spoilt.dtype.kind in "iu":
                spoilt = spoilt.astype(np.int64)
                spoilt.flat[where] = maker.pick([-1, 2**31 - 1, 2**31, 2**62, -(2**63), 7, 255])
        return spoilt
    if kind == "shape" and array.size and array.ndim:
        return maker.pick([
            array[..., None], array[None], array.ravel(), array[:-1], array[..., :-1], array.T,
            np.concatenate([array, array]), array[0], array[..., 0],
        ])
    if kind == "type":
        if array.dtype.kind == "c":
            return array
        types = ("O", "c8", "U3", "S2", "M8[s]", "V3", *WHOLE_TYPES, *FLOAT_TYPES)
        dtype = maker.pick(types)
        with np.errstate(all="ignore"):
            try:
                return array.astype(dtype)
            except (ValueError, TypeError):
                return np.zeros(array.shape, dtype)
    if kind == "empty":
        return np.zeros(maker.pick([(0,), (0, 2), (2, 0), (), (0, 0, 0)]), array.dtype)
    return maker.pick(WRONG_ARRAYS)


def call(
    maker: Maker, function: Callable[..., Any], arguments: Mapping[str, Any],
    check: Callable[[Any], None] | None = None, **fixed: Any,
) -> Call:
    """A call of `function` by keywords, of which `fixed` are never changed."""
    given = spoiled(maker, arguments)

    def look(result: Any) -> None:
        check_numbers(result)
        if check is not None and not maker.hostile:
            check(result)

    named = {"function": function.__qualname__, **given}
    return Call(lambda: function(**given, **fixed), look, named)


def check_numbers(result: Any, path: str = "result") -> None:
    """No NaN anywhere in a result; fields whose meaning allows infinity are left to `check`."""
    if isinstance(result, np.ndarray) and result.dtype.kind == "f":
        require(not np.isnan(result).any(), f"{path} holds NaN")
    elif isinstance(result, float):
        require(not np.isnan(result), f"{path} is NaN")
    elif isinstance(result, list | tuple):
        for part in result:
            check_numbers(part, path)
    elif dataclasses.is_dataclass(result):
        for field in dataclasses.fields(result):
            if not field.name.startswith("_"):
                check_numbers(getattr(result, field.name), f"{path}.{field.name}")
