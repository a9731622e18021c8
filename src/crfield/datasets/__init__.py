"""Sample photos with masks, made-up scenes, and ways to spoil good masks."""

from crfield.datasets.degrade import coarsen, noisy_probabilities
from crfield.datasets.samples import Sample, load_sample, sample_names
from crfield.datasets.synthetic import Scene, synthetic_scenes

__all__ = [
    "Sample",
    "Scene",
    "coarsen",
    "load_sample",
    "noisy_probabilities",
    "sample_names",
    "synthetic_scenes",
]
