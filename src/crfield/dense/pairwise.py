"""A pairwise term of a dense CRF, and what it becomes on one image: filters that sum its kernel."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from crfield._core.validate import LARGEST_COMPATIBILITY, FloatArray, InputError, as_scalar, shown
from crfield.dense.compatibility import Compatibility, Matrix
from crfield.dense.filters import KeptFilters, KernelOperator
from crfield.dense.filters.choice import as_features, choose_filter
from crfield.dense.inference import Inference
from crfield.dense.kernels import Kernel
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


@dataclass(frozen=True)
class Term:
    """A pairwise term on one image: weight mu (x) K, K on scaled features (N, D)."""

    operator: KernelOperator
    compatibility: Compatibility
    weight: float
    features: FloatArray | GridFeatures | None = None

    def dense_features(self) -> FloatArray:
        """The scaled features as an array."""
        assert self.features is not None
        return self.features.dense() if isinstance(self.features, GridFeatures) else self.features

    def matrix(self, n_labels: int) -> Matrix:
        """weight mu, (L, L)."""
        return self.weight * self.compatibility.matrix(n_labels)

    def attraction(self, n_labels: int) -> Matrix | None:
        """a (L,) with weight mu = -diag(a) up to a constant and a >= 0, or None if there is none.
        """
        found = self.compatibility.attraction(n_labels) if self.weight >= 0 else None
        return None if found is None else self.weight * found


def build_terms(
    pairs: Iterable[Pairwise], observation: Observation, dtype: np.dtype[Any],
    inference: Inference, kept: KeptFilters | None = None,
) -> list[Term]:
    """The terms on one observation: scaled features, and operators on them.

    dtype : of the work; inference says how kernels are summed; kept, if given, holds filters from
        one call to the next.
    """

    def build(kernel: Kernel) -> tuple[FloatArray | GridFeatures, KernelOperator]:
        scaled: FloatArray | GridFeatures | None = kernel.grid_features(observation, dtype)
        if scaled is None:
            scaled = as_features(
                np.ascontiguousarray(kernel.scaled_features(observation), dtype=dtype)
            )
        return scaled, choose_filter(
            scaled, kernel.shape, kernel.normalization, inference.filter, inference.filter_tol,
            inference.threads, observation.n_whole,
        )

    settings = (dtype.str, inference.filter, inference.filter_tol, inference.threads)
    terms = []
    for pair in pairs:
        scaled, operator = (
            build(pair.kernel) if kept is None
            else kept.recall(observation, pair.kernel, settings, build)
        )
        terms.append(Term(operator, pair.compatibility, pair.weight, scaled))
    return terms
