"""What the estimators of chains and of graphs check alike: labels of any kind, and the ridge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_positive_number, shown

LARGEST_FEATURE = 1e100


def as_label_arrays(
    y: Any, shapes: Sequence[tuple[int, ...]], sample: str, place: str
) -> list[NDArray[Any]]:
    """The labels of each sample, in these shapes; what samples and their places are called."""
    if not isinstance(y, Sequence | np.ndarray) or isinstance(y, str | bytes):
        raise InputError(f"y must be a list of arrays of labels, got {shown(y)}; pass a list.")
    if len(y) != len(shapes):
        raise InputError(
            f"y must hold one array a {sample}, got {len(y)} for {len(shapes)} {sample}s; "
            "pass lists of one length."
        )
    if isinstance(y, np.ndarray) and y.dtype.kind == "O":
        y = y.tolist()
    parts: list[NDArray[Any]] = []
    for i, (part, shape) in enumerate(zip(y, shapes, strict=True)):
        labels = _as_labels(part, f"y[{i}]")
        if labels.shape != shape:
            raise InputError(
                f"y[{i}] must have shape {shape} like X[{i}], got {labels.shape}; "
                f"give one label a {place}."
            )
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise InputError(
                f"y[{i}] must hold known labels, got NaN or infinity; leave such {sample}s out."
            )
        if kind_of(labels) != kind_of(parts[0] if parts else labels) or _is_mixed(part):
            raise InputError(
                f"y must hold labels of one kind, got numbers and strings at y[{i}]; use one of "
                "them."
            )
        parts.append(labels)
    return parts


def number_classes(labels: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """Classes (L,) in order, and the number of each label (N,)."""
    try:
        classes, numbers = np.unique(labels, return_inverse=True)
    except TypeError:
        raise InputError(
            "y must hold labels of one kind, got some that cannot be compared; "
            "use numbers or strings."
        ) from None
    return classes, numbers.reshape(-1).astype(np.int32)


def check_kind(labels: NDArray[Any], classes: NDArray[Any]) -> None:
    """Refuse labels that can equal none of the classes because they are of another kind."""
    if kind_of(labels) != kind_of(classes):
        raise InputError(
            f"y must hold labels of the kind that fit had, {kind_of(classes)}s, got "
            f"{kind_of(labels)}s; convert them."
        )


def kind_of(labels: NDArray[Any]) -> str:
    """What labels are, in a word."""
    return {"U": "string", "S": "bytes", "O": "object"}.get(labels.dtype.kind, "number")


def as_strength(value: Any) -> float:
    """C, the inverse strength of a ridge."""
    number = as_positive_number(value, "C")
    if not 1e-30 <= number <= 1e30:
        raise InputError(
            f"C must lie between 1e-30 and 1e+30, got {number:g}; C=1 is a common choice."
        )
    return number


def _as_labels(part: Any, name: str) -> NDArray[Any]:
    # A word is as good a list of labels as any other.
    try:
        return np.asarray(list(part) if isinstance(part, str) else part)
    except (ValueError, TypeError, RuntimeError):
        raise InputError(
            f"{name} must be an array of labels, got {shown(part)}, which does not form one; "
            "give every row the same length."
        ) from None


def _is_mixed(part: Any) -> bool:
    """Whether NumPy would write numbers of a list as strings."""
    if not isinstance(part, list | tuple):
        return False
    kinds = {isinstance(x, str) for x in part if not isinstance(x, list | tuple)}
    return len(kinds) > 1 or any(map(_is_mixed, part))
