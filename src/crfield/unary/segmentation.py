"""What a segmentation means: label maps, probabilities, foregrounds and scribbles as ids and costs.

`refine`, blocks, the command and the playground read segmentations here. The constants that suit
each kind are named here too.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    MAX_LABELS,
    FloatArray,
    InputError,
    as_count,
    check_finite,
    check_memory,
    first_index,
)
from crfield.dense.observation import looks_swapped
from crfield.unary.costs import UNKNOWN, unary_from_labels, unary_from_probabilities
from crfield.unary.scribbles import check_unpainted, unary_from_scribbles

# Chosen on real images by experiments/refine_defaults.py: the probability that a label of a map is
# right, and widths (pixels, color) and weights of the two terms of `refine`. Hard labels say less
# about where a border lies than probabilities do.
CONFIDENCE = 0.9
SPATIAL, SPATIAL_WEIGHT = 3.0, 3.0
BILATERAL = {
    "labels": (30.0, 5.0), "probabilities": (60.0, 8.0), "foreground": (60.0, 8.0),
    "scribbles": (40.0, 10.0),  # by experiments/grabcut33.py
}
BILATERAL_WEIGHT = 6.0
# Of the playground, by experiments/grabcut33.py: a few more iterations gain half a point there, and
# take time.
PAINTING_WEIGHT, PAINTING_MAX_ITER = 10.0, 6

# Hardly any image shows more; gray values from 0 to 255 that are no labels do.
_MANY_LABELS = 64


@dataclass(frozen=True, eq=False)
class Segmentation:
    """What the numbers of a segmentation mean, so that it becomes costs whole or part by part.

    Attributes
    ----------
    kind : "labels", "scribbles", "probabilities" or "foreground".
    ids : (L,), the id of each label in a label map, in order; 0..L-1 for floats.
    confidence : the probability that a label of a map is right.
    unknown : the value that marks pixels of a map without a label, None if there is none.
    counted : whether the caller has given the number of labels: the ids of a map are 0..L-1 then,
        and others are refused.
    """

    kind: str
    ids: NDArray[np.int64]
    confidence: float = CONFIDENCE
    unknown: int | None = UNKNOWN
    counted: bool = False

    def costs(self, values: NDArray[Any], image: Any = None, **options: Any) -> FloatArray:
        """Costs (*grid, L) of the values (*grid[, L]), or of a part of them.

        image, options : for scribbles, the image under them and what `unary_from_scribbles` takes.
        """
        if self.kind == "probabilities":
            return unary_from_probabilities(values)
        if self.kind == "foreground":
            return _foreground_costs(values)
        n, unknown = len(self.ids), self.unknown
        if not self.counted:
            known = values.astype(np.int64)
            values = np.searchsorted(self.ids, known)
            values[known == unknown] = -1
            unknown = -1
        if self.kind == "labels":
            return unary_from_labels(values, n, confidence=self.confidence, unknown=unknown)
        if image is None:
            raise InputError("scribbles need the image that they are painted on; pass it.")
        return unary_from_scribbles(image, values, n, unknown=unknown, **options)


def read_segmentation(
    values: NDArray[Any], image_shape: tuple[int, ...] | None, *, layout: str = "channels_last",
    scribbles: bool = False, confidence: float = CONFIDENCE, unknown: int | None = UNKNOWN,
    n_labels: int | None = None,
) -> tuple[Segmentation, NDArray[Any]]:
    """What a segmentation means beside an image of this shape, and its values with labels last."""
    if values.dtype.kind in "iub":
        refuse_colors(values.shape, image_shape)
        if image_shape is not None and values.size:
            check_same_grid(values.shape, image_shape, "labels")
        if scribbles:
            check_unpainted(values != unknown, unknown)
        kind = "scribbles" if scribbles else "labels"
        found = label_segmentation(
            [values], values.size, kind, confidence=confidence, unknown=unknown, n_labels=n_labels
        )
        ids = found.ids
        if not found.counted and len(ids) > _MANY_LABELS and ids[0] >= 0 and ids[-1] <= 255:
            warnings.warn(
                f"the label map holds {len(ids)} labels and looks like a soft mask: threshold it, "
                "or pass it divided by 255 as the foreground's probability.",
                stacklevel=3,
            )
        return found, values
    if scribbles:
        raise InputError(
            f"scribbles must be whole numbers, got {values.dtype}; paint labels, one id per pixel."
        )
    given, first = values.shape, layout == "channels_first" and values.ndim >= 3
    if first:
        values = np.moveaxis(values, 0, -1)
    foreground: bool | None = False
    if image_shape is not None and (given[:1] != (1,) or image_shape[:1] == (1,)):
        foreground = is_foreground(values.shape, image_shape)
        if foreground is None:
            foreground = not sums_to_one(values)
    if not foreground:
        if image_shape is not None and values.ndim > 1 and values.size:
            check_same_grid(given, image_shape, "probabilities", 0 if first else -1)
        return float_segmentation(values.shape, False), values
    if ((values == 0) | (values == 1)).all():
        warnings.warn(
            "the foreground's probabilities are all 0 or 1, which looks like a label map: "
            "use .astype(int).",
            stacklevel=3,
        )
    return float_segmentation(values.shape, True), values


def float_segmentation(shape: tuple[int, ...], foreground: bool) -> Segmentation:
    """What floats of this shape, labels last, mean."""
    if foreground:
        return Segmentation("foreground", np.arange(2))
    return Segmentation("probabilities", np.arange(shape[-1] if shape else 0))


def label_segmentation(
    parts: Iterable[NDArray[Any]], n_pixels: int, kind: str = "labels", *,
    confidence: float = CONFIDENCE, unknown: int | None = UNKNOWN, n_labels: int | None = None,
) -> Segmentation:
    """What the whole numbers of a label map, given in parts, mean; ids need not be consecutive.

    n_pixels : of the largest part.
    n_labels : their number if the map does not show them all.
    """
    if n_labels is not None:
        count = as_count(n_labels, "n_labels", maximum=MAX_LABELS)
        check_memory(
            count * (8.0 + 4.0 * n_pixels), f"{n_pixels} pixels with {count} labels",
            "use fewer labels, or work on smaller parts",
        )
        return Segmentation(kind, np.arange(count), confidence, unknown, counted=True)
    present = np.empty(0, np.int64)
    for part in parts:
        present = np.union1d(present, present_ids(part))
    return Segmentation(kind, _known_ids(present, unknown), confidence, unknown)


def present_ids(labels: NDArray[Any]) -> NDArray[np.int64]:
    """The whole numbers that occur in a label map (*grid,), or in a part of one, in order."""
    if labels.size == 0 or labels.ndim == 0:
        raise InputError(
            f"labels must hold at least one pixel, got shape {labels.shape}; pass the label map."
        )
    check_memory(
        40.0 * labels.size, f"A label map of shape {labels.shape}",
        "work on a smaller image or on tiles",
    )
    if labels.dtype == np.uint64 and labels.max() > np.iinfo(np.int64).max:
        raise InputError(
            f"labels must be below 2**63, got {labels.max()}; number them from 0."
        )
    return np.unique(labels).astype(np.int64)


def given_labels(
    values: NDArray[Any], grid: tuple[int, ...], layout: str = "channels_last"
) -> NDArray[Any]:
    """The labels (*grid,) that a segmentation shows by itself: those of a map as they are, the
    likeliest of probabilities, and 1 where a foreground is likelier than not.
    """
    if values.dtype.kind != "f":
        return values
    if values.shape == grid:
        return np.asarray(values > 0.5, np.int64)
    return np.asarray(values.argmax(0 if layout == "channels_first" else -1))


def without_labels(shape: tuple[int, ...], label_axis: int | None) -> tuple[int, ...]:
    """The grid of a segmentation of this shape whose labels lie along axis 0, -1, or None."""
    return shape if label_axis is None else shape[1:] if label_axis == 0 else shape[:-1]


def check_same_grid(
    shape: tuple[int, ...], image_shape: tuple[int, ...], name: str, label_axis: int | None = None
) -> None:
    """Refuse a segmentation of other pixels than the image's; `label_axis` is 0, -1 or None."""
    if without_labels(shape, label_axis) not in (image_shape, image_shape[:-1]):
        raise InputError(
            f"{name} must cover the pixels of the image, but {name} have shape {shape}, the image "
            f"{image_shape}; {grid_hint(shape, image_shape, label_axis)}."
        )


