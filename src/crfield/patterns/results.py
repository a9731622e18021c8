"""What MAP inference with patterns gives back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray


class PatternStatus(Enum):
    """Why EM stopped; the value says what to do about it."""

    CONVERGED = "Converged: for every image another step finds no better labels."
    MAX_ITER = (
        "Stopped at max_iter while the labels of some images still changed; raise max_iter."
    )


@dataclass(frozen=True)
class PatternResult:
    """Labels and how they came about.

    Between EM steps scores[t - 1] <= bounds[t] <= scores[t]: the M-step raises the bound from where
    the last E-step made it tight, and the next E-step makes it tight again.

    Attributes
    ----------
    labels : (B, H, W).
    scores : (n_steps, B), log P(y | x) + log Z = -E(y | x) at the start and after each step; an
        image that has stopped repeats its last.
    bounds : (n_steps, B), the bound of eq. 11 on it after each M-step, with the q before it.
    n_iter : (B,), steps done.
    converged : (B,), whether the last step found no better labels.
    restart : (B,), the start that led to the labels: 0, or the number of the restart.
    """

    labels: NDArray[Any]
    scores: NDArray[np.float64]
    bounds: NDArray[np.float64]
    n_iter: NDArray[np.int64]
    converged: NDArray[np.bool_]
    restart: NDArray[np.int64]

    @property
    def energies(self) -> NDArray[np.float64]:
        """E(y | x) of the labels, (B,)."""
        return np.asarray(-self.scores[-1])

    @property
    def status(self) -> PatternStatus:
        """Why inference stopped, for the whole batch."""
        return PatternStatus.CONVERGED if self.converged.all() else PatternStatus.MAX_ITER

    def better(self, other: PatternResult) -> PatternResult:
        """For each image the lower in energy of this result and the `other`; this where equal."""
        wins = other.scores[-1] > self.scores[-1]
        n_steps = max(len(self.scores), len(other.scores))
        return PatternResult(
            np.where(wins[:, None, None], other.labels, self.labels),
            np.where(wins, _padded(other.scores, n_steps), _padded(self.scores, n_steps)),
            np.where(wins, _padded(other.bounds, n_steps), _padded(self.bounds, n_steps)),
            np.where(wins, other.n_iter, self.n_iter),
            np.where(wins, other.converged, self.converged),
            np.where(wins, other.restart, self.restart),
        )

    def __repr__(self) -> str:
        n, height, width = self.labels.shape
        return (
            f"PatternResult({n} images of {height}x{width}, at most {self.n_iter.max()} steps, "
            f"mean energy {-self.scores[0].mean():.6g} -> {self.energies.mean():.6g}, "
            f"{self.status.name})"
        )


def _padded(history: NDArray[np.float64], n_steps: int) -> NDArray[np.float64]:
    """The history with its last row repeated."""
    missing = np.repeat(history[-1:], n_steps - len(history), 0)
    return np.concatenate([history, missing])
