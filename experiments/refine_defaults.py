"""Constants for `crfield.refine`: the best of a grid on some images, reported on others.

Hard labels: a network's predictions on voc_sbd100, searched on the first 50 images, reported on the
last 50. Probabilities: msrc21's unaries, searched on learn.txt, reported on eval.txt. Widths are in
pixels of these images. What was computed is kept in cache/ and not computed again.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

import crfield
from crfield import Inference
from crfield.datasets import FolderDataset
from crfield.learning.objective import Example
from crfield.metrics import mean_iou
from experiments.common import (
    MEAN_IOU,
    REPOSITORY,
    VOC_LABELS,
    markdown_table,
    parse_data_folder,
    provenance,
    report,
)
from experiments.msrc21_learning import DESCRIPTION as MSRC
from experiments.rows import HEADER, Row, Rows, difference

VOC = {"n_labels": VOC_LABELS, "unaries": {"folder": "psp_pred", "kind": "labels"}}
CONFIDENCES = (0.7, 0.9)
ALONE = "network alone"
SHOWN = 8
N_SCORES = 4  # columns of HEADER: a name, mean IoU, pixels, classes
CACHE = REPOSITORY / "experiments" / "cache" / "refine_defaults"


@dataclass(frozen=True)
class Constants:
    """What `refine` needs beside its input; `confidence` for hard labels only."""

    spatial: float
    spatial_weight: float
    bilateral: tuple[float, float]
    bilateral_weight: float
    confidence: float | None = None

    def refine(self, example: Example) -> NDArray[np.integer[Any]]:
        """Labels of `refine` for the hard labels of an example, or for its probabilities."""
        given: Any = network_labels(example)
        if self.confidence is None:
            given = np.exp(-np.asarray(example.unary))
            given /= given.sum(-1, keepdims=True)
        return np.asarray(crfield.refine(example.image, given, threads=1, **self.options()).labels)

    def options(self) -> dict[str, Any]:
        """As arguments of `refine`."""
        return {key: value for key, value in asdict(self).items() if value is not None}

    def describe(self) -> str:
        """In a table cell."""
        pixels, color = self.bilateral
        words = (
            f"spatial {self.spatial:g} px x {self.spatial_weight:g}, bilateral {pixels:g} px / "
            f"{color:g} x {self.bilateral_weight:g}"
        )
        return words if self.confidence is None else f"{words}, confidence {self.confidence:g}"


CUSTOMARY, CUSTOMARY_CONFIDENCE = Constants(3.0, 3.0, (80.0, 13.0), 10.0), 0.7
# Those of `refine` for images of this size.
OF_LABELS = Constants(3.0, 3.0, (30.0, 5.0), 6.0, 0.9)
OF_PROBABILITIES = Constants(3.0, 3.0, (60.0, 8.0), 3.0)


def network_labels(example: Example) -> NDArray[np.integer[Any]]:
    """The labels before refinement."""
    return np.asarray(np.argmin(example.unary, axis=-1))


def grid(confidences: tuple[float | None, ...]) -> list[Constants]:
    """The constants that are tried."""
    return [
        Constants(3.0, 3.0, (pixels, color), weight, confidence)
        for pixels, color, weight, confidence in product(
            (30.0, 60.0), (3.0, 5.0, 8.0), (3.0, 6.0, 10.0), confidences
        )
    ]


def table(rows: list[Row]) -> str:
    """The scores of some rows."""
    return markdown_table(HEADER[:N_SCORES], [row.cells()[:N_SCORES] for row in rows])


def search(
    name: str, chosen_on: FolderDataset, reported_on: FolderDataset, own: Constants, jobs: int
) -> list[str]:
    """The paragraphs on one kind of input, for which `refine` has constants of its own."""
    here, there = (
        Rows(CACHE / name / part, examples, examples.n_labels, Inference(), jobs)
        for part, examples in (("chosen_on", chosen_on), ("reported_on", reported_on))
    )
    hard = own.confidence is not None
    customary = replace(CUSTOMARY, confidence=CUSTOMARY_CONFIDENCE if hard else None)
    tried = {
        entry: here.other(entry.describe(), entry.refine)
        for entry in grid(CONFIDENCES if hard else (None,))
    }
    order = sorted(tried, key=lambda entry: -mean_iou(tried[entry].confusions.sum(0)))
    alone = there.other(ALONE, network_labels)
    words = {customary: "customary", own: "`refine`"}
    words[order[0]] = "best of the grid" if order[0] != own else "`refine`, best of the grid"
    rows = [
        replace(there.other(x.describe(), x.refine), name=f"{word}: {x.describe()}")
        for x, word in words.items()
    ]
    n_occurring = np.count_nonzero(alone.confusions.sum(axis=(0, 2)))
    return [
        f"## {name}",
        f"On {len(chosen_on)} images, the best of {len(tried)}:",
        table([here.other(ALONE, network_labels), *(tried[entry] for entry in order[:SHOWN])]),
        f"On {len(reported_on)} others, whose truth shows {n_occurring} of "
        f"{reported_on.n_labels} labels:",
        table([alone, *rows]),
        "\n".join(f"- {difference(row, alone, seed=0)}" for row in rows),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="images at a time")
    arguments = parse_data_folder(parser, "voc_sbd100", "msrc21")
    voc = FolderDataset(arguments.data / "voc_sbd100", "list", description=VOC)
    learn, evaluate = (
        FolderDataset(arguments.data / "msrc21", split, description=MSRC)
        for split in ("learn", "eval")
    )
    paragraphs = [
        *search("Hard labels", voc[:50], voc[50:], OF_LABELS, arguments.jobs),
        *search("Probabilities", learn, evaluate, OF_PROBABILITIES, arguments.jobs),
    ]
    report("Constants of `refine`", paragraphs, provenance() | MEAN_IOU)


if __name__ == "__main__":
    main()
