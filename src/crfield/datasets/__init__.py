"""Data sets on disk, sample photos with masks, made-up scenes, and ways to spoil good masks."""

from typing import TYPE_CHECKING, Any

from crfield.datasets.degrade import coarsen, noisy_probabilities
from crfield.datasets.samples import Sample, load_sample, sample_names
from crfield.datasets.shrunk import Shrunk
from crfield.datasets.synthetic import Scene, synthetic_scenes

if TYPE_CHECKING:
    from crfield.datasets.folder import Example, FolderDataset
else:

    def __getattr__(name: str) -> Any:
        """Import what needs Pillow once it is used."""
        if name in ("Example", "FolderDataset"):
            from crfield.datasets import folder

            return getattr(folder, name)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "Example",
    "FolderDataset",
    "Sample",
    "Scene",
    "Shrunk",
    "coarsen",
    "load_sample",
    "noisy_probabilities",
    "sample_names",
    "synthetic_scenes",
]
