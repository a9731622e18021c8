"""What patterns gain over pairwise terms as shapes get more variable (CHOPP figures 2 and 3).

Six sets of made-up figures, each more variable than the one before, are seen through noise. A
restricted Boltzmann machine is trained on the masks alone and added to a CRF whose trade-off
weights are chosen for the training images, as those of the CRF without it are. A last column has
them chosen on a few other figures, which the machine has not seen.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from scipy import stats

from crfield.datasets.ellipses import N_LEVELS, ellipse_set, noisy_unaries
from crfield.patterns import (
    PatternCRF,
    PatternInputs,
    Patterns,
    choose_tradeoffs,
    infer,
    mask_scores,
    pretrain,
)
from crfield.patterns.pictures import mask_tiles, pattern_tiles
from crfield.patterns.variability import variability
from crfield.show.pictures import side_by_side, stack
from crfield.show.svg import round_ticks, tick_names
from experiments.common import RESULTS, Float32, markdown_table, provenance, report

# Fixed beforehand, on figures of other seeds than those reported.
N_TRAIN, N_OTHER, N_TEST = 300, 100, 200
N_HIDDEN, N_EPOCHS, STEP_SIZE, L2 = 64, 100, 0.05, 1e-4
N_CLUSTERS = 32
GRID = (32, 32)
TEST_SEEDS, OTHER_SEEDS = 100, 200  # added to a seed for its test figures and its other figures
METHODS = ("unary only", "iPW", "iPW+RBM")
HELD_OUT = "iPW+RBM*"  # with weights chosen on other figures
COLORS = {"iPW": "#d97706", "iPW+RBM": "#2563eb", HELD_OUT: "#0f766e"}
INK, PALE_INK, GRID_LINE, PAPER = "#24292f", "#6b7280", "#e5e7eb", "#ffffff"

Masks = NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Figures:
    """Masks with what is seen of them."""

    masks: Masks
    images: Float32
    inputs: PatternInputs

    @classmethod
    def make(cls, level: int, n: int, seed: int) -> Figures:
        """Figures of a level with costs, constant and contrast-dependent pairwise terms."""
        masks = ellipse_set(level, n, size=GRID[0], seed=seed)
        costs, images = noisy_unaries(masks, seed=seed)
        return cls(masks, images, PatternInputs.from_images(costs, images))


@dataclass(frozen=True, eq=False)
class Outcome:
    """One level and seed: V_K, mean IoU of each method on test and training figures, and, to be
    shown, the test figures, the labels of each method and the patterns.
    """

    level: int
    seed: int
    variability: float
    test: dict[str, float]
    train: dict[str, float]
    weights: dict[str, list[float]]
    figures: Figures
    labels: dict[str, Masks]
    patterns: Patterns

    @property
    def gain(self) -> float:
        """Points of IoU that the patterns add to the pairwise terms."""
        return 100 * (self.test["iPW+RBM"] - self.test["iPW"])


def run(level: int, seed: int) -> Outcome:
    """Train and test all methods."""
    train = Figures.make(level, N_TRAIN, seed)
    test = Figures.make(level, N_TEST, seed + TEST_SEEDS)
    trained = pretrain(
        train.masks, N_HIDDEN, n_epochs=N_EPOCHS, step_size=STEP_SIZE,
        l2=L2, seed=seed,
    )
    unary = PatternCRF(None, pairwise_weights=[0, 0], grid=GRID)
    pairwise = choose_tradeoffs(
        PatternCRF(None, pairwise_weights=[1, 1], grid=GRID), train.inputs, train.masks, threads=1
    ).model
    both = PatternCRF(
        trained.patterns, visible_bias=trained.visible_bias, grid=GRID,
        pairwise_weights=pairwise.pairwise_weights,
    )
    chosen = [
        choose_tradeoffs(both, figures.inputs, figures.masks, threads=1).model
        for figures in (train, Figures.make(level, N_OTHER, seed + OTHER_SEEDS))
    ]
    models = dict(zip((*METHODS, HELD_OUT), (unary, pairwise, *chosen), strict=True))

    def labels_of(figures: Figures) -> dict[str, Masks]:
        return {
            name: infer(model, figures.inputs, threads=1).labels for name, model in models.items()
        }

    labels = labels_of(test)
    return Outcome(
        level, seed, variability(train.masks, N_CLUSTERS),
        mean_scores(labels, test.masks), mean_scores(labels_of(train), train.masks),
        {
            name: [model.unary_weight, *model.pairwise_weights.tolist()]
            for name, model in models.items()
        },
        test, labels, trained.patterns,
    )


def mean_scores(labels: dict[str, Masks], masks: Masks) -> dict[str, float]:
    """Mean IoU of each method."""
    return {name: float(mask_scores(found, masks).mean()) for name, found in labels.items()}


def rank_correlation(outcomes: Sequence[Outcome]) -> float:
    """Spearman's correlation between V_K and the gain by the patterns."""
    pairs = [(each.variability, each.gain) for each in outcomes]
    return float(stats.spearmanr(*zip(*pairs, strict=True)).statistic)


