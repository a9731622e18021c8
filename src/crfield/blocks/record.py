"""The record of finished blocks, by which a run that was cut short goes on.

The file is one line of JSON that names the run, then one entry per block, in order: a line of JSON,
the marginals at faces whose other side is still to come, and the CRC-32 of the first line and all
that. An entry that was cut short or altered ends the record. An entry is written after the result
of its block is on the disk, with digests of what the block was computed from and of its result:
a block counts as finished if both are found again.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import math
import os
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray
from crfield.blocks.unfinished import hidden_path, open_hidden, remove_partial, writing
from crfield.dense.results import InferenceStatus

FORMAT = "crfield.blocks"
VERSION = 1

_LONGEST_LINE = 1 << 16
_CHECKSUM = 4  # bytes


@dataclass(frozen=True)
class Finished:
    """What is known of a finished block besides its result.

    seen : digest of the parts of the inputs that it was computed from.
    written : digest of its result as it was stored.
    status : why inference stopped.
    bound : size of the core, mean and largest bound there; None if there is none.
    sums : what the seams of all blocks so far came to, as `SeamMeter.sums`.
    layers : by axis, marginals (n, L) beyond its core that the next block is compared with.
    """

    seen: str
    written: str
    status: InferenceStatus
    bound: tuple[int, float, float] | None
    sums: tuple[int, int, float, float]
    layers: dict[int, FloatArray]


class Record:
    """The finished blocks of one run; the file is gone once the run is complete.

    files : final names of the files that the run writes; the record lies beside the first. None of
        them, and nothing is recorded.
    run : digest of everything that the result depends on, besides the parts of the inputs.
    dtype : that of the marginals.
    active : whether the run can go on: all its results are in files.
    """

    def __init__(
        self, files: Sequence[Path], run: str, dtype: np.dtype[Any], active: bool
    ) -> None:
        self._files, self._dtype = files, dtype
        self.active = active and bool(files)
        self.n_finished = 0
        self._begun = self._given_up = False
        self._stream: BinaryIO | None = None
        if files:
            self._path = hidden_path(files[0], "blocks")
            named = {
                "format": FORMAT, "version": VERSION, "run": run,
                "files": [os.path.relpath(each, files[0].parent) for each in files],
            }
            self._header = (json.dumps(named, sort_keys=True) + "\n").encode()

    def __enter__(self) -> Record:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            with suppress(OSError):  # the end of an entry for which there is no room
                self._stream.close()
        if self._begun and not (error is not None and self.keeps(True)):
            with suppress(OSError):
                self._path.unlink()

    def keeps(self, was_there: bool) -> bool:
        """Whether unfinished files stay after an error: with finished blocks in them, and those of
        an earlier run as long as this one has not looked at them.
        """
        if not self._begun:
            return was_there
        return self.n_finished > 0 and not self._given_up

    @property
    def remains(self) -> bool:
        """Whether there is something to go on from after an error."""
        return self.keeps(False) and self._path.exists()

    def give_up(self) -> None:
        """Leave nothing behind."""
        self._given_up = True

    def go_on(self, holds: Callable[[int, Finished], bool]) -> None:
        """Find the blocks that an earlier run has finished, and go on after the last one.

        holds : given the number of a block and its entry, whether it is still true.

        Call this when all files are locked.
        """
        if not self._files:
            return
        header, position = b"", 0
        if os.path.lexists(self._path):
            with writing(self._files[0]):
                earlier = open_hidden(self._path)
            with earlier:
                header = earlier.readline(_LONGEST_LINE)
                if header == self._header and self.active:
                    position = self._count_finished(earlier, holds)
        self._begun = True
        if position == 0:
            self._remove_what_is_not_ours(header)
        with writing(self._files[0]):
            self._stream = open_hidden(self._path)
            self._stream.truncate(position)
            self._stream.seek(position)
            if position == 0:
                self._stream.write(self._header)
                self._stream.flush()

    def append(self, finished: Finished) -> None:
        """Add a block whose result is on the disk; it is in the record when this returns."""
        if not self.active or self._stream is None:
            return
        described = {
            "seen": finished.seen, "written": finished.written, "status": finished.status.name,
            "bound": finished.bound, "sums": finished.sums,
            "layers": [[axis, *layer.shape] for axis, layer in finished.layers.items()],
        }
        content = b"".join([
            (json.dumps(described) + "\n").encode(),
            *(layer.astype(self._dtype).tobytes() for layer in finished.layers.values()),
        ])
        with writing(self._files[0]):
            self._stream.write(content + self._checksum(content))
            self._stream.flush()
            os.fsync(self._stream.fileno())
        self.n_finished += 1

    def _count_finished(
        self, stream: BinaryIO, holds: Callable[[int, Finished], bool]
    ) -> int:
        """Where the entries end that hold; `n_finished` tells how many there are."""
        size, position = os.fstat(stream.fileno()).st_size, stream.tell()
        while (entry := self._read(stream, size)) and holds(self.n_finished, entry):
            self.n_finished += 1
            position = stream.tell()
        return position

    def _remove_what_is_not_ours(self, header: bytes) -> None:
        """Remove unfinished files of the run that has left this first line of a record."""
        for name in _files_of(header):
            other = Path(os.path.normpath(self._files[0].parent / name))
            if other not in self._files:
                remove_partial(other)

    def _read(self, stream: BinaryIO, size: int) -> Finished | None:
        """The next entry; None if there is no sound one."""
        line = stream.readline(_LONGEST_LINE)
        try:
            entry = json.loads(line)
            shapes = [(int(axis), int(n), int(columns)) for axis, n, columns in entry["layers"]]
            lengths = [n * columns * self._dtype.itemsize for _, n, columns in shapes]
            if min(lengths, default=0) < 0 or sum(lengths) > size - stream.tell():
                return None
            stored = stream.read(sum(lengths))
            if stream.read(_CHECKSUM) != self._checksum(line + stored):
                return None
            layers, begin = {}, 0
            for (axis, n, columns), length in zip(shapes, lengths, strict=True):
                part = np.frombuffer(stored[begin : begin + length], self._dtype)
                layers[axis] = part.reshape(n, columns)
                begin += length
            bound = entry["bound"]
            return Finished(
                entry["seen"], entry["written"], InferenceStatus[entry["status"]],
                None if bound is None else tuple(bound), tuple(entry["sums"]), layers,
            )
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
            return None

    def _checksum(self, content: bytes) -> bytes:
        """A checksum that entries of another run do not have."""
        return zlib.crc32(content, zlib.crc32(self._header)).to_bytes(_CHECKSUM, "little")


def digest_of_run(**settings: Any) -> str:
    """A digest of settings: numbers, words, arrays, and dataclasses of them."""
    # By name, because the package itself imports this room.
    settings["crfield"] = importlib.import_module("crfield").__version__
    text = json.dumps(_plain(settings), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def digest(*arrays: NDArray[Any] | None) -> str:
    """A digest of types, shapes and entries."""
    found = hashlib.sha256()
    for array in arrays:
        if array is None:
            found.update(b"none")
            continue
        found.update(f"{array.dtype.str} {array.shape}".encode())
        if math.prod(array.shape):
            found.update(np.ascontiguousarray(array).data.cast("B"))
    return found.hexdigest()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    if isinstance(value, np.ndarray):
        return digest(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        parts = {each.name: getattr(value, each.name) for each in dataclasses.fields(value)}
        return [type(value).__qualname__, _plain(parts)]
    if isinstance(value, np.generic):
        return value.item()
    if value is None or isinstance(value, bool | int | float | str):
        return value
    return repr(value)  # nothing that is known; if it has no fixed form, the run starts anew


def _files_of(header: bytes) -> list[str]:
    """Names in the first line of a record, none if it is something else."""
    try:
        found = json.loads(header)
        files = found["files"] if found["format"] == FORMAT else []
        return [name for name in files if isinstance(name, str) and "\0" not in name]
    except (ValueError, KeyError, TypeError, RecursionError):
        return []
