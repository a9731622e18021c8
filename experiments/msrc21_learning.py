"""KK13's learning experiments (tables 1 and 2, the full model) on MSRC-21 with a network's unaries.

Everything is learned on learn.txt (187 images) and reported on eval.txt (128 others). Learning sees
the images at half their size, the report is at full size. The one ridge that all rows share is
chosen by three-fold cross-validation inside learn.txt. What was computed is kept in
experiments/cache/msrc21, so that an interrupted run goes on; delete it to start from nothing.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from crfield import Bilateral, DenseCRF, Inference, Pairwise, Potts, Spatial, Symmetric
from crfield.datasets import FolderDataset, Shrunk
from crfield.learning import (
    LearningReport,
    approximate_likelihood,
    generative_kernel,
    grid_search,
    learn,
)
from crfield.learning.objective import Example
from crfield.metrics import mean_iou
from experiments.common import (
    HAS_PYDENSECRF,
    MEAN_IOU,
    REPOSITORY,
    STANDARD,
    Setting,
    label_major,
    markdown_table,
    parse_data_folder,
    provenance,
    report,
    run_pydensecrf,
)
from experiments.rows import HEADER, Row, Rows, difference

N_LABELS = 21
DESCRIPTION = {
    "n_labels": N_LABELS,
    "unaries": {"folder": "unaries", "kind": "log_probabilities", "scale": -0.05},
}
SHRINK, SHRINK_FOR_FOLDS = 2, 4
ITERATIONS_OF_INFERENCE = 5
INFERENCE = Inference(algorithm="concave", max_iter=ITERATIONS_OF_INFERENCE)
RIDGES = (1e-5, 3e-5, 1e-4)
OPTIMIZER, ITERATIONS = "lbfgs", 12  # it gets further in as many evaluations than "cg" does
ITERATIONS_FOR_FOLDS = 8
N_FOLDS = 3
LOSSES = {
    "log_likelihood": "log-likelihood loss", "robust": "robust log-likelihood, eps = 0.1",
    "hamming": "Hamming loss", "iou": "intersection-over-union loss",
}
Examples = Sequence[Example]
Result = tuple[DenseCRF, LearningReport]


def two_terms(
    spatial: float = 3.0, bilateral: tuple[float, float, float] = (60.0, 8.0, 6.0)
) -> DenseCRF:
    """Potts terms at full size: spatial 3 px with a weight, bilateral (pixels, color, weight)."""
    pixels, color, weight = bilateral
    return DenseCRF(N_LABELS, [
        Pairwise(Spatial(3.0), Potts(spatial)), Pairwise(Bilateral(pixels, color), Potts(weight))
    ])


def one_term(pixels: Any, color: Any, weight: float) -> DenseCRF:
    """A single bilateral Potts term."""
    return DenseCRF(N_LABELS, [Pairwise(Bilateral(pixels, color), Potts(weight))])


def one_term_grid() -> Iterator[DenseCRF]:
    """KK11's grid: Potts weight, isotropic width in space, isotropic width in color."""
    for pixels in (20.0, 40.0, 80.0):
        for color in (4.0, 8.0, 15.0):
            yield from (one_term(pixels, color, weight) for weight in (2.0, 4.0, 7.0, 12.0))


def two_term_grid(unary: DenseCRF) -> Iterator[DenseCRF]:
    """The same with a spatial term, from the customary constants to weaker and narrower ones, on
    the unary as given or recalibrated.
    """
    for spatial in (1.0, 3.0):
        for pixels in (30.0, 60.0):
            for color in (5.0, 8.0, 13.0):
                for weight in (3.0, 6.0, 10.0):
                    yield replace(unary, terms=two_terms(spatial, (pixels, color, weight)).terms)


def with_matrix(model: DenseCRF, number: int) -> DenseCRF:
    """The model with the Potts compatibility of one term as a full symmetric matrix."""
    terms = list(model.terms)
    matrix = Symmetric(terms[number].compatibility.matrix(N_LABELS))
    terms[number] = replace(terms[number], compatibility=matrix)
    return replace(model, terms=terms)


