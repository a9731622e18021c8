"""Occupancy of voxels from what rays see: belief propagation with one factor for each ray.

    P(o) = 1/Z prod_v gamma_v^o_v (1 - gamma_v)^(1 - o_v) prod_r psi_r(o)
    psi_r(o) = sum_i o_i prod_{j < i} (1 - o_j) s_i + s_inf prod_i (1 - o_i)

with o in {0, 1}, i over the voxels of ray r from the camera on: s_i is the score of i being the
first that is occupied. A factor of N voxels has its messages in O(N): with m_i the message from
voxel i that it is occupied, and m_i(0) = 1 - m_i,

    T_1 = 1, T_{i+1} = T_i m_i(0);   C_1 = 0, C_{i+1} = C_i + m_i T_i s_i;
    V_{N+1} = s_inf, V_i = m_i s_i + m_i(0) V_{i+1};
    mu_i(1) = C_i + T_i s_i,   mu_i(0) = C_i + T_i V_{i+1},   P(depth = i) = m_i T_i s_i / V_1,

and for max-product max instead of +, messages scaled to a maximum of 1.
"""

from __future__ import annotations

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
    as_damping,
    as_floats,
    as_scalar,
    check_memory,
    shown,
)
from crfield.graphs._ray_checks import (
    as_empty_scores,
    as_lists,
    as_prior,
    as_scores,
    check_possible,
    fixed_point_bits,
    largest_degree,
)
from crfield.graphs.voxels import MOST_VOXELS, VoxelGrid

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
        self.offsets, self.voxels = as_lists(offsets, voxels, self.n_voxels)
        self.scores = as_scores(scores, len(self.voxels)).copy()
        self.empty_scores = as_empty_scores(empty_scores, self.n_rays)
        check_possible(self.offsets, self.scores, self.empty_scores)
        self.prior = as_prior(prior, self.n_voxels, self.shape)
        for values in (*self.lists, self.prior):
            values.setflags(write=False)  # compiled code relies on what was checked
        self._log_odds = np.log(self.prior) - np.log1p(-self.prior)
        degree = largest_degree(self.offsets, self.voxels, self.n_voxels)
        self._bits = fixed_point_bits(
            degree * _native.LARGEST_LOG_ODDS + float(np.abs(self._log_odds).max()) + 1
        )

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
        return np.asarray(np.rint(np.ldexp(self._log_odds, self._bits)), np.int64)

    def log_odds(self, fixed: NDArray[np.int64]) -> NDArray[np.float64]:
        """Whole numbers `fixed` (n_voxels,) as log-odds, in the grid's shape."""
        return np.ldexp(fixed.astype(np.float64), -self._bits).reshape(self.shape)

    @property
    def bits(self) -> int:
        """Binary digits after the point of log-odds that are summed as whole numbers."""
        return self._bits


@dataclass(frozen=True)
class RayResult:
    """Beliefs about voxels and rays.

    Attributes
    ----------
    log_odds : (X, Y, Z) or (n_voxels,) float64, of each voxel being occupied; for max-product the
        logarithm of the ratio of its max-marginals.
    depths : (E,), like the model's scores: the probability of each voxel of a ray being its first
        occupied one; for max-product scaled to a maximum of 1 on each ray.
    empty : (R,), likewise of the ray meeting none; 1 for a ray without voxels.
    messages : (E,), log-odds from each ray to its voxels, within [-60, 60].
    residuals : (n_iter,), the largest change of a message in each iteration, before damping.
    converged : whether the last of them is `tol` or less.
    """

    log_odds: NDArray[np.float64]
    depths: FloatArray
    empty: FloatArray
    messages: FloatArray
    residuals: NDArray[np.float64]
    converged: bool

    @property
    def marginals(self) -> NDArray[np.float64]:
        """1 / (1 + exp(-log_odds)), in the shape of `log_odds`."""
        return sigmoid(self.log_odds)

    @property
    def labels(self) -> NDArray[np.bool_]:
        """Whether each voxel is more likely occupied than not, in the shape of `log_odds`."""
        return np.asarray(self.log_odds > 0)

    @property
    def n_iter(self) -> int:
        """Iterations done."""
        return len(self.residuals)


