"""Made-up words: capitals on a small grid, each moved a little and seen through noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_count, as_not_negative, shown

# Seven rows of five pixels per letter.
_DRAWN = {
    "A": ".###. #...# #...# ##### #...# #...# #...#",
    "B": "####. #...# #...# ####. #...# #...# ####.",
    "C": ".#### #.... #.... #.... #.... #.... .####",
    "D": "####. #...# #...# #...# #...# #...# ####.",
    "E": "##### #.... #.... ####. #.... #.... #####",
    "F": "##### #.... #.... ####. #.... #.... #....",
    "G": ".#### #.... #.... #..## #...# #...# .####",
    "H": "#...# #...# #...# ##### #...# #...# #...#",
    "I": ".###. ..#.. ..#.. ..#.. ..#.. ..#.. .###.",
    "J": "..### ...#. ...#. ...#. ...#. #..#. .##..",
    "K": "#...# #..#. #.#.. ##... #.#.. #..#. #...#",
    "L": "#.... #.... #.... #.... #.... #.... #####",
    "M": "#...# ##.## #.#.# #.#.# #...# #...# #...#",
    "N": "#...# ##..# ##..# #.#.# #..## #..## #...#",
    "O": ".###. #...# #...# #...# #...# #...# .###.",
    "P": "####. #...# #...# ####. #.... #.... #....",
    "Q": ".###. #...# #...# #...# #.#.# #..#. .##.#",
    "R": "####. #...# #...# ####. #.#.. #..#. #...#",
    "S": ".#### #.... #.... .###. ....# ....# ####.",
    "T": "##### ..#.. ..#.. ..#.. ..#.. ..#.. ..#..",
    "U": "#...# #...# #...# #...# #...# #...# .###.",
    "V": "#...# #...# #...# #...# .#.#. .#.#. ..#..",
    "W": "#...# #...# #...# #.#.# #.#.# ##.## #...#",
    "X": "#...# #...# .#.#. ..#.. .#.#. #...# #...#",
    "Y": "#...# #...# .#.#. ..#.. ..#.. ..#.. ..#..",
    "Z": "##### ....# ...#. ..#.. .#... #.... #####",
}
ALPHABET = "".join(_DRAWN)

# Every letter occurs.
_LISTED = """
    APPLE AUTUMN BASKET BEACH BRIDGE BROTHER BUTTER CANDLE CASTLE CHAIR CHEESE CIRCLE CLOUD COFFEE
    COUNTRY DINNER DOCTOR DRAGON EARTH EVENING EXAMPLE FAMILY FATHER FEATHER FINGER FLOWER FOREST
    FRIEND GARDEN GLASS GRASS HAMMER HARBOUR HORSE HOUSE ISLAND JACKET JOURNEY KITCHEN LADDER
    LANTERN LETTER LIGHT LITTLE MARKET MEADOW MINUTE MOTHER MOUNTAIN MUSIC NATION NEIGHBOR NUMBER
    OCEAN ORANGE PAPER PENCIL PICTURE PLANET QUARTER QUESTION QUIET RIVER SCHOOL SILVER SISTER
    SPRING STATION STONE STORM SUMMER TABLE THUNDER TOGETHER TRAIN VILLAGE VOICE WATER WEATHER
    WINDOW WINTER YELLOW ZEBRA
"""
COMMON_WORDS = tuple(_LISTED.split())

_HEIGHT, _WIDTH = 7, 5
# A letter lies anywhere on a grid that is this much taller and wider.
_ROOM = 1


class LetterWords(NamedTuple):
    """Words as images of their letters.

    Attributes
    ----------
    images : list of (T, 8, 6) float32, about 1 where there is ink and 0 elsewhere.
    letters : list of (T,), the letters "A" to "Z".
    """

    images: list[NDArray[np.float32]]
    letters: list[NDArray[np.str_]]


def noisy_words(
    n: int, *, words: Sequence[str] = COMMON_WORDS, noise: float = 0.4, seed: int = 0
) -> LetterWords:
    """Words drawn at random, letter by letter: ink + noise * N(0, 1) on 8 x 6 pixels.

    Parameters
    ----------
    n : number of words; the first words do not depend on it.
    words : what to draw from, capitals "A" to "Z".
    noise : standard deviation of the noise of each pixel, 0 or more. Each letter is also moved by
        up to one pixel, whatever the noise.
    seed : the same seed gives the same words.
    """
    n, seed = as_count(n, "n", minimum=0), as_count(seed, "seed", minimum=0)
    chosen = _as_words(words)
    deviation = as_not_negative(noise, "noise", "try 0.4")
    images, letters = [], []
    for index in range(n):
        rng = np.random.default_rng([seed, index])
        word = chosen[rng.integers(len(chosen))]
        ink = np.stack([_placed(letter, rng) for letter in word])
        images.append((ink + deviation * rng.standard_normal(ink.shape)).astype(np.float32))
        letters.append(np.array(list(word)))
    return LetterWords(images, letters)


def letter_image(letter: str) -> NDArray[np.float32]:
    """A capital `letter` as it is drawn, (7, 5), 1 for ink and 0 elsewhere."""
    if not isinstance(letter, str) or letter not in _DRAWN:
        raise InputError(f'letter must be one of "A" to "Z", got {shown(letter)}; use capitals.')
    rows = _DRAWN[letter].split()
    return np.array([[pixel == "#" for pixel in row] for row in rows], np.float32)


def _placed(letter: str, rng: np.random.Generator) -> NDArray[np.float32]:
    """A letter somewhere on its grid."""
    down, right = rng.integers(0, _ROOM + 1, 2)
    grid = np.zeros((_HEIGHT + _ROOM, _WIDTH + _ROOM), np.float32)
    grid[down : down + _HEIGHT, right : right + _WIDTH] = letter_image(letter)
    return grid


def _as_words(words: Sequence[str]) -> list[str]:
    if isinstance(words, str) or not isinstance(words, Sequence) or not len(words):
        raise InputError(f"words must be a list of words, got {shown(words)}; pass at least one.")
    for word in words:
        if not isinstance(word, str) or not word or set(word) - set(ALPHABET):
            raise InputError(
                f'words must be made of the letters "A" to "Z", got {shown(word)}; use capitals.'
            )
    return list(words)
