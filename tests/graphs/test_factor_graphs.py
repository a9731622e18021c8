"""Belief propagation against enumeration, and its equations where it is not exact."""

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crfield.graphs import (
    DistanceFactors,
    FactorGraph,
    GridFactors,
    PatternFactors,
    PottsFactors,
    RayFactors,
    TableFactors,
    infer,
    k_best,
    sample,
    table_factors,
)
from graph_reference import Reference, table_cost
from random_graphs import random_graph
from refusal import refusal

SEEDS = st.integers(0, 2**32 - 1)
TEMPERATURES = st.sampled_from([0.0, 0.3, 1.0, 2.5])


def energies(reference):
    return reference.joint()[1]


def check_sums(result, reference, t=1.0):
    """Marginals, padded by zeros, and log Z are those of enumeration."""
    for found, expected in zip(result.marginals, reference.marginals(t), strict=True):
        np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-9)
        assert not found[len(expected) :].any()
    assert result.log_partition == pytest.approx(reference.log_partition(t), abs=1e-9)


@settings(max_examples=150, deadline=None)
@given(SEEDS, TEMPERATURES, st.booleans())
def test_forests_are_exact(seed, t, hard):
    rng = np.random.default_rng(seed)
    graph, reference = random_graph(rng, int(rng.integers(1, 8)), True, t, hard)
    assert graph.is_forest
    least = energies(reference).min()
    if not np.isfinite(least):
        assert "forbid all of them" in refusal(infer, graph, temperature=t)
        return
    result = infer(graph, temperature=t)
    assert result.exact
    assert result.converged
    if t > 0:
        check_sums(result, reference, t)
    else:
        assert result.min_marginals is not None
        for found, expected in zip(result.min_marginals, reference.min_marginals(), strict=True):
            np.testing.assert_allclose(found[: len(expected)], expected, atol=1e-9)
        assert result.energy == pytest.approx(least, abs=1e-9)
        assert reference.energy(tuple(result.labels)) == pytest.approx(least, abs=1e-9)
        assert result.log_partition == pytest.approx(-least, abs=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_twelve_variables(seed):
    rng = np.random.default_rng(seed)
    graph, reference = random_graph(rng, 12, True, 1.0, most_joint=10_000)
    assert len(set(graph.n_states)) > 1
    check_sums(infer(graph), reference)
    hard, reference = random_graph(rng, 12, True, 0.0, most_joint=10_000)
    assert infer(hard, temperature=0.0).energy == pytest.approx(energies(reference).min(), abs=1e-9)


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_factor_marginals_of_forests(seed):
    rng = np.random.default_rng(seed)
    graph, reference = random_graph(rng, int(rng.integers(2, 7)), True, 1.0)
    result = infer(graph)
    for i, group in enumerate(graph.factors):
        if isinstance(group, TableFactors | PottsFactors):
            variables = tuple(int(v) for v in group.variables)
            np.testing.assert_allclose(
                result.factor_marginals(i)[0], reference.factor_marginals(variables, 1.0),
                atol=1e-9,
            )


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from(["flooding", "sequential", "residual"]))
def test_schedules_find_what_is_exact_on_forests(seed, schedule):
    rng = np.random.default_rng(seed)
    graph, reference = random_graph(rng, int(rng.integers(1, 7)), True, 1.0)
    result = infer(graph, schedule=schedule, damping=0.0, tol=1e-12, max_iter=500)
    assert result.converged
    check_sums(result, reference)


