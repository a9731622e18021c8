"""Block Gibbs sampling against enumeration: it leaves p(y | x) as it is, and gets there."""

import dataclasses

import numpy as np
import pytest
from scipy.stats import chi2

import pattern_reference as reference
from crfield._core import _native
from crfield.patterns import (
    Chains,
    MultiLabelPatternCRF,
    PatternCRF,
    PatternInputs,
    Patterns,
    sample,
)
from pattern_problems import GRID, random_problem
from refusal import refusal

STATES = reference.binary_states(6)


def probabilities(model, inputs, image):
    """p(y | x) of all labelings of one image, by the definition of the energy."""
    return reference.distribution([
        reference.energy(model, inputs, image, y.reshape(GRID)) for y in STATES
    ])


def number_of(labels):
    """Which of STATES each label map is."""
    return labels.reshape(-1, 6) @ (2 ** np.arange(6)[::-1])


def chance(counts, p):
    """How likely counts are to stray so far from p: Pearson's test, rare states together."""
    expected = p * counts.sum()
    rare = expected < 5
    if rare.any():
        counts = np.append(counts[~rare], counts[rare].sum())
        expected = np.append(expected[~rare], expected[rare].sum())
    statistic = ((counts - expected) ** 2 / np.maximum(expected, 1e-300)).sum()
    return chi2.sf(statistic, len(counts) - 1)


def check_draws(found, model, inputs):
    """Label maps (2, n, *GRID) drawn for the two images have the model's distribution."""
    for image in range(2):
        counts = np.bincount(number_of(found[image]), minlength=64)
        assert chance(counts, probabilities(model, inputs, image)) > 1e-3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("options", [{}, {"composition": "min"}, {"max_active": 1}])
