"""At most k active hidden units: exact log-partition, marginals and samples in O(J k).

That m of the first j units are active has the log-weight l_j[m] / T (elementary symmetric
polynomials of exp(a / T) in log space),

    l_j[m] = T log(exp(l_{j-1}[m] / T) + exp((l_{j-1}[m-1] + a_j) / T)),

and the share of the second term is p(h_j = 1 | m active among the first j), from which marginals
and samples follow by going back (CHOPP section 4 points to Swersky et al., Cardinality restricted
Boltzmann machines). Nothing is divided by T before differences are taken, so that any T works.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray, check_memory
from crfield.patterns.hidden import (
    Array,
    relative_weights,
    soft_excess,
    soft_maximum,
    soft_threshold,
)

# Stands for log 0; finite, so that differences of two of them are numbers.
_IMPOSSIBLE = -1e300
_CHUNK_BYTES = 2**26


@dataclass(frozen=True)
class AtMost:
    """h in {0, 1}^J with at most `k` ones."""

    k: int

    def log_partition(self, a: FloatArray, temperature: float) -> Array:
        """T log sum_h exp(a'h / T), (B,), from a (B, J)."""
        if temperature == 0:
            return np.asarray((a * _largest(a, self.k)).sum(1, dtype=np.float64))
        counts = np.full((len(a), self.k + 1), _IMPOSSIBLE)
        counts[:, 0] = 0.0
        for column in _columns(a):
            _extend(counts, column, temperature, counts)
        return soft_maximum(counts, temperature)

    def expected(self, a: FloatArray, temperature: float) -> FloatArray:
        """E[h] (B, J) under p*(h) ~ exp(a'h / T); the k largest positive a at T = 0."""
        if temperature == 0:
            return _largest(a, self.k).astype(a.dtype)
        result = np.empty_like(a)
        for rows in self._chunks(a):
            self._expected(a[rows], temperature, result[rows])
        return result

    def sample(
        self, a: FloatArray, temperature: float, rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """One draw of h (B, J) from p*(h) for each row."""
        if temperature == 0:
            return _largest(a, self.k).astype(np.uint8)
        result = np.empty(a.shape, np.uint8)
        for rows in self._chunks(a):
            self._sample(a[rows], temperature, rng, result[rows])
        return result

    def _chunks(self, a: FloatArray) -> Iterator[slice]:
        """Rows to treat at a time, so that the table of counts stays small."""
        row_bytes = 8.0 * (a.shape[1] + 1) * (self.k + 1)
        if row_bytes > _CHUNK_BYTES:
            check_memory(
                row_bytes, f"A limit of {self.k} of {a.shape[1]} hidden units",
                "lower max_active, or leave it out",
            )
        size = max(1, int(_CHUNK_BYTES / row_bytes))
        for start in range(0, len(a), size):
            yield slice(start, start + size)

    def _table(self, a: FloatArray, temperature: float) -> tuple[Array, Array]:
        """l_j[m] for all j, (J + 1, B, k + 1), and a transposed, (J, B, 1)."""
        columns = _columns(a)
        table = np.full((len(columns) + 1, len(a), self.k + 1), _IMPOSSIBLE)
        table[0, :, 0] = 0.0
        for j, column in enumerate(columns):
            _extend(table[j], column, temperature, table[j + 1])
        return table, columns

    def _expected(self, a: FloatArray, temperature: float, out: FloatArray) -> None:
        table, columns = self._table(a, temperature)
        # P(m active among the first j), from j = J down.
        reached = relative_weights(table[-1], temperature)
        reached /= reached.sum(1, keepdims=True)
        for j in range(len(columns) - 1, -1, -1):
            active = reached[:, 1:] * _taken(table[j], columns[j], temperature)
            out[:, j] = active.sum(1)
            reached[:, 1:] -= active
            reached[:, :-1] += active

    def _sample(
        self, a: FloatArray, temperature: float, rng: np.random.Generator, out: NDArray[np.uint8]
    ) -> None:
        table, columns = self._table(a, temperature)
        rows = np.arange(len(a))
        left = (table[-1] + temperature * rng.gumbel(size=table[-1].shape)).argmax(1)
        uniform = rng.random((len(columns), len(a)))
        for j in range(len(columns) - 1, -1, -1):
            taken = _taken(table[j], columns[j], temperature)[rows, np.maximum(left - 1, 0)]
            out[:, j] = (left > 0) & (uniform[j] < taken)
            left -= out[:, j]


def _columns(a: FloatArray) -> Array:
    """The activations of one unit after another, (J, B, 1)."""
    return np.ascontiguousarray(a.T, np.float64)[:, :, None]


def _extend(counts: Array, column: Array, temperature: float, out: Array) -> None:
    """One step of the recursion; `out` may be `counts`."""
    without, with_unit = counts[:, 1:], counts[:, :-1] + column
    excess = soft_excess(with_unit - without, temperature)
    out[:, 1:] = np.maximum(without, with_unit) + excess
    out[:, 0] = counts[:, 0]


def _taken(counts: Array, column: Array, temperature: float) -> Array:
    """p(h_j = 1 | m active among the first j) for m = 1..k, (B, k), from l_{j-1} (B, k + 1)."""
    return soft_threshold(counts[:, :-1] + column - counts[:, 1:], temperature)


def _largest(a: FloatArray, k: int) -> NDArray[Any]:
    """Which entries of each row are positive and among its k largest; the first of equals wins."""
    order = np.argsort(-a, axis=1, kind="stable")[:, :k]
    chosen = np.zeros(a.shape, bool)
    np.put_along_axis(chosen, order, np.take_along_axis(a, order, 1) > 0, 1)
    return chosen
