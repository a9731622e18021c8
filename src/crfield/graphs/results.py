"""What inference finds out about graphs, chains, rays and poses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from crfield._core.threads import without_locks
from crfield._core.validate import FloatArray, InputError

Doubles = NDArray[np.float64]
Labels = NDArray[np.int32]


class Status(Enum):
    """How inference ended; the value says what to do about it."""

    EXACT = "Exact: there are no loops."
    CONVERGED = (
        "Converged: the last iteration changed no message by more than tol; what was found is "
        "approximate where there are loops."
    )
    FORBIDDEN = (
        "Converged, but the labels found are forbidden; fix some variables by infinite costs of "
        "their other states."
    )
    MAX_ITER = (
        "Stopped at max_iter before the messages settled; raise max_iter or damping, or on factor "
        "graphs use schedule='residual'."
    )


class Ranked(NamedTuple):
    """Labels by their energy, the least first; of `Chains` a list with one array per chain.

    labels : (k, N) int32; fewer rows where there are fewer labelings.
    energies : (k,) float64.
    """

    labels: Any
    energies: Any


@without_locks
@dataclass(frozen=True, eq=False, repr=False)
class Result:
    """What inference found out; each engine fills in what it knows, and the rest is None.

    What is not needed for messages is computed when it is first asked for.

    Attributes
    ----------
    problem, temperature : what was asked.
    residuals : (n_iter,), the largest change of a message in each iteration, before damping.
    converged : whether the last of them is `tol` or less; always where inference is exact.
    exact : whether all of this is exact.
    messages : what the engine passed on, for `init`; of rays (E,), log-odds from each ray to its
        voxels, within [-60, 60].
    """

    problem: Any
    temperature: float
    residuals: Doubles
    converged: bool
    exact: bool
    messages: Any

    @cached_property
    def marginals(self) -> FloatArray:
        """Probabilities of states, at temperature 0 all on `labels`.

        (N, max L_v) for factor graphs, 0 for states that a variable does not have; (N, L) for
        chains; like the costs for poses; for rays the probability of each voxel being occupied, in
        the grid's shape, and at temperature 0 the share of its max-marginals.
        """
        raise NotImplementedError

    @cached_property
    def labels(self) -> NDArray[Any]:
        """(N,), the most probable state of each variable by itself; for rays in the grid's shape.

        At temperature 0 joint states of least energy, and on loops of low energy.
        """
        raise NotImplementedError

    @cached_property
    def energy(self) -> Any:
        """E(labels), of chains (C,); None for rays."""
        return None

    @cached_property
    def log_partition(self) -> Any:
        """T log Z, of chains (C,), on loops Bethe's approximation of it; None for rays.

        At temperature 0 the negative of the least energy.
        """
        return None

    @cached_property
    def min_marginals(self) -> Any:
        """At temperature 0 the least energy with each state, of factor graphs above the least of
        all; infinite where a state is impossible. None for chains, rays and other temperatures."""
        return None

    @cached_property
    def transition_marginals(self) -> Any:
        """Of chains (L, L), how often pairs of successive states are expected on all edges."""
        return None

    @cached_property
    def log_odds(self) -> Any:
        """Of rays, log P(occupied) / P(free) in the grid's shape; likewise of max-marginals."""
        return None

    @cached_property
    def depths(self) -> Any:
        """Of rays, the probability of each voxel of a ray being its first occupied one, (E,)."""
        return None

    @cached_property
    def empty(self) -> Any:
        """Of rays, the probability of each meeting no occupied voxel, (R,)."""
        return None

    @cached_property
    def positions(self) -> Any:
        """Of poses, the row and column of each part that `labels` stand for, (P, 2)."""
        return None

    @cached_property
    def orientations(self) -> Any:
        """Of poses, the orientation of each part that `labels` stand for, (P,)."""
        return None

    def factor_marginals(self, group: int = 0) -> NDArray[Any]:
        """Probabilities of joint states of factors, (M, L_1, ..., L_K).

        Those of graph.factors[group], of chains those of all edges (N - C, L, L). At temperature 0
        what each joint state of a graph costs above the best one. Factors with tables only.
        """
        raise InputError(
            f"factor_marginals is for factor graphs and chains, got {type(self.problem).__name__}; "
            "ask for marginals."
        )

    @property
    def n_iter(self) -> int:
        """Iterations done; 0 where inference is exact."""
        return len(self.residuals)

    @property
    def status(self) -> Status:
        """How it ended."""
        if self.exact:
            return Status.EXACT
        if not self.converged:
            return Status.MAX_ITER
        is_forbidden = self.temperature == 0 and self.energy is not None and (
            not np.isfinite(self.energy)
        )
        return Status.FORBIDDEN if is_forbidden else Status.CONVERGED

    def __getstate__(self) -> dict[str, Any]:
        """Copies have all that was found, but messages stay where they were computed."""
        for name in _FOUND:
            getattr(self, name)  # is computed now and kept
        return {**self.__dict__, "messages": None}

    def __repr__(self) -> str:
        steps = "" if self.exact else f"{self.n_iter} iterations, "
        return f"{type(self).__name__}({steps}{self.status.name}, {self.problem!r})"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from crfield.show.notebook import facts

        lines = {"problem": repr(self.problem), "temperature": f"{self.temperature:g}"}
        if isinstance(self.energy, float):
            lines["energy of the labels"] = f"{self.energy:.6g}"
        return facts(type(self).__name__, {
            **lines, "iterations": f"{self.n_iter}", "status": self.status.value
        })


_FOUND = tuple(name for name, value in vars(Result).items() if isinstance(value, cached_property))
NO_RESIDUALS = np.zeros(0)
NO_RESIDUALS.setflags(write=False)


def certain(like: NDArray[Any], labels: NDArray[Any]) -> NDArray[Any]:
    """Marginals with all probability on the labels."""
    marginals = np.zeros_like(like)
    marginals[np.arange(len(labels)), labels] = 1
    return marginals
