"""Grids in torch: exact on rows and columns, fixed points of BP, two kinds of gradients."""

import copy

import numpy as np
import pytest

from torch_device import DEVICE, torch

# isort: split
import reference
from crfield.nn import GridCRF, LogLikelihood, propagate_graph, propagate_grid, tree_nll
from refusal import refusal

KINDS = ("number", "map", "table", "tables")


def random_grid(kind, shape=(3, 4), n_labels=3, n_items=2, seed=0, scale=0.5):
    """Costs, horizontal and vertical terms of one kind."""
    rng = torch.Generator().manual_seed(seed)
    h, w = shape
    costs = torch.randn(n_items, n_labels, h, w, generator=rng, dtype=torch.float64)
    pairs = []
    for edges in ((h, w - 1), (h - 1, w)):
        size = {
            "number": (), "map": (n_items, *edges), "table": (n_labels, n_labels),
            "tables": (n_items, n_labels, n_labels, *edges),
        }[kind]
        pairs.append(scale * torch.randn(size, generator=rng, dtype=torch.float64))
    return tuple(values.to(DEVICE) for values in (costs, *pairs))


def as_graph(costs, horizontal, vertical):
    """The grid as a general graph: costs (B, N, L), edges, tables (B, E, L, L)."""
    n_items, n_labels, h, w = costs.shape
    places = torch.arange(h * w, device=costs.device).reshape(h, w)
    edges, tables = [], []
    for pair, first, second in (
        (horizontal, places[:, :-1], places[:, 1:]), (vertical, places[:-1], places[1:])
    ):
        edges.append(torch.stack([first.reshape(-1), second.reshape(-1)], 1))
        differ = (1 - torch.eye(n_labels, dtype=costs.dtype, device=costs.device))[..., None, None]
        if pair.ndim == 0:
            table = pair * differ
        elif pair.ndim == 2:
            table = pair[..., None, None]
        elif pair.ndim == 3:
            table = differ * pair[:, None, None]
        else:
            table = pair
        table = table.expand(n_items, n_labels, n_labels, *first.shape)
        tables.append(table.flatten(3).permute(0, 3, 1, 2))
    return costs.flatten(2).transpose(1, 2), torch.cat(edges), torch.cat(tables, 1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
def test_grids_are_graphs(kind, temperature):
    problem = random_grid(kind)
    found = propagate_grid(*problem, max_iter=6, damping=0.3, temperature=temperature)
    wanted = propagate_graph(
        *as_graph(*problem), max_iter=6, damping=0.3, temperature=temperature
    )
    flat = found.log_beliefs.flatten(2).transpose(1, 2)
    torch.testing.assert_close(flat, wanted.log_beliefs)
    torch.testing.assert_close(found.log_partition, wanted.log_partition)
    torch.testing.assert_close(found.residuals, wanted.residuals)
    assert torch.equal(found.labels.flatten(1), wanted.labels)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(1, 5), (5, 1), (1, 1)])
def test_rows_and_columns_by_enumeration(kind, shape):
    costs, horizontal, vertical = random_grid(kind, shape, scale=2.0)
    layer = GridCRF(3, compatibility="none", max_iter=5, damping=0.0)
    given = (horizontal, vertical)
    nodes, log_z = layer.marginals(costs, *given), layer.log_partition(costs, *given)
    edges = [x.flatten(3).cpu().numpy() for x in layer.edge_marginals(costs, *given)]
    pairs = np.concatenate(edges, 3)
    best = layer.decode(costs, *given)
    truth = torch.zeros_like(best)
    nll = layer.nll(costs, truth, *given, reduction="none")
    graph = [x.cpu().numpy() for x in as_graph(costs, *given)]
    for b in range(2):
        labels, energies = reference.graph_energies(graph[0][b], graph[1], graph[2][b])
        weights = np.exp(-energies)
        assert log_z[b].item() == pytest.approx(np.log(weights.sum()), abs=1e-9)
        assert nll[b].item() == pytest.approx(energies[0] + np.log(weights.sum()), abs=1e-9)
        weights /= weights.sum()
        found = nodes[b].flatten(1).cpu().numpy()
        for k in range(3):
            np.testing.assert_allclose(found[k], weights @ (labels == k), atol=1e-9)
        for e, (i, j) in enumerate(graph[1]):
            wanted = np.zeros((3, 3))
            np.add.at(wanted, (labels[:, i], labels[:, j]), weights)
            np.testing.assert_allclose(pairs[b, :, :, e], wanted, atol=1e-9)
        assert best[b].flatten().tolist() == labels[energies.argmin()].tolist()


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.8, 1.0])
def test_fixed_points_of_loopy_grids(kind, temperature):
    problem = random_grid(kind)
    layer = GridCRF(3, compatibility="none", max_iter=150, temperature=temperature)
    found = layer.infer(*problem)
    assert found.residuals.max() < 1e-10
    nodes = found.marginals
    along, across = layer.edge_marginals(*problem)
    for pairs, first, second in (
        (along, nodes[..., :-1], nodes[..., 1:]),
        (across, nodes[..., :-1, :], nodes[..., 1:, :]),
    ):
        torch.testing.assert_close(pairs.sum(2), first, rtol=0, atol=1e-8)
        torch.testing.assert_close(pairs.sum(1), second, rtol=0, atol=1e-8)
    # Consistent beliefs that multiply to exp(-E / T) up to a constant, the Bethe log Z.
    _, edges, _ = as_graph(*problem)
    log_nodes, _, log_pairs = as_graph(found.log_beliefs, along.log(), across.log())
    degrees = torch.bincount(edges.reshape(-1), minlength=12)
    rng = torch.Generator().manual_seed(1)
    for _ in range(20):
        labels = torch.randint(0, 3, (2, 3, 4), generator=rng).to(DEVICE)
        energy = layer.energies(problem[0], labels, *problem[1:])
        x = labels.flatten(1)
        product = ((1 - degrees) * log_nodes.gather(2, x[..., None])[..., 0]).sum(1)
        for e, (i, j) in enumerate(edges.tolist()):
            product += log_pairs[torch.arange(2, device=DEVICE), e, x[:, i], x[:, j]]
        torch.testing.assert_close(
            energy / temperature + product, -found.log_partition / temperature,
            rtol=0, atol=1e-8,
        )


