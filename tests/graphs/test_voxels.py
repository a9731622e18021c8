"""Rays through voxel grids: against small steps, and the corner cases."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crfield.graphs import Camera, VoxelGrid
from ray_reference import stepped_voxels

SHAPE, ORIGIN, SPACING = (5, 4, 6), np.array([-1.0, 2.0, 0.5]), np.array([0.5, 1.0, 0.25])
GRID = VoxelGrid(SHAPE, ORIGIN, SPACING)
SIZE = np.array(SHAPE) * SPACING


def random_rays(rng, n):
    """From inside and outside the grid, towards a point near it; some parallel to an axis."""
    starts = ORIGIN + SIZE * rng.uniform(-1.5, 2.5, size=(n, 3))
    starts[::4] = ORIGIN + SIZE * rng.uniform(0, 1, size=(len(starts[::4]), 3))
    ways = ORIGIN + SIZE * rng.uniform(-0.2, 1.2, size=(n, 3)) - starts
    flat = rng.integers(3, size=n)
    ways[np.arange(0, n, 7), flat[::7]] = 0
    ways[np.arange(0, n, 21), (flat[::21] + 1) % 3] = 0
    return starts, ways * rng.uniform(0.1, 3, size=(n, 1))


def walk(start, way, grid=GRID):
    """Voxels (n, 3), entries and exits of one ray."""
    found = grid.traverse(start, way, distances=True)
    np.testing.assert_array_equal(found.offsets, [0, len(found.voxels)])
    return np.column_stack(np.unravel_index(found.voxels, grid.shape)), found.entries, found.exits


@pytest.mark.slow
def test_random_rays_meet_the_voxels_that_small_steps_meet():
    rng = np.random.default_rng(0)
    n = 3000
    starts, ways = random_rays(rng, n)
    found = GRID.traverse(starts, ways, distances=True)
    stepped, step = stepped_voxels(SHAPE, ORIGIN, SPACING, starts, ways, 2000)
    n_hit = 0
    for ray, (begin, end) in enumerate(itertools.pairwise(found.offsets)):
        voxels = found.voxels[begin:end].tolist()
        lengths = found.exits[begin:end] - found.entries[begin:end]
        assert (lengths > 0).all()
        met = [voxel for voxel, _ in itertools.groupby(stepped[ray].tolist()) if voxel >= 0]
        assert [voxel for voxel in voxels if voxel in set(met)] == met
        long = {voxel for voxel, length in zip(voxels, lengths, strict=True)
                if length > 1.01 * step[ray]}
        assert long <= set(met)
        n_hit += bool(voxels)
    assert n / 3 < n_hit < n


def test_segments_join_and_their_middles_lie_in_their_voxels():
    starts, ways = random_rays(np.random.default_rng(1), 5000)
    found = GRID.traverse(starts, ways, distances=True)
    ray = np.repeat(np.arange(len(starts)), np.diff(found.offsets))
    same = ray[1:] == ray[:-1]
    np.testing.assert_array_equal(found.exits[:-1][same], found.entries[1:][same])
    half = (found.entries + found.exits)[:, None] / 2
    middle = (starts[ray] + half * ways[ray] - ORIGIN) / SPACING
    cells = np.column_stack(np.unravel_index(found.voxels, SHAPE))
    assert (np.abs(middle - cells - 0.5) <= 0.5 + 1e-9).all()
    first, last = found.offsets[:-1], found.offsets[1:] - 1
    for at, distance in ((first, found.entries), (last, found.exits)):
        hit = last >= first
        place = (starts[hit] + distance[at[hit]][:, None] * ways[hit] - ORIGIN) / SIZE
        on_border = (np.minimum(np.abs(place), np.abs(place - 1)) < 1e-9).any(1)
        assert (on_border | (distance[at[hit]] == 0)).all()


@pytest.mark.parametrize("axis", [0, 1, 2])
@pytest.mark.parametrize("sign", [1, -1])
def test_parallel_to_an_axis(axis, sign):
    grid = VoxelGrid((3, 3, 3))
    way = np.zeros(3)
    way[axis] = sign
    start = np.full(3, 1.5)
    start[axis] = -1 if sign > 0 else 4
    cells, entries, exits = walk(start, way, grid)
    expected = np.ones((3, 3), int)
    expected[:, axis] = [0, 1, 2][::sign]
    np.testing.assert_array_equal(cells, expected)
    np.testing.assert_array_equal(entries, [1, 2, 3])
    np.testing.assert_array_equal(exits, [2, 3, 4])
    assert len(walk(start, -way, grid)[0]) == 0, "the grid lies behind"
    start[(axis + 1) % 3] = 3.0
    assert len(walk(start, way, grid)[0]) == 0, "along the upper face"
    start[(axis + 1) % 3] = 0.0
    assert len(walk(start, way, grid)[0]) == 3, "along the lower face"


def test_through_corners_and_edges():
    grid = VoxelGrid((3, 3, 3))
    diagonal = np.repeat(np.arange(3)[:, None], 3, 1)
    np.testing.assert_array_equal(walk([-1, -1, -1], [1, 1, 1], grid)[0], diagonal)
    np.testing.assert_array_equal(walk([4, 4, 4], [-2, -2, -2], grid)[0], diagonal[::-1])
    cells, entries, _ = walk([0, 0, 0.5], [1, 1, 0], grid)
    np.testing.assert_array_equal(cells, np.column_stack([diagonal[:, :2], [0, 0, 0]]))
    np.testing.assert_array_equal(entries, [0, 1, 2])
    assert len(walk([-1, 1, 0.5], [1, -1, 0], grid)[0]) == 0, "touches an edge only"
    assert len(walk([3, 1.5, 1.5], [1, 0, 0], grid)[0]) == 0, "leaves at once"
    np.testing.assert_array_equal(walk([3, 1.5, 1.5], [-1, 0, 0], grid)[0][0], [2, 1, 1])
    np.testing.assert_array_equal(walk([1, 1, 1], [-1, -1, -1], grid)[0], [[0, 0, 0]])


@given(
    st.lists(st.integers(-2, 5), min_size=3, max_size=3),
    st.lists(st.integers(-3, 3), min_size=3, max_size=3).filter(any),
)
def test_rays_between_lattice_points_never_repeat_a_voxel(start, way):
    cells, entries, exits = walk(start, way, VoxelGrid((3, 3, 3)))
    assert len(np.unique(cells, axis=0)) == len(cells)
    assert (exits > entries).all()
    place = np.array(start) + (entries + exits)[:, None] / 2 * np.array(way)
    assert (np.abs(place - cells - 0.5) <= 0.5 + 1e-9).all()


def test_extreme_numbers_end():
    grid = VoxelGrid((4, 4, 4))
    for start, way in (
        ([-1e300, 0.5, 0.5], [1, 0, 0]), ([0.5, 0.5, 0.5], [1e-300, 1e100, 0]),
        ([0.5, 0.5, 0.5], [1e-310, 1, 0]), ([-1, 2, 2], [1, 1e-17, -1e-17]),
    ):
        assert len(walk(start, way, grid)[0]) <= 10
    for size in (1e-100, 1e100):
        for length in (1e-100, 1e100):
            small = VoxelGrid((4, 4, 4), spacing=size)
            cells, entries, exits = walk([size / 2] * 3, [length, 0, 0], small)
            np.testing.assert_array_equal(cells[:, 0], [0, 1, 2, 3])
            np.testing.assert_allclose(exits, (np.arange(4) + 0.5) * (size / length), rtol=1e-12)
            np.testing.assert_array_equal(entries[1:], exits[:-1])


def test_cameras_see_what_they_project():
    k = np.array([[500.0, 2.0, 31.5], [0, 480.0, 23.5], [0, 0, 1]])
    angle = 0.4
    r = np.array([
        [np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)],
    ])
    t = np.array([0.2, -0.4, 5.0])
    camera = Camera.from_calibration(k, r, t, (48, 64))
    np.testing.assert_allclose(camera.center, -r.T @ t)
    points = np.random.default_rng(0).uniform(-0.3, 0.3, size=(20, 3))
    pixels, depths = camera.project(points)
    np.testing.assert_allclose(depths, (points @ r.T + t)[:, 2])
    for same in (camera, Camera(-2 * camera.projection, (48, 64))):
        origins, ways = same.rays(pixels)
        np.testing.assert_allclose(np.linalg.norm(ways, axis=1), 1)
        np.testing.assert_allclose(
            origins + np.linalg.norm(points - origins, axis=1, keepdims=True) * ways, points,
            atol=1e-9,
        )
    _, ways = camera.rays()
    assert ways.shape == (48 * 64, 3)
    np.testing.assert_allclose(ways[64 * 7 + 5], camera.rays([[5, 7]])[1][0])


@pytest.mark.parametrize("factor", [1e-150, 1e150, -1e-200])
def test_the_size_of_a_projection_does_not_count(factor):
    plain = Camera.looking_at([3.0, -1.0, 2.0], [0.5, 0.5, 0.5], 100.0, (3, 4))
    scaled = Camera(factor * plain.projection, (3, 4))
    np.testing.assert_allclose(scaled.center, plain.center, rtol=1e-12)
    np.testing.assert_allclose(scaled.rays()[1], plain.rays()[1], atol=1e-12)
    (pixels, depths), (expected, ahead) = scaled.project([0, 0, 0]), plain.project([0, 0, 0])
    np.testing.assert_allclose(pixels, expected)
    np.testing.assert_allclose(depths / abs(factor), ahead)


def test_far_and_near_cameras():
    for size in (1e-200, 1e200):
        camera = Camera.looking_at([size, 0, 0], [0, 0, 0], 10.0, (3, 3))
        np.testing.assert_allclose(camera.center / size, [1, 0, 0], atol=1e-12)
        np.testing.assert_allclose(camera.rays([[1, 1]])[1], [[-1, 0, 0]], atol=1e-12)
    np.testing.assert_allclose(
        camera.rays([[1e308, 1e308]])[1], [[0, 1, -1] / np.sqrt(2)], atol=1e-12
    )


def test_a_camera_looks_at_its_target():
    camera = Camera.looking_at([3.0, -1.0, 2.0], [0.5, 0.5, 0.5], 100.0, (11, 21))
    np.testing.assert_allclose(camera.center, [3.0, -1.0, 2.0])
    pixels, depths = camera.project([[0.5, 0.5, 0.5], [0.5, 0.5, 0.6]])
    np.testing.assert_allclose(pixels[0], [10, 5])
    assert (depths > 0).all()
    assert pixels[1, 1] < 5, "what is higher has a smaller row"
    np.testing.assert_allclose(pixels[1, 0], 10)
    turned = Camera.looking_at([0, 0, 0], [1, 0, 0], 10.0, (3, 3)).project([1, -0.1, 0])[0][0, 0]
    assert turned > 1, "the right hand is at larger columns"


def test_centers():
    centers = GRID.centers()
    assert centers.shape == (*SHAPE, 3)
    np.testing.assert_allclose(centers[1, 2, 3], ORIGIN + np.array([1.5, 2.5, 3.5]) * SPACING)
