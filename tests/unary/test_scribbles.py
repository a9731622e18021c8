"""Costs from scribbles: colors, distances, painted pixels."""

import dataclasses
import itertools
import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import crfield
from crfield import paint_over, unary_from_scribbles
from crfield._core.distances import distances_to
from crfield.datasets import load_sample
from crfield.unary.color_model import _OUTLIERS, Memo, color_costs
from crfield.unary.costs import read_segmentation
from crfield.unary.defaults import default_terms
from crfield.unary.mixture import SMALLEST_WIDTH, fit_mixture, log_components, log_density
from crfield.unary.scribbles import colors_of
from refusal import refusal


@pytest.fixture
def rng():
    return np.random.default_rng(5)


def two_colors(rng, noise=6.0):
    """An image of two noisy halves, blue and red, with a scribble in each."""
    image = np.zeros((24, 32, 3))
    image[:, :16] = (40, 60, 200)
    image[:, 16:] = (210, 50, 40)
    image += rng.normal(0, noise, image.shape)
    scribbles = np.full((24, 32), 255, np.uint8)
    scribbles[10:13, 2:9] = 0
    scribbles[10:13, 22:29] = 1
    return np.clip(image, 0, 255).astype(np.uint8), scribbles


def test_colors_tell_labels_apart(rng):
    image, scribbles = two_colors(rng)
    unary = unary_from_scribbles(image, scribbles, nearness=0)
    assert unary.shape == (24, 32, 2)
    assert unary.dtype == np.float32
    assert np.array_equal(unary.argmin(-1), np.tile(np.arange(32) >= 16, (24, 1)))


def test_costs_are_those_of_probabilities_sharpened_by_strength(rng):
    image, scribbles = two_colors(rng, noise=40.0)
    soft = unary_from_scribbles(image, scribbles, strength=1.0, nearness=0)
    free = scribbles == 255
    assert np.exp(-soft.astype(np.float64)).sum(-1) == pytest.approx(1.0, abs=1e-5)
    half = unary_from_scribbles(image, scribbles, strength=0.5, nearness=0)
    differences = [np.diff(u[free].astype(np.float64), axis=-1) for u in (soft, half)]
    assert differences[0] == pytest.approx(2 * differences[1], abs=1e-4)
    flat = unary_from_scribbles(image, scribbles, strength=0.0, nearness=0)
    assert flat[free] == pytest.approx(math.log(2), abs=1e-6)


def test_painted_pixels_keep_their_label(rng):
    image, scribbles = two_colors(rng)
    unary = unary_from_scribbles(image, scribbles, 4, confidence=0.97)
    assert unary[11, 4] == pytest.approx(-np.log([0.97, 0.01, 0.01, 0.01]), abs=1e-5)
    assert unary[11, 24] == pytest.approx(-np.log([0.01, 0.97, 0.01, 0.01]), abs=1e-5)


def test_certain_scribbles_survive_strong_neighbors(rng):
    image, scribbles = two_colors(rng)
    scribbles[11, 5] = 1  # a single pixel against all around it
    unary = unary_from_scribbles(image, scribbles)
    crf = crfield.DenseCRF(2, [crfield.Pairwise(crfield.Spatial(3), crfield.Potts(50))])
    result = crf.infer(image, unary)
    assert np.array_equal(result.labels[scribbles < 255], scribbles[scribbles < 255])
    assert np.isfinite(result.free_energies).all()


def test_labels_that_are_not_painted_are_never_cheaper(rng):
    image, scribbles = two_colors(rng)
    unary = unary_from_scribbles(image, scribbles, 4)[scribbles == 255]
    assert (unary[:, 2:] >= unary[:, :2].max(1, keepdims=True)).all()


