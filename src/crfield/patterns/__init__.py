"""Pattern potentials: shapes as high-order terms of a CRF (CHOPP)."""

from crfield.patterns.convolutional import ConvolutionalPatterns
from crfield.patterns.hidden import HiddenPosterior
from crfield.patterns.inference import infer
from crfield.patterns.inputs import EIGHT_NEIGHBOURS, FOUR_NEIGHBOURS, PatternInputs
from crfield.patterns.learning import PatternLearningResult, learn_patterns
from crfield.patterns.model import PatternCRF
from crfield.patterns.multilabel import MultiLabelPatternCRF
from crfield.patterns.potential import PatternPotential, Patterns
from crfield.patterns.relaxation import RelaxationResult, relax
from crfield.patterns.results import PatternResult, PatternStatus
from crfield.patterns.rother import DeviationPatterns
from crfield.patterns.sampling import Chains, sample

__all__ = [
    "EIGHT_NEIGHBOURS",
    "FOUR_NEIGHBOURS",
    "Chains",
    "ConvolutionalPatterns",
    "DeviationPatterns",
    "HiddenPosterior",
    "MultiLabelPatternCRF",
    "PatternCRF",
    "PatternInputs",
    "PatternLearningResult",
    "PatternPotential",
    "PatternResult",
    "PatternStatus",
    "Patterns",
    "RelaxationResult",
    "infer",
    "learn_patterns",
    "relax",
    "sample",
]
