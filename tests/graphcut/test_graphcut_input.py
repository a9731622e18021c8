"""What cannot be cut is refused with one sentence."""

import numpy as np
import pytest

from crfield import Diagonal, Potts
from crfield.graphcut import (
    alpha_beta_swap,
    alpha_beta_swap_grid,
    alpha_expansion,
    alpha_expansion_grid,
    boundary_weights,
    constant_weights,
    contrast_weights,
    cut_grids,
    grid_offsets,
    max_flow,
    minimize_binary,
    minimize_binary_grid,
)
from crfield.graphcut._checks import padded_cells
from refusal import refusal

COSTS = np.zeros((2, 4, 5))
WEIGHTS = np.ones((1, 2, 4, 5))
UNARY = np.zeros((3, 2))
EDGES = [(0, 1), (1, 2)]
LABELS = np.arange(4)


def with_entry(array, index, value):
    changed = np.array(array, float)
    changed[index] = value
    return changed


@pytest.mark.parametrize(("call", "words"), [
    (lambda: grid_offsets(4, 8), "ndim must be at least 2 and at most 3"),
    (lambda: grid_offsets(2, 6), "neighbors must be 4 or 8"),
    (lambda: grid_offsets(3, 8), "neighbors must be 6 or 26"),
    (lambda: grid_offsets(2, "4"), "whole number"),
    (lambda: cut_grids(COSTS[0], WEIGHTS), "(B, *grid)"),
    (lambda: cut_grids(np.zeros((1, 0, 5)), np.zeros((1, 2, 0, 5))), "not empty"),
    (lambda: cut_grids(np.zeros((1, 1, 1, 1, 1)), WEIGHTS), "(B, *grid)"),
    (lambda: cut_grids("costs", WEIGHTS), "real numbers"),
    (lambda: cut_grids([[[1, 2], [3]]], WEIGHTS), "same length"),
    (lambda: cut_grids(1j * COSTS, WEIGHTS), "real numbers"),
    (lambda: cut_grids(with_entry(COSTS, (1, 2, 3), np.nan), WEIGHTS), "index (1, 2, 3)"),
    (lambda: cut_grids(with_entry(COSTS, (1, 2, 3), np.inf), WEIGHTS), "index (1, 2, 3)"),
    (lambda: cut_grids(with_entry(COSTS, (1, 2, 3), 1e31), WEIGHTS), "1e+30"),
    (lambda: cut_grids(COSTS, with_entry(WEIGHTS, (0, 1, 2, 3), np.nan)), "(0, 1, 2, 3)"),
    (lambda: cut_grids(COSTS, with_entry(WEIGHTS, (0, 1, 2, 3), -1)), "got -1 at index"),
    (lambda: cut_grids(COSTS, with_entry(WEIGHTS, (0, 1, 2, 3), 1e31)), "1e+30"),
    (lambda: cut_grids(COSTS, WEIGHTS, backward=-WEIGHTS), "backward must not be negative"),
    (lambda: cut_grids(COSTS, WEIGHTS[:, :, 1:]), "(1 or 2, 2, 4, 5)"),
    (lambda: cut_grids(COSTS, WEIGHTS[0]), "(1 or 2, 2, 4, 5)"),
    (lambda: cut_grids(COSTS, 3.0), "(1 or 2, 2, 4, 5)"),
    (lambda: cut_grids(COSTS, np.ones((3, 2, 4, 5))), "(1 or 2, 2, 4, 5)"),
    (lambda: cut_grids(COSTS, WEIGHTS, neighbors=8), "8 neighbors"),
    (lambda: cut_grids(COSTS, WEIGHTS, backward=WEIGHTS[:, :1]), "backward must have shape"),
    (lambda: cut_grids(COSTS, WEIGHTS, threads=0), "threads"),
    (lambda: cut_grids(np.full((1, 4, 5), 2**62), np.ones((1, 2, 4, 5), int)), "64 bits"),
    (lambda: minimize_binary_grid(np.zeros((4, 5, 3)), WEIGHTS[0]), "(*grid, 2)"),
    (lambda: minimize_binary_grid(np.zeros((0, 3, 2)), WEIGHTS[0]), "unary must"),
    (lambda: minimize_binary_grid(np.zeros((4, 5, 2)), WEIGHTS), "weights must have shape"),
    (lambda: minimize_binary_grid(np.zeros((4, 5, 2)), -WEIGHTS[0]), "not be negative"),
    (lambda: minimize_binary(UNARY[:, :1], EDGES, [1, 1]), "(N, 2)"),
    (lambda: minimize_binary(UNARY[:0], [], []), "N >= 1"),
    (lambda: minimize_binary(with_entry(UNARY, (1, 0), np.nan), EDGES, [1, 1]), "(1, 0)"),
    (lambda: minimize_binary(UNARY, EDGES, [1, 1, 1]), "(2,) or (2, 2, 2)"),
    (lambda: minimize_binary(UNARY, EDGES, [1, -1]), "got -1 at index (1,)"),
    (lambda: minimize_binary(UNARY, EDGES, np.ones((2, 3, 3))), "(2,) or (2, 2, 2)"),
    (lambda: minimize_binary(UNARY, EDGES, [1 - np.eye(2), np.eye(2)]), "0 + 0 at edge 1"),
    (lambda: minimize_binary(UNARY, [(0, 1), (1, 3)], [1, 1]), "(1, 3) at edge 1"),
    (lambda: minimize_binary(UNARY, [(0, -1), (1, 2)], [1, 1]), "(0, -1) at edge 0"),
    (lambda: minimize_binary(UNARY, [(0, 1), (1, 1)], [1, 1]), "two different nodes"),
    (lambda: minimize_binary(UNARY, [(0.0, 1.0)], [1]), "whole numbers of shape (E, 2)"),
    (lambda: minimize_binary(UNARY, [0, 1], [1]), "(E, 2)"),
    (lambda: max_flow(1, [], [], source=0, sink=0), "n_nodes must be at least 2"),
    (lambda: max_flow(3, EDGES, [1, 1], source=0, sink=3), "sink must be at least 0"),
    (lambda: max_flow(3, EDGES, [1, 1], source=-1, sink=2), "source must be at least 0"),
    (lambda: max_flow(3, EDGES, [1, 1], source=1, sink=1), "two nodes"),
    (lambda: max_flow(3, EDGES, [1], source=0, sink=2), "capacities must have one number"),
    (lambda: max_flow(3, EDGES, [1, -1], source=0, sink=2), "capacities must not be negative"),
    (lambda: max_flow(3, EDGES, [1, np.nan], source=0, sink=2), "capacities must be finite"),
    (lambda: max_flow(3, EDGES, [1, 1], [1], source=0, sink=2), "reverse_capacities"),
    (lambda: max_flow(3, EDGES, [1, 1], [1, -1], source=0, sink=2), "reverse_capacities"),
    (lambda: max_flow(3, EDGES, [2**62, 1], source=0, sink=2), "64 bits"),
])
def test_cuts_that_make_no_sense(call, words):
    assert words in refusal(call)


