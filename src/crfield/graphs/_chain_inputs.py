"""Chains as the compiled core takes them: one after the other in one array."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield import _native
from crfield._validate import (
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
_SMALL_MEMORY = 2**24
# Costs divided by less could leave the range of numbers.
LEAST_TEMPERATURE = 1e-6


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
    tables = _join_tables(transitions)
    if tables.shape not in ((n_states, n_states), (n_edges, n_states, n_states)):
        raise InputError(
            f"transitions must have shape ({n_states}, {n_states}), or ({n_edges}, {n_states}, "
            f"{n_states}) with a table for each edge, got {tables.shape}; give the cost of each "
            "pair of successive states."
        )
    wide = any(array.dtype.kind != "f" or array.dtype.itemsize == 8 for array in (rows, tables))
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
        parts = [as_array(part, f"{name}[{c}]") for c, part in enumerate(values)]
    else:
        array = as_array(values, name)
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
    if not isinstance(labels, np.ndarray) and isinstance(labels, Sequence) and len(labels):
        parts = [np.atleast_1d(as_array(part, f"labels[{c}]")) for c, part in enumerate(labels)]
        for c, part in enumerate(parts):
            if part.ndim != 1:
                raise InputError(
                    f"labels[{c}] must have shape (T,), got {part.shape}; give one state a node."
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


def as_temperature(temperature: Any, *, may_be_zero: bool) -> float:
    """A positive number, or 0 where that means something."""
    value = as_scalar(temperature, "temperature")
    if not (value >= LEAST_TEMPERATURE or (may_be_zero and value == 0.0)):
        least, remedy = f"at least {LEAST_TEMPERATURE:g}", "use best_chains for 0"
        if may_be_zero:
            least, remedy = f"0 or {least}", "use 0 for the labels of least energy"
        raise InputError(f"temperature must be {least}, got {value:g}; {remedy}.")
    return value


def check_room(batch: ChainBatch, threads: int) -> None:
    """Refuse chains whose working memory cannot be had; what any machine has is not asked for."""
    workers = min(threads, batch.n_chains)
    longest = int(np.diff(batch.offsets).max())
    # Of each worker: two tables by rows and by columns, and four numbers a node and state.
    need = 32.0 * workers * batch.n_states * (batch.n_states + longest)
    if need > _SMALL_MEMORY:
        check_memory(
            need, f"inference on chains of up to {longest} nodes and {batch.n_states} states",
            "use fewer threads or states, or cut long chains",
        )


def _join_tables(transitions: Any) -> NDArray[Any]:
    if not isinstance(transitions, np.ndarray) and isinstance(transitions, Sequence):
        parts = [np.asarray(part) for part in transitions]
        shapes = {part.shape[1:] for part in parts}
        if len(shapes) == 1 and all(part.ndim == 3 for part in parts):
            return as_array(np.concatenate(parts), "transitions")
    return as_array(transitions, "transitions")


def _as_costs(array: NDArray[Any], name: str, dtype: np.dtype[Any]) -> FloatArray:
    if array.dtype == dtype and array.flags.c_contiguous and array.size:
        largest = _native.largest(array.reshape(1, -1), 1)
        if largest <= LARGEST_COST:  # False for NaN
            return array
    costs = as_floats(array, name, dtype)
    check_magnitude(costs, name)
    return costs
