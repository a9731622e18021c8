"""Exact inference and likelihoods of chains and trees whose costs come from any network.

E(x) = sum_t costs[t, x_t] + sum_e edge_costs[e, x_parent, x_child]; P(x) = exp(-E(x)) / Z. All
numbers are costs, the negatives of the scores that a network may give.

Work is done in float64 if costs or edge costs are float64, else in float32. Gradients of log Z are
marginals, no loop is traced, and derivatives of every order are exact. On the CPU chains are summed
by the compiled core.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from crfield._core.validate import InputError, as_choice, as_count
from crfield.nn.structured import exact
from crfield.nn.structured.forests import Forest, as_forest
from crfield.nn.structured.inputs import (
    REDUCTIONS,
    TreeProblem,
    as_existence,
    as_problem,
    check_costs,
    check_labels,
    reduce,
)

TABLES = ("shared", "edges", "none")


def tree_log_partition(
    costs: Tensor, edge_costs: Tensor, parents: Any = None, *, mask: Tensor | None = None,
    lengths: Any = None,
) -> Tensor:
    """log Z = log sum_x exp(-E(x)), (B,).

    E(x) = sum_t costs[t, x_t] + sum_e edge_costs[e, x_parent, x_child].

    costs : (B, T, L), a row of L labels per node.
    edge_costs : (L, L) for all edges, (E, L, L) for each, or (B, E, L, L); rows are labels of the
        parent, on a chain of the node before.
    parents : (T,), the parent of each node, -1 for a root; None for a chain, where T - 1 edges join
        successive nodes. Edges are numbered as their children are.
    mask : (B, T), False for nodes that do not exist in a member of the batch; their edges fall
        away.
    lengths : (B,), instead of a mask, where the first nodes exist and the others do not.
    """
    return _log_partition(as_problem(costs, edge_costs, parents, mask, lengths))


def tree_energies(
    costs: Tensor, edge_costs: Tensor, labels: Tensor, parents: Any = None, *,
    mask: Tensor | None = None, lengths: Any = None,
) -> Tensor:
    """E(x) of given labels (B, T), (B,); inputs as for `tree_log_partition`."""
    problem = as_problem(costs, edge_costs, parents, mask, lengths)
    return _energies(problem, labels).to(problem.costs.dtype)


def tree_nll(
    costs: Tensor, edge_costs: Tensor, labels: Tensor, parents: Any = None, *,
    mask: Tensor | None = None, lengths: Any = None, reduction: str = "mean",
) -> Tensor:
    """-log P(labels) = E(labels) + log Z; its derivative by a cost is observed minus expected.

    labels : (B, T) whole numbers, ignored where there is no node; other inputs as for
        `tree_log_partition`.
    reduction : "none" for (B,), "sum", "mean" over the batch, or "node_mean", the sum over the
        number of nodes, which pytorch-crf calls "token_mean".
    """
    problem = as_problem(costs, edge_costs, parents, mask, lengths)
    how = as_choice(reduction, "reduction", REDUCTIONS)
    # Both are large for long chains; their difference is formed in float64.
    values = _energies(problem, labels) + exact.log_partition(*problem)
    return reduce(values, how, problem.n_nodes).to(problem.costs.dtype)


def tree_marginals(
    costs: Tensor, edge_costs: Tensor, parents: Any = None, *, mask: Tensor | None = None,
    lengths: Any = None,
) -> Tensor:
    """P(x_t = l), (B, T, L), 0 where there is no node; differentiable, with the exact gradient.

    Inputs as for `tree_log_partition`.
    """
    problem = as_problem(costs, edge_costs, parents, mask, lengths)
    return exact.node_marginals(*problem)


def tree_edge_marginals(
    costs: Tensor, edge_costs: Tensor, parents: Any = None, *, mask: Tensor | None = None,
    lengths: Any = None,
) -> Tensor:
    """P(x_parent = k, x_child = l), (B, E, L, L), 0 where there is no edge; differentiable.

    Inputs as for `tree_log_partition`.
    """
    problem = as_problem(costs, edge_costs, parents, mask, lengths)
    return exact.marginals(*problem)[1]


def tree_decode(
    costs: Tensor, edge_costs: Tensor, parents: Any = None, *, mask: Tensor | None = None,
    lengths: Any = None,
) -> Tensor:
    """Labels of least energy, (B, T) int64, -1 where there is no node.

    Inputs as for `tree_log_partition`.
    """
    problem = as_problem(costs, edge_costs, parents, mask, lengths)
    return exact.decode(*problem)


def _log_partition(problem: TreeProblem) -> Tensor:
    return exact.log_partition(*problem).to(problem.costs.dtype)


def _energies(problem: TreeProblem, labels: Tensor) -> Tensor:
    """E (B,) in float64."""
    structure, costs, tables = problem
    states = check_labels(labels, costs, structure.nodes)
    own = costs.gather(-1, states[..., None])[..., 0]
    parents, children = structure.forest.ends(costs.device)
    items = torch.arange(len(costs), device=costs.device)[:, None] % len(tables)
    edges = torch.arange(len(parents), device=costs.device)[None] % max(1, tables.shape[1])
    pairs = tables[items, edges, states[:, parents], states[:, children]]
    if structure.nodes is not None and structure.edges is not None:
        own, pairs = own * structure.nodes, pairs * structure.edges
    return own.sum(1, dtype=torch.float64) + pairs.sum(1, dtype=torch.float64)


class _StructuredCRF(nn.Module):
    """What chains and trees share; every method takes other `edge_costs` in place of its own.

    Inputs are those of `tree_log_partition`; labels are (B, T).
    """

    _forest: Forest | None = None
    edge_costs: nn.Parameter | None

    def __init__(self, n_labels: int, shape: tuple[int, ...] | None) -> None:
        super().__init__()
        self.n_labels = as_count(n_labels, "n_labels")
        self.register_parameter("edge_costs", None)
        if shape is not None:
            self.edge_costs = nn.Parameter(torch.zeros(*shape, self.n_labels, self.n_labels))

    def forward(
        self, costs: Tensor, edge_costs: Tensor | None = None, *, mask: Tensor | None = None,
        lengths: Any = None,
    ) -> Tensor:
        """P(x_t = l), (B, T, L), as `marginals`."""
        return self.marginals(costs, edge_costs, mask=mask, lengths=lengths)

    def log_partition(
        self, costs: Tensor, edge_costs: Tensor | None = None, *, mask: Tensor | None = None,
        lengths: Any = None,
    ) -> Tensor:
        """log Z, (B,)."""
        own, tables, exists = self._prepare(costs, edge_costs, mask, lengths)
        return tree_log_partition(own, tables, self._forest, mask=exists)

    def energies(
        self, costs: Tensor, labels: Tensor, edge_costs: Tensor | None = None, *,
        mask: Tensor | None = None, lengths: Any = None,
    ) -> Tensor:
        """E(labels), (B,)."""
        own, tables, exists = self._prepare(costs, edge_costs, mask, lengths)
        return tree_energies(own, tables, labels, self._forest, mask=exists)

    def nll(
        self, costs: Tensor, labels: Tensor, edge_costs: Tensor | None = None, *,
        mask: Tensor | None = None, lengths: Any = None, reduction: str = "mean",
    ) -> Tensor:
        """-log P(labels) = E(labels) + log Z, (B,) or (); `reduction` as for `tree_nll`."""
        own, tables, exists = self._prepare(costs, edge_costs, mask, lengths)
        return tree_nll(own, tables, labels, self._forest, mask=exists, reduction=reduction)

    def marginals(
        self, costs: Tensor, edge_costs: Tensor | None = None, *, mask: Tensor | None = None,
        lengths: Any = None,
    ) -> Tensor:
        """P(x_t = l), (B, T, L)."""
        own, tables, exists = self._prepare(costs, edge_costs, mask, lengths)
        return tree_marginals(own, tables, self._forest, mask=exists)

    def edge_marginals(
        self, costs: Tensor, edge_costs: Tensor | None = None, *, mask: Tensor | None = None,
        lengths: Any = None,
    ) -> Tensor:
        """P(x_parent = k, x_child = l), (B, E, L, L)."""
        own, tables, exists = self._prepare(costs, edge_costs, mask, lengths)
        return tree_edge_marginals(own, tables, self._forest, mask=exists)

    def decode(
        self, costs: Tensor, edge_costs: Tensor | None = None, *, mask: Tensor | None = None,
        lengths: Any = None,
    ) -> Tensor:
        """Labels of least energy, (B, T), -1 where there is no node."""
        own, tables, exists = self._prepare(costs, edge_costs, mask, lengths)
        return tree_decode(own, tables, self._forest, mask=exists)

    def extra_repr(self) -> str:
        return f"n_labels={self.n_labels}"

    def _prepare(
        self, costs: Tensor, edge_costs: Tensor | None, mask: Tensor | None, lengths: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        check_costs(costs, f"(B, T, {self.n_labels})", 3)
        if costs.shape[-1] != self.n_labels:
            raise InputError(
                f"costs must have shape (B, T, {self.n_labels}), got {tuple(costs.shape)}; put the "
                "labels last."
            )
        tables = self.edge_costs if edge_costs is None else edge_costs
        if tables is None:
            raise InputError(
                'edge_costs must be given to a module with tables="none", got None; pass them, or '
                "let the module learn its own."
            )
        return costs, tables, as_existence(costs, mask, lengths)


class ChainCRF(_StructuredCRF):
    """Chains whose costs come from a network; a table of transitions is learned along.

    E(x) = sum_t costs[t, x_t] + sum_t edge_costs[x_t, x_{t+1}], P(x) = exp(-E(x)) / Z.

    Parameters
    ----------
    n_labels : number of labels L.
    tables : "shared" for one learned table (L, L), `edge_costs`, that starts at 0; "none" where
        every call brings its own.
    ends : whether to learn costs (L,), `start` and `end`, of the first and the last label.

    Examples
    --------
    >>> crf = ChainCRF(5)
    >>> loss = crf.nll(-net(x), labels, lengths=lengths)            # doctest: +SKIP
    """

    start: nn.Parameter | None
    end: nn.Parameter | None

    def __init__(self, n_labels: int, *, tables: str = "shared", ends: bool = False) -> None:
        kind = as_choice(tables, "tables", ("shared", "none"))
        super().__init__(n_labels, () if kind == "shared" else None)
        for name in ("start", "end"):
            value = nn.Parameter(torch.zeros(self.n_labels)) if ends else None
            self.register_parameter(name, value)

    def _prepare(
        self, costs: Tensor, edge_costs: Tensor | None, mask: Tensor | None, lengths: Any
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        costs, tables, exists = super()._prepare(costs, edge_costs, mask, lengths)
        if self.start is not None and self.end is not None:
            last = torch.arange(costs.shape[1], device=costs.device) == costs.shape[1] - 1
            if exists is not None:
                last = exists & (last | ~exists.roll(-1, 1))
            costs = costs + last[..., None] * self.end
            costs = torch.cat([costs[:, :1] + self.start, costs[:, 1:]], 1)
        return costs, tables, exists


class TreeCRF(_StructuredCRF):
    """Trees, or forests, whose costs come from a network; tables of edges are learned along.

    E(x) = sum_t costs[t, x_t] + sum_e edge_costs[e, x_parent, x_child], P(x) = exp(-E(x)) / Z.

    Parameters
    ----------
    parents : (T,), the parent of each node, -1 for a root.
    n_labels : number of labels L.
    tables : "edges" for a learned table of each edge, `edge_costs` (E, L, L), numbered as the
        children of the edges are; "shared" for one (L, L); "none" where every call brings its own.
    """

    def __init__(self, parents: Any, n_labels: int, *, tables: str = "edges") -> None:
        kind = as_choice(tables, "tables", TABLES)
        forest = as_forest(parents)
        shape: tuple[int, ...] | None = (forest.n_edges,) if kind == "edges" else ()
        super().__init__(n_labels, None if kind == "none" else shape)
        self._forest = forest
        self.parents = forest.parents.tolist()

    def extra_repr(self) -> str:
        return f"n_nodes={len(self.parents)}, {super().extra_repr()}"
