"""Where Triton kernels run and where their plain-torch references do; launches that cost little.

`kernel[grid](...)` looks at every argument to find the compiled form that fits, which takes longer
than most kernels here run. What a compiled form depends on is known better here: the constants, the
dtypes, whether pointers are aligned to 16 bytes, and whether whole numbers fit 32 bits (kernels are
declared not to be specialized on their values). So it is looked up by those and launched directly.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from typing import Any

import torch
from torch import Tensor

_compiled: dict[tuple[Any, ...], Any] = {}


@functools.cache
def has_triton() -> bool:
    """Whether Triton is installed."""
    return importlib.util.find_spec("triton") is not None


def is_interpreted() -> bool:
    """Whether Triton runs its kernels in Python, on any device, for tests without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def runs_kernels(x: Tensor) -> bool:
    """Whether work on `x` goes to Triton; everything else runs on plain torch.

    The kernels are for float32: on a GPU, or anywhere in Triton's interpreter.
    """
    return x.dtype == torch.float32 and has_triton() and (x.is_cuda or is_interpreted())


def launch(
    kernel: Any, grid: tuple[int, ...], *arguments: Tensor | float, num_warps: int = 4,
    enable_fp_fusion: bool = True, **constants: Any,
) -> None:
    """Run a kernel; constants in the order in which the kernel declares them, after all others.

    enable_fp_fusion : whether a product and a sum may be rounded once instead of twice.
    """
    first = arguments[0]
    assert isinstance(first, Tensor)
    options: dict[str, Any] = {"num_warps": num_warps, "enable_fp_fusion": enable_fp_fusion}
    if is_interpreted():
        kernel[grid](*arguments, **options, **constants)
        return
    device = first.device.index
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            launch(kernel, grid, *arguments, **options, **constants)
        return
    key = (
        kernel, device, num_warps, enable_fp_fusion, *constants.values(),
        *[
            (x.dtype, x.data_ptr() & 15 == 0) if isinstance(x, Tensor)
            else isinstance(x, int) and not -(2**31) <= x < 2**31
            for x in arguments
        ],
    )
    found = _compiled.get(key)
    if found is None:
        _compiled[key] = kernel[grid](*arguments, **options, **constants)
        return
    found[(*grid, 1, 1)[:3]](*arguments, *constants.values())


def cdiv(a: int, b: int) -> int:
    """a / b rounded up; Triton's own is made for kernels and slow on the host."""
    return -(-a // b)


def next_power_of_two(n: int) -> int:
    """The smallest power of two that is not below n."""
    return 1 << max(n - 1, 0).bit_length()
