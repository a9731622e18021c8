"""Choose a model by how well its labels agree with the truth, without any gradient."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from crfield._core.optimize import Stopped, Vector
from crfield._core.optional import missing
from crfield._core.validate import (
    InputError,
    as_choice,
    as_count,
    as_positive_number,
    as_scalar,
    shown,
)
from crfield.dense.compatibility import Potts
from crfield.dense.kernels import Bilateral, Kernel, Spatial
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF, Pairwise
from crfield.learning.baselines.scoring import METRICS, confusion
from crfield.learning.learner import Learned, LearningReport
from crfield.learning.objective import Example, settle, with_inference
from crfield.learning.parameters import Parameters
from crfield.metrics import mean_iou

Sampler = Callable[[np.random.Generator], DenseCRF]
# called as callback(number of the candidate, report) after each candidate; True stops
SearchCallback = Callable[[int, "SearchReport"], Any]

# How far a local search may go from its start: a factor of a thousand for what is a logarithm.
_REACH = 7.0


@dataclass
class SearchReport(LearningReport):
    """Every candidate in the order of trial with its score; `best_iteration` points to the best.

    A search has no losses and no gradients; those lists stay empty.

    candidates, scores : the models that were tried and their scores, one per trial.
    """

    candidates: list[DenseCRF] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Searched(Learned):
    """The best candidate, the first among equals, and in the report all that were tried."""

    report: SearchReport


def grid_search(
    models: Iterable[DenseCRF],
    examples: Sequence[Example],
    *,
    inference: Inference | None = None,
    metric: str = "iou",
    n_jobs: int = 1,
    callback: SearchCallback | None = None,
) -> Searched:
    """Try every model and keep the one with the highest score over all examples.

    Parameters
    ----------
    models : the candidates, for example from `potts_grid`; taken one at a time.
    examples : images with costs and true labels.
    inference : how marginals are computed, as for `learn`.
    metric : "iou" (`mean_iou`), "accuracy" (share of pixels) or "class_accuracy".
    n_jobs : images at a time, through joblib.
    callback : called as callback(number, report) after each candidate; True stops.
    """
    trial = _Trial(examples, inference, metric, n_jobs, callback)
    try:
        candidates = iter(models)
    except TypeError:
        raise InputError(
            f"models must be several models, got {shown(models)}; pass a list or potts_grid(...)."
        ) from None
    with contextlib.suppress(Stopped):
        for model in candidates:
            trial.score(model)
    return trial.result()


def random_search(
    sampler: Sampler,
    examples: Sequence[Example],
    *,
    n_candidates: int = 50,
    seed: int = 0,
    **options: Any,
) -> Searched:
    """`grid_search` over models that sampler(rng) draws, for example one from `perturbed`.

    n_candidates, seed : how many are drawn, and from which random numbers; `examples` and all
        other `options` are those of `grid_search`.
    """
    if not callable(sampler):
        raise InputError(
            f"sampler must be a function of a random generator, got {shown(sampler)}; "
            "for example perturbed(model)."
        )
    rng = np.random.default_rng(seed)
    drawn = (sampler(rng) for _ in range(as_count(n_candidates, "n_candidates")))
    return grid_search(drawn, examples, **options)


def local_search(
    model: DenseCRF,
    examples: Sequence[Example],
    *,
    learn: Sequence[str] = ("compatibility", "kernel"),
    spread: float = 0.5,
    max_evaluations: int = 60,
    inference: Inference | None = None,
    metric: str = "iou",
    n_jobs: int = 1,
    callback: SearchCallback | None = None,
) -> Searched:
    """Improve a model's score by Nelder and Mead's simplex; made for a handful of parameters.

    Parameters
    ----------
    model : where to start, always the first candidate.
    learn : what to vary, of "unary", "compatibility" and "kernel"; positive numbers as logarithms.
    spread : size of the first simplex; 0.5 multiplies each positive number by 1.65 once.
    max_evaluations : how many candidates to try at most; the other arguments are those of
        `grid_search`.
    """
    try:
        from scipy.optimize import minimize
    except ImportError:
        raise InputError(
            missing("local_search needs", "scipy", otherwise="use random_search")
        ) from None
    size = as_positive_number(spread, "spread")
    budget = as_count(max_evaluations, "max_evaluations")
    parameters = _parameters(model, learn)
    start = parameters.start
    trial = _Trial(examples, inference, metric, n_jobs, callback)

    def cost(x: Vector) -> float:
        if trial.report.n_evaluations >= budget:
            raise Stopped
        return -trial.score(parameters.build(x))

    simplex = np.vstack([start, start + min(size, _REACH) * np.eye(len(start))])
    # Scores are piecewise constant: equal ones mean convergence only where the points are close.
    options = {"initial_simplex": simplex, "xatol": 0.01, "fatol": 0.0}
    bounds = [(value - _REACH, value + _REACH) for value in start]
    with contextlib.suppress(Stopped):
        minimize(cost, start, method="Nelder-Mead", bounds=bounds, options=options)
    return trial.result()


def potts_grid(
    n_labels: int,
    *,
    spatial: Iterable[float] = (),
    bilateral: Iterable[tuple[float, float]] = (),
    weights: Iterable[float] = (1.0, 2.0, 4.0, 8.0),
) -> Iterator[DenseCRF]:
    """Potts models with every combination of widths and weights.

    Parameters
    ----------
    n_labels : number of labels L.
    spatial : widths of a `Spatial` term; none leaves it out.
    bilateral : (sigma_xy, sigma_color) of a `Bilateral` term; none leaves it out.
    weights : Potts weights; each term takes every one of them.
    """
    strengths = [as_scalar(weight, "weights") for weight in weights]
    kernels: list[list[Kernel]] = [
        [Spatial(sigma) for sigma in spatial],
        [Bilateral(sigma_xy, sigma_color) for sigma_xy, sigma_color in bilateral],
    ]
    choices = [
        [Pairwise(kernel, Potts(weight)) for kernel in family for weight in strengths]
        for family in kernels if family
    ]
    if not choices or not strengths:
        raise InputError(
            "potts_grid needs widths and weights, got none; "
            "for example potts_grid(21, bilateral=[(40, 10), (80, 10)], weights=[3, 10])."
        )
    return (DenseCRF(n_labels, terms) for terms in itertools.product(*choices))


def perturbed(
    model: DenseCRF, *, spread: float = 1.0, learn: Sequence[str] = ("compatibility", "kernel")
) -> Sampler:
    """A sampler around a model: positive numbers times exp(spread z), others plus spread z, z
    standard normal.

    learn : what to vary, of "unary", "compatibility" and "kernel".
    """
    size = as_scalar(spread, "spread")
    parameters = _parameters(model, learn)

    def sample(rng: np.random.Generator) -> DenseCRF:
        return parameters.build(
            parameters.start + size * rng.standard_normal(len(parameters.start))
        )

    return sample


def _parameters(model: DenseCRF, learn: Sequence[str]) -> Parameters:
    if not model.terms and "unary" not in learn:
        raise InputError("model must have pairwise terms to vary, got none; add a Pairwise.")
    return Parameters(model, learn)


class _Trial:
    """Candidates tried so far; `score` raises `Stopped` when the caller's callback asks for it."""

    def __init__(
        self, examples: Sequence[Example], inference: Inference | None, metric: str, n_jobs: int,
        callback: SearchCallback | None,
    ) -> None:
        self._metric = METRICS[as_choice(metric, "metric", METRICS)]
        self._inference = inference
        self._examples, self._n_jobs, self._callback = examples, n_jobs, callback
        self.report = SearchReport()

    def score(self, model: DenseCRF) -> float:
        if not isinstance(model, DenseCRF):
            raise InputError(f"candidates must be DenseCRF, got {shown(model)}; pass models.")
        settled = settle(self._inference, model)
        counts = confusion(model, self._examples, settled, self._n_jobs)
        score = self._metric(counts)
        report = self.report
        report.candidates.append(model)
        report.scores.append(score)
        report.mean_ious.append(mean_iou(counts))
        report.confusions.append(counts)
        if report.best_model is None or score > report.scores[report.best_iteration]:
            report.best_iteration = report.n_evaluations
            report.best_model = with_inference(model, settled)
        report.n_evaluations += 1
        if self._callback is not None and self._callback(report.n_evaluations - 1, report):
            raise Stopped
        return score

    def result(self) -> Searched:
        if self.report.best_model is None:
            raise InputError("models must hold at least one candidate, got none; add some.")
        return Searched(self.report.best_model, self.report)
