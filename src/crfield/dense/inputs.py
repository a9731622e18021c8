"""Arrays as a user may write them beside an image: shapes, layouts and sizes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.validate import (
    LARGEST_COST,
    FloatArray,
    InputError,
    as_array,
    as_choice,
    as_floats,
    check_magnitude,
    check_memory,
)
from crfield._core.warning import warn
from crfield.dense.observation import (
    Observation,
    finite_inside,
    looks_swapped,
    swapped_hint,
)

_ENOUGH_ROWS, _LOOKED_AT = 64, 1000  # to tell probabilities from costs
LAYOUTS = ("channels_last", "channels_first")
Shape = tuple[int, ...]
ASK_FOR_LAYOUT = 'pass layout="channels_first" or layout="channels_last"'

_MOST_COLORS = 4  # channels of what is a color picture rather than a volume
_CLEARLY_COARSER = 0.75  # of the image's sides: a grid nearly as large has rather been cut


def grid_of(shape: tuple[int, ...], n_labels: int, layout: str) -> tuple[int, ...]:
    """The grid of a unary of this shape."""
    first = as_choice(layout, "layout", LAYOUTS) == "channels_first"
    if len(shape) < 2 or shape[0 if first else -1] != n_labels:
        hint = "match n_labels"
        if len(shape) >= 3 and shape[-1 if first else 0] == n_labels:
            hint = (
                'its labels come last: pass layout="channels_last"' if first
                else 'its labels come first: pass layout="channels_first"'
            )
        wanted = f"({n_labels}, *grid)" if first else f"(*grid, {n_labels})"
        raise InputError(
            f"unary must have shape {wanted} for {n_labels} labels, got {shape}; {hint}."
        )
    if math.prod(shape) == 0:
        raise InputError(
            f"unary must have at least one variable, got shape {shape}; pass a non-empty grid."
        )
    return shape[1:] if first else shape[:-1]


def as_costs(
    unary: NDArray[Any], layout: str, observation: Observation, threads: int = 1
) -> tuple[FloatArray, float | None]:
    """The unary as contiguous floats (*grid, L) of sane size, and the largest if it is known;
    outside a mask, costs that are none count as zeros.
    """
    ready = unary.dtype in (np.float32, np.float64) and unary.flags.c_contiguous
    if ready and layout == "channels_last" and unary.dtype.isnative:
        flat = unary.reshape(-1, unary.shape[-1])
        most = _native.largest(flat, threads)
        if most <= LARGEST_COST:  # False for NaN as well
            return unary, most
    if observation.selected is None:
        costs = _labels_last(as_floats(unary, "unary"), layout)
    else:
        known = _inside(_labels_last(unary, layout), observation, LARGEST_COST)
        costs = as_floats(known, "unary")
    check_magnitude(costs, "unary")
    return costs, None


def warn_of_probabilities(costs: FloatArray, most: float | None) -> None:
    """Say so where costs (*grid, L) look like probabilities; most : their largest magnitude."""
    n_labels = costs.shape[-1]
    if n_labels < 2 or (most is not None and most > 1.0):
        return
    rows = costs.reshape(-1, n_labels)
    some = rows[:: max(1, len(rows) // _LOOKED_AT)]
    # Few rows may be so by chance, and costs of 0 and 1 are as likely as certain labels.
    if len(rows) < _ENOUGH_ROWS or some.min() < 0.0 or ((some == 0.0) | (some == 1.0)).all():
        return
    if np.ptp(some) > 0.0 and np.abs(some.sum(1) - 1.0).max() < 1e-3:
        warn(
            "unary looks like probabilities, and costs are expected, small for likely labels: "
            "pass unary_from_probabilities(p)."
        )


def as_start(
    init: Any, costs: FloatArray, layout: str, observation: Observation
) -> FloatArray:
    """Marginals (N, L) to start from, of the variables that take part."""
    given = _labels_last(as_array(init, "init"), layout)
    if given.shape == costs.shape:
        given = _inside(given, observation)
    q = as_floats(given, "init", costs.dtype)
    if q.shape != costs.shape:
        hint = "pass marginals of the same grid"
        if looks_swapped(q.shape, observation.grid):
            hint = "width and height look swapped: transpose it"
        raise InputError(f"init must have the unary's shape {costs.shape}, got {q.shape}; {hint}.")
    flat = np.ascontiguousarray(observation.select(q.reshape(-1, q.shape[-1])))
    sums = flat.sum(1, dtype=np.float64)
    if flat.min() < 0 or not np.allclose(sums, 1.0, atol=1e-3):
        raise InputError(
            "init must hold probabilities that sum to 1 over the labels, got values from "
            f"{flat.min():.3g} and sums between {sums.min():.3g} and {sums.max():.3g}; "
            "normalize it."
        )
    return np.asarray(flat / flat.sum(1, keepdims=True))


def check_inference_memory(
    dtype: np.dtype[Any], n_labels: int, n_terms: int, observation: Observation
) -> None:
    """Refuse at once what cannot fit even when fused (`crfield.dense.problem`)."""
    channels = 0 if observation.image is None else observation.image.size // math.prod(
        observation.grid
    )
    columns = sum(values.shape[1] for values in observation.features.values())
    on_grid = observation.positions is None and observation.selected is None and not columns
    dims = len(observation.grid) + channels + columns
    refuse_inference(
        inference_bytes(dtype, n_labels, n_terms, observation.n_variables, dims, on_grid=on_grid),
        observation.n_variables, n_labels,
    )


def inference_bytes(
    dtype: np.dtype[Any], n_labels: int, n_terms: int, n_variables: int, dims: int, *,
    on_grid: bool,
) -> float:
    """About what inference takes beside the costs that it is given: costs that are centered, two
    states; indices, weights and ranks of a lattice and scales for each term of so many dimensions;
    features off the grid.
    """
    per_term = (dims + 1) * (4 + dtype.itemsize) + 8 + 3 * dtype.itemsize
    per_variable = 3 * dtype.itemsize * n_labels + n_terms * per_term
    if not on_grid:
        per_variable += 8 * dims * 3
    return float(n_variables) * per_variable


def refuse_inference(n_bytes: float, n_variables: int, n_labels: int) -> None:
    """Refuse inference that takes more bytes than there are."""
    check_memory(
        n_bytes, f"Inference on {n_variables} variables with {n_labels} labels",
        "work on a smaller image or on tiles",
    )


def _inside(
    values: NDArray[Any], observation: Observation, most: float = math.inf
) -> NDArray[Any]:
    return finite_inside(values, math.prod(observation.grid), observation.selected, most)


def _labels_last(array: NDArray[Any], layout: str) -> NDArray[Any]:
    if as_choice(layout, "layout", LAYOUTS) == "channels_first" and array.ndim >= 2:
        return np.ascontiguousarray(np.moveaxis(array, 0, -1))
    return array


@dataclass(frozen=True)
class Form:
    """How the floats of a segmentation lie beside an image.

    Attributes
    ----------
    grid : of the image, which they cover.
    label_axis : the axis that has the labels, 0 or -1; None for one number per pixel.
    is_coarse : whether their own grid is coarser.
    has_channel : whether one number per pixel comes with a last axis of one.
    """

    grid: Shape
    label_axis: int | None
    is_coarse: bool = False
    has_channel: bool = False

    def without_ones(self, shape: Shape) -> Shape:
        """The shape of the floats without axes of a batch and of the one channel."""
        n_axes = len(self.grid) + (self.label_axis is not None)
        return (shape[:-1] if self.has_channel else shape)[-n_axes:]

    def count_labels(self, shape: Shape) -> int:
        """How many labels floats of this shape have."""
        return 2 if self.label_axis is None else self.without_ones(shape)[self.label_axis]

    def labels_last(self, values: NDArray[Any]) -> NDArray[Any]:
        """The values without axes of a batch, and with the labels as the last where they have any.
        """
        values = values.reshape(self.without_ones(values.shape))
        return np.moveaxis(values, 0, -1) if self.label_axis == 0 else values


def find_form(
    shape: Shape, image_shape: Shape, layout: str | None, n_labels: int | None,
    sums_to_one: Callable[[int], bool] | None = None,
) -> Form | None:
    """The one way in which floats of this `shape` cover the pixels of an image (*grid[, C]), or
    None if there is none.

    The grid of the floats is that of the image, or coarser by one factor, within rounding; a
    volume's may be coarser along some axes only. Where `layout` or the number of labels tells which
    axis is theirs, the factors may differ. First axes of one are those of a batch where the floats
    cover the image only without them, and a last axis of one is that of a foreground's channel.

    layout : "channels_last" or "channels_first", or None if the shapes are to tell.
    n_labels : number of labels, if it is known.
    sums_to_one : whether the floats sum to 1 over an axis, which decides where shapes
        leave it open; None if they are not read yet, and any of the ways will do.
    """
    if len(shape) > 2 and shape[-1] == 1 and n_labels in (None, 2):
        form = find_form(shape[:-1], image_shape, layout, n_labels)
        if form is not None and form.label_axis is None and not form.has_channel:
            return replace(form, has_channel=True)
    found = [
        (rank, form) for form, stored, count in _forms(shape, image_shape, layout)
        if (rank := _fit(stored, form.grid, count is not None and (
            layout is not None or count == n_labels
        ))) is not None
        and (form.label_axis is None or n_labels is None or count == n_labels)
    ]
    if not found and len(shape) > 2 and shape[0] == 1:
        def of_all(axis: int) -> bool:
            assert sums_to_one is not None
            return sums_to_one(axis if axis < 0 else axis + 1)

        whole = None if sums_to_one is None else of_all
        return find_form(shape[1:], image_shape, layout, n_labels, whole)
    best = min((rank for rank, _ in found), default=0)
    forms = [form for rank, form in found if rank == best]
    if sums_to_one is not None and len(forms) > 1:
        single = [form for form in forms if form.label_axis is None]
        summed = [f for f in forms if f.label_axis is not None and sums_to_one(f.label_axis)]
        forms = summed or single or forms
    if sums_to_one is not None and len(forms) > 1:
        raise InputError(
            f"probabilities of shape {shape} may have their labels first or last beside an image "
            f"of {image_shape}; {ASK_FOR_LAYOUT}."
        )
    return forms[0] if forms else None


def _forms(
    shape: Shape, image_shape: Shape, layout: str | None
) -> Iterator[tuple[Form, Shape, int | None]]:
    """Forms that floats of this shape may have, with their own grid and how many labels it leaves.
    """
    for grid in (image_shape, image_shape[:-1]):
        is_color = len(grid) > 2 and grid == image_shape and grid[-1] <= _MOST_COLORS
        if len(shape) == len(grid) >= 2 and not is_color:
            yield Form(grid, None, shape != grid), shape, None
        if len(shape) != len(grid) + 1 or not grid:
            continue
        last, first = Form(grid, -1, shape[:-1] != grid), Form(grid, 0, shape[1:] != grid)
        # A first axis of one is that of a batch, unless the layout says otherwise.
        may_be_first = len(shape) > 2 and (
            layout == "channels_first" or (layout is None and shape[0] > 1)
        )
        if (layout != "channels_first" or len(shape) < 3) and not (is_color and last.is_coarse):
            yield last, shape[:-1], shape[-1]
        if may_be_first and not (is_color and first.is_coarse):
            yield first, shape[1:], shape[0]


def _fit(stored: Shape, grid: Shape, told: bool) -> int | None:
    """How well a stored grid covers another: 0 of the same size, 1 coarser by one factor, 2 coarser
    and of another shape, which only counts where it is `told` which axes are the grid; else None.
    """
    if stored == grid:
        return 0
    if len(grid) < 2 or 0 in stored or any(n > m for n, m in zip(stored, grid, strict=True)):
        return None
    if _is_coarser(stored, grid):
        return 1
    swapped = any(
        _is_coarser((*stored[:k], stored[k + 1], stored[k], *stored[k + 2 :]), grid)
        for k in range(len(grid) - 1)
    )
    return 2 if told and not swapped else None


def _is_coarser(stored: Shape, grid: Shape) -> bool:
    """Whether a grid is clearly coarser than another, by one factor within rounding; of a volume
    whole slices are not: then there are as many images, or colors.
    """
    if len(grid) > 2 and stored[-2:] == grid[-2:]:
        return False
    sides = [(n, m) for n, m in zip(stored, grid, strict=True) if m > 1]
    if len(grid) > 2:
        sides = [(n, m) for n, m in sides if n != m]
    low = max((m / (n + 1) for n, m in sides), default=math.inf)
    high = min((m / (n - 1) if n > 1 else math.inf for n, m in sides), default=0.0)
    return low < high and all(n <= _CLEARLY_COARSER * m for n, m in sides)


def without_labels(shape: Shape, label_axis: int | None) -> Shape:
    """The grid of a segmentation of this shape with labels along `label_axis`, 0, -1 or None."""
    return shape if label_axis is None else shape[1:] if label_axis == 0 else shape[:-1]


def without_ones(labels: NDArray[Any], image_shape: Shape) -> NDArray[Any]:
    """A label map beside an image of this shape, without a first axis of one, that of a batch, or a
    last, that of a channel, where it covers the image only without.
    """
    grids = (image_shape, image_shape[:-1])
    if labels.shape[:1] == (1,) and labels.shape not in grids:
        return without_ones(labels[0], image_shape) if labels.ndim > 2 else labels
    if labels.shape[-1:] == (1,) and labels.shape not in grids and labels.shape[:-1] in grids:
        return labels[..., 0]
    return labels


def check_same_grid(
    shape: Shape, image_shape: Shape, name: str, label_axis: int | None = None
) -> None:
    """Refuse a segmentation called `name` whose `shape` without the `label_axis`, 0, -1 or None, is
    not the grid of an image of the shape `image_shape`.
    """
    if without_labels(shape, label_axis) not in (image_shape, image_shape[:-1]):
        is_volume = len(image_shape) == 3 and min(image_shape[0], image_shape[-1]) > _MOST_COLORS
        points, kind = ("voxels", "volume") if is_volume else ("pixels", "image")
        raise InputError(
            f"{name} must cover the {points} of the {kind}, but {name} have shape {shape}, the "
            f"{kind} {image_shape}; {grid_hint(shape, image_shape, label_axis)}."
        )


def grid_hint(
    shape: Shape, image_shape: Shape, label_axis: int | None
) -> str:
    """What to do about a segmentation whose shape, see `check_same_grid`, does not fit an image;
    floats may have another size.
    """
    if not image_shape:
        return "pass the array of its pixels"
    grid = without_labels(shape, label_axis)
    d = len(grid)
    n_first, rest = image_shape[0], image_shape[1:]
    pictures = (*image_shape[2:], *image_shape[1:2])  # of a batch, with the channels last

    def fits(image: Shape, given: Shape = shape) -> bool:
        if label_axis is None:
            return given in (image, image[:-1])
        return 0 not in given and find_form(given, image, None, None) is not None

    # In volumes, whose axes may have factors of their own, too much would fit.
    is_flat = len(image_shape) == 2 or (len(image_shape) == 3 and rest[-1] <= _MOST_COLORS)
    if looks_swapped(image_shape, grid) or (is_flat and n_first != rest[0] and fits(
        (rest[0], n_first, *rest[1:])
    )):
        hint = swapped_hint(len(image_shape))
    elif (d > 2 and image_shape[:d] == grid[::-1]) or (
        len(image_shape) > 2 and n_first > _MOST_COLORS
        and fits((*image_shape[:3][::-1], *image_shape[3:]))
    ):
        hint = (
            "their axes look reversed: pass both as nibabel images, or the array in (Z, Y, X)"
        )
    elif label_axis is not None and fits(image_shape):
        layout, place = LAYOUTS[label_axis == -1], ("last", "first")[label_axis == -1]
        hint = f'its labels come {place}: pass layout="{layout}"'
    elif n_first == 1 and fits(rest):
        hint = "drop the first axis of the image, which is that of a batch or of the one slice"
    elif rest == grid or (n_first <= _MOST_COLORS < image_shape[-1] and fits((*rest, n_first))):
        hint = "the image's channels come first: move them last with np.moveaxis(image, 0, -1)"
    elif len(image_shape) == 4 and rest[0] <= _MOST_COLORS and (
        fits(pictures) or fits(pictures, shape[1:])
    ):
        hint = "the images' channels come first: move them last with np.moveaxis(image, 1, -1)"
    elif len(image_shape) == 4 and n_first != shape[0] and fits(rest, shape[1:]):
        hint = f"pass one segmentation for each of the {n_first} images"
    elif label_axis is None and grid[:-1] in (image_shape, image_shape[:-1]):
        hint = "pass .argmax(-1) if there is one plane per label"
    elif label_axis is None:
        hint = "bring both to one size"
    else:
        hint = (
            "resize them to the image, without the padding that the network was given; they may be "
            "coarser than the image only by one factor along all sides"
        )
    return hint


def refuse_colors(shape: Shape, image_shape: Shape | None) -> None:
    """Refuse a label map whose `shape` is that of a picture like that of `image_shape`."""
    if image_shape is None or len(shape) != 3 or shape[-1] not in (3, 4):
        return
    if shape in (image_shape, (*image_shape, shape[-1])):
        raise InputError(
            f"labels must be one whole number per pixel, got shape {shape}, which looks like "
            "a color picture; pass the array of label numbers."
        )
