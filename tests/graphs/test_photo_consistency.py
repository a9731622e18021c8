"""Agreement of calibrated images: against loops over windows, and surfaces whose depth is known."""

import itertools
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crfield.graphs import Camera, RayModel, VoxelGrid, infer
from crfield.graphs.vision.photo_consistency import (
    correlate_windows,
    first_hits,
    look_up,
    sample_bilinear,
    sweep_planes,
)
from refusal import refusal

SIZE = (24, 30)
NEAR = Camera.looking_at((0, -4, 0), (0, 0, 0), 30, SIZE)
LEFT = Camera.looking_at((-1, -4, 0.2), (0, 0, 0), 30, SIZE, up=(0.2, 0, 1))
RIGHT = Camera.looking_at((1.2, -3.8, -0.3), (0.1, 0, 0), 33, SIZE)
# Behind the scene, looking away from it.
AWAY = Camera.looking_at((0, 4, 0), (0, 8, 0), 30, SIZE)


def texture(points):
    """Gray levels of places in space (..., 3), smooth over a pixel or two."""
    rng = np.random.default_rng(5)
    waves, phases = rng.normal(0, 6, (16, 3)), rng.uniform(0, 6, 16)
    return 0.5 + np.cos(points @ waves.T + phases).sum(-1) / 16


def photograph(camera, normal):
    """Image and depths (H, W) of the textured plane normal . x = 0."""
    origins, directions = camera.rays()
    lengths = -(origins @ normal) / (directions @ normal)
    points = origins + lengths[:, None] * directions
    parts = texture(points), camera.project(points)[1]
    return (part.reshape(camera.image_size) for part in parts)


def bilinear(image, column, row):
    """One value, clamped to the image: every pixel weighs as a hat function says."""
    height, width = image.shape[:2]
    column, row = min(max(column, 0), width - 1), min(max(row, 0), height - 1)
    down, across = (
        np.maximum(0, 1 - np.abs(np.arange(n) - place)) for n, place in ((height, row),
                                                                         (width, column))
    )
    return np.einsum("y,x,yx...->...", down, across, image)


def ncc(a, b, noise):
    a, b = np.array(a) - np.mean(a), np.array(b) - np.mean(b)
    spread = ((a * a).mean() + noise**2) * ((b * b).mean() + noise**2)
    return (a * b).mean() / np.sqrt(spread) if spread > 0 else 0.0


def window(size, row, column, radius):
    """Pixels (row, column) around one, within an image."""
    return [
        (y, x)
        for y in range(max(row - radius, 0), min(row + radius + 1, size[0]))
        for x in range(max(column - radius, 0), min(column + radius + 1, size[1]))
    ]


