"""Processes spoilt on purpose: killed at a chosen point, short of memory, files or room."""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crfield import InputError

NOBODY = 65534  # a user without rights


@dataclass(frozen=True)
class Ended:
    """How a process ended: exit status, or minus the signal, and what it printed."""

    code: int
    out: str
    err: str

    @property
    def told(self) -> str:
        """What the user is told: the first error, or the last words of a run that failed."""
        lines = [line for line in self.err.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("crfield: error")]
        return errors[0] if errors else lines[-1] if lines and self.code else ""


def run_child(action: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> Ended:
    """Do something in a process of its own, after `prepare` has spoilt that process."""
    return start_child(action, prepare).wait()


def start_child(action: Callable[[], Any], prepare: Callable[[], Any] = lambda: None) -> Child:
    """Begin what `run_child` does."""
    pipes = os.pipe(), os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # forking with threads, as meant
        pid = os.fork()
    if pid:
        for _, end in pipes:
            os.close(end)
        return Child(pid, pipes[0][0], pipes[1][0])
    code = 70
    try:
        for descriptor, (_, end) in zip((1, 2), pipes, strict=True):
            os.dup2(end, descriptor)
        sys.stdout, sys.stderr = (os.fdopen(end, "w", closefd=False) for end in (1, 2))
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        prepare()
        code = int(action() or 0)
    except BaseException:
        sys.setprofile(None)
        traceback.print_exc()
    finally:
        sys.setprofile(None)
        with contextlib.suppress(Exception):
            sys.stderr.flush()
            sys.stdout.flush()
        os._exit(code)


@dataclass(frozen=True)
class Child:
    """A process of `start_child`, and where it writes to."""

    pid: int
    out: int
    err: int

    def wait(self) -> Ended:
        """How it ends."""
        _, status = os.waitpid(self.pid, 0)
        return Ended(os.waitstatus_to_exitcode(status), *map(_drain, (self.out, self.err)))


def _drain(end: int) -> str:
    """What is in a pipe; others may still hold its far end open."""
    os.set_blocking(end, False)
    parts = []
    with contextlib.suppress(BlockingIOError):
        while part := os.read(end, 1 << 16):
            parts.append(part)
    os.close(end)
    return b"".join(parts).decode(errors="replace")


def run_program(arguments: Sequence[str], folder: Path, **options: Any) -> Ended:
    """The command line in a fresh interpreter."""
    command = [sys.executable, "-m", "crfield", *arguments]
    given = {"cwd": folder, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    done = subprocess.run(command, check=False, **given)
    out, err = ((text or b"").decode(errors="replace") for text in (done.stdout, done.stderr))
    return Ended(done.returncode, out, err)


def at_call(number: int, action: Callable[[], Any]) -> Callable[[], None]:
    """To do something at the call or return of that number of any function from now on."""

    def prepare() -> None:
        left = number

        def count(*_: Any) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                sys.setprofile(None)
                action()

        sys.setprofile(count)

    return prepare


def send(number: int) -> Callable[[], None]:
    """To send this process a signal."""
    return lambda: os.kill(os.getpid(), number)


def kill_after_cpu_time(seconds: float) -> Callable[[], None]:
    """To be ended by the system, wherever it is then."""

    def prepare() -> None:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, seconds)

    return prepare


def limit(kind: int, most: int) -> None:
    """Limit what this process may have, as `ulimit` does."""
    resource.setrlimit(kind, (most, resource.getrlimit(kind)[1]))


def some_byte(size: int, rng: np.random.Generator) -> int:
    """A place in a file of that size, half of the time near its end, where buffers are emptied."""
    return int(rng.integers(max(0, size - 200) if rng.random() < 0.5 else 0, size))


def limit_files(most: int, kill: bool) -> Callable[[], None]:
    """To let files grow to so many bytes, where writing fails or the process is killed."""

    def prepare() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL if kill else signal.SIG_IGN)
        limit(resource.RLIMIT_FSIZE, most)

    return prepare


def count_calls(action: Callable[[], Any]) -> int:
    """How many calls and returns `action` makes, which `at_call` may choose from."""
    total = 0

    def count(*_: Any) -> None:
        nonlocal total
        total += 1

    def counted() -> None:
        action()
        sys.setprofile(None)
        print(f"\n{total}")

    return int(run_child(counted, lambda: sys.setprofile(count)).out.split()[-1])


def told(action: Callable[[], Any]) -> int:
    """What the command line makes of an error in a call of the library."""
    try:
        action()
    except (InputError, MemoryError) as error:
        print(f"crfield: error: {error}", file=sys.stderr)
        return 2
    return 0


def become_nobody() -> None:
    """Give up the administrator's rights, if this process has them."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[None]:
    """A file system of its own with so many bytes, which are gone afterwards."""
    subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)], check=True,
        capture_output=True,
    )
    try:
        yield
    finally:
        subprocess.run(["umount", str(folder)], check=True, capture_output=True)
