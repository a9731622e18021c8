"""How much unary, pairwise and pattern terms count, chosen for the best MAP labels (CHOPP 5.2)."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_count, as_not_negative, shown
from crfield.patterns.inference import infer
from crfield.patterns.inputs import PatternInputs
from crfield.patterns.measures import mask_scores
from crfield.patterns.model import PatternCRF

Score = Callable[[NDArray[Any], NDArray[Any]], NDArray[Any]]

# Factors of the weights that a search starts from, and those that it moves by, one after the other.
_STARTS = (0.25, 1.0, 4.0)
_STEPS = (2.0, math.sqrt(2.0))
# A weight of 0 is left through this share of the unary weight.
_SMALL_SHARE = 0.1


@dataclass(frozen=True)
class Evaluation:
    """Weights that were tried, and the mean score of the images with them.

    unary_weight, pairwise_weights : of `PatternCRF`.
    pattern_scale : factor on its patterns.
    """

    unary_weight: float
    pairwise_weights: tuple[float, ...]
    pattern_scale: float
    score: float


@dataclass(frozen=True, eq=False)
class Tradeoffs:
    """What a search found.

    model : with the weights that it ended at.
    best : these weights.
    evaluations : all that were tried, in order.
    """

    model: PatternCRF
    best: Evaluation
    evaluations: tuple[Evaluation, ...]


def choose_tradeoffs(
    model: PatternCRF, inputs: PatternInputs, masks: Any, *, score: Score = mask_scores,
    scale_patterns: bool = False, min_gain: float = 1e-4, max_evaluations: int = 200,
    max_iter: int = 50, threads: int | None = None,
) -> Tradeoffs:
    """Search unary weight and pairwise weights for the best mean score of `infer`.

    A coarse grid of multiples of the model's weights, unary against all pairwise ones, gives the
    start. From there one weight after the other is multiplied or divided by 2, as often as that
    raises the score, until a full round brings nothing; then by sqrt(2) in the same way. A pairwise
    weight may become 0. Without patterns only the ratios count, so the unary weight stays.

    Parameters
    ----------
    model : where the search starts; its pairwise weights should not all be 0.
    inputs, masks : images with their true labels (B, H, W); best not those that the patterns were
        learned from, which they know better than any new ones.
    score : score(labels, masks) -> (B,), of which the mean is maximized.
    scale_patterns : whether to search a common factor of W, b and c too.
    min_gain : least rise of the score that counts; less is taken for chance.
    max_evaluations : most weights to try.
    max_iter, threads : see `infer`.
    """
    if not isinstance(model, PatternCRF):
        raise InputError(
            f"model must be a PatternCRF, got {type(model).__name__}; "
            "for example PatternCRF(patterns, pairwise_weights=[1], grid=(32, 32))."
        )
    model.check_inputs(inputs)
    if model.unary_weight <= 0:
        raise InputError(
            f"model must have a positive unary weight to start from, got {model.unary_weight:g}; "
            "use 1."
        )
    search = _Search(
        model, inputs, model.as_labels(masks, inputs, "masks"), score,
        as_count(max_evaluations, "max_evaluations"), as_count(max_iter, "max_iter", 0), threads,
    )
    gain = as_not_negative(min_gain, "min_gain", "use 0 for any rise")
    weights = search.start()
    movable = range(0 if model.patterns is not None else 1, len(weights) - (not scale_patterns))
    for step in _STEPS:
        before = -math.inf
        while search.best > before:
            before = search.best
            for which in movable:
                weights = search.improve(weights, which, step, gain)
    return Tradeoffs(
        search.with_weights(weights), search.evaluate(weights), tuple(search.tried.values())
    )


@dataclass
class _Search:
    """Evaluates weights (unary, pairwise ..., pattern scale), none twice."""

    model: PatternCRF
    inputs: PatternInputs
    masks: NDArray[Any]
    score: Score
    max_evaluations: int
    max_iter: int
    threads: int | None

    def __post_init__(self) -> None:
        self.tried: dict[tuple[float, ...], Evaluation] = {}
        self.best = -math.inf

    def with_weights(self, weights: tuple[float, ...]) -> PatternCRF:
        """The model with other weights."""
        unary, *pairwise, scale = weights
        patterns = self.model.patterns
        if patterns is None or scale == 1:
            return replace(self.model, unary_weight=unary, pairwise_weights=pairwise)
        scaled = patterns.with_parameters(
            {name: part * patterns.dtype.type(scale) for name, part in patterns.parameters.items()}
        )
        return replace(
            self.model, patterns=scaled, unary_weight=unary, pairwise_weights=pairwise,
            visible_bias=self.model.visible_bias * patterns.dtype.type(scale),
        )

    def evaluate(self, weights: tuple[float, ...]) -> Evaluation:
        """The mean score; minus infinity once the budget is spent."""
        unary, *pairwise, scale = weights
        key = tuple(float(f"{weight:.6g}") for weight in weights)
        if key in self.tried:
            return self.tried[key]
        if len(self.tried) == self.max_evaluations:
            return Evaluation(unary, tuple(pairwise), scale, -math.inf)
        result = infer(
            self.with_weights(weights), self.inputs, max_iter=self.max_iter, threads=self.threads
        )
        given = self.score(result.labels, self.masks)
        scores = np.asarray(given)
        if scores.dtype.kind not in "biuf" or scores.shape not in ((), (len(self.inputs),)):
            raise InputError(
                f"score must give a number for each of {len(self.inputs)} images, got "
                f"{shown(given)}; return an array of shape ({len(self.inputs)},)."
            )
        mean = float(np.mean(scores))
        if not math.isfinite(mean):
            raise InputError(
                f"score must give finite numbers, got a mean of {mean}; "
                "give images without a foreground a number too."
            )
        self.tried[key] = Evaluation(unary, tuple(pairwise), scale, mean)
        return self.tried[key]

    def start(self) -> tuple[float, ...]:
        """The best of a grid of multiples; the model's own weights come first."""
        own = self.model.unary_weight, *map(float, self.model.pairwise_weights), 1.0
        best = own
        self.best = self.evaluate(own).score
        unary_factors = _STARTS if self.model.patterns is not None else (1.0,)
        for unary, pairwise in itertools.product(unary_factors, _STARTS):
            weights = (own[0] * unary, *(w * unary * pairwise for w in own[1:-1]), 1.0)
            found = self.evaluate(weights).score
            if found > self.best:
                best, self.best = weights, found
        return best

    def improve(
        self, weights: tuple[float, ...], which: int, step: float, min_gain: float
    ) -> tuple[float, ...]:
        """Move one weight as far as that helps."""
        for direction in self._directions(weights, which, step):
            for candidate in direction:
                found = self.evaluate(candidate).score
                if not found > self.best + min_gain:
                    break
                weights, self.best = candidate, found
        return weights

    def _directions(
        self, weights: tuple[float, ...], which: int, step: float
    ) -> Iterator[Iterator[tuple[float, ...]]]:
        """Ways to move a weight: up, down and, for a pairwise one, to 0 or away from it."""

        def with_value(value: float) -> tuple[float, ...]:
            return (*weights[:which], value, *weights[which + 1 :])

        value = weights[which]
        if value == 0:
            yield iter([with_value(_SMALL_SHARE * weights[0])])
            return
        for factor in (step, 1 / step):
            yield (with_value(value * factor**n) for n in itertools.count(1))
        if 0 < which < len(weights) - 1:
            yield iter([with_value(0.0)])
