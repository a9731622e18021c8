"""Concave mean-field inference through tables on a GPU, one kernel a pass; see `TensorRun`."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from crfield.nn._backend import runs_kernels
from crfield.nn._operators import NormalizedOperator
from crfield.nn._settings import Settings
from crfield.nn._tables import TableOperator
from crfield.nn._tensor_run import Gradients, Operator, TensorRun

MAX_LABELS = 1024
MAX_TERMS = 2
_AT_ONCE = 5  # tables of so many iterations are filled with zeros in one go


class FusedRun(TensorRun):
    """What `TensorRun` does, for one or two terms on lattices or grids with attractions.

    With each state the blurred tables of its marginals are kept: they are small, and the way back
    to the features needs them.
    """

    def __init__(
        self, unary: Tensor, operators: Sequence[Operator], compatibilities: Sequence[Tensor],
        settings: Settings, *, keep: bool,
    ) -> None:
        from crfield.nn import _step_kernels

        n_labels = unary.shape[-1]
        self._quads = (n_labels + 3) // 4
        self._tables: list[list[Tensor]] = []
        self._zeros: list[Tensor] = []
        self._terms = []
        for operator, compatibility in zip(operators, compatibilities, strict=True):
            assert isinstance(operator, NormalizedOperator)
            plain = operator.plain
            assert isinstance(plain, TableOperator)
            scale = operator.pre
            if scale is None:
                scale = torch.ones_like(plain.weight[:, 0])
            factor = (-plain.scale * compatibility).expand(n_labels).contiguous()
            self._terms.append(_step_kernels.TermTables(
                plain.vertex, plain.weight, scale, scale, factor, None, None
            ))
        self._plain = [operator.plain for operator in operators]  # type: ignore[attr-defined]
        super().__init__(unary, operators, compatibilities, settings, keep=keep)

    @staticmethod
    def covers(
        unary: Tensor, operators: Sequence[Operator], compatibilities: Sequence[Tensor],
        settings: Settings,
    ) -> bool:
        """Whether this run can do it."""
        return (
            runs_kernels(unary) and settings.algorithm == "concave"
            and settings.gradient == "unrolled" and not settings.deterministic
            and unary.shape[-1] <= MAX_LABELS and 1 <= len(operators) <= MAX_TERMS
            and all(c.ndim < 2 for c in compatibilities)
            and all(
                isinstance(operator, NormalizedOperator) and operator.is_symmetric
                and isinstance(operator.plain, TableOperator)
                for operator in operators
            )
        )

    def _iterate(self, *, keep: bool) -> list[Tensor]:
        """All marginals, or only the last."""
        from crfield.nn import _step_kernels

        n_iter = self._settings.n_iter
        trace: list[Tensor] = []
        self._tables = []
        old: list[Tensor] | None = None
        for t in range(n_iter + 1):
            new = None if t == n_iter else self._fresh_tables()
            q = torch.empty_like(self._unary) if keep or t == n_iter else None
            _step_kernels.update(self._unary, q, self._with(old, new), self._quads)
            if q is not None:
                trace.append(q)
            if new is not None:
                old = self._blur(new)
                if keep:
                    self._tables.append(old)
        return trace

    def backward(self, given: Tensor, widths: Sequence[bool]) -> Gradients:
        """From dL / d marginals, or d log marginals, (B, N, L)."""
        from crfield.nn import _step_kernels

        given = given.reshape(self._unary.shape)
        trace = self._trace if self._trace is not None else self._iterate(keep=True)
        n_iter, n_terms = len(trace) - 1, len(self._terms)
        b = self._first(given, trace[-1], is_softmax=True).contiguous()
        total = b.clone()
        by_factor = given.new_zeros(2, given.shape[1])
        by_weight = [
            torch.zeros_like(plain.weight) if wanted and n_iter else None
            for plain, wanted in zip(self._plain, widths, strict=True)
        ]
        splatted = [
            plain.splat(b, term.pre) for plain, term in zip(self._plain, self._terms, strict=True)
        ] if n_iter else []
        for t in range(n_iter - 1, -1, -1):
            of_b = self._blur(splatted)
            for m, sums in enumerate(by_weight):
                if sums is not None:
                    _step_kernels.correlate(
                        b, trace[t], self._terms[m], of_b[m], self._tables[t][m], sums, self._quads
                    )
            new = self._fresh_tables() if t else None
            back = torch.empty_like(b) if t and any(widths) else None
            _step_kernels.update_back(
                trace[t], total, back, by_factor, self._with(of_b, new), self._quads
            )
            if back is not None:
                b = back
            if new is not None:
                splatted = new
        scales = given.new_tensor([plain.scale for plain in self._plain])
        by_attraction = -scales[:, None] * by_factor[:n_terms]
        return Gradients(
            total.reshape(self._shape),
            [
                None if sums is None else self._to_features(m, sums)
                for m, sums in enumerate(by_weight)
            ],
            [
                part.sum() if c.ndim == 0 else part
                for part, c in zip(by_attraction, self._compatibilities, strict=True)
            ],
        )

    def _to_features(self, m: int, by_weight: Tensor) -> Tensor:
        operator, plain = self._operators[m], self._plain[m]
        assert isinstance(operator, NormalizedOperator)
        gradient = operator.start_gradient()
        # sum_c w_c (u . of_v_c + v . of_u_c) is what u and v make of the scales.
        gradient.add_sums(plain.chain_to_features(by_weight), (plain.weight * by_weight).sum(1))
        return gradient.total()

    def _fresh_tables(self) -> list[Tensor]:
        """Zeros for all terms, some iterations' worth filled at once."""
        sizes = [plain.n_rows for plain in self._plain]
        if not self._zeros:
            filled = self._unary.new_zeros(_AT_ONCE * sum(sizes), 4 * self._quads)
            self._zeros = list(filled.split(sum(sizes)))
        return list(self._zeros.pop().split(sizes))

    def _blur(self, tables: Sequence[Tensor]) -> list[Tensor]:
        return [plain.blur(table) for plain, table in zip(self._plain, tables, strict=True)]

    def _with(self, old: Sequence[Tensor] | None, new: Sequence[Tensor] | None) -> list:  # type: ignore[type-arg]
        return [
            term._replace(old=None if old is None else old[m], new=None if new is None else new[m])
            for m, term in enumerate(self._terms)
        ]