def check_equations(graph, reference, t, schedule):
    """Messages of a fixed point, computed once more from the factors' costs by enumeration."""
    result = infer(graph, temperature=t, schedule=schedule, damping=0.5, tol=1e-10, max_iter=4000)
    if not result.converged:
        return False
    steps = result.messages
    out, back = (np.empty(graph.structure.n_messages) for _ in range(2))
    steps.propagation.messages(False, out)
    steps.propagation.messages(True, back)
    starts = np.cumsum([0, *(len(reference.costs[v]) for vs, _ in reference.factors for v in vs)])
    slot = 0
    slots: list[tuple[int, int, int]] = []  # variable, begin, end
    for variables, _ in reference.factors:
        for v in variables:
            slots.append((v, int(starts[slot]), int(starts[slot + 1])))
            slot += 1
    for i, (v, begin, end) in enumerate(slots):
        total = reference.costs[v] + sum(
            out[b:e] for j, (u, b, e) in enumerate(slots) if u == v and j != i
        )
        np.testing.assert_allclose(back[begin:end], total - total.min(), atol=1e-8)
    slot = 0
    for variables, cost in reference.factors:
        own = slots[slot : slot + len(variables)]
        slot += len(variables)
        for k, (_, begin, end) in enumerate(own):
            incoming = [np.zeros(e - b) if j == k else back[b:e] for j, (_, b, e) in enumerate(own)]
            part = Reference(incoming, [(tuple(range(len(own))), cost)])
            states, costs = part.joint()
            found = []
            for s in range(end - begin):
                rest = costs[states[:, k] == s]
                low = rest.min()
                if t > 0 and np.isfinite(low):
                    low -= t * np.log(np.exp((low - rest) / t).sum())
                found.append(low)
            expected = np.array(found)
            np.testing.assert_allclose(out[begin:end], expected - expected.min(), atol=1e-8)
    return True


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["flooding", "sequential", "residual"])
@pytest.mark.parametrize("t", [0.0, 1.0])
def test_fixed_points_on_loops_satisfy_the_equations(schedule, t):
    settled = 0
    for seed in range(25):
        rng = np.random.default_rng(seed)
        graph, reference = random_graph(rng, int(rng.integers(3, 13)), False, t)
        # A composition of several free units is several factors: leave those to the forests.
        if len(reference.factors) == graph.n_factors:
            settled += check_equations(graph, reference, t, schedule)
    assert settled >= 12


def loopy_pairs(rng, n, strength=0.3):
    """Most pairs of n variables with three states joined by tables."""
    costs = rng.normal(0, 1, (n, 3))
    edges = [(i, j) for i in range(n) for j in range(i) if rng.random() < 0.7]
    tables = rng.normal(0, strength, (len(edges), 3, 3))
    cost = [(e, table_cost(table)) for e, table in zip(edges, tables, strict=True)]
    return FactorGraph(costs, [TableFactors(edges, tables)]), Reference(list(costs), cost)


def slope_at(function, values, index, step=1e-5):
    """The central difference of a function of an array by one of its entries."""
    ends = []
    for sign in (1, -1):
        moved = np.array(values)
        moved[index] += sign * step
        ends.append(function(moved))
    return (ends[0] - ends[1]) / (2 * step)


def test_weak_loops_are_nearly_exact():
    for seed in range(5):
        graph, reference = loopy_pairs(np.random.default_rng(seed), 6)
        result = infer(graph)
        assert result.converged
        assert not result.exact
        np.testing.assert_allclose(result.marginals, reference.marginals(1.0), atol=0.02)
        assert result.log_partition == pytest.approx(reference.log_partition(1.0), abs=0.05)


def test_bethe_log_partition_has_the_beliefs_as_its_derivative():
    graph, _ = loopy_pairs(np.random.default_rng(3), 6)

    def bethe(costs):
        return infer(graph.with_costs(costs), tol=1e-12, max_iter=2000)

    costs = graph.costs.reshape(6, 3)
    for place in ((0, 0), (3, 2)):
        slope = slope_at(lambda moved: bethe(moved).log_partition, costs, place)
        assert slope == pytest.approx(-bethe(costs).marginals[place], abs=1e-7)


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.sampled_from(["potts", "tables", "mixed"]), st.sampled_from([0.0, 0.5, 1.0]),
       st.sampled_from([np.float32, np.float64]))
