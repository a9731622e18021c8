from importlib import resources
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from crfield import Bilateral, DenseCRF, FeatureKernel, Pairwise, Potts, Spatial
from crfield.datasets import (
    Shrunk,
    coarsen,
    load_sample,
    noisy_probabilities,
    sample_names,
    synthetic_scenes,
)
from crfield.metrics import confusion_matrix, mean_iou, pixel_accuracy
from refusal import refusal

masks = hnp.arrays(
    np.uint8, hnp.array_shapes(min_dims=1, max_dims=3, max_side=13), elements=st.integers(0, 2)
)
N_LABELS = 3


@pytest.mark.parametrize("name", sample_names())
def test_every_sample_is_whole(name):
    sample = load_sample(name)
    assert sample.name == name
    assert sample.image.dtype == sample.mask.dtype == np.uint8
    assert sample.image.shape == (*sample.mask.shape, 3)
    assert max(sample.mask.shape) == 400
    # Every label is drawn, and no pixel has a label without a name.
    assert np.unique(sample.mask).tolist() == list(range(sample.n_labels))


def test_samples_know_where_things_are():
    coffee = load_sample("coffee")
    names = [coffee.label_names[coffee.mask[place]] for place in [(5, 5), (110, 190), (190, 240)]]
    assert names == ["floor", "coffee", "spoon"]
    assert load_sample("astronaut").mask[200:210, 100:140].all()
    camera = load_sample("camera")
    assert (camera.image[..., 0] == camera.image[..., 2]).all()
    assert camera.mask[150, 100] == 1
    assert camera.mask[100, 350] == 0


def test_sample_files_stay_small_and_credited():
    folder = resources.files("crfield.datasets") / "photos"
    files = list(folder.iterdir())
    assert sum(len(file.read_bytes()) for file in files) < 250_000
    credits_text = (folder / "CREDITS.md").read_text(encoding="utf-8")
    for file in files:
        assert file.name == "CREDITS.md" or f"`{file.name}`" in credits_text


def test_unknown_sample_names_the_known_ones():
    assert "'astronaut', 'camera', 'coffee', got 'tea'" in refusal(load_sample, "tea")


@given(masks, st.integers(1, 9), st.integers(0, 9))
def test_coarse_labels_keep_shape_type_and_range(mask, block, seed):
    labels = coarsen(mask, n_labels=N_LABELS, block=block, flip=0.3, seed=seed)
    assert labels.shape == mask.shape
    assert labels.dtype == mask.dtype
    assert labels.max() < N_LABELS
    again = coarsen(mask, n_labels=N_LABELS, block=block, flip=0.3, seed=seed)
    np.testing.assert_array_equal(labels, again)


@given(masks)
def test_nothing_to_spoil_returns_the_mask(mask):
    labels = coarsen(mask, n_labels=N_LABELS, block=1, jitter=0, flip=0)
    np.testing.assert_array_equal(labels, mask)


def test_each_block_takes_its_most_frequent_label():
    mask = np.array([[0, 0, 1, 1, 2], [0, 1, 1, 1, 2], [2, 2, 0, 0, 1]])
    labels = coarsen(mask, n_labels=3, block=2, jitter=0, flip=0)
    assert labels.tolist() == [[0, 0, 1, 1, 2], [0, 0, 1, 1, 2], [2, 2, 0, 0, 1]]


def test_wrong_blobs_cover_the_asked_share():
    mask = np.zeros((200, 200), np.uint8)
    wrong = coarsen(mask, n_labels=4, jitter=0, flip=0.1, seed=3) != 0
    assert 0.1 <= wrong.mean() < 0.12


def test_jitter_moves_boundaries_by_a_few_pixels():
    mask = np.zeros((120, 120), np.uint8)
    mask[:, 60:] = 1
    labels = coarsen(mask, n_labels=2, block=1, jitter=2.0, flip=0, seed=0)
    moved = np.nonzero(labels != mask)[1]
    assert moved.size
    assert np.abs(moved - 59.5).max() < 12


@given(masks, st.integers(1, 9), st.integers(0, 9))
def test_noisy_probabilities_are_probabilities(mask, block, seed):
    probabilities = noisy_probabilities(mask, N_LABELS, block=block, seed=seed)
    assert probabilities.shape == (*mask.shape, N_LABELS)
    assert probabilities.dtype == np.float32
    assert (probabilities > 0).all()
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1, rtol=1e-5)
    again = noisy_probabilities(mask, N_LABELS, block=block, seed=seed)
    np.testing.assert_array_equal(probabilities, again)


