"""The kernel sum over all pairs: the ground truth for everything else."""

from __future__ import annotations

import numpy as np

from crfield import _native
from crfield._parallel import thread_count
from crfield._validate import FloatArray, as_scalar
from crfield.filters.base import NormalizedFilter

_SHAPE_CODES = {"gaussian": 0, "tent": 1, "sinc": 2}


class ExactFilter(NormalizedFilter):
    """K x by summing all N^2 pairs, tile by tile.

    features : (N, D), scaled by the kernel's widths.
    tol : pairs of tiles in which every |k| is below this are skipped, so that each entry of K x is
        wrong by at most N tol max|x| before normalisation; 0 skips nothing.
    """

    def __init__(
        self, features: FloatArray, *, shape: str = "gaussian", normalization: str = "symmetric",
        tol: float = 0.0, threads: int | None = None,
    ) -> None:
        self._shape = shape
        n = features.shape[0]
        build = _native.ExactSum64 if features.dtype == np.float64 else _native.ExactSum32
        native = build(
            features, _SHAPE_CODES[shape], as_scalar(tol, "filter_tol"), thread_count(threads)
        )
        self.active_fraction = native.active_fraction
        super().__init__(native, n, features.dtype, normalization, threads)

    def spectral_bound(self) -> float:
        if self._shape != "sinc":
            return super().spectral_bound()
        # sinc takes both signs, but |k| <= 1.
        return float(self.n_variables * self.diagonal().max(initial=0.0))

    def _native_diagonal(self) -> FloatArray:
        return np.ones(self.n_variables, self.dtype)
