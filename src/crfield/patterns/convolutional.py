"""Patterns that see one window of the label map each, at every position (CHOPP section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from crfield._core.validate import FloatArray, InputError, as_count, as_floats, check_memory
from crfield.patterns._checks import as_grid, as_masks, as_rows
from crfield.patterns.potential import PatternPotential, Patterns


@dataclass(frozen=True, eq=False, repr=False)
class ConvolutionalPatterns(PatternPotential):
    """Windows shared by all positions that lie fully inside the grid, a hidden unit for each.

    Hidden units are ordered by row, column and pattern. A rule on how many may be active counts
    those of all positions.

    Parameters
    ----------
    weights : windows (kh, kw, J), float32 or float64; the other arrays take its type.
    bias : c0 (J,), the same at all positions, or one number for all.
    grid : height and width of the label map.
    stride : distance between positions.
    """

    grid: tuple[int, int]
    stride: int = 1

    def __post_init__(self) -> None:
        windows = as_floats(self.weights, "windows")
        if windows.ndim != 3:
            raise InputError(
                f"windows must have shape (height, width, J), got {windows.shape}; "
                "the last axis counts the patterns."
            )
        height, width = as_grid(self.grid)
        if windows.shape[0] > height or windows.shape[1] > width:
            raise InputError(
                f"windows must fit into the grid ({height}, {width}), got {windows.shape[:2]}; "
                "use smaller windows."
            )
        object.__setattr__(self, "grid", (height, width))
        object.__setattr__(self, "stride", as_count(self.stride, "stride"))
        self._check(windows)

    @property
    def windows(self) -> FloatArray:
        """The weights, (kh, kw, J)."""
        return self.weights

    @property
    def known_grid(self) -> tuple[int, int]:
        return self.grid

    @property
    def n_visible(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def positions(self) -> tuple[int, int]:
        """Number of positions down and across."""
        rows, columns = (
            (size - window) // self.stride + 1
            for size, window in zip(self.grid, self.windows.shape[:2], strict=True)
        )
        return rows, columns

    @property
    def n_hidden(self) -> int:
        rows, columns = self.positions
        return rows * columns * int(self.windows.shape[2])

    def to_visible(self, h: Any) -> FloatArray:
        hidden = as_rows(h, self.n_hidden, "h", self.dtype)
        height, width, n_patterns = self.windows.shape
        rows, columns = self.positions
        s = self.stride
        patches = hidden.reshape(-1, n_patterns) @ self._matrix().T
        patches = patches.reshape(len(hidden), rows, columns, height, width)
        y = np.zeros((len(hidden), *self.grid), self.dtype)
        for i, j in np.ndindex(height, width):
            y[:, i : i + s * rows : s, j : j + s * columns : s] += patches[..., i, j]
        return y.reshape(len(hidden), self.n_visible)

    def weight_gradient(self, y: Any, h: Any, scale: Any = None) -> FloatArray:
        patches = self._patches(as_masks(y, self.n_visible))
        hidden = self._scaled(h, scale)[0].reshape(-1, self.windows.shape[2])
        return np.asarray((patches.T @ hidden).reshape(self.windows.shape))

    def to_dense(self) -> Patterns:
        """The same potential with one column of weights for each hidden unit."""
        rows, columns = self.positions
        image_weights = self.image_weights
        n_visible, n_hidden = self.n_visible, self.n_hidden
        n_seen = rows * columns * self._matrix().shape[0]
        # The unit matrix, the labels that each of its rows gives its windows, and the result twice.
        check_memory(
            float(n_hidden) * (n_hidden + n_seen + 2 * n_visible) * self.dtype.itemsize,
            f"A matrix of {n_visible} labels by {n_hidden} hidden units",
            "use the windows as they are",
        )
        return Patterns(
            self.to_visible(np.eye(self.n_hidden, dtype=self.dtype)).T,
            np.tile(self.bias, rows * columns),
            composition=self.composition, temperature=self.temperature,
            max_active=self.max_active, sparsity=self.sparsity,
            image_weights=None if image_weights is None else self._spread(image_weights),
        )

    def _to_hidden(self, y: NDArray[Any]) -> FloatArray:
        return np.asarray(self._patches(y) @ self._matrix()).reshape(len(y), self.n_hidden)

    def _matrix(self) -> FloatArray:
        """The windows as (kh kw, J)."""
        return self.windows.reshape(-1, self.windows.shape[2])

    def _patches(self, y: NDArray[Any]) -> FloatArray:
        """The labels that each position sees, (B positions, kh kw)."""
        maps = y.reshape(len(y), *self.grid)
        window = self.windows.shape[:2]
        seen = sliding_window_view(maps, window, (1, 2))[:, :: self.stride, :: self.stride]
        return seen.astype(self.dtype).reshape(-1, window[0] * window[1])

    def _shared(self, h: FloatArray) -> FloatArray:
        rows, columns = self.positions
        return np.asarray(h.reshape(len(h), rows * columns, self.windows.shape[2]).sum(1))

    def _spread(self, c: FloatArray) -> FloatArray:
        rows, columns = self.positions
        return np.tile(c, (1, rows * columns))
