"""Learning: the objective's gradient by every parameter, recovery of a known model, resumption."""

from types import SimpleNamespace

import numpy as np
import pytest

from crfield import Bilateral, DenseCRF, Diagonal, Inference, Pairwise, Potts, Spatial, Symmetric
from crfield._core import resources
from crfield.estimators import DenseCRFClassifier, TrainingImage
from crfield.learning import (
    LEARNABLE,
    DatasetObjective,
    Parameters,
    approximate_likelihood,
    generative_kernel,
    grid_search,
    learn,
    make_loss,
    starting_model,
)
from crfield.learning.learner import LOSSES, _has_settled
from crfield.learning.losses import ExpectedHamming, RobustLogLikelihood
from crfield.learning.objective import fingerprint, settle, unroll
from reference import central_differences
from refusal import refusal
from small_dataset import sampled_images

pytest.importorskip("scipy")


def images(n, seed=0, size=(5, 6), n_labels=3):
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        truth = rng.integers(0, n_labels, size)
        truth[0, 0] = 255
        image, unary = rng.uniform(0, 255, (*size, 3)), rng.normal(size=(*size, n_labels))
        made.append(TrainingImage(image, unary, truth))
    return made


def full_model(n_labels=3):
    rng = np.random.default_rng(7)
    root = rng.normal(size=(n_labels, n_labels))
    cov = rng.normal(size=(5, 5))
    return DenseCRF(n_labels, [
        Pairwise(Spatial(1.5), Potts(0.7), weight=1.3),
        Pairwise(Bilateral([2.0, 3.0], 60.0), Symmetric(0.2 - 0.5 * root @ root.T)),
        Pairwise(Bilateral(covariance=100 * (cov @ cov.T) + 300 * np.eye(5)),
                 Diagonal([0.3, 0.6, 0.9])),
    ])


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["concave", "cccp", "parallel"])
@pytest.mark.parametrize("loss", LOSSES)
def test_gradient_of_the_objective_by_every_parameter(algorithm, loss):
    examples = images(2)
    parameters = Parameters(full_model(), LEARNABLE)
    objective = DatasetObjective(
        parameters, examples, make_loss(loss, examples, 3),
        Inference(algorithm, "exact", max_iter=3),
        l2={name: 0.01 * (k + 1) for k, name in enumerate((*LEARNABLE, "off_diagonal"))},
    )
    rng = np.random.default_rng(1)
    x = parameters.start + 0.1 * rng.normal(size=parameters.start.shape)
    found = objective(x).gradient
    expected = central_differences(lambda moved: objective(moved).value, x)
    assert found == pytest.approx(expected, rel=2e-5, abs=2e-8)


@pytest.mark.slow
@pytest.mark.parametrize("spare", [0.0, 1.0, 1e12])
def test_states_that_wait_for_the_totals_change_nothing(monkeypatch, spare):
    """IoU needs all images before any gradient; what is kept meanwhile depends on the memory."""
    examples = images(4, size=(50, 45))  # large enough for the fused form
    parameters = Parameters(full_model(), LEARNABLE)
    loss = make_loss("iou", examples, 3)
    inference = Inference("concave", "lattice", max_iter=3, threads=1)
    wanted = DatasetObjective(parameters, examples, loss, inference, n_jobs=2)
    alone = DatasetObjective(parameters, examples, loss, inference)
    point = wanted(parameters.start)
    monkeypatch.setattr("crfield.learning.objective.available_memory", lambda: spare)
    kept = []
    monkeypatch.setattr(
        "crfield.learning.objective.unroll",
        lambda *given, **options: kept.append(options["keep_states"]) or unroll(*given, **options),
    )
    ours = alone(parameters.start, [0, 1, 2, 3, 1])
    assert kept[:5] == {0.0: [False] * 5, 1.0: [True] + [False] * 4}.get(
        spare, [True, True, True, True, False]
    )
    ours = alone(parameters.start)
    assert ours.value == point.value
    assert np.array_equal(ours.gradient, point.gradient)
    assert np.array_equal(ours.confusion, point.confusion)


@pytest.mark.parametrize("loss", LOSSES)
def test_a_mini_batch_is_a_set_of_its_own(loss):
    """Value and gradient are means over the chosen images, whatever the others are."""
    examples = images(4)
    parameters = Parameters(DenseCRF(3, [Pairwise(Spatial(1.5), Potts(1.0))]), ("compatibility",))
    weighted, inference = make_loss(loss, examples, 3), Inference("concave", "exact", max_iter=2)
    found = DatasetObjective(parameters, examples, weighted, inference)(parameters.start, [2, 0])
    wanted = DatasetObjective(
        parameters, [examples[2], examples[0]], weighted, inference
    )(parameters.start)
    assert found.value == wanted.value
    assert np.array_equal(found.gradient, wanted.gradient)
    assert np.array_equal(found.confusion, wanted.confusion)


