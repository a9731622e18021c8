"""log Z and marginals of forests as functions that torch differentiates without tracing a loop.

d log Z / d cost is minus a marginal; the derivative of marginals is `differentiate_marginals`, made
of operations that can be differentiated again, so that all orders of derivatives are exact.
On the CPU paths go to the compiled core.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crfield.graphs.chains import Chains
from crfield.graphs.engines.chains import empty_edges, minimize_chains, sum_chains
from crfield.nn.structured.forests import (
    Structure,
    differentiate_marginals,
    minimize_forest,
    sum_forest,
)


def log_partition(structure: Structure, costs: Tensor, tables: Tensor) -> Tensor:
    """log Z (B,), float64; tables : (B or 1, E or 1, L, L)."""
    result: Tensor = _LogPartition.apply(structure, costs, tables)
    return result


def marginals(structure: Structure, costs: Tensor, tables: Tensor) -> tuple[Tensor, Tensor]:
    """Those of nodes (B, T, L) and of edges (B, E, L, L)."""
    nodes, edges = _Marginals.apply(structure, costs, tables)
    return nodes, edges


def node_marginals(structure: Structure, costs: Tensor, tables: Tensor) -> Tensor:
    """`marginals` of nodes; those of edges are not computed unless a gradient will need them."""
    if torch.is_grad_enabled() and (costs.requires_grad or tables.requires_grad):
        return marginals(structure, costs, tables)[0]
    found = _sum(structure, costs, tables, nodes=True, edges=False).nodes
    assert found is not None
    return found


def decode(structure: Structure, costs: Tensor, tables: Tensor) -> Tensor:
    """Labels (B, T) of least energy, -1 for nodes that do not exist."""
    costs, tables = costs.detach(), tables.detach()
    if not _runs_native(structure, costs):
        return minimize_forest(structure, costs, tables)
    batch, _ = _as_chains(structure, costs, tables)
    labels, _ = minimize_chains(batch, torch.get_num_threads())
    return _spread(torch.from_numpy(labels).long(), structure.nodes, costs.shape[:2], -1)


class _Found(NamedTuple):
    """log Z, marginals, and where one table serves all edges their sum (L, L) over everything."""

    log_partition: Tensor
    nodes: Tensor | None
    edges: Tensor | None
    counts: Tensor | None = None


def _sum(
    structure: Structure, costs: Tensor, tables: Tensor, *, nodes: bool, edges: bool
) -> _Found:
    costs, tables = costs.detach(), tables.detach()
    if _runs_native(structure, costs):
        return _sum_chains(structure, costs, tables, edges=edges)
    return _Found(*sum_forest(structure, costs, tables, nodes=nodes, edges=edges))


def _runs_native(structure: Structure, costs: Tensor) -> bool:
    return structure.forest.is_path and costs.device.type == "cpu"


def _as_chains(
    structure: Structure, costs: Tensor, tables: Tensor
) -> tuple[Chains, Tensor]:
    """Paths as the compiled core takes them, and the member of the batch that each belongs to."""
    n_items, n_nodes, n_labels = costs.shape
    parents, children = structure.forest.ends(costs.device)
    begins = torch.ones((n_items, n_nodes), dtype=torch.bool)
    begins[:, children] = False if structure.edges is None else ~structure.edges
    if structure.nodes is None:
        rows, first, owners = costs.reshape(-1, n_labels), begins.reshape(-1), begins.nonzero()
    else:
        rows, first = costs[structure.nodes], begins[structure.nodes]
        owners = (begins & structure.nodes).nonzero()
    starts = first.nonzero()[:, 0].numpy()
    lengths = np.diff(np.append(starts, len(rows)))
    if len(parents) == 0:
        joined = costs.new_zeros(n_labels, n_labels)
    elif tables.shape[:2] == (1, 1):
        joined = tables[0, 0]
    else:
        joined = tables.expand(n_items, len(parents), -1, -1)
        joined = joined.flatten(0, 1) if structure.edges is None else joined[structure.edges]
    return Chains(rows.numpy(), joined.numpy(), lengths=lengths), owners[:, 0]


def _sum_chains(
    structure: Structure, costs: Tensor, tables: Tensor, *, edges: bool
) -> _Found:
    batch, owners = _as_chains(structure, costs, tables)
    found_edges = empty_edges(batch) if edges else None
    per_chain, nodes, counts = sum_chains(batch, 1.0, found_edges, torch.get_num_threads())
    total = torch.zeros(len(costs), dtype=torch.float64)
    total.index_add_(0, owners, torch.from_numpy(per_chain))
    edge_shape = torch.Size((len(costs), structure.forest.n_edges))
    return _Found(
        total, _spread(torch.from_numpy(nodes), structure.nodes, costs.shape[:2], 0),
        None if found_edges is None else _spread(
            torch.from_numpy(found_edges), structure.edges, edge_shape, 0
        ),
        None if batch.per_edge else torch.from_numpy(counts).to(costs.dtype),
    )


def _spread(rows: Tensor, exists: Tensor | None, shape: torch.Size, fill: int) -> Tensor:
    """Rows (N, ...) of what exists as (B, T, ...)."""
    if exists is None:
        return rows.reshape(*shape, *rows.shape[1:])
    spread = rows.new_full((*shape, *rows.shape[1:]), fill)
    spread[exists] = rows
    return spread


class _LogPartition(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, structure: Structure, costs: Tensor, tables: Tensor) -> Tensor:
        _, by_costs, by_tables = ctx.needs_input_grad
        # Where one table serves all edges, the sum of their marginals mostly is enough.
        is_shared = tables.shape[:2] == (1, 1) and _runs_native(structure, costs)
        found = _sum(
            structure, costs, tables, nodes=by_costs, edges=by_tables and not is_shared
        )
        ctx.structure = structure
        if by_costs or by_tables:
            ctx.save_for_backward(costs, tables, found.nodes, found.edges, found.counts)
        return found.log_partition

    @staticmethod
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        costs, tables, nodes, edges, counts = ctx.saved_tensors
        _, by_costs, by_tables = ctx.needs_input_grad
        given = given.to(costs.dtype)
        if torch.is_grad_enabled():  # the gradient is to be differentiated as well
            nodes, edges = _Marginals.apply(ctx.structure, costs, tables)
        is_equal = by_tables and edges is None and bool((given == given[0]).all())
        if by_tables and edges is None and not is_equal:
            edges = _sum(ctx.structure, costs, tables, nodes=False, edges=True).edges
        costs_grad = tables_grad = None
        if by_costs:
            costs_grad = -given[:, None, None] * nodes
        if by_tables and is_equal:
            tables_grad = (-given[0] * counts).reshape(tables.shape)
        elif by_tables:
            tables_grad = (-given[:, None, None, None] * edges).sum_to_size(tables.shape)
        return None, costs_grad, tables_grad


class _Marginals(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, structure: Structure, costs: Tensor, tables: Tensor
    ) -> tuple[Tensor, Tensor]:
        found = _sum(structure, costs, tables, nodes=True, edges=True)
        assert found.nodes is not None
        assert found.edges is not None
        ctx.structure, ctx.shape = structure, tables.shape
        # As outputs they come back with their own history.
        ctx.save_for_backward(found.nodes, found.edges)
        return found.nodes, found.edges

    @staticmethod
    def backward(ctx: Any, *given: Tensor) -> tuple[Tensor | None, ...]:
        by_costs, by_tables = differentiate_marginals(ctx.structure, *ctx.saved_tensors, *given)
        return None, by_costs, by_tables.sum_to_size(ctx.shape)
