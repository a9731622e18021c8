"""What a pattern model is given about a batch of images, and the edges of the grid."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._validate import FloatArray, InputError, as_choice, as_floats, check_magnitude
from crfield.graphcut import boundary_weights, constant_weights, contrast_weights
from crfield.patterns._checks import as_nonnegative

# Edges run from a pixel to the pixel this far down and across.
FOUR_NEIGHBOURS = ((0, 1), (1, 0))
EIGHT_NEIGHBOURS = ((0, 1), (1, 0), (1, 1), (1, -1))


@dataclass(frozen=True, eq=False)
class PatternInputs:
    """Costs of a batch of B images of the same size.

    costs : (B, H, W, L), unary costs u_i(l); L = 2 for a `PatternCRF`.
    pairwise : (B, K, n, H, W) or (1, K, n, H, W) for all images, or None; p^k_ij >= 0 is the cost
        of different labels at a pixel and at its neighbour. n = 2: the neighbours to the right and
        below (`FOUR_NEIGHBOURS`); n = 4: also below right and below left (`EIGHT_NEIGHBOURS`).
        Entries of edges that leave the grid are ignored.
    features : (B, F), phi(x) of section 4.1, or None.
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
                    f"features must have shape ({len(costs)}, F), one row an image, got "
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
                f"(4 instead of 2 for 8 neighbours), got {pairwise.shape}; "
                "give one cost an edge to the right and one an edge below."
            )
        check_magnitude(pairwise, "pairwise")
        return as_nonnegative(
            pairwise, "pairwise", "graph cuts need costs that favour equal labels, so clamp at 0"
        )

    @classmethod
    def from_images(
        cls, costs: Any, images: Any, *, kinds: Sequence[str] = ("constant", "contrast"),
        boundary: Any = None, features: Any = None, neighbours: int = 4,
    ) -> PatternInputs:
        """Inputs with the pairwise terms of CHOPP section 5, one type for each of `kinds`.

        costs : (B, H, W, L).
        images : (B, H, W, C) or (B, H, W), for "contrast"; see `crfield.graphcut`.
        kinds : some of "constant", "contrast" and "boundary".
        boundary : (B, H, W), probabilities of a boundary, for "boundary".
        features : (B, F), or None.
        neighbours : 4 or 8.
        """
        if np.ndim(costs) != 4:
            return cls(costs)  # which says what is wrong
        n, grid = len(costs), np.shape(costs)[1:3]
        makers = {
            "constant": lambda: [constant_weights(grid, neighbours)] * n,
            "contrast": lambda: [contrast_weights(image, neighbours) for image in images],
            "boundary": lambda: [boundary_weights(each, neighbours) for each in boundary],
        }
        for given, name in ((images, "contrast"), (boundary, "boundary")):
            if name in kinds and (given is None or len(given) != n):
                raise InputError(
                    f"{name} terms need one map an image ({n}), got "
                    f"{'none' if given is None else len(given)}; pass them, or leave {name!r} out "
                    "of kinds."
                )
        types = [makers[as_choice(kind, "kinds", makers)]() for kind in kinds]
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
        """The images with these numbers; a number may occur more than once."""
        pairwise, features = self.pairwise, self.features
        return PatternInputs(
            self.costs[rows],
            pairwise if pairwise is None or len(pairwise) == 1 else pairwise[rows],
            None if features is None else features[rows],
        )


def neighbours(n_offsets: int) -> tuple[tuple[int, int], ...]:
    """The offsets that an axis of so many edges stands for."""
    return FOUR_NEIGHBOURS if n_offsets == 2 else EIGHT_NEIGHBOURS


def disagreements(labels: NDArray[Any], n_offsets: int) -> NDArray[np.bool_]:
    """[y_i != y_j] for every edge, (B, n_offsets, H, W), from labels (B, H, W).

    Edges that leave the grid are False.
    """
    n, height, width = labels.shape
    result = np.zeros((n, n_offsets, height, width), bool)
    for number, (down, across) in enumerate(neighbours(n_offsets)):
        left, right = max(-across, 0), width - max(across, 0)
        here = labels[:, : height - down, left:right]
        there = labels[:, down:, left + across : right + across]
        result[:, number, : height - down, left:right] = here != there
    return result
