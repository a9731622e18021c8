"""Belief propagation over rays as a differentiable function of their scores.

The model is that of `crfield.graphs.RayModel`, with padded rays: log_scores (R, N) and voxels
(R, N), -1 behind the last voxel of a ray. Iterations are unrolled; with w_i = m_i T_i s_i all sums
along a ray are cumulative, so that nothing loops over voxels:

    mu_i(1) = sum_{k < i} w_k + T_i s_i,   mu_i(0) = sum_{k < i} w_k + sum_{k > i} w_k / m_i(0).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crfield._core import _native
from crfield._core.validate import (
    InputError,
    as_array,
    as_count,
    as_damping,
    check_memory,
    shown,
)
from crfield.graphs.vision.rays import as_offsets
from crfield.nn.tensors import can_look, check_finite_tensor, check_tensor

# The logarithm of nothing: far below any product of messages, and its gradient is 0, not NaN.
_NONE = -1e30
_LARGEST_LOG_SCORE = float(np.float32(1e20))


class RayBeliefs(NamedTuple):
    """What rays say of voxels and of themselves.

    log_odds : (V,), of each voxel being occupied; their sigmoid are the marginals.
    depths : (R, N), the probability of each voxel of a ray being its first occupied one, 0 behind
        its last.
    empty : (R,), that of meeting none.
    """

    log_odds: Tensor
    depths: Tensor
    empty: Tensor


def pad_rays(offsets: Any, values: Any, fill: float = -1) -> Tensor:
    """Lists of rays, as `VoxelGrid.traverse` gives them, one to a row: (R, N), `fill` behind each.

    offsets : (R + 1,).
    values : (E,), such as voxels, scores or entries.
    """
    entries, padding = as_array(values, "values"), _as_number(fill, "fill")
    if entries.ndim != 1:
        raise InputError(
            f"values must have shape (E,), got {entries.shape}; pass them as traverse gives them."
        )
    lengths = np.diff(as_offsets(offsets, len(entries), "values"))
    shape = len(lengths), int(lengths.max())
    dtype: np.dtype[Any] = np.dtype(np.int64)
    if entries.dtype.kind == "f":
        dtype = np.dtype(np.float64 if entries.dtype.itemsize > 4 else np.float32)
    elif not (padding.is_integer() and abs(padding) < 2**63):
        raise InputError(
            f"fill must be a whole number where values are, got {padding:g}; convert values to "
            "floats first."
        )
    check_memory(
        (1.0 + dtype.itemsize) * math.prod(shape), f"Padded rays of shape {shape}",
        "pass fewer rays at a time, or rays of like lengths",
    )
    padded = np.full(shape, padding, dtype)
    padded[np.arange(shape[1]) < lengths[:, None]] = entries
    return torch.from_numpy(padded)


def _as_number(value: Any, name: str) -> float:
    """A number, NaN and infinity included."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(f"{name} must be a number, got {shown(value)}; pass one number.") from None


def propagate_rays(
    log_scores: Tensor, voxels: Tensor, prior_log_odds: Tensor, *,
    empty_log_scores: Tensor | None = None, max_iter: int = 3, damping: float = 0.5,
) -> RayBeliefs:
    """Sum-product belief propagation with psi(o) = sum_i o_i prod_{j < i} (1 - o_j) s_i + s_inf
    prod_i (1 - o_i) for each ray; gradients reach scores and prior.

    log_scores : (R, N) float32 or float64, log s_i, at most 1e20 in magnitude; entries behind a
        ray's last voxel are ignored.
    voxels : (R, N) whole numbers, -1 behind a ray's last voxel; no voxel twice on a ray.
    prior_log_odds : (V,), of each voxel being occupied.
    empty_log_scores : (R,), log s_inf, or None for s_inf = 0.
    max_iter, damping : as for `crfield.graphs.infer`.
    """
    count, kept = as_count(max_iter, "max_iter", 1), as_damping(damping)
    is_voxel = _check(log_scores, voxels, prior_log_odds, empty_log_scores)
    # What is behind a ray's end reads and writes a voxel that is cut off again.
    places = torch.where(is_voxel, voxels.long(), len(prior_log_odds))
    scores = log_scores.masked_fill(~is_voxel, _NONE)
    nothing = scores.new_full((len(scores),), _NONE)
    empty = nothing if empty_log_scores is None else empty_log_scores.to(scores)
    empty = torch.where(is_voxel.any(1), empty, 0.0)
    prior = torch.cat([prior_log_odds.to(scores), scores.new_zeros(1)])
    messages = torch.zeros_like(scores)
    limit = _native.LARGEST_LOG_ODDS
    for _ in range(count):
        log_first, log_free, log_passed = _walk(prior, messages, places, is_voxel, scores, empty)
        before = torch.cat([nothing[:, None], torch.logcumsumexp(log_first, 1)[:, :-2]], 1)
        after = torch.logcumsumexp(log_first.flip(1), 1).flip(1)[:, 1:]
        occupied = torch.logaddexp(before, log_passed + scores)
        free = torch.logaddexp(before, after - log_free)
        found = (occupied - free).clamp(-limit, limit).masked_fill(~is_voxel, 0.0)
        messages = kept * messages + (1 - kept) * found
    log_first, _, _ = _walk(prior, messages, places, is_voxel, scores, empty)
    depths = torch.softmax(log_first, 1)
    total = prior.index_add(0, places.reshape(-1), messages.reshape(-1))
    return RayBeliefs(total[:-1], depths[:, :-1] * is_voxel, depths[:, -1])


