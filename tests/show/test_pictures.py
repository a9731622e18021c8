"""Pictures: colors that can be told apart, honest overlays and charts that show their curve."""


import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from crfield._core.validate import InputError
from crfield.show import pictures
from refusal import refusal

RNG = np.random.default_rng(0)


def pixels(picture):
    return np.asarray(picture).astype(int)


class TestPalette:
    def test_colors_differ_and_keep_their_place(self):
        palette = pictures.label_palette(256)
        assert palette.shape == (256, 3)
        assert len(np.unique(palette, axis=0)) == 256
        np.testing.assert_array_equal(pictures.label_palette(7), palette[:7])

    def test_first_colors_are_far_apart(self):
        palette = pictures.label_palette(10).astype(int)
        distance = np.abs(palette[:, None] - palette[None]).sum(axis=-1)
        assert distance[~np.eye(10, dtype=bool)].min() > 80

    def test_label_zero_is_dark_and_neutral(self):
        first = pictures.label_palette(1)[0].astype(int)
        assert first.max() < 80
        assert np.ptp(first) < 30

    def test_callers_cannot_spoil_it(self):
        pictures.label_palette(3)[:] = 0
        assert pictures.label_palette(3).any()

    def test_no_colors_are_refused(self):
        assert "at least 1" in refusal(pictures.label_palette, 0)


class TestColorize:
    @given(seed=st.integers(0, 2**32 - 1), height=st.integers(1, 6), width=st.integers(1, 6))
    def test_every_pixel_has_the_color_of_its_label(self, seed, height, width):
        labels = np.random.default_rng(seed).integers(0, 256, (height, width))
        expected = pictures.label_palette(256)[labels]
        np.testing.assert_array_equal(np.asarray(pictures.colorize(labels)), expected)

    def test_own_palette_and_volume(self):
        volume = np.stack([np.full((2, 2), z) for z in range(3)])
        palette = np.array([[1, 2, 3], [4, 5, 6], [7, 8, 9]], np.uint8)
        np.testing.assert_array_equal(
            pixels(pictures.colorize(volume, palette)), np.broadcast_to([4, 5, 6], (2, 2, 3))
        )

    @pytest.mark.parametrize("labels", [np.zeros((2, 2)), np.zeros(3, int)])
    def test_wrong_labels_are_refused(self, labels):
        assert "labels must be" in refusal(pictures.colorize, labels)


class TestOverlay:
    def test_alpha_mixes_image_and_color(self):
        image = RNG.integers(0, 256, (4, 5, 3), dtype=np.uint8)
        labels = np.ones((4, 5), int)
        color = pictures.label_palette(2)[1]
        np.testing.assert_array_equal(pixels(pictures.overlay(image, labels, alpha=0)), image)
        full = pixels(pictures.overlay(image, labels, alpha=1))
        np.testing.assert_array_equal(full, np.broadcast_to(color, full.shape))
        half = pixels(pictures.overlay(image, labels))
        np.testing.assert_allclose(half, (image.astype(int) + color) / 2, atol=0.51)

    def test_outlines_brighten_only_the_borders(self):
        labels = np.zeros((6, 6), int)
        labels[:, 3:] = 1
        image = np.zeros((6, 6), np.uint8)
        plain = pixels(pictures.overlay(image, labels, outlines=False))
        lined = pixels(pictures.overlay(image, labels))
        changed = (plain != lined).any(axis=-1)
        np.testing.assert_array_equal(changed.nonzero()[1], [2] * 6)
        assert lined[changed].min() > 200
        turned = pixels(pictures.overlay(image, labels.T))
        np.testing.assert_array_equal(turned, lined.swapaxes(0, 1))

    def test_of_two_channels_the_first_is_shown(self):
        both = RNG.integers(0, 256, (4, 5, 2), dtype=np.uint8)
        expected = np.repeat(both[..., :1], 3, axis=-1)
        np.testing.assert_array_equal(pixels(pictures.show(both)), expected)

    def test_volume_with_and_without_channels(self):
        labels = np.zeros((3, 4, 5), int)
        for shape in ((3, 4, 5), (3, 4, 5, 3)):
            image = np.zeros(shape, np.uint8)
            image[1] = 200
            middle = pixels(pictures.overlay(image, labels, alpha=0, outlines=False))
            np.testing.assert_array_equal(middle, np.full((4, 5, 3), 200))

    def test_pillow_images_are_taken(self):
        image = Image.new("L", (5, 4), 90)
        shown = pictures.overlay(image, np.zeros((4, 5), int), alpha=0)
        assert shown.getpixel((0, 0)) == (90, 90, 90)

    def test_other_types_are_stretched(self):
        image = np.linspace(1000, 3000, 100).reshape(10, 10)
        shown = pixels(pictures.overlay(image, np.zeros((10, 10), int), alpha=0))
        assert shown.min() == 0
        assert shown.max() == 255
        shown = pixels(pictures.show(np.full((3, 3), 0.5)))
        assert shown.shape == (3, 3, 3)

    def test_another_size_is_refused(self):
        with pytest.raises(InputError, match="same pixels"):
            pictures.overlay(np.zeros((4, 5), np.uint8), np.zeros((5, 4), int))
        assert "finite" in refusal(pictures.overlay, np.full((2, 2), np.nan), np.zeros((2, 2), int))


