"""Loopy belief propagation on any pairwise graph, unrolled: gradients go through the iterations.

E(x) = sum_i costs[i, x_i] + sum_e edge_costs[e, x_i, x_j] with edges e = (i, j). All messages are
sent at once, damped on their logarithms. On trees without damping as many iterations as the longest
path has edges are exact; `crfield.nn.tree_marginals` then is faster. On graphs with loops marginals
and log Z are those of the Bethe approximation once the residuals are small.
"""

from __future__ import annotations

import torch
from torch import Tensor

from crfield._core.validate import InputError
from crfield.nn.structured.inputs import (
    as_tables,
    check_beside,
    check_costs,
    check_values,
    working_dtype,
)
from crfield.nn.structured.messages import (
    Beliefs,
    as_message_settings,
    damped,
    shifted,
    soft_maximum,
)
from crfield.nn.tensors import can_look


def propagate_graph(
    costs: Tensor, edges: Tensor, edge_costs: Tensor, *, max_iter: int = 10, damping: float = 0.0,
    temperature: float = 1.0,
) -> Beliefs:
    """Sum-product (temperature > 0) or max-product (0) belief propagation.

    E(x) = sum_i costs[i, x_i] + sum_e edge_costs[e, x_i, x_j], P(x) = exp(-E(x) / T) / Z.

    costs : (B, N, L).
    edges : (E, 2) whole numbers, the two nodes of each edge.
    edge_costs : (L, L), (E, L, L) or (B, E, L, L), labels of the first node first.
    max_iter : how often every message is sent.
    damping : share of its old logarithm that a message keeps.
    """
    settings = as_message_settings(max_iter, damping, temperature)
    check_costs(costs, "(B, N, L)", 3)
    _check_edges(edges, costs)
    n_edges = len(edges)
    tables = as_tables(edge_costs, costs, n_edges)
    dtype = working_dtype(costs, tables)
    costs, tables = costs.to(dtype), tables.to(dtype)
    check_values(costs, "costs")
    check_values(tables, "edge_costs")
    # Messages along the edges, then against them.
    first, second = edges.long().unbind(1)
    senders, receivers = torch.cat([first, second]), torch.cat([second, first])
    n_items, _, n_labels = costs.shape
    messages = costs.new_zeros((n_items, 2 * n_edges, n_labels))
    residuals = costs.new_zeros(n_items)
    for _ in range(settings.max_iter):
        _, cavities = _gather(costs, messages, senders, receivers)
        along = soft_maximum(cavities[:, :n_edges, :, None] - tables, -2, settings.temperature)
        against = soft_maximum(cavities[:, n_edges:, None, :] - tables, -1, settings.temperature)
        new = shifted(torch.cat([along, against], 1), -1)
        if n_edges:
            residuals = (new - messages).detach().abs().amax((1, 2))
        messages = damped(messages, new, settings.damping)
    beliefs, cavities = _gather(costs, messages, senders, receivers)
    pairs = cavities[:, :n_edges, :, None] + cavities[:, n_edges:, None, :] - tables
    # The Bethe approximation: what edges know of both ends, less what ends are counted too often.
    own = soft_maximum(beliefs, -1, settings.temperature)
    joint = soft_maximum(pairs, (-2, -1), settings.temperature)
    degrees = costs.new_zeros(costs.shape[1])
    degrees = degrees.index_add(0, receivers, degrees.new_ones(len(receivers)))
    log_partition = joint.sum(1, dtype=torch.float64) + ((1 - degrees) * own).sum(
        1, dtype=torch.float64
    )
    scale = settings.temperature or 1.0
    return Beliefs(
        (beliefs - own[..., None]) / scale, log_partition.to(dtype), residuals,
        (pairs - joint[..., None, None]) / scale,
    )


def _gather(
    costs: Tensor, messages: Tensor, senders: Tensor, receivers: Tensor
) -> tuple[Tensor, Tensor]:
    """Scores of all nodes, and for each message those of its sender without its receiver."""
    beliefs = (-costs).index_add(1, receivers, messages)
    reverse = messages.roll(len(senders) // 2, 1)
    return beliefs, beliefs[:, senders] - reverse


def _check_edges(edges: Tensor, costs: Tensor) -> None:
    check_beside(edges, "edges", costs)
    if edges.ndim != 2 or edges.shape[1] != 2 or edges.dtype.is_floating_point:
        raise InputError(
            f"edges must be whole numbers of shape (E, 2), got {edges.dtype} of shape "
            f"{tuple(edges.shape)}; give the two nodes of each edge."
        )
    if not can_look(edges):
        return
    n_nodes = costs.shape[1]
    bad = (edges < 0) | (edges >= n_nodes)
    if bool(bad.any()):
        index = tuple(bad.nonzero()[0].tolist())
        raise InputError(
            f"edges must lie between 0 and {n_nodes - 1}, got {int(edges[index])} at index "
            f"{index}; number the nodes from 0."
        )
    same = edges[:, 0] == edges[:, 1]
    if bool(same.any()):
        raise InputError(
            f"edges must join two different nodes, got a loop at index {int(same.nonzero()[0])}; "
            "add such a cost to the node's own."
        )
