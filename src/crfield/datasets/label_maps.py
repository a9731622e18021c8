"""What the numbers in the label maps of a data set mean."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError
from crfield.datasets.layout import Description
from crfield.io.images import ImageFile, read_labels
from crfield.unary.costs import UNKNOWN, mask_values


@dataclass(frozen=True)
class LabelMaps:
    """How label maps are read.

    Attributes
    ----------
    void : pixels without a label have this number, None if there are none.
    is_mask : whether 255 is the second of two labels.
    """

    void: int | None
    is_mask: bool = False

    def read(self, path: Path, image: ImageFile) -> NDArray[np.integer[Any]]:
        """The labels (*grid) of an image in a file."""
        labels = read_labels(path, beside=image).array
        return np.where(labels == UNKNOWN, 1, labels) if self.is_mask else labels

    def numbers(self, labels: NDArray[np.integer[Any]]) -> NDArray[np.integer[Any]]:
        """What stands for `labels` (*grid) in such maps."""
        return np.where(labels == 1, UNKNOWN, labels) if self.is_mask else labels


def recognize(
    paths: Iterable[Path], n_labels: int | None, described: Description
) -> tuple[LabelMaps, int]:
    """How the maps at `paths` are to be read, and how many labels they show: where nothing is said
    of void and all of them together hold nothing but 0 and 255, they are masks.

    n_labels : the number of labels where it is known; the maps are only read if they may be masks
        or have to tell it.
    """
    void, is_told = described.void, described.void_is_given
    if n_labels is not None and (is_told or n_labels != 2):
        return LabelMaps(void), n_labels
    shown = np.empty(0, np.int64)
    for labels in _readable(paths):
        shown = np.union1d(shown, labels)
        if n_labels == 2 and 1 in shown:
            return LabelMaps(void), 2
    if not is_told and UNKNOWN in mask_values([shown]):
        return LabelMaps(None, is_mask=True), 2
    return LabelMaps(void), int(max(shown[shown != void], default=-1)) + 1


def are_masks(paths: Iterable[Path]) -> bool:
    """Whether the label maps in these files hold nothing but 0 and 255; no map is read after one
    that does.
    """
    return all(mask_values([labels]) for labels in _readable(paths))


def _readable(paths: Iterable[Path]) -> Iterator[NDArray[Any]]:
    """The label maps in these files, without those that are refused when they are asked for."""
    for path in paths:
        with suppress(InputError, OSError):
            yield read_labels(path).array
