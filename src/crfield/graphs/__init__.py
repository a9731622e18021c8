"""Factor graphs: belief propagation, log-linear models, chains, trees, grids, rays and poses."""

from crfield.graphs.chains import Chains
from crfield.graphs.conditioning import condition
from crfield.graphs.engines.rays import fuse_independent, ray_messages
from crfield.graphs.estimators import ChainClassifier, GraphClassifier, GridClassifier
from crfield.graphs.factors import (
    DistanceFactors,
    GridFactors,
    PatternFactors,
    PottsFactors,
    RayFactors,
    TableFactors,
)
from crfield.graphs.feature_graph import FeatureGraph, FeatureTerm, log_linear_loss
from crfield.graphs.files.uai import read_evidence, read_uai, write_uai
from crfield.graphs.graph import FactorGraph, table_factors
from crfield.graphs.inference import best, infer, k_best, sample
from crfield.graphs.log_linear import chain_loss
from crfield.graphs.results import Result, Status
from crfield.graphs.settings import Propagation
from crfield.graphs.vision.distances import distance_transform, soft_distance_transform
from crfield.graphs.vision.poses import PictorialStructure, Poses
from crfield.graphs.vision.rays import RayModel
from crfield.graphs.vision.voxels import Camera, VoxelGrid

__all__ = [
    "Camera",
    "ChainClassifier",
    "Chains",
    "DistanceFactors",
    "FactorGraph",
    "FeatureGraph",
    "FeatureTerm",
    "GraphClassifier",
    "GridClassifier",
    "GridFactors",
    "PatternFactors",
    "PictorialStructure",
    "Poses",
    "PottsFactors",
    "Propagation",
    "RayFactors",
    "RayModel",
    "Result",
    "Status",
    "TableFactors",
    "VoxelGrid",
    "best",
    "chain_loss",
    "condition",
    "distance_transform",
    "fuse_independent",
    "infer",
    "k_best",
    "log_linear_loss",
    "ray_messages",
    "read_evidence",
    "read_uai",
    "sample",
    "soft_distance_transform",
    "table_factors",
    "write_uai",
]
