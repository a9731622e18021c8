"""Prepare a set of silhouettes for the experiments with patterns (CHOPP section 5).

Splits the images, trains a network for the costs and a boundary detector on the training images,
and keeps both maps of every image, with 11 more versions of those to learn from, in one file.
The maps of a training image come from classifiers that have not seen it in any version, so that
what is learned from them holds for new images. The seed changes networks and shifts, not the split.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from crfield._core.atomic import atomic_path
from crfield.datasets import Augmentation, FolderDataset, Silhouettes, read_silhouettes
from crfield.metrics import confusion_matrix, iou_per_label
from crfield.patterns.variability import variability
from experiments.common import REPOSITORY, Float32, markdown_table, names_in, parse_data_folder
from experiments.pattern_features import (
    FINER,
    GRID,
    Images,
    Masks,
    PixelClassifier,
    Trainer,
    boundary_features,
    costs_of,
    filter_bank,
    summary,
    train_boundary,
    train_unary,
)

CACHE = REPOSITORY / "experiments" / "cache"
N_FOLDS = 5
Features = Callable[[Images, int], Float32]
SPLIT_SEED = 0  # where a folder has no lists of the wanted length
IMAGES_AT_ONCE = 32
LUMA = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Source:
    """Folder of a data set, numbers of images to train on and to test on, and how to cut them."""

    folder: str
    n_train: int
    n_test: int
    crop: str


SOURCES = {
    "horses": Source("weizmann_horses", 200, 128, crop="whole"),
    "birds": Source("cub_birds", 350, 150, crop="object"),
}


@dataclass(frozen=True, eq=False)
class Part:
    """Images with what is known of them.

    images : (n, side, side, 3) uint8 colors.
    masks : (n, side, side) uint8, 1 in the object.
    log_odds : (n, side, side), the network's log p(object) - log p(background).
    boundary : (n, side, side), probability of a boundary of the object, above 0 and below 1.
    names : of the images; versions of one image have one name.
    """

    images: Images
    masks: Masks
    log_odds: Float32
    boundary: Float32
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, which: slice) -> Part:
        return Part(
            self.images[which], self.masks[which], self.log_odds[which], self.boundary[which],
            self.names[which],
        )

    @cached_property
    def costs(self) -> Float32:
        """-log p of background and object, (n, side, side, 2)."""
        return costs_of(self.log_odds)

    @cached_property
    def phi(self) -> Float32:
        """Both maps at 16 x 16, (n, 512): log-odds first, then boundary, rows first."""
        return summary(self.log_odds, self.boundary)


@dataclass(frozen=True, eq=False)
class PatternData:
    """A data set, split; the last quarter of the training images is for validation.

    `augmented` holds `n_versions` versions of each image of `train`, one after the other, the
    first of which is the image itself.
    """

    augmented: Part
    validation: Part
    test: Part
    n_versions: int

    @cached_property
    def train(self) -> Part:
        """The training images as they are."""
        return self.augmented[:: self.n_versions]


def cache_path(name: str, seed: int, cache: Path, gray: bool, side: int = GRID) -> Path:
    """Where a data set is kept."""
    size = "" if side == GRID else f"_{side}"
    return cache / f"pattern_{name}{'_gray' if gray else ''}{size}_{seed}.npz"


def load(
    name: str, seed: int, cache: Path = CACHE, *, gray: bool = False, side: int = GRID
) -> PatternData:
    """What this script has kept of "horses" or "birds"."""
    path = cache_path(name, seed, cache, gray, side)
    if not path.is_file():
        raise FileNotFoundError(
            f"expected {path}, but there is no such file; prepare it with "
            f"python -m experiments.pattern_data --data DIR --set {name} --seed {seed}"
            f"{' --gray' if gray else ''}{'' if side == GRID else f' --side {side}'}"
        )
    with np.load(path, allow_pickle=False) as kept:

        def part(title: str) -> Part:
            images, masks, log_odds, boundary, names = (
                kept[f"{title}_{field.name}"] for field in fields(Part)
            )
            return Part(images, masks, log_odds, boundary, tuple(names.tolist()))

        return PatternData(
            part("augmented"), part("validation"), part("test"), int(kept["n_versions"])
        )


def save(data: PatternData, path: Path) -> None:
    """Keep a data set in a file; the training images are among their versions."""
    arrays: dict[str, Any] = {"n_versions": np.array(data.n_versions)}
    for title in ("augmented", "validation", "test"):
        part = getattr(data, title)
        for field in fields(Part):
            arrays[f"{title}_{field.name}"] = np.asarray(getattr(part, field.name))
    path.parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        np.savez(temporary, **arrays)


def split_names(folder: Path, n_train: int, n_test: int) -> tuple[list[str], list[str]]:
    """Names to train on and to test on: the folder's own lists where they have these lengths."""
    lists = [folder / "train.txt", folder / "test.txt"]
    if all(path.is_file() for path in lists):
        train, test = (names_in(path) for path in lists)
        if (len(train), len(test)) == (n_train, n_test):
            return train, test
    names = FolderDataset(folder).names
    if len(names) < n_train + n_test:
        raise ValueError(
            f"{folder} must hold {n_train + n_test} images, got {len(names)}; check the folder."
        )
    shuffled = [names[i] for i in np.random.default_rng(SPLIT_SEED).permutation(len(names))]
    return shuffled[:n_train], shuffled[n_train : n_train + n_test]