def with_five_widths(model: DenseCRF) -> DenseCRF:
    """The model with one width per dimension in its bilateral terms."""
    terms = [
        replace(t, kernel=Bilateral([t.kernel.sigma_xy] * 2, [t.kernel.sigma_color] * 3))
        if isinstance(t.kernel, Bilateral) else t
        for t in model.terms
    ]
    return replace(model, terms=terms)


class Learner:
    """Learning on shrunken images of models that are given and returned at full size."""

    def __init__(self, examples: Examples, shrink: int, ridge: float, jobs: int) -> None:
        shrunk = Shrunk(examples, shrink)
        self.examples = [shrunk[i] for i in range(len(shrunk))]
        self.shrink, self.ridge, self.jobs = shrink, ridge, jobs

    def learn(
        self, start: DenseCRF, groups: Sequence[str], checkpoint: Path | None = None, *,
        loss: str = "iou", max_iter: int = ITERATIONS, prior: DenseCRF | None = None,
    ) -> Result:
        """`crfield.learning.learn` with the settings that all rows share."""
        l2 = dict.fromkeys(("unary", "compatibility", "off_diagonal", "kernel"), self.ridge)
        found = learn(
            start.rescaled(1 / self.shrink), self.examples, learn=groups, loss=loss, l2=l2,
            prior=None if prior is None else prior.rescaled(1 / self.shrink),
            inference=INFERENCE, max_iter=max_iter, n_jobs=self.jobs, optimizer=OPTIMIZER,
            checkpoint=checkpoint, callback=_tell,
        )
        return found.model.rescaled(self.shrink), found.report

    def search(self, models: Iterable[DenseCRF]) -> Result:
        """The best of some models."""
        small = (model.rescaled(1 / self.shrink) for model in models)
        found = grid_search(small, self.examples, inference=INFERENCE, n_jobs=self.jobs)
        return found.model.rescaled(self.shrink), found.report

    def learn_jointly(
        self, start: DenseCRF, checkpoint: Path | None = None, *, max_iter: int = ITERATIONS
    ) -> Result:
        """Everything, from a recalibration that was learned alone; the ridge pulls it back to the
        unary as given.
        """
        matrix = with_matrix(start, 1)
        given = np.eye(*start.recalibration.shape)
        return self.learn(
            matrix, ("unary", "compatibility", "kernel"), checkpoint, max_iter=max_iter,
            prior=replace(matrix, recalibration=given),
        )

    def recalibrate(self, checkpoint: Path | None = None, *, context: bool = False) -> Result:
        """The recalibrated unary without any pairwise term."""
        start = DenseCRF(N_LABELS)
        return self.learn(
            start.with_context() if context else start, ("unary",), checkpoint, max_iter=40
        )


def _tell(iteration: int, course: LearningReport) -> None:
    print(
        f"    {iteration:3d}  loss {course.losses[-1]:.4f}  mean IoU "
        f"{100 * course.mean_ious[-1]:.2f}  evaluations {course.n_evaluations}", flush=True,
    )


def choose_ridge(examples: Examples, cache: Path, jobs: int) -> tuple[float, list[list[str]]]:
    """The ridge whose joint model labels the images of other folds best, and the table of all."""
    rows, scores = [], []
    for ridge in RIDGES:
        record = cache / f"ridge_{ridge:g}.json"
        if not record.exists():
            totals = np.zeros((2, N_LABELS, N_LABELS), np.int64)
            for fold in range(N_FOLDS):
                held = [e for i, e in enumerate(examples) if i % N_FOLDS == fold]
                others = [e for i, e in enumerate(examples) if i % N_FOLDS != fold]
                learner = Learner(others, SHRINK_FOR_FOLDS, ridge, jobs)
                small = Learner(held, SHRINK_FOR_FOLDS, ridge, jobs)
                recalibrated, _ = learner.recalibrate(context=True)
                start = replace(recalibrated, terms=two_terms().terms)
                joint, _ = learner.learn_jointly(start, max_iter=ITERATIONS_FOR_FOLDS)
                for number, model in enumerate((recalibrated, joint)):
                    score = small.search([model])[1]
                    totals[number] += score.confusions[0]
            record.write_text(
                json.dumps([mean_iou(total) for total in totals]), encoding="utf-8"
            )
        scores.append(json.loads(record.read_text(encoding="utf-8")))
        rows.append([f"{ridge:g}", *(f"{100 * score:.2f}" for score in scores[-1])])
        print(rows[-1], flush=True)
    return RIDGES[int(np.argmax([joint for _, joint in scores]))], rows


