"""Colors chosen in OKLab, whose distances match the differences that people see."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]


def _oklab_to_bytes(lab: Array) -> tuple[Bytes, npt.NDArray[np.bool_]]:
    """Colors of the OKLab space `(n, 3)` as sRGB bytes, and which of them sRGB can show.

    The two matrices are those of B. Ottosson, "A perceptual color space", 2020.
    """
    cone = lab @ np.array(
        [[1, 1, 1], [0.3963377774, -0.1055613458, -0.0894841775],
         [0.2158037573, -0.0638541728, -1.2914855480]]
    )  # fmt: skip
    linear = cone**3 @ np.array(
        [[4.0767416621, -1.2684380046, -0.0041960863],
         [-3.3077115913, 2.6097574011, -0.7034186147],
         [0.2309699292, -0.3413193965, 1.7076147010]]
    )  # fmt: skip
    shown = ((linear >= -1e-4) & (linear <= 1 + 1e-4)).all(axis=-1)
    linear = np.clip(linear, 0, 1)
    encoded = np.where(linear <= 0.0031308, 12.92 * linear, 1.055 * linear ** (1 / 2.4) - 0.055)
    return np.rint(255 * encoded).astype(np.uint8), shown


@lru_cache
def distinct_colors(n: int) -> Bytes:
    """Colors `(n, 3)` chosen one by one, each the farthest in OKLab from those before it."""
    lightness, chroma, hue = np.meshgrid(
        np.linspace(0.54, 0.88, 9), np.linspace(0.07, 0.17, 7), np.arange(0, 2 * np.pi, np.pi / 36)
    )
    lab = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=-1).reshape(-1, 3)
    colors, shown = _oklab_to_bytes(lab)
    lab, colors = lab[shown], colors[shown]
    sky_blue = np.array([0.70, -0.06, -0.13])  # skin, wood and soil have no such color
    latest = int(np.argmin(((lab - sky_blue) ** 2).sum(axis=1)))
    distance = np.full(len(lab), np.inf)
    chosen = []
    for _ in range(n):
        chosen.append(latest)
        # Lightness counts less than hue: it is what the tint of an overlay loses first.
        difference = (lab - lab[latest]) * (0.7, 1, 1)
        distance = np.minimum(distance, (difference**2).sum(axis=1))
        latest = int(np.argmax(distance))
    return colors[chosen]


@lru_cache
def uncertainty_ramp() -> Bytes:
    """256 colors from near black over violet and orange to pale yellow, evenly brighter."""
    share = np.linspace(0, 1, 256)
    lightness = 0.14 + 0.83 * share
    hue = np.deg2rad(285 + 180 * share)
    chroma = 0.03 + 0.15 * np.sin(np.pi * share) ** 0.8
    lab = np.stack([lightness, chroma * np.cos(hue), chroma * np.sin(hue)], axis=-1)
    return _oklab_to_bytes(lab)[0]
