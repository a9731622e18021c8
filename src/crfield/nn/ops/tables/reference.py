"""Operators that work through a table of vertices: K = scale S B S'.

A point lies between `corners` rows of the table with weights that sum to 1; S' splats points to
rows, B blurs the table, S slices it. B is symmetric, so that K is.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from crfield.nn.ops import backend as _backend
from crfield.nn.ops.operators import PlainOperator

CHUNK = 256  # entries of one row that are summed in one go


class SortedEntries(NamedTuple):
    """The weights of all points ordered by the row they belong to, for sums in a fixed order.

    A row may own ten points or half the image: its entries are cut into chunks of at most CHUNK,
    summed apart, and the sums of a row's chunks are added up after.

    entry : (E,) int64, which entry of the flattened `vertex` comes k-th.
    begin, end : (n_chunks,) int64, the entries of each chunk; empty for chunks that do not exist.
    first_chunk : (n_rows + 1,) int64, the first chunk of each row.
    """

    entry: Tensor
    begin: Tensor
    end: Tensor
    first_chunk: Tensor


def sort_entries(vertex: Tensor, n_rows: int, chunk: int = CHUNK) -> SortedEntries:
    """Order the entries of `vertex` by row, points of one row staying in their order."""
    row, entry = torch.sort(vertex.reshape(-1), stable=True)
    bounds = torch.arange(n_rows + 1, device=vertex.device, dtype=vertex.dtype)
    first_entry = torch.searchsorted(row, bounds)
    chunks = (first_entry.diff() + chunk - 1) // chunk
    first_chunk = torch.cat((chunks.new_zeros(1), chunks.cumsum(0)))
    # How many chunks there are is known only on the device; a bound on it is known here.
    number = torch.arange(n_rows + len(entry) // chunk, device=vertex.device)
    owner = torch.searchsorted(first_chunk, number, right=True) - 1
    owner = owner.clamp(max=n_rows - 1)
    begin = first_entry[owner] + chunk * (number - first_chunk[owner])
    end = torch.minimum(begin + chunk, first_entry[owner + 1])
    return SortedEntries(entry, begin, torch.maximum(begin, end), first_chunk)


class TableOperator(PlainOperator):
    """What lattice and grid share.

    vertex : (P, corners) int32, rows of the table; every image of a batch has rows of its own.
    weight : (P, corners), of the dtype of what is filtered.
    n_rows : rows of the table.
    scale : makes the operator's mass the Gaussian's.
    deterministic : sum in a fixed order, as `torch.use_deterministic_algorithms` also asks for.
    """

    def __init__(
        self, vertex: Tensor, weight: Tensor, *, n_rows: int, n_images: int, dim: int,
        scale: float, deterministic: bool = False,
    ) -> None:
        self.vertex = vertex
        self.weight = weight
        self.n_rows = n_rows
        self.n_images = n_images
        self.n_points = len(vertex) // max(n_images, 1)
        self.dim = dim
        self.scale = scale
        self._deterministic = deterministic
        self._sorted: SortedEntries | None = None

    @property
    def like(self) -> Tensor:
        return self.weight

    @property
    def is_deterministic(self) -> bool:
        """Whether sums have a fixed order."""
        return self._deterministic or torch.are_deterministic_algorithms_enabled()

    # Whether the table may have rows that belong to no vertex.
    has_free_rows = False

    def graph_key(self) -> tuple[object, ...]:
        """What a recorded run on this operator depends on, besides the number of rows."""
        return (type(self), self.vertex.shape)

    def graph_inputs(self, given: Any) -> list[tuple[Tensor, Tensor]]:
        """This operator's tensors with those of another that are to be copied there."""
        return [(self.vertex, given.vertex), (self.weight, given.weight)]

    def make_room(self, n_rows: int) -> None:
        """Move to tensors of its own, with room for tables of so many rows."""
        self.vertex, self.weight = self.vertex.clone(), self.weight.clone()
        self.n_rows = n_rows
        self._sorted = None

    def blur(self, table: Tensor) -> Tensor:
        """B x for a table (n_rows, C)."""
        raise NotImplementedError

    def chain_to_features(self, by_weight: Tensor) -> Tensor:
        """Derivatives by the features, (P, D), from those by the weights, (P, corners)."""
        raise NotImplementedError

    def splat(self, x: Tensor, scale: Tensor | None = None) -> Tensor:
        """S' diag(scale) x, (n_rows, C), for x (P, C) and scale (P,)."""
        if _backend.runs_kernels(x) and x.numel():
            from crfield.nn.ops.tables import triton as _table_kernels

            if self.is_deterministic:
                entries = self._sort_entries()
                return _table_kernels.splat_sorted(entries, self.weight, x, scale, self.n_rows)
            return _table_kernels.splat(self.vertex, self.weight, x, scale, self.n_rows)
        weight = self.weight if scale is None else self.weight * scale[:, None]
        spread = (weight[:, :, None] * x[:, None, :]).reshape(-1, x.shape[1])
        table = x.new_zeros(self.n_rows, x.shape[1])
        if x.is_cuda and self.is_deterministic:  # sorts where index_add_ would race
            return table.index_put_((self.vertex.reshape(-1),), spread, accumulate=True)
        return table.index_add_(0, self.vertex.reshape(-1), spread)

    def slice(self, table: Tensor, scale: Tensor | None = None, factor: float = 1.0) -> Tensor:
        """factor diag(scale) S t, (P, C), for a table (n_rows, C) and scale (P,)."""
        if _backend.runs_kernels(table) and self.vertex.numel() and table.numel():
            from crfield.nn.ops.tables import triton as _table_kernels

            return _table_kernels.slice_table(self.vertex, self.weight, table, scale, factor)
        weight = self.weight * (factor if scale is None else factor * scale[:, None])
        rows = table.index_select(0, self.vertex.reshape(-1))
        return (weight[:, :, None] * rows.reshape(*self.vertex.shape, table.shape[1])).sum(1)

    def apply_scaled(self, x: Tensor, pre: Tensor | None, post: Tensor | None) -> Tensor:
        return self.slice(self.blur(self.splat(x, pre)), post, self.scale)

    def feature_gradient(self, u: Tensor, v: Tensor) -> Tensor:
        """d sum(u * K v) / d features, (P, D): weights are piecewise smooth in the features."""
        return self.chain_to_features(self.weight_gradient(u, v))

    def weight_gradient(self, u: Tensor, v: Tensor) -> Tensor:
        """d sum(u * K v) / d weight, (P, corners), for u, v (P, C).

        K = scale S B S' holds the weights twice: at corner c of point i the derivative is
        scale (u_i . (B S' v)_c + v_i . (B S' u)_c).
        """
        n_columns = u.shape[1]
        table = self.blur(self.splat(torch.cat((u, v), 1)))
        of_u, of_v = table[:, :n_columns], table[:, n_columns:]
        if _backend.runs_kernels(u) and u.numel():
            from crfield.nn.ops.tables import triton as _table_kernels

            return _table_kernels.correlate(self.vertex, u, v, of_u, of_v, self.scale)
        columns = [
            (u * of_v.index_select(0, rows) + v * of_u.index_select(0, rows)).sum(1)
            for rows in self.vertex.unbind(1)
        ]
        return self.scale * torch.stack(columns, 1)

    def _sort_entries(self) -> SortedEntries:
        if self._sorted is None:
            self._sorted = sort_entries(self.vertex, self.n_rows)
        return self._sorted
