"""Expected-loss training against enumeration: gradients, estimates, and runs that go on."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import pattern_reference as reference
from crfield.patterns import (
    ConvolutionalPatterns,
    PatternCRF,
    PatternInputs,
    Patterns,
    infer,
    learn_patterns,
)
from crfield.patterns import learning as learning_module
from crfield.patterns.learning import (
    expected_loss_scale,
    parameters_of,
    weighted_scores,
    with_parameters,
)
from crfield.patterns.measures import hamming_loss, iou_loss, mask_scores
from crfield.patterns.sampling import HIDDEN_UNITS, ORDER_OF_IMAGES, Chains
from refusal import refusal

GRID = (2, 3)
STATES = reference.binary_states(6)
MASK = np.array([0, 1, 1, 0, 1, 0])


def make(seed=0, kind="dense", n=1):
    rng = np.random.default_rng(seed)
    inputs = PatternInputs(
        rng.normal(size=(n, *GRID, 2)), rng.random((n, 2, 2, *GRID)), rng.normal(size=(n, 2))
    )
    options = {"image_weights": 0.5 * rng.normal(size=(2, 2))}
    if kind == "windows":
        patterns = ConvolutionalPatterns(rng.normal(size=(2, 2, 2)), 0.2, GRID, **options)
    else:
        if kind == "min":
            options["composition"] = "min"
        patterns = Patterns(rng.normal(size=(6, 2)), rng.normal(size=2), **options)
    model = PatternCRF(
        patterns, unary_weight=0.7, pairwise_weights=[0.5, 0.9],
        visible_bias=0.3 * rng.normal(size=6), grid=GRID,
    )
    return model, inputs


def distribution(model, inputs):
    """p(y | x) of all labelings of the one image."""
    every = inputs.take(np.zeros(len(STATES), int))
    energies = model.energies(STATES, every)
    p = np.exp(energies.min() - energies)
    return p / p.sum(), every


def expected_loss(model, inputs, loss):
    p, _ = distribution(model, inputs)
    return p @ loss(STATES, np.broadcast_to(MASK, STATES.shape))


def exact_gradient(model, inputs, loss):
    """Eq. 13."""
    p, every = distribution(model, inputs)
    losses = loss(STATES, np.broadcast_to(MASK, STATES.shape))
    return weighted_scores(model, every, STATES, p * (losses - p @ losses))


@pytest.mark.parametrize("loss", [iou_loss, hamming_loss])
@pytest.mark.parametrize("kind", ["dense", "min", "windows"])
def test_the_gradient_is_that_of_the_expected_loss(kind, loss):
    model, inputs = make(1, kind)
    gradient = exact_gradient(model, inputs, loss)
    parameters = parameters_of(model)
    assert set(gradient) == set(parameters)
    for name, value in parameters.items():
        assert gradient[name].shape == value.shape
        for index in np.ndindex(value.shape):
            moved = []
            for step in (1e-5, -1e-5):
                other = value.copy()
                other[index] += step
                changed = with_parameters(model, parameters | {name: other})
                moved.append(expected_loss(changed, inputs, loss))
            assert gradient[name][index] == pytest.approx(
                (moved[0] - moved[1]) / 2e-5, rel=1e-6, abs=1e-9
            )


def test_energies_are_those_of_the_definition():
    """The distribution above rests on the model's energies; these are checked by themselves."""
    model, inputs = make(2)
    bias = model.patterns.bias + inputs.features[0] @ model.patterns.image_weights
    _, every = distribution(model, inputs)
    for y, energy in zip(STATES, model.energies(STATES, every), strict=True):
        expected = reference.base_energy(
            y.reshape(GRID), inputs.costs[0], inputs.pairwise[0], 0.7, [0.5, 0.9]
        ) - y @ model.visible_bias + reference.potential(
            y, model.patterns.weights, bias, 1.0, reference.hidden_states(2)
        )
        assert energy == pytest.approx(expected, rel=1e-12)


