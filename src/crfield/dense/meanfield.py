"""Mean-field inference: how it is to be done, and the one descent loop.

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
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crfield._core.resources import thread_count
from crfield._core.validate import (
    FloatArray,
    InputError,
    as_choice,
    as_count,
    as_not_negative,
    as_scalar,
    short_repr,
)
from crfield.dense.filters import FILTERS
from crfield.dense.namespace import Array
from crfield.dense.results import InferenceStatus

Callback = Callable[[int, FloatArray, float], Any]

ALGORITHMS = ("concave", "cccp", "parallel", "sequential")

# The watch lets F rise by this share of |F| + N log L: rounding in sums over millions of terms.
_ROUNDING = {"float32": 1e-6, "float64": 1e-12}
_FIRST_SHIFT = 2.0**-8


@dataclass(frozen=True, repr=False)
class Inference:
    """How marginals are found, for whatever does inference as a part of something larger.

    Parameters
    ----------
    algorithm : "concave" (KK13 3.2), "cccp" (KK13 3.1), "parallel" (KK11, no guarantee) or
        "sequential" (one variable at a time, few variables); None is the model's.
    filter : how kernels are summed, "auto", "lattice" or "exact".
    filter_tol : pairs of variables whose kernel value is below it may be left out of exact sums.
    max_iter : most iterations; None is the model's number.
    tol : stop when no marginal moves by more than this; 0 never stops early.
    threads : native threads, None for all cores.
    """

    algorithm: str | None = None
    filter: str = "auto"
    filter_tol: float = 0.0
    max_iter: int | None = None
    tol: float = 1e-3
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.algorithm is not None:
            as_choice(self.algorithm, "algorithm", ALGORITHMS)
        as_choice(self.filter, "filter", FILTERS)
        if self.max_iter is not None:
            object.__setattr__(self, "max_iter", as_count(self.max_iter, "max_iter", 0))
        filter_tol = as_scalar(self.filter_tol, "filter_tol")
        if not 0.0 <= filter_tol < 1.0:
            raise InputError(
                f"filter_tol must be at least 0 and below 1, got {filter_tol:g}; 0 skips nothing."
            )
        tol = as_not_negative(self.tol, "tol", "0 never stops early")
        object.__setattr__(self, "filter_tol", filter_tol)
        object.__setattr__(self, "tol", tol)
        if self.threads is not None:
            object.__setattr__(self, "threads", thread_count(self.threads))

    def __repr__(self) -> str:
        return short_repr(self)


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


def _read_only(array: FloatArray) -> FloatArray:
    """A view that a callback may look at and keep but not change."""
    view = array.view()
    view.flags.writeable = False
    return view
