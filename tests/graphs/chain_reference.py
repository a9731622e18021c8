"""Chains by brute force: every labeling, or logarithms step by step; numpy and itertools only."""

import itertools
from dataclasses import dataclass

import numpy as np


@dataclass
class Enumerated:
    """All labelings of one chain, and what follows from them."""

    labels: np.ndarray
    energies: np.ndarray
    log_partition: float
    marginals: np.ndarray
    edge_marginals: np.ndarray


def enumerate_chain(costs, transitions, temperature=1.0):
    """costs : (T, L); transitions : (L, L) or (T - 1, L, L)."""
    costs = np.asarray(costs, np.float64)
    length, n_states = costs.shape
    tables = np.broadcast_to(np.asarray(transitions, np.float64), (length - 1, n_states, n_states))
    labels = np.array(list(itertools.product(range(n_states), repeat=length)))
    energies = costs[np.arange(length), labels].sum(1)
    energies += tables[np.arange(length - 1), labels[:, :-1], labels[:, 1:]].sum(1)
    scores = -energies / temperature
    top = scores.max()
    weights = np.exp(scores - top)
    total = weights.sum()
    marginals = np.zeros((length, n_states))
    edges = np.zeros((length - 1, n_states, n_states))
    for states, weight in zip(labels, weights / total, strict=True):
        marginals[np.arange(length), states] += weight
        edges[np.arange(length - 1), states[:-1], states[1:]] += weight
    log_partition = temperature * (top + np.log(total))
    return Enumerated(labels, energies, log_partition, marginals, edges)


def lexicographic_best(costs, transitions):
    """The labeling of least energy whose last label is lowest, then the one before it, ..."""
    found = enumerate_chain(costs, transitions)
    ties = found.labels[found.energies == found.energies.min()]
    return min(ties.tolist(), key=lambda states: states[::-1])


def log_forward_backward(costs, transitions):
    """log Z, marginals and added-up pairwise marginals of one chain, all in logarithms."""
    length, n_states = costs.shape
    forward, backward = np.empty((2, length, n_states))
    forward[0] = -costs[0]
    for t in range(1, length):
        forward[t] = _log_sum(forward[t - 1][:, None] - transitions, 0) - costs[t]
    backward[-1] = 0
    for t in range(length - 2, -1, -1):
        backward[t] = _log_sum(-transitions + (backward[t + 1] - costs[t + 1])[None], 1)
    log_partition = _log_sum(forward[-1], 0)
    # Each row sums to 1; without this the rounding of large logarithms would show.
    both = forward + backward
    marginals = np.exp(both - _log_sum(both, 1)[:, None])
    pairs = forward[:-1, :, None] - transitions + (backward - costs)[1:, None, :]
    pairs = pairs.reshape(length - 1, -1)
    counts = np.exp(pairs - _log_sum(pairs, 1)[:, None]).sum(0).reshape(n_states, n_states)
    return log_partition, marginals, counts


def _log_sum(x, axis):
    top = x.max(axis, keepdims=True)
    return np.log(np.exp(x - top).sum(axis)) + np.squeeze(top, axis)