def test_estimates_from_samples_are_unbiased():
    """Eq. 15 with two samples an image, drawn by chains that have the right distribution."""
    model, inputs = make(3)
    p, _ = distribution(model, inputs)
    n = 40_000
    rng = np.random.default_rng(0)
    first = STATES[rng.choice(len(STATES), 2 * n, p=p)].reshape(n, 2, *GRID)
    many = inputs.take(np.zeros(n, int))
    samples = Chains(first, seed=1).advance(model, many).reshape(n * 2, 6)
    losses = iou_loss(samples, np.broadcast_to(MASK, samples.shape)).reshape(n, 2)
    scale = expected_loss_scale(losses)
    exact = exact_gradient(model, inputs, iou_loss)
    twice = many.take(np.repeat(np.arange(n), 2))
    estimate = weighted_scores(model, twice, samples, scale.ravel() / n)
    # The spread of single estimates, from sums over parts of the images.
    n_parts = 40
    size = 2 * n // n_parts
    parts = []
    for k in range(n_parts):
        rows = slice(k * size, (k + 1) * size)
        parts.append(weighted_scores(
            model, twice.take(np.arange(2 * n)[rows]), samples[rows],
            scale.ravel()[rows] / (n / n_parts),
        ))
    for name, value in exact.items():
        spread = np.std([part[name] for part in parts], axis=0) / np.sqrt(n_parts)
        assert (np.abs(estimate[name] - value) < 4.5 * spread + 1e-12).all(), name
        assert np.abs(estimate[name]).max() > 4 * np.max(spread), f"{name} is all noise"


def few_images(n=12, seed=0, dtype=np.float32):
    """Bars on a 4 x 4 grid with noisy costs."""
    rng = np.random.default_rng(seed)
    masks = np.zeros((n, 4, 4), np.uint8)
    masks[np.arange(n), rng.integers(0, 4, n)] = 1
    masks[::3] |= 1 & np.eye(4, dtype=np.uint8)
    noisy = masks - 0.5 + 0.7 * rng.normal(size=masks.shape)
    costs = np.stack([noisy, -noisy], -1).astype(dtype)
    inputs = PatternInputs(costs, np.ones((1, 1, 2, 4, 4)), rng.normal(size=(n, 3)))
    patterns = Patterns(
        0.1 * rng.normal(size=(16, 5)).astype(dtype), 0.0, image_weights=np.zeros((3, 5))
    )
    return PatternCRF(patterns, pairwise_weights=[0.3], grid=(4, 4)), inputs, masks


def mean_loss(model, inputs, masks):
    """The expected IoU loss, all labelings of each image taken into account."""
    states = reference.binary_states(16)
    total = 0.0
    for k, mask in enumerate(masks):
        energies = model.energies(states, inputs.take(np.full(len(states), k)))
        p = np.exp(energies.min() - energies)
        total += p @ iou_loss(states, np.broadcast_to(mask.ravel(), states.shape)) / p.sum()
    return total / len(masks)


@pytest.mark.slow
def test_training_lowers_the_expected_loss():
    model, inputs, masks = few_images(6)
    found = learn_patterns(
        model, inputs, masks, n_epochs=150, batch_size=6, n_chains=4, step_size=0.05
    )
    before, after = mean_loss(model, inputs, masks), mean_loss(found.model, inputs, masks)
    assert after < 0.6 * before
    assert found.losses[-10:].mean() < 0.7 * found.losses[:10].mean()
    assert found.best_epoch == 150
    moved = parameters_of(found.model)
    for name, value in parameters_of(model).items():
        assert not np.array_equal(moved[name], value), name


@pytest.mark.slow
def test_contrastive_divergence_raises_the_likelihood():
    model, inputs, masks = few_images(6)
    found = learn_patterns(
        model, inputs, masks, objective="contrastive_divergence", n_chains=1, n_epochs=40,
        batch_size=6, step_size=0.02,
    )

    def log_likelihood(one):
        states = reference.binary_states(16)
        total = 0.0
        for k, mask in enumerate(masks):
            energies = one.energies(states, inputs.take(np.full(len(states), k)))
            own = one.energies(mask.reshape(1, 16), inputs.take([k]))[0]
            total += -own - np.logaddexp.reduce(-energies)
        return total / len(masks)

    assert log_likelihood(found.model) > log_likelihood(model) + 1.0


