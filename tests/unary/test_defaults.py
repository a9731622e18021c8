"""Widths and weights that suit an image or a volume."""

import numpy as np
import pytest

import crfield
from crfield._core.validate import image_size
from crfield.app.settings import Settings
from crfield.blocks.inputs import open_inputs
from crfield.blocks.parts import cut
from crfield.unary.costs import read_segmentation
from crfield.unary.defaults import (
    BILATERAL,
    NARROWEST,
    SIZES,
    SPATIAL,
    WIDEST,
    Structure,
    Terms,
    default_terms,
    measure,
)
from refusal import refusal

RNG = np.random.default_rng(0)


@pytest.mark.parametrize("kind", BILATERAL)
def test_widths_grow_with_the_image(kind):
    side = SIZES[kind]
    small, chosen = default_terms(kind, (side / 2, side / 2)), default_terms(kind, (side, side))
    assert chosen.spatial == pytest.approx(SPATIAL)
    assert chosen.bilateral == pytest.approx(BILATERAL[kind])
    assert small.spatial == pytest.approx(SPATIAL / 2)
    assert small.bilateral == pytest.approx((BILATERAL[kind][0] / 2, BILATERAL[kind][1]))
    assert small[1::2] == chosen[1::2]  # the weights


def test_a_turned_image_and_other_units_change_nothing():
    assert image_size((300, 400)) == image_size((400, 300)) == 400
    assert image_size((300, 400), (0.5, 0.5)) == 200


def test_the_length_of_a_panorama_or_a_strip_does_not_count():
    assert image_size((300, 4000)) == image_size((4000, 300)) == 600
    assert image_size((5, 200, 300)) == 300
    assert image_size((7,)) == 7


def test_widths_are_bounded_on_tiny_and_huge_images():
    tiny, huge = default_terms("labels", (3, 2)), default_terms("labels", (30_000, 20_000))
    assert (tiny.spatial, tiny.bilateral[0]) == (1, NARROWEST)
    assert huge.bilateral[0] == WIDEST


def test_what_is_given_stays_in_pixels():
    image, labels = RNG.random((150, 180, 3)), RNG.integers(0, 2, (150, 180))
    given = Terms(3.0, 3.0, (30.0, 5.0), 6.0)
    found = Terms("auto", 2.0, None, "auto").filled(given)
    assert found == (3.0, 2.0, None, 6.0)
    scaled = default_terms("labels", (150, 180))
    found, same, other = (
        crfield.refine(image, labels, **terms._asdict()).marginals
        for terms in (Terms(), scaled, given)
    )
    assert np.array_equal(found, same)
    assert not np.array_equal(found, other)


def test_the_page_starts_from_what_suits_the_image():
    assert Settings.of_image((321, 481)).bilateral == (40.0, 10.0)
    assert Settings.of_image((240, 160)).bilateral == (20.0, 10.0)
    assert Settings.of_image((640, 962)).spatial == 6.0


@pytest.mark.parametrize("spacing", [None, (3.0, 1.0, 0.5)])
def test_a_slab_is_as_thick_as_it_is(spacing):
    """And a thinner label beside it decides, however little of it there is."""
    labels = np.zeros((20, 12, 16), int)
    labels[6:10] = 1
    step = 1.0 if spacing is None else spacing[0]
    assert measure([(labels, None)], 2, spacing).thickness == pytest.approx(4 * step)
    labels[14] = 2
    assert measure([(labels, None)], 3, spacing).thickness == pytest.approx(step)
    labels[labels == 2] = -1
    assert measure([(labels, None)], 3, spacing).thickness == pytest.approx(4 * step)


def test_a_speck_has_no_thickness():
    labels = np.zeros((20, 12, 16), int)
    labels[3, 3, 3] = 1
    assert measure([(labels, None)], 2).thickness > 100
    assert measure([(np.zeros((5, 5, 5), int), None)], 1) == Structure(np.inf, 0.0, (0,))


