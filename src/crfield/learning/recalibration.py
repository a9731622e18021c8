"""How far to trust a classifier: the form and the strength of a recalibration, chosen by folds.

The recalibrated costs R [h, 1] (KK13 section 4.2) of one pixel do not depend on other pixels, so
that a sample of pixels, whose features are computed once, shows in seconds which form of R holds on
images that it was not learned from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.optimize import Batches, Vector, minimize
from crfield._core.validate import FloatArray, as_floats
from crfield.datasets.shrunk import PlainExample
from crfield.dense.context import CONTEXTS
from crfield.dense.model import DenseCRF, no_recalibration
from crfield.dense.observation import observe
from crfield.learning.folds import Choice, Told, bundled, choose
from crfield.learning.losses import Loss, known_pixels
from crfield.learning.objective import N_FOLDS, Example, check_whole, spacing_of
from crfield.learning.parameters import recalibration_scale
from crfield.metrics import Counts, confusion_matrix, mean_iou

# From the one that changes least: nothing, one factor, a factor and a constant per label, a matrix,
# and a matrix that also sees the context.
FORMS = ("none", "temperature", "scale", "matrix", "context")

# Ridges from strong to weak, for one image; each is divided by the number of images.
_STRENGTHS = (0.6, 0.2, 0.06, 0.02, 0.006, 0.002, 6e-4, 2e-4, 6e-5)
# A form's weaker ridges are left out once so many in a row were worse than its best.
_PATIENCE = 4
# What a context knows of an image is one number per label: fewer images per label mislead.
_IMAGES_PER_LABEL = 3
_MOST_PIXELS, _MOST_NUMBERS = 100_000, 20_000_000
_ITERATIONS, _LAST_ITERATIONS = 10, 40
_OPTIMIZER = "lbfgs" if find_spec("scipy") else "cg"


@dataclass(frozen=True)
class Pixels:
    """Pixels of a sample of each image.

    features : (N, F + 1) what a recalibration sees, the constant 1 last.
    truth : (N,) true labels.
    image : (N,) the number of their image.
    """

    features: FloatArray
    truth: NDArray[np.intp]
    image: NDArray[np.intp]

    def of(self, images: Any) -> Pixels:
        """Those of some images."""
        chosen = np.isin(self.image, images)
        return Pixels(self.features[chosen], self.truth[chosen], self.image[chosen])


@dataclass(frozen=True)
class Recalibration:
    """A form of recalibration with its ridge towards the costs as they are.

    given : a model without terms that sees all contexts and changes nothing.
    pixels : of all images.
    l2 : for one image; the ridge is this by the number of images.
    choice : the forms and ridges that were tried.
    """

    given: DenseCRF
    pixels: Pixels
    loss: Loss
    form: str
    l2: float
    choice: Choice

    def learned_from(self, images: Sequence[int]) -> DenseCRF:
        """The model without terms whose recalibration is learned from these images alone."""
        n = self.given.n_labels
        if self.form == "none":
            return DenseCRF(n)
        fit = _Fit(self.pixels.of(images), self.given, self.loss, self.form)
        for strength in (s for s in _STRENGTHS if s >= self.l2):
            iterations = _LAST_ITERATIONS if strength == self.l2 else _ITERATIONS
            fit.descend(strength / len(images), iterations)
        if self.form == "context":
            return replace(self.given, recalibration=fit.matrix)
        return DenseCRF(n, recalibration=fit.matrix[:, [*range(n), -1]])


class CrossFitted(Sequence[PlainExample]):
    """The examples with recalibrated costs, each by what was learned from the other folds.

    What is learned on top of a recalibration must not see it at its best, on the images that it was
    learned from: on MSRC-21 it has 81 % there and 66 % elsewhere, and pairwise terms seem needless.
    """

    def __init__(
        self, recalibration: Recalibration, examples: Sequence[Example], folds: NDArray[np.intp]
    ) -> None:
        self._examples, self._folds = examples, folds
        self._models = [
            recalibration.learned_from(np.flatnonzero(folds != number).tolist())
            for number in range(N_FOLDS)
        ]

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: Any) -> Any:
        example, model = self._examples[index], self._models[self._folds[index]]
        costs, spacing = as_floats(example.unary, "unary"), spacing_of(example)
        observation = observe(costs.shape[:-1], example.image, spacing=spacing)
        recalibrated = model.recalibrate(model.unary_features(costs, observation))
        return PlainExample(
            example.image, recalibrated, example.truth, spacing, getattr(example, "group", None)
        )


def choose_recalibration(
    n_labels: int, examples: Sequence[Example], loss: Loss, folds: NDArray[np.intp],
    forms: Sequence[str] = FORMS, contexts: Sequence[str] = CONTEXTS, seed: int = 0,
    told: Told = lambda *_: None,
) -> Recalibration:
    """The simplest form, and its strongest ridge, that images of other folds support.

    Parameters
    ----------
    n_labels : number of labels L.
    examples : images with costs and true labels.
    loss : what is minimized.
    folds : (N,) the fold of each example.
    forms : those that may be chosen, in the order of `FORMS`; of a single one the ridge is.
    contexts : what the form "context" sees, where the images have it.
    seed : of the sample of pixels.
    told : how far the choice is.
    """
    given = _seeing(contexts, n_labels, examples)
    few = len(forms) > 1 and len(examples) < _IMAGES_PER_LABEL * n_labels
    if few or not given.context:
        forms = [form for form in forms if form != "context"] or ["none"]
    pixels = _sample(given, examples, loss.void, seed)
    tried: list[tuple[str, float, Counts]] = []
    for number, form in enumerate(forms):
        told("recalibration", number, len(forms))
        tried += _along_path(form, given, pixels, loss, folds)
    names = [f"{form}, ridge {l2:g}" if l2 else "as given" for form, l2, _ in tried]
    choice = choose("recalibration", names, [counts for _, _, counts in tried])
    form, l2, _ = tried[choice.chosen]
    return Recalibration(given, pixels, loss, form, l2, choice)


def _along_path(
    form: str, given: DenseCRF, pixels: Pixels, loss: Loss, folds: NDArray[np.intp]
) -> list[tuple[str, float, Counts]]:
    """The form with each ridge down to its best, and its counts on images of other folds."""
    if form == "none":
        return [(form, 0.0, _held_out(pixels, folds, [given.recalibration] * N_FOLDS))]
    parts = [np.flatnonzero(folds != number) for number in range(N_FOLDS)]
    fits = [_Fit(pixels.of(images), given, loss, form) for images in parts]
    found: list[tuple[str, float, Counts]] = []
    best, best_score = 0, -np.inf
    for strength in _STRENGTHS:
        for fit, images in zip(fits, parts, strict=True):
            fit.descend(strength / len(images), _ITERATIONS)
        counts = _held_out(pixels, folds, [fit.matrix for fit in fits])
        score = mean_iou(counts.sum(axis=0))
        if score > best_score:
            best, best_score = len(found), score
        found.append((form, strength, counts))
        if len(found) - 1 - best >= _PATIENCE:
            break
    return found[: best + 1]  # a weaker ridge that does worse is no alternative


def _held_out(
    pixels: Pixels, folds: NDArray[np.intp], matrices: Sequence[Vector]
) -> Counts:
    """The counts of each image, or bundle, by the matrix that was learned without its fold."""
    confusions = []
    ends = np.searchsorted(pixels.image, np.arange(len(folds) + 1))
    for fold, begin, end in zip(folds, ends, ends[1:], strict=False):
        matrix = matrices[fold].astype(pixels.features.dtype)
        labels = (pixels.features[begin:end] @ matrix.T).argmin(1)
        truth = pixels.truth[begin:end]
        confusions.append(confusion_matrix(truth, labels, len(matrix), void=None))
    return bundled(confusions)


class _Fit:
    """One recalibration on its way from a strong ridge to a weak one."""

    def __init__(self, pixels: Pixels, given: DenseCRF, loss: Loss, form: str) -> None:
        self._given = given.recalibration
        self.matrix = self._given.copy()
        self._pixels, self._loss = pixels, loss
        self._free = _free_entries(form, *self._given.shape)
        self._used = self._free.any(axis=0)
        self._features = np.ascontiguousarray(pixels.features[:, self._used])
        self._tied = form == "temperature"
        self._scale = recalibration_scale(given)[self._free]

    def descend(self, l2: float, max_iter: int) -> None:
        """Go on to the minimum of the loss plus the ridge, for so many iterations."""
        away = (self.matrix - self._given)[self._free]
        best: list[Any] = [np.inf, away]

        def evaluate(x: Vector, _: Sequence[int] | None) -> tuple[float, Vector]:
            value, gradient = self._value_and_gradient(x)
            decay = l2 / self._scale**2
            value += float((decay * x**2).sum())
            gradient = gradient + 2.0 * decay * x
            if self._tied:  # the mean keeps the diagonal one number
                gradient = np.full_like(gradient, gradient.mean())
            if value < best[0]:
                best[:] = value, x.copy()
            return value, gradient

        minimize(
            evaluate, away, _OPTIMIZER, max_iter=max_iter, callback=lambda _: False,
            batches=Batches(1), scale=self._scale,
        )
        self.matrix = self._at(best[1])

    def _at(self, away: Vector) -> Vector:
        matrix: Vector = self._given.copy()
        matrix[self._free] += away
        return matrix

    def _value_and_gradient(self, away: Vector) -> tuple[float, Vector]:
        matrix = self._at(away)[:, self._used].astype(self._features.dtype)
        q = -(self._features @ matrix.T)
        q -= q.max(1, keepdims=True)
        np.exp(q, out=q)
        q /= q.sum(1, keepdims=True)
        totals = self._loss.totals(q, self._pixels.truth)
        by_log = self._loss.log_gradient(q, self._pixels.truth, totals)
        by_costs = q * by_log.sum(1, keepdims=True) - by_log
        gradient = np.zeros(self._given.shape)
        gradient[:, self._used] = by_costs.T @ self._features
        return self._loss.value(totals), gradient[self._free]


def _free_entries(form: str, n_labels: int, n_columns: int) -> NDArray[np.bool_]:
    """Which entries of R (L, F + 1) a form changes."""
    free = np.zeros((n_labels, n_columns), bool)
    if form in ("temperature", "scale"):
        free[:, :n_labels] = np.eye(n_labels, dtype=bool)
    elif form == "matrix":
        free[:, :n_labels] = True
    else:
        free[:] = True
    free[:, -1] |= form != "temperature"
    return free


def _seeing(contexts: Sequence[str], n_labels: int, examples: Sequence[Example]) -> DenseCRF:
    """A model that changes nothing, whose recalibration sees the contexts that all images have."""
    n_channels = set()
    for index in range(len(examples)):
        example = examples[index]
        check_whole(n_labels, example)
        has_image = example.image is not None
        n_channels.add(np.size(example.image) // np.size(example.truth) if has_image else 0)
    has_color = len(n_channels) == 1 and 0 not in n_channels
    seen = [context for context in contexts if has_color or context != "color"]
    unchanged = DenseCRF(n_labels, recalibration=no_recalibration(n_labels))
    if not seen:
        return unchanged
    return unchanged.with_context(seen, np.ndim(examples[0].truth), n_channels.pop())


def _sample(
    model: DenseCRF, examples: Sequence[Example], void: int | None, seed: int
) -> Pixels:
    """Pixels with a true label, as many of each image as there are or as bring their number to
    `_MOST_PIXELS`, or that of their features to `_MOST_NUMBERS`.
    """
    rng = np.random.default_rng(seed)
    in_all = min(_MOST_PIXELS, _MOST_NUMBERS // model.recalibration.shape[1])
    most = max(1, in_all // len(examples))
    features, truths, images = [], [], []
    for index in range(len(examples)):
        example = examples[index]
        costs = as_floats(example.unary, "unary")
        observation = observe(costs.shape[:-1], example.image, spacing=spacing_of(example))
        truth = np.asarray(example.truth).reshape(-1)
        known = np.flatnonzero(known_pixels(truth, void))
        chosen = np.sort(rng.choice(known, min(most, len(known)), replace=False))
        seen = model.unary_features(costs, observation).reshape(truth.size, -1)[chosen]
        features.append(np.pad(seen.astype(np.float32), ((0, 0), (0, 1)), constant_values=1.0))
        truths.append(truth[chosen].astype(np.intp))
        images.append(np.full(len(chosen), index))
    return Pixels(np.concatenate(features), np.concatenate(truths), np.concatenate(images))
