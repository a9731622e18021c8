"""What the baselines share: visiting the examples, and the score of a model's labels on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from crfield._core.validate import InputError
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF
from crfield.learning.losses import VOID
from crfield.learning.objective import (
    Confusion,
    Example,
    Result,
    count_labels,
    settle,
    visit,
)
from crfield.metrics import class_accuracy, mean_iou, pixel_accuracy

METRICS: dict[str, Callable[[Confusion], float]] = {
    "iou": mean_iou,
    "accuracy": pixel_accuracy,
    "class_accuracy": class_accuracy,
}

def visit_all(
    function: Callable[..., Result], model: DenseCRF, examples: Sequence[Example],
    inference: Inference | None, n_jobs: int, *more: Any,
) -> list[Result]:
    """function(model, example, inference, *more) of every example, `n_jobs` at a time."""
    if len(examples) == 0:
        raise InputError("examples must hold at least one image, got none; check the split.")
    arguments = (settle(inference, model, n_jobs), *more)
    return visit(function, model, examples, range(len(examples)), arguments, n_jobs)


def confusion(
    model: DenseCRF, examples: Sequence[Example], inference: Inference | None, n_jobs: int = 1
) -> Confusion:
    """The (L, L) counts of true and inferred labels over all examples."""
    return summed(visit_all(count_labels, model, examples, inference, n_jobs, VOID))


def summed(counts: Sequence[Confusion]) -> Confusion:
    """The sum over examples, which must have labeled pixels."""
    total = np.asarray(np.sum(counts, axis=0), np.int64)
    if not total.any():
        raise InputError(
            "examples must have labeled pixels, got only void ones; check the true labels."
        )
    return total
