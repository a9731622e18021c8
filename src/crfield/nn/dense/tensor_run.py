"""Mean-field inference and its gradient on tensors, in the notation of `crfield.dense.meanfield`.

The formulas are those of `crfield.dense.gradient`: b^(t) = A^(t) g^(t) is the gradient by the
energies of iteration t, g^(t-1) = (Psi + sum_m s^(m) mu^(m))' b^(t).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from crfield._core.validate import InputError
from crfield.nn.dense.settings import Settings

# Steps back at a fixed point: until b is this small beside the first one, at most so many.
_IMPLICIT_TOL = {torch.float32: 1e-6, torch.float64: 1e-12}
_IMPLICIT_STEPS = 500
_IMPLICIT_GROWTH, _IMPLICIT_ENOUGH = 1e3, 1e-2  # where it is given up, and what will still do


class FeatureSum(Protocol):
    """A sum of derivatives of expressions in K by the features."""

    def add(self, u: Tensor, v: Tensor, filtered_v: Tensor, filtered_u: Tensor) -> None:
        """Add d sum(u * K v), given K v and K' u."""

    def add_diagonal(self, s: Tensor) -> None:
        """Add d sum_i s_i K_ii."""

    def total(self) -> Tensor:
        """The sum (P, D)."""


class Operator(Protocol):
    """A normalized kernel matrix on tensors."""

    is_symmetric: bool

    def apply(self, x: Tensor) -> Tensor:
        """K x."""

    def apply_transpose(self, x: Tensor) -> Tensor:
        """K' x."""

    def diagonal(self) -> Tensor:
        """K_ii."""

    def start_gradient(self) -> FeatureSum:
        """A sum of derivatives by the features, to be added to."""


class Gradients:
    """dL by the inputs of a run: unary (B, N, L), features and compatibilities of each term."""

    def __init__(
        self, unary: Tensor, features: Sequence[Tensor | None], compatibilities: Sequence[Tensor]
    ) -> None:
        self.unary = unary
        self.features = features
        self.compatibilities = compatibilities


def sum_along_axes(by_point: Tensor, grid: Sequence[int]) -> Tensor:
    """From derivatives by the rows of `dense_features` (B * N, d) to those by the axes."""
    points = by_point.reshape(-1, *grid, len(grid))
    parts = []
    for a in range(len(grid)):
        others = [k for k in range(1 + len(grid)) if k != 1 + a]
        parts.append(points[..., a].sum(others))
    return torch.cat(parts)


def matrix_of(compatibility: Tensor, n_labels: int) -> Tensor:
    """mu (L, L) of a Potts weight (), of attractions (L,) or of itself."""
    if compatibility.ndim == 2:
        return compatibility
    eye = torch.eye(n_labels, dtype=compatibility.dtype, device=compatibility.device)
    if compatibility.ndim == 0:
        return compatibility * (1.0 - eye)
    return -compatibility * eye


def by_compatibility(by_mu: Tensor, compatibility: Tensor) -> Tensor:
    """From the derivative by mu (L, L) to that by what `matrix_of` takes."""
    if compatibility.ndim == 2:
        return by_mu
    own = by_mu.diagonal()
    return by_mu.sum() - own.sum() if compatibility.ndim == 0 else -own


def times_mu(x: Tensor, compatibility: Tensor) -> Tensor:
    """x mu up to a constant in each row, which no update sees."""
    return x @ compatibility if compatibility.ndim == 2 else -compatibility * x


