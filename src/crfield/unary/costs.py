"""What a segmentation means as costs u_i(l) = -log p_i(l): label maps, probabilities, foregrounds.

`refine`, blocks, the command and the playground read segmentations here, and the constants that
suit each kind are named here. Scribbles become costs in `crfield.unary.scribbles`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
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
from crfield._core.warning import warn
from crfield.dense.inputs import (
    Form,
    check_same_grid,
    find_form,
    refuse_colors,
    without_ones,
)
from crfield.unary.resizing import points_seen, resize_linearly

UNKNOWN = 255  # marks pixels without a label
# ... unless a map holds nothing else than 0 and 255: then it is a mask of two labels.
MASK = {0, 255}
CUSTOMARY_CONFIDENCE = 0.7  # what most people say of a label; pydensecrf's gt_prob
CONFIDENCE = 0.9  # that a label of a map is right, chosen by experiments/refine_defaults.py

# How far the probabilities of a pixel may be from summing to 1.
_SUM_TOLERANCE = 0.02
_CLIP = 1e-5
_HARDLY = 0.25  # most of a foreground's probability in what may rather be a map of few labels
_BELOW_PROBABILITIES = -0.5
# Hardly any image shows more; gray values from 0 to 255 that are no labels do.
_MANY_LABELS = 64
# Labels of strokes that rather come from smooth edges: so many, each of so small a share.
_MANY_FAINT, _NEXT_TO_NOTHING = 6, 0.01


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
        warn(
            f"{UNKNOWN} marks unknown pixels, and all others have label 0; if {UNKNOWN} is a label "
            f"(a 0/{UNKNOWN} mask), pass labels > 0."
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
    probabilities: Any, *, clip: float = _CLIP, scale: float = 1.0
) -> FloatArray:
    """Costs u = -scale log max(p, clip) from probabilities p (*grid, L) that sum to 1 over labels.

    `scale` < 1 trusts an overconfident classifier less.
    """
    return _probability_costs(
        probabilities, clip, scale,
        "apply a softmax over the labels to logits, or divide 0..255 maps by 255",
        "the labels must be the last axis, or normalize them",
    )


def _probability_costs(
    probabilities: Any, clip: float, scale: float, beyond: str, unnormalized: str
) -> FloatArray:
    """The same, and what to do about values outside [0, 1] and about other sums."""
    p = _as_scores(probabilities, "probabilities")
    floor = as_within(clip, "clip", 0, 1, "try 1e-5", ends=False)
    factor = as_positive_number(scale, "scale")
    refuse_where(
        (p < -1e-4) | (p > 1.0 + 1e-4), p, "probabilities must lie in [0, 1]", beyond
    )
    sums = p.sum(-1)
    refuse_where(
        np.abs(sums - 1.0) > _SUM_TOLERANCE, sums, "probabilities must sum to 1 over the labels",
        unnormalized,
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
    logits : whether floats are scores of a network before the softmax, or of a foreground before
        the sigmoid; log-probabilities are such scores.
    axis_is_known : whether an image or the caller tells which axis of floats has the labels.
    """

    kind: str
    ids: NDArray[np.int64]
    confidence: float = CONFIDENCE
    unknown: int | None = UNKNOWN
    counted: bool = False
    logits: bool = False
    axis_is_known: bool = False

    def costs(self, values: NDArray[Any], mask: Any = None) -> FloatArray:
        """Costs (*grid, L) of the values (*grid[, L]), or of a part of them; flat where values
        outside a `mask` (*grid,) mean nothing.
        """
        soft = self.kind in ("probabilities", "foreground")
        grid = values.shape[:-1] if self.kind == "probabilities" else values.shape
        outside = outside_of(mask, grid)
        if soft and outside is not None and self.logits:
            values = values.copy()
            values[outside] = 0
        elif soft and outside is not None:
            values = _even_where(outside, values, len(self.ids))
        if self.kind == "foreground":
            values = _both_labels(values, self.logits)
        if soft:
            return _soft_costs(values, self.logits, axis_is_known=self.axis_is_known)
        labels, unknown = self.indices(values)
        if outside is not None and unknown is not None:
            strange = outside & ((labels < 0) | (labels >= len(self.ids)))
            labels = np.where(strange, unknown, labels)
        return unary_from_labels(
            labels, len(self.ids), confidence=self.confidence, unknown=unknown
        )

    def likeliest(self, values: NDArray[Any], mask: Any = None) -> NDArray[np.int64]:
        """The label 0..L-1 that each of the values (*grid[, L]) shows by itself, -1 for none and
        outside a `mask` (*grid,).
        """
        shown = self.given_labels(values)
        if self.kind in ("labels", "scribbles"):
            shown, unknown = self.indices(shown)
            shown = np.where((shown == unknown) | (shown >= len(self.ids)), -1, shown)
        outside = outside_of(mask, shown.shape)
        return np.asarray(shown if outside is None else np.where(outside, -1, shown), np.int64)

    def given_labels(self, values: NDArray[Any]) -> NDArray[Any]:
        """The labels (*grid,) that the values show by themselves: those of a map as they are, the
        likeliest of probabilities, and 1 where a foreground is likelier than not.
        """
        if self.kind == "foreground":
            return np.asarray(values > (0.0 if self.logits else 0.5), np.int64)
        return np.asarray(values.argmax(-1)) if self.kind == "probabilities" else values

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
    values: NDArray[Any], image_shape: tuple[int, ...] | None, *, layout: str | None = None,
    logits: bool = False, scribbles: bool = False, confidence: float = CONFIDENCE,
    unknown: int | str | None = "auto", n_labels: int | None = None,
    likely_labels: int | None = None, mask: Any = None,
) -> tuple[Segmentation, NDArray[Any]]:
    """What a segmentation means beside an image of this shape, and its values with labels last, at
    the size of the image.

    values : (*grid, L) or (L, *grid), (*grid,) floats of the foreground of two labels, or (*grid,)
        whole numbers. The grid of floats may be coarser than the image's: they are interpolated
        linearly in log space.
    image_shape : (*grid) or (*grid, C); None if there is no image.
    layout : "channels_last" or "channels_first"; None recognizes it by the shapes.
    logits : whether floats are scores before the softmax.
    scribbles : whether whole numbers are a few painted pixels.
    confidence, unknown, n_labels : for label maps, those of `label_segmentation`.
    likely_labels : the number of labels that a model has, which can tell where floats have theirs.
    mask : boolean (*grid,); what floats hold elsewhere does not tell whether they are logits.
    """
    if values.dtype.kind in "iub":
        values = values if image_shape is None else without_ones(values, image_shape)
        refuse_colors(values.shape, image_shape)
        if image_shape is not None and values.size:
            check_same_grid(values.shape, image_shape, "labels")
        found = label_segmentation(
            [values], values.size, "scribbles" if scribbles else "labels", confidence=confidence,
            unknown=unknown, n_labels=n_labels,
        )
        ids = found.ids
        if scribbles:
            _look_smeared(values, found.unknown)
        elif not found.counted and look_soft(ids):
            warn(
                f"the label map holds {len(ids)} labels and looks like a soft mask: threshold it, "
                "or pass it divided by 255 as the foreground's probability."
            )
        return found, values
    if scribbles:
        raise InputError(
            f"scribbles must be whole numbers, got {values.dtype}; paint labels, one id per pixel."
        )
    form = form_of(
        values.shape, image_shape, layout, n_labels or likely_labels,
        lambda axis: sums_to_one(values, axis),
    )
    values = form.labels_last(values)
    foreground = form.label_axis is None
    if not logits:
        _look_hard(values, foreground)
    # One number per pixel may be anything, for instance a distance to the border.
    outside = outside_of(mask, form.grid)
    inside = None if outside is None else ~outside
    seen = values
    if inside is not None and not foreground:
        coarse = values.shape[:-1]
        seen = values[points_seen(inside, coarse, form.grid) if form.is_coarse else inside]
    if logits and not foreground and values.size and seen.min() >= 0 and sums_to_one(seen):
        raise InputError(
            "logits must be scores before the softmax, got probabilities, which lie in [0, 1] and "
            "sum to 1 over the labels; leave logits=True out."
        )
    logits = logits or (not foreground and are_logits(seen))
    found = check_counted(n_labels, float_segmentation(values.shape, foreground, logits))
    found = replace(found, axis_is_known=image_shape is not None or layout is not None)
    if not form.is_coarse:
        return found, values
    return replace(found, logits=True), interpolated(found, values, form.grid, mask=inside)


