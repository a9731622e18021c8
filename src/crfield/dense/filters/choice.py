"""From a kernel and its scaled features to an operator."""

from __future__ import annotations

from typing import Any

import numpy as np

from crfield._core.validate import FloatArray, InputError, as_choice, as_floats, as_scalar, shown
from crfield.dense.filters.base import KernelOperator
from crfield.dense.filters.exact import ExactFilter
from crfield.dense.filters.grid import GridFilter
from crfield.dense.filters.lattice import MAX_DIM, LatticeFilter
from crfield.dense.kernels import LARGEST_FEATURE, Kernel
from crfield.dense.observation import GridFeatures

FILTERS = ("auto", "lattice", "exact")

# Up to here the exact sum takes no longer than building a lattice.
SMALL = 2048


def as_features(features: Any) -> FloatArray:
    """Scaled features (N, D) that no filter chokes on."""
    values = as_floats(features, "features")
    if values.ndim != 2:
        raise InputError(
            f"features must have shape (N, D), got {values.shape}; give one row per variable."
        )
    largest = float(np.abs(values).max(initial=0.0))
    if not largest <= LARGEST_FEATURE:
        raise InputError(
            f"features must not exceed {LARGEST_FEATURE:.1e} in magnitude, got {largest:.3g}; "
            "divide them by larger widths."
        )
    return values


def make_filter(
    features: FloatArray | GridFeatures, kernel: Kernel, filter: str = "auto", *,
    filter_tol: float = 0.0, threads: int | None = None, n_whole: int | None = None,
) -> KernelOperator:
    """The operator of `kernel` on scaled features (N, D), float32 or float64.

    filter : "auto" takes the exact sum for other than Gaussian kernels, for up to 2048 variables
        and for more than 16 feature dimensions, a grid of nodes for positions on a grid, the
        lattice otherwise; "lattice"; "exact".
    filter_tol : pairs of variables whose kernel value is below it may be left out of exact sums.
    threads : native threads, None for all cores.
    n_whole : number of variables that "auto" goes by, if these are a part of more.
    """
    if not isinstance(kernel, Kernel):
        raise InputError(
            f"kernel must be Spatial, Bilateral or FeatureKernel, got {shown(kernel)}; "
            "for example Spatial(3)."
        )
    as_choice(filter, "filter", FILTERS)
    filter_tol = as_scalar(filter_tol, "filter_tol")
    if not 0.0 <= filter_tol < 1.0:
        raise InputError(
            f"filter_tol must be at least 0 and below 1, got {filter_tol:g}; 0 skips nothing."
        )
    if not isinstance(features, GridFeatures):
        features = as_features(features)
    return choose_filter(
        features, kernel.shape, kernel.normalization, filter, filter_tol, threads, n_whole
    )


def choose_filter(
    features: FloatArray | GridFeatures, shape: str, normalization: str, filter: str,
    filter_tol: float, threads: int | None, n_whole: int | None = None,
) -> KernelOperator:
    """`make_filter` of checked arguments; shape and normalization are those of the kernel."""
    gaussian = shape == "gaussian"
    if filter == "auto":
        count = features.shape[0] if n_whole is None else n_whole
        fits = gaussian and count > SMALL and features.shape[1] <= MAX_DIM
        filter = "exact" if not fits else "grid" if GridFilter.suits(features) else "lattice"
    if filter == "exact":
        dense = features.dense() if isinstance(features, GridFeatures) else features
        return ExactFilter(
            dense, shape=shape, normalization=normalization, filter_tol=filter_tol, threads=threads
        )
    if not gaussian:
        raise InputError(
            f"the lattice takes Gaussian kernels only, got shape {shape!r}; "
            'use filter="exact" or "auto".'
        )
    if filter == "grid":
        assert isinstance(features, GridFeatures)
        return GridFilter(features, normalization=normalization, threads=threads)
    return LatticeFilter(features, normalization=normalization, threads=threads)
