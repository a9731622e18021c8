"""Choices made by folds: what is learned from some images is scored on the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield.learning.objective import N_FOLDS, Example, check_labeled, group_of
from crfield.metrics import Counts, mean_iou, paired_bootstrap

# Called as told(what is chosen, steps done, steps in all).
Told = Callable[[str, int, int], Any]

# An option that changes less is taken if it is behind by no more than this many standard errors of
# the difference. On subsets of 40 to 240 images of MSRC-21 a half gained as much as none or a
# quarter and was less easily misled; with the customary 1 a third of the gain on 100 was lost.
_TOLERATED = 0.5
# Images are resampled in at most so many bundles, so often.
_MOST_BUNDLES, _N_RESAMPLES = 100, 400


@dataclass(frozen=True)
class Choice:
    """One of several options, which are ordered from the one that changes least.

    what : is chosen.
    options : their names.
    scores : mean IoU of each on images that it was not learned from.
    chosen : the number of the option.
    """

    what: str
    options: Sequence[str]
    scores: Sequence[float]
    chosen: int


def fold_numbers(examples: Sequence[Example], seed: int = 0) -> NDArray[np.intp]:
    """The fold (N,) of each example, 0 to N_FOLDS - 1, of about equal sizes in a random order.

    Examples with the same `group`, such as frames of one film, share a fold.
    """
    owners: dict[str | int, list[int]] = {}
    for index in range(len(examples)):
        owners.setdefault(group_of(examples[index], index), []).append(index)
    members = list(owners.values())
    order = np.random.default_rng(seed).permutation(len(members))
    folds = np.zeros(len(examples), np.intp)
    filled = np.zeros(N_FOLDS, int)
    for number in sorted(order, key=lambda number: -len(members[number])):  # keeps ties as drawn
        smallest = filled.argmin()
        folds[members[number]] = smallest
        filled[smallest] += len(members[number])
    return folds


def bundled(confusions: Sequence[Counts]) -> Counts:
    """The counts (N, L, L) of images as those of at most a hundred bundles of images."""
    n = min(len(confusions), _MOST_BUNDLES)
    bundles = np.zeros((n, *np.shape(confusions[0])), np.int64)
    for index, counts in enumerate(confusions):
        bundles[index % n] += counts
    return bundles


def choose(what: str, options: Sequence[str], counts: Sequence[Counts]) -> Choice:
    """The first option that is not clearly behind the best one.

    counts : (N, L, L) of each option, of the same held-out images or bundles of them.
    """
    check_labeled(counts[0])
    scores = [mean_iou(bundles.sum(axis=0)) for bundles in counts]
    best = int(np.argmax(scores))
    labeled = counts[best].any(axis=(1, 2))
    for number in range(best):
        _, low, high = paired_bootstrap(
            counts[best][labeled], counts[number][labeled], n_resamples=_N_RESAMPLES
        )
        # 95 % of a normal distribution lie within 1.96 standard deviations of its mean.
        if scores[best] - scores[number] <= _TOLERATED * (high - low) / (2 * 1.96):
            return Choice(what, options, scores, number)
    return Choice(what, options, scores, best)
