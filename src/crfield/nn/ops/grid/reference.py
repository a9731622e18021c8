"""The Gaussian kernel on positions of a grid through a coarser grid, as in `native/grid.cpp`."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from crfield.dense.filters.compiled import SPACING
from crfield.nn.ops.backend import runs_kernels
from crfield.nn.ops.tables.reference import TableOperator

TAPS = (6.0 / 16.0, 4.0 / 16.0, 1.0 / 16.0)


class GridLayout:
    """Nodes along each axis of a grid, as far as the host has to know.

    lengths : points along each axis.
    nodes : nodes along each axis.
    first : number of the first node along each axis, in units of the spacing.
    suits : whether the nodes are no denser than twice the points along each axis.
    """

    def __init__(self, coordinates: Tensor, lengths: Sequence[int]) -> None:
        self.lengths = tuple(lengths)
        # One wait for the device for all axes.
        axes = np.split(coordinates.cpu().numpy().astype(np.float64), np.cumsum(lengths)[:-1])
        below = [np.floor(axis / SPACING) for axis in axes]
        self.first = [min(float(nodes.min()), 0.0) for nodes in below]
        self.nodes = tuple(
            int(min(max(float(nodes.max()), 0.0) - low, 2.0**40)) + 2
            for nodes, low in zip(below, self.first, strict=True)
        )
        self.suits = all(np.ptp(axis) / SPACING <= 2.0 * len(axis) for axis in axes)


class Grid(TableOperator):
    """K = scale S (B_1 x ... x B_d) S' on a grid of points, the same for every image of a batch.

    coordinates : along all axes, one axis after the other, scaled.
    """

    def __init__(
        self, coordinates: Tensor, layout: GridLayout, n_images: int, dtype: torch.dtype, *,
        deterministic: bool = False,
    ) -> None:
        d = len(layout.nodes)
        self._coordinates = coordinates.detach()
        self._layout = layout
        self.nodes = layout.nodes
        if runs_kernels(coordinates) and dtype == torch.float32:
            from crfield.nn.ops.grid import triton as _grid_kernels

            vertex, weight = _grid_kernels.corners(self._coordinates, layout, n_images)
        else:
            vertex, weight = self._corners(n_images, dtype)
        super().__init__(
            vertex, weight, n_rows=n_images * math.prod(self.nodes), n_images=n_images, dim=d,
            deterministic=deterministic,
            # The filter's mass is one node's volume, the Gaussian's (2 pi)^(d/2).
            scale=(2.0 * math.pi) ** (d / 2.0) / SPACING**d,
        )

    def _corners(self, n_images: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """The nodes around each point and its shares in them, (P, 2^d)."""
        d, device = len(self.nodes), self._coordinates.device
        vertex = torch.zeros(1, dtype=torch.int64, device=device)
        weight = torch.ones(1, dtype=torch.float64, device=device)
        for (below, _), share, n, first, side in zip(
            self._sides, self._shares, self.nodes, self._layout.first, self._sides_of_corners.T,
            strict=True,
        ):
            vertex = vertex * n + (below - first).long() + side
            weight = weight * share
        n_nodes = math.prod(self.nodes)
        images = torch.arange(n_images, device=device)[:, None, None] * n_nodes
        vertex = images + vertex.reshape(1, -1, 2**d)
        weight = weight.reshape(1, -1, 2**d).expand(n_images, -1, -1)
        return vertex.reshape(-1, 2**d).int(), weight.reshape(-1, 2**d).to(dtype).contiguous()

    @functools.cached_property
    def _sides_of_corners(self) -> Tensor:
        """For each corner 0 or 1 along each axis, (2^d, d), the last axis fastest."""
        d = len(self.nodes)
        return torch.tensor(
            list(itertools.product((0, 1), repeat=d)), device=self._coordinates.device
        )

    @functools.cached_property
    def _sides(self) -> list[tuple[Tensor, Tensor]]:
        """The node below each point of an axis and how far the point lies above it."""
        found = []
        d = len(self.nodes)
        for a, axis in enumerate(self._coordinates.split(list(self._layout.lengths))):
            along = [-1 if k == a else 1 for k in range(d + 1)]
            position = axis.double().reshape(along) / SPACING
            found.append((position.floor(), position - position.floor()))
        return found

    @functools.cached_property
    def _shares(self) -> list[Tensor]:
        """Of each corner along each axis, to be multiplied."""
        return [
            torch.where(side == 1, fraction, 1.0 - fraction)
            for (_, fraction), side in zip(self._sides, self._sides_of_corners.T, strict=True)
        ]

    def graph_key(self) -> tuple[object, ...]:
        """What a recorded run on this operator depends on, besides the number of rows."""
        return (*super().graph_key(), self.nodes, self._layout.lengths)

    def graph_inputs(self, given: Grid) -> list[tuple[Tensor, Tensor]]:
        """This operator's tensors with those of another that are to be copied there."""
        return [*super().graph_inputs(given), (self._coordinates, given._coordinates)]

    def make_room(self, n_rows: int) -> None:
        """Move to tensors of its own, with room for tables of so many rows."""
        super().make_room(n_rows)
        self._coordinates = self._coordinates.clone()

    def blur(self, table: Tensor) -> Tensor:
        """B x for a table (n_rows, C)."""
        if runs_kernels(table) and table.numel():
            from crfield.nn.ops.grid import triton as _grid_kernels
            from crfield.nn.ops.tables import triton as _table_kernels

            n_columns = table.shape[1]
            table = _table_kernels.padded(table)
            width = table.stride(0)
            table = table.as_strided((len(table), width), (width, 1))  # padding and all
            for a in range(self.dim):
                inner = math.prod(self.nodes[a + 1 :]) * width
                table = _grid_kernels.blur_along(table, self.nodes[a], inner)
            return table[:, :n_columns]
        nodes = table.reshape(self.n_images, *self.nodes, table.shape[1])
        for a in range(1, 1 + self.dim):
            n = nodes.shape[a]
            blurred = TAPS[0] * nodes
            for step in (1, 2):
                if n > step:
                    kept = n - step
                    blurred.narrow(a, step, kept).add_(nodes.narrow(a, 0, kept), alpha=TAPS[step])
                    blurred.narrow(a, 0, kept).add_(nodes.narrow(a, step, kept), alpha=TAPS[step])
            nodes = blurred
        return nodes.reshape(table.shape)

    def diagonal(self) -> Tensor:
        """K_ii, (P,)."""
        return self._spread([self._own(fraction)[0] for _, fraction in self._sides])

    def diagonal_gradient(self, s: Tensor) -> Tensor:
        """d sum_i s_i K_ii / d positions, (P, d)."""
        values = [self._own(fraction) for _, fraction in self._sides]
        columns = [
            s * self._spread([slope if a == b else own for b, (own, slope) in enumerate(values)])
            for a in range(self.dim)
        ]
        return torch.stack(columns, -1)

    def _own(self, f: Tensor) -> tuple[Tensor, Tensor]:
        """k_ii along one axis and its slope, from how far a point lies above its node."""
        own = ((1 - f) ** 2 + f**2) * TAPS[0] + 2 * f * (1 - f) * TAPS[1]
        return own, 2 * (2 * f - 1) * (TAPS[0] - TAPS[1]) / SPACING

    def _spread(self, along: Sequence[Tensor]) -> Tensor:
        """The product over the axes at all points, times the scale."""
        product = torch.full((*self._layout.lengths, 1), self.scale, dtype=torch.float64,
                             device=self.weight.device)
        for factor in along:
            product = product * factor
        flat = product.reshape(1, -1).expand(self.n_images, -1).reshape(-1)
        return flat.to(self.weight.dtype)

    def chain_to_features(self, by_weight: Tensor) -> Tensor:
        """From derivatives by the corners' weights to derivatives by the positions."""
        if runs_kernels(by_weight) and by_weight.numel():
            from crfield.nn.ops.grid import triton as _grid_kernels

            return _grid_kernels.chain_to_positions(
                self._coordinates, by_weight, self._layout.lengths
            )
        d = self.dim
        by_weight = by_weight.reshape(self.n_images, *self._layout.lengths, 2**d).double()
        columns = []
        for a in range(d):
            slope = (2.0 * self._sides_of_corners[:, a].double() - 1.0) / SPACING  # of a share
            for b, share in enumerate(self._shares):
                if b != a:
                    slope = slope * share
            columns.append((by_weight * slope).sum(-1).reshape(-1))
        return torch.stack(columns, -1).to(self.weight.dtype)