def grid_hint(
    shape: tuple[int, ...], image_shape: tuple[int, ...], label_axis: int | None
) -> str:
    """What to do about a segmentation of this shape, which is not that of the image's pixels."""
    grids = (image_shape, image_shape[:-1])
    grid = without_labels(shape, label_axis)
    d = len(grid)
    if shape[:1] == (1,) and (shape[1:] in grids or grid[1:] in grids):
        hint = "drop the first axis, which is that of a batch"
    elif shape[:1] == (1,) and shape[2:] in grids:
        hint = 'drop the first axis, which is that of a batch, and pass layout="channels_first"'
    elif looks_swapped(image_shape, grid):
        hint = "width and height look swapped: transpose one of them"
    elif d > 2 and image_shape[:d] == grid[::-1]:
        hint = "their axes look reversed: transpose one of them"
    elif label_axis == -1 and shape[1:] in grids:
        hint = 'its labels come first: pass layout="channels_first"'
    elif image_shape[1:] == grid:
        hint = "the image's channels come first: move them last with np.moveaxis(image, 0, -1)"
    elif image_shape[:1] == (1,) and grid in (image_shape[1:], image_shape[1:-1]):
        hint = "drop the first axis of the image, which is that of a batch"
    elif label_axis is None and grid[:-1] in grids:
        one = grid[-1] == 1
        hint = "drop the last axis" if one else "pass .argmax(-1) if there is one plane per label"
    else:
        hint = "bring both to one size"
    return hint


