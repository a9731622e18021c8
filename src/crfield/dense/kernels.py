"""Kernels k(f, g): which features they look at, their widths, shape and normalization.

A kernel holds parameters only, never an image. `Spatial` looks at positions, `Bilateral` at
positions and colors, `FeatureKernel` at features that are given by name at inference. Widths are
one number, one number per dimension, or a full covariance; dividing by them turns every kernel into
a function of f - g alone (KK13 section 3):

    gaussian  exp(-|f - g|^2 / 2)
    tent      max(1 - |f - g|_1, 0); Spatial(2, shape="tent") is the conventional grid CRF
    sinc      prod_d sin(f_d - g_d) / (f_d - g_d)
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    InputError,
    as_choice,
    as_count,
    as_floats,
    as_positive,
    as_scalar,
    short_repr,
    shown,
)
from crfield._core.warning import warn
from crfield.dense.filters.base import LARGEST_FEATURE, GridFeatures
from crfield.dense.namespace import Array
from crfield.dense.observation import Observation

SHAPES = ("gaussian", "tent", "sinc")
NORMALIZATIONS = ("none", "before", "after", "symmetric")

# Widths as a user may write them: a number, one per dimension, or a covariance matrix.
Widths = float | NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Kernel:
    """What all kernels share: shape and normalization.

    Methods take an observation, the checked image with its grid of `grid_dim` axes.

    shape : "gaussian", "tent" or "sinc".
    normalization : "symmetric" (default) divides by sqrt(row sum * column sum); "before" and
        "after" divide the input or the output by the row sums, which makes the kernel unsymmetric;
        "none".
    """

    shape: str = "gaussian"
    normalization: str = "symmetric"

    kind: ClassVar[str] = ""
    array_fields: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        as_choice(self.shape, "shape", SHAPES)
        as_choice(self.normalization, "normalization", NORMALIZATIONS)

    def scaled_features(self, observation: Observation) -> NDArray[np.float64]:
        """Features (N, D) divided by the widths, so that the kernel is a function of f - g."""
        raise NotImplementedError

    def grid_features(
        self, observation: Observation, dtype: np.dtype[Any]
    ) -> GridFeatures | None:
        """The scaled features as what they are made from, if they belong to a whole grid and no
        width mixes them; None otherwise. The kernel works in `dtype`.
        """
        return None

    def width_blocks(self, dim: int, grid_dim: int) -> list[tuple[str, slice]]:
        """Which of the `dim` scaled features each field of widths divides."""
        raise NotImplementedError

    def rescaled(self, factor: float, grid_dim: int = 2) -> Self:
        """The same kernel for a grid whose sides are `factor` times as many pixels."""
        return self

    @property
    def is_symmetric(self) -> bool:
        """Whether k(f, g) = k(g, f) after normalization."""
        return self.normalization in ("none", "symmetric")

    def describe(self) -> str:
        """The kernel in a few words, for messages."""
        return type(self).__name__

    def __repr__(self) -> str:
        return short_repr(self, *(name for name in self.array_fields if name != "covariance"))


@dataclass(frozen=True, eq=False, repr=False)
class Spatial(Kernel):
    """A kernel on positions: smoothness, exp(-|p_i - p_j|^2 / (2 sigma^2)).

    sigma : width in units of the grid spacing; a number, one per grid axis, or a (d, d) covariance.
    """

    sigma: Any = 3.0
    kind: ClassVar[str] = "spatial"
    array_fields: ClassVar[tuple[str, ...]] = ("sigma",)

    def __init__(
        self, sigma: Any, *, shape: str = "gaussian", normalization: str = "symmetric"
    ) -> None:
        _assign(self, shape=shape, normalization=normalization, sigma=_as_widths(sigma, "sigma"))

    def scaled_features(self, observation: Observation) -> NDArray[np.float64]:
        return _divide(observation.coordinates(), self.sigma, "sigma", "grid axis")

    def grid_features(
        self, observation: Observation, dtype: np.dtype[Any]
    ) -> GridFeatures | None:
        if not observation.is_whole_grid or np.ndim(self.sigma) == 2:
            return None
        axes = _divide_axes(observation.axes(), self.sigma, "sigma")
        return GridFeatures(axes, None, np.empty(0), dtype)

    def width_blocks(self, dim: int, grid_dim: int) -> list[tuple[str, slice]]:
        return [("sigma", slice(0, dim))]

    def rescaled(self, factor: float, grid_dim: int = 2) -> Self:
        return replace(self, sigma=_stretch(self.sigma, factor, grid_dim))


@dataclass(frozen=True, eq=False, repr=False)
class Bilateral(Kernel):
    """A kernel on positions and colors: smoothness that stops at edges.

    k_ij = exp(-|p_i - p_j|^2 / (2 sigma_xy^2) - |c_i - c_j|^2 / (2 sigma_color^2)).

    sigma_xy : spatial width, as for `Spatial`.
    sigma_color : color width; a number, one per channel, or a (C, C) covariance.
    covariance : instead of both, one covariance (d + C, d + C) of positions and colors together.
    color_space : "rgb" (the image's own channels, any number) or "lab".
    color_scale : factor on the image's values; None maps 8 and 16 bit and [0, 1] images to 0..255.
    """

    sigma_xy: Any = None
    sigma_color: Any = None
    covariance: Any = None
    color_space: str = "rgb"
    color_scale: float | None = None
    kind: ClassVar[str] = "bilateral"
    array_fields: ClassVar[tuple[str, ...]] = ("sigma_xy", "sigma_color", "covariance")

    def __init__(
        self,
        sigma_xy: Any = None,
        sigma_color: Any = None,
        *,
        covariance: Any = None,
        color_space: str = "rgb",
        color_scale: float | None = None,
        shape: str = "gaussian",
        normalization: str = "symmetric",
    ) -> None:
        if (covariance is None) == (sigma_xy is None or sigma_color is None):
            raise InputError(
                "Bilateral takes either sigma_xy and sigma_color or a covariance, got "
                f"sigma_xy={shown(sigma_xy)}, sigma_color={shown(sigma_color)}, covariance="
                f"{'None' if covariance is None else 'an array'}; give one of the two."
            )
        as_choice(color_space, "color_space", ("rgb", "lab"))
        if color_scale is not None:
            color_scale = as_scalar(color_scale, "color_scale")
        whole = covariance is not None
        _assign(
            self,
            shape=shape,
            normalization=normalization,
            sigma_xy=None if whole else _as_widths(sigma_xy, "sigma_xy"),
            sigma_color=None if whole else _as_widths(sigma_color, "sigma_color"),
            covariance=_as_covariance(covariance, "covariance") if whole else None,
            color_space=color_space,
            color_scale=color_scale,
        )

    def scaled_features(self, observation: Observation) -> NDArray[np.float64]:
        positions = observation.coordinates()
        colors = observation.colors(self.color_space, self.color_scale)
        if self.covariance is not None:
            both = np.concatenate([positions, colors], axis=1)
            return _divide(both, self.covariance, "covariance", "grid axis and channel")
        return np.concatenate(
            [
                _divide(positions, self.sigma_xy, "sigma_xy", "grid axis"),
                _divide(colors, self.sigma_color, "sigma_color", "channel"),
            ],
            axis=1,
        )

    def grid_features(
        self, observation: Observation, dtype: np.dtype[Any]
    ) -> GridFeatures | None:
        mixed = self.covariance is not None or self.color_space != "rgb"
        if mixed or not observation.is_whole_grid:
            return None
        if np.ndim(self.sigma_xy) == 2 or np.ndim(self.sigma_color) == 2:
            return None
        colors = observation.channels()
        _check_size(self.sigma_color, colors.shape[1], "sigma_color", "channel")
        if colors.dtype == np.bool_:
            colors = colors.view(np.uint8)
        elif colors.dtype not in (np.uint8, np.float32, np.float64):
            colors = colors.astype(np.float64)
        widths = np.broadcast_to(self.sigma_color, colors.shape[1:])
        with np.errstate(over="ignore", invalid="ignore"):
            factors = observation.color_factor(self.color_scale) / widths
            largest = 255.0 if colors.dtype == np.uint8 else _largest(colors)
            _check_largest(largest * float(np.abs(factors).max()), self.sigma_color, "sigma_color")
        axes = _divide_axes(observation.axes(), self.sigma_xy, "sigma_xy")
        return GridFeatures(axes, np.ascontiguousarray(colors), factors, dtype)

    def width_blocks(self, dim: int, grid_dim: int) -> list[tuple[str, slice]]:
        if self.covariance is not None:
            return [("covariance", slice(0, dim))]
        return [("sigma_xy", slice(0, grid_dim)), ("sigma_color", slice(grid_dim, dim))]

    def rescaled(self, factor: float, grid_dim: int = 2) -> Self:
        if self.covariance is not None:
            return replace(self, covariance=_stretch(self.covariance, factor, grid_dim))
        return replace(self, sigma_xy=_stretch(self.sigma_xy, factor, grid_dim))


@dataclass(frozen=True, eq=False, repr=False)
class FeatureKernel(Kernel):
    """A kernel on features that the caller gives at inference, `features={name: (N, D)}`.

    k_ij = exp(-|f_i - f_j|^2 / (2 sigma^2)).

    name : the key under which the features are given.
    dim : their dimension D.
    sigma : width, a number or one per dimension (default 1); or
    covariance : a full (D, D) covariance.
    """

    name: str = ""
    dim: int = 1
    sigma: Any = None
    covariance: Any = None
    kind: ClassVar[str] = "feature"
    array_fields: ClassVar[tuple[str, ...]] = ("sigma", "covariance")

    def __init__(
        self,
        name: str,
        dim: int,
        *,
        sigma: Any = None,
        covariance: Any = None,
        shape: str = "gaussian",
        normalization: str = "symmetric",
    ) -> None:
        if not isinstance(name, str) or not name:
            raise InputError(
                f"name must be a non-empty string, got {shown(name)}; name the features."
            )
        if sigma is not None and covariance is not None:
            raise InputError(
                "FeatureKernel takes sigma or covariance, got both; give one of the two."
            )
        dim = as_count(dim, "dim")
        widths = 1.0 if sigma is None else sigma
        _assign(
            self,
            shape=shape,
            normalization=normalization,
            name=name,
            dim=dim,
            sigma=_as_widths(widths, "sigma") if covariance is None else None,
            covariance=None if covariance is None else _as_covariance(covariance, "covariance"),
        )
        given = self.sigma if covariance is None else self.covariance
        _check_size(given, dim, "sigma", "dimension")

    def scaled_features(self, observation: Observation) -> NDArray[np.float64]:
        if self.name not in observation.features:
            given = ", ".join(sorted(observation.features)) or "none"
            raise InputError(
                f"features must hold {self.name!r}, which a kernel of this model looks at, got "
                f"{given}; pass features={{{self.name!r}: array of shape (N, {self.dim})}}."
            )
        values = observation.select(observation.features[self.name]).astype(np.float64)
        if values.shape[1] != self.dim:
            raise InputError(
                f"features[{self.name!r}] must have {self.dim} columns, got {values.shape[1]}; "
                "match the kernel's dim."
            )
        widths = self.sigma if self.covariance is None else self.covariance
        return _divide(values, widths, "sigma", "dimension")

    def width_blocks(self, dim: int, grid_dim: int) -> list[tuple[str, slice]]:
        return [("sigma" if self.covariance is None else "covariance", slice(0, dim))]

    def describe(self) -> str:
        return f"FeatureKernel {self.name!r}"

    def __repr__(self) -> str:
        return short_repr(self, "name", "dim")


KERNELS: dict[str, type[Kernel]] = {k.kind: k for k in (Spatial, Bilateral, FeatureKernel)}


def _assign(kernel: Kernel, **values: Any) -> None:
    """Set the fields of a frozen kernel, then run the shared checks."""
    for name, value in values.items():
        object.__setattr__(kernel, name, value)
    Kernel.__post_init__(kernel)


def _as_widths(value: Any, name: str) -> Widths:
    array = as_floats(value, name, np.dtype(np.float64))
    if array.ndim == 2:
        return _as_covariance(array, name)
    if array.ndim > 1 or array.size == 0:
        raise InputError(
            f"{name} must be a number, one number per dimension or a square covariance, got shape "
            f"{array.shape}; use one of the three."
        )
    array = as_positive(array, name)
    return float(array) if array.ndim == 0 else array.copy()


def _as_covariance(value: Any, name: str) -> NDArray[np.float64]:
    array = as_floats(value, name, np.dtype(np.float64))
    if array.ndim != 2 or array.shape[0] != array.shape[1] or array.size == 0:
        raise InputError(
            f"{name} must be a square covariance matrix, got shape {array.shape}; "
            "give a symmetric positive definite matrix."
        )
    symmetric = 0.5 * array + 0.5 * array.T
    try:
        np.linalg.cholesky(symmetric)
        definite = True
    except np.linalg.LinAlgError:
        definite = False
    with np.errstate(over="ignore"):
        even = np.allclose(array, array.T, rtol=1e-8, atol=0.0)
    if not definite or not even:
        raise InputError(
            f"{name} must be symmetric and positive definite, got "
            f"{'an unsymmetric matrix' if definite else 'one that is not positive definite'}; "
            "check it with np.linalg.eigvalsh(0.5 * (c + c.T))."
        )
    return np.asarray(symmetric)


def _check_size(widths: Widths, dim: int, name: str, what: str) -> None:
    if isinstance(widths, float) or widths.shape[0] == dim:
        return
    form = "a matrix" if widths.ndim == 2 else "numbers"
    raise InputError(
        f"{name} must have one entry for each {what} ({dim}), got {form} for {widths.shape[0]}; "
        "give one number for all or match the data."
    )


def _stretch(widths: Widths, factor: float, grid_dim: int) -> Widths:
    """Widths of positions times a factor; a covariance has the positions first."""
    if isinstance(widths, float) or widths.ndim == 1:
        return widths * factor
    axes = np.where(np.arange(len(widths)) < grid_dim, factor, 1.0)
    return np.asarray(axes[:, None] * widths * axes)


def _divide(
    values: NDArray[np.float64], widths: Widths, name: str, what: str
) -> NDArray[np.float64]:
    """Features divided by widths, or whitened by a covariance, with a bound on their size."""
    _check_size(widths, values.shape[1], name, what)
    with np.errstate(over="ignore", invalid="ignore"):
        if isinstance(widths, float) or widths.ndim == 1:
            scaled = values / widths
        else:
            scaled = np.linalg.solve(np.linalg.cholesky(widths), values.T).T
        largest = _largest(scaled)
    _check_largest(largest, widths, name)
    return scaled


def _divide_axes(
    axes: list[NDArray[np.float64]], widths: Widths, name: str
) -> tuple[NDArray[np.float64], ...]:
    """The coordinates along each axis of a grid divided by widths."""
    _check_size(widths, len(axes), name, "grid axis")
    with np.errstate(over="ignore", invalid="ignore"):
        each = np.broadcast_to(widths, len(axes))
        scaled = [axis / width for axis, width in zip(axes, each, strict=True)]
    _check_largest(max(map(_largest, scaled)), widths, name)
    return tuple(scaled)


def _largest(values: NDArray[Any]) -> float:
    return max(float(values.max()), -float(values.min())) if values.size else 0.0


def _check_largest(largest: float, widths: Widths, name: str) -> None:
    if not largest <= LARGEST_FEATURE:
        raise InputError(
            f"{name} must not be smaller than 1/{LARGEST_FEATURE:.1e} of the values it divides, "
            f"got {np.min(np.diag(widths) if np.ndim(widths) == 2 else widths):.3g}; "
            "use a larger width."
        )


def warn_of_normalized(values: Array, kernels: Iterable[Kernel]) -> bool:
    """Say so if floats on both sides of zero vary by too little for color widths to tell them
    apart; return whether they do.

    values : of an image, (*grid, C), or (B, C, *grid), some of them negative.
    kernels : of which those count that look at colors on the automatic scale.
    """
    widths = [
        float(np.min(kernel.sigma_color)) for kernel in kernels
        if isinstance(kernel, Bilateral) and kernel.sigma_color is not None
        and kernel.color_scale is None
    ]
    if not widths:
        return False
    with np.errstate(over="ignore", invalid="ignore"):
        spread = float(values.std())
    found = 4.0 * spread < min(widths)
    if found:
        warn(
            f"image looks normalized to zero mean: it has negative values, and colors that differ "
            f"by {spread:.2g} or so are all alike to a kernel of color width {min(widths):g}; pass "
            "the image as it was before, 0 to 1 or 0 to 255, or give the kernels a color_scale."
        )
    return found
