"""Rays by brute force: every state of all voxels, exact decimals, small steps along a line."""

import itertools
from decimal import Decimal, localcontext

import numpy as np


def ray_factor(states, scores, empty_score):
    """psi(o) of one ray: the score of its first occupied voxel."""
    for state, score in zip(states, scores, strict=True):
        if state:
            return score
    return empty_score


def messages(incoming, scores, empty_score, max_product):
    """Messages (N, 2) from a factor to its voxels by enumeration, not normalized."""
    n = len(scores)
    outgoing = np.zeros((n, 2))
    for states in itertools.product((0, 1), repeat=n):
        value = ray_factor(states, scores, empty_score)
        for i, state in enumerate(states):
            rest = value * np.prod([incoming[j][states[j]] for j in range(n) if j != i])
            if max_product:
                outgoing[i, state] = max(outgoing[i, state], rest)
            else:
                outgoing[i, state] += rest
    return outgoing


def normalized(pairs, max_product):
    """Pairs that sum to 1 or have a maximum of 1; zeros stay."""
    total = pairs.max(1, keepdims=True) if max_product else pairs.sum(1, keepdims=True)
    return np.divide(pairs, total, out=np.zeros_like(pairs), where=total > 0)


def lists_of(model):
    """Voxels, scores and empty score of each ray of a model."""
    bounds = itertools.pairwise(model.offsets.tolist())
    return [
        (model.voxels[a:b], model.scores[a:b].astype(float), float(empty))
        for (a, b), empty in zip(bounds, model.empty_scores, strict=True)
    ]


def all_states(model):
    """All states (2^n, n) and their unnormalized probabilities."""
    states = np.array(list(itertools.product((0, 1), repeat=model.n_voxels)))
    weights = np.prod(np.where(states == 1, model.prior, 1 - model.prior), 1)
    for voxels, scores, empty in lists_of(model):
        if len(voxels):
            weights *= [ray_factor(state[voxels], scores, empty) for state in states]
    return states, weights


def marginals(model, max_product=False):
    """Probability (n_voxels,) of being occupied, or the share of max-marginals."""
    states, weights = all_states(model)
    if max_product:
        pairs = np.array([
            [weights[states[:, v] == state].max() for state in (0, 1)]
            for v in range(model.n_voxels)
        ])
        return pairs[:, 1] / pairs.sum(1)
    return weights @ states / weights.sum()


def depths(model, max_product=False):
    """Depth posteriors (E,) and empty posteriors (R,); max-marginals scaled to a maximum of 1."""
    states, weights = all_states(model)
    along, empty = [], []
    for voxels, _, _ in lists_of(model):
        first = [
            next((i for i, voxel in enumerate(voxels) if state[voxel]), len(voxels))
            for state in states
        ]
        found = np.zeros(len(voxels) + 1)
        if max_product:
            np.maximum.at(found, first, weights)
            found /= found.max()
        else:
            np.add.at(found, first, weights)
            found /= found.sum()
        along.extend(found[:-1])
        empty.append(found[-1])
    return np.array(along), np.array(empty)


def long_ray(occupied, scores, empty_score):
    """Log-odds of the messages, depth posterior and empty posterior of one long ray.

    Decimals have no smallest exponent worth mentioning; sums over the first occupied voxel are
    written out.
    """
    n = len(scores)
    with localcontext() as context:
        context.prec = 60
        m = [Decimal(float(p)) for p in occupied]
        s = [Decimal(float(score)) for score in scores]
        free = [Decimal(1)]
        for p in m:
            free.append(free[-1] * (1 - p))
        first = [m[i] * free[i] * s[i] for i in range(n)]
        beyond = [Decimal(float(empty_score)) * free[n]]
        for weight in reversed(first):
            beyond.append(beyond[-1] + weight)
        beyond.reverse()
        before, odds = Decimal(0), []
        for i in range(n):
            # Without voxel i's own message, which is divided out again.
            occupied_i = before + free[i] * s[i]
            free_i = before + beyond[i + 1] / (1 - m[i])
            if occupied_i == 0:
                odds.append(-np.inf)
            elif free_i == 0:
                odds.append(np.inf)
            else:
                odds.append(float((occupied_i / free_i).ln()))
            before += first[i]
        total = beyond[0]
        return (
            np.array(odds), np.array([float(w / total) for w in first]),
            float(beyond[n] / total),
        )


def stepped_voxels(shape, origin, spacing, start, direction, n_steps):
    """Flat indices of the voxels at small steps along rays (R, n_steps), -1 outside; step sizes."""
    corner = np.array(origin) + np.array(shape) * spacing
    reach = np.linalg.norm(np.maximum(np.abs(start - origin), np.abs(start - corner)), axis=1)
    step = reach / np.linalg.norm(direction, axis=1) / n_steps
    t = (np.arange(n_steps) + 0.5) * step[:, None]
    cells = np.floor((start[:, None] + t[..., None] * direction[:, None] - origin) / spacing)
    inside = ((cells >= 0) & (cells < shape)).all(-1)
    x, y, z = np.where(inside[..., None], cells, 0).astype(int).transpose(2, 0, 1)
    return np.where(inside, (x * shape[1] + y) * shape[2] + z, -1), step
