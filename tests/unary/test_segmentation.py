"""What a segmentation means: the same for every caller, whole and part by part."""

import inspect

import numpy as np
import pytest

import crfield
from crfield.app.settings import Settings
from crfield.unary.costs import (
    CONFIDENCE,
    UNKNOWN,
    Segmentation,
    label_segmentation,
    read_segmentation,
    unary_from_labels,
    unary_from_probabilities,
)
from crfield.unary.defaults import BILATERAL, SPATIAL, SPATIAL_WEIGHT, default_terms
from crfield.unary.scribbles import scribble_costs
from refusal import refusal

IMAGE = (12, 10, 3)
RNG = np.random.default_rng(0)
SOFT = RNG.dirichlet(np.ones(4), IMAGE[:2])
MAP = np.array([3, 7, 900])[RNG.integers(0, 3, IMAGE[:2])]


@pytest.mark.parametrize(("values", "layout", "kind", "n_labels"), [
    (SOFT, "channels_last", "probabilities", 4),
    (np.moveaxis(SOFT, -1, 0), "channels_first", "probabilities", 4),
    (SOFT[..., 0], "channels_last", "foreground", 2),
    (MAP, "channels_last", "labels", 3),
    (MAP > 3, "channels_last", "labels", 2),
])
def test_kinds(values, layout, kind, n_labels):
    found, last = read_segmentation(values, IMAGE, layout=layout)
    assert (found.kind, len(found.ids)) == (kind, n_labels)
    assert found.costs(last).shape == (*IMAGE[:2], n_labels)
    assert kind in BILATERAL


@pytest.mark.parametrize("n_channels", [3, 4])
def test_floats_of_the_shape_of_a_color_picture_are_labels(n_channels):
    """Those that do not sum to 1 are refused then, and not taken for a volume's foreground."""
    image = (12, 10, n_channels)
    values = np.full(image, 0.9 / n_channels)
    found, last = read_segmentation(values, image)
    assert found.kind == "probabilities"
    assert "sum to 1" in refusal(found.costs, last)
    volume = (12, 10, 5)
    assert read_segmentation(np.full(volume, 0.9), volume)[0].kind == "foreground"
    assert read_segmentation(np.full(volume, 1 / 5), volume)[0].kind == "probabilities"


@pytest.mark.parametrize("image", [(12, 10), (12, 10, 1), (12, 10, 3)])
@pytest.mark.parametrize("shape", [(12, 10, 1), (1, 12, 10, 1), (6, 5, 1), (1, 1, 6, 5)])
def test_a_channel_of_one_is_that_of_the_foreground(image, shape):
    values = np.random.default_rng(0).random(shape)
    found, last = read_segmentation(values, image)
    expected, plain = read_segmentation(values.reshape([n for n in shape if n > 1]), image)
    assert found.kind == expected.kind == "foreground"
    np.testing.assert_array_equal(last, plain)


@pytest.mark.parametrize(("values", "image", "layout"), [
    (np.moveaxis(SOFT, -1, 0), IMAGE, "channels_first"), (SOFT, None, "channels_last"),
    (SOFT, IMAGE, None),
])
def test_a_layout_that_is_known_is_not_advised(values, image, layout):
    found, last = read_segmentation(values / 2, image, layout=layout)
    message = refusal(found.costs, last)
    assert "layout" not in message
    assert message.endswith("divide them by their sum, or pass logits=True if they are scores.")
    found, last = read_segmentation(values / 2, None)
    assert 'layout="channels_first" if' in refusal(found.costs, last)


def test_costs_are_those_of_the_formulas():
    found, values = read_segmentation(np.moveaxis(SOFT, -1, 0), IMAGE, layout="channels_first")
    assert np.array_equal(found.costs(values), unary_from_probabilities(SOFT))
    holes = MAP.copy()
    holes[:2] = UNKNOWN
    found, values = read_segmentation(holes, IMAGE)
    assert found.ids.tolist() == [3, 7, 900]
    indices = np.where(holes == UNKNOWN, -1, np.searchsorted([3, 7, 900], holes))
    expected = unary_from_labels(indices, 3, confidence=CONFIDENCE, unknown=-1)
    assert np.array_equal(found.costs(values), expected)


