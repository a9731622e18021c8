"""`crfield learn`: parameters from a folder of images with true labels."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from crfield._core.atomic import check_writable
from crfield._core.optimize import check_optimizer
from crfield._core.threads import usable_cores
from crfield._core.validate import InputError, as_count
from crfield.cli.data import add_dataset, open_dataset
from crfield.cli.progress import LearningProgress
from crfield.datasets import FolderDataset, Shrunk
from crfield.datasets.shrunk import fitting_factor
from crfield.dense.inference import Inference
from crfield.dense.model import DenseCRF
from crfield.learning import (
    FAMILIES,
    LEARNABLE,
    OPTIMIZERS,
    Learned,
    LearningReport,
    learn,
    make_loss,
    starting_model,
    write_report,
)
from crfield.learning.learner import LOSSES
from crfield.learning.objective import check_joblib

# Images this large are learned from whole; so many are looked at to know how large they are.
_ENOUGH_PIXELS, _SIZED_IMAGES = 30_000, 8

LEARN_EPILOG = """\
examples:
  crfield learn data/ --split train -o model.safetensors
  crfield learn data/ --split train --validation val -o model.safetensors --jobs 4
  crfield learn data/ --split train -o model.safetensors --resume     after an interruption

DATASET holds images/, labels/ and unaries/ with one file per name, and NAME.txt for each split; a
dataset.json there, or --dataset-json, says how the unaries are stored.
"""


def add_command(commands: Any) -> None:
    """Add the subcommand `learn`."""
    parser = commands.add_parser(
        "learn", help="learn a model's parameters from images with true labels",
        description="Learn the parameters of a dense CRF, save the model and write a page of "
        "pictures about it, MODEL.report.html.",
        epilog=LEARN_EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_dataset(parser)
    add = parser.add_argument
    add("-o", "--output", type=Path, required=True, metavar="MODEL", help="file of the model")
    add("--validation", metavar="SPLIT", help="split to stop on and to choose the model by")
    add("--start", type=Path, metavar="MODEL",
        help="model to start from (default: a spatial and a bilateral term that suit the data)")
    add("--compatibility", choices=FAMILIES, default="symmetric",
        help="family of the bilateral term's compatibility (default: %(default)s)")
    add("--learn", default="compatibility,kernel", metavar="NAMES",
        help="what to learn; unary,compatibility,kernel also recalibrates the unaries, for which a "
        "few dozen images are too few (default: %(default)s)")
    add("--context", default="", metavar="NAMES",
        help="what else the recalibration may look at, of presence,position,color; needs unary "
        "among what is learned (default: the unaries alone)")
    add("--loss", choices=tuple(LOSSES), default="iou", help="(default: %(default)s)")
    add("--optimizer", choices=OPTIMIZERS, default="cg", help="(default: %(default)s)")
    add("--max-iter", type=int, default=20, metavar="N",
        help="iterations of the optimizer (default: %(default)s)")
    add("--tol", type=float, default=1e-2, metavar="X",
        help="stop when five iterations lower the loss by less than this share; 0 never stops "
        "early (default: %(default)s)")
    add("--inference-max-iter", type=int, default=5, metavar="N",
        help="iterations of inference (default: %(default)s)")
    add("--algorithm", choices=("concave", "cccp", "parallel"), default="concave",
        help="inference (default: %(default)s)")
    add("--l2", action="append", default=[], metavar="NAME=X",
        help="ridge towards the start for unary, compatibility, off_diagonal or kernel")
    add("--shrink", type=int, metavar="N",
        help="learn on images of 1/N of the size, in about 1/N^2 of the time; the model is for "
        "the full size (default: what brings the images to some 30,000 pixels)")
    add("--jobs", type=int, metavar="N",
        help="images at a time (default: one for every core, or 1 without joblib)")
    add("--seed", type=int, default=0, help="order of mini-batches (default: 0)")
    add("--resume", action="store_true", help="take up an interrupted run from its checkpoint")
    add("--quiet", action="store_true", help="print nothing but errors")
    add("--json", action="store_true", help="print the course of learning as JSON at the end")
    parser.set_defaults(run=run_learn)


def run_learn(arguments: argparse.Namespace) -> int:
    """Learn, saving the best model so far after every iteration; then write the report."""
    output: Path = arguments.output
    checkpoint, page = _files_beside(output)
    jobs = default_jobs() if arguments.jobs is None else arguments.jobs
    check_joblib(jobs)
    check_optimizer(arguments.optimizer)
    dataset = open_dataset(arguments, arguments.split)
    validation = open_dataset(arguments, arguments.validation) if arguments.validation else None
    given = DenseCRF.load(arguments.start) if arguments.start else None
    if arguments.resume and not checkpoint.exists() and not arguments.quiet:
        print(f"crfield: there is no {checkpoint} to resume; starting anew.", file=sys.stderr)
    saved: int | None = None  # the iteration whose model this run has saved last
    try:
        with LearningProgress(arguments.max_iter, len(dataset), quiet=arguments.quiet) as progress:
            shrink = _shrink(arguments, dataset)
            examples = _Remembered(dataset, shrink, progress.visit)
            grid_dim = np.ndim(examples[0].truth)
            loss = make_loss(arguments.loss, examples, dataset.n_labels, void=dataset.void)
            inference = Inference(arguments.algorithm, max_iter=arguments.inference_max_iter)
            start = given.rescaled(1 / shrink, grid_dim) if given else starting_model(
                dataset.n_labels, examples, loss, family=arguments.compatibility,
                inference=inference, n_jobs=jobs,
            )

            def after_iteration(iteration: int, report: LearningReport) -> None:
                nonlocal saved
                if report.best_model is not None and report.best_iteration == iteration:
                    report.best_model.rescaled(shrink, grid_dim).save(output)
                    saved = iteration
                progress.iteration_done(iteration, report)

            learned = learn(
                _with_context(start, arguments, examples[0]), examples, loss=loss,
                learn=_words(arguments.learn), optimizer=arguments.optimizer,
                max_iter=arguments.max_iter, tol=arguments.tol, n_jobs=jobs,
                inference=inference, l2=_parse_l2(arguments.l2), seed=arguments.seed,
                validation=None if validation is None else _Remembered(validation, shrink),
                checkpoint=checkpoint, resume=arguments.resume, callback=after_iteration,
            )
        write_report(
            page, _rescaled(learned, shrink, grid_dim), class_names=dataset.class_names,
            title=output.name, grid_dim=grid_dim, settings=_data_settings(arguments),
        )
    except KeyboardInterrupt:
        print(f"crfield: interrupted; {_what_is_left(output, saved)}", file=sys.stderr)
        return 130
    except (InputError, OSError):
        if saved is not None:
            print(f"crfield: stopped; {_what_is_left(output, saved)}", file=sys.stderr)
        raise
    _print_outcome(arguments, learned.report, page)
    return 0


def _files_beside(output: Path) -> tuple[Path, Path]:
    """The checkpoint and the report, once all three files can be written."""
    checkpoint, page = (
        output.with_name(output.name + end) for end in (".checkpoint", ".report.html")
    )
    for path in (output, checkpoint, page):
        check_writable(path)
    return checkpoint, page


def _shrink(arguments: argparse.Namespace, dataset: FolderDataset) -> int:
    """The factor that was asked for, or the one that brings a few of the images to a size at which
    there is enough to learn from.
    """
    if arguments.shrink is None:
        chosen = np.linspace(0, len(dataset) - 1, min(len(dataset), _SIZED_IMAGES)).astype(int)
        shapes = [np.shape(dataset[int(index)].truth) for index in chosen]
        arguments.shrink = fitting_factor(shapes, _ENOUGH_PIXELS)
    return as_count(arguments.shrink, "--shrink")


def _with_context(start: DenseCRF, arguments: argparse.Namespace, example: Any) -> DenseCRF:
    """The model to start from, with a recalibration that looks at what was asked for."""
    contexts = _words(arguments.context)
    if not contexts:
        return start
    if "unary" not in _words(arguments.learn):
        raise InputError(
            f"--context is for the recalibration to look at, got --learn {arguments.learn}; "
            "add unary to it."
        )
    n_channels = np.size(example.image) // np.size(example.truth)
    return start.with_context(contexts, np.ndim(example.truth), n_channels)


def _words(argument: str) -> tuple[str, ...]:
    """The words of a list with commas."""
    return tuple(word.strip() for word in argument.split(",") if word.strip())


def _rescaled(learned: Learned, factor: int, grid_dim: int) -> Learned:
    """What was learned on shrunken images, in the units of the full ones."""
    report = learned.report
    models = [
        None if model is None else model.rescaled(factor, grid_dim)
        for model in (report.best_model, report.start_model)
    ]
    return Learned(
        learned.model.rescaled(factor, grid_dim),
        dataclasses.replace(report, best_model=models[0], start_model=models[1]),
    )


def default_jobs() -> int:
    """Images at a time where the user does not say: one for every core, if joblib is there."""
    return usable_cores() if find_spec("joblib") else 1


def _what_is_left(output: Path, saved: int | None) -> str:
    """What the file of the model holds when learning ends early, and how to go on."""
    if saved is not None:
        state = f"holds the best model so far, of iteration {saved}"
    else:
        state = "is as it was" if output.exists() else "is not written yet"
    return f"{output} {state}; the same command with --resume goes on."


def _print_outcome(arguments: argparse.Namespace, report: LearningReport, page: Path) -> None:
    """The course of learning as JSON, or what came of it in a sentence."""
    kept = report.best_iteration
    if arguments.json:
        names = ("losses", "mean_ious", "validation_ious", "gradient_norms", "n_evaluations",
                 "best_iteration", "stopped")
        print(json.dumps({name: getattr(report, name) for name in names}, indent=1))
    elif not arguments.quiet:
        print(
            f"{arguments.output}: loss {report.losses[0]:.4f} -> {report.losses[kept]:.4f}, mean "
            f"IoU {100 * report.mean_ious[0]:.2f} -> {100 * report.mean_ious[kept]:.2f} % on "
            f"{arguments.split or 'all images'}; see {page}\n"
            f"stopped: {report.stopped.replace('max_iter', '--max-iter')}"
        )


def _data_settings(arguments: argparse.Namespace) -> dict[str, str]:
    """Where a run started and what it learned from, for its report."""
    return {
        "data": str(arguments.dataset), "split": arguments.split or "all images",
        "validation": arguments.validation or "none", "shrunk by": str(arguments.shrink),
        "start": str(arguments.start or "a spatial and a bilateral term"),
    }


class _Remembered(Sequence[Any]):
    """A data set that keeps what it has read: learning visits every image many times.

    shrink : the factor by which the sides of images are divided.
    visit : called with the index of each image that is looked up.
    """

    def __init__(
        self, dataset: FolderDataset, shrink: int, visit: Callable[[int], None] | None = None
    ) -> None:
        self._dataset, self._shrink = dataset, shrink
        self._visit = visit
        self._known: dict[int, Any] = {}

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: Any) -> Any:
        if self._visit is not None:
            self._visit(index)
        if index not in self._known:
            example = self._dataset[index]
            if example.unary is None:
                raise InputError(
                    f"{example.name} has no unary, which learning starts from; add unaries/ or "
                    "describe where they are in dataset.json."
                )
            small = example if self._shrink == 1 else Shrunk([example], self._shrink)[0]
            self._known[index] = small
        return self._known[index]


def _parse_l2(pairs: list[str]) -> dict[str, float]:
    l2 = {}
    for pair in pairs:
        name, _, value = pair.partition("=")
        try:
            if name not in (*LEARNABLE, "off_diagonal"):
                raise ValueError
            l2[name] = float(value)
        except ValueError:
            raise InputError(
                f"--l2 must be NAME=NUMBER with NAME one of {', '.join(LEARNABLE)}, off_diagonal, "
                f"got {pair!r}; for example --l2 unary=0.001."
            ) from None
    return l2
