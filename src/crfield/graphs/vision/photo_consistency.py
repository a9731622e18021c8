"""How well calibrated images agree on where a ray meets a surface.

A plane of constant depth in front of one camera maps its image into another's by a homography,

    depth' (column', row', 1) = depth A (column, row, 1) + b,   A = M' M^-1,   b = p' - A p,

with P = [M | p] the projections. Where that plane is the surface, windows of one image and of the
other brought over correlate. `sweep_planes` tries many depths (Collins 1996), `look_up` reads off
what the voxels of a ray get, and `first_hits` goes back from occupancies to what a camera sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    FloatArray,
    InputError,
    as_array,
    as_count,
    as_floats,
    as_not_negative,
    check_memory,
    shown,
)
from crfield.graphs.vision.rays import as_offsets
from crfield.graphs.vision.voxels import Camera

_DOUBLE, _SINGLE = np.dtype(np.float64), np.dtype(np.float32)
Float32 = NDArray[np.float32]


def sample_bilinear(image: Any, pixels: Any) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Values (..., [C]) of an image (H, W, [C]) between its pixels, and where they are inside it.

    pixels : (..., 2), columns and rows, pixel centers on whole numbers; outside of the centers'
        rectangle, and where a pixel is not finite, the value is that of the nearest pixel at hand.
    """
    values = as_floats(image, "image")
    if values.ndim not in (2, 3) or values.size == 0:
        raise InputError(
            f"image must have shape (H, W) or (H, W, C), got {values.shape}; give one image."
        )
    places = as_array(pixels, "pixels")
    if places.ndim < 1 or places.shape[-1] != 2:
        raise InputError(
            f"pixels must have shape (..., 2), got {places.shape}; give columns and rows."
        )
    return _sample(values, places[..., 0], places[..., 1])


def correlate_windows(
    first: Any, second: Any, radius: int = 2, *, noise: float = 0.01
) -> Float32:
    """Zero-mean normalized cross-correlation of all windows of two images (H, W), within [-1, 1].

        ncc = cov(a, b) / sqrt((var(a) + noise^2) (var(b) + noise^2))

    over windows of (2 radius + 1)^2 pixels, cut at the border. `noise`, in gray levels, draws
    windows with little contrast towards 0; with noise 0 those with none have 0.
    """
    a, b = (as_floats(image, name, _SINGLE) for image, name in ((first, "first"),
                                                                (second, "second")))
    if a.ndim != 2 or a.shape != b.shape or a.size == 0:
        raise InputError(
            f"first and second must be images (H, W) of one shape, got {a.shape} and {b.shape}; "
            "bring one of them to the shape of the other."
        )
    return _Windows(a, radius, noise).correlate(b)


def sweep_planes(
    camera: Camera, image: Any, others: Sequence[tuple[Camera, Any]], depths: Any, *,
    radius: int = 2, noise: float = 0.01, n_best: int | None = None,
) -> Float32:
    """Correlation of an image with other images for every pixel and depth, (D, H, W) in [-1, 1].

    Parameters
    ----------
    camera, image : what is to be explained; image is (H, W), the size of its camera.
    others : pairs (camera, image) as well.
    depths : (D,) > 0, in units of `Camera.project`.
    radius, noise : see `correlate_windows`.
    n_best : how many of the others count, those that agree best, since a point may be hidden from
        some: half of them, rounded up, by default. Others that do not have a point in their image
        do not count; a point that none has gets 0.
    """
    gray = _as_view(camera, image, "image")
    try:
        pairs = [(other, side) for other, side in others]
    except (TypeError, ValueError):
        raise InputError(
            f"others must be pairs (camera, image), got {shown(others)}; give a list of pairs."
        ) from None
    if not pairs:
        raise InputError("others must have one image at least, got none; give some neighbors.")
    sides = [_as_view(other, side, "the image of others") for other, side in pairs]
    planes = as_floats(depths, "depths", _DOUBLE)
    if planes.ndim != 1 or len(planes) == 0 or not (planes > 0).all():
        raise InputError(
            f"depths must be one axis of positive numbers, got shape {planes.shape} with "
            f"{planes.min(initial=0.0):g} as the least; give depths in front of the camera."
        )
    count = (len(sides) + 1) // 2 if n_best is None else as_count(n_best, "n_best", 1, len(sides))
    windows = _Windows(gray, radius, noise)
    maps = [_plane_maps(camera, other) for other, _ in pairs]
    check_memory(
        4.0 * gray.size * (len(planes) + 2 * len(sides)), f"A sweep of {len(planes)} planes",
        "use fewer depths or smaller images",
    )
    rows, columns = (part.astype(np.float32) for part in np.indices(gray.shape))
    volume = np.empty((len(planes), *gray.shape), np.float32)
    found = np.empty((len(sides), *gray.shape), np.float32)
    for plane, depth in enumerate(planes):
        for k, (side, (linear, constant)) in enumerate(zip(sides, maps, strict=True)):
            h = (depth * linear + np.outer(constant, [0, 0, 1])).astype(np.float32)
            x, y, z = (h[i, 0] * columns + h[i, 1] * rows + h[i, 2] for i in range(3))
            with np.errstate(divide="ignore", invalid="ignore"):
                warped, inside = _sample(side, x / z, y / z)
            found[k] = windows.correlate(warped)
            found[k][~inside | (z <= 0)] = -np.inf
        best = np.partition(found, len(sides) - count, axis=0)[len(sides) - count :]
        seen = np.isfinite(best)
        total = np.where(seen, best, 0).sum(0)
        volume[plane] = total / np.maximum(seen.sum(0), 1)
    return volume


