"""Segmentations that come with an affine, beside scans that do: brought to the scan's orientation.

Programs store the axes of one volume in many orders and directions, which viewers undo by the
affine. What lies elsewhere than the scan is refused: there is no saying which voxels belong
together.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.foreign import is_spatial_image
from crfield._core.optional import require
from crfield._core.validate import InputError

_ROUNDING = 0.1  # of a voxel, by which headers in single precision and other programs may be off


def beside_scan(
    segmentation: Any, scan: Any, name: object = "the segmentation", scan_name: object = "the image"
) -> Any:
    """A segmentation with its axes in the order and direction of those of the scan, if both are
    nibabel images whose headers say where they lie; what else there is comes back as it is.

    The identity in one of the headers says nothing, unless a turn brings both to the same place.
    The voxels are turned when they are read. Grids of other sizes, unless they are coarser than
    the scan's, are left to those who compare shapes.
    """
    there, here = _position(scan), _position(segmentation)
    if there is None or here is None:
        return segmentation
    grid = _grid(scan.shape)
    found = segmentation
    are_default = [np.array_equal(affine, np.eye(4)) for affine in (there, here)]
    if any(are_default):
        if not all(are_default):
            found = _turned(segmentation, here, there)
        in_place = _are_close(found.affine, _grid(found.shape), there, grid)
        return found if in_place else segmentation
    if not _are_close(here, _grid(found.shape), there, grid):
        found = _turned(segmentation, here, there)
        may_fit = any(_is_within(_grid(each.shape), grid) for each in (found, segmentation))
        if may_fit and not _are_close(found.affine, _grid(found.shape), there, grid):
            offset = np.abs(_corners(found.affine, _grid(found.shape)) - _corners(there, grid))
            raise InputError(
                f"expected {name} to lie where {scan_name} does, but by their affines they are up "
                f"to {offset.max():.3g} mm apart; resample it to the grid of the scan, or save it "
                "with the identity as its affine if it covers the scan as it is."
            )
    return found


def _position(image: Any) -> NDArray[np.float64] | None:
    """The affine (4, 4) of a nibabel image, None where its header does not tell."""
    if isinstance(image, np.ndarray) or not is_spatial_image(image) or image.affine is None:
        return None
    codes = ("sform_code", "qform_code")
    if hasattr(image.header, "get_sform") and not any(int(image.header[code]) for code in codes):
        return None
    affine = np.asarray(image.affine, np.float64)
    is_sound = affine.shape == (4, 4) and np.isfinite(affine).all()
    return affine if is_sound and np.linalg.det(affine[:3, :3]) != 0 else None


def _grid(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape, 1)[:3]


def _is_within(grid: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether a grid has at most as many voxels along each axis as another."""
    return all(n <= m for n, m in zip(grid, other, strict=True))


def _corners(affine: NDArray[np.float64], grid: tuple[int, ...]) -> NDArray[np.float64]:
    """Where the eight corners (8, 3) of the box of all voxels lie."""
    corners = np.array(list(itertools.product(*((-0.5, n - 0.5) for n in grid))))
    return corners @ affine[:3, :3].T + affine[:3, 3]


def _are_close(
    affine: NDArray[np.float64], grid: tuple[int, ...], other: NDArray[np.float64],
    other_grid: tuple[int, ...],
) -> bool:
    """Whether a grid fills the box of another, within rounding; a coarser one may be off by one of
    its voxels, or have the other's affine, which was not made for it and says nothing.
    """
    if grid != other_grid and np.allclose(affine, other, atol=1e-3):
        return _is_within(grid, other_grid)
    voxel = np.linalg.norm(affine[:3, :3], axis=0)
    slack = _ROUNDING * voxel.min() if grid == other_grid else voxel.max()
    offset = np.abs(_corners(affine, grid) - _corners(other, other_grid)).max()
    return _is_within(grid, other_grid) and bool(offset <= slack)


def _turned(image: Any, here: NDArray[np.float64], there: NDArray[np.float64]) -> Any:
    """A nibabel image with the axes of the affine `here` in the order and direction of `there`."""
    orientations = require("nibabel", "NIfTI files need").orientations
    turn = orientations.ornt_transform(*map(orientations.io_orientation, (here, there)))
    n_axes = min(3, len(image.shape))
    if (turn[n_axes:, 0] != np.arange(n_axes, 3)).any():
        return image  # a flat one that would stand upright
    affine = here @ orientations.inv_ornt_aff(turn, _grid(image.shape))
    return type(image)(_TurnedVoxels(image, turn[:n_axes]), affine, image.header)


class _TurnedVoxels:
    """Voxels (X, Y, Z, ...) of an image in another order and direction of their first axes, cut
    before they are read.

    image : it is kept, because its file may be closed with it.
    turn : for each axis the one that it becomes and its direction, 1 or -1, (d, 2).
    """

    def __init__(self, image: Any, turn: NDArray[np.float64]) -> None:
        self._image, shape = image, tuple(image.shape)
        # By the axes that they become.
        self._stored = tuple(int(axis) for axis in np.argsort(turn[:, 0]))
        self._flipped = tuple(bool(turn[axis, 1] < 0) for axis in self._stored)
        self.shape = (*(shape[axis] for axis in self._stored), *shape[len(turn) :])
        self.ndim = len(self.shape)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[()], dtype)

    def __getitem__(self, part: tuple[slice, ...]) -> NDArray[Any]:
        slices = [*part, *[slice(None)] * (self.ndim - len(part))]
        stored = list(slices)
        for k, (axis, flipped) in enumerate(zip(self._stored, self._flipped, strict=True)):
            n = self.shape[k]
            start, stop, _ = slices[k].indices(n)
            stored[axis] = slice(n - stop, n - start) if flipped else slice(start, stop)
        found = np.asarray(self._image.dataobj[tuple(stored)])
        rest = range(len(self._stored), self.ndim)
        flips = tuple(slice(None, None, -1 if flipped else 1) for flipped in self._flipped)
        return found.transpose(*self._stored, *rest)[flips]
