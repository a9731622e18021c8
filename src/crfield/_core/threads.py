"""What the native core runs on: how many threads, and which instructions."""

from __future__ import annotations

import contextlib
import os
from functools import cached_property
from typing import Any, TypeVar

from crfield._core import _native
from crfield._core.validate import as_count

MAX_THREADS = 1024

_Class = TypeVar("_Class", bound=type)


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
