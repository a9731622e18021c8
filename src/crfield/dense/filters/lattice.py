"""The Gaussian kernel on a permutohedral lattice: linear time, exactly symmetric."""

from __future__ import annotations

import math

import numpy as np

from crfield._core import _native
from crfield._core.threads import thread_count
from crfield._core.validate import FloatArray, InputError
from crfield.dense.filters.base import TableFilter
from crfield.dense.observation import GridFeatures

MAX_DIM = 16


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
        n_threads = thread_count(threads)
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
