"""Faults of the system around: memory, threads, output, clock, names, and others at work."""

import os
import resource
import signal
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from crfield.cli import main
from tests.faults.data import other_data
from tests.faults.kills import point
from tests.faults.processes import (
    at_call,
    become_nobody,
    limit,
    run_child,
    run_program,
    start_child,
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


def memory_in_use() -> int:
    """Bytes of address space of this process."""
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


@fault("out of memory", "a limit on the address space 0 to 60 MB above what is in use, while a "
       "larger image is refined or a model is learned")
def out_of_memory(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    room = int(rng.integers(0, 60 << 20))

    def prepare() -> None:
        limit(resource.RLIMIT_AS, memory_in_use() + room)

    if rng.random() < 0.3:
        ended = run_child(lambda: main(world.learn(folder / "model")), prepare)
        check_told(found, ended, (0, 2))
        check_no_litter(found, folder)
        world.check_learned(found, folder / "model")
        return
    image, labels, result = (folder / name for name in ("image.png", "labels.png", "result.png"))
    pixels = rng.integers(0, 256, (300, 400, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(image)
    Image.fromarray((pixels[..., 0] > 128).astype(np.uint8)).save(labels)
    command = ["refine", str(image), "--labels", str(labels), "-o", str(result), "--marginals"]
    ended = run_child(lambda: main(command), prepare)
    check_told(found, ended, (0, 2))
    check_no_litter(found, folder)
    if result.exists():
        Image.open(result).load()
    elif ended.code == 0:
        found.lost.append("no result, and no word about it")


@fault("no more threads", "a limit on processes of a user who has no more, while refining with "
       "several threads")
def no_threads(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    folder.chmod(0o777)
    threads = str(rng.integers(2, 65))
    command = ["refine", str(world.photos), "--labels", str(world.masks), "-o",
               str(folder / "results"), "--threads", threads]

    def prepare() -> None:
        become_nobody()
        limit(resource.RLIMIT_NPROC, int(rng.integers(0, 2)))

    check_told(found, run_child(lambda: main(command), prepare), (0, 1, 2))
    check_no_litter(found, folder / "results")


@fault("nobody listens", "standard output closed, a pipe without a reader, or a full device")
def nobody_listens(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    command = world.refine(folder, *(["--json"] if rng.random() < 0.5 else []))
    if rng.random() < 0.3:
        command = ["evaluate", str(world.start), str(world.data)]
    way = str(rng.choice(["closed", "closed both", "pipe", "full"]))
    options: dict[str, Any] = {}
    if way == "pipe":
        reader, writer = os.pipe()
        os.close(reader)
        options["stdout"] = writer
    elif way == "full":
        options["stdout"] = os.open("/dev/full", os.O_WRONLY)
    else:
        both = way == "closed both"
        options["preexec_fn"] = lambda: [os.close(n) for n in ((1, 2) if both else (1,))]
    ended = run_program(command, folder, **options)
    if "stdout" in options:
        os.close(options["stdout"])
    expected = {"pipe": (1,), "full": (2,)}.get(way, (0,))
    if ended.code not in expected or "Traceback" in ended.err or "ignored" in ended.err:
        found.unclear.append(f"{way}: exit status {ended.code}: {ended.err}")
    found.seen = ended.told
    if command[0] == "refine":
        world.check_refined(found, folder, all_there=ended.code == 0)
        world.check_refined_again(found, folder)


@fault("odd surroundings", "file names that are not text, an ASCII or missing locale, no TMPDIR, "
       "no HOME, a working folder that was removed")
def odd_surroundings(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    names = [b"r\xe9sultats", "результаты".encode(), b"\xff\xfe", b"a b;c", b"-o"]
    results = fresh(folder / os.fsdecode(names[rng.integers(len(names))]))
    changes: list[dict[str, str]] = [
        {"LC_ALL": "C"}, {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"}, {"LC_ALL": "xx_YY"},
        {"TMPDIR": "/nowhere/at/all"}, {"HOME": "/nowhere", "XDG_CACHE_HOME": "/nowhere"},
        {"PYTHONUTF8": "0", "LC_ALL": "C", "PYTHONCOERCECLOCALE": "0"}, {"TZ": "Mars/Olympus"},
        {"COLUMNS": "0", "LINES": "-3"},
    ]
    environment = {**os.environ, **changes[rng.integers(len(changes))]}
    options: dict[str, Any] = {"env": environment}
    if rng.random() < 0.2:
        gone = fresh(folder / "gone")
        options["preexec_fn"] = lambda: (os.chdir(gone), os.rmdir(gone))
    if rng.random() < 0.5:
        ended = run_program(world.refine(results), folder, **options)
        check_told(found, ended, (0,))
        world.check_refined(found, results, all_there=True)
    else:
        model = results / os.fsdecode(names[rng.integers(len(names))])
        ended = run_program(
            [word for word in world.learn(model) if word != "--quiet"], folder, **options
        )
        check_told(found, ended, (0,))
        check_model(found, model)


@fault("the clock goes backwards", "all clocks of Python jump back and forth while learning or "
       "refining")
def clock(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    def prepare() -> None:
        jumps = np.random.default_rng(int(rng.integers(2**31)))
        for name in ("time", "monotonic", "perf_counter"):
            setattr(time, name, lambda: float(jumps.normal(0, 1e6)))

    if rng.random() < 0.5:
        command = [word for word in world.learn(folder / "model") if word != "--quiet"]
        check_told(found, run_child(lambda: main(command), prepare), (0,))
        world.check_learned(found, folder / "model")
    else:
        check_told(found, run_child(lambda: main(world.refine(folder)), prepare), (0,))
        world.check_refined(found, folder, all_there=True)


@fault("two runs at once", "a second `crfield learn` with the same output, of the same data or of "
       "others, starts at a random call of the first; then `--resume`")
def two_runs(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    model = folder / "model"
    data = other_data(world) if rng.random() < 0.5 else world.data
    more = ("--resume",) if rng.random() < 0.5 else ()
    reader, writer = os.pipe()
    ready = at_call(point(world, "learn", rng), lambda: os.write(writer, b"x"))
    first = start_child(lambda: main(world.learn(model)), ready)
    os.close(writer)
    os.read(reader, 1)
    os.close(reader)
    second = start_child(lambda: main(world.learn(model, *more, data=data)))
    for ended in (first.wait(), second.wait()):
        check_told(found, ended, (0, 2))
    check_no_litter(found, folder)
    world.check_learned(found, model, may_restart=True)


@fault("a worker is killed", "SIGKILL to a process that joblib started, while learning; then "
       "`--resume`")
def worker_killed(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    model = folder / "model"
    delay = int(rng.integers(0, 4000))

    def learn() -> int:
        import joblib

        hunter = threading.Thread(target=_kill_a_worker, args=(os.getpid(), delay), daemon=True)
        hunter.start()
        with joblib.parallel_config(backend="loky"):
            return main([*world.learn(model), "--jobs", "2"])

    check_told(found, run_child(learn), (0, 2))
    check_no_litter(found, folder)
    if not model.with_name(model.name + CHECKPOINT).exists():
        found.lost.append("there is no checkpoint to resume from")
    world.check_learned(found, model)


def _kill_a_worker(parent: int, delay: int) -> None:
    """Wait for a worker, look at it a few times more, and kill it."""
    while True:
        for number in _children(parent):
            if b"loky" in _command(number) and b"resource_tracker" not in _command(number):
                for _ in range(delay):
                    _command(number)
                os.kill(number, signal.SIGKILL)
                return


def _children(parent: int) -> list[int]:
    tasks = Path(f"/proc/{parent}/task").glob("*/children")
    return [int(word) for task in tasks for word in task.read_text().split()]


def _command(number: int) -> bytes:
    try:
        return Path(f"/proc/{number}/cmdline").read_bytes()
    except OSError:
        return b""