def test_one_pass_leaves_the_distribution_as_it_is(options, dtype):
    model, inputs = random_problem(1, dtype=dtype, **options)
    rng = np.random.default_rng(0)
    n = 20_000
    exact = [probabilities(model, inputs, image) for image in range(2)]
    first = np.stack([STATES[rng.choice(64, n, p=p)].reshape(n, *GRID) for p in exact])
    moved = Chains(first, seed=3).advance(model, inputs)
    assert (moved != first).any()
    check_draws(moved, model, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("windows", [False, True])
def test_chains_reach_the_distribution_from_anywhere(windows):
    model, inputs = random_problem(2, n_hidden=2 if windows else 3, windows=windows)
    same = model
    if windows:
        same = dataclasses.replace(model, patterns=model.patterns.to_dense())
        assert same.patterns.n_hidden == 4
    check_draws(sample(model, inputs, n_chains=20_000, n_passes=40, seed=1), same, inputs)


def test_without_patterns():
    _, inputs = random_problem(3)
    plain = PatternCRF(None, pairwise_weights=[0.5, 0.9], grid=GRID)
    check_draws(sample(plain, inputs, n_chains=20_000, n_passes=30), plain, inputs)


def test_a_wrong_distribution_would_be_noticed():
    model, inputs = random_problem(1)
    p = probabilities(model, inputs, 0)
    other = probabilities(model, inputs, 1)
    rng = np.random.default_rng(0)
    counts = np.bincount(rng.choice(64, 20_000, p=0.95 * p + 0.05 * other), minlength=64)
    assert chance(counts, p) < 1e-6


def test_draws_depend_on_the_seed_and_not_on_threads():
    model, inputs = random_problem()
    runs = [
        sample(model, inputs, n_chains=50, n_passes=5, seed=seed, threads=threads)
        for seed, threads in ((0, 1), (0, 2), (1, 1))
    ]
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    assert len({each.tobytes() for each in runs[0].reshape(-1, 6)}) > 5, "chains differ"


def test_chains_go_on_where_they_are():
    model, inputs = random_problem()
    chains = Chains.start(model, inputs, 4, seed=2)
    assert np.array_equal(chains.labels, np.repeat(chains.labels[:, :1], 4, 1))
    whole = Chains(chains.labels, seed=2).advance(model, inputs, n_passes=6)
    chains.advance(model, inputs, n_passes=2)
    again = Chains(chains.labels, seed=2, n_passes=chains.n_passes)
    assert np.array_equal(again.advance(model, inputs, n_passes=4), whole)
    assert again.n_passes == 6
    before = again.labels.copy()
    again.advance(model, inputs.take([1]), rows=[1])
    assert np.array_equal(again.labels[0], before[0])


def test_rows_may_be_numbers_or_a_mask():
    _, inputs = random_problem()
    inputs = inputs.take([0, 1, 0])
    sure = PatternInputs(np.stack([np.zeros((3, *GRID)), np.full((3, *GRID), -99.0)], -1))
    plain = PatternCRF(None, grid=GRID)
    for rows, moved in (
        (None, [1, 1, 1]), (np.ones(3, bool), [1, 1, 1]), ([True, False, True], [1, 0, 1]),
        ([2, 0], [1, 0, 1]), (np.array([1], np.uint8), [0, 1, 0]),
    ):
        chains = Chains(np.zeros((3, 2, *GRID)))
        chains.advance(plain, sure.take(np.arange(sum(moved))), rows=rows)
        assert chains.labels.mean((1, 2, 3)).tolist() == moved


@pytest.mark.parametrize("rows", [
    [0.9, 1.9], [0, 0], [0, 7], [0, -1], "ab", [[0, 1]], [True], [], 1,
])
def test_other_rows_are_refused(rows):
    model, inputs = random_problem()
    chains = Chains(np.zeros((2, 2, *GRID)))
    message = refusal(chains.advance, model, inputs, rows=rows)
    assert message.startswith("rows must")
    assert chains.n_passes == 0


def test_improbable_labels_are_not_drawn():
    """A draw of 0, one of 2^24 in float32, must not win against any probability."""
    side, sweep = 128, 1419  # with such a draw
    labels = np.zeros((1, side, side), np.uint8)
    never = np.full(labels.shape, -60, np.float32)
    weights = np.zeros((1, 2, side, side), np.float32)
    seeds = np.zeros(1, np.int32), np.zeros(1, np.uint64)
    for costs, label in ((never, 0), (-never, 1)):
        _native.sweep_grids(labels, costs, weights, *seeds, 1, sweep, 1)
        assert (labels == label).all()


@pytest.mark.parametrize("grid", [(1, 1), (1, 7), (5, 1), (4, 5)])
def test_grids_of_any_size(grid):
    n = grid[0] * grid[1]
    rng = np.random.default_rng(0)
    model = PatternCRF(Patterns(rng.normal(size=(n, 2)), 0.0), pairwise_weights=[1.0], grid=grid)
    inputs = PatternInputs(rng.normal(size=(3, *grid, 2)), rng.random((1, 1, 2, *grid)))
    found = sample(model, inputs, n_chains=2, n_passes=3)
    assert found.shape == (3, 2, *grid)
    assert set(np.unique(found)) <= {0, 1}


@pytest.mark.parametrize(("call", "words"), [
    (lambda m, i: Chains(np.zeros((2, 3))), ["labels", "(B, n_chains, height, width)"]),
    (lambda m, i: Chains(np.full((1, 1, 2, 3), 2)), ["0 and 1", "got 2"]),
    (lambda m, i: Chains(np.full((1, 1, 2, 3), np.nan)), ["labels must hold", "nan"]),
    (lambda m, i: Chains([[[[0]], [0]]]), ["labels", "same length"]),
    (lambda m, i: Chains.start(m, i, 10**13), ["GiB", "fewer chains"]),
    (lambda m, i: sample(m, i, n_chains=10**13), ["GiB", "fewer chains"]),
    (lambda m, i: Chains.start(m, i, 0), ["n_chains", "at least 1"]),
    (lambda m, i: Chains.start(m, i, 2).advance(m, i.take([0])), ["2 images", "got 1"]),
    (lambda m, i: sample(MultiLabelPatternCRF([None, None], grid=GRID), i), ["PatternCRF"]),
    (lambda m, i: sample(m, PatternInputs(i.costs, np.ones((1, 2, 4, *GRID)), i.features)),
     ["4 neighbors"]),
])
def test_wrong_input_is_refused(call, words):
    model, inputs = random_problem()
    message = refusal(call, model, inputs)
    assert all(word in message for word in words), message


def test_labels_given_hidden_units_are_a_pairwise_field():
    """p(y | h, x) of eq. 8 from the joint energy over y and h, by enumeration."""
    model, inputs = random_problem(4)
    patterns = model.patterns
    costs, edges = model.label_costs(inputs)[0].ravel(), model.edge_weights(inputs)[0]
    bias = patterns.bias + inputs.features[0] @ patterns.image_weights
    for h in reference.hidden_states(3):
        joint = np.array([
            reference.base_energy(
                y.reshape(GRID), inputs.costs[0], inputs.pairwise[0], model.unary_weight,
                model.pairwise_weights,
            ) - y @ model.visible_bias - reference.scores(y, patterns.weights, bias, [h])[0]
            for y in STATES
        ])
        given = costs - patterns.to_visible(h[None])[0]
        field = np.array([
            reference.base_energy(
                y.reshape(GRID), np.stack([0 * given, given], -1).reshape(*GRID, 2), edges[None],
                1.0, [1.0],
            )
            for y in STATES
        ])
        assert field - field[0] == pytest.approx(joint - joint[0], abs=1e-12)
