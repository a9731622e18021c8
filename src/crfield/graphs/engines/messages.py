"""Messages of belief propagation on any factor graph, and the results that they make.

Messages are costs, and sums over states are soft minima -T log sum exp(-cost / T): sum-product for
temperature 1, max-product for temperature 0.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from crfield._core import _native
from crfield._core.resources import thread_count, without_locks
from crfield._core.validate import FloatArray, InputError, as_count, check_memory
from crfield.graphs.factors import Doubles
from crfield.graphs.graph import FactorGraph
from crfield.graphs.results import NO_RESIDUALS, Labels, Result, certain


class Passing(Protocol):
    """Messages on a factor graph that an engine passes on, and what they say when it stops."""

    # How far messages may change for ever because of rounding.
    rounding: float

    def start_from(self, other: Result) -> None:
        """Take over the messages of another inference."""

    def iterate(self, how: str, damping: float) -> Iterator[float]:
        """The residual of one iteration after the other."""

    def result(self, residuals: Doubles, converged: bool) -> Result:
        """Beliefs from the messages as they are."""

    def labels(self, beliefs: FloatArray, exact: bool) -> Labels:
        """(N,), from beliefs (N, max L_v)."""

    def energy(self, labels: Labels) -> float:
        """E(labels)."""

    def log_partition(self) -> float:
        """T log Z, or Bethe's approximation of it."""

    def factor_marginals(self, group: int) -> Doubles:
        """Of the joint states of graph.factors[group]."""


@without_locks
@dataclass(frozen=True, eq=False, repr=False)
class GraphResult(Result):
    """Beliefs (N, max L_v) of a factor graph: marginals, at temperature 0 min-marginals."""

    problem: FactorGraph
    messages: Passing | None
    beliefs: FloatArray

    @cached_property
    def marginals(self) -> FloatArray:
        return self.beliefs if self.temperature > 0 else certain(self.beliefs, self.labels)

    @cached_property
    def min_marginals(self) -> FloatArray | None:
        return None if self.temperature > 0 else self.beliefs

    @cached_property
    def labels(self) -> Labels:
        return self._known.labels(self.beliefs, self.exact)

    @cached_property
    def energy(self) -> float:
        return self._known.energy(self.labels)

    @cached_property
    def log_partition(self) -> float:
        return self._known.log_partition()

    def factor_marginals(self, group: int = 0) -> Doubles:
        count = len(self.problem.factors)
        if count == 0:
            raise InputError("the graph must have factors for this, got none; add some.")
        return self._known.factor_marginals(as_count(group, "group", 0, count - 1))

    @property
    def _known(self) -> Passing:
        if self.messages is None:
            raise InputError(
                "factor_marginals needs the messages of an inference, got a copy of its result, "
                "which has none; ask the original, or infer again."
            )
        return self.messages


