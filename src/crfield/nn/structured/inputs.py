"""What the functions on chains and trees take, checked."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from crfield._core.validate import InputError, as_array, check_magnitude, first_index, refuse_where
from crfield.nn.structured.forests import Structure, as_forest, chain_forest
from crfield.nn.tensors import can_look, check_finite_tensor, check_tensor

REDUCTIONS = ("none", "sum", "mean", "node_mean", "token_mean")


class TreeProblem(NamedTuple):
    """structure, costs (B, T, L) and tables (B or 1, E or 1, L, L), all of one type."""

    structure: Structure
    costs: Tensor
    tables: Tensor

    @property
    def n_nodes(self) -> Tensor | int:
        """How many nodes exist in the whole batch."""
        exists = self.structure.nodes
        return self.costs.shape[0] * self.costs.shape[1] if exists is None else exists.sum()


def as_problem(
    costs: Tensor, edge_costs: Tensor, parents: Any, mask: Tensor | None, lengths: Any
) -> TreeProblem:
    """Checked arguments of the functions in `crfield.nn.structured.trees`."""
    check_costs(costs, "(B, T, L)", 3)
    n_nodes = costs.shape[1]
    forest = chain_forest(n_nodes) if parents is None else as_forest(parents)
    if forest.n_nodes != n_nodes:
        raise InputError(
            f"parents must have {n_nodes} entries for costs of shape {tuple(costs.shape)}, got "
            f"{forest.n_nodes}; give the parent of each node, -1 for a root."
        )
    tables = as_tables(edge_costs, costs, forest.n_edges)
    dtype = working_dtype(costs, tables)
    costs, tables = costs.to(dtype), tables.to(dtype)
    exists = as_existence(costs, mask, lengths)
    structure = Structure(forest)
    if exists is not None:
        if parents is None and mask is not None:
            _check_prefix(exists)
        above, below = forest.ends(costs.device)
        joined = exists[:, above] & exists[:, below]
        structure = Structure(forest, exists, joined)
        # Padding may hold anything.
        costs = costs.where(exists[..., None], 0.0)
        if edge_costs.ndim == 4:
            tables = tables.where(joined[..., None, None], 0.0)
    check_values(costs, "costs")
    check_values(tables, "edge_costs")
    return TreeProblem(structure, costs, tables)


def check_costs(costs: Tensor, layout: str, n_axes: int) -> None:
    """Refuse what are no floating-point costs in this layout, of at least one node and label."""
    check_tensor(costs, "costs")
    if not costs.dtype.is_floating_point or costs.ndim != n_axes or 0 in costs.shape:
        raise InputError(
            f"costs must be floating-point numbers of shape {layout}, got {costs.dtype} of shape "
            f"{tuple(costs.shape)}; pass the negative of a network's scores, with a batch axis."
        )


def check_values(costs: Tensor, name: str) -> None:
    """Refuse costs that are not finite or beyond all reason, where that can be seen."""
    check_finite_tensor(costs, name)
    if can_look(costs):
        check_magnitude(costs.detach().numpy(), name)


def check_beside(values: object, name: str, costs: Tensor) -> None:
    """Refuse what is no tensor on the device of the costs."""
    check_tensor(values, name)
    assert isinstance(values, Tensor)
    if values.device != costs.device:
        raise InputError(
            f"{name} must be on the device of costs ({costs.device}), got {values.device}; move "
            "one of them."
        )


def working_dtype(*tensors: Tensor) -> torch.dtype:
    """float64 if any of them has it, else float32."""
    double = any(values.dtype == torch.float64 for values in tensors)
    return torch.float64 if double else torch.float32


def as_tables(edge_costs: Tensor, costs: Tensor, n_edges: int) -> Tensor:
    """Edge costs as (B or 1, E or 1, L, L)."""
    check_beside(edge_costs, "edge_costs", costs)
    shape, n_items, n_labels = tuple(edge_costs.shape), len(costs), costs.shape[-1]
    square = (n_labels, n_labels)
    allowed = (square, (n_edges, *square), (n_items, n_edges, *square))
    if shape not in allowed or not edge_costs.dtype.is_floating_point:
        # Other libraries take labels, or a mask, as the second argument of a call.
        hint = ""
        if not edge_costs.dtype.is_floating_point and shape == tuple(costs.shape[:2]):
            hint = ", or use nll(costs, labels, mask=...)"
        raise InputError(
            f"edge_costs must be floating-point numbers of shape {square}, {allowed[1]} or "
            f"{allowed[2]}, got {edge_costs.dtype} of shape {shape}; give the cost of each pair of "
            f"labels, the parent's first{hint}."
        )
    return edge_costs.reshape((1,) * (4 - len(shape)) + shape)


def as_existence(costs: Tensor, mask: Tensor | None, lengths: Any) -> Tensor | None:
    """Which nodes exist, (B, T), or None for all."""
    n_items, n_nodes = costs.shape[:2]
    if mask is not None and lengths is not None:
        raise InputError("mask and lengths must not both be given, got both; leave one out.")
    if mask is not None:
        check_beside(mask, "mask", costs)
        if tuple(mask.shape) != (n_items, n_nodes) or mask.dtype.is_floating_point:
            raise InputError(
                f"mask must be bool of shape {(n_items, n_nodes)}, got {mask.dtype} of shape "
                f"{tuple(mask.shape)}; mark the nodes that exist."
            )
        exists = mask.bool()
        if can_look(exists) and not bool(exists.any()):
            raise InputError("mask must keep at least one node, got none; leave such batches out.")
        return exists
    if lengths is None:
        return None
    counts = lengths
    if not isinstance(lengths, Tensor):
        array = as_array(lengths, "lengths")
        is_whole = array.dtype.kind in "iu"
        counts = torch.from_numpy(array.astype(np.int64 if is_whole else np.float64))
    check_tensor(counts, "lengths")
    if counts.shape != (n_items,) or counts.is_floating_point() or counts.dtype == torch.bool:
        raise InputError(
            f"lengths must be whole numbers of shape ({n_items},), got {counts.dtype} of shape "
            f"{tuple(counts.shape)}; give the number of nodes of each member of the batch."
        )
    if can_look(counts):
        bad = (counts < 1) | (counts > n_nodes)
        if bool(bad.any()):
            index = int(bad.nonzero()[0])
            raise InputError(
                f"lengths must lie between 1 and {n_nodes}, got {int(counts[index])} at index "
                f"{index}; count the nodes of each member of the batch."
            )
    places = torch.arange(n_nodes, device=costs.device)
    return places < counts.to(costs.device)[:, None]


def check_labels(labels: Tensor, costs: Tensor, exists: Tensor | None) -> Tensor:
    """Labels (B, T) with 0 where there is no node."""
    check_beside(labels, "labels", costs)
    if labels.shape != costs.shape[:2] or labels.dtype.is_floating_point:
        raise InputError(
            f"labels must be whole numbers of shape {tuple(costs.shape[:2])}, got {labels.dtype} "
            f"of shape {tuple(labels.shape)}; give one label per node."
        )
    states = labels.long()
    if exists is not None:
        states = states.masked_fill(~exists, 0)
    check_range(states, costs.shape[-1])
    return states


def check_range(states: Tensor, n_labels: int) -> None:
    """Refuse labels that do not exist, where that can be seen without waiting."""
    if not can_look(states):
        return
    values = states.numpy()
    refuse_where(
        (values < 0) | (values >= n_labels), values,
        f"labels must lie between 0 and {n_labels - 1}", "number the labels from 0",
    )


def reduce(values: Tensor, reduction: str, n_nodes: Tensor | int) -> Tensor:
    """Values (B,) as one of `REDUCTIONS` wants them."""
    if reduction == "none":
        return values
    if reduction in ("node_mean", "token_mean"):
        return values.sum() / n_nodes
    return values.mean() if reduction == "mean" else values.sum()


def _check_prefix(exists: Tensor) -> None:
    if can_look(exists) and bool(((~exists[:, :-1]) & exists[:, 1:]).any()):
        index = first_index(((~exists[:, :-1]) & exists[:, 1:]).numpy())
        raise InputError(
            "mask of a chain must be True up to its length and False behind it, got True behind "
            f"False at index {(index[0], index[1] + 1)}; move the padding to the end."
        )
