"""A dense CRF in three dimensions, learned on MR volumes of the hippocampus.

A voxel classifier is trained on every other volume of train.txt. The CRF is searched and learned on
the others, which the classifier has not seen, and every method is reported on test.txt. The
classifier's output and the course of learning are kept in experiments/cache; delete it to start
from nothing.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage
from sklearn.ensemble import HistGradientBoostingClassifier

from crfield import (
    Bilateral,
    DenseCRF,
    Inference,
    Pairwise,
    Spatial,
    Symmetric,
    unary_from_probabilities,
)
from crfield.learning import (
    LearningReport,
    SearchReport,
    grid_search,
    learn,
    potts_grid,
)
from crfield.metrics import (
    confusion_matrix,
    iou_per_label,
    mean_iou,
    paired_bootstrap,
    pixel_accuracy,
)
from experiments.common import (
    MEAN_IOU,
    REPOSITORY,
    STANDARD,
    Labels,
    markdown_table,
    names_in,
    parse_data_folder,
    provenance,
    report,
)

LABELS = ("background", "anterior", "posterior")
N_LABELS = len(LABELS)
PAIRS = ((0, 1), (0, 2), (1, 2))
SCALES = (1.0, 2.0, 4.0)  # of the classifier's features, in voxels
SHARE_OF_VOXELS = 0.2  # that the classifier is trained on
INFERENCE = Inference(algorithm="concave", max_iter=5)
LEARNING_ITERATIONS = 10
N_RESAMPLES = 2000

Confusions = NDArray[np.int64]


@dataclass(frozen=True)
class Volume:
    """A volume (Z, H, W) with its true labels and the classifier's costs (Z, H, W, L)."""

    image: NDArray[np.uint8]
    truth: Labels
    unary: NDArray[np.float32]


def voxel_features(image: NDArray[np.uint8]) -> NDArray[np.float32]:
    """What the classifier sees of each voxel, (N, F): intensity and gradients at several scales,
    and the position relative to the volume's center, in voxels and in shares of its size.
    """
    values = (image - image.mean()) / image.std()
    planes = [values]
    for scale in SCALES:
        smooth = ndimage.gaussian_filter(values, scale)
        slopes = np.gradient(smooth)
        planes += [smooth, *slopes, np.sqrt(np.square(slopes).sum(axis=0))]
    for axis, length in enumerate(image.shape):
        offset = np.arange(length) - (length - 1) / 2
        along = np.expand_dims(offset, [other for other in range(image.ndim) if other != axis])
        planes += [np.broadcast_to(along * factor, image.shape) for factor in (1, 1 / length)]
    return np.stack(planes, axis=-1, dtype=np.float32).reshape(image.size, -1)


def train_classifier(volumes: Any, names: Sequence[str], seed: int) -> Any:
    """Boosted trees on a share of the voxels, drawn evenly so that probabilities are calibrated."""
    rng = np.random.default_rng(seed)
    features, labels = [], []
    for name in names:
        truth = volumes[f"{name}_label"].reshape(-1)
        chosen = rng.random(len(truth)) < SHARE_OF_VOXELS
        features.append(voxel_features(volumes[f"{name}_image"])[chosen])
        labels.append(truth[chosen])
    classifier = HistGradientBoostingClassifier(early_stopping=False, random_state=seed)
    return classifier.fit(np.concatenate(features), np.concatenate(labels))


def classify(
    volumes: Any, trained_on: Sequence[str], others: Sequence[str], seed: int, cache: Path
) -> dict[str, Volume]:
    """`others` with the costs of a classifier trained on `trained_on`; its output is kept."""
    path = cache / "probabilities.npz"
    if not path.exists():
        classifier = train_classifier(volumes, trained_on, seed)
        probabilities = {
            name: classifier.predict_proba(voxel_features(volumes[f"{name}_image"]))
            for name in others
        }
        np.savez(path, **{name: p.astype(np.float32) for name, p in probabilities.items()})
    classified = {}
    with np.load(path) as found:
        for name in others:
            image, truth = volumes[f"{name}_image"], volumes[f"{name}_label"]
            unary = unary_from_probabilities(found[name].reshape(*image.shape, N_LABELS))
            classified[name] = Volume(image, truth, unary)
    return classified


def candidates() -> list[DenseCRF]:
    """Potts models with widths that fit volumes of about 36 x 50 x 36 voxels."""
    return list(potts_grid(
        N_LABELS, spatial=(1.0, 2.0), bilateral=((2.0, 8.0), (2.0, 20.0), (4.0, 20.0)),
        weights=(0.5, 2.0, 8.0),
    ))


