"""How far learning may move a whole model from its start: the ridge, chosen by folds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crfield._core.optimize import Batches, Vector, minimize
from crfield.datasets.shrunk import Shrunk, fitting_factor
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF
from crfield.learning.folds import Choice, Told, bundled, choose
from crfield.learning.losses import Loss
from crfield.learning.objective import (
    N_FOLDS,
    DatasetObjective,
    Example,
    Point,
    check_whole,
    count_labels,
    visit,
    with_inference,
)
from crfield.learning.parameters import Parameters, ridge_for_one
from crfield.metrics import Counts

# Ridges from strong to weak, for one image; each is divided by the number of images.
STRENGTHS = (0.2, 0.02, 0.002)
# Enough to tell ridges apart: so many images of so many pixels, and so many iterations with each.
_MOST_IMAGES, _MOST_PIXELS, _ITERATIONS = 120, 6000, 5

Evaluate = Callable[[DatasetObjective, Vector], Point]


class Start(Protocol):
    """Where to begin, for any part of the images."""

    def learned_from(self, images: Sequence[int]) -> DenseCRF:
        """The start that knows nothing of the images but these."""


@dataclass(frozen=True)
class Fixed:
    """A start that depends on no image."""

    model: DenseCRF

    def learned_from(self, images: Sequence[int]) -> DenseCRF:
        """The model."""
        return self.model


@dataclass(frozen=True)
class Trial:
    """What the runs within the folds share with the one on all images.

    evaluate : the objective at a vector, from the checkpoint while that has it.
    told : how far the choice is.
    """

    n_labels: int
    learn: Sequence[str]
    loss: Loss
    inference: Inference
    optimizer: str
    project: bool
    n_jobs: int
    evaluate: Evaluate
    told: Told


def choose_strength(
    start: Start, examples: Sequence[Example], folds: NDArray[np.intp], trial: Trial
) -> tuple[float | None, Choice]:
    """The strongest ridge, for one image, that images of other folds support, and what was tried;
    None keeps the start as it is.

    folds : (N,) the fold of each example.
    """
    looked_at = np.linspace(0, len(examples) - 1, min(len(examples), _MOST_IMAGES)).astype(int)
    for index in looked_at:
        check_whole(trial.n_labels, examples[int(index)])
    shapes = [np.shape(examples[int(index)].truth) for index in looked_at[:N_FOLDS]]
    factor, grid_dim = fitting_factor(shapes, _MOST_PIXELS), len(shapes[0])
    shrunk = Shrunk(examples, factor)
    small = [shrunk[int(index)] for index in looked_at]
    levels = (None, *STRENGTHS)
    # Without widths an evaluation takes little more than half the time, and tells the same.
    learn = [group for group in trial.learn if group != "kernel"] or trial.learn
    counts: list[list[Counts]] = [[np.zeros(0, np.int64)] * len(small) for _ in levels]
    for number in range(N_FOLDS):
        known = np.flatnonzero(folds != number)
        model = start.learned_from(known.tolist()).rescaled(1 / factor, grid_dim)
        is_known = folds[looked_at] != number
        inside, outside = np.flatnonzero(is_known), np.flatnonzero(~is_known)
        parameters = Parameters(
            with_inference(model, trial.inference), learn, project=trial.project
        )
        vector = parameters.start
        for step, (level, found) in enumerate(zip(levels, counts, strict=True)):
            trial.told("ridge", number * len(levels) + step, N_FOLDS * len(levels))
            if level is not None:
                vector = _descend(DatasetObjective(
                    parameters, [small[i] for i in inside], trial.loss, trial.inference,
                    l2=ridge_for_one(level, len(inside)), n_jobs=trial.n_jobs,
                ), vector, trial)
            of_fold = visit(
                count_labels, parameters.build(vector), small, outside,
                (trial.inference, trial.loss.void), trial.n_jobs,
            )
            for index, confusion in zip(outside, of_fold, strict=True):
                found[index] = confusion
    names = ["the start", *(f"{level:g}" for level in STRENGTHS)]
    choice = choose("ridge for one image", names, [bundled(found) for found in counts])
    return levels[choice.chosen], choice


def _descend(objective: DatasetObjective, vector: Vector, trial: Trial) -> Vector:
    """The best vector after some iterations from this one."""
    best: list[Any] = [np.inf, vector]

    def slope(x: Vector, _: Sequence[int] | None) -> tuple[float, Vector]:
        point = trial.evaluate(objective, x)
        if point.value < best[0]:
            best[:] = point.value, x.copy()
        return point.value, point.gradient

    minimize(
        slope, vector, trial.optimizer, max_iter=_ITERATIONS, callback=lambda _: False,
        batches=Batches(1), scale=objective.parameters.scale,
    )
    return np.asarray(best[1])
