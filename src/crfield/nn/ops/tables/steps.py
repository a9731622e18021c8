"""One update of concave mean-field inference, and its way back, in one Triton kernel each.

As in the compiled core, a program slices the blurred tables of one or two terms for its points,
makes the new marginals while they are in registers, and splats them into fresh tables. The readable
form is `crfield.dense.problem.Problem`.
"""

# Triton has no types to check kernels by.
# mypy: disable-error-code="import-untyped, no-untyped-def, untyped-decorator"

from __future__ import annotations

from typing import NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from crfield.nn.ops.backend import cdiv, launch, next_power_of_two

_TILE, _WARPS = 256, 2  # numbers a program works on, fastest of those tried at 21 labels
_SIZES = ["n_points", "n_labels", "quads"]


class TermTables(NamedTuple):
    """A term of the step.

    vertex, weight : (P, corners).
    pre, post : (P,), what is splatted and sliced is multiplied by.
    factor : (L,), what a sliced row is multiplied by: the energy it stands for.
    old : blurred table of the old marginals or gradients, rows padded to whole quads, or None.
    new : the table to add to, or None.
    """

    vertex: Tensor
    weight: Tensor
    pre: Tensor
    post: Tensor
    factor: Tensor
    old: Tensor | None
    new: Tensor | None


@triton.jit
def _sliced(vertex, weight, post, table, point, inside, label, stride, CORNERS: tl.constexpr):
    """post S t at the points."""
    whole = inside[:, None] & (label < stride)[None, :]
    total = tl.zeros((point.shape[0], label.shape[0]), tl.float32)
    for corner in tl.static_range(CORNERS):
        row = tl.load(vertex + point * CORNERS + corner, mask=inside, other=0).to(tl.int64)
        share = tl.load(weight + point * CORNERS + corner, mask=inside, other=0.0)
        source = table + row[:, None] * stride + label[None, :]
        total += share[:, None] * tl.load(source, mask=whole, other=0.0)
    return total * tl.load(post + point, mask=inside, other=0.0)[:, None]


@triton.jit
def _splat(vertex, weight, pre, table, value, point, inside, label, stride, CORNERS: tl.constexpr):
    """Adds S' pre value to the table; columns that only pad it get zeros."""
    whole = inside[:, None] & (label < stride)[None, :]
    scaled = value * tl.load(pre + point, mask=inside, other=0.0)[:, None]
    for corner in tl.static_range(CORNERS):
        row = tl.load(vertex + point * CORNERS + corner, mask=inside, other=0).to(tl.int64)
        share = tl.load(weight + point * CORNERS + corner, mask=inside, other=0.0)
        target = table + row[:, None] * stride + label[None, :]
        tl.atomic_add(target, share[:, None] * scaled, mask=whole, sem="relaxed")


@triton.jit(do_not_specialize=_SIZES)
def _update(
    unary, q, n_points, n_labels, quads,
    vertex_a, weight_a, pre_a, post_a, factor_a, old_a, new_a,
    vertex_b, weight_b, pre_b, post_b, factor_b, old_b, new_b,
    CORNERS_A: tl.constexpr, CORNERS_B: tl.constexpr, SLICE: tl.constexpr, SPLAT: tl.constexpr,
    STORE: tl.constexpr, POINTS: tl.constexpr, LABELS: tl.constexpr,
):
    """q = softmax(-u - sum_m factor post S t), splatted."""
    point = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    label = tl.arange(0, LABELS)
    inside = point < n_points
    is_label = label < n_labels
    real = inside[:, None] & is_label[None, :]
    stride = quads * 4
    place = point[:, None] * n_labels + label[None, :]
    energy = tl.load(unary + place, mask=real, other=0.0)
    if SLICE:
        factor = tl.load(factor_a + label, mask=is_label, other=0.0)
        energy += factor[None, :] * _sliced(
            vertex_a, weight_a, post_a, old_a, point, inside, label, stride, CORNERS_A)
        if CORNERS_B > 0:
            factor = tl.load(factor_b + label, mask=is_label, other=0.0)
            energy += factor[None, :] * _sliced(
                vertex_b, weight_b, post_b, old_b, point, inside, label, stride, CORNERS_B)
    # Padding must not win, nor make numbers that are none.
    least = tl.min(tl.where(real, energy, float("inf")), 1)
    least = tl.where(inside, least, 0.0)
    mass = tl.where(real, tl.exp(least[:, None] - energy), 0.0)
    value = mass / tl.where(inside, tl.sum(mass, 1), 1.0)[:, None]
    if STORE:
        tl.store(q + place, value, mask=real)
    if SPLAT:
        _splat(vertex_a, weight_a, pre_a, new_a, value, point, inside, label, stride, CORNERS_A)
        if CORNERS_B > 0:
            _splat(vertex_b, weight_b, pre_b, new_b, value, point, inside, label, stride, CORNERS_B)


