"""Costs from a few painted pixels: a mixture of Gaussians over the colors of each label."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.distances import distances_to
from crfield._core.resources import thread_count
from crfield._core.validate import (
    MAX_LABELS,
    FloatArray,
    InputError,
    as_array,
    as_count,
    as_floats,
    as_image,
    as_scalar,
    as_within,
    check_memory,
    shown,
)
from crfield._core.warning import warn
from crfield.dense.observation import observe
from crfield.unary.color_model import Colors, Memo, color_bytes, color_costs, colors_of
from crfield.unary.costs import UNKNOWN, Segmentation, check_labels, outside_of

__all__ = [
    "Colors", "colors_of", "paint_over", "scribble_costs", "unary_from_scribbles",
]

MAX_COMPONENTS = 32
# Chosen by experiments/grabcut33.py.
COMPONENTS, STRENGTH, NEARNESS = 5, 0.5, 3.0
_REACH = 0.01  # distances below this share of the diagonal hardly count
_FORBIDDING = 1e6  # the cost of what certain scribbles rule out
_COVERED = 0.8  # more than this share of an image is no few strokes


def unary_from_scribbles(
    image: Any,
    scribbles: Any,
    n_labels: int | None = None,
    *,
    components: int = COMPONENTS,
    strength: float = STRENGTH,
    nearness: float = NEARNESS,
    confidence: float = 1.0,
    unknown: int | None = UNKNOWN,
    spacing: Any = None,
    colors: Colors | None = None,
    threads: int | None = None,
) -> FloatArray:
    """Costs (*grid, L) of an image from a few pixels that somebody has labeled.

    Each label's colors are a mixture of Gaussians, fitted by expectation maximization to its
    painted pixels. With d_i(l) the distance to the nearest of these and r a hundredth of the
    image's diagonal,

        u_i(l) = -strength log p(color_i | l) + nearness log(d_i(l) + r) + a constant of pixel i.

    Painted pixels have their label with probability `confidence`, by default for certain.

    Parameters
    ----------
    image : (H, W) or (H, W, C) array, or a volume (Z, H, W[, C]).
    scribbles : (*grid), whole numbers: a label in 0..L-1, or `unknown` where nothing is painted.
    n_labels : L; by default one more than the largest label painted.
    components : Gaussians per label, fewer where few colors were painted.
    strength : how far colors are trusted, from 0 (not at all) to 1 (as if they were independent).
    nearness : how far a label's pixels are expected around its scribbles; 0 leaves distances out.
    spacing : distance between neighbors along each axis, (d,), if it is not the same.
    colors : what `colors_of(image)` gave, to save its time from stroke to stroke.
    threads : native threads, None for all cores.
    """
    k = as_count(components, "components", maximum=MAX_COMPONENTS)
    trust = as_within(strength, "strength", 0, 1, "try 0.5")
    near = as_within(nearness, "nearness", 0, 100, "try 3")
    sure = _as_probability(confidence)
    array = as_array(scribbles, "scribbles")
    n = _count_labels(array, n_labels, unknown)
    colors = _colors_under(array, image, colors)
    steps = observe(array.shape, spacing=spacing).spacing
    known, labels, present = _painted_labels(array, n, unknown)
    _check_room(colors, len(present), n, k)
    # Labels come first until the end: numbers of one label lie together, which is faster.
    masks = [known & (labels == label) for label in present]
    unary = np.take(color_costs(colors, masks, k, trust), colors.bins.ravel(), axis=1)
    if near:
        key = ("distances", None if steps is None else tuple(steps))
        for row, mask in zip(unary, masks, strict=True):
            row += near * colors.memo.recall(
                key, mask, lambda mask: _log_distances(mask, steps, thread_count(threads))
            )
    _normalize(unary)
    full = _with_absent(unary, present, n).reshape(*array.shape, n)
    return _painted(full, known, labels, sure)


def _count_labels(scribbles: NDArray[Any], n_labels: int | None, unknown: int | None) -> int:
    """L, if there is room for the costs of so many."""
    if n_labels is None:
        whole = scribbles.dtype.kind in "iu"  # others are refused later, or are labels 0 and 1
        n_labels = 1 + int(scribbles[scribbles != unknown].max(initial=0)) if whole else 2
    n = as_count(n_labels, "n_labels", maximum=MAX_LABELS)
    check_memory(
        4.0 * n * scribbles.size, f"A unary of shape {(*scribbles.shape, n)}",
        "use fewer labels or a smaller image",
    )
    return n


def _painted_labels(
    scribbles: NDArray[Any], n: int, unknown: int | None
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Which pixels (*grid,) are painted, their labels (*grid,), and the labels that occur."""
    known, labels = check_labels(scribbles, n, unknown)
    present = np.unique(labels[known])
    if len(present) < 2:
        raise InputError(
            f"scribbles must show two labels or more, got {len(present)}; "
            "paint some pixels of another label."
        )
    _check_unpainted(known, unknown)
    return known, labels, present


