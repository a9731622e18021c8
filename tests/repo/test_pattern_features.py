"""The costs and boundary maps that the experiments with patterns start from."""

from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from crfield.datasets import ellipse_set
from experiments import pattern_data, pattern_features
from experiments.pattern_data import FoldedClassifiers, Source, Windows


def photos(masks, seed=0):
    """Reddish figures on noisy green."""
    colors = np.array([[60, 120, 70], [150, 80, 60]])
    noise = np.random.default_rng(seed).normal(0, 12, (*masks.shape, 3))
    return np.clip(colors[masks] + noise, 0, 255).astype(np.uint8)


def write_photos(root, n):
    """A folder of figures, whose lists name all but the last two in reverse."""
    masks = ellipse_set(2, n, size=48)
    names = [f"figure{index:02}" for index in range(n)]
    for folder in ("images", "labels"):
        (root / folder).mkdir()
    for name, image, mask in zip(names, photos(masks), masks, strict=True):
        Image.fromarray(image).save(root / "images" / f"{name}.png")
        Image.fromarray(mask).save(root / "labels" / f"{name}.png")
    (root / "classes.txt").write_text("background\nfigure\n")
    (root / "train.txt").write_text("\n".join(names[:-3:-1]))
    (root / "test.txt").write_text("\n".join(names[-3::-1]))
    return names


def test_the_filter_bank_has_the_papers_size_and_no_position():
    images = np.full((2, 64, 64, 3), 90, np.uint8)
    features = pattern_features.filter_bank(images)
    assert features.shape == (2, 32, 32, 107)
    assert features.dtype == pattern_features.boundary_features(images).dtype == np.float32
    # Of a flat image, all pixels look alike.
    assert np.ptp(features, axis=(0, 1, 2)).max() < 1e-3


def test_features_see_shifted_images_shifted():
    image = photos(ellipse_set(3, 1, size=128))
    here, there = (
        pattern_features.filter_bank(image[:, start : start + 64, start : start + 64])
        for start in (0, 4)
    )
    # Away from the borders, which the wider filters feel.
    np.testing.assert_allclose(here[:, 15:18, 15:18], there[:, 13:16, 13:16], atol=0.02)


def test_half_discs_differ_most_across_an_edge():
    image = np.zeros((1, 64, 64, 3), np.uint8)
    image[:, :, 32:] = 200
    strength = pattern_features.boundary_features(image)[0, :, :, 0]
    assert np.isin(strength.argmax(axis=1), (15, 16)).all()
    np.testing.assert_allclose(strength[:, :12], 0, atol=1e-5)


def test_boundary_pixels_by_hand():
    mask = np.array([[[0, 0, 0, 0], [0, 1, 0, 0], [0, 0, 0, 0]]], np.uint8)
    expected = [[0, 1, 0, 0], [1, 1, 1, 0], [0, 1, 0, 0]]
    assert pattern_features.on_boundary(mask)[0].tolist() == expected


@pytest.mark.slow
def test_classifiers_find_figures_and_their_boundaries():
    masks = ellipse_set(3, 30, size=32)
    images = photos(masks.repeat(2, axis=1).repeat(2, axis=2))
    descriptors = pattern_features.filter_bank(images)
    network = pattern_features.train_unary(descriptors[:20], masks[:20], seed=0)
    found = network.log_odds(descriptors[20:]) > 0
    assert (found == masks[20:]).mean() > 0.97
    differences = pattern_features.boundary_features(images)
    detector = pattern_features.train_boundary(differences[:20], masks[:20], seed=0)
    odds, edges = detector.log_odds(differences[20:]), pattern_features.on_boundary(masks[20:])
    assert odds[edges == 1].mean() > odds[edges == 0].mean() + 2
    again = pattern_features.train_unary(descriptors[:20], masks[:20], seed=0)
    np.testing.assert_array_equal(again.log_odds(descriptors[20:]) > 0, found)


