"""The operator protocol, and what operators share: features, normalization, its derivative."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from crfield._core.resources import without_locks
from crfield._core.validate import FloatArray, InputError, check_memory
from crfield.dense.namespace import Array, library_of, row_dots

# Beyond this the coordinates of the lattice would leave the whole numbers of a double.
LARGEST_FEATURE = 2.0**46


@dataclass(frozen=True)
class GridFeatures:
    """Scaled features of all points of a grid, kept as what they are made from.

    axes : the scaled coordinate along each axis of the grid; the last axis varies fastest.
    colors : (N, C) image values, uint8, float32 or float64, or None.
    factors : (C,) what they are multiplied by.
    dtype : float32 or float64, of the features.
    """

    axes: tuple[NDArray[np.float64], ...]
    colors: NDArray[Any] | None
    factors: NDArray[np.float64]
    dtype: np.dtype[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """(N, D)."""
        return math.prod(map(len, self.axes)), len(self.axes) + len(self.factors)

    def dense(self) -> FloatArray:
        """The features as an (N, D) array."""
        n, dim = self.shape
        d = len(self.axes)
        grid = tuple(map(len, self.axes))
        features = np.empty((n, dim), self.dtype)
        points = features.reshape(*grid, dim)
        for axis, along in enumerate(self.axes):
            points[..., axis] = along.reshape([-1 if a == axis else 1 for a in range(d)])
        if self.colors is not None:
            np.multiply(
                self.colors, self.factors, out=features[:, d:], dtype=np.float64,
                casting="same_kind",
            )
        return features


def check_features(features: FloatArray) -> None:
    """Refuse scaled features (N, D) that are too large for the lattice, or NaN."""
    largest = float(max(features.max(initial=0.0), -features.min(initial=0.0)))
    if not largest <= LARGEST_FEATURE:
        raise InputError(
            f"features must not exceed {LARGEST_FEATURE:.1e} in magnitude, got {largest:.3g}; "
            "divide them by larger widths."
        )


class FeatureGradient(Protocol):
    """A sum of derivatives of expressions in K by the features, normalization included."""

    def add(self, u: Array, v: Array, filtered: Array, out: Array | None = None) -> Array:
        """Add d sum(u * K v), given `filtered` = K v; K' u, a by-product, goes to `out` or anew."""

    def add_diagonal(self, s: Array) -> None:
        """Add d sum_i s_i K_ii, s (N,)."""

    def total(self) -> Array:
        """The sum (N, D)."""


class KernelOperator(Protocol):
    """A kernel matrix K (N, N) that is applied, never stored, to NumPy arrays or torch tensors."""

    @property
    def n_variables(self) -> int:
        """N."""

    @property
    def dtype(self) -> Any:
        """Of the work."""

    @property
    def is_symmetric(self) -> bool:
        """Whether K is K'."""

    def apply(self, x: Array, out: Array | None = None) -> Array:
        """K x for x (N, L), written to `out` (N, L) if that is given."""

    def apply_transpose(self, x: Array, out: Array | None = None) -> Array:
        """K' x for x (N, L), as `apply`; another only for normalization before or after."""

    def diagonal(self) -> Array:
        """K_ii, shape (N,)."""

    def start_gradient(self) -> FeatureGradient:
        """A sum of derivatives by the features, to be added to."""

    def spectral_bound(self) -> float:
        """A bound on |eigenvalues| of K, for the shift that guarantees descent."""

    def to_dense(self) -> Array:
        """K as an (N, N) array; small N only."""


