"""What inference gives back."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.resources import without_locks
from crfield._core.validate import FloatArray

if TYPE_CHECKING:
    from PIL import Image


class InferenceStatus(Enum):
    """Why inference stopped; the value says what to do about it."""

    CONVERGED = "Converged: the last iteration moved no marginal by more than tol."
    MAX_ITER = (
        "Ended after max_iter iterations, as is usual; raise max_iter where marginals should "
        "settle to tol."
    )
    CALLBACK = "Stopped by the callback."
    ROUNDING = (
        "Stopped where rounding hides any further descent; pass a float64 unary to go further."
    )


@without_locks
@dataclass(frozen=True)
class InferenceResult:
    """Marginals and how they came about.

    Attributes
    ----------
    marginals : (*grid, L), q_i(l); rows sum to 1.
    labels : (*grid,), the label of the largest marginal, as an entry of `label_ids`.
    label_ids : (L,), the id that each column of `marginals` stands for; 0..L-1 unless the input
        was a label map with ids of its own.
    free_energies : (n_iter + 1,), the objective of the chosen algorithm at the start and after each
        iteration (KK13 eq. 9 for "concave", eq. 4 without log Z for the others).
    n_iter : iterations done.
    converged : whether the last change was below `tol`.
    status : why inference stopped.
    shifts : how often the descent safeguard had to step in.
    image : (*grid[, C]) what inference looked at, or None; not a copy, only for display, and left
        out of pickles and copies of the result.
    """

    marginals: FloatArray
    free_energies: NDArray[np.float64]
    n_iter: int
    converged: bool
    status: InferenceStatus
    label_ids: NDArray[np.int64]
    shifts: int = 0
    image: NDArray[Any] | None = field(default=None, repr=False, compare=False)

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The most probable label of each variable, (*grid,)."""
        return np.asarray(self.label_ids[self.marginals.argmax(-1)])

    def preview(self) -> Image.Image | None:
        """Image, overlay and uncertainty -sum_l q_l log q_l in a row, each at most 512 pixels wide.

        Labels and uncertainty where no image (*grid[, C]) is known, the middle slice of a volume,
        and None for other grids than those.
        """
        from crfield.show.notebook import preview

        return preview(self.marginals, self.label_ids, self.image)

    def __repr__(self) -> str:
        return f"InferenceResult({self._course()}, {self.status.name})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from crfield.show.notebook import figure

        grid = self.marginals.shape[:-1]
        place = f"; slice {grid[0] // 2 + 1} of {grid[0]} is shown" if len(grid) == 3 else ""
        return figure(f"{self._course()}{place}. {self.status.value}", self.preview())

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "image": None}

    def _course(self) -> str:
        start, end = self.free_energies[0], self.free_energies[-1]
        return (
            f"{'x'.join(map(str, self.marginals.shape[:-1]))}, {self.marginals.shape[-1]} labels, "
            f"{self.n_iter} iterations, free energy {start:.6g} -> {end:.6g}"
        )
