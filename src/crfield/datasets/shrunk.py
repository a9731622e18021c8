"""A data set at a fraction of its size: learning takes a fraction of the time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_count


@dataclass(frozen=True, eq=False)
class PlainExample:
    """Image, costs, true labels, spacing and group of an example that was made of another."""

    image: NDArray[Any]
    unary: NDArray[Any]
    truth: NDArray[np.integer[Any]]
    spacing: Any = None
    group: Any = None


def fitting_factor(shapes: Sequence[tuple[int, ...]], n_pixels: int) -> int:
    """The factor that reduces grids of these shapes to about so many pixels each."""
    root = 1 / len(shapes[0])
    side = float(np.mean([float(math.prod(shape)) ** root for shape in shapes]))
    wanted = max(1, round(side / math.pow(n_pixels, root)))
    return min(wanted, min(min(shape) for shape in shapes))


class Shrunk(Sequence[PlainExample]):
    """All `examples` with their sides divided by `factor`, each computed when it is asked for.

    Intensities and costs are means over blocks of factor^d pixels. The true label is that of the
    pixel in the middle of the block. What does not fill a block is cut off. A model learned on it
    is for the small grid; `model.rescaled(factor)` is for the full one.
    """

    def __init__(self, examples: Sequence[Any], factor: int) -> None:
        self._examples = examples
        self._factor = as_count(factor, "factor")

    def __len__(self) -> int:
        return len(self._examples)

    def __getitem__(self, index: Any) -> Any:
        example = self._examples[index]
        truth = np.asarray(example.truth)
        if min(truth.shape) < self._factor:
            raise InputError(
                f"factor must not exceed the sides of an image, got {self._factor} for "
                f"{truth.shape}; use a smaller one."
            )
        middle = self._factor // 2
        sampled = truth[(slice(middle, None, self._factor),) * truth.ndim]
        grid = tuple(side // self._factor for side in truth.shape)
        inside = tuple(slice(0, side) for side in grid)
        return PlainExample(
            self._mean(np.asarray(example.image), grid),
            self._mean(np.asarray(example.unary), grid),
            np.ascontiguousarray(sampled[inside]),
            getattr(example, "spacing", None),
            getattr(example, "group", None),
        )

    def _mean(self, array: NDArray[Any], grid: tuple[int, ...]) -> NDArray[Any]:
        """Block means (*grid, ...) in the type of the array."""
        cut = array[tuple(slice(0, side * self._factor) for side in grid)]
        split = [n for side in grid for n in (side, self._factor)]
        blocks = cut.reshape(*split, *array.shape[len(grid) :])
        kind = np.float64 if array.dtype.kind in "iub" else array.dtype
        mean: NDArray[Any] = blocks.mean(axis=tuple(range(1, 2 * len(grid), 2)), dtype=kind)
        return np.rint(mean).astype(array.dtype) if array.dtype.kind in "iub" else mean
