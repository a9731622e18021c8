"""Low energies for many labels by moves, each a graph cut (Boykov, Veksler, Zabih, PAMI 2001).

    E(x) = sum_i unary[i, x_i] + sum_ij weights[ij] mu(x_i, x_j)

An expansion lets any set of variables switch to one label. When no expansion lowers E, E is at most
2 max mu / min mu (over different labels) times the minimum. A swap lets variables with one of two
labels take either of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.validate import LARGEST_COST, InputError, as_array, as_count, working_dtype
from crfield.dense.compatibility import Compatibility, Potts
from crfield.graphcut._checks import (
    Array,
    as_costs,
    as_edges,
    as_grid_weights,
    check_not_negative,
    check_room,
    padded_cells,
)
from crfield.graphcut.neighborhood import native_grid, offsets_for, pairs_region
from crfield.graphcut.results import MoveResult

_DOUBLE = np.dtype(np.float64)
# Rounding allowed when mu is checked to be a metric, as a share of its largest entry.
_TOLERANCE = 1e-6


def alpha_expansion(
    unary: Any, edges: Any, weights: Any, compatibility: Any = None, *, init: Any = None,
    max_iter: int = 100,
) -> MoveResult:
    """Lower E(x) on a graph by expansions until none helps, in float64.

    E(x) = sum_i unary[i, x_i] + sum_e weights[e] mu(x_i, x_j), e = (i, j) (Boykov, Veksler and
    Zabih, PAMI 2001).

    Parameters
    ----------
    unary : (N, L).
    edges : (E, 2), pairs of different nodes.
    weights : (E,) >= 0.
    compatibility : mu (L, L), a metric, or a `Compatibility`; by default 1 for different labels.
    init : (N,) labels to start from, by default each node's cheapest.
    max_iter : most cycles; in each, every label expands once.
    """
    return _graph_moves(False, unary, edges, weights, compatibility, init, max_iter)


def alpha_beta_swap(
    unary: Any, edges: Any, weights: Any, compatibility: Any = None, *, init: Any = None,
    max_iter: int = 100,
) -> MoveResult:
    """Lower E(x) on a graph by swaps until none helps; see `alpha_expansion`.

    mu need not satisfy the triangle inequality.
    """
    return _graph_moves(True, unary, edges, weights, compatibility, init, max_iter)


def alpha_expansion_grid(
    unary: Any, weights: Any, compatibility: Any = None, *, neighbors: int | None = None,
    init: Any = None, max_iter: int = 100,
) -> MoveResult:
    """`alpha_expansion` on a grid, in float32 unless `unary` is float64.

    unary : (*grid, L).
    weights : (n_offsets, *grid) >= 0 in the order of `grid_offsets`.
    neighbors : 4 or 8, in 3-D 6 or 26; by default what the number of weights implies.
    init : (*grid,); compatibility and max_iter are as for `alpha_expansion`.
    """
    return _grid_moves(False, unary, weights, compatibility, neighbors, init, max_iter)


def alpha_beta_swap_grid(
    unary: Any, weights: Any, compatibility: Any = None, *, neighbors: int | None = None,
    init: Any = None, max_iter: int = 100,
) -> MoveResult:
    """`alpha_beta_swap` on a grid; see `alpha_expansion_grid`."""
    return _grid_moves(True, unary, weights, compatibility, neighbors, init, max_iter)


def _graph_moves(
    swap: bool, unary: Any, edges: Any, weights: Any, compatibility: Any, init: Any,
    max_iter: int,
) -> MoveResult:
    costs = as_costs(unary, "unary", _DOUBLE)
    if costs.ndim != 2 or 0 in costs.shape:
        raise InputError(
            f"unary must have shape (N, L) with a node and a label at least, got {costs.shape}; "
            "give the cost of each label of each node."
        )
    ends = as_edges(edges, len(costs))
    strengths = as_costs(weights, "weights", _DOUBLE)
    if strengths.shape != (len(ends),):
        raise InputError(
            f"weights must have one number for each of {len(ends)} edges, got shape "
            f"{strengths.shape}; match edges."
        )
    check_not_negative(strengths, "weights")
    mu = _as_mu(compatibility, float(strengths.max(initial=0)), costs.shape[1], not swap)
    return _descend(
        lambda labels: _native.graph_cycle(costs, strengths, mu, ends, swap, labels),
        _as_init(init, costs), max_iter,
    )


def _grid_moves(
    swap: bool, unary: Any, weights: Any, compatibility: Any, neighbors: int | None, init: Any,
    max_iter: int,
) -> MoveResult:
    given = as_array(unary, "unary")
    if given.ndim not in (3, 4) or 0 in given.shape:
        raise InputError(
            f"unary must have shape (*grid, L) with 2 or 3 grid axes that are not empty, got "
            f"{given.shape}; give the cost of each label at each cell."
        )
    dtype = working_dtype(given)
    costs = as_costs(given, "unary", dtype)
    grid, n_labels = costs.shape[:-1], costs.shape[-1]
    n_cells = math.prod(grid)
    planes = as_array(weights, "weights")
    offsets = offsets_for(planes.shape, grid, neighbors)
    strengths = as_costs(
        as_grid_weights(planes[None], "weights", (1,), grid, offsets), "weights", dtype
    )
    largest = max(
        float(strengths[0, k][pairs_region(grid, offset)].max(initial=0))
        for k, offset in enumerate(offsets)
    )
    check_room(
        padded_cells(grid) * float((2 * len(offsets) + 1) * dtype.itemsize + 16)
        + n_cells * float((len(offsets) + 1) * dtype.itemsize + 9),
        f"Moves on a grid of {' x '.join(map(str, grid))} cells", "work on tiles of it",
    )
    mu = _as_mu(compatibility, largest, n_labels, not swap).astype(dtype)
    flat = costs.reshape(n_cells, n_labels)
    flat_strengths, size = strengths.ravel(), native_grid(grid, offsets)
    return _descend(
        lambda labels: _native.grid_cycle(
            flat, flat_strengths, mu, *size, swap, labels.reshape(-1)
        ),
        _as_init(init, costs), max_iter,
    )


def _descend(
    run_cycle: Callable[[NDArray[np.int32]], tuple[float, float]], labels: NDArray[np.int32],
    max_iter: int,
) -> MoveResult:
    energies: list[float] = []
    converged = False
    for _ in range(as_count(max_iter, "max_iter")):
        before, after = run_cycle(labels)
        energies = [*(energies or [before]), after]
        converged = after == before
        if converged:
            break
    return MoveResult(labels, np.array(energies), len(energies) - 1, converged)


def _as_init(init: Any, costs: Array) -> NDArray[np.int32]:
    """Labels to start from, copied from the caller's."""
    if init is None:
        return np.ascontiguousarray(costs.argmin(-1), np.int32)
    labels = as_array(init, "init")
    if labels.shape != costs.shape[:-1] or labels.dtype.kind not in "iub":
        raise InputError(
            f"init must be whole numbers of shape {costs.shape[:-1]}, got {labels.dtype} of shape "
            f"{labels.shape}; give each variable the index of a label."
        )
    n_labels = costs.shape[-1]
    if labels.min() < 0 or labels.max() >= n_labels:
        raise InputError(
            f"init must hold labels from 0 to {n_labels - 1}, got {labels.min()} to "
            f"{labels.max()}; give each variable the index of a label."
        )
    return np.array(labels, np.int32, order="C")