def test_only_what_is_asked_for_moves():
    model, inputs, masks = few_images()
    found = learn_patterns(
        model, inputs, masks, n_epochs=2, learn=["bias", "unary_weight"], loss="hamming"
    )
    before, after = parameters_of(model), parameters_of(found.model)
    moved = {name for name in before if not np.array_equal(before[name], after[name])}
    assert moved == {"bias", "unary_weight"}


def test_the_penalty_shrinks_patterns_and_image_weights_alone():
    """After one step the runs with and without differ by the share step_size l2 of the start."""
    model, inputs, masks = few_images(dtype=np.float64)
    rng = np.random.default_rng(1)
    patterns = dataclasses.replace(model.patterns, image_weights=rng.normal(size=(3, 5)))
    model = dataclasses.replace(model, patterns=patterns)
    plain, pulled = (
        parameters_of(learn_patterns(model, inputs, masks, n_epochs=1, step_size=0.01, l2=l2).model)
        for l2 in (0.0, 3.0)
    )
    for name, start in parameters_of(model).items():
        share = 0.03 if name in ("weights", "image_weights") else 0.0
        np.testing.assert_allclose(plain[name] - pulled[name], share * start, atol=1e-12)


def test_pairwise_weights_of_zero_can_be_learned():
    model, inputs, masks = few_images()
    model = dataclasses.replace(model, pairwise_weights=[0.0], unary_weight=2.0)
    found = learn_patterns(model, inputs, masks, n_epochs=1)
    assert found.model.pairwise_weights[0] == pytest.approx(0.02, rel=0.01)
    fixed = learn_patterns(model, inputs, masks, n_epochs=1, learn=["weights"])
    assert fixed.model.pairwise_weights[0] == 0


def test_image_weights_start_at_zero_and_models_print_short():
    model, inputs, masks = few_images()
    more = model.with_image_weights(3)
    assert np.array_equal(more.energies(masks, inputs), model.energies(masks, inputs))
    assert repr(more) == (
        "PatternCRF(Patterns(5 hidden units over 16 labels, sum, 3 features), unary_weight=1, "
        "pairwise_weights=[0.3], grid=(4, 4))"
    )
    assert "must have patterns" in refusal(model.pairwise_only().with_image_weights, 3)


def test_any_loss_and_convolutional_patterns():
    _, inputs, masks = few_images()
    patterns = ConvolutionalPatterns(
        0.1 * np.random.default_rng(0).normal(size=(2, 2, 3)).astype(np.float32), 0.0, (4, 4)
    )
    model = PatternCRF(patterns, pairwise_weights=[0.3])
    asked = []

    def missed(labels, truth):
        asked.append(labels.shape)
        return ((truth == 1) & (labels == 0)).mean(1)

    found = learn_patterns(model, inputs, masks, loss=missed, n_epochs=3, step_size=0.05)
    assert asked[0] == (24, 16)
    assert found.model.patterns.weights.shape == (2, 2, 3)
    assert not np.array_equal(found.model.patterns.weights, patterns.weights)


def test_validation_chooses_the_epoch():
    model, inputs, masks = few_images(24)
    held_out = (inputs.take(np.arange(16, 24)), masks[16:])
    found = learn_patterns(
        model, inputs.take(np.arange(16)), masks[:16], validation=held_out, n_epochs=12,
        step_size=0.03, batch_size=4,
    )
    assert len(found.scores) == 13
    assert found.best_epoch == found.scores.argmax()
    labels = infer(found.model, held_out[0]).labels
    assert mask_scores(labels, masks[16:]).mean() == found.scores.max()


def same(one, other):
    a, b = (
        {f: getattr(x, f) for f in ("losses", "scores", "best_epoch")}
        | {f"{m}.{k}": v for m in ("model", "last_model")
           for k, v in parameters_of(getattr(x, m)).items()}
        for x in (one, other)
    )
    return all(np.array_equal(a[name], b[name]) for name in a)


