"""Learning of log-linear models of chains, grids and graphs by maximum conditional likelihood.

Terms of a model share weights W[d, ...] among their factors; a factor with features phi costs
sum_d phi_d W[d, y_f]. The mean over examples of L = E(y) + log Z, plus l2 / 2 |W|^2, is minimized.
The derivative of L by any cost is observed minus expected: how often the truth pays it, less the
expected number of times that it is paid. Everything here is a cost; what estimators show are
scores, the negatives.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crfield._core.optimize import Batches, Evaluate, minimize
from crfield._core.progress import shown_progress
from crfield._core.resources import without_locks
from crfield._core.validate import LARGEST_COST, FloatArray, InputError
from crfield.graphs.chains import Chains, Doubles, Labels, Offsets, edge_starts, energies_of
from crfield.graphs.engines.chains import empty_edges, sum_chains
from crfield.graphs.feature_graph import FeatureGraph, Weights, log_linear_loss
from crfield.graphs.results import Result

MINI_BATCHES = ("adam", "sgd")

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
    return _loss_of(batch, batch.as_labels(labels), threads)


def _loss_of(batch: Chains, labels: Labels, threads: int | None) -> ChainLoss:
    """`chain_loss` of checked chains."""
    n_states = batch.n_states
    firsts = edge_starts(batch.offsets)
    edges = empty_edges(batch) if batch.per_edge else None
    log_partition, marginals, counts = sum_chains(batch, 1.0, edges, threads)
    value = float(energies_of(batch, labels).sum() + log_partition.sum())
    by_costs = np.negative(marginals, out=marginals)
    by_costs[np.arange(batch.n_nodes), labels] += 1
    if edges is None:
        return ChainLoss(value, by_costs, _observed_pairs(labels, firsts, n_states) - counts)
    by_transitions = np.negative(edges, out=edges)
    by_transitions[np.arange(len(firsts)), labels[firsts], labels[firsts + 1]] += 1
    return ChainLoss(value, by_costs, by_transitions)


def _observed_pairs(labels: Labels, firsts: NDArray[np.int64], n_states: int) -> Doubles:
    """How often each pair of successive states occurs, (L, L)."""
    code = labels[firsts].astype(np.int64) * n_states + labels[firsts + 1]
    pairs = np.bincount(code, minlength=n_states * n_states).reshape(n_states, n_states)
    return pairs.astype(np.float64)


class Examples(Protocol):
    """Examples with known labels: chains, or graphs, of which grids are some."""

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        """The shape of the weights of each term, (D, L_1, ..., L_K)."""

    @property
    def largest(self) -> Sequence[Doubles | None]:
        """The largest |phi_d| of each term, (D,), or None for a constant 1."""

    def __len__(self) -> int: ...

    def observed(self) -> Weights:
        """Sums over all examples of the features that the true labels have."""

    def loss(self, weights: Weights, chosen: Sequence[int] | None = None) -> tuple[float, Weights]:
        """Sum over examples, all or those chosen, of L, and its gradient."""

    def pieces(self) -> list[tuple[list[int], Examples]]:
        """Numbers of terms, and examples of these terms alone that need no inference on the whole:
        first all terms of single variables, then each term of several that has features."""


def chain_batch(features: Doubles, offsets: Offsets, weights: Weights) -> Chains:
    """The costs of chains with features (N, F): W (F, L), b (1, L) and A (1, L, L)."""
    costs = np.ascontiguousarray(features @ weights[0])
    costs += weights[1]
    return Chains.checked(costs, offsets, np.ascontiguousarray(weights[2]))


@without_locks
@dataclass(frozen=True)
class ChainExamples:
    """Chains with features (N, F) float64 and labels (N,), states from 0 to `n_states` - 1.

    offsets : (C + 1,), chain c has the nodes offsets[c] to offsets[c + 1].
    """

    features: Doubles
    labels: Labels
    offsets: Offsets
    n_states: int
    threads: int | None = None

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def shapes(self) -> Sequence[tuple[int, ...]]:
        n = self.n_states
        return (self.features.shape[1], n), (1, n), (1, n, n)

    @cached_property
    def largest(self) -> Sequence[Doubles | None]:
        return np.abs(self.features).max(0), None, None

    def take(self, chosen: Sequence[int]) -> ChainExamples:
        """Some of the chains."""
        lengths = np.diff(self.offsets)[list(chosen)]
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        shift = np.repeat(self.offsets[list(chosen)] - offsets[:-1], lengths)
        rows = np.arange(offsets[-1]) + shift
        return replace(
            self, features=self.features[rows], labels=self.labels[rows], offsets=offsets
        )

    def observed(self) -> Weights:
        truth = np.zeros((len(self.labels), self.n_states))
        truth[np.arange(len(truth)), self.labels] = 1
        pairs = _observed_pairs(self.labels, edge_starts(self.offsets), self.n_states)
        return self.features.T @ truth, truth.sum(0)[None], pairs[None]

    def loss(self, weights: Weights, chosen: Sequence[int] | None = None) -> tuple[float, Weights]:
        data = self if chosen is None else self.take(chosen)
        batch = chain_batch(data.features, data.offsets, weights)
        loss = _loss_of(batch, data.labels, self.threads)
        by_nodes = np.asarray(loss.by_costs, np.float64)
        by_pairs = np.asarray(loss.by_transitions, np.float64)
        return loss.value, (data.features.T @ by_nodes, by_nodes.sum(0)[None], by_pairs[None])

    def pieces(self) -> list[tuple[list[int], Examples]]:
        nodes = replace(self, offsets=np.arange(len(self.labels) + 1, dtype=np.int64))
        return [([0, 1], nodes)]


@without_locks
class GraphExamples:
    """Graphs, one per example, with labels (N,) of each.

    symmetric : of each term whether W[d, k, l] = W[d, l, k].
    inference : settings of `infer`.

    Bethe's propagation on loops may have several fixed points. It always starts from the same
    messages here, so that the loss is a function of the weights alone. The convex one has a single
    fixed point, and goes on from the messages of the weights before.
    """

    def __init__(
        self, graphs: Sequence[FeatureGraph], labels: Sequence[Labels],
        shapes: Sequence[tuple[int, ...]], symmetric: Sequence[bool], inference: dict[str, Any],
    ):
        self.graphs, self.labels, self.shapes = graphs, labels, shapes
        self.symmetric, self.inference = symmetric, inference
        self._all = self._join(range(len(graphs)))
        self.last: Result | None = None

    def __len__(self) -> int:
        return len(self.graphs)

    @cached_property
    def largest(self) -> Sequence[Doubles | None]:
        return [term.largest for term in self._all[0].terms]

    def observed(self) -> Weights:
        graph, labels = self._all
        return self._tie([
            term.observe(labels, shape[1:])
            for term, shape in zip(graph.terms, self.shapes, strict=True)
        ])

    def loss(self, weights: Weights, chosen: Sequence[int] | None = None) -> tuple[float, Weights]:
        graph, labels = self._all if chosen is None else self._join(chosen)
        like = self.last if chosen is None else None
        init = like if self.inference["convex"] else None
        found = log_linear_loss(graph, weights, labels, like=like, init=init, **self.inference)
        if chosen is None:
            self.last = found.result
        return found.value, self._tie(found.gradient)

    def pieces(self) -> list[tuple[list[int], Examples]]:
        terms = self.graphs[0].terms
        single = [i for i, term in enumerate(terms) if term.variables.shape[1] == 1]
        nodes = [
            FeatureGraph(graph.n_states, tuple(graph.terms[i] for i in single))
            for graph in self.graphs
        ]
        out: list[tuple[list[int], Examples]] = [(single, GraphExamples(
            nodes, self.labels, [self.shapes[i] for i in single], [False] * len(single),
            self.inference,
        ))]
        for i, term in enumerate(self._all[0].terms):
            if i not in single and term.features is not None and len(term):
                out.append(([i], self._apart(i)))
        return out

    def _apart(self, i: int) -> GraphExamples:
        """Each factor of term i alone, beside biases that are not kept: how frequent labels are,
        the terms of single variables know already."""
        graphs, labels = zip(*(
            graph.apart(i, known)
            for graph, known in zip(self.graphs, self.labels, strict=True) if len(graph.terms[i])
        ), strict=True)
        shapes = [self.shapes[i], *((1, n) for n in self.shapes[i][1:])]
        symmetric = [self.symmetric[i], *[False] * (len(shapes) - 1)]
        return GraphExamples(graphs, labels, shapes, symmetric, self.inference)

    def _join(self, chosen: Sequence[int]) -> tuple[FeatureGraph, Labels]:
        """Some examples as one graph that falls into parts."""
        graph = FeatureGraph.join([self.graphs[i] for i in chosen])
        return graph, np.concatenate([self.labels[i] for i in chosen])

    def _tie(self, weights: Sequence[Doubles]) -> Weights:
        """Sums of features with tables that should be symmetric made so."""
        return tuple(
            0.5 * (w + w.swapaxes(1, 2)) if tied else w
            for w, tied in zip(weights, self.symmetric, strict=True)
        )


@dataclass(frozen=True)
class Expectations:
    """Sums over the training examples of the features that belong to each weight.

    At the optimum observed - expected = penalty: without a penalty, the model expects what is
    observed. All but `n_examples` are tuples with an array (D, L_1, ..., L_K) per term.

    Attributes
    ----------
    observed : what the true labels have.
    expected : the same under the model.
    penalty : the difference that the penalty explains.
    units : in which the differences are measured: 1, or for a feature with numbers beyond 1, or a
        penalty beyond it, less.
    n_examples : how many examples were summed over.
    """

    observed: Weights
    expected: Weights
    penalty: Weights
    units: Weights
    n_examples: int

    @property
    def largest_gap(self) -> float:
        """max units |observed - expected - penalty| per example, the gradient's largest entry."""
        gaps = (
            float(np.abs(u * (o - e - p)).max(initial=0.0))
            for o, e, p, u in zip(
                self.observed, self.expected, self.penalty, self.units, strict=True
            )
        )
        return max(gaps) / self.n_examples


