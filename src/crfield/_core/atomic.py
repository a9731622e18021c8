"""Files that appear whole or not at all, even when the program is killed while it writes."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from crfield._core.validate import InputError


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Name of a temporary file beside `path` that takes its place once it is safely on the disk."""
    target = file_to_replace(path)
    # The suffix stays last, because the writers choose their format by it.
    suffixes = "".join(target.suffixes[-2:])
    temporary = target.with_name(f".{secrets.token_hex(8)}{suffixes}")
    try:
        # Created by hand rather than with tempfile, so that the file gets the usual permissions.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        yield temporary
        with temporary.open("rb+") as stream:
            os.fsync(stream.fileno())
        temporary.replace(target)
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):  # there is none if its folder is missing or is no folder
            temporary.unlink()


def file_to_replace(path: Path) -> Path:
    """The file itself where `path` is a link to it; only a regular file may be there already."""
    try:
        target = Path(os.path.realpath(path))
        taken = target.exists() and not target.is_file()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise InputError(
            f"cannot write {str(path)!r}: {str(reason).lower()}; choose another name."
        ) from None
    if taken:
        raise InputError(f"cannot write {path}: it is not a regular file; choose another name.")
    return target


def check_writable(path: Path) -> None:
    """Refuse, before any work is done, a file that could not be written; nothing is left behind."""
    with suppress(_Rehearsed), atomic_path(path):
        raise _Rehearsed


def cannot_write(path: Path, error: OSError) -> InputError:
    """The refusal for a file that the system did not let us write."""
    reason = (error.strerror or str(error)).lower()
    full = error.errno in (errno.ENOSPC, errno.EFBIG, getattr(errno, "EDQUOT", None))
    remedy = "make room there" if full else "choose a folder that exists and is writable"
    return InputError(f"cannot write {path}: {reason}; {remedy}.")


class _Rehearsed(Exception):
    """Ends a rehearsal of writing before the file takes its place."""
