"""Photos to try things on, with scribbles to begin with."""

from __future__ import annotations

import numpy as np

from crfield._core.threads import thread_count
from crfield.app.workspace import Bytes, OpenImage
from crfield.datasets import load_sample, sample_names
from crfield.unary.costs import UNKNOWN
from crfield.unary.scribbles import distances_to

_CORE = 0.72  # scribbles lie this far inside, as a share of the deepest point of their label


def sample_titles() -> dict[str, str]:
    """Names of the samples and what to call them."""
    return {name: name.capitalize() for name in sample_names()}


def open_sample(name: str) -> OpenImage:
    """A sample as an open image."""
    sample = load_sample(name)
    return OpenImage(
        f"{name}.jpg", sample.image, sample=name, example=_example(sample.mask, sample.n_labels),
        label_names=sample.label_names,
    )


def _example(mask: Bytes, n_labels: int) -> Bytes:
    """A stroke in the middle of every label of a mask (H, W)."""
    scribbles = np.full(mask.shape, UNKNOWN, np.uint8)
    for label in range(n_labels):
        depth = distances_to((mask != label)[None], thread_count(None))[0]
        scribbles[depth > _CORE * depth.max()] = label
    return scribbles
