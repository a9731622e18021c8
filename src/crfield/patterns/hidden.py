"""Hidden units given their activations a (B, J): p*(h) ~ exp(a'h / T) over the allowed h.

A rule says which h are allowed: all ("sum"), exactly one active unit ("min"), or at most k of them.
T = 0 stands for the limit T -> 0, where p* sits on one best h.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray

Array = NDArray[np.float64]


class HiddenRule(Protocol):
    """Which h are allowed, with exact sums over them."""

    def log_partition(self, a: FloatArray, temperature: float) -> NDArray[np.float64]:
        """T log sum_h exp(a'h / T), (B,), from a (B, J); max_h a'h at T = 0."""

    def expected(self, a: FloatArray, temperature: float) -> FloatArray:
        """E[h] (B, J) under p*(h) ~ exp(a'h / T); one maximizer at T = 0."""

    def sample(
        self, a: FloatArray, temperature: float, rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """One draw of h (B, J) from p*(h) for each row."""


class AnyNumber:
    """All h in {0, 1}^J, independent of each other ("sum")."""

    def log_partition(self, a: FloatArray, temperature: float) -> NDArray[np.float64]:
        """sum_j T softplus(a_j / T); sum_j max(a_j, 0) at T = 0."""
        total = np.maximum(a, 0).sum(1, dtype=np.float64)
        if temperature > 0:
            total += soft_excess(a, temperature).sum(1)
        return np.asarray(total)

    def expected(self, a: FloatArray, temperature: float) -> FloatArray:
        """sigmoid(a_j / T), eq. 7; [a_j > 0] at T = 0."""
        if temperature == 0:
            return (a > 0).astype(a.dtype)
        return np.asarray(soft_threshold(a, temperature), a.dtype)

    def sample(
        self, a: FloatArray, temperature: float, rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Independent draws."""
        # In float32 one draw of 2^24 is 0, which is below any probability.
        uniform = rng.random(a.shape)
        return (uniform < self.expected(a, temperature)).astype(np.uint8)


class ExactlyOne:
    """h with one active unit ("min")."""

    def log_partition(self, a: FloatArray, temperature: float) -> NDArray[np.float64]:
        """T logsumexp_j(a_j / T); max_j a_j at T = 0."""
        return a.max(1).astype(np.float64) if temperature == 0 else soft_maximum(a, temperature)

    def expected(self, a: FloatArray, temperature: float) -> FloatArray:
        """softmax_j(a_j / T); the first maximum at T = 0."""
        if temperature == 0:
            return np.asarray(np.arange(a.shape[1]) == a.argmax(1)[:, None], a.dtype)
        weights = relative_weights(a, temperature)
        return np.asarray(weights / weights.sum(1, keepdims=True), a.dtype)

    def sample(
        self, a: FloatArray, temperature: float, rng: np.random.Generator
    ) -> NDArray[np.uint8]:
        """One categorical draw per row."""
        if temperature > 0:
            a = a + temperature * rng.gumbel(size=a.shape)
        return np.asarray(np.arange(a.shape[1]) == a.argmax(1)[:, None], np.uint8)


@dataclass(frozen=True)
class HiddenPosterior:
    """A distribution q over h, as far as the bound needs it.

    expected : (B, J), E_q[h].
    entropy : (B,), T H(q).
    """

    expected: FloatArray
    entropy: NDArray[np.float64]

    def bound(self, a: FloatArray) -> NDArray[np.float64]:
        """a'E_q[h] + T H(q) <= T log sum_h exp(a'h / T), (B,): eq. 9 with the T it lacks."""
        return _rowwise(a, self.expected) + self.entropy

    def take(self, rows: NDArray[Any]) -> HiddenPosterior:
        """The posteriors of the images numbered `rows` (b,)."""
        return HiddenPosterior(self.expected[rows], self.entropy[rows])


def posterior(rule: HiddenRule, a: FloatArray, temperature: float) -> HiddenPosterior:
    """p*(h) at activations `a` (eq. 10), where the bound is tight; that defines its entropy."""
    expected = rule.expected(a, temperature)
    return HiddenPosterior(expected, rule.log_partition(a, temperature) - _rowwise(a, expected))


def _rowwise(a: FloatArray, b: FloatArray) -> NDArray[np.float64]:
    """Dot products of rows, (B,), summed in float64."""
    return np.asarray(np.einsum("bj,bj->b", a, b, dtype=np.float64))


def soft_threshold(x: NDArray[Any], temperature: float) -> Array:
    """sigmoid(x / T)."""
    with np.errstate(over="ignore"):
        return np.asarray(0.5 + 0.5 * np.tanh(np.multiply(x, 0.5, dtype=np.float64) / temperature))


def soft_excess(x: NDArray[Any], temperature: float) -> Array:
    """T log(1 + exp(-|x| / T)), by which T softplus(x / T) exceeds max(x, 0)."""
    with np.errstate(over="ignore"):
        small = np.exp(-np.abs(x, dtype=np.float64) / temperature)
    return np.asarray(temperature * np.log1p(small))


def relative_weights(x: NDArray[Any], temperature: float) -> Array:
    """exp(x / T) divided by the largest of the row."""
    with np.errstate(over="ignore"):
        shifted = np.subtract(x, x.max(1, keepdims=True), dtype=np.float64) / temperature
    return np.asarray(np.exp(shifted))


def soft_maximum(x: NDArray[Any], temperature: float) -> Array:
    """T log sum_j exp(x_j / T) of each row."""
    return np.asarray(x.max(1) + temperature * np.log(relative_weights(x, temperature).sum(1)))
