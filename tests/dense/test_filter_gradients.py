"""Derivatives of every operator by its features, against central differences in float64."""

from __future__ import annotations

import numpy as np
import pytest

from crfield import FeatureKernel, InputError
from crfield.dense.filters import make_filter
from crfield.dense.kernels import NORMALIZATIONS


def build(method, features, normalization):
    kernel = FeatureKernel("f", features.shape[1], normalization=normalization)
    return make_filter(features, kernel, method)


def central_differences(function, features, step=1e-6):
    gradient = np.zeros_like(features)
    for index in np.ndindex(features.shape):
        moved = features.copy()
        moved[index] += step
        above = function(moved)
        moved[index] -= 2 * step
        gradient[index] = (above - function(moved)) / (2 * step)
    return gradient


def features_grad(operator, u, v):
    """d sum(u * K v); checks the by-product K'u on the way."""
    gradient = operator.start_gradient()
    by_product = np.empty_like(u)
    gradient.add(u, v, operator.apply(v), by_product)
    scale = np.abs(by_product).max()
    assert np.abs(by_product - operator.apply_transpose(u)).max() <= 1e-5 * scale
    return gradient.total()


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("method", ["exact", "lattice"])
@pytest.mark.parametrize("dim", [1, 2, 3, 5])
def test_gradients_by_the_features(method, normalization, dim):
    """The lattice is piecewise smooth: small steps stay inside the points' simplices."""
    rng = np.random.default_rng(dim)
    features = rng.normal(size=(14, dim)) * 1.3
    u, v = rng.normal(size=(2, 14, 3))
    s = rng.normal(size=14)
    operator = build(method, features, normalization)

    def bilinear(f):
        return float((u * build(method, f, normalization).apply(v)).sum())

    def diagonal(f):
        return float((s * build(method, f, normalization).diagonal()).sum())

    expected = central_differences(bilinear, features)
    scale = np.abs(expected).max() + 1e-12
    assert np.abs(features_grad(operator, u, v) - expected).max() < 1e-6 * scale + 1e-9
    expected = central_differences(diagonal, features)
    gradient = operator.start_gradient()
    gradient.add_diagonal(s)
    assert np.abs(gradient.total() - expected).max() < 1e-8


@pytest.mark.parametrize("normalization", NORMALIZATIONS)
@pytest.mark.parametrize("method", ["exact", "lattice"])
def test_gradients_add_up(method, normalization):
    rng = np.random.default_rng(0)
    features = rng.normal(size=(20, 2))
    u, v, x, y = rng.normal(size=(4, 20, 3))
    s = rng.normal(size=20)
    operator = build(method, features, normalization)
    gradient, alone = operator.start_gradient(), operator.start_gradient()
    alone.add_diagonal(s)
    for left, right in ((u, v), (x, y)):
        gradient.add(left, right, operator.apply(right), np.empty_like(left))
    gradient.add_diagonal(s)
    expected = features_grad(operator, u, v) + features_grad(operator, x, y) + alone.total()
    np.testing.assert_allclose(gradient.total(), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", ["exact", "lattice"])
@pytest.mark.parametrize("n_labels", [1, 2, 5, 21])
def test_single_precision_and_threads_agree_with_double(method, n_labels):
    rng = np.random.default_rng(n_labels)
    features = rng.normal(size=(3000, 3)) * 2
    u, v = rng.normal(size=(2, 3000, n_labels))
    expected = features_grad(build(method, features, "symmetric"), u, v)
    operator = build(method, features.astype(np.float32), "symmetric")
    single = features_grad(operator, u.astype(np.float32), v.astype(np.float32))
    assert single.dtype == np.float32
    assert np.abs(single - expected).max() < 2e-3 * np.abs(expected).max()


def test_other_shapes_are_refused():
    kernel = FeatureKernel("f", 1, shape="tent", normalization="none")
    operator = make_filter(np.zeros((3, 1)), kernel)
    with pytest.raises(InputError, match="only Gaussian kernels"):
        features_grad(operator, np.ones((3, 1)), np.ones((3, 1)))
