"""Faults that end a process: killed, terminated and interrupted runs, and half-written files."""

import signal
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from crfield import DenseCRF, Pairwise, Potts, Spatial
from crfield.cli import main
from crfield.io.images import read_labels, write_labels, write_picture
from tests.faults.processes import (
    at_call,
    count_calls,
    kill_after_cpu_time,
    limit_files,
    run_child,
    send,
    some_byte,
    told,
)
from tests.faults.world import Findings, World, check_model, check_no_litter, check_told, fault

Rng = np.random.Generator
KILLED = -signal.SIGKILL


@cache
def calls_of(world: World, what: str) -> int:
    """Calls and returns in a run that is not disturbed."""
    folder = world.root / f"counted {what}"
    folder.mkdir()
    actions: dict[str, Callable[[], Any]] = {
        "learn": lambda: main(world.learn(folder / "model")),
        "refine": lambda: main(world.refine(folder)),
        "jobs": lambda: main(world.refine(folder, "--jobs", "2")),
        "patterns": lambda: world.learn_shapes(folder / "checkpoint"),
        "save": lambda: world.model.save(folder / "model"),
        "labels": lambda: write_labels(folder / "labels.png", np.eye(20, dtype=np.uint8)),
    }
    return count_calls(actions[what])


def point(world: World, what: str, rng: Rng) -> int:
    """A call of such a run, chosen at random, more often near the end of what is soon over: there
    files take their places.
    """
    total = calls_of(world, what)
    late = what in ("save", "labels", "jobs") and rng.random() < 0.6
    return int(rng.integers(max(1, total - 120) if late else 1, total))


@fault("killed while learning", "SIGKILL at a random call within `crfield learn`, up to three "
       "times; then `--resume`", seen="Killed")
def killed_learning(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    model = folder / "model"
    for _ in range(rng.integers(1, 4)):
        kill = at_call(point(world, "learn", rng), send(signal.SIGKILL))
        ended = run_child(lambda: main(world.learn(model, "--resume")), kill)
        check_told(found, ended, (0, KILLED))
        check_model(found, model)
    world.check_learned(found, model)


@fault("killed in compiled code", "a timer of the system ends `crfield learn` after a random "
       "processor time; then `--resume`", seen="Profiling timer expired")
def killed_by_timer(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    model = folder / "model"
    kill = kill_after_cpu_time(float(rng.uniform(0.001, 0.25)))
    ended = run_child(lambda: main(world.learn(model)), kill)
    check_told(found, ended, (0, -signal.SIGPROF))
    world.check_learned(found, model)


def stopped_learning(number: int, world: World, rng: Rng, folder: Path, found: Findings) -> None:
    stop = at_call(point(world, "learn", rng), send(number))
    ended = run_child(lambda: main(world.learn(folder / "model")), stop)
    check_told(found, ended, (0, 130))
    check_no_litter(found, folder)
    world.check_learned(found, folder / "model")


fault("interrupted while learning", "SIGINT (Ctrl-C) at a random call within `crfield learn`; "
      "then `--resume`")(partial(stopped_learning, signal.SIGINT))
fault("terminated while learning", "SIGTERM at a random call within `crfield learn`; then "
      "`--resume`")(partial(stopped_learning, signal.SIGTERM))


@fault("killed while learning patterns", "SIGKILL at a random call within `learn_patterns`; then "
       "the same call", seen="Killed")
def killed_patterns(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    checkpoint = folder / "checkpoint"
    for _ in range(rng.integers(1, 4)):
        kill = at_call(point(world, "patterns", rng), send(signal.SIGKILL))
        ended = run_child(lambda: world.learn_shapes(checkpoint) and 0, kill)
        check_told(found, ended, (0, KILLED))
    if world.learn_shapes(checkpoint) != world.pattern_bytes:
        found.lost.append("resumed learning of patterns ended elsewhere")


@fault("killed while refining a folder", "SIGKILL at a random call within `crfield refine` of "
       "several images; then the same command", seen="Killed")
def killed_refining(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    kill = at_call(point(world, "refine", rng), send(signal.SIGKILL))
    check_told(found, run_child(lambda: main(world.refine(folder)), kill), (0, KILLED))
    world.check_refined_again(found, folder)


@fault("interrupted while refining a folder", "SIGINT (Ctrl-C) at a random call within `crfield "
       "refine` of several images; then the same command")
def interrupted_refining(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    stop = at_call(point(world, "refine", rng), send(signal.SIGINT))
    check_told(found, run_child(lambda: main(world.refine(folder)), stop), (0, 130))
    check_no_litter(found, folder)
    world.check_refined_again(found, folder)


@fault("killed while saving a model", "killed at a random byte or call while `save` replaces an "
       "older model", seen="Killed")
def killed_saving(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    path = folder / "model"
    DenseCRF(2, [Pairwise(Spatial(5), Potts(2))]).save(path)
    known = path.read_bytes(), world.start.read_bytes()
    if rng.random() < 0.5:
        kill = limit_files(some_byte(len(known[1]), rng), kill=True)
    else:
        kill = at_call(point(world, "save", rng), send(signal.SIGKILL))
    ended = run_child(lambda: world.model.save(path), kill)
    check_told(found, ended, (0, KILLED, -signal.SIGXFSZ))
    if not path.exists():
        found.lost.append("the old model is gone")
    check_model(found, path, known)


class LabelFile:
    """A label map or picture of some format that is there, and another to take its place."""

    SUFFIXES = (".png", ".tif", ".tiff", ".nii", ".nii.gz", ".npy", ".jpg")

    def __init__(self, rng: Rng, folder: Path, suffix: str | None = None) -> None:
        suffix = suffix or str(rng.choice(self.SUFFIXES))
        shape = (3, 9, 8) if suffix in (".tiff", ".nii", ".nii.gz") else (20, 30)
        self._old, self._new = rng.integers(0, 9, (2, *shape)).astype(np.uint8)
        self.path = folder / f"labels{suffix}"
        self._write(self._new)
        self._picture, self.size = self.path.read_bytes(), self.path.stat().st_size
        self._write(self._old)
        self._before = self.path.read_bytes()

    def replace(self) -> None:
        self._write(self._new)

    def check(self, found: Findings) -> None:
        """It holds the old or the new labels, all of them."""
        if not self.path.exists():
            found.lost.append("the old labels are gone")
        elif self.path.suffix == ".jpg":
            if self.path.read_bytes() not in (self._before, self._picture):
                found.corrupted.append(f"{self.path.name} is neither the old nor the new picture")
        elif not any(
            np.array_equal(read_labels(self.path).array, known) for known in (self._old, self._new)
        ):
            found.corrupted.append(f"{self.path.name} holds neither the old nor the new labels")

    def _write(self, labels: Any) -> None:
        if self.path.suffix == ".jpg":
            write_picture(self.path, Image.fromarray(labels))
        else:
            write_labels(self.path, labels)


@fault("killed while writing labels", "killed at a random byte or call while a label map (PNG, "
       "TIFF, NIfTI, .npy) or a picture replaces an older one", seen="Killed")
def killed_writing(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    file = LabelFile(rng, folder)
    if rng.random() < 0.6:
        kill = limit_files(some_byte(file.size, rng), kill=True)
    else:
        kill = at_call(point(world, "labels", rng), send(signal.SIGKILL))
    # Where a write is cut short before the limit is hit, there is an error instead.
    ended = run_child(lambda: told(file.replace), kill)
    check_told(found, ended, (0, 2, KILLED, -signal.SIGXFSZ))
    file.check(found)
