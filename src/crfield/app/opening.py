"""What the page opens: samples, and bytes that it sends as images, segmentations and models.

The readers of `crfield.io.images` take names of files. An upload gets a name that the server
chooses, in a folder that exists for as long as it is read; no name from the page is ever opened.
"""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request

from crfield._core.distances import distances_to
from crfield._core.resources import thread_count
from crfield._core.validate import InputError
from crfield.app.limits import MAX_PAINTED_LABELS, MAX_SETTINGS_BYTES, Limits
from crfield.app.settings import Settings
from crfield.app.workspace import Bytes, Initial, OpenImage
from crfield.datasets import load_sample
from crfield.dense.inputs import ASK_FOR_LAYOUT, find_form, without_ones
from crfield.dense.model import DenseCRF
from crfield.io.images import read_image, read_labels, read_probabilities
from crfield.unary.costs import UNKNOWN, present_ids, read_segmentation

_Content = TypeVar("_Content")
# Arguments of the library, in the words of the page.
_WORDS = {
    "raise max_pixels": "start the page with crfield app --max-pixels N",
    "pass logits=True": "tick that scores are logits and load them again",
    ASK_FOR_LAYOUT: "save them at the image's size or with the labels last",
    ' (layout="channels_first" if they are the first)': "",
}
# How files begin whose readers go by the suffix; Pillow looks at the content itself. A header of
# NIfTI has 348 or 540 bytes and begins with that number, in either order of bytes.
_SUFFIXES = {
    b"\x93NUMPY": ".npy", b"PK\x03\x04": ".npz", b"\x1f\x8b": ".nii.gz",
    b"II*\0": ".tif", b"MM\0*": ".tif", b"II+\0": ".tif", b"MM\0+": ".tif",
    **{struct.pack(order + "i", n): ".nii" for order in "<>" for n in (348, 540)},
}
# What announces more pixels than it may have, and how many.
_TOO_LARGE = re.compile(r"^expected at most [\d,]+ pixels, but the file announces .*\((.*)\);")
_LONGEST_NAME = 120
_CORE = 0.72  # scribbles lie this far inside, as a share of the deepest point of their label


def open_sample(name: str) -> OpenImage:
    """A sample as an open image."""
    sample = load_sample(name)
    return OpenImage(
        f"{name}.jpg", sample.image, sample=name, example=_example(sample.mask, sample.n_labels),
        label_names=sample.label_names,
    )


def _example(mask: Bytes, n_labels: int) -> Bytes:
    """A stroke in the middle of every label of a mask (H, W)."""
    scribbles = np.full(mask.shape, UNKNOWN, np.uint8)
    for label in range(n_labels):
        depth = distances_to((mask != label)[None], thread_count(None))[0]
        scribbles[depth > _CORE * depth.max()] = label
    return scribbles


def upload_name(request: Request, default: str) -> str:
    """What the page calls a file: shown and printed in scripts, never opened."""
    given = request.query_params.get("name", "")
    last = given.replace("\\", "/").rsplit("/", 1)[-1]
    kept = "".join(letter for letter in last if letter.isprintable()).strip()
    return kept[:_LONGEST_NAME] or default


def decode_image(data: bytes, max_pixels: int) -> NDArray[Any]:
    """Pixels (H, W[, C]), upright; of a volume only if it has one slice."""
    if data.startswith((b"\x93NUMPY", b"PK\x03\x04")):
        raise InputError('expected an image, got an array; load it under "Start from".')
    if data[8:9] == b"{":  # of safetensors, after the length of their head
        raise InputError('expected an image, got a model; load it under "Learned model".')
    with _in_words_of_the_page():
        found = _read(data, lambda path: read_image(path, max_pixels, flat=True))
    return found.array[0] if len(found.grid) > 2 else found.array


