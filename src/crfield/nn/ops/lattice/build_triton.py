"""Triton kernels that build the permutohedral lattice; the plain-torch form is in `build.py`.

Vertices are found through a hash table with open addressing: `state` holds the number of vertices
so far, what has gone wrong, and then the table's keys, EMPTY where there is none. Everything starts
as EMPTY = -1, so that one fill prepares a build.
"""

# ruff: noqa: RUF005 -- kernels can add tuples but not unpack them
# Triton has no types to check kernels by.
# mypy: disable-error-code="assignment, import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from crfield.nn.ops.backend import cdiv, launch, next_power_of_two
from crfield.nn.ops.lattice.build import KeyLayout, Structure, axis_scales

# Where the hash table starts: real images have some fifteen points per vertex.
START_SLOTS_PER_POINT = 0.5
START_SLOTS = 4096
_GROWTH = 8
_LANES = 128
_EMPTY = tl.constexpr(-1)
_NEVER = tl.constexpr(-2)  # no key, so that comparing with it swaps nothing
_MAX_PROBES = tl.constexpr(64)  # more mean that the table is too small
_TOO_SMALL = tl.constexpr(1)
_OUTSIDE = tl.constexpr(2)  # a point lies outside the layout's bounds


class _Layout(NamedTuple):
    """A layout of keys as the kernels take it.

    units : (D + 2,) int64, of the coordinates and the origin.
    bounds : (2, D) of the features.
    """

    work: torch.dtype
    units: Tensor
    bounds: Tensor

    @classmethod
    def of(cls, layout: KeyLayout, like: Tensor) -> _Layout:
        return cls(
            layout.work_dtype(like.dtype),
            torch.tensor([unit[0] for unit in layout.unit] + layout.origin, device=like.device),
            torch.tensor([layout.low, layout.high], dtype=torch.float32, device=like.device),
        )


# Layouts with room around the points that they were made for: points of a kind mostly fit those of
# the ones before them, and finding their own bounds means to wait for the GPU.
_roomy: dict[tuple[object, ...], _Layout] = {}
_MOST_ROOMY = 32


@triton.jit
def _first_slot(key, mask):
    mixed = key * -7046029254386353131  # 2^64 / golden ratio
    mixed = mixed ^ (mixed >> 32)
    return mixed & mask


@triton.jit
def _insert(key, inside, state, mask, number, key_of):
    """The slot of each lane's key, added where it is new; new vertices are numbered from 1."""
    keys = state + 2
    slot = _first_slot(key, mask)
    pending = inside
    probes = 0
    while tl.max(pending.to(tl.int32), 0) > 0:
        found = tl.load(keys + slot, mask=pending, other=_NEVER, cache_modifier=".cg")
        is_empty = pending & (found == _EMPTY)
        # Few points meet a new vertex; the others need no atomic operation.
        if tl.max(is_empty.to(tl.int32), 0) > 0:
            expected = tl.where(is_empty, _EMPTY, _NEVER).to(tl.int64)
            swapped = tl.atomic_cas(keys + slot, expected, key, sem="relaxed")
            is_new = is_empty & (swapped == _EMPTY)
            found = tl.where(is_new, key, tl.where(is_empty, swapped, found))
            taken = is_new.to(tl.int64)
            # The count starts at -1, and numbers at 1.
            last = tl.atomic_add(state, tl.sum(taken, 0), sem="relaxed") + 1
            own = last + tl.cumsum(taken, 0)
            tl.store(number + slot, own.to(tl.int32), mask=is_new)
            tl.store(key_of + own, key, mask=is_new)
        pending = pending & (found != key)
        probes += 1
        if probes >= _MAX_PROBES:
            if tl.max(pending.to(tl.int32), 0) > 0:
                tl.store(state + 1, _TOO_SMALL)
            pending = pending & (probes < _MAX_PROBES)
        slot = tl.where(pending, (slot + 1) & mask, slot)
    return slot


