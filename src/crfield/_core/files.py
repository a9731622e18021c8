"""Files that are read: regular ones only, of a size that is known before anything is read.

A named pipe would never answer, a device never end, and a file that is mapped into memory while
others cut it short would end the program; so all readers open files here.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

from crfield._core.validate import InputError, check_memory, shown

# The most bytes of each kind of file. Images, arrays and graphs also count against the memory that
# is left, by their headers where they have one: these limits are for what is no such file at all.
MAX_BYTES = {
    "image": 2**34, "label map": 2**34, "array": 2**40, "description": 2**20, "list": 2**28,
    "model": 2**32, "log": 2**32, "report": 2**32, "graph": 2**34, "checkpoint": 2**34,
}
# What the system says that is not the fault of what the file holds, and what to do about it.
SYSTEM_FAULTS = {
    **dict.fromkeys(
        (errno.ENOENT, errno.EACCES, errno.EPERM), "check the name and its permissions"
    ),
    errno.EIO: "check the disk",
    errno.EMFILE: "raise the limit with ulimit -n", errno.ENFILE: "close other programs",
}

# So that opening a pipe without a writer returns, and a terminal does not become ours.
_FLAGS = os.O_RDONLY | sum(
    getattr(os, name, 0) for name in ("O_NONBLOCK", "O_CLOEXEC", "O_NOCTTY", "O_BINARY")
)
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (1, "bytes"))


def open_regular(path: Path, kind: str) -> BinaryIO:
    """The file at `path` for reading, once it is a regular one of at most `MAX_BYTES[kind]`."""
    try:
        descriptor = os.open(path, _FLAGS)
    except (OSError, ValueError) as error:
        raise cannot_read(path, error) from error
    try:
        about = os.fstat(descriptor)
        _check_regular(path, about.st_mode)
        if about.st_size > MAX_BYTES[kind]:
            raise InputError(
                f"expected at most {_size(MAX_BYTES[kind])} in the {kind} {shown(path)}, but it "
                f"has {_size(about.st_size)}; check that it is the right file."
            )
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path, kind: str, memory: float = 1.0) -> bytes:
    """All bytes of such a file, if there is room for `memory` times as many."""
    with open_regular(path, kind) as stream:
        return read_whole(stream, path, memory)


def read_whole(stream: BinaryIO, path: Path, memory: float = 1.0) -> bytes:
    """All bytes of an open file, if there is room for `memory` times as many."""
    size = size_of(stream)
    check_memory(memory * size, f"reading {shown(path)}", "use a smaller file")
    stream.seek(0)
    try:
        data = stream.read(size)
        more = stream.read(1)
    except OSError as error:
        raise cannot_read(path, error) from error
    if more:  # a file of /proc, whose size is 0 whatever it holds, or one that others append to
        raise InputError(
            f"cannot read {shown(path)}: it holds more than the {size} bytes that it announces; "
            "copy it first."
        )
    return data


def size_of(stream: BinaryIO) -> int:
    """Bytes of an open file."""
    return os.fstat(stream.fileno()).st_size


def cannot_read(name: Path | str, error: OSError | ValueError) -> InputError:
    """The refusal for a file that the system did not let us read; a text is what to call it."""
    number = getattr(error, "errno", None)
    reason = str(getattr(error, "strerror", None) or error).lower()
    remedy = SYSTEM_FAULTS.get(number or 0, "check the name")
    what = name if isinstance(name, str) else shown(name)
    return InputError(f"cannot read {what}: {reason}; {remedy}.")


def _check_regular(path: Path, mode: int) -> None:
    if stat.S_ISDIR(mode):
        raise InputError(
            f"expected a file, but {shown(path)} is a folder; name a file inside it."
        )
    if not stat.S_ISREG(mode):
        what = "pipe" if stat.S_ISFIFO(mode) else "device"
        raise InputError(
            f"cannot read {shown(path)}: it is a {what}, not a regular file; copy what comes out "
            "of it to one first."
        )


def _size(n_bytes: int) -> str:
    unit, name = next(each for each in _UNITS if n_bytes >= each[0] or each[0] == 1)
    return f"{n_bytes / unit:.4g} {name}"
