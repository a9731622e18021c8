"""How much the shapes of a set of silhouettes differ, as one number."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from crfield._core.validate import InputError, as_array, as_count
from crfield.patterns._checks import check_binary

Points = NDArray[np.float64]

_RESTARTS = 4
_MAX_PASSES = 100


def variability(masks: ArrayLike, n_clusters: int = 32, seed: int = 0) -> float:
    """Mean entropy of a pixel within clusters of similar masks, in nats (CHOPP section 5.1).

    V_K = sum_k mu_k H^k with H^k = -mean_i (q_i^k log q_i^k + (1 - q_i^k) log(1 - q_i^k)), where
    q_i^k is the share of the masks of cluster k whose pixel i is on and mu_k the share of all masks
    that are in cluster k. The clusters are those of k-means with the Euclidean distance, the best
    of a few starts by k-means++.

    Parameters
    ----------
    masks
        (n, *grid) of 0 and 1.
    n_clusters
        Number of clusters K, at most n. The measure falls with K and rises with n: compare sets
        of about one size.
    seed
        The same seed gives the same clusters.

    Returns
    -------
    A number from 0, all masks of a cluster agree, to log 2.
    """
    labels = as_array(masks, "masks")
    check_binary(labels, "masks")
    if labels.ndim < 2 or labels.size == 0:
        raise InputError(
            f"masks must have shape (n, H, W), got {labels.shape}; stack the masks of a set."
        )
    n_clusters = as_count(n_clusters, "n_clusters")
    if n_clusters > len(labels):
        raise InputError(
            f"n_clusters must not exceed the number of masks, got {n_clusters} for {len(labels)}; "
            "use fewer clusters or more masks."
        )
    points = labels.reshape(len(labels), -1).astype(np.float64)
    rng = np.random.default_rng(as_count(seed, "seed", minimum=0))
    clusters = k_means(points, n_clusters, rng)
    shares = [points[clusters == k].mean(axis=0) for k in np.unique(clusters)]
    weights = np.unique(clusters, return_counts=True)[1] / len(points)
    return float(weights @ [_entropies(share).mean() for share in shares])


def k_means(points: Points, n_clusters: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """The cluster (n,) of each of `points` (n, d), in the best of a few runs from `rng`.

    The `n_clusters` centers lower sum_i |point_i - center_i|^2.
    """
    runs = [_clusters(points, n_clusters, rng) for _ in range(_RESTARTS)]
    return min(runs, key=lambda run: run[1])[0]


def _entropies(probabilities: Points) -> Points:
    """Entropy of each coin, in nats."""
    both = np.stack([probabilities, 1 - probabilities])
    logarithms = np.log(both, out=np.zeros_like(both), where=both > 0)
    return np.asarray(-np.sum(both * logarithms, axis=0))


def _clusters(
    points: Points, n_clusters: int, rng: np.random.Generator
) -> tuple[NDArray[np.intp], float]:
    """The cluster of each point, (n,), and the sum of squared distances to the centers."""
    centers = _spread_centers(points, n_clusters, rng)
    clusters = np.full(len(points), -1, np.intp)
    for _ in range(_MAX_PASSES):
        distances = _squared_distances(points, centers)
        nearest = np.argmin(distances, axis=1)
        if (nearest == clusters).all():
            break
        clusters = nearest
        # A center that lost its last point stays, where it may win some back.
        for k in np.unique(clusters):
            centers[k] = points[clusters == k].mean(axis=0)
    return clusters, float(np.square(points - centers[clusters]).sum())


def _spread_centers(points: Points, n_clusters: int, rng: np.random.Generator) -> Points:
    """Points drawn one after another, with a chance that grows as the squared distance (k-means++).
    """
    chosen = [int(rng.integers(len(points)))]
    nearest = _squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < n_clusters:
        total = nearest.sum()
        # Where every point has a center on it, any will do.
        chances = nearest / total if total > 0 else None
        chosen.append(int(rng.choice(len(points), p=chances)))
        nearest = np.minimum(nearest, _squared_distances(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def _squared_distances(points: Points, centers: Points) -> Points:
    """(n, K) squared Euclidean distances."""
    products = points @ centers.T
    sizes = np.square(points).sum(axis=1)[:, None] + np.square(centers).sum(axis=1)
    return np.asarray(np.maximum(sizes - 2 * products, 0.0))
