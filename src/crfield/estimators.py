"""A dense CRF with the interface of a scikit-learn estimator, one sample per image."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfield._core.estimator import Estimator, NotFittedError
from crfield._core.validate import (
    FloatArray,
    InputError,
    as_array,
    as_choice,
    as_count,
    as_floats,
    as_scalar,
    check_magnitude,
    shown,
)
from crfield._core.warning import warn
from crfield.dense.compatibility import Potts
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF
from crfield.dense.observation import observe
from crfield.learning import FAMILIES, LearningReport
from crfield.learning import learn as learn_parameters
from crfield.learning.losses import VOID
from crfield.learning.objective import settle
from crfield.learning.start import of_family
from crfield.metrics import as_label_map, confusion_matrix, mean_iou
from crfield.refinement import model_for, structure_of
from crfield.unary.costs import Segmentation, unary_from_probabilities
from crfield.unary.defaults import Terms

__all__ = ["DenseCRFClassifier", "NotFittedError", "TrainingImage"]

INPUTS = ("probabilities", "costs")

Image = tuple[NDArray[Any] | None, FloatArray]
Labels = NDArray[np.integer[Any]]


class TrainingImage(NamedTuple):
    """One image to learn from: image (*grid[, C]) or None, unary (*grid, L), truth (*grid,)."""

    image: NDArray[Any] | None
    unary: FloatArray
    truth: Labels


@dataclass(eq=False, kw_only=True)
class DenseCRFClassifier(Estimator):
    """Labels every pixel of an image from a classifier's output, with learned parameters.

    A sample is an image: X is a list of pairs (image, unary) and y a list of label maps, whose
    sizes may differ from image to image. Lists are what scikit-learn splits by index without
    looking inside, so `GridSearchCV(DenseCRFClassifier(), grid, cv=5).fit(X, y)` holds out whole
    images; an array of objects, or the one array that `np.array(X)` makes, would not do.

    Parameters
    ----------
    spatial, spatial_weight : width in pixels and weight of the smoothness term; None drops it.
    bilateral, bilateral_weight : (pixels, color) widths and weight of the term that follows the
        image; None drops it. "auto", here and for the spatial term, is what `refine` takes for the
        first image.
    compatibility : "potts", "diagonal" or "symmetric", what the weights become when learned: one
        number per term, one per label, or one per pair of labels. All three start as the same
        model.
    learn : some of "unary", "compatibility" and "kernel"; () keeps the model as it is given here.
        "unary" has L (L + 1) numbers, which a few images overfit.
    loss, optimizer, max_iter, l2 : those of `crfield.learning.learn`.
    inference : how marginals are computed, in learning and prediction alike, by default 5
        iterations of "concave".
    validation_fraction : share of the images held out to choose the best iterate; 0 uses all.
    n_jobs : images at a time while learning, through joblib; None is 1, -1 every core.
    random_state : whole number or None; which images are held out, and the order of mini-batches.
    input : what the unaries of X are, "probabilities" (*grid, L) or "costs" (*grid, L).
    progress : whether to show a bar while learning.

    Attributes
    ----------
    model_ : the learned `DenseCRF`, which can be saved.
    inference_ : how it infers, in learning and prediction alike, an `Inference`.
    report_ : the course of learning, a `LearningReport`.
    n_labels_ : number of labels L, the last axis of the unaries.
    classes_ : (L,) labels in the order of the last axis of `predict_proba`.

    Examples
    --------
    >>> crf = DenseCRFClassifier(compatibility="symmetric")
    >>> crf.fit([(image, probabilities)], [labels]).predict([(other, others)])  # doctest: +SKIP
    """

    spatial: Any = "auto"
    spatial_weight: float | str = "auto"
    bilateral: Any = "auto"
    bilateral_weight: float | str = "auto"
    compatibility: str = "potts"
    learn: Sequence[str] = ("compatibility", "kernel")
    loss: Any = "iou"
    optimizer: str = "cg"
    max_iter: int = 20
    inference: Inference | None = None
    l2: Mapping[str, float] | str = "auto"
    validation_fraction: float = 0.0
    n_jobs: int | None = 1
    random_state: int | None = 0
    input: str = "probabilities"
    progress: bool = False

    def fit(self, X: Any, y: Any) -> DenseCRFClassifier:
        """Learn from pairs (image (*grid[, C]) or None, unary (*grid, L)) and label maps (*grid).

        Labels are 0..L-1; pixels of label 255 count nowhere.
        """
        images = self._check_images(X)
        n_labels = images[0][1].shape[-1]
        if n_labels > VOID:
            raise InputError(
                f"unaries must have at most {VOID} labels, since {VOID} marks pixels without one, "
                f"got {n_labels}; merge labels."
            )
        examples = [
            TrainingImage(image, unary, truth)
            for (image, unary), truth in zip(images, _check_truth(y, images), strict=True)
        ]
        start = self._start(*images[0])
        inference = self._settled(start)
        seed = self.random_state
        rng = np.random.default_rng(None if seed is None else as_count(seed, "random_state", 0))
        learn = (self.learn,) if isinstance(self.learn, str) else tuple(self.learn or ())
        held_out = self._held_out(len(examples), rng)
        if learn:
            learned = learn_parameters(
                start,
                [example for i, example in enumerate(examples) if i not in held_out],
                loss=self.loss, learn=learn, optimizer=self.optimizer, max_iter=self.max_iter,
                inference=inference,
                l2=self.l2,
                validation=[examples[i] for i in sorted(held_out)] or None,
                n_jobs=1 if self.n_jobs is None else self.n_jobs, seed=int(rng.integers(2**31)),
                progress=self.progress,
            )
            self.model_, self.report_ = learned.model, learned.report
            self._warn_without_progress()
        else:
            self.model_, self.report_ = start, LearningReport()
            if held_out:
                warn(
                    f"validation_fraction={self.validation_fraction:g} has no effect when nothing "
                    "is learned; set it to 0, or name what to learn."
                )
        self.inference_ = inference
        self.n_labels_ = n_labels
        self.classes_ = np.arange(n_labels)
        return self

    def predict(self, X: Any) -> list[NDArray[np.int64]]:
        """The most probable label of each pixel, a list of (*grid)."""
        self._check_fitted("model_")
        return list(self._labels(self._check_images(X)))

    def predict_proba(self, X: Any) -> list[FloatArray]:
        """The marginals of each pixel's labels, a list of (*grid, L)."""
        self._check_fitted("model_")
        return list(self._marginals(self._check_images(X)))

    def score(self, X: Any, y: Any) -> float:
        """Mean intersection over union of the labels that occur, over all images together."""
        self._check_fitted("model_")
        images = self._check_images(X)
        truths = _check_truth(y, images)
        confusion = sum(
            confusion_matrix(truth, labels, self.n_labels_, void=VOID)
            for truth, labels in zip(truths, self._labels(images), strict=True)
        )
        return mean_iou(confusion)

    def _start(self, image: NDArray[Any] | None, unary: FloatArray) -> DenseCRF:
        """The model that the arguments describe, where they leave it open for an image."""
        as_choice(self.compatibility, "compatibility", FAMILIES)
        n_labels = unary.shape[-1]
        shown = Segmentation("probabilities", np.arange(n_labels))
        model = model_for(
            shown, None,
            Terms(self.spatial, self.spatial_weight, self.bilateral, self.bilateral_weight),
            unary.shape[:-1], look=lambda: structure_of(shown, -unary, image),
        )
        terms = []
        for term in model.terms:
            assert isinstance(term.compatibility, Potts)
            family = of_family(self.compatibility, term.compatibility.weight, n_labels)
            terms.append(dataclasses.replace(term, compatibility=family))
        return DenseCRF(n_labels, terms)

    def _settled(self, start: DenseCRF) -> Inference:
        """How to infer, with nothing left open but the number of threads."""
        given = Inference() if self.inference is None else self.inference
        if not isinstance(given, Inference) or given.max_iter == 0:
            raise InputError(
                f"inference must be an Inference of at least 1 iteration, got {shown(given)}; "
                "for example Inference(max_iter=5)."
            )
        return dataclasses.replace(settle(given, start), threads=given.threads)

    def _check_images(self, X: Any) -> list[Image]:
        """Images and costs, of one number of labels."""
        as_choice(self.input, "input", INPUTS)
        count = _length(X, "X", "pairs (image, unary)")
        images: list[Image] = []
        for index in range(count):
            pair = X[index]
            # An array of two rows would unpack as well, and be anything but a pair.
            if not isinstance(pair, tuple | list) or len(pair) != 2:
                raise InputError(
                    f"X[{index}] must be a pair (image, unary), got {_described(pair)}; "
                    "pass a list of pairs, X = [(image, unary), ...]."
                )
            with _naming(f"X[{index}]"):
                images.append(self._check_pair(*pair))
            n_labels = images[0][1].shape[-1]
            if images[index][1].shape[-1] != n_labels:
                raise InputError(
                    f"X[{index}] must have as many labels as X[0] ({n_labels}), got "
                    f"{images[index][1].shape[-1]}; give every image the same labels."
                )
        return images

    def _check_pair(self, image: Any, unary: Any) -> Image:
        if self.input == "probabilities":
            costs = unary_from_probabilities(unary)
        else:
            costs = as_floats(unary, "unary")
            check_magnitude(costs, "unary")
        if costs.ndim < 2 or costs.size == 0:
            raise InputError(
                f"unary must have shape (*grid, L), got {costs.shape}; put the labels last."
            )
        return observe(costs.shape[:-1], image).image, costs

    def _marginals(self, images: Sequence[Image]) -> Iterator[FloatArray]:
        how = self.inference_
        for index, (image, costs) in enumerate(images):
            with _naming(f"X[{index}]"):
                # Learning runs all iterations, and so does prediction.
                result = self.model_.infer(
                    image, costs, algorithm=how.algorithm, filter=how.filter,
                    filter_tol=how.filter_tol, max_iter=how.max_iter, tol=0.0,
                    threads=how.threads,
                )
            yield result.marginals

    def _labels(self, images: Sequence[Image]) -> Iterator[NDArray[np.int64]]:
        for marginals in self._marginals(images):
            yield self.classes_[marginals.argmax(-1)]

    def _held_out(self, n_images: int, rng: np.random.Generator) -> set[int]:
        """The images that learning does not see: at least one if any, and never all."""
        share = as_scalar(self.validation_fraction, "validation_fraction")
        if not 0.0 <= share < 1.0:
            raise InputError(
                f"validation_fraction must be at least 0 and below 1, got {share:g}; "
                "use 0.2 to hold out a fifth of the images."
            )
        if share == 0.0:
            return set()
        if n_images < 2:
            raise InputError(
                "X must hold two images or more to hold some out, got 1; "
                "pass more images or validation_fraction=0."
            )
        count = min(max(1, round(share * n_images)), n_images - 1)
        return {int(i) for i in rng.permutation(n_images)[:count]}

    def _warn_without_progress(self) -> None:
        if self.max_iter > 0 and self.report_.best_iteration == 0:
            where = "on the images held out" if self.report_.validation_ious else "on X and y"
            warn(
                f"learning found nothing better than the start {where}; try another loss or "
                "optimizer, other starting widths and weights, or more images."
            )