def test_costs_and_summary_come_from_the_maps():
    rng = np.random.default_rng(0)
    odds, boundary = rng.normal(size=(2, 3, 32, 32)).astype(np.float32)
    costs = pattern_features.costs_of(odds)
    np.testing.assert_allclose(costs[..., 0] - costs[..., 1], odds, atol=1e-5)
    np.testing.assert_allclose(np.exp(-costs).sum(axis=-1), 1, rtol=1e-5)
    phi = pattern_features.summary(odds, boundary)
    assert phi.shape == (3, 512)
    np.testing.assert_allclose(phi[1, 17], odds[1, 2:4, 2:4].mean(), rtol=1e-4)
    np.testing.assert_allclose(phi[2, 256 + 1], boundary[2, :2, 2:4].mean(), rtol=1e-4)


def test_lists_of_the_wanted_length_are_followed(tmp_path):
    names = write_photos(tmp_path, 6)
    assert pattern_data.split_names(tmp_path, 2, 4) == (names[:-3:-1], names[-3::-1])
    train, test = pattern_data.split_names(tmp_path, 3, 2)
    assert len({*train, *test}) == 5
    assert (train, test) == pattern_data.split_names(tmp_path, 3, 2)
    with pytest.raises(ValueError, match="must hold 8 images, got 6"):
        pattern_data.split_names(tmp_path, 4, 4)


def test_images_get_the_classifiers_that_have_not_seen_them():
    class Constant:
        def __init__(self, value):
            self.value = value

        def log_odds(self, features):
            return np.full(features.shape[:-1], self.value, np.float32)

    names = ("seen", "also", "seen", "new")
    on_grid = SimpleNamespace(
        names=names, images=np.zeros((4, 32, 32, 3), np.uint8), masks=np.zeros((4, 32, 32))
    )
    constants = [Constant(value) for value in range(pattern_data.N_FOLDS + 1)]
    folded = FoldedClassifiers({"seen": 1, "also": 3}, constants, constants)
    windows = Windows(on_grid, np.zeros((4, 64, 64, 3), np.uint8))
    part = folded.apply(windows, SimpleNamespace(map=map))
    assert part.log_odds[:, 0, 0].tolist() == [1, 3, 1, pattern_data.N_FOLDS]
    np.testing.assert_allclose(part.boundary[1], 1 / (1 + np.exp(-3)), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("gray", [False, True])
def test_what_is_prepared_comes_back_from_its_file(tmp_path, gray):
    (tmp_path / "data").mkdir()
    write_photos(tmp_path / "data", 8)
    source = Source("data", 6, 2, crop="object")
    data = pattern_data.prepare(tmp_path / "data", source, seed=1, gray=gray)
    path = pattern_data.cache_path("birds", 1, tmp_path / "cache", gray)
    pattern_data.save(data, path)
    loaded = pattern_data.load("birds", 1, tmp_path / "cache", gray=gray)
    assert loaded.n_versions == 12
    sizes = [len(part) for part in (loaded.train, loaded.validation, loaded.test)]
    assert sizes == [5, 1, 2]
    assert loaded.augmented.names[:: loaded.n_versions] == loaded.train.names
    assert not {*loaded.train.names} & {*loaded.validation.names, *loaded.test.names}
    for title in ("train", "augmented", "validation", "test"):
        before, after = getattr(data, title), getattr(loaded, title)
        assert after.names == before.names
        for name in ("images", "masks", "log_odds", "boundary", "costs", "phi"):
            np.testing.assert_array_equal(getattr(after, name), getattr(before, name))
        assert after.costs.shape == (len(after), 32, 32, 2)
        assert after.phi.shape == (len(after), 512)
        assert ((after.boundary > 0) & (after.boundary < 1)).all()
    of_images, of_pixels = pattern_data.unary_scores(loaded.train)
    assert min(of_images, of_pixels) > (20 if gray else 80)


def test_a_missing_file_names_the_command(tmp_path):
    with pytest.raises(FileNotFoundError, match="--set horses --seed 3"):
        pattern_data.load("horses", 3, tmp_path)
