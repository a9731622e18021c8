"""A pairwise term of a dense CRF, and what it becomes on one image: filters that sum its kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from crfield._core.validate import LARGEST_COMPATIBILITY, FloatArray, InputError, as_scalar, shown
from crfield.dense.compatibility import Compatibility
from crfield.dense.filters import KeptFilters, KernelOperator, make_filter
from crfield.dense.kernels import Kernel
from crfield.dense.meanfield import Term
from crfield.dense.observation import GridFeatures, Observation


@dataclass(frozen=True, eq=False)
class Pairwise:
    """One pairwise term: weight mu(x_i, x_j) k(f_i, f_j), mu the compatibility, k the kernel."""

    kernel: Kernel
    compatibility: Compatibility
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise InputError(
                f"kernel must be Spatial, Bilateral or FeatureKernel, got {shown(self.kernel)}; "
                "for example Pairwise(Spatial(3), Potts(3))."
            )
        if not isinstance(self.compatibility, Compatibility):
            raise InputError(
                "compatibility must be Potts, Diagonal or Symmetric, got "
                f"{shown(self.compatibility)}; for example Pairwise(Spatial(3), Potts(3))."
            )
        weight = as_scalar(self.weight, "weight")
        largest = float(np.abs(self.compatibility.native_values(1)).max())
        if not abs(weight) * largest <= LARGEST_COMPATIBILITY:
            raise InputError(
                f"weight times compatibility must not exceed {LARGEST_COMPATIBILITY:g} in "
                f"magnitude, got {weight:.3g} times {largest:.3g}; use smaller ones."
            )
        object.__setattr__(self, "weight", weight)


def build_terms(
    pairs: Iterable[Pairwise], observation: Observation, dtype: np.dtype[Any], method: str,
    tol: float, threads: int, kept: KeptFilters | None = None,
) -> list[Term]:
    """The terms on one observation: scaled features, and operators on them.

    dtype : of the work; method, tol and threads are those of `make_filter`; kept, if given, holds
        filters from one call to the next.
    """

    def build(kernel: Kernel) -> tuple[FloatArray | GridFeatures, KernelOperator]:
        scaled: FloatArray | GridFeatures | None = kernel.grid_features(observation, dtype)
        if scaled is None:
            scaled = np.ascontiguousarray(kernel.scaled_features(observation), dtype=dtype)
        return scaled, make_filter(
            scaled, kernel, method, tol=tol, threads=threads, n_whole=observation.n_whole
        )

    terms = []
    settings = (dtype.str, method, tol, threads)
    for pair in pairs:
        scaled, operator = (
            build(pair.kernel) if kept is None
            else kept.recall(observation, pair.kernel, settings, build)
        )
        terms.append(Term(operator, pair.compatibility, pair.weight, scaled))
    if not terms:  # the arguments are still checked when there is nothing to filter
        make_filter(np.zeros((1, 1), dtype), _NO_KERNEL, method, tol=tol, threads=threads)
    return terms


_NO_KERNEL = Kernel()
