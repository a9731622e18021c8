"""The operator protocol, and what the native operators share: normalization and dense form."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crfield._core.threads import thread_count
from crfield._core.validate import FloatArray, InputError, check_memory


class FeatureGradient(Protocol):
    """A sum of derivatives of expressions in K by the features, normalization included."""

    def add(self, u: FloatArray, v: FloatArray, filtered: FloatArray, out: FloatArray) -> None:
        """Add d sum(u * K v), given `filtered` = K v; K' u, a by-product, goes to `out`."""

    def add_diagonal(self, s: FloatArray) -> None:
        """Add d sum_i s_i K_ii, s (N,)."""

    def total(self) -> FloatArray:
        """The sum (N, D)."""


class KernelOperator(Protocol):
    """A kernel matrix K (N, N) that is applied, never stored."""

    n_variables: int
    dtype: np.dtype[Any]
    is_symmetric: bool

    def apply(self, x: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """K x for x (N, L), written to `out` (N, L) if that is given."""

    def apply_transpose(self, x: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """K' x for x (N, L), as `apply`; another only for normalization before or after."""

    def diagonal(self) -> FloatArray:
        """K_ii, shape (N,)."""

    def start_gradient(self) -> FeatureGradient:
        """A sum of derivatives by the features, to be added to."""

    def spectral_bound(self) -> float:
        """A bound on |eigenvalues| of K, for the shift that guarantees descent."""

    def to_dense(self) -> FloatArray:
        """K as an (N, N) array; small N only."""


_LARGE = 2.0**30  # bytes from which on memory is checked before a filter allocates


class NormalizedFilter:
    """K~ = diag(post) K diag(pre) around a symmetric native operator K.

    symmetric: pre = post = (K 1)^(-1/2); before: pre = 1 / K 1; after: post = 1 / K 1;
    none: pre = post = sqrt(scale), where scale corrects the native operator's mass.

    native : the compiled K (N, N).
    n : number of variables N.
    dtype : float32 or float64, of the work.
    normalization : "symmetric", "before", "after" or "none".
    threads : native threads, None for all cores.
    scale : what the native operator's mass is to be multiplied by.
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
        self.normalization = normalization
        self.scale = scale
        self.pre: FloatArray | None = None
        self.post: FloatArray | None = None
        if normalization == "none":
            if scale != 1.0:
                self.pre = self.post = np.full(n, np.sqrt(scale), dtype)
            return
        rows = self.row_sums()
        if n and not rows.min() > 0:
            raise InputError(
                f"normalization {normalization!r} needs positive row sums, got {rows.min():.3g}; "
                'use normalization="none" with this kernel shape.'
            )
        if normalization == "symmetric":
            self.pre = self.post = 1.0 / np.sqrt(rows)
        elif normalization == "before":
            self.pre = 1.0 / rows
        else:
            self.post = 1.0 / rows

    def row_sums(self) -> FloatArray:
        """K 1 without normalization, (N,)."""
        return self._run(np.ones((self.n_variables, 1), self.dtype), None, None, None)[:, 0]

    def apply(self, x: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """K~ x for x (N, L), written to `out` (N, L) if that is given."""
        return self._run(x, self.pre, self.post, out)

    def apply_transpose(self, x: FloatArray, out: FloatArray | None = None) -> FloatArray:
        """K~' x for x (N, L), written to `out` (N, L) if that is given."""
        return self._run(x, self.post, self.pre, out)

    def diagonal(self) -> FloatArray:
        """K~_ii, (N,)."""
        result = self.plain_diagonal()
        for scale in (self.pre, self.post):
            if scale is not None:
                result = result * scale
        return result

    def start_gradient(self) -> FeatureGradient:
        """A sum of derivatives by the features, to be added to."""
        return _NormalizedGradient(self)

    def plain_gradient(
        self, u: FloatArray, u_scale: FloatArray | None, v: FloatArray, v_scale: FloatArray | None,
        out: FloatArray | None,
    ) -> FloatArray:
        """d sum(u_scale u * K(v_scale v)) / d features (N, D), K without normalization.

        The scales are held fixed. u and v are (N, L), their scales (N,) or None;
        v_scale K(u_scale u) goes to `out` (N, L) if that is given.
        """
        raise NotImplementedError

    def plain_diagonal_gradient(self, s: FloatArray) -> FloatArray:
        """d sum_i s_i K_ii / d features (N, D) for s (N,), K without normalization."""
        raise NotImplementedError

    def spectral_bound(self) -> float:
        """max_i sum_j |K_ij| for kernels without negative values, which bounds the eigenvalues."""
        if not self.n_variables:
            return 0.0
        return float(self.apply(np.ones((self.n_variables, 1), self.dtype)).max())

    def to_dense(self) -> FloatArray:
        """K~ as an (N, N) array; small N only."""
        n = self.n_variables
        check_memory(
            3.0 * n * n * self.dtype.itemsize, f"A dense {n} x {n} kernel",
            "use fewer variables or apply the operator instead",
        )
        return self.apply(np.eye(n, dtype=self.dtype))

    def plain_diagonal(self) -> FloatArray:
        """K_ii without normalization, (N,)."""
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


class TableFilter(NormalizedFilter):
    """A compiled K = S B S' that works through a table of `n_vertices` rows; `dim` is D."""

    def __init__(
        self, native: Any, n: int, dim: int, dtype: np.dtype[Any], normalization: str,
        threads: int | None, *, scale: float,
    ) -> None:
        self.n_features = dim
        self.n_vertices = native.n_vertices
        super().__init__(native, n, dtype, normalization, threads, scale=scale)

    def row_sums(self) -> FloatArray:
        out = np.empty(self.n_variables, self.dtype)
        self._native.row_sums(out, self._threads)
        return out

    @property
    def native(self) -> Any:
        """The compiled operator."""
        return self._native

    def _run(
        self, x: FloatArray, pre: FloatArray | None, post: FloatArray | None,
        out: FloatArray | None,
    ) -> FloatArray:
        # Very narrow kernels have more vertices than there are variables.
        tables = 4.0 * self.n_vertices * x.shape[-1] * self.dtype.itemsize
        if tables > _LARGE:
            check_memory(
                tables, f"A kernel with {self.n_vertices} vertices", "use wider kernels or tiles"
            )
        return super()._run(x, pre, post, out)

    def plain_gradient(
        self, u: FloatArray, u_scale: FloatArray | None, v: FloatArray, v_scale: FloatArray | None,
        out: FloatArray | None,
    ) -> FloatArray:
        """The derivative (N, D) of the filter itself, whose weights are piecewise linear in f.

        u and v are (N, L), u_scale and v_scale (N,) or None; v_scale K(u_scale u) goes to `out`.
        """
        gradient = np.empty((self.n_variables, self.n_features), self.dtype)
        self._native.feature_gradient(u, u_scale, v, v_scale, gradient, out, self._threads)
        return gradient

    def complete_gradient(self, direct: FloatArray, own: FloatArray) -> FloatArray:
        """The derivative of sum u'Kv by the features from `direct` (N, D), with scales held fixed.

        own : (N,) sum_l (u * Kv + v * Ku), over all summands.
        """
        gradient = _NormalizedGradient(self)
        gradient.add_sums(direct, own)
        return gradient.total()

    def plain_diagonal_gradient(self, s: FloatArray) -> FloatArray:
        gradient = np.empty((self.n_variables, self.n_features), self.dtype)
        self._native.diagonal_gradient(s, gradient, self._threads)
        return gradient

    def plain_diagonal(self) -> FloatArray:
        out = np.empty(self.n_variables, self.dtype)
        self._native.diagonal(out, self._threads)
        return out


class _NormalizedGradient:
    """The scales move with the features too: with r = K 1 and K~ = diag(r)^(-1/2) K diag(r)^(-1/2),

        d(u'K~v) = (r^(-1/2) u)'dK(r^(-1/2) v) + w'dK 1,  w = -1/(2r) sum_l (u * K~v + v * K~'u),

    and one of the two sums without the 1/2 for the one-sided forms. The w of all summands go
    through one derivative of the row sums at the end.
    """

    def __init__(self, operator: NormalizedFilter) -> None:
        self._operator = operator
        self._direct: FloatArray | None = None
        self._by_row_sum = np.zeros(operator.n_variables, operator.dtype)
        self._scale = np.ones_like(self._by_row_sum)  # 1 / r, a constant for "none"
        for scale in (operator.pre, operator.post):
            if scale is not None:
                self._scale = self._scale * scale

    def add(self, u: FloatArray, v: FloatArray, filtered: FloatArray, out: FloatArray) -> None:
        operator = self._operator
        self._add_direct(operator.plain_gradient(u, operator.post, v, operator.pre, out))
        if operator.normalization in ("symmetric", "before"):
            self._add_by_scale(v, out)
        if operator.normalization in ("symmetric", "after"):
            self._add_by_scale(u, filtered)

    def add_sums(self, direct: FloatArray, own: FloatArray) -> None:
        """What `add` would have added for several u and v, for both sides of a symmetric K."""
        self._add_direct(direct)
        if self._operator.normalization == "symmetric":
            self._by_row_sum -= 0.5 * self._scale * own

    def add_diagonal(self, s: FloatArray) -> None:
        own = self._operator.plain_diagonal()
        self._add_direct(self._operator.plain_diagonal_gradient(s * self._scale))
        self._by_row_sum -= s * own * self._scale**2  # d(1/r) = -dr / r^2

    def total(self) -> FloatArray:
        column = self._by_row_sum[:, None]
        if self._operator.normalization != "none":
            ones = np.ones_like(column)
            self._add_direct(self._operator.plain_gradient(column, None, ones, None, None))
        assert self._direct is not None
        return self._direct

    def _add_by_scale(self, x: FloatArray, filtered: FloatArray) -> None:
        share = 0.5 if self._operator.normalization == "symmetric" else 1.0
        self._by_row_sum -= share * self._scale * np.einsum("il,il->i", x, filtered)

    def _add_direct(self, gradient: FloatArray) -> None:
        self._direct = gradient if self._direct is None else self._direct + gradient