MU = 1.0 - np.eye(4)
BAD_MODELS = [
    ({"unary": np.zeros(12)}, "shape ("),
    ({"unary": np.zeros((0, 4))}, "shape ("),
    ({"unary": "costs"}, "real numbers"),
    ({"weights": -1.0}, "not be negative"),
    ({"weights": np.nan}, "finite"),
    ({"weights": 1e31}, "1e+30"),
    ({"compatibility": MU[:3, :3]}, "(4, 4)"),
    ({"compatibility": -MU}, "not be negative"),
    ({"compatibility": MU + 1}, "mu[a, a] = 0"),
    ({"compatibility": np.triu(MU)}, "mu[a, b] = mu[b, a]"),
    ({"compatibility": with_entry(MU, (0, 1), np.nan)}, "index (0, 1)"),
    ({"compatibility": "potts"}, "real numbers"),
    ({"compatibility": Potts(1e300)}, "1e+30"),
    ({"compatibility": 1e20 * MU, "weights": 1e20}, "weights times compatibility"),
    ({"compatibility": Potts(-1)}, "not be negative"),
    ({"compatibility": Diagonal([1, 2])}, "4 numbers"),
    ({"compatibility": Diagonal([1, 2, 3, 4])}, "not be negative"),
    ({"init": np.zeros(3, int)}, "init must be whole numbers of shape"),
    ({"init": 4}, "from 0 to 3"),
    ({"init": -1}, "from 0 to 3"),
    ({"init": 0.5}, "whole numbers"),
    ({"max_iter": 0}, "max_iter"),
    ({"max_iter": 2.0}, "max_iter"),
]