def test_gradient_goes_through_the_projection():
    """At a mu that violates the guarantee, model and gradient use its projection."""
    examples = images(2)
    indefinite = Symmetric([[0.3, -0.5, 0.1], [-0.5, 0.1, 0.4], [0.1, 0.4, -0.6]])
    assert not indefinite.is_concave(3)
    parameters = Parameters(DenseCRF(3, [Pairwise(Spatial(2), indefinite)]), ("compatibility",))
    assert parameters.build(parameters.start).terms[0].compatibility.is_concave(3)
    objective = DatasetObjective(
        parameters, examples, make_loss("robust", examples, 3),
        Inference("concave", "exact", max_iter=3),
    )
    found = objective(parameters.start).gradient
    expected = central_differences(lambda x: objective(x).value, parameters.start)
    assert found == pytest.approx(expected, rel=1e-5, abs=1e-8)


def test_vector_and_model_are_each_others_inverse():
    model = full_model()
    parameters = Parameters(model, LEARNABLE, project=False)
    built = parameters.build(parameters.start)
    for a, b in zip(model.terms, built.terms, strict=True):
        assert np.allclose(a.compatibility.matrix(3), b.compatibility.matrix(3))
        for name in a.kernel.array_fields:
            if getattr(a.kernel, name) is not None:
                assert np.allclose(getattr(a.kernel, name), getattr(b.kernel, name))
    again = Parameters(built, LEARNABLE, project=False)
    assert [term.weight for term in built.terms] == pytest.approx([1.3, 1.0, 1.0])
    assert np.allclose(again.start, parameters.start)


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_learning_from_a_wrong_start_is_as_good_as_the_truth(loss):
    inference = Inference("concave", "exact", max_iter=3)
    true = DenseCRF(3, [Pairwise(Spatial(2.0), Potts(1.0)), Pairwise(Bilateral(6, 40), Potts(3.0))])
    wrong = DenseCRF(3, [Pairwise(Spatial(1), Potts(0.2)), Pairwise(Bilateral(2, 90), Potts(0.5))])
    examples = sampled_images(true, inference)
    objective = make_loss(loss, examples, 3)
    learned = ("compatibility", "kernel")
    reference = DatasetObjective(Parameters(true, learned), examples, objective, inference)
    best = reference(reference.parameters.start).loss
    off = DatasetObjective(Parameters(wrong, learned), examples, objective, inference)
    assert off(off.parameters.start).loss > 1.01 * best
    result = learn(
        wrong, examples, loss=objective, learn=("compatibility", "kernel"), inference=inference,
        max_iter=60, l2=dict.fromkeys(("unary", "compatibility", "off_diagonal", "kernel"), 0.0),
    )
    assert result.report.losses[result.report.best_iteration] <= 1.01 * best
    assert (result.model.algorithm, result.model.max_iter) == ("concave", 3)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["cg", "lbfgs", "adam", "sgd"])
def test_every_optimizer_lowers_the_loss_and_resumes_bit_for_bit(optimizer, tmp_path):
    inference = Inference("concave", "exact", max_iter=2)
    true = DenseCRF(3, [Pairwise(Bilateral(6, 40), Potts(3.0))])
    start = DenseCRF(3, [Pairwise(Bilateral(3, 80), Potts(0.5))])
    examples = sampled_images(true, inference, n=3, size=(10, 12))

    def run(checkpoint=None, resume=False, max_iter=6):
        return learn(
            start, examples, loss="hamming", learn=("unary", "compatibility", "kernel"),
            inference=inference, optimizer=optimizer,
            max_iter=max_iter, batch_size=2, step_size=0.05, checkpoint=checkpoint, resume=resume,
        )

    whole = run()
    assert min(whole.report.losses) < whole.report.losses[0]
    path = tmp_path / "checkpoint"
    run(path, max_iter=3)
    complete = path.read_bytes()
    path.write_bytes(complete[: len(complete) - 5])  # killed while writing a record
    resumed = run(path, resume=True)
    for a, b in zip(whole.model.terms, resumed.model.terms, strict=True):
        assert a.compatibility.weight == b.compatibility.weight
        assert a.kernel.sigma_xy == b.kernel.sigma_xy
    assert np.array_equal(whole.model.recalibration, resumed.model.recalibration)
    assert whole.report.losses == resumed.report.losses


