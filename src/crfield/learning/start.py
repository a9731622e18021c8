"""Where to start learning: a model whose constants suit the data, so that none need be given."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crfield._core.validate import as_choice
from crfield.datasets.shrunk import Shrunk, fitting_factor
from crfield.dense.compatibility import Compatibility, Diagonal, Potts, Symmetric
from crfield.dense.context import CONTEXTS
from crfield.dense.kernels import Bilateral, Kernel, Spatial
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF, Pairwise
from crfield.dense.observation import observe
from crfield.learning.folds import Choice, Told, fold_numbers
from crfield.learning.losses import Loss
from crfield.learning.objective import (
    Example,
    as_examples,
    can_choose,
    image_totals,
    settle,
    visit,
)
from crfield.learning.recalibration import (
    FORMS,
    CrossFitted,
    Recalibration,
    choose_recalibration,
)
from crfield.learning.strength import Fixed, Start

FAMILIES = ("potts", "diagonal", "symmetric")

# What is tried: widths as shares of the mean side of an image and of the spread of its colors.
_SPATIAL_SHARE = 0.012
_BILATERAL_SHARES, _COLOR_SHARES, _WEIGHTS = (0.05, 0.1, 0.25), (0.1, 0.2), (1.0, 2.0, 4.0, 8.0)
_MOST_IMAGES, _MOST_PIXELS = 40, 6000


@dataclass(frozen=True)
class ChosenStart:
    """A start whose recalibration is learned from the images that it may know.

    recalibration : of the unaries.
    terms : pairwise terms.
    """

    recalibration: Recalibration
    terms: Sequence[Pairwise]

    @property
    def choices(self) -> list[Choice]:
        """What folds chose."""
        return [self.recalibration.choice]

    def learned_from(self, images: Sequence[int]) -> DenseCRF:
        """The model whose recalibration is learned from these images alone."""
        return replace(self.recalibration.learned_from(images), terms=self.terms)


def choose_start(
    n_labels: int, examples: Sequence[Example], loss: Loss, *, family: str = "symmetric",
    forms: Sequence[str] = FORMS, contexts: Sequence[str] = CONTEXTS,
    inference: Inference | None = None, n_jobs: int = 1, seed: int = 0,
    told: Told = lambda *_: None,
) -> Start:
    """Where to start for `learn`: a recalibration whose form and strength folds of the images
    choose, and the `starting_model` of what it makes of the unaries.

    Of fewer than six images, or more than 128 labels, it is the `starting_model` alone, which sees
    a context where that is the only form.

    Parameters
    ----------
    n_labels : number of labels L.
    examples, loss, family, inference, n_jobs : as for `starting_model`.
    forms : of the recalibration, those that may be chosen: some of `FORMS`.
    contexts : what a recalibration of the form "context" sees, of "presence", "position", "color".
    seed : of the folds and of the pixels that are sampled.
    told : called as told(what is chosen, steps done, steps in all).
    """
    as_examples(examples)
    forms = [as_choice(form, "each of forms", FORMS) for form in forms]
    options: dict[str, Any] = {"family": family, "inference": inference, "n_jobs": n_jobs}
    if forms == ["none"] or not can_choose(examples):
        model = starting_model(n_labels, examples, loss, **options)
        if forms == ["context"]:
            first = examples[0]
            n_channels = np.size(first.image) // np.size(first.truth)
            model = model.with_context(contexts, np.ndim(first.truth), n_channels)
        return Fixed(model)
    folds = fold_numbers(examples, seed)
    recalibration = choose_recalibration(
        n_labels, examples, loss, folds, forms, contexts, seed, told
    )
    told("pairwise terms", 0, 1)
    crossed = CrossFitted(recalibration, examples, folds)
    return ChosenStart(recalibration, starting_model(n_labels, crossed, loss, **options).terms)


def starting_model(
    n_labels: int, examples: Sequence[Example], loss: Loss, *, family: str = "symmetric",
    inference: Inference | None = None, n_jobs: int = 1,
) -> DenseCRF:
    """A spatial and a bilateral term, the best of a few on a few small versions of the examples.

    Parameters
    ----------
    n_labels : number of labels L.
    examples : images with costs and true labels.
    loss : what learning will minimize.
    inference : how marginals are computed, as for `learn`.
    family : of the bilateral term's compatibility, "potts", "diagonal" or "symmetric".
    n_jobs : images at a time, through joblib.
    """
    as_choice(family, "family", FAMILIES)
    as_examples(examples)
    chosen = np.linspace(0, len(examples) - 1, min(len(examples), _MOST_IMAGES)).astype(int)
    sample = [examples[int(index)] for index in chosen]
    grid_dim = np.ndim(sample[0].truth)
    side = float(np.mean([np.size(e.truth) ** (1 / grid_dim) for e in sample]))
    spread = float(np.mean([_color_spread(e) for e in sample]))
    factor = fitting_factor([np.shape(e.truth) for e in sample], _MOST_PIXELS)
    shrunk = Shrunk(sample, factor)
    small = [shrunk[index] for index in range(len(shrunk))]
    settled = settle(inference, DenseCRF(n_labels))

    def loss_of(model: DenseCRF) -> float:
        totals = visit(
            image_totals, model.rescaled(1 / factor, grid_dim), small, range(len(small)),
            (settled, loss), n_jobs,
        )
        return loss.value(np.sum(totals, axis=0))

    spatial = Spatial(max(_SPATIAL_SHARE * side, 1.0))
    candidates = []
    for share, color, weight in itertools.product(_BILATERAL_SHARES, _COLOR_SHARES, _WEIGHTS):
        kernels: list[Kernel] = [spatial]
        if spread > 0:  # an image without contrast has no edges to follow
            kernels.append(Bilateral(share * side, color * spread))
        candidates.append(DenseCRF(n_labels, [
            Pairwise(kernel, Potts(weight / (1 + (kernel is spatial)))) for kernel in kernels
        ]))
    best = min(candidates, key=loss_of)
    *before, last = best.terms
    assert isinstance(last.compatibility, Potts)
    compatibility = of_family(family, last.compatibility.weight, n_labels)
    return DenseCRF(n_labels, [*before, Pairwise(last.kernel, compatibility)])


def of_family(family: str, weight: float, n_labels: int) -> Compatibility:
    """Potts of this weight, up to a constant, with the parameters of a family."""
    if family == "potts":
        return Potts(weight)
    if family == "diagonal":
        return Diagonal(np.full(n_labels, weight))
    return Symmetric(Potts(weight).matrix(n_labels))


def _color_spread(example: Example) -> float:
    """The standard deviation of an image's colors, in the units that kernels see."""
    colors = observe(np.shape(example.truth), example.image).colors("rgb", None)
    return float(np.sqrt(colors.var(axis=0).mean()))
