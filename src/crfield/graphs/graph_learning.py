"""Learning of log-linear models on any graph: all weights at once, or piece by piece."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import LARGEST_COST, InputError
from crfield.graphs.chain_learning import Course, descend
from crfield.graphs.factors import Doubles
from crfield.graphs.log_linear import FeatureGraph, Weights, log_linear_loss
from crfield.graphs.results import Result

Labels = NDArray[np.int32]


@dataclass(frozen=True)
class LabeledGraphs:
    """Examples with known labels, and which of the terms have a symmetric table.

    graphs : an entry an example; labels : (N,) of each.
    symmetric : for each term whether W[d, k, l] = W[d, l, k].
    ridged : for each term whether its weights are drawn towards 0.
    """

    graphs: tuple[FeatureGraph, ...]
    labels: tuple[Labels, ...]
    symmetric: tuple[bool, ...]
    ridged: tuple[bool, ...]

    def __len__(self) -> int:
        return len(self.graphs)

    def joined(self, chosen: Sequence[int] | None = None) -> tuple[FeatureGraph, Labels]:
        """Some examples, or all, as one graph."""
        places = range(len(self)) if chosen is None else chosen
        graph = FeatureGraph.join([self.graphs[i] for i in places])
        return graph, np.concatenate([self.labels[i] for i in places])

    def tie(self, weights: Weights) -> Weights:
        """Weights, or their gradient, with tables that should be symmetric made so."""
        return tuple(
            0.5 * (w + w.swapaxes(1, 2)) if tied else w
            for w, tied in zip(weights, self.symmetric, strict=True)
        )


@dataclass(frozen=True)
class GraphExpectations:
    """Sums of features of all training examples, for each term like its weights.

    At the optimum observed - expected = ridge: without a ridge, the model expects what is observed.
    Each is a tuple of (D, L_1, ..., L_K) from `n_examples` examples.
    """

    observed: Weights
    expected: Weights
    ridge: Weights
    n_examples: int

    @property
    def largest_gap(self) -> float:
        """max |observed - expected - ridge| an example, the largest entry of the gradient."""
        gaps = (
            np.abs(o - e - r).max(initial=0.0)
            for o, e, r in zip(self.observed, self.expected, self.ridge, strict=True)
        )
        return float(max(gaps)) / self.n_examples


class Objective:
    """Mean over examples of L(w) + l2 / 2 |w|^2, and its gradient.

    Belief propagation on loops may have several fixed points. It always starts from the same
    messages here, so that the objective is a function of the weights alone; it may still jump, so
    that the best weights seen are kept.
    """

    def __init__(self, data: LabeledGraphs, shapes: Sequence[tuple[int, ...]], l2: float,
                 inference: dict[str, Any]):
        self.data, self.l2, self.inference = data, l2, inference
        self.shapes = tuple(shapes)
        self._all = data.joined()
        self._like: Result | None = None
        self.best: tuple[float, Doubles] | None = None

    def to_vector(self, weights: Weights) -> Doubles:
        """All numbers, one after the other."""
        return np.concatenate([w.ravel() for w in weights])

    def from_vector(self, vector: Doubles) -> Weights:
        """The inverse of `to_vector`, symmetric where it should be."""
        sizes = np.cumsum([int(np.prod(shape)) for shape in self.shapes])[:-1]
        parts = zip(np.split(vector, sizes), self.shapes, strict=True)
        return self.data.tie(tuple(part.reshape(shape) for part, shape in parts))

    @cached_property
    def units(self) -> Doubles:
        """A typical size of each weight, as a vector: features of any scale are learned alike."""
        parts = []
        # The ridge alone makes the objective as steep as this.
        steep = max(1.0, self.l2**0.5)
        for term, shape in zip(self._all[0].terms, self.shapes, strict=True):
            sizes = np.ones(shape[0])
            if term.features is not None and len(term):
                sizes = np.abs(term.features).max(0)
            sizes = 1.0 / np.maximum(sizes, steep)
            parts.append(np.repeat(sizes, int(np.prod(shape[1:]))))
        return np.concatenate(parts)

    def __call__(self, vector: Doubles, chosen: Sequence[int] | None) -> tuple[float, Doubles]:
        largest = float(np.abs(vector / self.units).max(initial=0.0))
        if not largest <= LARGEST_COST:
            raise InputError(
                f"learning must stay within the range of numbers, got scores of {largest:.3g}; use "
                "a smaller step_size, or scale the features."
            )
        weights = self.from_vector(vector)
        graph, labels = self._all if chosen is None else self.data.joined(chosen)
        like = self._like if chosen is None else None
        loss = log_linear_loss(graph, weights, labels, like=like, **self.inference)
        if chosen is None:
            self._like = loss.result
        share = 1.0 / (len(self.data) if chosen is None else len(chosen))
        ridges = self._ridge(weights)
        ridge = sum(float((r * w).sum()) for r, w in zip(ridges, weights, strict=True))
        gradient = self.data.tie(loss.gradient)
        slopes = tuple(share * g + r for g, r in zip(gradient, ridges, strict=True))
        value = share * loss.value + 0.5 * ridge
        if chosen is None and (self.best is None or value < self.best[0]):
            self.best = value, vector.copy()
        return value, self.to_vector(slopes)

    def expectations(self, weights: Weights) -> GraphExpectations:
        """Observed against expected features of all examples."""
        graph, labels = self._all
        loss = log_linear_loss(graph, weights, labels, like=self._like, **self.inference)
        self._like = loss.result
        ridge = tuple(len(self.data) * r for r in self._ridge(weights))
        observed, expected = self.data.tie(loss.observed), self.data.tie(loss.expected)
        return GraphExpectations(observed, expected, ridge, len(self.data))

    @property
    def has_settled(self) -> bool:
        """Whether the last inference on all examples converged."""
        return self._like is not None and self._like.converged

    @property
    def last_residual(self) -> float:
        """The largest change of a message in the last iteration on all examples."""
        return float(self._like.residuals[-1]) if self._like and self._like.n_iter else 0.0

    def _ridge(self, weights: Weights) -> Weights:
        return tuple(
            self.l2 * w if ridged else np.zeros_like(w)
            for w, ridged in zip(weights, self.data.ridged, strict=True)
        )


def learn_graphs(
    objective: Objective, *, optimizer: str, max_iter: int, tol: float, **options: Any
) -> tuple[Weights, Course]:
    """Minimize over all weights at once, from zeros."""
    units = objective.units
    vector, course = descend(
        objective, np.zeros_like(units), units, optimizer, max_iter, tol,
        n_examples=len(objective.data), **options,
    )
    if objective.best is not None and objective.best[0] < course.values[-1]:
        vector = objective.best[1]
    return objective.from_vector(vector), course


def learn_graphs_piecewise(
    objective: Objective, *, optimizer: str, max_iter: int, tol: float, **options: Any
) -> tuple[Weights, Course, Doubles]:
    """Train every term as a classifier of single factors, then one weight for each term.

    A term's classifier sees each of its factors apart from all others, so that it needs no
    inference on the graph; only the weights v of the terms do (lecture, "Piecewise training").
    Terms of single variables are trained together, as one classifier. Those of several are trained
    beside a bias of each variable's labels, which is not kept: how frequent labels are, the
    classifier of single variables knows already. The course is that of v.
    """
    data = objective.data
    graph, labels = data.joined()
    single = [i for i, term in enumerate(graph.terms) if term.variables.shape[1] == 1]
    groups = [single] if single else []
    groups += [[i] for i, term in enumerate(graph.terms) if i not in single and len(term)]
    pieces: list[Doubles] = [np.zeros(shape) for shape in objective.shapes]
    for group in groups:
        symmetric = [data.symmetric[i] for i in group]
        ridged = [data.ridged[i] for i in group]
        shapes = [objective.shapes[i] for i in group]
        if group is single:
            part, known = FeatureGraph(graph.n_states, tuple(graph.terms[i] for i in group)), labels
        else:
            part, known = graph.apart(group[0], labels)
            biases = [(1, n) for n in shapes[0][1:]]
            shapes += biases
            symmetric += [False] * len(biases)
            ridged += [False] * len(biases)
        piece = Objective(
            LabeledGraphs((part,), (known,), tuple(symmetric), tuple(ridged)), shapes,
            objective.l2 * len(data), objective.inference,
        )
        # A single example holds all factors: the mean over examples has the same minimum.
        found, _ = learn_graphs(
            piece, optimizer="lbfgs", max_iter=max_iter, tol=tol * len(data)
        )
        for i, w in zip(group, found, strict=False):  # biases come behind
            pieces[i] = w

    def weighted(v: Doubles) -> Weights:
        return tuple(
            factor * w for factor, w in zip(spread(v), pieces, strict=True)
        )

    def spread(v: Doubles) -> Doubles:
        out = np.zeros(len(pieces))  # terms without factors have weights of 0
        for factor, group in zip(v, groups, strict=True):
            out[group] = factor
        return out

    unridged = Objective(data, objective.shapes, 0.0, objective.inference)

    def evaluate(v: Doubles, chosen: Sequence[int] | None) -> tuple[float, Doubles]:
        value, gradient = unridged(unridged.to_vector(weighted(v)), chosen)
        slopes = [
            float((g * w).sum())
            for g, w in zip(unridged.from_vector(gradient), pieces, strict=True)
        ]
        return value, np.array([sum(slopes[i] for i in group) for group in groups])

    v, course = descend(
        evaluate, np.ones(len(groups)), np.ones(len(groups)), optimizer, max_iter, tol,
        n_examples=len(data), **options,
    )
    return weighted(v), course, v
