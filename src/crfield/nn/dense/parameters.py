"""The parameters of one pairwise term as a module, and back to the term."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from crfield._core.validate import InputError, shown
from crfield.dense.compatibility import Compatibility, Diagonal, Potts, Symmetric
from crfield.dense.kernels import Bilateral, FeatureKernel, Spatial
from crfield.dense.pairwise import Pairwise
from crfield.nn.tensors import can_look

LEARNABLE = ("weight", "compatibility", "kernel")


class PairwiseParameters(nn.Module):
    """Weight, compatibility and widths: where they start, as buffers, and how far they have moved.

    What must stay positive moves by the exponential of a parameter that starts at 0; a covariance's
    Cholesky factor is multiplied from the right by another one; a matrix of compatibilities is a
    parameter itself.

    term : where they start; its kernel also says which features count.
    learn : which of "weight", "compatibility" and "kernel" are parameters to be learned.
    """

    def __init__(self, term: Pairwise, n_labels: int, learn: Collection[str]) -> None:
        super().__init__()
        if not isinstance(term.kernel, Spatial | Bilateral | FeatureKernel):
            raise InputError(
                "a layer's kernels must be Spatial, Bilateral or FeatureKernel, got "
                f"{type(term.kernel).__name__}; give its features to a FeatureKernel."
            )
        self.kernel = term.kernel
        self._kind = type(term.compatibility)
        if "kernel" in learn and term.kernel.shape != "gaussian":
            raise InputError(
                f"only Gaussian kernels can be learned, got shape {term.kernel.shape!r}; "
                "leave 'kernel' out of `learn`."
            )
        self._widths = [n for n in term.kernel.array_fields if getattr(term.kernel, n) is not None]
        values = _start_of(term.compatibility, n_labels)
        self._add("weight", _positive(term.weight, "weight"), "weight" in learn)
        self._add("compatibility", values, "compatibility" in learn)
        for name in self._widths:
            self._add(name, _factor(getattr(term.kernel, name)), "kernel" in learn)
        self._warn_of_zeros(term.weight, values, learn)

    def _warn_of_zeros(self, weight: float, values: Any, learn: Collection[str]) -> None:
        stuck = weight == 0
        if "compatibility" not in learn:
            stuck = stuck or not np.any(values)
        elif self._kind is not Symmetric:
            stuck = stuck or not np.all(values)
        if stuck and ("weight" in learn or "compatibility" in learn):
            warnings.warn(
                "a weight or compatibility of 0 stays 0, because it is learned as a factor of "
                "where it starts; start from a small number such as 0.1.", stacklevel=2,
            )

    def _add(self, name: str, start: Any, learned: bool) -> None:
        values = torch.tensor(start, dtype=torch.get_default_dtype())
        self.register_buffer(f"{name}_start", values)
        moved = values if self._is_matrix(name) else torch.zeros_like(values)
        self.register_parameter(name, nn.Parameter(moved.clone(), learned))

    def _is_matrix(self, name: str) -> bool:
        return name == "compatibility" and self._kind is Symmetric

    def _value(self, name: str) -> Tensor:
        start, moved = getattr(self, f"{name}_start"), getattr(self, name)
        assert isinstance(start, Tensor)
        assert isinstance(moved, Tensor)
        if name == "compatibility" or start.ndim < 2:
            return _finite(start * moved.exp(), name)
        return _finite(start @ (moved.tril(-1) + torch.diag_embed(moved.diagonal().exp())), name)

    def weighted_compatibility(self, *, concave: bool) -> Tensor:
        """The compatibility times the weight: a Potts weight (), attractions (L,) or mu (L, L).

        concave : whether mu is brought to the nearest one that has the guarantee.
        """
        return self._value("weight") * self._decoded_compatibility(concave)

    def _decoded_compatibility(self, concave: bool) -> Tensor:
        if self._kind is not Symmetric:
            return self._value("compatibility")
        values = self.compatibility
        assert isinstance(values, Tensor)
        if values.dtype in (torch.float16, torch.bfloat16):
            values = values.float()  # eigenvalues need more digits
        mu = _finite(0.5 * (values + values.T), "compatibility")
        projected: Tensor = _ProjectCompatibility.apply(mu) if concave else mu
        return projected

    def decoded_widths(self) -> Mapping[str, Tensor]:
        """Widths, or Cholesky factors of covariances, by name."""
        return {name: self._value(name) for name in self._widths}

    def to_term(self, *, concave: bool) -> Pairwise:
        """The term with the values that the parameters have now."""
        with torch.no_grad():
            widths = {
                name: (values if values.ndim < 2 else values @ values.T).double().cpu().numpy()
                for name, values in self.decoded_widths().items()
            }
            weight = float(self._value("weight"))
            values = self._decoded_compatibility(concave).double().cpu().numpy()
        kernel = replace(self.kernel, **widths)  # type: ignore[arg-type]
        return Pairwise(kernel, _decode_compatibility(self._kind, values), weight)

    def extra_repr(self) -> str:
        return f"{self.kernel.describe()}, {self._kind.__name__}"


def _finite(values: Tensor, name: str) -> Tensor:
    if can_look(values) and not bool(torch.isfinite(values.detach()).all()):
        raise InputError(
            f"{name} of a layer must be finite, got {shown(values.tolist())}; where training made "
            "it so, lower the learning rate, and keep the layer in float32 or float64."
        )
    return values


def _positive(values: Any, name: str) -> Any:
    array = np.asarray(values, np.float64)
    if (array < 0).any():
        raise InputError(
            f"{name} must not be negative in a layer, got {float(array.min()):g}; use Symmetric "
            'compatibilities and algorithm="parallel" for repulsion.'
        )
    return array


def _start_of(compatibility: Compatibility, n_labels: int) -> Any:
    if isinstance(compatibility, Potts):
        return _positive(compatibility.weight, "the Potts weight")
    if isinstance(compatibility, Diagonal):
        return _positive(compatibility.alpha, "alpha")
    return compatibility.matrix(n_labels)


def _factor(widths: Any) -> Any:
    """Widths as they are, a covariance as its Cholesky factor."""
    array = np.asarray(widths, np.float64)
    return array if array.ndim < 2 else np.linalg.cholesky(array)


def _decode_compatibility(kind: type[Compatibility], values: Any) -> Compatibility:
    if kind is Potts:
        return Potts(float(values))
    return Diagonal(values) if kind is Diagonal else Symmetric(values)


class _ProjectCompatibility(torch.autograd.Function):
    """mu - PmuP + NSD(PmuP), the nearest compatibility with the guarantee.

    Its derivative is that of Daleckii and Krein, which stays finite where eigenvalues coincide.
    """

    @staticmethod
    def forward(ctx: Any, mu: Tensor) -> Tensor:
        centered = _center(mu)
        values, vectors = torch.linalg.eigh(centered)
        ctx.save_for_backward(values, vectors)
        negative = (vectors * values.clamp_max(0.0)) @ vectors.T
        return mu - centered + 0.5 * (negative + negative.T)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        values, vectors = ctx.saved_tensors
        clipped = values.clamp_max(0.0)
        gap = values[:, None] - values
        slope = (values < 0).to(values)
        same = gap.abs() <= 1e-6 * values.abs().max()
        divided = torch.where(
            same, 0.5 * (slope[:, None] + slope),
            (clipped[:, None] - clipped) / torch.where(same, torch.ones_like(gap), gap),
        )
        inner = vectors @ (divided * (vectors.T @ g @ vectors)) @ vectors.T
        return g - _center(g) + _center(inner)


def _center(mu: Tensor) -> Tensor:
    """P mu P with P = I - 11'/L."""
    return mu - mu.mean(0, keepdim=True) - mu.mean(1, keepdim=True) + mu.mean()


