"""What the baselines share: visiting the examples, and the score of a model's labels on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from crfield._core.validate import InputError
from crfield.dense.losses import VOID, ExpectedHamming
from crfield.dense.model import DenseCRF
from crfield.learning.objective import (
    Confusion,
    Example,
    Inference,
    Result,
    evaluate_image,
    threads_per_job,
    visit,
)
from crfield.metrics import class_accuracy, mean_iou, pixel_accuracy

METRICS: dict[str, Callable[[Confusion], float]] = {
    "iou": mean_iou,
    "accuracy": pixel_accuracy,
    "class_accuracy": class_accuracy,
}

def choose_inference(inference: Inference | None) -> Inference:
    """The given settings or the default ones."""
    return Inference() if inference is None else inference


def visit_all(
    function: Callable[[DenseCRF, Example, Inference, int], Result], model: DenseCRF,
    examples: Sequence[Example], inference: Inference, n_jobs: int,
) -> list[Result]:
    """function(model, example, inference, threads) of every example, `n_jobs` at a time."""
    if len(examples) == 0:
        raise InputError("examples must hold at least one image, got none; check the split.")
    arguments = (inference, threads_per_job(n_jobs))
    return visit(function, model, examples, range(len(examples)), arguments, n_jobs)


def confusion(
    model: DenseCRF, examples: Sequence[Example], inference: Inference, n_jobs: int = 1
) -> Confusion:
    """The (L, L) counts of true and inferred labels over all examples."""
    return summed(visit_all(_image_confusion, model, examples, inference, n_jobs))


def summed(counts: Sequence[Confusion]) -> Confusion:
    """The sum over examples, which must have labeled pixels."""
    total = np.asarray(np.sum(counts, axis=0), np.int64)
    if not total.any():
        raise InputError(
            "examples must have labeled pixels, got only void ones; check the true labels."
        )
    return total


def _image_confusion(
    model: DenseCRF, example: Example, inference: Inference, threads: int
) -> Confusion:
    loss = ExpectedHamming(void=VOID)  # evaluate_image wants one; only the counts are used
    return evaluate_image(model, example, loss, inference, None, (), threads).confusion
