"""How well label maps agree with masks, and the losses that follow from it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_array, as_choice

MaskLoss = Callable[[NDArray[Any], NDArray[Any]], NDArray[np.float64]]


def mask_scores(labels: Any, masks: Any) -> NDArray[np.float64]:
    """|y and t| / |y or t| of each image's foreground, (B,); 1 where both masks are empty.

    labels, masks : (B, ...) of 0 and 1.
    """
    found, wanted = (_as_foreground(each) for each in (labels, masks))
    if found.shape != wanted.shape:
        raise InputError(
            f"labels and masks must have one shape, got {np.shape(labels)} and {np.shape(masks)}; "
            "pass the masks of the same images."
        )
    union = (found | wanted).sum(1)
    return np.asarray(np.where(union > 0, (found & wanted).sum(1) / np.maximum(union, 1), 1.0))


def iou_loss(labels: NDArray[Any], masks: NDArray[Any]) -> NDArray[np.float64]:
    """1 - |y and y*| / |y or y*| for each row of (n, I), 0 where both are empty."""
    return np.asarray(1.0 - mask_scores(labels, masks))


def hamming_loss(labels: NDArray[Any], masks: NDArray[Any]) -> NDArray[np.float64]:
    """The share of pixels that differ, for each row of (n, I)."""
    return np.asarray((labels != masks).mean(1, dtype=np.float64))


LOSSES: dict[str, MaskLoss] = {"iou": iou_loss, "hamming": hamming_loss}


def as_loss(loss: str | MaskLoss) -> MaskLoss:
    """A loss by name, or any function of labels (n, I) and masks (n, I) to (n,) numbers."""
    if callable(loss):
        return loss
    return LOSSES[as_choice(loss, "loss", LOSSES)]


def _as_foreground(values: Any) -> NDArray[np.bool_]:
    array = as_array(values, "labels and masks")
    if array.ndim < 2 or array.dtype.kind not in "biuf" or not np.isin(array, (0, 1)).all():
        raise InputError(
            f"labels and masks must hold 0 and 1 in shape (B, ...), got dtype {array.dtype} and "
            f"shape {array.shape}; a single image needs a leading axis of 1."
        )
    return np.asarray(array.reshape(len(array), math.prod(array.shape[1:])) != 0)
