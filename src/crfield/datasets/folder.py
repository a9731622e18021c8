"""A data set in a folder: images with true labels and unaries, read one at a time."""

from __future__ import annotations

import copy
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_count
from crfield.datasets.layout import (
    CLASSES_FILE,
    DESCRIPTION_FILE,
    files_by_name,
    one_each,
    read_class_names,
    read_description,
    read_split,
)
from crfield.datasets.unaries import UnaryStore, naming
from crfield.io.images import IMAGE_SUFFIXES, LABEL_SUFFIXES, read_image, read_labels
from crfield.metrics import as_label_map


@dataclass(frozen=True, eq=False)
class Example:
    """One image with its costs, true labels and features.

    Attributes
    ----------
    name : name of its files without suffix.
    image : (*grid) or (*grid, C) intensities.
    unary : (*grid, L) float32 costs, or None.
    truth : (*grid) true labels, where not void.
    features : (*grid, F) float32 inputs of a unary that is learned, or None.
    spacing : distance between neighbors along each axis of the grid, (d,), if the file says.
    """

    name: str
    image: NDArray[Any]
    unary: NDArray[np.float32] | None
    truth: NDArray[np.integer[Any]]
    features: NDArray[np.float32] | None = None
    spacing: tuple[float, ...] | None = None


class FolderDataset(Sequence[Example]):
    """The examples in a folder; each is read when it is asked for, and none is kept.

    The root holds

    - `images/NAME.jpg` or another format, and `labels/NAME.png`, integer label maps;
    - `SPLIT.txt`, one NAME per line, for any number of splits;
    - `classes.txt`, one class per line, `grass` or `1 grass`;
    - `unaries/NAME.npy` or `.npz`, or `.npz` files whose keys are NAMEs: (*grid, L) numbers,
      interpolated linearly if their grid is coarser than the image's;
    - `dataset.json` for what differs from `{"n_labels": <classes in classes.txt>, "void": 255,
      "images": "images", "labels": "labels", "unaries": {"folder": "unaries",
      "kind": "probabilities", "scale": 1}}`.

    Unaries of the kinds "probabilities", "log_probabilities", "costs" and "features" are the
    stored numbers times `scale`; the first two are normalized over the labels after
    interpolation. The kind "labels" means label maps that are right with the probability
    `"confidence": 0.7`. `"unaries": null` leaves them out, and so does having no such folder.

    Parameters
    ----------
    root : the folder.
    split : which of the lists to follow; None takes all images that have labels, sorted by name.
    description : a mapping or the path of a JSON file whose keys replace those of `dataset.json`.
        Folders in it are relative to the root, too.
    """

    root: Path
    split: str | None
    names: tuple[str, ...]
    n_labels: int
    class_names: tuple[str, ...]
    void: int | None

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str | None = None,
        *,
        description: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    ) -> None:
        self.root = Path(root)
        if not self.root.is_dir():
            raise InputError(f"a data set must be a folder, got {self.root}; check its name.")
        self.split = split
        if isinstance(description, str | os.PathLike):
            description = Path(description)
        described = read_description(self.root, description)
        self.void = described.void
        self.class_names = self._classes(described.n_labels)
        self.n_labels = len(self.class_names)
        if self.void is not None and 0 <= self.void < self.n_labels:
            raise InputError(
                f"'void' must be no label from 0 to {self.n_labels - 1}, got {self.void}; set it "
                f"in {DESCRIPTION_FILE}, to null if there are no void pixels."
            )
        image_folder, label_folder = self.root / described.images, self.root / described.labels
        images = files_by_name(image_folder, IMAGE_SUFFIXES)
        labels = files_by_name(label_folder, LABEL_SUFFIXES)
        self.names = tuple(
            sorted(images.keys() & labels.keys()) if split is None else read_split(self.root, split)
        )
        if not self.names:
            raise InputError(
                f"expected images in {image_folder} with labels of the same name in "
                f"{label_folder}, but there are none; rename the files so that they match."
            )
        self._images: dict[str, Path] = one_each(images, self.names, f"an image in {image_folder}")
        self._labels: dict[str, Path] = one_each(labels, self.names, f"labels in {label_folder}")
        self._unaries: UnaryStore | None = None
        if described.unaries is not None:
            self._unaries = UnaryStore(
                self.root / described.unaries.folder,
                described.unaries,
                n_labels=self.n_labels,
                void=self.void,
                names=self.names,
                image_names=images.keys(),
            )

    @property
    def unary_kind(self) -> str | None:
        """The kind of the stored unaries, None if there are none."""
        return None if self._unaries is None else self._unaries.description.kind

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split={self.split!r}"
        return f"FolderDataset({str(self.root)!r}{split}): {len(self)} examples"

    def __len__(self) -> int:
        return len(self.names)

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> FolderDataset: ...
    def __getitem__(self, index: int | slice) -> Example | FolderDataset:
        if isinstance(index, slice):
            return self.subset(range(len(self))[index])
        return self._read(self.names[operator.index(index)])

    def subset(self, indices: Iterable[int]) -> FolderDataset:
        """The examples at `indices`, in that order, as a data set."""
        chosen = []
        for index in indices:
            position = as_count(index, "each index", minimum=-len(self), maximum=len(self) - 1)
            chosen.append(self.names[position])
        result = copy.copy(self)
        result.names = tuple(chosen)
        return result

    def problems(self) -> Iterator[str]:
        """Read every example once and yield a sentence for each that cannot be used."""
        first: tuple[str, int] | None = None
        for name in self.names:
            try:
                features = self._read(name).features
            except InputError as error:
                yield str(error)
                continue
            if features is None:
                continue
            n_features = features.shape[-1]
            first = first or (name, n_features)
            if n_features != first[1]:
                yield (
                    f"expected {first[1]} features as for {first[0]!r}, but {name!r} has "
                    f"{n_features}; give all images the same."
                )

    def check(self) -> None:
        """Read every example once and raise the first problem."""
        for problem in self.problems():
            raise InputError(problem)

    def _classes(self, n_labels: int | None) -> tuple[str, ...]:
        path = self.root / CLASSES_FILE
        if not path.is_file():
            if n_labels is None:
                raise InputError(
                    f"expected the number of labels of {self.root}, but there is neither "
                    f'{CLASSES_FILE} nor "n_labels" in {DESCRIPTION_FILE}; write one of them.'
                )
            return tuple(str(label) for label in range(n_labels))
        class_names = read_class_names(path, self.void)
        if not class_names or n_labels not in (None, len(class_names)):
            wanted = "at least one class" if n_labels is None else f"n_labels = {n_labels} classes"
            raise InputError(
                f"{path} must name {wanted}, got {len(class_names)}; write one class per line."
            )
        return class_names

    def _read(self, name: str) -> Example:
        image = read_image(self._images[name])
        label_path = self._labels[name]
        truth = read_labels(label_path).array
        with naming(label_path):
            if truth.shape != image.grid:
                raise InputError(
                    f"labels must have the size of their image {image.path}, {image.grid}, got "
                    f"{truth.shape}; export both in one size."
                )
            left_out = np.zeros(truth.shape, bool) if self.void is None else truth == self.void
            as_label_map(truth, f"labels (void: {self.void})", self.n_labels, left_out)
        unary = None if self._unaries is None else self._unaries.read(name, image.grid)
        if self.unary_kind == "features":
            return Example(name, image.array, None, truth, unary, image.spacing)
        return Example(name, image.array, unary, truth, spacing=image.spacing)
