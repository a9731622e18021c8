"""Checks on the lists that make up a model of rays."""

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
    as_floats,
    first_index,
)
from crfield.graphs.voxels import MOST_VOXELS

LARGEST_SCORE, LEAST_SCORE = 1e30, 1e-30
# A score divided by less could leave the range of numbers.
LEAST_PRIOR = 1e-300
_DOUBLE = np.dtype(np.float64)


def as_lists(
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


def largest_degree(
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


def check_possible(
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


def as_prior(prior: Any, n_voxels: int, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """Probabilities (n_voxels,) within [1e-300, 1)."""
    given = as_floats(prior, "prior", _DOUBLE)
    if given.shape not in ((), (n_voxels,), shape):
        raise InputError(
            f"prior must be one number or one for each of {n_voxels} voxels, got shape "
            f"{given.shape}; match the grid."
        )
    bad = ~((given >= LEAST_PRIOR) & (given < 1))
    if bad.any():
        where = f" at index {first_index(bad)}" if given.ndim else ""
        raise InputError(
            f"prior must be at least {LEAST_PRIOR:g} and less than 1, got "
            f"{given[bad].flat[0]:g}{where}; use a small probability instead of 0 and one near 1 "
            "instead of 1."
        )
    return np.array(np.broadcast_to(given.reshape(-1), (n_voxels,)))


def fixed_point_bits(largest_sum: float) -> int:
    """Binary digits after the point with which sums of this size fit into 63 bits."""
    return 61 - math.ceil(math.log2(largest_sum))


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
    if bad.any():
        where = f" at index {first_index(bad)}" if values.ndim else ""
        raise InputError(
            f"{name} must lie between 0 and {LARGEST_SCORE:g}, got {values[bad].flat[0]:g}{where}; "
            "scores are likelihoods: exponentiate logarithms and scale each ray as you like."
        )
