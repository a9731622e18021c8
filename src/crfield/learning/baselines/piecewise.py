"""Piecewise training: the unary alone first, then the pairwise terms with the unary fixed."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from typing import Any

from crfield._core.validate import InputError
from crfield.dense.model import DenseCRF
from crfield.learning.baselines.scoring import choose_inference
from crfield.learning.learner import Learned, LearningReport, learn
from crfield.learning.objective import Example, Inference


def piecewise(
    model: DenseCRF,
    examples: Sequence[Example],
    *,
    groups: Sequence[str] = ("compat", "kernel"),
    inference: Inference | None = None,
    journal: str | os.PathLike[str] | None = None,
    **options: Any,
) -> Learned:
    """Learn the recalibration of a model without terms, then `groups` of the whole model.

    The report is that of the first stage followed by that of the second, each with its start.

    Parameters
    ----------
    model : where to start; examples and inference are as for `learn`.
    groups : what to learn in the second stage, "compat", "kernel" or both.
    journal : two files are kept, with ".unary" and ".pairwise" added to this name.
    options : what else `learn` takes, for both stages.
    """
    if not model.terms:
        raise InputError(
            "model must have pairwise terms, got none; add a Pairwise, or use learn with "
            'groups=("unary",).'
        )
    if "unary" in groups:
        raise InputError(
            f"groups of the second stage must be of 'compat' and 'kernel', got {tuple(groups)}; "
            "the unary has a stage of its own."
        )
    settings = choose_inference(inference)
    journals = (
        (None, None) if journal is None
        else (f"{os.fspath(journal)}.unary", f"{os.fspath(journal)}.pairwise")
    )
    # Without terms softmax(-u) is the answer before the first iteration.
    first = learn(
        dataclasses.replace(model, terms=()), examples, groups=("unary",),
        inference=dataclasses.replace(settings, n_iter=0), journal=journals[0], **options,
    )
    second = learn(
        dataclasses.replace(model, recalibration=first.model.recalibration), examples,
        groups=groups, inference=settings, journal=journals[1], **options,
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
    )
