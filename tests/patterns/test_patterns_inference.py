"""EM with graph cuts: it ascends, ends where it should, and relaxes to a linear program."""

import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pattern_reference as reference
from crfield.graphcut import alpha_expansion_grid
from crfield.patterns import (
    ConvolutionalPatterns,
    MultiLabelPatternCRF,
    PatternCRF,
    PatternInputs,
    Patterns,
    PatternStatus,
    infer,
    relax,
)
from refusal import refusal

RULES = [{}, {"composition": "min"}, {"max_active": 2}]
TEMPERATURES = [1.0, 0.4, 0]


def make(seed, n, grid=(3, 3), *, n_hidden=4, strength=1.5, **options):
    """One model and n images for it."""
    rng = np.random.default_rng(seed)
    size = grid[0] * grid[1]
    weights = rng.normal(size=(size, n_hidden))
    patterns = Patterns(
        strength * weights, strength * (rng.normal(size=n_hidden) - weights.sum(0) / 2), **options
    )
    inputs = PatternInputs(
        1.5 * rng.normal(size=(n, *grid, 2)), 0.6 * rng.random((n, 1, 2, *grid))
    )
    model = PatternCRF(
        patterns, unary_weight=0.8, pairwise_weights=[1.1], grid=grid,
        visible_bias=rng.normal(size=size),
    )
    return model, inputs


def over_all_labels(evaluate, inputs, grid):
    """evaluate(y, inputs) of every labeling of every image, (2^I, n)."""
    states = reference.binary_states(grid[0] * grid[1]).reshape(-1, *grid)
    n = len(inputs)
    every = inputs.take(np.tile(np.arange(n), len(states)))
    return evaluate(np.repeat(states, n, 0), every).reshape(-1, n)


def m_step_energies(model, inputs, y):
    """The M-step objective at all labelings, q = p*(h | y): (2^I, n), by its definition."""
    patterns = model.patterns
    pull = patterns.expected_hidden(y, inputs.features) @ patterns.weights.T
    base = over_all_labels(model.base_energies, inputs, model.grid)
    flat = reference.binary_states(patterns.n_visible)
    return base - (flat @ model.visible_bias)[:, None] - flat @ pull.T


@pytest.mark.slow
@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("rule", RULES, ids=["sum", "min", "at most 2"])
def test_bounds_and_scores_never_fall(rule, temperature):
    # 9 kinds, so 1,008 models in all.
    for seed in range(112):
        model, inputs = make(seed, 4, (4, 3), temperature=temperature, **rule)
        start = np.random.default_rng(seed).integers(0, 2, (4, 4, 3))
        result = infer(model, inputs, init=start, threads=1)
        assert_ascends(result)
        np.testing.assert_allclose(result.scores[0], model.log_scores(start, inputs))
        np.testing.assert_allclose(result.energies, model.energies(result.labels, inputs))
        assert result.status is PatternStatus.CONVERGED


def assert_ascends(result, tol=1e-9):
    assert result.scores.shape == result.bounds.shape
    assert (np.diff(result.bounds, axis=0) >= -tol).all()
    assert (np.diff(result.scores, axis=0) >= 0).all()
    assert (result.bounds[1:] >= result.scores[:-1] - tol).all()
    assert (result.scores >= result.bounds - tol).all()


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("rule", RULES, ids=["sum", "min", "at most 2"])
def test_each_step_is_the_one_of_the_definition(rule, temperature):
    model, inputs = make(5, 25, temperature=temperature, **rule)
    y = np.random.default_rng(0).integers(0, 2, (25, 3, 3))
    step = infer(model, inputs, init=y, max_iter=1)
    objective = m_step_energies(model, inputs, y)
    states = reference.binary_states(9).reshape(-1, 3, 3)
    best = states[objective.argmin(0)]
    moved = step.scores[1] > step.scores[0]
    assert moved.mean() > 0.5
    np.testing.assert_array_equal(step.labels[moved], best[moved])
    np.testing.assert_array_equal(step.labels[~moved], y[~moved])
    # The bound after the M-step, from its definition: -E_base + (c + W'y)'E[h] + T H(q).
    patterns = model.patterns
    q = patterns.posterior(patterns.activations(y))
    flat = best.reshape(25, -1)
    wanted = (
        -model.base_energies(best, inputs) + flat @ model.visible_bias
        + patterns.lower_bound(flat, q)
    )
    np.testing.assert_allclose(step.bounds[1][moved], wanted[moved])


