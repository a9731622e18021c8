"""Small scenes: in memory, and in a folder laid out as `FolderDataset` reads it."""

import json
from pathlib import Path

import numpy as np
from PIL import Image

from crfield import unary_from_probabilities
from crfield.datasets import synthetic_scenes
from crfield.estimators import TrainingImage


def training_images(n, size, n_labels=3):
    """Scenes with costs in float64, so that runs can be compared closely."""
    return [
        TrainingImage(
            scene.image, unary_from_probabilities(scene.probabilities.astype(float)), scene.mask
        )
        for scene in synthetic_scenes(n, size=size, n_labels=n_labels)
    ]


def sampled_images(true, inference, *, n=6, seed=3, size=(14, 16)):
    """Images of flat patches whose labels are drawn from the marginals of a known model."""
    rng = np.random.default_rng(seed)
    made = []
    for _ in range(n):
        patch = np.ones((5, 6, 1))
        colors = np.kron(rng.uniform(0, 255, (3, 3, 3)), patch)[: size[0], : size[1]]
        costs = np.kron(rng.normal(size=(3, 3, true.n_labels)), patch)[: size[0], : size[1]]
        image = colors + rng.normal(0, 6, (*size, 3))
        unary = costs + rng.normal(size=costs.shape)
        q = true.infer(
            image, unary, algorithm=inference.algorithm, filter=inference.filter,
            max_iter=inference.max_iter, tol=0.0, check=False,
        ).marginals
        made.append(TrainingImage(image, unary, (q.cumsum(-1) < rng.random((*size, 1))).sum(-1)))
    return made


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
