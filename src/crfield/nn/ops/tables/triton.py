"""Triton kernels between points and table rows; the plain-torch forms are in `_tables`.

Tables have rows padded to a multiple of four numbers: whole rows are then read, and added to, in
vectors of 16 bytes, where four numbers cost one atomic operation instead of four.
"""

# Triton has no types to check kernels by.
# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from crfield.nn.ops.backend import cdiv, launch, next_power_of_two
from crfield.nn.ops.tables.reference import SortedEntries

_TILE = 1024  # numbers per program: four warps, eight numbers per lane
_SIZES = ["n_points", "n_columns", "n_quads"]  # one compiled kernel serves all of them


@triton.jit(do_not_specialize=_SIZES)
def _splat(
    vertex, weight, x, scale, table, n_points, n_columns, n_quads,
    CORNERS: tl.constexpr, SCALED: tl.constexpr, POINTS: tl.constexpr, COLUMNS: tl.constexpr,
):
    point = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    stride = n_quads * 4
    inside = point < n_points
    real = inside[:, None] & (column < n_columns)[None, :]
    value = tl.load(x + point[:, None] * n_columns + column[None, :], mask=real, other=0.0)
    if SCALED:
        value *= tl.load(scale + point, mask=inside, other=0.0)[:, None]
    padded = inside[:, None] & (column < stride)[None, :]
    for corner in tl.static_range(CORNERS):
        row = tl.load(vertex + point * CORNERS + corner, mask=inside, other=0).to(tl.int64)
        share = tl.load(weight + point * CORNERS + corner, mask=inside, other=0.0)
        target = table + row[:, None] * stride + column[None, :]
        tl.atomic_add(target, share[:, None] * value, mask=padded, sem="relaxed")