def _walk(
    prior: Tensor, messages: Tensor, places: Tensor, is_voxel: Tensor, scores: Tensor, empty: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Logarithms of w (R, N + 1), the last for no occupied voxel, of m(0) and of T, (R, N)."""
    beliefs = prior.index_add(0, places.reshape(-1), messages.reshape(-1))
    limit = _native.LARGEST_LOG_ODDS
    odds = (beliefs[places] - messages).clamp(-limit, limit)
    log_free = torch.nn.functional.logsigmoid(-odds).masked_fill(~is_voxel, 0.0)
    log_occupied = torch.nn.functional.logsigmoid(odds)
    passed = torch.cat([torch.zeros_like(scores[:, :1]), torch.cumsum(log_free, 1)], 1)
    log_first = torch.cat(
        [log_occupied + passed[:, :-1] + scores, (passed[:, -1] + empty)[:, None]], 1
    )
    return log_first, log_free, passed[:, :-1]


def expected_depth_error(depths: Tensor, distances: Tensor, truth: Tensor) -> Tensor:
    """Mean over rays of sum_i P(depth = i) |d_i - d*|, given that a voxel was met.

    depths : (R, N), of `propagate_rays`.
    distances : (R, N), d_i of each voxel, finite behind the last as well.
    truth : (R,), d*, NaN for rays that do not count.
    """
    for values, name in ((depths, "depths"), (distances, "distances"), (truth, "truth")):
        check_tensor(values, name)
    if depths.ndim != 2 or depths.shape != distances.shape or truth.shape != depths.shape[:1]:
        raise InputError(
            f"depths, distances and truth must have shapes (R, N), (R, N) and (R,), got "
            f"{tuple(depths.shape)}, {tuple(distances.shape)} and {tuple(truth.shape)}; match them."
        )
    if not depths.is_floating_point():
        raise InputError(
            f"depths must be floating-point numbers, got {depths.dtype}; pass what propagate_rays "
            "gives."
        )
    known = ~truth.isnan()
    chance = depths[known]
    error = (distances[known] - truth[known, None]).abs()
    met = chance.sum(1).clamp_min(torch.finfo(depths.dtype).tiny)
    return ((chance * error).sum(1) / met).sum() / known.sum().clamp_min(1)


def _check(
    log_scores: Tensor, voxels: Tensor, prior_log_odds: Tensor, empty_log_scores: Tensor | None
) -> Tensor:
    """Which entries are voxels, (R, N)."""
    check_tensor(log_scores, "log_scores")
    check_tensor(prior_log_odds, "prior_log_odds", log_scores)
    if log_scores.dtype not in (torch.float32, torch.float64):
        raise InputError(
            f"log_scores must be float32 or float64, got {log_scores.dtype}; sums along a ray need "
            "that many digits: use its float()."
        )
    if log_scores.ndim != 2 or math.prod(log_scores.shape) == 0:
        raise InputError(
            f"log_scores must have shape (R, N), got {tuple(log_scores.shape)}; see pad_rays."
        )
    if (
        not isinstance(voxels, Tensor) or voxels.shape != log_scores.shape
        or voxels.is_floating_point() or voxels.is_complex() or voxels.dtype == torch.bool
        or voxels.device != log_scores.device
    ):
        raise InputError(
            "voxels must be whole numbers of the shape and on the device of log_scores, got "
            f"{tuple(getattr(voxels, 'shape', ()))}; see pad_rays."
        )
    if (
        prior_log_odds.ndim != 1 or len(prior_log_odds) == 0
        or not prior_log_odds.is_floating_point()
    ):
        raise InputError(
            "prior_log_odds must be floating-point numbers of shape (V,), got "
            f"{prior_log_odds.dtype} {tuple(prior_log_odds.shape)}; give one number for each voxel."
        )
    if empty_log_scores is not None:
        check_tensor(empty_log_scores, "empty_log_scores", log_scores)
        if empty_log_scores.shape != log_scores.shape[:1]:
            raise InputError(
                f"empty_log_scores must have shape ({len(log_scores)},), got "
                f"{tuple(empty_log_scores.shape)}; give one number for each ray."
            )
        check_finite_tensor(empty_log_scores, "empty_log_scores")
    is_voxel = voxels >= 0
    check_finite_tensor(prior_log_odds.to(log_scores.dtype), "prior_log_odds")
    if can_look(voxels):
        _check_entries(log_scores.detach(), voxels, is_voxel, len(prior_log_odds))
    return is_voxel


def _check_entries(log_scores: Tensor, voxels: Tensor, is_voxel: Tensor, n_voxels: int) -> None:
    if bool((voxels >= n_voxels).any()):
        raise InputError(
            f"voxels must be less than {n_voxels}, got {int(voxels.max())}; match prior_log_odds."
        )
    order = voxels.sort(1).values
    again = (order[:, 1:] == order[:, :-1]) & (order[:, 1:] >= 0)
    if bool(again.any()):
        ray, at = (int(i) for i in again.nonzero()[0])
        raise InputError(
            f"voxels of a ray must differ, got {int(order[ray, at])} twice on ray {ray}; keep the "
            "one nearer to the camera."
        )
    scores = torch.where(is_voxel, log_scores, 0.0)
    check_finite_tensor(scores, "log_scores")
    if float(scores.abs().max()) > _LARGEST_LOG_SCORE:
        raise InputError(
            f"log_scores must not exceed {_LARGEST_LOG_SCORE:g} in magnitude, got "
            f"{float(scores.abs().max()):g}; -1e3 rules a voxel out just as well."
        )
