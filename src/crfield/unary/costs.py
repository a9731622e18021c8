"""What a segmentation means as costs u_i(l) = -log p_i(l): label maps, probabilities, foregrounds.

`refine`, blocks, the command and the playground read segmentations here, and the constants that
suit each kind are named here. Scribbles become costs in `crfield.unary.scribbles`.
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
    as_array,
    as_count,
    as_floats,
    as_positive_number,
    as_scalar,
    as_within,
    check_finite,
    check_magnitude,
    check_memory,
    refuse_where,
    working_dtype,
)
from crfield.dense.observation import looks_swapped

UNKNOWN = 255  # marks pixels without a label
CUSTOMARY_CONFIDENCE = 0.7  # what most people say of a label; pydensecrf's gt_prob
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


def unary_from_labels(
    labels: Any, n_labels: int, *, confidence: float = CUSTOMARY_CONFIDENCE,
    unknown: int | None = UNKNOWN,
) -> FloatArray:
    """Costs -log p (*grid, L) from labels (*grid,), whole numbers below `n_labels`.

    A pixel's label has probability `confidence`, the others share the rest evenly; pixels marked
    `unknown` are flat.
    """
    n = as_count(n_labels, "n_labels", maximum=MAX_LABELS)
    known, ids = check_labels(labels, n, unknown)
    if unknown == UNKNOWN and n > 1 and not known.all() and known.any() and not ids.any():
        warnings.warn(
            f"{UNKNOWN} marks unknown pixels, and all others have label 0; if {UNKNOWN} is a label "
            f"(a 0/{UNKNOWN} mask), pass labels > 0.",
            stacklevel=2,
        )
    p = as_scalar(confidence, "confidence")
    if not 0.0 < p < 1.0 and not (n == 1 and p == 1.0):
        raise InputError(f"confidence must lie between 0 and 1, got {p:g}; try 0.7.")
    if n == 1:
        return np.zeros((*ids.shape, 1), np.float32)
    rest = (1.0 - p) / (n - 1)
    unary = np.full((*ids.shape, n), -np.log(rest), np.float32)
    np.put_along_axis(unary, ids[..., None], np.float32(-np.log(p)), axis=-1)
    unary[~known] = np.log(n)
    return unary


def unary_from_probabilities(
    probabilities: Any, *, clip: float = 1e-5, scale: float = 1.0
) -> FloatArray:
    """Costs u = -scale log max(p, clip) from probabilities p (*grid, L) that sum to 1 over labels.

    `scale` < 1 trusts an overconfident classifier less.
    """
    p = _as_scores(probabilities, "probabilities")
    floor = as_within(clip, "clip", 0, 1, "try 1e-5", ends=False)
    factor = as_positive_number(scale, "scale")
    refuse_where(
        (p < -1e-4) | (p > 1.0 + 1e-4), p, "probabilities must lie in [0, 1]",
        "apply a softmax over the labels to logits, or divide 0..255 maps by 255",
    )
    sums = p.sum(-1)
    refuse_where(
        np.abs(sums - 1.0) > 0.02, sums, "probabilities must sum to 1 over the labels",
        'the labels must be the last axis (layout="channels_first" if they are the first), or '
        "normalize them",
    )
    floor = max(floor, float(np.finfo(p.dtype).tiny))
    with np.errstate(over="ignore", invalid="ignore"):
        costs = np.asarray(-factor * np.log(np.maximum(p, floor)), p.dtype)
    check_magnitude(costs, "scale times log probabilities")
    return costs


def unary_from_logits(logits: Any) -> FloatArray:
    """Costs -log softmax(logits) from a network's last layer (*grid, L)."""
    z = _as_scores(logits, "logits")
    check_magnitude(z, "logits")
    z = z - z.max(-1, keepdims=True)
    return np.asarray(np.log(np.exp(z).sum(-1, keepdims=True)) - z)


