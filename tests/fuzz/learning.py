"""Random calls of learning, losses, metrics, pictures, data sets and the pydensecrf shim."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image

from crfield import DenseCRF, Inference, Pairwise, datasets, metrics
from crfield.compat.pydensecrf import densecrf, utils
from crfield.datasets.words import letter_image
from crfield.learning import choose_start, learn
from crfield.learning.learner import LOSSES
from crfield.learning.losses import IntersectionOverUnion
from crfield.patterns.variability import variability
from crfield.show import pictures
from tests.fuzz.calls import Call, check_sums, require
from tests.fuzz.spoil import call, spoiled
from tests.fuzz.values import Maker


@dataclass(frozen=True)
class Example:
    image: Any
    unary: Any
    truth: Any


def make_learn(maker: Maker) -> Call:
    """learn on two tiny images, or on enough of them to choose by folds, for one iteration."""
    rng = maker.rng
    labels, grid = maker.count(2, 3), (maker.count(2, 5), maker.count(2, 5))
    parts = spoiled(maker, {
        "image": rng.integers(0, 256, (*grid, 3)).astype(np.uint8),
        "unary": rng.uniform(0, 3, (*grid, labels)), "truth": rng.integers(0, labels, grid),
    })
    others = [
        Example(rng.uniform(0, 255, (*grid, 3)), rng.uniform(0, 3, (*grid, labels)),
                rng.integers(0, labels, grid))
        for _ in range(maker.pick([1] * 19 + [6]))
    ]
    starts = len(others) > 1 and bool(maker.count(0, 1))
    gentle = Maker([maker.count(0, 10**6)], hostile=False)
    terms = [Pairwise(gentle.kernel(2, 3, {}), gentle.compatibility(labels), 1.0)
             for _ in range(maker.count(0, 2))]
    if any(term.kernel.shape != "gaussian" for term in terms):
        terms = []
    options = spoiled(maker, {
        "loss": maker.pick(list(LOSSES)), "optimizer": maker.pick(["cg", "gd", "adam", "sgd"]),
        "learn": ["unary", "compatibility", "kernel"][:maker.count(1, 3)], "max_iter": 1,
        "tol": 0.01, "batch_size": 2, "step_size": 0.1, "seed": 0,
    })

    def run() -> Any:
        examples, inference = [Example(**parts), *others], Inference("concave", "exact", max_iter=2)
        start = choose_start(
            labels, examples, IntersectionOverUnion(), forms=("none", "scale"), inference=inference
        ) if starts else DenseCRF(labels, terms)
        learned = learn(start, examples, **options, inference=inference)
        return [learned.report.losses, [term.weight for term in learned.model.terms]]

    def check(found: Any) -> None:
        require(all(map(math.isfinite, found[0] + found[1])), f"no numbers: {found}")

    return Call(run, check, {**parts, **options, "terms": terms})


def make_metric(maker: Maker) -> Call:
    """Confusion matrices, scores, the bootstrap, variability."""
    rng = maker.rng
    labels, grid = maker.count(1, 4), (maker.count(1, 5), maker.count(1, 6))
    truth, found = rng.integers(0, labels, (2, *grid))
    counts = rng.integers(0, 9, (maker.count(1, 4), labels, labels))
    kind = maker.pick(["confusion", "trimap", "scores", "bootstrap", "variability"])
    both = {"truth": truth, "predicted": found, "n_labels": labels, "void": 255}
    if kind == "confusion":
        return call(maker, metrics.confusion_matrix, both)
    if kind == "trimap":
        return call(maker, metrics.trimap_confusion, {**both, "width": float(rng.uniform(0.5, 3))})
    if kind == "bootstrap":
        return call(maker, metrics.paired_bootstrap, {
            "confusions_a": counts, "confusions_b": counts + 1, "n_resamples": 5, "seed": 0})
    if kind == "variability":
        masks = rng.integers(0, 2, (4, *grid)).astype(np.uint8)
        return call(maker, variability, {"masks": masks, "n_clusters": 2, "seed": 0})
    names = ("iou_per_label", "mean_iou", "pixel_accuracy", "class_accuracy")
    function = getattr(metrics, maker.pick(names))

    def numbers(confusion: Any) -> list[float]:  # NaN means that there is nothing to score
        return [float(value) for value in np.nan_to_num(np.atleast_1d(function(confusion)))]

    return call(maker, numbers, {"confusion": counts[0] + 1})


def make_picture(maker: Maker) -> Call:
    """Pictures of labels, marginals and curves."""
    rng = maker.rng
    grid, labels = (maker.count(1, 7), maker.count(1, 7)), maker.count(1, 5)
    image = rng.integers(0, 256, (*grid, 3)).astype(np.uint8)
    maps = rng.integers(0, labels, grid)
    given: dict[str, dict[str, Any]] = {
        "overlay": {"image": image, "labels": maps, "alpha": 0.5, "outlines": True},
        "colorize": {"labels": maps}, "show": {"image": image},
        "entropy_map": {"marginals": rng.dirichlet(np.ones(labels), grid)},
        "line_plot": {"values": rng.normal(size=4), "title": "title", "size": (90, 60)},
        "label_palette": {"n": labels},
    }
    name = maker.pick(sorted(given))
    function = getattr(pictures, name)

    def drawn(**arguments: Any) -> Any:
        picture = function(**arguments)
        return np.array(picture) if isinstance(picture, Image.Image) else picture

    return call(maker, drawn, given[name])


def make_dataset(maker: Maker) -> Call:
    """Made-up scenes, figures, words, and ways to spoil masks."""
    mask = maker.rng.integers(0, 3, (12, 14))
    calls: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "coarsen": (datasets.coarsen, {"mask": mask, "n_labels": 3, "block": 4, "jitter": 1.0,
                                       "flip": 0.1, "seed": 1}),
        "noisy": (datasets.noisy_probabilities, {
            "mask": mask, "n_labels": 3, "block": 4, "confidence": 0.8, "noise": 1.0}),
        "unaries": (datasets.noisy_unaries, {
            "masks": (mask[None] > 1).astype(np.uint8), "noise": 0.5, "n_blocks": 2, "seed": 0}),
        "scenes": (lambda **a: [s.image for s in datasets.synthetic_scenes(**a)], {
            "n": 1, "size": [20, 24], "n_labels": 3, "noise": 5.0, "block": 4, "seed": 0}),
        "ellipses": (datasets.ellipse_set, {"level": 1, "n": 2, "size": 16, "seed": 0}),
        "words": (lambda **a: datasets.noisy_words(**a).images, {"n": 2, "seed": 0}),
        "letter": (letter_image, {"letter": "A"}),
    }
    function, given = calls[maker.pick(sorted(calls))]
    return call(maker, function, given)


def make_shim(maker: Maker) -> Call:
    rng = maker.rng
    width, height, labels = maker.count(1, 6), maker.count(1, 6), maker.count(1, 4)
    soft = rng.dirichlet(np.ones(labels), (width * height,)).T.astype(np.float32)
    kind = maker.pick(["2d", "2d", "nd", "labels", "softmax", "gaussian", "bilateral"])
    if kind == "labels":
        return call(maker, utils.unary_from_labels, {
            "labels": rng.integers(0, labels + 1, (height, width)), "n_labels": labels + 1,
            "gt_prob": 0.7, "zero_unsure": maker.chance(0.5)})
    if kind == "softmax":
        return call(maker, utils.unary_from_softmax, {"sm": soft, "scale": None, "clip": 1e-5})
    image = np.ascontiguousarray(rng.integers(0, 256, (height, width, 3)).astype(np.uint8))
    if kind == "gaussian":
        given: dict[str, Any] = {"sdims": (2.0, 3.0), "shape": (height, width)}
        return call(maker, utils.create_pairwise_gaussian, given)
    if kind == "bilateral":
        return call(maker, utils.create_pairwise_bilateral, {
            "sdims": (2.0, 3.0), "schan": (5.0, 5.0, 5.0), "img": image, "chdim": 2})
    unary = spoiled(maker, {"u": -np.log(soft)}) if maker.chance(0.5) else {"u": -np.log(soft)}
    sizes = spoiled(maker, {"w": width, "h": height, "nlabels": labels})
    smooth = spoiled(maker, {"sxy": 2.0, "compat": 3.0})
    color = spoiled(maker, {"sxy": 5.0, "srgb": 9.0, "rgbim": image, "compat": 4.0})
    steps = spoiled(maker, {"niter": maker.count(0, 3)})

    def run() -> Any:
        if kind == "2d":
            crf = densecrf.DenseCRF2D(**sizes)
            crf.setUnaryEnergy(**unary)
            crf.addPairwiseGaussian(**smooth)
            crf.addPairwiseBilateral(**color)
        else:
            crf = densecrf.DenseCRF(width * height, sizes["nlabels"])
            crf.setUnaryEnergy(**unary)
            features = utils.create_pairwise_gaussian((2.0, 2.0), (height, width))
            crf.addPairwiseEnergy(features, smooth["compat"])
        return np.array(crf.inference(**steps))

    return Call(run, lambda q: check_sums(q, 0), {
        **unary, **sizes, **smooth, **color, **steps, "kind": kind})
