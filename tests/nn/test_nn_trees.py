"""Chains and trees in torch: enumeration, the compiled core, derivatives of several orders."""

import copy
import itertools
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_device import DEVICE, torch

# isort: split
from crfield.graphs import Chains, best, infer, sample
from crfield.nn import (
    ChainCRF,
    TreeCRF,
    tree_decode,
    tree_edge_marginals,
    tree_energies,
    tree_log_partition,
    tree_marginals,
    tree_nll,
)
from crfield.nn.structured.exact import _sum_chains
from crfield.nn.structured.forests import (
    Structure,
    as_forest,
    chain_forest,
    minimize_forest,
    sum_forest,
)
from refusal import refusal

CHAIN = [-1, 0, 1, 2, 3]
TREE = [2, 0, -1, 2, 1, 2]
FOREST = [-1, -1, 0, 0, 1]


def enumerate_tree(costs, tables, parents, exists):
    """log Z, marginals, edge marginals and all energies of one forest; tables : (E, L, L)."""
    n_nodes, n_labels = costs.shape
    children = [c for c in range(n_nodes) if parents[c] >= 0]
    edges = [
        (e, parents[c], c) for e, c in enumerate(children) if exists[c] and exists[parents[c]]
    ]
    own = [t for t in range(n_nodes) if exists[t]]
    nodes, pairs = np.zeros((n_nodes, n_labels)), np.zeros((len(children), n_labels, n_labels))
    energies = {}
    for states in itertools.product(range(n_labels), repeat=len(own)):
        x = np.full(n_nodes, -1)
        x[own] = states
        energies[tuple(x.tolist())] = sum(costs[t, x[t]] for t in own) + sum(
            tables[e, x[p], x[c]] for e, p, c in edges
        )
    lowest = min(energies.values())
    total = sum(np.exp(lowest - energy) for energy in energies.values())
    for x, energy in energies.items():
        weight = np.exp(lowest - energy) / total
        for t in own:
            nodes[t, x[t]] += weight
        for e, p, c in edges:
            pairs[e, x[p], x[c]] += weight
    return np.log(total) - lowest, nodes, pairs, energies


def random_problem(parents, n_labels=3, n_items=2, seed=0, scale=1.0):
    rng = torch.Generator().manual_seed(seed)
    n_edges = sum(p >= 0 for p in parents)
    shapes = ((n_items, len(parents), n_labels), (n_items, n_edges, n_labels, n_labels))
    return [
        (scale * torch.randn(*shape, generator=rng, dtype=torch.float64)).to(DEVICE)
        for shape in shapes
    ]


@st.composite
def forests(draw):
    """Parents of up to 5 nodes in any order."""
    n = draw(st.integers(1, 5))
    above = [draw(st.integers(-1, t - 1)) for t in range(n)]
    names = draw(st.permutations(range(n)))
    parents = [-1] * n
    for t, p in enumerate(above):
        parents[names[t]] = -1 if p < 0 else names[p]
    return parents


@settings(deadline=None, max_examples=40)
@given(forests(), st.integers(0, 2**31), st.booleans(), st.sampled_from([0.3, 3.0, 30.0]))
def test_any_forest_by_enumeration(parents, seed, is_masked, scale):
    costs, tables = random_problem(parents, seed=seed, scale=scale)
    mask = torch.rand(2, len(parents), generator=torch.Generator().manual_seed(seed)) < 0.7
    mask[0, 0] = True
    exists = mask if is_masked else torch.ones_like(mask)
    options = {"mask": mask.to(DEVICE)} if is_masked else {}
    log_z = tree_log_partition(costs, tables, parents, **options).cpu().numpy()
    nodes = tree_marginals(costs, tables, parents, **options).cpu().numpy()
    edges = tree_edge_marginals(costs, tables, parents, **options).cpu().numpy()
    best = tree_decode(costs, tables, parents, **options)
    energies = tree_energies(costs, tables, best.clamp_min(0), parents, **options)
    nll = tree_nll(costs, tables, best, parents, reduction="none", **options)
    for b in range(2):
        wanted = enumerate_tree(
            costs[b].cpu().numpy(), tables[b].cpu().numpy(), parents, exists[b].tolist()
        )
        assert abs(log_z[b] - wanted[0]) < 1e-9
        np.testing.assert_allclose(nodes[b], wanted[1], atol=1e-9)
        np.testing.assert_allclose(edges[b], wanted[2], atol=1e-9)
        labels = tuple(best[b].tolist())
        least = min(wanted[3].values())
        assert wanted[3][labels] <= least + 1e-9
        assert abs(energies[b].item() - least) < 1e-9
        assert abs(nll[b].item() - least - wanted[0]) < 1e-9


