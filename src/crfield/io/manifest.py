"""What a folder of results holds, from what and how it was made: a log that is only appended to.

Every line is a JSON object. `begun` lists files that a run may put in place from then on; it is on
the disk before the first of them is. `done` names a result once it is in place, with its `files`
and the `inputs` that it was made from, each as [name, size in bytes, time of change in ns, SHA-256
of its content], and the SHA-256 of the `settings`. The last line that names a file holds. A line
that was cut short is passed over, and what it would have told is done again. Each line is one write
at the end of the file, so several processes may append to it.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import stat
from collections.abc import Iterable, Sequence
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from crfield._core.atomic import cannot_write
from crfield._core.files import open_regular
from crfield._core.validate import InputError

MANIFEST = ".crfield-manifest.jsonl"
_LONGEST_LINE = 2**20  # whatever is longer was not written here
_DO_NOT_WAIT = getattr(os, "O_NONBLOCK", 0)  # for somebody to write into a pipe

# Size, time of change in ns, SHA-256. The first two tell that a file is as it was without reading
# it; the last that one which was copied, touched or checked out again is.
Fingerprint = tuple[int, int, str]
AnyPath = str | os.PathLike[str]


class Manifest:
    """The log of a folder, to be added to."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / MANIFEST
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_BINARY", 0)
        try:
            self._file = os.open(self.path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)
        except OSError as error:
            raise cannot_write(self.path, error) from error
        size = os.fstat(self._file).st_size
        os.lseek(self._file, max(size - 1, 0), os.SEEK_SET)
        self._is_whole = size == 0 or os.read(self._file, 1) == b"\n"

    def __enter__(self) -> Manifest:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._file)

    def begin(self, names: Iterable[str]) -> None:
        """Announce files that are about to be written; this is on the disk when it returns."""
        self._append({"begun": list(names)})
        try:
            os.fsync(self._file)
        except OSError as error:
            raise cannot_write(self.path, error) from error

    def finish(
        self, files: Sequence[Path], inputs: Sequence[tuple[Path, Fingerprint]], settings: str
    ) -> None:
        """Record a result that is in place; its first file names it."""
        self._append({
            "done": files[0].name,
            "files": [(path.name, *fingerprint(path)) for path in files],
            "inputs": [(str(path), *known) for path, known in inputs],
            "settings": settings,
        })

    def _append(self, line: dict[str, Any]) -> None:
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if not self._is_whole:
            data = b"\n" + data
        try:
            n_written = os.write(self._file, data)
            self._is_whole = n_written == len(data)
            if not self._is_whole:
                os.write(self._file, data[n_written:])  # fails with the reason, a full disk
        except OSError as error:
            raise cannot_write(self.path, error) from error


class History:
    """What the log of a folder says.

    It keeps where in the log the last line about each file begins, not the lines.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lines: dict[str, int] = {}  # -1 for what was only begun
        self._stream: BinaryIO | None = None
        if not os.path.lexists(folder / MANIFEST):
            return
        self._stream = open_regular(folder / MANIFEST, "log")
        start = 0
        for text in iter(functools.partial(self._stream.readline, _LONGEST_LINE), b""):
            line = _parsed(text)
            self._lines.update(dict.fromkeys(line.get("begun", ()), -1))
            self._lines.update((entry[0], start) for entry in line.get("files", ()))
            start += len(text)

    def __enter__(self) -> History:
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()

    def was_begun(self, name: str) -> bool:
        """Whether a run has announced a file and not finished it."""
        return self._lines.get(name) == -1

    def owns(self, name: str) -> bool:
        """Whether a file of the folder is as a run has left it, or may have."""
        if self.was_begun(name):
            return True
        files = self._line_about(name).get("files", ())
        return any(is_unchanged(self._folder / name, e[1:]) for e in files if e[0] == name)

    def files_of(self, name: str, inputs: Sequence[AnyPath], settings: str) -> list[str]:
        """The names of a result's files, if it is finished and neither they nor what it was made
        from have changed; else there are none.
        """
        line = self._line_about(name)
        files, made_from = line.get("files", ()), line.get("inputs", ())
        is_done = (
            line.get("settings") == settings and len(made_from) == len(inputs)
            and all(is_unchanged(self._folder / entry[0], entry[1:]) for entry in files)
            and all(map(is_unchanged, inputs, (entry[1:] for entry in made_from)))
        )
        return [entry[0] for entry in files] if is_done else []

    def _line_about(self, name: str) -> dict[str, Any]:
        start = self._lines.get(name, -1)
        if start < 0 or self._stream is None:
            return {}
        self._stream.seek(start)
        return _parsed(self._stream.readline(_LONGEST_LINE))


def fingerprint(path: AnyPath, known: os.stat_result | None = None) -> Fingerprint:
    """Size, time of change and SHA-256 of a file; `known` is its status where that was asked."""
    status = os.stat(path) if known is None else known
    with _open_regular(path) as stream:
        content = hashlib.file_digest(stream, "sha256").hexdigest()
    return status.st_size, status.st_mtime_ns, content


def is_unchanged(path: AnyPath, known: Sequence[Any]) -> bool:
    """Whether a file is what it was when its fingerprint was taken."""
    try:
        status = os.stat(path)
        size, changed, content = known
        if status.st_size != size:
            return False
        return bool(status.st_mtime_ns == changed or fingerprint(path, status)[2] == content)
    except (OSError, ValueError):
        return False


def _open_regular(path: AnyPath) -> BufferedReader:
    """A file to read, which is no pipe and no device."""
    stream = open(  # noqa: SIM115
        path, "rb", opener=lambda name, flags: os.open(name, flags | _DO_NOT_WAIT)
    )
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise InputError(f"cannot read {os.fspath(path)}: it is not a regular file; remove it.")
    return stream


def _parsed(text: bytes) -> dict[str, Any]:
    """A line; nothing if it is not one that this module has written."""
    try:
        line = json.loads(text)
        files = [*line.get("begun", ()), *(entry[0] for entry in line.get("files", ()))]
        entries = [entry for key in ("files", "inputs") for entry in line.get(key, ())]
        # Files lie in the folder itself: no name leads out of it.
        sound = all(os.path.basename(name) == name != "" for name in files) and all(
            len(entry) == 4 for entry in entries
        )
        return line if sound else {}
    except (ValueError, RecursionError, AttributeError, TypeError, LookupError):
        return {}
