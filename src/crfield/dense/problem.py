"""A model on one image: its terms, when descent is guaranteed, and the updates of mean field.

`make_problem` alone chooses the form of the updates. All of them can be run by
`crfield.dense.meanfield.run_parallel`, whose notation they share.

    Problem        operator by operator, written once for arrays and tensors
    NativeProblem  the same on arrays, with the arithmetic in the compiled core, and with F
    FusedProblem   one pass over the variables for each iteration, in the compiled core
    Sweeps         one variable after the other (KK13 section 2)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.resources import Arena, thread_count, without_locks
from crfield._core.validate import FloatArray, InputError, check_memory
from crfield.dense.compatibility import (
    center,
    is_concave,
    largest_eigenvalue,
    matrix_of,
)
from crfield.dense.filters import KeptFilters, KernelOperator, TableFilter
from crfield.dense.filters.base import GridFeatures
from crfield.dense.filters.compiled import as_features, choose_filter
from crfield.dense.kernels import Kernel
from crfield.dense.meanfield import Inference, State
from crfield.dense.namespace import Array, cast, library_of, logsumexp, softmax
from crfield.dense.observation import Observation

if TYPE_CHECKING:
    from crfield.dense.model import Pairwise

_SMALL_COST = 64.0  # float32 numbers up to here are exact to 4e-6
_UPDATES = {"concave": 0, "cccp": 1, "parallel": 2}


@dataclass(frozen=True)
class Term:
    """A pairwise term mu (x) K on one image, or on a batch of tensors.

    numbers : mu, with the term's weight in it, in a form that `matrix_of` takes; tensors with fewer
        than two dimensions must not be negative.
    features : the scaled features that K was made from.
    """

    operator: KernelOperator
    numbers: Array
    features: FloatArray | GridFeatures | None = None

    def dense_features(self) -> FloatArray:
        """The scaled features as an array."""
        assert self.features is not None
        return self.features.dense() if isinstance(self.features, GridFeatures) else self.features

    def matrix(self, n_labels: int) -> Array:
        """mu, (L, L)."""
        return matrix_of(self.numbers, n_labels)

    def diagonal_form(self, n_labels: int) -> Array | None:
        """a (L,) with mu = -diag(a) up to a constant, or None if there is no such a."""
        if self.numbers.ndim == 2:
            return None
        return library_of(self.numbers).broadcast_to(self.numbers, (n_labels,))

    def attraction(self, n_labels: int) -> Array | None:
        """`diagonal_form`, unless a number of it is negative."""
        a = self.diagonal_form(n_labels)
        # Looking at a tensor would make a GPU wait.
        return None if isinstance(a, np.ndarray) and (a < 0).any() else a


def build_terms(
    pairs: Iterable[Pairwise], observation: Observation, dtype: np.dtype[Any],
    inference: Inference, kept: KeptFilters | None = None,
) -> list[Term]:
    """The terms on one observation: scaled features, and operators on them.

    dtype : of the work; inference says how kernels are summed; kept, if given, holds filters from
        one call to the next.
    """

    def build(kernel: Kernel) -> tuple[FloatArray | GridFeatures, KernelOperator]:
        scaled: FloatArray | GridFeatures | None = kernel.grid_features(observation, dtype)
        if scaled is None:
            scaled = as_features(
                np.ascontiguousarray(kernel.scaled_features(observation), dtype=dtype)
            )
        return scaled, choose_filter(
            scaled, kernel, inference.filter, inference.filter_tol,
            thread_count(inference.threads), observation.n_whole,
        )

    settings = (dtype.str, inference.filter, inference.filter_tol, inference.threads)
    terms = []
    for pair in pairs:
        scaled, operator = (
            build(pair.kernel) if kept is None
            else kept.recall(observation, pair.kernel, settings, build)
        )
        terms.append(Term(operator, pair.weight * pair.compatibility.numbers, scaled))
    return terms


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
        elif algorithm != "sequential" and not is_concave(term.numbers, n_labels):
            problem = (
                "its compatibility must be negative semidefinite up to a constant (attractive), "
                f"got largest eigenvalue {largest_eigenvalue(term.matrix(n_labels)):.3g}"
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


def make_problem(
    unary: FloatArray, terms: Sequence[Term], algorithm: str, threads: int, *,
    keep_states: bool = False, watched: bool = True, arena: Arena | None = None,
    fused: bool = True,
) -> NativeProblem | FusedProblem | Sweeps:
    """Inference on one image: fused where that is possible, operator by operator otherwise.

    keep_states : whether every state gets marginals of its own, for going back through them; only
        softmax updates have a fused way back.
    watched : whether the free energies are wanted.
    arena : where kept arrays come from.
    """
    if algorithm == "sequential":
        return Sweeps(unary, terms)
    fused = fused and (algorithm == "concave" or not keep_states)
    if fused and FusedProblem.covers(terms, algorithm, unary.shape[1]):
        return FusedProblem(unary, terms, algorithm, threads, keep_states=keep_states, arena=arena)
    return NativeProblem(
        unary, terms, algorithm, threads, keep_states=keep_states, watched=watched, arena=arena
    )


def center_costs(
    costs: FloatArray, threads: int, most: float | None = None
) -> tuple[FloatArray, float]:
    """Costs (N, L) whose numbers are small where labels are likely, and the sum of what was taken
    off: float32 has few digits to spare for a constant that changes nothing.

    most : a bound on their magnitude, if one is known.
    """
    if (_native.largest(costs, threads) if most is None else most) <= _SMALL_COST:
        return costs, 0.0
    centered = np.empty_like(costs)
    return centered, _native.center_rows(costs, centered, threads)


@without_locks
class Problem:
    """The update operator by operator, on arrays or tensors; F is not computed.

    unary : (N, L) costs, each row's smallest near 0 for the sake of float32.
    algorithm : "concave", "cccp" or "parallel".
    """

    def __init__(self, unary: Array, terms: Sequence[Term], algorithm: str) -> None:
        self.unary = unary
        self.terms = terms
        self.algorithm = algorithm
        without_self = algorithm != "concave"
        self.diagonals = [t.operator.diagonal() if without_self else None for t in terms]

    @functools.cached_property
    def attractions(self) -> list[Array | None]:
        """Of each term a where mu = -diag(a) up to a constant, which makes the equations of a
        variable separate, and None otherwise.
        """
        found = [t.attraction(self.unary.shape[1]) for t in self.terms]
        return [None if a is None else cast(a, self.unary) for a in found]

    @functools.cached_property
    def matrices(self) -> list[Array | None]:
        """mu (L, L) of the terms without an attraction."""
        n_labels = self.unary.shape[1]
        return [
            cast(t.matrix(n_labels), self.unary) if a is None else None
            for t, a in zip(self.terms, self.attractions, strict=True)
        ]

    @property
    def coupled(self) -> bool:
        """Whether the equations of a variable do not separate."""
        return any(a is None for a in self.attractions)

    def times_mu(self, m: int, x: Array, out: Array | None = None) -> Array:
        """x mu of a term for x (N, L), up to a constant in each row, which no update sees."""
        attraction, library = self.attractions[m], library_of(x)
        if attraction is None:
            return library.matmul(x, self.matrices[m], out=out)
        return library.multiply(x, -attraction, out=out)

    def start(self, marginals: Array | None, *, store: bool = True) -> State:
        """The state at the given marginals, or at softmax(-u); all states are stored."""
        return State(softmax(-self.unary) if marginals is None else marginals)

    def step(self, old: State, shift: float, *, store: bool = True) -> State:
        """The update from `old`; `shift` is the extra strength as a share of |K|'s bound."""
        energy = self.unary
        for m in range(len(self.terms)):
            message = self.filtered(old, m)
            beside = self.beside(m, shift)
            if beside is not None:
                message = message + beside * old.marginals
            energy = energy + self.times_mu(m, message)
        if self.is_softmax(shift):
            return State(softmax(-energy), shift=shift)
        return State(solve_self_pairs(energy, self.alpha(shift)), shift=shift)

    def readable(self) -> Problem:
        """Itself."""
        return self

    def filtered(self, state: State, m: int) -> Array:
        """K^(m) q, kept with the state or computed."""
        if state.filtered:
            return state.filtered[m]
        return self.terms[m].operator.apply(state.marginals)

    def beside(self, m: int, shift: float) -> Array | float | None:
        """The factor of mu q_old that e has beside mu K q_old: a number, (N, 1), or None for 0."""
        extra = self._extra(m, shift)
        diagonal = self.diagonals[m]
        # Psi leaves the self-pairs out, and cccp's s brings them back.
        if diagonal is None or self.algorithm == "cccp":
            return extra or None
        return extra - diagonal[:, None]

    def is_softmax(self, shift: float | None) -> bool:
        """Whether an update with this shift is a softmax; None stands for the start softmax(-u)."""
        return not self.terms or shift is None or (shift == 0.0 and self.algorithm != "cccp")

    def inside(self, m: int, shift: float) -> Array | float:
        """s of a term, (N, 1) or a number, in an update that is no softmax."""
        extra, diagonal = self._extra(m, shift), self.diagonals[m]
        return extra if diagonal is None else extra + diagonal[:, None]

    def alpha(self, shift: float) -> Array:
        """sum_m s^(m) a^(m), (N, L) or what broadcasts to it, in an update that is no softmax."""
        parts: list[Array] = [
            a * self.inside(m, shift) for m, a in enumerate(self.attractions) if a is not None
        ]
        return sum(parts[1:], parts[0])

    def buffer(self) -> Array | None:
        """Room for numbers such as the unary's, if it is to be had for less than a fresh array."""
        return None

    def _extra(self, m: int, shift: float) -> float:
        return shift * self.terms[m].operator.spectral_bound() if shift else 0.0


