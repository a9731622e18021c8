"""Arrays that serve one image after another: fresh pages cost more than the arithmetic on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from crfield._core import _native
from crfield._core.validate import FloatArray

_Key = tuple[tuple[int, ...], np.dtype[Any]]


class Arena:
    """Lends uninitialized arrays, all of which come back at once.

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
