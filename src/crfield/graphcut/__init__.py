"""Labels of least energy by graph cuts: exactly for two labels, by moves for more."""

from crfield.graphcut.graphs import max_flow, minimize_binary
from crfield.graphcut.grids import cut_grids, minimize_binary_grid
from crfield.graphcut.moves import (
    alpha_beta_swap,
    alpha_beta_swap_grid,
    alpha_expansion,
    alpha_expansion_grid,
)
from crfield.graphcut.neighborhood import grid_offsets
from crfield.graphcut.weights import boundary_weights, constant_weights, contrast_weights

__all__ = [
    "alpha_beta_swap",
    "alpha_beta_swap_grid",
    "alpha_expansion",
    "alpha_expansion_grid",
    "boundary_weights",
    "constant_weights",
    "contrast_weights",
    "cut_grids",
    "grid_offsets",
    "max_flow",
    "minimize_binary",
    "minimize_binary_grid",
]
