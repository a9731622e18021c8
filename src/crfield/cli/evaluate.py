"""`crfield evaluate`: the scores of a model on images with true labels."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError
from crfield.cli.data import add_dataset, open_dataset
from crfield.cli.jobs import output_folder
from crfield.dense.model import DenseCRF
from crfield.io.images import write_labels
from crfield.metrics import (
    class_accuracy,
    confusion_matrix,
    iou_per_label,
    mean_iou,
    pixel_accuracy,
)


def add_command(commands: Any) -> None:
    """Add the subcommand `evaluate`."""
    parser = commands.add_parser(
        "evaluate", help="score a model on images with true labels",
        description="Score a model, and its input alone, on a split of a data set, and write what "
        "it finds if asked.",
    )
    parser.add_argument("model", type=Path, metavar="MODEL", help="file written by learn")
    add_dataset(parser)
    parser.add_argument("--max-iter", type=int, metavar="N",
                        help="iterations of inference (default: those the model was learned with)")
    parser.add_argument("--algorithm", choices=("concave", "cccp", "parallel"),
                        help="of inference (default: the one the model was learned with)")
    parser.add_argument("-o", "--output", type=Path, metavar="FOLDER",
                        help="also write the labels that the model finds, one file per image")
    parser.add_argument("--json", action="store_true", help="print the scores as JSON")
    parser.set_defaults(run=run_evaluate)


def run_evaluate(arguments: argparse.Namespace) -> int:
    """Print the scores of the model and of its input."""
    if arguments.model.is_dir() and arguments.dataset.is_file():
        raise InputError(
            f"expected MODEL and then DATASET, got the folder {arguments.model} first; swap them."
        )
    model = DenseCRF.load(arguments.model)
    dataset = open_dataset(arguments, arguments.split)
    if model.n_labels != dataset.n_labels:
        raise InputError(
            f"{arguments.model} has {model.n_labels} labels, the data set {dataset.n_labels}; "
            "use a model learned for these labels."
        )
    folder = None if arguments.output is None else output_folder(arguments.output)
    n = model.n_labels
    confusions = {name: np.zeros((n, n), np.int64) for name in ("input", "model")}
    for example in dataset:
        result = model.infer(
            example.image, example.unary, algorithm=arguments.algorithm,
            max_iter=arguments.max_iter, tol=0.0, spacing=example.spacing,
        )
        found = {"input": np.asarray(example.unary).argmin(-1), "model": result.labels}
        if folder is not None:
            suffix = ".png" if result.labels.ndim == 2 else ".npy"
            write_labels(folder / f"{example.name}_refined{suffix}", result.labels)
        for name, labels in found.items():
            confusions[name] += confusion_matrix(example.truth, labels, n, void=dataset.void)
    scores = {name: _scores(confusion, dataset.class_names) for name, confusion in
              confusions.items()}
    if arguments.json:
        print(json.dumps(scores, indent=1))
        return 0
    for name, entry in scores.items():
        print(
            f"{name:>6}: mean IoU {entry['mean_iou']:6.2f} %   pixel accuracy "
            f"{entry['pixel_accuracy']:6.2f} %   class accuracy {entry['class_accuracy']:6.2f} %"
        )
    return 0


def _scores(confusion: NDArray[np.int64], names: Sequence[str]) -> dict[str, Any]:
    per_label = iou_per_label(confusion)
    return {
        "mean_iou": 100 * mean_iou(confusion),
        "pixel_accuracy": 100 * pixel_accuracy(confusion),
        "class_accuracy": 100 * class_accuracy(confusion),
        "iou": {
            name: None if np.isnan(value) else 100 * float(value)
            for name, value in zip(names, per_label, strict=True)
        },
    }
