"""What is observed at each variable, and the raw features made from it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    FloatArray,
    InputError,
    as_array,
    as_floats,
    as_image,
    as_positive,
    check_finite,
    image_spacing,
    shown,
)
from crfield.dense.namespace import Array, cast, library_of

# Integer images are brought to the customary 0..255 scale, so that one color width fits them all.
INTEGER_SCALE = {"uint8": 1.0, "uint16": 255.0 / 65535.0, "bool": 255.0}

# Linear sRGB to CIE XYZ (D65), (3, 3), one column per coordinate and divided by white's.
_RGB_TO_XYZ = [
    [column[c] / sum(column) for column in (
        (0.4124564, 0.3575761, 0.1804375), (0.2126729, 0.7151522, 0.0721750),
        (0.0193339, 0.1191920, 0.9503041),
    )] for c in range(3)
]


@dataclass(frozen=True)
class Window:
    """Where a grid lies in a larger one that it is a part of, so that both have the same features.

    origin : index of its first point in the larger grid, (d,).
    whole : shape of the larger grid, (d,).
    n_selected : variables of the larger grid that a mask selects, None without one.
    """

    origin: tuple[int, ...]
    whole: tuple[int, ...]
    n_selected: int | None = None


@dataclass(frozen=True)
class Observation:
    """The data that kernels look at: a grid (or a set of points), its image and named features.

    Attributes
    ----------
    grid : shape of the grid of variables, e.g. (H, W) or (Z, H, W); (N,) for a set of points.
    image : (*grid, C) values in the image's own units, or None.
    features : named arrays (N, D) for `FeatureKernel`.
    spacing : distance between neighbors along each axis of the grid, (d,).
    positions : (N, d) coordinates that replace the grid's, or None.
    selected : flat indices of the variables that take part, or None for all.
    window : where the grid lies in a larger one, or None if it is whole.
    """

    grid: tuple[int, ...]
    image: NDArray[Any] | None = None
    features: Mapping[str, FloatArray] = field(default_factory=dict)
    spacing: NDArray[np.float64] | None = None
    positions: NDArray[np.float64] | None = None
    selected: NDArray[np.intp] | None = None
    window: Window | None = None

    @property
    def n_whole(self) -> int:
        """Number of variables, or of those of the larger grid that this one is a part of."""
        if self.window is None:
            return self.n_variables
        selected = self.window.n_selected
        return math.prod(self.window.whole) if selected is None else selected

    @property
    def n_variables(self) -> int:
        """Number of variables that take part."""
        return math.prod(self.grid) if self.selected is None else len(self.selected)

    def select(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Rows (of an array with one row per grid point) of the variables that take part."""
        return rows if self.selected is None else rows[self.selected]

    def coordinates(self) -> NDArray[np.float64]:
        """Positions (N, d) of the variables in units of the spacing, first grid axis first."""
        if self.positions is not None:
            return self.select(self.positions)
        d = len(self.grid)
        points = np.empty((*self.grid, d))
        for axis, along in enumerate(self.axes()):
            points[..., axis] = along.reshape([-1 if a == axis else 1 for a in range(d)])
        return self.select(points.reshape(-1, d))

    def axes(self) -> list[NDArray[np.float64]]:
        """The coordinates along each axis of the grid in units of the spacing."""
        steps = np.ones(len(self.grid)) if self.spacing is None else self.spacing
        starts = (0,) * len(self.grid) if self.window is None else self.window.origin
        with np.errstate(over="ignore"):  # the kernel refuses what is too large
            return [
                step * np.arange(start, start + length)
                for step, start, length in zip(steps, starts, self.grid, strict=True)
            ]

    @property
    def is_whole_grid(self) -> bool:
        """Whether the variables are all points of a grid."""
        return self.positions is None and self.selected is None

    def colors(self, space: str, scale: float | None) -> NDArray[np.float64]:
        """Image values (N, C) of the variables in the asked color space, times `color_factor`."""
        values = self.select(self.channels()).astype(np.float64)
        with np.errstate(over="ignore"):  # the kernel refuses what is too large
            values = values * self.color_factor(scale)
        return rgb_to_lab(values) if space == "lab" else values

    def channels(self) -> NDArray[Any]:
        """The image's own values, one row per grid point."""
        if self.image is None:
            raise InputError(
                "image must be given for a model with a Bilateral kernel, got None; "
                "pass the image, or use Spatial and FeatureKernel terms only."
            )
        return self.image.reshape(math.prod(self.grid), -1)

    def color_factor(self, scale: float | None) -> float:
        """`scale`, or if it is None what maps the image to 0..255: bool and 8 or 16 bit unsigned
        images, and floating-point images within [0, 1]; everything else is taken as it is.
        """
        image = self.channels()
        if scale is not None:
            return scale
        # The whole image decides, so that a mask does not change the scale.
        floats = image.dtype.kind == "f" and image.size > 0
        extent = (float(image.min()), float(image.max())) if floats else (-math.inf, math.inf)
        return color_scale(image.dtype, extent)


