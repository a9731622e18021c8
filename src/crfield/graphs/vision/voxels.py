"""Voxel grids, pinhole cameras, and the voxels that rays cross."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.threads import thread_count
from crfield._core.validate import (
    FloatArray,
    InputError,
    as_array,
    as_count,
    as_floats,
    as_positive,
    as_scalar,
    check_memory,
    refuse_where,
    shown,
)

MOST_VOXELS = 2**31 - 1
# What lies within has quotients and sums of squares in the range of numbers.
LEAST_LENGTH, LARGEST_LENGTH = 1e-100, 1e100
_DOUBLE = np.dtype(np.float64)

Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Crossings:
    """The voxels of many rays, in order from each ray's origin.

    Attributes
    ----------
    offsets : (R + 1,) int64; ray r has the entries offsets[r] up to offsets[r + 1].
    voxels : (E,) int32, flat indices into the grid; each voxel is crossed on a positive length.
    entries, exits : (E,) float64, where the ray enters and leaves the voxel, in units of its
        direction's length, or None.
    """

    offsets: NDArray[np.int64]
    voxels: NDArray[np.int32]
    entries: Float64 | None = None
    exits: Float64 | None = None


class VoxelGrid:
    """Boxes of equal size: voxel (x, y, z) spans origin + (x, y, z) * spacing and one spacing more.

    shape : (X, Y, Z); a voxel's flat index is (x * Y + y) * Z + z.
    origin : (3,), the corner of voxel (0, 0, 0).
    spacing : a number, or one for each axis, between 1e-100 and 1e100.
    """

    def __init__(self, shape: Sequence[int], origin: Any = (0.0, 0.0, 0.0), spacing: Any = 1.0):
        try:
            x, y, z = shape
        except (TypeError, ValueError):
            raise InputError(
                f"shape must be three whole numbers, got {shown(shape)}; give (X, Y, Z)."
            ) from None
        x, y, z = (as_count(length, "shape", 1) for length in (x, y, z))
        self.shape = (x, y, z)
        if self.n_voxels > MOST_VOXELS:
            raise InputError(
                f"a grid may have {MOST_VOXELS} voxels, got {self.n_voxels}; use a larger spacing "
                "or cut the grid into parts."
            )
        self.origin = _as_points(origin, "origin", ndim=1)
        size = as_positive(spacing, "spacing")
        if size.shape not in ((), (3,)):
            raise InputError(
                f"spacing must be one number or three, got shape {size.shape}; give the length of "
                "a voxel along each axis."
            )
        bad = (size < LEAST_LENGTH) | (size > LARGEST_LENGTH)
        refuse_where(
            bad, size, f"spacing must lie between {LEAST_LENGTH:g} and {LARGEST_LENGTH:g}",
            "use another unit of length",
        )
        self.spacing: Float64 = np.broadcast_to(size, (3,)).copy()
        for values in (self.origin, self.spacing):
            values.setflags(write=False)

    @property
    def n_voxels(self) -> int:
        """X * Y * Z."""
        return math.prod(self.shape)

    def centers(self) -> Float64:
        """World coordinates of the voxels' centers, (X, Y, Z, 3)."""
        check_memory(
            24.0 * self.n_voxels, f"A list of {self.n_voxels} centers", "use a coarser grid"
        )
        centers = np.empty((*self.shape, 3))
        for axis, length in enumerate(self.shape):
            places = self.origin[axis] + (np.arange(length) + 0.5) * self.spacing[axis]
            centers[..., axis] = np.expand_dims(places, tuple({0, 1, 2} - {axis}))
        return centers

    def traverse(
        self, origins: Any, directions: Any, *, distances: bool = False, threads: int | None = None
    ) -> Crossings:
        """The voxels that each ray crosses, by exact traversal (Amanatides and Woo 1987).

        A ray starts at its origin, which may lie in the grid; one that misses the grid, or only
        touches it, has no voxels. A ray within a face between voxels is in the one of higher index.

        Parameters
        ----------
        origins, directions : (R, 3) or (3,), the same for all rays then; the largest entry of a
            direction lies between 1e-100 and 1e100.
        distances : whether to give `entries` and `exits`.
        threads : native threads, all usable cores by default.
        """
        n_threads = thread_count(threads)
        starts, ways = _as_points(origins, "origins"), _as_points(directions, "directions")
        if starts.ndim > 1 and ways.ndim > 1 and len(starts) != len(ways):
            raise InputError(
                f"origins and directions must be as many, got {len(starts)} and {len(ways)}; give "
                "one of each for a ray."
            )
        length = np.abs(np.atleast_2d(ways)).max(1)
        bad = (length < LEAST_LENGTH) | (length > LARGEST_LENGTH)
        if bad.any():
            ray = int(np.argmax(bad))
            wanted = "must not be zero" if length[ray] == 0 else (
                f"must have a largest entry between {LEAST_LENGTH:g} and {LARGEST_LENGTH:g}"
            )
            raise InputError(
                f"directions {wanted}, got {shown(np.atleast_2d(ways)[ray].tolist())} for ray "
                f"{ray}; leave that ray out, or scale its direction."
            )
        starts, ways = np.atleast_2d(*np.broadcast_arrays(starts, ways))
        rays = np.ascontiguousarray(starts), np.ascontiguousarray(ways)
        box = self.shape, tuple(self.origin.tolist()), tuple(self.spacing.tolist())
        offsets = np.zeros(len(rays[0]) + 1, np.int64)
        _native.count_crossings(*box, *rays, offsets[1:], n_threads)
        np.cumsum(offsets, out=offsets)
        n_entries = int(offsets[-1])
        check_memory(
            n_entries * (20.0 if distances else 4.0), f"Listing {n_entries} voxels on rays",
            "use fewer rays or a coarser grid",
        )
        voxels = np.empty(n_entries, np.int32)
        entries, exits = (np.empty(n_entries) if distances else None for _ in range(2))
        _native.list_crossings(*box, *rays, offsets, voxels, entries, exits, n_threads)
        return Crossings(offsets, voxels, entries, exits)


