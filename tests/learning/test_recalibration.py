"""Recalibrations of a classifier: their gradients, what each form may change, and their choice."""

import numpy as np
import pytest

from crfield import DenseCRF, Potts
from crfield.dense.context import CONTEXTS
from crfield.estimators import TrainingImage
from crfield.learning import FORMS, choose_start, learn, make_loss
from crfield.learning.folds import fold_numbers
from crfield.learning.losses import IntersectionOverUnion, LogLikelihood
from crfield.learning.recalibration import CrossFitted, Pixels, _Fit, choose_recalibration
from crfield.metrics import confusion_matrix, mean_iou
from reference import central_differences
from refusal import refusal

pytest.importorskip("scipy")

N_LABELS = 3
GIVEN = DenseCRF(N_LABELS).with_context(CONTEXTS)


def pixels(n=40, seed=0):
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(n, GIVEN.recalibration.shape[1]))
    features[:, -1] = 1.0
    return Pixels(features, rng.integers(0, N_LABELS, n), np.arange(n) // 10)


def images(n, distort, seed=0, size=(12, 14)):
    """Images whose true labels follow a classifier before something is done to its costs."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        costs = 2.0 * rng.normal(size=(*size, N_LABELS))
        truth = (costs + 0.3 * rng.gumbel(size=costs.shape)).argmin(-1)
        made.append(TrainingImage(rng.uniform(0, 255, (*size, 3)), distort(costs, rng), truth))
    return made


def score(model, examples):
    found = [model.infer(e.image, e.unary).labels for e in examples]
    return mean_iou(sum(
        confusion_matrix(e.truth, labels, N_LABELS)
        for e, labels in zip(examples, found, strict=True)
    ))


def chosen(examples, loss=None, **options):
    return choose_recalibration(
        N_LABELS, examples, loss or IntersectionOverUnion(), fold_numbers(examples), **options
    )


@pytest.mark.parametrize("loss", [IntersectionOverUnion(), LogLikelihood([1.0, 2.0, 0.5])])
@pytest.mark.parametrize("form", FORMS[1:])
def test_gradient_of_the_loss_by_a_recalibration(form, loss):
    fit = _Fit(pixels(), GIVEN, loss, form)
    n = fit._free.sum()
    at = 0.1 * np.random.default_rng(1).normal(size=n)
    found = fit._value_and_gradient(at)[1]
    expected = central_differences(lambda x: fit._value_and_gradient(x)[0], at)
    np.testing.assert_allclose(found, expected, atol=1e-8)


@pytest.mark.parametrize(("form", "changes"), [
    ("temperature", "the same factor"), ("scale", "diagonal and constant"),
    ("matrix", "costs and constant"), ("context", "all"),
])
def test_what_a_form_changes(form, changes):
    fit = _Fit(pixels(), GIVEN, IntersectionOverUnion(), form)
    fit.descend(1e-6, 20)
    change = fit.matrix - GIVEN.recalibration
    diagonal, constant = np.diag(change[:, :N_LABELS]), change[:, -1]
    rest = change[:, :N_LABELS] - np.diag(diagonal)
    seen = change[:, N_LABELS:-1]
    assert np.ptp(diagonal) == pytest.approx(0, abs=1e-12) or changes != "the same factor"
    assert diagonal.any()
    assert constant.any() == (changes != "the same factor")
    assert rest.any() == (changes in ("costs and constant", "all"))
    assert seen.any() == (changes == "all")


def test_a_strong_ridge_keeps_the_costs_and_a_weak_one_lowers_the_loss():
    fit = _Fit(pixels(), GIVEN, IntersectionOverUnion(), "matrix")
    start = fit._value_and_gradient(np.zeros(fit._free.sum()))[0]
    fit.descend(1e6, 20)
    assert np.abs(fit.matrix - GIVEN.recalibration).max() < 1e-6
    losses = []
    for l2 in (1e-2, 1e-4, 1e-6):
        fit.descend(l2, 30)
        losses.append(fit._value_and_gradient((fit.matrix - GIVEN.recalibration)[fit._free])[0])
    assert start > losses[0] > losses[1] > losses[2]


def test_the_descent_ends_at_a_minimum_of_loss_and_ridge():
    fit, l2 = _Fit(pixels(), GIVEN, LogLikelihood(), "matrix"), 1e-4
    decay = l2 / fit._scale**2
    before = fit._value_and_gradient(np.zeros(fit._free.sum()))[1]
    fit.descend(l2, 100)
    change = (fit.matrix - GIVEN.recalibration)[fit._free]
    after = fit._value_and_gradient(change)[1] + 2 * decay * change
    assert np.abs(change).max() > 0.05
    assert np.linalg.norm(fit._scale * after) < 1e-3 * np.linalg.norm(fit._scale * before)


@pytest.mark.parametrize(("distort", "forms"), [
    (lambda costs, rng: costs, ("none", "temperature", "scale")),
    (lambda costs, rng: costs * [0.5, 1, 1] + [1.0, 0, 0], ("scale",)),
    (lambda costs, rng: costs @ [[1, 0, 0.9], [0.9, 1, 0], [0, 0.9, 1]], ("matrix", "context")),
], ids=["as it is", "one label off", "labels mixed"])
def test_the_form_is_one_that_mends_the_classifier(distort, forms):
    examples, others = images(12, distort), images(12, distort, seed=1)
    found = chosen(examples)
    assert found.form in forms, list(zip(found.choice.options, found.choice.scores, strict=True))
    before, after = score(DenseCRF(N_LABELS), others), score(found.learned_from(range(12)), others)
    assert after >= before - 0.01
    if forms[0] != "none":
        assert after > before + 0.05


def test_labels_of_noise_leave_the_classifier_alone():
    rng = np.random.default_rng(0)
    noise = [e._replace(truth=rng.integers(0, N_LABELS, e.truth.shape)) for e in images(
        9, lambda costs, rng: costs
    )]
    model = chosen(noise).learned_from(range(9))
    change = 0.0 if model.recalibration is None else np.abs(
        model.recalibration[:, :N_LABELS] - np.eye(N_LABELS)
    ).max()
    assert change < 0.9


def test_a_fold_knows_nothing_of_the_other_images():
    examples = images(9, lambda costs, rng: costs * [0.3, 1, 1])
    inside = [0, 2, 3, 5, 7]
    changed = [
        e if k in inside else e._replace(truth=(e.truth + 1) % N_LABELS)
        for k, e in enumerate(examples)
    ]
    one, other = (
        chosen(some, forms=("matrix",)) for some in (examples, changed)
    )
    # The strength is chosen on all; from there on only these count.
    weakest = min(one.l2, other.l2)
    matrices = [
        type(r)(r.given, r.pixels, r.loss, r.form, weakest, r.choice).learned_from(inside)
        for r in (one, other)
    ]
    assert np.array_equal(matrices[0].recalibration, matrices[1].recalibration)


def test_cross_fitted_costs_are_those_of_the_other_folds():
    examples = images(9, lambda costs, rng: costs * [0.5, 1, 1])
    folds = fold_numbers(examples)
    recalibration = choose_recalibration(
        N_LABELS, examples, IntersectionOverUnion(), folds, ("context",)
    )
    crossed = CrossFitted(recalibration, examples, folds)
    assert len(crossed) == 9
    model = recalibration.learned_from(np.flatnonzero(folds != folds[4]).tolist())
    found = model.infer(examples[4].image, examples[4].unary)  # without terms, softmax(-costs)
    q = np.exp(-crossed[4].unary)
    np.testing.assert_allclose(q / q.sum(-1, keepdims=True), found.marginals, atol=1e-6)
    assert crossed[4].truth is examples[4].truth


def test_context_is_what_all_images_have():
    examples = images(6, lambda costs, rng: costs)
    model = chosen(examples, forms=("context",)).learned_from(range(6))
    assert model.context == CONTEXTS
    gray = [examples[0]._replace(image=None), *examples[1:]]
    model = chosen(gray, forms=("context",), contexts=("position", "color")).learned_from(range(6))
    assert model.context == ("position",)
    assert chosen(gray, contexts=("color",)).choice.options[-1].startswith("matrix")


def test_pixels_without_a_label_do_not_count():
    examples = images(8, lambda costs, rng: costs * [0.3, 1, 1])
    part = [e._replace(truth=np.where(np.arange(14) < 7, e.truth, 255)) for e in examples]
    left = [
        TrainingImage(e.image[:, :7], e.unary[:, :7], e.truth[:, :7]) for e in examples
    ]
    forms = ("none", "scale")  # which look at nothing beyond the pixel
    a, b = (chosen(some, forms=forms).learned_from(range(8)) for some in (part, left))
    np.testing.assert_allclose(a.recalibration, b.recalibration, atol=1e-5)


def test_the_start_goes_with_the_recalibration():
    examples = images(9, lambda costs, rng: costs * [0.3, 1, 1])
    loss = make_loss("iou", examples, N_LABELS)
    told = []
    start = choose_start(
        N_LABELS, examples, loss, family="potts", told=lambda *words: told.append(words)
    )
    assert told[0] == ("recalibration", 0, len(FORMS))
    rest = chosen(examples[:8])  # less than three images per label: no context
    assert not any(option.startswith("context") for option in rest.choice.options)
    assert told[-1] == ("pairwise terms", 0, 1)
    model = start.learned_from(range(9))
    assert all(isinstance(term.compatibility, Potts) for term in model.terms)
    assert model.recalibration is not None
    learned = learn(start, examples, loss=loss, learn=("unary", "compatibility"), max_iter=1)
    assert [choice.what for choice in learned.report.choices] == [
        "recalibration", "ridge for one image",
    ]
    assert learned.report.losses[-1] <= learned.report.losses[0]
    few = choose_start(N_LABELS, examples[:5], loss)
    assert few.learned_from(range(5)).recalibration is None
    assert "each of forms must be" in refusal(
        choose_start, N_LABELS, examples, loss, forms=("full",)
    )
    gray = [e._replace(image=None) for e in examples]
    assert chosen(gray, forms=("context",), contexts=("color",)).form == "none"
    nothing = refusal(choose_start, N_LABELS, [], loss)
    assert "at least one image" in nothing