@without_locks
class NativeProblem(Problem):
    """F and its update for one image on arrays.

    watched : whether states know their free energy, which takes K q of the last one as well.
    keep_states : whether every state gets marginals of its own, for going back through them.
    arena : where those come from.
    """

    def __init__(
        self, unary: FloatArray, terms: Sequence[Term], algorithm: str, threads: int, *,
        keep_states: bool = False, watched: bool = True, arena: Arena | None = None,
    ) -> None:
        n_labels = unary.shape[1]
        check_memory(
            6.0 * unary.nbytes, f"Inference on {len(unary)} variables with {n_labels} labels",
            "work on a smaller image or on tiles",
        )
        super().__init__(unary, terms, algorithm)
        self._threads = threads
        self._keep_states = keep_states
        self._watched = watched
        self._like: Callable[[FloatArray], FloatArray] = (
            np.empty_like if arena is None else arena.like
        )
        self._mu = [
            np.ravel(-t.numbers if t.numbers.ndim == 1 else t.numbers).astype(unary.dtype)
            for t in terms
        ]
        # Two sets of buffers, the state before a step and after it: fresh pages cost more than the
        # arithmetic.
        self._filtered = self._like(unary)
        self._marginals = [] if keep_states else [self._like(unary) for _ in range(2)]
        self._messages = [self._like(unary) for _ in range(2)]

    @functools.cached_property
    def update_mu(self) -> list[FloatArray]:
        """mu as the update needs it: a, and P mu P for all terms where one of them has none."""
        if not self.coupled:
            return [np.asarray(a) for a in self.attractions]
        n_labels = self.unary.shape[1]
        return [center(t.matrix(n_labels)) for t in self.terms]

    def start(self, marginals: FloatArray | None, *, store: bool = True) -> State:
        """The state at the given marginals, or at softmax(-u); all states are stored."""
        if marginals is None:
            zeros = self._messages[0]
            zeros.fill(0.0)
            q = self._like(zeros) if self._keep_states else self._marginals[0]
            return self._complete(q, self._solve(zeros, zeros, [], q), None, self._messages[1])
        sums = (0.0, 0.0, math.inf)
        if self._watched:
            positive = np.where(marginals > 0, marginals, 1.0).astype(np.float64)
            entropy = float((marginals * np.log(positive)).sum(dtype=np.float64))
            sums = (entropy, _native.dot(marginals, self.unary, self._threads), math.inf)
        return self._complete(marginals, sums, None, self._messages[0])

    def step(self, old: State, shift: float, *, store: bool = True) -> State:
        """The update from `old`; `shift` is the extra strength as a share of |K|'s bound."""
        current, other = self._messages
        if old.message is current:
            current, other = other, current
        if old.message is None:
            self.send(old, other)
        q = self._like(current) if self._keep_states else (
            self._marginals[old.marginals is self._marginals[0]]
        )
        extras: list[float] = []
        if not self.is_softmax(shift):
            extras = [self._extra(m, shift) for m in range(len(self.terms))]
        sums = self._solve(other, old.marginals, extras, q)
        return self._complete(q, sums, shift, current)

    def send(self, state: State, message: FloatArray) -> None:
        """Psi q of a state, written to `message`."""
        if not self.terms:
            message.fill(0.0)
        q = state.marginals
        kept = []
        for m, term in enumerate(self.terms):
            code, mu, diagonal = term.numbers.ndim, self._mu[m], self.diagonals[m]
            filtered = self._like(q) if self._keep_states else self._filtered
            term.operator.apply(q, out=filtered)
            kept.append(filtered)
            _native.add_message(code, mu, filtered, None, 1.0, m == 0, message, self._threads)
            if diagonal is not None:
                _native.add_message(code, mu, q, diagonal, -1.0, False, message, self._threads)
        if self._keep_states:
            state.filtered = tuple(kept)

    def buffer(self) -> FloatArray:
        """Room for numbers such as the unary's."""
        return self._like(self.unary)

    def _solve(
        self, message: FloatArray, old: FloatArray, extras: list[float], out: FloatArray
    ) -> tuple[float, float, float]:
        """Entropy and linear term of the new marginals, and their change."""
        strengths: list[FloatArray | None] = []
        mu, coupled = np.empty(0, out.dtype), False
        if extras:
            strengths = self.diagonals if self.algorithm == "cccp" else [None] * len(extras)
            mu = np.concatenate([x.ravel() for x in self.update_mu]).astype(out.dtype)
            coupled = self.coupled
        sums: tuple[float, float, float] = _native.update_marginals(
            self.unary, message, old, strengths, np.array(extras, out.dtype), mu, coupled, out,
            self._threads,
        )
        return sums

    def _complete(
        self, q: FloatArray, sums: tuple[float, float, float], shift: float | None,
        message: FloatArray,
    ) -> State:
        entropy, linear, change = sums
        state = State(q, change=change, shift=shift)
        if self._watched:
            self.send(state, message)
            state.message = message
            state.free_energy = entropy + linear + 0.5 * _native.dot(q, message, self._threads)
        return state