def test_parts_mean_what_the_whole_means():
    whole, _ = read_segmentation(MAP, IMAGE)
    found = label_segmentation([MAP[:5], MAP[5:]], MAP[:7].size)
    assert np.array_equal(found.ids, whole.ids)
    parts = np.concatenate([found.costs(MAP[:5]), found.costs(MAP[5:])])
    assert np.array_equal(parts, whole.costs(MAP))


def test_a_number_of_labels_that_is_given_holds():
    labels = MAP % 2
    assert read_segmentation(labels, IMAGE, n_labels=5)[0].costs(labels).shape[-1] == 5
    found = read_segmentation(MAP, IMAGE, n_labels=5)[0]
    assert "0..4" in refusal(found.costs, MAP)
    painted = np.full(IMAGE[:2], UNKNOWN)
    painted[0, :3], painted[5, :3], painted[7, 1] = 0, 1, 6
    image = RNG.integers(0, 256, IMAGE)
    counted = Segmentation("scribbles", np.arange(2), counted=True)
    assert "got 6" in refusal(scribble_costs, counted, painted, image)


def test_labels_that_a_segmentation_shows():
    both = np.stack([1 - SOFT[..., 0], SOFT[..., 0]], -1)
    for values, options, expected in (
        (MAP, {}, MAP), (SOFT, {}, SOFT.argmax(-1)), (SOFT[..., 0], {}, both.argmax(-1)),
        (np.moveaxis(SOFT, -1, 0), {}, SOFT.argmax(-1)), (np.log(SOFT), {}, SOFT.argmax(-1)),
        (np.log(both[..., 1] / both[..., 0]), {"logits": True}, both.argmax(-1)),
    ):
        found, last = read_segmentation(values, IMAGE, **options)
        assert np.array_equal(found.given_labels(last), expected)


@pytest.mark.parametrize(("values", "options", "kind"), [
    (MAP, {}, "labels"), (SOFT, {}, "probabilities"), (SOFT[..., 0], {}, "foreground"),
    (np.where(MAP == 900, UNKNOWN, MAP), {"scribbles": True}, "scribbles"),
])
def test_widths_that_suit_each_kind(values, options, kind):
    image = RNG.integers(0, 256, IMAGE)
    widths = default_terms(kind, IMAGE[:2]).bilateral
    assert widths[1] == {"labels": 5, "scribbles": 10}.get(kind, 8)
    found = crfield.refine(image, values, **options).marginals
    given = crfield.refine(image, values, bilateral=widths, **options).marginals
    other = crfield.refine(image, values, bilateral=(2, 90), **options).marginals
    assert np.array_equal(found, given)
    assert not np.array_equal(found, other)


def test_every_caller_starts_from_the_same_constants():
    one = inspect.signature(crfield.refine).parameters
    blocks = inspect.signature(crfield.refine_blocks).parameters
    shared = set(one) & set(blocks) - {"callback"}
    assert {"spatial", "bilateral", "bilateral_weight", "confidence", "unknown"} <= shared
    for name in shared:
        assert one[name].default == blocks[name].default, name
    page = Settings()
    assert page.bilateral == BILATERAL["scribbles"]
    assert (page.spatial, page.spatial_weight) == (SPATIAL, SPATIAL_WEIGHT)
    assert page.confidence == one["confidence"].default
    painting = inspect.signature(crfield.unary_from_scribbles).parameters
    for name in ("components", "strength", "nearness"):
        assert getattr(page, name) == painting[name].default


@pytest.mark.parametrize(("values", "said"), [
    (np.eye(3)[np.arange(20).reshape(4, 5) % 3], "the probabilities are all 0 or 1"),
    (np.arange(20).reshape(4, 5) % 2 / 1.0, "the foreground's probabilities are all 0 or 1"),
    (np.arange(20).reshape(4, 5) % 2 * 17 / 255, "more than 6.7 % foreground"),
])
def test_floats_that_look_like_label_maps_are_warned_of(values, said):
    with pytest.warns(UserWarning, match=said):
        read_segmentation(values, (4, 5, 3))


def test_probabilities_are_not_taken_for_logits():
    p = np.random.default_rng(0).dirichlet(np.ones(4), (6, 7))
    assert "leave logits=True out" in refusal(read_segmentation, p, (6, 7, 3), logits=True)
    assert read_segmentation(np.log(p) + 9, (6, 7, 3), logits=True)[0].logits
