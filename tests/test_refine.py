"""The one call: what it accepts, and that it improves a segmentation."""

from __future__ import annotations

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import crfield
from crfield import DenseCRF, Pairwise, Potts, Spatial, refine
from crfield.metrics import confusion_matrix, mean_iou
from refusal import refusal


def two_squares():
    """A noisy two-color image, its truth and a shifted label map."""
    rng = np.random.default_rng(0)
    truth = np.zeros((40, 50), np.uint8)
    truth[10:30, 15:40] = 1
    image = np.where(truth[..., None], [200, 60, 40], [40, 80, 160]) + rng.normal(0, 8, (40, 50, 3))
    return np.clip(image, 0, 255).astype(np.uint8), truth, np.roll(truth, (3, -2), (0, 1))


def test_a_shifted_mask_snaps_to_the_object():
    image, truth, shifted = two_squares()
    result = refine(image, shifted)
    before = mean_iou(confusion_matrix(truth, shifted, 2))
    after = mean_iou(confusion_matrix(truth, result.labels, 2))
    assert before < 0.85
    assert after > 0.99
    assert (np.diff(result.free_energies) <= 1e-3).all()
    assert result.marginals.shape == (40, 50, 2)


def test_every_form_of_segmentation_gives_the_same_labels():
    image, _, shifted = two_squares()
    expected = refine(image, shifted).labels
    foreground = np.where(shifted == 1, 0.7, 0.3)
    both = np.stack([1 - foreground, foreground], -1)
    forms = [
        refine(Image.fromarray(image), shifted), refine(image, foreground), refine(image, both),
        refine(image, np.moveaxis(both, -1, 0), layout="channels_first"),
        refine(image, shifted.astype(bool)),
        refine(image, both.astype(np.float16)),
    ]
    for form in forms:
        assert (form.labels != expected).mean() < 0.002


def test_pillow_pictures_are_taken_as_a_person_sees_them():
    image, _, shifted = two_squares()
    expected = refine(image, shifted).marginals
    picture = Image.fromarray(image)
    exif = Image.Exif()
    exif[0x0112] = 6  # stored on its side: a viewer turns it by 90 degrees clockwise
    stream = io.BytesIO()
    picture.transpose(Image.Transpose.ROTATE_90).save(stream, "PNG", exif=exif)
    opaque = picture.copy()
    opaque.putalpha(255)
    for same in (Image.open(stream), opaque):
        assert np.array_equal(refine(same, shifted).marginals, expected)
    palette = picture.quantize(16)
    assert np.array_equal(
        refine(palette, shifted).marginals, refine(palette.convert("RGB"), shifted).marginals
    )


def test_ids_of_the_label_map_are_kept():
    image, _, shifted = two_squares()
    ids = np.where(shifted == 1, 255, 7).astype(np.uint8)
    assert "unknown=None" in refusal(refine, image, ids)
    result = refine(image, ids, unknown=None)
    assert set(np.unique(result.labels)) == {7, 255}
    assert np.array_equal(result.label_ids, [7, 255])
    negative = np.where(shifted == 1, -3, 100000)
    assert set(np.unique(refine(image, negative).labels)) == {-3, 100000}


def test_scribbles_spread_over_unknown_pixels():
    image, truth, _ = two_squares()
    scribbles = np.full_like(truth, 255)
    scribbles[20, 20:35] = 1
    scribbles[3, 5:45] = 0
    result = refine(image, scribbles, confidence=0.9, max_iter=30)
    assert mean_iou(confusion_matrix(truth, result.labels, 2)) > 0.95


def test_three_labels_and_three_channels_are_not_confused():
    rng = np.random.default_rng(1)
    image = rng.integers(0, 255, (12, 14, 3), dtype=np.uint8)
    p = rng.dirichlet(np.ones(3), (12, 14))
    assert refine(image, p).marginals.shape == (12, 14, 3)
    square = rng.dirichlet(np.ones(3), (3, 3))
    assert refine(rng.random((3, 3, 3)), square).marginals.shape == (3, 3, 3)


def test_soft_masks_and_label_maps_of_the_wrong_type_get_a_warning():
    image, _, shifted = two_squares()
    with pytest.warns(UserWarning, match="looks like a label map"):
        refine(image, shifted.astype(float))
    gray = np.linspace(0, 254, shifted.size).reshape(shifted.shape).astype(np.uint8)
    with pytest.warns(UserWarning, match="255 labels and looks like a soft mask"):
        refine(image, gray, max_iter=1)
    refine(image, gray // 4, max_iter=1)  # 64 labels
    refine(image, gray.astype(int) // 2 * 100, max_iter=1)  # numbers of segments, no gray values


def test_a_model_replaces_the_customary_terms(tmp_path):
    image, _, shifted = two_squares()
    model = DenseCRF(2, [Pairwise(Spatial(2), Potts(1))])
    model.save(tmp_path / "model.safetensors")
    loaded = DenseCRF.load(tmp_path / "model.safetensors")
    expected = refine(image, shifted, spatial=2, spatial_weight=1, bilateral=None)
    for given in (model, loaded):
        assert np.array_equal(refine(image, shifted, model=given).marginals, expected.marginals)
    assert refine(image, shifted, model=DenseCRF(3)).marginals.shape == (40, 50, 3)
    assert "3 labels" in refusal(refine, image, np.full((40, 50, 2), 0.5), model=DenseCRF(3))


def test_import_is_light():
    heavy = ("torch", "sklearn", "matplotlib", "dask", "scipy", "joblib", "PIL", "safetensors")
    script = f"import sys, crfield; print([m for m in {heavy!r} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
    assert crfield.__version__