def infer_rays(
    model: RayModel, n_iter: int = 10, *, damping: float = 0.5, max_product: bool = False,
    tol: float = 1e-4, threads: int | None = None,
) -> RayResult:
    """Sum-product or max-product belief propagation in P(o) of `RayModel`, all rays at once.

    Exact where no two rays share more than one voxel and no cycle is left, as long as no message
    leaves [-60, 60] in log-odds: what is more certain than that counts as 60, so that two rays of
    such certainty can outvote one that allows nothing else. The result has the same bits for any
    number of threads.

    Parameters
    ----------
    model : voxels and rays.
    n_iter : iterations at most.
    damping : share of a ray's old message, in log-odds, that stays: with 0 messages often swing for
        ever, but where there are no cycles a few iterations are exact then.
    max_product : the most likely state of all voxels instead of the marginals of each.
    tol : stop when no message has changed by more, in log-odds.
    threads : native threads, all usable cores by default.
    """
    _check_model(model)
    count, n_threads = as_count(n_iter, "n_iter", 1), thread_count(threads)
    kept, limit = as_damping(damping), as_scalar(tol, "tol")
    if limit < 0:
        raise InputError(f"tol must not be negative, got {limit:g}; use 0 to run to n_iter.")
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
            *model.lists, beliefs, sums, model.bits, messages, kept, bool(max_product), n_threads
        ))
        beliefs, sums = sums, beliefs
        if residuals[-1] <= limit:
            break
    depths, empty = np.empty_like(messages), np.empty(model.n_rays, messages.dtype)
    _native.depth_posteriors(
        *model.lists, beliefs, model.bits, messages, bool(max_product), depths, empty, n_threads
    )
    return RayResult(
        model.log_odds(beliefs), depths, empty, messages, np.array(residuals),
        residuals[-1] <= limit,
    )


def fuse_independent(model: RayModel, *, threads: int | None = None) -> NDArray[np.float64]:
    """Occupancy if each ray knew nothing of the others, (X, Y, Z) or (n_voxels,).

    A ray's depth has the distribution p_i = s_i / (sum_j s_j + s_inf); it makes voxel i occupied
    with probability p_i + gamma_i sum_{j < i} p_j, since behind the first occupied voxel the prior
    is all there is. The log-odds of that less the prior's, within [-60, 60], are summed over rays,
    and the prior's added. No result depends on `threads`.

    model : rays with scores s_i and s_inf, and the prior gamma.
    """
    _check_model(model)
    sums = model.fixed_prior()
    _native.fuse_depths(*model.lists, model.prior, sums, model.bits, thread_count(threads))
    return sigmoid(model.log_odds(sums))


def ray_messages(
    incoming: Any, scores: Any, empty_score: float = 0.0, *, max_product: bool = False
) -> NDArray[np.float64]:
    """Messages (N, 2) from one ray factor to its voxels, of states 0 and 1, in float64.

    mu_i(1) = C_i + T_i s_i and mu_i(0) = C_i + T_i V_{i+1} with T_{i+1} = T_i m_i(0),
    C_{i+1} = C_i + m_i(1) T_i s_i and V_i = m_i(1) s_i + m_i(0) V_{i+1}, V_{N+1} = s_inf.

    incoming : (N, 2) >= 0, from the voxels, up to a factor each; both may not be 0.
    scores : (N,), s_i.
    empty_score : s_inf.

    Each pair sums to 1, or has a maximum of 1 for `max_product`; a pair of zeros means that the
    other voxels' messages rule out every state.
    """
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
        bool(max_product), outgoing,
    )
    return outgoing


def _check_model(model: Any) -> None:
    if not isinstance(model, RayModel):
        raise InputError(f"model must be a RayModel, got {shown(model)}; make one from your rays.")


def sigmoid(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """1 / (1 + exp(-x)), for any x."""
    small = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0, 1, small) / (1 + small))