def test_a_step_beyond_all_numbers_is_refused():
    message = refusal(
        learn, DenseCRF(3, [Pairwise(Spatial(2), Potts(1.0))]), images(2), loss="hamming",
        optimizer="adam", step_size=1e29, max_iter=1,
    )
    assert "lower step_size" in message


@pytest.mark.parametrize(("change", "words"), [
    ({"learn": ("compatibility",)}, "other learn"),
    ({"examples": images(2, seed=1)}, "other data"),
    ({"examples": images(2, size=(6, 5))}, "other data"),  # the same numbers on another grid
    ({"validation": images(1, seed=4)}, "other validation"),
    ({"validation": images(1, seed=3)[:1] * 2}, "other validation"),
    ({"validation": None}, "other validation"),
    ({"model": DenseCRF(3, [Pairwise(Spatial(2), Potts(2))])}, "other start"),  # fixed, but used
    ({"loss": RobustLogLikelihood(eps=0.2)}, "other loss.eps"),
    ({"loss": RobustLogLikelihood([1.0, 1.0, 2.0])}, "other loss.weights"),
    ({"l2": {"unary": 3.0}}, "other l2"),
])
def test_a_checkpoint_of_something_else_is_refused(tmp_path, change, words):
    options = {
        "model": DenseCRF(3, [Pairwise(Spatial(2), Potts(1))]), "examples": images(2),
        "learn": ("unary",), "max_iter": 1, "checkpoint": tmp_path / "checkpoint",
        "loss": RobustLogLikelihood(), "validation": images(1, seed=3),
    }
    learn(**options)
    learn(**options)  # the same run is taken up again
    message = refusal(learn, **options | change)
    assert "belongs to another run" in message
    assert words in message
    learn(**options | change, resume=False)


def test_other_data_are_told_apart():
    one, other = images(2), images(2, seed=1)
    assert fingerprint(one) == fingerprint(images(2)) != fingerprint(one[::-1])
    for name in ("image", "unary", "truth"):
        changed = one[1]._replace(**{name: getattr(other[1], name)})
        assert fingerprint([one[0], changed]) != fingerprint(one), name


@pytest.mark.parametrize("loss", ["iou", "robust"])
def test_what_is_learned_does_not_depend_on_the_number_of_jobs(loss, monkeypatch):
    """Sums are rounded in an order that the threads of a job decide; jobs must not decide those."""
    monkeypatch.setattr("crfield._core.resources.usable_cores", lambda: 4)
    examples = [
        each._replace(unary=each.unary.astype(np.float32)) for each in images(4, size=(50, 45))
    ]
    held_out = examples.pop()
    found = []
    for n_jobs in (1, 2, 3):
        start = starting_model(
            3, examples, make_loss(loss, examples, 3), family="potts", n_jobs=n_jobs
        )
        learned = learn(
            start, examples, loss=loss, learn=("unary", "compatibility", "kernel"), max_iter=1,
            validation=[held_out], n_jobs=n_jobs,
        )
        guess = approximate_likelihood(start, examples, max_iter=1, n_jobs=n_jobs)
        vectors = [
            Parameters(model, ("unary", "compatibility", "kernel")).start.tolist()
            for model in (start, learned.model, guess.model)
        ]
        report = learned.report
        found.append((vectors, report.losses, report.gradient_norms, report.validation_ious))
    assert found[0] == found[1] == found[2]
    assert found[0][1][0] != found[0][1][-1], "something was learned"


def test_validation_keeps_the_best_iterate():
    inference = Inference("concave", "exact", max_iter=2)
    examples = images(3, n_labels=2)  # labels are noise: there is nothing to learn
    held_out = images(3, seed=9, n_labels=2)
    model = DenseCRF(2, [Pairwise(Spatial(2), Potts(1))])
    result = learn(
        model, examples, loss="robust", learn=("unary", "compatibility"), inference=inference,
        max_iter=40, patience=3, validation=held_out,
    )
    scores = result.report.validation_ious
    assert result.report.best_iteration == int(np.argmax(scores))
    assert len(scores) <= result.report.best_iteration + 4


