"""The operator protocol, and what the native operators share: normalisation and dense form."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crfield._parallel import thread_count
from crfield._validate import FloatArray, InputError, check_memory


class KernelOperator(Protocol):
    """A kernel matrix K (N, N) that is applied, never stored."""

    n_variables: int
    dtype: np.dtype[Any]
    is_symmetric: bool

    def apply(self, x: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """K x for x (N, L)."""

    def apply_transpose(self, x: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """K' x; differs from K x only for normalisation before or after."""

    def diagonal(self) -> FloatArray:
        """K_ii, shape (N,)."""

    def features_grad(self, u: FloatArray, v: FloatArray) -> FloatArray:
        """d sum(u * K v) / d features, shape (N, D), normalisation included."""

    def diagonal_grad(self, s: FloatArray) -> FloatArray:
        """d sum_i s_i K_ii / d features, shape (N, D)."""

    def spectral_bound(self) -> float:
        """A bound on |eigenvalues| of K, for the shift that guarantees descent."""

    def to_dense(self) -> FloatArray:
        """K as an (N, N) array; small N only."""


class NormalizedFilter:
    """K~ = diag(post) K diag(pre) around a symmetric native operator K.

    symmetric: pre = post = (K 1)^(-1/2); before: pre = 1 / K 1; after: post = 1 / K 1;
    none: pre = post = sqrt(scale), where scale corrects the native operator's mass.
    """

    def __init__(
        self, native: Any, n: int, dtype: np.dtype[Any], normalization: str, threads: int | None,
        *, scale: float = 1.0,
    ) -> None:
        self._native = native
        self._threads = thread_count(threads)
        self.n_variables = n
        self.dtype = dtype
        self.is_symmetric = normalization in ("none", "symmetric")
        self._normalization = normalization
        self._pre: FloatArray | None = None
        self._post: FloatArray | None = None
        if normalization == "none":
            if scale != 1.0:
                self._pre = self._post = np.full(n, np.sqrt(scale), dtype)
            return
        rows = self.apply(np.ones((n, 1), dtype))[:, 0]
        if n and not rows.min() > 0:
            raise InputError(
                f"normalization {normalization!r} needs positive row sums, got {rows.min():.3g}; "
                'use normalization="none" with this kernel shape.'
            )
        if normalization == "symmetric":
            self._pre = self._post = (1.0 / np.sqrt(rows)).astype(dtype)
        elif normalization == "before":
            self._pre = (1.0 / rows).astype(dtype)
        else:
            self._post = (1.0 / rows).astype(dtype)

    def apply(self, x: FloatArray, out: FloatArray | None = None) -> FloatArray:
        return self._run(x, self._pre, self._post, out)

    def apply_transpose(self, x: FloatArray, out: FloatArray | None = None) -> FloatArray:
        return self._run(x, self._post, self._pre, out)

    def diagonal(self) -> FloatArray:
        result = self._native_diagonal()
        for scale in (self._pre, self._post):
            if scale is not None:
                result = result * scale
        return result

    def features_grad(self, u: FloatArray, v: FloatArray) -> FloatArray:
        """The scales move with the features too: with r = K 1, n = r^(-1/2),

        d(u'NKNv) = (nu)'dK(nv) + w'dK 1,  w = -1/2 n^3 sum_l (u * K(nv) + v * K(nu)),

        and likewise d(1/r) = -dK 1 / r^2 for the one-sided forms.
        """
        u = np.ascontiguousarray(u, dtype=self.dtype)
        v = np.ascontiguousarray(v, dtype=self.dtype)
        direct = self._plain_features_grad(u, self._post, v, self._pre)
        if self._normalization == "none":
            return direct
        moved = np.zeros(self.n_variables, self.dtype)
        if self._pre is not None:
            power = -0.5 * self._pre**3 if self._normalization == "symmetric" else -(self._pre**2)
            moved += power * (v * self._run(u, self._post, None, None)).sum(1)
        if self._post is not None:
            power = -0.5 * self._post**3 if self._normalization == "symmetric" else -(self._post**2)
            moved += power * (u * self._run(v, self._pre, None, None)).sum(1)
        return direct + self._row_sum_grad(moved)

    def diagonal_grad(self, s: FloatArray) -> FloatArray:
        """K~_ii = c_i K_ii with c = 1/r, except for "none", where c is a constant."""
        s = np.ascontiguousarray(s, dtype=self.dtype)
        scales = [scale for scale in (self._pre, self._post) if scale is not None]
        both = np.prod([np.ones_like(s), *scales], axis=0)
        direct = self._plain_diagonal_grad(s * both)
        if self._normalization == "none":
            return direct
        return direct + self._row_sum_grad(-s * self._native_diagonal() * both**2)

    def _row_sum_grad(self, w: FloatArray) -> FloatArray:
        """d sum_i w_i (K 1)_i / d features, K without normalisation."""
        column = np.ascontiguousarray(w[:, None])
        return self._plain_features_grad(column, None, np.ones_like(column), None)

    def _plain_features_grad(
        self, u: FloatArray, u_scale: FloatArray | None, v: FloatArray, v_scale: FloatArray | None
    ) -> FloatArray:
        """d sum(u_scale u * K(v_scale v)) / d features, K without normalisation, fixed scales."""
        raise NotImplementedError

    def _plain_diagonal_grad(self, s: FloatArray) -> FloatArray:
        raise NotImplementedError

    def spectral_bound(self) -> float:
        """max_i sum_j |K_ij| for kernels without negative values, which bounds the eigenvalues."""
        if not self.n_variables:
            return 0.0
        return float(self.apply(np.ones((self.n_variables, 1), self.dtype)).max())

    def to_dense(self) -> FloatArray:
        n = self.n_variables
        check_memory(
            3.0 * n * n * self.dtype.itemsize, f"A dense {n} x {n} kernel",
            "use fewer variables or apply the operator instead",
        )
        return self.apply(np.eye(n, dtype=self.dtype))

    def _native_diagonal(self) -> FloatArray:
        raise NotImplementedError

    def _run(
        self, x: FloatArray, pre: FloatArray | None, post: FloatArray | None,
        out: FloatArray | None,
    ) -> FloatArray:
        values: NDArray[Any] = np.ascontiguousarray(x, dtype=self.dtype)
        if values.ndim != 2 or values.shape[0] != self.n_variables:
            raise InputError(
                f"x must have shape ({self.n_variables}, L), got {np.shape(x)}; "
                "give one row a variable."
            )
        if out is None:
            out = np.empty_like(values)
        self._native.apply(values, pre, post, out, self._threads)
        return out
