"""Patterns learned from masks alone, before any image is seen (CHOPP sections 2.2 and 5.2).

"sum": a restricted Boltzmann machine p(v) ~ sum_h exp(v'W h + b'v + c'h) (eqs. 1-3) by contrastive
divergence. Its log-likelihood has the gradient

    d/dW = E_data[v p(h | v)'] - E_model[v p(h | v)'],

likewise v for b and p(h | v) for c, where k steps of block Gibbs sampling, from the data or from
chains that go on from one update to the next, stand for the model.

"min": one pattern for each k-means cluster of the masks, which is how Rother et al. find theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    LARGEST_COST,
    InputError,
    as_array,
    as_choice,
    as_count,
    as_not_negative,
    as_positive_number,
    check_finite,
    check_memory,
)
from crfield.patterns._checks import as_masks, as_share
from crfield.patterns.model import PatternCRF
from crfield.patterns.potential import COMPOSITIONS, Patterns
from crfield.patterns.variability import k_means

Array = NDArray[np.float32]
Number = np.float32

_FIRST_WEIGHTS = 0.01  # standard deviation
_EARLY_MOMENTUM, _EARLY_EPOCHS = 0.5, 5
_WATCHED = 500  # masks whose reconstruction is watched


@dataclass(frozen=True, eq=False)
class PretrainedPatterns:
    """What was learned from masks.

    patterns : W and c, float32, temperature 1.
    visible_bias : b (I,) float32, to be given to the `PatternCRF` together with the patterns.
    reconstruction_errors : (n_epochs,), the mean of (v - p(v | h))^2 with h drawn given v, on at
        most 500 of the masks; empty for "min".
    """

    patterns: Patterns
    visible_bias: Array
    reconstruction_errors: NDArray[np.float64]

    def add_to(self, model: PatternCRF) -> PatternCRF:
        """The model with these patterns and visible biases in place of its own."""
        return replace(model, patterns=self.patterns, visible_bias=self.visible_bias)

    def log_scores(self, masks: Any) -> NDArray[np.float64]:
        """log p(v) + log Z = b'v - f(v; 1), (n,), of masks v (n, I): CHOPP eq. 3."""
        y = as_masks(masks, self.patterns.n_visible, "masks")
        return np.asarray(y @ self.visible_bias.astype(np.float64) - self.patterns.energies(y))


