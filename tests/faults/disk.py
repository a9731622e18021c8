"""Faults of disks and folders: full, read-only, removed, in the way, too many open files."""

import contextlib
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from crfield import DenseCRF, Pairwise, Potts, Spatial
from crfield.cli import main
from crfield.io.manifest import MANIFEST
from tests.faults.kills import LabelFile, point
from tests.faults.processes import (
    at_call,
    become_nobody,
    limit,
    limit_files,
    run_child,
    small_disk,
    some_byte,
    told,
)
from tests.faults.world import (
    CHECKPOINT,
    Findings,
    World,
    check_model,
    check_no_litter,
    check_told,
    fault,
    fresh,
)

Rng = np.random.Generator
Prepare = Callable[[], Any]
PAGE = resource.getpagesize()


@contextlib.contextmanager
def little_room(
    world: World, folder: Path, rng: Rng, pages: int, most: int
) -> Iterator[tuple[Path, Prepare]]:
    """A folder on a disk with up to so many pages, or else a limit on the size of files."""
    if world.may_mount and rng.random() < 0.6:
        mounted = fresh(folder / "disk")
        with small_disk(mounted, PAGE * int(rng.integers(1, pages))):
            yield mounted, lambda: None
        return
    yield folder, limit_files(some_byte(most, rng), kill=False)


@fault("disk full while learning", "a file system of a few pages, or a limit on the size of files, "
       "while model, checkpoint and report are written; then `--resume` with room")