def table_one(rows: Rows, learner: Learner, kernel: DenseCRF) -> list[Row]:
    """Label compatibility alone, by five objectives."""
    start = with_matrix(kernel, 0)

    def approximate(_: Path) -> Result:
        found = approximate_likelihood(
            start.rescaled(1 / SHRINK), learner.examples, inference=INFERENCE,
            l2=dict.fromkeys(("compatibility", "off_diagonal"), learner.ridge), max_iter=20,
            n_jobs=learner.jobs,
        )
        return found.model.rescaled(SHRINK), found.report

    made = [rows.learned("Approximate gradient", approximate)]
    for loss, words in LOSSES.items():
        learn_mu = partial(learner.learn, start, ("compatibility",), loss=loss)
        made.append(rows.learned(f"Our approach, {words}", learn_mu))
    return made


def table_two(rows: Rows, learner: Learner) -> tuple[list[Row], Row]:
    """Kernel widths; also the grid search by itself, whose kernel table 1 uses."""
    start = with_five_widths(one_term(60.0, 8.0, 6.0))

    def generative(_: Path) -> Result:
        found = generative_kernel(
            start.rescaled(1 / SHRINK), learner.examples, inference=INFERENCE,
            weights=np.geomspace(0.5, 16.0, 8), n_jobs=learner.jobs,
        )
        return found.model.rescaled(SHRINK), found.report

    searched = rows.learned("Potts, grid search", lambda _: learner.search(one_term_grid()))
    made = [
        rows.learned("Potts, generative", generative), searched,
        rows.learned("Potts, our algorithm",
                     lambda path: learner.learn(start, ("compatibility", "kernel"), path)),
        rows.learned("With label compatibility, our algorithm", lambda checkpoint: learner.learn(
            with_matrix(start, 0), ("compatibility", "kernel"), checkpoint)),
    ]
    return made, searched


def full_model(rows: Rows, learner: Learner) -> dict[str, Row]:
    """Everything together, beside what it is made of."""

    def searched(name: str, unary: DenseCRF) -> Row:
        return rows.learned(name, lambda _: learner.search(two_term_grid(unary)))

    made = {"searched": searched("CRF, grid search", DenseCRF(N_LABELS))}
    best = model_of(made["searched"])
    made["learned"] = rows.learned("CRF, learned, unary fixed", lambda checkpoint: learner.learn(
        with_matrix(best, 1), ("compatibility", "kernel"), checkpoint
    ))
    for key, words, context in (("", "", False), (" in context", " in context", True)):
        alone = rows.learned(
            f"Recalibrated unary{words}", partial(learner.recalibrate, context=context)
        )
        both = searched(f"Recalibrated unary{words} + CRF, grid search", model_of(alone))
        joint = rows.learned(
            f"Full model{words}, learned jointly", partial(learner.learn_jointly, model_of(both))
        )
        made |= {
            f"recalibrated{key}": alone, f"recalibrated and searched{key}": both,
            f"joint{key}": joint,
        }
    return made


def model_of(row: Row) -> DenseCRF:
    """The model of a row that has one."""
    assert row.model is not None
    return row.model


def pydensecrf_rows(rows: Rows, searched: Row) -> list[Row]:
    """pydensecrf with its customary parameters and with those that the grid search found."""
    if not HAS_PYDENSECRF or searched.model is None:
        return []
    spatial, bilateral = (term.kernel for term in searched.model.terms)
    weights = [
        term.compatibility.weight for term in searched.model.terms
        if isinstance(term.compatibility, Potts)
    ]
    assert isinstance(spatial, Spatial)
    assert isinstance(bilateral, Bilateral)
    found = Setting(
        "searched", (spatial.sigma, weights[0]),
        (bilateral.sigma_xy, bilateral.sigma_color, weights[1]),
    )

    def infer(setting: Setting, example: Example) -> Any:
        marginals = run_pydensecrf(
            np.ascontiguousarray(example.image), label_major(example.unary), setting,
            ITERATIONS_OF_INFERENCE,
        )
        return marginals.argmax(0).reshape(example.truth.shape)

    return [
        rows.other(f"pydensecrf, {words}", partial(infer, setting))
        for words, setting in (("customary", STANDARD), ("grid search", found))
    ]


