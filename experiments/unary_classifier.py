"""Unaries for CamVid at half size: a filter bank, multinomial logistic regression on it, and costs
for images that the classifier has not seen.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression

from crfield import unary_from_logits
from crfield._core.atomic import atomic_path
from crfield.dense.observation import rgb_to_lab
from crfield.learning.losses import VOID, class_weights
from experiments.common import Float32, Labels, load_image, load_labels

SCALES = (1.0, 2.0, 4.0, 8.0, 16.0)  # of the means around a pixel, in pixels
TEXTURE_SCALES = (2.0, 4.0, 8.0)  # of the standard deviations
EDGE_SCALES = (1.0, 2.0, 4.0)
# Where to look for context, in pixels down and right, and over what scale.
CONTEXT = ((-60, 0), (-25, 0), (25, 0), (60, 0), (0, -25), (0, 25))
CONTEXT_SCALE = 8.0

N_BLOCKS = 4  # of time, in each sequence
PIXELS_PER_IMAGE = 500  # that the classifier is trained on
STEPS_PER_NAT = 20  # costs are kept as bytes
RIDGE = 1e-4  # on the weights, for a mean loss
MAX_ITER = 150
LARGEST_FEATURE = 4.0  # in standard deviations, so that squares stay tame


def pixel_features(image: NDArray[np.uint8]) -> Float32:
    """The filter bank of an image (H, W, 3), as (H, W, F): Lab colors, their means and deviations
    at several scales and their means some way off; edges of the lightness; the position.
    """
    lab = rgb_to_lab(image.reshape(-1, 3).astype(np.float64)).reshape(image.shape)
    planes: list[Float32] = []
    for channel in np.moveaxis(lab.astype(np.float32), -1, 0):
        planes += [channel, *(_smooth(channel, scale) for scale in SCALES)]
        planes += [_deviation(channel, scale) for scale in TEXTURE_SCALES]
        context = _smooth(channel, CONTEXT_SCALE)
        planes += [_seen_from(context, down, right) for down, right in CONTEXT]
    for scale in EDGE_SCALES:
        planes += _edges(lab[..., 0].astype(np.float32), scale)
    height, width = image.shape[:2]
    down, right = np.mgrid[-1 : 1 : height * 1j, -1 : 1 : width * 1j].astype(np.float32)
    return np.stack([*planes, down, right, np.abs(right)], axis=-1)


@dataclass(frozen=True)
class PixelClassifier:
    """Logistic regression on standardized features and their squares: weights (L, 2 F), constants
    (L,).
    """

    mean: Float32
    deviation: Float32
    weights: Float32
    constants: Float32

    def costs(self, image: NDArray[np.uint8]) -> Float32:
        """-log p, (H, W, L)."""
        features = pixel_features(image)
        seen = _with_squares(features.reshape(-1, features.shape[-1]), self.mean, self.deviation)
        logits = seen @ self.weights.T + self.constants
        return np.asarray(unary_from_logits(logits.reshape(*image.shape[:2], -1)), np.float32)


def fit_classifier(
    features: Float32, labels: Labels, n_labels: int, power: float
) -> PixelClassifier:
    """The classifier for features (N, F) of pixels with labels (N,); each label must occur, and
    each of its n pixels counts n^-power.
    """
    counts = np.bincount(labels, minlength=n_labels)
    if not counts.all():
        raise ValueError(f"each label must occur, got the counts {counts}; sample more pixels.")
    weights = class_weights(counts, power)[labels]
    mean, deviation = features.mean(axis=0), features.std(axis=0)
    # scikit-learn minimizes |w|^2 / 2 + C sum loss.
    strength = 1.0 / (2.0 * RIDGE * len(labels))
    regression = LogisticRegression(C=strength, max_iter=MAX_ITER)
    with warnings.catch_warnings():  # it may stop before the last digit
        warnings.simplefilter("ignore", ConvergenceWarning)
        regression.fit(_with_squares(features, mean, deviation), labels, weights / weights.mean())
    return PixelClassifier(
        mean, deviation, regression.coef_.astype(np.float32),
        regression.intercept_.astype(np.float32),
    )


@dataclass(frozen=True, eq=False)
class Frame:
    """An image (H, W, 3) with true labels (H, W), costs (H, W, L) in steps, and its block of time.
    """

    image: NDArray[np.uint8]
    truth: Labels
    steps: NDArray[np.uint8]
    block: int

    @property
    def unary(self) -> Float32:
        """The costs."""
        return np.divide(self.steps, STEPS_PER_NAT, dtype=np.float32)

    def thinned(self, step: int) -> Frame:
        """One pixel in step^2, for models without pairwise terms."""
        kept = (slice(None, None, step),) * 2
        return Frame(self.image[kept], self.truth[kept], self.steps[kept], self.block)


def load_half(folder: Path, name: str) -> tuple[NDArray[np.uint8], Labels]:
    """An image, averaged over 2 x 2 pixels, and the labels of every other pixel."""
    image = load_image(folder / "images" / f"{name}.jpg")
    height, width = image.shape[0] // 2, image.shape[1] // 2
    half = image.reshape(height, 2, width, 2, 3).mean(axis=(1, 3))
    return np.rint(half).astype(np.uint8), load_labels(folder / "labels" / f"{name}.png")[::2, ::2]


def time_blocks(names: Sequence[str]) -> dict[str, int]:
    """Which quarter of its sequence each image lies in; names are SEQUENCE_FRAME in order."""
    blocks: dict[str, int] = {}
    for _, group in itertools.groupby(names, lambda name: name.partition("_")[0]):
        sequence = list(group)
        blocks |= {name: N_BLOCKS * i // len(sequence) for i, name in enumerate(sequence)}
    return blocks


def classify(
    folder: Path, train: dict[str, int], wanted: dict[str, int], n_labels: int, *,
    power: float, seed: int, jobs: int, path: Path,
) -> dict[str, Frame]:
    """The wanted images with costs by classifiers that have not seen their blocks.

    train, wanted : names of images, and the block of each; one that `train` does not have gets
        the classifier that has seen all.
    power : each of a label's n pixels counts n^-power; 0 is maximum likelihood.
    path : where the costs are kept; read if it is there.
    """
    if not path.exists():
        left_out = sorted(set(wanted.values()))
        classifiers = _train_classifiers(folder, train, left_out, n_labels, power, seed, jobs)

        def steps(name: str) -> NDArray[np.uint8]:
            costs = classifiers[wanted[name]].costs(load_half(folder, name)[0])
            return np.clip(np.rint(STEPS_PER_NAT * costs), 0, 255).astype(np.uint8)

        with ThreadPoolExecutor(jobs) as pool:
            found: dict[str, Any] = dict(zip(wanted, pool.map(steps, wanted), strict=True))
        with atomic_path(path) as temporary:
            np.savez(temporary, **found)
    with np.load(path) as kept:
        return {
            name: Frame(*load_half(folder, name), kept[name], block)
            for name, block in wanted.items()
        }


def _train_classifiers(
    folder: Path, blocks: dict[str, int], left_out: Sequence[int], n_labels: int, power: float,
    seed: int, jobs: int,
) -> dict[int, PixelClassifier]:
    """For each number in `left_out` a classifier that has not seen the images of that block."""

    def sample(numbered: tuple[int, str]) -> tuple[Float32, Labels]:
        image, truth = load_half(folder, numbered[1])
        known = np.flatnonzero(truth != VOID)
        rng = np.random.default_rng([seed, numbered[0]])
        chosen = rng.choice(known, min(PIXELS_PER_IMAGE, len(known)), replace=False)
        features = pixel_features(image)
        return features.reshape(-1, features.shape[-1])[chosen], truth.reshape(-1)[chosen]

    with ThreadPoolExecutor(jobs) as pool:
        samples = dict(zip(blocks, pool.map(sample, enumerate(blocks)), strict=True))
    classifiers = {}
    for number in left_out:
        seen = [samples[name] for name, block in blocks.items() if block != number]
        features, labels = (np.concatenate(parts) for parts in zip(*seen, strict=True))
        classifiers[number] = fit_classifier(features, labels, n_labels, power)
    return classifiers


def _with_squares(features: Float32, mean: Float32, deviation: Float32) -> Float32:
    """Standardized features and their squares, (N, 2 F)."""
    scaled = np.clip((features - mean) / deviation, -LARGEST_FEATURE, LARGEST_FEATURE)
    return np.concatenate([scaled, scaled**2], axis=1)


def _smooth(plane: Float32, scale: float) -> Float32:
    return np.asarray(ndimage.gaussian_filter(plane, scale, mode="nearest", truncate=3.0))


def _deviation(plane: Float32, scale: float) -> Float32:
    variance = _smooth(plane * plane, scale) - _smooth(plane, scale) ** 2
    return np.asarray(np.sqrt(np.maximum(variance, 0.0)))


def _edges(lightness: Float32, scale: float) -> list[Float32]:
    """Slopes, how much of them there is in four directions, and blobs."""
    smooth = _smooth(lightness, scale)
    down, right = ndimage.sobel(smooth, axis=0), ndimage.sobel(smooth, axis=1)
    blob = smooth - _smooth(lightness, 2 * scale)
    rectified = (down, right, down + right, down - right, blob)
    return [down, right, blob, *(_smooth(np.abs(plane), 2 * scale) for plane in rectified)]


def _seen_from(plane: Float32, down: int, right: int) -> Float32:
    """The plane's value so many pixels away from each pixel, at the border if that is outside."""
    rows = np.clip(np.arange(plane.shape[0]) + down, 0, plane.shape[0] - 1)
    columns = np.clip(np.arange(plane.shape[1]) + right, 0, plane.shape[1] - 1)
    return plane[np.ix_(rows, columns)]
