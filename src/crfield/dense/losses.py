"""Losses over marginals, and their gradients (KK13 section 4.3).

A loss is a function of totals that add up over images, so that one definition serves a single image
and a whole data set: `totals` of each image are summed, `value` of the sum is the loss, and
`gradient` of each image follows from the sum. That is what makes intersection over union, which
ties all images together, exact.

The truth is (N,) labels with `void` where there is none; void pixels count nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray, InputError, as_floats, as_scalar, first_index

VOID = 255

Totals = NDArray[np.float64]
Labels = NDArray[np.integer[Any]]


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
                f"weights must be one number >= 0 a label, not all 0, got shape {weights.shape}; "
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
        counts = np.bincount(truth[truth != self.void] if self.void is not None else truth,
                             minlength=n_labels)
        weights = np.ones(n_labels) if self.weights is None else self.weights
        return np.array([0.0, float((counts[:n_labels] * weights).sum())])

    def value(self, totals: Totals) -> float:
        """The loss of the images whose totals, (2,) or (3 L,), were summed."""
        return float(totals[0] / max(totals[1], 1e-300))

    def gradient(self, q: FloatArray, truth: Labels, totals: Totals) -> FloatArray:
        """dL/dq (N, L) of one image, given the totals of all, (2,) or (3 L,)."""
        raise NotImplementedError

    def softmax_gradient(self, q: FloatArray, truth: Labels, totals: Totals) -> FloatArray:
        """A dL/dq (N, L) with A = qq' - diag(q), the gradient by e where q = softmax(-e).

        totals : as for `gradient`.
        """
        g = self.gradient(q, truth, totals)
        return softmax_jacobian(q, g)

    def _known(self, q: FloatArray, truth: Labels) -> tuple[Any, Any, NDArray[np.float64]]:
        """Rows that count, their labels and weights."""
        n, n_labels = q.shape
        if truth.shape != (n,):
            raise InputError(
                f"truth must have one label a variable ({n}), got shape {truth.shape}; "
                "flatten the label map."
            )
        known = np.ones(n, bool) if self.void is None else truth != self.void
        bad = known & ((truth < 0) | (truth >= n_labels))
        if bad.any():
            index = first_index(bad)
            raise InputError(
                f"truth must lie in 0..{n_labels - 1} (void: {self.void}), got {truth[index]} at "
                f"index {index}; mark such pixels as void."
            )
        rows = np.flatnonzero(known)
        labels = truth[rows].astype(np.intp)
        if self.weights is None:
            return rows, labels, np.ones(len(rows))
        if len(self.weights) != n_labels:
            raise InputError(
                f"weights must have {n_labels} numbers, got {len(self.weights)}; one a label."
            )
        return rows, labels, self.weights[labels]


@dataclass(frozen=True, eq=False)
class RobustLogLikelihood(Loss):
    """L = -sum_i w log(q_i(T_i) + eps) / sum_i w; eps bounds what one pixel can cost."""

    eps: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if as_scalar(self.eps, "eps") < 0:
            raise InputError(f"eps must not be negative, got {self.eps}; 0 is the log-likelihood.")

    def totals(self, q: FloatArray, truth: Labels) -> Totals:
        rows, labels, w = self._known(q, truth)
        smallest = np.finfo(q.dtype).tiny
        p = np.maximum(q[rows, labels], smallest).astype(np.float64) + self.eps
        return np.array([-(w * np.log(p)).sum(), w.sum()])

    def gradient(self, q: FloatArray, truth: Labels, totals: Totals) -> FloatArray:
        rows, labels, w = self._known(q, truth)
        g = np.zeros_like(q)
        smallest = np.finfo(q.dtype).tiny
        p = np.maximum(q[rows, labels], smallest).astype(np.float64) + self.eps
        g[rows, labels] = -w / (p * max(totals[1], 1e-300))
        return g


@dataclass(frozen=True, eq=False)
class LogLikelihood(RobustLogLikelihood):
    """L = -sum_i w log q_i(T_i) / sum_i w."""

    eps: float = 0.0

    def softmax_gradient(self, q: FloatArray, truth: Labels, totals: Totals) -> FloatArray:
        # w (onehot - q): the 1 / q of the gradient cancels, so that q = 0 does no harm.
        rows, labels, w = self._known(q, truth)
        w = (w / max(totals[1], 1e-300)).astype(q.dtype)
        by_row = np.zeros(len(q), q.dtype)
        by_row[rows] = w
        g = -by_row[:, None] * q
        g[rows, labels] += w
        return g


@dataclass(frozen=True, eq=False)
class ExpectedHamming(Loss):
    """L = 1 - sum_i w q_i(T_i) / sum_i w, the expected share of wrong labels.

    Weights of 1 give global accuracy, n_l^-1 class-average accuracy, n_l^-s with s in between the
    geometric interpolation (`class_weights`).
    """

    def totals(self, q: FloatArray, truth: Labels) -> Totals:
        rows, labels, w = self._known(q, truth)
        return np.array([(w * (1.0 - q[rows, labels])).sum(), w.sum()])

    def gradient(self, q: FloatArray, truth: Labels, totals: Totals) -> FloatArray:
        rows, labels, w = self._known(q, truth)
        g = np.zeros_like(q)
        g[rows, labels] = -w / max(totals[1], 1e-300)
        return g


@dataclass(frozen=True, eq=False)
class IntersectionOverUnion(Loss):
    """L = 1 - mean_l i_l / u_l over the labels that occur in the truth.

    i_l = sum_{T_i = l} q_i(l), u_l = n_l + sum_{T_i != l} q_i(l), both over the whole data set.
    The totals are (i, u, n), 3 L numbers.
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
        inside, union, factor = self._parts(totals)
        return 1.0 - float((factor * inside / union).sum())

    def gradient(self, q: FloatArray, truth: Labels, totals: Totals) -> FloatArray:
        rows, labels, _ = self._known(q, truth)
        inside, union, factor = self._parts(totals)
        known = np.zeros((len(q), 1), q.dtype)
        known[rows] = 1.0
        g = known * (factor * inside / union**2).astype(q.dtype)
        g[rows, labels] = (-factor / union)[labels]
        return g

    def _parts(self, totals: Totals) -> tuple[Totals, Totals, Totals]:
        """i, u (1 where a label never occurs) and each label's share of the mean."""
        inside, union, count = totals.reshape(3, -1)
        factor = (count > 0).astype(np.float64)
        if self.weights is not None:
            factor = factor * self.weights
        factor /= max(factor.sum(), 1e-300)
        return inside, np.where(union > 0, union, 1.0), factor


def class_weights(counts: Any, power: float = 0.25) -> NDArray[np.float64]:
    """w_l = n_l^-power (L,), 0 for labels without a pixel.

    counts : n (L,), pixels of each label.
    power : 0.25 is KK13's choice, 0 weighs pixels alike, 1 weighs labels alike.
    """
    n = as_floats(counts, "counts", np.dtype(np.float64))
    if n.ndim != 1 or (n < 0).any():
        raise InputError(
            f"counts must be one number >= 0 a label, got shape {n.shape}; "
            "count the labels of the truth."
        )
    return np.where(n > 0, np.maximum(n, 1.0) ** -as_scalar(power, "power"), 0.0)


def softmax_jacobian(q: FloatArray, g: FloatArray) -> FloatArray:
    """(qq' - diag(q)) g by rows of q and g (N, L) (KK13 eq. 13)."""
    level = np.einsum("il,il->i", q, g)
    b = np.subtract(level[:, None], g)
    b *= q
    return np.asarray(b)