def pretrain(
    masks: Any, n_hidden: int, *, composition: str = "sum", n_epochs: int = 30,
    batch_size: int = 100, step_size: float = 0.02, momentum: float = 0.9,
    l2: float = 3e-3, sparsity_target: float | None = None, sparsity_weight: float = 0.1,
    n_steps: int = 1, persistent: bool = False, n_particles: int = 100, smoothing: float = 1.0,
    seed: int = 0, progress: bool = False,
) -> PretrainedPatterns:
    """Learn patterns and visible biases from masks.

    Parameters
    ----------
    masks : (n, H, W) or (n, I), 0 and 1.
    n_hidden : number of patterns J; for "min" at most n.
    composition : "sum" trains a restricted Boltzmann machine, "min" clusters the masks.
    n_epochs : passes over the masks. This and what follows, up to `n_particles`, is for "sum".
    batch_size : masks per update; they are shuffled in each epoch.
    step_size : of the first epoch; falls linearly, to reach 0 after the last.
    momentum : share of the last step that is taken again; 0.5 at most in the first 5 epochs.
    l2 : penalty l2 / 2 |W|^2 on the mean negative log-likelihood per mask.
    sparsity_target : share of masks that a unit should be active for, or None.
    sparsity_weight : of the cross-entropy between that and the share in a batch.
    n_steps : k of CD-k, steps of Gibbs sampling per update.
    persistent : whether chains go on from one update to the next instead of starting at the batch;
        wants a smaller step size and more epochs.
    n_particles : number of such chains.
    smoothing : for "min", pixels drawn from the mean mask that are added to each cluster's mean.
    seed : the same seed gives the same patterns.
    progress : whether to show a progress bar.

    Returns
    -------
    Patterns with the log-odds of the mean mask as first visible biases. Those for "min" have
    w_k = log(q_k / (1 - q_k)) for the mean q_k of cluster k and c_k = log mu_k +
    sum_i log(1 - q_ki) for its share mu_k, which is a mixture of the clusters; b = 0.
    """
    rows = _as_rows(masks)
    as_choice(composition, "composition", COMPOSITIONS)
    n_hidden = as_count(n_hidden, "n_hidden")
    rng = np.random.default_rng(as_count(seed, "seed", 0))
    if composition == "min":
        patterns = cluster_patterns(rows, n_hidden, as_positive_number(smoothing, "smoothing"), rng)
        return PretrainedPatterns(patterns, np.zeros(rows.shape[1], np.float32), np.zeros(0))
    schedule = _Schedule(
        as_count(n_epochs, "n_epochs"), as_positive_number(step_size, "step_size"),
        as_share(momentum, "momentum", 0.0),
    )
    penalties = _Penalties(
        as_not_negative(l2, "l2"),
        None if sparsity_target is None else as_share(sparsity_target, "sparsity_target"),
        as_not_negative(sparsity_weight, "sparsity_weight"),
    )
    batch_size, n_steps = as_count(batch_size, "batch_size"), as_count(n_steps, "n_steps")
    n_particles = as_count(n_particles, "n_particles")
    n_drawn = min(batch_size, len(rows)) + (n_particles if persistent else 0)
    # Weights, their step, gradient and two intermediates; four arrays of all units of each mask.
    check_memory(
        20.0 * rows.shape[1] * n_hidden + 16.0 * n_drawn * (rows.shape[1] + n_hidden),
        f"Learning {n_hidden} patterns from batches of {n_drawn} masks",
        "use fewer patterns or particles, or a smaller batch_size",
    )
    machine = Machine.start(rows, n_hidden, rng)
    step = Machine(*(np.zeros_like(part) for part in machine.parts))
    particles = rows[rng.integers(len(rows), size=n_particles)] if persistent else None
    watched = rows[rng.permutation(len(rows))[:_WATCHED]]
    errors = []
    for rate, inertia in schedule.epochs(progress):
        with np.errstate(over="ignore", invalid="ignore"):  # noticed below
            order = rng.permutation(len(rows))
            for start in range(0, len(rows), batch_size):
                batch = rows[order[start : start + batch_size]]
                chain = machine.sample(batch if particles is None else particles, n_steps, rng)
                if particles is not None:
                    particles = chain
                gradient = machine.gradient(batch, chain)
                penalties.apply(gradient, machine, batch)
                machine.move(gradient, rate, step, inertia)
            errors.append(machine.reconstruction_error(watched, rng))
        if not math.isfinite(errors[-1]):
            raise InputError(
                "step_size must be small enough for the weights to stay finite, got "
                f"{step_size:g}; divide it by 10."
            )
    return PretrainedPatterns(
        Patterns(machine.weights, machine.hidden_bias), machine.visible_bias, np.array(errors)
    )


