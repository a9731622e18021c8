"""The one call: what it accepts, and that it improves a segmentation."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

import crfield
from crfield import DenseCRF, Pairwise, Potts, Spatial, refine
from crfield.datasets import synthetic_scenes
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
    result = refine(image, shifted, spatial=3, bilateral=(30, 5))
    before = mean_iou(confusion_matrix(truth, shifted, 2))
    after = mean_iou(confusion_matrix(truth, result.labels, 2))
    assert before < 0.85
    assert after > 0.99
    assert (np.diff(result.free_energies) <= 1e-3).all()
    assert result.marginals.shape == (40, 50, 2)


def test_every_form_of_segmentation_gives_the_same_labels():
    image, _, shifted = two_squares()
    widths = {"spatial": 3, "bilateral": (30, 5)}
    expected = refine(image, shifted, **widths).labels
    foreground = np.where(shifted == 1, 0.7, 0.3)
    both = np.stack([1 - foreground, foreground], -1)
    forms = [
        refine(Image.fromarray(image), shifted, **widths), refine(image, foreground, **widths),
        refine(image, both, **widths),
        refine(image, np.moveaxis(both, -1, 0), layout="channels_first", **widths),
        refine(image, shifted.astype(bool), **widths),
        refine(image, both.astype(np.float16), **widths),
    ]
    for form in forms:
        assert (form.labels != expected).mean() < 0.002


def test_ids_of_the_label_map_are_kept():
    image, _, shifted = two_squares()
    ids = np.where(shifted == 1, 255, 7).astype(np.uint8)
    assert "unknown=None" in refusal(refine, image, ids)
    result = refine(image, ids, unknown=None)
    assert set(np.unique(result.labels)) == {7, 255}
    assert np.array_equal(result.label_ids, [7, 255])
    negative = np.where(shifted == 1, -3, 100000)
    assert set(np.unique(refine(image, negative).labels)) == {-3, 100000}


@pytest.mark.parametrize(("ids", "expected"), [
    ((0, 255), [0, 255]), ((7, 255), None), ((0, 1, 255), [0, 1]), ((0, 9), [0, 9]),
])
def test_masks_of_0_and_255_have_two_labels(ids, expected):
    image, _, shifted = two_squares()
    labels = np.array((*ids, ids[-1])[:3], np.uint8)[shifted + (np.arange(50) > 45)]
    if expected is None:
        assert "unknown=None" in refusal(refine, image, labels)
        return
    assert refine(image, labels, max_iter=1).label_ids.tolist() == expected


def test_one_mask_among_maps_with_more_labels_is_none():
    image, _, shifted = two_squares()
    mask = (shifted * 255).astype(np.uint8)
    more = shifted + 2 * (np.arange(50) > 45)
    assert [r.label_ids.tolist() for r in refine([image] * 2, [mask, mask], max_iter=1)] == [
        [0, 255], [0, 255]
    ]
    message = refusal(refine, [image, image], [mask, more])
    assert "unknown value 255" in message
    binary = DenseCRF(2, [Pairwise(Spatial(2), Potts(1))])
    assert refine(image, mask, model=binary, max_iter=1).label_ids.tolist() == [0, 255]
    full = np.full_like(mask, 255)
    found = refine([image, image], [mask, full], model=binary, max_iter=1)
    assert (found[1].labels == 255).all()
    with pytest.warns(UserWarning, match="255 marks unknown"):
        refine(image, mask, model=DenseCRF(3))


def test_several_images_give_several_results():
    image, _, shifted = two_squares()
    other = image[::-1].copy()
    soft = np.stack([1 - 0.8 * shifted, 0.1 + 0.7 * shifted], -1)
    soft /= soft.sum(-1, keepdims=True)
    images, values = np.stack([image, other]), np.stack([soft, soft[::-1]])
    expected = [refine(image, soft).marginals, refine(other, soft[::-1]).marginals]
    first = np.moveaxis(values, -1, 1)
    for given, segmentations in (
        ([image, other], [soft, soft[::-1]]), ((Image.fromarray(image), other), values),
        (images, values), (images, first), (images, list(values)),
    ):
        found = refine(given, segmentations)
        assert isinstance(found, list)
        for result, marginals in zip(found, expected, strict=True):
            np.testing.assert_allclose(result.marginals, marginals, atol=1e-6)
    labels = refine(images, values.argmax(-1))
    assert [result.labels.shape for result in labels] == [(40, 50)] * 2
    masks = np.stack([shifted == 1, shifted == 0])
    found = refine(images, values, mask=masks)
    alone = refine(other, soft[::-1], mask=masks[1])
    assert np.array_equal(found[1].marginals, alone.marginals)
    assert "2 images and 1 seg" in refusal(refine, [image, other], [soft])


def test_volumes_are_told_from_batches():
    rng = np.random.default_rng(0)
    colors, soft = rng.random((4, 10, 12, 3)), rng.dirichlet(np.ones(2), (4, 10, 12))
    message = refusal(refine, colors, soft)
    assert "list(image)" in message
    assert "spacing=(1, 1, 1)" in message
    assert refine(colors, soft, spacing=(1, 1, 1)).labels.shape == (4, 10, 12)
    assert refine(colors[..., 0], soft).labels.shape == (4, 10, 12)  # slices
    assert refine(colors[..., :2], soft).labels.shape == (4, 10, 12)
    for image in (colors, colors[..., 0]):  # 2 labels of each of 4
        assert len(refine(image, np.moveaxis(soft, -1, 1))) == 4
    first = np.moveaxis(soft, -1, 0)
    assert refine(colors, first).labels.shape == (4, 10, 12)


def test_scribbles_spread_over_unknown_pixels():
    image, truth, _ = two_squares()
    scribbles = np.full_like(truth, 255)
    scribbles[20, 20:35] = 1
    scribbles[3, 5:45] = 0
    result = refine(image, scribbles, confidence=0.9, max_iter=30)
    assert mean_iou(confusion_matrix(truth, result.labels, 2)) > 0.95


def test_soft_masks_and_label_maps_of_the_wrong_type_get_a_warning():
    image, _, shifted = two_squares()
    with pytest.warns(UserWarning, match="looks like a label map"):
        refine(image, shifted.astype(float))
    gray = np.linspace(0, 254, shifted.size).reshape(shifted.shape).astype(np.uint8)
    with pytest.warns(UserWarning, match="255 labels and looks like a soft mask"):
        refine(image, gray, max_iter=1)
    refine(image, gray // 4, max_iter=1)  # 64 labels
    refine(image, gray.astype(int) // 2 * 100, max_iter=1)  # numbers of segments, no gray values


def test_a_photo_of_zero_mean_gets_a_warning(recwarn):
    image, _, shifted = two_squares()
    normalized = (image - image.mean((0, 1))) / image.std((0, 1))
    hidden = normalized.copy()
    hidden[:5] = np.nan
    with pytest.warns(UserWarning, match=r"normalized to zero mean.* alike to a kernel of color"):
        refine(normalized, shifted)
    with pytest.warns(UserWarning, match="normalized to zero mean"):
        refine(hidden, shifted, mask=np.isfinite(hidden[..., 0]))
    recwarn.clear()
    refine(image / 255, shifted)
    refine(normalized, shifted, bilateral=(30, 0.5))
    refine(normalized, shifted, bilateral=None)
    refine(normalized[..., 0], shifted)
    scaled = crfield.Bilateral(30.0, 8.0, color_scale=60.0)
    refine(normalized, shifted, model=DenseCRF(2, [Pairwise(scaled, Potts(1.0))]))
    refine(np.stack([normalized[..., 0]] * 3), np.stack([shifted] * 3))
    assert not recwarn.list


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
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "[]"
    assert crfield.__version__


def test_a_model_is_rescaled_to_the_image():
    """By what it knows of the images that it was learned from, or by a number."""
    image, _, shifted = two_squares()
    model = crfield.refinement.potts_model(2, 2.0, 1.0, (10.0, 20.0), 3.0)
    known = dataclasses.replace(model, size=25.0)
    by_hand = refine(image, shifted, model=model.rescaled(2.0)).marginals
    assert np.array_equal(refine(image, shifted, model=model, scale=2).marginals, by_hand)
    assert np.allclose(refine(image, shifted, model=known, scale="auto").marginals, by_hand)
    blocks = crfield.refine_blocks(image, shifted, model=known, scale="auto", marginals=True)
    assert np.allclose(blocks.marginals, by_hand, atol=1e-5)
    assert known.rescaled(3.0).size == 75.0
    with pytest.warns(UserWarning, match='of about 25 pixels, this one has 50; pass scale="auto"'):
        as_learned = refine(image, shifted, model=known).marginals
    assert not np.array_equal(as_learned, by_hand)
    assert np.array_equal(refine(image, shifted, model=known, scale=1).marginals, as_learned)
    assert "give a number" in refusal(refine, image, shifted, model=model, scale="auto")
    assert "leave it out" in refusal(refine, image, shifted, scale=2)
    assert "scale must be" in refusal(refine, image, shifted, model=known, scale="big")


def test_predictions_with_axes_of_one_are_those_of_the_image():
    scene = synthetic_scenes(1, size=(20, 24), n_labels=3, seed=1)[0]
    p = scene.probabilities
    first = np.moveaxis(p, -1, 0)
    expected = refine(scene.image, p)
    for values in (p[None], first[None]):
        np.testing.assert_array_equal(refine(scene.image, values).marginals, expected.marginals)
    labels, front = p.argmax(-1), p[..., 0]
    for one, values in (
        (labels, labels[None]), (labels, labels[..., None]), (labels, labels[None, ..., None]),
        (front, front[None, None]), (front, front[None, ..., None]),
    ):
        expected = refine(scene.image, one)
        np.testing.assert_array_equal(refine(scene.image, values).marginals, expected.marginals)
    how = {"block": 12, "marginals": True}
    one, other = (
        crfield.refine_blocks(scene.image, values, **how)
        for values in (front, front[None, ..., None])
    )
    np.testing.assert_array_equal(one.marginals, other.marginals)