def describe(model: DenseCRF | None) -> str:
    """The kernels of a learned model in words."""
    assert model is not None
    words = []
    for term in model.terms:
        if isinstance(term.kernel, Bilateral):
            pixels, color = term.kernel.sigma_xy, term.kernel.sigma_color
            words.append(f"bilateral {np.round(pixels, 1)} px / {np.round(color, 1)}")
        elif isinstance(term.kernel, Spatial):
            words.append(f"spatial {np.round(term.kernel.sigma, 2)} px")
        if isinstance(term.compatibility, Potts):
            words[-1] += f", Potts {term.compatibility.weight:.2f}"
    return "; ".join(words)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="images at a time")
    parser.add_argument("--seed", type=int, default=0, help="of the bootstrap")
    arguments = parse_data_folder(parser, "msrc21")
    begin = time.monotonic()
    folder, cache = arguments.data / "msrc21", REPOSITORY / "experiments" / "cache" / "msrc21"
    learning = FolderDataset(folder, "learn", description=DESCRIPTION)
    examples = [learning[i] for i in range(len(learning))]
    rows = Rows(
        cache, FolderDataset(folder, "eval", description=DESCRIPTION), N_LABELS, INFERENCE,
        arguments.jobs,
    )
    ridge, ridge_table = choose_ridge(examples, cache, arguments.jobs)
    learner = Learner(examples, SHRINK, ridge, arguments.jobs)
    unary = rows.fixed("Unary", DenseCRF(N_LABELS))
    full = full_model(rows, learner)
    second, searched = table_two(rows, learner)
    assert searched.model is not None
    first = table_one(rows, learner, searched.model)
    others = pydensecrf_rows(rows, full["searched"])
    joint = full["joint in context"]
    compared = [unary, *(full[key] for key in (
        "searched", "recalibrated", "recalibrated and searched", "joint",
        "recalibrated in context", "recalibrated and searched in context"))]
    paragraphs = [
        f"{len(examples)} images to learn from, at 1/{SHRINK} of their size; "
        f"{len(rows.test)} others, at full size, for the tables. Ridge {ridge:g} for all rows.",
        "## Ridge",
        f"Three folds of learn.txt at 1/{SHRINK_FOR_FOLDS} of the size, mean IoU % on held images:",
        markdown_table(
            ["ridge", "recalibrated unary in context", "full model in context"], ridge_table
        ),
        "## Table 1: label compatibility",
        f"One bilateral kernel, fixed at the grid search's choice ({describe(searched.model)}).",
        markdown_table(HEADER, [row.cells() for row in [unary, *first]]),
        "## Table 2: kernel widths",
        markdown_table(HEADER, [row.cells() for row in [unary, *second]]),
        f"Learned with label compatibility: {describe(second[-1].model)}.",
        "## Full model",
        "A spatial and a bilateral term; the matrix of compatibilities is the bilateral term's. "
        "The recalibration sees [log p, 1] (KK13's h) or, in context, also the logarithm of each "
        "label's mean probability over the image, the pixel's position and its color "
        "(`DenseCRF.with_context`).",
        markdown_table(HEADER, [row.cells() for row in [unary, *others, *full.values()]]),
        "\n".join([
            *(f"- {difference(joint, row, arguments.seed)}" for row in compared),
            f"- {difference(full['joint'], full['recalibrated'], arguments.seed)}",
            f"- {difference(full['learned'], full['searched'], arguments.seed)}",
        ]),
        f"Learned jointly in context: {describe(joint.model)}.",
    ]
    facts = {"seed": str(arguments.seed), "jobs": str(arguments.jobs), **provenance(), **MEAN_IOU}
    facts["this run"] = f"{(time.monotonic() - begin) / 60:.0f} minutes"
    report("Learning on MSRC-21 (KK13 section 5.2)", paragraphs, facts)


if __name__ == "__main__":
    main()
