"""Triton kernels that work on a permutohedral lattice; the plain-torch forms are in `_lattice`."""

# Triton has no types to check kernels by.
# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from crfield.nn.ops.backend import cdiv, launch
from crfield.nn.ops.lattice.build import axis_scales
from crfield.nn.ops.tables import triton as _table_kernels

_LANES = 128


@triton.jit
def _blur_once(table, row, pairs, column, stride, real):
    """B t at the rows, B along the axis of `pairs`."""
    before = tl.load(pairs + 2 * row).to(tl.int64)
    after = tl.load(pairs + 2 * row + 1).to(tl.int64)
    own = tl.load(table + row[:, None] * stride + column[None, :], mask=real, other=0.0)
    left = tl.load(table + before[:, None] * stride + column[None, :], mask=real, other=0.0)
    right = tl.load(table + after[:, None] * stride + column[None, :], mask=real, other=0.0)
    return 0.5 * own + 0.25 * (left + right)


@triton.jit
def _blur_order(
    table, row, neighbors, first, second, n_rows, column, stride, real, TWO: tl.constexpr,
):
    """B_first t, or B_second B_first t from nine rows of the table, at the rows."""
    pairs = neighbors + first.to(tl.int64) * n_rows * 2
    result = _blur_once(table, row, pairs, column, stride, real)
    if TWO:
        pairs_of_second = neighbors + second.to(tl.int64) * n_rows * 2
        before = tl.load(pairs_of_second + 2 * row).to(tl.int64)
        after = tl.load(pairs_of_second + 2 * row + 1).to(tl.int64)
        left = _blur_once(table, before, pairs, column, stride, real)
        right = _blur_once(table, after, pairs, column, stride, real)
        result = 0.5 * result + 0.25 * (left + right)
    return result


@triton.jit(do_not_specialize=["axis", "n_rows", "n_quads", "out_quads", "gap_quads"])
def _blur_axes(
    table, neighbors, out, axis, n_rows, n_quads, out_quads, gap_quads,
    DIM: tl.constexpr, TWO: tl.constexpr, LAST: tl.constexpr, ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One or two axes of the rising order of axes, and of the falling one.

    Each order has a table, `gap_quads` apart, and programs of its own, but for the last axes,
    where the two are averaged.
    """
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    inside = row < n_rows
    row = tl.where(inside, row, 0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    real = (column < out_quads * 4)[None, :]
    stride = n_quads * 4
    if LAST:
        rising = _blur_order(
            table, row, neighbors, axis, axis + 1, n_rows, column, stride, real, TWO,
        )
        falling = _blur_order(
            table + gap_quads * 4, row, neighbors, DIM - axis, DIM - axis - 1, n_rows, column,
            stride, real, TWO,
        )
        result = 0.5 * (rising + falling)
    else:
        order = tl.program_id(2)
        first = tl.where(order == 0, axis, DIM - axis)
        second = first + 1 - 2 * order
        result = _blur_order(
            table + order * gap_quads * 4, row, neighbors, first, second, n_rows, column, stride,
            real, TWO,
        )
        out += order * n_rows.to(tl.int64) * out_quads * 4
    target = out + row[:, None] * (out_quads * 4) + column[None, :]
    tl.store(target, result, mask=inside[:, None] & real)


@triton.jit(do_not_specialize=["n"])
def _chain_to_features(
    by_weight, ranks, out, n, DIM: tl.constexpr, SCALES: tl.constexpr, LANES: tl.constexpr,
):
    CORNERS: tl.constexpr = DIM + 1
    point = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = point < n
    partial = tl.zeros((LANES,), tl.float32)
    for j in tl.static_range(CORNERS):
        rank = tl.load(ranks + point * CORNERS + j, mask=inside, other=0).to(tl.int32)
        after = tl.where(rank == 0, 0, CORNERS - rank)
        gained = tl.load(by_weight + point * CORNERS + (DIM - rank), mask=inside, other=0.0)
        lost = tl.load(by_weight + point * CORNERS + after, mask=inside, other=0.0)
        by_elevated = (gained - lost) * (1.0 / CORNERS)
        if j > 0:
            own = (partial - j * by_elevated) * SCALES[j - 1]
            tl.store(out + point * DIM + (j - 1), own, mask=inside)
        partial += by_elevated


def blur(neighbors: Tensor, table: Tensor) -> Tensor:
    """1/2 (B_0 ... B_D + B_D ... B_0) t, two axes of both orders a launch."""
    table = _table_kernels.padded(table)
    corners, n_rows, _ = neighbors.shape
    n_columns = table.shape[1]
    width = _table_kernels.column_tile(n_columns)
    rows = 1024 // width
    gap_quads = 0  # both orders start from the same table
    for axis in range(0, corners, 2):
        is_last = axis + 2 >= corners
        orders = 1 if is_last else 2
        out = _table_kernels.new_table(table, orders * n_rows, n_columns)
        launch(
            _blur_axes, (cdiv(n_rows, rows), cdiv(n_columns, width), orders),
            table, neighbors, out, axis, n_rows, _table_kernels.quads(table),
            _table_kernels.quads(out), gap_quads, DIM=corners - 1, TWO=axis + 1 < corners,
            LAST=is_last, ROWS=rows, COLUMNS=width,
        )
        table, gap_quads = out, n_rows * _table_kernels.quads(out)
    return table[:, :n_columns]


def chain_to_features(by_weight: Tensor, rank: Tensor) -> Tensor:
    """(P, D) from derivatives by the barycentric weights, (P, D + 1)."""
    by_weight = by_weight.contiguous()
    n, corners = by_weight.shape
    out = by_weight.new_empty(n, corners - 1)
    launch(
        _chain_to_features, (cdiv(n, _LANES),), by_weight, rank, out, n, DIM=corners - 1,
        SCALES=axis_scales(corners - 1), LANES=_LANES,
    )
    return out
