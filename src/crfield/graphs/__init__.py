"""Factor graphs: chains, and rays through voxels."""

from crfield.graphs.chain_estimator import ChainCRF
from crfield.graphs.chain_learning import ChainLoss, chain_loss
from crfield.graphs.chain_training import Expectations
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
from crfield.graphs.rays import (
    RayModel,
    RayResult,
    fuse_independent,
    infer_rays,
    ray_messages,
)
from crfield.graphs.voxels import Camera, Crossings, VoxelGrid

__all__ = [
    "BestChains",
    "Camera",
    "ChainCRF",
    "ChainLoss",
    "ChainResult",
    "Crossings",
    "Expectations",
    "RankedChains",
    "RayModel",
    "RayResult",
    "VoxelGrid",
    "best_chains",
    "chain_energies",
    "chain_loss",
    "fuse_independent",
    "infer_chains",
    "infer_rays",
    "k_best_chains",
    "ray_messages",
    "sample_chains",
]
