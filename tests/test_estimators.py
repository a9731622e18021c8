"""The scikit-learn style estimator: learning, prediction, parameters, and scikit-learn itself."""

import subprocess
import sys

import numpy as np
import pytest

from crfield import Inference, unary_from_probabilities
from crfield.datasets import synthetic_scenes
from crfield.estimators import DenseCRFClassifier, NotFittedError
from crfield.learning import learn
from crfield.metrics import confusion_matrix, mean_iou
from refusal import refusal

pytest.importorskip("scipy")

N_LABELS = 3
# A weak start, so that there is something to learn.
WEAK = {
    "spatial_weight": 1.0, "bilateral": (15.0, 20.0), "bilateral_weight": 1.0,
    "inference": Inference(filter="lattice", max_iter=3),
}


def scenes(n, size=(24, 32), seed=0):
    """Pairs and label maps; every other scene is narrower, so that they cannot be stacked."""
    pairs, truths = [], []
    for index, scene in enumerate(synthetic_scenes(n, size=size, n_labels=N_LABELS, seed=seed)):
        keep = np.s_[:, : size[1] - 4 * (index % 2)]
        truth = scene.mask[keep].copy()
        truth[0, 0] = 255
        pairs.append((scene.image[keep], scene.probabilities[keep]))
        truths.append(truth)
    return pairs, truths


def unlearned(**params):
    return DenseCRFClassifier(learn=(), **params)


def test_learning_improves_the_score_on_other_scenes():
    X, y = scenes(12, size=(32, 44))
    others, truths = scenes(8, size=(32, 44), seed=100)
    start = unlearned(**WEAK).fit(X, y)
    learned = DenseCRFClassifier(learn=("compatibility", "kernel"), max_iter=3, **WEAK).fit(X, y)
    assert learned.score(others, truths) > start.score(others, truths) + 0.05
    assert learned.model_.recalibration is None


@pytest.mark.parametrize("compatibility", ["potts", "diagonal", "symmetric"])
def test_every_family_is_learned_as_itself(compatibility):
    X, y = scenes(3)
    learned = DenseCRFClassifier(
        compatibility=compatibility, learn=("compatibility",), max_iter=3, **WEAK
    ).fit(X, y)
    assert learned.score(X, y) > unlearned(**WEAK).fit(X, y).score(X, y)
    for term in learned.model_.terms:
        assert term.compatibility.kind == compatibility
        assert not np.allclose(np.diff(term.compatibility.matrix(N_LABELS)[0, :2]), 1.0)


def test_groups_are_learned_as_asked():
    X, y = scenes(3)
    learn = ("unary", "compatibility", "kernel")
    crf = DenseCRFClassifier(learn=learn, max_iter=3, **WEAK).fit(X, y)
    assert crf.score(X, y) > unlearned(**WEAK).fit(X, y).score(X, y) + 0.02
    assert crf.report_.losses[-1] < crf.report_.losses[0]
    assert crf.n_labels_ == N_LABELS
    start = np.eye(N_LABELS, N_LABELS + 1)
    assert not np.allclose(crf.model_.recalibration, start)
    spatial, bilateral = crf.model_.terms
    assert spatial.compatibility.weight != 1.0
    assert bilateral.kernel.sigma_xy != 15.0
    assert DenseCRFClassifier(max_iter=1, **WEAK).fit(X, y).model_.recalibration is None


def test_every_family_starts_as_the_same_model():
    X, y = scenes(2)
    potts, *others = [
        unlearned(compatibility=family).fit(X, y).predict_proba(X)
        for family in ("potts", "diagonal", "symmetric")
    ]
    for other in others:
        for a, b in zip(potts, other, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-4)


def test_predictions_are_the_model_s_marginals_and_their_labels():
    X, y = scenes(2)
    crf = unlearned(inference=Inference(max_iter=3)).fit(X, y)
    labels, marginals = crf.predict(X), crf.predict_proba(X)
    for (image, probabilities), found, q in zip(X, labels, marginals, strict=True):
        expected = crf.model_.infer(
            image, unary_from_probabilities(probabilities), max_iter=3, tol=0.0
        )
        assert np.array_equal(q, expected.marginals)
        assert np.array_equal(found, expected.labels)
    assert list(crf.classes_) == list(range(N_LABELS))


def test_the_report_ends_with_what_prediction_finds():
    """Learning and prediction infer alike: the mean IoU of the best iterate is the score."""
    X, y = scenes(3)
    crf = DenseCRFClassifier(max_iter=3, **WEAK).fit(X, y)
    assert crf.score(X, y) == pytest.approx(crf.report_.mean_ious[crf.report_.best_iteration])


def test_the_score_counts_all_images_together_and_leaves_out_void():
    X, y = scenes(2)
    crf = unlearned().fit(X, y)
    y[0][:5] = 255
    counts = sum(
        confusion_matrix(truth, found, N_LABELS)
        for truth, found in zip(y, crf.predict(X), strict=True)
    )
    assert crf.score(X, y) == mean_iou(counts)
    assert counts.sum() == sum((truth != 255).sum() for truth in y)


