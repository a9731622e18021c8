"""Which simplex of the permutohedral lattice each point lies in, and how vertices neighbor.

The plain-torch form of `native/lattice_build.cpp`, with the same formulas and the same decisions
on ties, so that points lie in the same simplices; `build_triton.py` has it for GPUs.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from crfield._core.validate import InputError
from crfield.dense.filters.base import LARGEST_FEATURE

KEY_BITS = 63  # of a word, which stays positive
# float32 has room for the position within a simplex only while coordinates are small.
LARGEST_FOR_FLOAT = 2048.0
MAX_DIM_FOR_FLOAT = 7


class Structure(NamedTuple):
    """A lattice without values.

    vertex : (P, D + 1) int32, rows of the table from 1 on; row 0 stands for missing vertices.
    weight : (P, D + 1), barycentric.
    rank : (P, D + 1) int8, how many coordinates of the point exceed each by their residual.
    neighbors : (D + 1, rows, 2) int32, the vertex before and after each along each axis, or 0.
    """

    vertex: Tensor
    weight: Tensor
    rank: Tensor
    neighbors: Tensor


class Embedding(NamedTuple):
    """The simplices of points: remainder-0 vertex (P, D) int64, rank and weight as above."""

    base: Tensor
    rank: Tensor
    weight: Tensor


def axis_scales(dim: int) -> tuple[float, ...]:
    """What features are multiplied by, so that splat, blur and slice have unit deviation."""
    return tuple(
        (dim + 1) * math.sqrt(2.0 / 3.0) / math.sqrt((j + 1.0) * (j + 2.0)) for j in range(dim)
    )


class KeyLayout:
    """Vertices as whole numbers: key = origin + image + sum_j unit_j coordinate_j.

    Each coordinate has a field of its own, wide enough for every point and its neighbors, so
    that no two vertices share a key and a step along an axis is one addition. Where one word of
    KEY_BITS is too small, `unit` and `origin` have several numbers.

    low, high : bounds of each feature.
    unit : (D + 1) x n_words; the last coordinate is minus the sum of the others and has none.
    largest : a bound on the coordinates' magnitude.
    """

    def __init__(self, low: list[float], high: list[float], n_images: int) -> None:
        self.low, self.high, self.n_images = low, high, n_images
        dim = len(low)
        scales = axis_scales(dim)
        place = [(0, 0)] * dim  # word and shift of each coordinate
        lowest = [0] * dim
        partial_low = partial_high = self.largest = 0.0
        word, used = 0, max(n_images - 1, 0).bit_length()
        for j in range(dim, -1, -1):
            bottom, top = partial_low, partial_high
            if j > 0:
                factor = scales[j - 1]
                bottom -= j * factor * high[j - 1]
                top -= j * factor * low[j - 1]
                partial_low += factor * low[j - 1]
                partial_high += factor * high[j - 1]
            self.largest = max(self.largest, abs(bottom), abs(top))
            if j == dim:
                continue
            # A coordinate strays from its elevated position by at most dim + 1, a vertex of the
            # simplex by as much again, a neighbor once more.
            margin = 4 * (dim + 1) + 4
            lowest[j] = math.floor(bottom - margin)
            bits = (math.ceil(top + margin) - lowest[j] + 1).bit_length()
            if used + bits > KEY_BITS:
                word, used = word + 1, 0
            place[j] = (word, used)
            used += bits
        self.n_words = word + 1
        self.unit = [[0] * self.n_words for _ in range(dim + 1)]
        self.origin = [0] * self.n_words
        for j, (word, shift) in enumerate(place):
            self.unit[j][word] = 1 << shift
            self.origin[word] -= lowest[j] << shift

    @classmethod
    def of(cls, features: Tensor, n_images: int) -> KeyLayout:
        """The layout for features (P, D)."""
        if not len(features):
            return cls([0.0] * features.shape[1], [0.0] * features.shape[1], n_images)
        low, high = torch.stack(torch.aminmax(features, dim=0)).tolist()
        if not all(abs(bound) <= LARGEST_FEATURE for bound in (*low, *high)):
            raise InputError(
                "features divided by the kernel's widths must be finite and at most 2^46 in "
                "magnitude; use wider kernels."
            )
        return cls(low, high, n_images)

    def roomier(self) -> KeyLayout:
        """A layout for features that stray half as far again to either side."""
        room = [0.5 * (b - a) for a, b in zip(self.low, self.high, strict=True)]
        return KeyLayout(
            [a - r for a, r in zip(self.low, room, strict=True)],
            [b + r for b, r in zip(self.high, room, strict=True)], self.n_images,
        )

    def work_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """What points of features of `dtype` are embedded in."""
        is_small = self.n_words == 1 and len(self.unit) <= MAX_DIM_FOR_FLOAT + 1
        if is_small and self.largest <= LARGEST_FOR_FLOAT:
            return dtype
        return torch.float64


def embed(features: Tensor) -> Embedding:
    """The simplices of features (P, D) (Adams, Baek and Davis 2010, section 3.1)."""
    n, dim = features.shape
    corners = dim + 1
    scales = axis_scales(dim)
    elevated = features.new_empty(n, corners)
    partial = features.new_zeros(n)
    for j in range(dim, 0, -1):
        scaled = features[:, j - 1] * scales[j - 1]
        elevated[:, j] = partial - j * scaled
        partial = partial + scaled
    elevated[:, 0] = partial
    nearest = torch.round(elevated * (1.0 / corners))
    residual = elevated - nearest * corners
    # Rank 0 is the largest residual; of equal ones the first.
    rank = torch.zeros(n, corners, dtype=torch.int64, device=features.device)
    for j in range(corners):
        is_smaller = residual[:, j : j + 1] < residual[:, j + 1 :]
        rank[:, j] += is_smaller.sum(1)
        rank[:, j + 1 :] += ~is_smaller
    # Rounded coordinates that do not sum to zero move to the neighboring remainder-0 vertex.
    rank += nearest.sum(1, keepdim=True).to(torch.int64)
    wrap = corners * ((rank < 0).to(torch.int64) - (rank > dim).to(torch.int64))
    rank += wrap
    residual = residual - wrap
    base = torch.round(elevated - residual)[:, :dim].to(torch.int64)
    descending = torch.empty_like(residual).scatter_(1, dim - rank, residual / corners)
    weight = descending - descending.roll(1, 1)
    weight[:, 0] += 1.0
    return Embedding(base, rank, weight)


def build(features: Tensor, n_images: int) -> Structure:
    """The lattice of features (P, D), images one after the other."""
    layout = KeyLayout.of(features, n_images)
    n, dim = features.shape
    device = features.device
    base, rank, weight = embed(features.to(layout.work_dtype(features.dtype)))
    unit = torch.tensor(layout.unit, device=device)
    key = torch.tensor(layout.origin, device=device).repeat(n, 1)
    key[:, 0] += torch.arange(n, device=device) // max(n // max(n_images, 1), 1)
    for j in range(dim):
        key += base[:, j : j + 1] * unit[j]
    # Vertex c + 1 lies one step forward of vertex c along the coordinate of rank dim - c: +1 along
    # all others and -dim along it.
    along = unit.sum(0) - (dim + 1) * unit
    coordinates = torch.arange(dim + 1, device=device).expand(n, -1)
    axis_after = torch.empty_like(rank).scatter_(1, dim - rank, coordinates)
    steps = along[axis_after[:, :dim]].cumsum(1)
    keys = torch.cat((key[:, None], key[:, None] + steps), 1)
    occupied, vertex = _unique(keys.reshape(-1, layout.n_words))
    return Structure(
        (vertex + 1).reshape(n, dim + 1).to(torch.int32), weight.to(features.dtype),
        rank.to(torch.int8), _find_neighbors(occupied, along),
    )


def _find_neighbors(occupied: Tensor, along: Tensor) -> Tensor:
    """(D + 1, M + 1, 2) from the keys of the M vertices and of one step along each axis."""
    n_vertices, corners = len(occupied), len(along)
    forward = (occupied + along[:, None]).reshape(-1, occupied.shape[1])
    _, place = _unique(torch.cat((occupied, forward)))
    number = place.new_zeros(len(place))
    number[place[:n_vertices]] = torch.arange(1, n_vertices + 1, device=place.device)
    neighbors = torch.zeros(corners, n_vertices + 1, 2, dtype=torch.int32, device=place.device)
    neighbors[:, 1:, 1] = number[place[n_vertices:]].reshape(corners, n_vertices)
    for pairs in neighbors:
        pairs[pairs[:, 1], 0] = torch.arange(n_vertices + 1, device=place.device).to(torch.int32)
        pairs[0] = 0
    return neighbors


def _unique(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The different rows of `keys` (n, n_words) in increasing order, and which one each is."""
    if keys.shape[1] == 1:  # much faster than by rows
        values, inverse = torch.unique(keys[:, 0], return_inverse=True)
        return values[:, None], inverse
    values, inverse = torch.unique(keys, dim=0, return_inverse=True)
    return values, inverse
