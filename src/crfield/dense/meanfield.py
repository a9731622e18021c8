"""Mean-field inference: one descent loop for the parallel algorithms, and the sequential one.

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
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.arena import Arena
from crfield._core.validate import FloatArray, InputError, check_memory
from crfield.dense.compatibility import Compatibility, center
from crfield.dense.filters import KernelOperator
from crfield.dense.observation import GridFeatures
from crfield.dense.results import InferenceStatus

Callback = Callable[[int, FloatArray, float], Any]

ALGORITHMS = ("concave", "cccp", "parallel", "sequential")

# The watch lets F rise by this share of |F| + N log L: rounding in sums over millions of terms.
_ROUNDING = {"float32": 1e-6, "float64": 1e-12}
_FIRST_SHIFT = 2.0**-8


@dataclass(frozen=True)
class Term:
    """One pairwise term of a model on one image: weight mu (x) K, K on scaled features (N, D)."""

    operator: KernelOperator
    compatibility: Compatibility
    weight: float
    features: FloatArray | GridFeatures | None = None

    def dense_features(self) -> FloatArray:
        """The scaled features as an array."""
        assert self.features is not None
        return self.features.dense() if isinstance(self.features, GridFeatures) else self.features


@dataclass(frozen=True)
class Outcome:
    """Marginals (N, L) and the course of the free energy."""

    marginals: FloatArray
    free_energies: NDArray[np.float64]
    n_iter: int
    status: InferenceStatus
    shifts: int


@dataclass(frozen=True)
class State:
    """Marginals and their free energy.

    The arrays belong to the `Problem` and are overwritten two steps later, unless it keeps states.
    A `Plan` knows a state by its number and may not have stored its marginals; a `Problem` keeps
    the pairwise message Psi q, and with the states `filtered`, K^(m) q of each term.
    """

    marginals: FloatArray | None
    message: FloatArray | None
    free_energy: float
    change: float = math.inf
    shift: float = 0.0
    filtered: tuple[FloatArray, ...] = ()
    number: int = 0

    @property
    def stored(self) -> FloatArray:
        """The marginals of a state that has them."""
        assert self.marginals is not None
        return self.marginals


class Problem:
    """F and its update for one image.

    unary : (N, L) costs, each row's smallest near 0 for the sake of float32.
    self_pairs : whether the objective includes k_ii q_i'mu q_i / 2.
    convex_self_pairs : whether the update puts k_ii into its convex part (cccp).
    keep_states : whether every state gets marginals of its own, for going back through them.
    arena : where those come from.
    """

    def __init__(
        self, unary: FloatArray, terms: Sequence[Term], *, self_pairs: bool,
        convex_self_pairs: bool, threads: int, keep_states: bool = False,
        arena: Arena | None = None,
    ) -> None:
        n_labels = unary.shape[1]
        check_memory(
            6.0 * unary.nbytes, f"Inference on {len(unary)} variables with {n_labels} labels",
            "work on a smaller image or on tiles",
        )
        self.unary = unary
        self.terms = terms
        self.diagonals = [None if self_pairs else t.operator.diagonal() for t in terms]
        self.strengths = self.diagonals if convex_self_pairs else [None] * len(terms)
        self._convex_self_pairs = convex_self_pairs
        self._threads = threads
        self._keep_states = keep_states
        self.arena = Arena() if arena is None else arena
        dtype = unary.dtype
        self._mu = [
            (t.weight * t.compatibility.native_values(n_labels)).astype(dtype) for t in terms
        ]
        # mu as the update needs it: the attraction a where mu = -diag(a) up to a constant, which
        # makes the equations of a variable separate, and P mu P for all terms otherwise.
        attractions = [
            t.compatibility.attraction(n_labels) if t.weight >= 0 else None for t in terms
        ]
        self.coupled = coupled = any(a is None for a in attractions)
        self.update_mu = [
            t.weight * (center(t.compatibility.matrix(n_labels)) if coupled or a is None else a)
            for t, a in zip(terms, attractions, strict=True)
        ]
        flat = [np.empty(0), *map(np.ravel, self.update_mu)]
        self._flat_update_mu = np.concatenate(flat).astype(dtype)
        self._filtered = self.arena.like(unary)
        # Two sets of buffers, the state before a step and after it: fresh pages cost more than the
        # arithmetic.
        self._buffers = [self._new_buffers() for _ in range(2)]

    def start(self, marginals: FloatArray | None, *, store: bool = True) -> State:
        """The state at the given marginals, or at softmax(-u); all states are stored."""
        if marginals is None:
            (q, message), (zeros, _) = self._buffers
            zeros.fill(0.0)
            sums = self._solve(zeros, zeros, [], q)
            return self._complete(q, message, sums, 0.0)
        positive = np.where(marginals > 0, marginals, 1.0).astype(np.float64)
        entropy = float((marginals * np.log(positive)).sum(dtype=np.float64))
        linear = _native.dot(marginals, self.unary, self._threads)
        return self._complete(marginals, self._buffers[0][1], (entropy, linear, math.inf), 0.0)

    def step(self, old: State, shift: float, *, store: bool = True) -> State:
        """The update from `old`; `shift` is the extra strength as a share of |K|'s bound."""
        assert old.message is not None
        q, message = self._buffers[old.message is self._buffers[0][1]]
        if self._keep_states:
            q = self.arena.like(q)
        sums = self._solve(old.message, old.stored, self.shifts(shift), q)
        return self._complete(q, message, sums, shift)

    def shifts(self, shift: float) -> list[float]:
        """What is added to each term's self-pair strengths; nothing at all for a plain softmax."""
        if shift == 0.0:
            return [0.0] * len(self.terms) if self._convex_self_pairs else []
        return [shift * t.operator.spectral_bound() for t in self.terms]

    def rounding(self, free_energy: float) -> float:
        """By how much F may seem to rise without having risen."""
        return rounding(self.unary, free_energy)

    def readable(self) -> Problem:
        """Itself."""
        return self

    def _new_buffers(self) -> tuple[FloatArray, FloatArray]:
        return self.arena.like(self.unary), self.arena.like(self.unary)

    def _solve(
        self, message: FloatArray, old: FloatArray, shifts: list[float], out: FloatArray
    ) -> tuple[float, float, float]:
        plain = not shifts
        sums: tuple[float, float, float] = _native.update_marginals(
            self.unary, message, old,
            [] if plain else self.strengths,
            np.array(shifts, self.unary.dtype),
            self._flat_update_mu[:0] if plain else self._flat_update_mu,
            self.coupled and not plain, out, self._threads,
        )
        return sums

    def _complete(
        self, q: FloatArray, message: FloatArray, sums: tuple[float, float, float], shift: float
    ) -> State:
        """The state at q: its message goes to `message`, its entropy and linear term are known."""
        if not self.terms:
            message.fill(0.0)
        kept = []
        for number, term in enumerate(self.terms):
            code, mu, diagonal = (
                term.compatibility.native_code, self._mu[number], self.diagonals[number]
            )
            filtered = self.arena.like(q) if self._keep_states else self._filtered
            term.operator.apply(q, out=filtered)
            kept.append(filtered)
            _native.add_message(
                code, mu, filtered, None, 1.0, number == 0, message, self._threads
            )
            if diagonal is not None:
                _native.add_message(code, mu, q, diagonal, -1.0, False, message, self._threads)
        entropy, linear, change = sums
        free_energy = entropy + linear + 0.5 * _native.dot(q, message, self._threads)
        return State(
            q, message, free_energy, change, shift, tuple(kept) if self._keep_states else ()
        )