class Messages:
    """Messages on any graph, with the graph's costs of variables or others (sum L_v,).

    shares : (n_factors,), for reweighted messages, see `FactorGraph.forest_shares`.
    """

    # Messages are in double precision: they can settle as much as anybody asks for.
    rounding = 0.0

    def __init__(
        self, graph: FactorGraph, temperature: float, costs: Doubles, threads: int | None,
        shares: Doubles | None = None,
    ):
        self.graph, self.temperature, self.shares = graph, temperature, shares
        # Factors are fastest at the temperature that most of them work at.
        usual = 1.0
        if shares is not None and len(shares):
            found, counts = np.unique(shares, return_counts=True)
            usual = float(found[counts.argmax()])
        self.propagation = _native.Propagation(
            graph.structure, graph.groups(usual * temperature), costs, temperature, shares,
            thread_count(threads),
        )

    def iterate(self, how: str, damping: float) -> Iterator[float]:
        """The residual of one iteration after the other."""
        backwards = False
        while True:
            if how == "flooding":
                yield self.propagation.flood(damping)
            elif how == "sequential":
                yield self.propagation.sweep(damping, backwards)
                backwards = not backwards
            elif how == "residual":
                self.propagation.update_most_changed(damping, max(1, self.graph.n_factors))
                yield self.propagation.residual()
            else:
                raise NotImplementedError(f"no loop for the schedule {how!r}")

    def start_from(self, other: Result) -> None:
        """Take over the messages of another inference."""
        count = self.graph.structure.n_messages
        given = other.messages
        if not isinstance(given, Messages) or given.graph.structure.n_messages != count:
            raise InputError(
                "init must be a result on a graph with the same edges and states, got another; "
                "leave it out."
            )
        messages = np.empty(count)
        given.propagation.messages(False, messages)
        # On loops what was forbidden once would keep itself up; where it still is, it comes back.
        messages[np.isinf(messages)] = 0.0
        self.propagation.start_from(messages)

    def result(self, residuals: Doubles, converged: bool) -> Result:
        """Beliefs from the messages as they are."""
        self.propagation.send_from_variables()
        return self._result(residuals, converged, exact=False)

    def exact_result(self) -> GraphResult:
        """Beliefs after two passes over a forest."""
        self.propagation.two_pass()
        return self._result(NO_RESIDUALS, True, exact=True)

    def _result(self, residuals: Doubles, converged: bool, exact: bool) -> GraphResult:
        beliefs = np.empty(int(self.graph.n_states.sum()))
        self.propagation.beliefs(beliefs)
        soft = self.temperature > 0
        padded = self.graph.padded(beliefs, 0.0 if soft else np.inf)
        # Where nothing is possible, all states of some variable are forbidden.
        if not np.isfinite(beliefs).all() if soft else np.isinf(padded.min(1)).any():
            raise InputError(
                "the costs must allow some joint states, got infinite ones that forbid all of "
                "them; make costs finite or evidence consistent."
            )
        return GraphResult(
            self.graph, self.temperature, residuals, converged, exact, self, padded
        )

    def labels(self, beliefs: FloatArray, exact: bool) -> Labels:
        """On loops at temperature 0 chosen one after the other and improved as long as single
        changes help, or the best of each variable by itself if that is better."""
        if self.temperature > 0:
            return np.asarray(beliefs.argmax(1), np.int32)
        labels = np.empty((1, self.graph.n_variables), np.int32)
        if exact:
            self.propagation.choose(0, labels)
            return np.asarray(labels[0])
        chosen: Labels = labels[0]
        self.propagation.choose_in_turn(chosen)
        apart: Labels = beliefs.argmin(1).astype(np.int32)
        return apart if self.energy(apart) < self.energy(chosen) else chosen

    def energy(self, labels: Labels) -> float:
        """E(labels)."""
        return float(self.propagation.energy(labels))

    def log_partition(self) -> float:
        """T log Z, on loops Bethe's approximation or, reweighted, an upper bound of it."""
        return float(self.propagation.log_partition())

    def factor_marginals(self, group: int) -> Doubles:
        """P(x_f) (M, L_1, ..., L_K), at temperature 0 costs above the best joint state."""
        graph, chosen = self.graph, self.graph.factors[group]
        n_states = graph.n_states[chosen.variables]
        if len(chosen) == 0 or not chosen.has_tables:
            return chosen.tables(n_states)  # which refuses factors without tables
        order = int(chosen.starts[1])
        size = math.prod(map(float, n_states[:order])) * len(chosen) * 16
        check_memory(size, f"marginals of {len(chosen)} factors", "ask for fewer factors")
        joint = chosen.tables(n_states).copy()
        if self.shares is not None:
            begin = sum(map(len, graph.factors[:group]))
            joint /= self.shares[begin:begin + len(chosen)].reshape(-1, *[1] * order)
        messages = np.empty(graph.structure.n_messages)
        self.propagation.messages(True, messages)
        begin = sum(int(graph.n_states[other.variables].sum()) for other in graph.factors[:group])
        rows = messages[begin:begin + int(n_states.sum())].reshape(len(chosen), -1)
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


def infer_forest(
    graph: FactorGraph, temperature: float, costs: Any, threads: int | None
) -> GraphResult:
    """Exact inference with any costs of single variables, (sum L_v,)."""
    if not graph.is_forest:
        raise InputError(
            "the graph must have no loops for this, got one that has; use infer with "
            "schedule='auto', or condition(graph, {variable: state}) on variables that cut them."
        )
    return Messages(graph, temperature, costs, threads).exact_result()