@triton.jit(do_not_specialize=["n", "n_points", "mask"])
def _embed(
    features, layout, bounds, state, number, key_of, slots, weight, ranks, n, n_points, mask,
    DIM: tl.constexpr, SCALES: tl.constexpr, WORK: tl.constexpr, ROUNDER: tl.constexpr,
    LANES: tl.constexpr,
):
    """`build.embed` of one point per lane, and its vertices' slots in the hash table."""
    CORNERS: tl.constexpr = DIM + 1
    point = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    inside = point < n
    partial = tl.zeros((LANES,), WORK)
    elevated = ()
    fits = inside
    for step in tl.static_range(DIM):
        feature = tl.load(features + point * DIM + (DIM - 1 - step), mask=inside, other=0.0)
        low = tl.load(bounds + (DIM - 1 - step))
        high = tl.load(bounds + DIM + (DIM - 1 - step))
        within = (feature >= low) & (feature <= high)
        fits &= within
        feature = tl.where(within, feature, low)
        scaled = feature.to(WORK) * tl.full((LANES,), SCALES[DIM - 1 - step], WORK)
        elevated = (partial - scaled * (DIM - step),) + elevated
        partial += scaled
    elevated = (partial,) + elevated
    if tl.max((inside & ~fits).to(tl.int32), 0) > 0:
        tl.store(state + 1, _OUTSIDE)

    # Adding and subtracting 1.5 * 2^(mantissa bits) rounds to the nearest whole number.
    rounder = tl.full((LANES,), ROUNDER, WORK)
    inverse = tl.full((LANES,), 1.0 / CORNERS, WORK)
    rounded_sum = tl.zeros((LANES,), WORK)
    residual = ()
    for j in tl.static_range(CORNERS):
        nearest = (elevated[j] * inverse + rounder) - rounder
        rounded_sum += nearest
        residual = residual + (elevated[j] - nearest * CORNERS,)

    key = tl.load(layout + CORNERS) + point // n_points
    rank = ()
    share = ()
    unit = ()
    for j in tl.static_range(CORNERS):
        unit = unit + (tl.load(layout + j),)
        own = rounded_sum.to(tl.int32)
        for i in tl.static_range(CORNERS):
            if i < j:
                own += (residual[i] >= residual[j]).to(tl.int32)
            if i > j:
                own += (residual[i] > residual[j]).to(tl.int32)
        # Rounded coordinates that do not sum to zero move to the neighboring remainder-0 vertex.
        wrap = tl.where(own < 0, CORNERS, tl.where(own > DIM, -CORNERS, 0))
        inner = residual[j] - wrap.to(WORK)
        rank = rank + (own + wrap,)
        share = share + (inner * inverse,)
        tl.store(ranks + point * CORNERS + j, (own + wrap).to(tl.int8), mask=inside)
        whole = ((elevated[j] - inner + rounder) - rounder).to(tl.int64)
        key += whole * unit[j]

    before = tl.zeros((LANES,), WORK)  # the share of rank DIM + 1 - corner, cyclically
    whole_step = tl.zeros((LANES,), tl.int64)
    for j in tl.static_range(CORNERS):
        before += tl.where(rank[j] == 0, share[j], 0.0)
        whole_step += unit[j]
    for corner in range(CORNERS):
        here = tl.zeros((LANES,), WORK)
        own_unit = tl.zeros((LANES,), tl.int64)
        for j in tl.static_range(CORNERS):
            is_here = rank[j] == DIM - corner
            here += tl.where(is_here, share[j], 0.0)
            own_unit += tl.where(is_here, unit[j], 0)
        barycentric = tl.where(corner == 0, 1.0 + here, here) - before
        tl.store(weight + point * CORNERS + corner, barycentric.to(tl.float32), mask=inside)
        slot = _insert(key, inside, state, mask, number, key_of)
        tl.store(slots + point * CORNERS + corner, slot.to(tl.int32), mask=inside)
        before = here
        key += whole_step - CORNERS * own_unit


