"""Learning: the objective's gradient by every parameter, recovery of a known model, resumption."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from crfield import (
    Bilateral,
    DenseCRF,
    Diagonal,
    FeatureKernel,
    Inference,
    InputError,
    Pairwise,
    Potts,
    Spatial,
    Symmetric,
)
from crfield._core import resources
from crfield.estimators import TrainingImage
from crfield.learning import (
    LEARNABLE,
    DatasetObjective,
    Parameters,
    learn,
    make_loss,
)
from crfield.learning.learner import LOSSES, _has_settled
from crfield.learning.objective import fingerprint, unroll
from refusal import refusal

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
        l2={"unary": 0.01, "compatibility": 0.02, "off_diagonal": 0.03, "kernel": 0.04,
            "weight": 0.05},
    )
    rng = np.random.default_rng(1)
    x = parameters.start + 0.1 * rng.normal(size=parameters.start.shape)
    found = objective(x).gradient
    for i in range(len(x)):
        step = np.zeros_like(x)
        step[i] = 1e-6
        numeric = (objective(x + step).value - objective(x - step).value) / 2e-6
        assert found[i] == pytest.approx(numeric, rel=2e-5, abs=2e-8), i


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
    for i in range(len(found)):
        step = np.zeros_like(found)
        step[i] = 1e-6
        above, below = objective(parameters.start + step), objective(parameters.start - step)
        assert found[i] == pytest.approx((above.value - below.value) / 2e-6, rel=1e-5, abs=1e-8)


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


def sampled(true, inference, n=6, seed=3, size=(18, 20)):
    """Images whose labels are drawn from the marginals of a known model."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        base = rng.uniform(0, 255, (3, 3, 3))
        image = np.kron(base, np.ones((6, 7, 1)))[: size[0], : size[1]]
        image = image + rng.normal(0, 6, (*size, 3))
        unary = rng.normal(size=(*size, true.n_labels)) * 1.5
        q = true.infer(
            image, unary, algorithm=inference.algorithm, filter=inference.filter,
            max_iter=inference.max_iter, tol=0.0,
        ).marginals
        chance = rng.random((*size, 1))
        made.append(TrainingImage(image, unary, (q.cumsum(-1) < chance).sum(-1)))
    return made


@pytest.mark.slow
@pytest.mark.parametrize("loss", LOSSES)
def test_learning_from_a_wrong_start_is_as_good_as_the_truth(loss):
    inference = Inference("concave", "exact", max_iter=3)
    true = DenseCRF(3, [Pairwise(Spatial(2.0), Potts(1.0)), Pairwise(Bilateral(6, 40), Potts(3.0))])
    wrong = DenseCRF(3, [Pairwise(Spatial(1), Potts(0.2)), Pairwise(Bilateral(2, 90), Potts(0.5))])
    examples = sampled(true, inference)
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
    examples = sampled(true, inference, n=3, size=(10, 12))

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


@pytest.mark.parametrize(("seed", "change"), [
    (0, {"learn": ("kernel",), "resume": True}), (1, {}),
], ids=["another run", "other images"])
def test_a_checkpoint_of_something_else_is_refused(tmp_path, seed, change):
    model = DenseCRF(3, [Pairwise(Spatial(2), Potts(1))])
    options = {"learn": ("compatibility",), "max_iter": 1, "checkpoint": tmp_path / "checkpoint"}
    learn(model, images(2), **options)
    with pytest.raises(InputError, match="belongs to another run"):
        learn(model, images(2, seed=seed), **{**options, **change})


def test_validation_keeps_the_best_iterate():
    inference = Inference("concave", "exact", max_iter=2)
    examples = images(3, n_labels=2)  # labels are noise: there is nothing to learn
    held_out = images(3, seed=9, n_labels=2)
    model = DenseCRF(2, [Pairwise(Spatial(2), Potts(1))])
    result = learn(
        model, examples, loss="robust", learn=("unary", "compatibility"), inference=inference,
        max_iter=40, patience=3,
        validation=held_out,
    )
    scores = result.report.validation_ious
    assert result.report.best_iteration == int(np.argmax(scores))
    assert len(scores) <= result.report.best_iteration + 4


def test_wrong_requests_are_refused():
    examples = images(1)
    model = DenseCRF(3, [Pairwise(FeatureKernel("f", 1, shape="tent"), Potts(1))])
    assert "only Gaussian kernels" in refusal(learn, model, examples)
    assert "learn must name some of" in refusal(Parameters, full_model(), np.array("x"))
    assert "learn must name some of" in refusal(learn, model, examples, learn=("everything",))
    assert "at least one image" in refusal(learn, DenseCRF(3), [], loss="iou", learn=("unary",))
    with pytest.raises(InputError, match="must start above 0"):
        learn(DenseCRF(3, [Pairwise(Spatial(1), Potts(0))]), examples, learn=("compatibility",))
    with pytest.raises(InputError, match="a pairwise term to learn"):
        learn(DenseCRF(3), examples, learn=("compatibility",))
    with pytest.raises(InputError, match="l2 must name some of"):
        learn(DenseCRF(3), examples, learn=("unary",), l2={"mu": 1.0})
    assert "(*grid, 4)" in refusal(learn, DenseCRF(4), examples, learn=("unary",))
    assert "sequential" in refusal(learn, DenseCRF(3), examples, inference=Inference("sequential"))


def test_the_ridge_pulls_to_the_prior():
    examples = images(2)
    start = DenseCRF(3, [Pairwise(Spatial(1.5), Potts(2.0))])
    prior = DenseCRF(3, [Pairwise(Spatial(1.5), Potts(0.5))])
    learned = learn(
        start, examples, learn=("compatibility",), prior=prior, l2={"compatibility": 1e6}, tol=0.0,
        max_iter=40,
        inference=Inference("concave", "exact", max_iter=2),
    )
    assert learned.model.terms[0].compatibility.weight == pytest.approx(0.5, rel=1e-3)
    with pytest.raises(InputError, match="prior must have the form"):
        learn(start, examples, learn=("compatibility",),
              prior=DenseCRF(3, [Pairwise(Spatial(1), Diagonal([1, 1, 1]))]))


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