@pytest.mark.parametrize("parents", [CHAIN, TREE, FOREST, [-1]])
@pytest.mark.parametrize("kind", ["shared", "edges", "all"])
def test_tables_of_all_kinds(parents, kind):
    costs, tables = random_problem(parents)
    if kind == "shared":
        given = torch.randn(3, 3, dtype=torch.float64).to(DEVICE)
    else:
        given = tables[0] if kind == "edges" else tables
    spread = given.expand(tables.shape)
    for function in (tree_log_partition, tree_marginals, tree_edge_marginals, tree_decode):
        torch.testing.assert_close(
            function(costs, given, parents), function(costs, spread, parents)
        )
    weights = torch.tensor([0.3, -2.0], dtype=torch.float64, device=DEVICE)
    for factors in (weights, torch.ones_like(weights)):
        small, large = given.clone().requires_grad_(), spread.clone().requires_grad_()
        (factors * tree_log_partition(costs, small, parents)).sum().backward()
        (factors * tree_log_partition(costs, large, parents)).sum().backward()
        torch.testing.assert_close(small.grad, large.grad.sum_to_size(small.shape))


@pytest.mark.slow
@pytest.mark.parametrize("parents", [[-1, 0, 1, 2], [2, 2, -1, 0], [-1, -1, 0, 0]])
@pytest.mark.parametrize("is_masked", [False, True])
def test_derivatives_of_all_orders(parents, is_masked):
    costs, tables = random_problem(parents, n_labels=2)
    mask = torch.ones(costs.shape[:2], dtype=torch.bool, device=DEVICE)
    mask[1, -2:] = False
    options = {"mask": mask} if is_masked else {}
    shared = tables[0, 0].clone()
    labels = torch.zeros(costs.shape[:2], dtype=torch.long, device=DEVICE)

    log_z, nodes, edges = (
        partial(function, parents=parents, **options)
        for function in (tree_log_partition, tree_marginals, tree_edge_marginals)
    )
    nll = partial(tree_nll, labels=labels, parents=parents, reduction="none", **options)
    for table in (tables, shared):
        inputs = [x.clone().requires_grad_() for x in (costs, table)]
        for function in (log_z, nll, nodes, edges):
            assert torch.autograd.gradcheck(function, inputs)
        assert torch.autograd.gradgradcheck(log_z, inputs)
    assert torch.autograd.gradgradcheck(nodes, inputs)


def test_only_what_is_asked_for_is_differentiated():
    costs, tables = random_problem(TREE)
    for parents in (TREE, [*CHAIN, 4]):
        wanted = tree_marginals(costs, tables, parents)
        leaf = costs.clone().requires_grad_()
        tree_log_partition(leaf, tables, parents).sum().backward()
        torch.testing.assert_close(leaf.grad, -wanted)
        leaf = tables.clone().requires_grad_()
        tree_log_partition(costs, leaf, parents).sum().backward()
        torch.testing.assert_close(leaf.grad, -tree_edge_marginals(costs, tables, parents))


