"""Chains: equal to enumeration, the same bits on any number of threads, no length too long."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from chain_reference import enumerate_chain, lexicographic_best, log_forward_backward
from crfield.graphs import Chains, best, infer, k_best, sample


def random_batch(rng, *, per_edge, scale=2.0, longest=7, most_states=4, whole=False):
    """Ragged chains, some of a single node, and their costs and transitions chain by chain."""
    n_states = int(rng.integers(1, most_states + 1))
    lengths = rng.integers(1, longest + 1, size=rng.integers(1, 5))
    draw = (
        (lambda *shape: rng.integers(-2, 3, size=shape)) if whole
        else (lambda *shape: scale * rng.standard_normal(shape))
    )
    costs = [draw(t, n_states) for t in lengths]
    shared = draw(n_states, n_states)
    if per_edge:
        tables = [draw(t - 1, n_states, n_states) for t in lengths]
        return Chains(costs, tables), costs, tables
    return Chains(costs, shared), costs, [shared] * len(lengths)


@pytest.mark.slow
@pytest.mark.parametrize("per_edge", [False, True])
@pytest.mark.parametrize("scale", [1.0, 20.0, 400.0, 1e6])
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_marginals_and_partition_functions_equal_enumeration(per_edge, scale, temperature):
    rng = np.random.default_rng([per_edge, int(scale), int(10 * temperature)])
    for _ in range(12):
        chains, costs, tables = random_batch(rng, per_edge=per_edge, scale=scale)
        found = infer(chains, temperature=temperature)
        every = [enumerate_chain(*pair, temperature) for pair in zip(costs, tables, strict=True)]
        np.testing.assert_allclose(
            found.log_partition, [e.log_partition for e in every], rtol=1e-12, atol=1e-9
        )
        np.testing.assert_allclose(
            found.marginals, np.concatenate([e.marginals for e in every]), atol=1e-9
        )
        edges = np.concatenate([e.edge_marginals for e in every])
        np.testing.assert_allclose(found.factor_marginals(), edges, atol=1e-9)
        np.testing.assert_allclose(found.transition_marginals, edges.sum(0), atol=1e-9)
        least = best(chains)
        np.testing.assert_allclose(least.energy, [e.energies.min() for e in every], rtol=1e-12)
        np.testing.assert_allclose(chains.energy(least.labels), least.energy, rtol=1e-12)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans())
def test_whole_numbers_are_minimized_exactly_with_ties_to_the_lower_label(seed, per_edge):
    rng = np.random.default_rng(seed)
    chains, costs, tables = random_batch(rng, per_edge=per_edge, whole=True)
    found = best(chains)
    for labels, energy, cost, table in zip(
        chains.split(found.labels), found.energy, costs, tables, strict=True
    ):
        assert labels.tolist() == lexicographic_best(cost, table)
        assert energy == enumerate_chain(cost, table).energies.min()


@pytest.mark.parametrize("per_edge", [False, True])
def test_the_k_best_labelings_are_those_of_a_sorted_enumeration(per_edge):
    rng = np.random.default_rng(3)
    for _ in range(15):
        chains, costs, tables = random_batch(rng, per_edge=per_edge, longest=5)
        k = int(rng.integers(1, 12))
        found = k_best(chains, k)
        first = chains.split(best(chains).labels)
        for c, (cost, table) in enumerate(zip(costs, tables, strict=True)):
            every = enumerate_chain(cost, table)
            order = np.argsort(every.energies)[:k]
            np.testing.assert_array_equal(found.labels[c], every.labels[order])
            np.testing.assert_allclose(found.energies[c], every.energies[order], atol=1e-12)
            np.testing.assert_array_equal(found.labels[c][0], first[c])


def test_equal_labelings_come_in_the_order_of_their_last_labels():
    found = k_best(Chains(np.zeros((3, 2)), np.zeros((2, 2))), 20)
    every = sorted(itertools.product(range(2), repeat=3), key=lambda states: states[::-1])
    assert len(found.labels) == 1
    assert found.labels[0].tolist() == [list(states) for states in every]
    np.testing.assert_array_equal(found.energies[0], np.zeros(8))


@pytest.mark.parametrize("per_edge", [False, True])
@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_samples_have_the_enumerated_distribution(per_edge, scale):
    rng = np.random.default_rng(5)
    costs = [rng.standard_normal((3, 3)), rng.standard_normal((1, 3)), rng.standard_normal((2, 3))]
    tables = [rng.standard_normal((len(c) - 1, 3, 3)) for c in costs]
    if not per_edge:
        tables = [rng.standard_normal((3, 3))] * 3
    if scale > 1:  # too far apart for anything but logarithms
        for cost in costs:
            cost[:, 0] += scale
        for table in tables[:1] if not per_edge else tables:
            table[..., 1:, 1:] += 2 * scale
    n_samples = 20_000
    chains = Chains(costs, tables if per_edge else tables[0])
    drawn = chains.split(sample(chains, n_samples, seed=11).T)
    for part, cost, table in zip(drawn, costs, tables, strict=True):
        every = enumerate_chain(cost, table)
        number = part.T @ (3 ** np.arange(len(cost))[::-1])
        seen = np.bincount(number, minlength=len(every.energies))
        expected = n_samples * np.exp(-every.energies + every.log_partition * -1)
        rare = expected < 5
        assert seen[rare].sum() <= expected[rare].sum() + 5 * np.sqrt(expected[rare].sum()) + 5
        chi_square = ((seen - expected)[~rare] ** 2 / expected[~rare]).sum()
        freedom = max((~rare).sum() - 1, 1)
        assert chi_square < freedom + 5 * np.sqrt(2 * freedom)


def test_samples_depend_on_the_seed_and_not_on_threads_or_on_other_chains():
    rng = np.random.default_rng(6)
    costs = [rng.standard_normal((t, 5)) for t in rng.integers(1, 200, size=40)]
    table = rng.standard_normal((5, 5))
    chains = Chains(costs, table)
    first = sample(chains, 3, seed=1, threads=1)
    np.testing.assert_array_equal(first, sample(chains, 3, seed=1, threads=5))
    np.testing.assert_array_equal(
        first[:2, : len(costs[0])], sample(Chains(costs[:1], table), 2, seed=1)
    )
    assert (first != sample(chains, 3, seed=2)).mean() > 0.3
    assert (first[0] != first[1]).mean() > 0.3


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("per_edge", [False, True])
def test_the_number_of_threads_changes_no_bit(dtype, per_edge):
    rng = np.random.default_rng(7)
    lengths = rng.integers(1, 300, size=50)
    costs = rng.standard_normal((lengths.sum(), 7)).astype(dtype)
    shape = (lengths.sum() - 50, 7, 7) if per_edge else (7, 7)
    table = rng.standard_normal(shape).astype(dtype)
    chains = Chains(costs, table, lengths=lengths)
    sums, minima = (
        [infer(chains, temperature=t, threads=threads) for threads in (1, 2, 7)] for t in (1, 0)
    )
    assert sums[0].marginals.dtype == dtype
    for results in (sums, minima):
        for other in results[1:]:
            for name in ("labels", "energy", "log_partition", "marginals", "transition_marginals"):
                np.testing.assert_array_equal(getattr(results[0], name), getattr(other, name))
            np.testing.assert_array_equal(results[0].factor_marginals(), other.factor_marginals())


@pytest.mark.parametrize("n_states", [1, 2, 3, 4, 5, 8, 26, 28, 33, 70])
def test_every_number_of_states_agrees_with_logarithms(n_states):
    rng = np.random.default_rng(n_states)
    costs = 3 * rng.standard_normal((30, n_states))
    table = rng.standard_normal((n_states, n_states))
    log_partition, marginals, counts = log_forward_backward(costs, table)
    chains = Chains(costs, table)
    found = infer(chains)
    np.testing.assert_allclose(found.log_partition, [log_partition], rtol=1e-12)
    np.testing.assert_allclose(found.marginals, marginals, atol=1e-12)
    np.testing.assert_allclose(found.transition_marginals, counts, atol=1e-11)
    single = infer(Chains(costs.astype(np.float32), table.astype(np.float32)))
    np.testing.assert_allclose(single.marginals, marginals, atol=2e-5)
    assert single.marginals.dtype == np.float32
    for result in (found, best(chains)):
        assert chains.energy(result.labels) == pytest.approx(result.energy, rel=1e-12)


@pytest.mark.parametrize("temperature", [0.3, 0.7, 3.0])
@pytest.mark.parametrize("size", [1e15, 1e19, 1e22, 1e29])
def test_costs_that_swallow_all_else_leave_probabilities(size, temperature):
    rng = np.random.default_rng(13)
    n = 3000
    alone = size * rng.uniform(-1, 1, size=(n, 1))
    alone[0] = 3.5697022210810327e19
    found = infer(Chains(alone, [[0.0]], lengths=np.ones(n, int)), temperature=temperature)
    np.testing.assert_array_equal(found.marginals, 1)
    np.testing.assert_allclose(found.log_partition, -alone[:, 0], rtol=1e-12)
    even = infer(
        Chains(np.repeat(alone, 2, 1), np.zeros((2, 2)), lengths=np.ones(n, int)),
        temperature=temperature,
    )
    np.testing.assert_array_equal(even.marginals, 0.5)
    table = infer(Chains(np.zeros((2, 1)), alone[:1]), temperature=temperature)
    np.testing.assert_array_equal(table.marginals, 1)
    np.testing.assert_allclose(table.log_partition, [-alone[0, 0]], rtol=1e-12)


@pytest.mark.parametrize("scale", [1.0, 1e6])
def test_equal_tables_of_edges_draw_what_one_table_draws(scale):
    rng = np.random.default_rng(14)
    lengths = np.array([1, 7, 20])
    costs, table = scale * rng.standard_normal((28, 5)), scale * rng.standard_normal((5, 5))
    tables = np.broadcast_to(table, (25, 5, 5))
    shared, each = (Chains(costs, t, lengths=lengths) for t in (table, tables))
    one = sample(shared, 600, seed=3)
    np.testing.assert_array_equal(one, sample(each, 600, seed=3))
    np.testing.assert_array_equal(one[:2], sample(shared, 2, seed=3))


def test_narrow_and_wide_numbers():
    costs, table = np.array([[1 + 1e-10, 1.0]]), np.zeros((2, 2))
    narrow = Chains(costs.astype(np.float16), table.astype(np.float16))
    assert infer(narrow).marginals.dtype == np.float32
    wide = Chains(costs.astype(np.longdouble), table)
    assert infer(wide).marginals.dtype == np.float64
    assert best(Chains(costs.astype(np.longdouble), table.astype(np.longdouble))).labels == [1]


@pytest.mark.slow
def test_a_hundred_thousand_nodes():
    rng = np.random.default_rng(8)
    costs, table = 4 * rng.standard_normal((100_000, 3)), rng.standard_normal((3, 3))
    log_partition, marginals, counts = log_forward_backward(costs, table)
    chains = Chains(costs, table)
    found, least = infer(chains), best(chains)
    np.testing.assert_allclose(found.log_partition, [log_partition], rtol=1e-9)
    np.testing.assert_allclose(found.marginals, marginals, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.transition_marginals, counts, rtol=1e-9)
    assert np.isfinite(least.energy).all()
    assert chains.energy(least.labels) == pytest.approx(least.energy, rel=1e-12)
    assert k_best(chains, 3).labels[0].shape == (3, 100_000)
    assert set(np.unique(sample(chains))) == {0, 1, 2}


def test_forbidden_transitions_leave_finite_results():
    rng = np.random.default_rng(9)
    costs = (50 * rng.standard_normal((1000, 4))).astype(np.float32)
    table = np.full((4, 4), 1e6, np.float32)
    table[np.arange(4), (np.arange(4) + 1) % 4] = 0  # only round in one direction
    chains = Chains(costs, table)
    found = infer(chains)
    expected = enumerate_circle(costs)
    np.testing.assert_allclose(found.log_partition, [expected], rtol=1e-9)
    np.testing.assert_allclose(found.marginals.sum(1), 1, atol=1e-6)
    labels = best(chains).labels
    assert ((labels[1:] - labels[:-1]) % 4 == 1).all()


def enumerate_circle(costs):
    """log Z over the four labelings that go round."""
    steps = np.arange(len(costs))
    energies = [costs[steps, (steps + k) % 4].sum(dtype=np.float64) for k in range(4)]
    return -min(energies) + np.log(np.exp(min(energies) - np.array(energies)).sum())


def test_a_state_too_unlikely_for_a_number_may_win_in_the_end():
    costs = np.array([[0.0, 800.0]] + 10 * [[150.0, 0.0]])
    table = np.array([[0.0, 1e6], [1e6, 0.0]])
    chains = Chains([costs, costs[:5]], table)
    found = infer(chains)
    np.testing.assert_allclose(found.log_partition, [-800, -600], rtol=1e-12)
    first, second = chains.split(found.marginals)
    np.testing.assert_allclose(first, [[0, 1]] * 11, atol=1e-12)
    np.testing.assert_allclose(second, [[1, 0]] * 5, atol=1e-12)
    np.testing.assert_allclose(found.transition_marginals, [[4, 0], [0, 10]], atol=1e-12)
    assert sample(Chains(costs, table)).tolist() == [[1] * 11]


def test_temperature_joins_sums_and_minima():
    rng = np.random.default_rng(10)
    costs = [rng.standard_normal((5, 3)), rng.standard_normal((1, 3))]
    table = rng.standard_normal((3, 3))
    cold, zero = (infer(Chains(costs, table), temperature=t) for t in (1e-4, 0))
    for name in ("log_partition", "marginals", "transition_marginals"):
        np.testing.assert_allclose(getattr(cold, name), getattr(zero, name), atol=1e-9)
    np.testing.assert_allclose(cold.factor_marginals(), zero.factor_marginals(), atol=1e-9)
    np.testing.assert_array_equal(zero.log_partition, -zero.energy)


def test_all_forms_of_input_mean_the_same():
    rng = np.random.default_rng(12)
    costs, table = rng.standard_normal((3, 4, 2)), rng.standard_normal((2, 2))
    chains = Chains(list(costs), table)
    expected = infer(chains)
    for form in (
        Chains(costs, table),
        Chains(costs.reshape(12, 2), table, lengths=[4, 4, 4]),
        Chains(costs, np.broadcast_to(table, (9, 2, 2))),
        Chains([c.tolist() for c in costs], [np.broadcast_to(table, (3, 2, 2))] * 3),
    ):
        found = infer(form)
        np.testing.assert_array_equal(best(form).labels, best(chains).labels)
        np.testing.assert_allclose(found.marginals, expected.marginals, atol=1e-14)
        np.testing.assert_allclose(found.log_partition, expected.log_partition, rtol=1e-14)
    alone = infer(Chains(costs[1], table))
    np.testing.assert_array_equal(alone.marginals, chains.split(expected.marginals)[1])