def test_a_run_that_was_killed_goes_on_to_the_same_result(tmp_path, monkeypatch):
    model, inputs, masks = few_images()
    options = {
        "validation": (inputs, masks), "n_epochs": 5, "batch_size": 5, "step_size": 0.01,
    }
    whole = learn_patterns(model, inputs, masks, **options)
    path = tmp_path / "run.safetensors"
    run_epoch = learning_module._run_epoch

    def dies(model, task, state):
        if state.epoch == 3:
            raise KeyboardInterrupt
        return run_epoch(model, task, state)

    monkeypatch.setattr(learning_module, "_run_epoch", dies)
    with pytest.raises(KeyboardInterrupt):
        learn_patterns(model, inputs, masks, checkpoint=path, **options)
    monkeypatch.undo()
    done = []
    monkeypatch.setattr(
        learning_module, "_run_epoch", lambda *a: done.append(1) or run_epoch(*a)
    )
    again = learn_patterns(model, inputs, masks, checkpoint=path, **options)
    assert len(done) == 2
    assert same(again, whole)
    longer = learn_patterns(model, inputs, masks, checkpoint=path, **options | {"n_epochs": 6})
    assert len(longer.losses) == 6


def test_a_checkpoint_of_something_else_is_refused(tmp_path):
    model, inputs, masks = few_images()
    path = tmp_path / "run.safetensors"
    learn_patterns(model, inputs, masks, n_epochs=1, checkpoint=path)
    again = {"n_epochs": 1, "checkpoint": path}
    message = refusal(learn_patterns, model, inputs, 1 - masks, **again)
    assert "other data" in message
    assert "without resuming" in message
    message = refusal(learn_patterns, model, inputs, masks, step_size=0.5, **again)
    assert "other step_size" in message
    message = refusal(learn_patterns, model, inputs, masks, validation=(inputs, masks), **again)
    assert "other data" in message
    for changed in (
        {"sparsity": 0.5}, {"max_active": 2}, {"composition": "min"},
        {"weights": model.patterns.weights * np.float32(1.5)},
        {"weights": model.patterns.weights.astype(np.float64)},
    ):
        other = dataclasses.replace(model.patterns, **changed)
        message = refusal(
            learn_patterns, dataclasses.replace(model, patterns=other), inputs, masks, **again
        )
        assert "other model" in message, changed
    other = dataclasses.replace(model, unary_weight=2.0)
    assert "other model" in refusal(learn_patterns, other, inputs, masks, **again)
    learn_patterns(model, inputs, masks, n_epochs=2, checkpoint=path)
    assert "at least 2" in refusal(learn_patterns, model, inputs, masks, **again)
    learn_patterns(model, inputs, 1 - masks, resume=False, **again)
    path.write_bytes(path.read_bytes()[:-100])
    assert "run.safetensors" in refusal(learn_patterns, model, inputs, 1 - masks, **again)


def test_a_checkpoint_of_other_windows_is_refused(tmp_path):
    """Windows and biases say nothing of stride and grid."""
    _, inputs, masks = few_images()
    windows = np.full((2, 2, 3), 0.1, np.float32)
    again = {"n_epochs": 1, "checkpoint": tmp_path / "run.safetensors"}

    def with_stride(stride):
        patterns = ConvolutionalPatterns(windows, 0.0, (4, 4), stride)
        return PatternCRF(patterns, pairwise_weights=[0.3])

    learn_patterns(with_stride(1), inputs, masks, **again)
    assert "other model" in refusal(learn_patterns, with_stride(2), inputs, masks, **again)


class Wrong:
    @staticmethod
    def loss(labels, masks):
        return (labels != masks).mean(1)

    def __call__(self, labels, masks):
        return self.loss(labels, masks)


class Right:
    @staticmethod
    def loss(labels, masks):
        return (labels == masks).mean(1)


