"""Every evaluation of an objective on disk, so that an interrupted run can be taken up again.

An optimizer is a deterministic function of the values it is given. A resumed run starts from the
beginning and gets the recorded values for as long as it asks for the recorded points, bit for bit;
then it computes on. That works for any optimizer and loses at most the evaluation under way.

The file is one line of JSON that says what is being learned, then records of float64: the point,
the value, the loss, the gradient and the confusion matrix, each record followed by the CRC-32 of
the first line and itself. A record that was cut short, altered or made by another run ends the
file.
"""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from crfield._core.atomic import atomic_path, cannot_write
from crfield._core.optimize import Vector
from crfield._core.validate import InputError
from crfield.learning.objective import Point


class Journal:
    """Recorded evaluations of one run.

    path : the file; None keeps nothing.
    purpose : what is learned and from what; a file made for something else is refused.
    """

    def __init__(
        self, path: str | os.PathLike[str] | None, purpose: dict[str, Any], size: int,
        n_labels: int, *, resume: bool,
    ) -> None:
        self._size, self._n_labels = size, n_labels
        self._known: list[tuple[Vector, Point]] = []
        self._position = 0
        self._path = None if path is None else Path(path)
        self._header = (json.dumps(purpose, sort_keys=True) + "\n").encode()
        if self._path is None:
            return
        if resume and self._path.exists():
            self._read()
        else:
            self._replace(self._header)

    @property
    def n_known(self) -> int:
        """How many evaluations are on record."""
        return len(self._known)

    def recall(self, vector: Vector) -> Point | None:
        """The recorded value at the next point, if this is the point that was asked for then."""
        if self._position < len(self._known):
            point, value = self._known[self._position]
            if np.array_equal(point, vector):
                self._position += 1
                return value
            # The course differs from here on: what was recorded after it is of no use.
            self._known = self._known[: self._position]
            self._replace(b"".join([self._header, *(self._encode(v, p) for v, p in self._known)]))
        return None

    def record(self, vector: Vector, point: Point) -> None:
        """Append an evaluation; it is on the disk when this returns."""
        self._known.append((vector.copy(), point))
        self._position = len(self._known)
        if self._path is None:
            return
        try:
            with self._path.open("ab") as stream:
                stream.write(self._encode(vector, point))
                stream.flush()
                os.fsync(stream.fileno())
        except OSError as error:
            raise cannot_write(self._path, error) from error

    def _encode(self, vector: Vector, point: Point) -> bytes:
        numbers = np.concatenate([
            vector, [point.value, point.loss], point.gradient, point.confusion.ravel()
        ]).astype("<f8").tobytes()
        return numbers + self._check(numbers)

    def _check(self, numbers: bytes) -> bytes:
        """A checksum that records of another run, at work on the same file, do not have."""
        return zlib.crc32(numbers, zlib.crc32(self._header)).to_bytes(8, "little")

    def _read(self) -> None:
        assert self._path is not None
        data = self._path.read_bytes()
        end = data.find(b"\n") + 1
        if data[:end] != self._header:
            raise InputError(
                f"the journal {self._path} belongs to another run (other data, model or "
                "settings); resume with the same ones, or start afresh without --resume."
            )
        n, labels = self._size, self._n_labels
        length = 8 * (2 * n + 2 + labels * labels)
        whole = end
        while whole + length + 8 <= len(data):
            numbers = data[whole : whole + length]
            if self._check(numbers) != data[whole + length : whole + length + 8]:
                break
            values = np.frombuffer(numbers, "<f8").astype(np.float64)
            vector, rest = values[:n], values[n:]
            confusion = rest[2 + n :].reshape(labels, labels).astype(np.int64)
            point = Point(float(rest[0]), float(rest[1]), rest[2 : 2 + n], confusion)
            self._known.append((vector, point))
            whole += length + 8
        if whole < len(data):
            self._replace(data[:whole])

    def _replace(self, data: bytes) -> None:
        if self._path is None:
            return
        with atomic_path(self._path) as temporary:
            temporary.write_bytes(data)
