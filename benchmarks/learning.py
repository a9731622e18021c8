"""A loss and its gradient against one inference on the same image."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from benchmarks.cases import ITERATIONS, Bytes, Scale, check_case, photo_case, photo_labels
from benchmarks.measure import Candidates, Section, fastest, milliseconds, ratio, times
from crfield.dense.meanfield import Inference
from crfield.learning.losses import IntersectionOverUnion, LogLikelihood, Loss
from crfield.learning.objective import DatasetObjective
from crfield.learning.parameters import Parameters
from experiments.common import STANDARD, Float32

INFERENCE = "one inference"
LOSSES: dict[str, Loss] = {
    "log-likelihood": LogLikelihood(), "IoU": IntersectionOverUnion(),
}
LEARNED = {
    "unary, compatibility": ("unary", "compatibility"),
    "unary, compatibility, kernel": ("unary", "compatibility", "kernel"),
}


@dataclass(frozen=True)
class LabeledImage:
    """One image to learn from."""

    image: Bytes
    unary: Float32
    truth: Any


def loss_and_gradient(scale: Scale) -> Section:
    """What one evaluation costs a learner, in inferences."""
    section = Section("learning", "Loss and gradient against one inference, 1 thread")
    case = photo_case(scale.photo, scale.many_labels)
    if section.accepts(partial(check_case, case)) is None:
        return section
    example = LabeledImage(
        case.image, case.unary, photo_labels(scale.photo, scale.many_labels)
    )
    candidates: Candidates = {INFERENCE: case.infer}
    for loss_name, loss in LOSSES.items():
        for names, learn in LEARNED.items():
            parameters = Parameters(STANDARD.model(scale.many_labels), learn)
            objective = DatasetObjective(
                parameters, [example], loss, Inference(max_iter=ITERATIONS, threads=1)
            )
            point = objective(parameters.start)
            if not (np.isfinite(point.value) and np.isfinite(point.gradient).all()):
                section.refused.append(f"{loss_name}, {names}: not finite; not timed.")
                continue
            candidates[f"{loss_name}: {names}"] = partial(objective, parameters.start)
    seconds = fastest(candidates, scale.repeats)
    section.add_table(
        [case.name, "ms", "inferences"],
        [
            [name, milliseconds(took), times(ratio(took, seconds[INFERENCE]))]
            for name, took in seconds.items()
        ],
    )
    section.data.update(case=case.name, seconds=seconds)
    return section
