"""Street scenes: what a CRF learned jointly with its unary gains over the unary.

A pixel classifier (unary_classifier.py) is trained on CamVid's train images at half size, once by
maximum likelihood and once with rare classes weighted up. Each sequence of train is cut into four
blocks of time, and the CRF is learned on images whose costs come from a classifier that has not
seen their block; val lies in the last block. Every choice is made on those images; every method is
reported on test, whose costs come from a classifier trained on all of train. Costs and the course
of learning are kept in experiments/cache: a killed run goes on where it was, and deleting that
folder starts from nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import sklearn
from numpy.typing import NDArray

from crfield import Bilateral, DenseCRF, Inference, Pairwise, Potts, Spatial, Symmetric
from crfield.datasets import FolderDataset
from crfield.learning import (
    LearningReport,
    Parameters,
    grid_search,
    learn,
    potts_grid,
)
from crfield.metrics import (
    class_accuracy,
    confusion_matrix,
    iou_per_label,
    mean_iou,
    paired_bootstrap,
    pixel_accuracy,
    trimap_confusion,
)
from experiments import unary_classifier
from experiments.common import (
    MEAN_IOU,
    REPOSITORY,
    STANDARD,
    Setting,
    markdown_table,
    parse_data_folder,
    provenance,
    report,
)
from experiments.unary_classifier import N_BLOCKS, PIXELS_PER_IMAGE, Frame, classify, time_blocks

VAL_BLOCK, NO_BLOCK = N_BLOCKS - 1, -1  # val was filmed in the last quarter of one sequence
FOLDS = ((0, 2), (1, 3))  # blocks, to choose on one what is learned on the other
# Each of a class's n pixels counts n^-power; of 0.25, 0.5 and 0.75, 0.5 did best on the last block.
POWERS = {"plain": 0.0, "balanced": 0.5}
TRAIN_EVERY, VAL_EVERY = 7, 12  # which images the CRF is learned on
INFERENCE = Inference(algorithm="concave", max_iter=5)
EVALUATIONS = 15  # of the loss with its gradient, after which learning ends with the iteration
# What the recalibration may start from (a factor on the costs) and the ridges that hold it there,
# to be divided by the number of images; chosen on one pixel in THINNING^2.
SHARPNESS, RIDGES, THINNING = (1.0, 4.0), (0.002, 0.02, 0.2), 4
RECALIBRATION_EVALUATIONS = 30
BAND = 4.0  # pixels on either side of a border, for the trimap accuracy
N_RESAMPLES = 2000
DIFFERENCES = ("mean IoU", "95 % interval", "pixels", "95 % interval")
HALVED = Setting("customary at half size", spatial=(1.5, 3), bilateral=(40, 13, 10))

Confusions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Method:
    """A model with what it cost to get it."""

    model: DenseCRF
    n_parameters: int = 0
    seconds: str = ""


def learn_from(
    start: DenseCRF, frames: Sequence[Frame], groups: Sequence[str], evaluations: int, ridge: float,
    jobs: int, checkpoint: Path,
) -> Method:
    """The model after learning, with a ridge on the recalibration that one image outweighs; taken
    up where the checkpoint ends, if there is one.
    """
    resumed = " (resumed)" if checkpoint.exists() else ""
    begin = time.perf_counter()

    def progress(iteration: int, so_far: LearningReport) -> bool:
        loss, score = so_far.losses[-1], percent(so_far.mean_ious[-1])
        note(f"{checkpoint.stem}, iteration {iteration}: loss {loss:.4f}, mean IoU {score}")
        return so_far.n_evaluations >= evaluations

    model = learn(
        start, frames, loss="iou", learn=groups, optimizer="lbfgs", inference=INFERENCE,
        l2={"unary": ridge / len(frames)}, max_iter=evaluations, n_jobs=jobs, checkpoint=checkpoint,
        callback=progress,
    ).model
    seconds = f"{time.perf_counter() - begin:.0f}{resumed}"
    return Method(model, len(Parameters(start, groups).start), seconds)


def scaled_costs(n_labels: int, factor: float) -> DenseCRF:
    """No pairwise terms, and a recalibration that only multiplies: another sharpness."""
    return DenseCRF(n_labels, recalibration=np.eye(n_labels, n_labels + 1) * factor)


def choose_recalibration(
    frames: Sequence[Frame], n_labels: int, jobs: int, cache: Path
) -> tuple[tuple[float, float], str]:
    """Sharpness of the start and ridge with the best mean IoU on the fold that was not learned on,
    and the table of all.
    """
    thinned = [frame.thinned(THINNING) for frame in frames]
    rows = [["unary", "", percent(mean_iou(total(DenseCRF(n_labels), thinned, jobs)))]]
    scores = {}
    for sharpness, ridge in itertools.product(SHARPNESS, RIDGES):
        counts = np.zeros((n_labels, n_labels), np.int64)
        for number, fold in enumerate(FOLDS):
            inside = [frame for frame in thinned if frame.block in fold]
            outside = [frame for frame in thinned if frame.block not in fold]
            checkpoint = cache / f"sharpness-{sharpness:g}-ridge-{ridge:g}-fold-{number}.checkpoint"
            method = learn_from(
                scaled_costs(n_labels, sharpness), inside, ("unary",), RECALIBRATION_EVALUATIONS,
                ridge, jobs, checkpoint,
            )
            counts += total(method.model, outside, jobs)
        scores[sharpness, ridge] = mean_iou(counts)
        rows.append([f"{sharpness:g}", f"{ridge:g}", percent(scores[sharpness, ridge])])
    table = markdown_table(["factor at the start", "ridge", "mean IoU %"], rows)
    return max(scores, key=lambda choice: scores[choice]), table


def candidates(n_labels: int) -> list[DenseCRF]:
    """Potts models between the customary widths and narrower ones."""
    return list(potts_grid(
        n_labels, spatial=(1.5,), bilateral=((40.0, 13.0), (15.0, 10.0)), weights=(0.3, 1.0, 3.0)
    ))


def search(frames: Sequence[Frame], n_labels: int, jobs: int) -> Method:
    """The candidate with the best mean IoU."""
    begin = time.perf_counter()
    model = grid_search(candidates(n_labels), frames, inference=INFERENCE, n_jobs=jobs).model
    n_parameters = 5  # a width in space, a width in space and one in color, two weights
    return Method(model, n_parameters, f"{time.perf_counter() - begin:.0f}")


def loosened(model: DenseCRF) -> DenseCRF:
    """The same model with a width for each axis and channel, and a compatibility for each pair of
    labels in the bilateral term: what learning then has to set.
    """
    spatial, bilateral = (term.kernel for term in model.terms)
    assert isinstance(spatial, Spatial)
    assert isinstance(bilateral, Bilateral)
    smooth, edge = (term.compatibility for term in model.terms)
    assert isinstance(smooth, Potts)
    return DenseCRF(model.n_labels, [
        Pairwise(Spatial([spatial.sigma] * 2), smooth),
        Pairwise(
            Bilateral([bilateral.sigma_xy] * 2, [bilateral.sigma_color] * 3),
            Symmetric(edge.matrix(model.n_labels)),
        ),
    ])


def confusions(model: DenseCRF, frames: Sequence[Frame], jobs: int) -> Confusions:
    """For each frame the confusion of all pixels and of those near a border, (N, 2, L, L)."""

    def one(frame: Frame) -> Confusions:
        result = model.infer(
            frame.image, frame.unary, algorithm=INFERENCE.algorithm, max_iter=INFERENCE.max_iter,
            tol=0.0, threads=1,
        )
        return np.stack([
            confusion_matrix(frame.truth, result.labels, model.n_labels),
            trimap_confusion(frame.truth, result.labels, model.n_labels, BAND),
        ])

    with ThreadPoolExecutor(jobs) as pool:
        return np.array(list(pool.map(one, frames)))


def total(model: DenseCRF, frames: Sequence[Frame], jobs: int) -> NDArray[np.int64]:
    """The confusion of all pixels of all frames, (L, L)."""
    return np.asarray(confusions(model, frames, jobs)[:, 0].sum(axis=0))


def percent(share: float) -> str:
    """A table cell."""
    return f"{100 * share:.2f}"


@dataclass(frozen=True, eq=False)
class Study:
    """All methods on one kind of unary, with their confusions on test, (N, 2, L, L) each, and how
    the recalibration was chosen.
    """

    methods: dict[str, Method]
    found: dict[str, Confusions]
    choice: str

    def score_rows(self) -> list[list[str]]:
        """Each method's scores over all frames, in percent, and its cost."""
        rows = []
        for name, method in self.methods.items():
            whole, band = self.found[name].sum(axis=0)
            scores = (
                mean_iou(whole), pixel_accuracy(whole), class_accuracy(whole), pixel_accuracy(band)
            )
            rows.append([name, *map(percent, scores), str(method.n_parameters), method.seconds])
        return rows

    def class_table(self, class_names: Sequence[str], shown: Sequence[str]) -> str:
        """Share of the pixels and IoU of each class with the methods shown, in percent."""
        totals = [self.found[name][:, 0].sum(axis=0) for name in shown]
        share = totals[0].sum(axis=1) / totals[0].sum()
        columns = [share, *map(iou_per_label, totals)]
        rows = [
            [name, *map(percent, values)]
            for name, *values in zip(class_names, *columns, strict=True)
        ]
        return markdown_table(["class", "share of pixels", *shown], rows)


