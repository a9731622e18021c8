"""What a mean-field run is told besides tensors; travels through compiled graphs as text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GRADIENTS = ("unrolled", "implicit")


@dataclass(frozen=True)
class TermSettings:
    """One pairwise term.

    on_grid : whether its features are the coordinates along the axes of the grid, one axis after
        the other, rather than one row a point.
    """

    on_grid: bool
    shape: str
    normalization: str


@dataclass(frozen=True)
class Settings:
    """One run of mean-field inference.

    gradient : "unrolled" goes back through every iteration; "implicit" takes the last marginals for
        a fixed point and needs no others.
    checkpoint : whether marginals are computed again for the way back instead of kept.
    tol : pairs below it may be left out of exact sums.
    """

    grid: tuple[int, ...]
    terms: tuple[TermSettings, ...]
    algorithm: str
    n_iter: int
    method: str
    tol: float
    gradient: str
    checkpoint: bool
    log_marginals: bool
    deterministic: bool
    threads: int | None

    def to_text(self) -> str:
        """All but the grid in words, simple enough to be put together inside a compiled graph."""
        terms = ",".join(
            [f"{int(t.on_grid)}:{t.shape}:{t.normalization}" for t in self.terms]
        )
        flags = [self.checkpoint, self.log_marginals, self.deterministic]
        words = [
            terms, self.algorithm, str(self.n_iter), self.method, str(self.tol),
            self.gradient, *[str(int(flag)) for flag in flags], str(self.threads or 0),
        ]
        return " ".join(words)

    @classmethod
    def from_text(cls, text: str, grid: Sequence[int]) -> Settings:
        """What `to_text` wrote."""
        terms, algorithm, n_iter, method, tol, gradient, *flags, threads = text.split(" ")
        parts = [part.split(":") for part in terms.split(",") if part]
        checkpoint, log_marginals, deterministic = (flag == "1" for flag in flags)
        return cls(
            grid=tuple(int(n) for n in grid),
            terms=tuple(
                TermSettings(on_grid == "1", shape, normalization)
                for on_grid, shape, normalization in parts
            ),
            algorithm=algorithm, n_iter=int(n_iter), method=method, tol=float(tol),
            gradient=gradient, checkpoint=checkpoint, log_marginals=log_marginals,
            deterministic=deterministic, threads=int(threads) or None,
        )
