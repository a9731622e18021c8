"""Constants for `crfield.refine`, learned on one half of real data and reported on the other.

Hard labels: a network's predictions on voc_sbd100, the best of a grid on the first 50 images,
reported on the last 50; `refine` gives each image the labels that its map shows, so that no one
model could be learned by gradient on all of them. Probabilities: msrc21's unaries, learned on
learn.txt, reported on eval.txt. Two Potts weights and three widths are learned by gradient, with
the IoU loss, at half size, and rounded to two digits before they are reported.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import crfield
from crfield import Bilateral, DenseCRF, Inference, Potts, Spatial
from crfield.datasets import FolderDataset, Shrunk
from crfield.learning import learn
from crfield.learning.objective import Example
from crfield.metrics import confusion_matrix, mean_iou, pixel_accuracy
from crfield.refinement import potts_model
from experiments.common import (
    REPOSITORY,
    markdown_table,
    parse_data_folder,
    provenance,
    report,
)
from experiments.msrc21_learning import DESCRIPTION as MSRC

N_LABELS, SHRINK = 21, 2
INFERENCE = Inference(algorithm="concave", max_iter=10)  # as many as `refine` takes at most
CONFIDENCES = (0.7, 0.9)
SHOWN = 8
CACHE = REPOSITORY / "experiments" / "cache" / "refine_defaults"


@dataclass(frozen=True)
class Constants:
    """What `refine` needs beside its input."""

    spatial: float
    spatial_weight: float
    bilateral: tuple[float, float]
    bilateral_weight: float
    confidence: float | None = None

    def arguments(self) -> dict[str, Any]:
        """As arguments of `refine`."""
        given = {key: value for key, value in vars(self).items() if key != "confidence"}
        return given if self.confidence is None else {**given, "confidence": self.confidence}

    def describe(self) -> str:
        """In a table cell."""
        pixels, color = self.bilateral
        words = (
            f"spatial {self.spatial:g} px x {self.spatial_weight:g}, bilateral {pixels:g} px / "
            f"{color:g} x {self.bilateral_weight:g}"
        )
        return words if self.confidence is None else f"{words}, confidence {self.confidence:g}"


CUSTOMARY = Constants(3.0, 3.0, (80.0, 13.0), 10.0)
START = Constants(3.0, 3.0, (60.0, 8.0), 6.0)


def rounded(model: DenseCRF, confidence: float | None) -> Constants:
    """The constants of a learned model to two digits."""
    numbers = []
    for term in model.terms:
        kernel, compatibility = term.kernel, term.compatibility
        if isinstance(kernel, Spatial):
            numbers.append(kernel.sigma)
        elif isinstance(kernel, Bilateral):
            numbers += [kernel.sigma_xy, kernel.sigma_color]
        if isinstance(compatibility, Potts):
            numbers.append(compatibility.weight)
    width, weight, pixels, color, strength = (float(f"{number:.2g}") for number in numbers)
    return Constants(width, weight, (pixels, color), strength, confidence)


def learned(
    examples: Sequence[Example], name: str, confidence: float | None, jobs: int
) -> tuple[Constants, float]:
    """Constants from some examples, and the mean IoU there."""
    shrunk = Shrunk(examples, SHRINK)
    start = potts_model(N_LABELS, *list(START.arguments().values())[:4])
    CACHE.mkdir(parents=True, exist_ok=True)
    found = learn(
        start.rescaled(1 / SHRINK), [shrunk[i] for i in range(len(shrunk))],
        learn=("compatibility", "kernel"), inference=INFERENCE, optimizer="lbfgs", max_iter=10,
        n_jobs=jobs, checkpoint=CACHE / f"{name}.checkpoint",
    )
    best = found.report.mean_ious[found.report.best_iteration]
    constants = rounded(found.model.rescaled(SHRINK), confidence)
    print(f"{100 * best:.2f}  {constants.describe()}  {found.report.n_evaluations}", flush=True)
    return constants, best


def score(
    examples: Sequence[Example], constants: Constants | None, jobs: int
) -> NDArray[np.int64]:
    """The confusion matrix of `refine`, or of its input for None, over all examples."""

    def one(example: Example) -> NDArray[np.int64]:
        costs = np.asarray(example.unary)
        labels = costs.argmin(-1)
        if constants is not None and constants.confidence is not None:
            labels = crfield.refine(
                example.image, labels.astype(np.int64), threads=1, **constants.arguments()
            ).labels
        elif constants is not None:
            likely = np.exp(-costs)
            likely /= likely.sum(-1, keepdims=True)
            labels = crfield.refine(
                example.image, likely, threads=1, **constants.arguments()
            ).labels
        return confusion_matrix(example.truth, labels, N_LABELS)

    with ThreadPoolExecutor(jobs) as pool:
        return np.asarray(np.sum(list(pool.map(one, examples)), axis=0))


def table(
    examples: Sequence[Example], candidates: dict[str, Constants | None], jobs: int
) -> str:
    """Scores of some constants on images that they were not learned from."""
    rows = []
    for name, constants in candidates.items():
        confusion = score(examples, constants, jobs)
        words = name if constants is None else f"{name}: {constants.describe()}"
        rows.append([
            words, f"{100 * mean_iou(confusion):.2f}", f"{100 * pixel_accuracy(confusion):.2f}"
        ])
        print("  ".join(rows[-1]), flush=True)
    return markdown_table(["", "mean IoU %", "pixel accuracy %"], rows)


def hard_labels(folder: Path, jobs: int) -> list[str]:
    """The paragraphs on a network's hard labels."""
    dataset = FolderDataset(
        folder, "list",
        description={
            "n_labels": N_LABELS, "unaries": {"folder": "psp_pred", "kind": "labels"}
        },
    )
    half = [dataset[i] for i in range(len(dataset) // 2)]
    others = [dataset[i] for i in range(len(dataset) // 2, len(dataset))]
    customary = replace(CUSTOMARY, confidence=0.7)
    tried = []
    for pixels, color, weight, confidence in product(
        (30.0, 60.0), (3.0, 5.0, 8.0), (3.0, 6.0, 10.0), CONFIDENCES
    ):
        constants = Constants(3.0, 3.0, (pixels, color), weight, confidence)
        tried.append((mean_iou(score(half, constants, jobs)), constants))
        print(f"{100 * tried[-1][0]:.2f}  {constants.describe()}", flush=True)
    tried.sort(key=lambda entry: -entry[0])
    best = tried[0][1]
    return [
        "## Hard labels",
        f"Chosen on {len(half)} images, the best of {len(tried)}; mean IoU % there:",
        markdown_table(
            ["constants", "mean IoU %"],
            [[entry.describe(), f"{100 * value:.2f}"] for value, entry in tried[:SHOWN]],
        ),
        f"On {len(others)} other images:",
        table(others, {"network alone": None, "customary": customary, "chosen": best}, jobs),
    ]


def probabilities(folder: Path, jobs: int) -> list[str]:
    """The paragraphs on a network's probabilities."""
    learning = FolderDataset(folder, "learn", description=MSRC)
    best, value = learned([*learning], "probabilities", None, jobs)
    others = FolderDataset(folder, "eval", description=MSRC)
    candidates = {
        "network alone": None, "customary": CUSTOMARY, "start": START, "learned": best
    }
    return [
        "## Probabilities",
        f"Learned on {len(learning)} images, mean IoU {100 * value:.2f} % there at half size. On "
        f"{len(others)} other images at full size:",
        table(others, candidates, jobs),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="images at a time")
    arguments = parse_data_folder(parser, "voc_sbd100", "msrc21")
    begin = time.monotonic()
    paragraphs = hard_labels(arguments.data / "voc_sbd100", arguments.jobs)
    paragraphs += probabilities(arguments.data / "msrc21", arguments.jobs)
    facts = provenance()
    facts["this run"] = f"{(time.monotonic() - begin) / 60:.0f} minutes"
    report("Constants of `refine`", paragraphs, facts)


if __name__ == "__main__":
    main()
