"""Differentiable CRFs for PyTorch: a dense layer on CPU and GPU, and rays through voxels."""

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise ModuleNotFoundError(
        "crfield.nn needs PyTorch, which is not installed; pip install 'crfield[torch]'",
        name="torch",
    ) from None

from crfield.nn.layer import DenseCRF
from crfield.nn.losses import (
    ExpectedHamming,
    IntersectionOverUnion,
    LogLikelihood,
    PairwiseEnergy,
    RobustLogLikelihood,
)
from crfield.nn.rays import RayBeliefs, expected_depth_error, pad_rays, propagate_rays

__all__ = [
    "DenseCRF",
    "ExpectedHamming",
    "IntersectionOverUnion",
    "LogLikelihood",
    "PairwiseEnergy",
    "RayBeliefs",
    "RobustLogLikelihood",
    "expected_depth_error",
    "pad_rays",
    "propagate_rays",
]
