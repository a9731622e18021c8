"""Conditional random fields on images, volumes and points: infer labels, learn every parameter."""

from crfield._validate import InputError
from crfield.blocks import BlockResult, refine_blocks
from crfield.compatibility import Diagonal, Potts, Symmetric
from crfield.dense import DenseCRF
from crfield.kernels import Bilateral, FeatureKernel, Spatial
from crfield.pairwise import Pairwise
from crfield.refinement import refine
from crfield.results import InferenceResult, InferenceStatus
from crfield.scribbles import paint_over, unary_from_scribbles
from crfield.unary import (
    unary_from_features,
    unary_from_labels,
    unary_from_logits,
    unary_from_probabilities,
)

__version__ = "0.1.0"

__all__ = [
    "Bilateral",
    "BlockResult",
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
    "paint_over",
    "refine",
    "refine_blocks",
    "unary_from_features",
    "unary_from_labels",
    "unary_from_logits",
    "unary_from_probabilities",
    "unary_from_scribbles",
]
