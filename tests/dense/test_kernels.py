"""Features and kernels: what each looks at, and in which units."""

import numpy as np
import pytest

import reference
from crfield import Bilateral, DenseCRF, FeatureKernel, Pairwise, Potts, Spatial
from crfield.dense.filters import make_filter
from crfield.dense.observation import observe, rgb_to_lab


def kernel_of(kernel, grid, **data):
    """The kernel matrix, without normalization, of a kernel on an observation."""
    features = kernel.scaled_features(observe(grid, **data))
    plain = FeatureKernel("f", features.shape[1], shape=kernel.shape, normalization="none")
    return make_filter(features, plain, "exact").to_dense()


def gaussian(differences, covariance):
    """exp(-d' C^-1 d / 2) for differences (N, N, D)."""
    inverse = np.linalg.inv(covariance)
    return np.exp(-0.5 * np.einsum("ijd,de,ije->ij", differences, inverse, differences))


def differences(points):
    return points[:, None, :] - points[None, :, :]


@pytest.mark.parametrize("grid", [(7,), (4, 5), (3, 2, 4), (2, 3, 2, 2)])
@pytest.mark.parametrize("anisotropic", [False, True])
def test_spatial_widths_in_every_form(grid, anisotropic):
    d = len(grid)
    spacing = np.linspace(0.5, 2.0, d) if anisotropic else np.ones(d)
    points = np.indices(grid).reshape(d, -1).T * spacing
    root = np.random.default_rng(d).normal(size=(d, d))
    covariance = root @ root.T + np.eye(d)
    per_axis = np.linspace(1.0, 3.0, d)
    given = {"spacing": spacing} if anisotropic else {}
    for sigma, matrix in [
        (2.5, 2.5**2 * np.eye(d)),
        (per_axis, np.diag(per_axis**2)),
        (covariance, covariance),
    ]:
        expected = gaussian(differences(points), matrix)
        assert np.allclose(kernel_of(Spatial(sigma), grid, **given), expected, atol=1e-12)


@pytest.mark.parametrize("channels", [0, 1, 3, 4, 7])
def test_bilateral_looks_at_positions_and_any_number_of_channels(channels):
    rng = np.random.default_rng(channels)
    shape = (4, 5) if channels == 0 else (4, 5, channels)
    image = rng.integers(0, 255, shape).astype(np.uint8)
    colors = image.reshape(20, -1).astype(float)
    points = np.indices((4, 5)).reshape(2, -1).T
    both = np.concatenate([points / 6.0, colors / 40.0], 1)
    result = kernel_of(Bilateral(6, 40), (4, 5), image=image)
    assert np.allclose(result, reference.kernel_matrix(both), atol=1e-12)
    widths = np.linspace(20, 60, colors.shape[1])
    both = np.concatenate([points / [6.0, 3.0], colors / widths], 1)
    result = kernel_of(Bilateral([6, 3], widths), (4, 5), image=image)
    assert np.allclose(result, reference.kernel_matrix(both), atol=1e-12)


def test_one_covariance_of_positions_and_colors():
    rng = np.random.default_rng(0)
    image = rng.uniform(0, 100, (3, 4, 2))
    root = rng.normal(size=(4, 4)) * 3
    covariance = root @ root.T + 4 * np.eye(4)
    points = np.concatenate([np.indices((3, 4)).reshape(2, -1).T, image.reshape(12, 2)], 1)
    result = kernel_of(Bilateral(covariance=covariance, color_scale=1.0), (3, 4), image=image)
    assert np.allclose(result, gaussian(differences(points), covariance), atol=1e-10)


def test_images_of_all_types_share_one_color_scale():
    rng = np.random.default_rng(1)
    image = rng.integers(0, 256, (5, 6, 3)).astype(np.uint8)
    image[2, 3] = 0, 128, 255  # both ends of the scale
    expected = kernel_of(Bilateral(5, 30), (5, 6), image=image)
    same = [
        image.astype(np.uint16) * 257, image.astype(np.float32), image.astype(np.float64) / 255,
        image.astype(np.int32), image.astype(">i4"), np.asfortranarray(image),
        np.repeat(image, 2, axis=0)[::2],
    ]
    for other in same:
        assert np.allclose(kernel_of(Bilateral(5, 30), (5, 6), image=other), expected, atol=1e-5)
    doubled = kernel_of(Bilateral(5, 60, color_scale=2.0), (5, 6), image=image)
    assert np.allclose(doubled, expected, atol=1e-12)