@settings(max_examples=25, deadline=None)
@given(
    shape=st.sampled_from([(1, 7), (6, 5), (9, 2), (3, 4, 5), (2, 1, 6)]),
    seed=st.integers(0, 2**32 - 1), share=st.floats(0.02, 0.6),
    spacing=st.lists(st.floats(0.1, 2000.0), min_size=3, max_size=3),
)
def test_distances_equal_brute_force(shape, seed, share, spacing):
    marked = np.random.default_rng(seed).random((2, *shape)) < share
    steps = np.array(spacing[: len(shape)])
    points = np.array(list(itertools.product(*map(range, shape)))) * steps
    expected = np.full((2, len(points)), math.hypot(*(shape * steps)))
    for plane in range(2):
        chosen = points[marked[plane].ravel()]
        if len(chosen):
            gaps = points[:, None] - chosen[None]
            expected[plane] = np.sqrt((gaps**2).sum(-1)).min(1)
    got = distances_to(marked, 1, steps).reshape(2, -1)
    assert got == pytest.approx(expected, rel=1e-5)
    if len(set(spacing)) == 1:
        assert got == pytest.approx(steps[0] * distances_to(marked, 1).reshape(2, -1), rel=1e-5)


def test_nearness_prefers_the_nearer_scribble():
    image = np.full((9, 21, 3), 100, np.uint8)
    scribbles = np.full((9, 21), 255, np.uint8)
    scribbles[:, 0], scribbles[:, -1] = 0, 1
    unary = unary_from_scribbles(image, scribbles, nearness=2.0)
    reach = 0.01 * math.hypot(9, 21)
    odds = 2.0 * (np.log(np.arange(1, 20)[::-1] + reach) - np.log(np.arange(1, 20) + reach))
    assert np.diff(unary[4, 1:-1], axis=-1)[:, 0] == pytest.approx(odds, abs=1e-4)


def test_mixture_never_gets_less_likely(rng, monkeypatch):
    """Expectation maximization: more rounds, no lower likelihood, but for the least width."""
    monkeypatch.setattr("crfield.unary.mixture.SMALLEST_WIDTH", 1e-9)
    samples = np.concatenate([rng.normal(m, 0.15, (80, 2)) for m in (0.3, 0.5, 0.7)])
    weights = rng.random(len(samples)) + 0.5
    likelihoods = [
        weights @ log_density(samples, fit_mixture(samples, weights, 3, rounds))
        for rounds in range(12)
    ]
    assert (np.diff(likelihoods) >= -1e-9).all()
    assert likelihoods[-1] > likelihoods[0] + 1.0


def test_mixture_finds_clusters(rng):
    samples = np.concatenate([rng.normal(m, 0.05, (60, 2)) for m in (0.2, 0.5, 0.8)])
    weights = rng.random(len(samples)) + 0.5
    means, factors, shares = fit_mixture(samples, weights, 3)
    assert np.sort(means[:, 0]) == pytest.approx([0.2, 0.5, 0.8], abs=0.04)
    assert np.exp(shares).sum() == pytest.approx(1.0)
    # Each component is the weighted mean and covariance of its own cluster.
    covariances = np.linalg.inv(factors.transpose(0, 2, 1) @ factors)
    for number, mean in enumerate(means):
        mine = np.abs(samples - mean).max(1) < 0.15
        offsets = samples[mine] - mean
        expected = (offsets * weights[mine, None]).T @ offsets / weights[mine].sum()
        expected += SMALLEST_WIDTH**2 * np.eye(2)
        assert covariances[number] == pytest.approx(expected, abs=1e-3)
    density = np.exp(log_components(samples, (means, factors, shares)))
    grid = np.stack(np.meshgrid(*[np.linspace(-1, 2, 241)] * 2), -1).reshape(-1, 2)
    mass = np.exp(log_components(grid, (means, factors, shares))).sum() * (3 / 240) ** 2
    assert mass == pytest.approx(1.0, abs=1e-3)
    assert np.isfinite(density).all()


