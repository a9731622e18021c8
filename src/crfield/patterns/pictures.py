"""Pictures of patterns and masks, as tiles."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crfield._core.validate import InputError, as_array, as_count
from crfield.patterns._checks import as_grid
from crfield.patterns.potential import Patterns

_FOR, _AGAINST = np.array([37, 99, 215.0]), np.array([200, 52, 60.0])
_ON, _OFF = np.array([36, 41, 47.0]), np.array([229, 231, 235.0])
_GAP = 2


def pattern_tiles(
    patterns: Patterns, grid: Any, *, n: int = 64, columns: int = 16, scale: int = 2
) -> Image.Image:
    """The weights of patterns: blue where a pattern asks for 1, red where for 0, white for neither.

    Each pattern has its own scale; those with the largest weights come first.

    patterns : of n_visible = height times width labels.
    grid : height and width.
    n : most patterns to show.
    columns, scale : patterns in a row, and pixels of the picture for one of a pattern.
    """
    height, width = as_grid(grid)
    if not isinstance(patterns, Patterns):
        raise InputError(
            f"patterns must be Patterns, got {type(patterns).__name__}; "
            "use to_dense() of convolutional ones."
        )
    if patterns.n_visible != height * width:
        raise InputError(
            f"grid must have as many pixels as the patterns have labels, {patterns.n_visible}, "
            f"got {height} x {width}; pass the grid they were learned on."
        )
    weights = patterns.weights.T.astype(np.float64)
    order = np.argsort(-np.square(weights).sum(1), kind="stable")[: as_count(n, "n")]
    chosen = weights[order].reshape(-1, height, width)
    largest = np.abs(chosen).max((1, 2), keepdims=True)
    share = (chosen / np.maximum(largest, 1e-30))[..., None]
    return _sheet(255 + np.abs(share) * (np.where(share > 0, _FOR, _AGAINST) - 255), columns, scale)


def mask_tiles(masks: Any, *, columns: int = 16, scale: int = 2) -> Image.Image:
    """Masks (n, H, W), dark where they are 1; numbers between 0 and 1 are shades."""
    values = as_array(masks, "masks")
    if values.ndim != 3 or values.size == 0:
        raise InputError(
            f"masks must have shape (n, H, W), got {values.shape}; stack the masks of a set."
        )
    share = np.clip(values, 0.0, 1.0)[..., None]
    return _sheet(_OFF + share * (_ON - _OFF), columns, scale)


def _sheet(tiles: NDArray[Any], columns: int, scale: int) -> Image.Image:
    """Tiles (n, H, W, 3) of 0 to 255, row after row, with white gaps between them."""
    scale = as_count(scale, "scale")
    columns = min(as_count(columns, "columns"), len(tiles))
    large = np.rint(tiles).astype(np.uint8).repeat(scale, 1).repeat(scale, 2)
    height, width = large.shape[1] + _GAP, large.shape[2] + _GAP
    n_rows = -(-len(tiles) // columns)
    sheet = np.full((n_rows * height - _GAP, columns * width - _GAP, 3), 255, np.uint8)
    for number, tile in enumerate(large):
        top, left = number // columns * height, number % columns * width
        sheet[top : top + len(tile), left : left + tile.shape[1]] = tile
    return Image.fromarray(sheet)