@dataclass(frozen=True, eq=False)
class Machine:
    """A restricted Boltzmann machine (eq. 1), or a direction to move one in.

    weights : W (I, J); visible_bias : b (I,); hidden_bias : c (J,).
    """

    weights: Array
    visible_bias: Array
    hidden_bias: Array

    @classmethod
    def start(cls, rows: Array, n_hidden: int, rng: np.random.Generator) -> Machine:
        """Small random weights; visible units on as often as in the masks."""
        weights = rng.standard_normal((rows.shape[1], n_hidden), np.float32) * _FIRST_WEIGHTS
        return cls(
            weights.astype(np.float32), log_odds(smooth_mean(rows)).astype(np.float32),
            np.zeros(n_hidden, np.float32),
        )

    @property
    def parts(self) -> tuple[Array, Array, Array]:
        """The three arrays."""
        return self.weights, self.visible_bias, self.hidden_bias

    def hidden(self, v: Array) -> Array:
        """p(h_j = 1 | v), (B, J): eq. 7."""
        return _sigmoid(v @ self.weights + self.hidden_bias)

    def visible(self, h: Array) -> Array:
        """p(v_i = 1 | h), (B, I): eq. 8 without other terms."""
        return _sigmoid(h @ self.weights.T + self.visible_bias)

    def sample(self, v: Array, n_steps: int, rng: np.random.Generator) -> Array:
        """v (B, I) after steps of block Gibbs sampling."""
        for _ in range(n_steps):
            v = _draw(self.visible(_draw(self.hidden(v), rng)), rng)
        return v

    def gradient(self, batch: Array, chain: Array) -> Machine:
        """Gradient of the mean log-likelihood of `batch`, with `chain` for draws from the model."""
        seen, dreamt = self.hidden(batch), self.hidden(chain)
        n, m = np.float32(len(batch)), np.float32(len(chain))
        return Machine(
            batch.T @ (seen / n) - chain.T @ (dreamt / m),
            batch.mean(0) - chain.mean(0),
            seen.mean(0) - dreamt.mean(0),
        )

    def move(self, gradient: Machine, rate: Number, step: Machine, inertia: Number) -> None:
        """step <- inertia step + rate gradient, which is then added."""
        for part, change, slope in zip(self.parts, step.parts, gradient.parts, strict=True):
            change *= inertia
            change += rate * slope
            part += change

    def reconstruction_error(self, v: Array, rng: np.random.Generator) -> float:
        """Mean of (v - p(v | h))^2 with one draw of h given v."""
        back = self.visible(_draw(self.hidden(v), rng))
        return float(np.square(v - back).mean(dtype=np.float64))


@dataclass(frozen=True)
class _Schedule:
    n_epochs: int
    step_size: float
    momentum: float

    def epochs(self, progress: bool) -> Iterator[tuple[Number, Number]]:
        """Step size and momentum of each epoch."""
        numbers: Any = range(self.n_epochs)
        if progress:
            from tqdm import tqdm

            numbers = tqdm(numbers, unit="epoch")
        for number in numbers:
            momentum = min(self.momentum, _EARLY_MOMENTUM) if number < _EARLY_EPOCHS else (
                self.momentum
            )
            rate = self.step_size * (1 - number / self.n_epochs)
            yield np.float32(min(rate, LARGEST_COST)), np.float32(momentum)


@dataclass(frozen=True)
class _Penalties:
    l2: float
    sparsity_target: float | None
    sparsity_weight: float

    def apply(self, gradient: Machine, machine: Machine, batch: Array) -> None:
        """Take the slopes of the penalties off a gradient, in place.

        That of the cross-entropy between target t and share q_j = mean p(h_j | v) by a unit's
        activation is q_j - t.
        """
        gradient.weights[...] -= np.float32(self.l2) * machine.weights
        if self.sparsity_target is not None:
            excess = machine.hidden(batch).mean(0) - np.float32(self.sparsity_target)
            excess *= np.float32(self.sparsity_weight)
            gradient.hidden_bias[...] -= excess
            gradient.weights[...] -= np.outer(batch.mean(0), excess)


def _sigmoid(x: Array) -> Array:
    half = np.float32(0.5)
    return np.asarray(half + half * np.tanh(half * x))


def _draw(p: Array, rng: np.random.Generator) -> Array:
    """Independent coins that show 1 with probability p."""
    return (rng.random(p.shape, np.float32) < p).astype(np.float32)


def _as_rows(masks: Any) -> Array:
    """Masks as (n, I) float32, at least one."""
    array = as_array(masks, "masks")
    if array.ndim not in (2, 3) or array.size == 0:
        raise InputError(
            f"masks must have shape (n, H, W) or (n, I), got {array.shape}; "
            "stack the masks of a set."
        )
    check_finite(array, "masks")
    return as_masks(array, math.prod(array.shape[1:]), "masks").astype(np.float32)


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
