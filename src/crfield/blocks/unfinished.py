"""Files of a result that is not finished, hidden beside their final names, for one run at a time.

`labels.npy` is written as `.labels.npy.partial`, with the record of finished blocks in
`.labels.npy.blocks`. The names are always the same, so that the next run finds what one that was
killed has left behind, and goes on with it or takes its place.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from crfield._core.atomic import cannot_write, file_to_replace
from crfield._core.locks import open_alone, unlock
from crfield._core.validate import InputError

_IS_WINDOWS = os.name == "nt"  # where files that are open can be neither renamed nor removed
# Room for what is added to a name; file systems take names of 255 bytes.
_LONGEST_NAME = 240
# Neither through a link nor waiting for the other end of a pipe.
_FLAGS = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


def hidden_path(target: Path, kind: str) -> Path:
    """The hidden file of a kind, "partial" or "blocks", that belongs to a final name."""
    name = target.name
    if len(os.fsencode(name)) > _LONGEST_NAME:
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return target.with_name(f".{name}.{kind}")


def open_hidden(path: Path) -> BinaryIO:
    """A hidden file to read and write, new or as it was left behind."""
    return os.fdopen(_descriptor(path), "rb+")


def _descriptor(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _FLAGS, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise InputError(f"cannot write {path}: it is not a regular file; remove it.")
    return descriptor


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Tell errors of the system in the words of the file that is meant."""
    try:
        yield
    except OSError as error:
        raise cannot_write(path, error) from error


@contextmanager
def unfinished_npy(
    path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], keeps: Callable[[bool], bool]
) -> Iterator[NDArray[Any]]:
    """A memory map of the hidden file that takes the place of `path` in the end, with what an
    earlier run has left in it.

    keeps : whether the hidden file stays after an error, given whether it was there before.
    """
    target = file_to_replace(path)
    hidden = hidden_path(target, "partial")
    header = _npy_header(shape, dtype)
    with writing(path):
        stream = os.fdopen(open_alone(hidden, _descriptor, path), "rb+")
    was_there = False
    try:
        with writing(path):
            was_there = stream.read(len(header)) == header
            if not was_there:
                stream.truncate(0)
                stream.seek(0)
                stream.write(header)
                stream.flush()
            _reserve(stream, len(header) + math.prod(shape) * dtype.itemsize)
        # Nothing else refers to the map, so that it is closed when whoever writes lets it go.
        yield np.memmap(stream, dtype, "r+", len(header), shape)
        with writing(path):
            os.fsync(stream.fileno())
            if _IS_WINDOWS:
                stream.close()
            hidden.replace(target)
    except BaseException:
        if not keeps(was_there):
            if _IS_WINDOWS:
                stream.close()
            with suppress(OSError):
                hidden.unlink()
        raise
    finally:
        if not stream.closed:
            unlock(stream.fileno())
        with suppress(OSError):  # the end of a header for which there was no room
            stream.close()


def remove_partial(target: Path) -> None:
    """Remove the hidden file of a result that nobody is writing."""
    with suppress(OSError, InputError):
        hidden = hidden_path(target, "partial")
        if hidden.is_file():
            file = open_alone(hidden, _descriptor, target)
            hidden.unlink()
            os.close(file)


def _npy_header(shape: tuple[int, ...], dtype: np.dtype[Any]) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        stream,
        {
            "descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape,
        },
    )
    return stream.getvalue()


def _reserve(stream: BinaryIO, size: int) -> None:
    """Take the room on the disk: running out of it behind a memory map would end the program."""
    os.ftruncate(stream.fileno(), size)
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(stream.fileno(), 0, size)