def test_levels_and_the_compiled_core_agree_on_paths():
    rng = torch.Generator().manual_seed(1)
    parents = [-1, 0, 1, -1, 3, 4, 5]
    costs = 5 * torch.randn(3, 7, 4, generator=rng, dtype=torch.float64)
    tables = 5 * torch.randn(3, 5, 4, 4, generator=rng, dtype=torch.float64)
    exists = torch.rand(3, 7, generator=rng) < 0.8
    forest = as_forest(parents)
    above, below = forest.ends(costs.device)
    for structure in (
        Structure(forest), Structure(forest, exists, exists[:, above] & exists[:, below])
    ):
        found = _sum_chains(structure, costs, tables, edges=True)
        wanted = sum_forest(structure, costs, tables, nodes=True, edges=True)
        torch.testing.assert_close((found.log_partition, found.nodes, found.edges), tuple(wanted))
    labels = minimize_forest(structure, costs, tables)
    assert torch.equal(labels, tree_decode(costs, tables, parents, mask=exists))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ragged_chains_are_those_of_graphs(dtype):
    rng = np.random.default_rng(0)
    lengths = [7, 1, 12, 5]
    costs = [rng.normal(size=(n, 6)).astype(np.float32) for n in lengths]
    transitions = rng.normal(size=(6, 6)).astype(np.float32)
    chains = Chains(costs, transitions)
    wanted, least = infer(chains), best(chains)
    padded = torch.full((4, 12, 6), np.nan, dtype=dtype)
    for row, values in zip(padded, costs, strict=True):
        row[: len(values)] = torch.from_numpy(values)
    padded, table = padded.to(DEVICE), torch.from_numpy(transitions).to(DEVICE, dtype)
    mask = torch.arange(12) < torch.tensor(lengths)[:, None]
    for options in (
        {"lengths": lengths}, {"lengths": torch.tensor(lengths, device=DEVICE)},
        {"mask": mask.to(DEVICE)},
    ):
        log_z = tree_log_partition(padded, table, **options)
        nodes = tree_marginals(padded, table, **options).cpu()
        edges = tree_edge_marginals(padded, table, **options).cpu()
        labels = tree_decode(padded, table, **options).cpu()
        assert log_z.dtype == nodes.dtype == dtype
        np.testing.assert_allclose(log_z.cpu(), wanted.log_partition, rtol=1e-5)
        np.testing.assert_allclose(nodes[mask], wanted.marginals, atol=1e-5)
        np.testing.assert_allclose(
            edges[mask[:, 1:]], wanted.factor_marginals(), atol=1e-5
        )
        assert nodes[~mask].abs().max() == 0
        np.testing.assert_array_equal(labels[mask], least.labels)
        assert bool((labels[~mask] == -1).all())
        truth = torch.where(mask, 2, -100).to(DEVICE)
        energies = chains.energy([np.full(n, 2) for n in lengths])
        nll = energies + wanted.log_partition
        for reduction, value in (
            ("none", nll), ("sum", nll.sum()), ("mean", nll.mean()),
            ("node_mean", nll.sum() / sum(lengths)),
            ("token_mean", nll.sum() / sum(lengths)),
        ):
            found = tree_nll(padded, table, truth, reduction=reduction, **options)
            np.testing.assert_allclose(found.cpu(), value, rtol=1e-5)
    leaf = padded.clone().requires_grad_()
    tree_nll(leaf, table, truth, **options).backward()
    assert leaf.grad[~mask.to(DEVICE)].abs().max() == 0
    assert leaf.grad.isfinite().all()


@pytest.mark.skipif(DEVICE != "cpu", reason="the compiled core is for the CPU")
def test_a_chain_of_100000_nodes_in_float32():
    rng = np.random.default_rng(0)
    costs = rng.normal(size=(100_000, 3)).astype(np.float32)
    transitions = rng.normal(size=(3, 3)).astype(np.float32)
    wanted = infer(Chains(costs, transitions))
    leaf = torch.from_numpy(costs)[None].requires_grad_()
    table = torch.from_numpy(transitions).requires_grad_()
    log_z = tree_log_partition(leaf, table)
    np.testing.assert_allclose(log_z.detach(), wanted.log_partition, rtol=1e-6)
    log_z.backward()
    np.testing.assert_allclose(-leaf.grad[0], wanted.marginals, atol=1e-6)
    np.testing.assert_allclose(-table.grad, wanted.transition_marginals, rtol=1e-5)
    labels = torch.from_numpy(wanted.labels)[None].long()
    value = tree_nll(leaf, table, labels).item()
    assert value == pytest.approx(wanted.energy[0] + wanted.log_partition[0], rel=1e-6)


@pytest.mark.slow
def test_a_deep_tree_neither_overflows_nor_loses_digits():
    n = 1500
    parents = [*range(1, n), -1, n - 1]  # a chain from behind, and one leaf at its root
    rng = np.random.default_rng(0)
    costs = torch.from_numpy(rng.normal(size=(1, n + 1, 2)).astype(np.float32)).to(DEVICE)
    table = torch.from_numpy(20 * rng.normal(size=(2, 2)).astype(np.float32)).to(DEVICE)
    wanted_z = tree_log_partition(costs.double(), table.double(), parents)
    wanted = tree_marginals(costs.double(), table.double(), parents)
    leaf = costs.clone().requires_grad_()
    log_z = tree_log_partition(leaf, table, parents)
    torch.testing.assert_close(log_z.double(), wanted_z, rtol=1e-6, atol=0)
    nodes = tree_marginals(leaf, table, parents)
    torch.testing.assert_close(nodes.double(), wanted, rtol=0, atol=1e-5)
    (gradient,) = torch.autograd.grad(nodes[:, ::7, 0].sum(), leaf)
    double = costs.double().requires_grad_()
    (exact,) = torch.autograd.grad(
        tree_marginals(double, table.double(), parents)[:, ::7, 0].sum(), double
    )
    torch.testing.assert_close(gradient.double(), exact, rtol=1e-3, atol=1e-4)
    assert chain_forest(100_000).depths.max() == 99_999


