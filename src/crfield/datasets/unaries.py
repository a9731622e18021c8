"""Unaries of a data set on disk: one file or one key of a shared `.npz` file per image."""

from __future__ import annotations

import math
import os
import weakref
import zipfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfield._core.files import open_regular
from crfield._core.validate import (
    InputError,
    as_floats,
    check_magnitude,
    check_memory,
    refuse_where,
    shown,
)
from crfield.datasets.label_maps import LabelMaps
from crfield.datasets.layout import UnaryDescription, files_by_name, one_each
from crfield.dense.inputs import Form, find_form, without_ones
from crfield.io.arrays import ShapeCheck, StoredArray, open_archive, read_member
from crfield.io.images import (
    LABEL_SUFFIXES,
    PROBABILITY_SUFFIXES,
    ImageFile,
    decoding,
    file_suffix,
    read_array,
    read_labels,
)
from crfield.unary.costs import are_logits, sums_to_one, unary_from_labels, unary_from_logits
from crfield.unary.resizing import resize_linearly

Planes = NDArray[np.float32]

_SMALLEST_PROBABILITY = 1e-5
# Kinds that are normalized over the labels.
_SOFT_KINDS = ("probabilities", "logits", "log_probabilities")
# How far the probabilities of a pixel may be from summing to one, and from 0 to 1.
_SUM_TOLERANCE, _ROUNDING = 0.02, 1e-4


class Place(NamedTuple):
    """A file, and the key in it where it holds the arrays of several images."""

    path: Path
    key: str | None = None

    def __str__(self) -> str:
        return str(self.path) if self.key is None else f"{shown(self.key)} in {self.path}"


