"""A kernel's widths in words and units, for people to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield.dense.kernels import Bilateral, FeatureKernel, Kernel, Spatial

Matrix = NDArray[np.float64]

_AXES = {2: ("down", "across"), 3: ("deep", "down", "across")}
_CHANNELS = {
    ("rgb", 3): ("red", "green", "blue"), ("lab", 3): ("lightness", "green-red", "blue-yellow")
}


@dataclass(frozen=True)
class Widths:
    """Widths of features that share a unit.

    covariance : (n, n) of these features where all others are equal, (1, 1) for one width for all.
    """

    title: str
    unit: str
    names: tuple[str, ...]
    covariance: Matrix

    @property
    def values(self) -> Matrix:
        """The width (n,) of each feature where all others are equal: (C^-1)_dd^-1/2."""
        return np.asarray(np.diag(np.linalg.inv(self.covariance)) ** -0.5)


def kernel_widths(kernel: Kernel, grid_dim: int = 2) -> list[Widths]:
    """The kernel's widths, positions first; `grid_dim` tells positions in a joint covariance."""
    if isinstance(kernel, Spatial):
        return [_positions(_as_covariance(kernel.sigma), grid_dim)]
    if isinstance(kernel, Bilateral):
        if kernel.covariance is None:
            return [
                _positions(_as_covariance(kernel.sigma_xy), grid_dim),
                _colors(_as_covariance(kernel.sigma_color), kernel),
            ]
        inverse = np.linalg.inv(kernel.covariance)
        return [
            _positions(np.linalg.inv(inverse[:grid_dim, :grid_dim]), grid_dim),
            _colors(np.linalg.inv(inverse[grid_dim:, grid_dim:]), kernel),
        ]
    assert isinstance(kernel, FeatureKernel)
    widths = kernel.sigma if kernel.covariance is None else kernel.covariance
    covariance = _as_covariance(widths)
    names = _numbered(len(covariance), "feature")
    return [Widths(f"features {kernel.name!r}", "the features' own units", names, covariance)]


def kernel_correlations(kernel: Kernel, grid_dim: int = 2) -> list[tuple[tuple[str, ...], Matrix]]:
    """Names and correlations (n, n) of features with more than one width between them."""
    groups = kernel_widths(kernel, grid_dim)
    pairs = [(group.names, group.covariance) for group in groups if len(group.covariance) > 1]
    if isinstance(kernel, Bilateral) and kernel.covariance is not None:
        names = tuple(name for group in groups for name in group.names)
        pairs = [(names, kernel.covariance)]
    return [(names, _correlation(covariance)) for names, covariance in pairs]


def _correlation(covariance: Matrix) -> Matrix:
    deviations = np.sqrt(np.diag(covariance))
    return np.asarray(covariance / np.outer(deviations, deviations))


def _as_covariance(widths: Any) -> Matrix:
    array = np.asarray(widths, np.float64)
    return array if array.ndim == 2 else np.diag(np.atleast_1d(array) ** 2)


def _positions(covariance: Matrix, grid_dim: int) -> Widths:
    n = len(covariance)
    names = ("every direction",) if n == 1 else _AXES.get(n) or _numbered(n, "axis")
    return Widths("distance", "pixels" if grid_dim == 2 else "grid steps", names, covariance)


def _colors(covariance: Matrix, kernel: Bilateral) -> Widths:
    n = len(covariance)
    known = _CHANNELS.get((kernel.color_space, n))
    names = ("every channel",) if n == 1 else known or _numbered(n, "channel")
    unit = "gray levels of 255"
    if kernel.color_space == "lab":
        unit = "Lab units"
    elif kernel.color_scale is not None:
        unit = f"image values times {kernel.color_scale:g}"
    return Widths("color", unit, names, covariance)


def _numbered(n: int, what: str) -> tuple[str, ...]:
    return tuple(f"{what} {number}" for number in range(1, n + 1))
