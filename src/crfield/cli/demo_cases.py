"""What the parts of `crfield demo` share: refined samples, tables, and rows of pictures."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
from PIL import Image

import crfield
from crfield import datasets
from crfield.dense.model import DenseCRF
from crfield.metrics import confusion_matrix, mean_iou
from crfield.refinement import potts_model
from crfield.show import pictures
from crfield.unary.costs import CUSTOMARY_CONFIDENCE

PANEL_WIDTH = 320
INPUT_TITLES = {"labels": "coarse labels", "probabilities": "noisy probabilities"}
Labels = npt.NDArray[Any]


def customary_model(n_labels: int) -> DenseCRF:
    """The constants that most people use for this model."""
    return potts_model(
        n_labels, spatial=3.0, spatial_weight=3.0, bilateral=(80.0, 13.0), bilateral_weight=10.0
    )


@dataclass(frozen=True)
class Case:
    """A sample refined from one kind of input, given as labels or as probabilities."""

    sample: datasets.Sample
    input_name: str
    given: npt.NDArray[Any]
    result: Any
    milliseconds: float
    customary: Labels

    @property
    def slug(self) -> str:
        """Beginning of the names of this case's pictures."""
        return f"{self.sample.name}-{self.input_name}"

    @property
    def before(self) -> Labels:
        """The labels of the input."""
        return self.given if self.input_name == "labels" else self.given.argmax(axis=-1)

    def iou(self, labels: Labels) -> float:
        """Mean intersection over union of `labels` with the true ones."""
        return mean_iou(confusion_matrix(self.sample.mask, labels, self.sample.n_labels))


def refine_case(sample: datasets.Sample, input_name: str, given: npt.NDArray[Any]) -> Case:
    """Refine one input with refine()'s constants, and with the customary ones for comparison."""
    start = time.perf_counter()
    result = crfield.refine(sample.image, given)
    milliseconds = 1000 * (time.perf_counter() - start)
    customary = crfield.refine(
        sample.image, given, model=customary_model(sample.n_labels),
        confidence=CUSTOMARY_CONFIDENCE,
    )
    return Case(sample, input_name, given, result, milliseconds, customary.labels)


def refine_scene(scene: datasets.Scene) -> Case:
    """Refine the probabilities of a made-up scene."""
    return refine_case(scene, "probabilities", scene.probabilities)


def comparison(
    case: Case, panels: dict[str, Labels | None], width: int | None = None, titled: bool = True
) -> Image.Image:
    """Label maps over the case's image in a row, with their scores; None is the image itself."""
    image, drawn = case.sample.image, []
    for labels in panels.values():
        panel = Image.fromarray(image) if labels is None else pictures.overlay(image, labels)
        if width is not None:
            size = (width, round(width * image.shape[0] / image.shape[1]))
            panel = panel.resize(size, Image.Resampling.LANCZOS)
        if labels is not None and labels is not case.sample.mask:
            panel = pictures.captioned(panel, f"IoU {case.iou(labels):.2f}")
        drawn.append(panel)
    return pictures.side_by_side(*drawn, titles=tuple(panels) if titled else ())
