"""What learning is compared with (KK13 section 5.2): searches, and estimates of single parts."""

from crfield.learning.baselines.generative import generative_kernel
from crfield.learning.baselines.likelihood import approximate_likelihood, likelihood_gradient
from crfield.learning.baselines.scoring import METRICS
from crfield.learning.baselines.search import (
    SearchReport,
    grid_search,
    local_search,
    perturbed,
    potts_grid,
    random_search,
)
from crfield.learning.baselines.stages import piecewise

__all__ = [
    "METRICS",
    "SearchReport",
    "approximate_likelihood",
    "generative_kernel",
    "grid_search",
    "likelihood_gradient",
    "local_search",
    "perturbed",
    "piecewise",
    "potts_grid",
    "random_search",
]