@contextmanager
def naming(place: Place | Path) -> Iterator[None]:
    """Put the name of the file before the sentence of an error about what it holds."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{place}: {error}") from None


class UnaryStore:
    """Finds, reads and converts the unaries of images by their names.

    Whoever reads from it sets `n_labels`, the number of labels L, and `maps`, how label maps are
    read, first.

    Parameters
    ----------
    folder : where they lie.
    description : what they are.
    names : images whose unaries must be there.
    image_names : all images; an `.npz` file with another name is shared, and its keys are image
        names.
    given : by which argument the caller has named the folder, None if not at all.
    """

    def __init__(
        self,
        folder: Path,
        description: UnaryDescription,
        *,
        names: Sequence[str],
        image_names: Collection[str],
        given: str | None = None,
    ) -> None:
        self.n_labels = 0  # until it is known
        self.maps = LabelMaps(void=None)
        self.folder = folder
        self.description = description
        self._archives: dict[Path, zipfile.ZipFile] = {}
        self._opened_by = os.getpid()
        files: dict[str, list[Path]] = {}
        if description.kind != "labels":
            files = files_by_name(folder, PROBABILITY_SUFFIXES, given)
        self.kind = description.kind
        if self.kind == "labels" or (self.kind is None and _are_label_maps(files)):
            files, self.kind = files_by_name(folder, LABEL_SUFFIXES), "labels"
        found = self._find(files, names, image_names)
        unmatched = () if found else files
        self._places: dict[str, Place] = one_each(
            found, names, f"unaries in {folder}", unmatched
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_archives": {}}

    def files(self) -> Iterator[Path]:
        """The files that hold them."""
        return (place.path for place in self._places.values())

    def count_labels(self, name: str, image: ImageFile) -> int | None:
        """As many labels as there are planes beside an image; None if there are none."""
        if self.kind in ("labels", "features"):
            return None
        place = self._places[name]
        stored = self._load(place, name, image)
        with naming(place):
            return self._form(stored.shape, image.grid, stored).count_labels(stored.shape)

    def read(self, name: str, image: ImageFile) -> Planes:
        """Costs (*grid, L) of an image, or its features (*grid, F)."""
        place = self._places[name]
        if self.kind == "labels":
            return self._label_costs(self.maps.read(place.path, image), place, image.grid)
        stored = self._load(place, name, image)
        with naming(place):
            return self._convert(stored, self._form(stored.shape, image.grid, stored))

    def _find(
        self, files: Mapping[str, list[Path]], names: Sequence[str], image_names: Collection[str]
    ) -> dict[str, list[Place]]:
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
            stream = open_regular(path, "array")
            try:
                self._archives[path] = open_archive(stream, path)
            except BaseException:
                stream.close()
                raise
            weakref.finalize(self._archives[path], stream.close)
        return self._archives[path]

    def _check_of(self, place: Place, grid: tuple[int, ...]) -> ShapeCheck:
        """What refuses shapes that do not cover an image of this grid, or leave no room for costs,
        before they are read.
        """

        def check_shape(shape: tuple[int, ...]) -> None:
            with naming(place):
                n_planes = self._form(shape, grid).count_labels(shape)
                what = "features" if self.kind == "features" else "labels"
                _check_inference(math.prod(grid), n_planes, what)

        return check_shape

    def _load(self, place: Place, name: str, image: ImageFile) -> NDArray[Any]:
        check_shape = self._check_of(place, image.grid)
        with decoding(place.path, place):
            if place.key is not None:
                return read_member(self._archive(place.path), place.path, place.key, check_shape)
            names = (name, self.kind or "probabilities")
            return read_array(place.path, names, check_shape, image)

    def _label_costs(self, labels: NDArray[Any], place: Place, grid: tuple[int, ...]) -> Planes:
        labels = without_ones(labels, grid)
        with naming(place):
            if labels.shape != grid:
                raise InputError(
                    f"labels used as unaries must have the size of the image, {grid}, got "
                    f"{labels.shape}; resize them with nearest neighbor."
                )
            _check_inference(labels.size, self.n_labels)
            confidence = self.description.confidence
            unary = unary_from_labels(
                labels, self.n_labels, confidence=confidence, unknown=self.maps.void
            )
        return unary.astype(np.float32, copy=False)

    def _form(
        self, shape: tuple[int, ...], grid: tuple[int, ...], stored: NDArray[Any] | None = None
    ) -> Form:
        """How stored numbers of this shape cover an image; those that do not are refused."""
        layout, n_labels = self.description.layout, self.n_labels or None
        if self.kind == "features" and shape:  # as many as there are
            layout = layout or "channels_last"
            n_labels = shape[-1 if layout == "channels_last" else 0]

        def sums(axis: int) -> bool:
            return sums_to_one(as_floats(stored, "unaries") * self.description.scale, axis)

        found = find_form(
            shape, (*grid, 1), layout, n_labels, None if stored is None else sums
        )
        soft = self.kind in (None, *_SOFT_KINDS) and n_labels in (None, 2)
        if found is not None and (soft or found.label_axis is not None):
            return found
        planes = "F" if self.kind == "features" else str(n_labels or "labels")
        form = f"unaries must have shape {(*grid, planes)}, or coarser".replace("'", "")
        if len(shape) != len(grid) + 1 or 0 in shape:
            raise InputError(f"{form}, got {shape}; put the labels last.")
        if n_labels is not None and n_labels not in (shape[0], shape[-1]):
            raise InputError(
                f"{form}, got {shape} with {shape[-1]} planes; put the labels last, or correct "
                "n_labels."
            )
        larger = any(n > m for n, m in zip(shape, grid, strict=False))
        raise InputError(
            f"{form}, got {shape}, which is {'larger' if larger else 'of another shape'}; swap the "
            "axes if they are in another order, or resize it to the image."
        )

    def _convert(self, stored: NDArray[Any], form: Form) -> Planes:
        kind, scale = self.kind, self.description.scale
        values = as_floats(form.labels_last(stored), "unaries", np.dtype(np.float32))
        values = values * np.float32(scale)
        check_magnitude(values, "unaries times their scale")
        single = form.label_axis is None
        if kind in (None, "probabilities"):
            kind = "logits" if not single and are_logits(values) else "probabilities"
        if single:
            background = 1 - values if kind == "probabilities" else np.zeros_like(values)
            values = np.stack([background, values], -1)
        if kind == "probabilities":
            # Rounding to whole numbers moves the sum by up to half a step per label.
            rounding = 0.0 if stored.dtype.kind == "f" else abs(scale) * self.n_labels / 2
            _check_probabilities(values, _SUM_TOLERANCE + rounding)
            values = np.log(np.maximum(values, _SMALLEST_PROBABILITY))
        elif kind == "log_probabilities":
            refuse_where(
                values > 1e-3, values, "log-probabilities must not be positive",
                "give a negative scale where they are stored as costs",
            )
        fine = resize_linearly(values, form.grid)
        if kind in _SOFT_KINDS:
            fine = unary_from_logits(fine)
        return fine.astype(np.float32, copy=False)


def _check_inference(n_pixels: int, n_planes: int, what: str = "labels") -> None:
    """Refuse costs with what inference takes beside them, which would be refused after them."""
    check_memory(
        16.0 * n_pixels * n_planes, f"inference on {n_pixels} pixels with {n_planes} {what}",
        f"use smaller images or fewer {what}",
    )


def _are_label_maps(files: Mapping[str, list[Path]]) -> bool:
    """Whether there are no arrays, or the first is a map of whole numbers."""
    path = next((path for paths in files.values() for path in paths), None)
    if path is None or file_suffix(path).lower() == ".npz":
        return path is None
    with suppress(InputError), decoding(path):  # it is refused when it is asked for
        if file_suffix(path).lower() != ".npy":  # pages and volumes hold either
            return bool(read_labels(path).array.ndim)
        stored = StoredArray(path)
        return sum(n > 1 for n in stored.shape) == 2 and stored.dtype.kind in "iub"
    return False


def _check_probabilities(values: Planes, tolerance: float) -> None:
    remedy = (
        "pass logits=True if they are scores before the softmax, or describe the scale that turns "
        "them into probabilities"
    )
    outside = (values < -_ROUNDING) | (values > 1 + _ROUNDING)
    refuse_where(outside, values, "probabilities must lie in [0, 1]", remedy)
    sums = values.sum(axis=-1)
    off = np.abs(sums - 1) > tolerance
    refuse_where(off, sums, "probabilities must sum to 1 over the labels", remedy)
