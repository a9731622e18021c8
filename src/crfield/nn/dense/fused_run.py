"""Concave mean-field inference through tables on a GPU, one kernel a pass; see `TensorRun`."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from torch import Tensor

from crfield.nn.dense.passes import go_back, run_passes
from crfield.nn.dense.settings import Settings
from crfield.nn.dense.tensor_run import Gradients, Operator, TensorRun
from crfield.nn.ops.backend import runs_kernels
from crfield.nn.ops.operators import NormalizedOperator
from crfield.nn.ops.recording import replay
from crfield.nn.ops.tables.reference import TableOperator

MAX_LABELS = 1024
MAX_TERMS = 2


class FusedRun(TensorRun):
    """What `TensorRun` does, for one or two terms on lattices or grids with attractions.

    With each state the blurred tables of its marginals are kept: they are small, and the way back
    to the features needs them.
    """

    def __init__(
        self, unary: Tensor, operators: Sequence[Operator], compatibilities: Sequence[Tensor],
        settings: Settings, *, keep: bool,
    ) -> None:
        self._plain: list[TableOperator] = []
        self._factors = []
        for operator, compatibility in zip(operators, compatibilities, strict=True):
            assert isinstance(operator, NormalizedOperator)
            assert isinstance(operator.plain, TableOperator)
            self._plain.append(operator.plain)
            factor = (-operator.plain.scale * compatibility).expand(unary.shape[-1])
            self._factors.append(factor.contiguous())
        self._normalized = tuple(term.normalization != "none" for term in settings.terms)
        self._found: list[Tensor] = []
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
                and not operator.plain.is_deterministic
                for operator in operators
            )
        )

    def _iterate(self, *, keep: bool) -> list[Tensor]:
        """All marginals, or only the last."""
        normalized, n_iter = self._normalized, self._settings.n_iter
        self._found = replay(
            functools.partial(run_passes, normalized=normalized, n_iter=n_iter, keep=keep),
            self._plain, [self._unary, *self._factors], ("forward", normalized, n_iter, keep),
        )
        return list(self._found[0].unbind())

    def backward(self, given: Tensor, widths: Sequence[bool]) -> Gradients:
        """From dL / d marginals, or d log marginals, (B, N, L)."""
        if self._trace is None:
            self._trace = self._iterate(keep=True)
        n_iter, n_terms = len(self._trace) - 1, len(self._plain)
        given = given.reshape(self._unary.shape)
        b = self._first(given, self._trace[-1], is_softmax=True).contiguous()
        wanted = tuple(bool(w) and n_iter > 0 for w in widths)
        normalized = self._normalized
        total, by_factor, *by_features = replay(
            functools.partial(go_back, normalized=normalized, n_iter=n_iter, widths=wanted),
            self._plain, [b, *self._factors, *self._found],
            ("backward", normalized, n_iter, wanted),
        )
        found = iter(by_features)
        return Gradients(
            total.reshape(self._shape), [next(found) if w else None for w in wanted],
            [
                -plain.scale * (part.sum() if c.ndim == 0 else part)
                for plain, part, c in zip(
                    self._plain, by_factor[:n_terms], self._compatibilities, strict=True
                )
            ],
        )
