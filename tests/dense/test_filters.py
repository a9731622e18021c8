"""What the contract of operators does not say: tiles, bounds, keys, choices and refusals."""

import numpy as np
import pytest

import reference
from crfield import FeatureKernel, Spatial
from crfield.dense.filters import ExactFilter, GridFilter, LatticeFilter, make_filter
from crfield.dense.filters.base import GridFeatures
from crfield.dense.kernels import SHAPES
from operator_contract import derivative
from refusal import refusal


def build(method, shape, features, normalization="none", dtype=np.float64, **options):
    kernel = FeatureKernel("f", features.shape[1], shape=shape, normalization=normalization)
    return make_filter(np.ascontiguousarray(features, dtype), kernel, method, **options)


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 129, 5000])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_sizes_around_tiles_and_threads(n, threads):
    rng = np.random.default_rng(n)
    features = rng.normal(size=(n, 2)).astype(np.float32) * 3
    x = rng.normal(size=(n, 5)).astype(np.float32)
    some = rng.choice(n, min(n, 200), replace=False)
    rows = np.exp(-0.5 * ((features[some, None].astype(np.float64) - features[None]) ** 2).sum(-1))
    expected = rows @ x
    result = ExactFilter(features, normalization="none", threads=threads).apply(x)
    assert np.abs(result[some] - expected).max() < 1e-5 * rows.sum(1).max()
    one = LatticeFilter(features, threads=1).apply(x)
    many = LatticeFilter(features, threads=threads).apply(x)
    assert np.abs(one - many).max() < 1e-5
    assert np.array_equal(many, LatticeFilter(features, threads=threads).apply(x))


@pytest.mark.slow
@pytest.mark.parametrize("shape", SHAPES)
def test_skipping_far_tiles_stays_within_its_bound(shape):
    rng = np.random.default_rng(0)
    features = rng.uniform(0, 60, size=(3000, 2))
    x = rng.uniform(-1, 1, size=(3000, 3))
    whole = ExactFilter(features, shape=shape, normalization="none").apply(x)
    tol = 3e-2 if shape == "sinc" else 1e-4
    skipping = ExactFilter(features, shape=shape, normalization="none", filter_tol=tol)
    assert skipping.active_fraction < 0.8
    assert np.abs(skipping.apply(x) - whole).max() <= 3000 * tol
    dense = skipping.to_dense()
    assert np.abs(dense - dense.T).max() < 1e-15
    assert ExactFilter(features, shape=shape, normalization="none").active_fraction == 1.0


@pytest.mark.slow
@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_unnormalized_lattice_keeps_the_mass_of_the_gaussian(dim):
    """Summed over a dense cloud of points, both kernels weigh the same."""
    rng = np.random.default_rng(1)
    features = rng.uniform(-3, 3, size=(20000, dim)).astype(np.float32)
    inside = np.abs(features).max(1) < 1.0
    ones = np.ones((20000, 1), np.float32)
    lattice = LatticeFilter(features, normalization="none").apply(ones)[inside].sum()
    exact = ExactFilter(features, normalization="none").apply(ones)[inside].sum()
    assert lattice == pytest.approx(exact, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("sigma", [1e-10, 1e-6, 1.0, 1e10])
@pytest.mark.parametrize("dim", [1, 5, 9, 16])
def test_lattice_keys_never_collide(sigma, dim):
    """Points far apart stay apart whatever the width, through every key size."""
    rng = np.random.default_rng(2)
    features = rng.uniform(0, 300, size=(50, dim)) / sigma
    operator = LatticeFilter(features, normalization="symmetric")
    dense = operator.to_dense()
    if sigma < 1.0:
        assert np.allclose(dense, np.eye(50), atol=1e-12)
    elif sigma > 1.0:
        assert np.allclose(dense, 1.0 / 50, atol=1e-6)
    else:
        assert np.allclose(dense.sum(1), reference.normalized(
            reference.lattice_matrix(features), "symmetric").sum(1))


def test_two_dimensional_tent_is_indefinite():
    """KK13 calls it positive definite; on the 4-neighbor grid it is not."""
    grid = np.indices((6, 6)).reshape(2, -1).T.astype(float)
    operator = make_filter(grid / 2, Spatial(2, shape="tent", normalization="none"))
    assert np.linalg.eigvalsh(operator.to_dense())[0] < -0.2
    line = np.arange(30.0)[:, None] / 2
    one_d = make_filter(line, Spatial(2, shape="tent", normalization="none"))
    assert np.linalg.eigvalsh(one_d.to_dense())[0] > -1e-12


def test_choice_of_method():
    def automatic(n, dim, shape="gaussian"):
        return make_filter(np.zeros((n, dim)), FeatureKernel("f", dim, shape=shape))

    assert isinstance(automatic(100, 2), ExactFilter)
    assert isinstance(automatic(2048, 2), ExactFilter)
    assert isinstance(automatic(2049, 2), LatticeFilter)
    assert isinstance(automatic(2100, 17), ExactFilter)
    assert isinstance(automatic(2100, 2, "tent"), ExactFilter)
    assert "Gaussian kernels only" in refusal(build, "lattice", "tent", np.zeros((3, 2)))
    assert "1 to 16 feature dimensions" in refusal(build, "lattice", "gaussian", np.zeros((3, 17)))
    assert "filter_tol" in refusal(build, "exact", "gaussian", np.zeros((3, 2)), filter_tol=-1.0)


@pytest.mark.parametrize(("step", "kind"), [(1.7, GridFilter), (1.8, LatticeFilter)])
def test_the_grid_is_for_nodes_up_to_twice_as_dense_as_points(step, kind):
    """Nodes lie sqrt(3) / 2 apart: of points sqrt(3) apart there are half as many."""
    axes = (step * np.arange(60.0), 0.5 * np.arange(60.0))
    features = GridFeatures(axes, None, np.empty(0), np.dtype(np.float64))
    assert isinstance(make_filter(features, Spatial(1)), kind)


@pytest.mark.parametrize("method", ["exact", "lattice"])
@pytest.mark.parametrize("n_labels", [1, 2, 5, 21])
def test_derivatives_in_single_precision_agree_with_double(method, n_labels):
    rng = np.random.default_rng(n_labels)
    features = rng.normal(size=(3000, 3)) * 2
    u, v = rng.normal(size=(2, 3000, n_labels))
    expected = derivative(build(method, "gaussian", features, "symmetric"), [(u, v)])
    operator = build(method, "gaussian", features, "symmetric", np.float32)
    single = derivative(operator, [(u.astype(np.float32), v.astype(np.float32))])
    assert single.dtype == np.float32
    assert np.abs(single - expected).max() < 2e-3 * np.abs(expected).max()


def test_derivatives_of_other_shapes_are_refused():
    operator = build("exact", "tent", np.zeros((3, 1)))
    message = refusal(derivative, operator, [(np.ones((3, 1)), np.ones((3, 1)))])
    assert "only Gaussian kernels" in message


def test_features_beyond_whole_numbers_of_a_double_are_refused():
    kernel = FeatureKernel("f", 1)
    make_filter(np.array([[0.0], [2.0**46]]), kernel, "lattice")
    huge = np.full((1, 1), -1.1 * 2.0**46)
    assert "must not exceed 7.0e+13" in refusal(make_filter, huge, kernel)
