"""Independent float64 enumeration for pattern potentials: NumPy and itertools only."""

import itertools
import math

import numpy as np

OFFSETS = {2: [(0, 1), (1, 0)], 4: [(0, 1), (1, 0), (1, 1), (1, -1)]}


def binary_states(n):
    """All of {0, 1}^n, one per row."""
    return np.array(list(itertools.product((0, 1), repeat=n)))


def hidden_states(n, composition="sum", max_active=None):
    """The allowed h, one per row."""
    states = binary_states(n)
    active = states.sum(1)
    if composition == "min":
        return states[active == 1]
    return states if max_active is None else states[active <= max_active]


def scores(y, weights, bias, states):
    """y'W h + c'h for every h of `states`, one y."""
    return np.array([
        sum(weights[i, j] * y[i] * h[j] for i in range(len(y)) for j in range(len(h)))
        + sum(bias[j] * h[j] for j in range(len(h)))
        for h in states
    ])


def potential(y, weights, bias, temperature, states):
    """f(y; T) of one y; temperature 0 is the limit."""
    s = scores(y, weights, bias, states)
    if temperature == 0:
        return -s.max()
    top = s.max()
    return -top - temperature * math.log(sum(math.exp((v - top) / temperature) for v in s))


def posterior(y, weights, bias, temperature, states):
    """p*(h | y) over `states`."""
    s = scores(y, weights, bias, states) / temperature
    p = np.exp(s - s.max())
    return p / p.sum()


def entropy(p):
    positive = p[p > 0]
    return -float((positive * np.log(positive)).sum())


def edges(grid, n_offsets):
    """(offset number, pixel, neighbor) for every edge, pixels as (row, column)."""
    height, width = grid
    found = []
    for k, (down, across) in enumerate(OFFSETS[n_offsets]):
        for r in range(height):
            for c in range(width):
                if r + down < height and 0 <= c + across < width:
                    found.append((k, (r, c), (r + down, c + across)))
    return found


def base_energy(labels, costs, pairwise, unary_weight, pairwise_weights):
    """Unary and Potts costs of one image: labels (H, W), costs (H, W, L), pairwise (K, n, H, W)."""
    height, width = labels.shape
    total = unary_weight * sum(
        costs[r, c, labels[r, c]] for r in range(height) for c in range(width)
    )
    if pairwise is not None:
        for number, weight in enumerate(pairwise_weights):
            for k, (r, c), other in edges(labels.shape, pairwise.shape[1]):
                if labels[r, c] != labels[other]:
                    total += weight * pairwise[number, k, r, c]
    return float(total)


def energy(model, inputs, image, labels):
    """Energy of one label map (H, W) under a PatternCRF whose patterns are dense or None."""
    y, patterns = labels.ravel(), model.patterns
    total = base_energy(
        labels, inputs.costs[image], inputs.pairwise[image % len(inputs.pairwise)],
        model.unary_weight, model.pairwise_weights,
    ) - y @ model.visible_bias
    if patterns is None:
        return total
    bias = patterns.bias + inputs.features[image] @ patterns.image_weights
    states = hidden_states(patterns.n_hidden, patterns.composition, patterns.max_active)
    return total + potential(y, patterns.weights, bias, patterns.temperature, states)


def distribution(energies):
    """exp(-E) / Z."""
    p = np.exp(np.min(energies) - energies)
    return p / p.sum()


def dense_windows(windows, grid, stride):
    """The (I, positions J) weights that windows (kh, kw, J) stand for."""
    height, width, n_patterns = windows.shape
    columns = []
    for r in range(0, grid[0] - height + 1, stride):
        for c in range(0, grid[1] - width + 1, stride):
            for j in range(n_patterns):
                column = np.zeros(grid)
                column[r : r + height, c : c + width] = windows[:, :, j]
                columns.append(column.ravel())
    return np.array(columns).T


def deviation_value(y, weights, offsets, theta_0, theta_max, composition):
    """Rother's potential of one y: min{w'y + K + theta_0, theta_max}, summed or minimized."""
    each = [
        min(
            sum(weights[i, j] * y[i] for i in range(len(y))) + offsets[j] + theta_0[j],
            theta_max[j],
        )
        for j in range(weights.shape[1])
    ]
    return sum(each) if composition == "sum" else min(each)
