"""The Gaussian kernel on positions of a grid through a coarser grid: symmetric, never negative."""

from __future__ import annotations

import math

import numpy as np

from crfield._core import _native
from crfield._core.threads import thread_count
from crfield._core.validate import FloatArray, InputError
from crfield.dense.filters.base import TableFilter
from crfield.dense.observation import GridFeatures

MAX_DIM = 6
# Node spacing in units of the width, as in native/grid.cpp.
SPACING = math.sqrt(3.0) / 2.0


class GridFilter(TableFilter):
    """K x = S (B_1 x ... x B_D) S' x: interpolation to nodes, a short blur along each axis, back.

    features : of positions alone, on a grid.
    """

    def __init__(
        self, features: GridFeatures, *, normalization: str = "symmetric",
        threads: int | None = None,
    ) -> None:
        n, dim = features.shape
        if features.colors is not None or not 1 <= dim <= MAX_DIM:
            raise InputError(
                f"the grid filter takes 1 to {MAX_DIM} positions and no colors, got {dim} "
                'features; use filter="auto".'
            )
        build = _native.Grid64 if features.dtype == np.float64 else _native.Grid32
        # Nodes lie where they would for the whole grid, and none before the first point.
        axes = [axis - SPACING * np.floor(axis[:1] / SPACING) for axis in features.axes]
        native = build([axis.tolist() for axis in axes])
        # The filter's mass is one node's volume, the Gaussian's (2 pi)^(D/2).
        scale = (2.0 * math.pi) ** (dim / 2.0) / SPACING**dim
        super().__init__(
            native, n, dim, features.dtype, normalization, thread_count(threads), scale=scale
        )

    @staticmethod
    def suits(features: FloatArray | GridFeatures) -> bool:
        """Whether the nodes would be no denser than twice the points along each axis.

        features : (N, D), or what they are made from.
        """
        if not isinstance(features, GridFeatures) or features.colors is not None:
            return False
        return len(features.axes) <= MAX_DIM and all(
            np.ptp(axis) / SPACING <= 2.0 * len(axis) for axis in features.axes
        )
