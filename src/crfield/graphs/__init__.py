"""Factor graphs: belief propagation, log-linear models, chains, trees, grids, and rays."""

from crfield.graphs.chains import (
    BestChains,
    ChainResult,
    RankedChains,
    best_chains,
    chain_energies,
    infer_chains,
    k_best_chains,
    sample_chains,
)
from crfield.graphs.distances import (
    distance_transform,
    soft_distance_transform,
)
from crfield.graphs.estimators import (
    ChainClassifier,
    GraphClassifier,
    GridClassifier,
    Propagation,
)
from crfield.graphs.factor_graph import (
    FactorGraph,
    table_factors,
)
from crfield.graphs.factors import (
    DistanceFactors,
    Factors,
    GridFactors,
    PottsFactors,
    TableFactors,
)
from crfield.graphs.feature_graph import FeatureGraph, FeatureTerm, LogLinearLoss, log_linear_loss
from crfield.graphs.forests import (
    RankedLabels,
    k_best_graph,
    sample_graph,
)
from crfield.graphs.graph_results import GraphResult
from crfield.graphs.high_orders import PatternFactors, RayFactors
from crfield.graphs.log_linear import ChainLoss, Expectations, chain_loss
from crfield.graphs.pictorial import (
    PictorialStructure,
    PoseResult,
    PoseSamples,
)
from crfield.graphs.propagation import infer_graph
from crfield.graphs.rays import (
    RayModel,
    RayResult,
    fuse_independent,
    infer_rays,
    ray_messages,
)
from crfield.graphs.uai import (
    condition,
    read_evidence,
    read_uai,
    write_uai,
)
from crfield.graphs.voxels import Camera, Crossings, VoxelGrid

__all__ = [
    "BestChains",
    "Camera",
    "ChainClassifier",
    "ChainLoss",
    "ChainResult",
    "Crossings",
    "DistanceFactors",
    "Expectations",
    "FactorGraph",
    "Factors",
    "FeatureGraph",
    "FeatureTerm",
    "GraphClassifier",
    "GraphResult",
    "GridClassifier",
    "GridFactors",
    "LogLinearLoss",
    "PatternFactors",
    "PictorialStructure",
    "PoseResult",
    "PoseSamples",
    "PottsFactors",
    "Propagation",
    "RankedChains",
    "RankedLabels",
    "RayFactors",
    "RayModel",
    "RayResult",
    "TableFactors",
    "VoxelGrid",
    "best_chains",
    "chain_energies",
    "chain_loss",
    "condition",
    "distance_transform",
    "fuse_independent",
    "infer_chains",
    "infer_graph",
    "infer_rays",
    "k_best_chains",
    "k_best_graph",
    "log_linear_loss",
    "ray_messages",
    "read_evidence",
    "read_uai",
    "sample_chains",
    "sample_graph",
    "soft_distance_transform",
    "table_factors",
    "write_uai",
]