def by_level(outcomes: Sequence[Outcome]) -> list[list[Outcome]]:
    """The outcomes of each level, in order."""
    return [[each for each in outcomes if each.level == n + 1] for n in range(N_LEVELS)]


def table(outcomes: Sequence[Outcome]) -> str:
    """One row per level: means over the seeds, and the least and the largest gain."""
    rows = []
    for level, group in enumerate(by_level(outcomes), 1):
        scores = [100 * np.mean([each.test[name] for each in group]) for name in METHODS]
        gains = [each.gain for each in group]
        rows.append([
            str(level), f"{np.mean([each.variability for each in group]):.3f}",
            *(f"{score:.2f}" for score in scores), f"{np.mean(gains):+.2f}",
            f"{min(gains):+.2f} to {max(gains):+.2f}",
            f"{100 * np.mean([each.train['iPW+RBM'] for each in group]):.2f}",
            f"{100 * np.mean([each.test[HELD_OUT] for each in group]):.2f}",
        ])
    return markdown_table([
        "level", f"V_{N_CLUSTERS}", *METHODS, "gain by RBM", "of the seeds", "iPW+RBM (training)",
        HELD_OUT,
    ], rows)


def chart(outcomes: Sequence[Outcome], size: tuple[int, int] = (720, 440)) -> Image.Image:
    """IoU less that of the unary terms over V_K: one dot per seed, a line through the means."""
    scale = 3  # drawn larger and reduced, which smooths every edge
    small, large = (ImageFont.load_default(size=points * scale) for points in (13, 16))
    width, height = size[0] * scale, size[1] * scale
    left, right, top, bottom = 64 * scale, width - 24 * scale, 52 * scale, height - 60 * scale
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    differences = {
        name: [100 * (each.test[name] - each.test[METHODS[0]]) for each in outcomes]
        for name in COLORS
    }
    x_ticks = round_ticks(0.0, max(each.variability for each in outcomes), 7)
    heights = [value for values in differences.values() for value in values]
    y_ticks = round_ticks(min(heights), max(heights), 6)

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_ticks[0]) / (x_ticks[-1] - x_ticks[0])
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return left + across * (right - left), bottom - up * (bottom - top)

    for tick, name in zip(y_ticks, tick_names(y_ticks), strict=True):
        y = place(0, tick)[1]
        draw.line([(left, y), (right, y)], fill=GRID_LINE, width=scale)
        draw.text((left - 8 * scale, y), name, fill=PALE_INK, font=small, anchor="rm")
    for tick, name in zip(x_ticks, tick_names(x_ticks), strict=True):
        x = place(tick, y_ticks[0])[0]
        draw.line([(x, bottom), (x, bottom + 5 * scale)], fill=PALE_INK, width=scale)
        draw.text((x, bottom + 9 * scale), name, fill=PALE_INK, font=small, anchor="mt")
    legend_left: float = right
    for method, color in reversed(COLORS.items()):
        for each, value in zip(outcomes, differences[method], strict=True):
            draw.circle(place(each.variability, value), 3 * scale, outline=color, width=scale)
        middle = [
            place(
                float(np.mean([each.variability for each in group])),
                100 * float(np.mean([e.test[method] - e.test[METHODS[0]] for e in group])),
            )
            for group in by_level(outcomes)
        ]
        draw.line(middle, fill=color, width=2 * scale, joint="curve")
        draw.text((legend_left, 26 * scale), method, fill=color, font=large, anchor="rm")
        legend_left -= draw.textlength(method, font=large) + 24 * scale
    draw.text(
        (left, 26 * scale), "Points of IoU above the unary terms alone", fill=INK, font=large,
        anchor="lm",
    )
    draw.text(
        ((left + right) / 2, height - 18 * scale), f"variability V_{N_CLUSTERS} of the masks",
        fill=INK, font=small, anchor="mm",
    )
    return sheet.resize(size, Image.Resampling.LANCZOS)