@without_locks
class NormalizedOperator:
    """K~ = diag(post) K diag(pre) around a symmetric K of arrays or tensors that a subclass has.

    symmetric: pre = post = (K 1)^(-1/2); before: pre = 1 / K 1; after: post = 1 / K 1;
    none: ones, None, unless a subclass has others.

    Scales are (N,), features (N, D); u and v of gradients are (N, L).
    """

    n_variables: int
    dtype: Any
    normalization: str

    @functools.cached_property
    def scales(self) -> tuple[Array | None, Array | None]:
        """pre and post, (N,) or None for ones."""
        if self.normalization == "none":
            return None, None
        rows = self.row_sums()
        if self.normalization == "symmetric":
            root = self.inverse_root(rows)
            return root, root
        return (1.0 / rows, None) if self.normalization == "before" else (None, 1.0 / rows)

    @property
    def pre(self) -> Array | None:
        """What goes in is multiplied by, (N,)."""
        return self.scales[0]

    @property
    def post(self) -> Array | None:
        """What comes out is multiplied by, (N,)."""
        return self.scales[1]

    @property
    def is_symmetric(self) -> bool:
        """Whether K~ is K~'."""
        return self.normalization in ("none", "symmetric")

    def row_sums(self) -> Array:
        """K 1 without normalization, (N,)."""
        raise NotImplementedError

    def plain_apply(
        self, x: Array, pre: Array | None, post: Array | None, out: Array | None = None
    ) -> Array:
        """diag(post) K diag(pre) x for x (N, L), written to `out` (N, L) if that is given."""
        raise NotImplementedError

    def plain_diagonal(self) -> Array:
        """K_ii without normalization, (N,)."""
        raise NotImplementedError

    def plain_gradient(
        self, u: Array, u_scale: Array | None, v: Array, v_scale: Array | None
    ) -> Array:
        """d sum(u_scale u * K(v_scale v)) / d features (N, D), with the scales held fixed."""
        raise NotImplementedError

    def gradient_and_transpose(
        self, u: Array, v: Array, out: Array | None
    ) -> tuple[Array, Array]:
        """d sum(u * K~ v) / d features (N, D) with the scales held fixed, and K~' u (N, L), which
        goes to `out` (N, L) or anew; u and v are (N, L).
        """
        return (
            self.plain_gradient(u, self.post, v, self.pre), self.apply_transpose(u, out)
        )

    def plain_diagonal_gradient(self, s: Array) -> Array:
        """d sum_i s_i K_ii / d features (N, D) for s (N,), K without normalization."""
        raise NotImplementedError

    def apply(self, x: Array, out: Array | None = None) -> Array:
        """K~ x for x (N, L), written to `out` (N, L) if that is given."""
        return self.plain_apply(x, self.pre, self.post, out)

    def apply_transpose(self, x: Array, out: Array | None = None) -> Array:
        """K~' x for x (N, L), written to `out` (N, L) if that is given."""
        return self.plain_apply(x, self.post, self.pre, out)

    def diagonal(self) -> Array:
        """K~_ii, (N,)."""
        return self.rescale(self.plain_diagonal())

    def rescale(self, values: Array) -> Array:
        """Values (N,) times pre and post."""
        for scale in (self.pre, self.post):
            if scale is not None:
                values = values * scale
        return values

    def start_gradient(self) -> NormalizedGradient:
        """A sum of derivatives by the features, to be added to."""
        return NormalizedGradient(self)

    @staticmethod
    def inverse_root(rows: Array) -> Array:
        """rows^(-1/2), (N,)."""
        return 1.0 / np.sqrt(rows)

    def identity(self, n_columns: int) -> Array:
        """The first columns of I, (N, n_columns), as an array or tensor that K takes."""
        return np.eye(self.n_variables, n_columns, dtype=self.dtype)

    def spectral_bound(self) -> float:
        """max_i sum_j |K_ij| for kernels without negative values, which bounds the eigenvalues."""
        if not self.n_variables:
            return 0.0
        return float(self.apply(0.0 * self.identity(1) + 1.0).max())

    def to_dense(self) -> Array:
        """K~ as an (N, N) array; small N only."""
        n = self.n_variables
        check_memory(
            3.0 * n * n * self.dtype.itemsize, f"A dense {n} x {n} kernel",
            "use fewer variables or apply the operator instead",
        )
        return self.apply(self.identity(n))


class NormalizedGradient:
    """A sum of d sum(u * K~ v) and d sum_i s_i K~_ii by the features, normalization included.

    The scales move with the features too: with r = K 1 and K~ = diag(r)^(-1/2) K diag(r)^(-1/2),

        d(u'K~v) = (r^(-1/2) u)'dK(r^(-1/2) v) + w'dK 1,  w = -1/(2r) sum_l (u * K~v + v * K~'u),

    and one of the two sums without the 1/2 for the one-sided forms. The w of all summands go
    through one derivative of the row sums at the end.
    """

    def __init__(self, operator: NormalizedOperator) -> None:
        self._operator = operator
        self._direct: Array | None = None
        self._own: Array | None = None  # dL by the logarithms of the scales

    def add(self, u: Array, v: Array, filtered: Array, out: Array | None = None) -> Array:
        """Add d sum(u * K~ v), given `filtered` = K~ v, all (N, L); K~' u goes to `out` or anew."""
        operator = self._operator
        direct, back = operator.gradient_and_transpose(u, v, out)
        self._direct = _plus(self._direct, direct)
        if operator.normalization in ("symmetric", "before"):
            self._own = _plus(self._own, row_dots(v, back))
        if operator.normalization in ("symmetric", "after"):
            self._own = _plus(self._own, row_dots(u, filtered))
        return back

    def add_sums(self, direct: Array, own: Array) -> None:
        """Add what `add` would for several u and v on both sides of a symmetric K~.

        direct : (N, D), their derivative with the scales held fixed.
        own : (N,), sum_l (u * K~ v + v * K~ u).
        """
        self._direct = _plus(self._direct, direct)
        self._own = _plus(self._own, own)

    def add_diagonal(self, s: Array) -> None:
        """Add d sum_i s_i K~_ii for s (N,)."""
        operator = self._operator
        scaled = operator.rescale(s)
        self._direct = _plus(self._direct, operator.plain_diagonal_gradient(scaled))
        own = scaled * operator.plain_diagonal()
        self._own = _plus(self._own, 2.0 * own if operator.normalization == "symmetric" else own)

    def total(self) -> Array:
        """The sum (N, D)."""
        operator = self._operator
        assert self._direct is not None
        if operator.normalization == "none":
            return self._direct
        assert self._own is not None
        power = -0.5 if operator.normalization == "symmetric" else -1.0
        by_rows = operator.rescale(power * self._own)[:, None]  # d(1/r) = -dr / r^2
        ones = library_of(by_rows).ones_like(by_rows)
        return self._direct + operator.plain_gradient(by_rows, None, ones, None)


