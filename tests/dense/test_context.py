"""A recalibration that sees more than the costs: presence of labels, position and color."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crfield import Bilateral, DenseCRF, Inference, Pairwise, Potts, Spatial
from crfield.dense.context import CONTEXTS, context_features, context_names
from crfield.dense.observation import observe
from crfield.learning import learn
from crfield.learning.losses import IntersectionOverUnion, LogLikelihood
from crfield.learning.objective import DatasetObjective
from crfield.learning.parameters import Parameters
from reference import central_differences
from refusal import refusal

GRID, L = (5, 6), 3
RNG = np.random.default_rng(0)


def scene(grid=GRID, channels=3, seed=0):
    rng = np.random.default_rng(seed)
    return SimpleNamespace(
        image=rng.integers(0, 256, (*grid, channels), dtype=np.uint8),
        unary=rng.uniform(0, 3, (*grid, L)), truth=rng.integers(0, L, grid),
    )


def pairwise_model():
    return DenseCRF(L, [Pairwise(Spatial(1.5), Potts(0.7)), Pairwise(Bilateral(3, 40), Potts(1))])


def random_model(contexts=CONTEXTS, channels=3, grid_dim=2):
    model = pairwise_model().with_context(contexts, grid_dim, channels)
    noise = 0.3 * np.random.default_rng(1).normal(size=model.recalibration.shape)
    return DenseCRF(L, model.terms, model.recalibration + noise, model.context)


def test_a_fresh_context_changes_nothing():
    example, model = scene(), pairwise_model()
    plain = model.infer(example.image, example.unary)
    wide = model.with_context().infer(example.image, example.unary)
    np.testing.assert_allclose(wide.marginals, plain.marginals, atol=1e-12)
    known = DenseCRF(L, model.terms, RNG.normal(size=(L, L + 1)))
    np.testing.assert_allclose(
        known.with_context(["color"]).infer(example.image, example.unary).marginals,
        known.infer(example.image, example.unary).marginals, atol=1e-12,
    )


@pytest.mark.parametrize("masked", [False, True])
def test_the_features_are_what_they_are_said_to_be(masked):
    example = scene()
    mask = np.random.default_rng(2).random(GRID) < 0.6 if masked else None
    observation = observe(GRID, example.image, mask=mask)
    found = context_features(CONTEXTS, example.unary, observation)
    names = context_names(CONTEXTS, ["a", "b", "c"], 2, 3)
    assert found.shape == (30, len(names)) == (30, L + 4 + 6)
    p = np.exp(-example.unary)
    p /= p.sum(-1, keepdims=True)
    inside = p.reshape(-1, L) if mask is None else p[mask]
    for i, (y, x) in enumerate(np.ndindex(GRID)):
        place = np.array([y / 4 - 0.5, x / 5 - 0.5])
        color = example.image[y, x] / 255 - 0.5
        expected = [*(-np.log(inside.mean(0) + 1e-3)), *place, *place**2, *color, *color**2]
        np.testing.assert_allclose(found[i], expected, rtol=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [LogLikelihood(), IntersectionOverUnion()])
@pytest.mark.parametrize("algorithm", ["concave", "cccp", "parallel"])
def test_gradient_by_the_recalibration_agrees_with_central_differences(algorithm, loss):
    parameters = Parameters(random_model(), ("unary", "compatibility", "kernel"))
    objective = DatasetObjective(
        parameters, [scene(), scene((4, 5), seed=1)], loss,
        Inference(algorithm, "exact", max_iter=4),
        l2={"unary": 0.01},
    )
    found = objective(parameters.start).gradient
    expected = central_differences(lambda x: objective(x).value, parameters.start)
    assert np.abs(found - expected).max() < 1e-6 * np.abs(expected).max() + 2e-9


def test_learning_finds_the_use_of_a_context():
    """Costs that say nothing, and labels that are the halves of the image: position tells all."""
    truth = np.repeat([[0], [0], [1], [1]], 6, axis=1)
    images = np.random.default_rng(0).integers(0, 256, (3, 4, 6, 3), dtype=np.uint8)
    examples = [SimpleNamespace(image=i, unary=np.zeros((4, 6, 2)), truth=truth) for i in images]
    start = DenseCRF(2).with_context(["position"])
    model = learn(start, examples, learn=("unary",), max_iter=60, tol=0, l2={"unary": 0.0}).model
    assert (model.infer(images[0], np.zeros((4, 6, 2))).labels == truth).all()
    assert model.context == ("position",)


@given(st.sets(st.sampled_from(CONTEXTS), min_size=1), st.integers(1, 4), st.integers(1, 3))
def test_a_model_in_context_survives_its_file(tmp_path_factory, contexts, channels, grid_dim):
    path = tmp_path_factory.mktemp("model") / "model"
    model = random_model(contexts, channels, grid_dim)
    model.save(path)
    loaded = DenseCRF.load(path)
    assert loaded.context == tuple(name for name in CONTEXTS if name in contexts)
    example = scene((2, 3, 4)[:grid_dim], channels)
    np.testing.assert_array_equal(
        loaded.infer(example.image, example.unary).marginals,
        model.infer(example.image, example.unary).marginals,
    )


def test_positions_are_shares_of_the_image_whatever_its_size():
    model = random_model(["position"])
    assert np.array_equal(model.rescaled(2.0).recalibration, model.recalibration)
    assert model.rescaled(2.0).context == ("position",)


def test_points_without_a_grid_have_positions():
    rng = np.random.default_rng(0)
    positions, unary = rng.normal(size=(20, 3)), rng.uniform(0, 3, (20, L))
    found = context_features(("position",), unary, observe((20,), positions=positions))
    assert found.shape == (20, 6)
    assert found[:, :3].min(0) == pytest.approx([-0.5] * 3)
    assert found[:, :3].max(0) == pytest.approx([0.5] * 3)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: DenseCRF(L, context=["hue"]), "context must name some of presence"),
    (lambda: DenseCRF(L, context=3), "context must name some of presence"),
    (lambda: DenseCRF(L, context=["color"]), "use model.with_context"),
    (lambda: DenseCRF(L, recalibration=np.eye(L, L + 2)), "3 rows and 4 columns"),
    (lambda: DenseCRF(L, recalibration=np.eye(L + 1, 9), context="color"), "3 rows and more"),
    (lambda: random_model().with_context(), "looks at presence, position, color already"),
    (lambda: random_model().infer(scene(channels=4).image, scene().unary), "19 numbers per var"),
    (lambda: random_model().infer(None, scene().unary), "image must be given"),
])
def test_misuse_is_refused(make, words):
    assert words in refusal(make)