class FusedProblem:
    """F and its update for one image in one pass over the variables per iteration.

    It slices what the kernels made of the old marginals, updates, and splats the new ones. It needs
    kernels that work through tables (lattice and grid), symmetric ones, and covers "concave" with
    any compatibility and "cccp" and "parallel" with those that are diagonal up to a constant.
    Pair energies come from the tables, q'Kq = (S'q)'B(S'q), so that marginals need not be stored to
    know the free energy.

    Arguments are those of `NativeProblem`.
    """

    def __init__(
        self, unary: FloatArray, terms: Sequence[Term], algorithm: str, threads: int, *,
        keep_states: bool = False, arena: Arena | None = None,
    ) -> None:
        self.unary = unary
        self.terms = terms
        self.algorithm = algorithm
        self._arena = arena
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
            a = term.diagonal_form(n_labels)
            mu = term.matrix(n_labels) if a is None else -a
            self._constants.append(0.0 if term.numbers.ndim else float(term.numbers))
            native_terms.append((
                operator.native, operator.pre, operator.post, diagonal,
                np.ravel(mu).astype(unary.dtype),
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
        """Whether there is a fused form of this."""
        return bool(terms) and all(
            isinstance(t.operator, TableFilter) and t.operator.is_symmetric
            and (algorithm == "concave" or t.numbers.ndim < 2)
            and (algorithm != "cccp" or t.attraction(n_labels) is not None)
            for t in terms
        )

    def readable(self) -> NativeProblem:
        """The same problem operator by operator, which can shift as well."""
        return NativeProblem(
            self.unary, self.terms, self.algorithm, self._threads, keep_states=self._keep_states,
            arena=self._arena,
        )

    def start(self, marginals: FloatArray | None, *, store: bool) -> State:
        """The state at softmax(-u)."""
        assert marginals is None
        q = self._target(0, store)
        energy, own, _, pairs, row_sums = self._native.step(-1, 0, None, q)
        self._constant = 0.5 * sum(
            c * (total - (0.0 if d is None else float(d.sum(dtype=np.float64))))
            for c, total, d in zip(self._constants, row_sums, self.diagonals, strict=True)
        )
        return State(q, self._energy(energy, own, pairs))

    def step(self, old: State, shift: float, *, store: bool) -> State:
        """The update from `old`; marginals are kept only if `store` says so."""
        assert shift == 0.0
        if self._keep_states:
            self._check_memory(2 * self._table_bytes + self.unary.nbytes)
        slot = old.slot + 1 if self._keep_states else 1 - old.slot
        q = self._target(slot, store)
        energy, own, change, pairs, _ = self._native.step(old.slot, slot, old.marginals, q)
        state = State(q, self._energy(energy, own, pairs), shift=shift, slot=slot)
        if old.marginals is not None:
            state.change = change
        return state

    def step_back(
        self, state: State, given: FloatArray | None, first: bool, total: FloatArray,
        by_mu: NDArray[np.float64],
    ) -> None:
        """Add b of a state (`crfield.dense.gradient`) to `total` and what it says of mu to `by_mu`.

        given : b, where it does not follow from the state after this one.
        by_mu : (terms, L, L).
        """
        self._native.step_back(state.slot - 1, state.marginals, given, first, total, by_mu)

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

    def buffer(self) -> FloatArray:
        """Room for numbers such as the unary's."""
        return np.empty_like(self.unary) if self._arena is None else self._arena.like(self.unary)

    def _check_memory(self, n_bytes: float) -> None:
        check_memory(n_bytes, self._purpose, "use wider kernels or tiles")

    def _energy(self, energy: float, own: float, pairs: Sequence[float]) -> float:
        energy += 0.5 * sum(pairs) + self._constant
        return energy if self.algorithm == "concave" else energy + 0.5 * own

    def _target(self, slot: int, store: bool) -> FloatArray | None:
        """Where the marginals of a state go."""
        if self._keep_states:
            return self.buffer()
        if not store and self.algorithm != "parallel":  # which leaves out the old marginals' own
            return None
        while len(self._buffers) <= slot:
            self._buffers.append(self.buffer())
        return self._buffers[slot]


class Sweeps:
    """Updates of one variable at a time: the textbook algorithm, for small N."""

    def __init__(self, unary: FloatArray, terms: Sequence[Term]) -> None:
        n, n_labels = unary.shape
        check_memory(
            8.0 * n * n * len(terms), f"Sequential inference on {n} variables",
            'use algorithm="cccp", which has the same fixed points',
        )
        self.unary = unary.astype(np.float64)
        self._pairs = []
        for term in terms:
            kernel = term.operator.to_dense().astype(np.float64)
            np.fill_diagonal(kernel, 0.0)
            self._pairs.append((kernel, term.matrix(n_labels)))

    def start(self, marginals: FloatArray | None, *, store: bool) -> State:
        """The state at the given marginals, or at softmax(-u)."""
        q = softmax(-self.unary) if marginals is None else marginals.astype(np.float64)
        return State(q, self._free_energy(q))

    def step(self, old: State, shift: float, *, store: bool) -> State:
        """The state after all variables have had their turn."""
        q = old.marginals.copy()
        for i in range(len(q)):
            e = self.unary[i] + sum((kernel[i] @ q) @ mu for kernel, mu in self._pairs)
            q[i] = softmax(-e[None])[0]
        change = float(np.abs(q - old.marginals).max(initial=0.0))
        return State(q, self._free_energy(q), change, shift)

    def readable(self) -> Sweeps:
        """Itself."""
        return self

    def _free_energy(self, q: NDArray[np.float64]) -> float:
        entropy = float((q * np.log(np.where(q > 0, q, 1.0))).sum())
        return entropy + float((q * self.unary).sum()) + 0.5 * sum(
            float((q * (kernel @ q @ mu)).sum()) for kernel, mu in self._pairs
        )


def solve_self_pairs(energy: Array, alpha: Array) -> Array:
    """q with log q + alpha q + lambda + e = 0 and sum q = 1 in each row (KK13 eq. 8), alpha >= 0.

    Newton's method on lambda, of which the sum is a convex falling function: it never overshoots.
    """
    library = library_of(energy)
    alpha = library.broadcast_to(alpha, energy.shape)
    # At this lambda the sum is at least 1.
    level = logsumexp(-energy) - library.amax(alpha, 1)[:, None]
    for _ in range(60):
        q = _solve_one(-energy - level, alpha)
        slope = (q / (1.0 + alpha * q)).sum(1)[:, None]
        move = (q.sum(1)[:, None] - 1.0) / slope
        level = level + move
        if float(abs(move).max()) <= 4 * library.finfo(energy.dtype).eps:
            break
    q = _solve_one(-energy - level, alpha)
    return q / q.sum(1)[:, None]


def _solve_one(z: Array, alpha: Array) -> Array:
    """q with log q + alpha q = z, by Newton's method on log q, which is convex and rises."""
    library = library_of(z)
    # log q lies below both z and, where alpha q > 1, about log(z / alpha).
    low = library.log(library.clip(z, 1.0, None) / library.clip(alpha, 1e-30, None))
    y = library.minimum(z, low)
    y = library.where(alpha * library.exp(library.clip(z, None, 80.0)) < 1.0, z, y)
    for _ in range(8):
        aq = alpha * library.exp(y)
        y = y - (y + aq - z) / (1.0 + aq)
    return library.exp(y)
