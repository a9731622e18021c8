"""Mean-field inference: the one descent loop.

The objective over marginals q (N, L) is

    F(q) = q'log q + q'u + 1/2 q' Psi q,    Psi = sum_m K_obj^(m) (x) mu^(m),

with K_obj = K, self-pairs included, for "concave" (KK13 eq. 9) and K - diag(k) for the others (KK13
eq. 4 without log Z). With e = u + Psi q_old + sum_m s^(m) mu^(m) q_old each parallel update solves

    log q_i - sum_m s_i^(m) mu^(m) q_i + lambda + e_i = 0,    1'q_i = 1,

where s is the self-pair strength put into the convex part: 0 for "concave" (a softmax, KK13 eq. 10)
and "parallel" (KK11 eq. 6), k_ii for "cccp" (KK13 eq. 8). F falls whenever K_obj + diag(s) is
positive semidefinite and mu negative semidefinite. A kernel that is not quite positive is handled
by watching: F(q) comes out of the next iteration for the price of a dot product, and a step that
raises it is redone with a larger s until it does not.

The updates themselves come from a `Descent`: `crfield.dense.problem` has those on arrays,
`crfield.nn` those on a GPU.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray, InputError
from crfield.dense.compatibility import center
from crfield.dense.namespace import Array
from crfield.dense.pairwise import Term
from crfield.dense.results import InferenceStatus

Callback = Callable[[int, FloatArray, float], Any]

# The watch lets F rise by this share of |F| + N log L: rounding in sums over millions of terms.
_ROUNDING = {"float32": 1e-6, "float64": 1e-12}
_FIRST_SHIFT = 2.0**-8


@dataclass(frozen=True)
class Outcome:
    """Marginals (N, L) and the course of the free energy."""

    marginals: Array
    free_energies: NDArray[np.float64]
    n_iter: int
    status: InferenceStatus
    shifts: int


@dataclass(eq=False)
class State:
    """Marginals, and what is known of them.

    The arrays belong to whoever made the state and are overwritten two steps later, unless states
    are kept.

    marginals : (N, L), or None where a fused update did not store them.
    free_energy : F, NaN where nobody watches it.
    change : the most that a marginal has moved.
    shift : the share of |K|'s bound that was added to s in the update; None for a start.
    message : Psi q.
    filtered : K^(m) q of each term, or the tables from which it is sliced.
    slot : where a fused form keeps what it made of the marginals.
    """

    marginals: Array
    free_energy: float = math.nan
    change: float = math.inf
    shift: float | None = None
    message: Array | None = None
    filtered: tuple[Array, ...] = ()
    slot: int = 0


class Descent(Protocol):
    """What the loop needs: the updates of one image, or of a batch."""

    unary: Array

    def start(self, marginals: Array | None, *, store: bool) -> State:
        """The state at the given marginals, or at softmax(-u)."""

    def step(self, old: State, shift: float, *, store: bool) -> State:
        """The update from `old`; a form that has another `readable` one need not shift."""

    def readable(self) -> Descent:
        """The same operator by operator, or itself."""


def run_parallel(
    problem: Descent, *, init: Array | None = None, max_iter: int, tol: float = 0.0,
    guarded: bool = False, callback: Callback | None = None, trace: list[State] | None = None,
) -> Outcome:
    """The descent loop; `guarded` redoes steps that rise.

    `trace` collects the accepted states, the start included.
    """
    # Marginals are looked at after an iteration only to tell the change and by the callback.
    store = tol > 0 or callback is not None
    state = problem.start(init, store=store or max_iter == 0)
    if trace is not None:
        trace.append(state)
    history = [state.free_energy]
    shift, shifts = 0.0, 0
    status = InferenceStatus.MAX_ITER
    for iteration in range(1, max_iter + 1):
        fresh = problem.step(state, shift, store=store or iteration == max_iter)
        if guarded and not fresh.free_energy <= _ceiling(problem, state):
            readable = problem.readable()  # which can shift
            if state.marginals is None:
                if trace is not None:
                    trace.clear()
                return run_parallel(
                    readable, init=init, max_iter=max_iter, tol=tol, guarded=guarded, trace=trace
                )
            if readable is not problem:  # go on from here: the callback has seen what came before
                problem = readable
                state = problem.start(state.marginals, store=True)
                fresh = problem.step(state, shift, store=True)
            ceiling = _ceiling(problem, state)
            while not fresh.free_energy <= ceiling and shift < 1.0:
                # At a share of 1 the shifted kernel is positive semidefinite whatever it was.
                shift = max(2.0 * shift, _FIRST_SHIFT)
                shifts += 1
                fresh = problem.step(state, shift, store=True)
            if not fresh.free_energy <= ceiling:
                status = InferenceStatus.ROUNDING
                break
        state = fresh
        if trace is not None:
            trace.append(state)
        history.append(state.free_energy)
        if callback is not None and callback(
            iteration, _read_only(state.marginals), state.free_energy
        ):
            status = InferenceStatus.CALLBACK
            break
        if tol > 0 and state.change <= tol:
            status = InferenceStatus.CONVERGED
            break
    return Outcome(state.marginals, np.array(history), len(history) - 1, status, shifts)


def _ceiling(problem: Descent, state: State) -> float:
    """The F beyond which the next one has truly risen."""
    n, n_labels = problem.unary.shape
    scale = abs(state.free_energy) + n * math.log(max(n_labels, 2))
    return state.free_energy + _ROUNDING[problem.unary.dtype.name] * float(scale)


def check_guarantee(terms: Sequence[Term], algorithm: str, n_labels: int, check: bool) -> bool:
    """Whether descent is guaranteed; refuses models for which it cannot be, unless told not to.

    "concave" and "cccp" need symmetric kernels and mu negative semidefinite up to a constant,
    "sequential" symmetric kernels; "parallel" promises nothing.
    """
    if algorithm == "parallel":
        return False
    for number, term in enumerate(terms):
        problem = None
        if not term.operator.is_symmetric:
            problem = (
                "its kernel's normalization must be 'symmetric' or 'none', got one that makes the "
                "kernel unsymmetric"
            )
        elif algorithm != "sequential" and not _is_concave(term, n_labels):
            worst = max(
                term.weight * e
                for e in np.linalg.eigvalsh(center(term.compatibility.matrix(n_labels)))
            )
            problem = (
                "its compatibility must be negative semidefinite up to a constant (attractive), "
                f"got largest eigenvalue {worst:.3g}"
            )
            if algorithm == "cccp" and not check:
                raise InputError(
                    f"term {number} cannot be used with 'cccp': {problem}; "
                    "use 'concave' or 'parallel' with check=False, or compatibility.project()."
                )
        if problem and check:
            raise InputError(
                f"term {number} has no convergence guarantee with {algorithm!r}: {problem}; change "
                "it (compatibility.project() helps), use algorithm='parallel', or pass check=False."
            )
        if problem:
            return False
    return True


def _is_concave(term: Term, n_labels: int) -> bool:
    if term.weight >= 0:
        return term.compatibility.is_concave(n_labels) or term.weight == 0
    mu = center(term.compatibility.matrix(n_labels))
    return bool(np.linalg.eigvalsh(mu)[0] >= -1e-9 * n_labels * max(float(np.abs(mu).max()), 1e-30))


def _read_only(array: FloatArray) -> FloatArray:
    """A view that a callback may look at and keep but not change."""
    view = array.view()
    view.flags.writeable = False
    return view
