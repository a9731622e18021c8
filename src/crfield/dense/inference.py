"""How inference is to be done, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from crfield._core.threads import thread_count
from crfield._core.validate import InputError, as_choice, as_count, as_scalar
from crfield.dense.filters import METHODS
from crfield.dense.meanfield import ALGORITHMS


@dataclass(frozen=True)
class Inference:
    """How marginals are found, for whatever does inference as a part of something larger.

    Parameters
    ----------
    algorithm : "concave" (KK13 3.2), "cccp" (KK13 3.1), "parallel" (KK11, no guarantee) or
        "sequential" (one variable at a time, few variables); None is the model's.
    filter : how kernels are summed, "auto", "lattice" or "exact".
    filter_tol : pairs below it may be left out of exact sums.
    max_iter : most iterations; None is the model's number.
    tol : stop when no marginal moves by more than this; 0 never stops early.
    threads : native threads, None for all cores.
    """

    algorithm: str | None = None
    filter: str = "auto"
    filter_tol: float = 0.0
    max_iter: int | None = None
    tol: float = 1e-3
    threads: int | None = None

    def __post_init__(self) -> None:
        if self.algorithm is not None:
            as_choice(self.algorithm, "algorithm", ALGORITHMS)
        as_choice(self.filter, "filter", METHODS)
        if self.max_iter is not None:
            object.__setattr__(self, "max_iter", as_count(self.max_iter, "max_iter", 0))
        for name in ("filter_tol", "tol"):
            value = as_scalar(getattr(self, name), name)
            if value < 0:
                raise InputError(f"{name} must not be negative, got {value:g}; use 0 for none.")
            object.__setattr__(self, name, value)
        if self.threads is not None:
            object.__setattr__(self, "threads", thread_count(self.threads))