def test_wrong_requests_are_refused():
    examples = images(1)
    model = DenseCRF(3, [Pairwise(Spatial(1, shape="tent"), Potts(1))])
    assert "only Gaussian kernels" in refusal(learn, model, examples)
    assert "learn must name some of" in refusal(Parameters, full_model(), np.array("x"))
    assert "learn must name some of" in refusal(learn, model, examples, learn=("everything",))
    assert "at least one image" in refusal(learn, DenseCRF(3), [], loss="iou", learn=("unary",))
    zero = DenseCRF(3, [Pairwise(Spatial(1), Potts(0))])
    assert "must start above 0" in refusal(learn, zero, examples, learn=("compatibility",))
    assert "term to learn" in refusal(learn, DenseCRF(3), examples, learn=("compatibility",))
    message = refusal(learn, DenseCRF(3), examples, learn=("unary",), l2={"mu": 1.0})
    assert "l2 must name some of" in message
    assert "(*grid, 4)" in refusal(learn, DenseCRF(4), examples, learn=("unary",))
    assert "sequential" in refusal(learn, DenseCRF(3), examples, inference=Inference("sequential"))
    for n_jobs in (0, 10**6, 1.5):
        assert refusal(learn, DenseCRF(3), examples, learn=("unary",), n_jobs=n_jobs).startswith(
            "n_jobs must "
        )


@pytest.mark.parametrize("call", [
    learn, approximate_likelihood,
    lambda start, examples, l2: DatasetObjective(
        Parameters(start, LEARNABLE), examples, ExpectedHamming(), l2=l2
    ),
    lambda start, examples, l2: DenseCRFClassifier(l2=l2, input="costs").fit(
        [(each.image, each.unary) for each in examples], [each.truth for each in examples]
    ),
])
def test_a_ridge_that_pushes_away_is_refused(call):
    start, examples = DenseCRF(3, [Pairwise(Spatial(1), Potts(1))]), images(1)
    for bad, words in (
        ({"compatibility": -1e-9}, "l2 of compatibility must not be negative, got -1e-09"),
        ({"off_diagonal": -1}, "l2 of off_diagonal must not be negative"),
        ({"compatibility": np.nan}, "l2 of compatibility must be finite"),
        ({"compatibility": "1"}, "l2 of compatibility must be a number"),
    ):
        assert words in refusal(call, start, examples, l2=bad)


@pytest.mark.parametrize("call", [
    lambda examples: learn(full_model(), examples),
    lambda examples: learn(full_model(), images(1), validation=examples),
    lambda examples: approximate_likelihood(full_model(), examples),
    lambda examples: grid_search([full_model()], examples),
    lambda examples: generative_kernel(full_model(), examples),
    lambda examples: starting_model(3, examples, ExpectedHamming()),
    lambda examples: make_loss("hamming", examples, 3),
    lambda examples: DatasetObjective(
        Parameters(full_model(), LEARNABLE), examples, ExpectedHamming()
    ),
])
def test_examples_are_a_sequence_of_at_least_one(call):
    for bad, words in (
        ((each for each in images(1)), "visited many times, got a generator"),
        (images(1)[0], "got a TrainingImage"),
        ([], "at least one image"),
    ):
        message = refusal(call, bad)
        assert message.startswith(("examples must", "validation must"))
        assert words in message


@pytest.mark.parametrize("loss", [*LOSSES, *(kind() for kind in LOSSES.values())])
def test_images_without_a_label_are_refused(loss):
    unlabeled = [each._replace(truth=np.full(each.truth.shape, 255)) for each in images(2)]
    message = refusal(learn, full_model(), unlabeled, loss=loss)
    assert "examples must have labeled pixels, got only void ones" in message
    message = refusal(learn, full_model(), images(2), validation=unlabeled)
    assert "validation must have labeled pixels" in message
    some = [*unlabeled, *images(1)]
    assert np.isfinite(learn(full_model(), some, loss=loss, max_iter=1).report.losses).all()


def test_the_ridge_pulls_to_the_prior():
    examples = images(2)
    start = DenseCRF(3, [Pairwise(Spatial(1.5), Potts(2.0))])
    prior = DenseCRF(3, [Pairwise(Spatial(1.5), Potts(0.5))])
    learned = learn(
        start, examples, learn=("compatibility",), prior=prior, l2={"compatibility": 1e6}, tol=0.0,
        max_iter=40, inference=Inference("concave", "exact", max_iter=2),
    )
    assert learned.model.terms[0].compatibility.weight == pytest.approx(0.5, rel=1e-3)
    other = DenseCRF(3, [Pairwise(Spatial(1), Diagonal([1, 1, 1]))])
    message = refusal(learn, start, examples, learn=("compatibility",), prior=other)
    assert "prior must have the form" in message


