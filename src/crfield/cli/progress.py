"""How far a command is, on standard error."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TextIO

from crfield.cli.words import say
from crfield.learning import LearningReport


def shows_bar(arguments: argparse.Namespace) -> bool:
    """Whether `crfield refine` shows how far an image is: on a terminal that nobody else writes to.
    """
    return sys.stderr.isatty() and not arguments.verbose and arguments.jobs == 1


def told_iteration(image: Path) -> Callable[[int, Any, float], None]:
    """A callback that prints each iteration."""
    def tell(iteration: int, _marginals: Any, free_energy: float) -> None:
        say(f"{image}: iteration {iteration}, free energy {free_energy:.6g}", sys.stderr)

    return tell


def told_block(image: Path) -> Callable[[int, int], None]:
    """A callback that prints each block."""
    def tell(done: int, total: int) -> None:
        say(f"{image}: block {done} of {total}", sys.stderr)

    return tell


class LearningProgress:
    """How far `crfield learn` is: one line that is redrawn on a terminal, one line per iteration
    elsewhere; nothing if quiet.

    An iteration takes several passes over the images, and the time left is what the iterations
    took that visited any: those of a resumed run that come from its checkpoint take no time.
    """

    def __init__(
        self, max_iter: int, n_images: int, *, quiet: bool = False, stream: TextIO | None = None
    ) -> None:
        self._max_iter, self._n_images = max_iter, n_images
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._bar: Any = None
        self._status = ""
        self._visited = False
        self._began = time.monotonic()
        self._durations: list[float] = []

    def __enter__(self) -> LearningProgress:
        if not self._quiet and self._stream.isatty():
            from tqdm import tqdm

            self._bar = tqdm(
                total=self._max_iter, file=self._stream, dynamic_ncols=True, miniters=0,
                bar_format="{n_fmt}/{total_fmt} |{bar:8}| {desc}",
            )
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.set_description_str(self._status)
            self._bar.close()

    def visit(self, index: int) -> None:
        """An image is being looked at; `index` counts from 0."""
        self._visited = True
        if self._bar is not None:
            where = f"image {index + 1}/{self._n_images}"
            self._bar.set_description_str("  ".join(filter(None, [self._status, where])), False)
            self._bar.update(0)  # redraws at most ten times a second

    def choosing(self, what: str, done: int, total: int) -> None:
        """Folds choose something before the first iteration; `done` steps of `total` are over."""
        self._status = f"choosing the {what}"
        if self._bar is not None:
            self._bar.set_description_str(f"{self._status}, step {done + 1} of {total}", False)
            self._bar.refresh()
        elif done == 0 and not self._quiet:
            print(f"{self._status} by folds of the images", file=self._stream, flush=True)
        self._began = time.monotonic()

    def iteration_done(self, iteration: int, report: LearningReport) -> None:
        """The optimizer has ended an iteration; 0 is the evaluation of the start."""
        now = time.monotonic()
        if iteration > 0 and self._visited:
            self._durations.append(now - self._began)
        self._began, self._visited = now, False
        self._status = "  ".join(filter(None, [describe(report), self._time_left(iteration)]))
        if self._bar is not None:
            self._bar.set_description_str(self._status, False)
            self._bar.n = iteration
            self._bar.refresh()
        elif not self._quiet:
            line = f"{iteration}/{self._max_iter}  {self._status}"
            print(line, file=self._stream, flush=True)

    def _time_left(self, iteration: int) -> str:
        if not self._durations or iteration >= self._max_iter:
            return ""
        from tqdm import tqdm

        mean = sum(self._durations) / len(self._durations)
        return f"{tqdm.format_interval(mean * (self._max_iter - iteration))} left"


def describe(report: LearningReport) -> str:
    """The latest iterate in a few words."""
    words = f"loss {report.losses[-1]:.4f}  mean IoU {100 * report.mean_ious[-1]:.2f} %"
    if report.validation_ious:
        words += f"  validation {100 * report.validation_ious[-1]:.2f} %"
    return words
