"""Where the labels of floats lie beside an image, and grids that are coarser than it."""

import numpy as np
import pytest
from PIL import Image

from crfield.blocks.parts import cut
from crfield.dense.inputs import Form, find_form
from crfield.unary.costs import read_segmentation, unary_from_probabilities
from crfield.unary.resizing import resize_linearly, stored_part
from refusal import refusal

RNG = np.random.default_rng(0)
PHOTO, GRAY, SCAN = (60, 80, 3), (60, 80), (12, 40, 48)


def form(shape, image_shape, layout=None, n_labels=None, sums_to_one=False):
    return find_form(shape, image_shape, layout, n_labels, lambda axis: sums_to_one)


@pytest.mark.parametrize(("shape", "image_shape", "options", "expected"), [
    ((60, 80, 5), PHOTO, {}, (-1, False)),
    ((5, 60, 80), PHOTO, {}, (0, False)),
    ((60, 80), PHOTO, {}, (None, False)),
    ((15, 20, 5), PHOTO, {}, (-1, True)),
    ((5, 15, 20), GRAY, {}, (0, True)),
    ((30, 40), GRAY, {}, (None, True)),
    ((41, 63, 21), (321, 500, 3), {}, (-1, True)),       # three times halved, rounded up
    ((21, 40, 62), (321, 500, 3), {}, (0, True)),        # rounded down
    ((12, 40, 48, 4), SCAN, {}, (-1, False)),
    ((4, 12, 40, 48), SCAN, {}, (0, False)),
    ((6, 20, 24, 4), SCAN, {}, (-1, True)),
    ((12, 10, 12, 4), SCAN, {}, (-1, True)),             # coarser within slices alone
    ((12, 40, 48), SCAN, {}, (None, False)),
    ((12, 40, 48), SCAN, {"sums_to_one": True}, (-1, False)),  # 12 x 40 pixels of 48 channels
    ((32, 32, 5), PHOTO, {}, None),                      # another shape ...
    ((32, 32, 5), PHOTO, {"n_labels": 5}, (-1, True)),   # ... which the number of labels explains
    ((5, 32, 32), PHOTO, {"n_labels": 5}, (0, True)),
    ((5, 32, 32), PHOTO, {"layout": "channels_first"}, (0, True)),
    ((20, 15, 5), PHOTO, {"n_labels": 5}, None),         # turned
    ((58, 77, 5), PHOTO, {}, None),                      # cut rather than coarser
    ((61, 80, 5), PHOTO, {"n_labels": 5}, None),
    ((1, 60, 80), PHOTO, {}, (None, False)),             # a batch of one
    ((1, 1, 15, 20), PHOTO, {}, (None, True)),
    ((1, 5, 15, 20), PHOTO, {}, (0, True)),
    ((1, 60, 80, 5), PHOTO, {}, (-1, False)),
    ((1, 4, 12, 40, 48), SCAN, {}, (0, False)),
    ((2, 5, 60, 80), PHOTO, {}, None),                   # and of two
    ((2, 60, 80), (3, 60, 80), {}, None),                # labels and colors that come first
    ((4, 60, 80, 2), (8, 60, 80, 3), {}, None),          # fewer predictions than images
    ((80, 60, 5), PHOTO, {}, None),
    ((6, 4, 1), (6, 4, 1), {}, (None, False)),           # one number per pixel
    ((6, 4, 1, 1), (6, 4, 1), {}, (-1, False)),          # and one label
])
def test_where_labels_lie(shape, image_shape, options, expected):
    found = form(shape, image_shape, **options)
    assert (None if found is None else (found.label_axis, found.is_coarse)) == expected
    if found is not None:
        kept = found.without_ones(shape)
        assert np.prod(kept) == np.prod(shape)
        assert len(kept) == len(found.grid) + (found.label_axis is not None)


@pytest.mark.parametrize("shape", [(21, 21, 21), (7, 7, 7)])
def test_doubt_is_asked_about(shape):
    image_shape = (21, 21, 3)
    assert 'pass layout="channels_first" or layout=' in refusal(form, shape, image_shape)
    assert form(shape, image_shape, "channels_first").label_axis == 0
    assert form(shape, image_shape, "channels_last").label_axis == -1
    soft = RNG.dirichlet(np.ones(shape[0]), shape[:2])
    for given in (soft, np.moveaxis(soft, -1, 0)):  # which only one axis can be of
        assert np.array_equal(
            *(each[0].given_labels(each[1]) for each in (
                read_segmentation(given, image_shape), read_segmentation(soft, image_shape)
            ))
        )