def color_scale(dtype: np.dtype[Any], extent: tuple[float, float]) -> float:
    """What maps an image to 0..255, from its type and its least and largest value."""
    if dtype.kind == "f":
        return 255.0 if extent[0] >= 0.0 and extent[1] <= 1.0 else 1.0
    return INTEGER_SCALE.get(dtype.name, 1.0)


def observe(
    grid: tuple[int, ...],
    image: Any = None,
    features: Mapping[str, Any] | None = None,
    spacing: Any = None,
    positions: Any = None,
    mask: Any = None,
    window: Window | None = None,
) -> Observation:
    """Check what a user passed and bundle it; `grid` is the shape of the unary without labels."""
    n = math.prod(grid)
    selected = None if mask is None else _check_mask(mask, grid)
    if features is not None and not isinstance(features, Mapping):
        raise InputError(
            f"features must map names to arrays, got {shown(features)}; "
            'for example features={"depth": array of shape (N, 1)}.'
        )
    named = {}
    for name, values in (features or {}).items():
        known = finite_inside(as_array(values, f"features[{name!r}]"), n, selected)
        array = as_floats(known, f"features[{name!r}]")
        if array.ndim == len(grid) + 1 and array.shape[:-1] == grid:
            array = array.reshape(n, -1)
        if array.ndim != 2 or array.shape[0] != n:
            raise InputError(
                f"features[{name!r}] must have shape ({n}, D) or ({', '.join(map(str, grid))}, D), "
                f"got {np.shape(values)}; give one row of features per variable."
            )
        named[name] = array
    if positions is not None and spacing is not None:
        raise InputError(
            "spacing belongs to a grid and positions to points, got both; "
            "multiply the positions by the spacing and drop it."
        )
    if positions is None and spacing is None:
        spacing = image_spacing(image, len(grid))
    return Observation(
        grid=grid,
        image=None if image is None else _check_image(image, grid, selected),
        features=named,
        spacing=None if spacing is None else _check_spacing(spacing, len(grid)),
        positions=None if positions is None else _check_positions(positions, n, selected),
        selected=selected,
        window=None if window is None else _check_window(window, grid),
    )


def rgb_to_lab(rgb: Array) -> Array:
    """CIE Lab (D65) of sRGB values (..., 3) in 0..255, an array or a tensor; L in 0..100, a and b
    about -100..100.
    """
    if rgb.shape[-1] != 3:
        raise InputError(
            f"image must have 3 channels for Lab color, got {rgb.shape[-1]}; "
            'pass an RGB image or use color_space="rgb".'
        )
    library = library_of(rgb)
    s = library.clip(rgb / 255.0, 0.0, 1.0)
    # Both branches are differentiable everywhere, also where they are not taken.
    power = ((library.clip(s, 0.04045, None) + 0.055) / 1.055) ** 2.4
    linear = library.where(s <= 0.04045, s / 12.92, power)
    xyz = linear @ cast(library.asarray(_RGB_TO_XYZ, dtype=rgb.dtype), rgb)
    edge = 6.0 / 29.0
    root = library.clip(xyz, edge**3, None) ** (1.0 / 3.0)
    f = library.where(xyz > edge**3, root, xyz / (3 * edge**2) + 4.0 / 29.0)
    x, y, z = f[..., 0], f[..., 1], f[..., 2]
    return library.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)


