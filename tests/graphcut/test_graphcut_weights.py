"""Weights of neighboring cells against their formulas, pair by pair."""

import numpy as np
import pytest

from crfield.graphcut import (
    boundary_weights,
    constant_weights,
    contrast_weights,
    cut_grids,
    grid_offsets,
)
from graphcut_reference import grid_pairs

KINDS = [((4, 5), 4), ((4, 5), 8), ((3, 4, 2), 6), ((3, 4, 2), 26), ((1, 6), 8), ((1, 1), 4)]


def expected(grid, neighbors, weight):
    """Weights by a loop over pairs; weight(p, q, distance) takes flat indices."""
    offsets = grid_offsets(len(grid), neighbors)
    planes = np.zeros((len(offsets), int(np.prod(grid))))
    for k, p, q in grid_pairs(grid, offsets):
        planes[k, p] = weight(p, q, np.linalg.norm(offsets[k]))
    return planes.reshape(len(offsets), *grid)


@pytest.mark.parametrize(("grid", "neighbors"), KINDS)
def test_constant(grid, neighbors):
    found = constant_weights(grid, neighbors)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, expected(grid, neighbors, lambda p, q, d: 1))


@pytest.mark.parametrize(("grid", "neighbors"), KINDS)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32, np.float64])
def test_contrast(grid, neighbors, dtype):
    rng = np.random.default_rng(1)
    image = rng.integers(0, 255, size=(*grid, 3)).astype(dtype)
    colors = image.reshape(-1, 3).astype(float)

    def squared(p, q):
        return ((colors[p] - colors[q]) ** 2).sum()

    pairs = grid_pairs(grid, grid_offsets(len(grid), neighbors))
    mean = np.mean([squared(p, q) for _, p, q in pairs]) if len(pairs) else 1.0
    for beta, given in ((0.5 / mean, None), (0.01, 0.01), (0.0, 0.0)):
        found = contrast_weights(image, neighbors, beta=given)
        wanted = expected(
            grid, neighbors, lambda p, q, d, beta=beta: np.exp(-beta * squared(p, q)) / d
        )
        assert found.dtype == (np.float64 if dtype is np.float64 else np.float32)
        np.testing.assert_allclose(found, wanted, rtol=1e-6, atol=1e-37)
    gray = contrast_weights(image[..., 0], neighbors)
    np.testing.assert_array_equal(gray, contrast_weights(image[..., :1], neighbors))


def test_contrast_of_flat_and_extreme_images():
    flat = contrast_weights(np.full((3, 4, 3), 7.0), 8)
    np.testing.assert_allclose(flat[:2, :-1, :-1], 1)
    np.testing.assert_allclose(flat[2, :-1, :-1], 2**-0.5)
    rng = np.random.default_rng(2)
    for image in (rng.normal(size=(5, 5, 2)) * 1e100, rng.normal(size=(5, 5, 2)) * 1e-150):
        assert np.isfinite(contrast_weights(np.clip(image, -1e100, 1e100), 4)).all()
    assert contrast_weights(1e90 * np.eye(3), 4, beta=1e300).max() == 1


@pytest.mark.parametrize("scale", [1e-155, 1e-160, 1e-300, 5e-324, 1e60])
def test_contrast_does_not_depend_on_origin_and_scale(scale):
    steps = np.array([[0, 1, 1], [1, 0, 2]])
    wanted = contrast_weights(steps.astype(float), 8)
    np.testing.assert_allclose(contrast_weights(scale * steps, 8), wanted, rtol=1e-12)
    beside = np.stack([np.ones(steps.shape), scale * steps], -1)  # a channel that is constant
    np.testing.assert_allclose(contrast_weights(beside, 8), wanted, rtol=1e-12)


@pytest.mark.parametrize(("grid", "neighbors"), KINDS)
def test_boundary(grid, neighbors):
    rng = np.random.default_rng(3)
    boundary = rng.uniform(0, 1, grid)
    boundary.flat[0], boundary.flat[-1] = 1, 0
    flat = boundary.ravel()
    for floor in (1e-3, 0.2, 1e-300):
        found = boundary_weights(boundary, neighbors, floor=floor)

        def weight(p, q, d, floor=floor):
            return max(0, -max(np.log(max(flat[p], floor)), np.log(max(flat[q], floor))))

        np.testing.assert_allclose(found, expected(grid, neighbors, weight), rtol=1e-12, atol=0)
        assert np.isfinite(found).all()
        assert (found >= 0).all()


def test_weights_go_into_a_cut():
    rng = np.random.default_rng(4)
    image = np.where(np.arange(20) < 10, 50.0, 200.0) + rng.normal(0, 5, (15, 20))
    costs = np.where(np.arange(20) < 10, 1.0, -1.0) + rng.normal(0, 1.5, (15, 20))
    found = cut_grids(costs[None], 3 * contrast_weights(image, 8)[None])
    assert (found.labels[0] == (np.arange(20) >= 10)).all()
