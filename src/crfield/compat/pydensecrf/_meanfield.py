"""pydensecrf's inference: parallel updates that keep self-pairs and promise no descent.

It is the update of `algorithm="concave"`, without the watch over the free energy and for any
compatibility and normalization.

The original embeds pixels in its lattice four at a time and fills up the last four with features 0.
Those pixels carry no weight, but the vertices around them exist, and the blur passes through them.
One such pixel at the end has the same effect: all arrays in here have it where it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from crfield._core import _native
from crfield._core.resources import thread_count
from crfield._core.validate import FloatArray, check_memory
from crfield.dense.filters.compiled import LatticeFilter
from crfield.dense.meanfield import State, run_parallel
from crfield.dense.problem import NativeProblem, Term, make_problem


def make_filter(features: FloatArray, normalization: str) -> LatticeFilter:
    """The customary lattice operator on features (N, D)."""
    n, dim = features.shape
    points = _filled_up(features)
    operator = LatticeFilter(points, normalization="none", one_order=True)
    weights = _filled_up(np.ones((n, 1), features.dtype))[:, 0]
    operator.scales = weights, None
    sums = operator.apply(np.ones_like(weights)[:, None])[:, 0]
    sums[n:] = 1.0  # an extra pixel may be far from all others
    if normalization == "none":
        # The original blurs with (1/2, 1, 1/2) along each of D + 1 axes and divides by 1 + 2^-D;
        # the lattice blurs with half of that.
        post = np.full_like(weights, 2.0 ** (dim + 1) / (1.0 + 2.0**-dim))
        operator.scales = weights, post
    elif normalization == "symmetric":
        operator.scales = weights / np.sqrt(sums), 1.0 / np.sqrt(sums)
    elif normalization == "before":
        operator.scales = weights / sums, None
    else:
        operator.scales = weights, 1.0 / sums
    return operator


def iterate(
    unary: FloatArray, terms: Sequence[Term], start: FloatArray | None, n_iter: int
) -> FloatArray:
    """`n_iter` times q = softmax(-u - sum_m mu^(m) K^(m) q), from `start` or softmax(-u).

    unary, start and the marginals that come back: (N, L) float32.
    """
    threads = thread_count()
    check_memory(
        6.0 * unary.nbytes, f"Inference on {unary.shape[0]} variables, {unary.shape[1]} labels",
        "work on a smaller image or on tiles",
    )
    costs = _filled_up(unary)
    # Costs near 0 keep float32 exact where it matters.
    _native.center_rows(costs, costs, threads)
    problem = make_problem(
        costs, terms, "concave", threads, watched=False, fused=start is None
    )
    init = None if start is None else _filled_up(start)
    marginals: FloatArray = run_parallel(problem, init=init, max_iter=n_iter).marginals
    return marginals[: len(unary)]


def divergence(unary: FloatArray, terms: Sequence[Term], q: FloatArray) -> float:
    """q'log q + q'u + sum_m q' (K^(m) (x) mu^(m)) q, as the original counts: no 1/2 on the pairs.

    This is not the KL divergence, not even up to log Z: every pair counts twice and each pixel is
    paired with itself.
    """
    threads = thread_count()
    entropy = float((q * np.log(np.maximum(q, np.float32(1e-20)))).sum(dtype=np.float64))
    linear: float = _native.dot(q, unary, threads)
    q = _filled_up(q)
    message = np.empty_like(q)
    NativeProblem(q, terms, "concave", threads, watched=False).send(State(q), message)
    pairs: float = _native.dot(q, message, threads)
    return entropy + linear + pairs


def _filled_up(rows: FloatArray) -> FloatArray:
    """A copy with a row of zeros at the end, unless the rows come in fours."""
    n, width = rows.shape
    result = np.zeros((n + (n % 4 > 0), width), rows.dtype)
    result[:n] = rows
    return result

