"""Words of the letters of Kassel, and features of their pixels for `ocr_letters.py`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]

LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))
HEIGHT, WIDTH = 16, 8
# Strokes that end at the frame keep their outer edge.
_MARGIN = 2
# Brings gradients to the order of pixels, so that the penalties to choose from fit both.
_GRADIENT_SCALE = 5.0
# Two letters of fold 0 are typically 3.3 apart in gradients. The scale is for the penalty, too.
_N_WAVES, _WAVE_WIDTH, _WAVE_SCALE = 1000, 4.0, 8.0


@dataclass(frozen=True)
class Words:
    """Features (T, F), at first 128 pixels, and letters (T,) of each word."""

    features: list[Doubles]
    letters: list[NDArray[Any]]

    def __len__(self) -> int:
        return len(self.letters)

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Number of letters of each word, (C,)."""
        return np.array([len(word) for word in self.letters], np.int64)

    def take(self, chosen: NDArray[np.intp]) -> Words:
        """Some of the words."""
        return Words([self.features[i] for i in chosen], [self.letters[i] for i in chosen])

    def apart(self) -> Words:
        """Every letter as a word of its own."""
        return Words(
            [row[None] for part in self.features for row in part],
            [np.array([letter]) for part in self.letters for letter in part],
        )

    def described(self, describe: Describe) -> Words:
        """The same words with other features."""
        found = describe(np.concatenate(self.features), self.lengths)
        return replace(self, features=np.split(found, np.cumsum(self.lengths)[:-1]))


# Features (N, F') of all letters from pixels (N, 128) and the lengths (C,) of words.
Describe = Callable[[Doubles, NDArray[np.int64]], Doubles]


def load_words(folder: Path) -> tuple[Words, NDArray[np.uint8]]:
    """All words and the fold of each."""
    with np.load(folder / "letters.npz") as data:
        pixels = np.unpackbits(data["X_packed"], axis=1).astype(np.float64)
        bounds = data["word_offsets"][1:-1]
        letters = LETTERS[data["y"]]
        folds = data["fold"]
    return Words(np.split(pixels, bounds), np.split(letters, bounds)), folds


def blur(images: Doubles) -> Doubles:
    """Images (N, H, W) filtered by (1, 2, 1) / 4 down and across, nothing beyond the frame."""
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    down = (padded[:, :-2] + 2 * padded[:, 1:-1] + padded[:, 2:]) / 4
    blurred: Doubles = (down[..., :-2] + 2 * down[..., 1:-1] + down[..., 2:]) / 4
    return blurred


def oriented_gradients(images: Doubles, n_directions: int = 8) -> Doubles:
    """How strong the edges of each direction are around every second pixel, (N, F).

    Images (N, H, W) with a margin of 2 are blurred; the length of the gradient of a pixel goes to
    the two directions next to its own, and the map of each direction is blurred twice. F is
    n_directions (H + 4) / 2 (W + 4) / 2.
    """
    margins = ((0, 0), (_MARGIN, _MARGIN), (_MARGIN, _MARGIN))
    down, right = np.gradient(blur(np.pad(images, margins)), axis=(1, 2))
    length = np.hypot(down, right)
    turn = np.arctan2(down, right) * n_directions / (2 * np.pi)
    maps = []
    for direction in range(n_directions):
        away = np.abs((turn - direction + n_directions / 2) % n_directions - n_directions / 2)
        strength = length * np.maximum(0.0, 1.0 - away)
        maps.append(blur(blur(strength))[:, ::2, ::2].reshape(len(images), -1))
    return _GRADIENT_SCALE * np.concatenate(maps, axis=1)


def with_neighbors(features: Doubles, lengths: NDArray[np.int64], scale: float = 1.0) -> Doubles:
    """Features (N, F) of each letter, then `scale` times those of the letters before and after it
    in its word, 0 where there is none: (N, 3 F)."""
    ends = np.cumsum(lengths)
    before, after = np.zeros_like(features), np.zeros_like(features)
    before[1:], after[:-1] = features[:-1], features[1:]
    before[ends - lengths], after[ends - 1] = 0.0, 0.0
    return np.concatenate([features, scale * before, scale * after], axis=1)


def fourier_features(features: Doubles, n_waves: int, width: float, seed: int = 0) -> Doubles:
    """Waves sqrt(2 / n) cos(w'f + b) at random, (N, n_waves).

    Their inner products approximate exp(-|f - g|^2 / (2 width^2)) (Rahimi and Recht 2007).
    """
    rng = np.random.default_rng(seed)
    directions = rng.standard_normal((features.shape[1], n_waves)) / width
    phases = rng.uniform(0.0, 2 * np.pi, n_waves)
    waves: Doubles = np.sqrt(2.0 / n_waves) * np.cos(features @ directions + phases)
    return waves


def _images(pixels: Doubles) -> Doubles:
    return pixels.reshape(-1, HEIGHT, WIDTH)


def _blurred(pixels: Doubles, _: NDArray[np.int64]) -> Doubles:
    return blur(_images(pixels)).reshape(len(pixels), -1)


def _gradients(pixels: Doubles, _: NDArray[np.int64]) -> Doubles:
    return oriented_gradients(_images(pixels))


def _gradients_around(pixels: Doubles, lengths: NDArray[np.int64]) -> Doubles:
    return with_neighbors(oriented_gradients(_images(pixels)), lengths, 0.3)


def _waves_of_gradients(pixels: Doubles, _: NDArray[np.int64]) -> Doubles:
    gradients = oriented_gradients(_images(pixels))
    return _WAVE_SCALE * fourier_features(gradients, _N_WAVES, _WAVE_WIDTH)


DESCRIPTIONS: dict[str, Describe] = {
    "pixels": lambda pixels, _: pixels,
    "pixels, also the neighbors'": with_neighbors,
    "blurred pixels": _blurred,
    "oriented gradients": _gradients,
    "oriented gradients, also the neighbors'": _gradients_around,
    "waves of oriented gradients": _waves_of_gradients,
}
