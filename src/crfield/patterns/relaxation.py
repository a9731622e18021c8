"""A linear program that bounds the MAP energy from below (the remark in CHOPP section 4.2).

At temperature 0 E(y) = min_h E_base(y) - c'h - sum_ij W_ij y_i h_j. With z_ij for y_i h_j and
d_e for [y_i != y_j] the local relaxation is

    min  sum_i u_i y_i + sum_e p_e d_e - c'h - sum_ij W_ij z_ij,
    d_e >= |y_i - y_j|,  z_ij <= y_i,  z_ij <= h_j,  z_ij >= y_i + h_j - 1,  all in [0, 1],

with sum_j h_j = 1 for "min" and sum_j h_j <= k for at most k active units. For small problems: it
has I J variables z.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from crfield._core.optional import missing
from crfield._core.validate import FloatArray, InputError, check_memory, shown
from crfield.patterns.inputs import PatternInputs, grid_edges
from crfield.patterns.model import PatternCRF
from crfield.patterns.potential import PatternPotential

_INTEGRAL = 1e-6


@dataclass(frozen=True)
class RelaxationResult:
    """Solutions of the relaxation for a batch.

    Attributes
    ----------
    bounds : (B,), value of the linear program; no labeling has a lower energy.
    visible : (B, H, W), its y in [0, 1].
    labels : (B, H, W), y rounded.
    energies : (B,), E of the labels.
    integral : (B,), whether y was integral, which makes the labels optimal.
    """

    bounds: NDArray[np.float64]
    visible: NDArray[np.float64]
    labels: NDArray[np.uint8]
    energies: NDArray[np.float64]
    integral: NDArray[np.bool_]


def relax(model: PatternCRF, inputs: PatternInputs) -> RelaxationResult:
    """Bound the least energy of each image, and round the solution to labels; needs SciPy.

    model, inputs : as for `infer`.
    """
    if not isinstance(model, PatternCRF) or model.patterns is None:
        raise InputError(
            f"model must be a PatternCRF with patterns, got {type(model).__name__} without; "
            "a graph cut is exact for the pairwise terms alone."
        )
    model.check_inputs(inputs)
    patterns = model.patterns
    if patterns.temperature != 0:
        raise InputError(
            f"temperature must be 0 for the linear program, got {patterns.temperature}; "
            "use model.at_temperature(0)."
        )
    try:
        import scipy.optimize  # noqa: F401
    except ImportError:
        raise InputError(missing("relax needs", "scipy", otherwise="use infer")) from None
    n = len(inputs)
    costs = model.label_costs(inputs).reshape(n, -1)
    weights = model.edge_weights(inputs)
    bias = patterns.hidden_bias(n, inputs.features)
    program = _Program(patterns, model.grid, weights.shape[1])
    solved = [
        program.solve(costs[b], weights[b % len(weights)], bias[b % len(bias)]) for b in range(n)
    ]
    visible = np.array([y for _, y in solved]).reshape(n, *model.grid)
    labels = (visible > 0.5).astype(np.uint8)
    constant = model.unary_weight * inputs.costs[..., 0].sum((1, 2), dtype=np.float64)
    return RelaxationResult(
        np.array([value for value, _ in solved]) + constant,
        visible,
        labels,
        model.energies(labels, inputs),
        np.asarray((np.abs(visible - labels) <= _INTEGRAL).all((1, 2))),
    )


class _Program:
    """The constraints, which all images share; the variables are y, d, h and z in this order."""

    def __init__(
        self, patterns: PatternPotential, grid: tuple[int, int], n_offsets: int
    ) -> None:
        from scipy import sparse

        n_visible, n_hidden = patterns.n_visible, patterns.n_hidden
        check_memory(
            400.0 * n_visible * n_hidden,
            f"A linear program for {n_visible} labels and {n_hidden} hidden units",
            "use infer(), which scales to any size",
        )
        w = patterns.to_visible(np.eye(n_hidden, dtype=patterns.dtype)).T.astype(np.float64)
        self._inside, tails, heads = _edges(grid, n_offsets)
        y, h = sparse.eye(n_visible, format="csr"), sparse.eye(n_hidden, format="csr")
        # Only the side that the sign of W_ij pushes z_ij against can hold it back.
        (i_plus, j_plus), (i_minus, j_minus) = np.nonzero(w > 0), np.nonzero(w < 0)
        z_plus, z_minus = sparse.eye(len(i_plus)), sparse.eye(len(i_minus))
        d = sparse.eye(len(tails))
        difference = y[tails] - y[heads]
        self._rows = sparse.bmat(
            [
                [difference, -d, None, None, None],
                [-difference, -d, None, None, None],
                [-y[i_plus], None, None, z_plus, None],
                [None, None, -h[j_plus], z_plus, None],
                [y[i_minus], None, h[j_minus], None, -z_minus],
            ],
            format="csr",
        )
        limits = np.zeros(self._rows.shape[0])
        limits[len(limits) - len(i_minus) :] = 1.0
        self._limits = limits
        self._products = -np.concatenate([w[i_plus, j_plus], w[i_minus, j_minus]])
        self._n_visible = n_visible
        # One more row for how many hidden units may be active.
        active = np.zeros((1, self._rows.shape[1]))
        active[0, n_visible + len(tails) : n_visible + len(tails) + n_hidden] = 1.0
        self._active = active
        self._equal = patterns.composition == "min"
        most = patterns.max_active
        self._most = None if most is None else min(most, n_hidden)

    def solve(
        self, costs: FloatArray, weights: FloatArray, bias: FloatArray
    ) -> tuple[float, NDArray[np.float64]]:
        """Value and y of one image from costs (I,), weights (n_offsets, H, W) and c(x) (J,)."""
        from scipy import sparse
        from scipy.optimize import linprog

        objective = np.concatenate([costs, weights[self._inside], -bias, self._products])
        rows, limits, equal = self._rows, self._limits, {}
        if self._equal:
            equal = {"A_eq": self._active, "b_eq": [1.0]}
        elif self._most is not None:
            rows = sparse.vstack([rows, self._active], format="csr")
            limits = np.append(limits, self._most)
        found = linprog(objective, rows, limits, bounds=(0, 1), method="highs", **equal)
        if found.x is None:
            raise InputError(
                f"the linear program could not be solved, the solver said {shown(found.message)}; "
                "scale the costs to moderate numbers."
            )
        return float(found.fun), np.asarray(found.x[: self._n_visible])


def _edges(
    grid: tuple[int, int], n_offsets: int
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.int64]]:
    """Which entries of (n_offsets, H, W) are edges, and the pixels that they join, in order."""
    pixels = np.arange(grid[0] * grid[1]).reshape(grid)
    mask = np.zeros((n_offsets, *grid), bool)
    tails, heads = [], []
    for plane, (here, there) in zip(mask, grid_edges(grid, n_offsets), strict=True):
        plane[here] = True
        tails.append(pixels[here].ravel())
        heads.append(pixels[there].ravel())
    return mask, np.concatenate(tails), np.concatenate(heads)
