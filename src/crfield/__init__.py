"""Conditional random fields on images, volumes and points: infer labels, learn every parameter."""

from crfield._core.validate import InputError
from crfield.blocks.refinement import BlockResult, refine_blocks
from crfield.dense.compatibility import Diagonal, Potts, Symmetric
from crfield.dense.kernels import Bilateral, FeatureKernel, Spatial
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF, Pairwise
from crfield.dense.results import InferenceResult, InferenceStatus
from crfield.refinement import refine
from crfield.unary.costs import (
    unary_from_features,
    unary_from_labels,
    unary_from_logits,
    unary_from_probabilities,
)
from crfield.unary.scribbles import paint_over, unary_from_scribbles

__version__ = "0.1.0"

__all__ = [
    "Bilateral",
    "BlockResult",
    "DenseCRF",
    "Diagonal",
    "FeatureKernel",
    "Inference",
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
