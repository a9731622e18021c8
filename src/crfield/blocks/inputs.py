"""What blocks are computed from: images and segmentations that are read part by part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    MAX_LABELS,
    InputError,
    as_count,
    check_memory,
    working_dtype,
)
from crfield.blocks.parts import Block, Parts, Slices, cut
from crfield.dense.inputs import is_foreground, refuse_colors, sums_to_one
from crfield.dense.kernels import Bilateral
from crfield.dense.model import DenseCRF
from crfield.dense.observation import color_scale
from crfield.refinement import costs_of_foreground, costs_of_ids, known_ids, present_ids
from crfield.unary.costs import unary_from_labels, unary_from_probabilities


@dataclass(frozen=True)
class Reader:
    """How every part of a segmentation becomes costs.

    costs : turns a part (*window,) or (*window, L) into costs (*window, L).
    ids : (L,) ids of the labels.
    from_labels : whether the segmentation is a label map.
    """

    costs: Callable[[NDArray[Any]], NDArray[Any]]
    ids: NDArray[np.int64]
    from_labels: bool


@dataclass(frozen=True)
class BlockInputs:
    """An image (*grid[, C]) or None, a segmentation (*grid[, L]) and a mask (*grid,) or None.

    foreground : whether floats hold one number a pixel.
    channels_first : whether the labels are the first axis of what is stored.
    """

    image: Parts | None
    values: Parts
    mask: Parts | None
    grid: tuple[int, ...]
    foreground: bool
    channels_first: bool

    @property
    def from_labels(self) -> bool:
        """Whether the segmentation is a label map."""
        return self.values.dtype.kind in "iub"

    @property
    def work_dtype(self) -> np.dtype[Any]:
        """The type of costs and marginals."""
        return working_dtype(np.empty(0, self.values.dtype))

    def part(self, part: Slices) -> NDArray[Any]:
        """A part of the segmentation, labels last."""
        if self.channels_first:
            return np.moveaxis(self.values.read((slice(None), *part)), 0, -1)
        return self.values.read(part)

    def image_part(self, part: Slices) -> NDArray[Any] | None:
        """A part of the image."""
        return None if self.image is None else self.image.read(part)

    def mask_part(self, part: Slices) -> NDArray[Any] | None:
        """A part of the mask."""
        return None if self.mask is None else self.mask.read(part)


def open_inputs(image: Any, values: Any, mask: Any, layout: str) -> BlockInputs:
    """Look at shapes and types, and at values only where shapes do not tell what they mean."""
    stored = Parts(values, "probabilities_or_labels")
    picture = None if image is None else Parts(image, "image")
    grid = stored.shape
    foreground = first = False
    if stored.dtype.kind in "iub":
        refuse_colors(grid, None if picture is None else picture.shape)
    else:
        first = layout == "channels_first" and len(grid) >= 3
        shape = (*grid[1:], grid[0]) if first else grid
        foreground = picture is not None and _is_foreground(stored, shape, picture.shape, first)
        grid = shape if foreground else shape[:-1]
    if not grid or 0 in grid:
        raise InputError(
            f"the segmentation must hold at least one pixel, got shape {stored.shape}; "
            "pass a label map or probabilities."
        )
    if picture is not None and grid not in (picture.shape, picture.shape[:-1]):
        raise InputError(
            f"image must have shape {grid} or ({', '.join(map(str, grid))}, C) to match the "
            f"segmentation, got {picture.shape}; give both one size."
        )
    chosen = None if mask is None else Parts(mask, "mask")
    if chosen is not None and (chosen.shape != grid or chosen.dtype != np.bool_):
        raise InputError(
            f"mask must be a boolean array of shape {grid}, got {chosen.dtype} {chosen.shape}; "
            "pass an array that is True where the model applies."
        )
    return BlockInputs(picture, stored, chosen, grid, foreground, first)


def count_selected(inputs: BlockInputs, blocks: Sequence[Block]) -> int | None:
    """How many pixels of the whole grid the mask selects; None without a mask."""
    if inputs.mask is None:
        return None
    return sum(int(inputs.mask.read(block.core).sum()) for block in blocks)


def make_reader(
    inputs: BlockInputs, blocks: Sequence[Block], confidence: float, unknown: int | None,
    n_labels: int | None,
) -> Reader:
    """How parts become costs; the ids of a label map are collected from all blocks first."""
    if not inputs.from_labels:
        costs = costs_of_foreground if inputs.foreground else unary_from_probabilities
        count = 2 if inputs.foreground else inputs.values.shape[0 if inputs.channels_first else -1]
        return Reader(costs, np.arange(count), False)
    if n_labels is not None:
        count = as_count(n_labels, "n_labels", maximum=MAX_LABELS)
        largest = max(math.prod(b.stop - b.start for b in block.core) for block in blocks)
        check_memory(
            4.0 * count * largest, f"A block of {largest} pixels with {count} labels",
            "use fewer labels or smaller blocks",
        )
        given = partial(
            unary_from_labels, n_labels=count, confidence=confidence, unknown=unknown
        )
        return Reader(given, np.arange(count), True)
    present = np.empty(0, np.int64)
    for block in blocks:
        present = np.union1d(present, present_ids(inputs.part(block.core)))
    ids = known_ids(present, unknown)
    return Reader(
        partial(costs_of_ids, ids=ids, confidence=confidence, unknown=unknown), ids, True
    )


def same_everywhere(model: DenseCRF, inputs: BlockInputs, blocks: Sequence[Block]) -> DenseCRF:
    """The model with what it would otherwise take from each part: the scale of the colors."""
    if model.context:
        raise InputError(
            f"blocks do not see the whole image, which the model's context looks at "
            f"({', '.join(model.context)}); use a model without context."
        )
    scaled = [
        isinstance(term.kernel, Bilateral) and term.kernel.color_scale is None
        for term in model.terms
    ]
    if inputs.image is None or not any(scaled):
        return model
    scale = color_scale(inputs.image.dtype, _extent(inputs.image, blocks))
    terms = []
    for term in model.terms:
        kernel = term.kernel
        if isinstance(kernel, Bilateral) and kernel.color_scale is None:
            kernel = dataclasses.replace(kernel, color_scale=scale)
        terms.append(dataclasses.replace(term, kernel=kernel))
    return dataclasses.replace(model, terms=terms)


def _extent(image: Parts, blocks: Sequence[Block]) -> tuple[float, float]:
    """Least and largest value of an image of floats; of others nobody asks."""
    if image.dtype.kind != "f":
        return 0.0, 0.0
    low, high = np.inf, -np.inf
    for block in blocks:
        part = image.read(block.core)
        low, high = min(low, float(part.min())), max(high, float(part.max()))
        if low < 0.0 or high > 1.0:  # more cannot change the scale
            break
    return low, high


def _is_foreground(
    stored: Parts, shape: tuple[int, ...], image_shape: tuple[int, ...], first: bool
) -> bool:
    found = is_foreground(shape, image_shape)
    if found is not None:
        return found
    grid = shape[:-1]
    for block in cut(grid, (256,) * len(grid), (0,) * len(grid)):
        part = stored.read((slice(None), *block.core) if first else block.core)
        if not sums_to_one(np.moveaxis(part, 0, -1) if first else part):
            return True
    return False