def test_lab_agrees_with_published_values():
    """Reference values of sRGB primaries, white and a gray (CIE 1976, D65)."""
    rgb = np.array([[255, 0, 0], [0, 255, 0], [0, 0, 255], [255, 255, 255], [119, 119, 119]])
    expected = [[53.24, 80.09, 67.20], [87.73, -86.18, 83.18], [32.30, 79.19, -107.86],
                [100.0, 0.0, 0.0], [50.03, 0.0, 0.0]]
    assert np.allclose(rgb_to_lab(rgb.astype(float)), expected, atol=0.05)
    image = np.random.default_rng(2).integers(0, 256, (4, 4, 3)).astype(np.uint8)
    lab = rgb_to_lab(image.reshape(-1, 3).astype(float))
    points = np.indices((4, 4)).reshape(2, -1).T
    expected_kernel = reference.kernel_matrix(np.concatenate([points / 5.0, lab / 10.0], 1))
    result = kernel_of(Bilateral(5, 10, color_space="lab"), (4, 4), image=image)
    assert np.allclose(result, expected_kernel, atol=1e-12)


def test_points_without_a_grid():
    rng = np.random.default_rng(3)
    positions = rng.uniform(0, 10, (30, 3))
    colors = rng.uniform(0, 255, (30, 2))
    expected = reference.kernel_matrix(np.concatenate([positions / 4, colors / 50], 1))
    result = kernel_of(
        Bilateral(4, 50, color_scale=1.0), (30,), image=colors, positions=positions
    )
    assert np.allclose(result, expected, atol=1e-12)


def test_named_features_on_a_grid_or_flat():
    rng = np.random.default_rng(4)
    depth = rng.normal(size=(4, 5, 2))
    kernel = FeatureKernel("depth", 2, sigma=[0.5, 2.0])
    expected = reference.kernel_matrix(depth.reshape(20, 2) / [0.5, 2.0])
    for given in (depth, depth.reshape(20, 2)):
        assert np.allclose(kernel_of(kernel, (4, 5), features={"depth": given}), expected)


def test_the_grid_crf_is_a_tent():
    """Spatial(2, "tent") couples 4-neighbors with weight 1/2 and nothing else (KK13 section 3)."""
    kernel = kernel_of(Spatial(2, shape="tent"), (5, 5))
    points = np.indices((5, 5)).reshape(2, -1).T
    distance = np.abs(differences(points)).sum(-1)
    expected = np.select([distance == 0, distance == 1], [1.0, 0.5], 0.0)
    assert np.array_equal(kernel, expected)


def test_a_mask_is_the_model_on_the_pixels_inside():
    rng = np.random.default_rng(5)
    image = rng.integers(0, 255, (9, 8, 3)).astype(np.uint8)
    unary = rng.normal(size=(9, 8, 4))
    mask = rng.random((9, 8)) < 0.6
    crf = DenseCRF(4, [Pairwise(Spatial(2), Potts(2)), Pairwise(Bilateral(5, 40), Potts(3))])
    masked = crf.infer(image, unary, mask=mask, max_iter=6, tol=0)
    inside = crf.infer(
        image[mask], unary[mask], positions=np.argwhere(mask), max_iter=6, tol=0
    )
    assert np.allclose(masked.marginals[mask], inside.marginals, atol=1e-10)
    assert np.allclose(masked.free_energies, inside.free_energies)
    assert np.allclose(masked.marginals[~mask], reference.softmax(-unary[~mask]), atol=1e-6)


@pytest.mark.parametrize("method", ["lattice", "exact"])
def test_volumes_agree_with_brute_force(method):
    rng = np.random.default_rng(6)
    volume = rng.normal(size=(4, 5, 6)) * 50
    unary = rng.normal(size=(4, 5, 6, 3))
    spacing = (2.0, 1.0, 1.0)
    crf = DenseCRF(3, [Pairwise(Bilateral(3, 60), Potts(4))])
    result = crf.infer(volume, unary, spacing=spacing, filter=method, max_iter=3, tol=0)
    points = np.indices((4, 5, 6)).reshape(3, -1).T * spacing / 3
    features = np.concatenate([points, volume.reshape(-1, 1) / 60], 1)
    plain = (reference.lattice_matrix if method == "lattice" else reference.kernel_matrix)(features)
    kernel = reference.normalized(plain, "symmetric")
    q = reference.softmax(-unary.reshape(-1, 3))
    for _ in range(3):
        q = reference.softmax(-unary.reshape(-1, 3) - kernel @ q @ (4 * (1 - np.eye(3))))
    assert np.abs(result.marginals.reshape(-1, 3) - q).max() < 1e-10