@given(seed=st.integers(0, 2**31), temperature=st.sampled_from(TEMPERATURES))
def test_the_end_is_a_fixed_point_from_every_start(seed, temperature):
    model, inputs = make(seed, 6, (2, 3), temperature=temperature)
    starts = reference.binary_states(6).reshape(-1, 2, 3)
    many = inputs.take(np.tile(np.arange(6), len(starts)))
    result = infer(model, many, init=np.repeat(starts, 6, 0), threads=1)
    # No labeling is better under the posterior of the result: the M-step stays.
    steps = m_step_energies(model, many, result.labels)
    reached = steps[result.labels.reshape(-1, 6) @ 2 ** np.arange(5, -1, -1), range(len(many))]
    assert (reached <= steps.min(0) + 1e-9).all()
    least = over_all_labels(model.energies, inputs, (2, 3)).min(0)
    found = result.energies.reshape(-1, 6).min(0)
    assert (found >= least - 1e-9).all()
    # Every labeling was a start, and none is left for a worse one.
    np.testing.assert_allclose(found, least)


def test_starts_from_the_pairwise_model():
    model, inputs = make(0, 8, (5, 6), strength=0.2)
    result = infer(model, inputs)
    base = model.pairwise_only()
    first = infer(base, inputs)
    assert (first.n_iter == 1).all()
    np.testing.assert_allclose(result.scores[0], model.log_scores(first.labels, inputs))
    same = infer(model, inputs, init=first.labels)
    np.testing.assert_array_equal(same.labels, result.labels)


def test_weak_patterns_leave_the_exact_optimum():
    model, inputs = make(1, 20, (3, 3), strength=1e-9)
    least = over_all_labels(model.energies, inputs, (3, 3)).min(0)
    np.testing.assert_allclose(infer(model, inputs).energies, least)


def test_a_batch_is_its_images_one_by_one():
    model, inputs = make(2, 7, (4, 5), temperature=0.7)
    together = infer(model, inputs)
    assert len(np.unique(together.n_iter)) > 1
    for n in range(7):
        alone = infer(model, inputs.take([n]), threads=1)
        np.testing.assert_array_equal(alone.labels[0], together.labels[n])
        assert alone.n_iter[0] == together.n_iter[n]
        steps = len(alone.scores)
        np.testing.assert_allclose(alone.scores[:, 0], together.scores[:steps, n])
        np.testing.assert_allclose(together.scores[steps - 1 :, n], alone.scores[-1, 0])


def test_max_iter():
    model, inputs = make(2, 7, (4, 5))
    whole = infer(model, inputs)
    assert whole.n_iter.max() > 2
    none = infer(model, inputs, max_iter=0)
    assert len(none.scores) == 1
    assert not none.converged.any()
    one = infer(model, inputs, max_iter=1)
    assert one.status is PatternStatus.MAX_ITER
    np.testing.assert_array_equal(one.converged, whole.n_iter == 1)
    np.testing.assert_allclose(one.scores, whole.scores[:2])
    assert "MAX_ITER" in repr(one)


def test_restarts_never_hurt_and_sometimes_help():
    model, inputs = make(3, 60, (4, 4), strength=3.0, temperature=0)
    once = infer(model, inputs)
    often = infer(model, inputs, n_restarts=10, seed=1)
    assert (often.energies <= once.energies).all()
    assert (often.energies < once.energies - 1e-9).any()
    helped = often.restart > 0
    np.testing.assert_array_equal(helped, often.energies < once.energies)
    np.testing.assert_array_equal(often.labels[~helped], once.labels[~helped])
    assert_ascends(often)
    np.testing.assert_allclose(often.energies, model.energies(often.labels, inputs))
    again = infer(model, inputs, n_restarts=10, seed=1)
    np.testing.assert_array_equal(often.labels, again.labels)


def test_image_features_and_windows():
    rng = np.random.default_rng(0)
    grid = (6, 5)
    window = ConvolutionalPatterns(
        2 * rng.normal(size=(3, 3, 2)), rng.normal(size=2), grid,
        image_weights=rng.normal(size=(4, 2)),
    )
    inputs = PatternInputs(
        rng.normal(size=(9, *grid, 2)), rng.random((9, 2, 4, *grid)), rng.normal(size=(9, 4))
    )
    models = [
        PatternCRF(patterns, pairwise_weights=[0.2, 0.5], grid=grid)
        for patterns in (window, window.to_dense())
    ]
    found = [infer(model, inputs) for model in models]
    np.testing.assert_array_equal(found[0].labels, found[1].labels)
    assert_ascends(found[0])
    assert len(np.unique(found[0].n_iter)) > 1
    np.testing.assert_allclose(found[0].energies, models[0].energies(found[0].labels, inputs))