def examples(outcomes: Sequence[Outcome], n_shown: int = 4) -> Image.Image:
    """One row per level: figures as they are, as they are seen and as each method finds them, and
    patterns.
    """
    rows = []
    for each in outcomes:
        shown = slice(0, n_shown)
        panels = [
            each.figures.masks[shown], each.figures.images[shown],
            *(each.labels[name][shown] for name in METHODS),
        ]
        titles = [f"level {each.level}, V = {each.variability:.3f}", "seen", *METHODS]
        rows.append(side_by_side(
            *(mask_tiles(panel, columns=2, scale=3) for panel in panels),
            pattern_tiles(each.patterns, GRID, n=10, columns=5, scale=3),
            titles=[*titles, "patterns of the RBM"],
        ))
    return stack(*rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], metavar="N")
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="levels at a time")
    arguments = parser.parse_args()
    start = time.monotonic()
    outcomes = []
    tasks = [(level, seed) for seed in arguments.seeds for level in range(1, N_LEVELS + 1)]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        for found in pool.map(run, *zip(*tasks, strict=True)):
            outcomes.append(found)
            print(
                f"seed {found.seed} level {found.level}: V {found.variability:.3f}, "
                + ", ".join(f"{name} {100 * score:.2f}" for name, score in found.test.items())
                + f", {time.monotonic() - start:.0f} s", flush=True,
            )
    correlations = {
        seed: rank_correlation([each for each in outcomes if each.seed == seed])
        for seed in arguments.seeds
    }
    together = rank_correlation(outcomes)
    rising = all(
        np.all(np.diff([each.variability for each in outcomes if each.seed == seed]) > 0)
        for seed in arguments.seeds
    )
    report("Patterns on shapes of growing variability", [
        f"Mean IoU of the figure in percent on {N_TEST} test figures of {GRID[0]} x {GRID[1]} "
        f"pixels, means over the seeds {', '.join(map(str, arguments.seeds))}. Trained on "
        f"{N_TRAIN} figures: an RBM of {N_HIDDEN} hidden units for {N_EPOCHS} epochs, and the "
        "trade-off weights of each method, by its IoU on these figures. Pairwise terms (iPW) are "
        "constant and by the contrast of the noisy image. Gains are in points, of iPW+RBM over "
        "iPW.",
        table(outcomes),
        "Spearman's rank correlation of gain and variability: "
        + ", ".join(f"{value:.2f} (seed {seed})" for seed, value in correlations.items())
        + f"; {together:.2f} over all levels and seeds. V_{N_CLUSTERS} "
        + ("rises" if rising else "does not always rise") + " from level to level.",
        "The RBM has seen the training masks, so that the weights chosen on them trust it more "
        "than it deserves on new figures; the more variable the shapes, the more so (iPW+RBM on "
        f"the training figures against the test). {HELD_OUT} is the same RBM with weights chosen "
        f"on {N_OTHER} figures that it has not seen.",
        "![IoU over variability](pattern_variability.png)\n\n"
        "![figures, labels and patterns](pattern_variability_examples.png)",
    ], provenance())
    kept = {
        "correlations": {str(seed): value for seed, value in correlations.items()},
        "correlation": together,
        "variability_rises": bool(rising),
        "outcomes": [
            {
                "level": each.level, "seed": each.seed, "variability": each.variability,
                "test": each.test, "train": each.train, "weights": each.weights,
                "gain": each.gain,
            }
            for each in outcomes
        ],
    }
    text = json.dumps(kept, indent=2) + "\n"
    (RESULTS / "pattern_variability.json").write_text(text, encoding="utf-8")
    chart(outcomes).save(RESULTS / "pattern_variability.png")
    first = [each for each in outcomes if each.seed == arguments.seeds[0]]
    examples(first).save(RESULTS / "pattern_variability_examples.png")


if __name__ == "__main__":
    main()
