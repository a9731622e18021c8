"""Faults about who writes what: outputs that are inputs, and runs that share a folder."""

import os
import shutil
import signal
from pathlib import Path

from crfield.cli import main
from tests.faults.kills import KILLED, Rng, point
from tests.faults.processes import Ended, at_call, run_child, send, start_child
from tests.faults.world import (
    Findings,
    World,
    check_no_litter,
    check_told,
    fault,
)


@fault("an output that is an input", "`crfield learn` is told to write to an image, a "
       "label map, unaries, a description, a split or a model that it reads, by its name, a link "
       "or a linked folder, with `--overwrite`")
def output_is_input(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    data = shutil.copytree(world.data, folder / "data")
    start = Path(shutil.copy(world.start, folder / "start"))
    files = sorted(path for path in data.rglob("*") if path.is_file())
    victim = [*files, start][rng.integers(len(files) + 1)]
    before = {path: path.read_bytes() for path in (*files, start)}
    output, how = victim, rng.integers(4)
    if how == 1:
        output = folder / "soft"
        output.symlink_to(victim)
    elif how == 2:
        output = folder / "hard"
        output.hardlink_to(victim)
    elif how == 3:
        (folder / "linked").symlink_to(victim.parent)
        output = folder / "linked" / victim.name
    command = world.learn(output, "--start", str(start), "--overwrite", data=data)
    check_told(found, run_child(lambda: main(command)), (2,))
    if {path: path.read_bytes() for path in (*files, start)} != before:
        found.lost.append(f"{victim.name} was replaced")


@fault("killed while refining several at a time", "SIGKILL at a random call within `crfield refine "
       "--jobs 2`; then the same command", seen="Killed")
def killed_several(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    kill = at_call(point(world, "jobs", rng), send(signal.SIGKILL))
    first = start_child(lambda: main(world.refine(folder, "--jobs", "2")), kill)
    _, status = os.waitpid(first.pid, 0)
    world.check_refined(found, folder, all_there=False)
    world.check_refined_again(found, folder)
    os.close(first.out)
    with os.fdopen(first.err) as stream:  # which ends when the last of its processes has
        ended = Ended(os.waitstatus_to_exitcode(status), "", stream.read())
    check_told(found, ended, (0, KILLED))
    world.check_refined(found, folder, all_there=True)


@fault("two runs on one folder", "a second `crfield refine` of the same folder starts at a random "
       "call of the first; then the same command")
def two_runs_on_one_folder(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    more = ("--overwrite",) if rng.random() < 0.5 else ()
    reader, writer = os.pipe()
    ready = at_call(point(world, "refine", rng), lambda: os.write(writer, b"x"))
    first = start_child(lambda: main(world.refine(folder)), ready)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    second = start_child(lambda: main(world.refine(folder, *more)))
    for ended, codes in ((first.wait(), (0,)), (second.wait(), (0, 2))):
        check_told(found, ended, codes)
    check_no_litter(found, folder)
    world.check_refined(found, folder, all_there=True)
    world.check_refined_again(found, folder)