def _colors_under(scribbles: NDArray[Any], image: Any, colors: Colors | None) -> Colors:
    """The colors of the image under the scribbles (*grid,): those given, or found now."""
    if colors is None:
        pixels = as_image(image)
        gray = pixels.ndim == 3 and pixels.shape == scribbles.shape
        colors = colors_of(pixels[..., None] if gray else pixels)
        colors = replace(colors, memo=Memo(0))  # used once
    elif not isinstance(colors, Colors):
        raise InputError(
            f"colors must be what colors_of(image) gave, got {shown(colors)}; pass that."
        )
    if scribbles.shape != colors.bins.shape:
        raise InputError(
            f"scribbles must have the image's grid {colors.bins.shape}, got {scribbles.shape}; "
            "paint on the image itself."
        )
    return colors


def _normalize(costs: NDArray[np.float32]) -> None:
    """Add to each pixel of costs (P, N) what makes them -log of probabilities, in place."""
    costs -= costs.min(0)
    total = np.zeros_like(costs[0])
    for row in costs:
        total += np.exp(-row)
    costs += np.log(total)


def scribble_costs(
    segmentation: Segmentation, scribbles: NDArray[Any], image: Any, mask: Any = None,
    **options: Any,
) -> FloatArray:
    """Costs (*grid, L) of scribbles (*grid,) in the ids of a segmentation, painted on an image
    (*grid[, C]); what both hold outside a `mask` (*grid,) does not matter.

    options : what else `unary_from_scribbles` takes.
    """
    if image is None:
        raise InputError("scribbles need the image that they are painted on; pass it.")
    known = scribbles != segmentation.unknown
    _check_unpainted(known, segmentation.unknown)
    _warn_of_background(scribbles, known)
    outside = outside_of(mask, scribbles.shape)
    if (
        outside is not None and not outside.all()
        and np.shape(image)[: outside.ndim] == outside.shape
    ):
        image, scribbles = as_image(image).copy(), scribbles.copy()
        scribbles[outside] = segmentation.unknown
        image[outside] = image[~outside][0]  # any color that occurs: it says nothing of a label
    labels, unknown = segmentation.indices(scribbles)
    return unary_from_scribbles(
        image, labels, len(segmentation.ids), unknown=unknown, **options
    )


def _check_unpainted(known: NDArray[np.bool_], unknown: int | None) -> None:
    """Refuse scribbles (*grid,) all of which are known: a label map, not a few painted pixels."""
    if known.all():
        raise InputError(
            "scribbles must leave pixels unpainted, got none"
            f"{'' if unknown is None else f' with the value {unknown}'}; pass unknown=0 if 0 marks "
            "them, for example."
        )


