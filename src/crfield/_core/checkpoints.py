"""Where a run stands, on disk, so that an interrupted one can be taken up again.

A run can be resumed in two ways:

- `Checkpoint` appends every evaluation. A resumed run starts from the beginning and gets the
  recorded values for as long as it asks for the recorded points, bit for bit; then it computes on.
  That works for any deterministic optimizer and loses at most the evaluation under way.
- `write_state` replaces the last state by the next one, where going on from a state is easy.

The file is one line of JSON that names the run, then records: the number of arrays and their
lengths (int64), their entries (float64), and the CRC-32 of the first line and all that. A record
that was cut short, altered or made by another run ends the file.
"""

from __future__ import annotations

import hashlib
import json
import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfield._core.atomic import atomic_path, cannot_write
from crfield._core.files import read_regular
from crfield._core.validate import InputError

Array = NDArray[np.float64]
Record = tuple[Array, ...]
AnyPath = str | os.PathLike[str]

_LONGEST_HEADER = 2**20


class Checkpoint:
    """Evaluations of one run in the order in which they were asked for.

    path : the file.
    run : what is computed, from what and how; a file that was made for something else is refused.
    resume : whether to go on from an existing file instead of starting a new one.
    """

    def __init__(self, path: AnyPath, run: dict[str, Any], *, resume: bool) -> None:
        self._path = Path(path)
        self._header = _header_of(run)
        self._position = 0
        self.records: list[Record] = []
        is_whole = False
        if resume and self._path.exists():
            self.records, is_whole = _read(self._path, run)
        elif not resume:
            _check_replaceable(self._path)
        if not is_whole:
            _write(self._path, self._header, self.records)

    def recall(self, point: Array) -> Record | None:
        """What was recorded of the next point, if this is the point that was asked for then."""
        if self._position == len(self.records):
            return None
        known, *found = self.records[self._position]
        if np.array_equal(known, point):
            self._position += 1
            return tuple(found)
        # The course differs from here on: what was recorded after it is of no use.
        self.records = self.records[: self._position]
        _write(self._path, self._header, self.records)
        return None

    def append(self, point: Array, *arrays: ArrayLike) -> None:
        """Add what was found at a point; it is on the disk when this returns."""
        record = _as_record((point, *arrays))
        self.records.append(record)
        self._position = len(self.records)
        try:
            with self._path.open("ab") as stream:
                stream.write(_encode(self._header, record))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise cannot_write(self._path, error) from error


def write_state(path: AnyPath, run: dict[str, Any], *arrays: ArrayLike) -> None:
    """Write the one state of a run; the file has the last or this one, whatever happens. A file
    that is no checkpoint is refused.
    """
    _check_replaceable(Path(path))
    _write(Path(path), _header_of(run), [_as_record(arrays)])


def read_state(path: AnyPath, run: dict[str, Any], *, resume: bool) -> Record | None:
    """The state in a file, None if there is no such file or the run is not to `resume`; that of
    another run is refused, and a file that is no checkpoint in any case.
    """
    if not resume:
        _check_replaceable(Path(path))
        return None
    if not Path(path).exists():
        return None
    records, is_whole = _read(Path(path), run)
    if not is_whole or len(records) != 1:
        raise damaged(path)
    return records[0]


def digest(description: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    """By what a run is told from one with another model or other data, whatever their size."""
    found = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype.str} {array.shape}".encode())
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()


def damaged(path: AnyPath) -> InputError:
    """The refusal for a state that is not what was written."""
    return InputError(
        f"checkpoint {os.fspath(path)} must hold one whole state, got a file that was cut short or "
        "altered; use another file, or start again without resuming."
    )


def _check_replaceable(path: Path) -> None:
    """Refuse to begin a checkpoint where another kind of file lies."""
    if not path.is_file() or path.stat().st_size == 0:
        return
    with path.open("rb") as stream:
        begin = stream.readline(_LONGEST_HEADER)
    if b'"format": "crfield.checkpoint"' not in begin:
        raise InputError(
            f"checkpoint must be a new file or replace a checkpoint, got {path}, which is "
            "something else; choose another name."
        )


def _header_of(run: dict[str, Any]) -> bytes:
    named = {"format": "crfield.checkpoint", "version": 1, **run}
    return (json.dumps(named, sort_keys=True) + "\n").encode()


def _as_record(arrays: tuple[ArrayLike, ...]) -> Record:
    return tuple(np.array(array, np.float64).ravel() for array in arrays)


def _write(path: Path, header: bytes, records: list[Record]) -> None:
    with atomic_path(path) as temporary:
        temporary.write_bytes(b"".join([header, *(_encode(header, r) for r in records)]))


def _encode(header: bytes, record: Record) -> bytes:
    lengths = np.array([len(record), *map(len, record)], "<i8")
    content = b"".join([lengths.tobytes(), *(a.astype("<f8").tobytes() for a in record)])
    return content + _checksum(header, content)


def _checksum(header: bytes, content: bytes) -> bytes:
    """A checksum that records of another run, at work on the same file, do not have."""
    return zlib.crc32(content, zlib.crc32(header)).to_bytes(8, "little")


def _read(path: Path, run: dict[str, Any]) -> tuple[list[Record], bool]:
    """The sound records of a file, and whether nothing else is in it."""
    data = read_regular(path, "checkpoint", memory=3.0)
    header = _header_of(run)
    position = data.find(b"\n") + 1
    if data[:position] != header:
        raise InputError(
            f"checkpoint {path} belongs to another run{_differences(data[:position], header)}; "
            "resume with the same ones, or start again without resuming."
        )
    records: list[Record] = []
    while (found := _decode(header, data, position)) is not None:
        record, position = found
        records.append(record)
    return records, position == len(data)


def _decode(header: bytes, data: bytes, position: int) -> tuple[Record, int] | None:
    """The record that begins there and where it ends; None if there is no sound one."""
    begin = position + 8
    if begin > len(data):
        return None
    count = int.from_bytes(data[position:begin], "little")
    begin += 8 * count
    if begin > len(data):
        return None
    lengths = [int(n) for n in np.frombuffer(data[position + 8 : begin], "<u8")]
    end = begin + 8 * sum(lengths)
    if _checksum(header, data[position:end]) != data[end : end + 8]:
        return None
    numbers = np.frombuffer(data[begin:end], "<f8").astype(np.float64)
    return tuple(np.split(numbers, np.cumsum(lengths)[:-1])), end + 8


def _differences(found: bytes, expected: bytes) -> str:
    """In what two runs differ, where that can be told."""
    try:
        other, own = json.loads(found), json.loads(expected)
        names = [name for name, value in own.items() if other.get(name) != value]
    except (ValueError, RecursionError, AttributeError):
        return ""
    return f" with other {', '.join(names)}" if names else ""