@pytest.mark.parametrize("kind", KINDS)
def test_energies(kind):
    problem = random_grid(kind, (2, 3), n_labels=2)
    costs, edges, tables = (x.cpu().numpy() for x in as_graph(*problem))
    layer = GridCRF(2, compatibility="none")
    for b in range(2):
        labels, energies = reference.graph_energies(costs[b], edges, tables[b])
        for x, energy in list(zip(labels, energies, strict=True))[::7]:
            given = torch.from_numpy(x).reshape(1, 2, 3).expand(2, -1, -1).to(DEVICE)
            found = layer.energies(problem[0], given, *problem[1:])[b]
            assert found.item() == pytest.approx(energy, abs=1e-12)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.8, 1.0])
def test_the_analytic_gradient_is_observed_minus_beliefs(kind, temperature):
    problem = random_grid(kind, (3, 3), n_labels=2)
    labels = torch.randint(0, 2, (2, 3, 3), generator=torch.Generator().manual_seed(0)).to(DEVICE)
    factors = torch.tensor([1.0, -0.3], dtype=torch.float64, device=DEVICE)
    gradients = []
    for unrolled in (False, True):
        layer = GridCRF(
            2, compatibility="none", max_iter=150, temperature=temperature, unrolled=unrolled
        )
        leaves = [x.clone().requires_grad_() for x in problem]
        value = layer.nll(leaves[0], labels, *leaves[1:], reduction="none")
        gradients.append(torch.autograd.grad((factors * value).sum(), leaves))
    torch.testing.assert_close(*gradients, rtol=0, atol=1e-9)
    layer.unrolled = False
    observed = torch.nn.functional.one_hot(labels, 2).movedim(-1, 1)
    wanted = (observed - layer.marginals(*problem)) * factors[:, None, None, None] / temperature
    torch.testing.assert_close(gradients[0][0], wanted, rtol=0, atol=1e-9)
    # And by central differences of the converged value.
    rng = torch.Generator().manual_seed(2)
    for which in range(3):
        step = torch.randn(problem[which].shape, generator=rng, dtype=torch.float64).to(DEVICE)
        values = []
        for sign in (1, -1):
            moved = list(problem)
            moved[which] = problem[which] + sign * 1e-5 * step
            nll = layer.nll(moved[0], labels, *moved[1:], reduction="none")
            values.append((factors * nll).sum().item())
        slope = (values[0] - values[1]) / 2e-5
        assert (gradients[0][which] * step).sum().item() == pytest.approx(slope, abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_unrolled_gradients(kind, temperature):
    problem = random_grid(kind, (2, 3), n_labels=2)
    layer = GridCRF(
        2, compatibility="none", max_iter=3, damping=0.2, temperature=temperature, unrolled=True
    )

    def outputs(costs, horizontal, vertical):
        found = layer.infer(costs, horizontal, vertical)
        return found.log_beliefs, layer.log_partition(costs, horizontal, vertical)

    inputs = [values.clone().requires_grad_() for values in problem]
    assert torch.autograd.gradcheck(outputs, inputs)


def test_a_column_is_a_chain():
    costs, _, table = random_grid("table", (6, 1))
    layer = GridCRF(3, compatibility="none", max_iter=6, damping=0.0)
    labels = torch.tensor([[0, 1, 2, 2, 1, 0]] * 2, device=DEVICE)
    for reduction in ("none", "sum", "mean", "node_mean"):
        found = layer.nll(costs, labels[..., None], table, table, reduction=reduction)
        wanted = tree_nll(costs[..., 0].transpose(1, 2), table, labels, reduction=reduction)
        torch.testing.assert_close(found, wanted)


def test_parameters_and_outputs():
    costs, _, _ = random_grid("number")
    for compatibility, shape in (("potts", ()), ("tables", (3, 3))):
        layer = GridCRF(3, compatibility=compatibility, weight=0.7).double().to(DEVICE)
        assert layer.horizontal.shape == layer.vertical.shape == shape
        weight = torch.tensor(0.7, dtype=torch.float64, device=DEVICE)
        wanted = propagate_grid(costs, weight, weight)
        torch.testing.assert_close(layer(costs), wanted.marginals, rtol=0, atol=1e-7)
        torch.testing.assert_close(layer.marginals(costs).sum(1), torch.ones_like(costs[:, 0]))
        other = copy.deepcopy(layer)
        other.load_state_dict(layer.state_dict())
        torch.testing.assert_close(other(costs), layer(costs))
        layer.nll(costs, wanted.labels).backward()
        assert layer.horizontal.grad.abs().sum() > 0
    logits = GridCRF(3, weight=0.7, output="logits").double().to(DEVICE)(costs)
    torch.testing.assert_close(logits.exp(), wanted.marginals, rtol=0, atol=1e-7)
    loss = LogLikelihood()(logits, wanted.labels)
    assert loss.isfinite()
    single = GridCRF(3, weight=0.7).to(DEVICE)
    assert single(costs.float()).dtype == torch.float32
    assert single.log_partition(costs.half()).dtype == torch.float32
    torch.testing.assert_close(
        single(costs.float()).double(), wanted.marginals, rtol=0, atol=1e-5
    )
    assert "temperature=1" in repr(single)


def test_max_product_restores_a_noisy_square():
    rng = torch.Generator().manual_seed(0)
    truth = torch.zeros(1, 16, 16, dtype=torch.long)
    truth[:, 4:12, 4:12] = 1
    costs = torch.stack([truth, 1 - truth], 1) + 0.6 * torch.randn(1, 2, 16, 16, generator=rng)
    costs, truth = costs.to(DEVICE), truth.to(DEVICE)
    layer = GridCRF(2, weight=0.8, max_iter=50).to(DEVICE)
    before = (costs.argmin(1) != truth).sum()
    labels = layer.decode(costs)
    assert (labels != truth).sum() < 0.3 * before
    assert layer.energies(costs, labels).item() <= layer.energies(costs, truth).item()


def test_wrong_input_is_refused():
    costs, weights, _ = random_grid("map")
    number = torch.tensor(1.0, device=DEVICE)
    layer = GridCRF(3).to(DEVICE)
    for wrong in (costs[0], costs.long(), costs[:, :0]):
        assert "(B, 3, H, W)" in refusal(layer, wrong)
        assert "(B, L, H, W)" in refusal(propagate_grid, wrong, number, number)
    assert "put the labels second" in refusal(layer, costs[..., :2].transpose(1, 3))
    assert "costs must be a tensor" in refusal(layer, costs.tolist())
    for wrong in (weights[0, 0], weights[:, 1:], weights.long(), number.long(), costs):
        message = refusal(layer, costs, wrong)
        assert "horizontal must be a floating-point number, a map (2, 3, 3)" in message
        assert "(2, 3, 3, 3, 3)" in message
    assert "vertical must be a floating" in refusal(layer, costs, weights, weights)
    assert "vertical must be a tensor" in refusal(propagate_grid, costs, number, 1.0)
    assert 'compatibility="none"' in refusal(GridCRF(3, compatibility="none"), costs)
    assert "compatibility must be" in refusal(GridCRF, 3, compatibility="full")
    assert "output must be" in refusal(GridCRF, 3, output="labels")
    assert "damping must be" in refusal(GridCRF, 3, damping=1.0)
    assert "temperature must be" in refusal(GridCRF, 3, temperature=-1)
    assert "weight must be finite" in refusal(GridCRF, 3, weight=np.inf)
    assert "n_labels must be" in refusal(GridCRF, 0)
    labels = costs.argmin(1)
    cold = GridCRF(3, temperature=0).to(DEVICE)
    assert "temperature above 0" in refusal(cold.nll, costs, labels)
    assert "temperature above 0" in refusal(cold.edge_marginals, costs)
    for wrong in (labels[:1], labels.double(), labels[:, 1:]):
        assert "labels must be whole" in refusal(layer.nll, costs, wrong)
    assert "reduction must be" in refusal(layer.nll, costs, labels, reduction="batch")
    if DEVICE != "cpu":
        return
    assert "got 3 at index" in refusal(layer.nll, costs, labels + 1)
    assert "costs must be finite" in refusal(layer, costs * torch.nan)
    assert "costs must not exceed" in refusal(layer, costs * 1e35)
    assert "vertical must not exceed" in refusal(layer, costs, number, number * 1e35)
    assert "horizontal must be finite" in refusal(layer, costs, weights / 0)
