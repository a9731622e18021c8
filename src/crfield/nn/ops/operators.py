"""Kernel matrices on tensors: the protocol, and normalization on top of it.

Images of a batch have one size; their points are flattened to P = B N rows, image after image, and
no kernel sees across images.
"""

from __future__ import annotations

import functools
from typing import Protocol

import torch
from torch import Tensor


class PairOperator(Protocol):
    """K (P, P) of a batch, block diagonal and symmetric, applied and never stored."""

    n_images: int
    n_points: int  # of each image
    dim: int

    def apply(self, x: Tensor) -> Tensor:
        """K x for x (P, C)."""

    def row_sums(self) -> Tensor:
        """K 1, (P,)."""

    def diagonal(self) -> Tensor:
        """K_ii, (P,)."""

    def feature_gradient(self, u: Tensor, v: Tensor) -> Tensor:
        """d sum(u * K v) / d features for u, v (P, C), both held fixed: (P, D)."""

    def diagonal_gradient(self, s: Tensor) -> Tensor:
        """d sum_i s_i K_ii / d features for s (P,): (P, D)."""


class NormalizedOperator:
    """K~ = diag(post) K diag(pre), as `crfield.dense.filters.NormalizedFilter` defines them."""

    def __init__(self, plain: PairOperator, normalization: str) -> None:
        self.plain = plain
        self.normalization = normalization
        self.is_symmetric = normalization in ("none", "symmetric")

    @functools.cached_property
    def rows(self) -> Tensor:
        """K 1."""
        return self.plain.row_sums()

    @functools.cached_property
    def pre(self) -> Tensor | None:
        """What goes in is multiplied by, None for ones."""
        if self.normalization == "symmetric":
            return self.rows.rsqrt()
        return self.rows.reciprocal() if self.normalization == "before" else None

    @functools.cached_property
    def post(self) -> Tensor | None:
        """What comes out is multiplied by, None for ones."""
        if self.normalization == "symmetric":
            return self.pre
        return self.rows.reciprocal() if self.normalization == "after" else None

    def know_scale(self, scale: Tensor) -> None:
        """Take the scale of a symmetric normalization from who has found it already."""
        self.pre, self.rows = scale, scale.square().reciprocal()

    def apply(self, x: Tensor) -> Tensor:
        """K~ x."""
        return _scaled(self.plain.apply(_scaled(x, self.pre)), self.post)

    def apply_transpose(self, x: Tensor) -> Tensor:
        """K~' x."""
        return _scaled(self.plain.apply(_scaled(x, self.post)), self.pre)

    def diagonal(self) -> Tensor:
        """K~_ii."""
        result = self.plain.diagonal()
        for scale in (self.pre, self.post):
            if scale is not None:
                result = result * scale
        return result

    def start_gradient(self) -> NormalizedGradient:
        """A sum of derivatives by the features, to be added to."""
        return NormalizedGradient(self)


class NormalizedGradient:
    """A sum of d sum(u * K~ v) and d sum_i s_i K~_ii by the features, normalization included.

    With z = post u, y = pre v: sum(u * K~ v) = sum(z * K y), whose derivative by K alone is the
    plain operator's; post and pre are powers of the row sums r = K 1, and dr brings in K once more.
    """

    def __init__(self, operator: NormalizedOperator) -> None:
        self._operator = operator
        self._direct: Tensor | None = None
        self._by_pre: Tensor | None = None  # dL / d log pre
        self._by_post: Tensor | None = None

    def add(self, u: Tensor, v: Tensor, filtered_v: Tensor, filtered_u: Tensor) -> None:
        """Add d sum(u * K~ v), given K~ v and K~' u."""
        operator = self._operator
        direct = operator.plain.feature_gradient(
            _scaled(u, operator.post), _scaled(v, operator.pre)
        )
        self._direct = direct if self._direct is None else self._direct + direct
        if operator.post is not None:
            self._by_post = _sum(self._by_post, (u * filtered_v).sum(1))
        if operator.pre is not None:
            self._by_pre = _sum(self._by_pre, (v * filtered_u).sum(1))

    def add_sums(self, direct: Tensor, own: Tensor) -> None:
        """Add what `add` would for several u and v on both sides of a symmetric K~.

        direct : (P, D), their derivative with the scales held fixed.
        own : (P,), sum_l (u * K~ v + v * K~ u).
        """
        self._direct = direct if self._direct is None else self._direct + direct
        if self._operator.post is not None:
            self._by_post = _sum(self._by_post, own)

    def add_diagonal(self, s: Tensor) -> None:
        """Add d sum_i s_i K~_ii."""
        operator = self._operator
        plain = s
        for scale in (operator.pre, operator.post):
            if scale is not None:
                plain = plain * scale
        direct = operator.plain.diagonal_gradient(plain)
        self._direct = direct if self._direct is None else self._direct + direct
        own = plain * operator.plain.diagonal()
        if operator.post is not None:
            self._by_post = _sum(self._by_post, own)
        if operator.pre is not None:
            self._by_pre = _sum(self._by_pre, own)

    def total(self) -> Tensor:
        """The sum (P, D)."""
        operator = self._operator
        assert self._direct is not None
        parts = [part for part in (self._by_pre, self._by_post) if part is not None]
        if not parts:
            return self._direct
        power = -0.5 if operator.normalization == "symmetric" else -1.0
        by_rows = (power * torch.stack(parts).sum(0) / operator.rows)[:, None]
        ones = torch.ones_like(by_rows)
        return self._direct + operator.plain.feature_gradient(by_rows, ones)


def _scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    return x if scale is None else x * scale[:, None]


def _sum(total: Tensor | None, part: Tensor) -> Tensor:
    return part if total is None else total + part