@triton.jit(do_not_specialize=_SIZES)
def _update_back(
    q, total, back, by_factor, n_points, n_labels, quads,
    vertex_a, weight_a, pre_a, post_a, factor_a, old_a, new_a,
    vertex_b, weight_b, pre_b, post_b, factor_b, old_b, new_b,
    CORNERS_A: tl.constexpr, CORNERS_B: tl.constexpr, SPLAT: tl.constexpr, STORE: tl.constexpr,
    POINTS: tl.constexpr, LABELS: tl.constexpr,
):
    """b_old = (qq' - diag q) g with g = sum_m factor post S t, t the blurred tables of b_new.

    Adds b_old to the total, and sum_i q_i post S t to `by_factor`, (2, L).
    """
    point = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    label = tl.arange(0, LABELS)
    inside = point < n_points
    is_label = label < n_labels
    real = inside[:, None] & is_label[None, :]
    stride = quads * 4
    place = point[:, None] * n_labels + label[None, :]
    value = tl.load(q + place, mask=real, other=0.0)
    filtered = _sliced(vertex_a, weight_a, post_a, old_a, point, inside, label, stride, CORNERS_A)
    tl.atomic_add(by_factor + label, tl.sum(value * filtered, 0), mask=is_label, sem="relaxed")
    g = tl.load(factor_a + label, mask=is_label, other=0.0)[None, :] * filtered
    if CORNERS_B > 0:
        filtered = _sliced(
            vertex_b, weight_b, post_b, old_b, point, inside, label, stride, CORNERS_B)
        tl.atomic_add(
            by_factor + n_labels + label, tl.sum(value * filtered, 0), mask=is_label, sem="relaxed")
        g += tl.load(factor_b + label, mask=is_label, other=0.0)[None, :] * filtered
    b = value * (tl.sum(value * g, 1)[:, None] - g)
    sum_so_far = tl.load(total + place, mask=real, other=0.0)
    tl.store(total + place, sum_so_far + b, mask=real)
    if STORE:
        tl.store(back + place, b, mask=real)
    if SPLAT:
        _splat(vertex_a, weight_a, pre_a, new_a, b, point, inside, label, stride, CORNERS_A)
        if CORNERS_B > 0:
            _splat(vertex_b, weight_b, pre_b, new_b, b, point, inside, label, stride, CORNERS_B)


@triton.jit(do_not_specialize=_SIZES)
def _correlate(
    b, q, n_points, n_labels, quads, vertex, pre, post, factor, of_b, of_q, by_weight,
    CORNERS: tl.constexpr, POINTS: tl.constexpr, LABELS: tl.constexpr,
):
    """Adds u_i . of_v_c + v_i . of_u_c with u = post factor b, v = pre q to every corner c."""
    point = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
    label = tl.arange(0, LABELS)
    inside = point < n_points
    is_label = label < n_labels
    real = inside[:, None] & is_label[None, :]
    stride = quads * 4
    place = point[:, None] * n_labels + label[None, :]
    own = tl.load(factor + label, mask=is_label, other=0.0)[None, :]
    u = tl.load(b + place, mask=real, other=0.0) * own
    u *= tl.load(post + point, mask=inside, other=0.0)[:, None]
    v = tl.load(q + place, mask=real, other=0.0) * own
    v *= tl.load(pre + point, mask=inside, other=0.0)[:, None]
    whole = inside[:, None] & (label < stride)[None, :]
    for corner in tl.static_range(CORNERS):
        row = tl.load(vertex + point * CORNERS + corner, mask=inside, other=0).to(tl.int64)
        offset = row[:, None] * stride + label[None, :]
        dots = u * tl.load(of_q + offset, mask=whole, other=0.0)
        dots += v * tl.load(of_b + offset, mask=whole, other=0.0)
        target = by_weight + point * CORNERS + corner
        sum_so_far = tl.load(target, mask=inside, other=0.0)
        tl.store(target, sum_so_far + tl.sum(dots, 1), mask=inside)


def update(unary: Tensor, q: Tensor | None, terms: list[TermTables], quads: int) -> None:
    """New marginals from the terms' old tables, if they have any, into q and their new tables."""
    n_points, n_labels = unary.shape
    points, labels = _tile(n_labels)
    launch(
        _update, (cdiv(n_points, points),),
        unary, unary if q is None else q, n_points, n_labels, quads,
        *_flat(terms[0], unary), *_flat(terms[-1], unary),
        CORNERS_A=terms[0].vertex.shape[1],
        CORNERS_B=terms[1].vertex.shape[1] if len(terms) == 2 else 0,
        SLICE=terms[0].old is not None, SPLAT=terms[0].new is not None, STORE=q is not None,
        POINTS=points, LABELS=labels,
        num_warps=_WARPS,
    )


def update_back(
    q: Tensor, total: Tensor, back: Tensor | None, by_factor: Tensor, terms: list[TermTables],
    quads: int,
) -> None:
    """One step back: into `total`, `by_factor`, `back` and the terms' new tables."""
    n_points, n_labels = q.shape
    points, labels = _tile(n_labels)
    launch(
        _update_back, (cdiv(n_points, points),),
        q, total, total if back is None else back, by_factor, n_points, n_labels, quads,
        *_flat(terms[0], q), *_flat(terms[-1], q),
        CORNERS_A=terms[0].vertex.shape[1],
        CORNERS_B=terms[1].vertex.shape[1] if len(terms) == 2 else 0,
        SPLAT=terms[0].new is not None, STORE=back is not None, POINTS=points, LABELS=labels,
        num_warps=_WARPS,
    )


def correlate(
    b: Tensor, q: Tensor, term: TermTables, of_b: Tensor, of_q: Tensor, by_weight: Tensor,
    quads: int,
) -> None:
    """Adds d sum(factor b * K~ q) / d weight, normalization held fixed, to `by_weight`."""
    n_points, n_labels = q.shape
    points, labels = _tile(n_labels)
    launch(
        _correlate, (cdiv(n_points, points),),
        b, q, n_points, n_labels, quads, term.vertex, term.pre, term.post, term.factor, of_b, of_q,
        by_weight, CORNERS=term.vertex.shape[1], POINTS=points, LABELS=labels,
        num_warps=_WARPS,
    )


def _tile(n_labels: int) -> tuple[int, int]:
    """How many points and labels a program works on: always whole rows."""
    labels = max(4, next_power_of_two(n_labels))
    return max(1, _TILE // labels), labels


def _flat(term: TermTables, unused: Tensor) -> tuple[Tensor, ...]:
    """The term's tensors; what is missing is never touched."""
    return tuple(unused if value is None else value for value in term)
