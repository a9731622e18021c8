"""Six sets of made-up figures, each more variable than the last, and noisy costs for them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfield._core.validate import InputError, as_count, as_within, check_memory
from crfield.metrics import as_label_map
from crfield.unary.costs import unary_from_logits

_MOST = 2**31  # masks, and pixels of a side
N_LEVELS = 6

# Ellipses as (center down, center right, half height, half width), in shares of the side.
_FIGURES = (
    # A head on a body.
    ((0.22, 0.50, 0.15, 0.15), (0.64, 0.50, 0.32, 0.25)),
    # A snowman.
    ((0.16, 0.50, 0.13, 0.13), (0.42, 0.50, 0.19, 0.21), (0.76, 0.50, 0.23, 0.30)),
    # A head on a body with two legs.
    (
        (0.15, 0.50, 0.12, 0.12),
        (0.45, 0.50, 0.25, 0.24),
        (0.77, 0.36, 0.22, 0.11),
        (0.77, 0.64, 0.22, 0.11),
    ),
)
# For each level: standard deviations of the positions of the figure and of its ellipses, in shares
# of the side, and of the logarithms of the half axes.
_SPREADS = (
    (0.03, 0.015, 0.08),
    (0.05, 0.03, 0.13),
    (0.07, 0.05, 0.18),
    (0.085, 0.08, 0.23),
    (0.10, 0.125, 0.30),
    (0.12, 0.22, 0.42),
)
# Least distance of an ellipse's center from the sides, so that figures stay in the frame.
_BORDER = 0.1
# Radius of the blocks of structured noise, 5 pixels across.
_BLOCK_RADIUS = 2.5
_LEAST_NOISE = 0.01
_MOST_NOISE = 1e6


class NoisyUnaries(NamedTuple):
    """Costs with what they were made from.

    Attributes
    ----------
    costs : (n, H, W, 2) float32.
    images : (n, H, W) float32, about 0 in the background and 1 in the figure.
    """

    costs: NDArray[np.float32]
    images: NDArray[np.float32]


def ellipse_set(level: int, n: int, *, size: int = 32, seed: int = 0) -> NDArray[np.uint8]:
    """Masks (n, size, size), 1 in figures of two to four ellipses that look like a person or a
    snowman and 0 elsewhere.

    The six levels differ in how far the positions and half axes of the ellipses deviate from those
    of three model figures (CHOPP section 5.1): `crfield.patterns.variability` rises from level to
    level.

    Parameters
    ----------
    level : from 1, nearly the model figures, to 6.
    n : number of masks; the first masks do not depend on it.
    size : side of the masks in pixels, at least 8.
    seed : the same seed gives the same masks, and at different levels figures that differ only in
        their spread.
    """
    spreads = _SPREADS[as_count(level, "level", maximum=N_LEVELS) - 1]
    n, size = as_count(n, "n", 0, _MOST), as_count(size, "size", 8, _MOST)
    seed = as_count(seed, "seed", minimum=0)
    check_memory(
        (n + 40.0) * size * size, f"{n} masks with sides of {size}",
        "ask for fewer or smaller ones",
    )
    masks = np.zeros((n, size, size), np.uint8)
    for index in range(n):
        masks[index] = _figure(spreads, size, np.random.default_rng([seed, index]))
    return masks


def noisy_unaries(
    masks: ArrayLike, *, noise: float = 0.5, n_blocks: int = 5, seed: int = 0
) -> NoisyUnaries:
    """Costs of masks that are seen through pixel noise and a few wrong blocks.

    The image is z = mask + noise * N(0, 1). Within each of `n_blocks` randomly placed discs, 5
    pixels across, the mask is replaced by the opposite of its value at the disc's center (CHOPP
    section 5.1). The costs are -log p(label | z) of a model that knows the noise but not the
    blocks: cost of 0 - cost of 1 = (2 z - 1) / (2 noise^2).

    Parameters
    ----------
    masks : (n, H, W) labels 0 and 1, or bool.
    noise : standard deviation of the pixel noise, at least 0.01.
    n_blocks : wrong blocks in each mask; 0 for none.
    seed : the same seed gives the same costs; those of the first masks do not depend on n.
    """
    labels = as_label_map(masks, "masks", 2)
    if labels.ndim != 3 or 0 in labels.shape[1:]:
        raise InputError(
            f"masks must have shape (n, H, W), got {labels.shape}; stack the masks of a set."
        )
    noise = as_within(noise, "noise", _LEAST_NOISE, _MOST_NOISE, "try 0.5")
    n_blocks = as_count(n_blocks, "n_blocks", minimum=0)
    seed = as_count(seed, "seed", minimum=0)
    images = np.empty(labels.shape, np.float32)
    for index, mask in enumerate(labels):
        rng = np.random.default_rng([seed, index])
        seen = _with_wrong_blocks(mask.astype(np.float64), n_blocks, rng)
        images[index] = seen + noise * rng.standard_normal(mask.shape)
    logits = np.stack([np.zeros_like(images), (2 * images - 1) / (2 * noise**2)], axis=-1)
    costs = unary_from_logits(logits).astype(np.float32, copy=False)
    return NoisyUnaries(costs, images)


def _figure(
    spreads: tuple[float, float, float], size: int, rng: np.random.Generator
) -> NDArray[np.bool_]:
    """(size, size), whether a pixel's center lies in one of the ellipses of a figure."""
    place_spread, center_spread, axis_spread = spreads
    ellipses = np.array(_FIGURES[rng.integers(len(_FIGURES))])
    place = place_spread * rng.standard_normal(2)
    centers = ellipses[:, :2] + place + center_spread * rng.standard_normal((len(ellipses), 2))
    centers = np.clip(centers, _BORDER, 1 - _BORDER)
    axes = ellipses[:, 2:] * np.exp(axis_spread * rng.standard_normal((len(ellipses), 2)))
    middles = (np.arange(size) + 0.5) / size
    down = (middles - centers[:, :1]) / axes[:, :1]
    right = (middles - centers[:, 1:]) / axes[:, 1:]
    return np.asarray((down[:, :, None] ** 2 + right[:, None, :] ** 2 <= 1).any(axis=0))


def _with_wrong_blocks(
    mask: NDArray[np.float64], n_blocks: int, rng: np.random.Generator
) -> NDArray[np.float64]:
    """The mask with discs of the label that is wrong at their center."""
    result = mask.copy()
    rows, columns = np.indices(mask.shape)
    for _ in range(n_blocks):
        row, column = (int(rng.integers(side)) for side in mask.shape)
        disc = (rows - row) ** 2 + (columns - column) ** 2 <= _BLOCK_RADIUS**2
        result[disc] = 1 - mask[row, column]
    return result
