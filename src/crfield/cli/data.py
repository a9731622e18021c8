"""The data set that `crfield learn` and `crfield evaluate` read."""

from __future__ import annotations

import argparse
from pathlib import Path

from crfield.datasets import FolderDataset


def add_dataset(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a data set."""
    parser.add_argument("dataset", type=Path, metavar="DATASET", help="folder of the data set")
    parser.add_argument("--split", metavar="NAME", help="NAME.txt in it (default: every image)")
    parser.add_argument("--dataset-json", type=Path, metavar="FILE",
                        help="description of the data set, in place of its dataset.json")


def open_dataset(arguments: argparse.Namespace, split: str | None) -> FolderDataset:
    """The data set that the arguments name, of which one split."""
    return FolderDataset(arguments.dataset, split, description=arguments.dataset_json)