def test_the_grid_form_agrees_with_the_general_one(seed, kind, t, dtype):
    rng = np.random.default_rng(seed)
    height, width, n = (int(v) for v in rng.integers((2, 2, 1), (9, 12, 6)))
    costs = rng.normal(0, 2, (height * width, n)).astype(dtype)
    tables = [rng.normal(0, 1, (n, n)) for _ in range(2)]
    if kind == "potts":
        tables = [None, None]
    elif kind == "mixed":
        tables[1] = None
    grid = GridFactors(
        (height, width), rng.random((height, width - 1)) * 2, rng.random((height - 1, width)),
        *tables,
    )
    graph = FactorGraph(costs, [grid])
    assert graph.planes is not None
    pairs = TableFactors(grid.edges, grid.tables(np.array([n])))
    general = FactorGraph(costs.astype(np.float64), [pairs])
    fast = infer(graph, temperature=t, max_iter=7, tol=0, threads=2)
    slow = infer(general, temperature=t, max_iter=7, tol=0, schedule="flooding")
    close = 1e-9 if dtype == np.float64 else 2e-4
    if n > 1:  # else there is nothing to send
        np.testing.assert_allclose(fast.residuals, slow.residuals, rtol=close, atol=close)
    if t > 0:
        np.testing.assert_allclose(fast.marginals, slow.marginals, atol=close)
        np.testing.assert_allclose(fast.factor_marginals(), slow.factor_marginals(), atol=close)
    else:
        np.testing.assert_allclose(fast.min_marginals, slow.min_marginals, atol=10 * close)
    scale = 1 + abs(slow.log_partition)
    assert abs(fast.log_partition - slow.log_partition) < close * scale
    if dtype == np.float64:
        assert graph.energy(fast.labels) == pytest.approx(fast.energy)


def test_bits_do_not_depend_on_threads():
    rng = np.random.default_rng(0)
    costs = rng.normal(size=(40 * 50, 4)).astype(np.float32)
    graphs = [
        FactorGraph(costs, [GridFactors((40, 50), 0.7, 0.7)]),
        FactorGraph(costs, [PottsFactors(GridFactors((40, 50)).edges, 0.7)]),
    ]
    for graph in graphs:
        one, three = (infer(graph, max_iter=20, threads=k) for k in (1, 3))
        assert (one.marginals == three.marginals).all()
        assert one.log_partition == three.log_partition


@settings(max_examples=40, deadline=None)
@given(SEEDS, st.integers(1, 12))
def test_k_best_labels_of_forests(seed, k):
    rng = np.random.default_rng(seed)
    graph, reference = random_graph(rng, int(rng.integers(1, 6)), True, 0.0)
    expected = np.sort(energies(reference))
    expected = expected[np.isfinite(expected)][:k]
    ranked = k_best(graph, k)
    np.testing.assert_allclose(ranked.energies, expected, atol=1e-9)
    assert len(np.unique(ranked.labels, axis=0)) == len(ranked.labels)
    for labels, energy in zip(ranked.labels, ranked.energies, strict=True):
        assert reference.energy(tuple(labels)) == pytest.approx(energy, abs=1e-9)


def test_k_best_with_equal_energies():
    graph = FactorGraph(np.zeros((3, 2)), [PottsFactors([[0, 1], [1, 2]], 0.0)])
    ranked = k_best(graph, 20)
    assert ranked.labels.shape == (8, 3)
    assert len(np.unique(ranked.labels, axis=0)) == 8


@pytest.mark.parametrize("seed", range(6))
def test_samples_of_forests_have_the_joint_distribution(seed):
    rng = np.random.default_rng(seed)
    t = float(rng.choice([0.7, 1.0]))
    graph, reference = random_graph(rng, 5, True, t)
    states, p = reference.probabilities(t)
    count = 20000
    drawn = sample(graph, count, temperature=t, seed=seed)
    sizes = [len(c) for c in reference.costs]
    found = np.bincount(np.ravel_multi_index(tuple(drawn.T), sizes), minlength=len(states)) / count
    # Five standard deviations of every frequency.
    assert (np.abs(found - p) <= 5 * np.sqrt(p * (1 - p) / count) + 1e-3).all()
    assert (drawn == sample(graph, count, temperature=t, seed=seed)).all()
    assert (drawn[:500] != sample(graph, 500, temperature=t, seed=seed + 1)).any()


def test_long_chains_need_no_stack():
    rng = np.random.default_rng(1)
    n = 100_000
    edges = np.stack([np.arange(n - 1), np.arange(1, n)], 1)
    graph = FactorGraph(rng.normal(size=(n, 2)), [PottsFactors(edges, 0.5)])
    result = infer(graph)
    assert result.exact
    assert np.isfinite(result.marginals).all()
    best = infer(graph, temperature=0.0)
    assert graph.energy(best.labels) == pytest.approx(best.energy)
    assert -best.log_partition == pytest.approx(best.energy)


