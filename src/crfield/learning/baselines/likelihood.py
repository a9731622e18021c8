"""Approximate maximum likelihood of the label compatibilities (KK11 supplement, section 2).

With T the true labels, one-hot, Q the mean-field marginals and K_0 = K - diag(k) a term's kernel
without self-pairs, the log-likelihood l = -E(T) - log Z has

    dl / d(w mu) = 1/2 (-T'K_0 T + E_P[X'K_0 X])  ~  1/2 (-T'K_0 T + Q'K_0 Q),

entries of mu taken as independent. Tying mu(a, b) = mu(b, a) adds two of them, which is KK11 eq. 11
(whose last factor is Q_j(b)); for a = b eq. 11 counts every pair twice.

Pixels without a true label are in neither sum: their rows of T and of Q are 0. Estimating mu then
means matching the pairs of labels among labeled pixels, as many of them in T as in Q, so that the
entries of the gradient sum to 0 as they must: a constant added to mu changes nothing. Inference
still sees all pixels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from crfield._core.optimize import Vector
from crfield._core.validate import InputError, as_count, as_positive_number, as_scalar
from crfield.dense.filters import KernelOperator
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF
from crfield.learning.baselines.scoring import summed, visit_all
from crfield.learning.learner import Learned, LearningReport, ridge_of
from crfield.learning.losses import customary_void, known_pixels
from crfield.learning.objective import (
    Confusion,
    Example,
    as_examples,
    settle,
    unroll,
    with_inference,
)
from crfield.learning.parameters import ModelGradient, Parameters
from crfield.metrics import as_label_map, confusion_matrix, mean_iou

# A step grows while its number keeps going one way and shrinks when it has gone too far.
_GROWTH, _SHRINKAGE, _LARGEST_STEP = 1.2, 0.5, 1.0


def approximate_likelihood(
    model: DenseCRF,
    examples: Sequence[Example],
    *,
    inference: Inference | None = None,
    l2: Mapping[str, float] | None = None,
    max_iter: int = 50,
    step_size: float = 0.2,
    tol: float = 1e-3,
    project: bool = True,
    n_jobs: int = 1,
    callback: Callable[[int, LearningReport], Any] | None = None,
) -> Learned:
    """Climb the approximate log-likelihood per pixel by the compatibilities, kernels held fixed.

    dl / dmu ~ 1/2 (-T'K_0 T + Q'K_0 Q), T the truth, Q the marginals, K_0 the kernel without
    self-pairs (KK11 supplement, eq. 11).

    Its value is intractable, so that no line search is possible: every number has a step of its
    own, which follows the sign of the gradient alone. The report's losses stay empty and the last
    iterate is returned.

    Parameters
    ----------
    model : where to start; each term keeps its family, Potts, diagonal or symmetric.
    l2 : ridge towards the start for "compatibility" and "off_diagonal", as in `learn`.
    step_size : the first step, in logarithms of Potts weights and attractions and in entries of a
        symmetric mu.
    tol : stop when all steps are smaller.
    project : keep symmetric compatibilities within the convergence guarantee.
    callback : called as callback(iteration, report) after each iteration; True stops.
    """
    if not model.terms:
        raise InputError("model must have pairwise terms, got none; add a Pairwise to learn.")
    as_examples(examples)
    iterations = as_count(max_iter, "max_iter", 0)
    smallest = as_scalar(tol, "tol")
    settled = settle(inference, model)
    parameters = Parameters(
        with_inference(model, settled), ("compatibility",), project=project
    )
    decay = parameters.decay(ridge_of(l2, len(examples)))
    vector = parameters.start
    steps = np.full(vector.shape, as_positive_number(step_size, "step_size"))
    before = np.zeros_like(vector)
    report = LearningReport()
    while True:
        report.best_model = current = parameters.build(vector)
        found, counts = likelihood_gradient(current, examples, settled, n_jobs=n_jobs)
        uphill = parameters.chain(vector, found, 0) / counts.sum()
        uphill -= 2.0 * decay * (vector - parameters.start)
        report.mean_ious.append(mean_iou(counts))
        report.gradient_norms.append(float(np.linalg.norm(uphill)))
        report.n_evaluations += 1
        report.best_iteration = iteration = len(report.mean_ious) - 1
        asked = callback is not None and bool(callback(iteration, report))
        if asked or iteration == iterations or steps.max() < smallest:
            return Learned(current, report)
        steps, before = _next_steps(steps, uphill, before)
        vector = vector + steps * np.sign(before)


def _next_steps(steps: Vector, uphill: Vector, before: Vector) -> tuple[Vector, Vector]:
    """How far each number goes next, and in which direction, 0 where it waits."""
    turned = uphill * before < 0
    grown = np.minimum(_GROWTH * steps, _LARGEST_STEP)
    steps = np.where(uphill * before > 0, grown, np.where(turned, _SHRINKAGE * steps, steps))
    # A number that has gone too far waits once, lest one turn be counted as two.
    return steps, np.where(turned, 0.0, uphill)


def likelihood_gradient(
    model: DenseCRF, examples: Sequence[Example], inference: Inference | None = None, *,
    n_jobs: int = 1,
) -> tuple[ModelGradient, Confusion]:
    """The approximate dl / d(w mu) (L, L) of each term, summed over examples, and label counts.

    Only the compatibilities have a gradient here; the other parts of `ModelGradient` are zero.
    """
    entries = visit_all(_image_gradient, model, examples, inference, n_jobs)
    n = model.n_labels
    by_term = [
        np.asarray(np.sum([found[m] for found, _ in entries], axis=0))
        for m in range(len(model.terms))
    ]
    gradient = ModelGradient(np.zeros((n, n + 1)), by_term, [np.zeros((0, 0)) for _ in by_term])
    return gradient, summed([counts for _, counts in entries])


def _image_gradient(
    model: DenseCRF, example: Example, inference: Inference
) -> tuple[list[Vector], Confusion]:
    run = unroll(model, example, inference, keep_states=False)
    void = customary_void(model.n_labels)
    known = known_pixels(example.truth, void)
    truth = as_label_map(example.truth, "truth", model.n_labels, ~known)
    labels = run.marginals.argmax(1).reshape(truth.shape)
    counts = confusion_matrix(truth, labels, model.n_labels, void=void)
    q = run.marginals * known.reshape(-1, 1)
    t = np.zeros_like(q)
    t[np.flatnonzero(known), truth[known]] = 1.0
    operators = [term.operator for term in run.problem.terms]
    return [0.5 * (_pairs(operator, q) - _pairs(operator, t)) for operator in operators], counts


def _pairs(operator: KernelOperator, x: Any) -> Vector:
    """x'(K - diag k)x, the kernel-weighted number of ordered pairs of labels, (L, L)."""
    reached = operator.apply(x) - operator.diagonal()[:, None] * x
    return np.asarray(x.T.astype(np.float64) @ reached)