def study(
    seen: Sequence[Frame], unseen: Sequence[Frame], n_labels: int, jobs: int, cache: Path
) -> Study:
    """Learn on the frames seen and apply every method to those unseen."""
    (sharpness, ridge), choice = choose_recalibration(seen, n_labels, jobs, cache)

    def learned(
        name: str, start: DenseCRF, groups: Sequence[str], evaluations: int = EVALUATIONS
    ) -> Method:
        checkpoint = cache / f"{name}.checkpoint"
        return learn_from(start, seen, groups, evaluations, ridge, jobs, checkpoint)

    searched = search(seen, n_labels, jobs)
    recalibrated = learned(
        "recalibrated", scaled_costs(n_labels, sharpness), ("unary",), RECALIBRATION_EVALUATIONS
    )
    field = learned("learned", loosened(searched.model), ("compatibility", "kernel"))
    joint = learned("joint", field.model, ("unary", "compatibility", "kernel"))
    methods = {
        "unary": Method(DenseCRF(n_labels)),
        "customary": Method(HALVED.model(n_labels)),
        "customary, full size": Method(STANDARD.model(n_labels)),
        "searched": searched,
        "recalibrated": recalibrated,
        "learned": field,
        "joint": joint,
    }
    found = {name: confusions(method.model, unseen, jobs) for name, method in methods.items()}
    return Study(methods, found, choice)