@given(masks, st.floats(0.4, 0.95))
def test_without_noise_the_true_label_has_the_asked_confidence(mask, confidence):
    probabilities = noisy_probabilities(
        mask, N_LABELS, block=1, jitter=0, confidence=confidence, noise=0
    )
    true_label = np.take_along_axis(probabilities, mask[..., None].astype(int), axis=-1)
    np.testing.assert_allclose(true_label, confidence, rtol=1e-5)


def test_noise_is_half_in_cells_and_half_in_regions():
    # 16 cells in one region, so that nothing is interpolated, and labels for many samples.
    n_labels, noise = 4000, 1.5
    mask = np.zeros((4, 4), int)
    probabilities = noisy_probabilities(mask, n_labels, block=1, jitter=0, noise=noise, seed=3)
    scores = np.log(probabilities[..., 1:].astype(np.float64)).reshape(16, -1)
    scores -= scores.mean(1, keepdims=True)
    in_cells = scores.var(axis=0, ddof=1).mean()
    in_regions = scores.mean(axis=0).var() - in_cells / 16
    assert in_cells == pytest.approx(noise**2 / 2, rel=0.1)
    assert in_regions == pytest.approx(noise**2 / 2, rel=0.1)


def test_scores_are_linear_between_block_centers():
    mask = np.repeat([0, 1], 4)
    probabilities = noisy_probabilities(mask, 2, block=4, jitter=0, noise=0, confidence=0.8)
    log_odds = np.log(probabilities[:, 0] / probabilities[:, 1]) / np.log(4)
    ramp = np.clip((3.5 - np.arange(8)) / 2, -1, 1)
    np.testing.assert_allclose(log_odds, ramp, atol=1e-5)


@pytest.mark.parametrize("name", sample_names())
def test_spoiled_samples_are_worse_but_far_from_chance(name):
    sample = load_sample(name)
    for spoiled in (
        coarsen(sample.mask, n_labels=sample.n_labels),
        noisy_probabilities(sample.mask, sample.n_labels).argmax(axis=-1),
    ):
        counts = confusion_matrix(sample.mask, spoiled, sample.n_labels)
        assert 0.5 < mean_iou(counts) < 0.95


def test_seeds_differ():
    mask = load_sample("camera").mask
    assert (coarsen(mask, n_labels=2, seed=0) != coarsen(mask, n_labels=2, seed=1)).any()
    first, second = (noisy_probabilities(mask, 2, seed=seed) for seed in (0, 1))
    assert (first != second).any()


@pytest.mark.parametrize(("change", "message"), [
    ({"mask": [[0, 3]]}, "mask must hold labels from 0 to 2, got 3 at index (0, 1)"),
    ({"mask": np.zeros((0, 4), int)}, "at least one pixel, got shape (0, 4)"),
    ({"mask": [[0.5]]}, "mask must hold whole numbers"),
    ({"n_labels": 2.5}, "n_labels must be a whole number"),
    ({"block": 0}, "block must be at least 1, got 0"),
    ({"jitter": -1.0}, "jitter must not be negative, got -1"),
    ({"seed": -1}, "seed must be at least 0, got -1"),
])
@pytest.mark.parametrize("spoil", [coarsen, noisy_probabilities])
def test_wrong_inputs_are_explained(spoil, change, message):
    arguments = {"mask": [[0, 2]], "n_labels": 3} | change
    assert message in refusal(spoil, **arguments)


def test_wrong_strengths_are_explained():
    message = refusal(coarsen, [[0]], n_labels=2, flip=1.0)
    assert "flip must be at least 0 and below 1, got 1" in message
    message = refusal(noisy_probabilities, [[0]], 2, confidence=0.5)
    assert "confidence must lie between 1 / n_labels = 0.5 and 1" in message
    assert "noise must not be negative" in refusal(noisy_probabilities, [[0]], 2, noise=-1)
    assert "n_labels must be at least 2, got 1" in refusal(noisy_probabilities, [[0]], 1)


@pytest.mark.parametrize("size", [(96, 128), (8, 40), (10, 24, 32)])
def test_scenes_are_whole(size):
    for scene in synthetic_scenes(3, size=size, n_labels=4):
        assert scene.image.shape == (*size, 3)
        assert scene.image.dtype == scene.mask.dtype == np.uint8
        assert scene.mask.shape == size
        assert scene.mask.max() < scene.n_labels == 4
        assert scene.probabilities.shape == (*size, 4)
        assert len(np.unique(scene.mask)) > 1


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_scenes_depend_on_the_seed_and_their_number_only(seed):
    first, second = synthetic_scenes(2, size=(20, 30), seed=seed)
    (again,) = synthetic_scenes(1, size=(20, 30), seed=seed)
    np.testing.assert_array_equal(first.image, again.image)
    np.testing.assert_array_equal(first.mask, again.mask)
    np.testing.assert_array_equal(first.probabilities, again.probabilities)
    assert (first.image != second.image).any()


