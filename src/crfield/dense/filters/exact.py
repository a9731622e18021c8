"""The kernel sum over all pairs: the ground truth for everything else."""

from __future__ import annotations

import numpy as np

from crfield._core import _native
from crfield._core.threads import thread_count
from crfield._core.validate import FloatArray, InputError
from crfield.dense.filters.base import NativeFilter

_SHAPE_CODES = {"gaussian": 0, "tent": 1, "sinc": 2}


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
        n_threads = thread_count(threads)
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