def _look_smeared(strokes: NDArray[Any], unknown: int | None) -> None:
    """Warn of strokes (*grid,) many of whose labels cover next to nothing."""
    painted = strokes[strokes != unknown]
    counts = np.unique(painted, return_counts=True)[1]
    n_faint = np.count_nonzero(counts < _NEXT_TO_NOTHING * painted.size)
    if n_faint >= max(_MANY_FAINT, len(counts) / 2):
        warn(
            f"the strokes hold {len(counts)} labels, {n_faint} of which cover next to nothing, as "
            "JPEG and smooth edges leave them: paint with a hard brush and save as PNG."
        )


def _look_hard(values: NDArray[Any], foreground: bool) -> None:
    """Warn of probabilities (*grid, L), or (*grid,) of a foreground, that rather are a label map.
    """
    if values.ndim < 2 or values.size == 0:
        return
    if ((values == 0) | (values == 1)).all():
        what, remedy = (
            ("the foreground's probabilities", "use .astype(int)") if foreground
            else ("the probabilities", "use .argmax(-1)")
        )
        warn(f"{what} are all 0 or 1, which looks like a label map: {remedy}.")
    elif foreground and 0 < (most := float(values.max())) < _HARDLY:
        warn(
            f"no pixel of the segmentation is more than {100 * most:.2g} % foreground; read it as "
            "labels if its numbers are label ids."
        )


