"""A folder of small scenes, laid out as `FolderDataset` reads it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from PIL import Image

from crfield.datasets import synthetic_scenes


def write_dataset(root, *, n_train, n_test=0, size=(48, 56), n_labels=3):
    """Scenes with probabilities, and the splits train and test."""
    root = Path(root)
    for folder in ("images", "labels", "unaries"):
        (root / folder).mkdir(parents=True)
    names = []
    for scene in synthetic_scenes(n_train + n_test, size=size, n_labels=n_labels, seed=1):
        Image.fromarray(scene.image).save(root / "images" / f"{scene.name}.png")
        Image.fromarray(scene.mask).save(root / "labels" / f"{scene.name}.png")
        np.save(root / "unaries" / f"{scene.name}.npy", scene.probabilities)
        names.append(scene.name)
    (root / "train.txt").write_text("\n".join(names[:n_train]) + "\n")
    (root / "test.txt").write_text("\n".join(names[n_train:]) + "\n")
    description = {"n_labels": n_labels, "unaries": {"folder": "unaries", "kind": "probabilities"}}
    (root / "dataset.json").write_text(json.dumps(description))
    return root