@pytest.mark.parametrize(("changes", "words"), BAD_MODELS)
@pytest.mark.parametrize("move", ["expansion", "swap"])
def test_models_that_no_move_takes(move, changes, words):
    on_graph, on_grid = (
        (alpha_expansion, alpha_expansion_grid) if move == "expansion"
        else (alpha_beta_swap, alpha_beta_swap_grid)
    )
    options = dict(changes)
    unary = options.pop("unary", np.zeros((12, 4)))
    weight = options.pop("weights", 1.0)
    init = options.pop("init", None)
    edges = np.stack([np.arange(11), np.arange(1, 12)], 1)

    def start(shape):
        return init if init is None or np.ndim(init) else np.full(shape, init)

    assert words in refusal(on_graph, unary, edges, np.full(11, weight), init=start(12), **options)
    if isinstance(unary, np.ndarray) and unary.ndim == 2 and len(unary):
        unary = unary.reshape(3, 4, 4)
    assert words in refusal(
        on_grid, unary, np.full((2, 3, 4), weight), init=start((3, 4)), **options
    )


def test_the_labels_that_break_the_triangle_inequality_are_named():
    mu = (LABELS[:, None] - LABELS) ** 2
    message = refusal(alpha_expansion, np.zeros((3, 4)), EDGES, [1, 1], mu)
    assert "mu[0, 3] = 9 > mu[0, 1] + mu[1, 3] = 1 + 4" in message
    assert "alpha_beta_swap" in message
    assert "metric" in refusal(alpha_expansion_grid, np.zeros((3, 4, 4)), np.ones((2, 3, 4)), mu)
    assert alpha_beta_swap(np.zeros((3, 4)), EDGES, [1, 1], mu).converged


@pytest.mark.parametrize("between", range(4))
def test_a_shortcut_through_any_label_is_found(between):
    mu = 3.0 * (1 - np.eye(4))
    mu[between], mu[:, between] = 1.0, 1.0
    mu[between, between] = 0.0
    a, b = [label for label in range(4) if label != between][:2]
    message = refusal(alpha_expansion, np.zeros((3, 4)), EDGES, [1, 1], mu)
    assert f"mu[{a}, {b}] = 3 > mu[{a}, {between}] + mu[{between}, {b}] = 1 + 1" in message


