"""Losses over marginals, and their gradients (KK13 section 4.3).

A loss is a function of totals that add up over images, so that one definition serves a single image
and a whole data set: `totals` of each image are summed, `value` of the sum is the loss, and
`log_gradient` of each image follows from the sum. That is what makes intersection over union, which
ties all images together, exact.

The truth is (N,) labels with `void` where there is none; void pixels count nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    FloatArray,
    InputError,
    as_floats,
    as_not_negative,
    as_scalar,
    refuse_where,
)
from crfield.dense.namespace import Array, library_of

VOID = 255
CLASS_POWER = 0.25  # KK13's choice: pixels of a class that has n of them weigh n^-0.25

Totals = NDArray[np.float64]
Labels = NDArray[np.integer[Any]]


def customary_void(n_labels: int) -> int | None:
    """255 where it is none of `n_labels` labels; else None: nothing marks void pixels then."""
    return VOID if n_labels <= VOID else None


def known_pixels(truth: Any, void: int | None) -> NDArray[np.bool_]:
    """Where `truth`, of any shape, is a label rather than void."""
    labels = np.asarray(truth)
    return np.ones(labels.shape, bool) if void is None else np.asarray(labels != void)


def check_void(void: int | None, n_labels: int) -> None:
    """Refuse a `void` that is one of `n_labels` labels, whose own pixels would not count."""
    if void is not None and 0 <= void < n_labels:
        raise InputError(
            f"void must be no label from 0 to {n_labels - 1}, got {void}; make the loss with "
            "another number, or with void=None if all pixels count."
        )


@dataclass(frozen=True, eq=False)
class Loss:
    """What all losses share: methods take marginals q (N, L) and a truth (N,) of labels.

    weights : (L,) factor of each true label, or None for ones.
    void : the label of pixels that do not count.
    """

    weights: Any = None
    void: int | None = VOID

    def __post_init__(self) -> None:
        if self.weights is None:
            return
        weights = as_floats(self.weights, "weights", np.dtype(np.float64))
        if weights.ndim != 1 or (weights < 0).any() or not weights.any():
            raise InputError(
                f"weights must be one number >= 0 per label, not all 0, got shape {weights.shape}; "
                "see class_weights."
            )
        object.__setattr__(self, "weights", weights)

    # Whether each pixel's gradient needs no more of the other images than their weights.
    separable: ClassVar[bool] = True

    def totals(self, q: FloatArray, truth: Labels) -> Totals:
        """Sums over the pixels of one image, (2,) or (3 L,), from which `value` follows."""
        raise NotImplementedError

    def weight_totals(self, truth: Labels, n_labels: int) -> Totals:
        """What a separable loss needs of the totals (2,) for its gradient, from the truth alone.

        n_labels : L.
        """
        check_void(self.void, n_labels)
        counts = np.bincount(truth[known_pixels(truth, self.void)], minlength=n_labels)
        weights = np.ones(n_labels) if self.weights is None else self.weights
        return np.array([0.0, float((counts[:n_labels] * weights).sum())])

    def value(self, totals: Totals) -> float:
        """The loss of the images whose totals, (2,) or (3 L,), were summed."""
        return float(totals[0] / max(totals[1], 1e-300))

    def log_gradient(self, q: FloatArray, truth: Labels, totals: Totals) -> FloatArray:
        """dL / d log q = q * dL/dq (N, L) of one image, given the totals of all, (2,) or (3 L,)."""
        raise NotImplementedError

    def _known(self, q: FloatArray, truth: Labels) -> tuple[Any, Any, NDArray[np.float64]]:
        """Rows that count, their labels and weights."""
        n, n_labels = q.shape
        check_void(self.void, n_labels)
        if truth.shape != (n,):
            raise InputError(
                f"truth must have one label per variable ({n}), got shape {truth.shape}; "
                "flatten the label map."
            )
        known = known_pixels(truth, self.void)
        refuse_where(
            known & ((truth < 0) | (truth >= n_labels)), truth,
            f"truth must lie in 0..{n_labels - 1} (void: {self.void})", "mark such pixels as void",
        )
        rows = np.flatnonzero(known)
        labels = truth[rows].astype(np.intp)
        if self.weights is None:
            return rows, labels, np.ones(len(rows))
        if len(self.weights) != n_labels:
            raise InputError(
                f"weights must have {n_labels} numbers, got {len(self.weights)}; one per label."
            )
        return rows, labels, self.weights[labels]


@dataclass(frozen=True, eq=False)
class PixelLoss(Loss):
    """L = sum_i w c(log q_i(T_i)) / sum_i w for a cost c of each pixel."""

    def costs(self, log_p: Array) -> Array:
        """c (n,) of log_p (n,), the logarithms of the true labels' marginals; arrays or tensors."""
        raise NotImplementedError

    def slopes(self, log_p: FloatArray) -> FloatArray:
        """dc / d log p (n,) at log_p (n,)."""
        raise NotImplementedError

    def totals(self, q: FloatArray, truth: Labels) -> Totals:
        _, _, w, log_p = self._true(q, truth)
        return np.array([(w * self.costs(log_p)).sum(), w.sum()])

    def log_gradient(self, q: FloatArray, truth: Labels, totals: Totals) -> FloatArray:
        rows, labels, w, log_p = self._true(q, truth)
        g = np.zeros_like(q)
        g[rows, labels] = w * self.slopes(log_p) / max(totals[1], 1e-300)
        return g

    def _true(self, q: FloatArray, truth: Labels) -> tuple[Any, Any, Any, NDArray[np.float64]]:
        """Rows that count, their labels, weights, and logarithms of their true marginals."""
        rows, labels, w = self._known(q, truth)
        smallest = np.finfo(q.dtype).tiny
        return rows, labels, w, np.log(np.maximum(q[rows, labels], smallest).astype(np.float64))


