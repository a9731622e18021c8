"""Faults of results that are written block by block: killed, torn, exchanged, cut, doubled."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from crfield.blocks.record import Record
from crfield.cli import main
from tests.faults.data import damaged
from tests.faults.disk import little_room
from tests.faults.processes import at_call, count_calls, run_child, send, start_child
from tests.faults.world import Findings, World, check_no_litter, check_told, fault, fresh

Rng = np.random.Generator
KILLED = -signal.SIGKILL
SHAPE, N_LABELS, N_BLOCKS = (24, 33), 3, 9
PARTIAL, RECORD = ".out.npy.partial", ".out.npy.blocks"


@dataclass(frozen=True)
class Given:
    """Files to refine in blocks, and what comes of them if nothing goes wrong."""

    folder: Path
    expected: dict[str, bytes]
    calls: int

    def command(self, folder: Path, *more: str, soft: bool = True) -> list[str]:
        return ["refine", str(self.folder / "image.npy"), "--probabilities",
                str(self.folder / "given.npy"), "--block", "11", "--overlap", "3", "--bilateral",
                "3", "20", "--spatial", "2", "--threads", "1", "--max-iter", "2",
                "--overwrite", "-o", str(folder / "out.npy"),
                *(["--marginals"] if soft else []), *more]

    def check(self, found: Findings, folder: Path, complete: bool = False) -> None:
        """Files under their final names are whole; when complete, all are there and no other."""
        for name, content in self.expected.items():
            path = folder / name
            if path.exists() and path.read_bytes() != content:
                found.corrupted.append(f"{name} is not what it should be")
            if complete and not path.exists():
                found.lost.append(f"{name} is missing")
        if complete:
            check_no_litter(found, folder)

    def check_again(self, found: Findings, folder: Path, most: int = N_BLOCKS) -> None:
        """The same command ends with the same bytes, after at most so many blocks."""
        self.check(found, folder)
        ended = run_child(lambda: main(self.command(folder, "--verbose")))
        check_told(found, ended, (0,))
        self.check(found, folder, complete=True)
        done = sum("block " in line for line in ended.err.splitlines())
        if done > most:
            found.lost.append(f"{done} blocks were done again where {most} were missing")


@cache
def given(world: World) -> Given:
    folder, whole = world.root / "blocks", fresh(world.root / "whole blocks")
    folder.mkdir()
    rng = np.random.default_rng(4)
    np.save(folder / "image.npy", rng.integers(0, 256, (*SHAPE, 3), dtype=np.uint8))
    np.save(folder / "given.npy", rng.dirichlet([1] * N_LABELS, SHAPE).astype(np.float32))
    command = Given(folder, {}, 0).command
    with contextlib.redirect_stdout(io.StringIO()):  # imports what its children then have
        assert main(command(whole)) == 0
    ended = run_child(lambda: main(command(fresh(whole))))
    assert ended.code == 0, ended.err
    expected = {path.name: path.read_bytes() for path in whole.iterdir()}
    assert sorted(expected) == ["out.npy", "out_marginals.npy"]
    return Given(folder, expected, count_calls(lambda: main(command(fresh(whole)))))


def in_entry(number: int, before: Callable[[], Any], after: bool = False) -> Callable[[], None]:
    """To do something before or after the entry of that number is written."""

    def prepare() -> None:
        append = Record.append

        def disturbed(self: Record, finished: Any) -> None:
            if self.n_finished == number and not after:
                before()
            append(self, finished)
            if self.n_finished == number + 1 and after:
                before()

        Record.append = disturbed  # type: ignore[method-assign]

    return prepare


def cut_short(world: World, rng: Rng, folder: Path) -> int:
    """A run that was killed after some blocks; how many."""
    number = int(rng.integers(1, N_BLOCKS))
    kill = in_entry(number - 1, send(signal.SIGKILL), after=True)
    ended = run_child(lambda: main(given(world).command(folder)), kill)
    assert ended.code == KILLED, ended.err
    return number


@fault("killed while refining in blocks", "SIGKILL at a random call within `crfield refine "
       "--block`, up to three times; then the same command", seen="Killed")
def killed_in_blocks(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work = given(world)
    for _ in range(rng.integers(1, 4)):
        kill = at_call(int(rng.integers(1, work.calls)), send(signal.SIGKILL))
        check_told(found, run_child(lambda: main(work.command(folder)), kill), (0, KILLED))
        work.check(found, folder)
    work.check_again(found, folder)


@fault("killed between a block and its record", "SIGKILL when a block is in the file and not yet "
       "in the record, or just after; then the same command", seen="Killed")
def killed_at_record(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work, number = given(world), int(rng.integers(N_BLOCKS))
    after = bool(rng.random() < 0.5)
    kill = in_entry(number, send(signal.SIGKILL), after)
    check_told(found, run_child(lambda: main(work.command(folder)), kill), (KILLED,))
    work.check_again(found, folder, N_BLOCKS - number - after)


@fault("interrupted while refining in blocks", "SIGINT (Ctrl-C) after a block; then the same "
       "command")
def interrupted_in_blocks(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work, number = given(world), int(rng.integers(1, N_BLOCKS))
    stop = in_entry(number - 1, send(signal.SIGINT), after=True)
    ended = run_child(lambda: main(work.command(folder)), stop)
    check_told(found, ended, (130,))
    found.seen = next((line for line in ended.err.splitlines() if "blocks are" in line), found.seen)
    if f"{number} of {N_BLOCKS} blocks are finished" not in ended.err:
        found.unclear.append(f"not told what is kept: {ended.err}")
    work.check_again(found, folder, N_BLOCKS - number)


@fault("terminated while refining in blocks", "SIGTERM at a random call within `crfield refine "
       "--block`; then the same command")
def terminated_in_blocks(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work = given(world)
    stop = at_call(int(rng.integers(1, work.calls)), send(signal.SIGTERM))
    check_told(found, run_child(lambda: main(work.command(folder)), stop), (0, 130))
    work.check_again(found, folder)


@fault("killed while a run goes on", "SIGKILL at a random call within the run that goes on after "
       "another was killed; then once more", seen="Killed")
def killed_going_on(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work, number = given(world), cut_short(world, rng, folder)
    kill = at_call(int(rng.integers(1, work.calls)), send(signal.SIGKILL))
    check_told(found, run_child(lambda: main(work.command(folder)), kill), (0, KILLED))
    complete = (folder / "out_marginals.npy").exists()
    work.check_again(found, folder, N_BLOCKS if complete else N_BLOCKS - number)


@fault("torn record of blocks", "the record of finished blocks cut at a random byte, as by a crash "
       "of the system; then the same command")
def torn_record(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work, number = given(world), cut_short(world, rng, folder)
    size = (folder / RECORD).stat().st_size
    cut = int(rng.integers(1, 60)) if rng.random() < 0.5 else int(rng.integers(1, size + 1))
    os.truncate(folder / RECORD, size - min(cut, size))
    last = cut < 60  # shorter than an entry
    work.check_again(found, folder, N_BLOCKS - number + 1 if last else N_BLOCKS)


@fault("damaged record of blocks", "the record emptied, with bits turned over, parts doubled or "
       "dropped; then the same command")
def damaged_record(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work = given(world)
    cut_short(world, rng, folder)
    content = (folder / RECORD).read_bytes()
    (folder / RECORD).write_bytes(damaged(content, rng, world.learned))
    work.check_again(found, folder)


@fault("truncated partial file", "the unfinished file of labels or marginals cut at a random byte, "
       "removed or made longer; then the same command")
def truncated_partial(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work, number = given(world), cut_short(world, rng, folder)
    name = str(rng.choice([PARTIAL, ".out_marginals.npy.partial"]))
    way = str(rng.choice(["cut", "remove", "extend"]))
    size = (folder / name).stat().st_size
    if way == "remove":
        (folder / name).unlink()
    else:
        os.truncate(folder / name, size + 5000 if way == "extend" else int(rng.integers(size)))
    whole = name == PARTIAL or way == "extend"  # labels are made again from marginals
    work.check_again(found, folder, N_BLOCKS - number if whole else N_BLOCKS)


@fault("altered partial file", "bytes of the unfinished marginals changed; then the same command")
def altered_partial(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work = given(world)
    cut_short(world, rng, folder)
    path = folder / ".out_marginals.npy.partial"
    content = bytearray(path.read_bytes())
    for place in rng.integers(0, len(content), int(rng.integers(1, 20))):
        content[place] ^= int(rng.integers(1, 256))
    path.write_bytes(content)
    work.check_again(found, folder)


@fault("partial file of another run", "what a killed run with other settings, other inputs, "
       "without marginals or of other files has left; then the command")
def partial_of_another(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work, way = given(world), str(rng.choice(["settings", "inputs", "fewer", "exchanged"]))
    other = Given(fresh(folder / "inputs"), {}, 0) if way == "inputs" else work
    if way == "inputs":
        for path in work.folder.iterdir():
            array = np.load(path)
            np.save(other.folder / path.name, np.ascontiguousarray(array[::-1]))
    more = {"settings": ("--max-iter", "3"), "exchanged": ("--spatial", "1")}.get(way, ())
    where = fresh(folder / "other") if way == "exchanged" else folder
    kill = in_entry(int(rng.integers(N_BLOCKS)), send(signal.SIGKILL), after=True)
    command = other.command(where, *more, soft=way != "fewer")
    check_told(found, run_child(lambda: main(command), kill), (KILLED,))
    if way == "exchanged":  # the record of the right run, with the results of another
        cut_short(world, rng, folder)
        for path in where.glob(".*.partial"):
            shutil.copy(path, folder)
    found.seen = ""
    work.check_again(found, folder)


@fault("inputs change between blocks", "pixels of the image or probabilities change after a run in "
       "blocks was killed; then the same command")
def inputs_changed(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work, own = given(world), Given(fresh(folder / "inputs"), {}, 0)
    for path in work.folder.iterdir():
        shutil.copy(path, own.folder)
    results = fresh(folder / "results")
    kill = in_entry(int(rng.integers(N_BLOCKS)), send(signal.SIGKILL), after=True)
    check_told(found, run_child(lambda: main(own.command(results)), kill), (KILLED,))
    path = own.folder / str(rng.choice(["image.npy", "given.npy"]))
    array = np.load(path)
    y, x = (int(rng.integers(n)) for n in SHAPE)
    array[y, x] = array[y, x][::-1]
    np.save(path, array)
    check_told(found, run_child(lambda: main(own.command(results))), (0,))
    check_no_litter(found, results)
    afresh = fresh(folder / "fresh")
    check_told(found, run_child(lambda: main(own.command(afresh))), (0,))
    found.seen = ""
    for name in work.expected:
        if (results / name).read_bytes() != (afresh / name).read_bytes():
            found.corrupted.append(f"{name} mixes results of old and new pixels")


@fault("two runs in blocks at once", "a second `crfield refine --block` with the same output, with "
       "the same settings or others, while the first is between two blocks")
def two_runs_in_blocks(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work = given(world)
    more = ("--max-iter", "3") if rng.random() < 0.5 else ()
    ready, go = os.pipe(), os.pipe()

    def wait() -> None:
        os.write(ready[1], b"x")
        os.read(go[0], 1)

    hold = in_entry(int(rng.integers(N_BLOCKS)), wait, after=bool(rng.random() < 0.5))
    first = start_child(lambda: main(work.command(folder)), hold)
    os.read(ready[0], 1)
    second = run_child(lambda: main(work.command(folder, *more)))
    check_told(found, second, (2,))
    if "another run of crfield is writing" not in second.err:
        found.unclear.append(f"not told of the other run: {second.err}")
    os.write(go[1], b"x")
    check_told(found, first.wait(), (0,))
    for end in (*ready, *go):
        os.close(end)
    work.check(found, folder, complete=True)


@fault("disk full while refining in blocks", "no room, from the start or for the entry of a block; "
       "then the same command with room")
def full_in_blocks(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work, kept = given(world), fresh(folder / "kept")
    size = sum(map(len, work.expected.values()))
    with little_room(world, folder, rng, size // 4096 + 12, size) as (where, prepare):
        ended = run_child(lambda: main(work.command(where)), prepare)
        check_told(found, ended, (0, 2))
        work.check(found, where, complete=ended.code == 0)
        if ended.code == 2 and "make room there" not in ended.err:
            found.unclear.append(f"not told to make room: {ended.err}")
        for path in where.iterdir():
            if path.is_file():
                shutil.copy(path, kept)
    work.check_again(found, kept)


@fault("errors of the disk at a record", "the system refuses to write or to sync the entry of a "
       "block (no space, quota, input/output error); then the same command")
def refused_entry(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work, number = given(world), int(rng.integers(1, N_BLOCKS))
    code = int(rng.choice([errno.ENOSPC, errno.EDQUOT, errno.EIO]))

    def refuse() -> None:
        def broken(descriptor: int) -> None:
            raise OSError(code, os.strerror(code))

        os.fsync = broken

    ended = run_child(lambda: main(work.command(folder)), in_entry(number, refuse))
    check_told(found, ended, (2,))
    if f"{number} of {N_BLOCKS} blocks are finished and kept" not in ended.err:
        found.unclear.append(f"not told what is kept: {ended.err}")
    work.check_again(found, folder, N_BLOCKS - number)


@fault("folder removed while refining in blocks", "the folder of the results is removed at a "
       "random call; then the same command anew")
def folder_removed_in_blocks(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    work, where = given(world), fresh(folder / "gone")
    remove = at_call(int(rng.integers(1, work.calls)), lambda: shutil.rmtree(where))
    check_told(found, run_child(lambda: main(work.command(where)), remove), (0, 2))
    work.check_again(found, fresh(where))