def test_forbidding_costs_stay_finite():
    costs = torch.zeros(1, 4, 3, device=DEVICE)
    table = torch.tensor([[0.0, 1e6, 1e6], [1e6, 0.0, 1e6], [1e6, 1e6, 0.0]], device=DEVICE)
    costs[0, 0, 0] = 1e6
    for parents in ([-1, 0, 1, 2], [-1, 0, 0, 0]):
        leaf = costs.clone().requires_grad_()
        nodes = tree_marginals(leaf, table, parents)
        torch.testing.assert_close(nodes[0, :, 1:], torch.full((4, 2), 0.5, device=DEVICE))
        (gradient,) = torch.autograd.grad(nodes[0, 3, 1], leaf)
        assert gradient.isfinite().all()
        log_z = tree_log_partition(costs, table, parents)
        assert log_z.item() == pytest.approx(np.log(2), abs=1e-5)


def test_modules_are_the_functions_with_their_own_tables():
    costs, tables = random_problem(TREE)
    labels = torch.tensor([[0, 1, 2, 0, 1, 2]] * 2, device=DEVICE)
    module = TreeCRF(TREE, 3).double().to(DEVICE)
    assert module.edge_costs.shape == (5, 3, 3)
    with torch.no_grad():
        module.edge_costs.copy_(tables[0])
    own = tables[0]
    for found, wanted in (
        (module(costs), tree_marginals(costs, own, TREE)),
        (module.log_partition(costs), tree_log_partition(costs, own, TREE)),
        (module.nll(costs, labels), tree_nll(costs, own, labels, TREE)),
        (module.energies(costs, labels), tree_energies(costs, own, labels, TREE)),
        (module.edge_marginals(costs), tree_edge_marginals(costs, own, TREE)),
        (module.decode(costs), tree_decode(costs, own, TREE)),
        (module(costs, tables), tree_marginals(costs, tables, TREE)),
    ):
        torch.testing.assert_close(found, wanted)
    other = copy.deepcopy(module)
    other.load_state_dict(module.state_dict())
    torch.testing.assert_close(other(costs), module(costs))
    assert TreeCRF(TREE, 3, tables="shared").edge_costs.shape == (3, 3)
    free = TreeCRF(TREE, 3, tables="none")
    assert not list(free.parameters())
    torch.testing.assert_close(free(costs, tables), module(costs, tables))
    assert "n_nodes=6" in repr(module)


def test_costs_of_both_ends():
    rng = torch.Generator().manual_seed(0)
    module = ChainCRF(3, ends=True).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
    module.to(DEVICE)
    lengths = [4, 1, 3]
    costs = torch.randn(3, 4, 3, generator=rng, dtype=torch.float64).to(DEVICE)
    log_z = module.log_partition(costs, lengths=lengths)
    for b, n in enumerate(lengths):
        alone = costs[b : b + 1, :n].clone()
        alone[:, 0] += module.start
        alone[:, -1] += module.end
        wanted = tree_log_partition(alone, module.edge_costs)
        torch.testing.assert_close(log_z[b : b + 1], wanted)
        torch.testing.assert_close(module.log_partition(costs[b : b + 1, :n]), wanted)


def test_transitions_are_learned():
    rng = torch.Generator().manual_seed(0)
    truth = torch.randn(4, 4, generator=rng)
    costs = torch.randn(200, 20, 4, generator=rng)
    drawn = sample(Chains(costs.numpy(), truth.numpy()))
    labels = torch.from_numpy(drawn).reshape(200, 20).long()
    module = ChainCRF(4).to(DEVICE)
    costs, labels = costs.to(DEVICE), labels.to(DEVICE)
    optimizer = torch.optim.LBFGS(module.parameters(), max_iter=50)

    def closure():
        optimizer.zero_grad()
        loss = module.nll(costs, labels)
        loss.backward()
        return loss

    before = module.nll(costs, labels).item()
    optimizer.step(closure)
    after = module.nll(costs, labels).item()
    at_truth = module.nll(costs, labels, truth.to(DEVICE)).item()
    assert after <= at_truth + 1e-3 < before
    # Expectation matching: expected and observed pairs agree at the optimum.
    expected = module.edge_marginals(costs).sum((0, 1))
    seen = torch.zeros(16, device=DEVICE)
    seen.index_add_(
        0, (4 * labels[:, :-1] + labels[:, 1:]).reshape(-1), torch.ones(3800, device=DEVICE)
    )
    assert (expected.reshape(-1) - seen).abs().max() < 1.0


