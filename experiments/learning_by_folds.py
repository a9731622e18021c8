"""`crfield learn` without options, cross-validated: each image is scored once, at full size, by a
model that never saw it.

There are five folds of each set. Everything is decided on the images learned from: the form of the
recalibration, the pairwise terms, the ridge. What was computed is kept in experiments/cache, one
fold at a time; delete it to start from nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from crfield import DenseCRF, Inference
from crfield.datasets import FolderDataset, Shrunk
from crfield.datasets.shrunk import fitting_factor
from crfield.learning import LearningReport, choose_start, learn, make_loss
from crfield.learning.objective import Example, count_labels, settle, visit
from crfield.metrics import mean_iou
from experiments import hippocampus, msrc21_learning, refine_defaults
from experiments.common import (
    MEAN_IOU,
    REPOSITORY,
    markdown_table,
    names_in,
    parse_data_folder,
    provenance,
    report,
)
from experiments.rows import Confusions, Row, difference

N_FOLDS = 5
ENOUGH_PIXELS = 30_000  # as for the command
INFERENCE = Inference("concave", max_iter=5, threads=1)
ROWS = ("input", "recalibrated", "recalibrated, then searched", "learned jointly")
Examples = Sequence[Example]


def msrc21(folder: Path) -> tuple[Examples, int]:
    """All images that have unaries: val and test."""
    parts = [
        FolderDataset(folder / "msrc21", split, description=msrc21_learning.DESCRIPTION)
        for split in ("learn", "eval")
    ]
    return [example for part in parts for example in part], msrc21_learning.N_LABELS


def voc(folder: Path) -> tuple[Examples, int]:
    """A network's labels, without probabilities."""
    dataset = FolderDataset(folder / "voc_sbd100", "list", description=refine_defaults.VOC)
    return dataset, dataset.n_labels


def volumes(folder: Path) -> tuple[Examples, int]:
    """All volumes that the voxel classifier, trained on half of train.txt, has not seen."""
    root = folder / "hippocampus3d"
    train, test = (names_in(root / f"{split}.txt") for split in ("train", "test"))
    cache = REPOSITORY / "experiments" / "cache" / "learning_by_folds-hippocampus"
    cache.mkdir(parents=True, exist_ok=True)
    with np.load(root / "hippocampus.npz") as stored:
        known = hippocampus.classify(stored, train[::2], train[1::2] + test, 0, cache)
    return list(known.values()), hippocampus.N_LABELS


SETS: dict[str, tuple[str, Callable[[Path], tuple[Examples, int]]]] = {
    "msrc21": ("MSRC-21, a network's probabilities", msrc21),
    "voc": ("VOC, a network's labels", voc),
    "hippocampus": ("Hippocampus in 3-D, boosted trees", volumes),
}


def learn_fold(
    examples: Examples, n_labels: int, checkpoint: Path, jobs: int
) -> tuple[dict[str, DenseCRF], dict[str, Any]]:
    """What the command learns from these images, with what it is made of; and facts of the run."""
    begin = time.monotonic()
    grid_dim = np.ndim(examples[0].truth)
    factor = fitting_factor([np.shape(e.truth) for e in examples], ENOUGH_PIXELS)
    shrunk = Shrunk(examples, factor)
    small = [shrunk[index] for index in range(len(shrunk))]
    loss = make_loss("iou", small, n_labels)
    start = choose_start(n_labels, small, loss, inference=INFERENCE, n_jobs=jobs)
    learned = learn(
        start, small, loss=loss, learn=("unary", "compatibility", "kernel"), inference=INFERENCE,
        tol=1e-3, n_jobs=jobs, checkpoint=checkpoint, callback=_tell,
    )
    began = start.learned_from(range(len(small)))
    models = {
        "input": DenseCRF(n_labels), "recalibrated": replace(began, terms=()),
        "recalibrated, then searched": began, "learned jointly": learned.model,
    }
    facts = {
        "choices": [
            {"options": list(c.options), "scores": list(c.scores), "chosen": c.options[c.chosen]}
            for c in learned.report.choices
        ],
        "evaluations": learned.report.n_evaluations, "stopped": learned.report.stopped,
        "minutes": (time.monotonic() - begin) / 60,
    }
    return {name: model.rescaled(factor, grid_dim) for name, model in models.items()}, facts


def _tell(iteration: int, course: LearningReport) -> None:
    print(f"    {iteration:3d}  loss {course.losses[-1]:.4f}", flush=True)


def cross_validate(
    examples: Examples, n_labels: int, cache: Path, jobs: int, seed: int
) -> tuple[dict[str, Confusions], list[dict[str, Any]]]:
    """The counts of each image by each row, and the facts of each fold."""
    cache.mkdir(parents=True, exist_ok=True)
    folds = np.random.default_rng(seed).permutation(len(examples)) % N_FOLDS
    counts = {name: np.zeros((len(examples), n_labels, n_labels), np.int64) for name in ROWS}
    facts = []
    for fold in range(N_FOLDS):
        file = cache / f"fold-{fold}.npz"
        outside = np.flatnonzero(folds == fold)
        if not file.exists():
            inside = [examples[int(index)] for index in np.flatnonzero(folds != fold)]
            models, found = learn_fold(
                inside, n_labels, cache / f"fold-{fold}.checkpoint", jobs
            )
            void = make_loss("iou", inside[:1], n_labels).void
            scored = {
                name: np.stack(visit(
                    count_labels, model, examples, outside, (settle(INFERENCE, model), void), jobs
                )) for name, model in models.items()
            }
            (cache / f"fold-{fold}.json").write_text(json.dumps(found), encoding="utf-8")
            np.savez(file, allow_pickle=False, **scored)
        with np.load(file) as stored:
            for name in ROWS:
                counts[name][outside] = stored[name]
        facts.append(json.loads((cache / f"fold-{fold}.json").read_text(encoding="utf-8")))
        print(fold, facts[-1], {
            name: round(100 * mean_iou(counts[name][outside].sum(0)), 2) for name in ROWS
        }, flush=True)
    return counts, facts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="images at a time")
    parser.add_argument("--seed", type=int, default=0, help="of the folds and the bootstrap")
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    arguments = parse_data_folder(parser)
    paragraphs = [
        f"{N_FOLDS} folds: every image is scored once, at full size, by a model that was learned "
        "without it. Mean IoU in percent over all images of a set."
    ]
    for name in arguments.sets:
        title, load = SETS[name]
        examples, n_labels = load(arguments.data)
        cache = REPOSITORY / "experiments" / "cache" / f"learning_by_folds-{name}"
        counts, facts = cross_validate(
            examples, n_labels, cache, arguments.jobs, arguments.seed
        )
        rows = [Row(row, None, 0, counts[row]) for row in ROWS]
        *others, joint = rows
        minutes = [fact["minutes"] for fact in facts]
        paragraphs += [
            f"## {title}", f"{len(examples)} images, {n_labels} labels.",
            markdown_table(
                ["", "mean IoU %", "pixels %", "classes %"], [row.cells()[:-1] for row in rows]
            ),
            "\n".join(f"- {difference(joint, row, arguments.seed)}" for row in others),
            "Chosen in the folds: " + "; ".join(
                " and ".join(choice["chosen"] for choice in fact["choices"]) for fact in facts
            )
            + f". {min(minutes):.1f} to {max(minutes):.1f} minutes for each.",
        ]
    facts_of_run = {"seed": str(arguments.seed), "jobs": str(arguments.jobs)}
    report("Learning without options", paragraphs, {**facts_of_run, **provenance(), **MEAN_IOU})


if __name__ == "__main__":
    main()