def _plus(total: Array | None, part: Array) -> Array:
    return part if total is None else total + part


_LARGE = 2.0**30  # bytes from which on memory is checked before a filter allocates


class NativeFilter(NormalizedOperator):
    """An operator around a compiled one, on arrays.

    native : the compiled K (N, N).
    n : number of variables N.
    dtype : float32 or float64, of the work.
    normalization : "symmetric", "before", "after" or "none".
    threads : native threads.
    scale : what the native operator's mass is to be multiplied by, which other normalizations than
        "none" do anyway.
    """

    def __init__(
        self, native: Any, n: int, dtype: np.dtype[Any], normalization: str, threads: int, *,
        scale: float = 1.0,
    ) -> None:
        self._native = native
        self._threads = threads
        self.n_variables = n
        self.dtype = dtype
        self.normalization = normalization
        self.scale = scale
        if normalization == "none" and scale != 1.0:
            root = np.full(n, np.sqrt(scale), dtype)
            self.scales = root, root
        elif n:
            self._check_scales()

    def _check_scales(self) -> None:
        """Refuse row sums from which no scale can be made."""
        with np.errstate(divide="ignore", invalid="ignore"):
            found = [scale for scale in self.scales if scale is not None]
        if not all(scale.min() > 0 and scale.max() < np.inf for scale in found):
            raise InputError(
                f"normalization {self.normalization!r} needs positive row sums, got "
                f"{self.row_sums().min():.3g}; use normalization=\"none\" with this kernel shape."
            )

    def row_sums(self) -> FloatArray:
        ones = np.ones((self.n_variables, 1), self.dtype)
        return self.plain_apply(ones, None, None)[:, 0]

    def plain_apply(
        self, x: FloatArray, pre: FloatArray | None, post: FloatArray | None,
        out: FloatArray | None = None,
    ) -> FloatArray:
        values: NDArray[Any] = np.ascontiguousarray(x, dtype=self.dtype)
        if values.ndim != 2 or values.shape[0] != self.n_variables:
            raise InputError(
                f"x must have shape ({self.n_variables}, L), got {np.shape(x)}; "
                "give one row per variable."
            )
        if out is None:
            out = np.empty_like(values)
        self._native.apply(values, pre, post, out, self._threads)
        return out

    def plain_gradient(
        self, u: FloatArray, u_scale: FloatArray | None, v: FloatArray, v_scale: FloatArray | None,
        out: FloatArray | None = None,
    ) -> FloatArray:
        """As for all operators; v_scale K(u_scale u) goes to `out` (N, L) if that is given.

        u and v are (N, L), u_scale and v_scale (N,) or None, what comes back is (N, D).
        """
        raise NotImplementedError

    def gradient_and_transpose(
        self, u: FloatArray, v: FloatArray, out: FloatArray | None
    ) -> tuple[FloatArray, FloatArray]:
        out = np.empty_like(u) if out is None else out
        return self.plain_gradient(u, self.post, v, self.pre, out), out


class TableFilter(NativeFilter):
    """A compiled K = S B S' that works through a table of `n_vertices` rows; `dim` is D."""

    def __init__(
        self, native: Any, n: int, dim: int, dtype: np.dtype[Any], normalization: str,
        threads: int, *, scale: float,
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

    def plain_apply(
        self, x: FloatArray, pre: FloatArray | None, post: FloatArray | None,
        out: FloatArray | None = None,
    ) -> FloatArray:
        # Very narrow kernels have more vertices than there are variables.
        tables = 4.0 * self.n_vertices * x.shape[-1] * self.dtype.itemsize
        if tables > _LARGE:
            check_memory(
                tables, f"A kernel with {self.n_vertices} vertices", "use wider kernels or tiles"
            )
        return super().plain_apply(x, pre, post, out)

    def plain_gradient(
        self, u: FloatArray, u_scale: FloatArray | None, v: FloatArray, v_scale: FloatArray | None,
        out: FloatArray | None = None,
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
        gradient = self.start_gradient()
        gradient.add_sums(direct, own)
        total: FloatArray = gradient.total()
        return total

    def plain_diagonal_gradient(self, s: FloatArray) -> FloatArray:
        gradient = np.empty((self.n_variables, self.n_features), self.dtype)
        self._native.diagonal_gradient(s, gradient, self._threads)
        return gradient

    def plain_diagonal(self) -> FloatArray:
        out = np.empty(self.n_variables, self.dtype)
        self._native.diagonal(out, self._threads)
        return out
