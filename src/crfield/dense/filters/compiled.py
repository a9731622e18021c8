"""The compiled kernel sums, and the one place that chooses between them.

    ExactFilter    the sum over all pairs: the ground truth for everything else
    GridFilter     a coarse grid of nodes, for positions alone
    LatticeFilter  the permutohedral lattice: linear time, exactly symmetric
"""

from __future__ import annotations

import math
from typing import Any, Protocol

import numpy as np

from crfield._core import _native
from crfield._core.resources import thread_count
from crfield._core.validate import FloatArray, InputError, as_choice, as_floats, as_scalar, shown
from crfield.dense.filters.base import (
    GridFeatures,
    KernelOperator,
    NativeFilter,
    TableFilter,
    check_features,
)

FILTERS = ("auto", "lattice", "exact")

# Up to here the exact sum takes no longer than building a lattice.
SMALL = 2048

_SHAPE_CODES = {"gaussian": 0, "tent": 1, "sinc": 2}

_MAX_GRID_DIM = 6
# Node spacing in units of the width, as in native/grid.cpp.
SPACING = math.sqrt(3.0) / 2.0

MAX_DIM = 16


class ExactFilter(NativeFilter):
    """(K x)_i = sum_j k(f_i, f_j) x_j over all N^2 pairs, tile by tile.

    features : (N, D), scaled by the kernel's widths.
    shape : "gaussian", "tent" or "sinc".
    filter_tol : pairs of tiles in which every |k| is below this are skipped, so that each entry of
        K x is wrong by at most N filter_tol max|x| before normalization; 0 skips nothing.
    """

    def __init__(
        self, features: FloatArray, *, shape: str = "gaussian", normalization: str = "symmetric",
        filter_tol: float = 0.0, threads: int | None = None,
    ) -> None:
        self._shape = shape
        self._features = features
        n = features.shape[0]
        build = _native.ExactSum64 if features.dtype == np.float64 else _native.ExactSum32
        n_threads = thread_count() if threads is None else threads
        native = build(features, _SHAPE_CODES[shape], filter_tol, n_threads)
        self.active_fraction = native.active_fraction
        super().__init__(native, n, features.dtype, normalization, n_threads)

    def spectral_bound(self) -> float:
        if self._shape != "sinc":
            return super().spectral_bound()
        # sinc takes both signs, but |k| <= 1.
        return float(self.n_variables * self.diagonal().max(initial=0.0))

    def plain_diagonal(self) -> FloatArray:
        return np.ones(self.n_variables, self.dtype)

    def plain_gradient(
        self, u: FloatArray, u_scale: FloatArray | None, v: FloatArray, v_scale: FloatArray | None,
        out: FloatArray | None = None,
    ) -> FloatArray:
        """-sum_j k_ij (f_i - f_j) (u_i'v_j + v_i'u_j), (N, D), by filtering u, v, and both times f.

        u and v are (N, L), u_scale and v_scale (N,) or None; v_scale K(u_scale u) goes to `out`.
        All columns go through one pass over the pairs, which share the exponentials.
        """
        if self._shape != "gaussian":
            raise InputError(
                f"only Gaussian kernels can be differentiated, got shape {self._shape!r}; "
                "leave the widths of other kernels fixed."
            )
        u = u if u_scale is None else u * u_scale[:, None]
        v = v if v_scale is None else v * v_scale[:, None]
        n, n_columns = u.shape
        if n == 0:
            return np.zeros_like(self._features)
        f = self._features - self._features.mean(0)  # differences count; small numbers round less
        weighted = [x * f[:, d : d + 1] for d in range(f.shape[1]) for x in (u, v)]
        stacked = np.concatenate([u, v, *weighted], axis=1)
        filtered = self.plain_apply(stacked, None, None).reshape(n, -1, 2, n_columns)
        swapped = np.stack([v, u], axis=1)[:, None]  # u meets K v and v meets K u
        if out is not None:
            np.multiply(filtered[:, 0, 0], 1.0 if v_scale is None else v_scale[:, None], out=out)
        products = (filtered * swapped).sum((2, 3))  # (N, 1 + D)
        return np.asarray(products[:, 1:] - f * products[:, :1])

    def plain_diagonal_gradient(self, s: FloatArray) -> FloatArray:
        return np.zeros_like(self._features)  # k(f, f) = 1 whatever f is