def unary_from_features(features: Any, weights: Any) -> FloatArray:
    """Costs u_i = Lambda h_i of a logistic model (KK13 section 4.2): features (*grid, F),
    weights Lambda (L, F).
    """
    h = as_floats(features, "features")
    matrix = as_floats(weights, "weights", h.dtype)
    if h.ndim < 2 or matrix.ndim != 2 or matrix.shape[1] != h.shape[-1]:
        raise InputError(
            f"weights must be (L, F) for features (*grid, F), got {matrix.shape} and {h.shape}; "
            "give one row of weights per label."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        costs = h @ matrix.T
    check_magnitude(costs, "weights times features")
    return costs


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

    def costs(self, values: NDArray[Any]) -> FloatArray:
        """Costs (*grid, L) of the values (*grid[, L]), or of a part of them."""
        if self.kind == "probabilities":
            return unary_from_probabilities(values)
        if self.kind == "foreground":
            return _foreground_costs(values)
        labels, unknown = self.indices(values)
        return unary_from_labels(
            labels, len(self.ids), confidence=self.confidence, unknown=unknown
        )

    def indices(self, labels: NDArray[Any]) -> tuple[NDArray[Any], int | None]:
        """The `labels` (*grid,) of a map as indices into `ids`, and the value that marks unknown
        pixels among them.
        """
        if self.counted:
            return labels, self.unknown
        given = labels.astype(np.int64)
        found = np.searchsorted(self.ids, given)
        found[given == self.unknown] = -1
        return found, -1


def read_segmentation(
    values: NDArray[Any], image_shape: tuple[int, ...] | None, *, layout: str = "channels_last",
    scribbles: bool = False, confidence: float = CONFIDENCE, unknown: int | None = UNKNOWN,
    n_labels: int | None = None,
) -> tuple[Segmentation, NDArray[Any]]:
    """What a segmentation means beside an image of this shape, and its values with labels last.

    values : (*grid, L), (L, *grid) in the `layout` "channels_first", (*grid,) floats of the
        foreground of two labels, or (*grid,) whole numbers.
    image_shape : (*grid) or (*grid, C); None if there is no image.
    scribbles : whether whole numbers are a few painted pixels.
    confidence, unknown, n_labels : for label maps, those of `label_segmentation`.
    """
    if values.dtype.kind in "iub":
        refuse_colors(values.shape, image_shape)
        if image_shape is not None and values.size:
            check_same_grid(values.shape, image_shape, "labels")
        found = label_segmentation(
            [values], values.size, "scribbles" if scribbles else "labels", confidence=confidence,
            unknown=unknown, n_labels=n_labels,
        )
        ids = found.ids
        guessed = not found.counted and not scribbles
        if guessed and len(ids) > _MANY_LABELS and ids[0] >= 0 and ids[-1] <= 255:
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
    """What floats mean whose `shape` is (*grid,) of a `foreground`, or (*grid, L)."""
    if foreground:
        return Segmentation("foreground", np.arange(2))
    return Segmentation("probabilities", np.arange(shape[-1] if shape else 0))


def label_segmentation(
    parts: Iterable[NDArray[Any]], n_pixels: int, kind: str = "labels", *,
    confidence: float = CONFIDENCE, unknown: int | None = UNKNOWN, n_labels: int | None = None,
) -> Segmentation:
    """What the whole numbers of a label map mean; ids need not be consecutive.

    parts : arrays (*part,) that make up the map.
    n_pixels : pixels of the largest part.
    kind : "labels" or "scribbles".
    confidence, unknown : the probability that a label is right, and the value that marks pixels
        without one, None if there is none.
    n_labels : the number of labels if the map does not show them all.
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
    """The whole numbers that occur in `labels` (*grid,), a map or a part of one, in order."""
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
    """The labels (*grid,) that the `values` of a segmentation show by themselves: those of a map as
    they are, the likeliest of probabilities (*grid, L), or (L, *grid) in the `layout`
    "channels_first", and 1 where a foreground (*grid,) is likelier than not.
    """
    if values.dtype.kind != "f":
        return values
    if values.shape == grid:
        return np.asarray(values > 0.5, np.int64)
    return np.asarray(values.argmax(0 if layout == "channels_first" else -1))


def without_labels(shape: tuple[int, ...], label_axis: int | None) -> tuple[int, ...]:
    """The grid of a segmentation of this shape with labels along `label_axis`, 0, -1 or None."""
    return shape if label_axis is None else shape[1:] if label_axis == 0 else shape[:-1]


def check_same_grid(
    shape: tuple[int, ...], image_shape: tuple[int, ...], name: str, label_axis: int | None = None
) -> None:
    """Refuse a segmentation called `name` whose `shape` without the `label_axis`, 0, -1 or None, is
    not the grid of an image of the shape `image_shape`.
    """
    if without_labels(shape, label_axis) not in (image_shape, image_shape[:-1]):
        raise InputError(
            f"{name} must cover the pixels of the image, but {name} have shape {shape}, the image "
            f"{image_shape}; {grid_hint(shape, image_shape, label_axis)}."
        )


def grid_hint(
    shape: tuple[int, ...], image_shape: tuple[int, ...], label_axis: int | None
) -> str:
    """What to do about a segmentation whose shape, see `check_same_grid`, does not fit an image."""
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
    """Whether floats whose `shape` has the labels last, beside an image of `image_shape`, hold one
    number per pixel rather than one per pixel and label.

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
    """Whether the `values` (*grid, L) sum to about 1 over the labels, everywhere."""
    return not bool((np.abs(values.sum(-1) - 1.0) > 0.02).any())


def refuse_colors(shape: tuple[int, ...], image_shape: tuple[int, ...] | None) -> None:
    """Refuse a label map whose `shape` is that of a picture like that of `image_shape`."""
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
    refuse_where(
        (values < 0.0) | (values > 1.0), values,
        "one number per pixel must be the foreground's probability in [0, 1]",
        "convert a label map with .astype(int)",
    )
    return unary_from_probabilities(np.stack([1.0 - values, values], axis=-1).astype(values.dtype))


def _as_scores(values: Any, name: str) -> FloatArray:
    """One number per label, (*grid, L), if there is room to turn them into costs."""
    array = as_array(values, name)
    if array.ndim < 2 or array.shape[-1] == 0:
        raise InputError(
            f"{name} must have shape (*grid, L), got {array.shape}; put the labels last."
        )
    _check_room(4.0 * array.size * working_dtype(array).itemsize, array.shape)
    return as_floats(array, name)


def _check_room(n_bytes: float, shape: tuple[int, ...]) -> None:
    check_memory(n_bytes, f"A unary of shape {shape}", "work on a smaller image or on tiles")


def check_labels(
    labels: Any, n_labels: int, unknown: int | None
) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which labels (*grid,) are known, and the labels with zeros where they are not, both (*grid,).

    Others than `unknown` must lie in 0 .. n_labels - 1.
    """
    array = as_array(labels, "labels")
    if array.dtype.kind == "b":
        array = array.astype(np.uint8)
    if array.dtype.kind not in "iu":
        raise InputError(
            f"labels must be whole numbers, got dtype {array.dtype}; "
            "use probabilities for soft labels or convert with .astype(int)."
        )
    if array.ndim == 0:
        raise InputError("labels must be an array of labels, got one number; pass the label map.")
    if unknown is not None:
        unknown = as_count(unknown, "unknown", -(2**63), 2**63 - 1)
    _check_room(array.size * (4.0 * n_labels + 24.0), (*array.shape, n_labels))
    known = np.ones(array.shape, bool) if unknown is None else array != unknown
    marked = "none" if unknown is None else str(unknown)
    refuse_where(
        known & ((array < 0) | (array >= n_labels)), array,
        f"labels must lie in 0..{n_labels - 1} (unknown: {marked})",
        "raise n_labels or mark such pixels with the unknown value",
    )
    return known, np.where(known, array, 0).astype(np.int64)
