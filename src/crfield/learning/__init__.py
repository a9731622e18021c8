"""Learning every parameter of a dense CRF."""

from crfield.learning.learn import (
    DEFAULT_L2,
    Learned,
    LearningReport,
    learn,
    make_loss,
)
from crfield.learning.objective import Example, Inference, Objective
from crfield.learning.optimizers import OPTIMIZERS
from crfield.learning.parameters import GROUPS, Parameters

__all__ = [
    "DEFAULT_L2",
    "GROUPS",
    "OPTIMIZERS",
    "Example",
    "Inference",
    "Learned",
    "LearningReport",
    "Objective",
    "Parameters",
    "learn",
    "make_loss",
]
