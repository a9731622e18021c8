"""What learning did, as one HTML file that needs nothing else."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from crfield._core.atomic import atomic_path
from crfield._core.files import open_regular
from crfield._core.validate import (
    InputError,
    as_count,
    as_path,
    shown,
)
from crfield.learning.comparison import (
    compare_recalibrations,
    compare_terms,
    parameter_table,
    start_and_learned,
)
from crfield.learning.learner import Learned, LearningReport
from crfield.learning.losses import VOID
from crfield.learning.objective import Confusion, Example
from crfield.learning.results import compare_results
from crfield.metrics import iou_per_label, mean_iou
from crfield.show import svg as _svg
from crfield.show.page import (
    BEGIN,
    figure,
    heading,
    number,
    page,
    paragraph,
    row,
    table,
    tile,
)

# Settings of `learn` whose names do not explain themselves.
_SETTINGS = {
    "learn": "learned", "n_examples": "images", "max_iter": "iterations at most",
    "l2": "ridge towards the start", "project": "kept within the convergence guarantee",
}


def write_report(
    path: str | os.PathLike[str], learned: Learned, *, class_names: Sequence[str] | None = None,
    title: str = "Learned model", settings: Mapping[str, Any] | None = None, grid_dim: int = 2,
    examples: Sequence[Example] | None = None, examples_are: str = "images",
    void: int | None = VOID,
) -> dict[str, float]:
    """Write what learning did as one self-contained HTML file; it appears whole or not at all.
    Returns the mean IoU on the examples of "classifier", "default refine" and "learned".

    Parameters
    ----------
    path : the file to write.
    learned : what `learn` returned.
    title : of the page.
    class_names : a name for each label, by default their numbers.
    settings : further facts of the run to list, such as the data set.
    grid_dim : how many of a joint covariance's features are positions; 3 for volumes.
    examples : images, best those that were held out, on which the classifier, `refine` with its
        defaults and the model are scored, and of which six are shown.
    examples_are : what the page calls them.
    void : true label of pixels that do not count, None if there is none.
    """
    target = as_path(path)
    model, report = learned.model, learned.report
    names = label_names(_checked_names(class_names, model.n_labels))
    dim = as_count(grid_dim, "grid_dim")
    facts = {**(settings or {}), **report.settings, "evaluations": report.n_evaluations}
    means: dict[str, float] = {}
    results = ""
    if examples is not None:
        means, results = compare_results(model, examples, examples_are, names, void)
    document = page(title, [
        _summary(report),
        results,
        _choices(report),
        _curves(report),
        _agreement("Training images", report.confusions, report.best_iteration, names),
        _agreement("Validation images", report.validation_confusions, report.best_iteration, names),
        compare_terms(report.start_model, model, names, dim),
        compare_recalibrations(report.start_model, model, names, dim),
        parameter_table(report.start_model, model, dim),
        heading("Settings") + table((), [(_words(k), _in_words(v)) for k, v in facts.items()]),
    ])
    with atomic_path(target) as temporary:
        temporary.write_text(
            document, encoding="utf-8", errors="backslashreplace", newline="\n"
        )
    return means


def is_report(path: Path) -> bool:
    """Whether a file is a page that `write_report` has written."""
    with open_regular(path, "report") as stream:
        return stream.read(len(BEGIN)) == BEGIN.encode()


def label_names(class_names: Sequence[str]) -> list[str]:
    """What pages and tables call the labels: their names, or "label 3" of those that have none."""
    return [f"label {name}" if name.isdecimal() else name for name in class_names]


def _checked_names(class_names: Sequence[str] | None, n_labels: int) -> list[str]:
    if class_names is None:
        return [str(label) for label in range(n_labels)]
    if isinstance(class_names, str) or len(class_names) != n_labels:
        raise InputError(
            f"class_names must be {n_labels} names, one per label, got {shown(class_names)}; "
            "pass a list or None."
        )
    return [str(name) for name in class_names]


def _summary(report: LearningReport) -> str:
    kept = report.best_iteration
    tiles = [
        tile(name, f"{form(values[0])} → {form(values[kept])}")
        for name, values, form in (
            ("loss", report.losses, "{:.4f}".format),
            ("mean IoU, training", report.mean_ious, _percent),
            ("mean IoU, validation", report.validation_ious, _percent),
        )
        if kept < len(values)
    ]
    n_iterations = max(len(report.losses), len(report.mean_ious)) - 1
    if n_iterations >= 0:
        tiles.append(tile("iteration kept", f"{kept} of {n_iterations}"))
    return row(tiles)


def _choices(report: LearningReport) -> str:
    """What folds chose: for each choice its scores as a curve and as a table."""
    if not report.choices:
        return ""
    parts = [heading("Chosen by folds"), paragraph(
        "Each third of the images was scored with what was learned from the other two. The options "
        "go from the one that changes least to the one that changes most; the dashed line marks "
        "the one that was taken, the first that is not clearly behind the best."
    )]
    for choice in report.choices:
        scores = _svg.Curve("mean IoU", [100 * score for score in choice.scores])
        rows = [
            (option, _percent(score), "taken" if number == choice.chosen else "")
            for number, (option, score) in enumerate(
                zip(choice.options, choice.scores, strict=True)
            )
        ]
        parts += [heading(choice.what.capitalize(), 3), row([
            figure("mean IoU on the images left out, %", _svg.line_chart(
                [scores], mark=choice.chosen
            )),
            table((choice.what, "mean IoU", ""), rows),
        ])]
    return "".join(parts)


def _curves(report: LearningReport) -> str:
    ious = [_svg.Curve("training", [100 * v for v in report.mean_ious])]
    if report.validation_ious:
        held_out = [100 * v for v in report.validation_ious]
        ious.append(_svg.Curve("validation", held_out, _svg.OTHER))
    charts = {
        "loss": [_svg.Curve("loss", report.losses)],
        "mean IoU, %": ious,
        "norm of the gradient": [_svg.Curve("norm of the gradient", report.gradient_norms)],
    }
    figures = [
        figure(name, _svg.line_chart(curves, mark=report.best_iteration))
        for name, curves in charts.items()
        if curves[0].values
    ]
    rule = (
        "the one with the best mean IoU on the validation images" if report.validation_ious
        else "the one with the smallest loss, the ridge towards the start included"
    )
    explanation = paragraph(
        f"Iteration 0 is the start. The dashed line marks the iteration that was kept, {rule}."
    )
    return heading("Course of learning") + explanation + row(figures) if figures else ""


def _agreement(
    title: str, confusions: Sequence[Confusion], kept: int, names: Sequence[str]
) -> str:
    """The confusion matrix of the model that was kept, and IoU per label before and after."""
    if kept >= len(confusions):
        return ""
    before, after = confusions[0], confusions[kept]
    totals = after.sum(axis=1, keepdims=True)
    shares = np.where(totals > 0, 100.0 * after / np.maximum(totals, 1), np.nan)
    ious = [100 * iou_per_label(counts) for counts in (before, after)]
    means = [_percent(mean_iou(counts)) for counts in (before, after)]
    return (
        heading(title)
        + paragraph(f"Mean IoU {means[0]} at the start, {means[1]} with the model that was kept.")
        + row([
            figure(
                "confusion: a row is a true label, its entries the % that were given each label",
                _svg.heat_map(shares, names, names, limit=100.0, negative=False, unit="%"),
            ),
            figure(
                "IoU of each label, %",
                start_and_learned(names, *ious, width=460, decimals=1),
            ),
        ])
    )


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %" if math.isfinite(share) else "–"


def _words(name: str) -> str:
    return _SETTINGS.get(name, name.replace("_", " "))


def _in_words(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return ", ".join(f"{_words(name)} {_in_words(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_in_words, value))
    return number(value) if isinstance(value, float) else str(value)
