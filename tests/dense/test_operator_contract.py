"""The contract of `operator_contract.py` for the compiled operators."""

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from crfield.dense.filters import ExactFilter, GridFilter, LatticeFilter
from crfield.dense.filters.base import GridFeatures
from crfield.dense.kernels import SHAPES
from operator_contract import (
    FEW_GRID_POINTS,
    FEW_POINTS,
    GRIDS,
    POINTS,
    DifferenceContract,
    GridPoints,
    Operator,
    Points,
    check_matrix,
    scaled_lattice,
)


def of_points(kind, **settings):
    """Builds filters on the features of one image."""

    def build(places, normalization, dtype, **options):
        (features,) = places.features.astype(dtype)
        return kind(features, normalization=normalization, **settings, **options)

    return build


def of_grid(places, normalization, dtype, **options):
    features = GridFeatures(places.axes, None, np.empty(0), np.dtype(dtype))
    return GridFilter(features, normalization=normalization, **options)


def one_image(shapes):
    return tuple((*shape[:3], 1) for shape in shapes)


EXACT = {
    shape: Operator(
        f"exact {shape}", of_points(ExactFilter, shape=shape),
        functools.partial(reference.kernel_matrix, shape=shape), one_image(POINTS),
        # Row sums of sinc may be negative, which is refused.
        normalizations=("none",) if shape == "sinc" else Operator.normalizations,
    )
    for shape in SHAPES
}
EXACT["gaussian"] = dataclasses.replace(
    EXACT["gaussian"], small=one_image(FEW_POINTS), twin=of_points(ExactFilter)
)
LATTICE = Operator(
    "lattice", of_points(LatticeFilter), scaled_lattice, one_image(POINTS),
    one_image(FEW_POINTS), twin=of_points(LatticeFilter),
)
GRID = Operator(
    "grid", of_grid, reference.grid_matrix, one_image(GRIDS), one_image(FEW_GRID_POINTS),
    twin=of_grid,
)
OPERATORS = (*EXACT.values(), LATTICE, GRID)
EVERY = pytest.mark.parametrize("operator", OPERATORS, ids=lambda operator: operator.name)


class TestCompiledOperators(DifferenceContract):
    operators = OPERATORS


def some_places(operator, n_points):
    """About so many points."""
    if operator is GRID:
        return GridPoints.draw((n_points // 10, 10))
    return Points.draw(n_points, 2)


@EVERY
@given(data=st.data())
def test_any_shape(operator, data):
    """With other numbers of points, columns and threads, scales and precisions."""
    if operator is GRID:
        lengths = data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=3))
        scale = data.draw(st.sampled_from([0.05, 0.4, 1.0]))
        places = GridPoints(tuple(scale * np.arange(n) for n in lengths))
    else:
        spread = data.draw(st.sampled_from([0.1, 0.5, 1.0, 1.5]))
        places = Points.draw(
            data.draw(st.integers(1, 150)), data.draw(st.integers(1, 5)), spread=spread
        )
    check_matrix(
        operator, places, data.draw(st.sampled_from(operator.normalizations)),
        data.draw(st.sampled_from([np.float32, np.float64])),
        data.draw(st.sampled_from([1, 2, 3, 4, 5, 7, 8, 9, 16, 21, 33, 40])),
        threads=data.draw(st.integers(1, 3)),
    )


@EVERY
@pytest.mark.parametrize("n_columns", [1, 3, 4, 21, 70])
def test_odd_layouts_and_guarded_output(operator, n_columns):
    """Views and Fortran order give the same numbers; nothing is written outside `out`."""
    kernel = operator.build(some_places(operator, 130), "none", np.float32)
    big = np.random.default_rng(7).normal(size=(130, 2 * n_columns)).astype(np.float32)
    strided = big[:, ::2]
    for apply in (kernel.apply, kernel.apply_transpose):
        expected = apply(np.ascontiguousarray(strided))
        for layout in (strided, np.asfortranarray(strided), strided.astype(">f4")):
            assert np.array_equal(apply(layout), expected)
        padded = np.full((132, n_columns), np.nan, np.float32)
        apply(strided, out=padded[1:131])
        assert np.array_equal(padded[1:131], expected)
        assert np.isnan(padded[[0, -1]]).all()
    if operator.twin:  # the by-product of a derivative, K'u, as well
        padded[1:131] = np.nan
        u = np.ascontiguousarray(strided)
        kernel.start_gradient().add(u, u, expected, padded[1:131])
        np.testing.assert_allclose(padded[1:131], expected, rtol=1e-3, atol=1e-4)
        assert np.isnan(padded[[0, -1]]).all()


@pytest.mark.parametrize("operator", OPERATORS[:-1], ids=lambda operator: operator.name)
def test_permuting_the_points_permutes_the_result(operator):
    places = Points.draw(200, 3)
    x = np.random.default_rng(4).normal(size=(200, 6))
    order = np.random.default_rng(5).permutation(200)
    direct = operator.build(places, "none", np.float64).apply(x)
    permuted = operator.build(Points(places.features[:, order]), "none", np.float64).apply(x[order])
    assert np.allclose(permuted, direct[order], rtol=0, atol=1e-12)
