"""Values outside a mask do not matter; images without channels and contradicting counts do."""

from __future__ import annotations

import numpy as np
import pytest

import crfield
from crfield import (
    Bilateral,
    DenseCRF,
    FeatureKernel,
    Pairwise,
    Potts,
    Spatial,
    refine,
    refine_blocks,
)
from crfield.unary.resizing import points_seen, resize_linearly
from refusal import refusal

RNG = np.random.default_rng(0)
GRID = (12, 15)
IMAGE = RNG.random((*GRID, 3)).astype(np.float32)
P = RNG.dirichlet(np.ones(3), GRID).astype(np.float32)
MASK = np.zeros(GRID, bool)
MASK[2:9, 3:11] = True
WORDS = {"max_iter": 3, "threads": 1}


def spoilt(values, bad):
    found = values.copy()
    found[~MASK] = bad
    return found


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, -3.0, 7.0])
def test_probabilities_outside_a_mask_do_not_matter(bad):
    expected = refine(IMAGE, P, mask=MASK, **WORDS)
    image = IMAGE if np.isfinite(bad) else spoilt(IMAGE, bad)
    found = refine(image, spoilt(P, bad), mask=MASK, **WORDS)
    np.testing.assert_array_equal(found.marginals[MASK], expected.marginals[MASK])
    np.testing.assert_allclose(found.marginals[~MASK], 1 / 3, rtol=1e-6)
    one = refine(IMAGE, P[..., 0], mask=MASK, **WORDS)
    other = refine(image, spoilt(P[..., 0], bad), mask=MASK, **WORDS)
    np.testing.assert_array_equal(one.marginals[MASK], other.marginals[MASK])
    # What means something there is kept.
    np.testing.assert_allclose(expected.marginals[~MASK], P[~MASK], atol=1e-4)


def test_labels_outside_a_mask_do_not_matter():
    labels = P.argmax(-1)
    expected = refine(IMAGE, labels, mask=MASK, n_labels=3, **WORDS)
    found = refine(IMAGE, spoilt(labels, 9), mask=MASK, n_labels=3, **WORDS)
    np.testing.assert_array_equal(found.marginals[MASK], expected.marginals[MASK])


def test_blocks_know_it_too():
    how = crfield.Inference(max_iter=2, threads=1)
    options = {"mask": MASK, "block": 8, "overlap": 3, "inference": how, "marginals": True}
    expected = refine_blocks(IMAGE, P, **options)
    found = refine_blocks(spoilt(IMAGE, np.nan), spoilt(P, np.nan), **options)
    np.testing.assert_array_equal(found.labels[MASK], expected.labels[MASK])
    np.testing.assert_array_equal(found.marginals[MASK], expected.marginals[MASK])


