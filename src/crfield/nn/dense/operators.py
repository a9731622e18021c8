"""The operators of a batch, and the one place that chooses how a kernel is summed on tensors."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from crfield._core.validate import InputError
from crfield.dense.filters import KernelOperator
from crfield.dense.filters.compiled import MAX_DIM, SMALL
from crfield.nn.dense.run import RunSettings, TermSettings, build_native_operator
from crfield.nn.ops.grid.reference import Grid, GridLayout
from crfield.nn.ops.lattice.reference import Lattice
from crfield.nn.ops.operators import PlainOperator, TensorOperator
from crfield.nn.ops.pairs.reference import PairSum


def build_operators(
    features: Sequence[Tensor], settings: RunSettings, n_images: int, dtype: torch.dtype
) -> list[KernelOperator]:
    """The operators of all terms on the device of their features."""
    pairs = list(zip(features, settings.terms, strict=True))
    if all(values.device.type == "cpu" for values in features):
        return [
            NativeOperator([
                build_native_operator(values, term, settings, image)[0] for image in range(n_images)
            ])
            for values, term in pairs
        ]
    return [build_operator(values, term, settings, n_images, dtype) for values, term in pairs]


def build_operator(
    features: Tensor, term: TermSettings, settings: RunSettings, n_images: int, dtype: torch.dtype
) -> TensorOperator:
    """The operator of a term: grid, lattice or exact."""
    if term.shape != "gaussian":
        raise InputError(
            f"kernels on a GPU are Gaussian, got shape {term.shape!r}; use the CPU for this model."
        )
    dim = len(settings.grid) if term.on_grid else features.shape[-1]
    filter = settings.filter
    plain: PlainOperator
    if filter == "auto":  # what `crfield.dense.filters.make_filter` would choose
        filter = "lattice"
        if math.prod(settings.grid) <= SMALL or dim > MAX_DIM:
            filter = "exact"
        elif term.on_grid:
            grid = _find_grid(features, settings, n_images, dtype)
            if grid is not None:
                return TensorOperator(grid, term.normalization)
    points = dense_features(features, settings.grid, n_images) if term.on_grid else features
    points = points.to(dtype).contiguous()
    if filter == "exact":
        plain = PairSum(points, filter_tol=settings.filter_tol)
    else:
        plain = Lattice(points, deterministic=settings.deterministic)
    return TensorOperator(plain, term.normalization)


# Grids of coordinates that come again as the very same tensor.
_grids = WeakIdKeyDictionary()


def _find_grid(
    coordinates: Tensor, settings: RunSettings, n_images: int, dtype: torch.dtype
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
    """Coordinates along the axes as one row per point, (B, N, d)."""
    points = torch.stack(torch.meshgrid(*axes.split(list(grid)), indexing="ij"), -1)
    return points.reshape(1, -1, len(grid)).expand(n_images, -1, -1)


class NativeOperator:
    """Compiled operators of a batch as one on tensors."""

    def __init__(self, operators: Sequence[KernelOperator]) -> None:
        self.operators = operators
        self.n_variables = sum(operator.n_variables for operator in operators)
        self.is_symmetric = all(operator.is_symmetric for operator in operators)

    @property
    def dtype(self) -> torch.dtype:
        """Of the work."""
        return self.diagonal().dtype

    def apply(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """K x for x (P, C), written to `out` if that is given."""
        return self._each(x, "apply", out)

    def apply_transpose(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """K' x for x (P, C), as `apply`."""
        return self._each(x, "apply_transpose", out)

    def diagonal(self) -> Tensor:
        """K_ii, (P,)."""
        return torch.from_numpy(np.concatenate([k.diagonal() for k in self.operators]))

    def start_gradient(self) -> NativeGradient:
        """A sum of derivatives by the features, to be added to."""
        return NativeGradient(self.operators)

    def spectral_bound(self) -> float:
        """A bound on |eigenvalues| of K."""
        return max(operator.spectral_bound() for operator in self.operators)

    def to_dense(self) -> Tensor:
        """K as a (P, P) tensor; few points only."""
        return torch.block_diag(*(torch.from_numpy(k.to_dense()) for k in self.operators))

    def _each(self, x: Tensor, name: str, out: Tensor | None) -> Tensor:
        if out is None:
            out = torch.empty_like(x, memory_format=torch.contiguous_format)
        rows = x.contiguous().numpy().reshape(len(self.operators), -1, x.shape[1])
        into = out.numpy().reshape(rows.shape)
        for operator, values, result in zip(self.operators, rows, into, strict=True):
            getattr(operator, name)(values, out=result)
        return out


class NativeGradient:
    """The sums of derivatives of a batch's compiled operators."""

    def __init__(self, operators: Sequence[KernelOperator]) -> None:
        self._sums = [operator.start_gradient() for operator in operators]

    def add(self, u: Tensor, v: Tensor, filtered: Tensor, out: Tensor | None = None) -> Tensor:
        """Add d sum(u * K v), given `filtered` = K v; K' u."""
        if out is None:
            out = torch.empty_like(u, memory_format=torch.contiguous_format)
        parts = [np.split(x.contiguous().numpy(), len(self._sums)) for x in (u, v, filtered)]
        into = np.split(out.numpy(), len(self._sums))
        for total, a, b, part, result in zip(self._sums, *parts, into, strict=True):
            total.add(a, b, part, result)
        return out

    def add_diagonal(self, s: Tensor) -> None:
        """Add d sum_i s_i K_ii."""
        for total, part in zip(self._sums, np.split(s.numpy(), len(self._sums)), strict=True):
            total.add_diagonal(part)

    def total(self) -> Tensor:
        """The sum (P, D)."""
        return torch.from_numpy(np.concatenate([total.total() for total in self._sums]))
