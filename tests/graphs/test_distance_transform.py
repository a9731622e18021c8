"""Distance transforms equal a look at all pairs of positions."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crfield.graphs import distance_transform, soft_distance_transform
from pose_reference import all_terms, soft_minimum
from refusal import refusal

# Sums and products of these have no rounding: results must be equal to the last bit.
EXACT_COSTS = st.one_of(
    st.integers(-8, 8).map(float), st.integers(-400, 400).map(lambda i: i / 8), st.just(np.inf)
)
EXACT_WEIGHTS = st.sampled_from([0.0, 0.125, 0.5, 1.0, 3.0, 64.0])
EXACT_OFFSETS = st.integers(-48, 48).map(lambda i: i / 8)
ANY_COSTS = st.one_of(st.floats(-50, 50), st.floats(-1e6, 1e6), st.sampled_from([0.0, np.inf]))
ANY_WEIGHTS = st.one_of(st.floats(0, 3), st.sampled_from([0.0, 1e-320, 1e-12, 200.0, 1e6]))


@st.composite
def problems(draw, costs, weights, offsets):
    """Costs on a line or an image, weights and offsets."""
    shapes = [(1,), (2,), (9,), (17,), (1, 6), (6, 1), (3, 4), (5, 9), (4, 17)]
    shape = draw(st.sampled_from(shapes))
    n, n_axes = int(np.prod(shape)), len(shape)
    values = draw(st.lists(costs, min_size=n, max_size=n))
    numbers = [
        draw(st.lists(kind, min_size=n_axes, max_size=n_axes)) for kind in (weights, offsets)
    ]
    return np.array(values).reshape(shape), *numbers


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(problems(EXACT_COSTS, EXACT_WEIGHTS, EXACT_OFFSETS))
def test_exact_numbers_give_the_same_bits_and_the_first_minimum(problem):
    costs, weights, offsets = problem
    table = all_terms(costs, weights, offsets)
    values, argmins = distance_transform(costs, weights, offsets)
    np.testing.assert_array_equal(values.ravel(), table.min(1))
    np.testing.assert_array_equal(argmins.ravel(), table.argmin(1))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(problems(ANY_COSTS, ANY_WEIGHTS, st.floats(-20, 20)))
def test_any_numbers(problem):
    costs, weights, offsets = problem
    table = all_terms(costs, weights, offsets)
    values, argmins = distance_transform(costs, weights, offsets)
    scale = np.abs(table[np.isfinite(table)]).max(initial=1.0)
    np.testing.assert_allclose(values.ravel(), table.min(1), rtol=1e-12, atol=4e-16 * scale)
    attained = np.take_along_axis(table, argmins.reshape(-1, 1), 1)[:, 0]
    np.testing.assert_allclose(attained, values.ravel(), rtol=1e-12, atol=4e-16 * scale)
    soft = soft_distance_transform(costs, weights, offsets)
    np.testing.assert_allclose(
        soft.ravel(), soft_minimum(table), rtol=1e-12, atol=1e-12 + 1e-15 * scale
    )


def test_equal_costs_far_apart_parabolas_and_lone_positions():
    values, argmins = distance_transform(np.zeros(50), 2.0)
    np.testing.assert_array_equal(values, 0)
    np.testing.assert_array_equal(argmins, np.arange(50))
    lone = np.full((30, 40), np.inf)
    lone[7, 11] = -3.0
    values, argmins = distance_transform(lone, (2.0, 0.5))
    rows, columns = np.indices(lone.shape)
    np.testing.assert_array_equal(values, 2 * (rows - 7.0) ** 2 + 0.5 * (columns - 11.0) ** 2 - 3)
    np.testing.assert_array_equal(argmins, 7 * 40 + 11)
    # Far from the only position the sum has one term, which underflows as a probability.
    np.testing.assert_allclose(soft_distance_transform(lone, (2.0, 0.5)), values, rtol=1e-14)


def test_huge_costs_and_weights():
    costs = np.array([1e300, -1e300, 0.0, 1e300, np.inf, -1e300])
    table = all_terms(costs, [1e12], [0.5])
    values, argmins = distance_transform(costs, 1e12, 0.5)
    np.testing.assert_array_equal(values, table.min(1))
    # Of two that rounding makes equal, the nearer one.
    np.testing.assert_array_equal(argmins, [1, 1, 1, 5, 5, 5])
    assert np.isfinite(soft_distance_transform(costs, 1e12, 0.5)).all()
    near = np.array([1e30, 0.0, 1e30, 5.0, 4.0])
    table = all_terms(near, [0.75], [-0.25])
    np.testing.assert_array_equal(distance_transform(near, 0.75, -0.25)[0], table.min(1))
    np.testing.assert_allclose(
        soft_distance_transform(near, 0.75, -0.25), soft_minimum(table), rtol=1e-12
    )


def test_only_infinite_costs():
    values, argmins = distance_transform(np.full((3, 4), np.inf), (1.0, 0.0))
    np.testing.assert_array_equal(values, np.inf)
    np.testing.assert_array_equal(argmins, 0)
    np.testing.assert_array_equal(soft_distance_transform(np.full(4, np.inf), 1.0), np.inf)


def test_batches_offsets_beyond_the_grid_and_threads():
    costs = np.random.default_rng(0).normal(size=(2, 3, 37, 51)) * 30
    given = (0.02, 0.3), (-100.5, 7.25)
    values, argmins = distance_transform(costs, *given, threads=1)
    soft = soft_distance_transform(costs, *given, threads=1)
    assert values.shape == argmins.shape == soft.shape == costs.shape
    for threads in (2, 3):
        again = distance_transform(costs, *given, threads=threads)
        np.testing.assert_array_equal(again[0], values)
        np.testing.assert_array_equal(again[1], argmins)
        np.testing.assert_array_equal(soft_distance_transform(costs, *given, threads=threads), soft)
    one = distance_transform(costs[1, 2], *given)
    np.testing.assert_array_equal(one[0], values[1, 2])
    np.testing.assert_array_equal(soft_distance_transform(costs[1, 2], *given), soft[1, 2])
    row, column = np.divmod(argmins, costs.shape[-1])
    rows, columns = np.indices(costs.shape[-2:])
    lead = np.arange(2)[:, None, None, None], np.arange(3)[:, None, None]
    attained = (
        costs[(*lead, row, column)]
        + 0.02 * (rows - 100.5 - row) ** 2 + 0.3 * (columns + 7.25 - column) ** 2
    )
    np.testing.assert_allclose(attained, values, rtol=1e-12)
    assert (soft <= values + 1e-9).all()


def test_empty_batches_and_other_types():
    assert distance_transform(np.zeros((0, 3, 4)), (1, 1))[0].shape == (0, 3, 4)
    values, _ = distance_transform(np.array([[3, 0, 9]], np.int8), 1)
    np.testing.assert_array_equal(values, [[1.0, 0.0, 1.0]])
    strided = np.arange(24, dtype=np.float32).reshape(4, 6)[:, ::2]
    np.testing.assert_array_equal(
        distance_transform(strided, (1, 1))[0], distance_transform(strided.copy(), (1, 1))[0]
    )


@pytest.mark.parametrize(("arguments", "words"), [
    (([1.0, np.nan], 1.0), "costs must be +inf or within 1e+300 of 0, got nan at index (1,)"),
    (([1.0, -np.inf], 1.0), "got -inf at index (1,)"),
    (([1.0, 1e301], 1.0), "got 1e+301"),
    ((["a"], 1.0), "costs must hold real numbers"),
    (([], 1.0), "between 1 and 2147483647 positions, got 1 x 0"),
    ((np.zeros((3, 0)), (1.0, 1.0)), "got 3 x 0"),
    (([1.0], (1.0, 1.0)), "at least 2 axes for 2 weights, got shape (1,)"),
    ((3.0, 1.0), "at least 1 axes"),
    (([1.0], -1.0), "weights must lie between 0 and 1e+12, got -1"),
    (([1.0], 1e13), "got 1e+13"),
    (([1.0], np.nan), "weights must be finite"),
    (([1.0], (1.0, 1.0, 1.0)), "weights must be a number or two, got shape (3,)"),
    (([1.0], []), "weights must be a number or two, got shape (0,)"),
    (([1.0], 1.0, (1.0, 2.0)), "offsets must be one number or have shape (1,)"),
    (([1.0], 1.0, 1e10), "offsets must not exceed 1e+09 in magnitude, got 1e+10"),
    (([1.0], 1.0, np.inf), "offsets must be finite"),
])
def test_bad_input(arguments, words):
    assert words in refusal(distance_transform, *arguments)
    assert words in refusal(soft_distance_transform, *arguments)


def test_bad_threads():
    assert "threads must be" in refusal(distance_transform, [1.0], 1.0, threads=0)