def _warn_of_background(scribbles: NDArray[Any], known: NDArray[np.bool_]) -> None:
    """Warn where one label is painted nearly everywhere: it may mark what is not painted."""
    if known.mean() < _COVERED:
        return
    ids, counts = np.unique(scribbles[known], return_counts=True)
    most = int(counts.argmax())
    if counts[most] > known.size / 2:
        warn(
            f"{ids[most]} is painted on {100 * counts[most] / known.size:.0f} % of the image: pass "
            f"unknown={ids[most]} if it marks what is not painted."
        )


def paint_over(
    unary: Any, scribbles: Any, *, confidence: float = 1.0, unknown: int = UNKNOWN
) -> FloatArray:
    """Costs (*grid, L) corrected by hand: a copy in which painted pixels have their label with
    probability `confidence` and the others with what is left, shared evenly.

    unary : (*grid, L) costs, of a classifier for instance.
    scribbles : (*grid), whole numbers: a label in 0..L-1, or `unknown` where nothing is painted.
    """
    costs = as_floats(unary, "unary")
    array = as_array(scribbles, "scribbles")
    if costs.ndim < 2 or array.shape != costs.shape[:-1]:
        raise InputError(
            f"scribbles must have the unary's grid {costs.shape[:-1]}, got {array.shape}; "
            "paint on the image itself."
        )
    known, labels = check_labels(array, costs.shape[-1], unknown)
    return _painted(costs.copy(), known, labels, _as_probability(confidence))


def _painted(
    costs: FloatArray, known: NDArray[np.bool_], labels: NDArray[np.int64], confidence: float
) -> FloatArray:
    """`costs` (*grid, L) changed in place where labels are known."""
    n = costs.shape[-1]
    flat = costs.reshape(-1, n)
    painted = np.flatnonzero(known)
    rest = (1.0 - confidence) / max(n - 1, 1)
    flat[painted] = -math.log(rest) if rest > 0 else _FORBIDDING
    flat[painted, labels.ravel()[painted]] = -math.log(confidence)
    return costs


def _as_probability(confidence: Any) -> float:
    sure = as_scalar(confidence, "confidence")
    if not 0.0 < sure <= 1.0:
        raise InputError(f"confidence must lie in (0, 1], got {sure:g}; 1 is certain.")
    return sure


def _with_absent(
    costs: NDArray[np.float32], present: NDArray[np.int64], n_labels: int
) -> NDArray[np.float32]:
    """Costs (P, N) of the labels that are painted as (N, L): the others cost as
    much as the most expensive one of a pixel.
    """
    if len(present) == n_labels:
        return np.ascontiguousarray(costs.T)
    full = np.repeat(costs.max(0)[:, None], n_labels, axis=1)
    full[:, present] = costs.T
    return full


def _log_distances(
    marked: NDArray[np.bool_], spacing: NDArray[np.float64] | None, threads: int
) -> NDArray[np.float32]:
    """log(d + r), (N,): d from each pixel of a grid (H, W) or (Z, H, W) to those marked."""
    # In units of the largest step: what they are only adds a constant.
    steps = np.ones(marked.ndim) if spacing is None else spacing / spacing.max()
    reach = _REACH * math.hypot(*(steps * marked.shape))
    distances = distances_to(marked[None], threads, steps).ravel()
    distances += np.float32(reach)
    return np.log(distances, out=distances)


def _check_room(colors: Colors, n_present: int, n_labels: int, components: int) -> None:
    """Refuse scribbles whose costs do not fit into memory: beside a mask of each label (P, N) there
    is a color model at first, then costs (P, N) and (N, L), with distances one label at a time.
    """
    n = colors.bins.size
    costs = 4.0 * (n_present + max(n_labels, n_present)) + 32.0
    check_memory(
        n * (n_present + 16.0) + max(n * costs, color_bytes(colors, n_present, components)),
        f"Costs of {n} pixels and {n_labels} labels", "use a smaller image or fewer labels",
    )