def test_colors_tell_labels_apart_and_noise_is_as_asked():
    clean, noisy = (synthetic_scenes(1, noise=noise, seed=5)[0] for noise in (0.0, 12.0))
    np.testing.assert_array_equal(clean.mask, noisy.mask)
    difference = noisy.image.astype(float) - clean.image
    assert 10 < difference.std() < 12.5
    present = np.unique(clean.mask)
    means = np.array([clean.image[clean.mask == label].mean(axis=0) for label in present])
    distance = np.linalg.norm(means[:, None] - means, axis=-1) + 1000 * np.eye(len(present))
    assert distance.min() > 25


def test_scene_probabilities_leave_something_to_refine():
    scenes = synthetic_scenes(4, seed=1)
    counts = sum(
        confusion_matrix(scene.mask, scene.probabilities.argmax(axis=-1), scene.n_labels)
        for scene in scenes
    )
    assert 0.6 < pixel_accuracy(counts) < 0.97


@pytest.mark.parametrize(("change", "message"), [
    ({"n": -1}, "n must be at least 0, got -1"),
    ({"size": (96,)}, "size must be (H, W) or (Z, H, W), got 1 numbers"),
    ({"size": (96, 4)}, "each side of size must be at least 8, got 4"),
    ({"n_labels": 1}, "n_labels must be at least 2"),
    ({"noise": -3.0}, "noise must not be negative, got -3"),
    ({"block": 0}, "block must be at least 1"),
    ({"seed": -1}, "seed must be at least 0"),
])
def test_wrong_scene_requests_are_explained(change, message):
    assert message in refusal(synthetic_scenes, **{"n": 1} | change)


def test_shrunk_examples_are_means_of_blocks_and_labels_of_their_middle():
    rng = np.random.default_rng(0)
    example = SimpleNamespace(
        image=rng.integers(0, 256, (7, 9, 3), np.uint8), unary=rng.random((7, 9, 4), np.float32),
        truth=rng.integers(0, 4, (7, 9)),
    )
    small = Shrunk([example], 3)[0]
    assert small.image.shape == (2, 3, 3)
    assert small.image.dtype == np.uint8
    for y, x in np.ndindex(2, 3):
        block = np.s_[3 * y : 3 * y + 3, 3 * x : 3 * x + 3]
        assert np.abs(small.image[y, x] - example.image[block].mean((0, 1))).max() <= 0.5
        np.testing.assert_allclose(small.unary[y, x], example.unary[block].mean((0, 1)), rtol=1e-6)
        assert small.truth[y, x] == example.truth[3 * y + 1, 3 * x + 1]
    assert "factor must not exceed the sides" in refusal(lambda: Shrunk([example], 8)[0])


def test_a_rescaled_model_does_on_the_full_grid_what_the_model_does_on_the_small_one():
    """Every pixel of a small grid becomes a block: the marginals of the blocks must be close."""
    rng = np.random.default_rng(1)
    small_image = rng.integers(0, 2, (10, 12, 1)).repeat(3, -1).astype(np.uint8) * 200
    small_unary = rng.random((10, 12, 3)) * 3
    both = np.zeros((5, 5))
    both[:2, :2], both[2:, 2:] = [[9.0, 1.0], [1.0, 4.0]], 400.0 * np.eye(3)
    model = DenseCRF(3, [
        Pairwise(Spatial([2.0, 3.0]), Potts(2.0)),
        Pairwise(Bilateral(4.0, 30.0), Potts(3.0)),
        Pairwise(Bilateral(covariance=both), Potts(1.0)),
        Pairwise(FeatureKernel("f", 1), Potts(0.0)),
    ])
    large = model.rescaled(3)
    np.testing.assert_allclose(large.terms[0].kernel.sigma, [6.0, 9.0])
    np.testing.assert_allclose(large.terms[2].kernel.covariance[:2, :2], 9 * both[:2, :2])
    np.testing.assert_allclose(large.terms[2].kernel.covariance[2:, 2:], both[2:, 2:])
    blown = [np.kron(a, np.ones((3, 3, 1), a.dtype)) for a in (small_image, small_unary)]
    features = {"f": np.zeros((120, 1))}, {"f": np.zeros((1080, 1))}
    options = {"filter": "exact", "max_iter": 5, "tol": 0.0}
    expected = model.infer(small_image, small_unary, features=features[0], **options).marginals
    found = large.infer(*blown, features=features[1], **options).marginals
    assert np.abs(found[1::3, 1::3] - expected).max() < 0.02
    assert "factor must be positive" in refusal(model.rescaled, 0)
