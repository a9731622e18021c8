"""What belief propagation finds out about a factor graph."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray, InputError, as_count, check_memory
from crfield.graphs._graph_checks import Doubles
from crfield.graphs.factor_graph import FactorGraph


@dataclass(frozen=True, eq=False)
class GraphResult:
    """What belief propagation found out.

    Attributes
    ----------
    graph, temperature : what was asked.
    marginals : (N, max L_v), P(x_v = l), 0 for states that a variable does not have; at
        temperature 0 all on `labels`.
    min_marginals : at temperature 0 (N, max L_v), by how much the least energy rises if x_v = l,
        infinite where that is impossible; else None.
    labels : (N,) int32. At temperature 0 joint states of least energy on forests, and on loops of
        low energy: chosen one after the other and improved as long as single changes help; else
        the most probable state of each variable by itself.
    energy : E(labels).
    residuals : (n_iter,) the largest change of a message in each iteration, before damping.
    converged : whether the last of them is `tol` or less; always on forests.
    exact : whether all of this is exact.
    """

    graph: FactorGraph
    temperature: float
    marginals: FloatArray
    min_marginals: FloatArray | None
    labels: NDArray[np.int32]
    energy: float
    residuals: Doubles
    converged: bool
    exact: bool
    _messages: Any = field(repr=False)

    def __getstate__(self) -> dict[str, Any]:
        """Copies have all that was found, but messages stay where they were computed."""
        return {**self.__dict__, "log_partition": self.log_partition, "_messages": None}

    @cached_property
    def log_partition(self) -> float:
        """T log Z, Bethe's approximation of it on loops; at temperature 0 the negative of the least
        energy."""
        return float(self._messages.propagation.log_partition())

    @property
    def n_iter(self) -> int:
        """Iterations done; 0 for the two passes over a forest."""
        return len(self.residuals)

    @property
    def status(self) -> str:
        """How it ended, and what to do about it."""
        if self.exact:
            return "exact: the graph has no loops"
        if self.converged:
            count = f"{self.n_iter} iteration{'s' if self.n_iter > 1 else ''}"
            if not np.isfinite(self.energy) and self.temperature == 0:
                return (
                    f"converged after {count}, but the labels found are forbidden; fix some "
                    "variables by infinite costs of their other states"
                )
            # A grid's structure is not needed for anything else, and is not cheap.
            has_loops = self.graph.planes is not None or not self.graph.is_forest
            why = "approximate, because of loops" if has_loops else "exact up to the tolerance"
            return f"converged after {count}; {why}"
        last = f"{self.residuals[-1]:.2g}" if self.n_iter else "unknown"
        return (
            f"not converged after {self.n_iter} iterations (last change {last}); raise n_iter or "
            "damping, or use schedule='residual'"
        )

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from crfield.show.notebook import facts

        return facts("GraphResult", {
            "variables": f"{len(self.labels)}", "factors": f"{sum(map(len, self.graph.factors))}",
            "temperature": f"{self.temperature:g}", "energy of the labels": f"{self.energy:.6g}",
            "status": self.status,
        })

    def factor_marginals(self, group: int = 0) -> Doubles:
        """P(x_f) of the factors in graph.factors[group], (M, L_1, ..., L_K).

        At temperature 0 what each joint state costs above the best one. Tables only, of any order,
        and pairs; patterns and rays have too many joint states.
        """
        count = len(self.graph.factors)
        if count == 0:
            raise InputError("the graph must have factors for this, got none; add some.")
        group = as_count(group, "group", 0, count - 1)
        chosen = self.graph.factors[group]
        if self._messages is None:
            raise InputError(
                "factor_marginals needs the messages of an inference, got a copy of its result, "
                "which has none; ask the original, or infer again."
            )
        if self._messages.is_planes:
            return np.asarray(self._messages.edge_marginals())
        n_states = self.graph.n_states[chosen.variables]
        if len(chosen) == 0:
            return chosen.tables(n_states)
        if not chosen.has_tables:
            return chosen.tables(n_states)  # which says so
        order = int(chosen.starts[1])
        size = math.prod(map(float, n_states[:order])) * len(chosen) * 16
        check_memory(size, f"marginals of {len(chosen)} factors", "ask for fewer factors")
        joint = chosen.tables(n_states).copy()
        begin = sum(
            int(self.graph.n_states[other.variables].sum()) for other in self.graph.factors[:group]
        )
        joint /= self._messages.shares_of(group).reshape(-1, *[1] * order)
        incoming = self._messages.to_factors(begin, begin + int(n_states.sum()))
        rows = incoming.reshape(len(chosen), -1)
        first = 0
        for k, n in enumerate(n_states[:order]):
            shape = [len(chosen), *[1] * order]
            shape[k + 1] = int(n)
            joint += rows[:, first:first + n].reshape(shape)
            first += int(n)
        axes = tuple(range(1, order + 1))
        joint -= joint.min(axes, keepdims=True)
        if self.temperature == 0.0:
            return joint
        np.exp(joint / -self.temperature, out=joint)
        joint /= joint.sum(axes, keepdims=True)
        return joint
