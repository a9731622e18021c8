"""Handwritten words: what a letter's neighbours add to its pixels in a log-linear chain.

One fold of the words of Kassel is trained on, the others are tested on, as Taskar et al. do
(Max-margin Markov networks, 2003). Features are the 16 x 8 pixels of a letter, weights linear. The
strength of the ridge is chosen on a fifth of the training words, then all of them are trained on.
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.common import markdown_table, parse_data_folder, provenance, report

from crfield.graphs import ChainCRF

STRENGTHS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
HELD_OUT = 0.2
LETTERS = np.array(list("abcdefghijklmnopqrstuvwxyz"))


@dataclass(frozen=True)
class Words:
    """Pixels (T, 128) and letters (T,) of each word."""

    pixels: list[NDArray[np.float64]]
    letters: list[NDArray[Any]]

    def __len__(self) -> int:
        return len(self.letters)

    def take(self, chosen: NDArray[np.intp]) -> Words:
        """Some of the words."""
        return Words([self.pixels[i] for i in chosen], [self.letters[i] for i in chosen])

    def apart(self) -> Words:
        """Every letter as a word of its own."""
        return Words(
            [row[None] for part in self.pixels for row in part],
            [np.array([letter]) for part in self.letters for letter in part],
        )


def load_words(folder: Path) -> tuple[Words, NDArray[np.uint8]]:
    """All words and the fold of each."""
    with np.load(folder / "letters.npz") as data:
        pixels = np.unpackbits(data["X_packed"], axis=1).astype(np.float64)
        bounds = data["word_offsets"][1:-1]
        letters = LETTERS[data["y"]]
        folds = data["fold"]
    return Words(np.split(pixels, bounds), np.split(letters, bounds)), folds


@dataclass(frozen=True)
class Outcome:
    """A way to train, the strength chosen for it, and what it comes to."""

    name: str
    strength: float
    train: float
    test: float
    words: float | None
    seconds: float
    gap: float | None

    def row(self) -> list[str]:
        """Its line of the table."""
        return [
            self.name, f"{self.strength:g}", f"{self.train:.3f}", f"{self.test:.3f}",
            "" if self.words is None else f"{self.words:.3f}", f"{self.seconds:.1f}",
            "" if self.gap is None else f"{self.gap:.1e}",
        ]


def measure(
    name: str, training: str, train: Words, test: Words, seed: int, *, apart: bool = False
) -> Outcome:
    """Choose C on held-out words, train on all, test."""
    model = ChainCRF(training=training, max_iter=1000)
    order = np.random.default_rng(seed).permutation(len(train))
    n_held = round(HELD_OUT * len(train))
    held, rest = train.take(order[:n_held]), train.take(order[n_held:])
    if apart:
        held, rest, train, test = (part.apart() for part in (held, rest, train, test))
    scores = {}
    for strength in STRENGTHS:
        model.set_params(C=strength).fit(rest.pixels, rest.letters)
        scores[strength] = model.score(held.pixels, held.letters)
    best = max(scores, key=lambda strength: scores[strength])
    began = time.perf_counter()
    model.set_params(C=best).fit(train.pixels, train.letters)
    seconds = time.perf_counter() - began
    found = model.predict(test.pixels)
    whole = [bool((a == b).all()) for a, b in zip(found, test.letters, strict=True)]
    return Outcome(
        name, best, model.score(train.pixels, train.letters),
        model.score(test.pixels, test.letters), None if apart else float(np.mean(whole)), seconds,
        model.expectations_.largest_gap if training == "joint" else None,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fold", type=int, default=0, choices=range(10), help="trained on")
    parser.add_argument("--seed", type=int, default=0, help="which words choose the ridge")
    arguments = parse_data_folder(parser, "ocr_letters")
    words, folds = load_words(arguments.data / "ocr_letters")
    train = words.take(np.flatnonzero(folds == arguments.fold))
    test = words.take(np.flatnonzero(folds != arguments.fold))
    outcomes = [
        measure("letters alone", "joint", train, test, arguments.seed, apart=True),
        measure("chain, piecewise", "piecewise", train, test, arguments.seed),
        measure("chain, joint", "joint", train, test, arguments.seed),
    ]
    table = markdown_table(
        ["training", "C", "letters right, training", "letters right, test", "words right, test",
         "seconds to train", "largest gap of expectations"],
        [outcome.row() for outcome in outcomes],
    )
    n_letters = sum(map(len, test.letters))
    report(
        "Handwritten words",
        [
            f"Fold {arguments.fold} ({len(train)} words) is trained on, the other nine "
            f"({len(test)} words, {n_letters} letters) are tested on. The gap is the largest "
            "difference of an observed and an expected feature, a sample, that the ridge does not "
            "explain.",
            table,
        ],
        provenance(),
    )


if __name__ == "__main__":
    main()
