"""Patterns of which one is active: a mixture of the clusters of masks (CHOPP section 5.2)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError
from crfield.patterns.potential import Patterns
from crfield.patterns.variability import k_means


def cluster_patterns(
    rows: NDArray[Any], n_clusters: int, smoothing: float, rng: np.random.Generator
) -> Patterns:
    """w_k = log(q_k / (1 - q_k)) and c_k = log mu_k + sum_i log(1 - q_ki) from masks (n, I).

    q_k is the mean of cluster k, with `smoothing` pixels from the mean mask, mu_k its share.
    """
    if n_clusters > len(rows):
        raise InputError(
            f"n_hidden must not exceed the number of masks for composition 'min', got {n_clusters} "
            f"for {len(rows)}; use fewer patterns."
        )
    clusters = k_means(rows.astype(np.float64), n_clusters, rng)
    sizes = np.bincount(clusters, minlength=n_clusters)
    sums = np.stack([rows[clusters == k].sum(0, dtype=np.float64) for k in range(n_clusters)])
    sums, sizes = sums[sizes > 0], sizes[sizes > 0]  # copies of one mask share a cluster
    means = (sums + smoothing * smooth_mean(rows)) / (sizes + smoothing)[:, None]
    bias = np.log(sizes / len(rows)) + np.log1p(-means).sum(1)
    weights = log_odds(means).T.astype(np.float32)
    return Patterns(np.ascontiguousarray(weights), bias, composition="min")


def smooth_mean(rows: NDArray[Any]) -> NDArray[np.float64]:
    """The mean mask (I,) with one pixel of either kind added, so that no log-odds are infinite."""
    return np.asarray((rows.sum(0, dtype=np.float64) + 1) / (len(rows) + 2))


def log_odds(p: NDArray[np.float64]) -> NDArray[np.float64]:
    """log(p / (1 - p))."""
    return np.asarray(np.log(p) - np.log1p(-p))
