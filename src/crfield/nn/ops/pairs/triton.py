"""Triton kernels of the sum over all pairs; `_pairs` holds what they compute in plain torch.

Precision. k and x enter the tensor cores as float16, whose mantissas (2^-11) bring a relative
error of about 2e-4 to K x, and which sum in float32. float16 has few exponents (2^-24 to 2^16), so
that both factors are brought to its upper end by powers of two: k from 1 to 2^15, each column of x
from its largest entry to 2^15. Numbers keep full precision down to 2^-29 of that.

The exponent of k. Where no feature is far from the middle of its image, tensor cores take it as a
product as well, and little more than one exponential is left to do for a pair (`Products`).
Elsewhere that product would cancel, and the exponent comes from differences of float32 features.
"""

# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"
# Triton has no types, and its kernels' arguments none of Python's.

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor

from crfield.nn.ops.pairs.reference import Tiling

# ROWS points of a tile are one program's, which meets COLUMNS at a time; both divide the tile.
# Squares are a third cheaper with fused multiplication and addition, not every Triton's default.
SUM_OPTIONS = {
    "ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 3, "enable_fp_fusion": True,
}
# Tensor cores cut off what they add, some 2^-24 of the sum each time and always towards zero: after
# every RUN tiles their sum joins one that is rounded.
PRODUCT_OPTIONS = {"RUN": 128, "num_warps": 4, "num_stages": 2}
# For up to 32 columns of x: 96 registers let five programs share a multiprocessor.
NARROW_PRODUCT_OPTIONS = PRODUCT_OPTIONS | {"maxnreg": 96}
GRADIENT_OPTIONS = {
    "ROWS": 64, "COLUMNS": 64, "num_warps": 4, "num_stages": 2, "enable_fp_fusion": True,
}
WIDEST = 128  # columns of x that share the exponentials
WIDEST_PRODUCT = 128  # columns of one step of the products u_i'v_j
FARTHEST = 24.0  # from the middle of the image, for products: 3e-4 of error at most
DEEPEST = 128  # numbers in a factor of a product: shared memory holds several tiles of them

_TOP = 15  # binary exponent that factors are brought to


class Products:
    """Exponents of k as products: 2^15 k_ij = 2^(left_i'right_j).

    With g = f sqrt(log2 e), taken from the middle of the image, the exponent is
    g_i'g_j + a_i + a_j, a = 7.5 - |g|^2 / 2. float16 holds 11 bits, so that g is split into
    high + low and a into three parts, which meet ones:

        left_i  = (high_i, high_i, low_i, a_i, 1),  right_j = (high_j, low_j, high_j, 1, a_j).

    What is missing of a product is 2^-22 of |g_i| |g_j|; the same is lost where sums are rounded.

    left, right : (n_slots, depth) of float16.
    """

    def __init__(self, g: Tensor) -> None:
        high, low = _split(g, 2)
        a = torch.stack(_split(7.5 - 0.5 * g.square().sum(-1), 3), -1)
        one = torch.ones_like(a)
        self.depth = self.depth_of(g.shape[-1])
        rest = a.new_zeros(len(a), self.depth - 3 * g.shape[-1] - 6)
        self.left = torch.cat([high, high, low, a, one, rest], 1)
        self.right = torch.cat([high, low, high, one, a, rest], 1)

    @staticmethod
    def depth_of(dim: int) -> int:
        return _width(3 * dim + 6)

    @staticmethod
    def of(tiles: Tiling) -> Products | None:
        """None where features are too far apart, or too many."""
        if Products.depth_of(len(tiles.features)) > DEEPEST:
            return None
        f = tiles.features.T.reshape(tiles.n_images, -1, len(tiles.features)).double()
        g = f - 0.5 * (f.amin(1, keepdim=True) + f.amax(1, keepdim=True))
        if g.square().sum(-1).max().item() > FARTHEST**2:
            return None
        return Products((g * math.sqrt(math.log2(math.e))).flatten(0, 1))


