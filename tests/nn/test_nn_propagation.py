"""Unrolled belief propagation on graphs: exact on trees, fixed points on loops, gradients."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_device import DEVICE, torch

# isort: split
import reference
from crfield.graphs import FactorGraph, TableFactors, infer
from crfield.nn import propagate_graph
from crfield.nn.structured.messages import send_potts, soft_maximum
from refusal import refusal

SQUARE = [(0, 1), (1, 2), (3, 2), (0, 3), (1, 3)]


def random_graph(edges, n_nodes, n_labels=3, n_items=2, seed=0, scale=1.0):
    rng = torch.Generator().manual_seed(seed)
    costs = scale * torch.randn(n_items, n_nodes, n_labels, generator=rng, dtype=torch.float64)
    tables = scale * torch.randn(
        n_items, len(edges), n_labels, n_labels, generator=rng, dtype=torch.float64
    )
    pairs = torch.tensor(edges, dtype=torch.long).reshape(-1, 2)
    return costs.to(DEVICE), pairs.to(DEVICE), tables.to(DEVICE)


def all_energies(costs, edges, tables):
    """E of every labeling (L, L, ...) of one graph."""
    n_nodes, n_labels = costs.shape
    return reference.graph_energies(costs, edges, tables)[1].reshape([n_labels] * n_nodes)


@settings(deadline=None, max_examples=30)
@given(
    st.lists(st.integers(0, 9), min_size=0, max_size=4), st.integers(0, 2**31),
    st.sampled_from([0.0, 0.5, 1.0, 3.0]), st.booleans(),
)
def test_trees_by_enumeration(above, seed, temperature, is_flipped):
    edges = [(min(p, t), t + 1) for t, p in enumerate(above)]
    edges = [pair[::-1] if is_flipped else pair for pair in edges]
    n = len(above) + 1
    costs, pairs, tables = random_graph(edges, n, seed=seed)
    found = propagate_graph(costs, pairs, tables, max_iter=max(1, n - 1), temperature=temperature)
    for b in range(2):
        energies = all_energies(costs[b].cpu().numpy(), edges, tables[b].cpu().numpy())
        if temperature == 0:
            assert found.log_partition[b].item() == pytest.approx(-energies.min(), abs=1e-9)
            for i in range(n):
                wanted = energies.min() - np.moveaxis(energies, i, 0).reshape(3, -1).min(1)
                np.testing.assert_allclose(found.log_beliefs[b, i].cpu(), wanted, atol=1e-9)
            best = np.unravel_index(energies.argmin(), energies.shape)
            assert found.labels[b].tolist() == list(map(int, best))
            continue
        weights = np.exp(-(energies - energies.min()) / temperature)
        log_z = temperature * np.log(weights.sum()) - energies.min()
        assert found.log_partition[b].item() == pytest.approx(log_z, abs=1e-9)
        weights /= weights.sum()
        for i in range(n):
            wanted = np.moveaxis(weights, i, 0).reshape(3, -1).sum(1)
            np.testing.assert_allclose(found.marginals[b, i].cpu(), wanted, atol=1e-9)
        for e, (i, j) in enumerate(edges):
            wanted = np.moveaxis(weights, (i, j), (0, 1)).reshape(3, 3, -1).sum(2)
            np.testing.assert_allclose(found.edge_marginals[b, e].cpu(), wanted, atol=1e-9)
    more = propagate_graph(costs, pairs, tables, max_iter=n, temperature=temperature)
    assert more.residuals.max() < 1e-9


def test_temperatures_beyond_float32_are_refused():
    edges = torch.tensor([[0, 1]], device=DEVICE)
    zeros = torch.zeros(1, 2, 2, device=DEVICE)
    message = refusal(propagate_graph, zeros, edges, zeros[0], temperature=1e39)
    assert "temperature must not exceed" in message


@pytest.mark.parametrize("temperature", [0.7, 1.0])
@pytest.mark.parametrize("damping", [0.0, 0.4])
def test_fixed_points_on_loops(temperature, damping):
    costs, edges, tables = random_graph(SQUARE, 4, scale=0.7)
    found = propagate_graph(
        costs, edges, tables, max_iter=300, damping=damping, temperature=temperature
    )
    assert found.residuals.max() < 1e-10
    nodes, pairs = found.marginals, found.edge_marginals
    for e, (i, j) in enumerate(SQUARE):
        torch.testing.assert_close(pairs[:, e].sum(2), nodes[:, i], rtol=0, atol=1e-8)
        torch.testing.assert_close(pairs[:, e].sum(1), nodes[:, j], rtol=0, atol=1e-8)
    # Consistent beliefs that multiply to exp(-E / T) up to a constant are a fixed point of BP.
    log_nodes, log_pairs = found.log_beliefs.cpu().numpy(), found.edge_log_beliefs.cpu().numpy()
    for b in range(2):
        energies = all_energies(costs[b].cpu().numpy(), SQUARE, tables[b].cpu().numpy())
        degrees = np.bincount(np.ravel(SQUARE), minlength=4)
        product = -all_energies((degrees[:, None] - 1) * log_nodes[b], SQUARE, -log_pairs[b])
        constant = energies / temperature + product
        assert np.ptp(constant) < 1e-8
        # And the constant is the Bethe approximation of log Z.
        assert -found.log_partition[b].item() / temperature == pytest.approx(
            constant.flat[0], abs=1e-8
        )


def test_damping_is_the_share_that_a_log_message_keeps():
    costs, edges, tables = random_graph([(0, 1)], 2)
    found = propagate_graph(costs, edges, tables, max_iter=2, damping=0.9)
    # The whole message comes anew in both iterations; a constant in it does not count.
    message = torch.logsumexp(-tables[:, 0] - costs[:, 1, None], 2)
    wanted = torch.log_softmax(-costs[:, 0] + (1 - 0.9**2) * message, 1)
    torch.testing.assert_close(found.log_beliefs[:, 0], wanted)


def test_a_message_in_the_residual_is_undamped():
    costs, edges, tables = random_graph(SQUARE, 4)
    once = propagate_graph(costs, edges, tables, max_iter=1, damping=0.0)
    kept = propagate_graph(costs, edges, tables, max_iter=1, damping=0.9)
    torch.testing.assert_close(once.residuals, kept.residuals)
    assert bool((once.residuals > 0).all())


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_fixed_points_are_those_of_graphs(temperature):
    costs, edges, tables = random_graph(SQUARE, 4, scale=0.7)
    found = propagate_graph(
        costs, edges, tables, max_iter=300, damping=0.4, temperature=temperature
    )
    for b in range(2):
        graph = FactorGraph(
            costs[b].cpu().numpy(), [TableFactors(SQUARE, tables[b].cpu().numpy())]
        )
        wanted = infer(graph, temperature=temperature, max_iter=300, damping=0.4, tol=1e-12)
        assert found.log_partition[b].item() == pytest.approx(wanted.log_partition, abs=1e-8)
        if temperature == 0:
            np.testing.assert_allclose(-found.log_beliefs[b].cpu(), wanted.min_marginals, atol=1e-8)
        else:
            np.testing.assert_allclose(found.marginals[b].cpu(), wanted.marginals, atol=1e-8)
            np.testing.assert_allclose(
                found.edge_marginals[b].cpu(), wanted.factor_marginals(0), atol=1e-8
            )


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("shared", [False, True])
def test_gradients_go_through_the_iterations(temperature, shared):
    costs, edges, tables = random_graph(SQUARE, 4)

    def outputs(costs, tables):
        found = propagate_graph(
            costs, edges, tables, max_iter=3, damping=0.3, temperature=temperature
        )
        return found.log_beliefs, found.edge_log_beliefs, found.log_partition

    table = tables[0, 0] if shared else tables
    inputs = [values.clone().requires_grad_() for values in (costs, table)]
    assert torch.autograd.gradcheck(outputs, inputs)


def test_at_a_fixed_point_the_derivative_of_log_z_is_a_belief():
    costs, edges, tables = random_graph(SQUARE, 4, scale=0.5)
    costs.requires_grad_()
    tables.requires_grad_()
    found = propagate_graph(costs, edges, tables, max_iter=200)
    by_costs, by_tables = torch.autograd.grad(found.log_partition.sum(), (costs, tables))
    torch.testing.assert_close(by_costs, -found.marginals)
    torch.testing.assert_close(by_tables, -found.edge_marginals)


def test_edges_may_come_in_any_order_and_direction():
    costs, edges, tables = random_graph(SQUARE, 4)
    wanted = propagate_graph(costs, edges, tables, max_iter=7, damping=0.2)
    order = torch.tensor([3, 0, 4, 1, 2], device=DEVICE)
    found = propagate_graph(costs, edges[order], tables[:, order], max_iter=7, damping=0.2)
    torch.testing.assert_close(found.log_beliefs, wanted.log_beliefs)
    torch.testing.assert_close(found.edge_log_beliefs, wanted.edge_log_beliefs[:, order])
    turned = propagate_graph(
        costs, edges.flip(1), tables.transpose(2, 3), max_iter=7, damping=0.2
    )
    torch.testing.assert_close(turned.log_beliefs, wanted.log_beliefs)
    torch.testing.assert_close(turned.log_partition, wanted.log_partition)
    single = propagate_graph(costs.float(), edges, tables.float(), max_iter=7, damping=0.2)
    assert single.log_beliefs.dtype == single.log_partition.dtype == torch.float32
    torch.testing.assert_close(single.marginals.double(), wanted.marginals, rtol=0, atol=1e-5)


def test_a_graph_without_edges():
    costs, edges, tables = random_graph([], 3)
    found = propagate_graph(costs, edges, tables)
    torch.testing.assert_close(found.marginals, torch.softmax(-costs, -1))
    torch.testing.assert_close(found.log_partition, torch.logsumexp(-costs, -1).sum(1))
    assert found.residuals.tolist() == [0, 0]


@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_potts_messages_are_those_of_a_table(temperature):
    rng = torch.Generator().manual_seed(0)
    scores = 5 * torch.randn(3, 4, 6, generator=rng, dtype=torch.float64)
    weights = 10 * torch.randn(3, 1, 6, generator=rng, dtype=torch.float64)
    scores[0, :, 0], weights[0, 0, 1] = 1.0, 0.0
    weights[1, 0, 0] = -200.0
    scores[1, :, 0] = torch.tensor([0.0, -900.0, -1000.0, -1100.0], dtype=torch.float64)

    def by_table(scores, weights):
        table = weights[:, :, None] * (1 - torch.eye(4, dtype=scores.dtype))[:, :, None]
        return soft_maximum(scores[:, :, None] - table, 1, temperature)

    results = []
    for function in (by_table, lambda s, w: send_potts(s, w, temperature)):
        leaves = [x.clone().requires_grad_() for x in (scores, weights)]
        found = function(*leaves)
        gradients = torch.autograd.grad((found * found.detach().cos()).sum(), leaves)
        results.append((found, *gradients))
    torch.testing.assert_close(results[0][0], results[1][0])
    generic = slice(1, None)  # ties have no one gradient at temperature 0
    for one, other in zip(results[0][1:], results[1][1:], strict=True):
        torch.testing.assert_close(one[..., generic], other[..., generic])
    assert all(x.isfinite().all() for x in results[1])
    one_label = torch.ones(2, 1, 3)
    assert torch.equal(send_potts(one_label, torch.tensor(2.0), temperature), one_label)


def test_wrong_input_is_refused():
    costs, edges, tables = random_graph(SQUARE, 4)
    call = propagate_graph
    for wrong in (costs[0], costs.long(), costs[:, :0]):
        assert "shape (B, N, L)" in refusal(call, wrong, edges, tables)
    assert "costs must be a tensor" in refusal(call, costs.tolist(), edges, tables)
    for wrong in (edges.T, edges[:, 0], edges.double()):
        assert "shape (E, 2)" in refusal(call, costs, wrong, tables)
    assert "edges must be a tensor" in refusal(call, costs, SQUARE, tables)
    assert "(3, 3), (5, 3, 3) or (2, 5, 3, 3)" in refusal(call, costs, edges, tables[:, 1:])
    for wrong in (1.0, -0.1):
        assert "damping must be" in refusal(call, costs, edges, tables, damping=wrong)
    for wrong in (-1.0, 1e-9):
        assert "temperature must be 0 or" in refusal(call, costs, edges, tables, temperature=wrong)
    assert "max_iter must be" in refusal(call, costs, edges, tables, max_iter=0)
    if DEVICE != "cpu":
        return
    assert "costs must be finite" in refusal(call, costs * torch.nan, edges, tables)
    assert "edge_costs must not exceed" in refusal(call, costs, edges, tables * 1e35)
    assert "edge_costs must be finite" in refusal(call, costs, edges, tables * torch.nan)
    wrong = edges.clone()
    wrong[1, 1] = 4
    assert "between 0 and 3, got 4 at index (1, 1)" in refusal(call, costs, wrong, tables)
    wrong[1, 1] = wrong[1, 0]
    assert "got a loop at index 1" in refusal(call, costs, wrong, tables)