def test_the_spread_is_that_within_labels():
    labels = RNG.integers(-1, 3, (6, 7, 8))
    image = 50.0 * labels[..., None] + RNG.normal(0, [2, 3], (6, 7, 8, 2))
    inside = [image[labels == label] for label in range(3)]
    expected = np.sqrt(np.concatenate([np.square(v - v.mean(0)) for v in inside]).mean())
    image[labels < 0] = np.nan  # means nothing there
    assert measure([(labels, image)], 3).spread == pytest.approx(expected)
    halves = [(labels[:3], image[:3]), (labels[3:], image[3:])]
    assert measure(halves, 3).spread == pytest.approx(expected)


def test_of_intensities_beyond_all_squares_nothing_is_known():
    labels = np.indices((6, 6, 6)).sum(0) // 8
    found = measure([(labels, np.where(labels, 1e200, -1e200))], 2)
    assert found.spread == 0
    assert found.thickness < 6


def test_noise_has_no_extent():
    labels = np.zeros((20, 20, 20), int)
    labels[RNG.random(labels.shape) < 0.03] = 1
    labels[:, 9:11, 4:6] = 2
    found = measure([(labels, None)], 4)
    assert found.voxels == ((labels == 0).sum(), 0, 80, 0)
    half = np.where((labels == 2) & (np.arange(20) < 5), 0, labels)
    assert not found.outlasts(half)
    half[0, 9, 4] = 0
    half[:2] = 0
    assert found.outlasts(half)
    assert found.outlasts(np.zeros_like(labels))


@pytest.mark.parametrize(("options", "stays"), [
    ({}, True), ({"spatial": 1.0}, True), ({"bilateral_weight": 4.0}, False),
    ({"spatial_weight": 0.5}, False),
])
def test_weights_fall_in_a_volume_where_a_label_would_vanish(options, stays):
    """A tube that no edge of the image supports, with weights that are given and that are not."""
    rng = np.random.default_rng(0)
    values = rng.normal(0.2, 0.05, (24, 30, 28)).clip(0.01)
    values[:, 14:16, 12:14] += 0.5
    image = rng.normal(80, 10, values.shape)
    found = crfield.refine(image, np.stack([1 - values, values], -1), **options).labels
    kept = (found[:, 14:16, 12:14] == 1).mean()
    assert kept > 0.9 if stays else kept < 0.5


@pytest.mark.parametrize("soft", [False, True])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "float32"])
def test_a_thin_structure_of_a_volume_stays(soft, dtype):
    """A tube of 2 x 2 voxels, which kernels for photos erase."""
    truth = np.zeros((24, 30, 28), int)
    truth[:, 14:16, 12:14] = 1
    scale = {"uint8": 1, "uint16": 200, "float32": 3}[dtype]
    image = (scale * (80 + 60 * truth + RNG.normal(0, 10, truth.shape))).astype(dtype)
    given = truth.copy()
    given[RNG.random(truth.shape) < 0.02] ^= 1
    values = np.eye(2)[given] * 0.8 + 0.1 if soft else given
    found = crfield.refine(image, values).labels
    assert (found[truth == 1] == 1).mean() > 0.9
    assert (found != truth).mean() < (given != truth).mean() / 2


def test_labels_beyond_the_number_given_are_refused_in_volumes_too():
    labels = np.indices((6, 6, 6)).sum(0) // 5
    message = refusal(crfield.refine, 10.0 * labels, labels, n_labels=3)
    assert message.startswith("labels must lie in 0..2 (unknown: 255), got 3")


def test_blocks_see_the_structure_that_the_whole_has():
    labels = (RNG.random((10, 12, 14)) < 0.3).astype(int)
    image = RNG.integers(0, 60_000, labels.shape, dtype=np.uint16)
    inputs = open_inputs(image, labels, None, "channels_last")
    found, _ = read_segmentation(labels, image.shape)
    whole = crfield.refinement.structure_of(found, labels, image)
    [one] = cut(labels.shape, (20, 20, 20), (0, 0, 0))
    assert inputs.structure(found, [one], None) == whole
    assert whole.spread == pytest.approx(image.std() * 255 / 65535, rel=0.01)
    many = inputs.structure(found, cut(labels.shape, (5, 6, 7), (0, 0, 0)), None)
    assert many.spread == pytest.approx(whole.spread)
    assert many.thickness >= whole.thickness  # faces between blocks are not seen
