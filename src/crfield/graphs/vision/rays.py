"""Voxels under rays: occupancy with one factor for each ray.

    P(o) = 1/Z prod_v gamma_v^o_v (1 - gamma_v)^(1 - o_v) prod_r psi_r(o)
    psi_r(o) = sum_i o_i prod_{j < i} (1 - o_j) s_i + s_inf prod_i (1 - o_i)

with o in {0, 1}, i over the voxels of ray r from the camera on: s_i is the score of i being the
first that is occupied.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.validate import (
    FloatArray,
    InputError,
    as_array,
    as_count,
    as_floats,
    check_memory,
    refuse_where,
)
from crfield.graphs.vision.voxels import MOST_VOXELS, VoxelGrid

LARGEST_SCORE, LEAST_SCORE = 1e30, 1e-30
# A score divided by less could leave the range of numbers.
LEAST_PRIOR = 1e-300
_DOUBLE = np.dtype(np.float64)


class RayModel:
    """Voxels with a prior, and rays with scores; keeps copies that cannot be written to.

    P(o) = 1/Z prod_v gamma_v^o_v (1 - gamma_v)^(1 - o_v) prod_r psi_r(o), with
    psi_r(o) = sum_i o_i prod_{j < i} (1 - o_j) s_i + s_inf prod_i (1 - o_i) (L7, ray potentials).

    grid : a `VoxelGrid`, or the number of voxels.
    offsets, voxels : (R + 1,), (E,): ray r has voxels[offsets[r]:offsets[r + 1]], in order from the
        camera, all different; it may have none. `VoxelGrid.traverse` gives both.
    scores : (E,) >= 0, s_i of each ray; float64 is kept, all else becomes float32, which has few
        digits below 1e-38. A ray's scores count up to a factor; those below 1e-200 of its largest
        count as 0.
    prior : gamma within [1e-300, 1), one or one for each voxel.
    empty_scores : s_inf >= 0, one or one for each ray.
    """

    def __init__(
        self, grid: VoxelGrid | int, offsets: Any, voxels: Any, scores: Any, prior: Any,
        empty_scores: Any = 0.0,
    ):
        if isinstance(grid, VoxelGrid):
            self.shape: tuple[int, ...] = grid.shape
            self.n_voxels = grid.n_voxels
        else:
            self.n_voxels = as_count(grid, "the number of voxels", 1, MOST_VOXELS)
            self.shape = (self.n_voxels,)
        check_memory(
            32.0 * self.n_voxels, f"A model of {self.n_voxels} voxels", "use a coarser grid"
        )
        self.offsets, self.voxels = _as_lists(offsets, voxels, self.n_voxels)
        self.scores = as_scores(scores, len(self.voxels)).copy()
        self.empty_scores = as_empty_scores(empty_scores, self.n_rays)
        _check_possible(self.offsets, self.scores, self.empty_scores)
        self.prior = _as_prior(prior, self.n_voxels, self.shape)
        for values in (*self.lists, self.prior):
            values.setflags(write=False)  # compiled code relies on what was checked
        self._log_odds = np.log(self.prior) - np.log1p(-self.prior)
        degree = _largest_degree(self.offsets, self.voxels, self.n_voxels)
        # Log-odds are summed as whole numbers, with so many binary digits after the point that
        # the largest sum fits into 63 bits.
        largest = degree * _native.LARGEST_LOG_ODDS + float(np.abs(self._log_odds).max()) + 1
        self.bits = 61 - math.ceil(math.log2(largest))

    @property
    def n_rays(self) -> int:
        """R."""
        return len(self.offsets) - 1

    @property
    def lists(
        self,
    ) -> tuple[NDArray[np.int64], NDArray[np.int32], FloatArray, NDArray[np.float64]]:
        """Offsets (R + 1,), voxels (E,), scores (E,) and empty scores (R,)."""
        return self.offsets, self.voxels, self.scores, self.empty_scores

    def seen(self) -> NDArray[np.bool_]:
        """Whether any ray goes through each voxel, in the grid's shape."""
        found = np.zeros(self.n_voxels, np.bool_)
        found[self.voxels] = True
        return found.reshape(self.shape)

    def fixed_prior(self) -> NDArray[np.int64]:
        """The log-odds of the prior as whole numbers (n_voxels,), in units of 2^-bits."""
        return np.asarray(np.rint(np.ldexp(self._log_odds, self.bits)), np.int64)

    def log_odds(self, fixed: NDArray[np.int64]) -> NDArray[np.float64]:
        """Whole numbers `fixed` (n_voxels,) as log-odds, in the grid's shape."""
        return np.ldexp(fixed.astype(np.float64), -self.bits).reshape(self.shape)

    def __repr__(self) -> str:
        return f"RayModel({self.n_voxels} voxels, {self.n_rays} rays)"