def test_entries_off_the_diagonal_have_the_ridge_of_all_unless_they_have_their_own():
    model = DenseCRF(2, [Pairwise(Spatial(1), Symmetric([[-1.0, 0.5], [0.5, -2.0]]))])
    parameters = Parameters(model, ("compatibility",))
    for l2, expected in (
        ({"compatibility": 0.5}, [0.5, 0.5, 0.5]), ({"off_diagonal": 0.1}, [0, 0.1, 0]),
        ({"compatibility": 0.5, "off_diagonal": 0.1}, [0.5, 0.1, 0.5]), ({}, [0, 0, 0]),
    ):
        np.testing.assert_allclose(parameters.decay(l2) * parameters.scale**2, expected)


def test_how_to_infer_is_what_the_caller_says_then_the_model_then_a_default():
    model = DenseCRF(2, algorithm="cccp", max_iter=7)
    for given, crf, expected in (
        (Inference("parallel", max_iter=3), model, ("parallel", 3)), (None, model, ("cccp", 7)),
        (Inference(max_iter=0), model, ("cccp", 0)), (None, DenseCRF(2), ("concave", 5)),
    ):
        found = settle(given, crf)
        assert (found.algorithm, found.max_iter) == expected


def test_a_learned_model_knows_the_size_of_its_images():
    examples = [*images(2, size=(6, 9)), *images(2, size=(8, 8))]
    learned = learn(full_model(), examples, max_iter=1)
    assert learned.model.size == pytest.approx((9 + 8) / 2)
    again = learn(learned.model, images(1, size=(3, 3)), max_iter=0)
    assert again.model.size == learned.model.size  # whose widths it has


def test_learning_stops_when_it_has_settled_and_keeps_no_memory():
    model = DenseCRF(3, [Pairwise(Spatial(1.5), Potts(1.0))])
    options = {"learn": ("compatibility",), "optimizer": "adam", "max_iter": 12, "patience": 3}
    early = learn(model, images(2), tol=0.9, **options)
    assert len(early.report.losses) == 4  # the start and `patience` iterations
    assert early.report.stopped == "the last 3 iterations gained less than 90 %"
    whole = learn(model, images(2), tol=0.0, **options)
    assert len(whole.report.losses) == 13
    assert whole.report.stopped == "max_iter was reached"
    assert not resources._idle_arenas


@pytest.mark.parametrize(("values", "settled"), [
    ([9.0, 8.0, 7.9], True), ([9.0, 8.0, 7.0], False),
    ([9.0, 5.0, 9.0, 8.0, 7.0], True),  # it falls, but was lower before
    ([9.0, 5.0, 9.0, 4.0, 8.0], False), ([9.0, 9.0], False),
    ([-5.0, -5.0, -5.1], True), ([-5.0, -5.0, -6.0], False),
])
def test_settled_is_what_gains_little_over_the_least_value_before(values, settled):
    assert _has_settled(values, 0.15, 2) == settled
    assert not _has_settled(values, 0.0, 2)


def test_spacing_of_examples_scales_their_positions():
    """Widths in units of the spacing give the loss and gradient of widths in voxels."""
    rng = np.random.default_rng(3)
    spacing = np.array([3.0, 1.0, 0.5])
    image, truth = rng.uniform(0, 255, (4, 6, 5)), rng.integers(0, 2, (4, 6, 5))
    unary = rng.normal(size=(4, 6, 5, 2))
    points, sums = [], []
    for unit, given in ((spacing, None), (np.ones(3), spacing)):
        model = DenseCRF(2, [
            Pairwise(Bilateral(np.full(3, 2.0) / unit, [40.0]), Potts(1.5)),
            Pairwise(Spatial(np.full(3, 1.5) / unit), Potts(0.7)),
        ])
        examples = [SimpleNamespace(image=image, truth=truth, unary=unary, spacing=given)]
        parameters = Parameters(model, ("compatibility", "kernel"))
        loss = make_loss("log_likelihood", examples, 2)
        inference = Inference("concave", "exact", max_iter=3)
        objective = DatasetObjective(parameters, examples, loss, inference)
        points.append(objective(parameters.start))
        sums.append(fingerprint(examples))
    assert points[0].value == pytest.approx(points[1].value, rel=1e-9)
    assert points[0].gradient == pytest.approx(points[1].gradient, rel=1e-6, abs=1e-9)
    assert sums[0] != sums[1]
