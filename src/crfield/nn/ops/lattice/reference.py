"""The Gaussian kernel on a permutohedral lattice, on tensors: linear time, exactly symmetric."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

import torch
from torch import Tensor

from crfield._core.validate import InputError
from crfield.dense.filters.compiled import MAX_DIM
from crfield.nn.ops import backend as _backend
from crfield.nn.ops.lattice import build as _lattice_build
from crfield.nn.ops.tables.reference import TableOperator

MAX_DIM_OF_LISTED_WALKS = 5  # sets of axes that are the bits of one word


class Lattice(TableOperator):
    """K x = scale S 1/2 (B_0 ... B_D + B_D ... B_0) S' x over the occupied vertices.

    The operator of `crfield.dense.filters.LatticeFilter`: B_j blurs with (1/4, 1/2, 1/4) along
    axis j, missing neighbors being 0. All images of a batch share one table, whose row 0
    stays zero.

    features : (B, N, D), float32 or float64, scaled by the kernel's widths, 1 <= D <= 16.
    deterministic : the same bits in every run, for somewhat slower sums.
    """

    def __init__(self, features: Tensor, *, deterministic: bool = False) -> None:
        n_images, _, dim = features.shape
        if not 1 <= dim <= MAX_DIM:
            raise InputError(
                f"the lattice takes 1 to {MAX_DIM} feature dimensions, got {dim}; "
                'use filter="exact".'
            )
        points = features.detach().reshape(-1, dim)
        built = None
        if _backend.runs_kernels(points) and len(points):
            from crfield.nn.ops.lattice import build_triton as _lattice_build_kernels

            is_deterministic = deterministic or torch.are_deterministic_algorithms_enabled()
            built = _lattice_build_kernels.build(points, n_images, is_deterministic)
        if built is None:
            built = _lattice_build.build(points, n_images)
        self.rank = built.rank
        self.neighbors = built.neighbors
        super().__init__(
            built.vertex, built.weight, n_rows=built.neighbors.shape[1], n_images=n_images,
            dim=dim, deterministic=deterministic,
            # Splat, blur and slice spread mass 1 over vertices of volume
            # (2/3)^(-D/2) / sqrt(D + 1); the Gaussian's mass is (2 pi)^(D/2).
            scale=(4.0 * math.pi / 3.0) ** (dim / 2.0) * math.sqrt(dim + 1.0),
        )

    has_free_rows = True

    def graph_inputs(self, given: Lattice) -> list[tuple[Tensor, Tensor]]:
        """This operator's tensors with those of another that are to be copied there."""
        # Rows beyond keep the neighbors of an earlier lattice, but no vertex leads there.
        neighbors = self.neighbors[:, : given.n_rows]
        return [
            *super().graph_inputs(given), (neighbors, given.neighbors), (self.rank, given.rank)
        ]

    def make_room(self, n_rows: int) -> None:
        """Move to tensors of its own, with room for tables of so many rows."""
        super().make_room(n_rows)
        neighbors = self.neighbors.new_zeros(self.dim + 1, n_rows, 2)
        neighbors[:, : self.neighbors.shape[1]] = self.neighbors
        self.neighbors = neighbors
        self.rank = self.rank.clone()

    @property
    def n_vertices(self) -> int:
        """Occupied vertices of all images."""
        return self.n_rows - 1

    def blur(self, table: Tensor) -> Tensor:
        """1/2 (B_0 ... B_D + B_D ... B_0) t for a table (n_rows, C)."""
        if _backend.runs_kernels(table) and table.numel():
            from crfield.nn.ops.lattice import triton as _lattice_kernels

            return _lattice_kernels.blur(self.neighbors, table)
        axes = range(self.dim + 1)
        return 0.5 * (self._blur_along(table, axes) + self._blur_along(table, reversed(axes)))

    def diagonal(self) -> Tensor:
        """K_ii, (P,), exactly."""
        return self.scale * (self.weight * self._blur_of_simplex).sum(1)

    def diagonal_gradient(self, s: Tensor) -> Tensor:
        """d sum_i s_i K_ii / d features, (P, D), for s (P,)."""
        return self.chain_to_features((2.0 * self.scale * s)[:, None] * self._blur_of_simplex)

    def _blur_along(self, table: Tensor, axes: Iterable[int]) -> Tensor:
        for axis in axes:
            before, after = (table.index_select(0, rows) for rows in self.neighbors[axis].T)
            table = 0.5 * table + 0.25 * (before + after)
        return table

    def chain_to_features(self, by_weight: Tensor) -> Tensor:
        """(P, D) from derivatives by the weights, (P, D + 1).

        Corner D - r gains (elevated_j - remainder_j) / (D + 1) for coordinate j of rank r, and the
        corner after it, cyclically, loses as much; elevated coordinates are linear in the features.
        """
        if _backend.runs_kernels(by_weight) and by_weight.numel():
            from crfield.nn.ops.lattice import triton as _lattice_kernels

            return _lattice_kernels.chain_to_features(by_weight, self.rank)
        dim, corners = self.dim, self.dim + 1
        rank = self.rank.to(torch.int64)
        gained = by_weight.gather(1, dim - rank)
        lost = by_weight.gather(1, (corners - rank) % corners)
        by_elevated = (gained - lost) / corners
        partial = torch.zeros_like(by_elevated[:, 0])
        by_feature = []
        for d, scale in enumerate(_lattice_build.axis_scales(dim)):
            partial = partial + by_elevated[:, d]
            by_feature.append(scale * (partial - (d + 1) * by_elevated[:, d + 1]))
        return torch.stack(by_feature, 1)

    @functools.cached_property
    def _blur_of_simplex(self) -> Tensor:
        """sum_b G_ab w_b for each point's corners a, (P, D + 1), G the blur between them.

        Vertex c + 1 (cyclically) lies one step forward of vertex c along one axis, and one step
        along every axis returns to the start. So corner b > a is reached from a forward along the
        axes between them, or backward along all others, and a from b the other way round; a is
        reached from itself by not moving, or once along every axis, forward or backward. A step
        counts 1/4, an axis not moved along 1/2. The reversed order of the axes gives the
        transpose, so that the quadratic form of one order, made symmetric, is all that is needed.
        """
        corners = self.dim + 1
        walks = _Walks(self.neighbors, self.vertex)
        # Axes from vertex 0 to each corner, as bits.
        order = self.dim - self.rank.to(torch.int64)
        axis_bit = (1 << torch.arange(corners, device=order.device)).expand_as(order)
        axis_after = torch.empty_like(order).scatter_(1, order, axis_bit)
        until = axis_after.cumsum(1) - axis_after
        every = torch.full_like(until, (1 << corners) - 1)
        weight = self.weight
        gain = 0.5 ** torch.arange(corners, 2 * corners + 1, device=order.device).to(weight.dtype)
        everywhere = slice(0, corners)
        loops = walks.exist(everywhere, every, True) + walks.exist(everywhere, every, False)
        result = (gain[0] + gain[corners] * loops) * weight
        for a in range(corners - 1):
            here, others = slice(a, a + 1), slice(a + 1, corners)
            between = until[:, here] ^ until[:, others]
            rest = every[:, others] ^ between
            near = walks.exist(here, between, True) + walks.exist(others, between, False)
            far = walks.exist(here, rest, False) + walks.exist(others, rest, True)
            steps = corners - 1 - a
            blur = 0.5 * (gain[1 : steps + 1] * near + gain[a + 1 : corners].flip(0) * far)
            result[:, a] += (blur * weight[:, others]).sum(1)
            result[:, others] += blur * weight[:, here]
        return result


