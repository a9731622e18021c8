"""Time learning and inference with patterns at 32 x 32, beside the matrix products they rest on.

Made-up figures stand in for photos: 200 in 11 versions, 256 hidden units, 2 chains per image.
Nothing is timed whose labels have a higher energy than those it starts from; the exit status is
then 1.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.cases import Disagreement
from benchmarks.measure import Section, fastest, milliseconds, ratio, run_sections, times
from crfield.datasets import ellipse_set, noisy_unaries
from crfield.patterns import PatternCRF, PatternInputs, infer, learn_patterns, pretrain
from experiments.common import REPOSITORY, provenance

RESULTS = REPOSITORY / "benchmarks" / "results"


@dataclass(frozen=True)
class Scale:
    """How large the cases are and how often they run."""

    repeats: int = 3
    n_images: int = 2200
    n_inferred: int = 400
    size: int = 32
    n_hidden: int = 256
    n_epochs: int = 20


FULL = Scale()
# For the tests: every line runs, but the figures mean nothing.
TINY = Scale(repeats=1, n_images=12, n_inferred=6, size=8, n_hidden=5, n_epochs=1)


@dataclass(frozen=True)
class Case:
    """Figures with noisy costs, and a model of them."""

    scale: Scale

    @cached_property
    def masks(self) -> NDArray[np.uint8]:
        """True labels."""
        return ellipse_set(3, self.scale.n_images, size=self.scale.size)

    @cached_property
    def inputs(self) -> PatternInputs:
        """Costs, and pairwise terms of two types."""
        noisy = noisy_unaries(self.masks)
        return PatternInputs.from_images(noisy.costs, noisy.images)

    @cached_property
    def model(self) -> PatternCRF:
        """A pre-trained machine with weights that matter on both sides."""
        scale = self.scale
        found = pretrain(self.masks[:600], scale.n_hidden, n_epochs=scale.n_epochs)
        return found.add_to(PatternCRF(
            None, unary_weight=2.0, pairwise_weights=[0.1, 0.3], grid=(scale.size, scale.size)
        ))

    def check(self) -> float:
        """Mean energy that inference takes off, if it never adds any."""
        inputs = self.inputs.take(np.arange(self.scale.n_inferred))
        energies = infer(self.model, inputs).scores
        if (np.diff(energies, axis=0) < 0).any():
            raise Disagreement("EM: the energy must not rise, but it did; not timed.")
        return float((energies[-1] - energies[0]).mean())

    def epoch(self) -> None:
        """One epoch of expected-loss updates, the start of the chains included."""
        learn_patterns(self.model, self.inputs, self.masks, n_epochs=1)

    def products(self) -> None:
        """What an epoch multiplies: activations twice, labels' log-odds, and the gradient."""
        n_chains = 2 * self.scale.n_images
        weights = self.model.patterns.weights  # type: ignore[union-attr]
        y = np.ones((n_chains, weights.shape[0]), np.float32)
        h = y @ weights
        y = h @ weights.T
        h = y @ weights
        y.T @ h


def learning_and_inference(scale: Scale) -> Section:
    """An epoch of learning, and MAP labels."""
    section = Section("patterns", f"Patterns, {scale.n_hidden} hidden units, all threads")
    case = Case(scale)
    gained = section.accepts(case.check)
    if gained is None:
        return section
    some = case.inputs.take(np.arange(scale.n_inferred))
    seconds = fastest(
        {
            "epoch": case.epoch, "products": case.products,
            "inference": partial(infer, case.model, some),
        },
        scale.repeats,
    )
    section.add_table(
        ["case", "ms", "over the matrix products"],
        [
            [f"an epoch of learning, {scale.n_images} images", milliseconds(seconds["epoch"]),
             times(ratio(seconds["epoch"], seconds["products"]))],
            ["its matrix products alone", milliseconds(seconds["products"]), ""],
            [f"MAP labels of {scale.n_inferred} images", milliseconds(seconds["inference"]), ""],
        ],
    )
    rate = scale.n_inferred / seconds["inference"]
    section.tables.append(f"{rate:.0f} images per second.")
    section.data.update(seconds=seconds, images_per_second=rate, energy_gained=gained)
    return section


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=FULL.repeats)
    arguments = parser.parse_args(words)
    return run(Scale(repeats=arguments.repeats), RESULTS)


def run(scale: Scale, folder: Path) -> int:
    """Measure, print and keep the figures; 1 if the case was refused."""
    return run_sections(
        [partial(learning_and_inference, scale)], folder, provenance(),
        [f"Fastest of {scale.repeats} interleaved runs."], {"repeats": scale.repeats},
    )


if __name__ == "__main__":
    sys.exit(main())
