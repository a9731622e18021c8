"""The Gaussian kernel on a permutohedral lattice: linear time, exactly symmetric."""

from __future__ import annotations

import math

import numpy as np

from crfield import _native
from crfield._parallel import thread_count
from crfield._validate import FloatArray, InputError, check_memory
from crfield.filters.base import NormalizedFilter

MAX_DIM = 16
_LARGE = 2.0**30


class LatticeFilter(NormalizedFilter):
    """K x = S 1/2 (B_0 ... B_D + B_D ... B_0) S' x over the occupied vertices.

    features : (N, D), scaled by the kernel's widths, 1 <= D <= 16.
    one_order : K = S B_D ... B_0 S', the customary filter, which is not symmetric; only for
        comparison with other software.
    """

    def __init__(
        self, features: FloatArray, *, normalization: str = "symmetric",
        threads: int | None = None, one_order: bool = False,
    ) -> None:
        n, dim = features.shape
        if not 1 <= dim <= MAX_DIM:
            raise InputError(
                f"the lattice takes 1 to {MAX_DIM} feature dimensions, got {dim}; "
                'use filter="exact".'
            )
        build = _native.Lattice64 if features.dtype == np.float64 else _native.Lattice32
        native = build(features, one_order, thread_count(threads))
        self._dim = dim
        self.n_vertices = native.n_vertices
        # Splat, blur and slice spread mass 1 over vertices of volume (2/3)^(-D/2) / sqrt(D + 1);
        # the Gaussian's mass is (2 pi)^(D/2).
        scale = (4.0 * math.pi / 3.0) ** (dim / 2.0) * math.sqrt(dim + 1.0)
        super().__init__(native, n, features.dtype, normalization, threads, scale=scale)

    def _run(
        self, x: FloatArray, pre: FloatArray | None, post: FloatArray | None,
        out: FloatArray | None,
    ) -> FloatArray:
        # A lattice for very narrow kernels has more vertices than there are variables.
        tables = 4.0 * self.n_vertices * x.shape[-1] * self.dtype.itemsize
        if tables > _LARGE:
            check_memory(
                tables, f"A lattice of {self.n_vertices} vertices", "use wider kernels or tiles"
            )
        return super()._run(x, pre, post, out)

    def plain_gradient(
        self, u: FloatArray, u_scale: FloatArray | None, v: FloatArray, v_scale: FloatArray | None,
        out: FloatArray | None,
    ) -> FloatArray:
        """The derivative of the lattice itself, whose weights are piecewise linear in f."""
        gradient = np.empty((self.n_variables, self._dim), self.dtype)
        self._native.feature_gradient(u, u_scale, v, v_scale, gradient, out, self._threads)
        return gradient

    def plain_diagonal_gradient(self, s: FloatArray) -> FloatArray:
        gradient = np.empty((self.n_variables, self._dim), self.dtype)
        self._native.diagonal_gradient(s, gradient, self._threads)
        return gradient

    def plain_diagonal(self) -> FloatArray:
        out = np.empty(self.n_variables, self.dtype)
        self._native.diagonal(out, self._threads)
        return out
