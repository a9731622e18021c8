"""The fused form of mean-field inference, and the one place that chooses it.

A `Plan` does what `crfield.dense.meanfield.Problem` does, in one pass over the variables per
iteration: slice what the kernels made of the old marginals, update, splat the new ones. It needs
kernels that work through tables (lattice and grid), symmetric ones, and covers "concave" with any
compatibility and "cccp" and "parallel" with those that are diagonal up to a constant.
Pair energies come from the tables, q'Kq = (S'q)'B(S'q), so that marginals need not be stored to
know the free energy.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.arena import Arena
from crfield._core.validate import FloatArray, check_memory
from crfield.dense.filters import TableFilter
from crfield.dense.meanfield import Problem, State, Term, rounding

_UPDATES = {"concave": 0, "cccp": 1, "parallel": 2}


def make_problem(
    unary: FloatArray, terms: Sequence[Term], algorithm: str, threads: int, *,
    keep_states: bool = False, arena: Arena | None = None, fused: bool = True,
) -> Problem | Plan:
    """Inference on one image: fused where that is possible, operator by operator otherwise.

    keep_states : whether every state gets marginals of its own, for going back through them.
    """
    if fused and Plan.covers(terms, algorithm, unary.shape[1]):
        return Plan(unary, terms, algorithm, threads, keep_states=keep_states, arena=arena)
    return Problem(
        unary, terms, self_pairs=algorithm == "concave", convex_self_pairs=algorithm == "cccp",
        threads=threads, keep_states=keep_states, arena=arena,
    )


class Plan:
    """F and its update for one image, fused; see `Problem` for the arguments."""

    def __init__(
        self, unary: FloatArray, terms: Sequence[Term], algorithm: str, threads: int, *,
        keep_states: bool = False, arena: Arena | None = None,
    ) -> None:
        self.unary = unary
        self.terms = terms
        self.algorithm = algorithm
        self.arena = Arena() if arena is None else arena
        self._threads = threads
        self._keep_states = keep_states
        n_labels = unary.shape[1]
        without_self = algorithm != "concave"
        self.diagonals = [t.operator.diagonal() if without_self else None for t in terms]
        self._constants = []  # c in mu = c 11' - diag(a)
        native_terms = []
        for term, diagonal in zip(terms, self.diagonals, strict=True):
            operator = term.operator
            assert isinstance(operator, TableFilter)
            attraction = term.compatibility.attraction(n_labels)
            mu = term.compatibility.matrix(n_labels) if attraction is None else -attraction
            self._constants.append(term.weight * term.compatibility.constant)
            native_terms.append((
                operator.native, operator.pre, operator.post, diagonal,
                np.ravel(term.weight * mu).astype(unary.dtype),
            ))
        sizes = [kernel.n_vertices for kernel, *_ in native_terms]
        self._table_bytes = float(sum(sizes)) * (n_labels + 8) * unary.dtype.itemsize
        self._purpose = (
            f"Inference with {n_labels} labels and kernels of {' and '.join(map(str, sizes))} "
            "vertices"
        )
        self._check_memory((4 + threads) * self._table_bytes)
        build = _native.Plan64 if unary.dtype == np.float64 else _native.Plan32
        self._native = build(unary, native_terms, _UPDATES[algorithm], threads)
        self._constant = 0.0
        self._buffers: list[FloatArray] = []

    @staticmethod
    def covers(terms: Sequence[Term], algorithm: str, n_labels: int) -> bool:
        """Whether a plan can do this."""
        return bool(terms) and all(
            isinstance(t.operator, TableFilter) and t.operator.is_symmetric
            and (algorithm == "concave" or t.compatibility.attraction(n_labels) is not None)
            and (algorithm != "cccp" or t.weight >= 0)
            for t in terms
        )

    def readable(self) -> Problem:
        """The same problem operator by operator, which can shift as well."""
        problem = make_problem(
            self.unary, self.terms, self.algorithm, self._threads, keep_states=self._keep_states,
            arena=self.arena, fused=False,
        )
        assert isinstance(problem, Problem)
        return problem

    def start(self, marginals: FloatArray | None, *, store: bool) -> State:
        """The state at softmax(-u)."""
        assert marginals is None
        q = self._target(0, store)
        energy, own, _, pairs, row_sums = self._native.step(-1, 0, None, q)
        self._constant = 0.5 * sum(
            c * (total - (0.0 if d is None else float(d.sum(dtype=np.float64))))
            for c, total, d in zip(self._constants, row_sums, self.diagonals, strict=True)
        )
        return self._state(0, q, energy, own, pairs, math.inf)

    def step(self, old: State, shift: float, *, store: bool) -> State:
        """The update from `old`; marginals are kept only if `store` says so."""
        assert shift == 0.0
        if self._keep_states:
            self._check_memory(2 * self._table_bytes + self.unary.nbytes)
        number = old.number + 1 if self._keep_states else 1 - old.number
        q = self._target(number, store)
        energy, own, change, pairs, _ = self._native.step(old.number, number, old.marginals, q)
        return self._state(
            number, q, energy, own, pairs, math.inf if old.marginals is None else change
        )

    def step_back(
        self, state: State, given: FloatArray | None, first: bool, total: FloatArray,
        by_mu: NDArray[np.float64],
    ) -> None:
        """Add b of a state (`crfield.dense.gradient`) to `total` and what it says of mu to `by_mu`.

        given : b, where it does not follow from the state after this one.
        by_mu : (terms, L, L).
        """
        self._native.step_back(state.number - 1, state.stored, given, first, total, by_mu)

    def want_features(self, wanted: Sequence[bool]) -> None:
        """Let steps back sum up the derivatives by the features of these terms."""
        self._native.want_features(list(wanted))

    def feature_gradient(self, index: int) -> FloatArray:
        """The derivative by the features of a term, (N, D), from all steps back since."""
        operator = self.terms[index].operator
        assert isinstance(operator, TableFilter)
        n = len(self.unary)
        direct = np.empty((n, operator.n_features), operator.dtype)
        own = np.empty(n, operator.dtype)
        self._native.feature_gradient(index, direct, own)
        return operator.complete_gradient(direct, own)

    def rounding(self, free_energy: float) -> float:
        """By how much F may seem to rise without having risen."""
        return rounding(self.unary, free_energy)

    def _check_memory(self, n_bytes: float) -> None:
        check_memory(n_bytes, self._purpose, "use wider kernels or tiles")

    def _state(
        self, number: int, q: FloatArray | None, energy: float, own: float, pairs: Sequence[float],
        change: float,
    ) -> State:
        free_energy = energy + 0.5 * sum(pairs) + self._constant
        if self.algorithm != "concave":
            free_energy += 0.5 * own
        return State(q, None, free_energy, change, number=number)

    def _target(self, number: int, store: bool) -> FloatArray | None:
        """Where the marginals of a state go."""
        if self._keep_states:
            return self.arena.like(self.unary)
        if not store and self.algorithm != "parallel":  # which leaves out the old marginals' own
            return None
        while len(self._buffers) <= number:
            self._buffers.append(self.arena.like(self.unary))
        return self._buffers[number]