class GridFilter(TableFilter):
    """K x = S (B_1 x ... x B_D) S' x: interpolation to nodes, a short blur along each axis, back.

    features : of positions alone, on a grid.
    """

    def __init__(
        self, features: GridFeatures, *, normalization: str = "symmetric",
        threads: int | None = None,
    ) -> None:
        n, dim = features.shape
        if features.colors is not None or not 1 <= dim <= _MAX_GRID_DIM:
            raise InputError(
                f"the grid filter takes 1 to {_MAX_GRID_DIM} positions and no colors, got {dim} "
                'features; use filter="auto".'
            )
        build = _native.Grid64 if features.dtype == np.float64 else _native.Grid32
        # Nodes lie where they would for the whole grid, and none before the first point.
        axes = [axis - SPACING * np.floor(axis[:1] / SPACING) for axis in features.axes]
        native = build([axis.tolist() for axis in axes])
        # The filter's mass is one node's volume, the Gaussian's (2 pi)^(D/2).
        scale = (2.0 * math.pi) ** (dim / 2.0) / SPACING**dim
        n_threads = thread_count() if threads is None else threads
        super().__init__(native, n, dim, features.dtype, normalization, n_threads, scale=scale)

    @staticmethod
    def suits(features: FloatArray | GridFeatures) -> bool:
        """Whether the nodes would be no denser than twice the points along each axis.

        features : (N, D), or what they are made from.
        """
        if not isinstance(features, GridFeatures) or features.colors is not None:
            return False
        return len(features.axes) <= _MAX_GRID_DIM and all(
            np.ptp(axis) / SPACING <= 2.0 * len(axis) for axis in features.axes
        )


class LatticeFilter(TableFilter):
    """K x = S 1/2 (B_0 ... B_D + B_D ... B_0) S' x over the occupied vertices.

    features : (N, D), scaled by the kernel's widths, 1 <= D <= 16, or what they are made from.
    one_order : K = S B_D ... B_0 S', the customary filter, which is not symmetric; only for
        comparison with other software.
    """

    def __init__(
        self, features: FloatArray | GridFeatures, *, normalization: str = "symmetric",
        threads: int | None = None, one_order: bool = False,
    ) -> None:
        n, dim = features.shape
        if not 1 <= dim <= MAX_DIM:
            raise InputError(
                f"the lattice takes 1 to {MAX_DIM} feature dimensions, got {dim}; "
                'use filter="exact".'
            )
        n_threads = thread_count() if threads is None else threads
        build = _native.Lattice64 if features.dtype == np.float64 else _native.Lattice32
        if isinstance(features, GridFeatures):
            assert not one_order
            axes = [axis.tolist() for axis in features.axes]
            colors = np.empty((0, 0)) if features.colors is None else features.colors
            native = build(axes, colors, features.factors.tolist(), n_threads)
        else:
            native = build(features, one_order, n_threads)
        # Splat, blur and slice spread mass 1 over vertices of volume (2/3)^(-D/2) / sqrt(D + 1);
        # the Gaussian's mass is (2 pi)^(D/2).
        scale = (4.0 * math.pi / 3.0) ** (dim / 2.0) * math.sqrt(dim + 1.0)
        super().__init__(native, n, dim, features.dtype, normalization, n_threads, scale=scale)


def as_features(features: Any) -> FloatArray:
    """Scaled features (N, D) that no filter chokes on."""
    values = as_floats(features, "features")
    if values.ndim != 2:
        raise InputError(
            f"features must have shape (N, D), got {values.shape}; give one row per variable."
        )
    check_features(values)
    return values


class KernelForm(Protocol):
    """What a filter needs to know of a kernel besides the scaled features."""

    @property
    def shape(self) -> str:
        """"gaussian", "tent" or "sinc"."""

    @property
    def normalization(self) -> str:
        """"symmetric", "before", "after" or "none"."""


def make_filter(
    features: FloatArray | GridFeatures, kernel: KernelForm, filter: str = "auto", *,
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
    if not hasattr(kernel, "normalization"):
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
    return choose_filter(features, kernel, filter, filter_tol, thread_count(threads), n_whole)


def choose_filter(
    features: FloatArray | GridFeatures, kernel: KernelForm, filter: str, filter_tol: float,
    threads: int, n_whole: int | None = None,
) -> KernelOperator:
    """`make_filter` of checked arguments."""
    shape, normalization = kernel.shape, kernel.normalization
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
