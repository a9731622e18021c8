"""Where the Triton kernels run, and where their plain-torch references do."""

from __future__ import annotations

import functools
import importlib.util
import os

import torch


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def is_interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on any device, for tests without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def runs_kernels(x: torch.Tensor) -> bool:
    """Whether work on `x` goes to Triton; everything else runs on plain torch.

    The kernels are for float32: on a GPU, or anywhere in Triton's interpreter.
    """
    return x.dtype == torch.float32 and has_triton() and (x.is_cuda or is_interpreted())
