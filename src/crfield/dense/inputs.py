"""Segmentations, costs and starts as a user may write them: forms, shapes and sizes."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.validate import (
    LARGEST_COST,
    FloatArray,
    InputError,
    as_choice,
    as_floats,
    check_magnitude,
    check_memory,
)
from crfield.dense.observation import Observation, looks_swapped

_ENOUGH_ROWS, _LOOKED_AT = 64, 1000  # to tell probabilities from costs
LAYOUTS = ("channels_last", "channels_first")


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
        hint = "drop the last axis" if one else "pass .argmax(-1) if there is a plane a label"
    else:
        hint = "bring both to one size"
    return hint


def is_foreground(shape: tuple[int, ...], image_shape: tuple[int, ...]) -> bool | None:
    """Whether floats hold one number a pixel rather than one a pixel and label, by their shapes.

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
            f"labels must be one whole number a pixel, got shape {shape}, which looks like "
            "a color picture; pass the array of label numbers."
        )


def as_costs(
    unary: NDArray[Any], layout: str, threads: int = 1
) -> tuple[FloatArray, float | None]:
    """The unary as contiguous floats (*grid, L) of sane size, and the largest if it is known."""
    ready = unary.dtype in (np.float32, np.float64) and unary.flags.c_contiguous
    if ready and layout == "channels_last" and unary.dtype.isnative:
        flat = unary.reshape(-1, unary.shape[-1])
        most = _native.largest(flat, threads)
        if most <= LARGEST_COST:  # False for NaN as well
            return unary, most
    costs = _labels_last(as_floats(unary, "unary"), layout)
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
        warnings.warn(
            "unary looks like probabilities, and costs are expected, small for likely labels: "
            "pass unary_from_probabilities(p).",
            stacklevel=3,
        )


def as_start(
    init: Any, costs: FloatArray, layout: str, observation: Observation
) -> FloatArray:
    """Marginals (N, L) to start from, of the variables that take part."""
    q = _labels_last(as_floats(init, "init", costs.dtype), layout)
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
    """Refuse at once what cannot fit even when fused (`crfield.dense.problem`): costs that are
    centered, two states; indices, weights and ranks of a lattice and scales for each term;
    features off the grid.
    """
    n = observation.n_variables
    channels = 0 if observation.image is None else observation.image.size // math.prod(
        observation.grid
    )
    columns = sum(values.shape[1] for values in observation.features.values())
    dims = len(observation.grid) + channels + columns
    on_grid = observation.positions is None and observation.selected is None and not columns
    per_term = (dims + 1) * (4 + dtype.itemsize) + 8 + 3 * dtype.itemsize
    per_variable = 3 * dtype.itemsize * n_labels + n_terms * per_term
    if not on_grid:
        per_variable += 8 * dims * 3
    check_memory(
        float(n) * per_variable,
        f"Inference on {n} variables with {n_labels} labels",
        "work on a smaller image or on tiles",
    )


def _labels_last(array: NDArray[Any], layout: str) -> NDArray[Any]:
    if as_choice(layout, "layout", LAYOUTS) == "channels_first" and array.ndim >= 2:
        return np.ascontiguousarray(np.moveaxis(array, 0, -1))
    return array
