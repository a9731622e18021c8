"""What a segmentation means: the same for every caller, whole and part by part."""

from __future__ import annotations

import inspect

import numpy as np
import pytest

import crfield
from crfield import InputError
from crfield.app.settings import Settings
from crfield.unary.costs import (
    BILATERAL,
    CONFIDENCE,
    UNKNOWN,
    Segmentation,
    given_labels,
    label_segmentation,
    read_segmentation,
    unary_from_labels,
    unary_from_probabilities,
)
from crfield.unary.scribbles import scribble_costs

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


@pytest.mark.parametrize("n_channels", [1, 3, 4])
def test_floats_of_the_shape_of_a_color_picture_are_labels(n_channels):
    """Those that do not sum to 1 are refused then, and not taken for a volume's foreground."""
    image = (12, 10, n_channels)
    values = np.full(image, 0.9 / n_channels)
    found, last = read_segmentation(values, image)
    assert found.kind == "probabilities"
    with pytest.raises(InputError, match="sum to 1"):
        found.costs(last)
    volume = (12, 10, 5)
    assert read_segmentation(np.full(volume, 0.9 / 5), volume)[0].kind == "foreground"
    assert read_segmentation(np.full(volume, 1 / 5), volume)[0].kind == "probabilities"


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
    with pytest.raises(InputError, match=r"0\.\.4"):
        found.costs(MAP)
    painted = np.full(IMAGE[:2], UNKNOWN)
    painted[0, :3], painted[5, :3], painted[7, 1] = 0, 1, 6
    image = RNG.integers(0, 256, IMAGE)
    with pytest.raises(InputError, match="got 6"):
        scribble_costs(Segmentation("scribbles", np.arange(2), counted=True), painted, image)


def test_labels_that_a_segmentation_shows():
    grid = IMAGE[:2]
    assert given_labels(MAP, grid) is MAP
    assert np.array_equal(given_labels(SOFT, grid), SOFT.argmax(-1))
    first = given_labels(np.moveaxis(SOFT, -1, 0), grid, "channels_first")
    assert np.array_equal(first, SOFT.argmax(-1))
    both = np.stack([1 - SOFT[..., 0], SOFT[..., 0]], -1)
    assert np.array_equal(given_labels(SOFT[..., 0], grid), both.argmax(-1))


@pytest.mark.parametrize(("values", "options", "widths"), [
    (MAP, {}, (30, 5)), (SOFT, {}, (60, 8)), (SOFT[..., 0], {}, (60, 8)),
    (np.where(MAP == 900, UNKNOWN, MAP), {"scribbles": True}, (40, 10)),
])
def test_widths_that_suit_each_kind(values, options, widths):
    image = RNG.integers(0, 256, IMAGE)
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
    for name in ("spatial", "spatial_weight", "confidence"):
        assert getattr(page, name) == one[name].default
    painting = inspect.signature(crfield.unary_from_scribbles).parameters
    for name in ("components", "strength", "nearness"):
        assert getattr(page, name) == painting[name].default
