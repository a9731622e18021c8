"""`crfield evaluate`: the scores of a model on images with true labels."""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError
from crfield.cli.data import add_dataset, check_starts, files_read, open_dataset
from crfield.cli.jobs import output_folder
from crfield.cli.outputs import (
    check_free,
    check_no_input_is_replaced,
    check_not_among_inputs,
    reserved_folder,
)
from crfield.cli.tables import columns
from crfield.cli.words import say
from crfield.datasets import FolderDataset
from crfield.dense.model import DenseCRF
from crfield.dense.namespace import softmax
from crfield.io.images import write_labels
from crfield.learning.objective import check_labeled
from crfield.learning.report import label_names
from crfield.metrics import (
    boundary_counts,
    boundary_iou,
    calibration_counts,
    calibration_error,
    class_accuracy,
    confusion_matrix,
    iou_per_label,
    mean_iou,
    pixel_accuracy,
)

_SCORES = {
    "mean_iou": "mean IoU", "pixel_accuracy": "pixel accuracy", "class_accuracy": "class accuracy",
    "boundary_iou": "IoU of boundaries", "calibration_error": "calibration error",
}


def add_command(commands: Any) -> None:
    """Add the subcommand `evaluate`."""
    parser = commands.add_parser(
        "evaluate", help="score a model on images with true labels",
        description="Score a model, and its input alone, on a split of a data set, and write what "
        "it finds if asked.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="file written by learn")
    add_dataset(parser)
    parser.add_argument("--held-out", action="store_true",
                        help="only the images that learn holds out by itself")
    parser.add_argument("--max-iter", type=int, metavar="N",
                        help="iterations of inference (default: those the model was learned with)")
    parser.add_argument("--algorithm", choices=("concave", "cccp", "parallel"),
                        help="of inference (default: the one the model was learned with)")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER",
                        help="also write the labels that the model finds, one file per image")
    parser.add_argument("--overwrite", action="store_true", help="replace files that exist")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.set_defaults(run=run_evaluate)


def run_evaluate(arguments: argparse.Namespace) -> int:
    """Print the scores of the model and of its input."""
    if arguments.model.is_dir() and arguments.dataset and arguments.dataset.is_file():
        raise InputError(
            f"expected MODEL and then DATASET, got the folder {arguments.model} first; swap them."
        )
    model = DenseCRF.load(arguments.model)
    dataset = open_dataset(arguments, arguments.split, model.n_labels)
    check_starts(dataset)
    kept, held_out = dataset.hold_out()
    if arguments.held_out:
        dataset = _held_out(arguments, held_out)
    if model.n_labels != dataset.n_labels:
        raise InputError(
            f"{arguments.model} has {model.n_labels} labels, the data set {dataset.n_labels}; "
            "use a model learned for these labels."
        )
    with ExitStack() as held:
        folder = None if arguments.output is None else output_folder(arguments.output)
        if folder is not None:
            held.enter_context(reserved_folder(folder))
            _check_results(folder, arguments, dataset)
        counts = _counts(model, dataset, arguments, folder)
    check_labeled(counts["input"].confusion, "the data set")
    scores = {name: _scores(found, dataset.class_names) for name, found in counts.items()}
    if arguments.json:
        print(json.dumps(scores, indent=1))
        return 0
    shares = [entry["iou"].values() for entry in scores.values()]
    table = columns(("IoU, %", *scores), [
        (of_label, *("–" if share is None else f"{share:.2f}" for share in ious))
        for of_label, *ious in zip(label_names(dataset.class_names), *shares, strict=True)
    ], 1)
    for line in table.splitlines():
        say(line)
    if held_out and not (arguments.held_out or arguments.split):
        say(
            f"crfield: scored on all {len(dataset)} images, of which learn takes {len(kept)} "
            "unless told otherwise; --held-out scores on the others.", sys.stderr,
        )
    print(columns(("%", *scores), [
        (words, *("–" if entry[key] is None else f"{entry[key]:.2f}" for entry in scores.values()))
        for key, words in _SCORES.items()
    ], 1))
    return 0


def _held_out(arguments: argparse.Namespace, held_out: FolderDataset) -> FolderDataset:
    """The images that `crfield learn` holds out by itself."""
    if arguments.split or not held_out:
        raise InputError(
            "--held-out needs a data set of five images or more without --split, as learn does to "
            "hold any out; leave it out."
        )
    return held_out


def _check_results(folder: Path, arguments: argparse.Namespace, dataset: FolderDataset) -> None:
    """Refuse, before any work, results that would replace what they must not."""
    results = [
        folder / f"{name}{suffix}" for name in dataset.names for suffix in (".png", ".npy")
    ]
    inputs = itertools.chain([arguments.model], files_read(arguments, dataset))
    check_not_among_inputs(results[:2], dataset.searched())  # one of each suffix
    check_no_input_is_replaced(results, inputs)
    if not arguments.overwrite:
        for path in results:
            check_free(path)


@dataclass
class _Counts:
    """What is counted of all images, for the scores."""

    confusion: Any = 0
    boundary: Any = 0
    calibration: Any = 0

    def add(
        self, truth: NDArray[Any], marginals: NDArray[Any], labels: NDArray[Any],
        void: int | None,
    ) -> None:
        """Count an image, (*grid) with marginals (*grid, L)."""
        n = marginals.shape[-1]
        self.confusion = self.confusion + confusion_matrix(truth, labels, n, void)
        self.boundary = self.boundary + boundary_counts(truth, labels, n, void=void)
        self.calibration = self.calibration + calibration_counts(truth, marginals, void=void)


def _counts(
    model: DenseCRF, dataset: FolderDataset, arguments: argparse.Namespace, folder: Path | None
) -> dict[str, _Counts]:
    """What is counted of the input and of the model, whose labels go to a folder if there is one.
    """
    counts = {name: _Counts() for name in ("input", "model")}
    for example in dataset:
        result = model.infer(
            example.image, example.unary, algorithm=arguments.algorithm,
            max_iter=arguments.max_iter, tol=0.0, spacing=example.spacing,
        )
        if folder is not None:
            suffix = ".png" if result.labels.ndim == 2 else ".npy"
            write_labels(folder / f"{example.name}{suffix}", dataset.as_stored(result.labels))
        costs = np.asarray(example.unary)
        found = {
            "input": (
                softmax(-costs.reshape(-1, costs.shape[-1])).reshape(costs.shape),
                costs.argmin(-1),
            ),
            "model": (result.marginals, result.labels),
        }
        for name, (marginals, labels) in found.items():
            counts[name].add(example.truth, marginals, labels, dataset.void)
    return counts


def _scores(counts: _Counts, names: Sequence[str]) -> dict[str, Any]:
    confusion = counts.confusion
    per_label = iou_per_label(confusion)
    boundary = boundary_iou(counts.boundary)
    return {
        "mean_iou": 100 * mean_iou(confusion),
        "pixel_accuracy": 100 * pixel_accuracy(confusion),
        "class_accuracy": 100 * class_accuracy(confusion),
        "boundary_iou": None if np.isnan(boundary) else 100 * boundary,
        "calibration_error": 100 * calibration_error(counts.calibration),
        "iou": {
            name: None if np.isnan(value) else 100 * float(value)
            for name, value in zip(names, per_label, strict=True)
        },
    }
