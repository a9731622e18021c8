"""Pattern potentials against enumeration of all labels and hidden units."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pattern_reference as reference
from crfield.patterns import ConvolutionalPatterns, DeviationPatterns, HiddenPosterior, Patterns
from refusal import refusal

N_VISIBLE, N_HIDDEN = 5, 4
ALL_Y = reference.binary_states(N_VISIBLE)
TEMPERATURES = [0.3, 1.0, 2.5, 0]
RULES = [{}, {"composition": "min"}, *({"max_active": n} for n in (1, 2, 4, 9))]


def example(seed=0, scale=1.0, **options):
    rng = np.random.default_rng(seed)
    return Patterns(
        scale * rng.normal(size=(N_VISIBLE, N_HIDDEN)), scale * rng.normal(size=N_HIDDEN), **options
    )


def states_of(patterns):
    return reference.hidden_states(N_HIDDEN, patterns.composition, patterns.max_active)


def exact_posterior(patterns):
    """p*(h | y) of all states for every y."""
    given = patterns.weights, patterns.bias, patterns.temperature, states_of(patterns)
    return [reference.posterior(y, *given) for y in ALL_Y]


def posterior_of(patterns, p):
    """Probabilities p of all states, one row per y, as the library has them."""
    entropies = np.array([patterns.temperature * reference.entropy(row) for row in p])
    return HiddenPosterior(p @ states_of(patterns), entropies)


@pytest.mark.parametrize("temperature", TEMPERATURES)
@pytest.mark.parametrize("rule", RULES)
def test_energies_by_enumeration(rule, temperature):
    patterns = example(temperature=temperature, sparsity=0.3, **rule)
    expected = [
        reference.potential(
            y, patterns.weights, patterns.bias - 0.3, temperature, states_of(patterns)
        )
        for y in ALL_Y
    ]
    np.testing.assert_allclose(patterns.energies(ALL_Y), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("temperature", [0.3, 1.0, 2.5])
@pytest.mark.parametrize("rule", RULES)
def test_expected_hidden_and_entropy_by_enumeration(rule, temperature):
    patterns = example(1, temperature=temperature, **rule)
    exact = posterior_of(patterns, exact_posterior(patterns))
    np.testing.assert_allclose(patterns.expected_hidden(ALL_Y), exact.expected, atol=1e-12)
    q = patterns.posterior(patterns.activations(ALL_Y))
    np.testing.assert_allclose(q.entropy, exact.entropy, atol=1e-12)


@pytest.mark.parametrize("rule", RULES)
def test_hidden_units_at_temperature_zero_are_a_best_choice(rule):
    patterns = example(2, temperature=0, **rule)
    states = states_of(patterns)
    chosen = patterns.expected_hidden(ALL_Y)
    for y, h in zip(ALL_Y, chosen, strict=True):
        assert (states == h).all(1).any()
        value = reference.scores(y, patterns.weights, patterns.bias, [h])[0]
        best = reference.scores(y, patterns.weights, patterns.bias, states).max()
        assert value == pytest.approx(best, abs=1e-12)
    assert np.array_equal(patterns.sample_hidden(ALL_Y, np.random.default_rng(0)), chosen)


def test_ties_at_temperature_zero():
    y = np.zeros((1, 2))
    w = np.zeros((2, 3))
    assert not Patterns(w, 0.0, temperature=0).expected_hidden(y).any()
    one = Patterns(w, 0.0, temperature=0, composition="min").expected_hidden(y)
    np.testing.assert_array_equal(one, [[1, 0, 0]])
    two = Patterns(w, 1.0, temperature=0, max_active=2).expected_hidden(y)
    np.testing.assert_array_equal(two, [[1, 1, 0]])


@pytest.mark.parametrize("rule", RULES)
def test_the_zero_limit(rule):
    patterns = example(3, **rule)
    limit = patterns.at_temperature(0)
    gaps = []
    for temperature in (1.0, 0.1, 1e-3, 1e-9, 1e-300, 5e-324):
        warm = patterns.at_temperature(temperature)
        gaps.append(np.abs(warm.energies(ALL_Y) - limit.energies(ALL_Y)).max())
        assert (warm.energies(ALL_Y) <= limit.energies(ALL_Y) + 1e-12).all()
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[-1] <= 1e-12
    np.testing.assert_allclose(
        patterns.at_temperature(1e-300).expected_hidden(ALL_Y), limit.expected_hidden(ALL_Y)
    )


def test_temperature_one_is_the_softplus_of_a_boltzmann_machine():
    patterns = example(4)
    a = ALL_Y @ patterns.weights + patterns.bias
    np.testing.assert_allclose(patterns.energies(ALL_Y), -np.log1p(np.exp(a)).sum(1), rtol=1e-12)
    np.testing.assert_allclose(patterns.expected_hidden(ALL_Y), 1 / (1 + np.exp(-a)), rtol=1e-12)


@given(
    seed=st.integers(0, 2**31), temperature=st.sampled_from([0.2, 0.7, 1.0, 3.0]),
    rule=st.sampled_from(RULES),
)
def test_the_bound_holds_for_any_q_and_is_tight_at_the_posterior(seed, temperature, rule):
    patterns = example(seed, 2.0, temperature=temperature, **rule)
    rng = np.random.default_rng(seed)
    exact = patterns.energies(ALL_Y)
    p = rng.dirichlet(np.full(len(states_of(patterns)), rng.choice([0.1, 1.0])), len(ALL_Y))
    assert (patterns.lower_bound(ALL_Y, posterior_of(patterns, p)) <= -exact + 1e-9).all()
    for q in (
        posterior_of(patterns, exact_posterior(patterns)),
        patterns.posterior(patterns.activations(ALL_Y)),
    ):
        np.testing.assert_allclose(patterns.lower_bound(ALL_Y, q), -exact, atol=1e-9)


@given(seed=st.integers(0, 2**31), n=st.integers(1, 9), k=st.integers(1, 6))
def test_cardinality_recursion(seed, n, k):
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.1, 1.0, 300.0])
    patterns = Patterns(scale * rng.normal(size=(2, n)), scale * rng.normal(size=n), max_active=k)
    y = reference.binary_states(2)
    states = reference.hidden_states(n, "sum", k)
    for row in range(4):
        args = (y[row], patterns.weights, patterns.bias, 1.0, states)
        assert patterns.energies(y)[row] == pytest.approx(reference.potential(*args), abs=1e-9)
        mean = reference.posterior(*args) @ states
        np.testing.assert_allclose(patterns.expected_hidden(y)[row], mean, atol=1e-9)


def test_a_limit_that_does_not_bind_changes_nothing():
    rng = np.random.default_rng(0)
    free = Patterns(rng.normal(size=(6, 30)), rng.normal(size=30))
    limited = Patterns(free.weights, free.bias, max_active=40)
    y = rng.integers(0, 2, (8, 6))
    np.testing.assert_allclose(free.energies(y), limited.energies(y), rtol=1e-12)
    np.testing.assert_allclose(free.expected_hidden(y), limited.expected_hidden(y), atol=1e-12)


@pytest.mark.parametrize("rule", [RULES[0], RULES[1], RULES[3]])
@pytest.mark.parametrize("temperature", [0.7, 1.0])
def test_samples_have_the_right_distribution(rule, temperature):
    patterns = example(5, temperature=temperature, **rule)
    y = ALL_Y[[6]]
    n = 40000
    h = patterns.sample_hidden(np.repeat(y, n, 0), np.random.default_rng(0))
    states = states_of(patterns)
    p = reference.posterior(y[0], patterns.weights, patterns.bias, temperature, states)
    counts = np.array([(h == state).all(1).sum() for state in states])
    assert counts.sum() == n
    assert np.abs(counts / n - p).max() < 4 * np.sqrt(0.25 / n)


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("rule", [{}, {"composition": "min"}, {"max_active": 3}])
def test_convolutional_patterns_are_dense_ones_with_shared_weights(stride, rule):
    rng = np.random.default_rng(stride)
    grid, windows, bias = (5, 6), rng.normal(size=(2, 3, 3)), rng.normal(size=3)
    image_weights = rng.normal(size=(2, 3))
    features = rng.normal(size=(7, 2))
    conv = ConvolutionalPatterns(
        windows, bias, grid, stride, image_weights=image_weights, sparsity=0.2, **rule
    )
    weights = reference.dense_windows(windows, grid, stride)
    n_positions = weights.shape[1] // 3
    dense = Patterns(
        weights, np.tile(bias, n_positions), image_weights=np.tile(image_weights, (1, n_positions)),
        sparsity=0.2, **rule,
    )
    y = rng.integers(0, 2, (7, 5, 6)).astype(np.uint8)
    flat = y.reshape(7, -1)
    h = rng.random((7, conv.n_hidden))
    scale = rng.normal(size=7)
    for other in (dense, conv.to_dense()):
        assert other.n_hidden == conv.n_hidden
        assert other.n_visible == conv.n_visible == 30
        for name, args in {
            "activations": (flat, features), "energies": (flat, features),
            "expected_hidden": (y, features), "to_visible": (h,),
        }.items():
            found, wanted = getattr(conv, name)(*args), getattr(other, name)(*args)
            np.testing.assert_allclose(found, wanted, atol=1e-12, err_msg=name)
    # The gradient of shared numbers is the sum over where they are used.
    for name, found, step in [
        ("weights", conv.weight_gradient(y, h, scale), windows),
        ("bias", conv.bias_gradient(h, scale), bias),
        ("image_weights", conv.image_gradient(features, h, scale), image_weights),
    ]:
        assert found.shape == step.shape
        direction = rng.normal(size=step.shape)
        moved = conv.with_parameters({name: step + direction})
        change = (
            ((moved.activations(y, features) - conv.activations(y, features)) * h).sum(1) @ scale
        )
        assert (found * direction).sum() == pytest.approx(change), name


def test_gradients_of_the_potential_by_differences():
    rng = np.random.default_rng(0)
    y, features = rng.integers(0, 2, (6, N_VISIBLE)), rng.normal(size=(6, 2))
    scale = rng.normal(size=6)
    for rule in RULES:
        image_weights = rng.normal(size=(2, N_HIDDEN))
        patterns = example(7, temperature=0.8, image_weights=image_weights, **rule)
        h = patterns.expected_hidden(y, features)
        gradients = {
            "weights": patterns.weight_gradient(y, h, scale),
            "bias": patterns.bias_gradient(h, scale),
            "image_weights": patterns.image_gradient(features, h, scale),
        }
        assert gradients.keys() == patterns.parameters.keys()
        for name, value in patterns.parameters.items():
            direction = rng.normal(size=value.shape)
            ahead, behind = (
                scale @ patterns.with_parameters({name: value + step * direction}).energies(
                    y, features
                )
                for step in (1e-6, -1e-6)
            )
            numeric = -(ahead - behind) / 2e-6
            assert (gradients[name] * direction).sum() == pytest.approx(numeric, rel=1e-6)
    np.testing.assert_allclose(patterns.bias_gradient(h), h.sum(0))


def test_image_weights_shift_the_bias():
    rng = np.random.default_rng(0)
    image_weights, features = rng.normal(size=(3, N_HIDDEN)), rng.normal(size=(len(ALL_Y), 3))
    patterns = example(image_weights=image_weights)
    wanted = ALL_Y @ patterns.weights + patterns.bias + features @ image_weights
    np.testing.assert_allclose(patterns.activations(ALL_Y, features), wanted)


def test_types():
    for dtype in (np.float32, np.float64):
        patterns = Patterns(np.ones((3, 2), dtype), [0, 1], image_weights=[[1, 2]])
        assert patterns.dtype == patterns.bias.dtype == patterns.image_weights.dtype == dtype
        y = np.ones((2, 3), bool)
        assert patterns.activations(y, [[1], [2]]).dtype == dtype
        assert patterns.expected_hidden(y, [[1], [2]]).dtype == dtype
        assert patterns.to_visible([[1, 0]]).dtype == dtype
        assert patterns.energies(y, [[1], [2]]).dtype == np.float64
    assert Patterns([[1, 2]], 0).dtype == np.float32


@pytest.mark.parametrize("composition", ["sum", "min"])
@given(seed=st.integers(0, 2**31))
def test_deviation_patterns(composition, seed):
    rng = np.random.default_rng(seed)
    weights, offsets = rng.normal(size=(N_VISIBLE, 3)), rng.normal(size=3)
    theta_0, theta_max = rng.normal(size=3), rng.normal(size=3)
    rother = DeviationPatterns(weights, offsets, theta_0, theta_max, composition)
    wanted = [
        reference.deviation_value(y, weights, offsets, theta_0, theta_max, composition)
        for y in ALL_Y
    ]
    np.testing.assert_allclose(rother.values(ALL_Y), wanted, atol=1e-12)
    patterns, constant = rother.to_patterns()
    np.testing.assert_allclose(patterns.energies(ALL_Y) + constant, wanted, atol=1e-12)
    back = DeviationPatterns.from_patterns(patterns.at_temperature(1.0))
    np.testing.assert_allclose(back.values(ALL_Y), patterns.energies(ALL_Y), atol=1e-12)
    np.testing.assert_allclose(back.weights, weights)
    np.testing.assert_array_equal(back.targets, (weights < 0).T)


def test_deviation_patterns_from_targets():
    rng = np.random.default_rng(0)
    targets = rng.integers(0, 2, (3, N_VISIBLE))
    costs = rng.random(targets.shape)
    rother = DeviationPatterns.from_targets(targets, costs, theta_0=0.1, theta_max=0.9)
    np.testing.assert_array_equal(rother.targets, targets)
    each = (costs * (ALL_Y[:, None] != targets)).sum(-1) + 0.1
    np.testing.assert_allclose(rother.values(ALL_Y), np.minimum(each, 0.9).sum(1))
    cheapest = DeviationPatterns.from_targets(targets, 2.0, composition="min", theta_max=5.0)
    distances = 2.0 * (ALL_Y[:, None] != targets).sum(-1).min(1)
    np.testing.assert_allclose(cheapest.values(ALL_Y), np.minimum(distances, 5.0))
    maps = DeviationPatterns.from_targets(np.ones((1, 2, 3)), np.ones((1, 2, 3)))
    assert maps.weights.shape == (6, 1)


@pytest.mark.parametrize("change", [
    *({"temperature": t} for t in (-1, -1.5, np.nan, np.inf, "hot", None)),
    {"composition": "max"}, {"max_active": 0}, {"max_active": 1.5},
    {"max_active": 2, "composition": "min"}, {"sparsity": -1}, {"weights": np.zeros(3)},
    {"weights": np.zeros((3, 0))}, {"weights": np.full((3, 2), np.nan)}, {"bias": np.zeros(3)},
    {"bias": [0, np.inf]}, {"image_weights": np.zeros((2, 3))},
])
def test_refused_patterns(change):
    options = {"weights": np.zeros((3, 2)), "bias": np.zeros(2), **change}
    assert next(iter(change)) in refusal(Patterns, **options)


@pytest.mark.parametrize("y", [
    [[0, 1, 2]], [[0, 0.5, 1]], [[0, -1, 1]], [[0, np.nan, 1]], [0, 1, 1], [[0, 1]], 3,
    np.full((1, 3), 255, np.uint8), [["a", "b", "c"]],
])
def test_refused_labels(y):
    patterns = Patterns(np.zeros((3, 2)), 0)
    refusal(patterns.energies, y)
    refusal(patterns.weight_gradient, y, np.zeros((1, 2)))


def test_refused_arguments():
    patterns = Patterns(np.zeros((3, 2)), 0, image_weights=np.zeros((4, 2)))
    y = np.zeros((2, 3))
    assert "features" in refusal(patterns.energies, y)
    assert "features" in refusal(patterns.energies, y, np.zeros((2, 3)))
    assert "features" in refusal(patterns.energies, y, np.zeros((3, 4)))
    assert "features" in refusal(patterns.energies, y, np.full((2, 4), np.nan))
    assert "h must" in refusal(patterns.to_visible, np.zeros((2, 3)))
    assert "scale" in refusal(patterns.bias_gradient, np.zeros((2, 2)), np.zeros(3))
    assert "windows" in refusal(ConvolutionalPatterns, np.zeros((2, 2)), 0, (5, 5))
    assert "windows" in refusal(ConvolutionalPatterns, np.zeros((6, 2, 1)), 0, (5, 5))
    assert "grid" in refusal(ConvolutionalPatterns, np.zeros((2, 2, 1)), 0, 5)
    assert "grid" in refusal(ConvolutionalPatterns, np.zeros((2, 2, 1)), 0, (5, 0))
    assert "stride" in refusal(ConvolutionalPatterns, np.zeros((2, 2, 1)), 0, (5, 5), 0)


def test_refused_deviation_patterns():
    assert "weights" in refusal(DeviationPatterns, np.zeros(3))
    assert "theta_0" in refusal(DeviationPatterns, np.zeros((3, 2)), theta_0=[1, 2, 3])
    assert "targets" in refusal(DeviationPatterns.from_targets, [[0, 2]])
    assert "costs" in refusal(DeviationPatterns.from_targets, [[0, 1]], [[-1, 1]])
    assert "costs" in refusal(DeviationPatterns.from_targets, [[0, 1]], [1, 2, 3])
    convert = DeviationPatterns.from_patterns
    assert "weights 0" in refusal(convert, example(composition="min"))
    assert "max_active" in refusal(convert, example(max_active=1))
    conv = ConvolutionalPatterns(np.zeros((2, 2, 1)), 0, (3, 3))
    assert "to_dense" in refusal(convert, conv)
