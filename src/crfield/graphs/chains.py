"""Many chains as one problem, one after the other in one array as the compiled core takes them."""

from __future__ import annotations

from collections.abc import Sequence
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
    as_whole_numbers,
    check_magnitude,
    first_index,
    refuse_where,
)

Doubles = NDArray[np.float64]
Offsets = NDArray[np.int64]
Labels = NDArray[np.int32]

# The compiled core counts the entries of a table in 32 bits.
MAX_STATES = 46340


class Chains:
    """Chains of variables with L states each, for `infer`, `best`, `k_best` and `sample`.

    E(x) = sum_t costs[t, x_t] + sum_t transitions[x_t, x_{t+1}]; P(x) = exp(-E(x) / T) / Z.

    costs : a list of (T, L), one per chain; (C, T, L); one chain (T, L); or with `lengths` (C,) the
        rows (N, L) of all chains one after the other.
    transitions : (L, L) for all edges, or (N - C, L, L) with a table for each edge, or a list with
        such an array for each chain: a chain of T nodes has T - 1 edges.

    Work is done in float32 if everything is float32 or float16, else in float64; sums are always
    formed in float64. Arrays are not copied unless they must be: leave them as they are while
    results are read.

    Attributes
    ----------
    costs : (N, L), chain c in rows offsets[c] to offsets[c + 1].
    offsets : (C + 1,).
    transitions : (1, L, L), or (N - C, L, L) if `per_edge`.
    n_chains, n_nodes, n_states : C, N and L.
    """

    def __init__(self, costs: Any, transitions: Any, *, lengths: Any = None) -> None:
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
                f"{n_states}) with a table for each edge, got {tables.shape}; give the cost of "
                "each pair of successive states."
            )
        wide = any(array.dtype.kind != "f" or array.dtype.itemsize > 4 for array in (rows, tables))
        dtype = np.dtype(np.float64 if wide else np.float32)
        self._keep(
            _as_costs(rows, "costs", dtype), offsets,
            _as_costs(tables, "transitions", dtype).reshape(-1, n_states, n_states),
            tables.ndim == 3,
        )

    @classmethod
    def checked(cls, costs: FloatArray, offsets: Offsets, transitions: FloatArray) -> Chains:
        """Chains from arrays as the attributes have them, with one table (1, L, L) for all edges.

        costs : (N, L) and offsets : (C + 1,) are taken as they are.
        """
        chains = cls.__new__(cls)
        chains._keep(costs, offsets, transitions, False)
        return chains

    def _keep(
        self, costs: FloatArray, offsets: Offsets, transitions: FloatArray, per_edge: bool
    ) -> None:
        self.costs, self.offsets = costs, offsets
        self.transitions, self.per_edge = transitions, per_edge
        self.n_chains, self.n_nodes = len(offsets) - 1, len(costs)
        self.n_states = int(costs.shape[1])
        # What every function of the core takes first.
        self.arguments = costs, offsets, transitions, per_edge

    def split(self, values: NDArray[Any]) -> list[NDArray[Any]]:
        """Values (N, ...), one row per node, as a list with one array (T, ...) per chain."""
        return np.split(values, self.offsets[1:-1])

    def energy(self, labels: Any) -> Doubles:
        """E(x) = sum_t costs[t, x_t] + sum_t transitions[x_t, x_{t+1}] of each chain, (C,).

        labels : (N,), or a list of (T,).
        """
        return energies_of(self, self.as_labels(labels))

    def as_labels(self, labels: Any) -> Labels:
        """Checked states (N,) of all nodes, from `labels` (N,) or a list of (T,)."""
        if isinstance(labels, Sequence) and any(
            isinstance(part, Sequence) or getattr(part, "ndim", 0) for part in labels
        ):
            parts = [as_array(part, f"labels[{c}]") for c, part in enumerate(labels)]
            lengths = np.diff(self.offsets)
            if len(parts) != len(lengths):
                raise InputError(
                    f"labels must hold one array for each of {len(lengths)} chains, got "
                    f"{len(parts)}; give one state per node."
                )
            for c, (part, length) in enumerate(zip(parts, lengths, strict=True)):
                if part.shape != (length,):
                    raise InputError(
                        f"labels[{c}] must have shape ({length},) like its chain, got "
                        f"{part.shape}; give one state per node."
                    )
            labels = np.concatenate(parts)
        array = as_whole_numbers(labels, "labels", (self.n_nodes,), "give one state per node")
        bad = (array < 0) | (array >= self.n_states)
        if bad.any():
            (index,) = first_index(bad)
            raise InputError(
                f"labels must lie between 0 and {self.n_states - 1}, got {array[index]} at index "
                f"{index}; number the states from 0."
            )
        return array.astype(np.int32)

    def __repr__(self) -> str:
        return f"Chains({self.n_chains} chains, {self.n_nodes} nodes, {self.n_states} states)"


def energies_of(chains: Chains, labels: Labels) -> Doubles:
    """E(x) of each chain, (C,), for checked labels (N,)."""
    firsts = edge_starts(chains.offsets)
    tables = np.arange(len(firsts)) if chains.per_edge else 0
    costs = chains.costs[np.arange(chains.n_nodes), labels].astype(np.float64)
    costs[firsts] += chains.transitions[tables, labels[firsts], labels[firsts + 1]]
    result: Doubles = np.add.reduceat(costs, chains.offsets[:-1])
    return result


def edge_starts(offsets: Offsets) -> NDArray[np.int64]:
    """The first node of every edge, (N - C,)."""
    return np.delete(np.arange(offsets[-1]), offsets[1:] - 1)


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
                "give one row per node, and a list of such arrays for several chains."
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
    counts = as_whole_numbers(
        lengths, "lengths", ("C",), "give the number of nodes of each chain"
    )
    if len(counts) == 0:
        raise InputError("lengths must name at least one chain, got none; pass some chains.")
    refuse_where(counts < 1, counts, "lengths must be at least 1", "leave empty chains out")
    if counts.max() > n_nodes or counts.sum(dtype=np.int64) != n_nodes:
        raise InputError(
            f"lengths must add up to the {n_nodes} rows of {name}, got {counts.sum()}; "
            "count the nodes of every chain."
        )
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


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
