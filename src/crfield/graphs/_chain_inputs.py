"""Chains as the compiled core takes them: one after the other in one array."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.validate import (
    LARGEST_COST,
    FloatArray,
    InputError,
    as_array,
    as_floats,
    as_scalar,
    check_magnitude,
    check_memory,
    first_index,
)

Offsets = NDArray[np.int64]
Labels = NDArray[np.int32]

# The compiled core counts the entries of a table in 32 bits.
MAX_STATES = 46340
# Chains are dealt out to threads in so many blocks at most.
_MOST_BLOCKS = 64
# Costs divided by less, and logarithms times more, could leave the range of numbers.
LEAST_TEMPERATURE, LARGEST_TEMPERATURE = 1e-6, 1e100


@dataclass(frozen=True)
class ChainBatch:
    """Checked chains.

    costs : (N, L), chain c in rows offsets[c] to offsets[c + 1].
    offsets : (C + 1,).
    transitions : (1, L, L), or (N - C, L, L) with a table for each edge.
    """

    costs: FloatArray
    offsets: Offsets
    transitions: FloatArray
    per_edge: bool

    @property
    def n_chains(self) -> int:
        return len(self.offsets) - 1

    @property
    def n_nodes(self) -> int:
        return len(self.costs)

    @property
    def n_states(self) -> int:
        return int(self.costs.shape[1])

    @property
    def longest(self) -> int:
        """How many nodes the longest chain has."""
        return int(np.diff(self.offsets).max())

    @property
    def stride(self) -> int:
        """Numbers that the core keeps for the states of a node."""
        return (self.n_states + 3) // 4 * 4

    @property
    def arguments(self) -> tuple[FloatArray, Offsets, FloatArray, bool]:
        """What every function of the core takes first."""
        return self.costs, self.offsets, self.transitions, self.per_edge


def as_batch(costs: Any, transitions: Any, lengths: Any) -> ChainBatch:
    """Chains from what the public functions take, see `infer_chains`."""
    rows, offsets = join_chains(costs, lengths, "costs", "L")
    n_nodes, n_states = rows.shape
    if not 1 <= n_states <= MAX_STATES:
        raise InputError(
            f"costs must have between 1 and {MAX_STATES} states, got {n_states}; "
            "give every node a column for each state."
        )
    n_edges = n_nodes - len(offsets) + 1
    tables = _join_tables(transitions, offsets, n_states)
    if tables.shape not in ((n_states, n_states), (n_edges, n_states, n_states)):
        raise InputError(
            f"transitions must have shape ({n_states}, {n_states}), or ({n_edges}, {n_states}, "
            f"{n_states}) with a table for each edge, got {tables.shape}; give the cost of each "
            "pair of successive states."
        )
    wide = any(array.dtype.kind != "f" or array.dtype.itemsize > 4 for array in (rows, tables))
    dtype = np.dtype(np.float64 if wide else np.float32)
    per_edge = tables.ndim == 3
    return ChainBatch(
        _as_costs(rows, "costs", dtype), offsets,
        _as_costs(tables, "transitions", dtype).reshape(-1, n_states, n_states), per_edge,
    )


def join_chains(
    values: Any, lengths: Any, name: str, width: str
) -> tuple[NDArray[Any], Offsets]:
    """Rows (N, width) of all chains and their offsets, from a list of arrays or from rows and
    lengths."""
    if lengths is None and not isinstance(values, np.ndarray) and isinstance(values, Sequence):
        parts = [_as_dense(part, f"{name}[{c}]") for c, part in enumerate(values)]
    else:
        array = _as_dense(values, name)
        if lengths is not None:
            if array.ndim != 2:
                raise InputError(
                    f"{name} must have shape (N, {width}) where lengths are given, got "
                    f"{array.shape}; put all chains one after the other, or leave lengths out."
                )
            return array, offsets_of(lengths, len(array), name)
        parts = list(array) if array.ndim == 3 else [array]
    if not parts:
        raise InputError(f"{name} must hold at least one chain, got none; pass a list of arrays.")
    for c, part in enumerate(parts):
        where = name if len(parts) == 1 else f"{name}[{c}]"
        if part.ndim != 2:
            raise InputError(
                f"{where} must have shape (T, {width}), got {part.shape}; "
                "give one row a node, and a list of such arrays for several chains."
            )
        if len(part) == 0:
            raise InputError(
                f"{where} must have at least one node, got an empty chain; leave that chain out."
            )
        if part.shape[1] != parts[0].shape[1]:
            raise InputError(
                f"{where} must have as many columns as {name}[0] ({parts[0].shape[1]}), got "
                f"{part.shape[1]}; give all chains the same columns."
            )
    offsets = np.cumsum([0, *map(len, parts)]).astype(np.int64)
    return parts[0] if len(parts) == 1 else np.concatenate(parts), offsets


def _as_dense(values: Any, name: str) -> NDArray[Any]:
    if hasattr(values, "toarray"):  # SciPy's
        raise InputError(
            f"{name} must be a dense array, got a sparse {type(values).__name__}; call .toarray()."
        )
    return as_array(values, name)


def offsets_of(lengths: Any, n_nodes: int, name: str) -> Offsets:
    """Where each chain begins and the last one ends."""
    counts = as_array(lengths, "lengths")
    if counts.ndim != 1 or counts.dtype.kind not in "iu" or len(counts) == 0:
        raise InputError(
            f"lengths must be whole numbers of shape (C,), C >= 1, got {counts.dtype} of shape "
            f"{counts.shape}; give the number of nodes of each chain."
        )
    if counts.min() < 1:
        index = int(np.argmax(counts < 1))
        raise InputError(
            f"lengths must be at least 1, got {counts[index]} at index {index}; "
            "leave empty chains out."
        )
    if counts.max() > n_nodes or counts.sum(dtype=np.int64) != n_nodes:
        raise InputError(
            f"lengths must add up to the {n_nodes} rows of {name}, got {counts.sum()}; "
            "count the nodes of every chain."
        )
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def as_labels(labels: Any, batch: ChainBatch) -> Labels:
    """States (N,) of all nodes, from one array or one a chain."""
    if isinstance(labels, Sequence) and any(map(_has_axes, labels)):
        parts = [as_array(part, f"labels[{c}]") for c, part in enumerate(labels)]
        lengths = np.diff(batch.offsets)
        if len(parts) != len(lengths):
            raise InputError(
                f"labels must hold one array for each of {len(lengths)} chains, got {len(parts)}; "
                "give one state a node."
            )
        for c, (part, length) in enumerate(zip(parts, lengths, strict=True)):
            if part.shape != (length,):
                raise InputError(
                    f"labels[{c}] must have shape ({length},) like its chain, got {part.shape}; "
                    "give one state a node."
                )
        array = np.concatenate(parts)
    else:
        array = as_array(labels, "labels")
    if array.shape != (batch.n_nodes,) or array.dtype.kind not in "iu":
        raise InputError(
            f"labels must be whole numbers of shape ({batch.n_nodes},), got {array.dtype} of shape "
            f"{array.shape}; give one state a node."
        )
    bad = (array < 0) | (array >= batch.n_states)
    if bad.any():
        (index,) = first_index(bad)
        raise InputError(
            f"labels must lie between 0 and {batch.n_states - 1}, got {array[index]} at index "
            f"{index}; number the states from 0."
        )
    return array.astype(np.int32)


def _has_axes(part: Any) -> bool:
    return isinstance(part, Sequence) or bool(getattr(part, "ndim", 0))


def as_temperature(
    temperature: Any, *, may_be_zero: bool, best: str = "best_chains"
) -> float:
    """A positive number, or 0 where that means something; `best` is what to use for 0 elsewhere."""
    value = as_scalar(temperature, "temperature")
    if not (value >= LEAST_TEMPERATURE or (may_be_zero and value == 0.0)):
        least, remedy = f"at least {LEAST_TEMPERATURE:g}", f"use {best} for 0"
        if may_be_zero:
            least, remedy = f"0 or {least}", "use 0 for the labels of least energy"
        raise InputError(f"temperature must be {least}, got {value:g}; {remedy}.")
    if value > LARGEST_TEMPERATURE:
        raise InputError(
            f"temperature must not exceed {LARGEST_TEMPERATURE:g}, got {value:g}; at 1e10 all "
            "labels are as good as equal already."
        )
    return value


def check_room(
    batch: ChainBatch, threads: int, *, tables: int, node_bytes: float, more: float = 0.0
) -> None:
    """Refuse chains whose working memory cannot be had.

    tables : tables (L, L) of float64 that each thread makes; node_bytes : what it keeps for each
    node of the longest chain and each state; more : bytes whatever the number of threads.
    """
    table = 8.0 * batch.n_states * batch.stride
    one = tables * table + node_bytes * batch.longest * batch.stride
    check_memory(
        min(threads, batch.n_chains, _MOST_BLOCKS) * one + more,
        f"Inference on chains of up to {batch.longest} nodes and {batch.n_states} states",
        "use fewer threads, states or chains at a time, or cut long chains",
    )


def sum_bytes(batch: ChainBatch) -> float:
    """What sums over labels need whatever the number of threads: counts of blocks of chains, with
    the table multiplied in and without, and what is given back."""
    size = batch.n_states * batch.stride
    blocks = min(batch.n_chains, max(1, min(_MOST_BLOCKS, 2**22 // size)))
    return 8.0 * (2 * blocks + 1) * size + float(batch.costs.nbytes) + 8.0 * batch.n_chains


def check_edges(batch: ChainBatch) -> None:
    """Refuse pairwise marginals of every edge that memory cannot hold."""
    shape = (batch.n_nodes - batch.n_chains, batch.n_states, batch.n_states)
    check_memory(
        float(math.prod(shape)) * batch.costs.itemsize, f"Marginals of edges of shape {shape}",
        "leave edge_marginals out, use one table for all edges, or take fewer chains at a time",
    )


def _join_tables(transitions: Any, offsets: Offsets, n_states: int) -> NDArray[Any]:
    """One array, from that or from a list with tables for the edges of each chain."""
    if not isinstance(transitions, Sequence):
        return as_array(transitions, "transitions")
    parts = [as_array(part, f"transitions[{c}]") for c, part in enumerate(transitions)]
    if all(part.ndim < 3 for part in parts):
        return as_array(transitions, "transitions")
    counts = np.diff(offsets) - 1
    if len(parts) != len(counts):
        raise InputError(
            f"transitions must hold one array for each of {len(counts)} chains, got {len(parts)}; "
            "give a chain of T nodes T - 1 tables."
        )
    for c, (part, count) in enumerate(zip(parts, counts, strict=True)):
        if part.shape != (count, n_states, n_states):
            raise InputError(
                f"transitions[{c}] must have shape {(int(count), n_states, n_states)}, a table for "
                f"each edge of its chain, got {part.shape}; give a chain of T nodes T - 1 tables."
            )
    return np.concatenate(parts)


def _as_costs(array: NDArray[Any], name: str, dtype: np.dtype[Any]) -> FloatArray:
    if array.dtype == dtype and array.flags.c_contiguous and array.size:
        largest = _native.largest(array.reshape(1, -1), 1)
        if largest <= LARGEST_COST:  # False for NaN
            return array
    costs = as_floats(array, name, dtype)
    check_magnitude(costs, name)
    return costs