def decode_initial(
    data: bytes, kind: str, grid: tuple[int, int], limits: Limits, name: str
) -> Initial:
    """A label map (H, W), or probabilities or logits (H, W, L), for an image of this grid; what is
    sent as a label map and is none may be probabilities.
    """
    # What announces more pixels than the image has is refused before it is decoded.
    n_pixels = grid[0] * grid[1]
    most = max(2, min(MAX_PAINTED_LABELS, limits.max_array_bytes // (8 * n_pixels)))

    def read(path: Path) -> NDArray[Any]:
        try:
            if kind == "labels":
                return read_labels(path, n_pixels).array
        except InputError:
            with suppress(InputError):  # what is wrong with it as a label map is what to say
                return read_probabilities(path, n_pixels, max_labels=most)
            raise
        return read_probabilities(path, n_pixels, max_labels=most)

    try:
        values = _read(data, read)
    except InputError as error:
        if too_large := _TOO_LARGE.match(str(error)):
            # Of an array that may have its labels first or last it gives the smaller reading.
            size = too_large[1] if kind == "labels" else ""
            raise _of_another_image(size, grid) from None
        raise
    shape = (*grid, 1)  # of an image, with its channels
    soft = values.dtype.kind == "f"
    values = values if soft else without_ones(values, shape)
    with _in_words_of_the_page():
        form = find_form(values.shape, shape, None, None) if soft else None
        if form is None if soft else values.shape != grid:
            raise _of_another_image(_size(values.shape), grid)
        # A mask of two values is one of two labels, even where one of them is 255.
        ids = np.arange(0) if soft else present_ids(values)
        unknown = UNKNOWN if (ids != UNKNOWN).sum() > 1 else None
        if form is None:
            _check_count(int((ids != unknown).sum()))
        elif form.label_axis is not None:
            _check_count(form.count_labels(values.shape))  # before anything is interpolated
        found, values = read_segmentation(
            values, shape, logits=kind == "logits", unknown=unknown
        )
        if soft:
            found.costs(values)  # refuses what are no probabilities
    if kind != "logits":
        kind = "probabilities" if soft else "labels"
    return Initial(found, values, name, kind)


def _size(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape))


def _of_another_image(size: str, grid: tuple[int, int]) -> InputError:
    found = f"{size} {'pixels' if size.count('x') == 1 else 'values'}" if size else "more pixels"
    return InputError(
        f"expected a segmentation of the image's size or coarser probabilities: it has {found}, "
        f"the image {_size(grid)}; use the one that belongs to the image."
    )


def _check_count(n_labels: int) -> None:
    if not 2 <= n_labels <= MAX_PAINTED_LABELS:
        raise InputError(
            f"expected 2 to {MAX_PAINTED_LABELS} labels, got {n_labels}; use crfield.refine for "
            "more."
        )


@contextmanager
def _in_words_of_the_page() -> Iterator[None]:
    """Say what to do on the page rather than with arguments."""
    try:
        yield
    except InputError as error:
        sentence = str(error)
        for argument, words in _WORDS.items():
            sentence = sentence.replace(argument, words)
        raise InputError(sentence) from None


def decode_model(data: bytes) -> DenseCRF:
    """A model as `DenseCRF.save` writes it."""
    return _read(data, DenseCRF.load, ".safetensors")


def _read(data: bytes, reader: Callable[[Path], _Content], suffix: str | None = None) -> _Content:
    if not data:
        raise InputError("expected a file, got no bytes at all; choose a file that is not empty.")
    if suffix is None:
        suffix = next((s for start, s in _SUFFIXES.items() if data.startswith(start)), ".png")
    with tempfile.TemporaryDirectory(prefix="crfield-") as folder:
        path = Path(folder) / f"upload{suffix}"
        path.write_bytes(data)
        try:
            return reader(path)
        except InputError as error:
            # The page knows nothing of this machine's folders and should not learn of them.
            sentence = str(error).replace(f"model file {path}", "the model file")
            raise InputError(sentence.replace(str(path), "the file")) from None


def split_request(body: bytes, grid: tuple[int, int], limits: Limits) -> tuple[Settings, Bytes]:
    """The settings and scribbles (H, W) of a request: a length, JSON of that length, bytes."""
    if len(body) < 4:
        raise InputError("expected settings and scribbles, got fewer than 4 bytes; send both.")
    (length,) = struct.unpack_from("<I", body)
    if length > MAX_SETTINGS_BYTES:
        raise InputError(
            f"expected at most {MAX_SETTINGS_BYTES} bytes of settings, got {length}; send fewer."
        )
    n_pixels = grid[0] * grid[1]
    if len(body) != 4 + length + n_pixels:
        raise InputError(
            f"expected settings and {n_pixels} bytes of scribbles, got {len(body)} bytes that do "
            "not add up; send one byte per pixel."
        )
    settings = Settings.from_json(body[4 : 4 + length], limits)
    scribbles = np.frombuffer(body, np.uint8, offset=4 + length).reshape(grid)
    bad = (scribbles != UNKNOWN) & (scribbles >= settings.n_labels)
    if settings.source == "scribbles" and bad.any():
        raise InputError(
            f"expected scribbles of {settings.n_labels} labels, got label {scribbles[bad].max()}; "
            "add labels or erase it."
        )
    return settings, scribbles.copy()