def test_long_rays_do_not_underflow():
    n = 2000
    costs = np.zeros((n, 2))
    costs[:, 1] = 3.0
    scores = np.full(n, 1e-300)
    scores[-1] = 1.0
    graph = FactorGraph(costs, [RayFactors([0, n], np.arange(n), scores, 1e-300)])
    result = infer(graph)
    assert np.isfinite(result.log_partition)
    assert result.marginals[-1, 1] > 0.999


def test_disconnected_variables_and_no_factors():
    costs = [np.array([0.0, 1.0]), np.array([2.0]), np.array([0.0, 0.0, 0.0])]
    result = infer(FactorGraph(costs))
    assert result.log_partition == pytest.approx(np.log(1 + np.exp(-1)) - 2 + np.log(3))
    assert result.marginals.shape == (3, 3)


def test_tables_of_all_shapes_are_put_together():
    rng = np.random.default_rng(0)
    tables = [((0, 1), rng.normal(size=(2, 3))), ((2,), rng.normal(size=2)),
              ((1, 2), rng.normal(size=(3, 2))), ((0, 2), rng.normal(size=(2, 2)))]
    costs = [np.zeros(2), np.zeros(3), np.zeros(2)]
    graph = FactorGraph(costs, table_factors(tables))
    reference = Reference(costs, [(v, table_cost(c)) for v, c in tables])
    for x in ((0, 0, 0), (1, 2, 1), (0, 1, 1)):
        assert graph.energy(x) == pytest.approx(reference.energy(x))


def test_a_million_edges_from_arrays():
    shape = (708, 708)
    graph = FactorGraph(np.zeros((708 * 708, 2)), [GridFactors(shape)])
    assert graph.n_factors > 1_000_000
    assert not graph.is_forest


def test_going_on_from_a_result_takes_fewer_iterations():
    graph, _ = loopy_pairs(np.random.default_rng(0), 8)
    first = infer(graph)
    again = infer(graph, init=first)
    assert again.n_iter == 1
    grid = FactorGraph(np.random.default_rng(0).normal(size=(30, 2)), [GridFactors((5, 6))])
    assert infer(grid, init=infer(grid)).n_iter == 1
    assert "same edges" in refusal(infer, graph, init=infer(grid))


@pytest.mark.parametrize("seed", range(8))
def test_reweighted_log_partition_is_a_bound_with_its_beliefs_as_derivative(seed):
    rng = np.random.default_rng(seed)
    pairs, reference = loopy_pairs(rng, 6, strength=2.0)
    (group,) = pairs.factors
    costs, edges, tables = pairs.costs.reshape(6, 3), group.variables.reshape(-1, 2), group.costs
    triple = rng.normal(0, 1.0, (1, 3, 3, 3))
    reference.factors.append(((0, 2, 4), table_cost(triple[0])))

    def bound(c, t):
        graph = FactorGraph(c, [TableFactors(edges, t), TableFactors([[0, 2, 4]], triple)])
        result = infer(graph, convex=True, tol=1e-12, max_iter=20000, damping=0.7)
        assert result.converged
        return result

    result = bound(costs, tables)
    assert (result.problem.forest_shares < 1).all()
    assert result.log_partition >= reference.log_partition(1.0) - 1e-9
    by_cost = slope_at(lambda c: bound(c, tables).log_partition, costs, (2, 1))
    assert by_cost == pytest.approx(-result.marginals[2, 1], abs=1e-7)
    by_entry = slope_at(lambda t: bound(costs, t).log_partition, tables, (0, 1, 2))
    assert by_entry == pytest.approx(-result.factor_marginals(0)[0, 1, 2], abs=1e-7)


