"""The contract of `operator_contract.py` for operators on tensors: plain torch, and Triton.

Without a GPU the kernels run in Triton's interpreter: slowly, so that shapes are small.
"""

import functools

import numpy as np
import pytest

from torch_device import DEVICE, needs_triton, torch

# isort: split
import reference
from crfield.dense.filters import ExactFilter, GridFilter, LatticeFilter
from crfield.dense.filters.base import GridFeatures
from crfield.nn.ops.backend import runs_kernels
from crfield.nn.ops.grid.reference import Grid, GridLayout
from crfield.nn.ops.lattice.reference import Lattice
from crfield.nn.ops.operators import TensorOperator
from crfield.nn.ops.pairs.reference import PairSum
from operator_contract import (
    FEW_GRID_POINTS,
    FEW_POINTS,
    GRIDS,
    POINTS,
    DifferenceContract,
    Operator,
    OperatorContract,
    scaled_lattice,
)

pytestmark = pytest.mark.slow


def tensor(values, dtype):
    """On the device, with the strides that the array has."""
    return torch.from_numpy(values.astype(dtype)).to(DEVICE)


class OnArrays:
    """An operator on tensors, or its gradient, that takes and gives arrays."""

    def __init__(self, made):
        self._made = made

    def __getattr__(self, name):
        value = getattr(self._made, name)
        if not callable(value):
            return value

        def call(*arrays):
            result = value(*(torch.from_numpy(a).to(DEVICE) for a in arrays))
            if isinstance(result, torch.Tensor):
                return result.cpu().numpy()
            return OnArrays(result) if hasattr(result, "total") else result

        return call


def of_points(kind, **settings):
    def build(places, normalization, dtype):
        return OnArrays(
            TensorOperator(kind(tensor(places.features, dtype), **settings), normalization)
        )

    return build


def of_grid(places, normalization, dtype, **settings):
    coordinates = tensor(np.concatenate(places.axes), dtype)
    layout = GridLayout(coordinates, [len(axis) for axis in places.axes])
    grid = Grid(coordinates, layout, places.n_images, coordinates.dtype, **settings)
    return OnArrays(TensorOperator(grid, normalization))


def compiled_grid(places, normalization, dtype):
    features = GridFeatures(places.axes, None, np.empty(0), np.dtype(dtype))
    return GridFilter(features, normalization=normalization)


def compiled(kind):
    def build(places, normalization, dtype):
        return kind(places.features[0], normalization=normalization)

    return build


def plain(name, build, matrix, shapes, small, twin):
    return Operator(
        name, build, matrix, shapes, small, {np.float64: 1e-12}, {np.float64: 1e-11}, twin=twin
    )


PLAIN = (
    plain("pairs", of_points(PairSum), reference.kernel_matrix, POINTS, FEW_POINTS,
          compiled(ExactFilter)),
    plain("lattice", of_points(Lattice), scaled_lattice, POINTS, FEW_POINTS,
          compiled(LatticeFilter)),
    plain("grid", of_grid, reference.grid_matrix, GRIDS, FEW_GRID_POINTS, compiled_grid),
)
TINY_POINTS = (
    (1, 1, 1, 1), (47, 5, 1, 3), (17, 150, 1, 1), (2, 2, 2, 1), (2, 33, 2, 3), (5, 21, 3, 1),
    (2, 1, 3, 3), (2, 21, 5, 1), (1, 2, 5, 3), (3, 33, 5, 1), (2, 5, 6, 1),
)
TINY_GRIDS = (((1,), 1, 1, 1), ((7,), 5, 1, 2), ((5, 4), 21, 2, 1), ((3, 2, 4), 2, 3, 1))


def kernels(name, build, matrix, shapes, twin, error=1e-5):
    def on_kernels(places, normalization, dtype):
        assert runs_kernels(tensor(places.features, dtype))
        return build(places, normalization, dtype)

    return Operator(
        name, on_kernels, matrix, shapes, errors={np.float32: error},
        gradient_errors={np.float32: 1e-5}, in_turn=True, twin=twin,
    )


KERNELS = (
    # The factors of sums over pairs are rounded to float16.
    kernels("pairs", of_points(PairSum), reference.kernel_matrix, POINTS[:12], of_points(PairSum),
            error=5e-4),
    kernels("lattice", of_points(Lattice), scaled_lattice, TINY_POINTS, of_points(Lattice)),
    kernels("lattice in order", of_points(Lattice, deterministic=True), scaled_lattice, TINY_POINTS,
            of_points(Lattice)),
    kernels("grid", of_grid, reference.grid_matrix, TINY_GRIDS, of_grid),
    kernels("grid in order", functools.partial(of_grid, deterministic=True), reference.grid_matrix,
            TINY_GRIDS, of_grid),
)


class TestPlainTorch(DifferenceContract):
    operators = PLAIN


@needs_triton
class TestTritonKernels(OperatorContract):
    operators = KERNELS