class TensorRun:
    """One batch through n_iter updates, and back.

    unary : (B, N, L) costs.
    compatibilities : of each term with its weight in it, in a form that `matrix_of` takes.
    """

    def __init__(
        self, unary: Tensor, operators: Sequence[Operator], compatibilities: Sequence[Tensor],
        settings: Settings, *, keep: bool,
    ) -> None:
        self._shape = unary.shape
        self._unary = unary.reshape(-1, unary.shape[-1])
        self._operators = operators
        self._compatibilities = compatibilities
        self._settings = settings
        without_self = settings.algorithm != "concave"
        self._diagonals = [k.diagonal()[:, None] if without_self else None for k in operators]
        self._convex = settings.algorithm == "cccp"
        if self._convex and any(c.ndim == 2 for c in compatibilities):
            raise InputError(
                "cccp on a GPU, and implicit gradients of it, take Potts and Diagonal "
                'compatibilities, got a matrix; use algorithm="concave".'
            )
        self._trace: list[Tensor] | None = None
        unrolled = settings.gradient == "unrolled"
        trace = self._iterate(keep=keep and unrolled and not settings.checkpoint)
        self._last = trace[-1]
        if keep and len(trace) == settings.n_iter + 1:
            self._trace = trace

    @property
    def marginals(self) -> Tensor:
        """(B, N, L)."""
        return self._last.reshape(self._shape)

    def _iterate(self, *, keep: bool) -> list[Tensor]:
        """All marginals, or only the last."""
        trace = [torch.softmax(-self._unary, 1)]
        for _ in range(self._settings.n_iter):
            q = self._update(trace[-1])
            trace = [*trace, q] if keep else [q]
        return trace

    def _update(self, q: Tensor) -> Tensor:
        energy = self._unary
        for operator, compatibility, diagonal in zip(
            self._operators, self._compatibilities, self._diagonals, strict=True
        ):
            filtered = operator.apply(q)
            if diagonal is not None and not self._convex:
                filtered = filtered - diagonal * q
            energy = energy + times_mu(filtered, compatibility)
        if self._convex:
            return solve_self_pairs(energy, self._alpha())
        return torch.softmax(-energy, 1)

    def _alpha(self) -> Tensor:
        """sum_m s^(m) a^(m), (P, L) or (P, 1)."""
        total = torch.zeros_like(self._unary[:, :1])
        for compatibility, diagonal in zip(self._compatibilities, self._diagonals, strict=True):
            assert diagonal is not None
            total = total + diagonal * compatibility
        return total

    def backward(self, given: Tensor, widths: Sequence[bool]) -> Gradients:
        """From dL / d marginals, or d log marginals, (B, N, L).

        widths : for each term, whether the gradient by its features is wanted.
        """
        given = given.reshape(self._unary.shape)
        n_labels = self._shape[-1]
        by_mu = [
            torch.zeros(n_labels, n_labels, dtype=given.dtype, device=given.device)
            for _ in self._operators
        ]
        sums = [
            k.start_gradient() if w and self._settings.n_iter else None
            for k, w in zip(self._operators, widths, strict=True)
        ]
        implicit = self._settings.gradient == "implicit" and self._settings.n_iter > 0
        if implicit:
            trace, steps = [self._last, self._last], _IMPLICIT_STEPS
        else:
            trace = self._trace if self._trace is not None else self._iterate(keep=True)
            steps = len(trace) - 1  # none where nothing was updated
        total = torch.zeros_like(self._unary)
        b = self._first(given, trace[-1], is_softmax=len(trace) == 1)
        largest = left = float(b.abs().max()) if implicit and b.numel() else 0.0
        for step in range(steps):
            old, new = (trace[0], trace[0]) if implicit else (trace[-2 - step], trace[-1 - step])
            total = total + b
            g = self._back(b, old, new, by_mu, sums)
            if implicit:
                b = self._jacobian(new, g)
                left = float(b.abs().max())
                if left <= _IMPLICIT_TOL[b.dtype] * largest:
                    break
                if not left <= _IMPLICIT_GROWTH * largest:  # True for NaN as well
                    raise _not_settled()
            elif step + 1 < steps:
                b = self._jacobian(old, g)
            else:
                b = softmax_jacobian(old, g)
        if not implicit:
            total = total + b
        elif left > _IMPLICIT_ENOUGH * largest:
            raise _not_settled()
        return Gradients(
            total.reshape(self._shape), [None if s is None else s.total() for s in sums],
            [by_compatibility(mu, c) for mu, c in zip(by_mu, self._compatibilities, strict=True)],
        )

    def _first(self, given: Tensor, q: Tensor, *, is_softmax: bool) -> Tensor:
        """b of the last update from what came in."""
        if not self._settings.log_marginals:
            return softmax_jacobian(q, given) if is_softmax else self._jacobian(q, given)
        if is_softmax or not self._convex:  # A diag(1 / q) h needs no division
            return q * given.sum(1, keepdim=True) - given
        h = q / (1.0 + self._alpha() * q)
        part = given / (1.0 + self._alpha() * q)
        return h * (part.sum(1, keepdim=True) / h.sum(1, keepdim=True)) - part

    def _jacobian(self, q: Tensor, g: Tensor) -> Tensor:
        """A g of an update that ended at q."""
        if not self._convex:
            return softmax_jacobian(q, g)
        h = q / (1.0 + self._alpha() * q)
        return h * ((h * g).sum(1, keepdim=True) / h.sum(1, keepdim=True) - g)

    def _back(
        self, b: Tensor, old: Tensor, new: Tensor, by_mu: list[Tensor],
        sums: Sequence[FeatureSum | None],
    ) -> Tensor:
        """dL / dq_old from b, adding up what b says of mu and of the features."""
        g = torch.zeros_like(b)
        for m, (operator, compatibility, diagonal) in enumerate(
            zip(self._operators, self._compatibilities, self._diagonals, strict=True)
        ):
            filtered = operator.apply_transpose(b)
            by_mu[m] += filtered.T @ old
            beside = filtered
            if diagonal is not None:
                own = diagonal * b
                # Psi lacks the self-pairs; cccp has them back, with the marginals it ends at.
                by_mu[m] -= own.T @ (new if self._convex else old)
                if not self._convex:
                    beside = filtered - own
            g = g + times_mu(beside, compatibility)
            gradient = sums[m]
            if gradient is not None:
                pushed = times_mu(b, compatibility)
                gradient.add(pushed, old, operator.apply(old), times_mu(filtered, compatibility))
                if diagonal is not None:
                    owner = new if self._convex else old
                    gradient.add_diagonal(-(pushed * owner).sum(1))
        return g


