"""What graph cuts give back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class CutResult:
    """Binary labels of least energy for a batch of grids.

    Attributes
    ----------
    labels : (B, *grid) uint8; of several minimizers the one with the fewest ones.
    energies : (B,) float64, the energy of each grid's labels.
    """

    labels: NDArray[np.uint8]
    energies: NDArray[np.float64]


@dataclass(frozen=True)
class BinaryResult:
    """Binary labels of least energy.

    Attributes
    ----------
    labels : (*grid,) or (N,) uint8; of several minimizers the one with the fewest ones.
    energy : their energy.
    """

    labels: NDArray[np.uint8]
    energy: float


@dataclass(frozen=True)
class FlowResult:
    """A maximal flow and a minimal cut.

    Attributes
    ----------
    value : the flow from source to sink, which is the capacity of the cut; an int if all capacities
        are whole numbers.
    source_side : (n_nodes,) bool, the nodes that the source still reaches, source included: the
        smallest source side of a minimal cut.
    """

    value: int | float
    source_side: NDArray[np.bool_]


@dataclass(frozen=True)
class MoveResult:
    """Labels that no single move improves, or those reached after `max_iter` cycles.

    Attributes
    ----------
    labels : (*grid,) or (N,) int32.
    energies : (n_iter + 1,) float64, the energy at the start and after each cycle; it never rises.
    n_iter : number of cycles, in each of which every move was tried.
    converged : whether the last cycle found nothing to improve.
    """

    labels: NDArray[np.int32]
    energies: NDArray[np.float64]
    n_iter: int
    converged: bool

    @property
    def energy(self) -> float:
        """The energy of `labels`."""
        return float(self.energies[-1])
