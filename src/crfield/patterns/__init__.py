"""Pattern potentials: shapes as high-order terms of a CRF (CHOPP)."""

from crfield.patterns.convolutional import ConvolutionalPatterns
from crfield.patterns.hidden import HiddenPosterior
from crfield.patterns.inference import PatternResult, PatternStatus, infer
from crfield.patterns.inputs import EIGHT_NEIGHBORS, FOUR_NEIGHBORS, PatternInputs
from crfield.patterns.learning import learn_patterns
from crfield.patterns.measures import mask_scores
from crfield.patterns.model import MultiLabelPatternCRF, PatternCRF
from crfield.patterns.potential import PatternPotential, Patterns
from crfield.patterns.pretraining import PretrainedPatterns, pretrain
from crfield.patterns.relaxation import relax
from crfield.patterns.rother import DeviationPatterns
from crfield.patterns.sampling import Chains, sample
from crfield.patterns.tradeoffs import choose_tradeoffs

__all__ = [
    "EIGHT_NEIGHBORS",
    "FOUR_NEIGHBORS",
    "Chains",
    "ConvolutionalPatterns",
    "DeviationPatterns",
    "HiddenPosterior",
    "MultiLabelPatternCRF",
    "PatternCRF",
    "PatternInputs",
    "PatternPotential",
    "PatternResult",
    "PatternStatus",
    "Patterns",
    "PretrainedPatterns",
    "choose_tradeoffs",
    "infer",
    "learn_patterns",
    "mask_scores",
    "pretrain",
    "relax",
    "sample",
]