class TestEntropy:
    def test_from_certain_to_undecided_it_gets_brighter(self):
        share = np.linspace(1, 0.25, 50)
        rest = np.repeat((1 - share)[:, None] / 3, 3, axis=1)
        marginals = np.concatenate([share[:, None], rest], axis=1)[None].astype(np.float32)
        brightness = pixels(pictures.entropy_map(marginals)).sum(axis=-1)[0]
        assert (np.diff(brightness) >= 0).all()
        assert brightness[0] < 100
        assert brightness[-1] > 600

    def test_volume_shows_its_middle(self):
        marginals = np.zeros((3, 2, 2, 2))
        marginals[..., 0] = 1
        marginals[1] = 0.5
        assert pixels(pictures.entropy_map(marginals)).min() > 150

    def test_one_label_is_certain(self):
        assert pixels(pictures.entropy_map(np.ones((2, 2, 1)))).max() < 60

    def test_labels_are_refused(self):
        assert "marginals must be" in refusal(pictures.entropy_map, np.zeros((2, 2, 2), int))


class TestSheets:
    def test_pictures_lie_in_order_at_one_height(self):
        red, blue = Image.new("RGB", (20, 40), "red"), Image.new("RGB", (40, 40), "blue")
        row = pixels(pictures.side_by_side(red, blue, height=80))
        assert (row == [255, 0, 0]).all(axis=-1).sum() == 40 * 80
        assert (row == [0, 0, 255]).all(axis=-1).sum() == 80 * 80
        middle = row[len(row) // 2]
        assert (middle == [255, 0, 0]).all(axis=-1).argmax() < (middle == [0, 0, 255]).all(
            axis=-1
        ).argmax()

    def test_titles_are_drawn_above(self):
        panel = Image.new("RGB", (80, 80), "white")
        plain = pictures.side_by_side(panel)
        titled = pictures.side_by_side(panel, titles=["input"])
        assert titled.height > plain.height
        assert pixels(titled)[: titled.height - 90].min() < 100
        assert pixels(plain).min() == 255

    def test_titles_must_match(self):
        panel = Image.new("RGB", (8, 8))
        assert "1 titles" in refusal(pictures.side_by_side, panel, panel, titles=["one"])
        assert "0 pictures" in refusal(pictures.side_by_side)

    def test_stack_and_caption(self):
        upper, lower = Image.new("RGB", (60, 50), "red"), Image.new("RGB", (90, 40), "blue")
        sheet = pictures.stack(upper, lower)
        assert sheet.size == (90, 90)
        assert sheet.getpixel((45, 5)) == (255, 0, 0)
        assert sheet.getpixel((5, 80)) == (0, 0, 255)
        captioned = pixels(pictures.captioned(lower, "IoU"))
        assert (captioned[20:, :45] != [0, 0, 255]).any()
        assert (captioned[:, 60:] == [0, 0, 255]).all()
        assert (pixels(lower) == [0, 0, 255]).all()


class TestLinePlot:
    def blue(self, picture):
        drawn = pixels(picture)
        return (drawn[..., 2] > 200) & (drawn[..., 0] < 100)

    def test_falling_values_fall(self):
        rows, columns = self.blue(
            pictures.line_plot([5.0, 3.0, 2.0, 1.5], title="t", xlabel="x", ylabel="y")
        ).nonzero()
        left, right = rows[columns < 200], rows[columns > 500]
        assert len(left) > 0
        assert len(right) > 0
        assert left.mean() < right.mean()

    @given(
        st.lists(
            st.floats(-1e300, 1e300, allow_nan=False, allow_infinity=False), min_size=1, max_size=60
        )
    )
    def test_any_finite_values_can_be_drawn(self, values):
        picture = pictures.line_plot(values, size=(200, 150))
        assert picture.size == (200, 150)
        assert self.blue(picture).any()

    @pytest.mark.parametrize("values", [[0.0, 5e-324], [-1e300, 1e300], [7.0, 7.0], [1e9, 1e9 + 1]])
    def test_extreme_ranges(self, values):
        assert self.blue(pictures.line_plot(values)).any()

    @pytest.mark.parametrize("values", [[], [[1.0]], [1.0, np.nan]])
    def test_wrong_values_are_refused(self, values):
        assert "values must be" in refusal(pictures.line_plot, values)


def test_a_legend_lies_below_the_picture():
    image, labels = np.full((40, 200, 3), 90, np.uint8), np.zeros((40, 200), int)
    labels[:, 50:], labels[:, 100:] = 3, 7
    picture = pictures.overlay(image, labels)
    plain, named = (
        pixels(pictures.with_legend(picture, labels, names=names))
        for names in (None, {7: "a long name of a label"})
    )
    for shown in (plain, named):
        assert shown.shape[1] == 200
        np.testing.assert_array_equal(shown[:40], pixels(picture))
        below = {tuple(color) for color in shown[40:].reshape(-1, 3).tolist()}
        colors = pictures.label_palette(8)[[0, 3, 7]].tolist()
        assert {tuple(color) for color in colors} <= below
    assert len(named) > len(plain)  # in two rows
