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
