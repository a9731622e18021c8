"""Learning every parameter of a dense CRF."""

from crfield._core.optimize import OPTIMIZERS
from crfield.learning.baselines import (
    METRICS,
    SearchReport,
    approximate_likelihood,
    generative_kernel,
    grid_search,
    local_search,
    perturbed,
    piecewise,
    potts_grid,
    random_search,
)
from crfield.learning.learner import (
    Learned,
    LearningReport,
    learn,
    make_loss,
)
from crfield.learning.objective import DatasetObjective, Example
from crfield.learning.parameters import LEARNABLE, Parameters
from crfield.learning.recalibration import FORMS
from crfield.learning.report import write_report
from crfield.learning.start import FAMILIES, choose_start, starting_model

__all__ = [
    "FAMILIES",
    "FORMS",
    "LEARNABLE",
    "METRICS",
    "OPTIMIZERS",
    "DatasetObjective",
    "Example",
    "Learned",
    "LearningReport",
    "Parameters",
    "SearchReport",
    "approximate_likelihood",
    "choose_start",
    "generative_kernel",
    "grid_search",
    "learn",
    "local_search",
    "make_loss",
    "perturbed",
    "piecewise",
    "potts_grid",
    "random_search",
    "starting_model",
    "write_report",
]