@pytest.mark.parametrize(("call", "words"), [
    (lambda: alpha_expansion(np.zeros((3, 4)), EDGES, [1]), "each of 2 edges"),
    (lambda: alpha_expansion(np.zeros((3, 4)), [(0, 3)], [1]), "(0, 3) at edge 0"),
    (lambda: alpha_expansion_grid(np.zeros((3, 4)), WEIGHTS[0]), "(*grid, L)"),
    (lambda: alpha_expansion_grid(np.zeros((4, 5, 3)), WEIGHTS), "weights must have shape"),
    (lambda: alpha_expansion_grid(np.zeros((4, 5, 3)), 1.0), "weights must have shape"),
    (lambda: alpha_expansion_grid(np.zeros((4, 5, 3)), WEIGHTS[0], neighbors=8), "8 neighbors"),
    (lambda: constant_weights((3, 4), 6), "3 lengths"),
    (lambda: constant_weights((3, 0), 4), "grid must be at least 1"),
    (lambda: constant_weights(5, 4), "grid"),
    (lambda: constant_weights((3, 4), 5), "neighbors must be 4 or 8"),
    (lambda: contrast_weights(np.zeros(4), 4), "2 axes"),
    (lambda: contrast_weights(np.zeros((0, 4)), 4), "2 axes"),
    (lambda: contrast_weights(np.zeros((4, 4)), 6), "3 axes"),
    (lambda: contrast_weights(np.zeros((4, 4)), None), "neighbors"),
    (lambda: contrast_weights(np.full((4, 4), np.nan), 4), "index (0, 0)"),
    (lambda: contrast_weights(np.full((4, 4), 1e200), 4), "1e+100"),
    (lambda: contrast_weights(np.zeros((4, 4)), 4, beta=-1), "beta"),
    (lambda: contrast_weights(np.zeros((4, 4)), 4, beta="x"), "beta"),
    (lambda: boundary_weights(np.zeros((4, 4, 2)), 4), "2 axes"),
    (lambda: boundary_weights(np.full((4, 4), 1.5), 4), "got 1.5 at index (0, 0)"),
    (lambda: boundary_weights(np.full((4, 4), -0.5), 4), "0 to 1"),
    (lambda: boundary_weights(np.full((4, 4), np.nan), 4), "finite"),
    (lambda: boundary_weights(np.zeros((4, 4)), 4, floor=0), "floor"),
    (lambda: boundary_weights(np.zeros((4, 4)), 4, floor=2), "floor"),
])
def test_weights_that_make_no_sense(call, words):
    assert words in refusal(call)


def test_what_memory_cannot_hold_is_refused_at_once():
    costs, weights = (np.broadcast_to(np.float32(0), (1, *n, 9999, 9999, 9999)) for n in ((), (3,)))
    assert "GiB" in refusal(cut_grids, costs, weights)
    assert "GiB" in refusal(constant_weights, (10**6, 10**6), 8)


@pytest.mark.parametrize(("grid", "wanted"), [
    ((4, 5), 5 * 6 + 2 * 7), ((3, 4, 5), 3 * 5 * 6 + 2 * (30 + 7)), ((9, 1, 1), 9 * 4 + 2 * 7),
])
def test_the_border_counts_as_memory(grid, wanted):
    assert padded_cells(grid) == wanted


def test_whole_numbers_are_refused_by_their_sum():
    costs = np.full((1, 1000, 1000), 5)
    costs[0, 0, 0] = -(10**13)
    found = cut_grids(costs, np.ones((1, 2, 1000, 1000), int))
    assert found.energies[0] == 2 - 10**13
    assert found.labels.sum() == 1
    message = refusal(cut_grids, np.full((1, 2, 2), 2**60), np.full((1, 2, 2, 2), 2**58))
    assert "costs and weights" in message
    assert "got 5.76e+18" in message


@pytest.mark.parametrize("shape", [(0,), (0, 2, 2), (0, 3), (0, 1, 1)])
def test_no_edges_have_tables_of_any_shape(shape):
    found = minimize_binary(np.array([[0.0, 1.0], [2.0, -1.0]]), [], np.zeros(shape))
    assert found.labels.tolist() == [0, 1]
    assert found.energy == -1


def test_weights_off_the_grid_do_not_count():
    """Neither against the largest cost, in either kind of moves."""
    weights = np.ones((2, 2, 2), np.float32)
    weights[0, :, -1] = weights[1, -1] = 9e29
    for moves in (alpha_expansion_grid, alpha_beta_swap_grid):
        assert moves(np.zeros((2, 2, 2)), weights, 2 * (1 - np.eye(2))).converged
    weights[0, 0, 0] = 9e29
    assert "weights times compatibility" in refusal(
        alpha_expansion_grid, np.zeros((2, 2, 2)), weights, 2 * (1 - np.eye(2))
    )