def _not_settled() -> RuntimeError:
    return RuntimeError(
        "the implicit gradient does not settle: inference has not reached a fixed point; use more "
        'iterations, smaller weights or gradient="unrolled"'
    )


def softmax_jacobian(q: Tensor, g: Tensor) -> Tensor:
    """(qq' - diag(q)) g by rows (KK13 eq. 13)."""
    return q * ((q * g).sum(1, keepdim=True) - g)


def solve_self_pairs(energy: Tensor, alpha: Tensor) -> Tensor:
    """q with log q + alpha q + lambda + e = 0 and sum q = 1 in each row (KK13 eq. 8), alpha >= 0.

    Newton's method on lambda, of which the sum is a convex falling function: it never overshoots.
    """
    alpha = alpha.expand_as(energy)
    # At this lambda the sum is at least 1.
    level = torch.logsumexp(-energy, 1, keepdim=True) - alpha.amax(1, keepdim=True)
    for _ in range(60):
        q = _solve_one(-energy - level, alpha)
        slope = (q / (1.0 + alpha * q)).sum(1, keepdim=True)
        move = (q.sum(1, keepdim=True) - 1.0) / slope
        level = level + move
        if float(move.abs().max()) <= 4 * torch.finfo(energy.dtype).eps:
            break
    q = _solve_one(-energy - level, alpha)
    return q / q.sum(1, keepdim=True)


def _solve_one(z: Tensor, alpha: Tensor) -> Tensor:
    """q with log q + alpha q = z, by Newton's method on log q, which is convex and rises."""
    # log q lies below both z and, where alpha q > 1, about log(z / alpha).
    y = torch.minimum(z, torch.log(torch.clamp_min(z, 1.0) / torch.clamp_min(alpha, 1e-30)))
    y = torch.where(alpha * torch.exp(torch.clamp_max(z, 80.0)) < 1.0, z, y)
    for _ in range(8):
        aq = alpha * torch.exp(y)
        y = y - (y + aq - z) / (1.0 + aq)
    return torch.exp(y)
