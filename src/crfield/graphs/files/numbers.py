"""Numbers in text files: many at a time, and the line of each where something is wrong with it."""

from __future__ import annotations

import math
import re
from array import array
from collections.abc import Sequence
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, InvalidOperation
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.files import read_regular
from crfield._core.validate import InputError, as_path, shown
from crfield.graphs.factors import Doubles

_BLOCK = 1 << 22  # bytes that are split into words at a time
_LARGEST_WHOLE = 2.0**53
_LOG_10 = math.log(10)
_SMALLEST = np.finfo(np.float64).tiny  # below it digits are lost
# Whatever the program that we are part of has set.
_DECIMALS = Context(prec=28, Emin=MIN_EMIN, Emax=MAX_EMAX, traps=[InvalidOperation])


class NumberFile:
    """The numbers of a text file, with any white space between them.

    path : file; first_words : what it may begin with, in any case, or nothing.

    Attributes
    ----------
    word : the first word, in capitals.
    values : (n,) float64.
    logs : log of the magnitude of those numbers that a float64 has no room for, by their index.
    """

    def __init__(self, path: Any, first_words: Sequence[str] = ()):
        self.path = as_path(path)
        self._data = _read(self.path)
        self.word = ""
        begin = 0
        if first_words:
            match = re.match(rb"\s*(\S+)", self._data)
            found = match[1] if match else b""
            self.word = found.upper().decode("ascii", "replace")
            if match is None or self.word not in first_words:
                raise InputError(
                    f"{self.path}: expected {' or '.join(first_words)} as the first word, got "
                    f"{_quoted(found)}; check that it is a UAI model."
                )
            begin = match.end()
        self._n_before = len(first_words) and 1
        self.logs: dict[int, float] = {}
        self.values = self._parse(begin)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def words_by_line(self) -> list[int]:
        """Number of words in each line that has any."""
        counts = (len(line.split()) for line in self._data.splitlines())
        return [count for count in counts if count]

    def refusal(
        self, index: int, expected: str, remedy: str = "correct it there", doubt: str = ""
    ) -> InputError:
        """The error for number `index`, or for the end of the file, being something else; `doubt`
        is added to the remedy, whichever it is."""
        match = self._find(index)
        got, hint = "the end of the file", "it seems to be cut short"
        if match is not None:
            got, hint = _quoted(match[0]), remedy
        where = f"{self.path}, {self.place(index)}"
        return InputError(f"{where}: expected {expected}, got {got}; {hint}{doubt}.")

    def place(self, index: int) -> str:
        """Where number `index` stands, or would stand, in the file."""
        match = self._find(index)
        end = len(self._data.rstrip()) if match is None else match.start()
        line = self._data.count(b"\n", 0, end) + 1
        if match is None:
            return f"line {line}, after word {len(self) + self._n_before}"
        return f"line {line}, word {index + self._n_before + 1}"

    def _find(self, index: int) -> re.Match[bytes] | None:
        return next(islice(re.finditer(rb"\S+", self._data), index + self._n_before, None), None)

    def whole(self, index: int, expected: str, least: int, most: float = _LARGEST_WHOLE) -> int:
        """A whole number within [least, most]."""
        value = self.values[index] if index < len(self) else math.nan
        if not (least <= value <= most and value == math.floor(value)):
            raise self.refusal(index, expected)
        return int(value)

    def first_not_whole(
        self, indices: NDArray[np.int64], least: int, most: float = _LARGEST_WHOLE
    ) -> int | None:
        """Place among `indices` of the first number that is not whole or outside [least, most]."""
        values = self.values[indices]
        bad = ~((values >= least) & (values <= most) & (values == np.floor(values)))
        return int(np.argmax(bad)) if bad.any() else None

    def _parse(self, begin: int) -> Doubles:
        numbers = array("d")
        while begin < len(self._data):
            end = _next_space(self._data, begin + _BLOCK)
            words = self._data[begin:end].split()
            convert = _float_or_nan if b"_" in self._data[begin:end] else float
            try:
                block = np.fromiter(map(convert, words), np.float64, len(words))
            except ValueError:
                block = np.fromiter(map(_float_or_nan, words), np.float64, len(words))
            self._look_closer(words, block, len(numbers))
            numbers.frombytes(block.tobytes())
            begin = end
        return np.frombuffer(numbers, np.float64) if numbers else np.zeros(0)

    def _look_closer(self, words: list[bytes], block: Doubles, n_before: int) -> None:
        """Tell what is no number, and what is one but too large or too small, from the rest."""
        odd = np.flatnonzero((np.abs(block) < _SMALLEST) | ~np.isfinite(block))
        known: dict[bytes, float | None] = {}  # zeros are many but spelt in a few ways
        for index in odd.tolist():
            word = words[index]
            if word not in known:
                known[word] = _log_beyond_doubles(word)
            log = known[word]
            if log is None:
                continue
            if math.isnan(log):
                raise self.refusal(n_before + index, "a finite number")
            # Not 0, so that it is neither a whole number nor taken for what is forbidden.
            block[index] = block[index] or math.copysign(5e-324, block[index])
            self.logs[n_before + index] = log


def potential_words(costs: Doubles) -> list[str]:
    """exp(-cost) as the shortest text that gives it back, also where it is beyond float64."""
    with np.errstate(over="ignore", under="ignore"):
        values = np.exp(-costs)
    words = list(map(repr, values.tolist()))
    beyond = (values < _SMALLEST) | (values == np.inf)
    for index in np.flatnonzero(beyond & np.isfinite(costs)).tolist():
        log10 = -float(costs[index]) / _LOG_10
        exponent = math.floor(log10)
        words[index] = f"{10 ** (log10 - exponent)!r}e{exponent}"
    return words


def _read(path: Path) -> bytes:
    data = read_regular(path, "graph", memory=5.0)
    if b"\0" in data:
        raise InputError(f"{path} is not a text file; unpack it if it is compressed.")
    if not data or data.isspace():
        raise InputError(f"{path} is empty, expected numbers; check the file.")
    return data


def _next_space(data: bytes, begin: int) -> int:
    """Where the word that goes on at `begin` ends."""
    match = re.compile(rb"\s").search(data, begin)
    return match.start() if match else len(data)


def _float_or_nan(word: bytes) -> float:
    try:
        return math.nan if b"_" in word else float(word)  # 1_000 is a number in Python only
    except ValueError:
        return math.nan


def _log_beyond_doubles(word: bytes) -> float | None:
    """log of what underflows or overflows; None for 0; NaN for what is no finite number."""
    try:
        number = Decimal(word.decode("ascii"), _DECIMALS)
    except (InvalidOperation, UnicodeDecodeError):
        return math.nan
    if b"_" in word or not number.is_finite():
        return math.nan
    if number.is_zero():
        return None
    exponent = number.adjusted()
    return math.log(abs(float(number.scaleb(-exponent, _DECIMALS)))) + exponent * _LOG_10


def _quoted(word: bytes) -> str:
    return shown(word.decode("utf-8", "replace")) if word else "nothing"
