"""Costs and features in pydensecrf's layout: labels or features first, pixels flattened."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crfield._core.validate import (
    MAX_LABELS,
    FloatArray,
    InputError,
    as_array,
    as_count,
    as_floats,
    as_scalar,
    as_within,
    check_finite,
    check_memory,
    refuse_where,
    shown,
)
from crfield._core.warning import warn
from crfield.compat.pydensecrf._inputs import FLOAT32, as_whole, as_widths, divide
from crfield.unary.costs import UNKNOWN
from crfield.unary.costs import unary_from_labels as _costs_of_labels

__all__ = [
    "compute_unary",
    "create_pairwise_bilateral",
    "create_pairwise_gaussian",
    "softmax_to_unary",
    "unary_from_labels",
    "unary_from_softmax",
]

# Resizing overshoots [0, 1] a little, and the original clips; this far out they are something else.
_OVERSHOOT = 0.5


def unary_from_labels(
    labels: Any, n_labels: int, gt_prob: float, zero_unsure: bool = True
) -> FloatArray:
    """Costs (L, N) from a label map: its label has probability `gt_prob`, others share the rest.

    labels : N in all, of any shape.
    n_labels : number of labels L.
    zero_unsure : labels count from 1, and 0 marks pixels that could be anything.
    """
    n = as_whole(n_labels, "n_labels", 1, MAX_LABELS)
    p = as_within(gt_prob, "gt_prob", 0, 1, "try 0.7", ends=False)
    array = as_array(labels, "labels")
    check_finite(array, "labels")
    highest = n if zero_unsure else n - 1
    bad = (array < 0) | (array > highest)
    if array.dtype.kind == "f":
        bad |= array != np.floor(array)
    remedy = "give unknown pixels the label 0" if zero_unsure else "number labels from 0"
    if (array == UNKNOWN).any():
        # Maps with a value for void count from 0 or from 1, and only with zero_unsure is there one.
        remedy = (
            f"mark void as label 0, np.where(labels == {UNKNOWN}, 0, labels + 1) with "
            "zero_unsure=True where labels count from 0"
        )
    refuse_where(
        bad, array, f"labels must be whole numbers in 0..{highest}", f"raise n_labels or {remedy}"
    )
    flat = array.ravel().astype(np.int64) - bool(zero_unsure)
    costs = _costs_of_labels(flat, n, confidence=p, unknown=-1 if zero_unsure else None)
    return np.array(costs.T, FLOAT32, order="C")


def unary_from_softmax(
    sm: Any, scale: float | None = None, clip: float | None = 1e-5
) -> FloatArray:
    """Costs (L, N) = -log p from probabilities `sm` (L, ...).

    `scale` mixes in the uniform distribution, scale p + (1 - scale) / L; then p is clipped to
    [clip, 1].
    """
    p = as_floats(sm, "sm")
    if p.ndim < 1 or p.shape[0] == 0:
        raise InputError(
            f"sm must have the labels as its first axis, got shape {p.shape}; "
            "pass an array (L, ...)."
        )
    refuse_where(
        (p < -_OVERSHOOT) | (p > 1.0 + _OVERSHOOT), p, "sm must hold probabilities",
        "apply a softmax to logits first",
    )
    if scale is not None:
        share = as_scalar(scale, "scale")
        if not 0.0 < share <= 1.0:
            raise InputError(f"scale must be above 0 and at most 1, got {share:g}; try 0.9.")
        p = share * p + (1.0 - share) / p.shape[0]
    if clip is not None:
        floor = as_scalar(clip, "clip")
        # The smallest number of float32 is a floor that every logarithm survives.
        smallest = float(np.finfo(FLOAT32).tiny)
        if not smallest <= floor <= 1.0:
            raise InputError(
                f"clip must be above {smallest:.2g} and at most 1, got {floor:g}; "
                "try 1e-5."
            )
        p = np.clip(p, floor, 1.0)
    elif p.size and not p.min() > 0.0:
        raise InputError(
            f"sm must be positive without clip, got {p.min():g}; "
            "use unary_from_softmax with clip=1e-5."
        )
    return np.asarray(-np.log(p).reshape(p.shape[0], -1), FLOAT32, order="C")


def create_pairwise_gaussian(sdims: Any, shape: Any) -> FloatArray:
    """Features (D, N) of an image of `shape`: positions, rows first, divided by `sdims`."""
    try:
        sizes = tuple(as_whole(size, "shape") for size in shape)
    except TypeError:
        raise InputError(
            f"shape must be a sequence of sizes, got {shown(shape)}; pass image.shape[:2]."
        ) from None
    if not sizes:
        raise InputError("shape must name at least one size, got none; pass image.shape[:2].")
    widths = as_widths(sdims, "sdims", len(sizes))
    check_memory(
        12.0 * len(sizes) * math.prod(sizes), f"Features of an image of shape {sizes}",
        "work on a smaller image or on tiles",
    )
    return divide(np.indices(sizes, np.float32).reshape(len(sizes), -1), widths)


def create_pairwise_bilateral(sdims: Any, schan: Any, img: Any, chdim: int = -1) -> FloatArray:
    """Features (D + C, N) of an image: positions divided by `sdims`, then colors by `schan`.

    img : (*grid, C), or with the channels elsewhere.

    chdim : the axis of the channels; -1 for an image without one.
    """
    image = as_array(img, "img")
    if image.ndim == 0:
        raise InputError("img must be an image, got one number; pass an array of pixels.")
    axis = as_count(chdim, "chdim", -image.ndim, image.ndim - 1)
    # The original means "no channels" by -1, so that the last axis has to be named by its number.
    channels = image[None] if axis == -1 else np.moveaxis(image, axis, 0)
    count, sizes = channels.shape[0], channels.shape[1:]
    if count == 0:
        raise InputError(
            f"img must have at least one channel, got shape {image.shape} with chdim={axis}; "
            "use create_pairwise_gaussian without one."
        )
    if not sizes or as_array(sdims, "sdims").shape not in ((), (len(sizes),)):
        raise InputError(
            f"sdims must have one width for each of the image's axes without the channels, got "
            f"{shown(sdims)} for shape {image.shape} with chdim={axis}; "
            "name the channels' axis with chdim, for example chdim=2 for (H, W, 3)."
        )
    colors = np.array(as_floats(channels, "img", FLOAT32)).reshape(count, -1)
    divide(colors, as_widths(schan, "schan", count))
    return np.concatenate([create_pairwise_gaussian(sdims, sizes), colors])


def compute_unary(labels: Any, M: int, GT_PROB: float = 0.5) -> FloatArray:
    """Deprecated: as `unary_from_labels`, with M labels and GT_PROB for `gt_prob`; (L, N)."""
    warn("compute_unary is deprecated, use unary_from_labels", DeprecationWarning)
    return unary_from_labels(labels, M, GT_PROB)


def softmax_to_unary(sm: Any, GT_PROB: float = 1) -> FloatArray:
    """Deprecated: as `unary_from_softmax`, with GT_PROB as the scale and no clipping; (L, N)."""
    warn("softmax_to_unary is deprecated, use unary_from_softmax", DeprecationWarning)
    return unary_from_softmax(sm, None if GT_PROB == 1 else GT_PROB, clip=None)