@pytest.mark.parametrize("shape", [(5, 7), (4, 6, 3), (1, 5), (6, 1), (1, 1, 2)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_samples_are_weighted_means_of_four_pixels(shape, dtype):
    rng = np.random.default_rng(len(shape))
    image = rng.normal(size=shape).astype(dtype)
    pixels = rng.uniform(-2, 8, size=(40, 2))
    pixels[:6] = [[0, 0], [shape[1] - 1, shape[0] - 1], [2, 1], [-0.0, 0.5], [1e9, 1], [-1e30, 0]]
    values, inside = sample_bilinear(image, pixels.reshape(4, 10, 2))
    assert values.dtype == dtype
    assert values.shape == (4, 10, *shape[2:])
    expected = [bilinear(image, *pixel) for pixel in pixels]
    np.testing.assert_allclose(values.reshape(40, *shape[2:]), expected, atol=2e-6)
    is_inside = ((pixels >= 0) & (pixels <= [shape[1] - 1, shape[0] - 1])).all(1)
    np.testing.assert_array_equal(inside.ravel(), is_inside)


def test_places_that_are_not_finite_are_outside():
    values, inside = sample_bilinear(np.ones((3, 4)), [[np.nan, 1], [np.inf, 1], [1, -np.inf]])
    np.testing.assert_array_equal(values, 1)
    assert not inside.any()


@settings(max_examples=30)
@given(
    height=st.integers(1, 6), width=st.integers(1, 7), radius=st.integers(1, 4),
    noise=st.sampled_from([0.0, 0.05]), level=st.sampled_from([0.0, 100.0]),
    seed=st.integers(0, 99),
)
def test_correlations_of_all_windows(height, width, radius, noise, level, seed):
    rng = np.random.default_rng(seed)
    a, b = (rng.normal(level, 1, size=(height, width)).astype(np.float32) for _ in range(2))
    a[: height // 2, : width // 2] = level
    found = correlate_windows(a, b, radius, noise=noise)
    for row, column in itertools.product(range(height), range(width)):
        places = window((height, width), row, column, radius)
        values = ([float(image[place]) for place in places] for image in (a, b))
        assert found[row, column] == pytest.approx(ncc(*values, noise), abs=2e-3)


def test_correlation_does_not_see_brightness_and_contrast():
    image = np.random.default_rng(0).uniform(size=(9, 11))
    same = correlate_windows(image, 0.3 * image + 0.5, noise=0)
    np.testing.assert_allclose(same, 1, atol=1e-4)
    np.testing.assert_allclose(correlate_windows(image, 1 - image, noise=0), -1, atol=1e-4)
    assert not correlate_windows(image, np.ones_like(image), noise=0).any()
    assert (correlate_windows(image, image, noise=0.3) < 0.8).all()
    halves = np.repeat([[0.1, 0.1, 0.1, 0.1, 0.1, 0.7, 0.7, 0.7, 0.7, 0.7, 0.7]], 9, axis=0)
    found = correlate_windows(image, halves, noise=0)
    assert not found[:, [0, 1, 2, 7, 8, 9, 10]].any()
    assert found[:, 3:7].all()


@pytest.mark.parametrize(("n_best", "n_counted"), [(None, 2), (1, 1), (3, 3)])
def test_a_sweep_correlates_what_planes_bring_over(n_best, n_counted):
    rng = np.random.default_rng(0)
    cameras = [LEFT, RIGHT, Camera.looking_at((0.5, -6, 1), (0, 0, 0.2), 60, (20, 22))]
    image, *sides = (rng.uniform(size=camera.image_size) for camera in (NEAR, *cameras))
    depths, noise = [3.1, 4.0, 5.5], 0.02
    found = sweep_planes(
        NEAR, image, list(zip(cameras, sides, strict=True)), depths, radius=1, noise=noise,
        n_best=n_best,
    )
    assert found.shape == (3, *SIZE)
    n_left_out = 0
    for plane, row, column in itertools.product(range(3), range(0, 24, 5), range(0, 30, 7)):
        places = window(SIZE, row, column, 1)
        pixels = np.array([(x, y) for y, x in places])
        origins, ways = NEAR.rays(pixels)
        points = origins + ways * (depths[plane] / NEAR.project(origins + ways)[1])[:, None]
        middle = places.index((row, column))
        agreed = []
        for camera, side in zip(cameras, sides, strict=True):
            there, _ = camera.project(points)
            height, width = camera.image_size
            if not ((there[middle] >= 0) & (there[middle] <= [width - 1, height - 1])).all():
                n_left_out += 1
                continue
            brought = [bilinear(side, *pixel) for pixel in there]
            agreed.append(ncc([image[place] for place in places], brought, noise))
        expected = np.mean(sorted(agreed)[-n_counted:]) if agreed else 0
        assert found[plane, row, column] == pytest.approx(expected, abs=1e-3)
    assert n_left_out > 10


@pytest.mark.parametrize("normal", [(0.0, 1.0, 0.0), (0.4, 1.0, 0.3)])
def test_the_depth_of_a_textured_plane_is_found(normal):
    image, truth = photograph(NEAR, np.array(normal))
    others = [(camera, next(photograph(camera, np.array(normal)))) for camera in (LEFT, RIGHT)]
    depths = np.arange(3.0, 5.5, 0.1)
    volume = sweep_planes(NEAR, image, [*others, (AWAY, np.zeros(SIZE))], depths, n_best=2)
    error = np.abs(depths[volume.argmax(0)] - truth)[4:-4, 4:-4]
    assert np.median(error) < 0.06
    assert (error < 0.2).mean() > 0.9
    assert volume.max(0)[4:-4, 4:-4].mean() > 0.9


def test_the_sign_of_a_projection_is_free_and_what_is_behind_a_camera_does_not_count():
    image, _ = photograph(NEAR, np.array([0.0, 1.0, 0.0]))
    side, _ = photograph(LEFT, np.array([0.0, 1.0, 0.0]))
    expected = sweep_planes(NEAR, image, [(LEFT, side)], [3.5, 4.0])
    turned = [Camera(-camera.projection, SIZE) for camera in (NEAR, LEFT)]
    found = sweep_planes(turned[0], image, [(turned[1], side)], [3.5, 4.0])
    np.testing.assert_allclose(found, expected, atol=1e-4)
    rng = np.random.default_rng(0)
    assert not sweep_planes(NEAR, image, [(AWAY, rng.uniform(size=SIZE))], [3.5, 4.0]).any()


def test_volumes_are_interpolated_in_depth():
    rng = np.random.default_rng(0)
    volume, depths = rng.normal(size=(5, 3, 4)), np.array([1.0, 1.5, 3.0, 3.5, 5.0])
    pixels, places = rng.integers(12, size=50), rng.uniform(0, 6, size=50)
    places[:3] = 1.0, 5.0, 3.0
    found = look_up(volume, depths, pixels, places)
    expected = [
        np.interp(place, depths, volume.reshape(5, 12)[:, pixel])
        for pixel, place in zip(pixels, places, strict=True)
    ]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    np.testing.assert_allclose(look_up(volume[:1], [2.0], pixels, places), volume[0].flat[pixels])
    assert look_up(volume, depths, np.zeros(0, int), []).shape == (0,)


@settings(max_examples=50)
@given(st.lists(st.lists(st.sampled_from([0.0, 0.2, 0.5, 0.9, 1.0]), max_size=5), min_size=1,
                max_size=4))
def test_first_hits_by_enumeration(rays):
    offsets = np.cumsum([0, *map(len, rays)])
    hits, none = first_hits(offsets, np.array([q for ray in rays for q in ray], float))
    assert len(none) == len(rays)
    for ray, q in enumerate(rays):
        expected = np.zeros(len(q) + 1)
        for state in itertools.product((0, 1), repeat=len(q)):
            chance = np.prod([p if o else 1 - p for p, o in zip(q, state, strict=True)])
            expected[state.index(1) if 1 in state else len(q)] += chance
        found = [*hits[offsets[ray] : offsets[ray + 1]], none[ray]]
        np.testing.assert_allclose(found, expected, atol=1e-14)


def test_scores_of_photographs_reconstruct_a_plane():
    normal = np.array([0.3, 1.0, 0.2])
    cameras = [NEAR, LEFT, RIGHT]
    images, truths = zip(*(photograph(camera, normal) for camera in cameras), strict=True)
    grid = VoxelGrid((24, 12, 20), (-1.2, -0.6, -1.0), 0.1)
    depths = np.arange(3.0, 5.5, 0.1)
    parts = []
    for k, camera in enumerate(cameras):
        origins, ways = camera.rays()
        crossed = grid.traverse(origins, ways, distances=True)
        others = [(cameras[j], images[j]) for j in range(3) if j != k]
        volume = sweep_planes(camera, images[k], others, depths)
        ray = np.repeat(np.arange(len(ways)), np.diff(crossed.offsets))
        places = (crossed.entries + crossed.exits) / 2 * camera.project(origins + ways)[1][ray]
        ncc = look_up(volume, depths, ray, places)
        parts.append((np.diff(crossed.offsets), crossed.voxels, ncc, places))
    lengths, voxels, agreements, places = (
        np.concatenate(lists) for lists in zip(*parts, strict=True)
    )
    offsets = np.concatenate([[0], np.cumsum(lengths)])
    model = RayModel(grid, offsets, voxels, np.exp(10 * agreements), 0.1, 1.0)
    result = infer(model)
    ray = np.repeat(np.arange(len(lengths)), lengths)
    found = np.bincount(ray, result.depths * places, len(lengths)) / (1 - result.empty + 1e-9)
    truth = np.concatenate([each.ravel() for each in truths])
    sure = (result.empty < 0.1) & (lengths > 10)
    assert sure.mean() > 0.2
    assert np.median(np.abs(found - truth)[sure]) < 0.06


GOOD = np.zeros(SIZE)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: sample_bilinear(np.zeros(3), [[0, 0]]), r"image must have shape \(H, W\)"),
    (lambda: sample_bilinear(np.zeros((0, 3)), [[0, 0]]), r"image must have shape \(H, W\)"),
    (lambda: sample_bilinear(GOOD * np.nan, [[0, 0]]), "image must be finite"),
    (lambda: sample_bilinear(GOOD, [0, 0, 0]), r"pixels must have shape \(\.\.\., 2\)"),
    (lambda: correlate_windows(GOOD, GOOD[1:]), "images .* of one shape"),
    (lambda: correlate_windows(GOOD[0], GOOD[0]), "images .* of one shape"),
    (lambda: correlate_windows(GOOD, GOOD, 0), "radius must be at least 1"),
    (lambda: correlate_windows(GOOD, GOOD, noise=-1), "noise must not be negative"),
    (lambda: sweep_planes(NEAR, GOOD[1:], [(LEFT, GOOD)], [1]), "its camera's size"),
    (lambda: sweep_planes(NEAR, GOOD, [(LEFT, GOOD.T)], [1]), "its camera's size"),
    (lambda: sweep_planes(NEAR, GOOD, [], [1]), "one image at least"),
    (lambda: sweep_planes(NEAR, GOOD, [LEFT], [1]), "others must be pairs"),
    (lambda: sweep_planes(NEAR, GOOD, None, [1]), "others must be pairs"),
    (lambda: sweep_planes(None, GOOD, [(LEFT, GOOD)], [1]), "must come with a Camera"),
    (lambda: sweep_planes(NEAR, GOOD, [(LEFT, GOOD)], [1, 0]), "positive numbers"),
    (lambda: sweep_planes(NEAR, GOOD, [(LEFT, GOOD)], []), "positive numbers"),
    (lambda: sweep_planes(NEAR, GOOD, [(LEFT, GOOD)], [1], n_best=2), "n_best must be"),
    (lambda: look_up(GOOD, [1], [0], [1]), r"shapes \(D, H, W\) and \(D,\)"),
    (lambda: look_up(GOOD[None], [1, 2], [0], [1]), r"shapes \(D, H, W\) and \(D,\)"),
    (lambda: look_up(np.zeros((2, 3, 4)), [2, 1], [0], [1]), "depths must increase"),
    (lambda: look_up(GOOD[None], [1], [0.5], [1]), "pixels of whole numbers"),
    (lambda: look_up(GOOD[None], [1], [0], [1, 2]), r"shape \(E,\)"),
    (lambda: look_up(GOOD[None], [1], [GOOD.size], [1]), "pixels must lie between 0 and 719"),
    (lambda: first_hits([0, 2], [0.5]), "offsets must run from 0 to the 1 entries"),
    (lambda: first_hits([0, 2, 1], [0.5]), "offsets must not fall"),
    (lambda: first_hits(np.array([0, 2, 1, 2], np.uint8), [0.5] * 2), "must not fall"),
    (lambda: first_hits([0, 1], [[0.5]]), r"occupied must have shape \(E,\)"),
    (lambda: first_hits([0, 1], [1.5]), "occupied must lie between 0 and 1"),
])
def test_wrong_input_is_refused(call, message):
    assert re.search(message, refusal(call))