def test_a_checkpoint_of_another_loss_is_refused(tmp_path):
    model, inputs, masks = few_images()
    losses = ["iou", "hamming", Wrong.loss, Right.loss, Wrong()]
    for number, loss in enumerate(losses):
        again = {"n_epochs": 1, "checkpoint": tmp_path / f"{number}.safetensors"}
        learn_patterns(model, inputs, masks, loss=loss, **again)
        learn_patterns(model, inputs, masks, loss=loss, **again)
        other = losses[number - 1]
        assert "other loss" in refusal(learn_patterns, model, inputs, masks, loss=other, **again)


def test_a_unary_weight_that_is_not_learned_may_be_any():
    model, inputs, masks = few_images()
    for weight in (0.0, -0.5):
        start = dataclasses.replace(model, unary_weight=weight, pairwise_weights=[0.0])
        for objective in ("expected_loss", "contrastive_divergence"):
            found = learn_patterns(
                start, inputs, masks, learn=["weights", "pairwise_weights"], n_epochs=2,
                objective=objective,
            ).model
            assert found.unary_weight == weight
            assert found.pairwise_weights[0] == pytest.approx(0.01, rel=0.01)
            assert not np.array_equal(found.patterns.weights, start.patterns.weights)


@pytest.mark.parametrize(("learn", "rate"), [
    (["weights"], 2e30), (["bias"], 1e300), (["unary_weight"], 1e3), (["pairwise_weights"], 1e3),
    (["weights", "unary_weight"], 1e30),
])
def test_learning_that_runs_away_is_noticed(learn, rate, tmp_path):
    model, inputs, masks = few_images()
    path = tmp_path / "run.safetensors"
    message = refusal(
        learn_patterns, model, inputs, masks, learn=learn, step_size=rate, checkpoint=path
    )
    assert "step_size must be small enough" in message
    assert not path.exists()


def test_what_memory_cannot_hold_is_refused_at_once():
    model, inputs, masks = few_images()
    assert "GiB" in refusal(learn_patterns, model, inputs, masks, n_chains=10**13)


def test_order_and_hidden_units_have_streams_of_their_own():
    """NumPy takes [s, 1] and [s, 1, 0] for the same seed."""
    assert HIDDEN_UNITS != ORDER_OF_IMAGES
    first = [
        np.random.default_rng([what, 5, number]).random()
        for what in (HIDDEN_UNITS, ORDER_OF_IMAGES) for number in range(20)
    ]
    assert len(set(first)) == 40


@pytest.mark.parametrize(("change", "words"), [
    ({"masks": np.full((12, 4, 4), 3)}, ["masks", "0 and 1", "got 3"]),
    ({"masks": np.zeros((11, 4, 4))}, ["masks", "(12)", "got 11"]),
    ({"masks": np.zeros((12, 4, 5))}, ["masks", "(B, 16)"]),
    ({"n_chains": 1}, ["n_chains", "at least 2"]),
    ({"loss": "dice"}, ["loss", "'iou'"]),
    ({"objective": "likelihood"}, ["objective", "'expected_loss'"]),
    ({"learn": ["W"]}, ["learn", "'weights'"]),
    ({"step_size": 0.0}, ["step_size", "positive"]),
    ({"batch_size": 0}, ["batch_size", "at least 1"]),
    ({"learn": None}, ["learn must be some of", "None"]),
    ({"loss": lambda labels, masks: 3.0}, ["loss", "one finite number", "3.0"]),
    ({"loss": lambda labels, masks: np.full(len(labels), np.nan)}, ["loss", "finite"]),
    ({"checkpoint": "missing/folder/run"}, ["cannot write", "missing"]),
    ({"validation": np.zeros((12, 4, 4))}, ["validation", "pair"]),
    ({"temperature": 0.5}, ["temperature must be 1", "0.5"]),
    ({"unary_weight": -1.0}, ["unary_weight", "positive"]),
])
def test_wrong_input_is_refused(change, words):
    model, inputs, masks = few_images()
    change = dict(change)
    if "temperature" in change:
        model = model.at_temperature(change.pop("temperature"))
    if "unary_weight" in change:
        model = dataclasses.replace(model, unary_weight=change.pop("unary_weight"))
    given = change.pop("masks", masks)
    message = refusal(learn_patterns, model, inputs, given, **{"n_epochs": 1} | change)
    assert all(word in message for word in words), message