@dataclass(frozen=True, eq=False)
class RobustLogLikelihood(PixelLoss):
    """L = -sum_i w log(q_i(T_i) + eps) / sum_i w; eps bounds what one pixel can cost."""

    eps: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        as_not_negative(self.eps, "eps", "0 is the log-likelihood")

    def costs(self, log_p: Array) -> Array:
        library = library_of(log_p)
        return -log_p if self.eps == 0 else -library.log(library.exp(log_p) + self.eps)

    def slopes(self, log_p: FloatArray) -> FloatArray:
        p = np.exp(log_p)
        return np.asarray(-p / (p + self.eps))


@dataclass(frozen=True, eq=False)
class LogLikelihood(RobustLogLikelihood):
    """L = -sum_i w log q_i(T_i) / sum_i w."""

    eps: float = 0.0


@dataclass(frozen=True, eq=False)
class ExpectedHamming(PixelLoss):
    """L = 1 - sum_i w q_i(T_i) / sum_i w, the expected share of wrong labels.

    Weights of 1 give global accuracy, n_l^-1 class-average accuracy, n_l^-s with s in between the
    geometric interpolation (`class_weights`).
    """

    def costs(self, log_p: Array) -> Array:
        return 1.0 - library_of(log_p).exp(log_p)

    def slopes(self, log_p: FloatArray) -> FloatArray:
        return np.asarray(-np.exp(log_p))


@dataclass(frozen=True, eq=False)
class IntersectionOverUnion(Loss):
    """L = 1 - mean_l i_l / u_l over the labels that occur in the truth.

    i_l = sum_{T_i = l} q_i(l), u_l = n_l + sum_{T_i != l} q_i(l), both over the whole data set.
    Where the marginals are certain, L = 1 - `mean_iou` of the labels. The totals are (i, u, n),
    3 L numbers.
    """

    separable: ClassVar[bool] = False

    def totals(self, q: FloatArray, truth: Labels) -> Totals:
        rows, labels, _ = self._known(q, truth)
        n_labels = q.shape[1]
        own = q[rows, labels].astype(np.float64)
        inside = np.bincount(labels, own, n_labels)
        count = np.bincount(labels, minlength=n_labels).astype(np.float64)
        known = np.zeros(len(q), q.dtype)
        known[rows] = 1.0
        outside = (known @ q).astype(np.float64) - inside
        return np.concatenate([inside, count + outside, count])

    def value(self, totals: Totals) -> float:
        inside, union, factor = self.parts(totals.reshape(3, -1), self.weights)
        return 1.0 - float((factor * inside / union).sum())

    def log_gradient(self, q: FloatArray, truth: Labels, totals: Totals) -> FloatArray:
        rows, labels, _ = self._known(q, truth)
        inside, union, factor = self.parts(totals.reshape(3, -1), self.weights)
        known = np.zeros((len(q), 1), q.dtype)
        known[rows] = 1.0
        g = known * (factor * inside / union**2).astype(q.dtype)
        g[rows, labels] = (-factor / union)[labels]
        g *= q
        return np.asarray(g)

    @staticmethod
    def parts(totals: Array, weights: Array | None) -> tuple[Array, Array, Array]:
        """i, u (1 where a label never occurs) and each label's share of the mean, all (L,).

        totals : (3, L), arrays or tensors.
        weights : (L,) or None for ones.
        """
        inside, union, count = totals
        library = library_of(count)
        factor = library.sign(count) if weights is None else library.sign(count) * weights
        factor = factor / library.clip(factor.sum(), 1e-30, None)
        return inside, library.where(union > 0, union, library.ones_like(union)), factor


def class_weights(counts: Any, power: float = CLASS_POWER) -> NDArray[np.float64]:
    """w_l = n_l^-power (L,), 0 for labels without a pixel.

    counts : n (L,), pixels of each label.
    power : 0 weighs pixels alike, 1 weighs labels alike.
    """
    n = as_floats(counts, "counts", np.dtype(np.float64))
    if n.ndim != 1 or (n < 0).any():
        raise InputError(
            f"counts must be one number >= 0 per label, got shape {n.shape}; "
            "count the labels of the truth."
        )
    return np.where(n > 0, np.maximum(n, 1.0) ** -as_scalar(power, "power"), 0.0)
