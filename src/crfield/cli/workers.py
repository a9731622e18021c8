"""Processes that work on one image after another, for `--jobs`.

Processes rather than threads, since half of the time on a small image is spent in Python. They are
spawned rather than forked, so that they share no lock with this process, and each has a pipe of its
own: a worker that is killed costs one image, which a pool of the standard library does not promise,
and when this process ends, however it does, they see the end of their pipe and end too.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from crfield._core.validate import InputError

# So many items per worker are under way or wait for an earlier one to be reported.
_AHEAD = 64
_PATIENCE = 0.5  # seconds for workers to tidy up when the run is interrupted
_SPAWN = multiprocessing.get_context("spawn")


class WorkerLost(Exception):
    """A worker ended before it had answered."""


class Workers:
    """`n` processes, in each of which `start(argument)` gives the function that answers items.

    start : a function of a module, which the processes import.
    argument : what it needs; it is sent to them.
    """

    def __init__(self, n: int, start: Callable[[Any], Callable[[Any], Any]], argument: Any) -> None:
        self._n, self._order = n, (start, argument)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._lock = threading.Lock()
        self._ended = False

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        """End them: at once and tidily if they are at work."""
        with self._lock:
            self._ended = True
            workers = list(self._all)
        for worker in workers:
            worker.stop()
        for worker in workers:
            worker.wait()

    def answers(self, items: Iterable[Any]) -> Iterator[tuple[Any, Future[Any]]]:
        """Items with their answers, in their order; that of a lost worker raises `WorkerLost`."""
        waiting: deque[tuple[Any, Future[Any]]] = deque()
        pool = ThreadPoolExecutor(self._n)
        try:
            for item in items:
                waiting.append((item, pool.submit(self._ask, item)))
                while waiting and (len(waiting) >= _AHEAD * self._n or waiting[0][1].done()):
                    yield _answered(waiting.popleft())
            while waiting:
                yield _answered(waiting.popleft())
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def _ask(self, item: Any) -> Any:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None:
            worker = self._started()
        try:
            answer = worker.ask(item)
        except WorkerLost:
            with self._lock:
                self._all.discard(worker)
            worker.stop()
            worker.wait()
            raise
        with self._lock:
            self._idle.append(worker)
        return answer

    def _started(self) -> _Worker:
        with self._lock:
            if self._ended:
                raise WorkerLost
            worker = _Worker(*self._order)
            self._all.add(worker)
        try:
            worker.receive()
        except WorkerLost:
            if self._ended:
                raise
            raise InputError(
                "expected processes for --jobs to start, but one ended at once; use --jobs 1."
            ) from None
        return worker


def _answered(asked: tuple[Any, Future[Any]]) -> tuple[Any, Future[Any]]:
    wait([asked[1]])
    return asked


class _Worker:
    """One process and the pipe to it."""

    def __init__(self, start: Callable[[Any], Callable[[Any], Any]], argument: Any) -> None:
        self._pipe, other = _SPAWN.Pipe()
        self._ending = threading.Lock()  # whoever ends all meets who has lost this one
        self._process = _SPAWN.Process(target=serve, args=(other, start, argument), daemon=True)
        with _ctrl_c_is_not_inherited():
            self._process.start()
        other.close()

    def ask(self, item: Any) -> Any:
        """Its answer to an item."""
        try:
            self._pipe.send(item)
        except (OSError, ValueError):
            raise WorkerLost from None
        answer = self.receive()
        if isinstance(answer, BaseException):
            raise answer
        return answer

    def receive(self) -> Any:
        """What it says next; the first time that it has started."""
        try:
            return self._pipe.recv()
        except (EOFError, OSError, ValueError):
            raise WorkerLost from None

    def stop(self) -> None:
        """Have it end, as Ctrl-C would."""
        self._process.terminate()

    def wait(self) -> None:
        """Let it tidy up, not for long, and be gone."""
        with self._ending:
            self._process.join(_PATIENCE)
            if self._process.is_alive():
                self._process.kill()
                self._process.join()
            self._pipe.close()


@contextmanager
def _ctrl_c_is_not_inherited() -> Iterator[None]:
    """Ctrl-C is for the command alone, which then stops the processes that are started in here."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def serve(pipe: Any, start: Callable[[Any], Callable[[Any], Any]], argument: Any) -> None:
    """Answer the items that come through a pipe until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    os.dup2(2, 1)  # standard output belongs to the report
    try:
        _answer_all(pipe, start, argument)
    except (KeyboardInterrupt, EOFError, BrokenPipeError, ConnectionResetError):
        pass  # told to stop, or the command is gone
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def _answer_all(pipe: Any, start: Callable[[Any], Callable[[Any], Any]], argument: Any) -> None:
    from crfield.cli import prepare_process

    with warnings.catch_warnings():
        prepare_process()
        answer = start(argument)
        pipe.send("ready")
        while True:
            item = pipe.recv()
            try:
                found = answer(item)
            except Exception as error:
                found = error
            pipe.send(found)
