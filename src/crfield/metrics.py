"""How well labels and marginals agree with the truth: counts that add up over images, and the
scores made of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfield._core.distances import squared_distances
from crfield._core.resources import thread_count
from crfield._core.validate import (
    MAX_LABELS,
    InputError,
    as_array,
    as_choice,
    as_count,
    as_floats,
    as_positive_number,
    check_memory,
    refuse_where,
)

Counts = NDArray[np.int64]
Labels = NDArray[np.integer[Any]]
Mask = NDArray[np.bool_]

_BOUNDARY_SHARE = 0.02  # of the diagonal, how wide boundaries are
_RESAMPLES_AT_ONCE, _MOST_RESAMPLES = 64, 1_000_000


def as_label_map(
    labels: ArrayLike, name: str, n_labels: int, skip: Mask | None = None,
    remedy: str = "raise n_labels or map the labels into that range",
) -> Labels:
    """`labels` as integers of the same shape that lie in 0 .. n_labels - 1.

    name : what error messages call them.
    skip : where not to look, an array of the same shape.
    remedy : what to do about labels that do not lie there.
    """
    array = as_array(labels, name)
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
    refuse_where(bad, array, f"{name} must hold labels from 0 to {n_labels - 1}", remedy)
    return array


def confusion_matrix(
    truth: ArrayLike, predicted: ArrayLike, n_labels: int, void: int | None = 255
) -> Counts:
    """C_kl (L, L), the pixels of each true label k (rows) that were given each label l (columns).

    Sum the matrices of several images to score them together.

    Parameters
    ----------
    truth, predicted : integer label maps of one shape; bool counts as labels 0 and 1.
    n_labels : number of labels L.
    void : pixels with this true label are left out; None leaves out none.
    """
    return _count_pairs(*_checked_pair(truth, predicted, n_labels, void))


def trimap_confusion(
    truth: ArrayLike,
    predicted: ArrayLike,
    n_labels: int,
    width: float,
    void: int | None = 255,
) -> Counts:
    """The confusion matrix (L, L) of the pixels near a border between two labels of the truth.

    A pixel is on a border if one of its neighbors along an axis has another label and neither is
    void. Pixels less than `width` away from a pixel on a border count, by the Euclidean distance
    between their centers: `width=1` takes only the pixels on borders.

    Parameters
    ----------
    truth, predicted, n_labels, void : as for `confusion_matrix`.
    width : width of the band on either side of a border, in pixels.
    """
    width = as_positive_number(width, "width")
    true, found, counted, n_labels = _checked_pair(truth, predicted, n_labels, void)
    return _count_pairs(true, found, _near_border(true, counted, width), n_labels)


def boundary_counts(
    truth: ArrayLike,
    predicted: ArrayLike,
    n_labels: int,
    width: float | None = None,
    void: int | None = 255,
) -> Counts:
    """For each label the pixels of its boundary in both maps, in the truth and in the prediction,
    (3, L), for `boundary_iou`.

    The boundary of a label is what of it lies less than `width` away from a border, as in
    `trimap_confusion`, of the map in question. The image's edge is no border.

    Parameters
    ----------
    truth, predicted, n_labels, void : as for `confusion_matrix`.
    width : of the boundary in pixels; by default 2 % of the image's diagonal, as Cheng et al. (CVPR
        2021) have it, or that of the pixels on borders if that is less.
    """
    true, found, counted, n_labels = _checked_pair(truth, predicted, n_labels, void)
    reach = max(_BOUNDARY_SHARE * math.hypot(*true.shape), 1.0) if width is None else (
        as_positive_number(width, "width")
    )
    of_truth, of_found = (_near_border(labels, counted, reach) for labels in (true, found))
    both = of_truth & of_found & (true == found)
    return np.stack([
        np.bincount(labels[chosen].astype(np.int64), minlength=n_labels)
        for labels, chosen in ((true, both), (true, of_truth), (found, of_found))
    ])


def boundary_iou(counts: ArrayLike) -> float:
    """Intersection over union of boundaries, averaged over the labels that have one in the truth.

    counts : (3, L) of `boundary_counts`; sum those of all images first.
    """
    both, true, found = _as_counts(counts, 3, "boundary_counts")
    return _mean_of_defined(_ratio(both, np.where(true > 0, true + found - both, 0)))


def calibration_counts(
    truth: ArrayLike, marginals: ArrayLike, n_bins: int = 15, void: int | None = 255
) -> NDArray[np.float64]:
    """Pixels, those with the right label, and the sum of their confidences, (3, n_bins), for
    `calibration_error`.

    The confidence of a pixel is its largest marginal. Bins divide confidences from 0 to 1 evenly.

    Parameters
    ----------
    truth : true labels (*grid).
    marginals : (*grid, L).
    n_bins : how many bins there are.
    void : pixels with this true label are left out; None leaves out none.
    """
    q = as_floats(marginals, "marginals")
    n_bins = as_count(n_bins, "n_bins")
    if q.ndim < 2 or q.shape[-1] == 0:
        raise InputError(f"marginals must have shape (*grid, L), got {q.shape}; labels come last.")
    true, found, counted, _ = _checked_pair(truth, q.argmax(-1), q.shape[-1], void)
    confidence = q.max(-1)[counted].astype(np.float64)
    hits = (true == found)[counted]
    bins = np.clip((confidence * n_bins).astype(np.intp), 0, n_bins - 1)
    return np.stack([
        np.bincount(bins, weights, n_bins) for weights in (np.ones(len(bins)), hits, confidence)
    ])


def calibration_error(counts: ArrayLike) -> float:
    """Expected calibration error, sum_b n_b |accuracy_b - confidence_b| / sum_b n_b over the bins:
    0 if pixels that are sure by 70 % have the right label in 70 % of all cases; NaN of none.

    counts : (3, n_bins) of `calibration_counts`; sum those of all images first.
    """
    pixels, hits, confidence = _as_counts(counts, 3, "calibration_counts")
    return float(_ratio(np.abs(hits - confidence).sum(), pixels.sum()))


def iou_per_label(confusion: ArrayLike, *, absent: str = "skip") -> NDArray[np.float64]:
    """Intersection over union of each label (L,), NaN for labels that never occur in the truth.

    IoU_l = C_ll / (sum_k C_lk + sum_k C_kl - C_ll) for the confusion matrix C of the whole set.
    Pixels that were wrongly given a label which never occurs count against their true labels.

    Parameters
    ----------
    confusion : C (L, L); sum those of all images first.
    absent : labels that never occur in the truth are NaN ("skip"), or 0 if they were predicted
        ("zero"), which is how torchmetrics and mmsegmentation count them.
    """
    counts = _as_confusion(confusion)
    as_choice(absent, "absent", ("skip", "zero"))
    hits, true, found = np.diagonal(counts), counts.sum(axis=1), counts.sum(axis=0)
    union = true + found - hits
    return _ratio(hits, union if absent == "zero" else np.where(true > 0, union, 0))


def mean_iou(confusion: ArrayLike, *, absent: str = "skip") -> float:
    """Mean of `iou_per_label` over the labels that occur in the truth, NaN if there are none.

    1 - `mean_iou` is the loss that learning minimizes by default, of labels instead of marginals.

    Parameters
    ----------
    confusion : C (L, L); sum those of all images first.
    absent : "zero" also averages over labels that were only predicted, as 0.
    """
    return _mean_of_defined(iou_per_label(confusion, absent=absent))


def pixel_accuracy(confusion: ArrayLike) -> float:
    """Share of all pixels that got their true label, sum_l C_ll / sum_kl C_kl.

    confusion : C (L, L); NaN without any pixel.
    """
    counts = _as_confusion(confusion)
    return float(_ratio(np.trace(counts), counts.sum()))


def class_accuracy(confusion: ArrayLike) -> float:
    """Share of correct pixels of each true label, C_ll / sum_k C_lk, averaged over true labels.

    confusion : C (L, L).
    """
    counts = _as_confusion(confusion)
    return _mean_of_defined(_ratio(np.diagonal(counts), counts.sum(axis=1)))


def paired_bootstrap(
    confusions_a: ArrayLike,
    confusions_b: ArrayLike,
    statistic: Callable[[NDArray[Any]], float] = mean_iou,
    n_resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float, float]:
    """How much better a scores than b on a set of images, with a 95 % bootstrap interval:
    (difference, low, high).

    The difference is statistic(sum of a) - statistic(sum of b). The interval runs from its 2.5th
    to its 97.5th percentile over sets of N images drawn with replacement, the same for a and b.

    Parameters
    ----------
    confusions_a, confusions_b : (N, L, L) confusion matrices of two methods on the same N images.
    statistic : score of a confusion matrix (L, L).
    n_resamples : number of sets drawn.
    seed : the same seed gives the same sets.
    """
    a = _as_confusions(confusions_a, "confusions_a")
    b = _as_confusions(confusions_b, "confusions_b")
    if a.shape != b.shape:
        raise InputError(
            f"confusions_a and confusions_b must have one shape, got {a.shape} and {b.shape}; "
            "score both methods on the same images."
        )
    n_images, n_resamples = len(a), as_count(n_resamples, "n_resamples", 1, _MOST_RESAMPLES)
    rng = np.random.default_rng(as_count(seed, "seed", minimum=0))
    differences = [statistic(a.sum(axis=0)) - statistic(b.sum(axis=0))]
    for start in range(0, n_resamples, _RESAMPLES_AT_ONCE):
        n_drawn = min(_RESAMPLES_AT_ONCE, n_resamples - start)
        times_drawn = rng.multinomial(n_images, np.full(n_images, 1 / n_images), n_drawn)
        weights = times_drawn.astype(np.float64)
        sums = zip(np.tensordot(weights, a, 1), np.tensordot(weights, b, 1), strict=True)
        differences += [statistic(sum_a) - statistic(sum_b) for sum_a, sum_b in sums]
    if not np.isfinite(differences).all():
        raise InputError(
            "statistic must be a finite number for every set of images, got "
            f"{differences[int(np.argmin(np.isfinite(differences)))]}; pass more images, and "
            "leave out those without counted pixels."
        )
    low, high = np.quantile(differences[1:], [0.025, 0.975])
    return float(differences[0]), float(low), float(high)


def _checked_pair(
    truth: ArrayLike, predicted: ArrayLike, n_labels: int, void: int | None
) -> tuple[Labels, Labels, Mask, int]:
    """True and predicted labels, which pixels are not void, and the number of labels."""
    n_labels = as_count(n_labels, "n_labels")
    check_memory(
        16.0 * min(n_labels, MAX_LABELS) ** 2, f"A matrix of {n_labels} labels",
        "count fewer labels",
    )
    if void is not None and 0 <= as_count(void, "void", -(2**63), 2**63 - 1) < n_labels:
        raise InputError(
            f"void must be no label from 0 to {n_labels - 1}, got {void}; "
            "choose another number or pass void=None."
        )
    true, found = as_array(truth, "truth"), as_array(predicted, "predicted")
    if true.shape != found.shape:
        raise InputError(
            f"truth and predicted must have one shape, got {true.shape} and {found.shape}; "
            "resize the prediction to the truth with nearest neighbor."
        )
    left_out = np.zeros(true.shape, bool) if void is None else true == void
    true_labels = as_label_map(true, "truth", n_labels, left_out)
    predicted_labels = as_label_map(found, "predicted", n_labels, left_out)
    return true_labels, predicted_labels, ~left_out, n_labels


def _count_pairs(truth: Labels, predicted: Labels, counted: Mask, n_labels: int) -> Counts:
    rows, columns = truth[counted].astype(np.int64), predicted[counted]
    pairs = rows * n_labels + columns.astype(np.int64)
    return np.bincount(pairs, minlength=n_labels**2).reshape(n_labels, n_labels).astype(np.int64)


def _near_border(labels: Labels, known: Mask, width: float) -> Mask:
    """Known pixels less than `width` away from one on a border between labels."""
    border = _on_border(labels, known)
    if not border.any():
        return border
    near = squared_distances(border[None], thread_count(None))[0] < width * width
    return np.asarray(known & near)


def _on_border(labels: Labels, known: Mask) -> Mask:
    """Pixels with a neighbor of another label along an axis, both of them known."""
    border = np.zeros(labels.shape, bool)
    for axis in range(labels.ndim):
        here, there, known_here, known_there = (
            np.moveaxis(array, axis, 0)[part]
            for array in (labels, known)
            for part in (slice(None, -1), slice(1, None))
        )
        differs = (here != there) & known_here & known_there
        along = np.moveaxis(border, axis, 0)
        along[:-1] |= differs
        along[1:] |= differs
    return border


def _as_counts(counts: ArrayLike, n_rows: int, maker: str) -> NDArray[Any]:
    """Counts (n_rows, n) that the function of the name `maker` makes."""
    found = as_array(counts, "counts")
    if found.ndim != 2 or len(found) != n_rows:
        raise InputError(
            f"counts must have shape ({n_rows}, n), got {found.shape}; build them with {maker}."
        )
    _check_counts(found, "counts", maker)
    return found


def _as_confusions(confusions: ArrayLike, name: str) -> NDArray[np.float64]:
    try:
        stack = np.asarray(confusions)
    except (ValueError, TypeError):
        raise InputError(
            f"{name} must hold confusion matrices of one size, got several sizes; "
            "build them with one n_labels."
        ) from None
    if stack.ndim != 3 or len(set(stack.shape[1:])) != 1 or stack.size == 0:
        raise InputError(
            f"{name} must hold one square matrix per image, (N, L, L), got shape {stack.shape}; "
            "build them with confusion_matrix and do not sum them."
        )
    _check_counts(stack, name)
    return stack.astype(np.float64)


def _as_confusion(confusion: ArrayLike) -> NDArray[Any]:
    counts = as_array(confusion, "confusion")
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1] or counts.shape[0] == 0:
        raise InputError(
            f"confusion must be a square matrix (L, L), got shape {counts.shape}; "
            "build it with confusion_matrix."
        )
    _check_counts(counts, "confusion")
    return counts


def _check_counts(
    counts: NDArray[Any], name: str, maker: str = "confusion_matrix"
) -> None:
    if counts.dtype.kind not in "iuf" or not (np.isfinite(counts) & (counts >= 0)).all():
        raise InputError(
            f"{name} must hold counts of at least zero, got dtype {counts.dtype} or a negative "
            f"or non-finite entry; build it with {maker}."
        )


def _ratio(part: Any, whole: Any) -> NDArray[np.float64]:
    """part / whole, NaN where whole is zero."""
    whole = np.asarray(whole, np.float64)
    ratio = np.full(whole.shape, np.nan)
    np.divide(part, whole, out=ratio, where=whole > 0)
    return ratio


def _mean_of_defined(values: NDArray[np.float64]) -> float:
    defined = values[~np.isnan(values)]
    return float(defined.mean()) if defined.size else float("nan")
