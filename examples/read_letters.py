"""Handwritten words, read letter by letter and as a chain.

A classifier of single letters and a `ChainClassifier` learn from the same words: a weight for each
pixel and letter, and in the chain a score for each pair of successive letters. The strength of the
penalty is chosen for each of them on words that are held out, as scikit-learn's C, with
l2 = 1 / (C n) for n samples; then all training words are used. Reported are letters and whole words
of the test that are read right; the picture shows the first words of the test, wrong letters in
red.

--data is a folder with ocr_letters/letters.npz (words of Kassel, 16 x 8 pixels per letter): fold 0
is for training and the other nine for testing. Without it, words are made up.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from crfield.datasets.words import noisy_words
from crfield.graphs import ChainClassifier

STRENGTHS = (0.03, 0.1, 0.3, 1.0, 3.0)
HELD_OUT = 0.2
INK, WRONG, PALE = "#24292f", "#c81e1e", "#6b7280"
LETTER_HEIGHT, CELL, LINE, GAP, NAMES_WIDTH = 48, 40, 22, 10, 62

# Images (T, H, W) and letters (T,) of each word.
Words = tuple[list[NDArray[Any]], list[NDArray[Any]]]


def load_words(folder: Path) -> tuple[Words, Words]:
    """The words of fold 0, and those of the others, which come sorted, in any order."""
    with np.load(folder / "ocr_letters" / "letters.npz") as data:
        pixels = np.unpackbits(data["X_packed"], axis=1).reshape(-1, 16, 8).astype(np.float32)
        bounds, folds = data["word_offsets"][1:-1], data["fold"]
        letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))[data["y"]]
    images, texts = np.split(pixels, bounds), np.split(letters, bounds)
    order = np.random.default_rng(0).permutation(len(folds))

    def chosen(is_chosen: NDArray[np.bool_]) -> Words:
        indices = order[is_chosen[order]]
        return [images[i] for i in indices], [texts[i] for i in indices]

    return chosen(folds == 0), chosen(folds != 0)


def features_of(images: Sequence[NDArray[Any]]) -> list[NDArray[np.float64]]:
    """Pixels, one row per letter: a list of (T, F)."""
    return [word.reshape(len(word), -1).astype(np.float64) for word in images]


class Reader:
    """A chain, or with `apart` a classifier of letters: chains of one node each."""

    def __init__(self, apart: bool, C: float = 1.0):
        self.apart, self.C = apart, C
        self.model = ChainClassifier(max_iter=1000)

    def fit(self, X: list[Any], y: list[Any]) -> Reader:
        """Learn from words."""
        samples = self._parts(X)
        self.model.set_params(l2=1 / (self.C * len(samples))).fit(samples, self._parts(y))
        return self

    def read(self, X: list[Any]) -> list[NDArray[Any]]:
        """The letters of each word."""
        found = self.model.predict(self._parts(X))
        if not self.apart:
            return found
        return np.split(np.concatenate(found), np.cumsum([len(word) for word in X])[:-1])

    def _parts(self, words: list[Any]) -> list[Any]:
        return [word[t:t + 1] for word in words for t in range(len(word))] if self.apart else words


def share_right(found: Sequence[Any], truth: Sequence[Any]) -> tuple[float, float]:
    """Of all letters and of whole words."""
    right = [a == b for a, b in zip(found, truth, strict=True)]
    return float(np.concatenate(right).mean()), float(np.mean([part.all() for part in right]))


def learn(train: Words, apart: bool, strengths: Sequence[float]) -> tuple[Reader, float]:
    """A reader with the C that is best on words held out, and the seconds of its last training."""
    X, y = features_of(train[0]), train[1]
    n = round((1 - HELD_OUT) * len(X))
    scores = {
        C: share_right(Reader(apart, C).fit(X[:n], y[:n]).read(X[n:]), y[n:])[0] for C in strengths
    }
    began = time.perf_counter()
    reader = Reader(apart, max(scores, key=lambda C: scores[C])).fit(X, y)
    return reader, time.perf_counter() - began


def picture_of(letter: NDArray[Any]) -> Image.Image:
    """A letter (H, W), dark ink on light paper."""
    paper, ink = min(0.0, float(letter.min())), max(1.0, float(letter.max()))
    gray = (255 * (ink - letter) / (ink - paper)).astype(np.uint8)
    width = round(LETTER_HEIGHT * letter.shape[1] / letter.shape[0])
    return Image.fromarray(gray).resize((width, LETTER_HEIGHT), Image.Resampling.NEAREST)


def draw_readings(
    images: Sequence[NDArray[Any]], truth: Sequence[Any], readings: dict[str, Sequence[Any]]
) -> Image.Image:
    """Words (T, H, W), about 1 where there is ink, with what was read below; red is wrong."""
    step, half = LETTER_HEIGHT + LINE * len(readings) + GAP, picture_of(images[0][0]).width // 2
    width = NAMES_WIDTH + CELL * max(map(len, truth))
    sheet = Image.new("RGB", (width, step * len(images)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=18)
    small = ImageFont.load_default(size=14)
    for row, (word, text) in enumerate(zip(images, truth, strict=True)):
        for t, letter in enumerate(word):
            sheet.paste(picture_of(letter), (NAMES_WIDTH + t * CELL, row * step))
        for line, (name, found) in enumerate(readings.items()):
            middle = row * step + LETTER_HEIGHT + LINE // 2 + line * LINE
            draw.text((4, middle), name, fill=PALE, font=small, anchor="lm")
            for t, (ours, theirs) in enumerate(zip(found[row], text, strict=True)):
                place = (NAMES_WIDTH + t * CELL + half, middle)
                color = INK if ours == theirs else WRONG
                draw.text(place, str(ours), fill=color, font=font, anchor="mm")
    return sheet


def parsed_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, help="folder with ocr_letters/letters.npz (default: made-up words)")
    add("--words", type=int, default=400, help="made-up words to learn from (default: %(default)s)")
    add("--noise", type=float, default=0.4, help="their noise (default: %(default)s)")
    add("--shown", type=int, default=8, help="words in the picture (default: %(default)s)")
    add("--quick", action="store_true", help="few words and one C")
    add("-o", "--output", type=Path, default=Path("read_letters"),
        help="folder (default: %(default)s)")
    options = parser.parse_args()
    if options.quick:
        options.words = 120
    if options.words < 10 or options.shown < 1 or not 0 <= options.noise < float("inf"):
        parser.error("words must be at least 10, shown at least 1, noise at least 0")
    if options.data is not None and not (options.data / "ocr_letters" / "letters.npz").is_file():
        parser.error(
            f"--data must hold ocr_letters/letters.npz, got {options.data}; check the folder."
        )
    return options


def main() -> None:
    """Print a table, write a picture and the figures."""
    options = parsed_options()
    if options.data is None:
        train, test = (
            noisy_words(options.words, noise=options.noise, seed=seed) for seed in (0, 1)
        )
    else:
        train, test = load_words(options.data)
    if options.quick:
        train, test = ((part[0][:120], part[1][:120]) for part in (train, test))
    rows, readings = [], {}
    for name, apart in (("alone", True), ("chain", False)):
        reader, seconds = learn(train, apart, STRENGTHS[2:3] if options.quick else STRENGTHS)
        readings[name] = reader.read(features_of(test[0]))
        letters, words = share_right(readings[name], test[1])
        rows.append({"model": name, "C": reader.C, "letters": letters, "words": words,
                     "seconds": seconds})
    print(f"{len(train[0])} words to learn from, {len(test[0])} to test")
    print(f"{'model':8}{'C':>6}{'letters right':>15}{'words right':>13}{'seconds':>9}")
    for row in rows:
        print(f"{row['model']:8}{row['C']:6g}{100 * row['letters']:15.1f}{100 * row['words']:13.1f}"
              f"{row['seconds']:9.1f}")
    options.output.mkdir(parents=True, exist_ok=True)
    n = options.shown
    shown = {name: found[:n] for name, found in readings.items()}
    draw_readings(test[0][:n], test[1][:n], shown).save(options.output / "words.png")
    (options.output / "figures.json").write_text(json.dumps(rows, indent=2) + "\n", "utf-8")
    print(f"The first words of the test and figures are in {options.output}")


if __name__ == "__main__":
    main()
