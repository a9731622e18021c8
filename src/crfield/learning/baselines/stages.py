"""Piecewise training: the unary alone first, then the pairwise terms with the unary fixed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from crfield._core.validate import InputError
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF
from crfield.learning import learner
from crfield.learning.learner import Learned, LearningReport
from crfield.learning.objective import Example


def piecewise(
    model: DenseCRF,
    examples: Sequence[Example],
    *,
    learn: Sequence[str] = ("compatibility", "kernel"),
    inference: Inference | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Learned:
    """Learn the recalibration of a model without terms, then `learn` of the whole model.

    The report is that of the first stage followed by that of the second, each with its start.

    Parameters
    ----------
    model : where to start; examples and inference are as for `learn`.
    learn : what to learn in the second stage, "compatibility", "kernel" or both.
    checkpoint : two files are kept, with ".unary" and ".pairwise" added to this name.
    options : what else the function `learn` takes, for both stages.
    """
    if not model.terms:
        raise InputError(
            "model must have pairwise terms, got none; add a Pairwise, or use the function learn "
            'with learn=("unary",).'
        )
    if "unary" in learn:
        raise InputError(
            "learn must be of 'compatibility' and 'kernel' for the second stage, got "
            f"{tuple(learn)}; the unary has a stage of its own."
        )
    given = Inference() if inference is None else inference
    first_file, second_file = (
        None if checkpoint is None else os.fspath(checkpoint) + end
        for end in (".unary", ".pairwise")
    )
    # Without terms softmax(-u) is the answer before the first iteration.
    first = learner.learn(
        dataclasses.replace(model, terms=()), examples, learn=("unary",),
        inference=dataclasses.replace(given, max_iter=0), checkpoint=first_file, **options,
    )
    second = learner.learn(
        dataclasses.replace(model, recalibration=first.model.recalibration), examples,
        learn=learn, inference=given, checkpoint=second_file, **options,
    )
    return Learned(second.model, _joined(model, first.report, second.report))


def _joined(model: DenseCRF, first: LearningReport, second: LearningReport) -> LearningReport:
    """One report after the other, from `model` on; the best iterate is the second's."""
    return LearningReport(
        losses=first.losses + second.losses,
        mean_ious=first.mean_ious + second.mean_ious,
        gradient_norms=first.gradient_norms + second.gradient_norms,
        validation_ious=first.validation_ious + second.validation_ious,
        confusions=first.confusions + second.confusions,
        validation_confusions=first.validation_confusions + second.validation_confusions,
        n_evaluations=first.n_evaluations + second.n_evaluations,
        best_iteration=len(first.losses) + second.best_iteration,
        best_model=second.best_model,
        start_model=model,
        settings=second.settings,
        stopped=second.stopped,
    )
