"""Mixtures of Gaussians with full covariances, fitted by expectation maximization."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

Doubles = NDArray[np.float64]
Mixture = tuple[Doubles, Doubles, Doubles]  # means (K, C), whitening (K, C, C), log shares (K,)

SMALLEST_WIDTH = 1.0 / 48  # of a component, for samples within the unit cube
_KMEANS_ROUNDS, _EM_ROUNDS = 4, 8


def fit_mixture(
    samples: Doubles, weights: Doubles, components: int, rounds: int = _EM_ROUNDS
) -> Mixture:
    """The mixture of weighted samples (n, C), after K-means and so many rounds of expectation
    maximization.
    """
    distances = _distances(samples, _spread_means(samples, weights, components))
    for _ in range(_KMEANS_ROUNDS):
        member = _nearest(distances)
        member *= weights[:, None]
        mass = member.sum(0)
        keep = mass > 0
        means = (member.T @ samples)[keep] / mass[keep, None]
        distances = _distances(samples, means)
    mass = _nearest(distances)
    mass *= weights[:, None]
    for _ in range(rounds):
        # The mass (n, K) is changed in place: for many colors it is what takes the memory.
        mass = log_components(samples, _maximize(samples, mass))
        mass -= mass.max(1, keepdims=True)
        np.exp(mass, out=mass)
        mass /= mass.sum(1, keepdims=True)
        mass *= weights[:, None]
    return _maximize(samples, mass)


def fitting_bytes(n_samples: int, n_channels: int, components: int) -> float:
    """About the most memory that `fit_mixture` takes beside its samples."""
    return float(n_samples) * (24 * components + 32 * n_channels + 16)


def log_density(values: Doubles, mixture: Mixture) -> Doubles:
    """log p(v) of a mixture at values (n, C), (n,)."""
    logs = log_components(values, mixture)
    largest = logs.max(1)
    logs -= largest[:, None]
    np.exp(logs, out=logs)
    return np.asarray(np.log(logs.sum(1)) + largest)


def _maximize(samples: Doubles, mass: Doubles) -> Mixture:
    """Parameters from the mass (n, K) that components take of samples (n, C)."""
    totals = mass.sum(0) + 1e-12
    means = mass.T @ samples / totals[:, None]
    covariances: NDArray[Any] = np.empty((len(means), *[samples.shape[1]] * 2))
    for covariance, mean, share in zip(covariances, means, mass.T, strict=True):
        offsets = samples - mean
        covariance[:] = (offsets * share[:, None]).T @ offsets
    covariances /= totals[:, None, None]
    covariances += SMALLEST_WIDTH**2 * np.eye(samples.shape[1])
    factors = np.linalg.inv(np.linalg.cholesky(covariances))
    return means, factors, np.log(totals / totals.sum())


def log_components(values: Doubles, mixture: Mixture) -> Doubles:
    """log of share times Gaussian, (n, K)."""
    means, factors, shares = mixture
    scales = np.log(np.diagonal(factors, axis1=1, axis2=2)).sum(1)
    constants = shares + scales - 0.5 * values.shape[1] * math.log(2 * math.pi)
    logs = np.empty((len(means), len(values)))
    for row, mean, factor, constant in zip(logs, means, factors, constants, strict=True):
        whitened = (values - mean) @ factor.T
        np.square(whitened, out=whitened)
        row[:] = constant - 0.5 * whitened.sum(-1)
    return logs.T


def _spread_means(samples: Doubles, weights: Doubles, components: int) -> Doubles:
    """Starting means: the heaviest sample, then each time the one that is worst represented."""
    chosen = [int(weights.argmax())]
    nearest = ((samples - samples[chosen[0]]) ** 2).sum(1)
    while len(chosen) < components:
        chosen.append(int((nearest * weights).argmax()))
        nearest = np.minimum(nearest, ((samples - samples[chosen[-1]]) ** 2).sum(1))
    return samples[chosen]


def _distances(samples: Doubles, means: Doubles) -> Doubles:
    """Squared distances (n, K) from samples (n, C) to means (K, C)."""
    squared = np.empty((len(means), len(samples)))
    for row, mean in zip(squared, means, strict=True):
        row[:] = ((samples - mean) ** 2).sum(-1)
    return squared.T


def _nearest(distances: Doubles) -> Doubles:
    """1 for the mean that is nearest to a sample and 0 for the others, (n, K)."""
    return np.asarray(np.eye(distances.shape[1])[distances.argmin(1)])
