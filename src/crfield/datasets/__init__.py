"""Data sets in folders, sample photos with masks, made-up data, and ways to spoil good masks."""

from typing import TYPE_CHECKING, Any

from crfield.datasets.degrade import coarsen, noisy_probabilities
from crfield.datasets.ellipses import ellipse_set, noisy_unaries
from crfield.datasets.samples import Sample, load_sample, sample_names
from crfield.datasets.shrunk import Shrunk
from crfield.datasets.synthetic import Scene, synthetic_scenes
from crfield.datasets.words import noisy_words

if TYPE_CHECKING:
    from crfield.datasets.folder import Example, FolderDataset
    from crfield.datasets.silhouettes import Augmentation, Silhouettes, read_silhouettes
else:

    def __getattr__(name: str) -> Any:
        """Import what needs Pillow when it is used."""
        if name in ("Example", "FolderDataset"):
            from crfield.datasets import folder

            return getattr(folder, name)
        if name in ("Augmentation", "Silhouettes", "read_silhouettes"):
            from crfield.datasets import silhouettes

            return getattr(silhouettes, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Augmentation",
    "Example",
    "FolderDataset",
    "Sample",
    "Scene",
    "Shrunk",
    "Silhouettes",
    "coarsen",
    "ellipse_set",
    "load_sample",
    "noisy_probabilities",
    "noisy_unaries",
    "noisy_words",
    "read_silhouettes",
    "sample_names",
    "synthetic_scenes",
]
