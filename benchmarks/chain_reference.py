"""What chains are checked against before they are timed: plain recursions in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np


def reference_sums(costs: Any, table: Any) -> tuple[Any, Any, Any]:
    """log Z (C,), marginals (N, L) and expected transitions (L, L) by logarithms in float64."""
    costs, table = costs.astype(np.float64), table.astype(np.float64)
    length = costs.shape[1]
    forward, backward = -costs, np.zeros_like(costs)
    for t in range(1, length):
        forward[:, t] += _log_sum(forward[:, t - 1, :, None] - table, 1)
    for t in reversed(range(length - 1)):
        backward[:, t] = _log_sum((backward[:, t + 1] - costs[:, t + 1])[:, None] - table, 2)
    log_partition = _log_sum(forward[:, -1], 1)
    pairs = np.zeros_like(table)
    for t in range(length - 1):
        ahead = backward[:, t + 1] - costs[:, t + 1] - log_partition[:, None]
        pairs += np.exp(forward[:, t, :, None] - table + ahead[:, None]).sum(0)
    marginals = np.exp(forward + backward - log_partition[:, None, None])
    return log_partition, marginals.reshape(-1, costs.shape[2]), pairs


def reference_best(costs: Any, table: Any, k: int) -> Any:
    """The k least energies of each chain, (C, k), in float64; infinity where there are fewer."""
    costs, table = costs.astype(np.float64), table.astype(np.float64)
    n_chains, length, n_states = costs.shape
    lists = np.full((n_chains, n_states, k), np.inf)
    lists[:, :, 0] = costs[:, 0]
    for t in range(1, length):
        longer = (lists[:, None] + table.T[..., None]).reshape(n_chains, n_states, -1)
        lists = np.partition(longer, k - 1)[..., :k] + costs[:, t, :, None]
    return np.sort(lists.reshape(n_chains, -1), 1)[:, :k]


def _log_sum(x: Any, axis: int) -> Any:
    most = x.max(axis, keepdims=True)
    return (most + np.log(np.exp(x - most).sum(axis, keepdims=True))).squeeze(axis)
