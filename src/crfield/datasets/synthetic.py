"""Small made-up scenes, in two or three dimensions, for learning and for tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_count, as_not_negative, check_memory, shown
from crfield.datasets.degrade import noisy_probabilities
from crfield.datasets.samples import Sample

_OBJECTS_PER_LABEL = 2
# Standard deviation of an object's color around its label's, in gray levels.
_COLOR_SPREAD = 12.0


@dataclass(frozen=True, eq=False)
class Scene(Sample):
    """A sample together with the probabilities that a noisy network would give for it.

    Attributes
    ----------
    probabilities : (*grid, L) float32, every pixel sums to 1.
    """

    probabilities: NDArray[np.float32]


def synthetic_scenes(
    n: int,
    *,
    size: Sequence[int] = (96, 128),
    n_labels: int = 5,
    noise: float = 16.0,
    block: int = 6,
    seed: int = 0,
) -> list[Scene]:
    """Scenes of overlapping ellipsoids and polytopes whose colors depend on their labels.

    Parameters
    ----------
    n : number of scenes; the first scenes do not depend on it.
    size : grid, (H, W) or (Z, H, W).
    n_labels : number of labels L from 2 to 255; label 0 is the background.
    noise : standard deviation of the pixel noise, in gray levels of 255.
    block : coarseness of the probabilities, see `noisy_probabilities`.
    seed : the same seed gives the same scenes.
    """
    n = as_count(n, "n", minimum=0)
    n_labels = as_count(n_labels, "n_labels", minimum=2, maximum=255)
    noise = as_not_negative(noise, "noise", "use 0 for clean images")
    seed = as_count(seed, "seed", minimum=0)
    try:
        sides = tuple(islice(size, 4))
    except TypeError:
        sides = ()
    if len(sides) not in (2, 3):
        raise InputError(
            f"size must be (H, W) or (Z, H, W), got {len(sides)} numbers ({shown(size)}); "
            "pass two or three sides."
        )
    grid = tuple(min(as_count(side, "each side of size", minimum=8), 2**31) for side in sides)
    check_memory(
        float(math.prod(grid)) * (100 + 8 * n_labels) + 4.0 * n * math.prod(grid) * n_labels,
        f"{n} scenes of {' x '.join(map(str, grid))} pixels", "ask for fewer or smaller ones",
    )
    return [_scene(index, grid, n_labels, noise, block, seed) for index in range(n)]


def _scene(
    index: int, grid: tuple[int, ...], n_labels: int, noise: float, block: int, seed: int
) -> Scene:
    rng = np.random.default_rng([seed, index])
    positions = np.moveaxis(np.indices(grid, dtype=np.float64), 0, -1)
    mask = np.zeros(grid, np.uint8)
    colors = _label_colors(n_labels)
    image = np.broadcast_to(colors[0], (*grid, 3)).copy()
    objects = np.repeat(np.arange(1, n_labels, dtype=np.uint8), _OBJECTS_PER_LABEL)
    for label in rng.permutation(objects):
        inside = _object(positions, grid, rng)
        mask[inside] = label
        image[inside] = colors[label] + rng.normal(0, _COLOR_SPREAD, 3)
    image *= _shading(positions, grid, rng)[..., None]
    image += rng.normal(0, noise, image.shape)
    return Scene(
        name=f"scene-{index}",
        image=np.clip(np.rint(image), 0, 255).astype(np.uint8),
        mask=mask,
        label_names=("background", *(f"object-{label}" for label in range(1, n_labels))),
        probabilities=noisy_probabilities(
            mask, n_labels, block=block, seed=int(rng.integers(2**32))
        ),
    )


def _label_colors(n_labels: int) -> NDArray[np.float64]:
    """(L, 3) colors spread over the color circle; bright and dark ones take turns."""
    labels = np.arange(n_labels)[:, None]
    brightness = 110 + 10 * (labels % 2)
    hues = 2 * np.pi * (labels / n_labels + np.arange(3) / 3)
    return np.asarray(brightness + 40 * np.cos(hues))


def _object(
    positions: NDArray[np.float64], grid: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.bool_]:
    """Where a random ellipsoid or polytope lies on the grid."""
    sides = np.array(grid, np.float64)
    offsets = positions - rng.uniform(0.1, 0.9, len(grid)) * sides
    radius = sides.min() * rng.uniform(0.12, 0.28)
    if rng.random() < 0.5:
        axes = _rotation(len(grid), rng) / (radius * rng.uniform(0.6, 1.5, (len(grid), 1)))
        return np.asarray(np.square(offsets @ axes.T).sum(axis=-1) <= 1)
    # Each axis of a rotated frame bounds the polytope on both sides, so it is always closed.
    frame = _rotation(len(grid), rng)
    normals = np.concatenate([frame, -frame, _rotation(len(grid), rng)])
    reach = radius * rng.uniform(0.6, 1.2, len(normals))
    return np.asarray((offsets @ normals.T <= reach).all(axis=-1))


def _rotation(n_dimensions: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """A random orthogonal matrix, one axis per row."""
    axes, _ = np.linalg.qr(rng.normal(size=(n_dimensions, n_dimensions)))
    return np.asarray(axes)


def _shading(
    positions: NDArray[np.float64], grid: tuple[int, ...], rng: np.random.Generator
) -> NDArray[np.float64]:
    """Brightness factor that changes linearly by up to 15 percent from the middle to a border."""
    direction = rng.normal(size=len(grid))
    relative = (2 * positions + 1) / np.array(grid) - 1
    return np.asarray(1 + 0.15 * (relative @ direction) / np.abs(direction).sum())