def _as_mu(
    compatibility: Any, largest_weight: float, n_labels: int, is_metric: bool
) -> NDArray[np.float64]:
    """mu (L, L): 0 for equal labels, symmetric, not negative, and a metric if asked for."""
    if compatibility is None:
        compatibility = Potts()
    if isinstance(compatibility, Compatibility):
        compatibility.check_size(n_labels)
        compatibility = compatibility.matrix(n_labels)
    mu = as_costs(compatibility, "compatibility", _DOUBLE)
    if mu.shape != (n_labels, n_labels):
        raise InputError(
            f"compatibility must have shape ({n_labels}, {n_labels}) for {n_labels} labels, got "
            f"{mu.shape}; give the cost of each pair of labels."
        )
    check_not_negative(mu, "compatibility")
    slack = _TOLERANCE * float(mu.max())
    for wrong, rule in (
        (np.abs(np.diag(np.diag(mu))), "mu[a, a] = 0"), (np.abs(mu - mu.T), "mu[a, b] = mu[b, a]"),
    ):
        if wrong.max() > slack:
            a, b = (int(i) for i in np.unravel_index(int(wrong.argmax()), mu.shape))
            raise InputError(
                f"compatibility must have {rule}, got mu[{a}, {b}] = {mu[a, b]:g} and mu[{b}, {a}] "
                f"= {mu[b, a]:g}; use (mu + mu.T) / 2 with a diagonal of 0."
            )
    if is_metric:
        _check_triangles(mu, slack)
    largest = float(mu.max()) * largest_weight
    if largest > LARGEST_COST:
        raise InputError(
            f"weights times compatibility must not exceed {LARGEST_COST:g}, got up to "
            f"{largest:.3g}; scale one of them down."
        )
    return mu


def _check_triangles(mu: NDArray[np.float64], slack: float) -> None:
    for c in range(len(mu)):
        excess = mu - (mu[:, c, None] + mu[None, c, :])
        if excess.max() > slack:
            a, b = (int(i) for i in np.unravel_index(int(excess.argmax()), mu.shape))
            raise InputError(
                "compatibility must be a metric for expansions, got "
                f"mu[{a}, {b}] = {mu[a, b]:g} > mu[{a}, {c}] + mu[{c}, {b}] = {mu[a, c]:g} + "
                f"{mu[c, b]:g}; truncate mu, or use alpha_beta_swap."
            )
