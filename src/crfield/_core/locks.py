"""Files that one run at a time may hold, by a lock that ends with its process, however it ends."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path

from crfield._core.atomic import cannot_write
from crfield._core.validate import InputError

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

# What systems answer that know of no locks, as some network disks do, or of none on folders.
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL, errno.EBADF)
_BEYOND = 2**40  # Windows locks bytes, and nobody may read them: this one is in no file
# What the code around holds: a command has reserved what the library writes for it.
_HELD: ContextVar[frozenset[Path]] = ContextVar("held", default=frozenset())


@contextmanager
def hold(target: Path, shown: Path, *, within: bool = False) -> Iterator[None]:
    """Hold the name of a file against other runs; `shown` is what they are told.

    The lock is on a hidden file beside the target, because the target itself is replaced.
    within : whether it is enough that the code around this holds the name.
    """
    if within and target in _HELD.get():
        yield
        return
    digest = hashlib.sha256(os.fsencode(target.name)).hexdigest()[:16]
    lock = target.with_name(f".{digest}.lock")
    try:
        file = open_alone(lock, _open_lock, shown)
    except OSError as error:
        raise cannot_write(shown, error) from error
    before = _HELD.set(_HELD.get() | {target})
    try:
        yield
    finally:
        _HELD.reset(before)
        with suppress(OSError):
            lock.unlink()
        os.close(file)


@contextmanager
def hold_folder(folder: Path, shown: Path, *, alone: bool) -> Iterator[None]:
    """Hold a folder against runs that want it alone, and against all others if that is `alone`.

    Where folders cannot be opened or locked, as on Windows, this does nothing.
    """
    try:
        file = os.open(folder, os.O_RDONLY)
    except OSError:
        yield
        return
    try:
        _lock(file, shown, alone)
        yield
    finally:
        os.close(file)


def open_alone(path: Path, opener: Callable[[Path], int], shown: Path) -> int:
    """The descriptor that `opener` makes of a file, once it is locked; `shown` is what is written.
    """
    while True:
        file = opener(path)
        try:
            _lock(file, shown)
            # Whoever had the lock before may have renamed or removed the file that is open here.
            if os.path.samestat(os.fstat(file), path.lstat()):
                return file
        except FileNotFoundError:
            pass
        except BaseException:
            os.close(file)
            raise
        os.close(file)


def unlock(file: int) -> None:
    """Let others have a file. Closing it is not enough while a map of it is left somewhere."""
    if fcntl is not None:
        with suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_UN)


def _open_lock(lock: Path) -> int:
    return os.open(lock, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)


def _lock(file: int, shown: Path, alone: bool = True) -> None:
    try:
        if fcntl is not None:
            fcntl.flock(file, (fcntl.LOCK_EX if alone else fcntl.LOCK_SH) | fcntl.LOCK_NB)
            return
        import msvcrt

        os.lseek(file, _BEYOND, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            raise BlockingIOError from None
        finally:
            os.lseek(file, 0, os.SEEK_SET)
    except BlockingIOError:
        raise InputError(
            f"cannot write {shown}: another run of crfield is writing there; wait until it has "
            "ended, or choose another name or folder."
        ) from None
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
