"""The Gaussian kernel sum over all pairs of points, on tensors.

(K x)_i = sum_j k(f_i, f_j) x_j with k(f, g) = exp(-|f - g|^2 / 2), j over the points of i's image.
Points are sorted along a curve through feature space and cut into tiles; pairs of tiles that are
far apart are left out. The sums over the rest run in Triton (`triton.py`) or in plain torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from crfield._core.validate import InputError
from crfield.nn.ops.backend import runs_kernels
from crfield.nn.ops.operators import PlainOperator, scaled

TILE = 64  # points that are taken or left out together

_LARGEST_BLOCK = 2**22  # numbers in one block of a matrix that is too large to be stored whole


class PairSum(PlainOperator):
    """K over all pairs of points of each image.

    features : (B, N, D), contiguous float32 or float64, divided by the kernel's widths.
    filter_tol : pairs of tiles in which every k is below this, t, are left out; 0 leaves out only
        those in which every k underflows. By that, for each image and before rounding,

            |(K x)_i - exact| <= t sum_j |x_j|
            |gradient_i - exact| <= r t sum_j |c_ij|, r = sqrt(-2 log t), if t < exp(-1/2),

        where c_ij = u_i'v_j + v_i'u_j: k |f_i - f_j| falls beyond a distance of 1, and what is left
        out is farther than r. The list of pairs is symmetric, and with it K but for rounding.

    What is applied has the features' dtype and device.
    """

    def __init__(self, features: Tensor, *, filter_tol: float = 0.0) -> None:
        if not 0.0 <= filter_tol < 1.0:
            raise InputError(
                f"filter_tol must be in [0, 1), got {filter_tol}; it is compared with values of k."
            )
        self.n_images, self.n_points, self.dim = features.shape
        self._runs_kernels = runs_kernels(features)
        self._tiles = Tiling(features.detach(), filter_tol)
        if self._runs_kernels:
            from crfield.nn.ops.pairs import triton as _pair_kernels

            self._products = _pair_kernels.Products.of(self._tiles)

    @property
    def active_fraction(self) -> float:
        """The part of the pairs of tiles that is summed."""
        return self._tiles.active_fraction

    @property
    def like(self) -> Tensor:
        return self._tiles.features

    def apply_scaled(self, x: Tensor, pre: Tensor | None, post: Tensor | None) -> Tensor:
        x = scaled(x, pre)
        if self._runs_kernels:
            from crfield.nn.ops.pairs import triton as _pair_kernels

            return scaled(_pair_kernels.apply(self._tiles, self._products, x), post)
        return scaled(_apply(self._tiles, x), post)

    def diagonal(self) -> Tensor:
        """K_ii = 1, (P,)."""
        return self.like.new_ones(self.n_variables)

    def feature_gradient(self, u: Tensor, v: Tensor) -> Tensor:
        """d sum(u * K v) / df_i = -sum_j k_ij (f_i - f_j) (u_i'v_j + v_i'u_j), (P, D)."""
        if self._runs_kernels:
            from crfield.nn.ops.pairs import triton as _pair_kernels

            return _pair_kernels.feature_gradient(self._tiles, u, v)
        return _feature_gradient(self._tiles, u, v)

    def diagonal_gradient(self, s: Tensor) -> Tensor:
        """Zero, (P, D): k(f, f) = 1 whatever f is."""
        return s.new_zeros(len(s), self.dim)


class Tiling:
    """The points of a batch in tiles of neighbors, and the pairs of tiles that are near.

    Each image's points are sorted and filled up to whole tiles by copies of its last point, which
    x is zero at: a point lives in a slot, `n_slots` for the batch.

    features : (D, n_slots).
    slot : (P,), where each point lives.
    point : (n_slots,), which one lives there, -1 for none.
    first, near : the tiles near tile t are near[first[t] : first[t + 1]].
    heaviest_first : tiles by falling number of near ones, so that no long sum starts last.
    """

    def __init__(self, features: Tensor, tol: float) -> None:
        self.n_images, self.n_points, dim = features.shape
        self.tile = TILE
        slots = -(-self.n_points // self.tile) * self.tile  # of an image
        self.n_slots = self.n_images * slots

        order = _curve_order(features)
        images = torch.arange(self.n_images, device=order.device)[:, None]
        places = slots * images + torch.arange(self.n_points, device=order.device)
        self.slot = torch.empty_like(order).scatter_(1, order, places).reshape(-1)
        unused = slots - self.n_points
        point = torch.nn.functional.pad(order + self.n_points * images, (0, unused), value=-1)
        self.point = point.reshape(-1)
        order = torch.cat([order, order[:, -1:].expand(-1, unused)], 1)
        compact = torch.gather(features, 1, order[:, :, None].expand(-1, -1, dim))
        self.features = compact.reshape(-1, dim).T.contiguous()

        smallest = max(tol, torch.finfo(features.dtype).tiny)
        boxes = compact.reshape(self.n_images, -1, self.tile, dim)
        counts, self.near = _near_tiles(boxes.amin(2), boxes.amax(2), -2.0 * math.log(smallest))
        self.first = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        self.heaviest_first = counts.argsort(stable=True, descending=True).int()

    @property
    def active_fraction(self) -> float:
        return len(self.near) * self.n_images / (self.n_slots // self.tile) ** 2

    def to_slots(self, x: Tensor) -> Tensor:
        """(P, C) -> (n_slots, C), zero where no point lives."""
        return x.new_zeros(self.n_slots, x.shape[1]).index_copy_(0, self.slot, x)

    def near_blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Blocks of rows and columns, as slots, that together hold every near pair once."""
        step = max(1, _LARGEST_BLOCK // self.tile**2)
        within = torch.arange(self.tile, device=self.near.device)
        first = self.first.tolist()
        for tile in range(self.n_slots // self.tile):
            rows = slice(tile * self.tile, (tile + 1) * self.tile)
            for begin in range(first[tile], first[tile + 1], step):
                near = self.near[begin : min(begin + step, first[tile + 1])]
                yield rows, (near[:, None] * self.tile + within).reshape(-1)

    def kernel(self, rows: slice, columns: Tensor) -> Tensor:
        """k between slots."""
        # The expanded square |f|^2 - 2 f'g + |g|^2 would cancel where features are large.
        squares = sum((f[rows, None] - f[None, columns]).square_() for f in self.features)
        assert isinstance(squares, Tensor)
        return squares.mul_(-0.5).exp_()


def _apply(tiles: Tiling, x: Tensor) -> Tensor:
    """K x, the reference."""
    x = tiles.to_slots(x)
    out = torch.zeros_like(x)
    for rows, columns in tiles.near_blocks():
        out[rows] += tiles.kernel(rows, columns) @ x[columns]
    return out[tiles.slot]


def _feature_gradient(tiles: Tiling, u: Tensor, v: Tensor) -> Tensor:
    """d sum(u * K v) / d features, the reference."""
    u, v = tiles.to_slots(u), tiles.to_slots(v)
    out = torch.zeros_like(tiles.features)
    for rows, columns in tiles.near_blocks():
        weight = tiles.kernel(rows, columns)
        weight *= u[rows] @ v[columns].T + v[rows] @ u[columns].T
        for total, f in zip(out, tiles.features, strict=True):
            total[rows] -= (weight * (f[rows, None] - f[None, columns])).sum(1)
    return out.T[tiles.slot]


def _curve_order(features: Tensor) -> Tensor:
    """Points of each image along a Z-order curve (Morton 1966), (B, N)."""
    used = min(features.shape[2], 16)
    bits = min(16, 63 // used)
    f = features[:, :, :used]
    low = f.amin(1, keepdim=True)
    # Cells are cubes, as k is isotropic, and fill the widest extent of the image.
    extent = (f.amax(1, keepdim=True) - low).amax(2, keepdim=True)
    extent = extent.clamp(min=torch.finfo(f.dtype).tiny)
    cell = ((f - low) / extent * (2**bits - 1)).long()
    spread = torch.zeros_like(cell)
    for bit in range(bits):
        spread.add_(cell & (1 << bit), alpha=1 << (bit * (used - 1)))
    code = (spread << torch.arange(used, device=f.device)).sum(2)
    return torch.argsort(code, dim=1, stable=True)


def _near_tiles(low: Tensor, high: Tensor, reach: float) -> tuple[Tensor, Tensor]:
    """Per tile: how many tiles are near, and which; they count through the batch.

    low, high : (B, T, D), bounding boxes of the tiles, near if the square of their distance, which
    bounds that of their points, is up to `reach`.
    """
    n_images, n_tiles, dim = low.shape
    reach *= 1.0 + (dim + 4) * torch.finfo(low.dtype).eps  # no pair is lost to rounding
    low_axes, high_axes = low.unbind(2), high.unbind(2)
    counts, near = [], []
    row_step = max(1, _LARGEST_BLOCK // n_tiles)
    image_step = max(1, row_step // n_tiles)
    for image in range(0, n_images, image_step):
        images = slice(image, image + image_step)
        for begin in range(0, n_tiles, row_step):
            rows = slice(begin, begin + row_step)
            squares = low.new_zeros(())
            for low_d, high_d in zip(low_axes, high_axes, strict=True):
                gap = low_d[images, rows, None] - high_d[images, None]
                torch.maximum(gap, low_d[images, None] - high_d[images, rows, None], out=gap)
                gap.clamp_(min=0.0)
                squares = torch.addcmul(squares, gap, gap)
            is_near = squares <= reach
            counts.append(is_near.sum(2).reshape(-1))
            found = is_near.nonzero(as_tuple=True)
            near.append((found[2] + (found[0] + image) * n_tiles).int())
    return torch.cat(counts), torch.cat(near)
