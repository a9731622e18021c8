"""Segmentations in another orientation than the scan, or elsewhere."""

import numpy as np
import pytest

import crfield
from crfield._core.alignment import beside_scan
from refusal import refusal

nibabel = pytest.importorskip("nibabel")

RNG = np.random.default_rng(0)
OBLIQUE = np.array([[1, 0.1, 0, 30], [-0.1, 1.5, 0, -70], [0, 0, 3, 11], [0, 0, 0, 1.0]])
SCAN = nibabel.Nifti1Image(RNG.normal(size=(5, 6, 7)).astype(np.float32), OBLIQUE)
LABELS = RNG.integers(0, 2, SCAN.shape, dtype=np.uint8)
SEGMENTATION = nibabel.Nifti1Image(LABELS, OBLIQUE)


def stored_as(image, codes):
    """The same image with its axes in other directions."""
    orientations = nibabel.orientations
    now = orientations.io_orientation(image.affine)
    return image.as_reoriented(
        orientations.ornt_transform(now, orientations.axcodes2ornt(codes))
    )


@pytest.mark.parametrize("codes", ["LPS", "PIR", "SAL", "ASR"])
def test_axes_are_brought_to_those_of_the_scan(codes, tmp_path):
    nibabel.save(stored_as(SEGMENTATION, codes), tmp_path / "seg.nii.gz")
    found = beside_scan(nibabel.load(tmp_path / "seg.nii.gz"), SCAN)
    np.testing.assert_allclose(found.affine, OBLIQUE, atol=1e-5)
    assert np.array_equal(found.dataobj, LABELS)
    part = (slice(1, 3), slice(None, 2), slice(4, None))
    assert np.array_equal(found.dataobj[part], LABELS[part])


def test_refine_gives_what_it_gives_for_one_orientation():
    expected = crfield.refine(SCAN, SEGMENTATION)
    turned = stored_as(SEGMENTATION, "PIR")
    assert np.array_equal(crfield.refine(SCAN, turned).marginals, expected.marginals)
    [several] = crfield.refine([SCAN], [turned])
    assert np.array_equal(several.marginals, expected.marginals)
    soft = RNG.dirichlet(np.ones(3), SCAN.shape).astype(np.float32)
    expected = crfield.refine(SCAN, nibabel.Nifti1Image(soft, OBLIQUE))
    found = crfield.refine(SCAN, stored_as(nibabel.Nifti1Image(soft, OBLIQUE), "ASR"))
    assert np.array_equal(found.marginals, expected.marginals)
    blocks = [
        crfield.refine_blocks(SCAN, each, block=4, overlap=2, spatial=1, bilateral=(2, 1))
        for each in (SEGMENTATION, turned)
    ]
    assert np.array_equal(blocks[0].labels, blocks[1].labels)


def test_what_lies_elsewhere_is_refused():
    moved = OBLIQUE.copy()
    moved[0, 3] += 2
    permuted = OBLIQUE[:, [1, 0, 2, 3]]  # of an array that has the shape of the scan
    for affine in (moved, permuted):
        image = nibabel.Nifti1Image(LABELS, affine)
        for call in (crfield.refine, crfield.refine_blocks):
            message = refusal(call, SCAN, image)
            assert message.startswith("expected the segmentation to lie where the image does")
            assert "resample it to the grid of the scan" in message
    assert "up to 2 mm apart" in refusal(beside_scan, nibabel.Nifti1Image(LABELS, moved), SCAN)


def test_the_affine_of_an_array_saved_without_one_says_nothing():
    image = nibabel.Nifti1Image(LABELS, np.eye(4))
    expected = crfield.refine(SCAN, SEGMENTATION)
    assert np.array_equal(crfield.refine(SCAN, image).marginals, expected.marginals)


def test_rounding_and_what_says_nothing_are_let_pass():
    rounded = OBLIQUE + 0.004 * RNG.normal(size=(4, 4)) * [[1], [1], [1], [0]]
    image = nibabel.Nifti1Image(LABELS, rounded)
    assert beside_scan(image, SCAN) is image
    silent = nibabel.Nifti1Image(LABELS, None)
    assert beside_scan(silent, SCAN) is silent
    assert beside_scan(image, nibabel.Nifti1Image(SCAN.get_fdata(), None)) is image
    assert beside_scan(LABELS, SCAN) is LABELS
    assert beside_scan(image, LABELS) is image


def test_coarser_grids_fill_the_box_of_the_scan():
    soft = RNG.dirichlet(np.ones(2), (10, 12, 8)).astype(np.float32)
    scan = nibabel.Nifti1Image(RNG.normal(size=(40, 48, 32)).astype(np.float32), OBLIQUE)
    coarse = OBLIQUE @ np.diag([4.0, 4.0, 4.0, 1.0])  # the first voxels begin together
    centered = coarse.copy()
    centered[:3, 3] += OBLIQUE[:3, :3] @ [1.5, 1.5, 1.5]
    for affine in (coarse, centered):
        image = nibabel.Nifti1Image(soft, affine)
        assert beside_scan(image, scan) is image
        found = beside_scan(stored_as(image, "PIR"), scan)
        assert np.array_equal(found.dataobj, soft)
    careless = nibabel.Nifti1Image(soft, OBLIQUE)  # with the affine of the scan
    assert beside_scan(careless, scan) is careless
    centered[:3, 3] += 20
    assert "lie where" in refusal(beside_scan, nibabel.Nifti1Image(soft, centered), scan)


@pytest.mark.parametrize("codes", ["LPS", "PIR", "SAL"])
def test_the_identity_is_believed_where_a_turn_brings_both_together(codes):
    scan = nibabel.Nifti1Image(SCAN.get_fdata(), np.eye(4))
    turned = stored_as(nibabel.Nifti1Image(LABELS, np.eye(4)), codes)
    assert np.array_equal(beside_scan(turned, scan).dataobj, LABELS)
    elsewhere = nibabel.Nifti1Image(LABELS, OBLIQUE)
    assert beside_scan(elsewhere, scan) is elsewhere
    assert beside_scan(scan, elsewhere) is scan