def test_reweighting_changes_nothing_on_forests_and_halves_grids():
    rng = np.random.default_rng(0)
    graph, reference = random_graph(rng, 6, True, 1.0, False)
    if any(isinstance(group, PatternFactors) for group in graph.factors):
        graph = FactorGraph(reference.costs)
    assert (graph.forest_shares == 1).all()
    result = infer(graph, convex=True)
    np.testing.assert_allclose(result.marginals, infer(graph).marginals)
    grid = FactorGraph(rng.normal(size=(35, 2)), [GridFactors((5, 7))])
    assert (grid.forest_shares == 0.5).all()
    assert infer(grid, convex=True).converged
    pattern = FactorGraph(np.zeros((3, 2)), [
        PatternFactors([[0, 1, 2]], np.ones((1, 3)), np.zeros(1)),
        PottsFactors([[0, 1]], 1.0),
    ])
    assert "convex must be False with patterns" in refusal(infer, pattern, convex=True)


def test_empty_groups_of_factors():
    graph = FactorGraph(np.zeros((2, 2)), [PottsFactors([], 1.0), PottsFactors([[0, 1]], 1.0)])
    assert infer(graph).log_partition == pytest.approx(np.log(2 + 2 * np.exp(-1)))
    assert infer(FactorGraph(np.zeros((2, 2)), [TableFactors([], np.zeros(2))])).exact


@pytest.mark.parametrize("t", [0.0, 1.0])
def test_impossible_loops_among_variables_of_several_sizes(t):
    differ = np.array([[np.inf, 0.0], [0.0, np.inf]])
    costs = [[0.0, np.inf], [0.0, 0.0], [0.0, 0.0], [0.0, 0.0, 0.0]]
    graph = FactorGraph(costs, [TableFactors([[0, 1], [1, 2], [0, 2]], differ)])
    assert "forbid all of them" in refusal(infer, graph, temperature=t)


def ring(weights, n_states):
    n = len(weights)
    edges = [(i, (i + 1) % n) for i in range(n)]
    costs = [np.zeros(n_states)] * n
    tables = [w * (1 - np.eye(n_states)) for w in weights]
    pairs = [(e, table_cost(t)) for e, t in zip(edges, tables, strict=True)]
    return FactorGraph(costs, [PottsFactors(edges, weights)]), Reference(costs, pairs)


@pytest.mark.parametrize("schedule", ["flooding", "sequential", "residual"])
def test_equal_labels_on_loops_do_not_contradict_each_other(schedule):
    rng = np.random.default_rng(0)
    for _ in range(20):
        weights = list(rng.choice([-1.0, 1.0], 6))
        graph, reference = ring(weights, 2)
        result = infer(graph, temperature=0.0, schedule=schedule)
        assert result.energy == pytest.approx(energies(reference).min())
    differ = np.where(np.eye(3) > 0, np.inf, 0.0)
    colors = FactorGraph(np.zeros((3, 3)), [TableFactors([[0, 1], [1, 2], [0, 2]], differ)])
    assert infer(colors, temperature=0.0, schedule=schedule).energy == 0.0


def test_equal_labels_on_grids_do_not_contradict_each_other():
    table = np.where(np.eye(2) > 0, 1.0, 0.0)
    graph = FactorGraph(np.zeros((30, 2)), [GridFactors((5, 6), 1.0, 1.0, table, table)])
    result = infer(graph, temperature=0.0)
    assert result.energy == 0.0
    assert graph.energy(result.labels) == 0.0


def check_single_changes(result, every=1):
    """No other state of one of every so many variables helps."""
    for v, state in np.ndindex(result.min_marginals.shape):
        if v % every == 0:
            other = result.labels.copy()
            other[v] = state
            assert result.problem.energy(other, 0.0) >= result.energy - 1e-9


@pytest.mark.parametrize("kind", ["potts", "tables", "mixed"])
def test_no_change_of_one_label_on_a_grid_helps(kind):
    shape, n = (7, 9), 4
    for seed in range(6):
        rng = np.random.default_rng(seed)
        tables = [None if kind == "potts" else rng.normal(size=(n, n)) for _ in range(2)]
        if kind == "mixed":
            tables[1] = None
        weights = rng.random((7, 8)) * 3, rng.random((6, 9)) * 3
        graph = FactorGraph(rng.normal(size=(63, n)), [GridFactors(shape, *weights, *tables)])
        assert graph.planes is not None
        # One iteration leaves much to improve.
        one, two = (
            infer(graph, temperature=0.0, max_iter=1, threads=threads) for threads in (1, 2)
        )
        np.testing.assert_array_equal(one.labels, two.labels)
        assert one.min_marginals is not None
        assert one.energy < graph.energy(one.min_marginals.argmin(1))
        check_single_changes(one)


