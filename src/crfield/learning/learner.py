"""Learn a model's parameters from images with true labels (KK13 section 4)."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from crfield._core.checkpoints import Checkpoint, digest
from crfield._core.optimize import DETERMINISTIC, OPTIMIZERS, Batches, Vector, minimize
from crfield._core.progress import shown_progress
from crfield._core.resources import drop_arenas
from crfield._core.validate import (
    as_array,
    as_choice,
    as_count,
    as_positive_number,
    as_scalar,
)
from crfield.dense.files import describe
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF
from crfield.learning.folds import Choice, Told, fold_numbers
from crfield.learning.losses import (
    CLASS_POWER,
    VOID,
    ExpectedHamming,
    IntersectionOverUnion,
    LogLikelihood,
    Loss,
    RobustLogLikelihood,
    class_weights,
    customary_void,
    known_pixels,
)
from crfield.learning.objective import (
    Confusion,
    DatasetObjective,
    Example,
    Point,
    as_examples,
    can_choose,
    check_labeled,
    count_labels,
    fingerprint,
    mean_size,
    settle,
    visit,
    with_inference,
)
from crfield.learning.parameters import Parameters, as_ridge, ridge_for_one
from crfield.learning.strength import Fixed, Start, Trial, choose_strength
from crfield.metrics import as_label_map, mean_iou

LOSSES: dict[str, type[Loss]] = {
    "log_likelihood": LogLikelihood,
    "robust": RobustLogLikelihood,
    "hamming": ExpectedHamming,
    "iou": IntersectionOverUnion,
}

# The ridge, for one image, where there are too few images to choose it by folds.
RIDGE_FOR_ONE_IMAGE = 0.02

# What of inference a checkpoint depends on.
_PART_OF_A_RUN = ("algorithm", "filter", "filter_tol", "max_iter")


@dataclass
class LearningReport:
    """The course of learning: one entry per iteration, the start included.

    losses, mean_ious : over the examples.
    gradient_norms : of the objective.
    validation_ious : over the validation set, if there is one.
    confusions, validation_confusions : (L, L) counts of each true label by each found one.
    n_evaluations : how often the objective was computed.
    best_iteration, best_model : the one returned.
    stopped : why learning ended.
    start_model : where learning began.
    choices : what folds chose before.
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
    choices: list[Choice] = field(default_factory=list)
    settings: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Learned:
    """The model that learning ended with, and a report of how it got there."""

    model: DenseCRF
    report: LearningReport