def prepare(
    folder: Path, source: Source, seed: int, jobs: int = 2, *, gray: bool = False,
    side: int = GRID,
) -> PatternData:
    """Split the folder's images, train the classifiers and apply them.

    gray : whether the classifiers see the images without their colors; `Part.images` keep them.
    side : of the images, masks and maps.
    """
    train_names, test_names = split_names(folder, source.n_train, source.n_test)
    n_fit = len(train_names) - len(train_names) // 4

    def read(names: Sequence[str], augmentation: Augmentation | None = None) -> Windows:
        return Windows.read(folder, names, source.crop, augmentation, gray, side)

    with ThreadPoolExecutor(jobs) as pool:
        classifiers = FoldedClassifiers.train(read(train_names), seed, pool)
        augmentation = Augmentation(seed=seed)
        return PatternData(
            classifiers.apply(read(train_names[:n_fit], augmentation), pool),
            classifiers.apply(read(train_names[n_fit:]), pool),
            classifiers.apply(read(test_names), pool),
            augmentation.factor,
        )


@dataclass(frozen=True, eq=False)
class Windows:
    """Images and masks on the grid, and the images as the filters see them."""

    on_grid: Silhouettes
    seen: Images

    @classmethod
    def read(
        cls, folder: Path, names: Sequence[str], crop: str, augmentation: Augmentation | None,
        gray: bool, side: int,
    ) -> Windows:
        """The named images of a folder, in all their versions."""
        on_grid, larger = (
            read_silhouettes(folder, size=size, names=names, crop=crop, augmentation=augmentation)
            for size in (side, FINER * side)
        )
        seen = larger.images
        if gray:
            luma = np.rint(seen @ np.array(LUMA, np.float32)).astype(np.uint8)
            seen = np.repeat(luma[..., None], 3, axis=-1)
        return cls(on_grid, seen)

    def compute(self, features: Features, pool: Executor) -> Iterator[Float32]:
        """Features of the images, some images at a time."""
        starts = range(0, len(self.seen), IMAGES_AT_ONCE)
        side = self.on_grid.masks.shape[1]
        return pool.map(
            lambda i: features(self.seen[i : i + IMAGES_AT_ONCE], side), starts
        )


