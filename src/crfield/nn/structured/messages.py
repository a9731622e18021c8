"""Messages of sum-product and max-product, one formula with a temperature.

A message is T log sum_k exp((score_k - cost_kl) / T), at T = 0 max_k (score_k - cost_kl). Constants
do not count: messages are shifted to a maximum of 0.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from crfield._core.validate import (
    InputError,
    as_count,
    as_damping,
    as_scalar,
)
from crfield.graphs.settings import LEAST_TEMPERATURE

# Costs divided by less, and logarithms times more, could leave the range of float32.
LARGEST_TEMPERATURE = 1e30


class Propagation(NamedTuple):
    """How messages are passed, checked."""

    max_iter: int
    damping: float
    temperature: float


def as_propagation(max_iter: Any, damping: Any, temperature: Any) -> Propagation:
    """Settings of belief propagation, refused where they mean nothing."""
    count, kept = as_count(max_iter, "max_iter", 1), as_damping(damping)
    value = as_scalar(temperature, "temperature")
    if value != 0 and value < LEAST_TEMPERATURE:
        raise InputError(
            f"temperature must be 0 or at least {LEAST_TEMPERATURE:g}, got {value:g}; use 0 for "
            "max-product."
        )
    if value > LARGEST_TEMPERATURE:
        raise InputError(
            f"temperature must not exceed {LARGEST_TEMPERATURE:g}, got {value:g}; at 1e10 all "
            "labels are as good as equal already."
        )
    return Propagation(count, kept, value)


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
