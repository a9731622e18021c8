"""Expansions and swaps: never up, within the bound, the best there is where one cut decides."""

import numpy as np
import pytest

from crfield import Potts, Symmetric
from crfield.graphcut import (
    alpha_beta_swap,
    alpha_beta_swap_grid,
    alpha_expansion,
    alpha_expansion_grid,
    contrast_weights,
    grid_offsets,
    minimize_binary,
)
from graphcut_reference import grid_pairs, label_energy, labelings, pair_values

MOVES = {"expansion": alpha_expansion, "swap": alpha_beta_swap}
GRID_MOVES = {"expansion": alpha_expansion_grid, "swap": alpha_beta_swap_grid}


def random_metric(rng, n_labels):
    """Potts, distances on a line, truncated or not, or shortest paths of random lengths."""
    kind = rng.integers(4)
    if kind == 0:
        return 1.0 - np.eye(n_labels)
    if kind < 3:
        line = np.abs(np.subtract.outer(np.arange(n_labels), np.arange(n_labels))).astype(float)
        return np.minimum(line, 2) if kind == 1 else line
    mu = rng.uniform(0.1, 3, (n_labels, n_labels))
    mu = np.minimum(mu, mu.T)
    np.fill_diagonal(mu, 0)
    for c in range(n_labels):
        mu = np.minimum(mu, mu[:, c, None] + mu[None, c])
    return mu


def random_model(rng, n, n_labels, n_edges):
    ends = rng.integers(0, n, size=(n_edges, 2))
    ends = ends[ends[:, 0] != ends[:, 1]]
    return rng.uniform(0, 4, (n, n_labels)), ends, rng.uniform(0, 2, len(ends))


@pytest.mark.parametrize("move", MOVES)
def test_energies_never_rise_and_are_those_of_the_labels(move):
    rng = np.random.default_rng(1)
    for _ in range(150):
        n, n_labels = int(rng.integers(1, 25)), int(rng.integers(1, 6))
        unary, ends, weights = random_model(rng, n, n_labels, int(rng.integers(0, 60)))
        mu = random_metric(rng, n_labels)
        init = rng.integers(0, n_labels, n)
        kept = init.copy()
        found = MOVES[move](unary, ends, weights, mu, init=init)
        assert np.array_equal(init, kept)
        assert found.converged
        assert found.labels.dtype == np.int32
        assert len(found.energies) == found.n_iter + 1
        assert (np.diff(found.energies) <= 0).all()
        for labels, energy in ((init, found.energies[0]), (found.labels, found.energy)):
            assert energy == pytest.approx(label_energy(labels, unary, ends, weights, mu), abs=1e-9)
        again = MOVES[move](unary, ends, weights, mu, init=found.labels)
        assert np.array_equal(again.labels, found.labels)
        assert (again.n_iter, again.energy) == (1, pytest.approx(found.energy, abs=1e-9))


@pytest.mark.parametrize("move", MOVES)
def test_rounding_does_not_make_energies_rise(move):
    rng = np.random.default_rng(8)
    for _ in range(60):
        # Ties between large numbers, which small ones break that float32 cannot add to them.
        unary = 2.0**26 * rng.integers(0, 4, (6, 7, 4)).astype(np.float32)
        weights = rng.uniform(0, 1, (2, 6, 7)).astype(np.float32)
        weights[rng.random(weights.shape) < 0.7] = 2.0**25
        found = GRID_MOVES[move](unary, weights, random_metric(rng, 4))
        assert found.converged
        assert (np.diff(found.energies) <= 0).all()
        assert np.diff(found.energies)[-1] == 0


def test_no_expansion_and_no_swap_is_left_that_helps():
    rng = np.random.default_rng(2)
    every = labelings(6, 2).astype(bool)
    for _ in range(40):
        unary, ends, weights = random_model(rng, 6, 3, 14)
        mu = random_metric(rng, 3)
        energy = lambda x: label_energy(x, unary, ends, weights, mu)  # noqa: B023, E731
        found = alpha_expansion(unary, ends, weights, mu)
        for alpha in range(3):
            moved = np.where(every, alpha, found.labels)
            assert energy(moved).min() >= found.energy - 1e-9
        found = alpha_beta_swap(unary, ends, weights, mu)
        for alpha, beta in ((0, 1), (0, 2), (1, 2)):
            takes_part = np.isin(found.labels, (alpha, beta))
            moved = np.where(takes_part, np.where(every, alpha, beta), found.labels)
            assert energy(moved).min() >= found.energy - 1e-9


