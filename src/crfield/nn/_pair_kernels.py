"""Triton kernels of the sum over all pairs; `_pairs` holds what they compute in plain torch.

Precision. k and x enter the tensor cores as float16, whose mantissas (2^-11) bring a relative
error of about 2e-4 to K x, and which sum in float32. float16 has few exponents (2^-24 to 2^16), so
that both factors are brought to its upper end by powers of two: k from 1 to 2^15, each column of x
from its largest entry to 2^15. Numbers keep full precision down to 2^-29 of that.

k itself comes from differences of float32 features: expanded squares would cancel, and k_ij and
k_ji would differ.
"""

# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
# Triton has no types, and its kernels' arguments none of Python's.

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from crfield.nn._pairs import Tiling

# ROWS points of a tile are one program's, which meets COLUMNS at a time; both divide the tile.
# Squares are a third cheaper with fused multiplication and addition, not every Triton's default.
SUM_OPTIONS = {
    "ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 3, "enable_fp_fusion": True,
}
GRADIENT_OPTIONS = {
    "ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 2, "enable_fp_fusion": True,
}
WIDEST = 128  # columns of x that share the exponentials
WIDEST_PRODUCT = 128  # columns of one step of the products u_i'v_j

_TOP = 15  # binary exponent that factors are brought to


def apply(tiles: Tiling, x: Tensor) -> Tensor:
    """K x for x (P, C)."""
    n_columns = x.shape[1]
    blocks = -(-n_columns // WIDEST)
    width = _width(-(-n_columns // blocks))
    scaled, exponents = _to_top(x.reshape(tiles.n_images, tiles.n_points, -1))
    packed = _pack(tiles, [scaled.half()], blocks * width)
    out = torch.empty_like(packed, dtype=torch.float32)
    _sum_kernel[(tiles.n_slots // SUM_OPTIONS["ROWS"], blocks)](
        tiles.features, packed, out, tiles.heaviest_first, tiles.first, tiles.near,
        tiles.n_slots, blocks * width,
        TILE=tiles.tile, DIM=len(tiles.features), WIDTH=width, **SUM_OPTIONS,
    )
    back = torch.ldexp(torch.ones_like(exponents, dtype=x.dtype), exponents - 2 * _TOP)
    result = out[:, :n_columns][tiles.slot].reshape(scaled.shape) * back
    return result.reshape(x.shape)


def feature_gradient(tiles: Tiling, u: Tensor, v: Tensor) -> Tensor:
    """d sum(u * K v) / d features for u, v (P, C): (P, D).

    u_i'v_j + v_i'u_j, a product of the rows (u_i, v_i) and (v_j, u_j), meets the differences
    f_i - f_j of both signs, which cancel: one float16 is too coarse. Each factor is split into two,
    x = high + low to 22 bits, and the product becomes high'high + high'low + low'high: rows three
    times as long for the tensor cores, which have time to spare here. All else is float32.
    """
    shape = (tiles.n_images, -1, 1)
    u_scaled, u_exponents = _to_top(u.reshape(shape))
    v_scaled, v_exponents = _to_top(v.reshape(shape))
    u_high, u_low = _halves(u_scaled.reshape(u.shape))
    v_high, v_low = _halves(v_scaled.reshape(v.shape))
    n_columns = 6 * u.shape[1]
    width = _width(min(n_columns, WIDEST_PRODUCT))
    steps = -(-n_columns // width)
    left = _pack(tiles, [u_high, v_high, u_high, v_high, u_low, v_low], steps * width)
    right = _pack(tiles, [v_high, u_high, v_low, u_low, v_high, u_high], steps * width)
    dim = len(tiles.features)
    padded_dim = triton.next_power_of_2(dim)
    out = torch.empty(tiles.n_slots, padded_dim, dtype=u.dtype, device=u.device)
    _gradient_kernel[(tiles.n_slots // GRADIENT_OPTIONS["ROWS"],)](
        tiles.features, left, right, out, tiles.heaviest_first, tiles.first, tiles.near,
        tiles.n_slots,
        TILE=tiles.tile, DIM=dim, PADDED_DIM=padded_dim, WIDTH=width, STEPS=steps,
        **GRADIENT_OPTIONS,
    )
    # Two steps: the product of both factors may be beyond float32 while the result is not.
    result = out[:, :dim][tiles.slot].reshape(tiles.n_images, tiles.n_points, dim)
    for exponents in (u_exponents, v_exponents):
        result = result * torch.ldexp(torch.ones_like(exponents, dtype=u.dtype), exponents - _TOP)
    return result.reshape(-1, dim)


def _width(n_columns: int) -> int:
    """Columns as the tensor cores take them."""
    return max(16, int(triton.next_power_of_2(n_columns)))


def _to_top(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, N, C) times powers of two that bring each column to float16's top; their exponents."""
    # The way back takes powers that float32 holds: columns below 2^-90 do not get to the top.
    exponents = torch.frexp(x.abs().amax(1, keepdim=True)).exponent.clamp_(min=-90)
    return x * torch.ldexp(torch.ones_like(exponents, dtype=x.dtype), _TOP - exponents), exponents


def _halves(x: Tensor) -> tuple[Tensor, Tensor]:
    """x = high + low, in float16."""
    high = x.half()
    return high, (x - high).half()


def _pack(tiles: Tiling, parts: list[Tensor], n_columns: int) -> Tensor:
    """The parts (P, C) side by side, in slots; zeros fill up the rows and columns."""
    joined = torch.cat([part.reshape(len(tiles.slot), -1) for part in parts], 1)
    packed = joined.new_zeros(tiles.n_slots, n_columns)
    packed[:, : joined.shape[1]].index_copy_(0, tiles.slot, joined)
    return packed


_SLOPE = tl.constexpr(-0.5 / math.log(2.0))  # exp(-s / 2) = 2^(slope s)
_K_TOP = tl.constexpr(_TOP)


@triton.jit
def _own_work(heaviest_first, first, near, TILE: tl.constexpr, ROWS: tl.constexpr):
    """This program's first slot, its list of near tiles, and their number."""
    parts: tl.constexpr = TILE // ROWS
    program = tl.program_id(0)
    tile = tl.load(heaviest_first + program // parts)
    begin = tl.load(first + tile)
    count = (tl.load(first + tile + 1) - begin).to(tl.int32)
    return tile * TILE + program % parts * ROWS, near + begin, count


@triton.jit
def _differences(feature, i, j):
    """f_i - f_j of one feature, (rows, columns)."""
    return tl.load(feature + i)[:, None] - tl.load(feature + j)[None, :]


@triton.jit
def _squares(features, i, j, n_slots, DIM: tl.constexpr):
    """|f_i - f_j|^2, (rows, columns)."""
    squares = tl.zeros((i.shape[0], j.shape[0]), tl.float32)
    for d in tl.static_range(DIM):
        difference = _differences(features + d * n_slots, i, j)
        squares += difference * difference
    return squares


@triton.jit
def _sum_kernel(
    features, x, out, heaviest_first, first, near, n_slots, stride,
    TILE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """2^15 K x of some rows of one tile and one block of columns, in slots."""
    row, near, count = _own_work(heaviest_first, first, near, TILE, ROWS)
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    block = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    split: tl.constexpr = TILE // COLUMNS
    i = row + rows
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for part in range(count * split):
        start = tl.load(near + part // split) * TILE + part % split * COLUMNS
        squares = _squares(features, i, start + columns, n_slots, DIM)
        k = tl.exp2(squares * _SLOPE + _K_TOP).to(tl.float16)
        x_rows = x + start.to(tl.int64) * stride
        total = tl.dot(k, tl.load(x_rows + columns[:, None] * stride + block[None, :]), total)
    out_rows = out + row.to(tl.int64) * stride
    tl.store(out_rows + rows[:, None] * stride + block[None, :], total)


@triton.jit
def _gradient_kernel(
    features, left, right, out, heaviest_first, first, near, n_slots,
    TILE: tl.constexpr, DIM: tl.constexpr, PADDED_DIM: tl.constexpr,
    WIDTH: tl.constexpr, STEPS: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """-sum_j k_ij (f_i - f_j) (left_i'right_j) of some rows of one tile, in slots."""
    row, near, count = _own_work(heaviest_first, first, near, TILE, ROWS)
    split: tl.constexpr = TILE // COLUMNS
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    step = tl.arange(0, WIDTH)
    axis = tl.arange(0, PADDED_DIM)
    stride: tl.constexpr = WIDTH * STEPS
    i = row + rows
    left += row.to(tl.int64) * stride
    total = tl.zeros((ROWS, PADDED_DIM), tl.float32)
    for part in range(count * split):
        start = tl.load(near + part // split) * TILE + part % split * COLUMNS
        j = start + columns
        right_rows = right + start.to(tl.int64) * stride
        products = tl.zeros((ROWS, COLUMNS), tl.float32)
        for s in range(STEPS):
            column = s * WIDTH + step
            left_step = tl.load(left + rows[:, None] * stride + column[None, :])
            right_step = tl.load(right_rows + columns[None, :] * stride + column[:, None])
            products = tl.dot(left_step, right_step, products)
        weight = products * tl.exp2(_squares(features, i, j, n_slots, DIM) * _SLOPE)
        for d in tl.static_range(DIM):
            along = tl.sum(weight * _differences(features + d * n_slots, i, j), 1)
            # A column of a tile cannot be indexed, only chosen.
            total -= tl.where(axis[None, :] == d, along[:, None], 0.0)
    out += row.to(tl.int64) * PADDED_DIM
    tl.store(out + rows[:, None] * PADDED_DIM + axis[None, :], total)
