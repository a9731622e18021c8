"""Piecewise training of log-linear chains, and how well a model matches what was observed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from crfield.graphs.chain_learning import (
    ChainModel,
    Course,
    TrainingChains,
    descend,
    learn_chains,
    loss_of,
    observed_pairs,
    units_of,
)
from crfield.graphs.chains import Doubles, edge_starts
from crfield.graphs.engines.chains import sum_chains


@dataclass(frozen=True)
class Expectations:
    """Sums over the training data of the feature that belongs to each parameter.

    At the optimum observed - expected = ridge: without a ridge, the model expects what is observed.

    Attributes
    ----------
    observed : what the true labels have: (F, L) features by label, (L,) labels, (L, L) pairs.
    expected : the same under the model.
    ridge : the difference that the ridge explains.
    units : in which the differences are measured: 1, or for a feature with numbers beyond 1, or a
        ridge beyond it, less.
    n_chains : how many chains were summed over.
    """

    observed: ChainModel
    expected: ChainModel
    ridge: ChainModel
    units: ChainModel
    n_chains: int

    @property
    def largest_gap(self) -> float:
        """max units |observed - expected - ridge| a chain, the largest entry of the gradient."""
        gap = self.observed.to_vector() - self.expected.to_vector() - self.ridge.to_vector()
        return float(np.abs(self.units.to_vector() * gap).max()) / self.n_chains


@dataclass(frozen=True)
class Parts:
    """The weights (v_1, v_2) of piecewise training, and how they were found."""

    weights: tuple[float, float]
    course: Course


def match_expectations(
    model: ChainModel, data: TrainingChains, l2: float, threads: int | None = None
) -> Expectations:
    """Observed against expected features; l2 : that of `likelihood`."""
    n_states = len(model.bias)
    _, marginals, pairs = sum_chains(model.batch(data.features, data.offsets), 1.0, None, threads)
    truth = np.zeros_like(marginals)
    truth[np.arange(len(truth)), data.labels] = 1
    seen = observed_pairs(data.labels, edge_starts(data.offsets), n_states)
    factor = l2 * len(data)
    return Expectations(
        ChainModel(data.features.T @ truth, truth.sum(0), seen),
        ChainModel(data.features.T @ marginals, marginals.sum(0), pairs),
        ChainModel(
            factor * model.weights, np.zeros_like(model.bias), factor * model.transitions
        ),
        units_of(model, data, l2), len(data),
    )


def learn_piecewise(
    data: TrainingChains, n_states: int, *, l2: float, optimizer: str = "lbfgs",
    max_iter: int = 200, tol: float = 1e-5, threads: int | None = None, **options: Any,
) -> tuple[ChainModel, Course, Parts]:
    """Train the parts apart, then one weight for each part: v_1 (W, b) and v_2 A.

    W and b are those of a classifier of single nodes. A is the pointwise mutual information of
    successive labels, log p(k, l) - log p(k) - log p(l) with every pair counted once more than it
    occurs. Only v is learned with inference on chains, by "cg" where the optimizer is one of
    mini-batches. The course is that of the classifier, in sums over the nodes of a chain.
    """
    n_nodes = len(data.labels)
    nodes_a_chain = n_nodes / len(data)
    nodes = TrainingChains(data.features, data.labels, np.arange(n_nodes + 1, dtype=np.int64))
    start = ChainModel.zeros(data.features.shape[1], n_states)
    # The ridge weighs as much against all nodes as it would against all chains.
    unary, course = learn_chains(
        start, nodes, l2=l2 / nodes_a_chain, optimizer=optimizer, max_iter=max_iter,
        tol=tol / nodes_a_chain, threads=threads, **options,
    )
    course = Course(
        tuple(nodes_a_chain * value for value in course.values), nodes_a_chain * course.gap,
        course.converged,
    )
    pairs = observed_pairs(data.labels, edge_starts(data.offsets), n_states) + 1.0
    pairs /= pairs.sum()
    information = np.log(pairs) - np.log(pairs.sum(1))[:, None] - np.log(pairs.sum(0))
    parts = ChainModel(unary.weights, unary.bias, information)
    scores = -parts.batch(data.features, data.offsets).costs

    def evaluate(v: Doubles, _: Sequence[int] | None) -> tuple[float, Doubles]:
        loss = loss_of(scaled(parts, v).batch(data.features, data.offsets), data.labels, threads)
        by_v = [-(loss.by_costs * scores).sum(), -(loss.by_transitions * information).sum()]
        return loss.value / len(data), np.array(by_v) / len(data)

    batch = optimizer if optimizer in ("cg", "lbfgs") else "cg"
    # A part may be worth so much that one more of it changes everything: steps of about its size.
    size = np.array([max(1.0, float(np.abs(part).max())) for part in (scores, information)])
    v, course_of_v = descend(
        evaluate, np.ones(2), 1 / size, batch, max_iter, tol, n_examples=len(data)
    )
    return scaled(parts, v), course, Parts((float(v[0]), float(v[1])), course_of_v)


def scaled(parts: ChainModel, v: Doubles) -> ChainModel:
    """v_1 (W, b) and v_2 A."""
    return ChainModel(v[0] * parts.weights, v[0] * parts.bias, v[1] * parts.transitions)