def make_loss(
    name: str, examples: Sequence[Example], n_labels: int, *, power: float = CLASS_POWER,
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
    for example in as_examples(examples):
        truth = as_array(example.truth, "truth").reshape(-1)
        known = truth[known_pixels(truth, void)]
        as_label_map(known, "truth", n_labels)
        counts += np.bincount(known, minlength=n_labels)[:n_labels]
    check_labeled(counts)
    return LOSSES[name](class_weights(counts, power), void)


def ridge_of(l2: Mapping[str, float] | None, n_examples: int) -> dict[str, float]:
    """The ridge of each group of parameters: what `l2` says, else what suits `n_examples` images.
    """
    usual = ridge_for_one(RIDGE_FOR_ONE_IMAGE, n_examples)
    return usual if l2 is None else {**usual, **as_ridge(l2)}


def learn(
    model: DenseCRF | Start,
    examples: Sequence[Example],
    *,
    loss: str | Loss = "iou",
    learn: Sequence[str] = ("compatibility", "kernel"),
    optimizer: str = "cg",
    inference: Inference | None = None,
    l2: Mapping[str, float] | str = "auto",
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
    checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True,
    callback: Callable[[int, LearningReport], Any] | None = None,
    progress: bool = False,
    told: Told = lambda *_: None,
) -> Learned:
    """Minimize a loss over the marginals of mean-field inference by the model's parameters.

    The gradient goes back through all updates, exactly (KK13 section 4, algorithm 1).

    Parameters
    ----------
    model : where to start; its compatibilities' families and its kernels are what is learned. Or
        what makes a start of any part of the images, such as `choose_start`.
    examples : a sequence of images with costs and true labels, looked up by index in every pass.
    loss : "iou" (over the whole set), "hamming", "robust", "log_likelihood", or a `Loss`.
    learn : what to learn, of "unary" (a recalibration of the costs, L (L + 1) numbers that overfit
        a few dozen images), "compatibility", "kernel" (widths) and "weight" (of the terms, which
        Potts weights make superfluous).
    optimizer : "cg", "gd", "lbfgs", "adam" or "sgd"; `max_iter` iterations or epochs. The last two
        take `batch_size` images at a time, in an order drawn from `seed`, and steps of `step_size`.
    inference : how marginals are computed, by default the model's algorithm, or "concave", with the
        model's number of iterations, or 5, on at most 4 threads per image. All iterations are done,
        whatever its `tol`: their number is part of the model.
    tol : stop when `patience` iterations together lower the objective by less than this share;
        0 never does.
    l2 : ridge towards the prior for each group of parameters and for "off_diagonal" of a symmetric
        compatibility, on changes in units of what each parameter typically changes by
        (`Parameters.scale`). With "auto" three folds of the images choose one ridge for all, or to
        stay at the start; fewer than six images, and more than 128 labels, get one that suits few
        images. Groups that are not named get the same.
    validation : examples to stop on; the iterate with the best mean IoU there is returned, and
        learning stops after `patience` iterations without a better one.
    n_jobs : images at a time, through joblib; what is learned does not depend on it.
    project : keep compatibilities within the convergence guarantee.
    prior : the model that the ridge pulls to instead of the start, for a start that was itself
        learned.
    checkpoint : a file that keeps every evaluation; a run that was killed and started again with
        the same arguments goes on from there, to the same result.
    resume : whether to go on from an existing checkpoint.
    callback : called as callback(iteration, report) after each iteration; True stops.
    progress : whether to show a bar of the iterations.
    told : called as told(what is chosen, steps done, steps in all) while folds choose.
    """
    as_examples(examples)
    if validation is not None:
        as_examples(validation, "validation")
    iterations = as_count(max_iter, "max_iter", 0)
    batches = Batches(
        len(examples), as_count(batch_size, "batch_size"),
        as_positive_number(step_size, "step_size"), as_count(seed, "seed", 0),
    )
    as_choice(optimizer, "optimizer", OPTIMIZERS)
    by_folds = isinstance(l2, str) and as_choice(l2, "l2", ("auto",)) == "auto"
    ridge = ridge_of(None if isinstance(l2, str) else l2, len(examples))
    is_fixed = isinstance(model, DenseCRF)
    given = model if isinstance(model, DenseCRF) else model.learned_from(range(len(examples)))
    settled = settle(inference, given)
    if given.size is None:
        given = replace(given, size=mean_size(examples))
    parameters = Parameters(with_inference(given, settled), learn, project=project, prior=prior)
    chosen = loss if isinstance(loss, Loss) else make_loss(
        loss, examples, given.n_labels, void=customary_void(given.n_labels)
    )
    settings = {
        "learn": list(learn), "context": list(given.context), "optimizer": optimizer,
        "loss": type(chosen).__name__,
        "inference": {name: getattr(settled, name) for name in _PART_OF_A_RUN},
        "n_examples": len(examples), "seed": batches.seed, "batch_size": batches.batch_size,
        "step_size": batches.step_size, "l2": "auto" if by_folds else ridge, "project": project,
        "tol": as_scalar(tol, "tol"),
    }
    evaluations = Evaluations(None if checkpoint is None else Checkpoint(
        checkpoint, {
            **settings, **_facts(chosen, examples, validation),
            # A start that was made of the data is told by them.
            "start": digest(*describe(given)) if is_fixed else "made of the data",
            "prior": None if prior is None else digest({}, {"prior": parameters.prior}),
        }, resume=resume,
    ))
    choices = list(getattr(model, "choices", ()))
    stays = False  # whether folds support no change of the start
    try:
        if by_folds and iterations and can_choose(examples):
            kind = optimizer if optimizer in DETERMINISTIC else "cg"
            trial = Trial(
                given.n_labels, learn, chosen, settled, kind, project, n_jobs, evaluations, told
            )
            strength, choice = choose_strength(
                Fixed(model) if isinstance(model, DenseCRF) else model, examples,
                fold_numbers(examples, batches.seed), trial,
            )
            choices.append(choice)
            ridge = ridge_for_one(strength or 0.0, len(examples))
            stays = strength is None
        run = _Run(
            DatasetObjective(parameters, examples, chosen, settled, l2=ridge, n_jobs=n_jobs),
            evaluations, validation, as_scalar(tol, "tol"), as_count(patience, "patience"),
        )
        run.report.settings = {**settings, "l2": ridge, "max_iter": max_iter}
        run.report.choices = choices
        bar = (
            shown_progress("iteration", iterations, callback) if progress
            else nullcontext(callback)
        )
        with bar as run.callback:
            if not run.watch(parameters.start) and stays:
                run.report.stopped = "folds of the images support no change of the start"
            elif not run.report.stopped and iterations:
                minimize(
                    run.slope, parameters.start, optimizer, max_iter=iterations,
                    callback=run.watch, batches=batches, scale=parameters.scale,
                )
    finally:
        drop_arenas()
    return run.result(iterations)


def _facts(
    loss: Loss, examples: Sequence[Example], validation: Sequence[Example] | None
) -> dict[str, Any]:
    """Data and loss, by which a run is told from others."""
    numbers = {
        f"loss.{name}": np.asarray(value).tolist() for name, value in vars(loss).items()
        if isinstance(value, int | float | np.ndarray)
    }
    return {
        "data": fingerprint(examples),
        "validation": None if validation is None else fingerprint(validation), **numbers,
    }


class Evaluations:
    """Objectives at vectors, from a checkpoint while that has them."""

    def __init__(self, checkpoint: Checkpoint | None) -> None:
        self._checkpoint = checkpoint
        self.count = 0

    def __call__(
        self, objective: DatasetObjective, vector: Vector, indices: Sequence[int] | None = None
    ) -> Point:
        """The objective at a vector, over all of its examples or those of a mini-batch."""
        self.count += 1
        known = None if self._checkpoint is None else self._checkpoint.recall(vector)
        if known is not None:
            (value, loss), gradient, counts = known
            n_labels = objective.parameters.model.n_labels
            confusion = counts.reshape(n_labels, n_labels).astype(np.int64)
            return Point(float(value), float(loss), gradient, confusion)
        point = objective(vector, indices)
        if self._checkpoint is not None:
            self._checkpoint.append(
                vector, [point.value, point.loss], point.gradient, point.confusion
            )
        return point


class _Run:
    """One run of `learn`: what was evaluated, how it goes, and whether it is time to stop."""

    def __init__(
        self, objective: DatasetObjective, evaluations: Evaluations,
        validation: Sequence[Example] | None, tol: float, patience: int,
    ) -> None:
        self.objective = objective
        self.evaluations = evaluations
        self.validation = validation
        self.tol, self.patience = tol, patience
        self.callback: Callable[..., Any] | None = None
        start = objective.parameters.build(objective.parameters.start)
        self.report = LearningReport(start_model=start)
        self._values: list[float] = []
        self._best = -np.inf
        # The last point over all examples, which is often asked for twice.
        self._latest: tuple[bytes, Point] | None = None

    def slope(self, vector: Vector, indices: Sequence[int] | None) -> tuple[float, Vector]:
        """Value and gradient, over all examples or those of a mini-batch."""
        point = self.evaluate(vector, indices)
        return point.value, point.gradient

    def evaluate(self, vector: Vector, indices: Sequence[int] | None) -> Point:
        """The objective at a vector."""
        key = vector.tobytes()
        if indices is None and self._latest is not None and self._latest[0] == key:
            return self._latest[1]
        point = self.evaluations(self.objective, vector, indices)
        self.report.n_evaluations = self.evaluations.count
        self._latest = (key, point) if indices is None else None
        return point

    def watch(self, vector: Vector) -> bool:
        """Report an iterate, keep it if it is the best; whether to stop."""
        report, values = self.report, self._values
        point = self.evaluate(vector, None)
        check_labeled(point.confusion)
        report.losses.append(point.loss)
        report.mean_ious.append(mean_iou(point.confusion))
        report.confusions.append(point.confusion)
        report.gradient_norms.append(float(np.linalg.norm(point.gradient)))
        values.append(point.value)
        score = -point.value if self.validation is None else self._validate(vector)
        if score > self._best:
            self._best = score
            report.best_iteration = len(values) - 1
            report.best_model = self.objective.parameters.build(vector)
        if self.callback is not None and self.callback(len(values) - 1, report):
            report.stopped = "callback asked for it"
        elif self.validation is None and _has_settled(values, self.tol, self.patience):
            report.stopped = (
                f"the last {self.patience} iterations gained less than {100 * self.tol:g} %"
            )
        elif self.validation is not None and (
            len(values) - 1 - report.best_iteration >= self.patience
        ):
            report.stopped = (
                f"the last {self.patience} iterations were no better on the validation set"
            )
        return bool(report.stopped)

    def result(self, max_iter: int) -> Learned:
        """The best iterate."""
        report = self.report
        assert report.best_model is not None
        if not report.stopped:
            at_limit = len(self._values) - 1 >= max_iter
            report.stopped = "max_iter was reached" if at_limit else "no step led further down"
        return Learned(report.best_model, report)

    def _validate(self, vector: Vector) -> float:
        """Mean IoU of the model's labels on the validation set."""
        assert self.validation is not None
        objective, n = self.objective, len(self.validation)
        counts = visit(
            count_labels, objective.parameters.build(vector), self.validation, range(n),
            (objective.inference, objective.loss.void), objective.n_jobs,
        )
        confusion = np.asarray(np.sum(counts, axis=0), np.int64)
        check_labeled(confusion, "validation")
        self.report.validation_ious.append(mean_iou(confusion))
        self.report.validation_confusions.append(confusion)
        return self.report.validation_ious[-1]


def _has_settled(values: Sequence[float], tol: float, patience: int) -> bool:
    """Whether the last `patience` iterations brought next to nothing."""
    if tol <= 0 or len(values) <= patience:
        return False
    before = min(values[:-patience])
    return before - min(values[-patience:]) < tol * abs(before)