class Camera:
    """A pinhole camera: depth * (column, row, 1) = P (x, y, z, 1), pixel centers on whole numbers.

    projection : P, (3, 4); its left 3 x 3 part must be invertible.
    image_size : (height, width) in pixels.
    """

    def __init__(self, projection: Any, image_size: Sequence[int]):
        self.projection: Float64 = _as_matrix(projection, "projection", (3, 4))
        self.projection.setflags(write=False)
        try:
            height, width = image_size
        except (TypeError, ValueError):
            raise InputError(
                f"image_size must be two whole numbers, got {shown(image_size)}; give "
                "(height, width)."
            ) from None
        self.image_size = (
            as_count(height, "image_size", 1, MOST_VOXELS),
            as_count(width, "image_size", 1, MOST_VOXELS),
        )
        # P counts up to a factor, but only numbers near 1 have determinants in range.
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            unit = self.projection / np.abs(self.projection[:, :3]).max()
        part, volume = unit[:, :3], 0.0
        if np.isfinite(unit).all():
            volume = float(np.linalg.det(part))
        if not abs(volume) > 1e-12 * np.prod(np.linalg.norm(part, axis=1)):
            raise InputError(
                "projection must have an invertible left 3 x 3 part, got one of determinant "
                f"{volume:g} where its largest entry is 1; check the calibration."
            )
        self._inverse = np.linalg.inv(part)
        self._center: Float64 = -self._inverse @ unit[:, 3]
        # The sign of P is free; a positive determinant looks along +depth.
        self._sign = math.copysign(1.0, volume)

    @classmethod
    def from_calibration(
        cls, intrinsics: Any, rotation: Any, translation: Any, image_size: Sequence[int]
    ) -> Camera:
        """P = K [R | t] with intrinsics K (3, 3), rotation R (3, 3) and translation t (3,)."""
        k = _as_matrix(intrinsics, "intrinsics", (3, 3))
        r = _as_matrix(rotation, "rotation", (3, 3))
        t = _as_points(translation, "translation", ndim=1)
        return cls(k @ np.column_stack([r, t]), image_size)

    @classmethod
    def looking_at(
        cls, position: Any, target: Any, focal_length: float, image_size: Sequence[int], *,
        up: Any = (0.0, 0.0, 1.0),
    ) -> Camera:
        """A camera at `position` with `target` in the middle of its image and `up` upwards.

        focal_length is in pixels; position, target and up are (3,).
        """
        place, aim, upwards = (
            _as_points(values, name, ndim=1)
            for values, name in ((position, "position"), (target, "target"), (up, "up"))
        )
        size = float(as_positive(as_scalar(focal_length, "focal_length"), "focal_length"))
        ahead, upwards = _scaled(aim - place), _scaled(upwards)
        right = np.cross(ahead, upwards)
        if not np.linalg.norm(right) > 1e-9 * np.linalg.norm(ahead) * np.linalg.norm(upwards):
            raise InputError(
                f"up must not lie along the view, got {shown(upwards.tolist())} for a view along "
                f"{shown(ahead.tolist())}; choose another direction, or another target."
            )
        axes = np.stack([right, np.cross(ahead, _scaled(right)), ahead])
        rotation = axes / np.linalg.norm(axes, axis=1, keepdims=True)
        camera = cls(np.eye(3, 4), image_size)
        height, width = camera.image_size
        intrinsics = [[size, 0, (width - 1) / 2], [0, size, (height - 1) / 2], [0, 0, 1]]
        return cls.from_calibration(intrinsics, rotation, -rotation @ place, image_size)

    @property
    def center(self) -> Float64:
        """Where all rays start, (3,)."""
        return self._center.copy()

    def rays(self, pixels: Any = None) -> tuple[Float64, Float64]:
        """Origins and unit directions, (N, 3) each, of the rays through pixels.

        pixels : (N, 2), columns and rows, fractions allowed; all pixels row by row by default.
        """
        if pixels is None:
            self._check_rays(math.prod(self.image_size))
            rows, columns = np.indices(self.image_size)
            places: FloatArray = np.column_stack([columns.ravel(), rows.ravel()]).astype(_DOUBLE)
        else:
            places = as_floats(pixels, "pixels", _DOUBLE)
            if places.ndim != 2 or places.shape[1] != 2:
                raise InputError(
                    f"pixels must have shape (N, 2), got {places.shape}; give a column and a row "
                    "for each."
                )
            self._check_rays(len(places))
        distance = np.maximum(np.abs(places).max(1, keepdims=True), 1.0)
        ways = (places / distance) @ self._inverse[:, :2].T + self._inverse[:, 2] / distance
        ways *= self._sign / np.abs(ways).max(1, keepdims=True)
        ways /= np.linalg.norm(ways, axis=1, keepdims=True)
        return np.broadcast_to(self._center, ways.shape).copy(), ways

    @staticmethod
    def _check_rays(n_rays: int) -> None:
        check_memory(120.0 * n_rays, f"A list of {n_rays} rays", "pass fewer pixels")

    def project(self, points: Any) -> tuple[Float64, Float64]:
        """Columns and rows (N, 2), and depths (N,) in units of the last row of P, of points (N, 3).

        A depth is positive in front of the camera; a point beside the camera has no finite pixel.
        """
        places = np.atleast_2d(_as_points(points, "points"))
        image = places @ self.projection[:, :3].T + self.projection[:, 3]
        with np.errstate(divide="ignore", invalid="ignore"):
            pixels = image[:, :2] / image[:, 2:]
        return pixels, np.asarray(image[:, 2] * self._sign)


def _as_points(values: Any, name: str, ndim: int | None = None) -> Float64:
    """(3,) or (N, 3)."""
    array: Float64 = as_floats(values, name, _DOUBLE).astype(np.float64)
    if array.ndim not in ((1, 2) if ndim is None else (ndim,)) or array.shape[-1] != 3:
        wanted = "(3,)" if ndim == 1 else "(R, 3) or (3,)"
        raise InputError(
            f"{name} must have shape {wanted}, got {array.shape}; give x, y and z."
        )
    return array


def _scaled(vector: Float64) -> Float64:
    """Divided by its largest entry, so that its products stay in the range of numbers."""
    return np.asarray(vector / (np.abs(vector).max() or 1.0))


def _as_matrix(values: Any, name: str, shape: tuple[int, int]) -> Float64:
    if as_array(values, name).shape != shape:
        raise InputError(
            f"{name} must have shape {shape}, got {as_array(values, name).shape}; check the "
            "calibration."
        )
    matrix: Float64 = as_floats(values, name, _DOUBLE).astype(np.float64)
    return matrix
