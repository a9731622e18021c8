"""The images and models that are open, as many as fit."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError
from crfield.app.limits import Limits
from crfield.app.settings import Settings
from crfield.dense.model import DenseCRF
from crfield.unary.costs import Segmentation
from crfield.unary.scribbles import Colors, colors_of

Bytes = NDArray[np.uint8]
_Item = TypeVar("_Item")


class UnknownError(InputError):
    """An id that is not known, or no longer."""


@dataclass(frozen=True)
class Initial:
    """A segmentation to start from: a label map (H, W) or probabilities (H, W, L), and what they
    mean; `name` is what the page calls its file, and `kind` says what it holds: "labels",
    "probabilities" or "logits".
    """

    segmentation: Segmentation
    values: NDArray[Any]
    name: str
    kind: str


@dataclass(frozen=True)
class Refinement:
    """A finished inference: label maps (H, W) after and before, entropies (H, W), and its report.

    Entropies are shares of log L in 255ths; `scribbles` and `settings` are what it was made from.
    """

    labels: Bytes
    before: Bytes
    entropy: Bytes
    report: dict[str, Any]
    scribbles: Bytes
    settings: Settings
    initial: Initial | None

    @property
    def mask_values(self) -> NDArray[Any]:
        """What a mask holds for each label (L,): the ids of the map that it came from, where they
        fit into two bytes, and 0..L-1 otherwise.
        """
        ids = np.arange(self.report["n_labels"])
        given = ids if self.initial is None else self.initial.segmentation.ids
        if given.min() >= 0 and given.max() < 2**16:
            ids = given
        return ids.astype(np.uint8 if ids.max() < 256 else np.uint16)


@dataclass
class OpenImage:
    """An image with what was done to it; `example` are scribbles (H, W) to begin with, and
    `label_names` what to call its labels, where that is known.
    """

    name: str
    pixels: NDArray[Any]
    sample: str | None = None
    example: Bytes | None = None
    label_names: tuple[str, ...] = ()
    initial: Initial | None = None
    refinement: Refinement | None = None
    newest_job: threading.Event = field(default_factory=threading.Event)

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width."""
        return self.pixels.shape[0], self.pixels.shape[1]

    @cached_property
    def colors(self) -> Colors:
        """The image's colors, which all its color models share."""
        return colors_of(self.pixels)

    @property
    def n_bytes(self) -> int:
        """About what it takes: pixels, bins of colors, planes of the last result."""
        done = None if self.refinement is None else self.refinement.initial
        segmentations = {id(s): s.values.nbytes for s in (self.initial, done) if s is not None}
        planes = 12 * self.grid[0] * self.grid[1]
        return self.pixels.nbytes + planes + sum(segmentations.values())


class Shelf(Generic[_Item]):
    """Things under ids that cannot be guessed; beyond its size the one used longest ago goes."""

    def __init__(self, kind: str, size: int) -> None:
        self._kind, self._size = kind, size
        self._items: OrderedDict[str, _Item] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, item: _Item) -> str:
        """Keep an item and give its id."""
        key = secrets.token_urlsafe(16)
        with self._lock:
            self._items[key] = item
            while len(self._items) > self._size:
                self._items.popitem(last=False)
        return key

    def __getitem__(self, key: str) -> _Item:
        with self._lock:
            if key not in self._items:
                raise UnknownError(f"this {self._kind} is not open any more; open it again.")
            self._items.move_to_end(key)
            return self._items[key]

    def __len__(self) -> int:
        return len(self._items)

    def drop_oldest(self) -> None:
        """Forget the item that was used longest ago."""
        with self._lock:
            if self._items:
                self._items.popitem(last=False)

    def values(self) -> list[_Item]:
        """All items."""
        with self._lock:
            return list(self._items.values())


class Workspace:
    """What one server holds."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.images: Shelf[OpenImage] = Shelf("image", limits.max_images)
        self.models: Shelf[DenseCRF] = Shelf("model", limits.max_models)

    def open(self, image: OpenImage) -> str:
        """Keep an image; older ones go where all together would take too much memory."""
        key = self.images.add(image)
        self.trim()
        return key

    def trim(self) -> None:
        """Forget old images until the others fit, the newest excepted."""
        while len(self.images) > 1 and self.n_bytes() > self.limits.max_memory:
            self.images.drop_oldest()

    def n_bytes(self) -> int:
        """About what the open images take."""
        return sum(image.n_bytes for image in self.images.values())
