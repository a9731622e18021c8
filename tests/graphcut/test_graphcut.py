"""Cuts: equal to SciPy's flows and to enumeration, the same bits on any number of threads."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from crfield.graphcut import (
    cut_grids,
    grid_offsets,
    max_flow,
    minimize_binary,
    minimize_binary_grid,
)
from graphcut_reference import (
    binary_energy,
    grid_pairs,
    labelings,
    pair_values,
    scipy_energy,
    scipy_flow,
)

KINDS = [(2, 4), (2, 8), (3, 6), (3, 26)]
DTYPES = [np.int32, np.int64, np.float32, np.float64]


def random_grid(rng, ndim, longest=7):
    return tuple(rng.integers(1, (longest if ndim == 2 else 5), size=ndim).tolist())


def random_problem(rng, grid, n_offsets, largest):
    """Whole-number costs and capacities of both directions, many of them 0 or equal."""
    costs = rng.integers(-largest, largest + 1, size=grid)
    forward, backward = rng.integers(0, largest + 1, size=(2, n_offsets, *grid))
    style = rng.integers(4)
    if style == 0:
        forward[rng.random(forward.shape) < 0.5] = 0
        costs[rng.random(grid) < 0.5] = 0
    elif style == 1:
        forward[:], backward[:] = largest, largest // 2
    elif style == 2:
        costs[:] = np.sign(costs) * largest * 3
    return costs, forward, backward


def flattened(costs, forward, backward, offsets):
    """A grid as `binary_energy` and `scipy_energy` take it."""
    pairs = grid_pairs(costs.shape, offsets)
    return costs.ravel(), pairs[:, 1:], pair_values(forward, pairs), pair_values(backward, pairs)


def cut_one(costs, forward, backward=None, **options):
    """Labels and energy of a single grid."""
    found = cut_grids(
        costs[None], forward[None], backward=None if backward is None else backward[None],
        **options,
    )
    assert found.labels.dtype == np.uint8
    assert found.labels.shape == (1, *costs.shape)
    return found.labels[0], found.energies[0]


def assert_same(one, other):
    assert np.array_equal(one.labels, other.labels)
    assert np.array_equal(one.energies, other.energies)


def test_offsets_are_half_of_the_neighborhood():
    assert grid_offsets(2, 4) == ((0, 1), (1, 0))
    assert grid_offsets(2, 8) == ((0, 1), (1, 0), (1, 1), (1, -1))
    assert grid_offsets(3, 6) == ((0, 0, 1), (0, 1, 0), (1, 0, 0))
    every = grid_offsets(3, 26)
    assert every[:3] == grid_offsets(3, 6)
    assert len(set(every)) == 13
    assert all(offset > (0, 0, 0) for offset in every)


@pytest.mark.slow
@pytest.mark.parametrize(("ndim", "neighbors"), KINDS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_random_grids_have_the_energy_that_scipy_finds(ndim, neighbors, dtype):
    rng = np.random.default_rng([ndim, neighbors, DTYPES.index(dtype)])
    offsets = grid_offsets(ndim, neighbors)
    for _ in range(200):
        grid = random_grid(rng, ndim)
        largest = int(rng.choice([1, 3, 20, 10**6]))
        costs, forward, backward = random_problem(rng, grid, len(offsets), largest)
        if rng.random() < 0.3:
            backward = None
        labels, energy = cut_one(
            *(a if a is None else a.astype(dtype) for a in (costs, forward, backward))
        )
        values = flattened(costs, forward, forward if backward is None else backward, offsets)
        assert energy == scipy_energy(*values)
        assert energy == binary_energy(labels.ravel(), *values)


@pytest.mark.parametrize("neighbors", [4, 8])
def test_larger_images_have_the_energy_that_scipy_finds(neighbors):
    rng = np.random.default_rng(neighbors)
    offsets = grid_offsets(2, neighbors)
    grid = (40, 53)
    smooth = 60 * np.sin(np.arange(40) / 5)[:, None] * np.cos(np.arange(53) / 7)
    for strength in (5, 30, 200):
        costs = (smooth + rng.normal(0, 50, grid)).astype(np.int64)
        forward, backward = rng.integers(0, strength, size=(2, len(offsets), *grid))
        labels, energy = cut_one(costs, forward, backward)
        values = flattened(costs, forward, backward, offsets)
        assert energy == scipy_energy(*values) == binary_energy(labels.ravel(), *values)
        floats, float_energy = cut_one(*(a.astype(np.float32) for a in (costs, forward, backward)))
        assert np.array_equal(floats, labels)
        assert float_energy == energy


@pytest.mark.parametrize(("ndim", "neighbors"), KINDS)
def test_of_all_minimizers_the_one_with_the_fewest_ones(ndim, neighbors):
    rng = np.random.default_rng(ndim + neighbors)
    offsets = grid_offsets(ndim, neighbors)
    for _ in range(60):
        grid = (2, 2, 3) if ndim == 3 else (3, 3)
        costs, forward, backward = random_problem(rng, grid, len(offsets), int(rng.choice([1, 2])))
        labels, energy = cut_one(costs, forward, backward)
        every = labelings(costs.size, 2)
        energies = binary_energy(every, *flattened(costs, forward, backward, offsets))
        assert energy == energies.min()
        smallest = every[energies == energies.min()].min(0)  # minimizers are a lattice
        assert np.array_equal(labels.ravel(), smallest)


@pytest.mark.parametrize("dtype", DTYPES)
def test_capacities_of_any_size_side_by_side(dtype):
    rng = np.random.default_rng(DTYPES.index(dtype))
    largest = {np.int32: 2**31 - 1, np.int64: 2**55}.get(dtype, 1e30)
    smallest = 1 if dtype in (np.int32, np.int64) else 1e-30

    def draw(shape):
        sizes = np.exp(rng.uniform(np.log(smallest), np.log(largest), shape))
        return np.where(rng.random(shape) < 0.2, 0, np.minimum(sizes, largest)).astype(dtype)

    for _ in range(150):
        ndim, neighbors = KINDS[rng.integers(4)]
        grid = [(1, 1), (1, 9), (9, 1), (3, 3), (2, 4), (2, 5)][rng.integers(6)]
        grid = grid if ndim == 2 else (*grid, 1)
        offsets = grid_offsets(ndim, neighbors)
        forward, backward = draw((2, len(offsets), *grid))
        costs = draw(grid) * rng.choice([-1, 1], grid).astype(dtype)
        labels, energy = cut_one(costs, forward, backward)
        values = flattened(costs, forward, backward, offsets)
        least = binary_energy(labelings(costs.size, 2), *values).min()
        mine = binary_energy(labels.ravel(), *values)
        if costs.dtype.kind == "i":
            assert mine == least
            assert energy == float(least)
        else:
            size = np.abs(costs, dtype=np.float64).sum() + values[2].sum() + values[3].sum()
            assert mine <= least + 16 * np.finfo(dtype).eps * size
            assert energy == pytest.approx(mine, rel=1e-12, abs=1e-12 * size)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_small_whole_numbers_by_enumeration(data):
    ndim, neighbors = data.draw(st.sampled_from(KINDS))
    grid = data.draw(st.sampled_from([(1, 1), (1, 6), (6, 1), (2, 3), (3, 3)]))
    grid = grid if ndim == 2 else (1, *grid)
    offsets = grid_offsets(ndim, neighbors)
    costs = data.draw(arrays(np.int16, grid, elements=st.integers(-4, 4)))
    forward, backward = (
        data.draw(arrays(np.uint8, (len(offsets), *grid), elements=st.integers(0, 4)))
        for _ in range(2)
    )
    values = flattened(costs, forward, backward, offsets)
    energies = binary_energy(labelings(costs.size, 2), *values)
    assert cut_one(costs, forward, backward)[1] == energies.min()


def test_whole_numbers_of_64_bits_are_exact():
    rng = np.random.default_rng(5)
    for _ in range(100):
        grid = random_grid(rng, 2)
        costs, forward, backward = random_problem(rng, grid, 2, 50)
        labels, energy = cut_one(costs, forward, backward)
        shift = 2**40 + 1
        scaled, scaled_energy = cut_one(costs * shift, forward * shift, backward * shift)
        assert np.array_equal(scaled, labels)
        assert scaled_energy == energy * shift


def test_unsigned_and_narrow_numbers():
    costs = np.array([[-3, 2], [1, -1]], np.int8)
    weights = np.full((2, 2, 2), 200, np.uint8)
    labels, energy = cut_one(costs, weights)
    assert labels.tolist() == [[1, 1], [1, 1]]
    assert energy == -1
    halves, _ = cut_one(costs.astype(np.float16), weights.astype(np.float16))
    assert np.array_equal(halves, labels)


@pytest.mark.parametrize("grid", [(1, 1), (1, 1, 1)])
def test_a_single_cell_follows_its_cost(grid):
    weights = np.ones((len(grid), *grid))
    for cost, label in ((-1.0, 1), (1.0, 0), (0.0, 0)):
        labels, energy = cut_one(np.full(grid, cost), weights)
        assert labels.item() == label
        assert energy == min(cost, 0.0)


def test_entries_off_the_grid_are_ignored():
    rng = np.random.default_rng(3)
    for ndim, neighbors in KINDS:
        grid = (4, 5, 3)[:ndim]
        offsets = grid_offsets(ndim, neighbors)
        costs, forward, _ = random_problem(rng, grid, len(offsets), 9)
        expected = cut_one(costs.astype(float), forward.astype(float))
        pairs = grid_pairs(grid, offsets)
        for rubbish in (np.nan, np.inf, -1.0, 1e300):
            odd = np.full((len(offsets), costs.size), rubbish)
            odd[pairs[:, 0], pairs[:, 1]] = pair_values(forward, pairs)
            labels, energy = cut_one(costs.astype(float), odd.reshape(forward.shape))
            assert np.array_equal(labels, expected[0])
            assert energy == expected[1]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shared", [True, False])
def test_batches_are_their_grids_whatever_the_threads(dtype, shared):
    rng = np.random.default_rng(7)
    grid = (9, 11)
    costs = rng.normal(0, 30, (13, *grid)).astype(dtype)
    forward, backward = rng.uniform(0, 40, (2, 1 if shared else 13, 4, *grid)).astype(dtype)
    found = [cut_grids(costs, forward, backward=backward, threads=n) for n in (1, 2, 3, 16)]
    for other in found[1:]:
        assert_same(other, found[0])
    for b in range(13):
        mine = 0 if shared else b
        labels, energy = cut_one(costs[b], forward[mine], backward[mine])
        assert np.array_equal(labels, found[0].labels[b])
        assert energy == found[0].energies[b]
    mixed = cut_grids(costs, forward, backward=backward[:1])
    same = cut_grids(costs, forward, backward=np.repeat(backward[:1], len(forward), 0))
    assert_same(mixed, same)


def test_an_empty_batch():
    found = cut_grids(np.zeros((0, 3, 4)), np.zeros((1, 2, 3, 4)))
    assert found.labels.shape == (0, 3, 4)
    assert found.energies.shape == (0,)


def test_many_python_threads_at_once():
    rng = np.random.default_rng(8)
    costs, weights = rng.normal(size=(6, 20, 30)), rng.uniform(0, 1, (6, 2, 20, 30))
    expected = cut_grids(costs, weights, threads=1)
    with ThreadPoolExecutor(8) as pool:
        for found in pool.map(lambda _: cut_grids(costs, weights, threads=2), range(8)):
            assert_same(found, expected)


@pytest.mark.parametrize("dtype", [np.int16, np.float32, np.float64])
def test_two_columns_of_costs_instead_of_differences(dtype):
    rng = np.random.default_rng(9)
    unary = rng.integers(-50, 50, size=(6, 7, 2)).astype(dtype)
    weights = rng.integers(0, 30, size=(4, 6, 7)).astype(dtype)
    found = minimize_binary_grid(unary, weights)
    wide = unary.astype(np.int64)
    labels, energy = cut_one(wide[..., 1] - wide[..., 0], weights)
    assert np.array_equal(found.labels, labels)
    assert found.energy == energy + wide[..., 0].sum()
    backward = weights[::-1].copy()
    both = minimize_binary_grid(unary, weights, backward=backward, neighbors=8)
    labels, energy = cut_one(wide[..., 1] - wide[..., 0], weights, backward)
    assert np.array_equal(both.labels, labels)
    assert both.energy == energy + wide[..., 0].sum()


def random_graph(rng, n_nodes, n_edges):
    ends = rng.integers(0, n_nodes, size=(n_edges, 2))
    return ends[ends[:, 0] != ends[:, 1]]


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int32, np.float64])
def test_flows_through_random_graphs_are_scipys(dtype):
    rng = np.random.default_rng(10)
    for _ in range(1000):
        n_nodes = int(rng.integers(2, 20))
        ends = random_graph(rng, n_nodes, int(rng.integers(0, 60)))
        largest = int(rng.choice([0, 1, 10, 10**6]))
        forward, backward = rng.integers(0, largest + 1, size=(2, len(ends)))
        if rng.random() < 0.5:
            backward[:] = 0
        source, sink = rng.choice(n_nodes, 2, replace=False).tolist()
        found = max_flow(
            n_nodes, ends, forward.astype(dtype), backward.astype(dtype), source=source, sink=sink
        )
        assert found.value == scipy_flow(
            n_nodes, np.concatenate([ends[:, 0], ends[:, 1]]),
            np.concatenate([ends[:, 1], ends[:, 0]]), np.concatenate([forward, backward]), source,
            sink,
        )
        side = found.source_side
        assert side[source]
        assert not side[sink]
        leaves, enters = side[ends[:, 0]] & ~side[ends[:, 1]], ~side[ends[:, 0]] & side[ends[:, 1]]
        assert found.value == forward[leaves].sum() + backward[enters].sum()


def test_one_direction_is_the_default_and_whole_numbers_stay_whole():
    edges = [(0, 1), (1, 2), (3, 1), (3, 2)]
    found = max_flow(4, edges, [2**60, 2**60, 5, 7], source=0, sink=2)
    assert found.value == 2**60
    assert isinstance(found.value, int)
    assert found.source_side.tolist() == [True, False, False, False]
    found = max_flow(4, edges, [0.5, 2.5, 5, 7], source=3, sink=2)
    assert found.value == 9.5
    assert isinstance(found.value, float)
    assert max_flow(2, [], [], source=0, sink=1).value == 0


def test_graphs_with_tables_have_the_least_energy_of_all_labelings():
    rng = np.random.default_rng(11)
    for _ in range(400):
        n = int(rng.integers(1, 9))
        ends = random_graph(rng, n, int(rng.integers(0, 16)))
        unary = rng.normal(0, 3, (n, 2))
        tables = rng.normal(0, 2, (len(ends), 2, 2))
        excess = tables[:, 0, 0] + tables[:, 1, 1] - tables[:, 0, 1] - tables[:, 1, 0]
        tables[:, 0, 1] += np.maximum(excess, 0)
        found = minimize_binary(unary, ends, tables)
        every = labelings(n, 2)
        y, z = every[:, ends[:, 0]], every[:, ends[:, 1]]
        energies = unary[np.arange(n), every].sum(1)
        energies = energies + tables[np.arange(len(ends)), y, z].sum(1)
        assert found.energy == pytest.approx(energies.min(), abs=1e-9)
        mine = (every == found.labels).all(1)
        assert found.energy == pytest.approx(energies[mine].item(), abs=1e-9)


def test_weights_are_tables_and_grids_are_graphs():
    rng = np.random.default_rng(12)
    for ndim, neighbors in KINDS:
        grid = (6, 5, 4)[:ndim]
        offsets = grid_offsets(ndim, neighbors)
        unary = rng.integers(-9, 9, size=(*grid, 2))
        weights = rng.integers(0, 9, size=(len(offsets), *grid))
        pairs = grid_pairs(grid, offsets)
        by_grid = minimize_binary_grid(unary, weights)
        strengths = pair_values(weights, pairs)
        by_weight = minimize_binary(unary.reshape(-1, 2), pairs[:, 1:], strengths)
        tables = strengths[:, None, None] * np.array([[0, 1], [1, 0]])
        by_table = minimize_binary(unary.reshape(-1, 2), pairs[:, 1:], tables)
        for found in (by_weight, by_table):
            assert np.array_equal(found.labels, by_grid.labels.ravel())
            assert found.energy == by_grid.energy


def test_rounding_does_not_make_a_table_unfit():
    tables = np.array([[[0.1, 0.1], [0.3, 0.3]]], np.float32)
    assert minimize_binary(np.zeros((2, 2)), [(0, 1)], tables).labels.tolist() == [0, 0]