def difference_row(name: str, found: Confusions, other: Confusions, seed: int) -> list[str]:
    """By how much the scores of `found` exceed those of `other`, in points."""
    cells = []
    for statistic in (mean_iou, pixel_accuracy):
        values = paired_bootstrap(found[:, 0], other[:, 0], statistic, N_RESAMPLES, seed)
        difference, low, high = (100 * value for value in values)
        cells += [f"{difference:+.2f}", f"{low:+.2f} to {high:+.2f}"]
    return [name, *cells]


def widths(model: DenseCRF) -> str:
    """The kernels' widths in words."""

    def numbers(values: Any) -> str:
        return " x ".join(f"{value:.3g}" for value in np.atleast_1d(values))

    spatial, bilateral = (term.kernel for term in model.terms)
    assert isinstance(spatial, Spatial)
    assert isinstance(bilateral, Bilateral)
    return (
        f"spatial {numbers(spatial.sigma)} px, bilateral {numbers(bilateral.sigma_xy)} px / "
        f"{numbers(bilateral.sigma_color)}"
    )


def note(line: str) -> None:
    """One line on the way."""
    print(line, file=sys.stderr, flush=True)


def section(kind: str, result: Study, class_names: Sequence[str], seed: int) -> list[str]:
    """The paragraphs on one kind of unary."""
    joint = result.found["joint"]
    others = ("unary", "customary", "searched", "recalibrated", "learned")
    models = {name: result.methods[name].model for name in ("searched", "learned", "joint")}
    return [
        f"## {kind.capitalize()} unary",
        markdown_table(
            ["method", "mean IoU %", "pixels %", "classes %", "near borders %", "parameters", "s"],
            result.score_rows(),
        ),
        markdown_table(["joint minus", *DIFFERENCES], [
            difference_row(name, joint, result.found[name], seed) for name in others
        ]),
        "\n".join(f"- {name}: {widths(model)}" for name, model in models.items()),
        result.class_table(class_names, ("unary", "recalibrated", "learned", "joint")),
        "How the recalibration was chosen:",
        result.choice,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="images at a time (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    parser.add_argument(
        "--every", type=int, default=1, metavar="N",
        help="learn and report on every N-th of the images only, for a quick look (default: 1)",
    )
    arguments = parse_data_folder(parser, "camvid")
    jobs, seed, every = arguments.jobs, arguments.seed, arguments.every
    begin = time.perf_counter()
    folder = arguments.data / "camvid"
    train, val, test = (FolderDataset(folder, split) for split in ("train", "val", "test"))
    blocks = time_blocks(train.names)
    learned_on = {name: blocks[name] for name in train.names[:: TRAIN_EVERY * every]}
    learned_on |= dict.fromkeys(val.names[:: VAL_EVERY * every], VAL_BLOCK)
    reported_on = dict.fromkeys(test.names[::every], NO_BLOCK)
    # What is kept depends on the scripts, the images and the seed.
    scripts = [Path(path).read_text() for path in (__file__, unary_classifier.__file__)]
    key = hashlib.sha256(repr([scripts, blocks, learned_on, reported_on, seed]).encode())
    results = {}
    for kind, power in POWERS.items():
        cache = REPOSITORY / "experiments" / "cache" / f"camvid-{key.hexdigest()[:12]}" / kind
        cache.mkdir(parents=True, exist_ok=True)
        frames = classify(
            folder, blocks, learned_on | reported_on, train.n_labels, power=power, seed=seed,
            jobs=jobs, path=cache / "costs.npz",
        )
        note(f"{kind} classifier done after {time.perf_counter() - begin:.0f} s")
        seen, unseen = ([frames[name] for name in names] for names in (learned_on, reported_on))
        results[kind] = study(seen, unseen, train.n_labels, jobs, cache)
    plain, balanced = (results[kind].found for kind in ("plain", "balanced"))

    report("Street scenes: a CRF learned jointly with its unary", [
        f"CamVid at half size, 240 x 180, {train.n_labels} classes. The classifier is a filter "
        f"bank with logistic regression on {PIXELS_PER_IMAGE} pixels of each of the {len(train)} "
        "images of train: plain, by maximum likelihood, or balanced, where each of a class's n "
        f"pixels counts n^-{POWERS['balanced']:g}. The CRF is searched and learned on "
        f"{len(learned_on)} images, every {TRAIN_EVERY * every}th of train and every "
        f"{VAL_EVERY * every}th of val, with unaries by classifiers that saw neither them nor the "
        "quarter of their drive that they lie in. Everything below is on "
        f"{len(reported_on)} images of test, with {INFERENCE.max_iter} iterations of inference; "
        f"near borders: pixels less than {BAND:g} from one. Intervals are of {N_RESAMPLES} paired "
        "bootstrap resamples of the images; these are a second apart in two drives and neighbors "
        "are alike, so that the true intervals are wider.",
        f"- customary: {HALVED.describe()}; for images of full size {STANDARD.describe()}.\n"
        f"- searched: the best of {len(candidates(train.n_labels))} Potts models on the images "
        "that are learned on.\n"
        "- recalibrated: a linear map of the unary's costs and no pairwise terms; learned, like "
        "all that follows, by the gradient of the relaxed IoU. Its start, a factor on the costs, "
        "and its ridge for one image are chosen by two folds, blocks of time apart.\n"
        "- learned: compatibilities and kernel widths, from the searched model; the unary stays.\n"
        "- joint: compatibilities, widths and recalibration together, from the learned model, "
        "whose time is not counted again, with the ridge of the recalibrated unary.",
        *section("plain", results["plain"], train.class_names, seed),
        *section("balanced", results["balanced"], train.class_names, seed),
        "## Joint learning or balancing",
        markdown_table(["joint on the plain unary minus", *DIFFERENCES], [
            difference_row("balanced unary", plain["joint"], balanced["unary"], seed),
            difference_row("joint on the balanced unary", plain["joint"], balanced["joint"], seed),
        ]),
    ], provenance() | MEAN_IOU | {
        "scikit-learn": sklearn.__version__,
        "whole run": f"{(time.perf_counter() - begin) / 60:.1f} min, {jobs} jobs, seed {seed}"
    })


if __name__ == "__main__":
    main()
