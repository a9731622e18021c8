"""How inference is to be done, as a value."""

from __future__ import annotations

from dataclasses import dataclass

from crfield._core.threads import thread_count
from crfield._core.validate import InputError, as_choice, as_count, as_not_negative, as_scalar
from crfield.dense.filters import FILTERS

ALGORITHMS = ("concave", "cccp", "parallel", "sequential")


@dataclass(frozen=True)
class Inference:
    """How marginals are found, for whatever does inference as a part of something larger.

    Parameters
    ----------
    algorithm : "concave" (KK13 3.2), "cccp" (KK13 3.1), "parallel" (KK11, no guarantee) or
        "sequential" (one variable at a time, few variables); None is the model's.
    filter : how kernels are summed, "auto", "lattice" or "exact".
    filter_tol : pairs of variables whose kernel value is below it may be left out of exact sums.
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
        as_choice(self.filter, "filter", FILTERS)
        if self.max_iter is not None:
            object.__setattr__(self, "max_iter", as_count(self.max_iter, "max_iter", 0))
        filter_tol = as_scalar(self.filter_tol, "filter_tol")
        if not 0.0 <= filter_tol < 1.0:
            raise InputError(
                f"filter_tol must be at least 0 and below 1, got {filter_tol:g}; 0 skips nothing."
            )
        tol = as_not_negative(self.tol, "tol", "0 never stops early")
        object.__setattr__(self, "filter_tol", filter_tol)
        object.__setattr__(self, "tol", tol)
        if self.threads is not None:
            object.__setattr__(self, "threads", thread_count(self.threads))
