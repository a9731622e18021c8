"""`crfield learn`: parameters from a folder of images with true labels."""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from crfield._core.optimize import check_optimizer
from crfield._core.resources import MAX_JOBS, usable_cores
from crfield._core.validate import InputError, as_count, shown_names
from crfield.cli.data import add_dataset, check_starts, files_read, open_dataset
from crfield.cli.outputs import reserved
from crfield.cli.progress import LearningProgress
from crfield.cli.words import counted, say
from crfield.datasets import FolderDataset, Shrunk
from crfield.datasets.shrunk import fitting_factor
from crfield.dense.context import CONTEXTS, as_contexts
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF
from crfield.learning import (
    FAMILIES,
    FORMS,
    LEARNABLE,
    OPTIMIZERS,
    Learned,
    LearningReport,
    choose_start,
    learn,
    make_loss,
    write_report,
)
from crfield.learning.learner import LOSSES
from crfield.learning.objective import can_choose, check_jobs
from crfield.learning.report import is_report

# Images this large are learned from whole; so many are looked at to know how large they are.
_ENOUGH_PIXELS, _SIZED_IMAGES = 30_000, 8
_MANY_IMAGES = 16
_REPLACE_OR_RESUME = (
    "add --resume to go on with an interrupted run, --overwrite to replace it, or choose another "
    "name with -o"
)

