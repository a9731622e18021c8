"""One contract for every operator: linear, symmetric, equal to its dense form and brute force."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from crfield import FeatureKernel, InputError, Spatial
from crfield.dense.filters import ExactFilter, LatticeFilter, make_filter
from crfield.dense.kernels import NORMALIZATIONS, SHAPES

TOLERANCE = {np.float32: 1e-5, np.float64: 1e-12}

# (method, shape) pairs that exist; each passes every test below.
OPERATORS = [("lattice", "gaussian"), *(("exact", shape) for shape in SHAPES)]


def plain_matrix(method, shape, features):
    """The reference kernel matrix without normalization."""
    if method == "lattice":
        dim = features.shape[1]
        mass = (4 * np.pi / 3) ** (dim / 2) * np.sqrt(dim + 1)
        return mass * reference.lattice_matrix(features)
    return reference.kernel_matrix(features, shape)


def build(method, shape, features, normalization="none", dtype=np.float64, **options):
    kernel = FeatureKernel("f", features.shape[1], shape=shape, normalization=normalization)
    return make_filter(np.ascontiguousarray(features, dtype), kernel, method, **options)


def random_features(seed, n, dim):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, dim)) * rng.uniform(0.1, 1.5)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("dim", range(1, 10))
@pytest.mark.parametrize(("method", "shape"), OPERATORS)
def test_agrees_with_brute_force_in_one_to_nine_dimensions(method, shape, dim, dtype):
    features = random_features(dim, 90, dim).astype(dtype)
    operator = build(method, shape, features, dtype=dtype)
    expected = plain_matrix(method, shape, features)
    error = np.abs(operator.to_dense() - expected).max() / np.abs(expected).max()
    assert error < TOLERANCE[dtype]


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize(("method", "shape"), OPERATORS)
@given(data=st.data())
def test_contract(method, shape, normalization, data):
    n = data.draw(st.integers(1, 150))
    n_columns = data.draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 16, 21, 33, 40]))
    dim = data.draw(st.integers(1, 5))
    dtype = data.draw(st.sampled_from([np.float32, np.float64]))
    threads = data.draw(st.integers(1, 3))
    seed = data.draw(st.integers(0, 2**31))
    rng = np.random.default_rng(seed)
    if shape == "sinc" and normalization != "none":
        normalization = "none"  # its row sums may be negative, which is refused
    features = random_features(seed, n, dim).astype(dtype)
    operator = build(method, shape, features, normalization, dtype, threads=threads)
    expected = reference.normalized(plain_matrix(method, shape, features), normalization)
    x = rng.normal(size=(n, n_columns)).astype(dtype)
    y = rng.normal(size=(n, n_columns)).astype(dtype)
    scale = np.abs(expected).sum(1).max() * 4 + 1e-30
    close = TOLERANCE[dtype] * scale

    result = operator.apply(x)
    assert result.dtype == dtype
    assert np.abs(result - expected @ x).max() < close
    assert np.abs(operator.apply_transpose(x) - expected.T @ x).max() < close
    assert np.abs(operator.diagonal() - np.diag(expected)).max() < close
    assert np.abs(operator.to_dense() - expected).max() < close
    # linearity, and x'Ky = y'K'x
    combined = operator.apply((2 * x - 3 * y).astype(dtype))
    assert np.abs(combined - (2 * result - 3 * operator.apply(y))).max() < 8 * close
    assert abs((y * result).sum() - (x * operator.apply_transpose(y)).sum()) < 40 * n * close
    if operator.is_symmetric:
        dense = operator.to_dense()
        assert np.abs(dense - dense.T).max() < close
    assert np.abs(np.linalg.eigvals(expected)).max() <= operator.spectral_bound() * (1 + 1e-5)


@pytest.mark.parametrize(("method", "shape"), OPERATORS)
def test_permuting_the_points_permutes_the_result(method, shape):
    features = random_features(3, 200, 3)
    x = np.random.default_rng(4).normal(size=(200, 6))
    order = np.random.default_rng(5).permutation(200)
    direct = build(method, shape, features).apply(x)
    permuted = build(method, shape, features[order]).apply(x[order])
    assert np.allclose(permuted, direct[order], rtol=0, atol=1e-12)


@pytest.mark.parametrize(("method", "shape"), OPERATORS)
@pytest.mark.parametrize("n_columns", [1, 3, 4, 21, 70])
def test_odd_layouts_and_guarded_output(method, shape, n_columns):
    """Views and Fortran order give the same numbers; nothing is written outside `out`."""
    features = random_features(6, 130, 2).astype(np.float32)
    operator = build(method, shape, features, dtype=np.float32)
    big = np.random.default_rng(7).normal(size=(130, 2 * n_columns)).astype(np.float32)
    strided = big[:, ::2]
    expected = operator.apply(np.ascontiguousarray(strided))
    assert np.array_equal(operator.apply(strided), expected)
    assert np.array_equal(operator.apply(np.asfortranarray(strided)), expected)
    assert np.array_equal(operator.apply(strided.astype(">f4")), expected)
    padded = np.full((132, n_columns), np.nan, np.float32)
    operator.apply(strided, out=padded[1:131])
    assert np.array_equal(padded[1:131], expected)
    assert np.isnan(padded[[0, -1]]).all()


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
    assert isinstance(automatic(5000, 2), LatticeFilter)
    assert isinstance(automatic(2100, 17), ExactFilter)
    assert isinstance(automatic(2100, 2, "tent"), ExactFilter)
    with pytest.raises(InputError, match="Gaussian kernels only"):
        build("lattice", "tent", np.zeros((3, 2)))
    with pytest.raises(InputError, match="1 to 16 feature dimensions"):
        build("lattice", "gaussian", np.zeros((3, 17)))
    with pytest.raises(InputError, match="filter_tol"):
        build("exact", "gaussian", np.zeros((3, 2)), filter_tol=-1.0)


def test_symmetric_normalization_refuses_negative_row_sums():
    features = np.array([[0.0], [4.3], [4.4], [4.5], [4.6], [4.7]])
    with pytest.raises(InputError, match="positive row sums"):
        build("exact", "sinc", features, "symmetric")
