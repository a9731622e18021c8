"""Pre-training of patterns and the search for trade-offs, against enumeration on tiny sets."""

import numpy as np
import pytest

import pattern_reference as reference
from crfield.patterns import ConvolutionalPatterns, PatternCRF, PatternInputs, Patterns, infer
from crfield.patterns.pictures import mask_tiles, pattern_tiles
from crfield.patterns.pretraining import Machine, _Penalties, pretrain
from crfield.patterns.tradeoffs import choose_tradeoffs, mask_scores
from reference import central_differences
from refusal import refusal

N_VISIBLE, N_HIDDEN = 5, 3
ALL_V = reference.binary_states(N_VISIBLE).astype(np.float32)
ALL_H = reference.binary_states(N_HIDDEN).astype(np.float64)
QUICK = {"n_epochs": 2, "batch_size": 10}


def random_machine(rng):
    return Machine(*(
        rng.normal(size=shape).astype(np.float32)
        for shape in ((N_VISIBLE, N_HIDDEN), N_VISIBLE, N_HIDDEN)
    ))


def joint(machine):
    """p(v, h) of every v and h, (2^I, 2^J), and log Z."""
    w, b, c = (part.astype(np.float64) for part in machine.parts)
    scores = ALL_V @ w @ ALL_H.T + (ALL_V @ b)[:, None] + ALL_H @ c
    log_z = np.logaddexp.reduce(scores, axis=None)
    return np.exp(scores - log_z), log_z


def exact_gradient(machine, batch):
    """Gradient of the mean log-likelihood by enumeration of both layers."""
    p, _ = joint(machine)
    both = np.zeros_like(p)
    for v in batch:
        row = int(v @ (2 ** np.arange(N_VISIBLE)[::-1]))
        both[row] += p[row] / p[row].sum() / len(batch)
    difference = both - p
    return (ALL_V.T @ difference @ ALL_H, ALL_V.T @ difference.sum(1), difference.sum(0) @ ALL_H)


def toy_masks(n=120):
    """Two shapes, each with a tenth of its pixels flipped."""
    rng = np.random.default_rng(5)
    shapes = np.array([[1, 1, 1, 0, 0, 0, 1, 0], [0, 0, 1, 1, 1, 1, 0, 0]])
    return shapes[rng.integers(2, size=n)] ^ (rng.random((n, 8)) < 0.1)


def log_likelihood(found, masks):
    states = reference.binary_states(masks.shape[1])
    return found.log_scores(masks).mean() - np.logaddexp.reduce(found.log_scores(states))


def assert_within_error(estimates, wanted):
    estimates = np.asarray(estimates)
    error = estimates.std(0) / np.sqrt(len(estimates))
    assert (np.abs(estimates.mean(0) - wanted) < 4.5 * error + 1e-5).all()


@pytest.mark.parametrize("persistent", [False, True])
def test_the_gradient_of_long_chains_is_that_of_the_likelihood(persistent):
    rng = np.random.default_rng(0)
    machine = random_machine(rng)
    batch = ALL_V[rng.integers(len(ALL_V), size=20)]
    wanted = exact_gradient(machine, batch)
    chain = batch
    found = []
    for _ in range(400):
        chain = machine.sample(chain if persistent else batch, 30, rng)
        found.append(machine.gradient(batch, chain).parts)
    for part, exact in zip(zip(*found, strict=True), wanted, strict=True):
        assert_within_error(part, exact)


def test_draws_given_themselves_have_no_gradient():
    machine = random_machine(np.random.default_rng(0))
    assert not any(part.any() for part in machine.gradient(ALL_V, ALL_V).parts)


@pytest.mark.parametrize("options", [{}, {"n_steps": 5}, {"persistent": True}])
def test_the_likelihood_rises(options):
    masks = toy_masks()
    options = {"batch_size": 20, "step_size": 0.1, "l2": 0, **options}
    runs = [pretrain(masks, 4, n_epochs=n, **options) for n in (1, 20, 100)]
    scores = [log_likelihood(found, masks) for found in runs]
    assert scores[0] < scores[1] < scores[2]
    # Two shapes, each pixel known but for a tenth of the flips.
    best = -np.log(2) + 8 * (0.9 * np.log(0.9) + 0.1 * np.log(0.1))
    assert scores[2] > best - 0.3
    errors = runs[-1].reconstruction_errors
    assert errors.shape == (100,)
    assert errors[-20:].mean() < errors[:5].mean()