LEARN_EPILOG = """\
examples:
  crfield learn --images photos/ --labels masks/ --probabilities softmax/ -o model.safetensors
  crfield learn data/ --split train -o model.safetensors
  crfield learn data/ --split train --validation val -o model.safetensors --jobs 4
  crfield learn data/ --split train -o model.safetensors --resume     after an interruption

Files in folders are matched by their stems: photos/cat.jpg with masks/cat.png and softmax/cat.npy.
DATASET holds images/, labels/ and unaries/ where no other folders are named, NAME.txt for each
split, and classes.txt with one name per line; a dataset.json there, or --dataset-json, says what
the files do not show. Without --split and --validation about every fifth image is held out,
chosen by its name alone, and crfield evaluate --held-out scores on the same ones.
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
    add("--validation", metavar="SPLIT",
        help="split to stop on and to choose the model by")
    add("--all", action="store_true",
        help="learn from every image; by default about every fifth, of five or more, is held out "
        "to score on, unless there is a --split or --validation")
    add("--start", type=Path, metavar="MODEL",
        help="model to start from (default: a spatial and a bilateral term that suit the data)")
    add("--compatibility", choices=FAMILIES, default="symmetric",
        help="family of the bilateral term's compatibility (default: %(default)s)")
    add("--learn", metavar="NAMES",
        help="what to learn, of unary,compatibility,kernel,weight (default: "
        "unary,compatibility,kernel, without unary for fewer than six images)")
    add("--recalibration", choices=("auto", *FORMS), default="auto",
        help="how the unaries may change before the pairwise terms see them; auto takes what three "
        "folds of the images support (default: %(default)s)")
    add("--context", metavar="NAMES",
        help="what the recalibration called context sees beside the unaries, of "
        f"{','.join(CONTEXTS)} (default: all); names ask for that recalibration")
    add("--loss", choices=tuple(LOSSES), default="iou", help="(default: %(default)s)")
    add("--optimizer", choices=OPTIMIZERS, default="cg", help="(default: %(default)s)")
    add("--max-iter", type=int, default=20, metavar="N",
        help="iterations of the optimizer (default: %(default)s)")
    add("--tol", type=float, default=1e-3, metavar="X",
        help="stop when five iterations lower the loss by less than this share; 0 never stops "
        "early (default: %(default)s)")
    add("--inference-max-iter", type=int, default=5, metavar="N",
        help="iterations of inference (default: %(default)s)")
    add("--algorithm", choices=("concave", "cccp", "parallel"), default="concave",
        help="inference (default: %(default)s)")
    add("--l2", action="append", default=[], metavar="NAME=X",
        help="ridge towards the start for unary, compatibility, off_diagonal or kernel (default: "
        "one for all, chosen by three folds of the images)")
    add("--shrink", type=int, metavar="N",
        help="learn on images of 1/N of the size, in about 1/N^2 of the time; the model is for "
        "the full size (default: what brings the images to some 30,000 pixels)")
    add("--jobs", type=int, metavar="N",
        help="images at a time (default: one for every core, or 1 without joblib)")
    add("--seed", type=int, default=0, help="order of mini-batches (default: 0)")
    add("--resume", action="store_true", help="take up an interrupted run from its checkpoint")
    add("--overwrite", action="store_true",
        help="replace a model that exists, its checkpoint and its report")
    add("--quiet", action="store_true", help="print nothing but errors")
    add("--json", action="store_true", help="print the course of learning as JSON at the end")
    parser.set_defaults(run=run_learn)


def run_learn(arguments: argparse.Namespace) -> int:
    """Check what is read and written, and learn."""
    output: Path = arguments.output
    if not output.name:
        raise InputError(
            f"--output must be the name of a file, got {str(output)!r}; add a name to it."
        )
    checkpoint, page = (
        output.with_name(output.name + end) for end in (".checkpoint", ".report.html")
    )
    if arguments.jobs is None:
        arguments.jobs = default_jobs()
    as_count(arguments.jobs, "--jobs", maximum=MAX_JOBS)
    check_jobs(arguments.jobs)
    check_optimizer(arguments.optimizer)
    dataset, validation, held_out = _open_parts(arguments)
    inputs = itertools.chain(
        [arguments.start] if arguments.start else [],
        files_read(arguments, dataset, validation, held_out),
    )
    resumes = arguments.resume and (output.exists() or checkpoint.exists())
    with reserved(
        (output, checkpoint, page), inputs=inputs, searched=dataset.searched(),
        overwrite=arguments.overwrite or resumes, remedy=_REPLACE_OR_RESUME,
    ):
        if resumes and not arguments.overwrite:
            _check_is_ours(output, "a model", DenseCRF.load)
            _check_is_ours(page, "the report of a model", is_report)
        _tell_parts(arguments, dataset, held_out)
        if arguments.resume and not checkpoint.exists() and not arguments.quiet:
            say(f"crfield: there is no {checkpoint} to resume; starting anew.", sys.stderr)
        return _learn(arguments, dataset, validation, held_out, checkpoint, page)


def _open_parts(
    arguments: argparse.Namespace,
) -> tuple[FolderDataset, FolderDataset | None, FolderDataset | None]:
    """The images to learn from, those to stop on and those that are held out, if there are any."""
    dataset = open_dataset(arguments, arguments.split)
    check_starts(dataset)
    if arguments.validation is not None:
        return dataset, open_dataset(arguments, arguments.validation, dataset.n_labels), None
    if arguments.split is not None or arguments.all:
        return dataset, None, None
    kept, held_out = dataset.hold_out()
    return kept, None, held_out or None


def _tell_parts(
    arguments: argparse.Namespace, dataset: FolderDataset, held_out: FolderDataset | None
) -> None:
    """Say which images are learned from, where the caller has not."""
    if arguments.quiet:
        return
    if dataset.unlabeled:
        say(
            f"crfield: {counted(len(dataset.unlabeled), 'image')} without labels left out: "
            f"{shown_names(dataset.unlabeled)}.", sys.stderr,
        )
    if arguments.all or arguments.split or arguments.validation:
        return
    n, rest = len(dataset), len(held_out or ())
    say("crfield: " + (
        f"learning from {n} of {n + rest} images; {rest} {'is' if rest == 1 else 'are'} held out, "
        "by name, to score on; --all learns from all."
        if rest else f"learning from all {n} images, too few to hold any out."
    ), sys.stderr)


def _check_is_ours(path: Path, what: str, is_one: Callable[[Path], Any]) -> None:
    """Refuse to go on into a file that is not `what` it must be, as `is_one` finds by reading it.
    """
    try:
        if not path.exists() or is_one(path):
            return
    except InputError:
        pass
    raise InputError(
        f"--resume goes on with {what}, but {path} is something else or damaged; add --overwrite "
        "to replace it, or choose another name with -o."
    )


def _learn(
    arguments: argparse.Namespace, dataset: FolderDataset, validation: FolderDataset | None,
    held_out: FolderDataset | None, checkpoint: Path, page: Path,
) -> int:
    """Learn, saving the best model so far after every iteration; then write the report."""
    output, jobs = arguments.output, arguments.jobs
    given = DenseCRF.load(arguments.start) if arguments.start else None
    saved: int | None = None  # the iteration whose model this run has saved last
    try:
        with LearningProgress(arguments.max_iter, len(dataset), quiet=arguments.quiet) as progress:
            shrink = _shrink(arguments, dataset)
            examples = _Remembered(dataset, shrink, progress.visit)
            grid_dim = np.ndim(examples[0].truth)
            loss = make_loss(arguments.loss, examples, dataset.n_labels, void=dataset.void)
            # Cores are for images where there are enough of them, whatever the number of jobs: what
            # is learned must not depend on it, and threads decide how sums are rounded.
            inference = Inference(
                arguments.algorithm, max_iter=arguments.inference_max_iter,
                threads=1 if len(dataset) >= _MANY_IMAGES else None,
            )
            learned_groups = _groups(arguments, examples)
            start = _widened(
                given.rescaled(1 / shrink, grid_dim), arguments, examples[0]
            ) if given else choose_start(
                dataset.n_labels, examples, loss, family=arguments.compatibility,
                forms=_forms(arguments, learned_groups), contexts=_contexts(arguments),
                inference=inference, n_jobs=jobs, seed=arguments.seed, told=progress.choosing,
            )

            def after_iteration(iteration: int, report: LearningReport) -> None:
                nonlocal saved
                if report.best_model is not None and report.best_iteration == iteration:
                    report.best_model.rescaled(shrink, grid_dim).save(output)
                    saved = iteration
                progress.iteration_done(iteration, report)

            learned = learn(
                start, examples, loss=loss,
                learn=learned_groups, optimizer=arguments.optimizer,
                max_iter=arguments.max_iter, tol=arguments.tol, n_jobs=jobs,
                inference=inference, l2=_parse_l2(arguments.l2) or "auto", seed=arguments.seed,
                validation=None if validation is None else _Remembered(validation, shrink),
                checkpoint=checkpoint, resume=arguments.resume, callback=after_iteration,
                told=progress.choosing,
            )
        means = write_report(
            page, _rescaled(learned, shrink, grid_dim), class_names=dataset.class_names,
            title=output.name, grid_dim=grid_dim, settings=_data_settings(arguments, dataset),
            examples=held_out or validation or dataset, void=dataset.void,
            examples_are=(scored := _scored(arguments, held_out)),
        )
    except KeyboardInterrupt:
        say(f"crfield: interrupted; {_what_is_left(output, saved)}", sys.stderr)
        return 130
    except (InputError, OSError):
        if saved is not None:
            say(f"crfield: stopped; {_what_is_left(output, saved)}", sys.stderr)
        raise
    _print_outcome(arguments, learned.report, page, scored, means)
    return 0


def _shrink(arguments: argparse.Namespace, dataset: FolderDataset) -> int:
    """The factor that was asked for, or the one that brings a few of the images to a size at which
    there is enough to learn from.
    """
    if arguments.shrink is None:
        chosen = np.linspace(0, len(dataset) - 1, min(len(dataset), _SIZED_IMAGES)).astype(int)
        shapes = [np.shape(dataset[int(index)].truth) for index in chosen]
        arguments.shrink = fitting_factor(shapes, _ENOUGH_PIXELS)
    return as_count(arguments.shrink, "--shrink")


def _groups(arguments: argparse.Namespace, examples: Sequence[Any]) -> tuple[str, ...]:
    """What is learned: what was asked for, else all that there are enough images for."""
    if arguments.learn is not None:
        return _words(arguments.learn)
    asked = _recalibration(arguments)
    recalibrates = can_choose(examples) if asked == "auto" else asked != "none"
    return (*(("unary",) if recalibrates else ()), "compatibility", "kernel")


def _recalibration(arguments: argparse.Namespace) -> str:
    """The form of recalibration that was asked for."""
    if arguments.context is None or arguments.recalibration == "context":
        return str(arguments.recalibration)
    if arguments.recalibration != "auto":
        raise InputError(
            f"--context is for the recalibration context, got --recalibration "
            f"{arguments.recalibration}; leave one of them out."
        )
    return "context"


def _forms(arguments: argparse.Namespace, groups: Sequence[str]) -> Sequence[str]:
    """The forms of recalibration that may be chosen."""
    asked = _recalibration(arguments)
    if "unary" in groups:
        return FORMS if asked == "auto" else (asked,)
    if asked not in ("auto", "none"):
        raise InputError(
            f"a recalibration needs unary among what is learned, got --learn {arguments.learn}; "
            "add unary to it."
        )
    return ("none",)


def _widened(model: DenseCRF, arguments: argparse.Namespace, example: Any) -> DenseCRF:
    """The model of --start, with the context that its recalibration is to see."""
    asked = _recalibration(arguments)
    if asked in ("auto", "none"):
        return model
    if asked != "context":
        raise InputError(
            f"--recalibration {asked} is for the start that folds choose, got --start "
            f"{arguments.start}; leave one of them out."
        )
    n_channels = np.size(example.image) // np.size(example.truth)
    return model.with_context(_contexts(arguments), np.ndim(example.truth), n_channels)


def _contexts(arguments: argparse.Namespace) -> tuple[str, ...]:
    """What a recalibration in context sees."""
    return CONTEXTS if arguments.context is None else as_contexts(_words(arguments.context))


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


def _print_outcome(
    arguments: argparse.Namespace, report: LearningReport, page: Path, scored: str,
    means: Mapping[str, float],
) -> None:
    """The course of learning as JSON, or what came of it in a few lines; `means` are the mean IoUs
    on the images that are `scored`.
    """
    kept = report.best_iteration
    if arguments.json:
        names = ("losses", "mean_ious", "validation_ious", "gradient_norms", "n_evaluations",
                 "best_iteration", "stopped")
        print(json.dumps({name: getattr(report, name) for name in names}, indent=1))
    elif not arguments.quiet:
        say(
            f"{arguments.output}: loss {report.losses[0]:.4f} -> {report.losses[kept]:.4f}, mean "
            f"IoU {100 * report.mean_ious[0]:.2f} -> {100 * report.mean_ious[kept]:.2f} % on "
            f"{arguments.split or 'the images learned from'}; see {page}"
        )
        compared = ", ".join(f"{name} {100 * share:.2f} %" for name, share in means.items())
        say(f"mean IoU on {scored}: {compared}")
        say(f"stopped: {report.stopped.replace('max_iter', '--max-iter')}")


def _scored(arguments: argparse.Namespace, held_out: FolderDataset | None) -> str:
    """What the images are that the report scores."""
    if held_out is not None:
        return "held-out images"
    split = arguments.validation or arguments.split
    return f"images of {split}" if split else "images learned from"


def _data_settings(arguments: argparse.Namespace, dataset: FolderDataset) -> dict[str, str]:
    """Where a run started and what it learned from, for its report."""
    return {
        "data": str(dataset.root), "split": arguments.split or "all images",
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
