"""Constants for `crfield.refine` on volumes: chosen on some kinds, reported on others.

Chosen on MR volumes of the hippocampus from train.txt, with the probabilities of the classifier of
`experiments.hippocampus`, and on made-up volumes of four kinds; reported on test.txt and on two
other kinds. Gains are in the mean Dice of a volume's labels but the first, over the input.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

import crfield
from crfield.refinement import structure_of
from crfield.unary.costs import Segmentation
from crfield.unary.defaults import (
    VOLUME_BILATERAL_WEIGHT,
    VOLUME_COLOR,
    VOLUME_SPATIAL_WEIGHT,
    VOLUME_WIDTH,
)
from experiments.common import (
    REPOSITORY,
    markdown_table,
    names_in,
    parse_data_folder,
    provenance,
    report,
)
from experiments.hippocampus import N_LABELS, classify

CACHE = REPOSITORY / "experiments" / "cache" / "volume_defaults"
CHOSEN = (VOLUME_WIDTH, VOLUME_COLOR, VOLUME_BILATERAL_WEIGHT, VOLUME_SPATIAL_WEIGHT)
CANDIDATES = list(product((0.5, 1.0, 2.0), (0.1, 0.3, 0.6), (1.0, 4.0), (0.5,)))
SHOWN = 6


@dataclass(frozen=True)
class Volume:
    """An image (Z, H, W) with the true labels and the probabilities (Z, H, W, L) of an input."""

    image: NDArray[Any]
    truth: NDArray[np.int64]
    probabilities: NDArray[np.float32]
    spacing: tuple[float, float, float] | None = None

    def dice(self, labels: NDArray[Any]) -> float:
        """The mean Dice score of the labels but the first that occur in the truth."""
        scores = [
            2 * ((self.truth == k) & (labels == k)).sum()
            / ((self.truth == k).sum() + (labels == k).sum())
            for k in np.unique(self.truth) if k
        ]
        return float(np.mean(scores))

    def gain(self, values: NDArray[Any], **options: Any) -> float:
        """What `refine` adds to the mean Dice of the input."""
        found = crfield.refine(self.image, values, spacing=self.spacing, **options)
        return self.dice(found.labels) - self.dice(self.labels)

    @property
    def labels(self) -> NDArray[np.int64]:
        """Those of the input."""
        return np.asarray(self.probabilities.argmax(-1))


@dataclass(frozen=True)
class Kind:
    """Made-up volumes: regions of smooth noise, or tubes, with intensities and an unsure input.

    size : of the regions, in the units of the spacing; 0 makes tubes.
    share : of the volume that is not background.
    means, noise : intensities of the labels, and what is added to them.
    shift : how far borders of the input are off, in voxels.
    """

    name: str
    shape: tuple[int, int, int]
    size: float
    share: float
    means: tuple[float, ...]
    noise: float
    dtype: str
    shift: float
    spacing: tuple[float, float, float] = (1.0, 1.0, 1.0)

    def volume(self, seed: int) -> Volume:
        """One of them."""
        rng = np.random.default_rng([seed, *self.name.encode()])
        n = len(self.means)
        truth = self._regions(rng, n) if self.size else self._tubes(rng)
        blur = [0.6 / step for step in self.spacing]
        clean = ndimage.gaussian_filter(np.asarray(self.means)[truth], blur)
        bias = smooth(rng, self.shape, [side / 4 for side in self.shape])
        noisy = clean + self.noise * (0.7 * bias + rng.normal(size=self.shape))
        image = np.clip(noisy, 0, 255) if self.dtype == "uint8" else noisy
        wide = [3 / step for step in self.spacing]
        moved = [
            axis + self.shift * smooth(rng, self.shape, wide) for axis in np.indices(self.shape)
        ]
        seen = ndimage.map_coordinates(truth, moved, order=0, mode="nearest")
        scores = np.stack([
            3 * (2 * ndimage.gaussian_filter((seen == k).astype(float), blur) - 1)
            + smooth(rng, self.shape, wide) + 0.6 * rng.normal(size=self.shape)
            for k in range(n)
        ], -1)
        soft = np.exp(scores - scores.max(-1, keepdims=True))
        soft /= soft.sum(-1, keepdims=True)
        return Volume(image.astype(self.dtype), truth, soft.astype(np.float32), self.spacing)

    def _regions(self, rng: np.random.Generator, n: int) -> NDArray[np.int64]:
        widths = [self.size / step for step in self.spacing]
        fields = np.stack([smooth(rng, self.shape, widths) for _ in range(n - 1)], -1)
        inside = fields.max(-1) > np.quantile(fields.max(-1), 1 - self.share)
        return np.where(inside, fields.argmax(-1) + 1, 0)

    def _tubes(self, rng: np.random.Generator) -> NDArray[np.int64]:
        lines = np.ones(self.shape, bool)
        for _ in range(6):
            place, way = rng.uniform(size=3) * self.shape, rng.normal(size=3)
            for _ in range(150):
                way = way / np.linalg.norm(way) + 0.25 * rng.normal(size=3)
                place = np.clip(place + way, 0, np.asarray(self.shape) - 1)
                lines[tuple(place.astype(int))] = False
        return np.asarray(ndimage.distance_transform_edt(lines) <= 2.2, np.int64)


KINDS = (
    Kind("organs, 8 bits", (44, 44, 44), 4, 0.3, (90, 140, 170), 18, "uint8", 1),
    Kind("thick slices", (16, 72, 72), 6, 0.1, (-80, 60), 35, "float32", 1, (4, 1, 1)),
    Kind("thin tubes", (56, 56, 56), 0, 0, (900, 1500), 200, "uint16", 0.7),
    Kind("large regions", (72, 72, 72), 9, 0.8, (0.2, 0.4, 0.5, 0.65), 0.06, "float32", 2),
)
OTHER_KINDS = (
    Kind("small regions", (40, 60, 60), 2.2, 0.25, (50, 110, 150), 25, "uint8", 0.6),
    Kind("few columns", (64, 64, 14), 3, 0.35, (200, 420, 380), 60, "int16", 1.5, (0.5, 0.5, 2)),
)


def smooth(
    rng: np.random.Generator, shape: tuple[int, ...], widths: Sequence[float]
) -> NDArray[np.float64]:
    """Smooth noise of standard deviation 1."""
    field = ndimage.gaussian_filter(rng.normal(size=shape), widths)
    return np.asarray(field / field.std())


def options(volume: Volume, constants: Sequence[float]) -> dict[str, Any]:
    """The arguments of `refine` that stand for width, color and the two weights."""
    width, color, bilateral_weight, spatial_weight = constants
    soft = volume.probabilities
    found = structure_of(
        Segmentation("probabilities", np.arange(soft.shape[-1])), soft, volume.image,
        spacing=volume.spacing,
    )
    least = min(volume.spacing or (1.0,))
    pixels = max(width * found.thickness, least)
    return {
        "spatial": pixels, "spatial_weight": spatial_weight,
        "bilateral": (pixels, color * found.spread), "bilateral_weight": bilateral_weight,
    }


def row(name: str, volumes: Sequence[Volume], refined: Callable[[Volume], float]) -> list[str]:
    """Mean, least and largest gain over some volumes."""
    gains = [refined(volume) for volume in volumes]
    print(name, f"{np.mean(gains):+.4f} {min(gains):+.4f} {max(gains):+.4f}", flush=True)
    dice = np.mean([volume.dice(volume.labels) for volume in volumes])
    return [name, str(len(gains)), f"{dice:.3f}", *(
        f"{value:+.4f}" for value in (np.mean(gains), min(gains), max(gains))
    )]


def describe(constants: Sequence[float]) -> str:
    """In a table cell."""
    width, color, bilateral_weight, spatial_weight = constants
    return f"{width:g} x thickness, {color:g} x spread, {bilateral_weight:g}, {spatial_weight:g}"


def hippocampi(folder: Path) -> tuple[list[Volume], list[Volume]]:
    """Volumes to choose on and others, with a classifier's probabilities."""
    names, others = names_in(folder / "train.txt"), names_in(folder / "test.txt")
    CACHE.mkdir(parents=True, exist_ok=True)
    with np.load(folder / "hippocampus.npz") as stored:
        found = classify(stored, names[::2], [*names[1::2], *others], 0, CACHE)

    def volume(name: str) -> Volume:
        given = found[name]
        soft = np.exp(-given.unary)
        soft /= soft.sum(-1, keepdims=True)
        assert soft.shape[-1] == N_LABELS
        return Volume(given.image, given.truth.astype(np.int64), soft)

    return [volume(name) for name in names[1::6]], [volume(name) for name in others]