def look_up(volume: Any, depths: Any, pixels: Any, places: Any) -> Float32:
    """What a volume (D, H, W) of `sweep_planes` has at some pixels and depths, (E,).

    depths : (D,), of the volume, increasing; between them values are interpolated.
    pixels : (E,), flat indices, row * W + column; places : (E,), depths.
    """
    values = as_floats(volume, "volume", _SINGLE)
    planes = as_floats(depths, "depths", _DOUBLE)
    if values.ndim != 3 or planes.shape != values.shape[:1] or values.size == 0:
        raise InputError(
            f"volume and depths must have shapes (D, H, W) and (D,), got {values.shape} and "
            f"{planes.shape}; pass both as they were swept."
        )
    if not (np.diff(planes) > 0).all():
        raise InputError("depths must increase, got some that do not; sort them before the sweep.")
    cells, wanted = as_array(pixels, "pixels"), as_floats(places, "places", _DOUBLE)
    if cells.ndim != 1 or cells.dtype.kind not in "iu" or cells.shape != wanted.shape:
        raise InputError(
            f"pixels and places must have shape (E,), pixels of whole numbers, got {cells.dtype} "
            f"{cells.shape} and {wanted.shape}; give both for each voxel of a ray."
        )
    n_pixels = values[0].size
    if len(cells) and not 0 <= cells.min() <= cells.max() < n_pixels:
        raise InputError(
            f"pixels must lie between 0 and {n_pixels - 1}, got {cells.min()} to {cells.max()}; "
            "give row * W + column."
        )
    cells = cells.astype(np.int64)
    at = np.interp(wanted, planes, np.arange(len(planes)))
    below = np.minimum(at.astype(np.int64), max(len(planes) - 2, 0))
    share = (at - below).astype(np.float32)
    flat, index = values.reshape(-1), below * n_pixels + cells
    near = np.asarray(flat[index], np.float32)
    if len(planes) == 1:
        return near
    return np.asarray(near + share * (flat[index + n_pixels] - near))


def first_hits(offsets: Any, occupied: Any) -> tuple[FloatArray, FloatArray]:
    """Where rays end if voxels are occupied independently of each other: (E,), and (R,) for none.

        P(depth = i) = q_i prod_{j < i} (1 - q_j),   P(none) = prod_i (1 - q_i)

    offsets : (R + 1,), as `VoxelGrid.traverse` gives it.
    occupied : (E,), q_i within [0, 1], of each voxel of each ray.
    """
    q = as_floats(occupied, "occupied", _DOUBLE)
    if q.ndim != 1:
        raise InputError(
            f"occupied must have shape (E,), got {q.shape}; give one for each voxel of a ray."
        )
    ends = as_offsets(offsets, len(q), "occupied")
    if not ((q >= 0) & (q <= 1)).all():
        raise InputError(
            f"occupied must lie between 0 and 1, got {q.min():g} to {q.max():g}; give "
            "probabilities, such as marginals."
        )
    with np.errstate(divide="ignore"):
        free = np.maximum(np.log1p(-q), -60.0)  # e^-60 is as good as nothing, and finite
    # One sum over all rays; each ray's is what it has more than at its start.
    passed = np.concatenate([[0.0], np.cumsum(free)])
    start = np.repeat(passed[ends[:-1]], np.diff(ends))
    hits = q * np.exp(passed[:-1] - start)
    return hits, np.exp(passed[ends[1:]] - passed[ends[:-1]])