@without_locks
class Likelihood:
    """Mean over examples of L = E(y) + log Z, plus l2 / 2 |W|^2; constants of single variables, the
    biases, are not penalized."""

    def __init__(self, examples: Examples, l2: float):
        self.examples, self.l2 = examples, l2

    @cached_property
    def units(self) -> Weights:
        """Units of the weights in which the curvature is about 1 or less.

        By a weight it is at most about its feature's square and the penalty's: 1 / max(|phi|,
        sqrt(l2), 1), so that features of any scale are learned alike.
        """
        steep = max(1.0, self.l2**0.5)
        out = []
        for shape, largest in zip(self.examples.shapes, self.examples.largest, strict=True):
            is_bias = largest is None and len(shape) == 2
            size = np.maximum(1.0 if largest is None else largest, 1.0 if is_bias else steep)
            out.append(np.broadcast_to(
                np.reshape(1.0 / size, (-1, *[1] * (len(shape) - 1))), shape
            ))
        return tuple(out)

    @cached_property
    def scale(self) -> Doubles:
        """The units as a vector."""
        return self.to_vector(self.units)

    def to_vector(self, weights: Weights) -> Doubles:
        """All numbers, one after the other."""
        return np.concatenate([w.ravel() for w in weights])

    def from_vector(self, vector: Doubles) -> Weights:
        """The inverse of `to_vector`."""
        shapes = self.examples.shapes
        sizes = np.cumsum([int(np.prod(shape)) for shape in shapes])[:-1]
        parts = zip(np.split(vector, sizes), shapes, strict=True)
        return tuple(part.reshape(shape) for part, shape in parts)

    def __call__(self, vector: Doubles, chosen: Sequence[int] | None) -> tuple[float, Doubles]:
        most = float(np.abs(vector / self.scale).max())
        if not most <= LARGEST_COST:
            raise InputError(
                f"learning must stay within the range of numbers, got costs of {most:.3g}; use a "
                "smaller step_size, or scale the features."
            )
        weights = self.from_vector(vector)
        total, slopes = self.examples.loss(weights, chosen)
        share = 1.0 / (len(self.examples) if chosen is None else len(chosen))
        pulls = self._pulls(weights)
        penalty = sum(float((p * w).sum()) for p, w in zip(pulls, weights, strict=True))
        gradient = tuple(share * s + p for s, p in zip(slopes, pulls, strict=True))
        return share * total + 0.5 * penalty, self.to_vector(gradient)

    def expectations(self, weights: Weights) -> Expectations:
        """Observed against expected features of all examples."""
        observed = self.examples.observed()
        _, slopes = self.examples.loss(weights)
        expected = tuple(o - s for o, s in zip(observed, slopes, strict=True))
        n = len(self.examples)
        return Expectations(
            observed, expected, tuple(-n * p for p in self._pulls(weights)), self.units, n
        )

    def _pulls(self, weights: Weights) -> Weights:
        """The derivative of the penalty."""
        return tuple(
            np.zeros_like(w) if largest is None and w.ndim == 2 else self.l2 * w
            for w, largest in zip(weights, self.examples.largest, strict=True)
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

    def times(self, factor: float) -> Course:
        """The same of an objective so many times as large."""
        values = tuple(factor * value for value in self.values)
        return Course(values, factor * self.gap, self.converged)


@dataclass(frozen=True)
class Descent:
    """How to minimize: an optimizer of the library and when it stops.

    tol : the largest entry of the gradient to stop at, in the units of the parameters.
    batch_size, step_size, seed : of mini-batches.
    progress : whether to show a bar.
    """

    optimizer: str = "lbfgs"
    max_iter: int = 200
    tol: float = 1e-5
    batch_size: int = 16
    step_size: float = 0.01
    seed: int = 0
    progress: bool = False

    def __call__(
        self, evaluate: Evaluate, start: Doubles, scale: Doubles, n_examples: int
    ) -> tuple[Doubles, Course]:
        """The best iterate, or the last one where it converged, and how it went.

        scale : units of the parameters in which the gradient is compared with `tol`, and in which
            "gd", "cg" and "lbfgs" take their steps; those of mini-batches have the length
            `step_size`.
        """
        batches = Batches(n_examples, self.batch_size, self.step_size, self.seed)
        known: dict[bytes, tuple[float, Doubles]] = {}
        vector, gap, least = start, np.inf, np.inf
        values: list[float] = []
        # Optimizers stop at changes that are small beside the value, or beside 1.
        shift, factor = 0.0, 1.0

        def rescaled(x: Doubles, chosen: Sequence[int] | None) -> tuple[float, Doubles]:
            value, gradient = evaluate(x, chosen)
            if chosen is None:
                known[x.tobytes()] = value, gradient
            return factor * (value - shift), factor * gradient

        def watch(x: Doubles) -> bool:
            nonlocal vector, gap, least
            value, gradient = known.get(x.tobytes()) or evaluate(x, None)
            if not (np.isfinite(value) and np.isfinite(gradient).all()):
                raise InputError(
                    "learning must stay within the range of numbers, got an objective of "
                    f"{value:g} after {len(values)} iterations; use a smaller step_size, or scale "
                    "the features."
                )
            known.clear()
            gap = float(np.abs(scale * gradient).max())
            values.append(value)
            if value <= least or gap <= self.tol:
                vector, least = x, value
            if tell is not None:
                tell(len(values) - 1)
            return gap <= self.tol

        bar = shown_progress("iteration", self.max_iter) if self.progress else nullcontext()
        with bar as tell:
            is_settled = watch(start)
            while not is_settled and len(values) <= self.max_iter:
                done = len(values)
                minimize(
                    rescaled, vector, self.optimizer, max_iter=self.max_iter + 1 - done,
                    callback=watch, batches=batches,
                    scale=None if self.optimizer in MINI_BATCHES else scale,
                )
                is_settled = gap <= self.tol
                if len(values) == done:  # no step leads down
                    break
                shift, factor = values[-1], _SHARPER * factor
        return vector, Course(tuple(values), gap, is_settled)


@dataclass(frozen=True)
class Fit:
    """What was learned.

    weights : of each term, as costs.
    course : how learning went; of piecewise training, that of the terms of single variables.
    part_weights, part_course : of piecewise training the weight of each part and how they were
        found, else None.
    """

    weights: Weights
    course: Course
    part_weights: Doubles | None = None
    part_course: Course | None = None


def fit_jointly(likelihood: Likelihood, descent: Descent) -> Fit:
    """Minimize over all weights at once, from zeros."""
    scale = likelihood.scale
    vector, course = descent(likelihood, np.zeros_like(scale), scale, len(likelihood.examples))
    return Fit(likelihood.from_vector(vector), course)


def fit_piecewise(likelihood: Likelihood, descent: Descent) -> Fit:
    """Train parts of the model apart, then one weight v for each (lecture, "Piecewise training").

    Terms of single variables are one part, trained together as a classifier of them. Each term of
    several is a part: a classifier of single factors where it has features, else the pointwise
    mutual information of labels, log p(k, l) - log p(k) - log p(l) with every pair counted once
    more than it occurs. Only v is learned with inference on whole examples, by "cg" where the
    optimizer is one of mini-batches.
    """
    examples = likelihood.examples
    parts: list[Doubles] = [np.zeros(shape) for shape in examples.shapes]
    groups, courses = [], []
    for group, alone in examples.pieces():
        # The penalty weighs as much against all pieces as it would against all examples.
        share = len(alone) / len(examples)
        piece = Likelihood(alone, likelihood.l2 / share)
        found = fit_jointly(piece, replace(descent, tol=descent.tol / share))
        courses.append(found.course.times(share))
        groups.append(group)
        for i, weights in zip(group, found.weights, strict=False):  # biases come behind
            parts[i] = weights
    for i, (counts, largest) in enumerate(zip(examples.observed(), examples.largest, strict=True)):
        if largest is None and counts.ndim > 2 and counts.any():
            groups.append([i])
            parts[i] = -mutual_information(counts[0] + 1.0)[None]

    def weighted(v: Doubles) -> Weights:
        factors = np.zeros(len(parts))  # terms without factors have weights of 0
        for factor, group in zip(v, groups, strict=True):
            factors[group] = factor
        return tuple(factor * part for factor, part in zip(factors, parts, strict=True))

    def evaluate(v: Doubles, _: Sequence[int] | None) -> tuple[float, Doubles]:
        value, slopes = examples.loss(weighted(v))
        along = [float((s * part).sum()) for s, part in zip(slopes, parts, strict=True)]
        by_v = np.array([sum(along[i] for i in group) for group in groups])
        return value / len(examples), by_v / len(examples)

    # A part may cost so much that one more of it changes everything: steps of about its size.
    sizes = [
        np.linalg.norm(_in_units(part, most), axis=0).max(initial=1.0)
        for part, most in zip(parts, examples.largest, strict=True)
    ]
    scale = np.array([1.0 / max(sizes[i] for i in group) for group in groups])
    optimizer = descent.optimizer if descent.optimizer in ("cg", "lbfgs") else "cg"
    v, course = replace(descent, optimizer=optimizer)(
        evaluate, np.ones(len(groups)), scale, len(examples)
    )
    return Fit(weighted(v), courses[0], v, course)


TRAININGS = {"joint": fit_jointly, "piecewise": fit_piecewise}


def mutual_information(counts: Doubles) -> Doubles:
    """log p(k, l, ...) - log p(k) - log p(l) - ... of how often joint states occur."""
    joint = counts / counts.sum()
    out: Doubles = np.log(joint)
    for axis in range(joint.ndim):
        others = tuple(k for k in range(joint.ndim) if k != axis)
        out -= np.log(joint.sum(others, keepdims=True))
    return out


def largest_cost(weights: Doubles, largest: Doubles | None) -> float:
    """A bound on the magnitude of features times weights (D, ...); largest : of each |phi_d|."""
    return float(np.abs(_in_units(weights, largest)).sum(0).max(initial=0.0))


def _in_units(weights: Doubles, largest: Doubles | None) -> Doubles:
    """Weights (D, ...) of features divided by their largest values (D,)."""
    return weights if largest is None else (largest * weights.T).T