@triton.jit(do_not_specialize=["n_rows", "mask"])
def _find_neighbors(
    key_of, layout, state, number, neighbors, n_rows, mask,
    DIM: tl.constexpr, LANES: tl.constexpr,
):
    """The vertex one step along one axis, backward or forward: program (rows, axis, direction)."""
    axis = tl.program_id(1)
    forward = tl.program_id(2)
    row = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    step = -(DIM + 1) * tl.load(layout + axis)
    for j in tl.static_range(DIM):
        step += tl.load(layout + j)
    real = (row > 0) & (row < n_rows)
    key = tl.load(key_of + row, mask=real, other=0) + (2 * forward - 1) * step
    slot = _first_slot(key, mask)
    vertex = tl.zeros((LANES,), tl.int32)
    pending = real
    probes = 0
    while (tl.max(pending.to(tl.int32), 0) > 0) & (probes < _MAX_PROBES):  # none lies farther off
        found = tl.load(state + 2 + slot, mask=pending, other=_EMPTY)
        matches = pending & (found == key)
        vertex = tl.where(matches, tl.load(number + slot, mask=matches, other=0), vertex)
        pending = pending & (found != key) & (found != _EMPTY)
        slot = tl.where(pending, (slot + 1) & mask, slot)
        probes += 1
    target = neighbors + (axis.to(tl.int64) * n_rows + row) * 2 + forward
    tl.store(target, vertex, mask=row < n_rows)


def build(features: Tensor, n_images: int, sort_vertices: bool) -> Structure | None:
    """`build.build`, or None where keys take more than one word.

    Vertices are numbered as they are met, which changes from run to run, or by their keys.
    """
    features = features.contiguous()
    n, dim = features.shape
    corners = dim + 1
    device = features.device
    weight = features.new_empty(n, corners)
    slots = torch.empty(n, corners, dtype=torch.int32, device=device)
    ranks = torch.empty(n, corners, dtype=torch.int8, device=device)
    kind = (device, dim, n_images)
    layout = None if sort_vertices else _roomy.get(kind)
    capacity = next_power_of_two(max(int(START_SLOTS_PER_POINT * n), START_SLOTS))
    while True:
        if layout is None:
            layout = _find_layout(features, n_images, None if sort_vertices else kind)
            if layout is None:
                return None
        state = torch.full((capacity + 2,), -1, dtype=torch.int64, device=device)
        key_of = torch.empty(capacity + 1, dtype=torch.int64, device=device)
        number = torch.empty(capacity, dtype=torch.int32, device=device)
        is_double = layout.work == torch.float64
        launch(
            _embed, (cdiv(n, _LANES),), features, layout.units, layout.bounds, state, number,
            key_of, slots, weight, ranks, n, n // n_images, capacity - 1, DIM=dim,
            SCALES=axis_scales(dim), WORK=tl.float64 if is_double else tl.float32,
            ROUNDER=6755399441055744.0 if is_double else 12582912.0, LANES=_LANES,
            enable_fp_fusion=False,  # rounds as the compiled core does, for the same simplices
        )
        last, problem = state[:2].tolist()
        if problem == _OUTSIDE.value:
            layout = None
        elif problem == _TOO_SMALL.value:
            capacity *= _GROWTH
        else:
            break
    n_rows = last + 2  # counted from -1, and row 0 stands for missing vertices
    if sort_vertices:
        key_of[1:n_rows], order = torch.sort(key_of[1:n_rows])
        by_key = torch.zeros(n_rows, dtype=torch.int32, device=device)
        by_key[order + 1] = torch.arange(1, n_rows, dtype=torch.int32, device=device)
        number = by_key[number.clamp(0, n_rows - 1)]  # nothing was written where no vertex is
    vertex = number.index_select(0, slots.reshape(-1)).reshape(n, corners)
    neighbors = torch.empty(corners, n_rows, 2, dtype=torch.int32, device=device)
    launch(
        _find_neighbors, (cdiv(n_rows, _LANES), corners, 2), key_of, layout.units, state, number,
        neighbors, n_rows, capacity - 1, DIM=dim, LANES=_LANES,
    )
    return Structure(vertex, weight, ranks, neighbors)


def _find_layout(
    features: Tensor, n_images: int, kind: tuple[object, ...] | None
) -> _Layout | None:
    """A layout for these features, if one word is enough, kept for others of the kind."""
    layout = KeyLayout.of(features, n_images)
    if layout.n_words > 1:
        return None
    roomier = layout.roomier()
    dtype = features.dtype
    is_wide = roomier.n_words > 1 or roomier.work_dtype(dtype) != layout.work_dtype(dtype)
    if kind is None or is_wide:
        return _Layout.of(layout, features)
    while len(_roomy) >= _MOST_ROOMY:
        _roomy.pop(next(iter(_roomy)), None)
    _roomy[kind] = found = _Layout.of(roomier, features)
    return found