class _Windows:
    """The windows of one image (H, W), to be compared with those of others."""

    def __init__(self, image: FloatArray, radius: int, noise: float):
        self.radius = as_count(radius, "radius", 1)
        self.noise = as_not_negative(noise, "noise", "use 0 for none")
        self.count = self._sum(np.ones_like(image))
        self.image, self.mean, self.variance = self._moments(image)

    def correlate(self, other: FloatArray) -> Float32:
        """Of every window with the other image's in its place."""
        shifted, mean, variance = self._moments(other)
        covariance = self._sum(self.image * shifted) / self.count - self.mean * mean
        product = self.variance * variance
        tiny = np.finfo(np.float32).tiny
        ncc = np.where(product > tiny, covariance / np.sqrt(np.maximum(product, tiny)), 0)
        return np.asarray(np.clip(ncc, -1, 1), np.float32)

    def _moments(self, image: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The image around 0, since large gray levels would cancel, and means and variances."""
        shifted = image - image.mean()
        mean = self._sum(shifted) / self.count
        square = self._sum(shifted * shifted) / self.count
        spread = square - mean * mean
        # What is left of equal gray levels is rounding.
        spread[spread < 1e-6 * square] = 0
        return shifted, mean, np.asarray(spread + np.float32(self.noise**2))

    def _sum(self, image: FloatArray) -> FloatArray:
        """Sums over windows, one axis after the other; what is outside counts as 0."""
        for axis in (0, 1):
            total = image.copy()
            for step in range(1, min(self.radius, image.shape[axis] - 1) + 1):
                ahead = [slice(None), slice(None)]
                behind = list(ahead)
                ahead[axis], behind[axis] = slice(step, None), slice(None, -step)
                total[tuple(behind)] += image[tuple(ahead)]
                total[tuple(ahead)] += image[tuple(behind)]
            image = total
        return image


def _sample(
    image: FloatArray, columns: NDArray[Any], rows: NDArray[Any]
) -> tuple[FloatArray, NDArray[np.bool_]]:
    height, width = image.shape[:2]
    inside = (columns >= 0) & (columns <= width - 1) & (rows >= 0) & (rows <= height - 1)
    x = np.clip(np.nan_to_num(columns), 0, width - 1)
    y = np.clip(np.nan_to_num(rows), 0, height - 1)
    left = np.minimum(x.astype(np.int32), max(width - 2, 0))
    top = np.minimum(y.astype(np.int32), max(height - 2, 0))
    across, down = (x - left).astype(image.dtype), (y - top).astype(image.dtype)
    if image.ndim == 3:
        across, down = across[..., None], down[..., None]
    flat = image.reshape(height * width, *image.shape[2:])
    corner = top * width + left
    right, below = min(1, width - 1), width * min(1, height - 1)
    upper = flat[corner] * (1 - across) + flat[corner + right] * across
    lower = flat[corner + below] * (1 - across) + flat[corner + below + right] * across
    return np.asarray(upper * (1 - down) + lower * down), np.asarray(inside)


def _plane_maps(camera: Camera, other: Camera) -> tuple[NDArray[Any], NDArray[Any]]:
    """A and b, from pixels and depth in front of `camera` to pixels times depth of `other`."""
    here, there = (
        # The sign of P is free; this one has depth in front positive.
        p * np.linalg.slogdet(p[:, :3])[0] for p in (camera.projection, other.projection)
    )
    linear = there[:, :3] @ np.linalg.inv(here[:, :3])
    return linear, there[:, 3] - linear @ here[:, 3]


def _as_view(camera: Camera, image: Any, name: str) -> FloatArray:
    if not isinstance(camera, Camera):
        raise InputError(f"{name} must come with a Camera, got {shown(camera)}; make one of it.")
    gray = as_floats(image, name, _SINGLE)
    if gray.shape != camera.image_size:
        raise InputError(
            f"{name} must have its camera's size {camera.image_size}, got {gray.shape}; give gray "
            "levels (H, W), and scale the projection with the image."
        )
    return gray
