"""Expected-loss training against enumeration: gradients, estimates, and runs that go on."""

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
from pattern_problems import GRID, random_problem
from refusal import refusal

STATES = reference.binary_states(6)
MASK = np.array([0, 1, 1, 0, 1, 0])
ALL_MASKS = reference.binary_states(16)


def distribution(model, inputs):
    """p(y | x) of all labelings of the one image."""
    every = inputs.take(np.zeros(len(STATES), int))
    return reference.distribution(model.energies(STATES, every)), every


def expected_loss(model, inputs, loss):
    p, _ = distribution(model, inputs)
    return p @ loss(STATES, np.broadcast_to(MASK, STATES.shape))


def exact_gradient(model, inputs, loss):
    """Eq. 13."""
    p, every = distribution(model, inputs)
    losses = loss(STATES, np.broadcast_to(MASK, STATES.shape))
    return weighted_scores(model, every, STATES, p * (losses - p @ losses))


@pytest.mark.parametrize("loss", [iou_loss, hamming_loss])
@pytest.mark.parametrize("options", [{}, {"composition": "min"}, {"windows": True}])
def test_the_gradient_is_that_of_the_expected_loss(options, loss):
    model, inputs = random_problem(1, n=1, n_hidden=2, **options)
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
    model, inputs = random_problem(2, n=1, n_hidden=2)
    expected = [reference.energy(model, inputs, 0, y.reshape(GRID)) for y in STATES]
    _, every = distribution(model, inputs)
    np.testing.assert_allclose(model.energies(STATES, every), expected, rtol=1e-12)


def test_estimates_from_samples_are_unbiased():
    """Eq. 15 with two samples an image, drawn by chains that have the right distribution."""
    model, inputs = random_problem(3, n=1, n_hidden=2)
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
    parts = [
        weighted_scores(model, twice.take(rows), samples[rows], scale.ravel()[rows] * n_parts / n)
        for rows in np.split(np.arange(2 * n), n_parts)
    ]
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


def all_energies(model, inputs):
    """Energies of ALL_MASKS, one row per image."""
    return [
        model.energies(ALL_MASKS, inputs.take(np.full(len(ALL_MASKS), image)))
        for image in range(len(inputs))
    ]


def mean_loss(model, inputs, masks):
    """The expected IoU loss, all labelings of each image taken into account."""
    losses = []
    for mask, energies in zip(masks, all_energies(model, inputs), strict=True):
        truth = np.broadcast_to(mask.ravel(), ALL_MASKS.shape)
        losses.append(reference.distribution(energies) @ iou_loss(ALL_MASKS, truth))
    return np.mean(losses)


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
        log_z = [np.logaddexp.reduce(-energies) for energies in all_energies(one, inputs)]
        return np.mean(-one.energies(masks, inputs) - log_z)

    assert log_likelihood(found.model) > log_likelihood(model) + 1.0


@pytest.mark.parametrize("n_chains", [1, 2, 4])
def test_chains_that_stay_at_the_truth_have_nothing_to_say(n_chains):
    """Contrastive divergence is 0 there: the mean over chains, less the truth itself."""
    model, _, masks = few_images(8, dtype=np.float64)
    certain = 99.0 * (2.0 * masks - 1)
    inputs = PatternInputs(np.stack([certain, -certain], -1), np.ones((1, 1, 2, 4, 4)))
    plain = dataclasses.replace(
        model, patterns=dataclasses.replace(model.patterns, image_weights=None)
    )
    found = learn_patterns(
        plain, inputs, masks, objective="contrastive_divergence", n_chains=n_chains, n_epochs=1,
        step_size=0.1,
    )
    assert found.losses.tolist() == [0.0]
    moved = parameters_of(found.model)
    for name, value in parameters_of(plain).items():
        np.testing.assert_allclose(moved[name], value, atol=1e-4, err_msg=name)


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


def test_of_epochs_that_are_as_good_the_first_is_kept():
    """Masks that the costs are sure of: no epoch can do better than the start."""
    model, _, masks = few_images(8)
    certain = 99.0 * (2.0 * masks - 1)
    inputs = PatternInputs(
        np.stack([certain, -certain], -1), np.ones((1, 1, 2, 4, 4)), np.ones((8, 3))
    )
    found = learn_patterns(model, inputs, masks, validation=(inputs, masks), n_epochs=2)
    assert found.scores.tolist() == [1.0, 1.0, 1.0]
    assert found.best_epoch == 0


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
    options = {"validation": (inputs, masks), "n_epochs": 5, "batch_size": 5, "step_size": 0.01}
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
    monkeypatch.setattr(learning_module, "_run_epoch", lambda *a: done.append(1) or run_epoch(*a))
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
    for what, change in (
        ("step_size", {"step_size": 0.5}), ("data", {"validation": (inputs, masks)}),
    ):
        assert f"other {what}" in refusal(learn_patterns, model, inputs, masks, **change, **again)
    for changed in (
        {"sparsity": 0.5}, {"max_active": 2}, {"composition": "min"},
        {"weights": model.patterns.weights * np.float32(1.5)},
        {"weights": model.patterns.weights.astype(np.float64)},
    ):
        patterns = dataclasses.replace(model.patterns, **changed)
        other = dataclasses.replace(model, patterns=patterns)
        assert "other model" in refusal(learn_patterns, other, inputs, masks, **again), changed
    other = dataclasses.replace(model, unary_weight=2.0)
    assert "other model" in refusal(learn_patterns, other, inputs, masks, **again)
    learn_patterns(model, inputs, masks, n_epochs=2, checkpoint=path)
    assert "at least 2" in refusal(learn_patterns, model, inputs, masks, **again)
    learn_patterns(model, inputs, 1 - masks, resume=False, **again)
    path.write_bytes(path.read_bytes()[:-100])
    assert "run.safetensors" in refusal(learn_patterns, model, inputs, 1 - masks, **again)


def test_a_checkpoint_replaces_nothing_else(tmp_path, monkeypatch):
    model, inputs, masks = few_images()
    path = tmp_path / "photo.png"
    path.write_bytes(b"\x89PNG precious")
    monkeypatch.setattr(learning_module, "_run_epoch", lambda *_: pytest.fail("learning began"))
    for resume, reason in ((False, "must be a new file or replace"), (True, "another run")):
        options = {"checkpoint": path, "resume": resume}
        assert reason in refusal(learn_patterns, model, inputs, masks, **options)
    assert path.read_bytes() == b"\x89PNG precious"


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
    ({"model": few_images()[0].at_temperature(0.5)}, ["temperature must be 1", "0.5"]),
    ({"model": dataclasses.replace(few_images()[0], unary_weight=-1.0)},
     ["unary_weight", "positive"]),
])
def test_wrong_input_is_refused(change, words):
    model, inputs, masks = few_images()
    given = {"model": model, "inputs": inputs, "masks": masks, "n_epochs": 1} | change
    message = refusal(learn_patterns, **given)
    assert all(word in message for word in words), message
