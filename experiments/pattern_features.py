"""What the experiments with patterns know of an image of an object: costs from a network on a
filter bank, the probability of a boundary, and a summary of both.

Neither the filter bank nor the boundary detector is told where in the image a pixel lies: CHOPP
section 5 mentions no such feature, and where objects usually are is for the patterns to learn.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import fft, ndimage
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier

from crfield import unary_from_logits
from crfield.dense.observation import rgb_to_lab
from experiments.common import Float32

Images = NDArray[np.uint8]
Masks = NDArray[np.uint8]

GRID = 32  # side of what comes out
FINER = 2  # how many times finer the images are that the filters run on
SUMMARY_SIDE = 16

SCALES = (0.5, 1.0, 2.0)  # of the filters, in pixels of the grid
ENERGY_SCALES = (1.0, 2.0)  # over which sizes of slopes are averaged
DISC_RADII = (1.5, 3.0)
N_DISC_DIRECTIONS = 8

HIDDEN_UNITS = 64
WEIGHT_DECAY = 0.3
N_EPOCHS = 10
PIXELS_PER_IMAGE = 400  # that the classifiers are trained on
LARGEST_FEATURE = 5.0  # in standard deviations
LEAST_PROBABILITY = 3e-4  # of either label, about 8 in the logarithm of the odds


def filter_bank(images: Images, side: int = GRID) -> Float32:
    """107 numbers per pixel, (n, side, side, 107), for images (n, S, S, 3), S a multiple of side.

    Colors as RGB, Lab, and saturation and hue; at three scales means, blobs and deviations of Lab,
    slopes and curvatures of the lightness in six directions and slopes of the colors in four; how
    much slope and how many blobs there are around.
    """
    lab, unit = _lab(images), images.shape[1] / side
    rgb = images.astype(np.float32) / np.float32(255)
    planes = [*np.moveaxis(rgb, -1, 0), *lab, *_saturation_and_hue(rgb)]
    for scale in (unit * scale for scale in SCALES):
        blobs = [_smooth(plane, scale) - _smooth(plane, 2 * scale) for plane in lab]
        planes += [*blobs, *(_smooth(plane, scale) for plane in lab)]
        planes += [_deviation(plane, 2 * scale) for plane in lab]
        planes += _slopes(lab[0], scale, 6) + _curvatures(lab[0], scale, 6)
        planes += _slopes(lab[1], scale, 4) + _slopes(lab[2], scale, 4)
    for scale in (unit * scale for scale in ENERGY_SCALES):
        planes += [_smooth(plane, scale) for plane in _slopes(lab[0], unit * SCALES[0], 4)]
    planes += [_smooth(np.abs(blob), unit * ENERGY_SCALES[-1]) for blob in blobs]
    return _reduced(np.stack(planes, axis=-1), side)


def boundary_features(images: Images, side: int = GRID) -> Float32:
    """How much two halves of a disc differ around each pixel, (n, side, side, F).

    For each of two radii: the differences of the means of lightness, colors and four kinds of
    texture between the halves, the disc cut in the direction that makes most of them all; the same
    cut at right angles; and how much more that is than nearby, since boundaries are thin.
    """
    lab, unit = _lab(images), images.shape[1] / side
    texture = [_smooth(plane, unit) for plane in _slopes(lab[0], unit * SCALES[0], 4)]
    channels = np.stack([*lab, *texture], axis=1)
    channels /= channels.std(axis=(2, 3), keepdims=True) + 1.0
    planes = []
    for radius in DISC_RADII:
        differences = _half_disc_differences(channels, unit * radius)
        total = differences.sum(axis=1)
        best = np.argmax(total, axis=1)[:, None, None]
        across = (best + N_DISC_DIRECTIONS // 2) % N_DISC_DIRECTIONS
        for direction in (best, across):
            chosen = np.take_along_axis(differences, direction, axis=2)[:, :, 0]
            planes += list(np.moveaxis(chosen, 1, 0))
        strength = total.max(axis=1)
        planes.append(strength - _smooth(strength, 2 * unit))
    return _reduced(np.stack(planes, axis=-1), side)


@dataclass(frozen=True)
class Scaler:
    """Brings features (..., F) to mean 0 and deviation 1, and far ones nearer."""

    mean: Float32
    deviation: Float32

    def __call__(self, features: Float32) -> Float32:
        scaled = (features - self.mean) / self.deviation
        return np.asarray(np.clip(scaled, -LARGEST_FEATURE, LARGEST_FEATURE))


@dataclass(frozen=True)
class PixelClassifier:
    """A classifier of scikit-learn for the scaled features of a pixel."""

    scaler: Scaler
    model: Any

    def log_odds(self, features: Float32) -> Float32:
        """log p(1) / p(0), (n, H, W), for features (n, H, W, F)."""
        scaled = self.scaler(features.reshape(-1, features.shape[-1]))
        chance = self.model.predict_proba(scaled)[:, 1].astype(np.float64)
        chance = np.clip(chance, LEAST_PROBABILITY, 1 - LEAST_PROBABILITY)
        odds = np.log(chance) - np.log1p(-chance)
        return np.asarray(odds.reshape(features.shape[:-1]), np.float32)


Trainer = Callable[[Float32, Masks, int], PixelClassifier]


def train_unary(features: Float32, masks: Masks, seed: int) -> PixelClassifier:
    """A network with one hidden layer that tells the object from what is around it.

    features : (n, side, side, F), what `filter_bank` gives.
    masks : (n, side, side).
    """
    scaler, seen, labels = _sampled(features, masks, seed)
    network = MLPClassifier(
        (HIDDEN_UNITS,), alpha=WEIGHT_DECAY, batch_size=256, random_state=seed
    )
    for _ in range(N_EPOCHS):
        network.partial_fit(seen, labels, classes=(0, 1))
    return PixelClassifier(scaler, network)


def train_boundary(features: Float32, masks: Masks, seed: int) -> PixelClassifier:
    """Logistic regression that tells the pixels on boundaries of the masks from others.

    features : (n, side, side, F), what `boundary_features` gives.
    masks : (n, side, side).
    """
    scaler, seen, labels = _sampled(features, on_boundary(masks), seed)
    return PixelClassifier(scaler, LogisticRegression(max_iter=200).fit(seen, labels))


def on_boundary(masks: Masks) -> Masks:
    """Pixels (n, H, W) with another label above, below, left or right of them."""
    result = np.zeros(masks.shape, bool)
    for axis in (1, 2):
        differs = np.diff(masks.astype(np.int8), axis=axis) != 0
        result |= np.pad(differs, [(0, int(a == axis)) for a in range(3)])
        result |= np.pad(differs, [(int(a == axis), 0) for a in range(3)])
    return result.astype(np.uint8)


def costs_of(log_odds: Float32) -> Float32:
    """-log p of background and object, (n, H, W, 2)."""
    logits = np.stack([np.zeros_like(log_odds), log_odds], axis=-1)
    return np.asarray(unary_from_logits(logits), np.float32)


def summary(log_odds: Float32, boundary: Float32) -> Float32:
    """What hidden biases see of an image: both maps at 16 x 16, (n, 512) (CHOPP section 5.3)."""
    maps = _reduced(np.stack([log_odds, boundary], axis=-1), SUMMARY_SIDE)
    return np.moveaxis(maps, -1, 1).reshape(len(maps), -1)


def _sampled(
    features: Float32, targets: Masks, seed: int
) -> tuple[Scaler, Float32, NDArray[np.uint8]]:
    """Some pixels of each image: their scaler, scaled features (N, F) and targets (N,)."""
    n_images, n_pixels = len(features), targets[0].size
    rng = np.random.default_rng(seed)
    places = rng.permuted(np.tile(np.arange(n_pixels), (n_images, 1)), axis=1)
    chosen = places[:, :PIXELS_PER_IMAGE, None]
    flat = features.reshape(n_images, n_pixels, -1)
    seen = np.take_along_axis(flat, chosen, axis=1).reshape(-1, flat.shape[-1])
    labels = np.take_along_axis(targets.reshape(n_images, -1, 1), chosen, axis=1).reshape(-1)
    scaler = Scaler(seen.mean(axis=0), seen.std(axis=0) + np.float32(1e-6))
    return scaler, scaler(seen), labels


def _half_disc_differences(channels: Float32, radius: float) -> Float32:
    """|mean of one half - mean of the other| of channels (n, C, S, S), as (n, C, O, S, S)."""
    reach = int(np.ceil(radius))
    padded = np.pad(channels, [(0, 0), (0, 0), (reach, reach), (reach, reach)], mode="edge")
    shape = tuple(fft.next_fast_len(side, real=True) for side in padded.shape[2:])
    spectra = fft.rfft2(padded, shape)
    sides = slice(2 * reach, 2 * reach + channels.shape[2])
    differences = [
        np.abs(fft.irfft2(spectra * fft.rfft2(kernel, shape), shape)[..., sides, sides])
        for kernel in _half_discs(radius, reach)
    ]
    return np.stack(differences, axis=2)


def _half_discs(radius: float, reach: int) -> list[Float32]:
    """+1 / n over one half of a disc and -1 / n over the other, for each direction of the cut."""
    down, right = np.mgrid[-reach : reach + 1, -reach : reach + 1]
    kernels = []
    for angle in _angles(N_DISC_DIRECTIONS):
        side = math.sin(angle) * down + math.cos(angle) * right
        # The cut itself belongs to neither half.
        halves = np.sign(np.where(np.abs(side) < 1e-9, 0, side)) * (np.hypot(down, right) <= radius)
        kernels.append((halves / np.count_nonzero(halves > 0)).astype(np.float32))
    return kernels


def _lab(images: Images) -> list[Float32]:
    lab = rgb_to_lab(images.reshape(-1, 3).astype(np.float64)).reshape(images.shape)
    return list(np.moveaxis(lab.astype(np.float32), -1, 0))


def _saturation_and_hue(rgb: Float32) -> list[Float32]:
    """Saturation, and the two coordinates of the hue's angle times it."""
    brightest, darkest = rgb.max(axis=-1), rgb.min(axis=-1)
    saturation = (brightest - darkest) / np.maximum(brightest, 1 / 255)
    across = rgb[..., 0] - (rgb[..., 1] + rgb[..., 2]) / 2
    along = math.sqrt(0.75) * (rgb[..., 1] - rgb[..., 2])
    length = np.maximum(np.hypot(across, along), 1e-6)
    return [saturation, saturation * across / length, saturation * along / length]


