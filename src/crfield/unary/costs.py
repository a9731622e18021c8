"""Unary costs u_i(l) = -log p_i(l) from labels, probabilities, logits or features."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    MAX_LABELS,
    FloatArray,
    InputError,
    as_array,
    as_count,
    as_floats,
    as_scalar,
    check_magnitude,
    check_memory,
    first_index,
    working_dtype,
)

UNKNOWN = 255


def unary_from_labels(
    labels: Any, n_labels: int, *, confidence: float = 0.7, unknown: int | None = UNKNOWN
) -> FloatArray:
    """Costs -log p (*grid, L) from labels (*grid,), whole numbers below `n_labels`.

    A pixel's label has probability `confidence`, the others share the rest evenly; pixels marked
    `unknown` are flat.
    """
    n = as_count(n_labels, "n_labels", maximum=MAX_LABELS)
    known, ids = check_labels(labels, n, unknown)
    if unknown == UNKNOWN and n > 1 and not known.all() and known.any() and not ids.any():
        warnings.warn(
            f"{UNKNOWN} marks unknown pixels, and all others have label 0; if {UNKNOWN} is a label "
            f"(a 0/{UNKNOWN} mask), pass labels > 0.",
            stacklevel=2,
        )
    p = as_scalar(confidence, "confidence")
    if not 0.0 < p < 1.0 and not (n == 1 and p == 1.0):
        raise InputError(f"confidence must lie between 0 and 1, got {p:g}; try 0.7.")
    if n == 1:
        return np.zeros((*ids.shape, 1), np.float32)
    rest = (1.0 - p) / (n - 1)
    unary = np.full((*ids.shape, n), -np.log(rest), np.float32)
    np.put_along_axis(unary, ids[..., None], np.float32(-np.log(p)), axis=-1)
    unary[~known] = np.log(n)
    return unary


def unary_from_probabilities(
    probabilities: Any, *, clip: float = 1e-5, scale: float = 1.0
) -> FloatArray:
    """Costs u = -scale log max(p, clip) from probabilities p (*grid, L) that sum to 1 over labels.

    `scale` < 1 trusts an overconfident classifier less.
    """
    p = _as_scores(probabilities, "probabilities")
    floor, factor = as_scalar(clip, "clip"), as_scalar(scale, "scale")
    if not 0.0 < floor < 1.0:
        raise InputError(f"clip must lie between 0 and 1, got {floor:g}; try 1e-5.")
    if factor <= 0.0:
        raise InputError(f"scale must be positive, got {factor:g}; use 1 to leave costs alone.")
    bad = (p < -1e-4) | (p > 1.0 + 1e-4)
    if bad.any():
        index = first_index(bad)
        raise InputError(
            f"probabilities must lie in [0, 1], got {p[index]:g} at index {index}; "
            "apply a softmax over the labels to logits, or divide 0..255 maps by 255."
        )
    off = np.abs(p.sum(-1) - 1.0)
    if off.size and off.max() > 0.02:
        index = first_index(off > 0.02)
        raise InputError(
            f"probabilities must sum to 1 over the labels, got {p.sum(-1)[index]:g} at index "
            f"{index}; the labels must be the last axis (layout=\"channels_first\" if they are the "
            "first), or normalize them."
        )
    floor = max(floor, float(np.finfo(p.dtype).tiny))
    with np.errstate(over="ignore", invalid="ignore"):
        costs = np.asarray(-factor * np.log(np.maximum(p, floor)), p.dtype)
    check_magnitude(costs, "scale times log probabilities")
    return costs


def unary_from_logits(logits: Any) -> FloatArray:
    """Costs -log softmax(logits) from a network's last layer (*grid, L)."""
    z = _as_scores(logits, "logits")
    check_magnitude(z, "logits")
    z = z - z.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(z).sum(-1, keepdims=True)) - z)


def unary_from_features(features: Any, weights: Any) -> FloatArray:
    """Costs u_i = Lambda h_i of a logistic model (KK13 section 4.2): features (*grid, F),
    weights Lambda (L, F).
    """
    h = as_floats(features, "features")
    matrix = as_floats(weights, "weights", h.dtype)
    if h.ndim < 2 or matrix.ndim != 2 or matrix.shape[1] != h.shape[-1]:
        raise InputError(
            f"weights must be (L, F) for features (*grid, F), got {matrix.shape} and {h.shape}; "
            "give one row of weights a label."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        costs = h @ matrix.T
    check_magnitude(costs, "weights times features")
    return costs


def _as_scores(values: Any, name: str) -> FloatArray:
    """One number a label, (*grid, L), if there is room to turn them into costs."""
    array = as_array(values, name)
    if array.ndim < 2 or array.shape[-1] == 0:
        raise InputError(
            f"{name} must have shape (*grid, L), got {array.shape}; put the labels last."
        )
    _check_room(4.0 * array.size * working_dtype(array).itemsize, array.shape)
    return as_floats(array, name)


def _check_room(n_bytes: float, shape: tuple[int, ...]) -> None:
    check_memory(n_bytes, f"A unary of shape {shape}", "work on a smaller image or on tiles")


def check_labels(
    labels: Any, n_labels: int, unknown: int | None
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which labels (*grid,) are known, and the labels with zeros where they are not, both (*grid,).

    Others than `unknown` must lie in 0 .. n_labels - 1.
    """
    array = as_array(labels, "labels")
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    if array.dtype.kind not in "iu":
        raise InputError(
            f"labels must be whole numbers, got dtype {array.dtype}; "
            "use probabilities for soft labels or convert with .astype(int)."
        )
    if array.ndim == 0:
        raise InputError("labels must be an array of labels, got one number; pass the label map.")
    if unknown is not None:
        unknown = as_count(unknown, "unknown", -(2**63), 2**63 - 1)
    _check_room(array.size * (4.0 * n_labels + 24.0), (*array.shape, n_labels))
    known = np.ones(array.shape, bool) if unknown is None else array != unknown
    bad = known & ((array < 0) | (array >= n_labels))
    if bad.any():
        index = first_index(bad)
        marked = "none" if unknown is None else str(unknown)
        raise InputError(
            f"labels must lie in 0..{n_labels - 1} (unknown: {marked}), got {array[index]} at "
            f"index {index}; raise n_labels or mark such pixels with the unknown value."
        )
    return known, np.where(known, array, 0).astype(np.int64)
