"""Messages on a grid, all pixels of a row in vectors: the faster form for grids alone."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crfield._core import _native
from crfield._core.resources import thread_count
from crfield._core.validate import FloatArray, InputError, check_memory
from crfield.graphs.engines.messages import GraphResult
from crfield.graphs.factors import Doubles, GridFactors
from crfield.graphs.graph import FactorGraph
from crfield.graphs.results import Labels, Result


class Planes:
    """Messages of a graph whose `planes` are not None."""

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
        """The residual of one iteration after the other; `how` is always "flooding"."""
        while True:
            yield self.propagation.flood(damping)

    def start_from(self, other: Result) -> None:
        """Take over the messages of another inference."""
        given = other.messages
        if not isinstance(given, Planes) or given.grid.shape != self.grid.shape or (
            given.dtype != self.dtype or given.graph.n_states[0] != self.graph.n_states[0]
        ):
            raise InputError(
                "init must be a result on a grid of the same size and states, got another; "
                "leave it out."
            )
        self.propagation.start_from(given.propagation)

    def result(self, residuals: Doubles, converged: bool) -> Result:
        """Beliefs from the messages as they are."""
        beliefs = np.empty((self.graph.n_variables, int(self.graph.n_states[0])), self.dtype)
        self.propagation.beliefs(beliefs.reshape(-1))
        if not np.isfinite(beliefs).all():
            raise InputError(
                f"costs and weights must stay within the range of {self.dtype}, got larger sums; "
                "use smaller ones, or float64 costs."
            )
        return GraphResult(
            self.graph, self.temperature, residuals, converged, False, self, beliefs
        )

    def labels(self, beliefs: FloatArray, exact: bool) -> Labels:
        """The best of each pixel, at temperature 0 improved as long as single changes help."""
        if self.temperature > 0:
            return np.asarray(beliefs.argmax(1), np.int32)
        labels: Labels = beliefs.argmin(1).astype(np.int32)
        self.propagation.improve(labels)
        return labels

    def energy(self, labels: Labels) -> float:
        """E(labels)."""
        image = labels.reshape(self.grid.shape)
        starts = np.arange(self.graph.n_variables) * int(self.graph.n_states[0])
        total = float(self.graph.costs[starts + labels].sum())
        ends = ((image[:, :-1], image[:, 1:]), (image[:-1], image[1:]))
        pairs = zip(self.grid.weights, self.grid.tables_by_axis, ends, strict=True)
        for weights, table, (k, m) in pairs:
            total += float((weights * (k != m if table is None else table[k, m])).sum())
        return total

    def log_partition(self) -> float:
        """Bethe's approximation of T log Z."""
        return float(self.propagation.log_partition())

    def factor_marginals(self, group: int) -> Doubles:
        """(M, L, L), in the order of the grid's edges."""
        n = int(self.graph.n_states[0])
        out = np.empty((len(self.grid), n, n), self.dtype)
        check_memory(out.nbytes, f"marginals of {len(out)} edges", "use a smaller grid")
        self.propagation.edge_beliefs(out.reshape(-1))
        return out.astype(np.float64, copy=False)