def test_trees_beside_loops_keep_their_exact_bound():
    rng = np.random.default_rng(0)
    costs = rng.normal(size=(8, 2))
    chain, clique = [[0, 1], [1, 2], [2, 3]], [[i, j] for i in range(4, 8) for j in range(4, i)]
    tables = rng.normal(size=(len(chain) + len(clique), 2, 2))
    both = FactorGraph(costs, [TableFactors(chain + clique, tables)])
    assert (both.forest_shares[:3] == 1).all()
    assert (both.forest_shares[3:] < 1).all()
    tree = FactorGraph(costs[:4], [TableFactors(chain, tables[:3])])
    shifted = [[i - 4, j - 4] for i, j in clique]
    loops = FactorGraph(costs[4:], [TableFactors(shifted, tables[3:])])
    together, one, two = (
        infer(graph, convex=True, tol=1e-10, max_iter=5000) for graph in (both, tree, loops)
    )
    assert one.exact
    assert together.log_partition == pytest.approx(one.log_partition + two.log_partition)
    np.testing.assert_allclose(together.marginals[:4], one.marginals, atol=1e-8)


def test_distances_with_one_ceiling_for_many_edges():
    edges = [[0, 1], [1, 2]]
    for ceilings in ((), (2.0,)):
        graph = FactorGraph(np.zeros((3, 4)), [DistanceFactors(edges, 1.0, *ceilings)])
        assert graph.energy([0, 3, 3]) == min(3.0, *ceilings, 3.0)


def test_what_another_graph_forbade_is_forgotten():
    edges, free = [[0, 1], [1, 2], [0, 2]], np.zeros((3, 2))
    hard = infer(FactorGraph(free, [TableFactors(edges, [[0, np.inf], [np.inf, np.inf]])]))
    soft = FactorGraph(free, [TableFactors(edges, np.zeros((2, 2)))])
    result = infer(soft, init=hard)
    assert result.converged
    np.testing.assert_allclose(result.marginals, 0.5, atol=1e-5)


def test_what_evidence_forbade_on_a_loop_is_forgotten():
    edges, equal = [[0, 1], [1, 2], [2, 3], [3, 0]], np.array([[0.0, np.inf], [np.inf, 0.0]])

    def ring_with(first):
        return FactorGraph([first, *np.zeros((3, 2))], [TableFactors(edges, equal)])

    hard = infer(ring_with([np.inf, 0.0]))
    result = infer(ring_with([0.0, 0.0]), init=hard)
    np.testing.assert_allclose(result.marginals, 0.5, atol=1e-5)
    other = infer(ring_with([0.0, np.inf]), init=hard)
    np.testing.assert_allclose(other.marginals[:, 0], 1.0)


def test_copies_of_results_have_all_but_messages():
    result = infer(ring([1.0, 0.5, -0.3, 0.2], 2)[0])
    again = copy.deepcopy(result)
    assert again.log_partition == result.log_partition
    assert again.status == result.status
    np.testing.assert_array_equal(again.marginals, result.marginals)
    assert "needs the messages" in refusal(again.factor_marginals)


def test_shares_where_many_factors_join_two_variables():
    edges = [[0, 1]] * 20 + [[2, 3], [3, 4], [4, 2]]
    shares = FactorGraph(np.zeros((6, 2)), [PottsFactors(edges, 0.1)]).forest_shares
    np.testing.assert_allclose(shares[:20], 1 / 20)
    np.testing.assert_allclose(shares[20:], 1 / 2)


def test_a_graph_keeps_what_it_was_given():
    table, edges = np.array([[0.0, 5.0], [5.0, 0.0]]), np.array([[0, 1]], np.int32)
    graph = FactorGraph([[0.0, 1.0], [0.0, 0.0]], [TableFactors(edges, table)])
    before = infer(graph).marginals
    table[:] = 0
    edges[:] = 1
    np.testing.assert_array_equal(infer(graph, temperature=1.0).marginals, before)
    assert graph.energy([0, 1]) == 5.0
    with pytest.raises(ValueError, match="read-only"):
        graph.costs[0] = 1.0