def search(models: Sequence[DenseCRF], volumes: Sequence[Volume], jobs: int) -> DenseCRF:
    """The model with the highest mean IoU."""

    def progress(number: int, so_far: SearchReport) -> None:
        if so_far.best_iteration == number:
            note(f"searched {number + 1}/{len(models)}", so_far.scores[number])

    return grid_search(
        models, volumes, inference=INFERENCE, n_jobs=jobs, callback=progress
    ).model


def loosened(model: DenseCRF) -> DenseCRF:
    """The same model with a width for each axis and a free compatibility for each pair of labels,
    which is what learning then has to set.
    """
    spatial, bilateral = (term.kernel for term in model.terms)
    assert isinstance(spatial, Spatial)
    assert isinstance(bilateral, Bilateral)
    free = [Symmetric(term.compatibility.matrix(N_LABELS)) for term in model.terms]
    return DenseCRF(N_LABELS, [
        Pairwise(Spatial([spatial.sigma] * 3), free[0]),
        Pairwise(Bilateral([bilateral.sigma_xy] * 3, bilateral.sigma_color), free[1]),
    ])


def learned(
    start: DenseCRF, volumes: Sequence[Volume], groups: Sequence[str], jobs: int, checkpoint: Path
) -> DenseCRF:
    """The model after learning the groups; an interrupted run is taken up from its checkpoint."""

    def progress(iteration: int, so_far: LearningReport) -> None:
        note(f"{checkpoint.stem} {iteration}/{LEARNING_ITERATIONS}", so_far.mean_ious[-1])

    return learn(
        start, volumes, loss="iou", learn=groups, optimizer="lbfgs", inference=INFERENCE, l2={},
        max_iter=LEARNING_ITERATIONS, n_jobs=jobs, checkpoint=checkpoint, callback=progress,
    ).model


def note(what: str, score: float) -> None:
    """One line on the way."""
    print(f"{what}: mean IoU {100 * score:.2f}", file=sys.stderr, flush=True)


def confusions(model: DenseCRF, volumes: Sequence[Volume], jobs: int) -> Confusions:
    """One confusion matrix per volume, (N, L, L)."""

    def one(volume: Volume) -> NDArray[np.int64]:
        result = model.infer(
            volume.image, volume.unary, algorithm=INFERENCE.algorithm, max_iter=INFERENCE.max_iter,
            tol=0.0, threads=1,
        )
        return confusion_matrix(volume.truth, result.labels, N_LABELS)

    with ThreadPoolExecutor(jobs) as pool:
        return np.array(list(pool.map(one, volumes)))


def score_row(name: str, learned_from: Confusions, found: Confusions) -> list[str]:
    """The scores of one method in percent; the Dice coefficient is 2 IoU / (1 + IoU)."""
    total = found.sum(axis=0)
    iou = iou_per_label(total)
    dice = 2 * iou[1:] / (1 + iou[1:])
    values = (mean_iou(learned_from.sum(axis=0)), mean_iou(total), *dice, pixel_accuracy(total))
    sizes = (relative_size(learned_from), relative_size(found))
    return [name, *(f"{100 * x:.2f}" for x in values), *(f"{100 * x:.1f}" for x in sizes)]


def relative_size(found: Confusions) -> float:
    """Voxels taken for hippocampus over voxels that are."""
    total = found.sum(axis=0)
    return float(total[:, 1:].sum() / total[1:].sum())


def difference_row(name: str, found: Confusions, other: Confusions, seed: int) -> list[str]:
    """By how much the mean IoU of `found` exceeds that of `other`, in points."""
    values = paired_bootstrap(found, other, n_resamples=N_RESAMPLES, seed=seed)
    difference, low, high = (100 * value for value in values)
    return [name, f"{difference:+.2f}", f"{low:+.2f} to {high:+.2f}"]


