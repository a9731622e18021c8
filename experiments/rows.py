"""Rows of a results table: each is learned once, kept on disk, and scored image by image."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield import DenseCRF, Inference
from crfield.learning import LearningReport
from crfield.learning.objective import Example, visit
from crfield.metrics import (
    class_accuracy,
    confusion_matrix,
    mean_iou,
    paired_bootstrap,
    pixel_accuracy,
)

Confusions = NDArray[np.int64]
Infer = Callable[[Example], NDArray[np.integer[Any]]]


@dataclass(frozen=True)
class Row:
    """A model with what it cost and how it scores on each of the test images, (N, L, L)."""

    name: str
    model: DenseCRF | None
    n_evaluations: int
    confusions: Confusions

    def cells(self) -> list[str]:
        """Mean IoU, pixel and class accuracy and the number of evaluations, for a table."""
        total = self.confusions.sum(0)
        scores = (mean_iou(total), pixel_accuracy(total), class_accuracy(total))
        return [self.name, *(f"{100 * score:.2f}" for score in scores),
                str(self.n_evaluations or "-")]


N_RESAMPLES = 20_000  # 2000 leave the ends of an interval uncertain by 0.06 points
HEADER = ["", "mean IoU %", "pixels %", "classes %", "evaluations"]


class Rows:
    """Learns and scores rows; what is in `cache` is not computed again."""

    def __init__(
        self, cache: Path, test: Sequence[Example], n_labels: int, inference: Inference, jobs: int
    ) -> None:
        self.cache = cache
        self.test, self._n_labels, self._inference, self._jobs = test, n_labels, inference, jobs
        cache.mkdir(parents=True, exist_ok=True)

    def learned(
        self, name: str, make: Callable[[Path], tuple[DenseCRF, LearningReport]]
    ) -> Row:
        """The row of a model that make(checkpoint) learns, for the grid of the test images."""
        stem = self.cache / "".join(c if c.isalnum() else "_" for c in name)
        model_file, facts_file = stem.with_suffix(".safetensors"), stem.with_suffix(".json")
        if not facts_file.exists():
            model, report = make(stem.with_suffix(".checkpoint"))
            model.save(model_file)
            facts = {"n_evaluations": report.n_evaluations}
            facts_file.write_text(json.dumps(facts), encoding="utf-8")
        facts = json.loads(facts_file.read_text(encoding="utf-8"))
        return self._row(name, DenseCRF.load(model_file), facts)

    def fixed(self, name: str, model: DenseCRF) -> Row:
        """The row of a given model."""
        return self._row(name, model, {})

    def other(self, name: str, infer: Infer) -> Row:
        """The row of any function from an example to labels."""
        return self._row(name, None, {}, infer)

    def _row(
        self, name: str, model: DenseCRF | None, facts: dict[str, Any], infer: Infer | None = None
    ) -> Row:
        scores_file = self.cache / (
            "".join(c if c.isalnum() else "_" for c in name) + ".confusions.npy"
        )
        if not scores_file.exists():
            arguments = (self._inference, self._n_labels, infer)
            found = visit(
                _image_confusion, model or DenseCRF(self._n_labels), self.test,
                range(len(self.test)), arguments, self._jobs,
            )
            np.save(scores_file, np.stack(found))
        row = Row(name, model, facts.get("n_evaluations", 0), np.load(scores_file))
        print("  ".join(row.cells()), flush=True)
        return row


def difference(better: Row, worse: Row, seed: int) -> str:
    """Points of mean IoU between two rows, with the 95 % paired bootstrap interval."""
    points = [
        100 * value for value in
        paired_bootstrap(better.confusions, worse.confusions, n_resamples=N_RESAMPLES, seed=seed)
    ]
    return (
        f"{better.name} minus {worse.name}: {points[0]:+.2f} points of mean IoU, 95 % interval "
        f"{points[1]:+.2f} to {points[2]:+.2f}."
    )


def _image_confusion(
    model: DenseCRF, example: Example, inference: Inference, n_labels: int, infer: Infer | None
) -> Confusions:
    if infer is not None:
        labels = infer(example)
    else:
        labels = model.infer(
            example.image, example.unary, algorithm=inference.algorithm,
            max_iter=inference.max_iter, tol=0.0, threads=1, check=False,
        ).labels
    return confusion_matrix(example.truth, labels, n_labels)