def form_of(
    shape: tuple[int, ...], image_shape: tuple[int, ...] | None, layout: str | None,
    n_labels: int | None, sums_to_one: Callable[[int], bool],
) -> Form:
    """Where the labels of floats of this `shape` are, and the grid of the image that they cover;
    those that cover none are refused.

    shape, image_shape : (*grid, L), (L, *grid) or (*grid,), perhaps coarser, and (*grid) or
        (*grid, C) or None.
    layout, n_labels, sums_to_one : those of `find_form`.
    """
    first = layout == "channels_first" and len(shape) >= 3
    if image_shape is not None and len(shape) > 1 and 0 not in shape:
        for known in (n_labels, None):
            form = find_form(shape, image_shape, layout, known, sums_to_one)
            if form is not None:
                return form
        check_same_grid(shape, image_shape, "probabilities", 0 if first else -1)
    return Form(shape[1:], 0) if first else Form(shape[:-1], -1)


def interpolated(
    found: Segmentation, values: NDArray[Any], grid: tuple[int, ...],
    stored: tuple[int, ...] | None = None, part: tuple[slice, ...] | None = None,
    mask: Any = None,
) -> FloatArray:
    """Log-probabilities (*grid, L), not normalized, of `values` (*coarse, L) that mean what
    is `found`, or the logits (*grid,) of a foreground (*coarse,).

    grid : of the image, (d,).
    stored, part : those of `resize_linearly`.
    mask : boolean (*grid,) or of the part (*part,); values that nothing in it is interpolated from
        mean nothing.
    """
    if mask is not None:
        mask = points_seen(mask, stored or values.shape[: len(grid)], grid, part)
    costs = found.costs(values, mask)
    if found.kind == "foreground":
        return resize_linearly(costs[..., :1] - costs[..., 1:], grid, stored, part)[..., 0]
    return resize_linearly(-costs, grid, stored, part)


