"""Turn true masks into what a coarse annotator or a low-resolution network would give."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfield._core.validate import (
    MAX_LABELS,
    InputError,
    as_count,
    as_not_negative,
    as_scalar,
    check_memory,
)
from crfield.metrics import as_label_map
from crfield.unary.resizing import interpolate_axis

Labels = NDArray[np.integer[Any]]

_CELLS_PER_REGION = 4
_MOST = 1e6  # pixels that jitter, and logits that noise moves


def coarsen(
    mask: ArrayLike,
    *,
    n_labels: int,
    block: int = 8,
    jitter: float = 2.0,
    flip: float = 0.05,
    seed: int = 0,
) -> Labels:
    """A blocky label map (*grid) with shaky boundaries and some wrong blobs, as from careless
    annotation, of the mask's integer type.

    Parameters
    ----------
    mask : (*grid) integer true labels, any number of dimensions.
    n_labels : number of labels L; wrong blobs draw from all of them.
    block : side of the squares that share one label, in pixels.
    jitter : standard deviation of the boundaries' displacement, in pixels.
    flip : share of the image covered by wrong blobs, at least 0 and below 1.
    seed : the same seed gives the same map.
    """
    labels, n_labels, block, jitter = _checked(mask, n_labels, block, jitter)
    flip = as_scalar(flip, "flip")
    if not 0 <= flip < 1:
        raise InputError(
            f"flip must be at least 0 and below 1, got {flip:g}; give the share of wrong pixels."
        )
    rng = np.random.default_rng(as_count(seed, "seed", minimum=0))
    shaken = _shake(labels, jitter, block, rng)
    coarse = np.argmax(_block_shares(shaken, n_labels, block), axis=-1).astype(labels.dtype)
    for axis, length in enumerate(labels.shape):
        coarse = np.take(coarse, np.arange(length) // block, axis=axis)
    return _with_wrong_blobs(coarse, n_labels, block, flip, rng)


def noisy_probabilities(
    mask: ArrayLike,
    n_labels: int,
    *,
    block: int = 8,
    jitter: float = 2.0,
    confidence: float = 0.8,
    noise: float = 1.5,
    seed: int = 0,
) -> NDArray[np.float32]:
    """Soft label probabilities (*grid, L) as a network with output stride `block` would give them.

    The scores s_l = c (share of label l in the block) + noise on the coarse grid are interpolated
    linearly to the full grid and go through a softmax; c is such that a noiseless block of one
    label gets the probability `confidence`.

    Parameters
    ----------
    mask, jitter : as for `coarsen`.
    n_labels : number of labels L, at least 2.
    block : spacing of the coarse grid, in pixels.
    confidence : noiseless probability of the true label away from boundaries, between 1 / L and 1.
    noise : standard deviation of the noise on the scores, half its variance in single cells of the
        coarse grid and half in smooth regions.
    seed : the same seed gives the same probabilities.
    """
    labels, n_labels, block, jitter = _checked(mask, n_labels, block, jitter)
    as_count(n_labels, "n_labels", minimum=2)
    confidence = as_scalar(confidence, "confidence")
    if not 1 / n_labels < confidence < 1:
        raise InputError(
            f"confidence must lie between 1 / n_labels = {1 / n_labels:.3g} and 1, got "
            f"{confidence:g}; try 0.8."
        )
    noise = _as_amount(noise, "noise")
    rng = np.random.default_rng(as_count(seed, "seed", minimum=0))
    shares = _block_shares(_shake(labels, jitter, block, rng), n_labels, block)
    contrast = np.float32(np.log(confidence * (n_labels - 1) / (1 - confidence)))
    coarse = shares.shape[:-1]
    # Networks err by whole regions as well as by single cells: half the variance is smooth.
    regions = tuple(-(-length // _CELLS_PER_REGION) for length in coarse)
    region_noise = _gaussian(rng, (*regions, n_labels), noise / 2**0.5)
    scores = contrast * shares + _gaussian(rng, shares.shape, noise / 2**0.5)
    scores += _interpolate(region_noise, coarse, _CELLS_PER_REGION)
    scores = _interpolate(scores, labels.shape, block)
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def _checked(
    mask: ArrayLike, n_labels: int, block: int, jitter: float
) -> tuple[Labels, int, int, float]:
    n_labels = as_count(n_labels, "n_labels")
    labels = as_label_map(mask, "mask", n_labels)
    if labels.ndim == 0 or labels.size == 0:
        raise InputError(
            f"mask must hold at least one pixel, got shape {labels.shape}; pass a label map."
        )
    check_memory(
        16.0 * labels.size * min(n_labels, MAX_LABELS),
        f"{n_labels} shares of {labels.size} pixels", "use fewer labels",
    )
    cells = min(as_count(block, "block"), 2**31)  # far beyond any image
    return labels, n_labels, cells, _as_amount(jitter, "jitter")


def _as_amount(value: float, name: str) -> float:
    amount = as_not_negative(value, name, "use 0 to switch it off")
    if amount > _MOST:
        raise InputError(f"{name} must not exceed {_MOST:g}, got {amount:g}; lower it.")
    return amount


def _gaussian(
    rng: np.random.Generator, shape: tuple[int, ...], scale: float
) -> NDArray[np.float32]:
    values = rng.standard_normal(shape, dtype=np.float32)
    values *= scale
    return values


def _shake(labels: Labels, jitter: float, block: int, rng: np.random.Generator) -> Labels:
    """Read every label from a position displaced by a smooth random field."""
    grid = labels.shape
    coarse = tuple(-(-length // block) for length in grid)
    shift = _interpolate(_gaussian(rng, (*coarse, len(grid)), jitter), grid, block)
    positions: Sequence[NDArray[np.intp]] = np.indices(grid, sparse=True)
    places = tuple(
        np.clip(np.rint(position + shift[..., axis]).astype(np.intp), 0, grid[axis] - 1)
        for axis, position in enumerate(positions)
    )
    return np.asarray(labels[places])


def _block_shares(labels: Labels, n_labels: int, block: int) -> NDArray[np.float32]:
    """Share of each label in each block, (*coarse, L); blocks are cut off at the border."""
    totals: NDArray[np.float32] = (labels[..., None] == np.arange(n_labels)).astype(np.float32)
    for axis, length in enumerate(labels.shape):
        totals = np.add.reduceat(totals, np.arange(0, length, block), axis=axis)
    totals /= totals.sum(axis=-1, keepdims=True)
    return totals


def _interpolate(
    coarse: NDArray[np.float32], grid: tuple[int, ...], block: int
) -> NDArray[np.float32]:
    """Linear interpolation from block centers, (*coarse, C), to pixel centers, (*grid, C)."""
    fine: NDArray[np.float32] = coarse
    for axis, length in enumerate(grid):
        fine = interpolate_axis(fine, axis, (np.arange(length) + 0.5) / block - 0.5)
    return fine


def _with_wrong_blobs(
    labels: Labels, n_labels: int, block: int, flip: float, rng: np.random.Generator
) -> Labels:
    """Overwrite balls of about one block's radius until the share `flip` is covered."""
    result = labels.copy()
    if n_labels == 1:
        return result
    covered = np.zeros(labels.shape, bool)
    n_wanted = flip * labels.size
    while np.count_nonzero(covered) < n_wanted:
        center = tuple(int(rng.integers(length)) for length in labels.shape)
        radius = block * rng.uniform(0.75, 1.5)
        window = tuple(
            slice(max(0, int(middle - radius)), min(length, int(middle + radius) + 1))
            for middle, length in zip(center, labels.shape, strict=True)
        )
        positions: Sequence[NDArray[np.intp]] = np.ogrid[window]
        distance = sum(
            np.square(position - middle)
            for position, middle in zip(positions, center, strict=True)
        )
        ball = np.asarray(distance <= radius**2)
        wrong = (int(labels[center]) + int(rng.integers(1, n_labels))) % n_labels
        result[window][ball] = wrong
        covered[window] |= ball
    return result
