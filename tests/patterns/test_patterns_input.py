"""Sizes and magnitudes at which a pattern model used to go wrong: refused, or right."""

import numpy as np
import pytest

from crfield.patterns import (
    ConvolutionalPatterns,
    MultiLabelPatternCRF,
    PatternCRF,
    PatternInputs,
    Patterns,
    infer,
    mask_scores,
    relax,
)
from crfield.patterns.cardinality import AtMost
from refusal import refusal

GRID = (2, 3)


def make_patterns(**options):
    rng = np.random.default_rng(0)
    return Patterns(rng.normal(size=(6, 3)).astype(np.float32), rng.normal(size=3), **options)


@pytest.mark.parametrize("temperature", [1.0, 0])
def test_a_limit_above_the_number_of_units_takes_no_memory(temperature):
    free = make_patterns(temperature=temperature)
    limited = make_patterns(temperature=temperature, max_active=10**30)
    y = np.random.default_rng(1).integers(0, 2, (5, 6))
    np.testing.assert_allclose(limited.energies(y), free.energies(y), rtol=1e-6)
    np.testing.assert_allclose(limited.expected_hidden(y), free.expected_hidden(y), atol=1e-6)
    assert limited.sample_hidden(y, np.random.default_rng(0)).shape == (5, 3)
    if temperature == 0:
        inputs = PatternInputs(np.zeros((1, *GRID, 2)))
        bounds = [relax(PatternCRF(p, grid=GRID), inputs).bounds[0] for p in (free, limited)]
        assert bounds[0] == pytest.approx(bounds[1])


def test_a_table_of_counts_that_memory_cannot_hold_is_refused():
    with_many = np.broadcast_to(np.float32(0), (1, 10**7))
    assert "max_active" in refusal(AtMost(10**7 - 1).expected, with_many, 1.0)


def test_sums_over_many_edges_keep_their_digits():
    side = 256
    pairwise = np.full((1, 1, 2, side, side), 0.1, np.float32)
    inputs = PatternInputs(np.zeros((1, side, side, 2), np.float32), pairwise)
    model = PatternCRF(None, pairwise_weights=[1.0], grid=(side, side))
    y = np.indices((side, side)).sum(0)[None] % 2
    exact = float(np.float32(0.1)) * 2 * side * (side - 1)
    assert model.energies(y, inputs)[0] == pytest.approx(exact, rel=1e-12)
    start = infer(model, inputs, init=y, max_iter=0)
    assert start.energies[0] == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("name", ["weights", "bias", "sparsity", "image_weights"])
def test_patterns_of_any_magnitude_are_refused(name):
    values = {"weights": np.full((6, 3), 2e38), "bias": 1e31, "sparsity": 1e39,
              "image_weights": np.full((2, 3), -1e31)}
    options = {"weights": np.zeros((6, 3)), "bias": 0.0, name: values[name]}
    message = refusal(Patterns, **options)
    assert message.startswith(f"{name} must not exceed 1e+30")
    if name == "weights":
        options["weights"] = np.full((2, 2, 1), 2e38)
        assert "weights must not exceed" in refusal(ConvolutionalPatterns, **options, grid=GRID)


@pytest.mark.parametrize(("name", "value"), [
    ("unary_weight", 1e39), ("pairwise_weights", [1e39]), ("visible_bias", -1e38),
])
def test_models_of_any_magnitude_are_refused(name, value):
    for kind, patterns in ((PatternCRF, make_patterns()), (MultiLabelPatternCRF, [None, None])):
        message = refusal(kind, patterns, grid=GRID, **{name: value})
        assert message.startswith(f"{name} must not exceed 1e+30")


def test_products_that_overflow_are_refused():
    costs = np.full((1, *GRID, 2), 1e30, np.float32)
    pairwise = np.full((1, 1, 2, *GRID), 1e30, np.float32)
    for unary, pair, words in (
        (1e20, 1.0, "unary_weight times costs"), (0.0, 1e20, "pairwise_weights times pairwise"),
    ):
        large = PatternCRF(None, unary_weight=unary, pairwise_weights=[pair], grid=GRID)
        assert refusal(infer, large, PatternInputs(costs, pairwise)).startswith(words)


@pytest.mark.parametrize(("maps", "kinds", "words"), [
    ({"images": np.zeros((2, 5, 5, 3))}, ["contrast"], ["images", "(2, 3)", "(5, 5, 3)"]),
    ({"images": np.zeros((2, 5, 5, 3))}, ["constant", "contrast"], ["images", "(2, 3)"]),
    ({"images": [np.zeros((2, 3)), np.zeros((4, 4))]}, ["contrast"], ["image 1", "(4, 4)"]),
    ({"images": [np.zeros((2, 3)), [[1, 2], [3]]]}, ["contrast"], ["images", "same length"]),
    ({"images": 5}, ["contrast"], ["one map per image (2)"]),
    ({"boundary": np.zeros((2, 3, 3))}, ["constant", "boundary"], ["boundary", "(2, 3)"]),
    ({"boundary": None}, ["boundary"], ["one map per image (2), got none"]),
    ({}, "edges", ["kinds", "'edges'"]),
    ({}, 3, ["kinds", "got 3"]),
])
def test_maps_of_another_size_are_refused(maps, kinds, words):
    given = {"images": None} | maps
    message = refusal(PatternInputs.from_images, np.zeros((2, *GRID, 2)), kinds=kinds, **given)
    assert all(word in message for word in words), message


def test_one_kind_may_be_a_word():
    rng = np.random.default_rng(0)
    costs, images = rng.normal(size=(2, *GRID, 2)), rng.random((2, *GRID, 3))
    word, listed = (
        PatternInputs.from_images(costs, images, kinds=each) for each in ("contrast", ["contrast"])
    )
    np.testing.assert_array_equal(word.pairwise, listed.pairwise)
    assert "same length" in refusal(PatternInputs.from_images, [[1, 2], [3]], images)


@pytest.mark.parametrize("options", [{}, {"composition": "min"}, {"max_active": 2}])
def test_no_labels_have_no_energies(options):
    nothing = np.zeros((0, 6))
    windows = ConvolutionalPatterns(np.ones((2, 2, 3)), 0.0, GRID, **options)
    for patterns in (make_patterns(**options), windows):
        assert patterns.energies(nothing).shape == (0,)
        h = patterns.expected_hidden(nothing)
        assert h.shape == (0, patterns.n_hidden)
        assert patterns.to_visible(h).shape == (0, 6)
        assert not patterns.weight_gradient(nothing, h).any()
        assert not patterns.bias_gradient(h).any()
    assert mask_scores(np.zeros((0, 4, 4)), np.zeros((0, 4, 4))).shape == (0,)


def test_what_memory_cannot_hold_is_refused_at_once():
    model = PatternCRF(make_patterns(), grid=GRID)
    assert "GiB" in refusal(model.with_image_weights, 10**13)
    windows = ConvolutionalPatterns(np.zeros((2, 2, 8), np.float32), 0.0, grid=(2000, 2000))
    assert "GiB" in refusal(windows.to_dense)


def test_patterns_of_an_own_kind_cannot_be_written(tmp_path):
    class Own(Patterns):
        pass

    model = PatternCRF(Own(np.zeros((6, 2)), 0.0), grid=GRID)
    message = refusal(model.save, tmp_path / "model.safetensors")
    assert "got Own" in message
    assert not list(tmp_path.iterdir())