def finite_inside(
    array: NDArray[Any], n: int, selected: NDArray[np.intp] | None, most: float = math.inf
) -> NDArray[Any]:
    """`array`, whose first axes are a grid of `n` points, with zeros at points outside a mask whose
    values are not finite, or beyond `most`: they do not matter, and other checks do not look there.
    """
    if selected is None or array.dtype.kind != "f" or array.size == 0 or array.size % n:
        return array
    rows = array.reshape(n, -1)
    bad = ~(np.abs(rows) <= min(most, float(np.finfo(array.dtype).max))).all(1)
    bad[selected] = False
    if not bad.any():
        return array
    rows = rows.copy()
    rows[bad] = 0
    return rows.reshape(array.shape)


def _check_image(
    image: Any, grid: tuple[int, ...], selected: NDArray[np.intp] | None
) -> NDArray[Any]:
    array = as_image(image)
    if array.shape == (*grid, 0):
        raise InputError(
            f"image must have at least one channel, got shape {array.shape}; pass its values, or "
            "None if no kernel looks at it."
        )
    if array.shape != grid and array.shape[:-1] != grid:
        hint = "give image and unary of one size"
        if looks_swapped(array.shape, grid):
            hint = swapped_hint(array.ndim)
        elif array.shape[1:] == grid:
            hint = "the channels come first: move them last with np.moveaxis(image, 0, -1)"
        raise InputError(
            f"image must have shape {grid} or ({', '.join(map(str, grid))}, C) to match the unary, "
            f"got {array.shape}; {hint}."
        )
    array = finite_inside(array, math.prod(grid), selected)
    check_finite(array, "image")
    return array.astype(np.float32) if array.dtype == np.float16 else array


def _check_window(window: Any, grid: tuple[int, ...]) -> Window:
    if not isinstance(window, Window):
        raise InputError(
            f"window must be a Window, got {shown(window)}; leave it out for a whole image."
        )
    one_size = len(window.origin) == len(window.whole) == len(grid)
    if not one_size or any(
        start < 0 or start + length > end
        for start, length, end in zip(window.origin, grid, window.whole, strict=True)
    ):
        raise InputError(
            f"window must hold the grid {grid}, got the origin {window.origin} in {window.whole}; "
            "give the index of the grid's first point and the shape of the larger grid."
        )
    return window


def looks_swapped(shape: tuple[int, ...], grid: tuple[int, ...]) -> bool:
    """Whether `shape` starts like `grid` with two neighboring axes exchanged."""
    d = len(grid)
    return any(
        shape[:d] == (*grid[:k], grid[k + 1], grid[k], *grid[k + 2 :]) for k in range(d - 1)
    ) and shape[:d] != grid


def swapped_hint(n_axes: int) -> str:
    """What to do where an image of so many axes and what lies beside it are swapped."""
    # Beside a photo that its camera has turned, a transposed map would be a mirror image.
    turned = "pass the opened picture if the photo is turned (EXIF), or " if n_axes < 4 else ""
    return f"width and height look swapped: {turned}transpose one of them"


def _check_spacing(spacing: Any, d: int) -> NDArray[np.float64]:
    values = as_positive(spacing, "spacing")
    if values.shape not in ((), (d,)):
        raise InputError(
            f"spacing must be one number or {d} numbers, got shape {values.shape}; "
            "give one distance for each grid axis."
        )
    return np.broadcast_to(values, (d,)).copy()


def _check_positions(
    positions: Any, n: int, selected: NDArray[np.intp] | None
) -> NDArray[np.float64]:
    known = finite_inside(as_array(positions, "positions"), n, selected)
    values: NDArray[Any] = as_floats(known, "positions", np.dtype(np.float64))
    if values.ndim != 2 or values.shape[0] != n:
        raise InputError(
            f"positions must have shape ({n}, d), got {values.shape}; give one row per variable."
        )
    return values


def _check_mask(mask: Any, grid: tuple[int, ...]) -> NDArray[np.intp]:
    array = as_array(mask, "mask")
    if array.dtype != np.bool_ or array.shape != grid:
        hint = "pass an array that is True where the model applies"
        if looks_swapped(array.shape, grid):
            hint = "width and height look swapped: transpose it"
        raise InputError(
            f"mask must be a boolean array of shape {grid}, got {array.dtype} {array.shape}; "
            f"{hint}."
        )
    selected = np.flatnonzero(array)
    if len(selected) == 0:
        raise InputError(
            "mask must select at least one variable, got none; pass mask=None to use all."
        )
    return selected
