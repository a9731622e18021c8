"""The gradient of a loss over marginals, back through every iteration (KK13 Algorithm 1).

With g^(t) = dL/dq^(t) and A^(t) = dq^(t)/de^(t), b^(t) = A^(t) g^(t) is the gradient with respect
to the energies e^(t) of iteration t, and

    dL = sum_t b^(t) . (du + d(Psi) q^(t-1) + sum_m d(s^(m) mu^(m)) (q^(t-1) - q^(t))),
    g^(t-1) = (Psi + sum_m s^(m) mu^(m))' b^(t),

in the notation of `crfield.dense.meanfield`: Psi leaves out self-pairs where the objective does, s
is the self-pair strength in the convex part of the update. The start q^(0) = softmax(-u) adds its
own b^(0). The shift of the safeguard is held fixed.

    A = qq' - diag(q)                                             softmax updates (KK13 eq. 13)
    A = -(H^-1 - H^-1 11' H^-1 / 1'H^-1 1), H = diag(1/q) - M     cccp, M = sum_m s^(m) mu^(m)

What comes in and what goes from one iteration to the one before is h = q g, the gradient by log q:
with it no A divides by a marginal, which may be 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from crfield.dense.meanfield import State
from crfield.dense.namespace import Array, library_of, row_dots, row_sums, zeros
from crfield.dense.problem import FusedProblem, NativeProblem, Problem

# Steps back at a fixed point: until b is this small beside the first one, at most so many.
_FIXED_TOL = {4: 1e-6, 8: 1e-12}
_FIXED_STEPS = 500
_FIXED_GROWTH, _FIXED_ENOUGH = 1e3, 1e-2  # where it is given up, and what will still do


@dataclass
class Gradients:
    """dL by what the model makes of its parameters on one image, or on a batch.

    unary : (N, L).
    compatibility : for each term dL / d(w mu), (L, L), entries taken as independent.
    features : for each term dL / d(scaled features), (N, D), or None where not asked for.
    """

    unary: Array
    compatibility: Sequence[Array]
    features: Sequence[Array | None]


class WayBack(Protocol):
    """What the loop of `go_back` needs: it adds up what b says of everything."""

    def step(self, b: Array, old: State, new: State) -> Array:
        """Add what b^(t) of `new` says; b^(t-1) of `old`, None where it is known elsewhere."""

    def finish(self, b: Array, start: State) -> None:
        """Add what b^(0) of a start softmax(-u) says of the unary."""


def go_back(back: WayBack, trace: Sequence[State], b: Array, *, from_unary: bool = True) -> None:
    """Go from b of the last state to the start, the one loop of the way back."""
    for t in range(len(trace) - 1, 0, -1):
        b = back.step(b, trace[t - 1], trace[t])
    if from_unary:
        back.finish(b, trace[0])


def backpropagate(
    problem: Problem | FusedProblem, trace: Sequence[State], by_log: Array, *,
    widths: Sequence[bool], from_unary: bool = True,
) -> Gradients:
    """Go back through the states of `trace` (kept by `problem`).

    by_log : q dL/dq (N, L) at the last marginals, the gradient by their logarithms.
    widths : for each term, whether the gradient by its features is wanted.
    from_unary : whether q^(0) is softmax(-u), False if it was given.
    """
    widths = [w and len(trace) > 1 for w in widths]
    if isinstance(problem, FusedProblem):
        b = softmax_jacobian(trace[-1].marginals, by_log)
        fused = _FusedBack(problem, widths, trace[-1])
        go_back(fused, trace, b)
        return fused.total()
    back = _ReadableBack(problem, widths)
    b = apply_jacobian(problem, trace[-1], by_log)
    go_back(back, trace, b, from_unary=from_unary)
    return back.total()


def backpropagate_fixed_point(
    problem: Problem, state: State, by_log: Array, *, widths: Sequence[bool]
) -> Gradients:
    """The gradient where further updates would change nothing, v = B (g + Psi v).

    state : the last one, by an update; the others as for `backpropagate`.
    """
    back = _ReadableBack(problem, widths)
    b = apply_jacobian(problem, state, by_log)
    largest = left = float(abs(b).max()) if len(b) else 0.0
    for _ in range(_FIXED_STEPS):
        b = back.step(b, state, state)
        left = float(abs(b).max()) if len(b) else 0.0
        if left <= _FIXED_TOL[b.dtype.itemsize] * largest:
            break
        if not left <= _FIXED_GROWTH * largest:  # True for NaN as well
            raise _not_settled()
    if left > _FIXED_ENOUGH * largest:
        raise _not_settled()
    return back.total()


def _not_settled() -> RuntimeError:
    return RuntimeError(
        "the implicit gradient does not settle: inference has not reached a fixed point; use more "
        'iterations, smaller weights or gradient="unrolled"'
    )


class _ReadableBack:
    """The way back operator by operator, on arrays or tensors."""

    def __init__(self, problem: Problem, widths: Sequence[bool]) -> None:
        self._problem = problem
        n_labels = problem.unary.shape[1]
        self._unary = library_of(problem.unary).zeros_like(problem.unary)
        self._by_mu = [zeros(problem.unary, n_labels, n_labels) for _ in problem.terms]
        self._features = [
            term.operator.start_gradient() if wanted else None
            for term, wanted in zip(problem.terms, widths, strict=True)
        ]
        self._sum, self._part, self._spare = (problem.buffer() for _ in range(3))

    def step(self, b: Array, old: State, new: State) -> Array:
        self._unary += b
        if not self._by_mu:
            return library_of(b).zeros_like(b)
        g = self._through_term(0, b, old, new, self._sum)
        for m in range(1, len(self._by_mu)):
            g += self._through_term(m, b, old, new, self._part)
        if self._problem.algorithm != "concave" or new.shift:
            self._add_self_pairs(b, old, new, g)
        g *= old.marginals
        return apply_jacobian(self._problem, old, g)

    def finish(self, b: Array, start: State) -> None:
        self._unary += b

    def total(self) -> Gradients:
        return Gradients(
            self._unary, self._by_mu, [None if f is None else f.total() for f in self._features]
        )

    def _through_term(
        self, m: int, b: Array, old: State, new: State, out: Array | None
    ) -> Array:
        """K' b mu of a term, adding up what b K q_old says of its mu and features."""
        problem, gradient = self._problem, self._features[m]
        operator = problem.terms[m].operator
        if gradient is None:
            filtered = operator.apply_transpose(b, out=self._spare)
            self._by_mu[m] += filtered.T @ old.marginals
            return problem.times_mu(m, filtered, out=out)
        pushed = problem.times_mu(m, b, out=self._spare)
        filtered = old.filtered[m] if old.filtered else operator.apply(old.marginals)
        self._by_mu[m] += b.T @ filtered
        if problem.diagonals[m] is not None:
            # k_ii stands in Psi with q_old, and in s as well with q_old - q_new.
            owner = new.marginals if problem.algorithm == "cccp" else old.marginals
            gradient.add_diagonal(-row_dots(pushed, owner))
        return gradient.add(pushed, old.marginals, filtered, out=out)

    def _add_self_pairs(self, b: Array, old: State, new: State, g: Array) -> None:
        """Add to dL/dq_old and by mu what stands in e beside mu K q_old, and with s q_new."""
        problem = self._problem
        assert new.shift is not None
        for m, by_mu in enumerate(self._by_mu):
            beside = problem.beside(m, new.shift)
            if beside is not None:
                own = beside * b
                by_mu += own.T @ old.marginals
                g += problem.times_mu(m, own)
            if not problem.is_softmax(new.shift):
                by_mu -= (problem.inside(m, new.shift) * b).T @ new.marginals


