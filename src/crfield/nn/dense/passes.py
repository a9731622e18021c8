"""Concave mean-field inference through tables on a GPU, one kernel per pass.

The updates and the way back plug into the loops of `crfield.dense.meanfield` and
`crfield.dense.gradient`; see `crfield.dense.problem.Problem` for their readable form.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from crfield.dense.filters import KernelOperator
from crfield.dense.gradient import Gradients, go_back, softmax_jacobian
from crfield.dense.meanfield import State, run_parallel
from crfield.nn.dense.run import RunSettings, TensorRun
from crfield.nn.ops.backend import runs_kernels
from crfield.nn.ops.operators import TensorOperator
from crfield.nn.ops.recording import replay
from crfield.nn.ops.tables.reference import TableOperator

if TYPE_CHECKING:
    from crfield.nn.ops.tables.steps import TermTables

MAX_LABELS = 1024
MAX_TERMS = 2

_AT_ONCE = 5  # tables of so many iterations are filled with zeros in one go


class FusedRun(TensorRun):
    """What `TensorRun` does, for one or two terms on lattices or grids with attractions.

    With each state the blurred tables of its marginals are kept: they are small, and the way back
    to the features needs them.
    """

    def __init__(
        self, unary: Tensor, operators: Sequence[KernelOperator],
        compatibilities: Sequence[Tensor], settings: RunSettings, *, keep: bool,
    ) -> None:
        self._plain: list[TableOperator] = []
        self._factors = []
        for operator, compatibility in zip(operators, compatibilities, strict=True):
            assert isinstance(operator, TensorOperator)
            assert isinstance(operator.plain, TableOperator)
            self._plain.append(operator.plain)
            factor = (-operator.plain.scale * compatibility).expand(unary.shape[-1])
            self._factors.append(factor.contiguous())
        self._normalized = tuple(term.normalization != "none" for term in settings.terms)
        self._found: list[Tensor] = []
        super().__init__(unary, operators, compatibilities, settings, keep=keep)

    @staticmethod
    def covers(
        unary: Tensor, operators: Sequence[KernelOperator], compatibilities: Sequence[Tensor],
        settings: RunSettings,
    ) -> bool:
        """Whether this run can do it."""
        return (
            runs_kernels(unary) and settings.algorithm == "concave"
            and settings.gradient == "unrolled" and not settings.deterministic
            and unary.shape[-1] <= MAX_LABELS and 1 <= len(operators) <= MAX_TERMS
            and all(c.ndim < 2 for c in compatibilities)
            and all(
                isinstance(operator, TensorOperator) and operator.is_symmetric
                and isinstance(operator.plain, TableOperator)
                and not operator.plain.is_deterministic
                for operator in operators
            )
        )

    def _iterate(self, *, keep: bool) -> list[State]:
        """All states, or only the last."""
        normalized, max_iter = self._normalized, self._settings.max_iter
        self._found = replay(
            functools.partial(run_passes, normalized=normalized, max_iter=max_iter, keep=keep),
            self._plain, [self._unary, *self._factors], ("forward", normalized, max_iter, keep),
        )
        return [State(q) for q in self._found[0].unbind()]

    def backward(self, given: Tensor, widths: Sequence[bool]) -> Gradients:
        """From dL / d marginals, or d log marginals, (B, N, L)."""
        if self._trace is None:
            self._trace = self._iterate(keep=True)
        max_iter, n_terms = len(self._trace) - 1, len(self._plain)
        b = softmax_jacobian(self._last.marginals, self._by_log(given)).contiguous()
        wanted = tuple(bool(w) and max_iter > 0 for w in widths)
        normalized = self._normalized
        total, by_factor, *by_features = replay(
            functools.partial(go_back_through, normalized=normalized, widths=wanted),
            self._plain, [b, *self._factors, *self._found],
            ("backward", normalized, max_iter, wanted),
        )
        found = iter(by_features)
        return Gradients(
            total.reshape(self._shape),
            [
                -plain.scale * (part.sum() if c.ndim == 0 else part)
                for plain, part, c in zip(
                    self._plain, by_factor[:n_terms], self._compatibilities, strict=True
                )
            ],
            [next(found) if w else None for w in wanted],
        )


def run_passes(
    plains: Sequence[TableOperator], tensors: Sequence[Tensor], normalized: Sequence[bool],
    max_iter: int, *, keep: bool,
) -> list[Tensor]:
    """softmax(-unary) and max_iter updates of it: (states, P, L) marginals of all states, or only
    of the last; if all are kept, also each term's scales (P,) and, for each state but the last, the
    blurred tables of all terms.

    tensors : the unary (P, L), and for each term (L,) the energy that a filtered row stands for.
    normalized : whether a term's rows sum to about 1.
    """
    unary, *factors = tensors
    scales = [
        plain.row_sums().rsqrt() if wanted else torch.ones_like(plain.weight[:, 0])
        for plain, wanted in zip(plains, normalized, strict=True)
    ]
    tables = _Tables(plains, scales, factors, unary)
    passes = _Passes(tables, unary, max_iter, keep=keep)
    trace: list[State] = []
    run_parallel(passes, max_iter=max_iter, trace=trace if keep else None)  # lets go of tables
    if not keep:
        return [passes.stored]
    return [passes.stored, *scales, *(table for state in trace for table in state.filtered)]


def go_back_through(
    plains: Sequence[TableOperator], tensors: Sequence[Tensor], normalized: Sequence[bool],
    widths: Sequence[bool],
) -> list[Tensor]:
    """From b of the last update: the sum of all b, by the factors, and by features that count.

    tensors : b (P, L), the factors, and what `run_passes` left.
    widths : for each term, whether its features count.
    """
    n = len(plains)
    b, *rest = tensors
    factors, stored, scales, blurred = rest[:n], rest[n], rest[n + 1 : 2 * n + 1], rest[2 * n + 1 :]
    trace = [
        State(q, shift=0.0 if t else None, filtered=tuple(blurred[t * n : (t + 1) * n]), slot=t)
        for t, q in enumerate(stored.unbind())
    ]
    back = _PassesBack(_Tables(plains, scales, factors, b), b, widths, moved=len(trace) > 1)
    go_back(back, trace, b)
    return [
        back.total, back.by_factor,
        *[
            _to_features(plains[m], normalized[m], scales[m], sums)
            for m, sums in enumerate(back.by_weight) if sums is not None
        ],
    ]


class _Tables:
    """The terms of a run as its kernels take them, and fresh tables of zeros for all of them."""

    def __init__(
        self, plains: Sequence[TableOperator], scales: Sequence[Tensor],
        factors: Sequence[Tensor], like: Tensor,
    ) -> None:
        self.plains, self.scales = plains, scales
        self.quads = (like.shape[1] + 3) // 4  # vectors of four numbers that hold a row
        self._factors, self._like = factors, like
        self._sizes = [plain.n_rows for plain in plains]
        self._left: list[Tensor] = []

    def take_zeros(self, still_wanted: int) -> list[Tensor]:
        """One for each term; so many iterations will want some, this one included."""
        if not self._left:
            total = sum(self._sizes)
            n = min(still_wanted, _AT_ONCE)
            self._left = list(self._like.new_zeros(n * total, 4 * self.quads).split(total))
        return list(self._left.pop().split(self._sizes))

    def blur(self, tables: Sequence[Tensor]) -> list[Tensor]:
        """B t of each term's table."""
        return [plain.blur(table) for plain, table in zip(self.plains, tables, strict=True)]

    def terms(
        self, old: Sequence[Tensor] | None, new: Sequence[Tensor] | None
    ) -> list[TermTables]:
        """The terms with the tables that a step slices and those that it splats to."""
        from crfield.nn.ops.tables.steps import TermTables

        return [
            TermTables(
                plain.vertex, plain.weight, scale, scale, factor,
                None if old is None else old[m], None if new is None else new[m],
            )
            for m, (plain, scale, factor) in enumerate(
                zip(self.plains, self.scales, self._factors, strict=True)
            )
        ]


