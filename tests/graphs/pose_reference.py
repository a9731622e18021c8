"""Distance transforms and poses by brute force: every position, every pose."""

import itertools

import numpy as np


def all_terms(costs, weights, offsets):
    """f(y) + sum_axes w (x + d - y)^2 for all pairs of positions, (n, n) with x first."""
    places = list(itertools.product(*(range(size) for size in costs.shape)))
    table = np.empty((len(places), len(places)))
    for i, x in enumerate(places):
        for j, y in enumerate(places):
            table[i, j] = costs[y] + sum(
                w * (a + d - b) ** 2 for a, b, w, d in zip(x, y, weights, offsets, strict=True)
            )
    return table


def soft_minimum(values):
    """-log sum exp(-values) along the last axis."""
    least = values.min(-1, keepdims=True)
    least = np.where(np.isinf(least), 0.0, least)
    with np.errstate(divide="ignore"):
        return least[..., 0] - np.log(np.exp(least - values).sum(-1))


def pose_energy(parents, offsets, weights, transitions, costs, states):
    """E of a pose whose part p has the orientation, row and column states[p]; costs (P, K, H, W),
    offsets and weights (P, K, K, 2)."""
    total = 0.0
    for part, (k, row, column) in enumerate(states):
        total += costs[part, k, row, column]
        if parents[part] < 0:
            continue
        j, *above = states[parents[part]]
        total += transitions[part, j, k]
        for axis, place in enumerate((row, column)):
            stretch = place - above[axis] - offsets[part, j, k, axis]
            total += weights[part, j, k, axis] * stretch**2
    return total


class AllPoses:
    """The energies of all poses and what follows from them."""

    def __init__(self, parents, offsets, weights, transitions, costs):
        self.shape = costs.shape
        self.states = list(itertools.product(*(range(size) for size in costs.shape[1:])))
        self.poses = list(itertools.product(range(len(self.states)), repeat=len(parents)))
        self.energies = np.array([
            pose_energy(
                parents, offsets, weights, transitions, costs, [self.states[s] for s in pose]
            )
            for pose in self.poses
        ])
        self.log_partition = -soft_minimum(self.energies)
        self.probabilities = np.exp(-self.energies - self.log_partition)

    def best(self):
        """States (orientation, row, column) of a pose of least energy, and that energy."""
        at = int(np.argmin(self.energies))
        return [self.states[s] for s in self.poses[at]], self.energies[at]

    def marginals(self):
        found = np.zeros((self.shape[0], len(self.states)))
        for pose, probability in zip(self.poses, self.probabilities, strict=True):
            found[np.arange(len(pose)), pose] += probability
        return found.reshape(self.shape)

    def min_marginals(self):
        found = np.full((self.shape[0], len(self.states)), np.inf)
        for pose, energy in zip(self.poses, self.energies, strict=True):
            for part, state in enumerate(pose):
                found[part, state] = min(found[part, state], energy)
        return found.reshape(self.shape)