def _as_lists(
    offsets: Any, voxels: Any, n_voxels: int
) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Offsets (R + 1,) and voxels (E,) that match, no voxel twice on a ray."""
    cells = _as_whole(voxels, "voxels")
    ends = as_offsets(offsets, len(cells), "voxels")
    bad = (cells < 0) | (cells >= n_voxels)
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(
            f"voxels must lie between 0 and {n_voxels - 1}, got {cells[at]} at index {at}; "
            "correct or leave out that entry."
        )
    return ends, cells.astype(np.int32)


def as_offsets(offsets: Any, n_entries: int, name: str) -> NDArray[np.int64]:
    """Offsets (R + 1,) into the entries of a list, copied."""
    ends = _as_whole(offsets, "offsets").astype(np.int64)
    if not 2 <= len(ends) <= MOST_VOXELS:
        raise InputError(
            f"offsets must have R + 1 entries for R >= 1 rays, got {len(ends)}; give where each "
            "ray starts, and where the last ends."
        )
    if ends[0] != 0 or ends[-1] != n_entries:
        raise InputError(
            f"offsets must run from 0 to the {n_entries} entries of {name}, got {ends[0]} to "
            f"{ends[-1]}; match both."
        )
    falls = np.diff(ends) < 0
    if falls.any():
        ray = int(np.argmax(falls))
        raise InputError(
            f"offsets must not fall, got {ends[ray]} and then {ends[ray + 1]} at ray {ray}; list "
            "the rays one after the other."
        )
    return ends


def _largest_degree(
    offsets: NDArray[np.int64], voxels: NDArray[np.int32], n_voxels: int
) -> int:
    """How many rays go through the busiest voxel; refuses a ray that meets a voxel twice."""
    degrees, scratch = (np.empty(n_voxels, np.int32) for _ in range(2))
    again = _native.count_rays(offsets, voxels, scratch, degrees)
    if again >= 0:
        ray = int(np.searchsorted(offsets, again, "right")) - 1
        raise InputError(
            f"voxels of a ray must differ, got {voxels[again]} twice on ray {ray}; keep the one "
            "nearer to the camera."
        )
    return int(degrees.max())


def as_scores(
    scores: Any, n_entries: int, dtype: np.dtype[Any] | None = None
) -> FloatArray:
    """Scores (E,), 0 to 1e30, float64 if they came so or that is asked for, else float32."""
    given = as_array(scores, "scores")
    if given.dtype.kind == "f" and given.dtype.itemsize > 4:
        dtype = _DOUBLE
    values = as_floats(given, "scores", dtype)
    if values.shape != (n_entries,):
        raise InputError(
            f"scores must have one number for each of {n_entries} entries of voxels, got shape "
            f"{values.shape}; match voxels."
        )
    _check_range(values, "scores")
    return values


def as_empty_scores(empty_scores: Any, n_rays: int) -> NDArray[np.float64]:
    """Scores (R,) of rays that meet no occupied voxel."""
    values = as_floats(empty_scores, "empty_scores", _DOUBLE)
    if values.shape not in ((), (n_rays,)):
        raise InputError(
            f"empty_scores must be one number or one for each of {n_rays} rays, got shape "
            f"{values.shape}; match the rays."
        )
    _check_range(values, "empty_scores")
    return np.broadcast_to(values, (n_rays,)).astype(np.float64)


def _check_possible(
    offsets: NDArray[np.int64], scores: FloatArray, empty_scores: NDArray[np.float64]
) -> None:
    """Refuse a ray that allows no state of its voxels at all."""
    crossed = np.flatnonzero(np.diff(offsets))
    if len(crossed) == 0:
        return
    best = np.maximum(np.maximum.reduceat(scores, offsets[crossed]), empty_scores[crossed])
    bad = best < LEAST_SCORE
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(
            f"a ray must have a score of {LEAST_SCORE:g} at least, got {best[at]:g} as the largest "
            f"of ray {int(crossed[at])}; give it a positive empty score or leave it out."
        )


def _as_prior(prior: Any, n_voxels: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Probabilities (n_voxels,) within [1e-300, 1)."""
    given = as_floats(prior, "prior", _DOUBLE)
    if given.shape not in ((), (n_voxels,), shape):
        raise InputError(
            f"prior must be one number or one for each of {n_voxels} voxels, got shape "
            f"{given.shape}; match the grid."
        )
    bad = ~((given >= LEAST_PRIOR) & (given < 1))
    refuse_where(
        bad, given, f"prior must be at least {LEAST_PRIOR:g} and less than 1",
        "use a small probability instead of 0 and one near 1 instead of 1",
    )
    return np.array(np.broadcast_to(given.reshape(-1), (n_voxels,)))


def _as_whole(values: Any, name: str) -> NDArray[Any]:
    array = as_array(values, name)
    if array.size == 0:
        array = np.zeros(array.shape, np.int64)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError(
            f"{name} must be whole numbers of one axis, got {array.dtype} of shape "
            f"{array.shape}; give an array of ints."
        )
    return array


def _check_range(values: FloatArray, name: str) -> None:
    bad = ~((values >= 0) & (values <= LARGEST_SCORE))
    refuse_where(
        bad, values, f"{name} must lie between 0 and {LARGEST_SCORE:g}",
        "scores are likelihoods: exponentiate logarithms and scale each ray as you like",
    )
