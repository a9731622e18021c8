"""How well a label map agrees with the truth: confusion counts and the scores made of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfield._validate import InputError, as_count, first_index

Counts = NDArray[np.int64]


def as_label_map(
    labels: ArrayLike, name: str, n_labels: int, skip: NDArray[np.bool_] | None = None
) -> NDArray[np.integer[Any]]:
    """`labels` as an integer array whose entries, except where `skip`, lie in 0 .. n_labels - 1."""
    array = np.asarray(labels)
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    if array.dtype.kind not in "iu":
        raise InputError(
            f"{name} must hold whole numbers, got dtype {array.dtype}; "
            "take the argmax of probabilities or cast to int first."
        )
    bad = (array < 0) | (array >= n_labels)
    if skip is not None:
        bad &= ~skip
    if bad.any():
        index = first_index(bad)
        raise InputError(
            f"{name} must hold labels from 0 to {n_labels - 1}, got {array[index]} at index "
            f"{index}; raise n_labels or map the labels into that range."
        )
    return array


def confusion_matrix(
    truth: ArrayLike, predicted: ArrayLike, n_labels: int, void: int | None = 255
) -> Counts:
    """Pixels of each true label (rows) that were given each predicted label (columns).

    Parameters
    ----------
    truth, predicted
        Integer label maps of one shape; bool counts as labels 0 and 1.
    n_labels
        Number of labels L.
    void
        Pixels with this true label are left out; None leaves out none.

    Returns
    -------
    (L, L) int64 counts. Sum the matrices of several images to score them together.
    """
    n_labels = as_count(n_labels, "n_labels")
    if void is not None and 0 <= void < n_labels:
        raise InputError(
            f"void must be no label from 0 to {n_labels - 1}, got {void}; "
            "choose another number or pass void=None."
        )
    truth_shape, predicted_shape = np.shape(truth), np.shape(predicted)
    if truth_shape != predicted_shape:
        raise InputError(
            f"truth and predicted must have one shape, got {truth_shape} and {predicted_shape}; "
            "resize the prediction to the truth with nearest neighbour."
        )
    left_out = np.zeros(truth_shape, bool) if void is None else np.asarray(truth) == void
    true_labels = as_label_map(truth, "truth", n_labels, left_out)[~left_out]
    predicted_labels = as_label_map(predicted, "predicted", n_labels, left_out)[~left_out]
    pairs = true_labels.astype(np.int64) * n_labels + predicted_labels.astype(np.int64)
    return np.bincount(pairs, minlength=n_labels**2).reshape(n_labels, n_labels).astype(np.int64)


def iou_per_label(confusion: ArrayLike) -> NDArray[np.float64]:
    """Intersection over union of each label, NaN for a label in neither truth nor prediction.

    IoU_l = C_ll / (sum_k C_lk + sum_k C_kl - C_ll) for a confusion matrix C of shape (L, L).
    """
    counts = _as_confusion(confusion)
    hits = np.diagonal(counts)
    return _ratio(hits, counts.sum(axis=1) + counts.sum(axis=0) - hits)


def mean_iou(confusion: ArrayLike) -> float:
    """Mean of `iou_per_label` over the labels that occur, NaN if none does."""
    return _mean_of_defined(iou_per_label(confusion))


def pixel_accuracy(confusion: ArrayLike) -> float:
    """Share of all pixels that got their true label, NaN without any pixel."""
    counts = _as_confusion(confusion)
    return float(_ratio(np.trace(counts), counts.sum()))


def class_accuracy(confusion: ArrayLike) -> float:
    """Share of correct pixels of each true label, C_ll / sum_k C_lk, averaged over true labels."""
    counts = _as_confusion(confusion)
    return _mean_of_defined(_ratio(np.diagonal(counts), counts.sum(axis=1)))


def _as_confusion(confusion: ArrayLike) -> NDArray[Any]:
    counts = np.asarray(confusion)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.shape[0] == 0:
        raise InputError(
            f"confusion must be a square matrix (L, L), got shape {counts.shape}; "
            "build it with confusion_matrix."
        )
    if counts.dtype.kind not in "iuf" or not (np.isfinite(counts) & (counts >= 0)).all():
        raise InputError(
            f"confusion must hold counts of at least zero, got dtype {counts.dtype} or a negative "
            "or non-finite entry; build it with confusion_matrix."
        )
    return counts


def _ratio(part: Any, whole: Any) -> NDArray[np.float64]:
    """part / whole, NaN where whole is zero."""
    whole = np.asarray(whole, np.float64)
    ratio = np.full(whole.shape, np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio


def _mean_of_defined(values: NDArray[np.float64]) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if defined.size else float("nan")