def is_foreground(shape: tuple[int, ...], image_shape: tuple[int, ...]) -> bool | None:
    """Whether floats hold one number per pixel rather than one per pixel and label, by their
    shapes, labels last.

    Floats of the shape of a 3-D image may be both: a volume's foreground, or as many labels as the
    image has channels. They are labels if the image looks like color; else None, and they are
    labels if they sum to 1.
    """
    grids = (image_shape, image_shape[:-1])
    if len(shape) >= 2 and shape in grids:
        if len(shape) == 2 or shape != image_shape:
            return True
        return None if shape[-1] > 4 else False
    if shape[:-1] not in grids and shape[1:] in grids:
        raise InputError(
            f"probabilities must have the labels last, got {shape} for an image of "
            f'{image_shape}; pass layout="channels_first".'
        )
    return False


def sums_to_one(values: NDArray[Any]) -> bool:
    """Whether floats (*grid, L) sum to about 1 over the last axis, everywhere."""
    return not bool((np.abs(values.sum(-1) - 1.0) > 0.02).any())


def refuse_colors(shape: tuple[int, ...], image_shape: tuple[int, ...] | None) -> None:
    """Refuse a picture in place of a label map."""
    if image_shape is None or len(shape) != 3 or shape[-1] not in (3, 4):
        return
    if shape in (image_shape, (*image_shape, shape[-1])):
        raise InputError(
            f"labels must be one whole number per pixel, got shape {shape}, which looks like "
            "a color picture; pass the array of label numbers."
        )


def _known_ids(present: NDArray[np.int64], unknown: int | None) -> NDArray[np.int64]:
    """The ids (L,) of labels among the numbers that occur in the whole map."""
    if unknown is not None:
        unknown = as_count(unknown, "unknown", -(2**63), 2**63 - 1)
    ids = present if unknown is None else present[present != unknown]
    if len(ids) == 0:
        raise InputError(
            f"labels must hold at least one known label, got only the unknown value {unknown}; "
            "pass unknown=None if it is a label."
        )
    if len(ids) == 1 and len(present) == 2:
        raise InputError(
            f"labels must hold two labels or more, got only {ids[0]} beside the unknown value "
            f"{unknown}; if {unknown} is a label (a 0/255 mask), pass unknown=None."
        )
    return ids


def _foreground_costs(values: NDArray[Any]) -> FloatArray:
    """Costs (*grid, 2) of the foreground's probabilities (*grid,)."""
    check_finite(values, "probabilities")
    bad = (values < 0.0) | (values > 1.0)
    if bad.any():
        index = first_index(bad)
        raise InputError(
            "one number per pixel must be the foreground's probability in [0, 1], got "
            f"{values[index]:g} at index {index}; convert a label map with .astype(int)."
        )
    return unary_from_probabilities(np.stack([1.0 - values, values], axis=-1).astype(values.dtype))
