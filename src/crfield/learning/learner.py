"""Learn a model's parameters from images with true labels (KK13 section 4)."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crfield._core.arena import drop_arenas
from crfield._core.optimize import OPTIMIZERS, Batches, Vector, minimize
from crfield._core.validate import (
    InputError,
    as_array,
    as_choice,
    as_count,
    as_positive_number,
    as_scalar,
)
from crfield.dense.losses import (
    VOID,
    ExpectedHamming,
    IntersectionOverUnion,
    LogLikelihood,
    Loss,
    RobustLogLikelihood,
    class_weights,
)
from crfield.dense.model import DenseCRF
from crfield.learning.journal import Journal
from crfield.learning.objective import (
    Confusion,
    Example,
    Inference,
    Objective,
    Point,
    evaluate_image,
    fingerprint,
    threads_per_job,
    visit,
)
from crfield.learning.parameters import GROUPS, Parameters
from crfield.metrics import as_label_map, mean_iou

LOSSES: dict[str, type[Loss]] = {
    "log_likelihood": LogLikelihood,
    "robust": RobustLogLikelihood,
    "hamming": ExpectedHamming,
    "iou": IntersectionOverUnion,
}

# The ridge that one image's worth of evidence outweighs, on changes measured in each parameter's
# typical change; divided by the number of images. See experiments/results/msrc21_learning.md.
RIDGE_FOR_ONE_IMAGE = 0.02


@dataclass
class LearningReport:
    """The course of learning: one entry an iteration, the start included.

    losses, mean_ious : over the examples.
    gradient_norms : of the objective.
    validation_ious : over the validation set, if there is one.
    confusions, validation_confusions : (L, L) counts of each true label by each found one.
    n_evaluations : how often the objective was computed.
    best_iteration, best_model : the one returned.
    stopped : why learning ended.
    start_model : where learning began.
    settings : facts about the run.
    """

    losses: list[float] = field(default_factory=list)
    mean_ious: list[float] = field(default_factory=list)
    gradient_norms: list[float] = field(default_factory=list)
    validation_ious: list[float] = field(default_factory=list)
    confusions: list[Confusion] = field(default_factory=list)
    validation_confusions: list[Confusion] = field(default_factory=list)
    n_evaluations: int = 0
    best_iteration: int = 0
    best_model: DenseCRF | None = None
    stopped: str = ""
    start_model: DenseCRF | None = None
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Learned:
    """The model that learning ended with, and a report of how it got there."""

    model: DenseCRF
    report: LearningReport


def make_loss(
    name: str, examples: Sequence[Example], n_labels: int, *, power: float = 0.25,
    void: int | None = VOID,
) -> Loss:
    """A loss by name with class weights n_l^-power from the examples' labels.

    n_labels : number of labels L.
    void : the label of pixels that do not count.
    """
    as_choice(name, "loss", LOSSES)
    if name == "iou":
        return IntersectionOverUnion(void=void)
    counts = np.zeros(n_labels)
    for example in examples:
        truth = as_array(example.truth, "truth").reshape(-1)
        known = truth if void is None else truth[truth != void]
        as_label_map(known, "truth", n_labels)
        counts += np.bincount(known, minlength=n_labels)[:n_labels]
    return LOSSES[name](class_weights(counts, power), void)


def _hex(numbers: Any) -> list[str] | None:
    return None if numbers is None else [float(number).hex() for number in numbers]


def default_l2(n_examples: int) -> dict[str, float]:
    """The ridge of each group for `n_examples` images."""
    return dict.fromkeys((*GROUPS, "off_diagonal"), RIDGE_FOR_ONE_IMAGE / max(1, n_examples))


def learn(
    model: DenseCRF,
    examples: Sequence[Example],
    *,
    loss: str | Loss = "iou",
    groups: Sequence[str] = ("compat", "kernel"),
    optimizer: str = "cg",
    inference: Inference | None = None,
    l2: dict[str, float] | None = None,
    max_iter: int = 20,
    tol: float = 1e-2,
    patience: int = 5,
    validation: Sequence[Example] | None = None,
    n_jobs: int = 1,
    project: bool = True,
    prior: DenseCRF | None = None,
    batch_size: int = 8,
    step_size: float = 0.1,
    seed: int = 0,
    journal: str | os.PathLike[str] | None = None,
    resume: bool = False,
    progress: Callable[[int, LearningReport], Any] | None = None,
) -> Learned:
    """Minimize a loss over the marginals of mean-field inference by the model's parameters.

    The gradient goes back through all updates, exactly (KK13 section 4, algorithm 1).

    Parameters
    ----------
    model : where to start; its compatibilities' families and its kernels are what is learned.
    examples : images with costs and true labels; looked up by index in every pass.
    loss : "iou" (over the whole set), "hamming", "robust", "log_likelihood", or a `Loss`.
    groups : what to learn, of "unary" (a recalibration of the costs, L (L + 1) numbers that overfit
        a few dozen images), "compat", "kernel" (widths) and "weight" (of the terms, which Potts
        weights make superfluous).
    optimizer : "cg", "gd", "lbfgs", "adam" or "sgd"; `max_iter` iterations or epochs. The last two
        take `batch_size` images at a time, in an order drawn from `seed`, and steps of `step_size`.
    inference : how marginals are computed, by default `Inference()`.
    tol : stop when `patience` iterations together lower the objective by less than this share;
        0 never does.
    l2 : ridge towards the prior for each group and for "off_diagonal" of a symmetric compatibility,
        on changes in units of what each parameter typically changes by (`Parameters.scale`); by
        default it shrinks with the number of images.
    validation : examples to stop on; the iterate with the best mean IoU there is returned, and
        learning stops after `patience` iterations without a better one.
    n_jobs : images at a time, through joblib.
    project : keep compatibilities within the convergence guarantee.
    prior : the model that the ridge pulls to instead of the start, for a start that was itself
        learned.
    journal, resume : a file that records every evaluation, and whether to take up its run.
    progress : called as progress(iteration, report) after each iteration; True stops.
    """
    inference = Inference() if inference is None else inference
    iterations = as_count(max_iter, "max_iter", 0)
    enough = as_scalar(tol, "tol")
    patience, batch_size = as_count(patience, "patience"), as_count(batch_size, "batch_size")
    step_size, seed = as_positive_number(step_size, "step_size"), as_count(seed, "seed", 0)
    as_choice(optimizer, "optimizer", OPTIMIZERS)
    model = inference.kept_in(model)
    parameters = Parameters(model, groups, project=project, prior=prior)
    chosen = loss if isinstance(loss, Loss) else make_loss(loss, examples, model.n_labels)
    ridge = {**default_l2(len(examples)), **(l2 or {})}
    objective = Objective(parameters, examples, chosen, inference, l2=ridge, n_jobs=n_jobs)
    settings = {
        "groups": list(groups), "context": list(model.context), "optimizer": optimizer,
        "loss": type(chosen).__name__,
        "inference": dataclasses.asdict(inference), "n_examples": len(examples), "seed": seed,
        "batch_size": batch_size, "step_size": step_size, "l2": ridge, "project": project,
        "tol": enough,
    }
    purpose = {
        "format": "crfield.journal", "version": 3, **settings,
        "data": fingerprint(examples), "weights": _hex(chosen.weights), "void": chosen.void,
        "start": _hex(parameters.start), "prior": _hex(parameters.prior),
    }
    size = len(parameters.start)
    record = Journal(journal, purpose, size, model.n_labels, resume=resume)
    report = LearningReport(
        start_model=parameters.build(parameters.start), settings={**settings, "max_iter": max_iter}
    )
    latest: dict[bytes, Point] = {}  # the last point over all examples: often asked for twice
    values: list[float] = []
    best = -np.inf

    def evaluate(vector: Vector, indices: Sequence[int] | None) -> Point:
        known = latest.get(vector.tobytes()) if indices is None else None
        if known is not None:
            return known
        point = record.recall(vector)
        if point is None:
            point = objective(vector, indices)
            record.record(vector, point)
        report.n_evaluations += 1
        latest.clear()
        if indices is None:
            latest[vector.tobytes()] = point
        return point

    def slope(vector: Vector, indices: Sequence[int] | None) -> tuple[float, Vector]:
        point = evaluate(vector, indices)
        return point.value, point.gradient

    def watch(vector: Vector) -> bool:
        nonlocal best
        point = evaluate(vector, None)
        report.losses.append(point.loss)
        report.mean_ious.append(mean_iou(point.confusion))
        report.confusions.append(point.confusion)
        report.gradient_norms.append(float(np.linalg.norm(point.gradient)))
        score = -point.value
        if validation is not None:
            confusion = _validate(parameters.build(vector), validation, chosen, inference, n_jobs)
            if not confusion.any():
                raise InputError(
                    "validation must have labeled pixels, got only void ones; check the split."
                )
            score = mean_iou(confusion)
            report.validation_ious.append(score)
            report.validation_confusions.append(confusion)
        if score > best:
            best = score
            report.best_iteration = len(report.losses) - 1
            report.best_model = parameters.build(vector)
        values.append(point.value)
        asked = bool(progress(len(values) - 1, report)) if progress is not None else False
        if asked:
            report.stopped = "progress asked for it"
        elif validation is None and _has_settled(values, enough, patience):
            report.stopped = (
                f"the last {patience} iterations gained less than {100 * enough:g} %"
            )
        elif validation is not None and len(values) - 1 - report.best_iteration >= patience:
            report.stopped = f"the last {patience} iterations were no better on the validation set"
        return bool(report.stopped)

    try:
        if not watch(parameters.start) and iterations:
            minimize(
                slope, parameters.start, optimizer, max_iter=iterations, callback=watch,
                batches=Batches(len(examples), batch_size, step_size, seed),
                scale=parameters.scale,
            )
    finally:
        drop_arenas()
    assert report.best_model is not None
    if not report.stopped:
        at_limit = len(values) - 1 >= iterations
        report.stopped = "max_iter was reached" if at_limit else "no step led further down"
    return Learned(report.best_model, report)


def _has_settled(values: Sequence[float], tol: float, patience: int) -> bool:
    """Whether the last `patience` iterations brought next to nothing."""
    if tol <= 0 or len(values) <= patience:
        return False
    before = min(values[:-patience])
    return before - min(values[-patience:]) < tol * abs(before)


def _validate(
    model: DenseCRF, examples: Sequence[Example], loss: Loss, inference: Inference, n_jobs: int
) -> Confusion:
    """Confusion matrix of the model's labels on other images."""
    arguments = (loss, inference, None, (), threads_per_job(n_jobs))
    entries = visit(evaluate_image, model, examples, range(len(examples)), arguments, n_jobs)
    return np.asarray(np.sum([entry.confusion for entry in entries], axis=0), np.int64)
