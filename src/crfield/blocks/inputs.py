"""What blocks are computed from: images and segmentations that are read part by part."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, working_dtype
from crfield.blocks.parts import Block, Slices, Source, cut
from crfield.dense.inputs import Form, refuse_colors, without_labels
from crfield.dense.kernels import Bilateral
from crfield.dense.model import DenseCRF
from crfield.dense.observation import color_scale
from crfield.unary.costs import (
    Segmentation,
    check_counted,
    float_segmentation,
    form_of,
    interpolated,
    label_segmentation,
    sums_to_one,
)
from crfield.unary.defaults import Structure, measure
from crfield.unary.resizing import stored_part


@dataclass(frozen=True)
class BlockInputs:
    """An image (*grid[, C]) or None, a segmentation (*grid[, L]) and a mask (*grid,) or None.

    form : how floats cover the grid; None for a label map.
    logits : whether floats are scores before the softmax.
    """

    image: Source | None
    values: Source
    mask: Source | None
    grid: tuple[int, ...]
    form: Form | None
    logits: bool = False

    def segmentation(
        self, blocks: Sequence[Block], confidence: float, unknown: int | str | None,
        n_labels: int | None,
    ) -> Segmentation:
        """What the segmentation means; the ids of a label map are collected from all blocks."""
        if self.form is not None:
            found = check_counted(n_labels, self._stored(self.form))
            found = replace(found, axis_is_known=self.image is not None)
            return replace(found, logits=True) if self.form.is_coarse else found
        return label_segmentation(
            (self.part(block.core) for block in blocks),
            max(math.prod(side.stop - side.start for side in block.core) for block in blocks),
            confidence=confidence, unknown=unknown, n_labels=n_labels,
        )

    def structure(
        self, segmentation: Segmentation, blocks: Sequence[Block], spacing: Any
    ) -> Structure:
        """What the segmentation of a volume shows, block by block, with the spread in the units of
        kernels; the faces between blocks are not seen.
        """

        def looked_at() -> Iterator[tuple[NDArray[Any], NDArray[Any] | None]]:
            for block in blocks:
                values, image, mask = self.parts(block.core)
                yield segmentation.likeliest(values, mask), image

        found = measure(looked_at(), len(segmentation.ids), spacing)
        if self.image is None:
            return found
        scale = color_scale(self.image.dtype, _extent(self.image, blocks))
        return found._replace(spread=found.spread * scale)

    @property
    def work_dtype(self) -> np.dtype[Any]:
        """The type of costs and marginals."""
        return working_dtype(np.empty(0, self.values.dtype))

    def _stored(self, form: Form) -> Segmentation:
        """What the floats mean as they are stored."""
        shape, axis = form.without_ones(self.values.shape), form.label_axis
        last = (*shape[1:], shape[0]) if axis == 0 else shape
        return float_segmentation(last, axis is None, self.logits)

    def part(self, part: Slices, mask: NDArray[np.bool_] | None = None) -> NDArray[Any]:
        """A part of the segmentation, labels last, at the size of the image; only where a `mask`
        (*part,) is true does it matter.
        """
        form = self.form
        if form is None:
            return self.values.read(part)
        shape = self.values.shape
        stored = without_labels(form.without_ones(shape), form.label_axis)
        after = form.has_channel or form.label_axis == -1
        before = (slice(None),) * (len(shape) - len(stored) - after)
        read = self.values.read((*before, *stored_part(stored, form.grid, part)))
        values = form.labels_last(read)
        if not form.is_coarse:
            return values
        return interpolated(self._stored(form), values, form.grid, stored, part, mask)

    def parts(
        self, part: Slices
    ) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
        """A part of the segmentation, of the image and of the mask."""
        image, mask = (
            None if each is None else each.read(part) for each in (self.image, self.mask)
        )
        return self.part(part, mask), image, mask


def open_inputs(
    image: Any, values: Any, mask: Any, layout: str | None, logits: bool = False,
    likely_labels: int | None = None,
) -> BlockInputs:
    """Look at shapes and types, and at values only where shapes do not tell what they mean."""
    stored = Source(values, "probabilities_or_labels")
    picture = None if image is None else Source(image, "image")
    grid, form = stored.shape, None
    if stored.dtype.kind in "iub":
        refuse_colors(grid, None if picture is None else picture.shape)
    else:
        form = form_of(
            grid, None if picture is None else picture.shape, layout, likely_labels,
            lambda axis: _sums_to_one(stored, axis),
        )
        grid = form.grid
    if not grid or 0 in grid:
        raise InputError(
            f"the segmentation must hold at least one pixel, got shape {stored.shape}; "
            "pass a label map or probabilities."
        )
    if picture is not None and picture.shape == (*grid, 0):
        raise InputError(
            f"image must have at least one channel, got shape {picture.shape}; pass its values, or "
            "None if no kernel looks at it."
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
    return BlockInputs(picture, stored, chosen, grid, form, logits)


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
            kernel = replace(kernel, color_scale=scale)
        terms.append(replace(term, kernel=kernel))
    return replace(model, terms=terms)


def _extent(image: Source, blocks: Sequence[Block]) -> tuple[float, float]:
    """Least and largest value of an image of floats; zeros for others, whose scale is known."""
    if image.dtype.kind != "f":
        return 0.0, 0.0
    low, high = np.inf, -np.inf
    for block in blocks:
        part = image.read(block.core)
        # Outside a mask there may be others; inside they are refused.
        part = part[np.isfinite(part)]
        low, high = float(part.min(initial=low)), float(part.max(initial=high))
        if low < 0.0 or high > 1.0:  # more cannot change the scale
            break
    return low, high


def _sums_to_one(stored: Source, axis: int) -> bool:
    """Whether stored floats sum to about 1 along an axis everywhere."""
    axis %= len(stored.shape)
    grid = stored.shape[:axis] + stored.shape[axis + 1 :]
    parts = (block.core for block in cut(grid, (256,) * len(grid), (0,) * len(grid)))
    return all(
        sums_to_one(stored.read((*part[:axis], slice(None), *part[axis:])), axis) for part in parts
    )
