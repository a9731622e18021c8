"""Widths and weights of the two terms of `refine`, where the caller gives none.

On images they are constants that were chosen on real data, with widths in space that grow with the
image, so that a photo is treated alike at any size. In a volume widths follow the structures that
the segmentation shows, since kernels wider than a structure erase it, and the spread of the
intensities within its labels.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import image_size

# Chosen on real images by experiments/refine_defaults.py and, for scribbles, by
# experiments/grabcut33.py: widths (pixels, color) and weights of the two terms. Widths in space are
# for images whose longer side has `SIZES` pixels. Hard labels say less about where a border lies
# than probabilities do.
SPATIAL, SPATIAL_WEIGHT = 3.0, 3.0
BILATERAL = {
    "labels": (30.0, 5.0), "probabilities": (60.0, 8.0), "foreground": (60.0, 8.0),
    "scribbles": (40.0, 10.0),
}
SIZES = {"labels": 500.0, "probabilities": 320.0, "foreground": 320.0, "scribbles": 481.0}
BILATERAL_WEIGHT = {"labels": 6.0, "probabilities": 3.0, "foreground": 3.0, "scribbles": 6.0}
# Of painting in the playground: ten iterations gain half a point of IoU on the photos of
# experiments/grabcut33.py, but strokes would wait for them.
PAINTING_MAX_ITER = 6
# Fewer pixels are too few to see an edge by, however small the image is.
NARROWEST = 10.0
# A block of `refine_blocks` overlaps the next by twice the widest width: by half a block at most.
WIDEST = 128.0

# In volumes, chosen by experiments/volume_defaults.py: both widths in thicknesses of the thinnest
# label and in standard deviations of the intensities within labels, and the weights.
VOLUME_WIDTH, VOLUME_COLOR = 0.5, 0.3
VOLUME_SPATIAL_WEIGHT, VOLUME_BILATERAL_WEIGHT = 0.5, 4.0
LEAST_VOXELS = 27  # of a label whose thickness counts
# Of the weights in a volume, one after the other until each label of real extent, so many voxels
# thick on average, keeps this share of its voxels. Noise is thinner: single voxels 1/3, pairs 0.4.
VOLUME_SHARES = (1.0, 0.25, 0.0625, 0.0)
REAL_THICKNESS, LEAST_KEPT = 0.75, 0.5


class Terms(NamedTuple):
    """Widths and weights of the spatial and the bilateral term; "auto" leaves one to
    `default_terms`, a width of None drops its term.
    """

    spatial: Any = "auto"
    spatial_weight: Any = "auto"
    bilateral: Any = "auto"
    bilateral_weight: Any = "auto"

    def filled(self, defaults: Terms) -> Terms:
        """These, with `defaults` where they are "auto"."""
        return Terms(*(
            default if isinstance(value, str) and value == "auto" else value
            for value, default in zip(self, defaults, strict=True)
        ))

    @property
    def are_open(self) -> bool:
        """Whether any of them is "auto"."""
        return any(isinstance(value, str) and value == "auto" for value in self)

    @property
    def weights_are_open(self) -> bool:
        """Whether both weights are "auto"."""
        return all(isinstance(value, str) and value == "auto" for value in self[1::2])


class Structure(NamedTuple):
    """What is known of a segmented volume.

    thickness : of the thinnest label, in the units of the spacing; infinite if there is none.
    spread : standard deviation of the intensities within labels, 0 without an image.
    voxels : (L,) of each label of real extent, and 0 of the others.
    """

    thickness: float
    spread: float
    voxels: tuple[int, ...]

    def outlasts(self, labels: NDArray[Any]) -> bool:
        """Whether a label of real extent keeps too few voxels in these labels, 0..L-1."""
        kept = np.bincount(labels.ravel(), minlength=len(self.voxels))
        return bool((kept < LEAST_KEPT * np.asarray(self.voxels)).any())


def default_terms(
    kind: str, grid: Sequence[int], spacing: Any = None, structure: Structure | None = None
) -> Terms:
    """The terms for a segmentation of a `kind` on a grid (d,): of an image or, with what is known
    of its `structure`, of a volume.
    """
    pixels, color = BILATERAL[kind]
    if structure is None:
        scale = image_size(grid, spacing) / SIZES[kind]
        wide = min(max(pixels * scale, NARROWEST), WIDEST)
        return Terms(
            max(SPATIAL * scale, 1.0), SPATIAL_WEIGHT, (wide, color), BILATERAL_WEIGHT[kind]
        )
    step = float(np.min(1.0 if spacing is None else spacing))
    width = min(max(VOLUME_WIDTH * structure.thickness, step), WIDEST * step)
    color = VOLUME_COLOR * structure.spread or color
    return Terms(width, VOLUME_SPATIAL_WEIGHT, (width, color), VOLUME_BILATERAL_WEIGHT)


def measure(
    parts: Iterable[tuple[NDArray[Any], NDArray[Any] | None]], n_labels: int, spacing: Any = None
) -> Structure:
    """The structure of a volume that is given part by part: labels (*part,) as 0..L-1 and -1 for
    none, and intensities (*part[, C]) or None.

    A slab of volume V has faces of area S in all and is 2 V / S thick; so is any label, with the
    area of the faces between its voxels and others.
    """
    voxels, faces = np.zeros(n_labels), np.zeros(n_labels)
    moments: NDArray[np.float64] | None = None  # (2, C, L), sums of values and of their squares
    for labels, image in parts:
        known = labels >= 0
        ids = labels[known]
        voxels += np.bincount(ids, minlength=n_labels)
        steps = np.ones(labels.ndim) if spacing is None else np.broadcast_to(spacing, labels.ndim)
        for axis, step in enumerate(steps):
            ahead = np.moveaxis(labels, axis, 0)
            borders = ahead[1:] != ahead[:-1]
            for side in (ahead[1:][borders], ahead[:-1][borders]):
                faces += np.bincount(side[side >= 0], minlength=n_labels) / step
        if image is not None:
            values = image.reshape(labels.size, -1)[known.ravel()].astype(np.float64)
            with np.errstate(over="ignore", invalid="ignore"):
                found = np.asarray([
                    [np.bincount(ids, channel, n_labels) for channel in power.T]
                    for power in (values, np.square(values))
                ])
                moments = found if moments is None else moments + found
    counted = (voxels >= LEAST_VOXELS) & (faces > 0)
    thick = np.where(counted, 2.0 * voxels / np.where(counted, faces, 1.0), math.inf)
    thickness = float(thick.min(initial=math.inf))
    least = REAL_THICKNESS * np.min(1.0 if spacing is None else spacing)
    extents = tuple(np.where(counted & (thick >= least), voxels, 0).astype(int).tolist())
    if moments is None or not voxels.any():
        return Structure(thickness, 0.0, extents)
    sums, squares = moments
    with np.errstate(over="ignore", invalid="ignore"):
        within = float((squares - np.square(sums) / np.maximum(voxels, 1.0)).sum())
    # Of numbers whose squares are too large, nothing is known.
    within = max(within, 0.0) if math.isfinite(within) else 0.0
    return Structure(thickness, math.sqrt(within / (voxels.sum() * len(sums))), extents)