def _smooth(planes: Float32, scale: float) -> Float32:
    return _derivative(planes, scale, (0, 0))


def _derivative(planes: Float32, scale: float, orders: tuple[int, int]) -> Float32:
    """Gaussian derivatives of planes (n, S, S)."""
    return np.asarray(ndimage.gaussian_filter(
        planes, (0, scale, scale), order=(0, *orders), mode="nearest", truncate=3.0
    ))


def _slopes(planes: Float32, scale: float, n_directions: int) -> list[Float32]:
    """Sizes of the first derivative in some directions."""
    down, right = (_derivative(planes, scale, orders) for orders in ((1, 0), (0, 1)))
    return [
        np.asarray(scale * np.abs(math.cos(angle) * right + math.sin(angle) * down), np.float32)
        for angle in _angles(n_directions)
    ]


def _curvatures(planes: Float32, scale: float, n_directions: int) -> list[Float32]:
    """The second derivative in some directions."""
    down, mixed, right = (
        scale**2 * _derivative(planes, scale, orders) for orders in ((2, 0), (1, 1), (0, 2))
    )
    parts = np.stack([down, mixed, right])
    weights = [
        (math.sin(angle) ** 2, math.sin(2 * angle), math.cos(angle) ** 2)
        for angle in _angles(n_directions)
    ]
    return list(np.tensordot(np.array(weights, np.float32), parts, 1))


def _angles(n_directions: int) -> list[float]:
    """Directions spread over half a circle."""
    return [math.pi * index / n_directions for index in range(n_directions)]


def _deviation(planes: Float32, scale: float) -> Float32:
    variance = _smooth(planes * planes, scale) - _smooth(planes, scale) ** 2
    return np.asarray(np.sqrt(np.maximum(variance, 0)))


def _reduced(planes: Float32, side: int) -> Float32:
    """Means over blocks of (n, S, S, F), as (n, side, side, F)."""
    n, size, _, n_planes = planes.shape
    step = size // side
    blocks = planes.reshape(n, side, step, side, step, n_planes)
    return np.asarray(blocks.mean(axis=(2, 4)))
