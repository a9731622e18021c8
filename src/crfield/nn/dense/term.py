"""A pairwise term of a layer: its parameters, and the scaled features that follow from them.

`crfield.dense.model` has the same for arrays.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from crfield._core.validate import InputError, shown
from crfield._core.warning import warn
from crfield.dense.compatibility import (
    Compatibility,
    Diagonal,
    Potts,
    Symmetric,
    project,
    project_gradient,
)
from crfield.dense.kernels import Bilateral, FeatureKernel, Kernel, Spatial
from crfield.dense.model import Pairwise
from crfield.dense.observation import INTEGER_SCALE, rgb_to_lab
from crfield.nn.tensors import can_look, check_finite_tensor, check_tensor

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
            warn(
                "a weight or compatibility of 0 stays 0, because it is learned as a factor of "
                "where it starts; start from a small number such as 0.1."
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
        """The term with the values that its parameters have now."""
        try:
            return repr(self.to_term(concave=False))
        except (InputError, NotImplementedError):  # not finite, or on the device "meta"
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
    """The nearest compatibility with the guarantee."""

    @staticmethod
    def forward(ctx: Any, mu: Tensor) -> Tensor:
        projected, parts = project(mu)
        ctx.save_for_backward(*parts)
        nearest: Tensor = projected
        return nearest

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> Tensor:
        by_mu: Tensor = project_gradient(g, *ctx.saved_tensors)
        return by_mu


def scaled_positions(
    kernel: Kernel, widths: Mapping[str, Tensor], grid: Sequence[int], spacing: Sequence[float],
    like: Tensor,
) -> Tensor | None:
    """What of the features comes from the grid alone: positions (1, N, d), for a full covariance
    not yet divided, or for a kernel `is_on_grid` coordinates along all axes, one after the other.

    widths : for each of the kernel's fields numbers, or the Cholesky factor of a covariance.
    like : for dtype and device.
    """
    if isinstance(kernel, FeatureKernel):
        return None
    axes = [
        step * torch.arange(n, dtype=like.dtype, device=like.device)
        for step, n in zip(spacing, grid, strict=True)
    ]
    if is_on_grid(kernel):
        sigma = widths["sigma"]
        _check_size(sigma, len(grid))
        if sigma.ndim == 0:
            return torch.cat(axes) / sigma
        return torch.cat([axis / width for axis, width in zip(axes, sigma, strict=True)])
    points = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1).reshape(1, -1, len(axes))
    if "covariance" in widths:
        return points
    return _divide(points, widths["sigma" if isinstance(kernel, Spatial) else "sigma_xy"])


def scaled_features(
    kernel: Kernel, widths: Mapping[str, Tensor], positions: Tensor | None, grid: Sequence[int],
    image: Tensor | None, features: Mapping[str, Tensor], like: Tensor,
) -> Tensor:
    """Features (B, N, D) divided by the widths, or coordinates along all axes of the grid.

    positions : `scaled_positions`.
    image : (B, C, *grid), or None; features : named, (B, D, *grid).
    like : (B, N, L), for dtype, device and the number of images.
    """
    if isinstance(kernel, FeatureKernel):
        values = _given(kernel, features, grid, like)
        return _divide(values, next(iter(widths.values())))
    assert positions is not None
    if is_on_grid(kernel):
        return positions
    positions = positions.expand(len(like), -1, -1)
    if isinstance(kernel, Spatial):
        return positions
    assert isinstance(kernel, Bilateral)
    colors = _colors(kernel, image, grid, like)
    if "covariance" in widths:
        return _divide(torch.cat([positions, colors], -1), widths["covariance"])
    return torch.cat([positions, _divide(colors, widths["sigma_color"])], -1)


def is_on_grid(kernel: Kernel) -> bool:
    """Whether `scaled_features` are coordinates along the axes."""
    # Asked in a form that compiled graphs can follow, where a number is a symbol.
    sigma = kernel.sigma if isinstance(kernel, Spatial) else None
    return sigma is not None and not (isinstance(sigma, np.ndarray) and sigma.ndim == 2)


def _check_size(widths: Tensor, dim: int) -> None:
    if widths.ndim and widths.shape[-1] != dim:
        raise InputError(
            f"a kernel's widths must be one number or one for each of the {dim} features they "
            f"divide, got {widths.shape[-1]}; match the grid's dimensions and the image's channels."
        )


def _divide(values: Tensor, widths: Tensor) -> Tensor:
    _check_size(widths, values.shape[-1])
    if widths.ndim < 2:
        return values / widths
    whitened = torch.linalg.solve_triangular(widths, values.transpose(-1, -2), upper=False)
    return whitened.transpose(-1, -2)


def _colors(kernel: Bilateral, image: Tensor | None, grid: Sequence[int], like: Tensor) -> Tensor:
    """Image values (B, N, C) on the scale of the widths."""
    if image is None:
        raise InputError(
            "image must be given to a layer with a Bilateral kernel, got None; pass (B, C, *grid)."
        )
    if image.shape[:1] + image.shape[2:] != (len(like), *grid) or image.shape[1] == 0:
        remedy = "give both one size and put the channels second"
        if image.shape[:1] == (len(like),) and _is_larger(image.shape[2:], grid):
            mode = ("linear", "bilinear", "trilinear")[len(grid) - 1]
            remedy = (
                "bring the logits to its size with torch.nn.functional.interpolate(logits, "
                f'image.shape[2:], mode="{mode}")'
            )
        raise InputError(
            f"image must have shape ({len(like)}, C, {', '.join(map(str, grid))}) to match the "
            f"logits, got {tuple(image.shape)}; {remedy}."
        )
    values = image.to(like)
    if image.dtype.is_floating_point:
        check_finite_tensor(values, "image")
    values = values.flatten(2).transpose(1, 2)
    if kernel.color_scale is not None:
        values = values * kernel.color_scale
    elif image.dtype.is_floating_point:
        # As for arrays, images within [0, 1] are taken for such; decided without waiting for a GPU.
        low, high = values.detach().amin((1, 2)), values.detach().amax((1, 2))
        unit = (low >= 0.0) & (high <= 1.0)
        values = values * torch.where(unit, 255.0, 1.0).to(like)[:, None, None]
    else:
        values = values * INTEGER_SCALE.get(str(image.dtype).removeprefix("torch."), 1.0)
    if kernel.color_space == "lab":
        values = rgb_to_lab(values)
    return values


def _is_larger(sides: Sequence[int], grid: Sequence[int]) -> bool:
    """Whether an image with these sides has all those of the grid at a higher resolution."""
    return len(sides) == len(grid) and all(
        2 * n <= m or n == m == 1 for n, m in zip(grid, sides, strict=True)
    )


def _given(
    kernel: FeatureKernel, features: Mapping[str, Tensor], grid: Sequence[int], like: Tensor
) -> Tensor:
    if kernel.name not in features:
        given = ", ".join(sorted(map(str, features))) or "none"
        raise InputError(
            f"features must hold {kernel.name!r}, got {given}; "
            f"pass features={{{kernel.name!r}: tensor of shape (B, {kernel.dim}, *grid)}}."
        )
    values = features[kernel.name]
    check_tensor(values, f"features[{kernel.name!r}]", like)
    if values.shape != (len(like), kernel.dim, *grid):
        raise InputError(
            f"features[{kernel.name!r}] must have shape {(len(like), kernel.dim, *grid)}, got "
            f"{tuple(values.shape)}; match the kernel's dim and the logits."
        )
    values = values.to(like)
    check_finite_tensor(values, f"features[{kernel.name!r}]")
    return values.flatten(2).transpose(1, 2)