class _Passes:
    """The updates: each slices the tables of the old marginals and splats the new ones."""

    def __init__(self, tables: _Tables, unary: Tensor, max_iter: int, *, keep: bool) -> None:
        self.unary = unary
        self._tables, self._left, self._keep = tables, max_iter, keep
        # All states in one tensor: few pieces are copied faster than many.
        self.stored = unary.new_empty(max_iter + 1 if keep else 1, *unary.shape)

    def start(self, marginals: Tensor | None, *, store: bool) -> State:
        return self._pass(None, 0)

    def step(self, old: State, shift: float, *, store: bool) -> State:
        return self._pass(old.filtered, old.slot + 1)

    def readable(self) -> _Passes:
        return self

    def _pass(self, old: Sequence[Tensor] | None, slot: int) -> State:
        from crfield.nn.ops.tables import steps as _step_kernels

        tables, left = self._tables, self._left
        new = tables.take_zeros(left) if left else None
        self._left -= 1
        q = self.stored[slot if self._keep else 0] if self._keep or not left else None
        _step_kernels.update(self.unary, q, tables.terms(old, new), tables.quads)
        return State(q, filtered=() if new is None else tuple(tables.blur(new)), slot=slot)


class _PassesBack:
    """The way back: `total` is the sum of all b."""

    def __init__(
        self, tables: _Tables, b: Tensor, widths: Sequence[bool], *, moved: bool
    ) -> None:
        self._tables, self._widths = tables, widths
        self.total = b.clone()
        self.by_factor = b.new_zeros(2, b.shape[1])
        self.by_weight = [
            torch.zeros_like(plain.weight) if wanted else None
            for plain, wanted in zip(tables.plains, widths, strict=True)
        ]
        self._splatted = [
            plain.splat(b, scale)
            for plain, scale in zip(tables.plains, tables.scales, strict=True)
        ] if moved else []

    def step(self, b: Tensor, old: State, new: State) -> Tensor:
        from crfield.nn.ops.tables import steps as _step_kernels

        tables, t = self._tables, old.slot
        of_b = tables.blur(self._splatted)
        fresh = tables.take_zeros(t) if t else None
        terms = tables.terms(of_b, fresh)
        for m, sums in enumerate(self.by_weight):
            if sums is not None:
                _step_kernels.correlate(
                    b, old.marginals, terms[m], of_b[m], old.filtered[m], sums, tables.quads
                )
        back = torch.empty_like(b) if t and any(self._widths) else None
        _step_kernels.update_back(
            old.marginals, self.total, back, self.by_factor, terms, tables.quads
        )
        if fresh is not None:
            self._splatted = fresh
        return b if back is None else back

    def finish(self, b: Tensor, start: State) -> None:
        """Nothing: the last step has added it."""


def _to_features(
    plain: TableOperator, normalized: bool, scale: Tensor, by_weight: Tensor
) -> Tensor:
    """(P, D) from derivatives by the weights, with what the scales make of them."""
    operator = TensorOperator(plain, "symmetric" if normalized else "none")
    operator.scales = (scale, scale) if normalized else (None, None)
    gradient = operator.start_gradient()
    # sum_c w_c (u . of_v_c + v . of_u_c) is what u and v make of the scales.
    gradient.add_sums(plain.chain_to_features(by_weight), (plain.weight * by_weight).sum(1))
    total: Tensor = gradient.total()
    return total