@pytest.mark.parametrize("layout", ["last", "first"])
def test_coarse_probabilities_are_interpolated_in_log_space(layout):
    coarse = RNG.dirichlet(np.ones(4), (15, 20)).clip(0.01)
    coarse /= coarse.sum(-1, keepdims=True)
    logs = np.stack([
        np.asarray(Image.fromarray(plane).resize((80, 60), Image.Resampling.BILINEAR))
        for plane in np.moveaxis(np.log(coarse), -1, 0).astype(np.float32)
    ], -1)
    expected = np.exp(logs) / np.exp(logs).sum(-1, keepdims=True)
    given = coarse if layout == "last" else np.moveaxis(coarse, -1, 0)
    found, values = read_segmentation(given, PHOTO)
    np.testing.assert_allclose(np.exp(-found.costs(values)), expected, atol=1e-5)
    found, values = read_segmentation(coarse[..., 1], PHOTO)  # of a foreground
    p = np.stack([1 - coarse[..., 1], coarse[..., 1]], -1)
    both, both_values = read_segmentation(p, PHOTO)
    np.testing.assert_allclose(found.costs(values), both.costs(both_values), atol=1e-5)


def test_parts_are_those_of_the_whole():
    coarse = RNG.normal(size=(7, 9, 11, 2))
    grid = (13, 9, 40)
    whole = resize_linearly(coarse, grid)
    for block in cut(grid, (4, 3, 9), (1, 1, 1)):
        seen = stored_part(coarse.shape[:-1], grid, block.window)
        part = resize_linearly(coarse[seen], grid, coarse.shape[:-1], block.window)
        np.testing.assert_allclose(part, whole[block.window], atol=1e-12)


def test_logits_and_log_probabilities():
    logits = RNG.normal(0, 3, (60, 80, 4))
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    expected = unary_from_probabilities(p)
    for values, options in ((logits, {"logits": True}), (logits, {}), (np.log(p), {})):
        for given in (values, np.moveaxis(values, -1, 0)):
            found, last = read_segmentation(given, PHOTO, **options)
            np.testing.assert_allclose(found.costs(last), expected, atol=1e-6)
    found, last = read_segmentation(logits[..., 0], PHOTO, logits=True)
    sigmoid = 1 / (1 + np.exp(-logits[..., 0]))
    np.testing.assert_allclose(np.exp(-found.costs(last)[..., 1]), sigmoid, atol=2e-5)
    # Costs, numbers per pixel, and what cubic interpolation makes of probabilities are none.
    overshot = np.stack([p[..., 0] * 1.4 - 0.2, 1.2 - p[..., 0] * 1.4], -1)
    for wrong in (-np.log(p), logits[..., 0], overshot):
        found, last = read_segmentation(wrong, PHOTO)
        assert "pass logits=True" in refusal(found.costs, last)
    outside = logits.copy()
    outside[:5] = np.nan
    mask = np.isfinite(outside[..., 0])
    found, last = read_segmentation(outside, PHOTO, logits=True)
    np.testing.assert_allclose(found.costs(last, mask)[5:], expected[5:], atol=1e-6)


def test_the_form_puts_labels_last():
    values = RNG.random((5, 6, 7))
    assert np.array_equal(Form((6, 7), 0).labels_last(values), np.moveaxis(values, 0, -1))
    assert np.shares_memory(Form((5, 6), -1).labels_last(values), values)
    assert Form((6, 7), 0).count_labels((1, 1, 5, 6, 7)) == 5
    assert Form((6, 7), -1).count_labels((1, 6, 7, 5)) == 5
    assert Form((6, 7), None, has_channel=True).count_labels((6, 7, 1)) == 2
    assert np.array_equal(Form((5, 6), -1).labels_last(values[None, None]), values)
    assert np.array_equal(Form((5, 6, 7), None).labels_last(values[None]), values)
