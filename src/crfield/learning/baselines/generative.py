"""Kernel widths from how features differ within a label (the generative baseline of KK13 5.2).

A Gaussian kernel exp(-d'S^-1 d / 2) of d = f_i - f_j is, up to its height, the density of
differences with mean 0 and covariance S. Its maximum-likelihood estimate on pairs of pixels with
one label is S = mean(d d'), with no further factor: S is already twice the covariance of the
features within a label, because d is the difference of two of them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.optimize import Vector
from crfield._core.validate import InputError, as_count, as_scalar
from crfield.dense.compatibility import Potts
from crfield.dense.kernels import Kernel
from crfield.dense.model import DenseCRF, Pairwise
from crfield.dense.observation import observe
from crfield.learning.baselines.search import Searched, grid_search
from crfield.learning.losses import VOID, customary_void, known_pixels
from crfield.learning.objective import Example, as_examples, check_example, spacing_of
from crfield.metrics import as_label_map

DEFAULT_WEIGHTS = tuple(float(w) for w in np.geomspace(0.25, 32.0, 15))

# A direction in which features differ by less than this share of the widest has no width.
_FLAT = 1e-10


def generative_kernel(
    model: DenseCRF,
    examples: Sequence[Example],
    *,
    term: int = 0,
    pairs: int = 10_000,
    weights: Iterable[float] = DEFAULT_WEIGHTS,
    seed: int = 0,
    **options: Any,
) -> Searched:
    """Estimate one kernel's widths from pairs with equal labels, then search its Potts weight.

    S = mean of (f_i - f_j)(f_i - f_j)' over pairs with one label, a baseline of KK13 section 5.2.

    Parameters
    ----------
    model : its term's kernel says which features, and whether a width is one number, one per
        dimension or a full covariance; the values do not matter.
    term : which of the model's terms.
    pairs : random pairs of pixels per image; all pairs with one label are equally likely, pixels
        without a label are in none.
    weights : Potts weights to try.
    seed : of the pairs; `examples` and all other `options` are those of `grid_search`.
    """
    if not model.terms:
        raise InputError("model must have pairwise terms, got none; add a Pairwise to estimate.")
    number = as_count(term, "term", 0, len(model.terms) - 1)
    chosen = model.terms[number]
    if chosen.kernel.shape != "gaussian" or not isinstance(chosen.compatibility, Potts):
        raise InputError(
            "the generative estimate needs a Gaussian kernel and a Potts compatibility, got "
            f"{chosen.kernel.shape} and {type(chosen.compatibility).__name__}; use another term."
        )
    strengths = [as_scalar(weight, "weights") for weight in weights]
    kernel = estimate_widths(model, number, examples, pairs=pairs, seed=seed)

    def with_weight(weight: float) -> DenseCRF:
        terms = list(model.terms)
        terms[number] = Pairwise(kernel, Potts(weight), chosen.weight)
        return dataclasses.replace(model, terms=terms)

    return grid_search(map(with_weight, strengths), examples, **options)


def estimate_widths(
    model: DenseCRF, term: int, examples: Sequence[Example], *, pairs: int, seed: int
) -> Kernel:
    """The term's kernel with the maximum-likelihood widths of differences within a label.

    The moment is taken of scaled features, where it says by how much each width is off.
    """
    count = as_count(pairs, "pairs")
    kernel = model.terms[term].kernel
    moments: list[Vector] = []
    grid_dim = 0
    for index in range(len(as_examples(examples))):
        example = examples[index]
        check_example(model.n_labels, example)
        void = customary_void(model.n_labels)
        known = known_pixels(example.truth, void)
        labels = as_label_map(example.truth, "truth", model.n_labels, ~known)
        grid_dim = labels.ndim
        first, second = _equal_label_pairs(
            labels.reshape(-1), count, np.random.default_rng([seed, index]), void
        )
        if len(first):
            f = kernel.scaled_features(
                observe(labels.shape, example.image, spacing=spacing_of(example))
            )
            difference = f[first] - f[second]
            moments.append(difference.T @ difference / len(first))
    if not moments:
        raise InputError(
            "examples must have two pixels with one label in some image, got none; "
            "check the true labels."
        )
    moment = np.mean(moments, axis=0)
    changes: dict[str, Any] = {}
    for name, block in kernel.width_blocks(len(moment), grid_dim):
        changes[name] = _corrected(getattr(kernel, name), moment[block, block], name)
    return dataclasses.replace(kernel, **changes)


def _equal_label_pairs(
    labels: NDArray[Any], count: int, rng: np.random.Generator, void: int | None = VOID
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """`count` pairs of different pixels with one label; every such pair is equally likely."""
    order = np.argsort(labels, kind="stable")
    order = order[known_pixels(labels[order], void)]
    _, starts, sizes = np.unique(labels[order], return_index=True, return_counts=True)
    possible = sizes.astype(np.float64) * (sizes - 1)
    if not possible.any():
        return order[:0], order[:0]
    group = rng.choice(len(sizes), count, p=possible / possible.sum())
    here = rng.integers(0, sizes[group])
    there = (here + rng.integers(1, sizes[group])) % sizes[group]
    return order[starts[group] + here], order[starts[group] + there]


def _corrected(widths: Any, moment: Vector, name: str) -> Any:
    """Widths under which scaled differences that had this second moment have the unit matrix (or
    unit variances, or unit mean variance) as theirs.
    """
    array = np.asarray(widths, np.float64)
    spectrum = np.linalg.eigvalsh(moment) if array.ndim == 2 else np.diag(moment)
    if array.ndim == 0:
        spectrum = np.array([spectrum.mean()])
    if not spectrum.min() > _FLAT * max(float(np.diag(moment).max()), 1e-300):
        raise InputError(
            f"{name} cannot be estimated: pixels with one label must differ in every feature, got "
            "a direction in which they do not; give one number for all dimensions."
        )
    if array.ndim == 2:
        factor = np.linalg.cholesky(array)
        covariance = factor @ moment @ factor.T
        return 0.5 * (covariance + covariance.T)
    scaled = array * np.sqrt(spectrum)
    return float(scaled[0]) if array.ndim == 0 else scaled
