"""More labels than 255, the number that marks void pixels where it is none of them."""

from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from crfield import DenseCRF, Inference, Pairwise, Potts, Spatial
from crfield.datasets import FolderDataset
from crfield.learning import grid_search, learn, make_loss
from crfield.learning.baselines.generative import estimate_widths
from crfield.learning.baselines.likelihood import likelihood_gradient
from crfield.learning.losses import IntersectionOverUnion, customary_void
from refusal import refusal

pytest.importorskip("scipy")

N_LABELS = 300
ONCE = Inference(max_iter=1, threads=1)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    """Two images of label 255 on the left and of others on the right, and no void."""
    root = tmp_path_factory.mktemp("many")
    for folder in ("images", "labels", "unaries"):
        (root / folder).mkdir()
    rng = np.random.default_rng(0)
    for name in ("a", "b"):
        truth = rng.integers(0, N_LABELS, (6, 8)).astype(np.uint16)
        truth[:, :5] = 255
        Image.fromarray(rng.integers(0, 256, (6, 8, 3), dtype=np.uint8)).save(
            root / "images" / f"{name}.png"
        )
        for folder in ("labels", "unaries"):
            Image.fromarray(truth).save(root / folder / f"{name}.png")
    description = {"n_labels": N_LABELS, "void": None, "unaries": {"kind": "labels"}}
    (root / "dataset.json").write_text(json.dumps(description))
    return FolderDataset(root)


@pytest.fixture(scope="module")
def model():
    return DenseCRF(N_LABELS, [Pairwise(Spatial(2), Potts(0.1))])


def n_counted(counts):
    return int(np.asarray(counts).sum())


def test_255_marks_void_pixels_where_it_is_no_label():
    assert [customary_void(n) for n in (2, 255, 256, N_LABELS)] == [255, 255, None, None]


@pytest.mark.parametrize("name", ["iou", "log_likelihood", "hamming"])
def test_all_pixels_count_where_there_is_no_void(name, dataset, model):
    loss = make_loss(name, dataset, N_LABELS, void=dataset.void)
    for given in (loss, name):
        learned = learn(
            model, dataset, loss=given, learn=("compatibility",), max_iter=1, inference=ONCE,
            validation=dataset,
        )
        assert n_counted(learned.report.confusions[0]) == 96
        assert learned.report.confusions[0][255].sum() >= 60


def test_baselines_count_them_too(dataset, model):
    found = grid_search([model], dataset, inference=ONCE)
    assert n_counted(found.report.confusions[0]) == 96
    assert n_counted(likelihood_gradient(model, dataset, ONCE)[1]) == 96
    # Pairs of the label 255 alone decide: the others are on one side and rarely equal.
    width = estimate_widths(model, 0, dataset, pairs=200, seed=0).sigma
    assert np.isfinite(width).all()


def test_one_of_the_labels_cannot_mark_void_pixels(dataset, model):
    q = np.full((4, N_LABELS), 1 / N_LABELS)
    loss = IntersectionOverUnion()
    message = refusal(loss.totals, q, np.array([255, 1, 2, 3]))
    assert "void must be no label from 0 to 299, got 255" in message
    assert "void=None" in message
    IntersectionOverUnion(void=None).totals(q, np.array([255, 1, 2, 3]))


def test_neither_can_it_in_layers():
    torch = pytest.importorskip("torch")
    from crfield.nn import losses

    logits, labels = torch.zeros(1, N_LABELS, 2, 2), torch.full((1, 2, 2), 255)
    assert "void must be no label" in refusal(losses.LogLikelihood(), logits, labels)
    value = losses.LogLikelihood(void=None)(logits, labels)
    assert float(value) == pytest.approx(np.log(N_LABELS))