def test_the_visible_bias_starts_at_the_log_odds():
    masks = toy_masks()
    masks[:, 0] = 1
    found = pretrain(masks, 2, n_epochs=1, step_size=1e-8)
    share = (masks.sum(0) + 1) / (len(masks) + 2)
    np.testing.assert_allclose(
        found.visible_bias, np.log(share / (1 - share)), rtol=1e-4, atol=1e-5
    )
    assert found.patterns.temperature == 1
    assert found.patterns.composition == "sum"
    assert {part.dtype for part in (*found.patterns.parameters.values(), found.visible_bias)} == {
        np.dtype(np.float32)
    }


def test_seeds_and_shapes():
    masks = toy_masks(30)
    one, same, other, as_images = (
        pretrain(given, 3, seed=seed, **QUICK)
        for given, seed in ((masks, 1), (masks, 1), (masks, 2), (masks.reshape(30, 2, 4), 1))
    )
    for found in (same, as_images):
        np.testing.assert_array_equal(one.patterns.weights, found.patterns.weights)
        np.testing.assert_array_equal(one.visible_bias, found.visible_bias)
    assert (one.patterns.weights != other.patterns.weights).any()
    np.testing.assert_array_equal(
        one.patterns.weights, pretrain(masks.astype(bool), 3, seed=1, **QUICK).patterns.weights
    )


def test_weight_decay_shrinks_the_weights():
    options = {"n_epochs": 100, "batch_size": 20}
    runs = [pretrain(toy_masks(), 4, l2=decay, **options) for decay in (0.0, 0.03, 3.0)]
    sizes = [np.square(found.patterns.weights).sum() for found in runs]
    assert sizes[0] > 1.2 * sizes[1] > 100 * sizes[2]


def test_penalties_pull_along_their_slopes():
    """Central differences, in float64, of l2 / 2 |W|^2 + strength sum_j CE(target, q_j): where all
    masks of a batch are one, the share q_j is that of a single unit and the slope is exact.
    """
    rng = np.random.default_rng(0)
    weights, bias = rng.normal(size=(5, 3)), rng.normal(size=3)
    mask = np.array([1.0, 0, 1, 1, 0])
    l2, target, strength = 0.3, 0.2, 0.7

    def penalty(vector):
        w, c = vector[:15].reshape(5, 3), vector[15:]
        q = 1 / (1 + np.exp(-(mask @ w + c)))
        entropies = -(target * np.log(q) + (1 - target) * np.log(1 - q))
        return l2 / 2 * (w**2).sum() + strength * entropies.sum()

    machine = Machine(*(a.astype(np.float32) for a in (weights, np.zeros(5), bias)))
    gradient = Machine(*(np.zeros_like(part) for part in machine.parts))
    batch = np.tile(mask, (4, 1)).astype(np.float32)
    _Penalties(l2, target, strength).apply(gradient, machine, batch)
    wanted = -central_differences(penalty, np.concatenate([weights.ravel(), bias]))
    np.testing.assert_allclose(gradient.weights, wanted[:15].reshape(5, 3), atol=1e-5)
    np.testing.assert_allclose(gradient.hidden_bias, wanted[15:], atol=1e-5)
    assert not gradient.visible_bias.any()


@pytest.mark.parametrize("target", [0.05, 0.4])
def test_units_become_as_active_as_asked(target):
    masks = toy_masks()
    found = pretrain(
        masks, 6, n_epochs=100, batch_size=20, sparsity_target=target, sparsity_weight=20
    )
    assert found.patterns.expected_hidden(masks).mean(0) == pytest.approx(target, abs=0.02)
    free = pretrain(masks, 6, n_epochs=100, batch_size=20)
    assert np.abs(free.patterns.expected_hidden(masks).mean(0) - target).max() > 0.1