def test_single_precision():
    model, inputs = make(4, 30, (8, 8), n_hidden=16)
    single = PatternCRF(
        model.patterns.with_parameters(
            {k: v.astype(np.float32) for k, v in model.patterns.parameters.items()}
        ),
        unary_weight=0.8, pairwise_weights=[1.1], grid=(8, 8), visible_bias=model.visible_bias,
    )
    narrow = PatternInputs(inputs.costs.astype(np.float32), inputs.pairwise.astype(np.float32))
    assert single.class_costs(narrow).dtype == np.float32
    assert model.class_costs(narrow).dtype == np.float64
    exact, rounded = infer(model, inputs), infer(single, narrow)
    assert_ascends(rounded, tol=1e-3)
    assert (exact.labels == rounded.labels).mean() > 0.99


def test_many_labels():
    rng = np.random.default_rng(0)
    grid = (4, 5)
    for temperature in TEMPERATURES:
        sets = [None] + [
            Patterns(rng.normal(size=(20, 3)), rng.normal(size=3), temperature=temperature)
            for _ in range(2)
        ]
        model = MultiLabelPatternCRF(
            sets, pairwise_weights=[0.7], visible_bias=0.3 * rng.normal(size=(3, 20)), grid=grid
        )
        inputs = PatternInputs(rng.normal(size=(15, *grid, 3)), rng.random((15, 1, 2, *grid)))
        start = rng.integers(0, 3, (15, *grid))
        for init in (None, start):
            result = infer(model, inputs, init=init, n_restarts=1)
            assert_ascends(result)
            assert result.labels.max() == 2
            assert result.n_iter.max() > 1
            np.testing.assert_allclose(result.energies, model.energies(result.labels, inputs))


def test_many_labels_expand_from_where_they_are():
    rng = np.random.default_rng(1)
    grid = (5, 5)
    patterns = Patterns(rng.normal(size=(25, 3)), rng.normal(size=3))
    model = MultiLabelPatternCRF([patterns, None, None, None], pairwise_weights=[1.0], grid=grid)
    inputs = PatternInputs(rng.normal(size=(30, *grid, 4)), 2.5 * rng.random((30, 1, 2, *grid)))
    start = rng.integers(0, 4, (30, *grid))
    step = infer(model, inputs, init=start, max_iter=1)
    pull = patterns.to_visible(patterns.expected_hidden(start == 0)).reshape(30, *grid)
    elsewhere = 0
    for n in range(30):
        costs = inputs.costs[n].copy()
        costs[..., 0] -= pull[n]
        weights = inputs.pairwise[n, 0]
        moved = alpha_expansion_grid(costs, weights, init=start[n]).labels
        np.testing.assert_array_equal(step.labels[n], moved)
        elsewhere += (alpha_expansion_grid(costs, weights).labels != moved).any()
    assert elsewhere > 0


@pytest.mark.parametrize("rule", RULES, ids=["sum", "min", "at most 2"])
def test_the_linear_program_bounds_the_least_energy(rule):
    values = []
    for seed in range(3):
        model, inputs = make(seed, 4, temperature=0, strength=1.0, **rule)
        relaxed = relax(model, inputs)
        least = over_all_labels(model.energies, inputs, (3, 3)).min(0)
        assert (relaxed.bounds <= least + 1e-7).all()
        assert (relaxed.energies >= least - 1e-7).all()
        np.testing.assert_allclose(relaxed.energies, model.energies(relaxed.labels, inputs))
        np.testing.assert_allclose(
            relaxed.bounds[relaxed.integral], least[relaxed.integral], atol=1e-6
        )
        np.testing.assert_allclose(
            relaxed.energies[relaxed.integral], least[relaxed.integral], atol=1e-6
        )
        values.append(relaxed.integral)
    assert np.concatenate(values).any()


def test_the_linear_program_is_tight_for_attractive_patterns():
    # With W >= 0 the energy is submodular in y and h together.
    rng = np.random.default_rng(0)
    for conv in (False, True):
        if conv:
            patterns = ConvolutionalPatterns(rng.random((2, 2, 2)), -1.0, (3, 3))
        else:
            patterns = Patterns(rng.random((9, 4)), -rng.random(4) * 4)
        model = PatternCRF(
            patterns.at_temperature(0), pairwise_weights=[0.4], grid=(3, 3), unary_weight=2
        )
        inputs = PatternInputs(rng.normal(size=(6, 3, 3, 2)), rng.random((1, 1, 4, 3, 3)))
        least = over_all_labels(model.energies, inputs, (3, 3)).min(0)
        np.testing.assert_allclose(relax(model, inputs).bounds, least, atol=1e-7)


def test_the_linear_program_refuses(monkeypatch):
    model, inputs = make(0, 2)
    assert "at_temperature(0)" in refusal(relax, model, inputs)
    assert "model" in refusal(relax, model.pairwise_only(), inputs)
    assert "inputs" in refusal(relax, model.at_temperature(0), inputs.costs)
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    assert "pip install scipy" in refusal(relax, model.at_temperature(0), inputs)
