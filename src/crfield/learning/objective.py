"""The loss of a model over a set of images, and its gradient by the parameter vector."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crfield import _native
from crfield._parallel import usable_cores
from crfield._validate import InputError
from crfield.dense import DenseCRF
from crfield.features import observe
from crfield.gradient import backpropagate
from crfield.learning.parameters import ModelGradient, Parameters, Vector
from crfield.losses import Loss, Totals
from crfield.meanfield import Problem, State, run_parallel
from crfield.metrics import confusion_matrix

Confusion = NDArray[np.int64]


class Example(Protocol):
    """One image to learn from: image (*grid[, C]), costs (*grid, L) and true labels (*grid)."""

    @property
    def image(self) -> Any: ...
    @property
    def unary(self) -> Any: ...
    @property
    def truth(self) -> Any: ...


@dataclass(frozen=True)
class Inference:
    """How marginals are computed while learning; the number of iterations is part of the model."""

    algorithm: str = "concave"
    filter: str = "auto"
    n_iter: int = 5


@dataclass(frozen=True)
class Evaluation:
    """What one image contributes."""

    totals: Totals
    confusion: Confusion
    gradient: ModelGradient | None


@dataclass(frozen=True)
class Point:
    """The objective at one parameter vector."""

    value: float
    loss: float
    gradient: Vector
    confusion: Confusion


def evaluate_image(
    model: DenseCRF, example: Example, loss: Loss, inference: Inference, totals: Totals | None,
    widths: bool, threads: int,
) -> Evaluation:
    """Infer on one image; go back through it if the totals of all images are given."""
    raw = np.asarray(example.unary)
    dtype = np.dtype(np.float64 if raw.dtype == np.float64 else np.float32)
    raw = np.ascontiguousarray(raw, dtype)
    grid, n_labels = raw.shape[:-1], raw.shape[-1]
    truth = np.asarray(example.truth).reshape(-1)
    observation = observe(grid, example.image)
    costs = model.recalibrate(raw).reshape(-1, n_labels)
    centred = np.empty_like(costs)
    _native.center_rows(costs, centred, threads)
    terms = model.build_terms(observation, dtype, inference.filter, 0.0, threads)
    backward = totals is not None
    problem = Problem(
        centred, terms, self_pairs=inference.algorithm == "concave",
        convex_self_pairs=inference.algorithm == "cccp", threads=threads, keep_states=backward,
    )
    trace: list[State] | None = [] if backward else None
    outcome = run_parallel(
        problem, init=None, max_iter=inference.n_iter, tol=-math.inf, guarded=False, trace=trace
    )
    q = outcome.marginals
    void = 255 if loss.void is None else loss.void
    confusion = confusion_matrix(truth, q.argmax(1), n_labels, void=void)
    own = loss.totals(q, truth)
    if trace is None or totals is None:
        return Evaluation(own, confusion, None)
    found = backpropagate(problem, trace, loss, truth, totals, widths=[widths] * len(terms))
    ones = np.ones((len(costs), 1), dtype)
    seen = np.concatenate([raw.reshape(-1, n_labels), ones], axis=1)
    gradient = ModelGradient(
        found.unary.T.astype(np.float64) @ seen,
        [np.asarray(g, np.float64) for g in found.compatibility],
        [
            np.zeros((0, 0)) if g is None or t.features is None
            else g.T.astype(np.float64) @ t.features
            for g, t in zip(found.features, terms, strict=True)
        ],
    )
    return Evaluation(own, confusion, gradient)


class Objective:
    """loss(x) + sum l2 (x - start)^2 over a set of examples; every call visits all of them.

    Images run in parallel through joblib (`n_jobs`), so that `joblib.parallel_config` can send them
    to a cluster; the sums are formed in the order of the examples, whatever finishes first.
    """

    def __init__(
        self, parameters: Parameters, examples: Sequence[Example], loss: Loss,
        inference: Inference, *, l2: dict[str, float] | None = None, n_jobs: int = 1,
    ) -> None:
        if len(examples) == 0:
            raise InputError("examples must hold at least one image, got none; check the split.")
        self.parameters = parameters
        self.examples = examples
        self.loss = loss
        self.inference = inference
        self.decay = parameters.decay(l2 or {})
        self.n_jobs = n_jobs
        self._threads = max(1, usable_cores() // max(1, n_jobs))

    def __call__(self, vector: Vector, indices: Sequence[int] | None = None) -> Point:
        """The objective at `vector`, over all examples or those of a mini-batch."""
        model = self.parameters.build(vector)
        chosen = range(len(self.examples)) if indices is None else indices
        if self.loss.separable:
            totals = sum(
                (
                    self.loss.weight_totals(
                        np.asarray(self.examples[i].truth).reshape(-1), model.n_labels
                    )
                    for i in chosen
                ),
                np.zeros(2),
            )
        else:
            forward = self._visit(model, chosen, None)
            totals = np.sum([entry.totals for entry in forward], axis=0)
        entries = self._visit(model, chosen, totals)
        gradient = reduce(operator.add, [entry.gradient for entry in entries if entry.gradient])
        grid_dim = np.asarray(self.examples[chosen[0]].truth).ndim
        away = vector - self.parameters.start
        loss = self.loss.value(np.sum([entry.totals for entry in entries], axis=0))
        return Point(
            value=loss + float((self.decay * away**2).sum()),
            loss=loss,
            gradient=self.parameters.chain(vector, gradient, grid_dim) + 2.0 * self.decay * away,
            confusion=np.sum([entry.confusion for entry in entries], axis=0),
        )

    def _visit(
        self, model: DenseCRF, chosen: Sequence[int], totals: Totals | None
    ) -> list[Evaluation]:
        widths = "kernel" in self.parameters.groups
        arguments = (self.loss, self.inference, totals, widths, self._threads)
        if self.n_jobs == 1:
            return [evaluate_image(model, self.examples[i], *arguments) for i in chosen]
        from joblib import Parallel, delayed

        # Threads, because the work is in compiled code that releases the lock; a cluster's backend
        # takes precedence over the hint.
        return list(
            Parallel(n_jobs=self.n_jobs, prefer="threads")(
                delayed(evaluate_image)(model, self.examples[i], *arguments) for i in chosen
            )
        )
