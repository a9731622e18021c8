"""Log-linear models: exact gradients, the optimum's expectations, joint and piecewise training."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain_reference import enumerate_chain
from crfield.graphs import FeatureGraph, FeatureTerm, chain_loss, log_linear_loss
from crfield.graphs.log_linear import Descent, Likelihood, fit_jointly, fit_piecewise
from graph_reference import Reference
from made_chains import loss_at, made_up_chains, training_chains
from refusal import refusal

SEEDS = st.integers(0, 2**32 - 1)


def slopes(function, x, step=1e-5):
    """Central differences of a function of an array."""
    slope = np.empty_like(x)
    for index in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            ends.append(function(moved))
        slope[index] = (ends[0] - ends[1]) / (2 * step)
    return slope


@pytest.mark.parametrize("per_edge", [False, True])
def test_the_loss_is_enumerated_and_its_gradient_the_central_differences(per_edge):
    rng = np.random.default_rng(1)
    lengths = [4, 1, 3]
    costs = rng.standard_normal((8, 3))
    tables = rng.standard_normal((5, 3, 3) if per_edge else (3, 3))
    labels = rng.integers(0, 3, size=8)
    found = chain_loss(costs, tables, labels, lengths=lengths)
    expected, node, edge = 0.0, 0, 0
    for length in lengths:
        part = tables[edge : edge + length - 1] if per_edge else tables
        every = enumerate_chain(costs[node : node + length], part)
        states = labels[node : node + length]
        truth = (every.labels == states).all(1)
        expected += every.energies[truth][0] + every.log_partition
        node, edge = node + length, edge + length - 1
    assert found.value == pytest.approx(expected, abs=1e-10)
    by_costs = slopes(lambda c: chain_loss(c, tables, labels, lengths=lengths).value, costs)
    by_tables = slopes(lambda t: chain_loss(costs, t, labels, lengths=lengths).value, tables)
    np.testing.assert_allclose(found.by_costs, by_costs, atol=1e-6)
    np.testing.assert_allclose(found.by_transitions, by_tables, atol=1e-6)


def test_the_gradient_by_parameters_is_that_of_central_differences():
    rng = np.random.default_rng(2)
    data = training_chains(*made_up_chains(rng, n_chains=6))
    likelihood = Likelihood(data, 0.3)
    x = rng.standard_normal(likelihood.scale.shape)
    _, gradient = likelihood(x, None)
    differences = slopes(lambda v: likelihood(v, None)[0], x)
    np.testing.assert_allclose(gradient, differences, atol=1e-6)


def test_chains_that_are_taken_are_those_chains():
    X, y = made_up_chains(np.random.default_rng(3), n_chains=5)
    some = training_chains(X, y).take([3, 0, 3])
    np.testing.assert_array_equal(some.features, np.concatenate([X[3], X[0], X[3]]))
    np.testing.assert_array_equal(some.labels, np.concatenate([y[3], y[0], y[3]]))
    np.testing.assert_array_equal(np.diff(some.offsets), [len(X[3]), len(X[0]), len(X[3])])


def test_at_the_optimum_the_model_expects_what_is_observed():
    data = training_chains(*made_up_chains(np.random.default_rng(4), n_chains=100))
    likelihood = Likelihood(data, 0.01)
    learned = fit_jointly(likelihood, Descent())
    found = likelihood.expectations(learned.weights)
    assert found.largest_gap < 1e-3
    nothing = likelihood.from_vector(np.zeros_like(likelihood.scale))
    assert likelihood.expectations(nothing).largest_gap > 0.1
    np.testing.assert_allclose(found.observed[1][0], np.bincount(data.labels), atol=1e-12)
    np.testing.assert_allclose(found.expected[1][0], np.bincount(data.labels), atol=0.1)
    assert found.observed[2].sum() == pytest.approx(found.expected[2].sum())
    assert learned.course.values[-1] < learned.course.values[0]


@pytest.mark.parametrize("tol", [1e-1, 1e-2, 1e-3])
def test_pieces_are_trained_up_to_the_tolerance_per_example(tol):
    data = training_chains(*made_up_chains(np.random.default_rng(22)))
    found = fit_piecewise(Likelihood(data, 0.1), Descent(tol=tol))
    assert found.course.converged
    assert found.course.gap <= tol
    assert found.part_course.gap <= tol


def test_the_ridge_of_a_piece_weighs_as_much_as_that_of_the_whole():
    """Where the classifier of nodes has settled, its slope per chain, in float64, is -l2 W."""
    data = training_chains(*made_up_chains(np.random.default_rng(23)))
    n_chains, l2 = len(data), 0.3
    assert len(data.labels) > 2 * n_chains, "the share of chains in nodes must show"
    found = fit_piecewise(Likelihood(data, l2), Descent(tol=1e-7, max_iter=1000))
    coef, bias = (part / found.part_weights[0] for part in found.weights[:2])
    costs = data.features @ coef + bias
    p = np.exp(costs.min(1, keepdims=True) - costs)
    p /= p.sum(1, keepdims=True)
    slopes = np.eye(data.n_states)[data.labels] - p
    np.testing.assert_allclose(data.features.T @ slopes / n_chains, -l2 * coef, atol=1e-5)
    np.testing.assert_allclose(slopes.sum(0) / n_chains, 0, atol=1e-5)
    assert np.abs(l2 * coef).max() > 0.01


def test_mini_batches_move_every_weight_by_the_step_size():
    features, labels = [np.array([[10.0, -3.0], [2.0, 1.0]])], [np.array([0, 1])]
    data = replace(training_chains(features, labels), n_states=2)
    learned = fit_jointly(Likelihood(data, 0.1), Descent("adam", max_iter=1, step_size=1e-3))
    np.testing.assert_allclose(np.abs(learned.weights[0]), 1e-3, rtol=1e-5)


def test_of_steps_too_long_the_best_is_kept():
    data = training_chains(*made_up_chains(np.random.default_rng(21), n_chains=20))
    learned = fit_jointly(Likelihood(data, 0.1), Descent("adam", max_iter=12, step_size=3.0))
    assert min(learned.course.values) < learned.course.values[-1]
    value, _ = loss_at(data, learned.weights, 0.1)
    assert value == pytest.approx(min(learned.course.values), abs=1e-12)


@pytest.mark.parametrize("optimizer", ["lbfgs", "cg"])
@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-7])
def test_convergence_means_that_the_gradient_is_small(tol, optimizer):
    data = training_chains(*made_up_chains(np.random.default_rng(13)))
    descent = Descent(tol=tol, optimizer=optimizer, max_iter=1000)
    learned = fit_jointly(Likelihood(data, 0.1), descent)
    course = learned.course
    assert course.converged
    largest = np.maximum(np.abs(data.features).max(0), 1)[:, None]
    _, (by_coef, by_bias, by_transitions) = loss_at(data, learned.weights, 0.1)
    gaps = [by_coef / largest, by_bias, by_transitions]
    assert max(np.abs(gap).max() for gap in gaps) == pytest.approx(course.gap)
    assert course.gap <= tol
    assert len(course.values) == course.n_iter + 1


def test_the_weights_of_the_parts_are_optimal():
    data = training_chains(*made_up_chains(np.random.default_rng(7), n_chains=50))
    found = fit_piecewise(Likelihood(data, 1.0), Descent())
    weights, (coef, bias, transitions) = found.part_weights, found.weights
    at = [
        loss_at(data, (a * coef, a * bias, b * transitions))[0]
        for a, b in ((1, 1), (1.05, 1), (0.95, 1), (1, 1.05), (1, 0.95))
    ]
    assert at[0] == min(at)
    # A strong penalty makes the classifier of nodes timid; its weight makes up for it.
    assert weights[0] > 1.2 * weights[1] > 0
    pairs = np.ones((3, 3))
    for begin, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        np.add.at(pairs, (data.labels[begin : end - 1], data.labels[begin + 1 : end]), 1)
    pairs /= pairs.sum()
    information = np.log(pairs / pairs.sum(1)[:, None] / pairs.sum(0))
    np.testing.assert_allclose(transitions[0], -weights[1] * information, atol=1e-12)


def random_data(rng, loops, scale=1.0):
    """Five variables of mixed sizes under terms of one, two and three variables."""
    n_states = np.array([2, 3, 3, 2, 3])
    pairs = [[1, 2], [2, 4], [1, 4]] if loops else [[1, 2], [2, 4]]
    terms = (
        FeatureTerm([[1], [2], [4]], rng.normal(size=(3, 2))),
        FeatureTerm([[0], [3]]),
        FeatureTerm(pairs, rng.normal(size=(len(pairs), 2))),
        FeatureTerm([[0, 1, 3]], rng.normal(size=(1, 2))),
    )
    weights = tuple(
        scale * rng.normal(size=shape)
        for shape in ((2, 3), (1, 2), (2, 3, 3), (2, 2, 3, 2))
    )
    return FeatureGraph(n_states, terms), weights, rng.integers(0, n_states).astype(np.int32)


def reference_loss(data, weights, labels):
    factors = []
    for term, w in zip(data.terms, weights, strict=True):
        for m, variables in enumerate(term.variables):
            phi = np.ones(1) if term.features is None else term.features[m]
            table = np.tensordot(phi, w, 1)
            factors.append((tuple(variables), lambda x, table=table: float(table[x])))
    reference = Reference([np.zeros(n) for n in data.n_states], factors)
    return reference.energy(tuple(labels)) + reference.log_partition(1.0)


def check_slopes(value, weights, gradient):
    """Every entry of the gradient against central differences of the value."""
    for i, (w, slope) in enumerate(zip(weights, gradient, strict=True)):
        expected = slopes(lambda x, i=i: value((*weights[:i], x, *weights[i + 1 :])), w)
        np.testing.assert_allclose(slope, expected, rtol=0, atol=1e-6)


@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_loss_and_gradient_on_forests(seed):
    rng = np.random.default_rng(seed)
    data, weights, labels = random_data(rng, loops=False)
    loss = log_linear_loss(data, weights, labels)
    assert loss.value == pytest.approx(reference_loss(data, weights, labels), abs=1e-9)
    check_slopes(lambda there: reference_loss(data, there, labels), weights, loss.gradient)


@pytest.mark.parametrize("seed", range(4))
def test_gradient_of_bethe_loss_on_loops(seed):
    rng = np.random.default_rng(seed)
    data, weights, labels = random_data(rng, loops=True, scale=0.5)
    settings_ = {"tol": 1e-12, "max_iter": 5000}
    loss = log_linear_loss(data, weights, labels, **settings_)
    assert loss.result.converged
    check_slopes(
        lambda there: log_linear_loss(data, there, labels, **settings_).value, weights,
        loss.gradient,
    )


def test_joined_graphs_have_the_sum_of_losses():
    rng = np.random.default_rng(0)
    data, weights, labels = random_data(rng, loops=False)
    other = random_data(rng, loops=True)
    both = FeatureGraph.join([data, other[0]])
    settled = {"convex": True, "tol": 1e-12, "max_iter": 5000}
    together = log_linear_loss(both, weights, np.concatenate([labels, other[2]]), **settled)
    one = log_linear_loss(data, weights, labels, **settled)
    two = log_linear_loss(other[0], weights, other[2], **settled)
    assert together.value == pytest.approx(one.value + two.value)
    for a, b, c in zip(together.gradient, one.gradient, two.gradient, strict=True):
        np.testing.assert_allclose(a, b + c, atol=1e-8)


@pytest.mark.parametrize(("weights", "message"), [
    ((), "must be 1 arrays"),
    ((np.zeros((1, 3)),), "3 states for variable 0, which has 2"),
    ((np.zeros((2, 2)),), "match term 0"),
    ((np.zeros((1, 2, 2)),), "match term 0"),
])
def test_weights_that_do_not_fit_are_refused(weights, message):
    data = FeatureGraph(np.array([2, 2, 3]), (FeatureTerm([[0], [1]], np.ones((2, 1))),))
    assert message in refusal(log_linear_loss, data, weights, np.zeros(3, np.int32))
    assert "variables 0 to 2" in refusal(FeatureGraph, np.array([2, 2, 3]), (FeatureTerm([[3]]),))
    assert "n_states must be whole numbers" in refusal(FeatureGraph, np.array([2.0, 0.5]), ())
