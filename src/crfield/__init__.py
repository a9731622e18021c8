"""Conditional random fields on images, volumes and points: infer labels, learn every parameter."""

from crfield._validate import InputError
from crfield.compatibility import Diagonal, Potts, Symmetric
from crfield.dense import DenseCRF, Pairwise
from crfield.kernels import Bilateral, FeatureKernel, Spatial
from crfield.refinement import refine
from crfield.results import InferenceResult, InferenceStatus
from crfield.unary import (
    unary_from_features,
    unary_from_labels,
    unary_from_logits,
    unary_from_probabilities,
)

__version__ = "0.1.0"

__all__ = [
    "Bilateral",
    "DenseCRF",
    "Diagonal",
    "FeatureKernel",
    "InferenceResult",
    "InferenceStatus",
    "InputError",
    "Pairwise",
    "Potts",
    "Spatial",
    "Symmetric",
    "refine",
    "unary_from_features",
    "unary_from_labels",
    "unary_from_logits",
    "unary_from_probabilities",
]