def reported(volumes: dict[str, list[Volume]]) -> Iterator[list[str]]:
    """Rows of what `refine` gains by default, from probabilities and from labels."""
    for name, some in volumes.items():
        yield row(f"{name}, probabilities", some, lambda v: v.gain(v.probabilities))
        yield row(f"{name}, labels", some, lambda v: v.gain(v.labels))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    arguments = parse_data_folder(parser, "hippocampus3d")
    begin = time.monotonic()
    chosen_on, others = hippocampi(arguments.data / "hippocampus3d")
    made = {kind.name: [kind.volume(0)] for kind in KINDS}
    sets = {"hippocampus, train.txt": chosen_on, **made}
    tried = []
    for constants in CANDIDATES:
        gains = [
            float(np.mean([v.gain(v.probabilities, **options(v, constants)) for v in volumes]))
            for volumes in sets.values()
        ]
        tried.append((min(gains), float(np.mean(gains)), constants))
        print(describe(constants), f"{tried[-1][0]:+.4f} {tried[-1][1]:+.4f}", flush=True)
    # The most that every kind gains: what erases the structures of one must not win by another.
    tried.sort(reverse=True)
    paragraphs = [
        f"Both widths in thicknesses of the thinnest label, color in standard deviations of the "
        f"intensities within labels, bilateral and spatial weight. The best of {len(tried)} by "
        f"what the kind gains that gains least; `refine` uses {describe(CHOSEN)}.",
        markdown_table(
            ["constants", "least of the kinds", "mean"],
            [[describe(c), f"{least:+.4f}", f"{mean:+.4f}"] for least, mean, c in tried[:SHOWN]],
        ),
        "Gains of `refine` by default. Not chosen on: test.txt, the last two kinds, and all seeds.",
        markdown_table(
            ["", "volumes", "Dice of the input", "mean gain", "least", "largest"],
            list(reported({
                "hippocampus, test.txt": others,
                **{
                    kind.name: [kind.volume(seed) for seed in (1, 2, 3)]
                    for kind in (*KINDS, *OTHER_KINDS)
                },
            })),
        ),
    ]
    facts = provenance()
    facts["this run"] = f"{(time.monotonic() - begin) / 60:.0f} minutes"
    report("Constants of `refine` on volumes", paragraphs, facts)


if __name__ == "__main__":
    main()