def rounding(unary: FloatArray, free_energy: float) -> float:
    """By how much F may seem to rise without having risen."""
    n, n_labels = unary.shape
    scale = abs(free_energy) + n * math.log(max(n_labels, 2))
    return _ROUNDING[unary.dtype.name] * float(scale)


class Descent(Protocol):
    """What the loop needs: a `Problem` or the fused form of one."""

    def start(self, marginals: FloatArray | None, *, store: bool) -> State:
        """The state at the given marginals, or at softmax(-u)."""

    def step(self, old: State, shift: float, *, store: bool) -> State:
        """The update from `old`; a problem that has a `readable` form need not shift."""

    def rounding(self, free_energy: float) -> float:
        """By how much F may seem to rise without having risen."""

    def readable(self) -> Problem:
        """The same operator by operator."""


def run_parallel(
    problem: Descent, *, init: FloatArray | None, max_iter: int, tol: float, guarded: bool,
    callback: Callback | None = None, trace: list[State] | None = None,
) -> Outcome:
    """The descent loop of "concave", "cccp" and "parallel"; `guarded` redoes steps that rise.

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
        ceiling = state.free_energy + problem.rounding(state.free_energy)
        if guarded and not fresh.free_energy <= ceiling:
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
                ceiling = state.free_energy + problem.rounding(state.free_energy)
                fresh = problem.step(state, shift, store=True)
        while guarded and not fresh.free_energy <= ceiling and shift < 1.0:
            # At a share of 1 the shifted kernel is positive semidefinite whatever the kernel is.
            shift = max(2.0 * shift, _FIRST_SHIFT)
            shifts += 1
            fresh = problem.step(state, shift, store=True)
        if guarded and not fresh.free_energy <= ceiling:
            status = InferenceStatus.ROUNDING
            break
        state = fresh
        if trace is not None:
            trace.append(state)
        history.append(state.free_energy)
        if callback is not None and callback(
            iteration, _read_only(state.stored), state.free_energy
        ):
            status = InferenceStatus.CALLBACK
            break
        if tol > 0 and state.change <= tol:
            status = InferenceStatus.CONVERGED
            break
    return Outcome(state.stored, np.array(history), len(history) - 1, status, shifts)


def run_sequential(
    unary: FloatArray, terms: Sequence[Term], *, init: FloatArray | None, max_iter: int, tol: float,
    callback: Callback | None,
) -> Outcome:
    """One variable at a time (KK13 section 2): the textbook algorithm, for small N."""
    n, n_labels = unary.shape
    check_memory(
        8.0 * n * n * len(terms), f"Sequential inference on {n} variables",
        'use algorithm="cccp", which has the same fixed points',
    )
    u = unary.astype(np.float64)
    pairs = []
    for term in terms:
        kernel = term.operator.to_dense().astype(np.float64)
        np.fill_diagonal(kernel, 0.0)
        pairs.append((kernel, term.weight * term.compatibility.matrix(n_labels)))
    q = _softmax(-u) if init is None else init.astype(np.float64)

    def free_energy() -> float:
        entropy = float((q * np.log(np.where(q > 0, q, 1.0))).sum())
        return entropy + float((q * u).sum()) + 0.5 * sum(
            float((q * (kernel @ q @ mu)).sum()) for kernel, mu in pairs
        )

    history = [free_energy()]
    status = InferenceStatus.MAX_ITER
    for iteration in range(1, max_iter + 1):
        change = 0.0
        for i in range(n):
            e = u[i] + sum((kernel[i] @ q) @ mu for kernel, mu in pairs)
            fresh = _softmax(-e[None])[0]
            change = max(change, float(np.abs(fresh - q[i]).max()))
            q[i] = fresh
        history.append(free_energy())
        if callback is not None and callback(
            iteration, _read_only(q.copy()), history[-1]
        ):
            status = InferenceStatus.CALLBACK
            break
        if change <= tol:
            status = InferenceStatus.CONVERGED
            break
    marginals = q.astype(unary.dtype)
    return Outcome(marginals, np.array(history), len(history) - 1, status, 0)


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


def _softmax(x: NDArray[np.float64]) -> NDArray[np.float64]:
    e = np.exp(x - x.max(1, keepdims=True))
    return np.asarray(e / e.sum(1, keepdims=True))