def test_costs_give_what_their_probabilities_give():
    X, y = scenes(1)
    costs = [(image, unary_from_probabilities(p)) for image, p in X]
    from_costs = unlearned(input="costs").fit(costs, y).predict_proba(costs)
    from_probabilities = unlearned().fit(X, y).predict_proba(X)
    assert np.array_equal(from_costs[0], from_probabilities[0])


def test_images_may_be_missing_when_no_term_looks_at_them():
    X, y = scenes(1)
    blind = [(None, probabilities) for _, probabilities in X]
    assert unlearned(bilateral=None).fit(blind, y).predict(blind)[0].shape == y[0].shape
    message = refusal(unlearned().fit(X, y).predict, blind)
    assert message.startswith("X[0]: image must be given")


def test_held_out_images_choose_the_iterate_and_depend_on_the_seed_alone():
    X, y = scenes(4)
    options = {**WEAK, "max_iter": 3, "learn": "compatibility", "validation_fraction": 0.5}
    first, again, other = [
        DenseCRFClassifier(random_state=seed, **options).fit(X, y).report_ for seed in (0, 0, 3)
    ]
    assert len(first.validation_ious) == len(first.losses)
    assert first.best_iteration == int(np.argmax(first.validation_ious))
    assert first.losses == again.losses
    assert first.losses != other.losses


def test_one_image_at_least_is_learned_from():
    X, y = scenes(3)
    options = {**WEAK, "max_iter": 1, "learn": "compatibility"}
    crf = DenseCRFClassifier(validation_fraction=0.9, **options).fit(X, y)
    assert len(crf.report_.validation_ious) == len(crf.report_.losses) == 2


def test_the_number_of_threads_stays_open():
    """Prediction may be on another machine than learning."""
    X, y = scenes(1)
    assert unlearned(**WEAK).fit(X, y).inference_.threads is None
    given = Inference(max_iter=3, threads=1)
    assert unlearned(inference=given).fit(X, y).inference_.threads == 1


def test_nothing_learned_keeps_the_given_model():
    X, y = scenes(1)
    crf = unlearned(spatial=2.0, spatial_weight=1.5, bilateral=None).fit(X, y)
    (term,) = crf.model_.terms
    assert (term.kernel.sigma, term.compatibility.weight) == (2.0, 1.5)
    assert crf.model_.recalibration is None
    assert crf.report_.losses == []


def test_parameters_are_stored_as_given_and_set_by_name():
    groups = ["compatibility"]
    crf = DenseCRFClassifier(learn=groups, spatial=np.array([1.0, 2.0]))
    params = crf.get_params()
    assert params["learn"] is groups
    assert params["max_iter"] == 20
    assert set(params) == set(vars(crf))
    assert crf.set_params(inference=Inference(max_iter=2), loss="hamming") is crf
    assert (crf.inference.max_iter, crf.loss) == (2, "hamming")
    assert "'sigma'" in refusal(crf.set_params, sigma=1)


def test_parameters_set_after_fit_wait_for_the_next_fit():
    X, y = scenes(1)
    crf = unlearned(inference=Inference(max_iter=1)).fit(X, y)
    before = crf.predict_proba(X)[0]
    crf.set_params(inference=Inference(max_iter=4))
    assert np.array_equal(crf.predict_proba(X)[0], before)
    assert not np.array_equal(crf.fit(X, y).predict_proba(X)[0], before)


@pytest.mark.parametrize("method", ["predict", "predict_proba", "score"])
def test_prediction_before_fit_is_refused(method):
    X, y = scenes(1)
    arguments = (X, y) if method == "score" else (X,)
    assert "call fit(X, y)" in refusal(getattr(DenseCRFClassifier(), method), *arguments)
    assert issubclass(NotFittedError, AttributeError)


def test_wrong_shapes_are_refused_by_the_image_s_number():
    (first, second), (truth, other) = scenes(2)
    image, p = second
    fit = unlearned().fit
    assert "list of pairs" in refusal(fit, first, [truth])
    assert "X[0] must be a pair" in refusal(fit, np.stack([first[0]] * 2), [truth, truth])
    assert "X must be a list" in refusal(fit, {"image": image}, [truth])
    assert "at least one image" in refusal(fit, [], [])
    assert "one label map per image" in refusal(fit, [first, second], [truth])
    assert refusal(fit, [first, (image[:-1], p)], [truth, other]).startswith("X[1]: image must")
    assert "as many labels as X[0] (3)" in refusal(
        fit, [first, (image, np.full((*p.shape[:-1], 2), 0.5))], [truth, other]
    )
    assert "y[1] must have shape" in refusal(fit, [first, second], [truth, other.T])
    assert "y[1] must hold labels" in refusal(fit, [first, second], [truth, other + 1])
    assert "y[1] must hold whole numbers" in refusal(fit, [first, second], [truth, other * 1.0])
    assert "only the void label" in refusal(fit, [first], [np.full_like(truth, 255)])
    assert "labels last" in refusal(unlearned(input="costs").fit, [(None, [1.0])], [[0]])
    crf = fit([first], [truth])
    assert refusal(crf.predict, [(image, np.full((*p.shape[:-1], 2), 0.5))]).startswith("X[0]: ")


