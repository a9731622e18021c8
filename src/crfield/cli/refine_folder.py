"""`crfield refine` of many images: what is left to do, several at a time, one report."""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import os
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crfield
from crfield._core.locks import hold
from crfield._core.resources import usable_cores
from crfield._core.validate import InputError, printable
from crfield.cli.jobs import Job, Pairing, possible_results, split_name
from crfield.cli.masks import with_unknown
from crfield.cli.outputs import (
    check_folder_apart,
    check_free,
    check_no_input_is_replaced,
    reserved_folder,
)
from crfield.cli.refine_options import EXTRAS, wanted_extras
from crfield.cli.words import counted, in_options, say
from crfield.cli.workers import WorkerLost, Workers
from crfield.io.manifest import History, Manifest, fingerprint

Record = dict[str, Any]
Pair = tuple[str, str]
Claim = Callable[[Sequence[Path]], AbstractContextManager[None]]
RefineFile = Callable[[Job, argparse.Namespace, dict[str, Any], Claim], Record]

# What is to be done with an image: write new files, replace those of an earlier run, or nothing.
_NEW, _AGAIN, _DONE = range(3)
_ANNOUNCED = 64  # images whose files are announced in one line of the manifest
_NOT_PART_OF_A_RESULT = ("model", "threads")


@dataclass(frozen=True)
class Recipe:
    """What it takes to refine any image of the folder, in this process or in another.

    refine_file : does one image.
    arguments, keywords : of the command, and of `crfield.refine`.
    settings : a fingerprint of what results depend on.
    folder : of the results.
    """

    refine_file: RefineFile
    arguments: argparse.Namespace
    keywords: dict[str, Any]
    settings: str
    folder: Path


