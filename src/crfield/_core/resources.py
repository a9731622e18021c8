"""What native work runs on: threads, instructions, and memory that serves one image after another.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any, TypeVar

import numpy as np

from crfield._core import _native
from crfield._core.validate import FloatArray, as_count

MAX_THREADS = 1024
MAX_JOBS = 1024

_Class = TypeVar("_Class", bound=type)
_Key = tuple[tuple[int, ...], np.dtype[Any]]


def usable_cores() -> int:
    """Cores this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def instruction_set() -> str:
    """The instructions that the native core uses on this machine: "avx2", for example."""
    return str(_native.isa())


def thread_count(threads: Any = None) -> int:
    """The number of threads to use: all usable cores for None."""
    if threads is None:
        return min(usable_cores(), MAX_THREADS)
    return as_count(threads, "threads", 1, MAX_THREADS)


def without_locks(kind: _Class) -> _Class:
    """A class whose cached properties several threads may compute at a time.

    Python 3.11 holds one lock per property for all instances: threads would wait for each other's
    inference, and a process forked meanwhile would wait forever. Later Pythons have no such lock.
    """
    for value in vars(kind).values():
        if isinstance(value, cached_property):
            value.lock = contextlib.nullcontext()  # type: ignore[attr-defined]
    return kind


class Arena:
    """Lends uninitialized arrays, all of which come back at once: fresh pages cost more than the
    arithmetic on them.

    keep : whether what came back is lent again rather than left to the garbage collector.
    """

    def __init__(self, *, keep: bool = False) -> None:
        self._keep = keep
        self._idle: dict[_Key, list[FloatArray]] = {}
        self._lent: list[FloatArray] = []

    def like(self, array: FloatArray) -> FloatArray:
        """An array of the shape and type of another."""
        if not self._keep:
            return np.empty_like(array)
        idle = self._idle.get((array.shape, array.dtype))
        lent = idle.pop() if idle else np.empty_like(array)
        self._lent.append(lent)
        return lent

    def take_back(self) -> None:
        """Whoever borrowed an array is done with it; sizes that were not asked for are dropped."""
        self._idle = {}
        for array in self._lent:
            self._idle.setdefault((array.shape, array.dtype), []).append(array)
        self._lent = []


# One for each thread that is at work on an image; a list's append and pop are atomic.
_idle_arenas: list[Arena] = []


@contextmanager
def lent_arena() -> Iterator[Arena]:
    """An arena for one image, warm from the image before it."""
    try:
        arena = _idle_arenas.pop()
    except IndexError:
        arena = Arena(keep=True)
    try:
        yield arena
    finally:
        arena.take_back()
        _idle_arenas.append(arena)


def drop_arenas() -> None:
    """Give the memory of idle arenas and of the compiled core's idle blocks back."""
    _idle_arenas.clear()
    _native.drop_idle_blocks()