def test_expansions_end_within_their_bound_of_the_least_energy():
    rng = np.random.default_rng(3)
    n_exact = 0
    for _ in range(150):
        n, n_labels = int(rng.integers(2, 7)), int(rng.integers(2, 4))
        unary, ends, weights = random_model(rng, n, n_labels, int(rng.integers(1, 14)))
        mu = random_metric(rng, n_labels)
        least = label_energy(labelings(n, n_labels), unary, ends, weights, mu).min()
        between = mu[~np.eye(n_labels, dtype=bool)]
        factor = 2 * between.max() / between.min()
        found = alpha_expansion(unary, ends, weights, mu)
        assert least - 1e-9 <= found.energy <= factor * least + 1e-9
        swapped = alpha_beta_swap(unary, ends, weights, mu)
        assert swapped.energy >= least - 1e-9
        n_exact += found.energy <= least + 1e-9
    assert n_exact > 120


@pytest.mark.parametrize("move", MOVES)
def test_two_labels_need_one_cut(move):
    rng = np.random.default_rng(4)
    for _ in range(50):
        unary, ends, weights = random_model(rng, 12, 2, 40)
        best = minimize_binary(unary, ends, 1.5 * weights)
        found = MOVES[move](unary, ends, weights, Potts(1.5))
        assert found.energy == pytest.approx(best.energy, abs=1e-9)


@pytest.mark.parametrize(("ndim", "neighbors"), [(2, 4), (2, 8), (3, 6), (3, 26)])
@pytest.mark.parametrize("move", MOVES)
def test_grids_are_graphs(move, ndim, neighbors):
    rng = np.random.default_rng(5)
    grid = (5, 6, 4)[:ndim]
    offsets = grid_offsets(ndim, neighbors)
    pairs = grid_pairs(grid, offsets)
    for mu in (None, Symmetric.l1(4)):
        unary = rng.integers(0, 40, size=(*grid, 4)).astype(float)
        weights = rng.integers(0, 12, size=(len(offsets), *grid)).astype(float)
        on_grid = GRID_MOVES[move](unary, weights, mu)
        on_graph = MOVES[move](unary.reshape(-1, 4), pairs[:, 1:], pair_values(weights, pairs), mu)
        assert on_grid.energy == on_graph.energy
        assert np.array_equal(on_grid.labels.ravel(), on_graph.labels)
        single = GRID_MOVES[move](unary.astype(np.float32), weights.astype(np.float32), mu)
        assert single.energy == on_grid.energy
        warm = GRID_MOVES[move](unary, weights, mu, init=on_grid.labels)
        assert (warm.n_iter, warm.converged) == (1, True)
        weights[:, -1] = np.where(rng.random(weights[:, -1].shape) < 0.5, np.nan, -1)
        if ndim == 2:  # only the offset along the row is on the grid in the last row
            weights[0, -1] = 1
            assert GRID_MOVES[move](unary, weights, mu).converged


def test_cycles_can_be_cut_short_and_started_anew():
    rng = np.random.default_rng(6)
    unary = rng.uniform(0, 1, (30, 30, 8))
    weights = 0.2 * contrast_weights(rng.uniform(0, 1, (30, 30, 3)), 8)
    whole = alpha_expansion_grid(unary, weights)
    assert whole.n_iter > 2
    labels, energies = None, []
    for _ in range(whole.n_iter):
        part = alpha_expansion_grid(unary, weights, init=labels, max_iter=1)
        labels = part.labels
        energies.append(part.energy)
    assert energies == pytest.approx(whole.energies[1:].tolist())
    assert np.array_equal(labels, whole.labels)
    assert not alpha_expansion_grid(unary, weights, max_iter=1).converged


def test_swaps_do_without_the_triangle_inequality():
    rng = np.random.default_rng(7)
    mu = np.abs(np.subtract.outer(np.arange(4), np.arange(4))) ** 2
    unary, ends, weights = random_model(rng, 30, 4, 90)
    found = alpha_beta_swap(unary, ends, weights, mu)
    assert found.converged
    assert found.energies[-1] < found.energies[0]


@pytest.mark.parametrize("move", MOVES)
def test_enormous_and_equal_costs(move):
    unary = np.full((4, 3), 1e30)
    unary[:, 1] = -1e30
    found = MOVES[move](unary, [(0, 1), (1, 2), (2, 3)], [1e30, 0, 1.0])
    assert found.labels.tolist() == [1, 1, 1, 1]
    found = MOVES[move](np.zeros((4, 3)), [(0, 1), (1, 2), (2, 3)], np.ones(3))
    assert found.labels.tolist() == [0, 0, 0, 0]
    assert found.energies.tolist() == [0, 0]