class _Walks:
    """Which sets of axes can be walked along from the corners of each point's simplex.

    A walk takes one step along each axis of the set in increasing order, all forward or all
    backward, over occupied vertices only.
    """

    def __init__(self, neighbors: Tensor, vertex: Tensor) -> None:
        self._neighbors = neighbors
        self._vertex = vertex
        self._listed: list[Tensor] | None = None
        if len(neighbors) <= MAX_DIM_OF_LISTED_WALKS + 1:
            self._listed = [self._list_walks(forward)[vertex] for forward in (False, True)]

    def exist(self, corners: slice, axes: Tensor, forward: bool) -> Tensor:
        """1 where the walk from each of `corners` along `axes` (P, k), bits, exists, else 0."""
        if self._listed is not None:
            return (self._listed[forward][:, corners] >> axes) & 1
        place = self._vertex[:, corners].expand_as(axes)
        for axis, pairs in enumerate(self._neighbors):
            place = torch.where((axes >> axis) & 1 == 1, pairs[:, int(forward)][place], place)
        return (place > 0).to(torch.int64)

    def _list_walks(self, forward: bool) -> Tensor:
        """For each row of the table the sets that can be walked, set s being bit s.

        Sets of axes from k on: those without k can be walked as before, those with k where the
        neighbor along k can go on; adding axis k to set s makes it set s + 2^k.
        """
        corners, n_rows = self._neighbors.shape[:2]
        walks = torch.ones(n_rows, dtype=torch.int64, device=self._neighbors.device)
        walks[0] = 0
        for axis in range(corners - 1, -1, -1):
            neighbor = self._neighbors[axis, :, int(forward)]
            walks = walks | (walks.index_select(0, neighbor) << (1 << axis))
        return walks