@pytest.mark.parametrize(("params", "expected"), [
    ({"input": "logits"}, "input must be one of"),
    ({"compatibility": "l1"}, "compatibility must be one of"),
    ({"learn": ("everything",)}, "learn must name some of"),
    ({"inference": Inference(max_iter=0)}, "of at least 1 iteration"),
    ({"inference": "concave"}, "inference must be an Inference"),
    ({"n_jobs": 0}, "n_jobs must be a whole number from 1 to 1024"),
    ({"random_state": "x"}, "random_state must be a whole number"),
    ({"validation_fraction": 1.0}, "validation_fraction must be"),
    ({"validation_fraction": 0.5}, "two images or more"),
    ({"bilateral": 3.0}, "bilateral must be a pair"),
    ({"loss": "dice"}, "loss must be one of"),
])
def test_wrong_parameters_are_refused_by_fit_and_not_before(params, expected):
    X, y = scenes(1)
    crf = DenseCRFClassifier(**params)
    assert expected in refusal(crf.fit, X, y)
    assert not hasattr(crf, "model_")


def test_more_labels_than_label_maps_can_tell_from_void_are_refused():
    uniform = np.full((2, 2, 256), 1 / 256)
    message = refusal(unlearned().fit, [(None, uniform)], [np.zeros((2, 2), np.uint8)])
    assert "at most 255 labels" in message


def test_warnings_say_what_to_change():
    X, y = scenes(2, size=(10, 12))
    with pytest.warns(UserWarning, match="set it to 0, or name what to learn"):
        unlearned(validation_fraction=0.5).fit(X, y)
    # A ridge of this weight holds every parameter where it is.
    held = {"unary": 1e12, "compatibility": 1e12, "kernel": 1e12}
    with pytest.warns(UserWarning, match="try another loss or optimizer"):
        DenseCRFClassifier(l2=held, max_iter=1).fit(X, y)


def test_two_jobs_learn_what_one_does(monkeypatch):
    X, y = scenes(2, size=(12, 16))
    jobs = []

    def watched(*arguments, n_jobs, **options):
        jobs.append(n_jobs)
        return learn(*arguments, n_jobs=n_jobs, **options)

    monkeypatch.setattr("crfield.estimators.learn_parameters", watched)
    one, two = [
        DenseCRFClassifier(n_jobs=n_jobs, max_iter=1, **WEAK).fit(X, y).model_
        for n_jobs in (None, 2)
    ]
    assert jobs == [1, 2]
    for a, b in zip(one.terms, two.terms, strict=True):
        assert a.compatibility.weight == pytest.approx(b.compatibility.weight, rel=1e-5)


def test_the_module_needs_no_scikit_learn():
    program = (
        "import sys; sys.modules['sklearn'] = None\n"
        "from crfield.estimators import DenseCRFClassifier\n"
        "DenseCRFClassifier().get_params()\n"
        "assert 'joblib' not in sys.modules and 'scipy' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60)


def test_clone_gives_equal_parameters_and_no_model():
    base = pytest.importorskip("sklearn.base")
    X, y = scenes(1)
    crf = unlearned(bilateral=(5.0, 6.0), l2={"unary": 0.5}, random_state=None).fit(X, y)
    copy = base.clone(crf)
    assert copy.get_params() == crf.get_params()
    assert not hasattr(copy, "model_")


def test_scikit_learn_knows_whether_it_is_fitted():
    validation = pytest.importorskip("sklearn.utils.validation")
    X, y = scenes(1)
    crf = unlearned()
    with pytest.raises(ValueError, match="not fitted"):
        validation.check_is_fitted(crf)
    validation.check_is_fitted(crf.fit(X, y))


def test_grid_search_holds_out_images_of_any_size():
    selection = pytest.importorskip("sklearn.model_selection")
    X, y = scenes(4)
    crf = unlearned(inference=Inference(max_iter=2), bilateral_weight=6.0)
    search = selection.GridSearchCV(
        crf, {"bilateral_weight": [0.01, 6.0]}, cv=2,
        error_score="raise",
    ).fit(X, y)
    assert search.best_params_ == {"bilateral_weight": 6.0}
    folds = [
        crf.fit(X[:2], y[:2]).score(X[2:], y[2:]),
        crf.fit(X[2:], y[2:]).score(X[:2], y[:2]),
    ]
    assert search.best_score_ == pytest.approx(np.mean(folds))
    assert search.predict(X)[1].shape == y[1].shape