class _FusedBack:
    """The way back through the softmax updates of a fused problem, whose core keeps b."""

    def __init__(self, problem: FusedProblem, widths: Sequence[bool], last: State) -> None:
        n_labels = problem.unary.shape[1]
        self._problem, self._widths, self._last = problem, widths, last
        self._unary = problem.buffer()
        self._by_mu = np.zeros((len(problem.terms), n_labels, n_labels))
        problem.want_features(widths)

    def step(self, b: Array, old: State, new: State) -> None:
        self._problem.step_back(new, b, new is self._last, self._unary, self._by_mu)

    def finish(self, b: Array, start: State) -> None:
        self._problem.step_back(start, b, start is self._last, self._unary, self._by_mu)

    def total(self) -> Gradients:
        features = [
            self._problem.feature_gradient(m) if w else None for m, w in enumerate(self._widths)
        ]
        return Gradients(self._unary, list(self._by_mu), features)


def softmax_jacobian(q: Array, by_log: Array) -> Array:
    """(qq' - diag(q)) g by rows (KK13 eq. 13), from h = q g (N, L)."""
    b = q * row_sums(by_log)[:, None]
    b -= by_log
    return b


def apply_jacobian(problem: Problem, state: State, by_log: Array) -> Array:
    """A g (N, L), the gradient by the energies of the update that led to a state, from h = q g."""
    q = state.marginals
    if state.shift is None or problem.is_softmax(state.shift):
        return softmax_jacobian(q, by_log)
    if not problem.coupled:
        share = 1.0 / (1.0 + problem.alpha(state.shift) * q)
        h, part = q * share, by_log * share
        return h * (row_sums(part) / row_sums(h))[:, None] - part
    # H^-1 g = (I - diag(q) M)^-1 h, which stays finite where q vanishes.
    assert isinstance(problem, NativeProblem)
    matrices = sum(
        np.reshape(problem.inside(m, state.shift), (-1, 1, 1)) * mu
        for m, mu in enumerate(problem.update_mu)
    )
    inner = np.eye(q.shape[1]) - q[:, :, None] * matrices
    solved = np.linalg.solve(inner, np.stack([by_log, q], axis=-1))
    with_g, with_one = solved[..., 0], solved[..., 1]
    level = with_g.sum(1, keepdims=True) / with_one.sum(1, keepdims=True)
    return np.asarray(with_one * level - with_g, dtype=q.dtype)