def describe(model: DenseCRF) -> str:
    """One line per term: widths along the axes and mu(a, b) = own(a) + own(b) + pair(a, b).

    pair(a, a) = 0, and own is a cost of each label by itself, told relative to the first.
    """

    def numbers(values: Any) -> str:
        return " x ".join(f"{value:.3g}" for value in np.atleast_1d(values))

    lines = []
    for term in model.terms:
        kernel = term.kernel
        if isinstance(kernel, Bilateral):
            words = f"bilateral {numbers(kernel.sigma_xy)} voxels / {numbers(kernel.sigma_color)}"
        else:
            assert isinstance(kernel, Spatial)
            words = f"spatial {numbers(kernel.sigma)} voxels"
        mu = term.weight * term.compatibility.matrix(N_LABELS)
        own = 0.5 * np.diagonal(mu)
        pairs = mu - own[:, None] - own
        lines.append("; ".join([
            f"  - {words}", f"own {', '.join(f'{value:.2f}' for value in own - own[0])}",
            *(f"{LABELS[a]}/{LABELS[b]} {pairs[a, b]:.2f}" for a, b in PAIRS),
        ]))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, help="volumes at a time (default: 2)")
    parser.add_argument("--seed", type=int, default=0, help="(default: 0)")
    arguments = parse_data_folder(parser, "hippocampus3d")
    folder, jobs, seed = arguments.data / "hippocampus3d", arguments.jobs, arguments.seed
    train, test = (names_in(folder / f"{split}.txt") for split in ("train", "test"))
    for_classifier, for_field = train[::2], train[1::2]
    # What is kept depends on this script, the volumes' names and the seed.
    key = hashlib.sha256(repr([Path(__file__).read_text(), train, test, seed]).encode())
    cache = REPOSITORY / "experiments" / "cache" / f"hippocampus-{key.hexdigest()[:12]}"
    cache.mkdir(parents=True, exist_ok=True)
    with np.load(folder / "hippocampus.npz") as volumes:
        known = classify(volumes, for_classifier, for_field + test, seed, cache)
    seen, unseen = ([known[name] for name in names] for names in (for_field, test))

    tried = candidates()
    searched = search(tried, seen, jobs)

    def learn_from(start: DenseCRF, *groups: str) -> DenseCRF:
        checkpoint = cache / f"{len(start.terms)}-terms-{'-'.join(groups)}.checkpoint"
        return learned(start, seen, groups, jobs, checkpoint)

    models = {
        "classifier alone": DenseCRF(N_LABELS),
        "recalibrated": learn_from(DenseCRF(N_LABELS), "unary"),
        "customary": STANDARD.model(N_LABELS),
        "searched": searched,
        "learned": learn_from(loosened(searched), "compatibility", "kernel"),
        "learned jointly": learn_from(loosened(searched), "unary", "compatibility", "kernel"),
    }
    found = {name: confusions(model, unseen, jobs) for name, model in models.items()}
    rows = [
        score_row(name, confusions(model, seen, jobs), found[name])
        for name, model in models.items()
    ]
    differences = [
        difference_row(f"{name} - {other}", found[name], found[other], seed)
        for name in ("learned", "learned jointly")
        for other in ("classifier alone", "recalibrated", "customary", "searched")
    ]
    report("The hippocampus in three dimensions", [
        f"The classifier was trained on {len(for_classifier)} volumes, the CRF searched and "
        f"learned on {len(for_field)} others. Scores in percent on the {len(test)} volumes of "
        f"test.txt and, where it says so, on those learned from; {INFERENCE.max_iter} iterations "
        "of inference. Size is the number of voxels taken for hippocampus over the true one.",
        markdown_table([
            "method", "mean IoU (learned from)", "mean IoU", *(f"Dice {x}" for x in LABELS[1:]),
            "accuracy", "size (learned from)", "size",
        ], rows),
        "- recalibrated: the classifier's costs after a linear map learned for the relaxed IoU; no "
        "pairwise terms, so that what the field adds can be told apart.\n"
        f"- customary: {STANDARD.describe()}. These are customs of photographs in two dimensions; "
        "the hippocampus, about 9 voxels thick, drowns in kernels of this width.\n"
        f"- searched: the best of {len(tried)} Potts models with narrower kernels.\n"
        "- learned: compatibilities and widths, from the searched model, by the gradient of the "
        "relaxed IoU.\n"
        "- learned jointly: the same together with a recalibration of the classifier's output.\n\n"
        "A learned bias towards a label, by recalibration or as its own cost in a compatibility, "
        "makes up for a classifier that finds too little or too much of it on the volumes learned "
        "from; it helps as far as the classifier errs in the same direction elsewhere.",
        f"Differences in mean IoU, in points, with 95 % intervals of {N_RESAMPLES} paired "
        "bootstrap resamples of the volumes:",
        markdown_table(["difference", "points", "95 % interval"], differences),
        "Widths along the three axes; a label's own cost relative to background's, wherever it is "
        "(anterior and posterior below 0 favor the hippocampus); what a pair of labels costs:",
        "\n".join(
            f"- {name}\n{describe(models[name])}"
            for name in ("searched", "learned", "learned jointly")
        ),
    ], provenance() | MEAN_IOU)


if __name__ == "__main__":
    main()
