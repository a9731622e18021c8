"""A data set in a folder: images with true labels and unaries, read one at a time."""

from __future__ import annotations

import copy
import hashlib
import itertools
import operator
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_choice, as_count, check_memory, shown
from crfield.datasets.label_maps import recognize
from crfield.datasets.layout import (
    CLASSES_FILE,
    DESCRIPTION_FILE,
    GROUPS_FILE,
    Description,
    UnaryDescription,
    files_by_name,
    one_each,
    read_class_names,
    read_description,
    read_groups,
    read_split,
)
from crfield.datasets.unaries import UnaryStore, naming
from crfield.dense.inputs import LAYOUTS, without_ones
from crfield.io.images import IMAGE_SUFFIXES, LABEL_SUFFIXES, PROBABILITY_SUFFIXES, read_image
from crfield.metrics import as_label_map

_ONE_OF = 5  # images is held out, roughly


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
    group : of images that belong together, such as frames of a film; None if it is on its own.
    """

    name: str
    image: NDArray[Any]
    unary: NDArray[np.float32] | None
    truth: NDArray[np.integer[Any]]
    features: NDArray[np.float32] | None = None
    spacing: tuple[float, ...] | None = None
    group: str | None = None


class FolderDataset(Sequence[Example]):
    """The examples in a folder; each is read when it is asked for, and none is kept.

    The root holds, unless other folders are passed,

    - `images/NAME.jpg` or another format, and `labels/NAME.png`, integer label maps;
    - `SPLIT.txt`, one NAME per line, for any number of splits;
    - `classes.txt`, one class per line, `grass` or `1 grass`;
    - `groups.txt`, one line `NAME GROUP` for each image that belongs to others, such as frames of a
      film: choices by folds and `hold_out` keep a group together;
    - `unaries/NAME.npy`, `.npz`, TIFF or NIfTI, or `.npz` files whose keys are NAMEs: (*grid, L) or
      (L, *grid) numbers, interpolated linearly if their grid is coarser than the image's; or label
      maps;
    - `dataset.json` for what differs from `{"n_labels": <see below>, "void": 255,
      "images": "images", "labels": "labels", "unaries": {"folder": "unaries",
      "kind": null, "layout": null, "scale": 1}}`.

    Unaries of the kinds "probabilities", "logits", "log_probabilities", "costs" and "features" are
    the stored numbers times `scale`; the first three are interpolated in log space and normalized
    over the labels. The kind "labels" means label maps that are right with the probability
    `"confidence": 0.7`. The kind null recognizes label maps by their files, logits by numbers
    below -0.5 and takes the rest for probabilities; the layout null recognizes "channels_last" and
    "channels_first" by the shapes. `"unaries": null` leaves them out, and so does having no such
    folder.

    There are as many labels as classes in `classes.txt`, else as the unaries have planes, else as
    the label maps show. Where nothing says anything of void and the maps hold nothing but 0 and
    255, they are masks: 255 is label 1.

    Parameters
    ----------
    root : the folder; by default the one that holds the folder of `images`.
    split : which of the lists to follow; None takes all images that have labels, sorted by name.
    images, labels, probabilities : folders in place of those of the description; the last holds
        what unaries may be.
    layout : axes of the unaries in place of the description's.
    logits : whether the unaries are a network's scores before the softmax, whatever kind the
        description gives.
    description : a mapping or the path of a JSON file whose keys replace those of `dataset.json`.
        Folders in it are relative to the root, too.
    n_labels : the least number of labels if the label maps have to show it, so that those of a
        model count that do not occur.

    Attributes
    ----------
    names : of the examples.
    unlabeled : names of the images that are left out because they have no label map.
    """

    root: Path
    split: str | None
    names: tuple[str, ...]
    unlabeled: tuple[str, ...]
    n_labels: int
    class_names: tuple[str, ...]
    void: int | None

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        split: str | None = None,
        *,
        images: str | os.PathLike[str] | None = None,
        labels: str | os.PathLike[str] | None = None,
        probabilities: str | os.PathLike[str] | None = None,
        layout: str | None = None,
        logits: bool = False,
        description: Mapping[str, Any] | str | os.PathLike[str] | None = None,
        n_labels: int | None = None,
    ) -> None:
        if root is None and images is None:
            raise InputError(
                "expected the folder of a data set or the folders of its files, got neither; pass "
                "the folders, images=IMAGES, labels=LABELS, probabilities=PROBABILITIES."
            )
        self.root = Path(root) if root is not None else Path(str(images)).parent
        if not self.root.is_dir():
            raise InputError(f"a data set must be a folder, got {self.root}; check its name.")
        self.split = split
        if isinstance(description, str | os.PathLike):
            description = Path(description)
        described = read_description(self.root, description)
        image_folder = self.root / described.images if images is None else Path(images)
        label_folder = self.root / described.labels if labels is None else Path(labels)
        self._folders = image_folder, label_folder
        self.class_names = self._classes(described)
        image_files = files_by_name(
            image_folder, IMAGE_SUFFIXES, "images" if images is not None else None
        )
        label_files = files_by_name(
            label_folder, LABEL_SUFFIXES, "labels" if labels is not None else None
        )
        self._groups = read_groups(self.root / GROUPS_FILE)
        self.names = tuple(
            sorted(image_files.keys() & label_files.keys()) if split is None
            else read_split(self.root, split)
        )
        self.unlabeled = tuple(sorted(image_files.keys() - label_files)) if split is None else ()
        if not self.names:
            seen = [next(iter(sorted(files)), "nothing") for files in (image_files, label_files)]
            raise InputError(
                f"expected images in {image_folder} with labels of the same name in "
                f"{label_folder}, but there are none, the first are {shown(seen[0])} and "
                f"{shown(seen[1])}; rename the files so that they match."
            )
        self._images: dict[str, Path] = one_each(
            image_files, self.names, f"an image in {image_folder}"
        )
        self._labels: dict[str, Path] = one_each(
            label_files, self.names, f"labels in {label_folder}"
        )
        unaries = described.unaries
        if probabilities is not None and unaries is None:
            unaries = UnaryDescription()
        self._unaries: UnaryStore | None = None
        if unaries is not None:
            if layout is not None:
                unaries = replace(unaries, layout=as_choice(layout, "layout", LAYOUTS))
            if logits:
                unaries = replace(unaries, kind="logits")
            folder = self.root / unaries.folder if probabilities is None else Path(probabilities)
            self._unaries = UnaryStore(
                folder, unaries, names=self.names, image_names=image_files.keys(),
                given=None if probabilities is None else "probabilities",
            )
        self._settle_labels(described, itertools.chain(*label_files.values()), n_labels)

    def files(self) -> Iterator[Path]:
        """Every file that is read: images, labels and unaries of the examples, and what describes
        them.
        """
        yield from (self.root / name for name in (DESCRIPTION_FILE, CLASSES_FILE, GROUPS_FILE))
        if self.split is not None:
            yield self.root / f"{self.split}.txt"
        for name in self.names:
            yield from (self._images[name], self._labels[name])
        if self._unaries is not None:
            yield from self._unaries.files()

    def searched(self) -> dict[Path, tuple[str, ...]]:
        """Folders in which examples are looked for, with the endings that their files have."""
        found = {
            self.root: (".txt", DESCRIPTION_FILE), self._folders[0]: IMAGE_SUFFIXES,
            self._folders[1]: LABEL_SUFFIXES,
        }
        if self._unaries is not None:
            found[self._unaries.folder] = (*PROBABILITY_SUFFIXES, *LABEL_SUFFIXES)
        return found

    @property
    def unary_kind(self) -> str | None:
        """The kind of the stored unaries, None if there are none."""
        return None if self._unaries is None else self._unaries.kind or "probabilities"

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

    def hold_out(self) -> tuple[FolderDataset, FolderDataset]:
        """The examples to learn from, and about every fifth to score on, none of fewer than five.

        Each name, or that of its group, decides for itself, so that nothing that was learned from
        is held out when images come, go or are looked at in part. Only where none of a few images
        would be, one is.
        """
        numbers = [_number_of(self._groups.get(name, name)) for name in self.names]
        held = [number % _ONE_OF == 0 for number in numbers]
        if len(numbers) < _ONE_OF:
            held = [False] * len(numbers)
        elif not any(held):
            held = [number == min(numbers) for number in numbers]
        if all(held):  # of a single film, say
            held = [False] * len(numbers)
        found = np.asarray(held)
        return self.subset(np.flatnonzero(~found)), self.subset(np.flatnonzero(found))

    def as_stored(self, labels: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """Labels (*grid) by the numbers that they have in the data set's label maps."""
        return self._maps.numbers(labels)

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
                    f"expected {first[1]} features as for {shown(first[0])}, but {shown(name)} "
                    f"has {n_features}; give all images the same."
                )

    def check(self) -> None:
        """Read every example once and raise the first problem."""
        for problem in self.problems():
            raise InputError(problem)

    def _settle_labels(
        self, described: Description, label_files: Iterable[Path], least: int | None
    ) -> None:
        """Find out how many labels there are and how label maps are to be read."""
        store = self._unaries
        n_labels = len(self.class_names) or None
        if n_labels is None and store is not None:
            first = self.names[0]
            n_labels = store.count_labels(first, read_image(self._images[first]))
        self._maps, n_shown = recognize(label_files, n_labels, described)
        if store is not None and store.kind == "labels":
            store.maps, n_predicted = recognize(store.files(), n_labels, described)
            n_shown = max(n_shown, n_predicted)
        self.n_labels = n_labels or max(n_shown, least or 0)
        self.void = self._maps.void
        if n_labels is None and self.n_labels < 2:
            raise InputError(
                f"expected label maps of two labels or more in {self._folders[1]}, but they hold "
                f'fewer; say how many there are by "n_labels" in {DESCRIPTION_FILE}.'
            )
        self.class_names = self.class_names or tuple(map(str, range(self.n_labels)))
        if self.void is not None and 0 <= self.void < self.n_labels:
            raise InputError(
                f"'void' must be no label from 0 to {self.n_labels - 1}, got {self.void}; set it "
                f"in {DESCRIPTION_FILE}, to null if there are no void pixels."
            )
        if store is not None:
            store.n_labels = self.n_labels
            # Before any image is read: who learns or evaluates needs them beside the costs.
            check_memory(
                16.0 * self.n_labels**2, f"counting {self.n_labels} true labels by as many others",
                f"lower n_labels in {DESCRIPTION_FILE}",
            )

    def _classes(self, described: Description) -> tuple[str, ...]:
        """Their names from a file, their numbers if only their number is known, or nothing."""
        n_labels = described.n_labels
        path = self.root / CLASSES_FILE
        if not os.path.lexists(path):
            return tuple(map(str, range(n_labels or 0)))
        class_names = read_class_names(path, described.void)
        if not class_names or n_labels not in (None, len(class_names)):
            wanted = "at least one class" if n_labels is None else f"n_labels = {n_labels} classes"
            raise InputError(
                f"{path} must name {wanted}, got {len(class_names)}; write one class per line."
            )
        return class_names

    def _read(self, name: str) -> Example:
        image = read_image(self._images[name])
        label_path = self._labels[name]
        truth = without_ones(self._maps.read(label_path, image), image.grid)
        with naming(label_path):
            if truth.shape != image.grid:
                raise InputError(
                    f"labels must have the size of their image {image.path}, {image.grid}, got "
                    f"{truth.shape}; export both in one size."
                )
            left_out = np.zeros(truth.shape, bool) if self.void is None else truth == self.void
            as_label_map(
                truth, f"labels (void: {self.void})", self.n_labels, left_out,
                f"raise n_labels in {DESCRIPTION_FILE} or map the labels into that range; masks "
                "hold 0 and 255 alone, without smoothed edges",
            )
        unary = None if self._unaries is None else self._unaries.read(name, image)
        costs, features = (None, unary) if self.unary_kind == "features" else (unary, None)
        group = self._groups.get(name)
        return Example(name, image.array, costs, truth, features, image.spacing, group)


def _number_of(name: str) -> int:
    """A number that looks drawn at random, and is the same for a name everywhere."""
    return int.from_bytes(hashlib.sha256(name.encode("utf-8", "surrogateescape")).digest()[:4])
