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
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from crfield._core.validate import FloatArray
from crfield.dense.losses import Labels, Loss, Totals, softmax_jacobian
from crfield.dense.meanfield import Problem, State, Term
from crfield.dense.plan import Plan


@dataclass(frozen=True)
class Gradients:
    """dL by what the model makes of its parameters on one image.

    unary : (N, L).
    compatibility : for each term dL / d(w mu), (L, L), entries taken as independent.
    features : for each term dL / d(scaled features), (N, D), or None where not asked for.
    """

    unary: FloatArray
    compatibility: Sequence[FloatArray]
    features: Sequence[FloatArray | None]


def backpropagate_fused(
    plan: Plan, trace: Sequence[State], loss: Loss, truth: Labels, totals: Totals, *,
    widths: Sequence[bool],
) -> Gradients:
    """`backpropagate` through the softmax updates of a plan."""
    n_labels = plan.unary.shape[1]
    unary = plan.arena.like(plan.unary)
    compatibility = np.zeros((len(plan.terms), n_labels, n_labels))
    b: FloatArray | None = loss.softmax_gradient(trace[-1].stored, truth, totals)
    plan.want_features(widths)
    for state in reversed(trace):
        plan.step_back(state, b, state is trace[-1], unary, compatibility)
        b = None
    moved = len(trace) > 1
    features = [plan.feature_gradient(m) if w and moved else None for m, w in enumerate(widths)]
    return Gradients(unary, list(compatibility), features)


def backpropagate(
    problem: Problem,
    trace: Sequence[State],
    loss: Loss,
    truth: Labels,
    totals: Totals,
    *,
    widths: Sequence[bool],
    from_unary: bool = True,
) -> Gradients:
    """Go back through the states of `trace` (kept by `problem`).

    widths : for each term, whether the gradient by its features is wanted.
    from_unary : whether q^(0) is softmax(-u), False if it was given.
    """
    n_labels = problem.unary.shape[1]
    arena = problem.arena
    unary = np.zeros_like(problem.unary)
    compatibility = [np.zeros((n_labels, n_labels)) for _ in problem.terms]
    by_features = [
        t.operator.start_gradient() if wanted else None
        for t, wanted in zip(problem.terms, widths, strict=True)
    ]
    last = trace[-1]
    is_softmax = len(trace) == 1 or not problem.shifts(last.shift)
    g: FloatArray | None = None  # dL/dq of the state at hand; the last one may skip it
    b = loss.softmax_gradient(last.stored, truth, totals) if is_softmax else None
    pushed, spare = arena.like(unary), arena.like(unary)
    for t in range(len(trace) - 1, 0, -1):
        old, new = trace[t - 1], trace[t]
        shifts = problem.shifts(new.shift)
        if b is None:
            if g is None:
                g = loss.gradient(new.stored, truth, totals)
            b = apply_jacobian(problem, new.stored, g, shifts)
        unary += b
        g = arena.like(b)
        g.fill(0.0)
        for m, term in enumerate(problem.terms):
            _push(b, term, pushed)
            gradient = by_features[m]
            if gradient is None:
                term.operator.apply_transpose(pushed, out=spare)
            else:
                gradient.add(pushed, old.stored, old.filtered[m], spare)
            g += spare
            compatibility[m] += b.T @ old.filtered[m]
            diagonal, strength = problem.diagonals[m], problem.strengths[m]
            inside = _self_strength(strength, shifts[m] if shifts else 0.0, b)  # with q_new
            beside = inside  # with q_old, in e beside K q_old
            if diagonal is not None:
                beside = -diagonal[:, None] if inside is None else inside - diagonal[:, None]
            if beside is not None:
                g += beside * pushed
                compatibility[m] += (beside * b).T @ old.stored
            if inside is not None:
                compatibility[m] -= (inside * b).T @ new.stored
            if gradient is not None and diagonal is not None:
                # k_ii stands in Psi with q_old, and in s as well with q_old - q_new.
                owner = new.stored if strength is not None else old.stored
                gradient.add_diagonal(-np.einsum("il,il->i", pushed, owner))
        b = None
    if from_unary:
        if b is None:
            assert g is not None
            b = softmax_jacobian(trace[0].stored, g)
        unary += b
    moved = len(trace) > 1
    features = [gradient.total() if gradient and moved else None for gradient in by_features]
    return Gradients(unary, compatibility, features)


def _push(b: FloatArray, term: Term, out: FloatArray) -> None:
    """w b mu; rows of b sum to 0, so that mu = -diag(a) up to a constant needs no product."""
    n_labels = b.shape[1]
    attraction = term.compatibility.attraction(n_labels)
    if attraction is not None:
        np.multiply(b, (-term.weight * attraction).astype(b.dtype), out=out)
    else:
        mu = (term.weight * term.compatibility.matrix(n_labels)).astype(b.dtype)
        np.matmul(b, mu, out=out)


def _self_strength(
    strength: FloatArray | None, shift: float, like: FloatArray
) -> FloatArray | None:
    """s as a column (N, 1), or None where it is zero."""
    if strength is None and shift == 0.0:
        return None
    column = np.full((len(like), 1), shift, like.dtype)
    return column if strength is None else column + strength[:, None]


def apply_jacobian(
    problem: Problem, q: FloatArray, g: FloatArray, shifts: Sequence[float]
) -> FloatArray:
    """A g, the gradient by e of an update that ended at q; no shifts mean a softmax."""
    if not shifts:
        return softmax_jacobian(q, g)
    strengths = [
        np.broadcast_to(shift + (0.0 if s is None else s), (len(q),))
        for s, shift in zip(problem.strengths, shifts, strict=True)
    ]
    if not problem.coupled:
        alpha = np.zeros_like(q)
        for strength, attraction in zip(strengths, problem.update_mu, strict=True):
            alpha += strength[:, None] * attraction
        h = q / (1.0 + alpha * q)
        return np.asarray(h * ((h * g).sum(1, keepdims=True) / h.sum(1, keepdims=True) - g))
    # H^-1 = D (I - D M D)^-1 D with D = diag(sqrt q), which stays finite where q vanishes.
    root = np.sqrt(q)
    matrices = sum(
        s[:, None, None] * mu for s, mu in zip(strengths, problem.update_mu, strict=True)
    )
    inner = np.eye(q.shape[1]) - root[:, :, None] * matrices * root[:, None, :]
    right = np.stack([root * g, root], axis=-1)
    solved = root[:, :, None] * np.linalg.solve(inner, right)
    with_g, with_one = solved[..., 0], solved[..., 1]
    level = with_g.sum(1, keepdims=True) / with_one.sum(1, keepdims=True)
    return np.asarray(with_one * level - with_g, dtype=q.dtype)
