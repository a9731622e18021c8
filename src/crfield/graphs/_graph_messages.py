"""Messages of belief propagation, on any graph and on grids, and the results they make."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.threads import thread_count
from crfield._core.validate import FloatArray, InputError, check_memory
from crfield.graphs._graph_checks import Doubles
from crfield.graphs.factor_graph import FactorGraph
from crfield.graphs.factors import GridFactors
from crfield.graphs.graph_results import GraphResult


class Messages:
    """Messages on any graph."""

    is_planes = False
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

    def shares_of(self, group: int) -> Doubles:
        """The share of each factor of a group."""
        begin = sum(map(len, self.graph.factors[:group]))
        count = len(self.graph.factors[group])
        return np.ones(count) if self.shares is None else self.shares[begin:begin + count]

    def iterate(self, how: str, damping: float) -> Iterator[float]:
        """The residual of one iteration after the other."""
        backwards = False
        while True:
            if how == "flooding":
                yield self.propagation.flood(damping)
            elif how == "sequential":
                yield self.propagation.sweep(damping, backwards)
                backwards = not backwards
            else:
                self.propagation.update_most_changed(damping, max(1, self.graph.n_factors))
                yield self.propagation.residual()

    def start_from(self, other: GraphResult) -> None:
        """Take over the messages of another inference."""
        count = self.graph.structure.n_messages
        given = other._messages
        if not isinstance(given, Messages) or given.graph.structure.n_messages != count:
            raise InputError(
                "start must be a result on a graph with the same edges and states, got another; "
                "leave it out."
            )
        messages = np.empty(count)
        given.propagation.messages(False, messages)
        # On loops what was forbidden once would keep itself up; where it still is, it comes back.
        messages[np.isinf(messages)] = 0.0
        self.propagation.start_from(messages)

    def to_factors(self, begin: int, end: int) -> Doubles:
        """Some of the messages from variables to factors."""
        out = np.empty(self.graph.structure.n_messages)
        self.propagation.messages(True, out)
        return out[begin:end]

    def result(self, residuals: Doubles, converged: bool, exact: bool) -> GraphResult:
        """Beliefs from the messages as they are."""
        graph, propagation = self.graph, self.propagation
        if not exact:
            propagation.send_from_variables()
        beliefs = np.empty(int(graph.n_states.sum()))
        propagation.beliefs(beliefs)
        soft = self.temperature > 0
        padded = graph.padded(beliefs, 0.0 if soft else np.inf)
        # Where nothing is possible, all states of some variable are forbidden.
        if not np.isfinite(beliefs).all() if soft else np.isinf(padded.min(1)).any():
            raise InputError(
                "the costs must allow some joint states, got infinite ones that forbid all of "
                "them; make costs finite or evidence consistent."
            )
        if exact and not soft:
            chosen = np.empty((1, graph.n_variables), np.int32)
            propagation.choose(0, chosen)
            labels: NDArray[np.int32] = chosen[0]
        elif soft:
            labels = padded.argmax(1).astype(np.int32)
        else:
            labels = np.empty(graph.n_variables, np.int32)
            propagation.choose_in_turn(labels)
            apart = padded.argmin(1).astype(np.int32)
            if propagation.energy(apart) < propagation.energy(labels):
                labels = apart
        marginals = padded if soft else _certain(padded, labels)
        return GraphResult(
            graph, self.temperature, marginals, None if soft else padded, labels,
            propagation.energy(labels), residuals, converged, exact, self,
        )


class Planes:
    """Messages on a grid, all pixels of a row in vectors."""

    is_planes = True

    def __init__(self, graph: FactorGraph, temperature: float, threads: int | None):
        costs = graph.planes
        (grid,) = graph.factors
        assert costs is not None
        assert isinstance(grid, GridFactors)
        self.graph, self.temperature, self.grid = graph, temperature, grid
        if temperature > 1e30:  # beyond float32
            costs = costs.astype(np.float64)
        self.dtype = costs.dtype
        # How far messages may change for ever because of rounding.
        steepest = max(float(np.abs(plane).max(initial=0.0)) for plane in grid.weights)
        largest = float(np.abs(costs).max()) + steepest * grid.largest_table
        self.rounding = 4.0 * float(np.finfo(self.dtype).eps) * largest
        native = (
            _native.GridPropagation32 if costs.dtype == np.float32 else _native.GridPropagation64
        )
        check_memory(
            6.0 * costs.nbytes, f"messages on a grid of shape {grid.shape}",
            "use float32 costs, or a smaller grid",
        )
        horizontal, vertical = (plane.ravel().astype(costs.dtype) for plane in grid.weights)
        tables = [
            None if table is None else np.ascontiguousarray(table, costs.dtype)
            for table in grid.tables_by_axis
        ]
        self.propagation = native(
            *grid.shape, costs, horizontal, vertical, tables[0], tables[1], temperature,
            thread_count(threads),
        )

    def iterate(self, how: str, damping: float) -> Iterator[float]:
        """The residual of one iteration after the other."""
        while True:
            yield self.propagation.flood(damping)

    def start_from(self, other: GraphResult) -> None:
        """Take over the messages of another inference."""
        given = other._messages
        if not isinstance(given, Planes) or given.grid.shape != self.grid.shape or (
            given.dtype != self.dtype or given.graph.n_states[0] != self.graph.n_states[0]
        ):
            raise InputError(
                "start must be a result on a grid of the same size and states, got another; "
                "leave it out."
            )
        self.propagation.start_from(given.propagation)

    def edge_marginals(self) -> Doubles:
        """(M, L, L), in the order of the grid's edges."""
        n = int(self.graph.n_states[0])
        out = np.empty((len(self.grid), n, n), self.dtype)
        check_memory(out.nbytes, f"marginals of {len(out)} edges", "use a smaller grid")
        self.propagation.edge_beliefs(out.reshape(-1))
        return out.astype(np.float64, copy=False)

    def result(self, residuals: Doubles, converged: bool, exact: bool) -> GraphResult:
        """Beliefs from the messages as they are."""
        beliefs = np.empty((self.graph.n_variables, int(self.graph.n_states[0])), self.dtype)
        self.propagation.beliefs(beliefs.reshape(-1))
        if not np.isfinite(beliefs).all():
            raise InputError(
                f"costs and weights must stay within the range of {self.dtype}, got larger sums; "
                "use smaller ones, or float64 costs."
            )
        soft = self.temperature > 0
        labels = (beliefs.argmax(1) if soft else beliefs.argmin(1)).astype(np.int32)
        if not soft:
            self.propagation.improve(labels)
        marginals = beliefs if soft else _certain(beliefs, labels)
        return GraphResult(
            self.graph, self.temperature, marginals, None if soft else beliefs, labels,
            _grid_energy(self.graph, self.grid, labels), residuals, converged, exact, self,
        )


def _grid_energy(graph: FactorGraph, grid: GridFactors, labels: NDArray[np.int32]) -> float:
    image = labels.reshape(grid.shape)
    starts = np.arange(graph.n_variables) * int(graph.n_states[0])
    total = float(graph.costs[starts + labels].sum())
    ends = ((image[:, :-1], image[:, 1:]), (image[:-1], image[1:]))
    for weights, table, (k, m) in zip(grid.weights, grid.tables_by_axis, ends, strict=True):
        total += float((weights * (k != m if table is None else table[k, m])).sum())
    return total


def _certain(like: FloatArray, labels: NDArray[np.int32]) -> FloatArray:
    """All probability on the labels."""
    marginals = np.zeros_like(like)
    marginals[np.arange(len(labels)), labels] = 1
    return marginals