def refine_folder(
    paired: Pairing, refine_file: RefineFile, arguments: argparse.Namespace,
    keywords: dict[str, Any], describe: Callable[[Record], str],
) -> int:
    """Refine all images that are not done yet; the exit code is 1 if some failed.

    describe : a line about the record of an image.
    """
    folder = paired.folder
    check_folder_apart(folder, paired.searched)
    if arguments.jobs > 1 and "threads" not in keywords:
        keywords = {**keywords, "threads": max(1, usable_cores() // arguments.jobs)}
    shown = describe if arguments.verbose and not arguments.json else None
    try:
        with reserved_folder(folder):
            keywords = with_unknown(paired.pairs, arguments, keywords)
            settings = _fingerprint(arguments, keywords)
            recipe = Recipe(refine_file, arguments, keywords, settings, folder)
            failures = _refine_all(paired, recipe, shown)
    except KeyboardInterrupt:
        again = "the same command" + (" without --overwrite" if arguments.overwrite else "")
        say(f"crfield: interrupted; {again} goes on with what is left.", sys.stderr)
        return 130
    return 1 if failures else 0


def _refine_all(
    paired: Pairing, recipe: Recipe, describe: Callable[[Record], str] | None
) -> list[str]:
    """Refine what is not done yet, report on all of it, and give a sentence for each failure."""
    states = plan(paired, recipe)
    with (
        Manifest(recipe.folder) as manifest,
        _Report(paired, recipe.arguments.json, describe) as report,
    ):
        for image, reason in paired.failures.items():
            report.add({"input": image, "error": f"{image} {reason}"})
        for pair, state in zip(paired.pairs, states, strict=True):
            if state == _DONE:
                report.add(_unchanged(pair, paired))
        for record in _refined(paired, states, recipe, manifest):
            report.add(record)
    return report.failures


def plan(paired: Pairing, recipe: Recipe) -> bytearray:
    """What is to be done with each pair, or a refusal if that would replace what is not ours."""
    folder, arguments = paired.folder, recipe.arguments
    states = bytearray(len(paired.pairs))
    present = set(os.listdir(folder))
    ends = _extra_ends(arguments)
    _check_names_differ(paired, ends)
    model = () if arguments.model is None else (arguments.model,)
    check_no_input_is_replaced(
        (
            folder / name for pair in paired.pairs for name in _names(pair, paired.ending, ends)
            if name in present
        ),
        itertools.chain(itertools.chain.from_iterable(paired.pairs), model),
    )
    foreign: list[str] = []
    outdated: list[str] = []
    unasked = [f"_{name}.{suffix}" for name, suffix in EXTRAS.items()]
    unasked = [end for end in unasked if end not in ends]
    with History(folder) as history:
        for index, pair in enumerate(paired.pairs):
            possible = _names(pair, paired.ending, ends)
            names = [name for name in possible if name in present]
            # A process of a run that was killed may still be about to put its file in place.
            if names or any(map(history.was_begun, possible)):
                states[index] = _AGAIN
            if not names:
                continue
            if arguments.overwrite:
                continue
            if any(history.files_of(name, pair, recipe.settings) for name in names):
                states[index] = _DONE
            else:
                foreign += [name for name in names if not history.owns(name)]
                beside = (split_name(possible[0])[0] + end for end in unasked)
                outdated += [name for name in beside if name in present and history.owns(name)]
    if foreign:
        more = len(foreign) - 1
        others = f" and {counted(more, 'other file')}" if more else ""
        raise InputError(
            f"cannot write {folder / foreign[0]}{others}: "
            f"{'they were' if more else 'it was'} not written by crfield, or "
            f"{'have' if more else 'has'} been changed since; add --overwrite to replace "
            f"{'them' if more else 'it'}, or name another folder with -o."
        )
    if outdated:
        say(
            f"crfield: {counted(len(outdated), 'file')} of an earlier run will lie beside new "
            f"labels, such as {outdated[0]}; add --{_option_of(outdated[0])} to make it anew.",
            sys.stderr,
        )
    return states


def _option_of(name: str) -> str:
    """The option that asks for a file beside labels."""
    return next(
        extra.replace("_", "-") for extra, suffix in EXTRAS.items()
        if name.endswith(f"_{extra}.{suffix}")
    )


def _names(pair: Pair, ending: str, extra_ends: Sequence[str]) -> list[str]:
    """Names of all files that refining a pair may write."""
    results = possible_results(pair, ending)
    stem = split_name(results[0])[0]
    return [*results, *(stem + end for end in extra_ends)]


def _check_names_differ(paired: Pairing, extra_ends: Sequence[str]) -> None:
    """Refuse to write what belongs to one image and the result of another under one name."""
    if not extra_ends:
        return  # images with one stem are failures already
    ending = paired.ending
    results = {name: pair for pair in paired.pairs for name in possible_results(pair, ending)}
    for pair in paired.pairs:
        for name in _names(pair, ending, extra_ends)[-len(extra_ends):]:
            if name in results:
                raise InputError(
                    f"expected results of different names, but {name} would belong to both "
                    f"{pair[0]} and {results[name][0]}; rename one of the images."
                )


def _extra_ends(arguments: argparse.Namespace) -> list[str]:
    return [f"_{name}.{suffix}" for name, suffix in wanted_extras(arguments).items()]


def _fingerprint(arguments: argparse.Namespace, keywords: dict[str, Any]) -> str:
    """Of everything that results depend on but the images: the version, the kind of input, the
    options, the model's content, and which files are written.
    """
    given = vars(arguments)
    settings = {
        "crfield": crfield.__version__,
        "kind": [name for name in ("labels", "scribbles", "probabilities") if name in given],
        "options": {k: v for k, v in keywords.items() if k not in _NOT_PART_OF_A_RESULT},
        "blocks": [given.get("block"), given.get("overlap")],
        "model": None if arguments.model is None else fingerprint(arguments.model)[2],
        "extras": sorted(wanted_extras(arguments)),
    }
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()


def _refined(
    paired: Pairing, states: bytearray, recipe: Recipe, manifest: Manifest
) -> Iterator[Record]:
    """Refine what is left, `--jobs` images at a time; the records come in the images' order."""
    tasks = _announced(paired, states, recipe, manifest)
    jobs = min(recipe.arguments.jobs, len(states) - states.count(_DONE))
    if jobs <= 1:
        yield from map(_refiner(recipe, manifest), tasks)
        return
    with Workers(jobs, refiner, recipe) as workers:
        for task, answer in workers.answers(tasks):
            try:
                yield answer.result()
            except WorkerLost:
                image = str(task[0].image)
                yield {"input": image, "error": (
                    f"expected a process to refine {image}, but it was killed, most likely for "
                    "want of memory; use fewer --jobs, or --block."
                )}


def _announced(
    paired: Pairing, states: bytearray, recipe: Recipe, manifest: Manifest
) -> Iterator[tuple[Job, bool]]:
    """What is left to do, once the manifest says that it was begun: the job, and whether files that
    exist may be replaced.
    """
    ends = _extra_ends(recipe.arguments)
    left = (each for each in zip(paired.pairs, states, strict=True) if each[1] != _DONE)
    while some := list(itertools.islice(left, _ANNOUNCED)):
        manifest.begin(
            name for pair, _ in some for name in _names(pair, paired.ending, ends)
        )
        for pair, state in some:
            yield paired.job(pair), state == _AGAIN


def refiner(recipe: Recipe) -> Callable[[tuple[Job, bool]], Record]:
    """What refines an image in another process than the one that plans."""
    return _refiner(recipe, Manifest(recipe.folder))


def _refiner(recipe: Recipe, manifest: Manifest) -> Callable[[tuple[Job, bool]], Record]:
    def refine_one(task: tuple[Job, bool]) -> Record:
        job, may_replace = task
        try:
            return _refine_and_record(job, may_replace, recipe, manifest)
        except (InputError, OSError, MemoryError) as error:
            sentence = in_options(str(error)) or type(error).__name__
            return {"input": str(job.image), "error": sentence}

    return refine_one


def _refine_and_record(
    job: Job, may_replace: bool, recipe: Recipe, manifest: Manifest
) -> Record:
    """Refine an image; its line is written when its files are in place."""
    inputs = (job.image, job.prediction)
    before = [_status(path) for path in inputs]
    written: list[Path] = []

    @contextmanager
    def claim(outputs: Sequence[Path]) -> Iterator[None]:
        with ExitStack() as held:
            for path in outputs:
                # Runs that write no whole folder hold the file alone.
                held.enter_context(hold(Path(os.path.realpath(path)), path))
                if not may_replace:
                    check_free(path)
                written.append(path)
            yield

    record = recipe.refine_file(job, recipe.arguments, recipe.keywords, claim)
    try:
        known = [(path, fingerprint(path)) for path in inputs]
    except OSError:
        return record
    # Files that have changed while they were read are read again next time.
    if before == [numbers[:2] for _, numbers in known]:
        manifest.finish(written, known, recipe.settings)
    return record


def _status(path: Path) -> tuple[int, int] | None:
    """Size and time of change, None where reading the file will tell what is wrong with it."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_size, status.st_mtime_ns


def _unchanged(pair: Pair, paired: Pairing) -> Record:
    """The record of an image that was refined before."""
    results = [paired.folder / name for name in possible_results(pair, paired.ending)]
    output = next(path for path in results if len(results) == 1 or path.exists())
    return {
        "input": pair[0], "prediction": pair[1], "output": str(output), "unchanged": True
    }


class _Report:
    """Keeps count of what became of the images and sums it up at the end, failures last.

    describe : a line about the record of an image, for a report of each; None for none.
    """

    def __init__(
        self, paired: Pairing, as_json: bool, describe: Callable[[Record], str] | None
    ) -> None:
        self._paired, self._as_json, self._describe = paired, as_json, describe
        self._n_images = self._n_unchanged = self._n_single = 0
        self._n_total = len(paired.pairs) + len(paired.failures)
        self.failures: list[str] = []
        self._began = time.monotonic()
        self._bar: Any = None
        if sys.stderr.isatty():  # elsewhere Ctrl-C could strike within tqdm, which minds
            from tqdm import tqdm

            self._bar = tqdm(unit="image", total=self._n_total)

    def __enter__(self) -> _Report:
        return self

    def __exit__(self, *_: object) -> None:  # whole also after an interruption
        if self._bar is not None:
            self._bar.close()
        if self._as_json:
            print("\n]" if self._n_images else "[]")
        for path in self._paired.lonely_predictions:
            say(f"crfield: warning: there is no image for {path}.", sys.stderr)
        say(self._summary(), sys.stderr if self._as_json else sys.stdout)
        for sentence, times in Counter(self.failures).items():
            of = "" if times == 1 else f" (of {counted(times, 'image')})"
            say(f"crfield: error: {sentence}{of}", sys.stderr)

    def add(self, record: Record) -> None:
        """Take in a record, and print it where each is asked for."""
        if self._as_json:
            begin = ",\n" if self._n_images else "[\n"
            print(begin + textwrap.indent(json.dumps(record, indent=2), "  "), end="")
        self._n_images += 1
        if self._bar is not None:
            self._bar.update()
        if "error" in record:
            self.failures.append(record["error"])
            return
        if "unchanged" in record:
            self._n_unchanged += 1
            return
        self._n_single += "single_label" in record
        if self._describe is not None:
            line = self._describe(record)
            say(line) if self._bar is None else self._bar.write(printable(line))

    def _summary(self) -> str:
        n_failed = len(self.failures)
        n_refined = self._n_images - self._n_unchanged - n_failed
        if self._n_unchanged:
            said = f"{counted(self._n_total, 'image')}: "
            said += f"{n_refined} refined, " if n_refined else ""
            said += f"{self._n_unchanged} done before (--overwrite does them again)"
        else:
            said = f"{n_refined} of {counted(self._n_total, 'image')} refined"
        said += f", {n_failed} failed" if n_failed else ""
        if self._n_single:
            maps = f"{self._n_single} of {counted(n_refined, 'label map')}"
            said += (
                f", {maps} holds a single label and was written as it was" if self._n_single == 1
                else f", {maps} hold a single label and were written as they were"
            )
        folder = self._paired.folder
        where = "" if folder == Path() else f"{folder}: "
        return f"{where}{said}, {time.monotonic() - self._began:.1f} s"
