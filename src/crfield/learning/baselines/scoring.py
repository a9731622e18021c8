"""What the baselines share: visiting the examples, and the score of a model's labels on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF
from crfield.learning.losses import customary_void
from crfield.learning.objective import (
    Confusion,
    Example,
    Result,
    as_examples,
    check_labeled,
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
    arguments = (settle(inference, model), *more)
    return visit(function, model, as_examples(examples), range(len(examples)), arguments, n_jobs)


def confusion(
    model: DenseCRF, examples: Sequence[Example], inference: Inference | None, n_jobs: int = 1
) -> Confusion:
    """The (L, L) counts of true and inferred labels over all examples."""
    void = customary_void(model.n_labels)
    return summed(visit_all(count_labels, model, examples, inference, n_jobs, void))


def summed(counts: Sequence[Confusion]) -> Confusion:
    """The sum over examples, which must have labeled pixels."""
    total = np.asarray(np.sum(counts, axis=0), np.int64)
    check_labeled(total)
    return total
