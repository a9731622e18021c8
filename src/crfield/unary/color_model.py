"""The colors of an image in bins, and what they cost by mixtures of Gaussians."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import blake2b
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_image, check_finite, check_memory
from crfield.unary.mixture import fit_mixture, fitting_bytes, log_density

_LEVELS = 64  # steps per channel: colors that share a step share their cost
_OUTLIERS = 0.02  # share of pixels whose color no mixture explains
_COLORS_PER_COMPONENT = 10
_AT_ONCE = 2**14  # colors whose densities are computed together
_MOST_KEPT = 2**25  # bytes of arrays that a memo keeps


class Memo:
    """Arrays that were computed from masks, the last few of them; safe to share among threads."""

    def __init__(self, max_bytes: int = _MOST_KEPT) -> None:
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Any, NDArray[Any]] = OrderedDict()
        self._lock = Lock()

    def recall(
        self, what: Any, mask: NDArray[np.bool_],
        compute: Callable[[NDArray[np.bool_]], NDArray[Any]],
    ) -> NDArray[Any]:
        """`compute(mask)`, read-only, or what it gave for the same mask before."""
        key = (what, blake2b(np.packbits(mask).tobytes(), digest_size=16).digest())
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        array = compute(mask)
        array.flags.writeable = False
        with self._lock:
            self._kept[key] = array
            while sum(kept.nbytes for kept in self._kept.values()) > self._max_bytes:
                self._kept.popitem(last=False)
        return array


@dataclass(frozen=True)
class Colors:
    """The colors of an image, (N,) pixels of C channels, put into B bins.

    Attributes
    ----------
    values : (B, C), the mean color of each bin, every channel scaled to [0, 1].
    bins : (*grid), the bin of each pixel.
    memo : what was computed of the labels painted so far; a stroke changes one of them.
    """

    values: NDArray[np.float32]
    bins: NDArray[np.int32]
    memo: Memo = field(default_factory=Memo, repr=False, compare=False)


def colors_of(image: Any) -> Colors:
    """The colors of an image (*grid[, C]) whose grid has two axes, or three with channels last.

    They take most of the time of `unary_from_scribbles` and stay the same while somebody paints.
    """
    array = as_image(image)
    if not 2 <= array.ndim <= 4 or array.size == 0:
        raise InputError(
            "image must be (H, W), (H, W, C) or a volume (Z, H, W, C) of at least one pixel, got "
            f"shape {array.shape}; pass such an image."
        )
    check_finite(array, "image")
    grid = array.shape if array.ndim == 2 else array.shape[:-1]
    pixels = array.reshape(math.prod(grid), -1)
    n, channels = pixels.shape
    if channels > 10:
        raise InputError(
            f"image must have at most 10 channels for a color model, got {channels}; "
            "pass the channels that tell labels apart, of a gray volume as (Z, H, W, 1)."
        )
    check_memory(
        n * (4.0 * channels + 64.0), f"A color model of {n} pixels", "use a smaller image"
    )
    with np.errstate(over="ignore", invalid="ignore"):
        low = pixels.min(0).astype(np.float64)
        size = pixels.max(0) - low
    if not np.isfinite(size).all():
        raise InputError(
            f"image must have values whose range is a finite number, got {low.min():g} to "
            f"{pixels.max():g}; divide them by a constant."
        )
    scaled = np.empty((channels, n), np.float32)
    keys = np.zeros(n, np.int64)
    for channel, row in enumerate(scaled):
        row[:] = (pixels[:, channel] - low[channel]) / max(size[channel], 1e-30)
        steps = np.minimum((row * _LEVELS).astype(np.int64), _LEVELS - 1)
        keys += steps * _LEVELS**channel
    if channels <= 3:  # counted, which is faster than sorting
        counts = np.bincount(keys, minlength=1)
        used = np.flatnonzero(counts)
        place = np.zeros(len(counts), np.int32)
        place[used] = np.arange(len(used), dtype=np.int32)
        bins = place[keys]
    else:
        used, inverse = np.unique(keys, return_inverse=True)
        bins = inverse.reshape(-1).astype(np.int32)
    n_pixels = np.bincount(bins, minlength=len(used))
    values = np.stack(
        [np.bincount(bins, row, len(used)) / n_pixels for row in scaled], axis=1
    )
    return Colors(values.astype(np.float32), bins.reshape(grid))


def color_costs(
    colors: Colors, masks: list[NDArray[np.bool_]], components: int, strength: float
) -> NDArray[np.float32]:
    """-strength log p(v | l) at all colors, up to a constant of each, (P, B): mixtures fitted to
    the colors of painted pixels (*grid,), plus a few outliers.
    """
    compute = partial(_label_costs, colors, components)
    rows = [colors.memo.recall(("colors", components), mask, compute) for mask in masks]
    table = np.stack(rows)
    table -= table.min(0)
    table *= np.float32(strength)
    return table


def _label_costs(
    colors: Colors, components: int, mask: NDArray[np.bool_]
) -> NDArray[np.float32]:
    """-log p(v | l) at all colors (B,) of the label that a mask (*grid,) is painted with."""
    values = colors.values
    counts = np.bincount(colors.bins[mask], minlength=len(values))
    used = np.flatnonzero(counts)
    samples, weights = values[used].astype(np.float64), counts[used].astype(np.float64)
    # A component of a few colors would fit these and nothing around them.
    count = max(1, min(components, len(used) // _COLORS_PER_COMPONENT))
    mixture = fit_mixture(samples, weights, count)
    costs = np.empty(len(values), np.float32)
    for first in range(0, len(values), _AT_ONCE):
        part = slice(first, first + _AT_ONCE)
        inliers = math.log1p(-_OUTLIERS) + log_density(values[part].astype(np.float64), mixture)
        # Scaled colors fill the unit cube, so a uniform density over them is 1.
        costs[part] = -np.logaddexp(inliers, math.log(_OUTLIERS))
    return costs


def color_bytes(colors: Colors, n_labels: int, components: int) -> float:
    """About the most memory that `color_costs` takes for so many painted labels."""
    n, channels = colors.values.shape
    densities = min(n, _AT_ONCE) * 8.0 * (components + 3 * channels + n_labels + 4)
    fit = fitting_bytes(n, channels, components)
    return float(n * (8.0 * n_labels + 8.0 * channels + 24.0) + max(fit, densities))