def apply(tiles: Tiling, products: Products | None, x: Tensor) -> Tensor:
    """K x for x (P, C)."""
    n_columns = x.shape[1]
    blocks = -(-n_columns // WIDEST)
    width = _width(-(-n_columns // blocks))
    exponents = _exponents(x.reshape(tiles.n_images, tiles.n_points, -1))
    one = torch.ones_like(exponents, dtype=x.dtype)
    packed = x.new_empty(tiles.n_slots, blocks * width, dtype=torch.float16)
    n_tiles = tiles.n_slots // tiles.tile
    _pack_kernel[(n_tiles, blocks)](
        x, tiles.point, torch.ldexp(one, _TOP - exponents), packed, *x.stride(), n_columns,
        n_tiles // tiles.n_images, TILE=tiles.tile, WIDTH=width,
    )
    out = x.new_empty(x.shape)
    shared = (
        packed, out, tiles.heaviest_first, tiles.first, tiles.near, tiles.point,
        torch.ldexp(one, exponents - 2 * _TOP), n_columns, n_tiles // tiles.n_images,
    )
    if products is not None:
        options = NARROW_PRODUCT_OPTIONS if width <= 32 else PRODUCT_OPTIONS
        _product_sum_kernel[(n_tiles, blocks)](
            products.left, products.right, *shared,
            TILE=tiles.tile, DEPTH=products.depth, WIDTH=width, **options,
        )
    else:
        _sum_kernel[(tiles.n_slots // SUM_OPTIONS["ROWS"], blocks)](
            tiles.features, tiles.n_slots, *shared,
            TILE=tiles.tile, DIM=len(tiles.features), WIDTH=width, **SUM_OPTIONS,
        )
    return out


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
    u_high, u_low = _split(u_scaled.reshape(u.shape), 2)
    v_high, v_low = _split(v_scaled.reshape(v.shape), 2)
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


def _exponents(x: Tensor) -> Tensor:
    """Binary exponents of the largest entries of the columns of x (B, N, C): (B, 1, C)."""
    largest = torch.linalg.vector_norm(x, math.inf, 1, keepdim=True)
    # The way back takes powers that float32 holds: columns below 2^-90 do not get to the top.
    return torch.frexp(largest).exponent.clamp_(min=-90)


def _to_top(x: Tensor) -> tuple[Tensor, Tensor]:
    """x (B, N, C) times powers of two that bring each column to float16's top; their exponents."""
    exponents = _exponents(x)
    return x * torch.ldexp(torch.ones_like(exponents, dtype=x.dtype), _TOP - exponents), exponents


def _split(x: Tensor, n_parts: int) -> list[Tensor]:
    """x as a sum of float16, the largest first."""
    parts = []
    for _ in range(n_parts):
        parts.append(x.half())
        x = x - parts[-1]
    return parts


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
def _pack_kernel(
    x, points, scales, packed, stride, column_stride, n_columns, tiles_per_image,
    TILE: tl.constexpr, WIDTH: tl.constexpr,
):
    """One tile and one block of columns of x in slots, scaled; zero where there is no x."""
    tile = tl.program_id(0)
    slots = tile * TILE + tl.arange(0, TILE)
    column = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    point = tl.load(points + slots)
    is_column = column < n_columns
    scale = tl.load(scales + tile // tiles_per_image * n_columns + column, is_column, 0.0)
    x_at = x + point[:, None] * stride + column[None, :].to(tl.int64) * column_stride
    scaled = tl.load(x_at, (point >= 0)[:, None] & is_column[None, :], 0.0) * scale[None, :]
    packed += slots[:, None].to(tl.int64) * (WIDTH * tl.num_programs(1))
    tl.store(packed + column[None, :], scaled.to(tl.float16))


@triton.jit
def _store_points(
    out, total, row, column, points, scales, n_columns, tiles_per_image,
    TILE: tl.constexpr, ROWS: tl.constexpr,
):
    """What a program summed for its slots, scaled, to where their points are."""
    point = tl.load(points + row + tl.arange(0, ROWS))
    is_column = column < n_columns
    image = row // TILE // tiles_per_image
    scale = tl.load(scales + image * n_columns + column, is_column, 0.0)
    out_at = out + point[:, None] * n_columns + column[None, :]
    tl.store(out_at, total * scale[None, :], (point >= 0)[:, None] & is_column[None, :])


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
    features, n_slots,
    x, out, heaviest_first, first, near, points, scales, n_columns, tiles_per_image,
    TILE: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):
    """K x for some rows of one tile and one block of columns."""
    row, near, count = _own_work(heaviest_first, first, near, TILE, ROWS)
    rows = tl.arange(0, ROWS)
    columns = tl.arange(0, COLUMNS)
    block = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    stride = WIDTH * tl.num_programs(1)
    split: tl.constexpr = TILE // COLUMNS
    i = row + rows
    total = tl.zeros((ROWS, WIDTH), tl.float32)
    for part in range(count * split):
        start = tl.load(near + part // split) * TILE + part % split * COLUMNS
        squares = _squares(features, i, start + columns, n_slots, DIM)
        k = tl.exp2(squares * _SLOPE + _K_TOP).to(tl.float16)
        x_rows = x + start.to(tl.int64) * stride
        total = tl.dot(k, tl.load(x_rows + columns[:, None] * stride + block[None, :]), total)
    _store_points(out, total, row, block, points, scales, n_columns, tiles_per_image, TILE, ROWS)


@triton.jit
def _product_sum_kernel(
    left, right,
    x, out, heaviest_first, first, near, points, scales, n_columns, tiles_per_image,
    TILE: tl.constexpr, DEPTH: tl.constexpr, WIDTH: tl.constexpr, RUN: tl.constexpr,
):
    """`_sum_kernel` from factors of the exponent, for whole tiles."""
    row, near, count = _own_work(heaviest_first, first, near, TILE, TILE)
    rows = tl.arange(0, TILE)
    depth = tl.arange(0, DEPTH)
    block = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    stride = WIDTH * tl.num_programs(1)
    left += row.to(tl.int64) * DEPTH
    left_rows = tl.load(left + rows[:, None] * DEPTH + depth[None, :])
    total = tl.zeros((TILE, WIDTH), tl.float32)
    for begin in range(0, count, RUN):
        run = tl.zeros((TILE, WIDTH), tl.float32)
        for part in range(begin, tl.minimum(begin + RUN, count)):
            start = tl.load(near + part).to(tl.int64) * TILE
            right_at = right + start * DEPTH + (rows[None, :] * DEPTH + depth[:, None])
            x_at = x + start * stride + (rows[:, None] * stride + block[None, :])
            k = tl.exp2(tl.dot(left_rows, tl.load(right_at))).to(tl.float16)
            run = tl.dot(k, tl.load(x_at), run)
        total += run
    _store_points(out, total, row, block, points, scales, n_columns, tiles_per_image, TILE, TILE)


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