def test_clusters_are_a_mixture():
    """log p(v) = log sum_k mu_k prod_i q_ki^v_i (1 - q_ki)^(1 - v_i)."""
    masks = toy_masks(40)
    found = pretrain(masks, 3, composition="min", smoothing=0.5, seed=3)
    assert found.patterns.composition == "min"
    states = reference.binary_states(8)
    assert np.logaddexp.reduce(found.log_scores(states)) == pytest.approx(0, abs=1e-4)
    q = 1 / (1 + np.exp(-found.patterns.weights.T.astype(np.float64)))
    shares = np.exp(found.patterns.bias - np.log1p(-q).sum(1))
    np.testing.assert_allclose(shares * 40, np.round(shares * 40), atol=1e-3)
    assert shares.sum() == pytest.approx(1, abs=1e-4)
    mean = (masks.sum(0) + 1) / 42
    sums = (shares * 40 + 0.5)[:, None] * q - 0.5 * mean
    np.testing.assert_allclose(sums.sum(0), masks.sum(0), atol=1e-3)


def test_two_clusters_are_the_two_shapes():
    found = pretrain(toy_masks(), 2, composition="min")
    shapes = {tuple(row) for row in (found.patterns.weights.T > 0).astype(int)}
    assert shapes == {(1, 1, 1, 0, 0, 0, 1, 0), (0, 0, 1, 1, 1, 1, 0, 0)}
    # Copies of one mask cannot fill several clusters.
    assert pretrain(np.ones((5, 4)), 3, composition="min").patterns.n_hidden == 1


@pytest.mark.parametrize("bad", [
    {"masks": np.full((4, 6), 0.5)}, {"masks": np.full((4, 6), 2)},
    {"masks": np.full((4, 6), np.nan)}, {"masks": np.zeros(6)}, {"masks": np.zeros((0, 6))},
    {"masks": np.zeros((2, 2, 2, 2))}, {"masks": [[0, 1], [1]]}, {"masks": "masks"},
    {"n_hidden": 0}, {"n_hidden": 2.5}, {"n_epochs": 0}, {"batch_size": 0}, {"n_steps": 0},
    {"n_particles": 0}, {"seed": -1}, {"step_size": 0}, {"step_size": np.nan},
    {"momentum": 1}, {"momentum": -0.1}, {"l2": -1}, {"sparsity_target": 0},
    {"sparsity_target": 1}, {"sparsity_weight": -1}, {"composition": "max"},
    {"n_hidden": 99, "composition": "min"}, {"smoothing": 0, "composition": "min"},
])
def test_refused(bad):
    arguments = {"masks": np.eye(6), "n_hidden": 2, "n_epochs": 1, **bad}
    assert next(iter(bad)) in refusal(pretrain, **arguments)


def test_a_learning_rate_that_overflows_is_refused():
    assert "step_size" in refusal(pretrain, toy_masks(), 4, n_epochs=50, step_size=1e38)


def test_what_memory_cannot_hold_is_refused_at_once():
    for options in ({"n_hidden": 10**13}, {"persistent": True, "n_particles": 10**13}):
        message = refusal(pretrain, toy_masks(), **{"n_hidden": 3, "n_epochs": 1} | options)
        assert "GiB" in message


def test_mask_scores():
    labels = np.zeros((4, 2, 2), int)
    masks = labels.copy()
    labels[1, 0, 0] = masks[2, 0, 0] = 1
    labels[3, 0] = masks[3, :, 0] = 1
    np.testing.assert_allclose(mask_scores(labels, masks), [1, 0, 0, 1 / 3])
    assert "shape" in refusal(mask_scores, labels, masks[:2])
    assert "0 and 1" in refusal(mask_scores, labels + 2, masks)


def noisy_squares(n=12, side=8):
    """Squares seen through noise, with costs that are too small to be trusted."""
    rng = np.random.default_rng(2)
    masks = np.zeros((n, side, side), np.uint8)
    masks[:, 2:6, 2:6] = 1
    seen = masks + 0.7 * rng.normal(size=masks.shape)
    costs = np.stack([seen, 1 - seen], -1).astype(np.float32)
    return PatternInputs(costs, np.ones((1, 2, 2, side, side), np.float32)), masks


def test_tradeoffs_raise_the_score_and_say_how():
    inputs, masks = noisy_squares()
    model = PatternCRF(None, pairwise_weights=[0.01, 0.01], grid=(8, 8))
    found = choose_tradeoffs(model, inputs, masks)
    before = mask_scores(infer(model, inputs).labels, masks).mean()
    after = mask_scores(infer(found.model, inputs).labels, masks).mean()
    assert found.evaluations[0].score == before
    assert found.best.score == after > before + 0.05
    assert found.best in found.evaluations
    assert found.model.unary_weight == 1  # only ratios count without patterns
    tried = [(e.unary_weight, e.pairwise_weights, e.pattern_scale) for e in found.evaluations]
    assert len(set(tried)) == len(tried)
    again = choose_tradeoffs(model, inputs, masks)
    assert again.evaluations == found.evaluations
    few = choose_tradeoffs(model, inputs, masks, max_evaluations=3)
    assert few.evaluations == found.evaluations[:3]
    np.testing.assert_array_equal(few.model.pairwise_weights, few.best.pairwise_weights)


