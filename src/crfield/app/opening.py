"""What the page opens: samples, and bytes that it sends as images, segmentations and models.

The readers of `crfield.io.images` take names of files. An upload gets a name that the server
chooses, in a folder that exists for as long as it is read; no name from the page is ever opened.
"""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Callable
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
from crfield.dense.inputs import without_labels
from crfield.dense.model import DenseCRF
from crfield.io.images import read_image, read_labels, read_probabilities
from crfield.unary.costs import (
    UNKNOWN,
    float_segmentation,
    label_segmentation,
    present_ids,
)

_Content = TypeVar("_Content")
# How files begin whose readers go by the suffix; Pillow looks at the content itself.
_SUFFIXES = {b"\x93NUMPY": ".npy", b"PK\x03\x04": ".npz"}
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
    """Pixels (H, W[, C]), upright, by Pillow alone, which knows no volumes: of several pages the
    first counts.
    """
    return _read(data, lambda path: read_image(path, max_pixels)).array


def decode_initial(
    data: bytes, kind: str, grid: tuple[int, int], limits: Limits, name: str
) -> Initial:
    """A label map (H, W) or probabilities (H, W, L) for an image of this grid."""
    # What announces more pixels than the image has is refused before it is decoded.
    n_pixels = grid[0] * grid[1]
    if kind == "labels":
        values = _read(data, lambda path: read_labels(path, n_pixels)).array
        # A mask of two values is one of two labels, even where one of them is 255.
        masked = (present_ids(values) != UNKNOWN).sum() < 2
        found = label_segmentation([values], n_pixels, unknown=None if masked else UNKNOWN)
    else:
        most = max(2, min(MAX_PAINTED_LABELS, limits.max_array_bytes // (8 * n_pixels)))
        values = _read(
            data,
            lambda path: read_probabilities(path, n_pixels, max_labels=most),
        )
        found = float_segmentation(values.shape, foreground=False)
        found.costs(values)  # refuses what are no probabilities
    shape = without_labels(values.shape, None if kind == "labels" else -1)
    if shape != grid:
        raise InputError(
            f"expected a segmentation of the image's size {grid}, got {shape}; "
            "use the image that it belongs to."
        )
    if not 2 <= len(found.ids) <= MAX_PAINTED_LABELS:
        raise InputError(
            f"expected 2 to {MAX_PAINTED_LABELS} labels, got {len(found.ids)}; use crfield.refine "
            "for more."
        )
    return Initial(found, values, name)


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
