"""Triton kernels of the grid of nodes; the plain-torch forms are in `_grid`."""

# Triton has no types to check kernels by.
# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from crfield.dense.filters.compiled import SPACING
from crfield.nn.ops.backend import cdiv, launch

if TYPE_CHECKING:
    from crfield.nn.ops.grid.reference import GridLayout

_TILE = 1024  # numbers a program works on
_LANES = 128
_SPACING = tl.constexpr(SPACING)


@triton.jit
def _positions(coordinates, place, inside, n_points, length_a, length_b, length_c):
    """Where points lie along the three axes, in node spacings."""
    point = place % n_points
    at_c = point % length_c
    at_b = (point // length_c) % length_b
    at_a = point // (length_c * length_b)
    a = tl.load(coordinates + at_a, mask=inside, other=0.0)
    b = tl.load(coordinates + length_a + at_b, mask=inside, other=0.0)
    c = tl.load(coordinates + length_a + length_b + at_c, mask=inside, other=0.0)
    return a.to(tl.float64) / _SPACING, b.to(tl.float64) / _SPACING, c.to(tl.float64) / _SPACING


@triton.jit(do_not_specialize=[
    "n", "n_points", "n_nodes", "length_a", "length_b", "length_c", "nodes_b", "nodes_c",
    "first_a", "first_b", "first_c",
])
def _corners(
    coordinates, vertex, weight, n, n_points, n_nodes, length_a, length_b, length_c, nodes_b,
    nodes_c, first_a, first_b, first_c, CORNERS: tl.constexpr, LANES: tl.constexpr,
):
    """Nodes and shares of a point a lane; axes that are missing have one point, at 0."""
    place = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = place < n
    a, b, c = _positions(coordinates, place, inside, n_points, length_a, length_b, length_c)
    below_a = tl.floor(a)
    below_b = tl.floor(b)
    below_c = tl.floor(c)
    row = (place // n_points) * n_nodes + (
        ((below_a.to(tl.int64) - first_a) * nodes_b + below_b.to(tl.int64) - first_b) * nodes_c
        + below_c.to(tl.int64) - first_c)
    for corner in tl.static_range(CORNERS):
        # The last of the axes that are there varies fastest; they are the last ones.
        side_c = corner % 2
        side_b = (corner // 2) % 2
        side_a = corner // 4
        share = a - below_a if side_a == 1 else 1.0 - (a - below_a)
        share *= b - below_b if side_b == 1 else 1.0 - (b - below_b)
        share *= c - below_c if side_c == 1 else 1.0 - (c - below_c)
        node = row + side_a * nodes_b * nodes_c + side_b * nodes_c + side_c
        tl.store(vertex + place * CORNERS + corner, node.to(tl.int32), mask=inside)
        tl.store(weight + place * CORNERS + corner, share.to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["n", "n_points", "length_a", "length_b", "length_c"])
def _chain_to_positions(
    coordinates, by_weight, out, n, n_points, length_a, length_b, length_c,
    DIM: tl.constexpr, LANES: tl.constexpr,
):
    """Derivatives by a point's position from those by its shares in 2^DIM nodes, as `_corners`."""
    place = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = place < n
    a, b, c = _positions(coordinates, place, inside, n_points, length_a, length_b, length_c)
    a -= tl.floor(a)
    b -= tl.floor(b)
    c -= tl.floor(c)
    CORNERS: tl.constexpr = 2**DIM
    by_a = tl.zeros((LANES,), tl.float64)
    by_b = tl.zeros((LANES,), tl.float64)
    by_c = tl.zeros((LANES,), tl.float64)
    for corner in tl.static_range(CORNERS):
        side_c = corner % 2
        side_b = (corner // 2) % 2
        side_a = corner // 4
        share_a = a if side_a == 1 else 1.0 - a
        share_b = b if side_b == 1 else 1.0 - b
        share_c = c if side_c == 1 else 1.0 - c
        own = tl.load(by_weight + place * CORNERS + corner, mask=inside, other=0.0).to(tl.float64)
        by_a += (2 * side_a - 1) * own * share_b * share_c
        by_b += (2 * side_b - 1) * own * share_a * share_c
        by_c += (2 * side_c - 1) * own * share_a * share_b
    if DIM > 2:
        tl.store(out + place * DIM + (DIM - 3), (by_a / _SPACING).to(tl.float32), mask=inside)
    if DIM > 1:
        tl.store(out + place * DIM + (DIM - 2), (by_b / _SPACING).to(tl.float32), mask=inside)
    tl.store(out + place * DIM + (DIM - 1), (by_c / _SPACING).to(tl.float32), mask=inside)


@triton.jit(do_not_specialize=["n_numbers", "n", "inner"])
def _blur_along(table, out, n_numbers, n, inner, NUMBERS: tl.constexpr):
    """Taps 1 4 6 4 1 of 16 along the middle axis of (outer, n, inner)."""
    place = tl.program_id(0).to(tl.int64) * NUMBERS + tl.arange(0, NUMBERS)
    inside = place < n_numbers
    at = (place // inner) % n
    total = 0.375 * tl.load(table + place, mask=inside, other=0.0)
    for step in tl.static_range(1, 3):
        tap = 0.25 if step == 1 else 0.0625
        low = tl.load(table + place - step * inner, mask=inside & (at >= step), other=0.0)
        high = tl.load(table + place + step * inner, mask=inside & (at + step < n), other=0.0)
        total += tap * (low + high)
    tl.store(out + place, total, mask=inside)


def corners(coordinates: Tensor, layout: GridLayout, n_images: int) -> tuple[Tensor, Tensor]:
    """The nodes around each point and its shares in them, (P, 2^d), for one to three axes."""
    d = len(layout.nodes)
    n_points = math.prod(layout.lengths)
    n = n_images * n_points
    padded, lengths = _three_axes(coordinates, layout.lengths)
    nodes = [1] * (3 - d) + list(layout.nodes)
    first = [0] * (3 - d) + [int(low) for low in layout.first]
    vertex = torch.empty(n, 2**d, dtype=torch.int32, device=coordinates.device)
    weight = torch.empty(n, 2**d, dtype=torch.float32, device=coordinates.device)
    launch(
        _corners, (cdiv(n, _LANES),), padded, vertex, weight, n, n_points,
        math.prod(layout.nodes), *lengths, *nodes[1:], *first, CORNERS=2**d, LANES=_LANES,
    )
    return vertex, weight


def chain_to_positions(
    coordinates: Tensor, by_weight: Tensor, lengths: Sequence[int]
) -> Tensor:
    """(P, d) from derivatives by the shares, (P, 2^d)."""
    by_weight = by_weight.contiguous()
    padded, lengths_of_three = _three_axes(coordinates, lengths)
    n, d = len(by_weight), len(lengths)
    out = by_weight.new_empty(n, d)
    launch(
        _chain_to_positions, (cdiv(n, _LANES),), padded, by_weight, out, n, math.prod(lengths),
        *lengths_of_three, DIM=d, LANES=_LANES,
    )
    return out


def _three_axes(coordinates: Tensor, lengths: Sequence[int]) -> tuple[Tensor, list[int]]:
    """Coordinates and lengths with missing axes, which come first, of one point at 0."""
    missing = 3 - len(lengths)
    padded = torch.cat([coordinates.new_zeros(missing), coordinates]) if missing else coordinates
    return padded, [1] * missing + list(lengths)


def blur_along(table: Tensor, n: int, inner: int) -> Tensor:
    """B t along one axis of a table of nodes, (outer, n, inner) numbers."""
    out = table.new_empty(table.shape)
    n_numbers = table.numel()
    launch(
        _blur_along, (cdiv(n_numbers, _TILE),), table, out, n_numbers, n, inner,
        NUMBERS=_TILE,
    )
    return out
