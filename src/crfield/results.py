"""What inference gives back."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from crfield._validate import FloatArray


class InferenceStatus(Enum):
    """Why inference stopped; the value says what to do about it."""

    CONVERGED = "Converged: the last iteration moved no marginal by more than tol."
    MAX_ITER = (
        "Stopped at max_iter before the marginals settled; raise max_iter or tol to converge."
    )
    CALLBACK = "Stopped by the callback."
    ROUNDING = (
        "Stopped where rounding hides any further descent; pass a float64 unary to go further."
    )


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
    """

    marginals: FloatArray
    free_energies: NDArray[np.float64]
    n_iter: int
    converged: bool
    status: InferenceStatus
    label_ids: NDArray[np.int64]
    shifts: int = 0

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The most probable label of each variable, (*grid,)."""
        return np.asarray(self.label_ids[self.marginals.argmax(-1)])

    def __repr__(self) -> str:
        start, end = self.free_energies[0], self.free_energies[-1]
        return (
            f"InferenceResult({'x'.join(map(str, self.marginals.shape[:-1]))}, "
            f"{self.marginals.shape[-1]} labels, {self.n_iter} iterations, free energy "
            f"{start:.6g} -> {end:.6g}, {self.status.name})"
        )