@triton.jit(do_not_specialize=_SIZES)
def _slice(
    vertex, weight, table, scale, out, n_points, n_columns, n_quads, factor,
    CORNERS: tl.constexpr, SCALED: tl.constexpr, POINTS: tl.constexpr, COLUMNS: tl.constexpr,
):
    point = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    stride = n_quads * 4
    inside = point < n_points
    # Whole vectors, up to the padding of this table or of the one it is some columns of.
    padded = inside[:, None] & (column < (n_columns + 3) // 4 * 4)[None, :]
    total = tl.zeros((POINTS, COLUMNS), tl.float32)
    for corner in tl.static_range(CORNERS):
        row = tl.load(vertex + point * CORNERS + corner, mask=inside, other=0).to(tl.int64)
        share = tl.load(weight + point * CORNERS + corner, mask=inside, other=0.0)
        source = table + row[:, None] * stride + column[None, :]
        total += share[:, None] * tl.load(source, mask=padded, other=0.0)
    total *= factor
    if SCALED:
        total *= tl.load(scale + point, mask=inside, other=0.0)[:, None]
    real = inside[:, None] & (column < n_columns)[None, :]
    tl.store(out + point[:, None] * n_columns + column[None, :], total, mask=real)


@triton.jit(do_not_specialize=_SIZES)
def _sum_chunks(
    entry, begin, end, weight, x, scale, partial, n_columns, n_quads,
    CORNERS: tl.constexpr, SCALED: tl.constexpr, ENTRIES: tl.constexpr, COLUMNS: tl.constexpr,
):
    chunk = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    first = tl.load(begin + chunk)
    stop = tl.load(end + chunk)
    total = tl.zeros((COLUMNS,), tl.float32)
    while first < stop:
        place = first + tl.arange(0, ENTRIES)
        inside = place < stop
        which = tl.load(entry + place, mask=inside, other=0)
        share = tl.load(weight + which, mask=inside, other=0.0)
        point = which // CORNERS
        if SCALED:
            share *= tl.load(scale + point, mask=inside, other=0.0)
        real = inside[:, None] & (column < n_columns)[None, :]
        source = x + point[:, None] * n_columns + column[None, :]
        total += tl.sum(share[:, None] * tl.load(source, mask=real, other=0.0), 0)
        first += ENTRIES
    stride = n_quads * 4
    tl.store(partial + chunk * stride + column, total, mask=column < stride)


@triton.jit(do_not_specialize=_SIZES)
def _sum_rows(
    first_chunk, partial, table, n_quads, CHUNKS: tl.constexpr, COLUMNS: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    stride = n_quads * 4
    first = tl.load(first_chunk + row)
    stop = tl.load(first_chunk + row + 1)
    total = tl.zeros((COLUMNS,), tl.float32)
    while first < stop:
        chunk = first + tl.arange(0, CHUNKS)
        real = (chunk < stop)[:, None] & (column < stride)[None, :]
        source = partial + chunk[:, None] * stride + column[None, :]
        total += tl.sum(tl.load(source, mask=real, other=0.0), 0)
        first += CHUNKS
    tl.store(table + row * stride + column, total, mask=column < stride)


@triton.jit(do_not_specialize=[*_SIZES, "stride_u", "stride_v"])
def _correlate(
    vertex, u, v, of_u, of_v, out, n_points, n_columns, stride_u, stride_v, factor,
    CORNERS: tl.constexpr, POINTS: tl.constexpr, COLUMNS: tl.constexpr, TILES: tl.constexpr,
):
    point = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    corner = tl.program_id(1)
    inside = point < n_points
    row = tl.load(vertex + point * CORNERS + corner, mask=inside, other=0).to(tl.int64)
    total = tl.zeros((POINTS,), tl.float32)
    for tile in range(TILES):
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        real = inside[:, None] & (column < n_columns)[None, :]
        own = point[:, None] * n_columns + column[None, :]
        in_u = tl.load(of_u + row[:, None] * stride_u + column[None, :], mask=real, other=0.0)
        in_v = tl.load(of_v + row[:, None] * stride_v + column[None, :], mask=real, other=0.0)
        of_point = tl.load(u + own, mask=real, other=0.0) * in_v
        of_point += tl.load(v + own, mask=real, other=0.0) * in_u
        total += tl.sum(of_point, 1)
    tl.store(out + point * CORNERS + corner, factor * total, mask=inside)


def splat(vertex: Tensor, weight: Tensor, x: Tensor, scale: Tensor | None, n_rows: int) -> Tensor:
    """S' diag(scale) x by atomic additions, whose order changes from run to run."""
    x = x.contiguous()
    n_points, n_columns = x.shape
    table = new_table(x, n_rows, n_columns).zero_()
    width = column_tile(n_columns)
    points = _TILE // width
    launch(
        _splat, (cdiv(n_points, points), cdiv(n_columns, width)),
        vertex, weight, x, weight if scale is None else scale.contiguous(), table, n_points,
        n_columns, quads(table), CORNERS=vertex.shape[1], SCALED=scale is not None,
        POINTS=points, COLUMNS=width,
    )
    return table[:, :n_columns]


def splat_sorted(
    entries: SortedEntries, weight: Tensor, x: Tensor, scale: Tensor | None, n_rows: int,
) -> Tensor:
    """S' diag(scale) x, every sum in a fixed order."""
    x = x.contiguous()
    n_columns = x.shape[1]
    table = new_table(x, n_rows, n_columns)
    n_chunks = len(entries.begin)
    partial = new_table(x, n_chunks, n_columns)
    width = column_tile(n_columns)
    tiles = cdiv(n_columns, width)
    with on_device_of(x):
        _sum_chunks[(n_chunks, tiles)](
            entries.entry, entries.begin, entries.end, weight, x,
            weight if scale is None else scale.contiguous(), partial, n_columns, quads(table),
            CORNERS=weight.shape[1], SCALED=scale is not None, ENTRIES=min(_TILE // width, 64),
            COLUMNS=width, num_warps=2,
        )
        _sum_rows[(n_rows, tiles)](
            entries.first_chunk, partial, table, quads(table), CHUNKS=8, COLUMNS=width,
            num_warps=1,
        )
    return table[:, :n_columns]


def slice_table(
    vertex: Tensor, weight: Tensor, table: Tensor, scale: Tensor | None, factor: float,
) -> Tensor:
    """factor diag(scale) S t."""
    table = padded(table)
    n_points, n_columns = len(vertex), table.shape[1]
    out = table.new_empty(n_points, n_columns)
    width = column_tile(n_columns)
    points = _TILE // width
    launch(
        _slice, (cdiv(n_points, points), cdiv(n_columns, width)),
        vertex, weight, table, weight if scale is None else scale.contiguous(), out, n_points,
        n_columns, quads(table), factor, CORNERS=vertex.shape[1], SCALED=scale is not None,
        POINTS=points, COLUMNS=width,
    )
    return out


def correlate(
    vertex: Tensor, u: Tensor, v: Tensor, of_u: Tensor, of_v: Tensor, factor: float,
) -> Tensor:
    """factor (u_i . of_v_c + v_i . of_u_c) for every point i and corner c, (P, corners)."""
    n_points, n_columns = u.shape
    corners = vertex.shape[1]
    out = u.new_empty(n_points, corners)
    width = column_tile(n_columns)
    points = _TILE // width
    with on_device_of(u):
        _correlate[(cdiv(n_points, points), corners)](
            vertex, u.contiguous(), v.contiguous(), of_u, of_v, out, n_points, n_columns,
            of_u.stride(0), of_v.stride(0), factor, CORNERS=corners, POINTS=points, COLUMNS=width,
            TILES=cdiv(n_columns, width),
        )
    return out


def column_tile(n_columns: int) -> int:
    """How many columns a program handles: a power of two, whole vectors of four."""
    return min(32, max(4, next_power_of_two(n_columns)))


def new_table(like: Tensor, n_rows: int, n_columns: int) -> Tensor:
    """An uninitialized table with rows padded to a multiple of four numbers."""
    return like.new_empty(n_rows, (n_columns + 3) // 4 * 4)


def quads(table: Tensor) -> int:
    """Vectors of four numbers a row of a padded table holds."""
    return table.stride(0) // 4


def padded(table: Tensor) -> Tensor:
    """The table itself if the kernels can read it, else a padded copy."""
    if table.stride(1) == 1 and table.stride(0) % 4 == 0 and table.data_ptr() % 16 == 0:
        return table
    copy = new_table(table, *table.shape)[:, : table.shape[1]]
    return copy.copy_(table)


def on_device_of(x: Tensor) -> Any:
    """Makes the GPU that holds `x` the current one, which Triton launches on."""
    return torch.cuda.device_of(x)  # type: ignore[no-untyped-call]
