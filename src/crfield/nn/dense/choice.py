"""The one place that chooses how a kernel is summed on tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from crfield._core.validate import InputError
from crfield.dense.filters.choice import SMALL
from crfield.dense.filters.lattice import MAX_DIM
from crfield.nn.dense.settings import Settings, TermSettings
from crfield.nn.ops.grid.reference import Grid, GridLayout
from crfield.nn.ops.lattice.reference import Lattice
from crfield.nn.ops.operators import NormalizedOperator, PairOperator
from crfield.nn.ops.pairs.reference import PairSum


def build_operator(
    features: Tensor, term: TermSettings, settings: Settings, n_images: int, dtype: torch.dtype
) -> NormalizedOperator:
    """The operator of a term: grid, lattice or exact."""
    if term.shape != "gaussian":
        raise InputError(
            f"kernels on a GPU are Gaussian, got shape {term.shape!r}; use the CPU for this model."
        )
    dim = len(settings.grid) if term.on_grid else features.shape[-1]
    method = settings.method
    plain: PairOperator
    if method == "auto":  # what `crfield.dense.filters.make_filter` would choose
        method = "lattice"
        if math.prod(settings.grid) <= SMALL or dim > MAX_DIM:
            method = "exact"
        elif term.on_grid:
            grid = _find_grid(features, settings, n_images, dtype)
            if grid is not None:
                return NormalizedOperator(grid, term.normalization)
    points = dense_features(features, settings.grid, n_images) if term.on_grid else features
    points = points.to(dtype).contiguous()
    if method == "exact":
        plain = PairSum(points, tol=settings.tol)
    else:
        plain = Lattice(points, deterministic=settings.deterministic)
    return NormalizedOperator(plain, term.normalization)


# Grids of coordinates that come again as the very same tensor.
_grids = WeakIdKeyDictionary()


def _find_grid(
    coordinates: Tensor, settings: Settings, n_images: int, dtype: torch.dtype
) -> Grid | None:
    """The grid of nodes for these coordinates, None if it would have too many."""
    version = 0 if coordinates.is_inference() else coordinates._version
    key = (version, n_images, dtype, settings.deterministic)
    found = _grids.get(coordinates)
    if found is None or found[0] != key:
        layout = GridLayout(coordinates, settings.grid)
        grid = Grid(
            coordinates, layout, n_images, dtype, deterministic=settings.deterministic
        ) if layout.suits else None
        _grids[coordinates] = found = (key, grid)
    remembered: Grid | None = found[1]
    return remembered


def dense_features(axes: Tensor, grid: Sequence[int], n_images: int) -> Tensor:
    """Coordinates along the axes as one row a point, (B, N, d)."""
    points = torch.stack(torch.meshgrid(*axes.split(list(grid)), indexing="ij"), -1)
    return points.reshape(1, -1, len(grid)).expand(n_images, -1, -1)