def test_graphs_can_be_copied_after_inference():
    graph = FactorGraph(np.zeros((2, 2)), [PottsFactors([[0, 1]], 1.0)])
    first = infer(graph)
    again = infer(copy.deepcopy(graph))
    np.testing.assert_array_equal(first.marginals, again.marginals)


def test_float32_grids_settle_at_their_rounding():
    rng = np.random.default_rng(0)
    for scale in (1.0, 1000.0):
        costs = (scale * rng.random((100, 2))).astype(np.float32)
        graph = FactorGraph(costs, [GridFactors((10, 10), scale / 3, scale / 3)])
        assert infer(graph, tol=1e-9).converged
        assert infer(graph, tol=0).n_iter == 200, "0 does all iterations"
    with pytest.raises(ValueError, match="weights times tables"):
        GridFactors((2, 2), 1e20, 1e20, np.full((2, 2), 1e20), np.full((2, 2), 1e20))
    warm = FactorGraph(np.zeros((4, 2), np.float32), [GridFactors((2, 2))])
    assert np.isfinite(infer(warm, temperature=1e99).marginals).all()


def test_sequential_messages_go_to_and_fro():
    """Along a line one sweep each way is all there is; the third finds that nothing moves."""
    rng = np.random.default_rng(0)
    edges = np.column_stack([np.arange(19), np.arange(1, 20)])
    line = FactorGraph(rng.normal(size=(20, 3)), [PottsFactors(edges, rng.uniform(0.5, 2, 19))])
    found = infer(line, schedule="sequential", damping=0.0)
    assert found.converged
    assert found.n_iter == 3
    np.testing.assert_allclose(found.marginals, infer(line).marginals, atol=1e-12)


def test_a_damped_factor_without_neighbors_is_sent_until_it_settles():
    rng = np.random.default_rng(0)
    pair = FactorGraph(rng.normal(size=(2, 3)), [PottsFactors([[0, 1]], 1.5)])
    found = infer(pair, schedule="residual", damping=0.5, tol=1e-12)
    assert found.converged
    np.testing.assert_allclose(found.marginals, infer(pair).marginals, atol=1e-11)


def test_reweighted_factor_marginals_of_every_group_fit_those_of_variables():
    """A triangle, which takes two forests, and an edge apart from it, which is one."""
    rng = np.random.default_rng(1)
    groups = [[[0, 1], [1, 2], [0, 2]], [[3, 4]]]
    graph = FactorGraph(rng.normal(size=(5, 3)), [PottsFactors(edges, 1.5) for edges in groups])
    np.testing.assert_allclose(graph.forest_shares, [0.5, 0.5, 0.5, 1])
    found = infer(graph, convex=True, tol=1e-12, max_iter=2000)
    for number, edges in enumerate(groups):
        for joint, (u, v) in zip(found.factor_marginals(number), edges, strict=True):
            np.testing.assert_allclose(joint.sum(1), found.marginals[u], atol=1e-9)
            np.testing.assert_allclose(joint.sum(0), found.marginals[v], atol=1e-9)


def test_a_hub_with_many_leaves_by_residuals():
    n = 3000
    edges = [[0, i] for i in range(1, n)] + [[1, 2]]
    graph = FactorGraph(np.zeros((n, 2)), [PottsFactors(edges, 0.1)])
    assert infer(graph, schedule="residual", tol=1e-4).converged


@pytest.mark.parametrize("convex", [False, True])
def test_labels_chosen_in_turn_are_no_worse_than_those_chosen_apart(convex):
    for seed in range(8):
        rng = np.random.default_rng(seed)
        edges = GridFactors((6, 7)).edges
        tables = rng.normal(0, 2.0, (len(edges), 4, 4))
        graph = FactorGraph(rng.normal(size=(42, 4)), [TableFactors(edges, tables)])
        result = infer(graph, temperature=0.0, convex=convex, max_iter=60)
        assert result.min_marginals is not None
        apart = result.min_marginals.argmin(1)
        assert result.energy <= graph.energy(apart, 0.0) + 1e-9
        check_single_changes(result, every=5)
