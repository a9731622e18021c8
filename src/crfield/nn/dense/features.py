"""Scaled features of kernels on tensors, differentiable by widths and images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from crfield._core.validate import InputError
from crfield.dense.kernels import Bilateral, FeatureKernel, Kernel, Spatial
from crfield.dense.observation import INTEGER_SCALE, RGB_TO_XYZ
from crfield.nn.tensors import check_finite_tensor, check_tensor


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
    return isinstance(kernel, Spatial) and getattr(kernel.sigma, "ndim", 0) < 2


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
        raise InputError(
            f"image must have shape ({len(like)}, C, {', '.join(map(str, grid))}) to match the "
            f"logits, got {tuple(image.shape)}; give both one size and put the channels second."
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
    return rgb_to_lab(values) if kernel.color_space == "lab" else values


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


def rgb_to_lab(rgb: Tensor) -> Tensor:
    """CIE Lab (D65) of sRGB values (..., 3) in 0..255, as on the CPU."""
    if rgb.shape[-1] != 3:
        raise InputError(
            f"image must have 3 channels for Lab color, got {rgb.shape[-1]}; "
            'pass RGB images or use color_space="rgb".'
        )
    s = (rgb / 255.0).clamp(0.0, 1.0)
    linear = torch.where(s <= 0.04045, s / 12.92, ((s.clamp_min(0.04045) + 0.055) / 1.055) ** 2.4)
    to_xyz = rgb.new_tensor(RGB_TO_XYZ.tolist())
    xyz = linear @ (to_xyz / to_xyz.sum(1, keepdim=True)).T
    edge = 6.0 / 29.0
    root = xyz.clamp_min(edge**3) ** (1.0 / 3.0)
    f = torch.where(xyz > edge**3, root, xyz / (3 * edge**2) + 4.0 / 29.0)
    x, y, z = f.unbind(-1)
    return torch.stack([116 * y - 16, 500 * (x - y), 200 * (y - z)], -1)
