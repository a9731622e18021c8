"""A differentiable dense CRF layer for PyTorch, on CPU and GPU."""

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

__all__ = [
    "DenseCRF",
    "ExpectedHamming",
    "IntersectionOverUnion",
    "LogLikelihood",
    "PairwiseEnergy",
    "RobustLogLikelihood",
]