def test_tradeoffs_with_patterns():
    inputs, masks = noisy_squares()
    trained = pretrain(masks, 2, n_epochs=20)
    model = PatternCRF(
        trained.patterns, visible_bias=trained.visible_bias, pairwise_weights=[0.1, 0.1],
        unary_weight=30, grid=(8, 8),
    )
    found = choose_tradeoffs(model, inputs, masks)
    assert found.best.score > found.evaluations[0].score
    assert found.model.patterns is model.patterns
    scaled = choose_tradeoffs(model, inputs, masks, scale_patterns=True, max_evaluations=60)
    factor = scaled.best.pattern_scale
    np.testing.assert_allclose(
        scaled.model.patterns.weights, factor * model.patterns.weights, rtol=1e-6
    )
    np.testing.assert_allclose(scaled.model.visible_bias, factor * model.visible_bias, rtol=1e-6)
    assert any(each.pattern_scale != 1 for each in scaled.evaluations)


def test_another_score():
    inputs, masks = noisy_squares()
    model = PatternCRF(None, pairwise_weights=[0.1, 0.0], grid=(8, 8))
    found = choose_tradeoffs(
        model, inputs, masks, score=lambda labels, masks: (labels == masks).mean((1, 2))
    )
    labels = infer(found.model, inputs).labels
    assert found.best.score == pytest.approx((labels == masks).mean())


def test_refused_tradeoffs():
    inputs, masks = noisy_squares()
    model = PatternCRF(None, pairwise_weights=[0.1, 0.1], grid=(8, 8))
    assert "model" in refusal(choose_tradeoffs, None, inputs, masks)
    assert "inputs" in refusal(choose_tradeoffs, model, inputs.costs, masks)
    assert refusal(choose_tradeoffs, model, inputs, masks[:3]).startswith("masks must have shape")
    assert refusal(choose_tradeoffs, model, inputs, masks + 1).startswith("masks must be whole")
    for option in (
        {"max_evaluations": 0}, {"min_gain": np.nan}, {"min_gain": -1},
        {"score": lambda labels, masks: np.full(12, np.nan)},
    ):
        assert next(iter(option)) in refusal(choose_tradeoffs, model, inputs, masks, **option)
    for bad in ("x", None, np.zeros(3)):
        message = refusal(choose_tradeoffs, model, inputs, masks, score=lambda *a, bad=bad: bad)
        assert "score must give a number for each of 12 images" in message
    without = PatternCRF(None, unary_weight=0, pairwise_weights=[1, 1], grid=(8, 8))
    assert "unary" in refusal(choose_tradeoffs, without, inputs, masks)


def test_tiles():
    weights = np.zeros((6, 3))
    weights[0, 0], weights[:, 1] = -2, 1
    tiles = np.asarray(pattern_tiles(Patterns(weights, 0), (2, 3), columns=2, scale=1))
    assert tiles.shape == (2 * 2 + 2, 2 * 3 + 2, 3)
    np.testing.assert_array_equal(tiles[:2, :3], np.full((2, 3, 3), [37, 99, 215]))
    np.testing.assert_array_equal(tiles[0, 5], [200, 52, 60])
    assert (tiles[:2, 6:] == 255).all()
    assert (tiles[4:] == 255).all()
    masks = np.asarray(mask_tiles([[[0, 1]]], scale=3))
    assert masks.shape == (3, 6, 3)
    assert (masks[:, :3] > masks[:, 3:]).all()
    assert "grid must have as many pixels" in refusal(pattern_tiles, Patterns(weights, 0), (3, 3))
    windows = ConvolutionalPatterns(np.zeros((2, 2, 1)), 0, (2, 3))
    message = refusal(pattern_tiles, windows, (2, 3))
    assert "got ConvolutionalPatterns" in message
    assert "to_dense()" in message
    assert "patterns" in refusal(pattern_tiles, weights, (2, 3))
    assert "masks" in refusal(mask_tiles, weights)
