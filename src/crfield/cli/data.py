"""The data set that `crfield learn` and `crfield evaluate` read."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from crfield._core.validate import InputError
from crfield.datasets import FolderDataset
from crfield.dense.inputs import LAYOUTS


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a data set."""
    add = parser.add_argument
    add("dataset", nargs="?", type=Path, metavar="DATASET",
        help="folder of the data set (default: the one that holds the folder of --images)")
    add("--images", type=Path, metavar="DIR",
        help="folder of the images (default: images in DATASET)")
    add("--labels", type=Path, metavar="DIR",
        help="folder of the true labels, or masks of 0 and 255 (default: labels in DATASET)")
    add("--probabilities", "--probs", type=Path, metavar="DIR",
        help="folder of the classifier's output: probabilities or logits as .npy or .npz, also "
        "coarser than the image, or label images (default: unaries in DATASET)")
    add("--layout", choices=LAYOUTS,
        help="axes of the probabilities: (H, W, labels) or (labels, H, W) (default: recognized)")
    add("--logits", action="store_true",
        help="the probabilities are a network's scores before the softmax (default: recognized "
        "where some are below -0.5)")
    add("--split", metavar="NAME", help="NAME.txt in DATASET (default: every image)")
    add("--dataset-json", type=Path, metavar="FILE",
        help="description of the data set, in place of its dataset.json")


def open_dataset(
    arguments: argparse.Namespace, split: str | None, n_labels: int | None = None
) -> FolderDataset:
    """The data set that the arguments name, of which one split; `n_labels` as for `FolderDataset`.
    """
    return FolderDataset(
        arguments.dataset, split, images=arguments.images, labels=arguments.labels,
        probabilities=arguments.probabilities, layout=arguments.layout,
        logits=arguments.logits,
        description=arguments.dataset_json, n_labels=n_labels,
    )


def check_starts(dataset: FolderDataset) -> None:
    """Refuse a data set without what a model starts from."""
    if dataset.unary_kind in (None, "features"):
        raise InputError(
            f"a model starts from a classifier's output, got {dataset.unary_kind or 'none'}; name "
            "the folder of its probabilities with --probabilities."
        )


def files_read(arguments: argparse.Namespace, *datasets: FolderDataset | None) -> Iterator[Path]:
    """All files that the command reads of its data sets."""
    if arguments.dataset_json is not None:
        yield arguments.dataset_json
    for dataset in datasets:
        if dataset is not None:
            yield from dataset.files()
