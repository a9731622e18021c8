"""Memory is asked for before it is taken, with the costs that label maps become."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from crfield import DenseCRF, refine, refine_blocks
from crfield._core import validate
from crfield.datasets import FolderDataset, unaries
from crfield.learning import Parameters
from crfield.unary import costs, scribbles
from refusal import refusal

IMAGE = np.zeros((200, 200))
LABELS = np.zeros((200, 200), int)


def never(*_, **__):
    raise AssertionError("costs must not be made where what follows does not fit")


@pytest.fixture
def little(monkeypatch):
    """20 MiB: the costs of 40,000 pixels with 100 labels fit, inference beside them does not."""
    monkeypatch.setattr(validate, "available_memory", lambda: 20 * 2.0**20)


def test_refine_asks_for_all_that_it_needs(little, monkeypatch):
    monkeypatch.setattr(costs, "unary_from_labels", never)
    monkeypatch.setattr(costs, "unary_from_probabilities", never)
    monkeypatch.setattr(scribbles, "unary_from_scribbles", never)
    message = refusal(refine, IMAGE, LABELS, n_labels=100)
    assert "Inference on 40000 variables with 100 labels needs about 0.1 GiB" in message
    flat = np.broadcast_to(np.float32(0.01), (200, 200, 100))
    refusal(refine, IMAGE, np.ascontiguousarray(flat))
    painted = LABELS + 255
    painted[0, :2] = 0, 1
    refusal(refine, IMAGE, painted, scribbles=True, n_labels=100)
    refusal(refine_blocks, IMAGE, LABELS, n_labels=100, block=200)


def test_scribbles_with_too_many_labels_are_refused_before_colors_are_found(little, monkeypatch):
    monkeypatch.setattr(scribbles, "colors_of", never)
    painted = LABELS + 255
    painted[0, :2] = 0, 3000
    message = refusal(scribbles.unary_from_scribbles, IMAGE, painted)
    assert "A unary of shape (200, 200, 3001)" in message


def test_what_fits_is_refined(little):
    assert refine(IMAGE[:20], LABELS[:20], n_labels=3, max_iter=1).labels.shape == (20, 200)
    # A mask leaves less to infer: room for the costs and a part of the rest.
    mask = np.zeros(IMAGE.shape, bool)
    mask[:10] = True
    assert refine(IMAGE, LABELS, n_labels=60, mask=mask, max_iter=1).marginals.shape[-1] == 60


def dataset(root, n_labels):
    for folder in ("images", "labels", "unaries"):
        (root / folder).mkdir()
        Image.fromarray(LABELS.astype(np.uint8)).save(root / folder / "a.png")
    description = {"n_labels": n_labels, "void": None, "unaries": {"kind": "labels"}}
    (root / "dataset.json").write_text(json.dumps(description))
    return FolderDataset(root)


def test_data_sets_of_many_labels_are_refused_before_an_image_is_read(tmp_path, little):
    message = refusal(dataset, tmp_path, 65_536)
    assert "65536 true labels by as many others needs about 64.0 GiB" in message
    assert "lower n_labels in dataset.json" in message


def test_so_are_images_whose_inference_does_not_fit(tmp_path, little, monkeypatch):
    monkeypatch.setattr(unaries, "unary_from_labels", never)
    found = dataset(tmp_path, 100)
    assert "inference on 40000 pixels with 100 labels" in refusal(lambda: found[0])


@pytest.mark.parametrize(("kind", "shape"), [
    ("probabilities", (200, 200, 100)), ("probabilities", (1, 100, 200, 200)),
    ("features", (200, 200, 100)),
])
def test_stored_costs_that_do_not_fit_are_not_even_read(
    kind, shape, tmp_path, little, monkeypatch
):
    dataset(tmp_path, 100)
    (tmp_path / "unaries" / "a.png").unlink()
    np.save(tmp_path / "unaries" / "a.npy", np.full(shape, 0.01, np.float16))  # 8 MiB
    description = {"n_labels": 100, "void": None, "unaries": {"kind": kind}}
    (tmp_path / "dataset.json").write_text(json.dumps(description))
    found = FolderDataset(tmp_path)
    monkeypatch.setattr(np.lib.format, "read_array", never)
    what = "features" if kind == "features" else "labels"
    assert f"inference on 40000 pixels with 100 {what}" in refusal(lambda: found[0])


def test_matrices_of_many_labels(little):
    model = DenseCRF(100_000)
    assert "a recalibration of 100000 labels" in refusal(model.with_context)
    assert "a recalibration" in refusal(Parameters, model, ("unary",))