def test_distances_are_in_units_of_the_spacing():
    image = np.full((9, 21), 100, np.uint8)
    scribbles = np.full((9, 21), 255, np.uint8)
    scribbles[0, 0], scribbles[8, 20] = 0, 1
    unary = unary_from_scribbles(image, scribbles, nearness=2.0, spacing=(5.0, 0.5))
    reach = 0.01 * math.hypot(9 * 5.0, 21 * 0.5)
    y, x = np.mgrid[:9, :21]
    near = np.hypot(5.0 * y, 0.5 * x) + reach
    odds = 2.0 * (np.log(near[::-1, ::-1]) - np.log(near))
    free = scribbles == 255
    assert np.diff(unary, axis=-1)[..., 0][free] == pytest.approx(odds[free], abs=1e-4)
    for unit in (1e-200, 1e200):
        same = unary_from_scribbles(
            image, scribbles, nearness=2.0, spacing=(5.0 * unit, 0.5 * unit)
        )
        assert same == pytest.approx(unary, abs=1e-4)
    plain = unary_from_scribbles(image, scribbles)
    assert np.array_equal(unary_from_scribbles(image, scribbles, spacing=1), plain)


@pytest.mark.slow
@pytest.mark.parametrize(("shape", "labels", "components"), [
    ((200, 300, 3), 24, 5), ((200, 300, 3), 2, 5), ((80, 100, 10), 2, 32), ((80, 100, 4), 3, 5),
    ((6, 50, 60, 1), 3, 5),
])
def test_memory_is_checked_for_what_is_taken(rng, monkeypatch, shape, labels, components):
    image = rng.random(shape)
    *_, height, width = grid = shape[:-1]
    scribbles = np.full(grid, 255, np.uint8)
    for label in range(labels):
        rows = slice(label * height // labels, (label + 1) * height // labels)
        scribbles[..., rows, : width // 2] = label
    checked = []
    for module in ("crfield.unary.scribbles", "crfield.unary.color_model", "crfield.unary.costs"):
        monkeypatch.setattr(f"{module}.check_memory", lambda n, *_: checked.append(n))
    tracemalloc.start()
    try:
        unary = unary_from_scribbles(image, scribbles, components=components, threads=1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak <= 1.1 * max(checked)
    assert max(checked) <= 4 * peak
    if labels > 3:
        assert peak <= 4 * unary.nbytes


def test_what_does_not_fit_is_refused(rng, monkeypatch):
    image, scribbles = two_colors(rng)
    big = np.tile(image, (12, 12, 1)), np.tile(scribbles, (12, 12))
    monkeypatch.setattr("crfield._core.validate.available_memory", lambda: 6e6)
    assert "GiB can be had" in refusal(unary_from_scribbles, *big)


def test_color_costs_are_those_of_a_gaussian_and_outliers():
    image = np.array([[0.0, 0.1, 0.15, 0.4, 0.8, 0.85, 1.0]])
    colors = colors_of(image)
    masks = [image < 0.2, image > 0.7]
    expected = []
    for mask in masks:
        painted = image[mask]
        variance = painted.var() + SMALLEST_WIDTH**2
        density = np.exp(-0.5 * (image[0] - painted.mean()) ** 2 / variance)
        density /= np.sqrt(2 * np.pi * variance)
        expected.append(-np.log((1 - _OUTLIERS) * density + _OUTLIERS))
    expected = 0.7 * (expected - np.min(expected, axis=0))
    found = color_costs(colors, masks, 3, 0.7)[:, colors.bins[0]]
    np.testing.assert_allclose(found, expected, atol=1e-5)


def test_densities_by_parts_are_the_same(rng, monkeypatch):
    image, scribbles = two_colors(rng, noise=60.0)
    whole = unary_from_scribbles(image, scribbles)
    monkeypatch.setattr("crfield.unary.color_model._AT_ONCE", 37)
    assert unary_from_scribbles(image, scribbles) == pytest.approx(whole, abs=1e-5)


def test_given_colors_change_nothing(rng):
    image, scribbles = two_colors(rng)
    fresh = unary_from_scribbles(image, scribbles)
    assert np.array_equal(fresh, unary_from_scribbles(image, scribbles, colors=colors_of(image)))


@pytest.mark.parametrize("channels", [None, 1, 2, 4])
def test_other_channels_and_types(rng, channels):
    shape = (12, 10) if channels is None else (12, 10, channels)
    image = rng.normal(0, 1, shape)
    image[:6] += 12
    scribbles = np.full((12, 10), 255)
    scribbles[1, :9], scribbles[10, 1:] = 0, 1
    labels = unary_from_scribbles(image, scribbles, nearness=0).argmin(-1)
    assert np.array_equal(labels, np.repeat([[0], [1]], 6, 0).repeat(10, 1))


def test_volumes(rng):
    volume = rng.normal(0, 1, (5, 8, 9, 1))
    volume[:, :, 5:] += 9
    scribbles = np.full((5, 8, 9), 255)
    scribbles[2, 3:5, 1], scribbles[2, 3:5, 7] = 0, 1
    unary = unary_from_scribbles(volume, scribbles)
    assert unary.shape == (5, 8, 9, 2)
    assert np.array_equal(unary.argmin(-1)[0, 0], np.arange(9) >= 5)
    assert np.array_equal(unary_from_scribbles(volume[..., 0], scribbles), unary)


def test_scribbles_on_a_photo_find_the_object():
    sample = load_sample("astronaut")
    scribbles = np.full(sample.mask.shape, 255, np.uint8)
    for label in (0, 1):
        depth = distances_to((sample.mask != label)[None], 1)[0]
        scribbles[depth > 0.7 * depth.max()] = label
    unary = unary_from_scribbles(sample.image, scribbles)
    crf = crfield.DenseCRF(2, [
        crfield.Pairwise(crfield.Spatial(3), crfield.Potts(3)),
        crfield.Pairwise(crfield.Bilateral(40, 10), crfield.Potts(10)),
    ])
    labels = crf.infer(sample.image, unary).labels
    union = (labels == 1) | (sample.mask == 1)
    assert ((labels == 1) & (sample.mask == 1)).sum() / union.sum() > 0.75


def test_paint_over_corrects_a_copy(rng):
    unary = rng.random((4, 5, 3))
    kept = unary.copy()
    scribbles = np.full((4, 5), 255)
    scribbles[2, 3] = 1
    corrected = paint_over(unary, scribbles, confidence=0.9)
    assert np.array_equal(unary, kept)
    assert corrected[2, 3] == pytest.approx(-np.log([0.05, 0.9, 0.05]))
    assert np.array_equal(np.delete(corrected.reshape(-1, 3), 13, 0),
                          np.delete(kept.reshape(-1, 3), 13, 0))


@pytest.mark.parametrize(("change", "words"), [
    ({"scribbles": np.full((24, 32), 255)}, "two labels or more, got 0"),
    ({"scribbles": np.where(np.eye(24, 32, dtype=bool), 0, 255)}, "two labels or more, got 1"),
    ({"scribbles": np.zeros((3, 4), int)}, "the image's grid"),
    ({"scribbles": np.zeros((24, 32))}, "whole numbers"),
    ({"n_labels": 1}, "0..0"),
    ({"components": 0}, "components must be at least 1"),
    ({"components": 2.5}, "components must be a whole number"),
    ({"strength": 1.5}, "strength must lie between 0 and 1"),
    ({"strength": float("nan")}, "strength must be finite"),
    ({"nearness": -1}, "nearness must lie"),
    ({"confidence": 0.0}, "confidence must lie in"),
    ({"confidence": 1.1}, "confidence must lie in"),
    ({"image": np.full((24, 32, 3), np.nan)}, "image must be finite"),
    ({"image": np.zeros((24, 32, 11))}, "at most 10 channels"),
    ({"image": np.zeros((24, 12, 32))}, "as (Z, H, W, 1)"),
    ({"image": np.zeros((0, 5))}, "at least one pixel"),
    ({"image": np.zeros((5, 5, 0))}, "at least one pixel"),
    ({"image": np.zeros(5), "scribbles": np.zeros(5, int)}, "image must be (H, W)"),
    ({"image": np.zeros((2, 2, 2, 2, 3)), "scribbles": np.zeros((2, 2, 2, 2), int)},
     "image must be (H, W)"),
    ({"image": np.full((24, 32), 1.7e308) * np.tile([1, -1], (24, 16))}, "range"),
    ({"colors": "x"}, "colors must be"),
    ({"spacing": 0}, "spacing must be positive"),
    ({"spacing": (1, 2, 3)}, "spacing must be one number or 2"),
    ({"scribbles": np.tile([0, 1], (24, 16))}, "none with the value 255; pass unknown=0 if"),
    ({"scribbles": np.tile([0, 1], (24, 16)), "unknown": 7}, "none with the value 7"),
])
def test_bad_input(rng, change, words):
    image, scribbles = two_colors(rng)
    arguments = {"image": image, "scribbles": scribbles, **change}
    assert words in refusal(unary_from_scribbles, **arguments)


def test_bad_paint():
    assert "the unary's grid" in refusal(paint_over, np.zeros((4, 5, 2)), np.zeros((5, 4), int))
    assert "0..1" in refusal(paint_over, np.zeros((4, 5, 2)), np.full((4, 5), 2))


def strokes_on_camera():
    """A photo with a stroke on the photographer and one beside him, ids 3 and 9, else 255."""
    sample = load_sample("camera")
    scribbles = np.full(sample.mask.shape, 255, np.uint8)
    for label, value in ((0, 3), (1, 9)):
        depth = distances_to((sample.mask != label)[None], 1)[0]
        scribbles[depth > 0.6 * depth.max()] = value
    return sample, scribbles


def test_refine_from_scribbles():
    sample, scribbles = strokes_on_camera()
    result = crfield.refine(sample.image, scribbles, scribbles=True)
    assert result.label_ids.tolist() == [3, 9]
    painted = scribbles != 255
    assert np.array_equal(result.labels[painted], scribbles[painted])
    found, true = result.labels == 9, sample.mask == 1
    assert (found & true).sum() / (found | true).sum() > 0.7
    indices = np.where(scribbles == 255, 255, np.searchsorted([3, 9], scribbles))
    unary = unary_from_scribbles(sample.image, indices, 2)
    terms = default_terms("scribbles", scribbles.shape)
    expected = crfield.refinement.potts_model(2, *terms).infer(sample.image, unary)
    assert np.array_equal(result.marginals, expected.marginals)
    gray = crfield.refine(sample.image[..., 0], scribbles, scribbles=True, n_labels=10)
    assert gray.marginals.shape[-1] == 10
    assert set(np.unique(gray.labels)) == {3, 9}


@pytest.mark.parametrize(("change", "words"), [
    (lambda image, scribbles, mask: (image, scribbles / 255.0), "scribbles must be whole numbers"),
    (lambda image, scribbles, mask: (None, scribbles), "pass it"),
    (lambda image, scribbles, mask: (image, mask), "none with the value 255"),
])
def test_refine_refuses_scribbles_that_are_none(change, words):
    sample, scribbles = strokes_on_camera()
    given = change(sample.image, scribbles, sample.mask)
    assert words in refusal(crfield.refine, *given, scribbles=True)


def test_strokes_in_the_place_of_the_flag_are_called_so():
    sample, scribbles = strokes_on_camera()
    said = refusal(crfield.refine, sample.image, scribbles, scribbles=scribbles)
    assert "in the place of the labels" in said


@pytest.mark.filterwarnings("always")
def test_scribbles_on_the_command_line(tmp_path, monkeypatch, capsys):
    from PIL import Image

    from crfield.cli import main

    sample, scribbles = strokes_on_camera()
    monkeypatch.chdir(tmp_path)
    Image.fromarray(sample.image).save("photo.png")
    Image.fromarray(scribbles).save("strokes.png")
    assert main(["refine", "photo.png", "--scribbles", "strokes.png", "-o", "out.png"]) == 0
    expected = crfield.refine(sample.image, scribbles, scribbles=True)
    assert np.array_equal(np.asarray(Image.open("out.png")), expected.labels)
    gray = np.select([scribbles == 9, scribbles == 3], [255, 0], 128).astype(np.uint8)
    Image.fromarray(gray).save("gray.png")
    words = ["refine", "photo.png", "--scribbles", "gray.png", "-o", "gray_out.png"]
    assert main(words) == 0
    assert "add --unknown 128 if it marks what is not painted" in capsys.readouterr().err
    assert main([*words, "--unknown", "128", "--overwrite"]) == 0
    assert np.array_equal(np.asarray(Image.open("gray_out.png")) > 0, expected.labels == 9)
    assert "it marks" not in capsys.readouterr().err
    Image.fromarray(np.where(scribbles == 9, 9, 255).astype(np.uint8)).save("one.png")
    assert main(["refine", "photo.png", "--scribbles", "one.png"]) == 2
    assert "holds only 9 beside 255, unpainted; paint some pixels of each" in (
        capsys.readouterr().err
    )
    for option in (["--confidence", "0.5"], ["--block", "50"], ["--layout", "channels_first"]):
        assert main(["refine", "photo.png", "--scribbles", "strokes.png", *option]) == 2
        assert "has no meaning with --scribbles" in capsys.readouterr().err


def test_refine_passes_the_spacing_on_to_scribbles():
    rng = np.random.default_rng(2)
    volume = rng.normal(100, 5, (5, 8, 9)).astype(np.float32)
    scribbles = np.full(volume.shape, 255)
    scribbles[0, 4, 1], scribbles[4, 4, 7] = 0, 1
    options = {"scribbles": True, "spatial": None, "bilateral": None}
    results = [
        crfield.refine(volume, scribbles, spacing=spacing, **options).marginals
        for spacing in (None, (10.0, 1.0, 1.0))
    ]
    expected = unary_from_scribbles(volume, scribbles, 2, spacing=(10.0, 1.0, 1.0))
    assert np.array_equal(results[1].argmax(-1), expected.argmin(-1))
    assert not np.array_equal(results[0].argmax(-1), results[1].argmax(-1))


def test_what_is_remembered_changes_nothing(rng):
    """Strokes one after another, with colors that remember: the same bits as without."""
    image, scribbles = two_colors(rng, noise=30.0)
    colors = colors_of(image)
    for stroke, options in itertools.product(range(4), ({}, {"components": 2}, {"nearness": 1.0})):
        scribbles[2 + 4 * stroke, 3 + stroke : 20] = stroke % 3
        remembered = unary_from_scribbles(image, scribbles, 3, colors=colors, **options)
        assert np.array_equal(remembered, unary_from_scribbles(image, scribbles, 3, **options))


def test_memory_is_limited(rng):
    image, scribbles = two_colors(rng, noise=30.0)
    colors = dataclasses.replace(colors_of(image), memo=Memo(20_000))
    for column in range(10):
        scribbles[0, column] = column % 2
        unary_from_scribbles(image, scribbles, colors=colors)
        assert sum(kept.nbytes for kept in colors.memo._kept.values()) <= 20_000


def test_strokes_with_smooth_edges_are_warned_of():
    strokes = np.full((40, 60), 255, np.uint8)
    strokes[5:15, 5:55], strokes[25:35, 5:55] = 0, 200
    assert read_segmentation(strokes, (40, 60, 3), scribbles=True)[0].ids.tolist() == [0, 200]
    strokes[24, 5:15] = np.arange(20, 120, 10)
    with pytest.warns(UserWarning, match="12 labels, 10 of which cover next to nothing"):
        read_segmentation(strokes, (40, 60, 3), scribbles=True)


def test_a_few_small_strokes_are_not():
    strokes = np.full((40, 60), 255, np.uint8)
    strokes[5:15, 5:55], strokes[25:35, 5:55] = 0, 1
    strokes[20, 5:8], strokes[20, 20:23] = 2, 3
    found, _ = read_segmentation(strokes, (40, 60, 3), scribbles=True)
    assert found.ids.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(("painted", "said"), [(7, "got 7 beside"), (255, "got none beside")])
def test_strokes_of_less_than_two_labels_are_refused(painted, said):
    strokes = np.full((4, 6), 255, np.uint8)
    strokes[1] = painted
    assert said in refusal(read_segmentation, strokes, (4, 6, 3), scribbles=True)