def test_half_precision_is_worked_on_in_float32():
    costs, tables = random_problem(TREE)
    for dtype in (torch.float16, torch.bfloat16):
        found = tree_marginals(costs.to(dtype), tables.to(dtype), TREE)
        assert found.dtype == torch.float32
        wanted = tree_marginals(costs.to(dtype).double(), tables.to(dtype).double(), TREE)
        torch.testing.assert_close(found.double(), wanted, rtol=0, atol=1e-6)


def test_wrong_input_is_refused():
    costs, tables = random_problem(TREE)
    labels = torch.zeros(2, 6, dtype=torch.long, device=DEVICE)
    right = {"costs": costs, "edge_costs": tables, "parents": TREE}
    for name, words, wrongs in (
        ("costs", "costs must be a tensor", [costs.cpu().numpy()]),
        ("costs", "shape (B, T, L)", [costs[0], costs.long(), costs[:, :0], costs[..., :0]]),
        ("costs", "real numbers", [costs.to(torch.complex64)]),
        ("edge_costs", "(3, 3), (5, 3, 3) or (2, 5, 3, 3)",
         [tables[:, 1:], tables[..., 1:], tables[0, 0, 0], tables.long()]),
        ("edge_costs", "edge_costs must be a tensor", [None]),
        ("parents", "parents must have 6 entries", [CHAIN]),
        ("parents", "parents must be whole numbers",
         [[[0, 1]], [0.5] * 6, torch.zeros(6), torch.zeros(6, dtype=torch.bfloat16), 3, []]),
        ("parents", "at index 3", [[-1, 0, 1, 6, 0, 0]]),
        ("parents", "at index 1", [[-1, -2, 1, 2, 0, 0]]),
        ("parents", "circle", [[1, 2, 0, -1, 3, 3], [0, -1, 1, 1, 1, 1]]),
        ("mask", "mask must be bool", [costs[..., 0], costs[:1, :, 0] < 0]),
        ("lengths", "lengths must be whole",
         [[1, 2, 3], [1.0, 2.0], [[1, 2]], [True, True], torch.tensor([1.0, 2.0])]),
        ("lengths", "lengths must hold real", [["a", "b"]]),
        ("lengths", "between 1 and 6", [[0, 6], [7, 6], [-1, 2]]),
    ):
        for wrong in wrongs:
            assert words in refusal(tree_log_partition, **{**right, name: wrong})
    both = {"mask": costs[..., 0] < 0, "lengths": [1, 2]}
    assert "not both" in refusal(tree_log_partition, **right, **both)
    assert "circle" in refusal(TreeCRF, [1, 0], 3)
    for wrong in (labels[:1], labels[:, 1:], labels.double()):
        assert "labels must be whole" in refusal(tree_nll, **right, labels=wrong)
    message = refusal(tree_nll, **right, labels=labels, reduction="average")
    assert "reduction must be" in message
    for wrong in (labels, labels.bool()):
        assert "use nll(costs, labels, mask=...)" in refusal(ChainCRF(3), costs, wrong)
    assert "(B, T, 4)" in refusal(TreeCRF(TREE, 4), costs)
    assert "n_labels must be" in refusal(ChainCRF, 0)
    assert "tables must be" in refusal(ChainCRF, 3, tables="edges")
    assert 'tables="none"' in refusal(ChainCRF(3, tables="none"), costs)


@pytest.mark.skipif(DEVICE != "cpu", reason="what tensors hold is only looked at on the CPU")
def test_wrong_values_are_refused():
    costs, tables = random_problem(TREE)
    bad = costs.clone()
    bad[1, 2, 0] = torch.nan
    assert "costs must be finite, got nan at index (1, 2, 0)" in refusal(
        tree_log_partition, bad, tables, TREE
    )
    bad = tables.clone()
    bad[1, 2, 0, 1] = torch.inf
    assert "edge_costs must be finite" in refusal(tree_log_partition, costs, bad, TREE)
    for parents in (TREE, [*CHAIN, 4]):
        assert "costs must not exceed" in refusal(tree_marginals, costs * 1e35, tables, parents)
        assert "edge_costs must not exceed" in refusal(
            tree_marginals, costs, tables * 1e35, parents
        )
    labels = torch.zeros(2, 6, dtype=torch.long)
    for value in (-1, 3):
        labels[1, 4] = value
        message = refusal(tree_nll, costs, tables, labels, TREE)
        assert f"between 0 and 2, got {value} at index (1, 4)" in message
    mask = torch.zeros(2, 6, dtype=torch.bool)
    assert "at least one node" in refusal(tree_log_partition, costs, tables, TREE, mask=mask)
    mask[:, ::2] = True
    message = refusal(tree_log_partition, costs, tables, mask=mask)
    assert "True behind False at index (0, 2)" in message
    tree_log_partition(costs, tables, TREE, mask=mask)
