"""Log-linear models of chains, learned by maximum conditional likelihood.

A node with features f costs -(f'W + b), a pair of successive labels -A; the negative log-likelihood
of true labels y is E(y) + log Z. Its derivative by any cost is observed minus expected: whether (or
how often) the truth pays it, less the probability (or expected number of times) that it is paid.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray, InputError, as_count
from crfield.graphs.chains import Chains, Doubles, Labels, Offsets, edge_starts, energies_of
from crfield.graphs.engines.chains import empty_edges, sum_chains
from crfield.learning.objective import Point
from crfield.learning.optimizers import minimize

# Each time an optimizer stops too early, all changes count so many times as much to it.
_SHARPER = 1e3


@dataclass(frozen=True)
class ChainLoss:
    """L = E(y) + log Z of true labels y, added up over chains, and its derivatives.

    Attributes
    ----------
    value : sum over chains of E(y) + log Z.
    by_costs : (N, L), observed minus expected: 1 at the true state, less the marginals.
    by_transitions : (L, L), or (N - C, L, L) where every edge has a table.
    """

    value: float
    by_costs: FloatArray
    by_transitions: FloatArray


def chain_loss(
    costs: Any, transitions: Any, labels: Any, *, lengths: Any = None, threads: int | None = None
) -> ChainLoss:
    """-log P(labels) = E(labels) + log Z and its exact gradient; inputs as for `Chains`.

    labels : (N,) true states, or a list of (T,).
    threads : native threads, None for all cores.
    """
    batch = Chains(costs, transitions, lengths=lengths)
    return loss_of(batch, batch.as_labels(labels), threads)


def loss_of(batch: Chains, labels: Labels, threads: int | None) -> ChainLoss:
    """`chain_loss` of checked chains."""
    n_states = batch.n_states
    firsts = edge_starts(batch.offsets)
    edges = empty_edges(batch) if batch.per_edge else None
    log_partition, marginals, counts = sum_chains(batch, 1.0, edges, threads)
    value = float(energies_of(batch, labels).sum() + log_partition.sum())
    by_costs = np.negative(marginals, out=marginals)
    by_costs[np.arange(batch.n_nodes), labels] += 1
    if edges is None:
        return ChainLoss(value, by_costs, observed_pairs(labels, firsts, n_states) - counts)
    by_transitions = np.negative(edges, out=edges)
    by_transitions[np.arange(len(firsts)), labels[firsts], labels[firsts + 1]] += 1
    return ChainLoss(value, by_costs, by_transitions)


def observed_pairs(labels: Labels, firsts: NDArray[np.int64], n_states: int) -> Doubles:
    """How often each pair of successive states occurs, (L, L)."""
    code = labels[firsts].astype(np.int64) * n_states + labels[firsts + 1]
    pairs = np.bincount(code, minlength=n_states * n_states).reshape(n_states, n_states)
    return pairs.astype(np.float64)


@dataclass(frozen=True)
class ChainModel:
    """A log-linear chain: scores, the negatives of costs.

    Attributes
    ----------
    weights : (F, L), W.
    bias : (L,), b.
    transitions : (L, L), A.
    """

    weights: Doubles
    bias: Doubles
    transitions: Doubles

    @classmethod
    def zeros(cls, n_features: int, n_states: int) -> ChainModel:
        """The model to which all labels are equal."""
        return cls(
            np.zeros((n_features, n_states)), np.zeros(n_states), np.zeros((n_states, n_states))
        )

    def batch(self, features: Doubles, offsets: Offsets) -> Chains:
        """The costs of chains with these features (N, F)."""
        costs = np.ascontiguousarray(-(features @ self.weights))
        costs -= self.bias
        return Chains.checked(costs, offsets, np.ascontiguousarray(-self.transitions[None]))

    def to_vector(self) -> Doubles:
        """All numbers, one after the other."""
        return np.concatenate([self.weights.ravel(), self.bias, self.transitions.ravel()])

    def from_vector(self, vector: Doubles) -> ChainModel:
        """A model of the same shapes."""
        sizes = np.cumsum([self.weights.size, self.bias.size])
        weights, bias, transitions = np.split(vector, sizes)
        return ChainModel(
            weights.reshape(self.weights.shape), bias, transitions.reshape(self.transitions.shape)
        )


@dataclass(frozen=True)
class TrainingChains:
    """Chains with known labels.

    features : (N, F) float64; labels : (N,), states from 0; offsets : (C + 1,).
    """

    features: Doubles
    labels: Labels
    offsets: Offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def take(self, chains: Sequence[int]) -> TrainingChains:
        """Some of the chains."""
        lengths = np.diff(self.offsets)[list(chains)]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        shift = np.repeat(self.offsets[list(chains)] - offsets[:-1], lengths)
        rows = np.arange(offsets[-1]) + shift
        return TrainingChains(self.features[rows], self.labels[rows], offsets)


def likelihood(
    model: ChainModel, data: TrainingChains, l2: float, threads: int | None = None
) -> tuple[float, ChainModel]:
    """Mean over chains of the negative log-likelihood + l2 / 2 (|W|^2 + |A|^2), and its gradient.

    By W the gradient is -F'(observed - expected) / C + l2 W, F being the features.
    """
    loss = loss_of(model.batch(data.features, data.offsets), data.labels, threads)
    share = 1.0 / len(data)
    ridge = float((model.weights**2).sum() + (model.transitions**2).sum())
    return share * loss.value + 0.5 * l2 * ridge, ChainModel(
        -share * (data.features.T @ loss.by_costs) + l2 * model.weights,
        -share * loss.by_costs.sum(0),
        -share * loss.by_transitions + l2 * model.transitions,
    )


def units_of(model: ChainModel, data: TrainingChains, l2: float) -> ChainModel:
    """Units of the parameters in which the curvature of `likelihood` is about 1 or less.

    By a weight it is at most about its feature's square and the ridge: 1 / max(|f|, sqrt(l2), 1).
    """
    steep = max(1.0, l2**0.5)
    largest = np.maximum(np.abs(data.features).max(0), steep)[:, None]
    return ChainModel(
        np.broadcast_to(1.0 / largest, model.weights.shape), np.ones_like(model.bias),
        np.full_like(model.transitions, 1.0 / steep),
    )


@dataclass(frozen=True)
class Course:
    """How an optimization went.

    values : the objective at the start and after each iteration.
    gap : the largest entry of the gradient at the end, in the units of `tol`.
    converged : whether that is `tol` or less.
    """

    values: tuple[float, ...]
    gap: float
    converged: bool

    @property
    def n_iter(self) -> int:
        return len(self.values) - 1


def learn_chains(
    start: ChainModel, data: TrainingChains, *, l2: float, optimizer: str = "lbfgs",
    max_iter: int = 200, tol: float = 1e-5, batch_size: int = 16, step_size: float = 0.01,
    seed: int = 0, threads: int | None = None,
) -> tuple[ChainModel, Course]:
    """Minimize `likelihood` over all parameters at once.

    tol : the largest entry of the gradient to stop at, in `units_of` the parameters.
    """

    def evaluate(vector: Doubles, chains: Sequence[int] | None) -> tuple[float, Doubles]:
        part = data if chains is None else data.take(chains)
        value, gradient = likelihood(start.from_vector(vector), part, l2, threads)
        return value, gradient.to_vector()

    units = units_of(start, data, l2).to_vector()
    vector, course = descend(
        evaluate, start.to_vector(), units, optimizer, max_iter, tol, n_examples=len(data),
        batch_size=batch_size, step_size=step_size, seed=seed,
    )
    return start.from_vector(vector), course


def descend(
    evaluate: Callable[[Doubles, Sequence[int] | None], tuple[float, Doubles]], start: Doubles,
    scale: Doubles, optimizer: str, max_iter: int, tol: float, **options: Any,
) -> tuple[Doubles, Course]:
    """Run one of the library's optimizers; the last iterate and how it went.

    scale : units of the parameters in which the gradient is compared with `tol`, and in which "gd",
        "cg" and "lbfgs" take their steps; those of mini-batches have the length `step_size`.
    """
    count, none = as_count(max_iter, "max_iter"), np.zeros((0, 0), np.int64)
    units = np.ones_like(start) if optimizer in ("adam", "sgd") else scale
    known: dict[bytes, tuple[float, Doubles]] = {}
    vector, gap = start, np.inf
    values: list[float] = []
    # Optimizers stop at changes that are small beside the value, or beside 1.
    shift, factor = 0.0, 1.0

    def point(x: Doubles, chains: Sequence[int] | None) -> Point:
        value, gradient = evaluate(x, chains)
        if chains is None:
            known[x.tobytes()] = value, gradient
        value = factor * (value - shift)
        return Point(value, value, factor * gradient, none)

    def progress(x: Doubles) -> bool:
        nonlocal vector, gap
        value, gradient = known.get(x.tobytes()) or evaluate(x, None)
        if not (np.isfinite(value) and np.isfinite(gradient).all()):
            raise InputError(
                f"learning must stay within the range of numbers, got an objective of {value:g} "
                f"after {len(values)} iterations; use a smaller step_size, or scale the features."
            )
        known.clear()
        vector, gap = x, float(np.abs(scale * gradient).max())
        values.append(value)
        return gap <= tol

    is_settled = progress(start)
    while not is_settled and len(values) <= count:
        done = len(values)
        minimize(point, vector, units, optimizer, count + 1 - done, progress, **options)
        is_settled = gap <= tol
        if len(values) == done:  # no step leads down
            break
        shift, factor = values[-1], _SHARPER * factor
    return vector, Course(tuple(values), gap, is_settled)
