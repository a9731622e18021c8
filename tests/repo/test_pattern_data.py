"""Sets of shapes: made-up figures, silhouettes from photos, and how much they vary."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from crfield.datasets import Augmentation, ellipse_set, noisy_unaries, read_silhouettes
from crfield.patterns.variability import variability
from refusal import refusal

LEVELS = range(1, 7)


def test_two_clusters_by_hand():
    # k-means parts the left masks from the right ones; in the left cluster one pixel of four is on
    # in one of two masks, in the right one nothing differs.
    masks = np.array([[[1, 1], [0, 0]], [[1, 1], [1, 0]], [[0, 0], [0, 1]], [[0, 0], [0, 1]]])
    assert variability(masks, 2) == pytest.approx(0.5 * np.log(2) / 4)
    # With three masks to the left and one to the right, the left cluster counts three times.
    more = np.concatenate([masks[:1], masks[:3]])
    entropy = -(np.log(1 / 3) + 2 * np.log(2 / 3)) / 3
    assert variability(more, 2) == pytest.approx(0.75 * entropy / 4)


def test_one_cluster_is_the_entropy_of_the_mean():
    masks = np.zeros((8, 5, 4), bool)
    masks[:2, 0, 0] = True
    expected = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75)) / 20
    assert variability(masks, 1) == pytest.approx(expected)


@given(
    hnp.arrays(np.uint8, st.tuples(st.integers(1, 9), st.just(3), st.just(4)),
               elements=st.integers(0, 1)),
    st.integers(1, 9), st.integers(0, 5),
)
def test_variability_is_bounded_and_repeatable(masks, n_clusters, seed):
    n_clusters = min(n_clusters, len(masks))
    value = variability(masks, n_clusters, seed)
    assert 0 <= value <= np.log(2) + 1e-12
    assert value == variability(masks, n_clusters, seed)


def test_masks_may_have_any_type():
    masks = np.random.default_rng(0).integers(0, 2, (9, 3, 3))
    for dtype in (bool, np.uint8, np.float32, np.float64):
        assert variability(masks.astype(dtype), 2) == variability(masks, 2)


def test_masks_that_agree_do_not_vary():
    assert variability(np.repeat(ellipse_set(6, 1), 40, axis=0)) == 0
    # With as many clusters as masks, each is alone.
    assert variability(ellipse_set(6, 12), 12) == 0


def test_flipped_pixels_add_variability():
    masks = np.repeat(ellipse_set(1, 4), 20, axis=0)
    rng = np.random.default_rng(0)
    values = [
        variability(masks ^ (rng.random(masks.shape) < share), 4)
        for share in (0.0, 0.02, 0.1, 0.5)
    ]
    assert values == sorted(values)
    assert values[0] == 0


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_each_level_varies_more_than_the_one_before(seed):
    values = [variability(ellipse_set(level, 300, seed=seed)) for level in LEVELS]
    assert all(low + 0.02 < high for low, high in pairwise(values))
    assert values[0] < 0.12
    assert values[-1] > 0.3


@pytest.mark.parametrize("level", LEVELS)
def test_figures_are_masks_that_depend_on_the_seed_alone(level):
    masks = ellipse_set(level, 12, seed=4)
    assert masks.shape == (12, 32, 32)
    assert masks.dtype == np.uint8
    assert set(np.unique(masks)) == {0, 1}
    assert masks.any(axis=(1, 2)).all()
    np.testing.assert_array_equal(masks[:5], ellipse_set(level, 5, seed=4))
    assert (masks != ellipse_set(level, 12, seed=5)).any()
    large = ellipse_set(level, 12, size=64, seed=4)
    # Two sizes show the same figures: one reads off every other pixel's corner of the other.
    shares = large.reshape(12, 32, 2, 32, 2).mean(axis=(2, 4))
    assert (masks == (shares >= 0.5)).mean() > 0.97


def test_figures_of_the_first_level_have_a_narrow_head_and_a_wide_body():
    widths = ellipse_set(1, 60).sum(axis=2)
    heads, bodies = widths[:, 3:6].max(axis=1), widths[:, 18:].max(axis=1)
    assert (heads > 0).all()
    assert (bodies > 1.2 * heads).all()


def test_costs_follow_from_the_image():
    masks = ellipse_set(3, 6)
    costs, images = noisy_unaries(masks, noise=0.4, seed=2)
    assert costs.shape == (6, 32, 32, 2)
    assert costs.dtype == images.dtype == np.float32
    np.testing.assert_allclose(np.exp(-costs).sum(axis=-1), 1, rtol=1e-5)
    odds = (np.square(images) - np.square(images - 1)) / (2 * 0.4**2)
    np.testing.assert_allclose(costs[..., 0] - costs[..., 1], odds, rtol=1e-4, atol=1e-4)
    again = noisy_unaries(masks[:3], noise=0.4, seed=2)
    np.testing.assert_array_equal(again.images, images[:3])


def test_noise_has_the_asked_deviation_and_blocks_are_wrong():
    masks = ellipse_set(2, 80)
    residual = noisy_unaries(masks, n_blocks=0).images - masks
    assert residual.std() == pytest.approx(0.5, rel=0.01)
    faint = noisy_unaries(masks, noise=0.01, n_blocks=1).images
    wrong = np.abs(faint - masks) > 0.5
    # A disc of 5 pixels across has 21, fewer at the border and where it reaches over the contour.
    assert wrong.sum(axis=(1, 2)).max() == 21
    assert (wrong.sum(axis=(1, 2)) > 0).all()
    for block in wrong:
        rows, columns = np.nonzero(block)
        assert np.ptp(rows) <= 4
        assert np.ptp(columns) <= 4


def test_wrong_sets_are_refused():
    assert "at most 6, got 7" in refusal(ellipse_set, 7, 3)
    assert "size must be at least 8" in refusal(ellipse_set, 1, 3, size=4)
    assert "labels from 0 to 1, got 2" in refusal(noisy_unaries, np.full((1, 4, 4), 2))
    assert "(n, H, W)" in refusal(noisy_unaries, np.zeros((4, 4), int))
    assert "noise must lie between" in refusal(noisy_unaries, np.zeros((1, 4, 4), int), noise=0)
    assert "33 for 4" in refusal(variability, np.zeros((4, 3, 3), int), 33)
    assert "(n, H, W)" in refusal(variability, np.zeros(4, int), 2)
    message = refusal(variability, np.full((4, 3, 3), 255), 2)
    assert "masks must hold only 0 and 1, got 255" in message
    assert "threshold" in message
    assert "got 0.5" in refusal(variability, np.full((4, 3, 3), 0.5), 2)
    assert "same length" in refusal(variability, [[1, 0], [1]], 2)


def write_folder(root, masks, images=None, classes="background\nthing\n"):
    """A folder of photos and label maps named a, b, c and so on."""
    for folder in ("images", "labels"):
        (root / folder).mkdir(parents=True)
    (root / "classes.txt").write_text(classes)
    names = [chr(ord("a") + index) for index in range(len(masks))]
    for index, (name, mask) in enumerate(zip(names, masks, strict=True)):
        image = 200 * np.asarray(mask, np.uint8) + 20 if images is None else images[index]
        Image.fromarray(np.asarray(image, np.uint8)).save(root / "images" / f"{name}.png")
        Image.fromarray(np.asarray(mask, np.uint8)).save(root / "labels" / f"{name}.png")
    return root


def box(shape, rows, columns):
    mask = np.zeros(shape, np.uint8)
    mask[slice(*rows), slice(*columns)] = 1
    return mask


def test_whole_images_are_brought_to_one_size(tmp_path):
    masks = [box((40, 64), (10, 30), (16, 48)), box((96, 24), (24, 72), (6, 18))]
    found = read_silhouettes(write_folder(tmp_path, masks), size=8)
    assert found.names == ("a", "b")
    assert len(found) == 2
    np.testing.assert_array_equal(found.masks, [box((8, 8), (2, 6), (2, 6))] * 2)
    np.testing.assert_array_equal(found.images[..., 1], 200 * found.masks + 20)
    assert found.images.shape == (2, 8, 8, 3)


def test_crops_take_the_object_and_a_margin(tmp_path):
    folder = write_folder(tmp_path, [box((60, 80), (10, 26), (40, 72))])
    assert read_silhouettes(folder, size=8, crop="object").masks.all()
    wide = read_silhouettes(folder, size=8, crop="object", margin=0.5)
    np.testing.assert_array_equal(wide.masks[0], box((8, 8), (2, 6), (2, 6)))
    # The window leaves the image: background there, and the image's border goes on.
    beyond = read_silhouettes(folder, size=12, crop="object", margin=1.0)
    np.testing.assert_array_equal(beyond.masks[0], box((12, 12), (4, 8), (4, 8)))
    assert (beyond.images[0][beyond.masks[0] == 0] == 20).all()


def test_names_pick_from_a_split_in_their_order(tmp_path):
    masks = [box((8, 8), (0, 1 + i), (0, 4)) for i in range(4)]
    folder = write_folder(tmp_path, masks)
    (folder / "train.txt").write_text("d\nb\nc\n")
    assert read_silhouettes(folder, split="train").names == ("d", "b", "c")
    chosen = read_silhouettes(folder, size=8, split="train", names=["c", "d"])
    np.testing.assert_array_equal(chosen.masks, [masks[2], masks[3]])
    assert "got 'a'" in refusal(read_silhouettes, folder, split="train", names=["a"])


def test_pairs_of_files_with_any_labels(tmp_path):
    labels = 3 * box((8, 8), (2, 6), (2, 6)) + 7 * box((8, 8), (6, 8), (0, 8))
    folder = write_folder(tmp_path, [labels])
    pairs = [(folder / "images" / "a.png", folder / "labels" / "a.png")]
    found = read_silhouettes(pairs, size=8, foreground=3)
    np.testing.assert_array_equal(found.masks[0], labels == 3)
    both = read_silhouettes(pairs, size=8, foreground=(3, 7))
    np.testing.assert_array_equal(both.masks[0], labels > 0)
    assert "only 0 and 1, got the label 7" in refusal(read_silhouettes, pairs)
    assert "no pixel of [5]" in refusal(read_silhouettes, pairs, foreground=5)
    assert "must name a label" in refusal(read_silhouettes, pairs, foreground=())
    assert "left out" in refusal(read_silhouettes, pairs, split="train")


def test_void_is_background(tmp_path):
    labels = box((8, 8), (2, 6), (2, 6)) + 254 * box((8, 8), (2, 3), (2, 6))
    found = read_silhouettes(write_folder(tmp_path, [labels]), size=8)
    np.testing.assert_array_equal(found.masks[0], box((8, 8), (3, 6), (2, 6)))


def test_augmentation_makes_eleven_more_of_each(tmp_path):
    masks = ellipse_set(2, 3, size=64)
    folder = write_folder(tmp_path, masks)
    plain = read_silhouettes(folder)
    augmentation = Augmentation(seed=1)
    assert augmentation.factor == 12
    more = read_silhouettes(folder, augmentation=augmentation)
    assert len(more) == 36
    assert more.names == tuple(name for name in "abc" for _ in range(12))
    np.testing.assert_array_equal(more.masks[::12], plain.masks)
    np.testing.assert_array_equal(more.images[::12], plain.images)
    versions = more.masks.reshape(3, 2, 6, 32, 32)
    np.testing.assert_array_equal(versions[:, 1], versions[:, 0, :, :, ::-1])
    assert len(np.unique(more.masks.reshape(36, -1), axis=0)) == 36
    # Other sizes show the same windows.
    large = read_silhouettes(folder, size=64, augmentation=augmentation).masks
    shares = large.reshape(36, 32, 2, 32, 2).mean(axis=(2, 4))
    assert ((shares >= 0.5) == more.masks).mean() > 0.98


@settings(max_examples=30)
@given(st.floats(0, 0.5), st.integers(0, 5))
def test_shifts_stay_within_reach(reach, seed):
    shifts = Augmentation(n_shifts=4, reach=reach, seed=seed).shifts(7)
    assert shifts.shape == (5, 2)
    assert (shifts[0] == 0).all()
    assert (np.abs(shifts) <= reach).all()


def test_a_shift_moves_the_mask_by_that_share_of_the_window(tmp_path):
    folder = write_folder(tmp_path, [box((100, 100), (40, 60), (40, 60))])
    augmentation = Augmentation(n_shifts=3, mirror=False, reach=0.2, seed=3)
    masks = read_silhouettes(folder, size=100, augmentation=augmentation).masks
    for mask, shift in zip(masks, augmentation.shifts(0), strict=True):
        middle = np.mean(np.nonzero(mask), axis=1)
        np.testing.assert_allclose(middle, 49.5 - 100 * shift, atol=0.51)


def test_unusable_silhouettes_are_refused(tmp_path):
    empty = write_folder(tmp_path / "empty", [])
    assert "there are none" in refusal(read_silhouettes, empty)
    assert "at least one pair" in refusal(read_silhouettes, [])
    blank = write_folder(tmp_path / "blank", [np.zeros((4, 4))])
    assert "must show an object" in refusal(read_silhouettes, blank)
    three = write_folder(tmp_path / "three", [2 * box((4, 4), (0, 2), (0, 2))], classes="a\nb\nc\n")
    assert "only 0 and 1" in refusal(read_silhouettes, three)
    deep = write_folder(tmp_path / "deep", [box((4, 4), (0, 2), (0, 2))])
    Image.fromarray(np.zeros((4, 4), np.uint16)).save(deep / "images" / "a.png")
    assert "8 bits" in refusal(read_silhouettes, deep)
    other = write_folder(tmp_path / "other", [box((4, 4), (0, 2), (0, 2))])
    pairs = [(other / "images" / "a.png", tmp_path / "blank" / "labels" / "a.png")]
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(pairs[0][1])
    assert "one size" in refusal(read_silhouettes, pairs)
    assert "crop" in refusal(read_silhouettes, deep, crop="box")
    assert "margin" in refusal(read_silhouettes, deep, margin=-1)
    assert "reach" in refusal(Augmentation, reach=0.7)
    assert "n_shifts" in refusal(Augmentation, n_shifts=-1)
