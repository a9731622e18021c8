"""What blocks are computed from: images and segmentations that are read part by part."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, working_dtype
from crfield.blocks.parts import Block, Slices, Source, cut
from crfield.dense.kernels import Bilateral
from crfield.dense.model import DenseCRF
from crfield.dense.observation import color_scale
from crfield.unary.costs import (
    Segmentation,
    float_segmentation,
    is_foreground,
    label_segmentation,
    refuse_colors,
    sums_to_one,
)


@dataclass(frozen=True)
class BlockInputs:
    """An image (*grid[, C]) or None, a segmentation (*grid[, L]) and a mask (*grid,) or None.

    foreground : whether floats hold one number per pixel.
    channels_first : whether the labels are the first axis of what is stored.
    """

    image: Source | None
    values: Source
    mask: Source | None
    grid: tuple[int, ...]
    foreground: bool
    channels_first: bool

    def segmentation(
        self, blocks: Sequence[Block], confidence: float, unknown: int | None,
        n_labels: int | None,
    ) -> Segmentation:
        """What the segmentation means; the ids of a label map are collected from all blocks."""
        if self.values.dtype.kind not in "iub":
            shape = self.values.shape
            return float_segmentation(
                (*shape[1:], shape[0]) if self.channels_first else shape, self.foreground
            )
        return label_segmentation(
            (self.part(block.core) for block in blocks),
            max(math.prod(side.stop - side.start for side in block.core) for block in blocks),
            confidence=confidence, unknown=unknown, n_labels=n_labels,
        )

    @property
    def work_dtype(self) -> np.dtype[Any]:
        """The type of costs and marginals."""
        return working_dtype(np.empty(0, self.values.dtype))

    def part(self, part: Slices) -> NDArray[Any]:
        """A part of the segmentation, labels last."""
        if self.channels_first:
            return np.moveaxis(self.values.read((slice(None), *part)), 0, -1)
        return self.values.read(part)

    def beside(self, part: Slices) -> list[NDArray[Any] | None]:
        """A part of the image and of the mask."""
        return [None if each is None else each.read(part) for each in (self.image, self.mask)]


def open_inputs(image: Any, values: Any, mask: Any, layout: str) -> BlockInputs:
    """Look at shapes and types, and at values only where shapes do not tell what they mean."""
    stored = Source(values, "probabilities_or_labels")
    picture = None if image is None else Source(image, "image")
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
    chosen = None if mask is None else Source(mask, "mask")
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


def _extent(image: Source, blocks: Sequence[Block]) -> tuple[float, float]:
    """Least and largest value of an image of floats; zeros for others, whose scale is known."""
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
    stored: Source, shape: tuple[int, ...], image_shape: tuple[int, ...], first: bool
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
