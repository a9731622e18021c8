"""Kernel matrices on tensors: what they share, and normalization on top of them.

Images of a batch have one size; their points are flattened to P = B N rows, image after image, and
no kernel sees across images.
"""

from __future__ import annotations

import torch
from torch import Tensor

from crfield.dense.filters.base import NormalizedGradient, NormalizedOperator


class PlainOperator:
    """K (P, P) of a batch, block diagonal and symmetric, not normalized, applied and never stored.

    n_images, n_points : of the batch, and of each image.
    dim : number of features D.
    """

    n_images: int
    n_points: int
    dim: int
    is_symmetric = True

    @property
    def like(self) -> Tensor:
        """A tensor of the dtype and device of the work."""
        raise NotImplementedError

    @property
    def n_variables(self) -> int:
        """P."""
        return self.n_images * self.n_points

    @property
    def dtype(self) -> torch.dtype:
        """Of the work."""
        return self.like.dtype

    def apply(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """K x for x (P, C), written to `out` if that is given."""
        result = self.apply_scaled(x, None, None)
        return result if out is None else out.copy_(result)

    def apply_transpose(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """The same as `apply`."""
        return self.apply(x, out)

    def apply_scaled(self, x: Tensor, pre: Tensor | None, post: Tensor | None) -> Tensor:
        """diag(post) K diag(pre) x for x (P, C); scales (P,) that are None are ones."""
        raise NotImplementedError

    def row_sums(self) -> Tensor:
        """K 1, (P,)."""
        return self.apply(self.like.new_ones(self.n_variables, 1))[:, 0]

    def diagonal(self) -> Tensor:
        """K_ii, (P,)."""
        raise NotImplementedError

    def feature_gradient(self, u: Tensor, v: Tensor) -> Tensor:
        """d sum(u * K v) / d features for u, v (P, C), both held fixed: (P, D)."""
        raise NotImplementedError

    def diagonal_gradient(self, s: Tensor) -> Tensor:
        """d sum_i s_i K_ii / d features for s (P,): (P, D)."""
        raise NotImplementedError

    def start_gradient(self) -> NormalizedGradient:
        """A sum of derivatives by the features, to be added to."""
        return TensorOperator(self, "none").start_gradient()

    def spectral_bound(self) -> float:
        """A bound on |eigenvalues| of K."""
        return TensorOperator(self, "none").spectral_bound()

    def to_dense(self) -> Tensor:
        """K as a (P, P) tensor; few points only."""
        dense: Tensor = TensorOperator(self, "none").to_dense()
        return dense


class TensorOperator(NormalizedOperator):
    """K~ = diag(post) K diag(pre) around a plain operator K on tensors."""

    def __init__(self, plain: PlainOperator, normalization: str) -> None:
        self.plain = plain
        self.normalization = normalization
        self.n_variables = plain.n_variables
        self.dtype = plain.dtype

    def row_sums(self) -> Tensor:
        return self.plain.row_sums()

    def plain_apply(
        self, x: Tensor, pre: Tensor | None, post: Tensor | None, out: Tensor | None = None
    ) -> Tensor:
        result = self.plain.apply_scaled(x, pre, post)
        return result if out is None else out.copy_(result)

    def plain_diagonal(self) -> Tensor:
        return self.plain.diagonal()

    def plain_gradient(
        self, u: Tensor, u_scale: Tensor | None, v: Tensor, v_scale: Tensor | None
    ) -> Tensor:
        return self.plain.feature_gradient(scaled(u, u_scale), scaled(v, v_scale))

    def plain_diagonal_gradient(self, s: Tensor) -> Tensor:
        return self.plain.diagonal_gradient(s)

    @staticmethod
    def inverse_root(rows: Tensor) -> Tensor:
        return rows.rsqrt()

    def identity(self, n_columns: int) -> Tensor:
        like = self.plain.like
        return torch.eye(self.n_variables, n_columns, dtype=like.dtype, device=like.device)


def scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    """Rows x (P, C) times numbers (P,), None for ones."""
    return x if scale is None else x * scale[:, None]