def full_while_learning(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    kept = fresh(folder / "kept")
    with little_room(world, folder, rng, 12, 28_000) as (where, prepare):
        ended = run_child(lambda: main(world.learn(where / "model")), prepare)
        check_told(found, ended, (0, 2))
        check_no_litter(found, where)
        for path in where.glob("model*"):
            shutil.copy(path, kept)
    world.check_learned(found, kept / "model")


@fault("disk full while refining", "the same while labels, overlays and marginals are written; "
       "then the same command with room")
def full_while_refining(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    kept = fresh(folder / "kept")
    with little_room(world, folder, rng, 12, 8_768) as (where, prepare):
        ended = run_child(lambda: main(world.refine(where)), prepare)
        check_told(found, ended, (0, 1, 2))
        world.check_refined(found, where, all_there=ended.code == 0)
        check_no_litter(found, where)
        for path in (*where.glob("scene-*"), *where.glob(MANIFEST)):
            shutil.copy(path, kept)
    world.check_refined_again(found, kept)


@fault("disk full while saving a model", "the same while `save` replaces an older model")
def full_while_saving(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    small = DenseCRF(2, [Pairwise(Spatial(5), Potts(2))])
    large = world.start.read_bytes()
    with little_room(world, folder, rng, 2, len(large)) as (where, prepare):
        path = where / "model"
        small.save(path)
        old = path.read_bytes()
        with contextlib.suppress(OSError):  # until there is no room for another
            (where / "filler").write_bytes(b"x" * 100 * PAGE)
        ended = run_child(lambda: told(lambda: world.model.save(path)), prepare)
        check_told(found, ended, (0, 2))
        if not path.exists():
            found.lost.append("the old model is gone")
        check_model(found, path, (old, large))
        check_no_litter(found, where)


@fault("disk full while writing labels", "the same while a label map or a picture of any format "
       "replaces an older one")
def full_while_writing(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    file = LabelFile(rng, folder)
    room = limit_files(some_byte(file.size, rng), kill=False)
    check_told(found, run_child(lambda: told(file.replace), room), (2,))
    file.check(found)
    check_no_litter(found, folder)


@fault("read-only folder", "learning and refining, as a user who may not write there, onto "
       "files that exist")
def read_only(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    (folder / "model").write_bytes(world.learned)
    (folder / f"model{CHECKPOINT}").write_bytes(world.checkpoint)
    for name, content in world.refined.items():
        (folder / name).write_bytes(content)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    for path in (*folder.iterdir(), folder):
        path.chmod(0o555 if path == folder else 0o444)
    more = ("--resume",) if rng.random() < 0.5 else ("--overwrite",)
    action = (
        (lambda: main(world.learn(folder / "model", *more))) if rng.random() < 0.5
        else (lambda: main(world.refine(folder, "--overwrite")))
    )
    check_told(found, run_child(action, become_nobody), (1, 2))
    folder.chmod(0o755)
    if {path.name: path.read_bytes() for path in folder.iterdir()} != before:
        found.lost.append("files in a read-only folder changed")


@fault("folder removed during the run", "the folder of the results is removed at a random call "
       "within `crfield learn` or `refine`; then the same command anew")
def folder_removed(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    where = fresh(folder / "gone")
    neighbor = folder / "neighbor"
    neighbor.write_text("untouched")
    learning = rng.random() < 0.5
    remove = at_call(
        point(world, "learn" if learning else "refine", rng), lambda: shutil.rmtree(where)
    )
    command = world.learn(where / "model") if learning else world.refine(where)
    check_told(found, run_child(lambda: main(command), remove), (0, 1, 2))
    if neighbor.read_text() != "untouched":
        found.lost.append("a file beside the folder changed")
    fresh(where)
    check_told(found, run_child(lambda: main(command)), (0,))
    if learning:
        world.check_learned(found, where / "model")
    else:
        world.check_refined(found, where, all_there=True)


@fault("a folder in the place of a result", "a folder has the name of the model, the checkpoint, "
       "the report or a label map, from the start or from a random call on")
def folder_in_the_way(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    learning = rng.random() < 0.5
    of_learning = ["model", f"model{CHECKPOINT}", "model.report.html"]
    names = of_learning if learning else list(world.refined)
    taken = folder / str(rng.choice(names))

    def take() -> None:
        taken.unlink(missing_ok=True)
        taken.mkdir()
        (taken / "inside").write_text("untouched")

    command = world.learn(folder / "model") if learning else world.refine(folder)
    what = "learn" if learning else "refine"
    prepare = take if rng.random() < 0.4 else at_call(point(world, what, rng), take)
    check_told(found, run_child(lambda: main(command), prepare), (0, 1, 2))
    if taken.is_dir():
        if [path.read_text() for path in taken.iterdir()] != ["untouched"]:
            found.lost.append("the folder in the way changed")
        shutil.rmtree(taken)
    check_no_litter(found, folder)
    if learning:
        world.check_learned(found, folder / "model")
    else:
        world.check_refined_again(found, folder)


@fault("too many open files", "a limit on open files at or just above those that are open, while "
       "learning or refining")
def too_many_files(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    learning = rng.random() < 0.5
    more = int(rng.integers(0, 6))

    def few() -> None:
        taken = {int(name) for name in os.listdir("/proc/self/fd")}
        free = [number for number in range(1000) if number not in taken]
        limit(resource.RLIMIT_NOFILE, free[more])

    command = world.learn(folder / "model") if learning else world.refine(folder)
    check_told(found, run_child(lambda: main(command), few), (0, 1, 2))
    check_no_litter(found, folder)
    if learning:
        world.check_learned(found, folder / "model")
    else:
        world.check_refined_again(found, folder)


@fault("no permission on an input", "as a user who may not read the model, an image, a label map, "
       "a split, the unaries or a whole folder")
def unreadable(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    data = folder / "data"
    shutil.copytree(world.data, data)
    model = folder / "model"
    shutil.copy(world.start, model)
    results = fresh(folder / "results")
    results.chmod(0o777)
    kinds = ["images", "labels", "unaries", "images/*", "labels/*", "unaries/*", "train.txt",
             "dataset.json", "."]
    pattern = str(rng.choice(kinds))
    closed = [data] if pattern == "." else sorted(data.glob(pattern))[:1]
    command = world.learn(results / "model", data=data)
    if rng.random() < 0.3:
        closed, command = [model], world.refine(results, "--model", str(model))
    for path in closed:
        path.chmod(0)
    check_told(found, run_child(lambda: main(command), become_nobody), (1, 2))
    if [path for path in results.iterdir() if path.name.startswith("model")]:
        found.unclear.append("results of inputs that nobody read")
    for path in closed:
        path.chmod(0o755)
    if rng.random() < 0.5:
        check_told(found, run_child(lambda: main(command), become_nobody), (0,))
