"""Checks on tensors; none of them makes a GPU wait.

What tensors hold is only looked at on the CPU, and not inside `torch.compile`.
"""

from __future__ import annotations

import torch
from torch import Tensor

from crfield._core.validate import InputError, check_finite
from crfield._core.warning import warn

_SAMPLE = 64  # pixels


def can_look(values: Tensor) -> bool:
    """Whether looking at the values costs no wait and no break of a graph."""
    return values.device.type == "cpu" and not torch.compiler.is_compiling()


def memory_format_of(values: Tensor) -> torch.memory_format:
    """Channels last if the values (B, C, *grid) lie so in memory, else contiguous."""
    last = {4: torch.channels_last, 5: torch.channels_last_3d}.get(values.ndim)
    if last is None or values.is_contiguous() or not values.is_contiguous(memory_format=last):
        return torch.contiguous_format
    return last


def check_tensor(values: object, name: str, like: Tensor | None = None) -> None:
    """Refuse what is no dense tensor of real numbers on the device of `like`, the logits."""
    if not isinstance(values, Tensor):
        raise InputError(
            f"{name} must be a tensor, got {type(values).__name__}; convert arrays with "
            "torch.from_numpy or torch.as_tensor."
        )
    if values.layout != torch.strided:
        raise InputError(
            f"{name} must be a dense tensor, got layout {values.layout}; use its to_dense()."
        )
    if values.dtype.is_complex:
        raise InputError(
            f"{name} must hold real numbers, got {values.dtype}; use its real part or its abs()."
        )
    if values.device.type == "meta" and not torch.compiler.is_compiling():
        raise InputError(
            f"{name} must hold numbers, got a tensor on the meta device; "
            "create it on a CPU or GPU."
        )
    if like is not None and values.device != like.device:
        raise InputError(
            f"{name} must be on the device of the logits ({like.device}), got {values.device}; "
            "move one of them."
        )


def check_logits(logits: Tensor) -> None:
    """Refuse what is no floating-point tensor with labels and points in it."""
    check_tensor(logits, "logits")
    if not logits.dtype.is_floating_point or 0 in logits.shape:
        raise InputError(
            f"logits must be floating-point numbers of at least one point, got {logits.dtype} "
            f"{tuple(logits.shape)}; pass what a network gives."
        )
    if logits.ndim > 2 and can_look(logits):
        some = logits.detach()[0].flatten(1)[:, :_SAMPLE].float()
        if len(some) > 1 and bool((some >= 0).all() & ((some.sum(0) - 1).abs() < 1e-3).all()):
            warn(
                "logits look like probabilities: they are not negative and sum to 1; pass their "
                "logarithm, or what comes before the softmax."
            )


def check_finite_tensor(values: Tensor, name: str) -> None:
    """Refuse NaN and infinity where that can be seen without waiting."""
    if can_look(values):
        check_finite(values.detach().numpy(), name)
