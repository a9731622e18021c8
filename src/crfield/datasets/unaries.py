"""Unaries of a data set on disk: one file or one key of a shared `.npz` file per image."""

from __future__ import annotations

import os
import zipfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_floats, check_magnitude, refuse_where
from crfield.datasets.degrade import interpolate_axis
from crfield.datasets.layout import UnaryDescription, files_by_name, one_each
from crfield.io.arrays import ShapeCheck, read_member, read_npy, read_npz
from crfield.io.images import LABEL_SUFFIXES, decoding, file_suffix, read_labels
from crfield.unary.costs import unary_from_labels, unary_from_logits, unary_from_probabilities

Planes = NDArray[np.float32]

_SMALLEST_PROBABILITY = 1e-5
# How far the probabilities of a pixel may be from summing to one.
_SUM_TOLERANCE = 0.02


class Place(NamedTuple):
    """A file, and the key in it where it holds the arrays of several images."""

    path: Path
    key: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.key is None else f"{self.key!r} in {self.path}"


@contextmanager
def naming(place: Place | Path) -> Iterator[None]:
    """Put the name of the file before the sentence of an error about what it holds."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


class UnaryStore:
    """Finds, reads and converts the unaries of images by their names.

    Parameters
    ----------
    folder : where they lie.
    description : what they are.
    n_labels, void : number of labels L, and the label of pixels that have none.
    names : images whose unaries must be there.
    image_names : all images; an `.npz` file with another name is shared, and its keys are image
        names.
    """

    def __init__(
        self,
        folder: Path,
        description: UnaryDescription,
        *,
        n_labels: int,
        void: int | None,
        names: Sequence[str],
        image_names: Collection[str],
    ) -> None:
        self.description = description
        self.n_labels = n_labels
        self.void = void
        self._archives: dict[Path, zipfile.ZipFile] = {}
        self._opened_by = os.getpid()
        found = self._find(folder, names, image_names)
        self._places: dict[str, Place] = one_each(found, names, f"unaries in {folder}")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archives": {}}

    def read(self, name: str, grid: tuple[int, ...]) -> Planes:
        """Costs (*grid, L) of an image, or its features (*grid, F)."""
        place = self._places[name]
        if self.description.kind == "labels":
            return self._read_labels(place, grid)

        def check_shape(shape: tuple[int, ...]) -> None:
            with naming(place):
                self._check_shape(shape, grid)

        stored = self._load(place, name, check_shape)
        with naming(place):
            return self._convert(stored, grid)

    def _find(
        self, folder: Path, names: Sequence[str], image_names: Collection[str]
    ) -> dict[str, list[Place]]:
        by_labels = self.description.kind == "labels"
        files = files_by_name(folder, LABEL_SUFFIXES if by_labels else (".npy", ".npz"))
        wanted = set(names)
        found: dict[str, list[Place]] = {}
        for stem, paths in files.items():
            for path in paths:
                if stem in image_names:
                    found.setdefault(stem, []).append(Place(path))
                elif file_suffix(path).lower() == ".npz":
                    with decoding(path):
                        keys = self._archive(path).namelist()
                    for key in (key.removesuffix(".npy") for key in keys):
                        if key in wanted:
                            found.setdefault(key, []).append(Place(path, key))
        return found

    def _archive(self, path: Path) -> zipfile.ZipFile:
        """An open archive, one per process: sharing it would share its position in the file."""
        if self._opened_by != os.getpid():
            self._archives, self._opened_by = {}, os.getpid()
        if path not in self._archives:
            self._archives[path] = zipfile.ZipFile(path)
        return self._archives[path]

    def _load(self, place: Place, name: str, check_shape: ShapeCheck) -> NDArray[Any]:
        with decoding(place.path, place):
            if place.key is not None:
                return read_member(self._archive(place.path), place.path, place.key, check_shape)
            if file_suffix(place.path).lower() == ".npy":
                return read_npy(place.path, check_shape)
            kind = self.description.kind
            return read_npz(place.path, (name,) if kind is None else (name, kind), check_shape)

    def _read_labels(self, place: Place, grid: tuple[int, ...]) -> Planes:
        labels = read_labels(place.path).array
        with naming(place):
            if labels.shape != grid:
                raise InputError(
                    f"labels used as unaries must have the size of the image, {grid}, got "
                    f"{labels.shape}; resize them with nearest neighbor."
                )
            confidence = self.description.confidence
            unary = unary_from_labels(
                labels, self.n_labels, confidence=confidence, unknown=self.void
            )
        return unary.astype(np.float32, copy=False)

    def _check_shape(self, shape: tuple[int, ...], grid: tuple[int, ...]) -> None:
        planes = "F" if self.description.kind == "features" else str(self.n_labels)
        form = f"unaries must have shape {(*grid, planes)}, or coarser".replace("'", "")
        if len(shape) != len(grid) + 1 or 0 in shape:
            raise InputError(f"{form}, got {shape}; put the labels last.")
        if planes != "F" and shape[-1] != self.n_labels:
            raise InputError(
                f"{form}, got {shape} with {shape[-1]} planes; put the labels last, or correct "
                "n_labels."
            )
        if any(stored > length for stored, length in zip(shape, grid, strict=False)):
            raise InputError(
                f"{form}, got {shape}, which is larger; swap the axes if they are in another "
                "order, or shrink it to the image."
            )

    def _convert(self, stored: NDArray[Any], grid: tuple[int, ...]) -> Planes:
        kind, scale = self.description.kind, self.description.scale
        values = as_floats(stored, "unaries", np.dtype(np.float32)) * np.float32(scale)
        check_magnitude(values, "unaries times their scale")
        if kind == "probabilities":
            # Rounding to whole numbers moves the sum by up to half a step per label.
            rounding = 0.0 if stored.dtype.kind == "f" else abs(scale) * self.n_labels / 2
            _check_probabilities(values, _SUM_TOLERANCE + rounding)
            fine = np.maximum(resize_linearly(values, grid), _SMALLEST_PROBABILITY)
            fine /= fine.sum(axis=-1, keepdims=True)
            costs = unary_from_probabilities(fine, clip=_SMALLEST_PROBABILITY)
        elif kind == "log_probabilities":
            refuse_where(
                values > 1e-3, values, "log-probabilities must not be positive",
                "give a negative scale where they are stored as costs",
            )
            costs = unary_from_logits(resize_linearly(values, grid))
        else:
            costs = resize_linearly(values, grid)
        return costs.astype(np.float32, copy=False)


def resize_linearly(values: Planes, grid: tuple[int, ...]) -> Planes:
    """Linear interpolation of each plane of (*coarse, C) to (*grid, C).

    The center of pixel i of n lies at (i + 1/2) / n of the side. Beyond the outermost centers the
    outermost values are repeated.
    """
    for axis, length in enumerate(grid):
        n_stored = values.shape[axis]
        if n_stored != length:
            positions = (np.arange(length) + 0.5) * (n_stored / length) - 0.5
            values = interpolate_axis(values, axis, positions)
    return values


def _check_probabilities(values: Planes, tolerance: float) -> None:
    remedy = "name another kind, or the scale that turns them into probabilities"
    outside = (values < -1e-4) | (values > 1 + 1e-4)
    refuse_where(outside, values, "probabilities must lie in [0, 1]", remedy)
    sums = values.sum(axis=-1)
    off = np.abs(sums - 1) > tolerance
    refuse_where(off, sums, "probabilities must sum to 1 over the labels", remedy)
