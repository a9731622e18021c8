"""The passes of a concave mean-field run through tables: normalization, then one for each state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from crfield.nn.ops.operators import NormalizedOperator
from crfield.nn.ops.tables.reference import TableOperator

if TYPE_CHECKING:
    from crfield.nn.ops.tables.steps import TermTables

_AT_ONCE = 5  # tables of so many iterations are filled with zeros in one go


class Passes(NamedTuple):
    """What the passes leave.

    trace : (states, P, L) marginals of all states, or only of the last.
    scales : for each term (P,), what goes in and comes out is multiplied by.
    tables : for each state but the last, if all are kept, the blurred tables of all terms.
    """

    trace: Tensor
    scales: list[Tensor]
    tables: list[Tensor]

    @classmethod
    def of(cls, found: Sequence[Tensor], n_terms: int) -> Passes:
        """From what `run_passes` returns."""
        return cls(found[0], list(found[1 : 1 + n_terms]), list(found[1 + n_terms :]))


class ZeroTables:
    """Fresh tables of zeros for all terms, some iterations' worth filled at once."""

    def __init__(self, like: Tensor, plains: Sequence[TableOperator], quads: int) -> None:
        self._like, self._width = like, 4 * quads
        self._sizes = [plain.n_rows for plain in plains]
        self._left: list[Tensor] = []

    def take(self, still_wanted: int) -> list[Tensor]:
        """One for each term; so many iterations will want some, this one included."""
        if not self._left:
            total = sum(self._sizes)
            n = min(still_wanted, _AT_ONCE)
            self._left = list(self._like.new_zeros(n * total, self._width).split(total))
        return list(self._left.pop().split(self._sizes))


def quads_of(n_labels: int) -> int:
    """Vectors of four numbers that hold a row."""
    return (n_labels + 3) // 4


def find_scales(plains: Sequence[TableOperator], normalized: Sequence[bool]) -> list[Tensor]:
    """(K 1)^(-1/2) of each term, or ones."""
    return [
        plain.row_sums().rsqrt() if wanted else torch.ones_like(plain.weight[:, 0])
        for plain, wanted in zip(plains, normalized, strict=True)
    ]


def step_terms(
    plains: Sequence[TableOperator], scales: Sequence[Tensor], factors: Sequence[Tensor],
    old: Sequence[Tensor] | None, new: Sequence[Tensor] | None,
) -> list[TermTables]:
    """The terms as the kernels of a step take them."""
    from crfield.nn.ops.tables.steps import TermTables

    return [
        TermTables(
            plain.vertex, plain.weight, scale, scale, factor,
            None if old is None else old[m], None if new is None else new[m],
        )
        for m, (plain, scale, factor) in enumerate(zip(plains, scales, factors, strict=True))
    ]


def run_passes(
    plains: Sequence[TableOperator], tensors: Sequence[Tensor], normalized: Sequence[bool],
    n_iter: int, *, keep: bool,
) -> list[Tensor]:
    """softmax(-unary) and n_iter updates of it, as a list that `Passes.of` reads if all is kept.

    tensors : the unary (P, L), and for each term (L,) the energy that a filtered row stands for.
    normalized : whether a term's rows sum to about 1.
    """
    from crfield.nn.ops.tables import steps as _step_kernels

    unary, *factors = tensors
    quads = quads_of(unary.shape[1])
    scales = find_scales(plains, normalized)
    zeros = ZeroTables(unary, plains, quads)
    # All states in one tensor: few pieces are copied faster than many.
    trace = unary.new_empty(n_iter + 1 if keep else 1, *unary.shape)
    tables: list[Tensor] = []
    old: list[Tensor] | None = None
    for t in range(n_iter + 1):
        new = None if t == n_iter else zeros.take(n_iter - t)
        q = trace[t if keep else 0] if keep or t == n_iter else None
        _step_kernels.update(unary, q, step_terms(plains, scales, factors, old, new), quads)
        if new is not None:
            old = [plain.blur(table) for plain, table in zip(plains, new, strict=True)]
            if keep:
                tables += old
    return [trace, *scales, *tables] if keep else [trace]


def go_back(
    plains: Sequence[TableOperator], tensors: Sequence[Tensor], normalized: Sequence[bool],
    n_iter: int, widths: Sequence[bool],
) -> list[Tensor]:
    """From b of the last update: the sum of all b, by the factors, and by features that count.

    tensors : b (P, L), the factors, and what `run_passes` left.
    widths : for each term, whether its features count.
    """
    from crfield.nn.ops.tables import steps as _step_kernels

    n_terms = len(plains)
    b, *rest = tensors
    factors, passes = rest[:n_terms], Passes.of(rest[n_terms:], n_terms)
    quads = quads_of(b.shape[1])
    total = b.clone()
    by_factor = b.new_zeros(2, b.shape[1])
    by_weight = [
        torch.zeros_like(plain.weight) if wanted else None
        for plain, wanted in zip(plains, widths, strict=True)
    ]
    zeros = ZeroTables(b, plains, quads)
    splatted = [
        plain.splat(b, scale) for plain, scale in zip(plains, passes.scales, strict=True)
    ] if n_iter else []
    for t in range(n_iter - 1, -1, -1):
        of_b = [plain.blur(table) for plain, table in zip(plains, splatted, strict=True)]
        new = zeros.take(t) if t else None
        terms = step_terms(plains, passes.scales, factors, of_b, new)
        for m, sums in enumerate(by_weight):
            if sums is not None:
                of_q = passes.tables[t * n_terms + m]
                _step_kernels.correlate(b, passes.trace[t], terms[m], of_b[m], of_q, sums, quads)
        back = torch.empty_like(b) if t and any(widths) else None
        _step_kernels.update_back(passes.trace[t], total, back, by_factor, terms, quads)
        if back is not None:
            b = back
        if new is not None:
            splatted = new
    return [
        total, by_factor,
        *[
            _to_features(plains[m], normalized[m], passes.scales[m], sums)
            for m, sums in enumerate(by_weight) if sums is not None
        ],
    ]


def _to_features(
    plain: TableOperator, normalized: bool, scale: Tensor, by_weight: Tensor
) -> Tensor:
    """(P, D) from derivatives by the weights, with what the scales make of them."""
    operator = NormalizedOperator(plain, "symmetric" if normalized else "none")
    if normalized:
        operator.know_scale(scale)
    gradient = operator.start_gradient()
    # sum_c w_c (u . of_v_c + v . of_u_c) is what u and v make of the scales.
    gradient.add_sums(plain.chain_to_features(by_weight), (plain.weight * by_weight).sum(1))
    return gradient.total()