def are_logits(values: NDArray[Any]) -> bool:
    """Whether `values` (*grid, L) can only be logits or log-probabilities: some are negative, by
    more than interpolation makes of probabilities.
    """
    return values.size > 0 and bool(values.min() < _BELOW_PROBABILITIES)


def sums_to_one(values: NDArray[Any], axis: int = -1) -> bool:
    """Whether `values` (*grid, L), or (L, *grid) with `axis` 0, sum to about 1 over the labels."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool((np.abs(values.sum(axis) - 1.0) <= _SUM_TOLERANCE).all())


def check_counted(n_labels: int | None, found: Segmentation) -> Segmentation:
    """`found` of floats, unless the caller has given another number of labels, `n_labels`."""
    count = len(found.ids)
    if n_labels is not None and as_count(n_labels, "n_labels", maximum=MAX_LABELS) != count:
        raise InputError(
            f"n_labels must be the {count} labels of the {found.kind}, got {n_labels}; leave "
            "it out, it is for label maps."
        )
    return found


def float_segmentation(
    shape: tuple[int, ...], foreground: bool, logits: bool = False
) -> Segmentation:
    """What floats mean whose `shape` is (*grid,) of a `foreground`, or (*grid, L), and whether they
    are `logits`.
    """
    if foreground:
        return Segmentation("foreground", np.arange(2), logits=logits)
    return Segmentation("probabilities", np.arange(shape[-1] if shape else 0), logits=logits)


def label_segmentation(
    parts: Iterable[NDArray[Any]], n_pixels: int, kind: str = "labels", *,
    confidence: float = CONFIDENCE, unknown: int | str | None = "auto",
    n_labels: int | None = None,
) -> Segmentation:
    """What the whole numbers of a label map mean; ids need not be consecutive.

    parts : arrays (*part,) that make up the map.
    n_pixels : pixels of the largest part.
    kind : "labels" or "scribbles".
    confidence, unknown : the probability that a label is right, and the value that marks pixels
        without one, None if there is none. "auto" is 255, but None for a mask, a map that holds 0
        and 255 and nothing else, and for a map of a single number, which is its label; if
        `n_labels` says that there are more than two, it is none.
    n_labels : the number of labels if the map does not show them all.
    """
    if n_labels is not None:
        count = as_count(n_labels, "n_labels", maximum=MAX_LABELS)
        check_memory(
            count * (8.0 + 4.0 * n_pixels), f"{n_pixels} pixels with {count} labels",
            "use fewer labels, or work on smaller parts",
        )
        if count == 2 and kind == "labels" and unknown in (None, "auto"):
            held = mask_values(parts)
            if held == MASK or (unknown is None and UNKNOWN in held):
                return Segmentation(kind, np.array(sorted(MASK)), confidence, None)
        unknown = UNKNOWN if unknown == "auto" else unknown
        return Segmentation(
            kind, np.arange(count), confidence, as_unknown(unknown), counted=True
        )
    present = np.empty(0, np.int64)
    for part in parts:
        present = np.union1d(present, present_ids(part))
    if unknown == "auto":
        is_whole = kind == "labels" and (len(present) == 1 or set(present.tolist()) == MASK)
        unknown = None if is_whole else UNKNOWN
    unknown = as_unknown(unknown)
    return Segmentation(kind, _known_ids(present, unknown, kind), confidence, unknown)


def look_soft(ids: NDArray[np.integer[Any]]) -> bool:
    """Whether the ids (L,) in a label map are so many grays that it rather is a soft mask."""
    return len(ids) > _MANY_LABELS and bool(ids[0] >= 0 and ids[-1] <= 255)


def mask_values(parts: Iterable[NDArray[Any]]) -> set[int]:
    """Which of 0 and 255 occur in label maps, `parts` (*grid,); none if anything else does.

    Maps that belong together are looked at together: one that happens to hold only 0 and 255 among
    others with more labels is no mask.
    """
    held: set[int] = set()
    for part in parts:
        background, foreground = part == 0, part == UNKNOWN
        if not (background | foreground).all():
            return set()
        held |= {0} if background.any() else set()
        held |= {UNKNOWN} if foreground.any() else set()
    return held


def as_unknown(unknown: Any) -> int | None:
    """`unknown`, the value of pixels without a label, as a whole number or None."""
    return None if unknown is None else as_count(unknown, "unknown", -(2**63), 2**63 - 1)


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


def _known_ids(
    present: NDArray[np.int64], unknown: int | None, kind: str
) -> NDArray[np.int64]:
    """The ids (L,) of labels among the numbers that occur in the whole map."""
    ids = present if unknown is None else present[present != unknown]
    if kind == "scribbles" and len(ids) < 2:
        raise InputError(
            f"scribbles must show two labels or more, got {ids[0] if len(ids) else 'none'} beside "
            f"the unpainted {unknown}; paint some pixels of each."
        )
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


def outside_of(mask: Any, grid: tuple[int, ...]) -> NDArray[np.bool_] | None:
    """Where a mask (*grid,) leaves out points, (*grid,); None if it leaves out none, or is refused
    later.
    """
    if mask is None:
        return None
    inside = as_array(mask, "mask")
    if inside.dtype != np.bool_ or inside.shape != grid or inside.all():
        return None
    return ~inside


def _even_where(
    outside: NDArray[np.bool_], values: NDArray[Any], n_labels: int
) -> NDArray[Any]:
    """Probabilities (*grid[, L]) with 1 / L in the place of what are none `outside` (*grid,)."""
    rows = values[outside]
    many = rows if values.ndim > outside.ndim else np.stack([1 - rows, rows], -1)
    with np.errstate(invalid="ignore", over="ignore"):
        fine = ((many >= -1e-4) & (many <= 1 + 1e-4)).all(-1) & (abs(many.sum(-1) - 1) <= 0.02)
    if fine.all():
        return values
    rows[~fine] = 1 / n_labels
    values = values.copy()
    values[outside] = rows
    return values


def _soft_costs(values: NDArray[Any], logits: bool, *, axis_is_known: bool) -> FloatArray:
    """Costs (*grid, L) of probabilities or logits (*grid, L)."""
    unnormalized = (
        'the labels must be the last axis (layout="channels_first" if they are the first), or '
        "normalize them"
    )
    if axis_is_known:
        unnormalized = "divide them by their sum, or pass logits=True if they are scores"
    if logits:
        values = np.exp(-unary_from_logits(values))
    return _probability_costs(
        values, _CLIP, 1.0,
        "pass logits=True if they are a network's scores before the softmax, or divide 0..255 maps "
        "by 255",
        unnormalized,
    )


def _both_labels(values: NDArray[Any], logits: bool) -> NDArray[Any]:
    """Probabilities or logits (*grid, 2) of those of the foreground (*grid,)."""
    check_finite(values, "probabilities")
    if not logits:
        refuse_where(
            (values < 0.0) | (values > 1.0), values,
            "one number per pixel must be the foreground's probability in [0, 1]",
            "convert a label map with .astype(int), or pass logits=True if they are scores before "
            "the sigmoid",
        )
    background = np.zeros_like(values) if logits else 1.0 - values
    return np.stack([background, values], axis=-1).astype(values.dtype)


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
    unknown = as_unknown(unknown)
    _check_room(array.size * (4.0 * n_labels + 24.0), (*array.shape, n_labels))
    known = np.ones(array.shape, bool) if unknown is None else array != unknown
    marked = "none" if unknown is None else str(unknown)
    refuse_where(
        known & ((array < 0) | (array >= n_labels)), array,
        f"labels must lie in 0..{n_labels - 1} (unknown: {marked})",
        "raise n_labels or mark such pixels with the unknown value",
    )
    return known, np.where(known, array, 0).astype(np.int64)
