"""Losses over the logits of a network or a CRF layer (KK13 section 4.3), and pair energies.

They take logits (B, L, *grid), whose softmax are the marginals, and labels (B, *grid) with `void`
where there is none, and are those of `crfield.learning.losses` on one batch: a weighted mean over
its pixels, or for intersection over union a ratio over all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from crfield._core.validate import InputError, as_count, shown
from crfield.learning import losses
from crfield.learning.losses import VOID
from crfield.nn.dense.function import pair_energy
from crfield.nn.dense.layer import DenseCRF
from crfield.nn.tensors import can_look, check_logits, check_tensor


class _Loss(nn.Module):
    """What the losses share: they take logits (B, L, *grid) and labels (B, *grid).

    weights : (L,) factor of each true label, or None for ones.
    void : the label of pixels that do not count.
    loss : the same over marginals, with its weights and void.
    """

    weights: Tensor | None

    def __init__(self, loss: losses.Loss) -> None:
        super().__init__()
        void = loss.void
        self.void = None if void is None else as_count(void, "void", -(2**63), 2**63 - 1)
        self.loss = loss
        weights = None if loss.weights is None else torch.from_numpy(loss.weights.copy())
        self.register_buffer("weights", weights)

    def _known(self, logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Log-marginals (K, L) of the pixels that count, their labels and weights."""
        self._check(logits, labels)
        flat = labels.reshape(-1).long()
        rows = torch.log_softmax(logits.float() if logits.dtype != torch.float64 else logits, 1)
        rows = rows.flatten(2).transpose(1, 2).reshape(-1, logits.shape[1])
        if self.void is not None:
            kept = (flat != self.void).nonzero()[:, 0]
            flat, rows = flat[kept], rows[kept]
        # A wrong label would end all work on a GPU, which has been waited for unless all count.
        if self.void is not None or can_look(flat):
            self._check_range(flat, labels, logits.shape[1])
        if self.weights is None:
            return rows, flat, torch.ones_like(rows[:, 0])
        return rows, flat, self.weights.to(rows)[flat]

    def _check(self, logits: Tensor, labels: Tensor) -> None:
        check_logits(logits)
        check_tensor(labels, "labels", logits)
        shape = tuple(logits.shape)
        if len(shape) < 3:
            raise InputError(
                f"logits must have shape (B, L, *grid), got {shape}; put the batch first and the "
                "labels second."
            )
        if tuple(labels.shape) != shape[:1] + shape[2:]:
            raise InputError(
                f"labels must have shape {shape[:1] + shape[2:]} for logits (B, L, *grid) of shape "
                f"{shape}, got {tuple(labels.shape)}; give one label per pixel."
            )
        if labels.dtype.is_floating_point:
            raise InputError(
                f"labels must be whole numbers, got {labels.dtype}; use labels.long()."
            )
        losses.check_void(self.void, shape[1])
        if self.weights is not None and len(self.weights) != shape[1]:
            raise InputError(
                f"weights must have {shape[1]} numbers, got {len(self.weights)}; one per label."
            )

    def _check_range(self, known: Tensor, labels: Tensor, n_labels: int) -> None:
        """Refuse labels among the `known` ones that do not exist."""
        if torch.compiler.is_compiling() or not bool(((known < 0) | (known >= n_labels)).any()):
            return
        every = labels.long()
        bad = (every < 0) | (every >= n_labels)
        if self.void is not None:
            bad &= every != self.void
        index = tuple(bad.nonzero()[0].tolist())
        raise InputError(
            f"labels must lie in 0..{n_labels - 1} (void: {self.void}), got {int(every[index])} at "
            f"index {index}; mark such pixels as void."
        )


class _PixelLoss(_Loss):
    loss: losses.PixelLoss

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch, ()."""
        rows, truth, w = self._known(logits, labels)
        costs = self.loss.costs(rows.gather(1, truth[:, None])[:, 0])
        mean: Tensor = (w * costs).sum() / w.sum().clamp_min(1e-30)
        return mean


class RobustLogLikelihood(_PixelLoss):
    """-sum_i w log(q_i(T_i) + eps) / sum_i w; eps bounds what one pixel can cost."""

    def __init__(self, eps: float = 0.1, *, weights: Any = None, void: int | None = VOID) -> None:
        super().__init__(losses.RobustLogLikelihood(weights, void, eps))


class LogLikelihood(_PixelLoss):
    """-sum_i w log q_i(T_i) / sum_i w: the cross-entropy."""

    def __init__(self, *, weights: Any = None, void: int | None = VOID) -> None:
        super().__init__(losses.LogLikelihood(weights, void))


class ExpectedHamming(_PixelLoss):
    """1 - sum_i w q_i(T_i) / sum_i w, the expected share of wrong labels."""

    def __init__(self, *, weights: Any = None, void: int | None = VOID) -> None:
        super().__init__(losses.ExpectedHamming(weights, void))


class IntersectionOverUnion(_Loss):
    """L = 1 - mean_l i_l / u_l over the labels that occur in the truth of the batch.

    i_l = sum_{T_i = l} q_i(l), u_l = n_l + sum_{T_i != l} q_i(l).
    """

    def __init__(self, *, weights: Any = None, void: int | None = VOID) -> None:
        super().__init__(losses.IntersectionOverUnion(weights, void))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        """The loss of a batch, ()."""
        rows, truth, _ = self._known(logits, labels)
        q = rows.exp()
        onehot = torch.nn.functional.one_hot(truth, q.shape[1]).to(q)
        inside, count = (q * onehot).sum(0), onehot.sum(0)
        totals = torch.stack([inside, count + q.sum(0) - inside, count])
        weights = None if self.weights is None else self.weights.to(q)
        inside, union, share = losses.IntersectionOverUnion.parts(totals, weights)
        return 1.0 - (share * inside / union).sum()


class PairwiseEnergy(nn.Module):
    """The mean over pixels of 1/2 sum_m sum_j q_i' mu^(m) q_j k^(m)_ij, q = softmax(logits).

    A regularizer for networks that are trained from few labeled pixels: no inference is run, the
    network itself is drawn to marginals that the CRF finds cheap.

    crf : whose terms count; its parameters are learned along unless they are frozen.
    """

    def __init__(self, crf: DenseCRF) -> None:
        super().__init__()
        if not callable(getattr(crf, "prepare", None)):  # a compiled layer has it as well
            raise InputError(
                f"crf must be a crfield.nn.DenseCRF, got {shown(crf)}; "
                "make one of a model with crfield.nn.DenseCRF.from_model."
            )
        self.crf = crf

    def forward(
        self, logits: Tensor, image: Tensor | None = None, *,
        features: Mapping[str, Tensor] | None = None, spacing: Any = None,
    ) -> Tensor:
        """The energy of a batch, (); arguments are those of `DenseCRF.forward`."""
        check_tensor(logits, "logits")
        with torch.autocast(logits.device.type, enabled=False):
            unary, scaled, compatibilities, settings = self.crf.prepare(
                logits, image, features, spacing
            )
            q = torch.softmax(-unary, -1)
            n_pixels = q.shape[0] * q.shape[1]
            return pair_energy(q, scaled, compatibilities, settings) / n_pixels