@dataclass(frozen=True, eq=False)
class FoldedClassifiers:
    """For each fold of the training images a network and a boundary detector that have not seen
    it, and at last a pair that has seen all.
    """

    fold_of: dict[str, int]
    networks: list[PixelClassifier]
    detectors: list[PixelClassifier]

    @classmethod
    def train(cls, windows: Windows, seed: int, pool: Executor) -> FoldedClassifiers:
        """Train on images, each of which is there once."""
        masks, names = windows.on_grid.masks, windows.on_grid.names
        folds = np.arange(len(names)) % N_FOLDS

        def each_fold(
            features: Features, train: Trainer
        ) -> list[PixelClassifier]:
            known = np.concatenate(list(windows.compute(features, pool)))
            chosen = [folds != left_out for left_out in range(N_FOLDS + 1)]
            return list(pool.map(lambda rows: train(known[rows], masks[rows], seed), chosen))

        return cls(
            dict(zip(names, folds.tolist(), strict=True)),
            each_fold(filter_bank, train_unary),
            each_fold(boundary_features, train_boundary),
        )

    def apply(self, windows: Windows, pool: Executor) -> Part:
        """Both maps of images, by the classifiers that have not seen them."""
        names = windows.on_grid.names
        folds = np.array([self.fold_of.get(name, N_FOLDS) for name in names])

        def log_odds(
            features: Features, classifiers: list[PixelClassifier]
        ) -> Float32:
            result = np.empty(windows.on_grid.masks.shape, np.float32)
            start = 0
            for known in windows.compute(features, pool):
                rows = np.arange(start, start + len(known))
                for fold in np.unique(folds[rows]):
                    own = folds[rows] == fold
                    result[rows[own]] = classifiers[fold].log_odds(known[own])
                start += len(known)
            return result

        odds = log_odds(filter_bank, self.networks)
        boundary = 1 / (1 + np.exp(-log_odds(boundary_features, self.detectors)))
        return Part(
            windows.on_grid.images, windows.on_grid.masks, odds, boundary.astype(np.float32), names
        )


def unary_scores(part: Part) -> tuple[float, float]:
    """IoU of the object in percent by the network alone: the images' mean, and over all pixels."""
    confusions = np.array([
        confusion_matrix(mask, odds > 0, 2)
        for mask, odds in zip(part.masks, part.log_odds, strict=True)
    ])
    of_images = [iou_per_label(confusion)[1] for confusion in confusions]
    return 100 * float(np.mean(of_images)), 100 * float(iou_per_label(confusions.sum(axis=0))[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--set", choices=tuple(SOURCES), required=True, dest="name")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument("--jobs", type=int, default=2, help="threads (default: 2)")
    parser.add_argument("--cache", type=Path, default=CACHE, metavar="DIR", help="where to keep it")
    parser.add_argument(
        "--gray", action="store_true",
        help="hide the colors from the classifiers, which makes that of horses about as good as "
        "the paper's",
    )
    parser.add_argument("--side", type=int, default=GRID, help=f"of the images (default: {GRID})")
    arguments = parse_data_folder(parser)
    source = SOURCES[arguments.name]
    began = time.monotonic()
    data = prepare(
        arguments.data / source.folder, source, arguments.seed, arguments.jobs,
        gray=arguments.gray, side=arguments.side,
    )
    path = cache_path(
        arguments.name, arguments.seed, arguments.cache, arguments.gray, arguments.side
    )
    save(data, path)
    parts = {"train": data.train, "validation": data.validation, "test": data.test}
    print(markdown_table(
        ["part", "images", "IoU, mean of images", "IoU, all pixels"],
        [
            [title, str(len(part)), *(f"{score:.2f}" for score in unary_scores(part))]
            for title, part in parts.items()
        ],
    ))
    masks = np.concatenate([part.masks for part in parts.values()])
    print(f"\nThe network alone, in percent. Variability of all masks {variability(masks):.3f}.")
    print(f"{len(data.augmented)} versions to learn from. {time.monotonic() - began:.0f} s.")


if __name__ == "__main__":
    main()