def _check_truth(y: Any, images: Sequence[Image]) -> list[Labels]:
    """Label maps on the grids of the images; somewhere, a label is known."""
    count = _length(y, "y", "label maps")
    if count != len(images):
        raise InputError(
            f"y must hold one label map per image, got {count} for {len(images)} images; "
            "pass lists of one length."
        )
    truths = []
    for index, (_, costs) in enumerate(images):
        grid, n_labels = costs.shape[:-1], costs.shape[-1]
        labels = as_array(y[index], f"y[{index}]")
        if labels.shape != grid:
            raise InputError(
                f"y[{index}] must have shape {grid} like its unary, got {labels.shape}; "
                "give one label per pixel."
            )
        truths.append(as_label_map(labels, f"y[{index}]", n_labels, labels == VOID))
    if all((truth == VOID).all() for truth in truths):
        raise InputError(
            f"y must hold at least one known label, got only the void label {VOID}; "
            "pass label maps with labels from 0."
        )
    return truths


def _length(values: Any, name: str, content: str) -> int:
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str | bytes):
        raise InputError(
            f"{name} must be a list of {content}, got {shown(values)}; pass a list."
        )
    if len(values) == 0:
        raise InputError(f"{name} must hold at least one image, got none; pass {content}.")
    return len(values)


def _described(value: Any) -> str:
    shape = getattr(value, "shape", None)
    return shown(value) if shape is None else f"an array of shape {shape}"


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say in errors which image they are about."""
    try:
        yield
    except InputError as error:
        raise InputError(f"{name}: {error}") from None