@pytest.mark.parametrize("layout", ["channels_last", "channels_first"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_nothing_that_infer_is_given_matters_there(layout, dtype):
    model = DenseCRF(3, [
        Pairwise(Spatial(2), Potts(1)), Pairwise(Bilateral(3, 40), Potts(1)),
        Pairwise(FeatureKernel("depth", 1, sigma=0.5), Potts(1)),
    ])
    depth = RNG.random((*GRID, 1))
    unary = RNG.random((*GRID, 3)).astype(dtype)

    def infer(image, unary, depth, init):
        axes = (2, 0, 1) if layout == "channels_first" else (0, 1, 2)
        return model.infer(
            image, unary.transpose(axes), features={"depth": depth}, init=init.transpose(axes),
            mask=MASK, layout=layout, **WORDS,
        ).marginals

    expected = infer(IMAGE, unary, depth, P)
    for bad in (np.nan, np.inf, -np.inf):
        found = infer(*(spoilt(each, bad) for each in (IMAGE, unary, depth, P)))
        np.testing.assert_array_equal(found[MASK], expected[MASK])
        np.testing.assert_allclose(found[~MASK], 1 / 3, rtol=1e-6)
    inside = unary.copy()
    inside[5, 5, 1] = np.nan
    assert "unary must be finite, got nan" in refusal(infer, IMAGE, inside, depth, P)
    picture = IMAGE.copy()
    picture[5, 5, 1] = np.nan
    assert "image must be finite, got nan" in refusal(infer, picture, unary, depth, P)


@pytest.mark.parametrize("call", [
    lambda image: refine(image, P),
    lambda image: refine_blocks(image, P, block=8),
    lambda image: DenseCRF(3, [Pairwise(Bilateral(3, 4), Potts(1))]).infer(image, P),
    lambda image: DenseCRF(3).energy(image, P.argmax(-1), P),
    lambda image: crfield.unary_from_scribbles(image, np.eye(*GRID, dtype=int)),
], ids=["refine", "blocks", "infer", "energy", "scribbles"])
def test_images_without_channels_are_refused(call):
    message = refusal(call, np.zeros((*GRID, 0)))
    assert "at least one channel" in message or "at least one pixel" in message


def test_a_number_of_labels_beside_probabilities_must_be_theirs():
    for call in (refine, lambda *given, **words: refine_blocks(*given, block=8, **words)):
        message = refusal(call, IMAGE, P, n_labels=5)
        assert "n_labels must be the 3 labels of the probabilities, got 5" in message
        assert "of the foreground, got 5" in refusal(call, IMAGE, P[..., 0], n_labels=5)
        assert "whole number" in refusal(call, IMAGE, P, n_labels="3")
        call(IMAGE, P, n_labels=3)
        model = DenseCRF(4, [Pairwise(Spatial(2), Potts(1))])
        assert "the model has 4 labels, the segmentation 3" in refusal(
            call, IMAGE, P, model=model
        )


@pytest.mark.parametrize("call", [
    lambda: Spatial("3"), lambda: Bilateral("3", 4), lambda: Bilateral(3, "wide"),
    lambda: refine(IMAGE, P, spatial="3"), lambda: refine(IMAGE, P, spacing="1"),
    lambda: crfield.Diagonal("3"), lambda: refine(IMAGE, "3"),
])
def test_numbers_in_quotes_are_no_names_of_files(call):
    message = refusal(call)
    assert "without quotes" in message
    assert "PIL" not in message


def test_volumes_may_have_what_they_want_outside_a_mask():
    volume, p = RNG.random((6, *GRID)), RNG.dirichlet(np.ones(3), (6, *GRID))
    mask = np.zeros(volume.shape, bool)
    mask[1:5, 2:9, 3:11] = True
    options = {"mask": mask, "spacing": (1, 1, 1), **WORDS}
    for segmentation in (p, p.argmax(-1)):  # widths follow the intensities inside
        expected = refine(volume, segmentation, **options)
        found = refine(np.where(mask, volume, np.nan), segmentation, **options)
        np.testing.assert_array_equal(found.marginals[mask], expected.marginals[mask])


@pytest.mark.parametrize("bad", [np.nan, np.inf, 0.9])
def test_scribbles_learn_nothing_from_outside_a_mask(bad):
    strokes = np.full(GRID, 255)
    strokes[3, 3:7], strokes[7, 5:9] = 0, 1
    options = {"mask": MASK, "scribbles": True, **WORDS}
    expected = refine(spoilt(IMAGE, 0.5), strokes, **options)
    for outside in (255, 1):
        found = refine(spoilt(IMAGE, bad), spoilt(strokes, outside), **options)
        assert np.isfinite(found.marginals).all()
        np.testing.assert_array_equal(found.marginals[MASK], expected.marginals[MASK])


@pytest.mark.parametrize("bad", [np.nan, 7.0, -9.0])
@pytest.mark.parametrize("shape", [(6, 8), (5, 6)])
def test_nor_do_coarse_floats_that_no_pixel_of_a_mask_looks_at(shape, bad):
    coarse = RNG.dirichlet(np.ones(3), shape).astype(np.float32)
    seen = points_seen(MASK, shape, GRID)
    # What moves a pixel is seen, and little else.
    for k in np.ndindex(shape):
        bump = np.zeros((*shape, 1), np.float32)
        bump[k] = 1
        assert seen[k] >= (resize_linearly(bump, GRID)[MASK] != 0).any()
    assert not seen.all()
    assert seen.sum() < MASK.sum()
    spoilt_coarse = np.where(seen[..., None], coarse, bad).astype(np.float32)
    options = {"mask": MASK, **WORDS}
    for values in (coarse, coarse[..., 0]):
        other = spoilt_coarse if values.ndim == 3 else spoilt_coarse[..., 0]
        expected, found = refine(IMAGE, values, **options), refine(IMAGE, other, **options)
        np.testing.assert_array_equal(found.marginals[MASK], expected.marginals[MASK])
    how = crfield.Inference(max_iter=2, threads=1)
    cut = {"mask": MASK, "block": 8, "overlap": 3, "inference": how, "marginals": True}
    found, expected = (refine_blocks(IMAGE, p, **cut) for p in (spoilt_coarse, coarse))
    np.testing.assert_array_equal(found.marginals[MASK], expected.marginals[MASK])
