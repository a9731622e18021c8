"""Belief propagation over rays: a factor of N voxels has its messages in O(N).

With m_i the message from voxel i that it is occupied, and m_i(0) = 1 - m_i,

    T_1 = 1, T_{i+1} = T_i m_i(0);   C_1 = 0, C_{i+1} = C_i + m_i T_i s_i;
    V_{N+1} = s_inf, V_i = m_i s_i + m_i(0) V_{i+1};
    mu_i(1) = C_i + T_i s_i,   mu_i(0) = C_i + T_i V_{i+1},   P(depth = i) = m_i T_i s_i / V_1,

and for max-product max instead of +, messages scaled to a maximum of 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.threads import thread_count, without_locks
from crfield._core.validate import (
    FloatArray,
    InputError,
    as_array,
    as_floats,
    check_memory,
    shown,
)
from crfield.graphs.results import Doubles, Result
from crfield.graphs.settings import InferSettings, as_temperature, require_sum_or_max
from crfield.graphs.vision.rays import RayModel, as_empty_scores, as_scores

_DOUBLE = np.dtype(np.float64)
_MAX_ITER, _TOL = 10, 1e-4


@without_locks
@dataclass(frozen=True, eq=False, repr=False)
class RayResult(Result):
    """beliefs : (n_voxels,), log-odds as whole numbers."""

    problem: RayModel
    messages: FloatArray
    beliefs: NDArray[np.int64]
    threads: int

    @cached_property
    def log_odds(self) -> Doubles:
        return self.problem.log_odds(self.beliefs)

    @cached_property
    def marginals(self) -> Doubles:
        return sigmoid(self.log_odds)

    @cached_property
    def labels(self) -> NDArray[np.bool_]:
        return np.asarray(self.log_odds > 0)

    @cached_property
    def depths(self) -> FloatArray:
        return self._along[0]

    @cached_property
    def empty(self) -> FloatArray:
        return self._along[1]

    @cached_property
    def _along(self) -> tuple[FloatArray, FloatArray]:
        model, messages = self.problem, self.messages
        depths, empty = np.empty_like(messages), np.empty(model.n_rays, messages.dtype)
        _native.depth_posteriors(
            *model.lists, self.beliefs, model.bits, messages, self.temperature == 0, depths, empty,
            self.threads,
        )
        return depths, empty


def infer(model: RayModel, settings: InferSettings) -> Result:
    """Sum-product or max-product belief propagation in P(o) of `RayModel`, all rays at once.

    Exact where no two rays share more than one voxel and no cycle is left, as long as no message
    leaves [-60, 60] in log-odds: what is more certain than that counts as 60, so that two rays of
    such certainty can outvote one that allows nothing else. The result has the same bits for any
    number of threads.
    """
    settings.require(("auto", "flooding"), "a RayModel")
    require_sum_or_max(settings.temperature, "a RayModel")
    if settings.convex or settings.init is not None:
        raise InputError(
            f"convex must be False and init None for a RayModel, got {settings.convex} and "
            f"{shown(settings.init)}; leave them out."
        )
    count = _MAX_ITER if settings.max_iter is None else settings.max_iter
    limit = _TOL if settings.tol is None else settings.tol
    is_max, n_threads = settings.temperature == 0, thread_count(settings.threads)
    check_memory(
        len(model.voxels) * 2.0 * model.scores.itemsize + model.n_voxels * 24.0,
        f"Inference with {len(model.voxels)} voxels on rays", "use fewer rays or a coarser grid",
    )
    prior = model.fixed_prior()
    beliefs, sums = prior.copy(), np.empty_like(prior)
    messages = np.zeros_like(model.scores)
    residuals: list[float] = []
    for _ in range(count):
        np.copyto(sums, prior)
        residuals.append(_native.update_rays(
            *model.lists, beliefs, sums, model.bits, messages, settings.damping, is_max, n_threads
        ))
        beliefs, sums = sums, beliefs
        if residuals[-1] <= limit:
            break
    return RayResult(
        model, settings.temperature, np.array(residuals), residuals[-1] <= limit, False, messages,
        beliefs, n_threads,
    )


def fuse_independent(model: RayModel, *, threads: int | None = None) -> NDArray[np.float64]:
    """Occupancy if each ray knew nothing of the others, (X, Y, Z) or (n_voxels,).

    A ray's depth has the distribution p_i = s_i / (sum_j s_j + s_inf); it makes voxel i occupied
    with probability p_i + gamma_i sum_{j < i} p_j, since behind the first occupied voxel the prior
    is all there is. The log-odds of that less the prior's, within [-60, 60], are summed over rays,
    and the prior's added. No result depends on `threads`.

    model : rays with scores s_i and s_inf, and the prior gamma.
    """
    if not isinstance(model, RayModel):
        raise InputError(f"model must be a RayModel, got {shown(model)}; make one from your rays.")
    sums = model.fixed_prior()
    _native.fuse_depths(*model.lists, model.prior, sums, model.bits, thread_count(threads))
    return sigmoid(model.log_odds(sums))


def ray_messages(
    incoming: Any, scores: Any, empty_score: float = 0.0, *, temperature: float = 1.0
) -> NDArray[np.float64]:
    """Messages (N, 2) from one ray factor to its voxels, of states 0 and 1, in float64.

    mu_i(1) = C_i + T_i s_i and mu_i(0) = C_i + T_i V_{i+1} with T_{i+1} = T_i m_i(0),
    C_{i+1} = C_i + m_i(1) T_i s_i and V_i = m_i(1) s_i + m_i(0) V_{i+1}, V_{N+1} = s_inf.

    incoming : (N, 2) >= 0, from the voxels, up to a factor each; both may not be 0.
    scores : (N,), s_i.
    empty_score : s_inf.
    temperature : 1 for sum-product; 0 for max-product, max instead of +.

    Each pair sums to 1, for max-product it has a maximum of 1; a pair of zeros means that the other
    voxels' messages rule out every state.
    """
    require_sum_or_max(as_temperature(temperature), "rays")
    values = as_scores(scores, as_array(scores, "scores").size, _DOUBLE)
    given = as_floats(incoming, "incoming", _DOUBLE)
    if given.shape != (len(values), 2):
        raise InputError(
            f"incoming must have shape ({len(values)}, 2), got {given.shape}; give the messages "
            "of states 0 and 1 for each score."
        )
    if (given < 0).any() or not (given.max(1, initial=0.0) > 0).all():
        raise InputError(
            "incoming must have no negative message and no pair of zeros, got "
            f"{given.min(initial=0.0):g} as the least; pass what the voxels send."
        )
    last = as_empty_scores(empty_score, 1)
    outgoing = np.empty(given.shape)
    # Either counts up to a factor; sums and reciprocals of what came could leave the range.
    most = max(float(values.max(initial=0.0)), float(last[0])) or 1.0
    _native.ray_messages(
        given / given.max(1, keepdims=True), values / most, float(last[0]) / most,
        temperature == 0, outgoing,
    )
    return outgoing


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)), for any x."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))
