"""Messages of sum-product and max-product, one formula with a temperature.

A message is T log sum_k exp((score_k - cost_kl) / T), at T = 0 max_k (score_k - cost_kl). Constants
do not count: messages are shifted to a maximum of 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from crfield._core.validate import as_count, as_damping
from crfield.graphs.settings import as_temperature

# Costs divided by less, and logarithms times more, could leave the range of float32.
LARGEST_TEMPERATURE = 1e30


class Beliefs(NamedTuple):
    """What belief propagation found on a graph (B, N, L) or a grid (B, L, H, W).

    log_beliefs : logarithms of the marginals; at temperature 0 how much less good the best labeling
        with each label is, 0 for the best and negative for all others.
    log_partition : (B,), T log Z in the Bethe approximation; at temperature 0 minus the energy of
        the best labeling, if the graph is a tree.
    residuals : (B,), by how much the last iteration changed a log message at most, before damping;
        0 at a fixed point.
    edge_log_beliefs : (B, E, L, L), the same of pairs on a graph; None on a grid.
    """

    log_beliefs: Tensor
    log_partition: Tensor
    residuals: Tensor
    edge_log_beliefs: Tensor | None = None

    @property
    def marginals(self) -> Tensor:
        """exp(log_beliefs), in their shape."""
        return self.log_beliefs.exp()

    @property
    def edge_marginals(self) -> Tensor | None:
        """exp(edge_log_beliefs), (B, E, L, L)."""
        return None if self.edge_log_beliefs is None else self.edge_log_beliefs.exp()

    @property
    def labels(self) -> Tensor:
        """The label of largest belief, (B, N) or (B, H, W)."""
        return self.log_beliefs.argmax(1 if self.log_beliefs.ndim == 4 else -1)


class MessageSettings(NamedTuple):
    """How messages are passed, checked."""

    max_iter: int
    damping: float
    temperature: float


def as_message_settings(max_iter: Any, damping: Any, temperature: Any) -> MessageSettings:
    """Settings of belief propagation, refused where they mean nothing."""
    return MessageSettings(
        as_count(max_iter, "max_iter", 1), as_damping(damping),
        as_temperature(temperature, most=LARGEST_TEMPERATURE),
    )


def soft_maximum(scores: Tensor, dim: int | tuple[int, ...], temperature: float) -> Tensor:
    """T log sum exp(scores / T), at T = 0 the maximum."""
    if temperature == 0:
        return scores.amax(dim)
    return temperature * torch.logsumexp(scores / temperature, dim)


def send_potts(scores: Tensor, weights: Tensor, temperature: float) -> Tensor:
    """Messages over costs weights [k != l], of any sign, in O(L); scores : (B, L, ...).

    A sum over all other labels is never formed by taking the largest term off the sum.
    """
    if scores.shape[1] == 1:
        return scores
    best, place = scores.max(1, keepdim=True)
    is_best = torch.zeros_like(scores, dtype=torch.bool).scatter(1, place, True)
    beside = scores.masked_fill(is_best, -torch.inf)
    if temperature == 0:
        others = torch.where(is_best, beside.amax(1, keepdim=True), best)
        return torch.maximum(scores, others - weights)
    top = best.detach() / temperature
    shares = torch.exp(beside / temperature - top)
    largest = torch.exp(best / temperature - top)
    others = torch.where(
        is_best, torch.logsumexp(beside / temperature, 1, keepdim=True),
        top + torch.log(largest + (shares.sum(1, keepdim=True) - shares)),
    )
    return temperature * torch.logaddexp(scores / temperature, others - weights / temperature)


def shifted(messages: Tensor, dim: int) -> Tensor:
    """With their maximum at 0.

    The shift is differentiated too: it takes constants out of gradients, whose rounding would else
    grow with every iteration.
    """
    return messages - messages.amax(dim, keepdim=True)


def damped(old: Tensor, new: Tensor, damping: float) -> Tensor:
    """A mean of logarithms, that is a geometric mean of messages."""
    return new if damping == 0 else damping * old + (1 - damping) * new
