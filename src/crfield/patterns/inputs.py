"""What a pattern model is given about a batch of images, and the edges of the grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    FloatArray,
    InputError,
    as_array,
    as_choice,
    as_floats,
    check_magnitude,
    shown,
)
from crfield.graphcut import boundary_weights, constant_weights, contrast_weights, grid_offsets
from crfield.graphcut._checks import check_not_negative
from crfield.graphcut.neighborhood import pairs_region

# Edges run from a pixel to the pixel this far down and across.
FOUR_NEIGHBORS = grid_offsets(2, 4)
EIGHT_NEIGHBORS = grid_offsets(2, 8)


@dataclass(frozen=True, eq=False)
class PatternInputs:
    """Costs of a batch of B images of the same size.

    costs : (B, H, W, L), unary costs u_i(l); L = 2 for a `PatternCRF`.
    pairwise : (B, K, n, H, W) or (1, K, n, H, W) for all images, or None; p^k_ij >= 0 is the cost
        of different labels at a pixel and at its neighbor. n = 2: the neighbors to the right and
        below (`FOUR_NEIGHBORS`); n = 4: also below right and below left (`EIGHT_NEIGHBORS`).
        Entries of edges that leave the grid are ignored.
    features : (B, F), phi(x) of section 4.1, or None.

    Arrays that have the right type already are kept, not copied; leave them as they are.
    """

    costs: FloatArray
    pairwise: FloatArray | None = None
    features: FloatArray | None = None

    def __post_init__(self) -> None:
        costs = as_floats(self.costs, "costs")
        if costs.ndim != 4 or costs.shape[-1] < 2 or costs.size == 0:
            raise InputError(
                f"costs must have shape (B, height, width, labels), got {costs.shape}; "
                "a single image needs a leading axis of 1."
            )
        check_magnitude(costs, "costs")
        object.__setattr__(self, "costs", costs)
        if self.pairwise is not None:
            object.__setattr__(self, "pairwise", self._as_pairwise(self.pairwise))
        if self.features is not None:
            features = as_floats(self.features, "features")
            if features.ndim != 2 or len(features) != len(costs):
                raise InputError(
                    f"features must have shape ({len(costs)}, F), one row per image, got "
                    f"{features.shape}; flatten what belongs to one image."
                )
            object.__setattr__(self, "features", features)

    def _as_pairwise(self, values: Any) -> FloatArray:
        pairwise = as_floats(values, "pairwise", self.costs.dtype)
        n, *grid = self.costs.shape[:3]
        if (
            pairwise.ndim != 5 or pairwise.shape[0] not in (1, n) or pairwise.shape[2] not in (2, 4)
            or list(pairwise.shape[3:]) != grid
        ):
            raise InputError(
                f"pairwise must have shape ({n}, K, 2, {grid[0]}, {grid[1]}) with K types of terms "
                f"(4 instead of 2 for 8 neighbors), got {pairwise.shape}; "
                "give one cost per edge to the right and one per edge below."
            )
        check_magnitude(pairwise, "pairwise")
        check_not_negative(
            pairwise, "pairwise", "graph cuts need costs that favor equal labels, so clamp at 0"
        )
        return pairwise

    @classmethod
    def from_images(
        cls, costs: Any, images: Any, *, kinds: Sequence[str] | str = ("constant", "contrast"),
        boundary: Any = None, features: Any = None, neighbors: int = 4,
    ) -> PatternInputs:
        """Inputs with the pairwise terms of CHOPP section 5, one type for each of `kinds`.

        costs : (B, H, W, L).
        images : (B, H, W, C) or (B, H, W), for "contrast"; see `crfield.graphcut`.
        kinds : some of "constant", "contrast" and "boundary", or one of them.
        boundary : (B, H, W), probabilities of a boundary, for "boundary".
        features : (B, F), or None.
        neighbors : 4 or 8.
        """
        shape = as_array(costs, "costs").shape
        if len(shape) != 4:
            return cls(costs)  # which says what is wrong
        n, grid = shape[0], shape[1:3]
        makers = {
            "constant": lambda: [constant_weights(grid, neighbors)] * n,
            "contrast": lambda: [
                contrast_weights(image, neighbors)
                for image in _as_maps(images, "images", "contrast", n, grid)
            ],
            "boundary": lambda: [
                boundary_weights(each, neighbors)
                for each in _as_maps(boundary, "boundary", "boundary", n, grid)
            ],
        }
        if not isinstance(kinds, Sequence):
            raise InputError(
                f"kinds must be some of {', '.join(map(repr, makers))}, got {shown(kinds)}; "
                "pass a list of them."
            )
        chosen = (kinds,) if isinstance(kinds, str) else kinds
        types = [makers[as_choice(kind, "kinds", makers)]() for kind in chosen]
        pairwise = np.stack([np.stack(maps) for maps in types], 1) if types else None
        return cls(costs, pairwise, features)

    def __len__(self) -> int:
        return len(self.costs)

    @property
    def grid(self) -> tuple[int, int]:
        """Height and width."""
        return self.costs.shape[1], self.costs.shape[2]

    @property
    def n_labels(self) -> int:
        """Number of labels L."""
        return int(self.costs.shape[3])

    def take(self, rows: Any) -> PatternInputs:
        """The images with the numbers `rows` (b,); a number may occur more than once."""
        pairwise, features = self.pairwise, self.features
        return PatternInputs(
            self.costs[rows],
            pairwise if pairwise is None or len(pairwise) == 1 else pairwise[rows],
            None if features is None else features[rows],
        )


def grid_edges(
    grid: tuple[int, int], n_offsets: int
) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Where the pixels are that edges start from and lead to, for an axis of so many offsets."""
    for offset in grid_offsets(2, 2 * n_offsets):
        opposite = tuple(-step for step in offset)
        yield pairs_region(grid, offset), pairs_region(grid, opposite)


def disagreement_costs(labels: NDArray[Any], weights: FloatArray) -> NDArray[np.float64]:
    """sum_ij p^k_ij [y_i != y_j], (B, K), from labels (B, H, W) and p (B or 1, K, n_offsets, H, W).

    The sum is taken in float64: one of many float32 numbers loses digits.
    """
    n, *grid = labels.shape
    total = np.zeros((n, weights.shape[1]))
    for number, (here, there) in enumerate(grid_edges((grid[0], grid[1]), weights.shape[2])):
        cut = labels[:, *here] != labels[:, *there]
        plane: NDArray[Any] = weights[:, :, number]
        costs = np.where(cut[:, None], plane[:, :, *here], 0)
        total += costs.sum((2, 3), dtype=np.float64)
    return total


def _as_maps(
    maps: Any, name: str, kind: str, n: int, grid: tuple[int, ...]
) -> list[NDArray[Any]]:
    """A map per image for pairwise terms of a kind, each of the size of the costs."""
    try:
        found = [as_array(each, name) for each in maps]
    except TypeError:  # no sequence at all
        found = []
    if len(found) != n:
        raise InputError(
            f"{kind} terms need one map per image ({n}), got "
            f"{'none' if maps is None else len(found)}; pass them, or leave {kind!r} out of kinds."
        )
    for number, each in enumerate(found):
        if each.shape[:2] != grid:
            raise InputError(
                f"{name} must have the size of the costs {grid}, got shape {each.shape} for image "
                f"{number}; resize them to that."
            )
    return found
