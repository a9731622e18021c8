"""Differentiable CRFs for PyTorch: a dense layer, chains, trees, grids, graphs and rays."""

from crfield._core.optional import missing

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(missing("crfield.nn needs", "torch"), name="torch") from None

from crfield.nn.dense.layer import DenseCRF
from crfield.nn.losses import (
    ExpectedHamming,
    IntersectionOverUnion,
    LogLikelihood,
    PairwiseEnergy,
    RobustLogLikelihood,
)
from crfield.nn.structured.graphs import propagate_graph
from crfield.nn.structured.grids import GridCRF, propagate_grid
from crfield.nn.structured.rays import expected_depth_error, pad_rays, propagate_rays
from crfield.nn.structured.trees import (
    ChainCRF,
    TreeCRF,
    tree_decode,
    tree_edge_marginals,
    tree_energies,
    tree_log_partition,
    tree_marginals,
    tree_nll,
)

__all__ = [
    "ChainCRF",
    "DenseCRF",
    "ExpectedHamming",
    "GridCRF",
    "IntersectionOverUnion",
    "LogLikelihood",
    "PairwiseEnergy",
    "RobustLogLikelihood",
    "TreeCRF",
    "expected_depth_error",
    "pad_rays",
    "propagate_graph",
    "propagate_grid",
    "propagate_rays",
    "tree_decode",
    "tree_edge_marginals",
    "tree_energies",
    "tree_log_partition",
    "tree_marginals",
    "tree_nll",
]
