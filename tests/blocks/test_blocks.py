"""Blocks: what is read and written, that they agree with the whole, and the bound on how far."""

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import crfield
from crfield import (
    Bilateral,
    DenseCRF,
    Inference,
    InferenceStatus,
    Pairwise,
    Potts,
    Spatial,
    refine,
)
from crfield.blocks.parts import cut
from crfield.blocks.seams import SeamBound, SeamMeter, default_overlap, outside_share, tails
from crfield.cli import main
from crfield.dense.observation import Window, observe
from refusal import refusal

RNG = np.random.default_rng(0)
OPTIONS = {
    "spatial": 1.5, "bilateral": (3, 20), "bilateral_weight": 6, "tol": 0, "max_iter": 6
}


def refine_in_blocks(image, segmentation, **options):
    """`refine_blocks`, how to infer given as `refine` takes it."""
    names = [each.name for each in dataclasses.fields(Inference)]
    how = {name: options.pop(name) for name in names if name in options}
    return crfield.refine_blocks(image, segmentation, inference=Inference(**how), **options)


def problem(filter="auto"):
    """An image of two shapes, its noisy label map and probabilities; few rows for exact sums."""
    rng = np.random.default_rng(3)
    y, x = np.mgrid[:48, :90]
    truth = ((y - 24) ** 2 / 300 + (x - 45) ** 2 / 900 < 1) + 2 * ((x > 60) & (y < 14))
    truth = np.minimum(truth, 2)
    colors = np.array([[40, 80, 160], [200, 60, 40], [60, 170, 60]])
    image = np.clip(colors[truth] + rng.normal(0, 12, (48, 90, 3)), 0, 255).astype(np.uint8)
    wrong = rng.random(truth.shape) < 0.15
    labels = np.where(wrong, rng.integers(0, 3, truth.shape), truth).astype(np.uint8)
    soft = np.full((*truth.shape, 3), 0.15)
    np.put_along_axis(soft, labels[..., None].astype(int), 0.7, -1)
    rows = slice(8, 18) if filter == "exact" else slice(None)
    return image[rows], labels[rows], soft[rows]


def distance(one, other):
    return 0.5 * np.abs(one - other).sum(-1)


@given(
    grid=st.lists(st.integers(1, 30), min_size=1, max_size=3), block=st.integers(4, 15),
    overlap=st.integers(0, 9),
)
def test_cores_cover_the_grid_once_and_windows_reach_around_them(grid, block, overlap):
    count = np.zeros(grid, int)
    for each in cut(grid, (block,) * len(grid), (overlap,) * len(grid)):
        count[each.core] += 1
        for n, core, window, inner in zip(grid, each.core, each.window, each.inner, strict=True):
            assert 0 < core.stop - core.start <= block
            assert window.start == max(0, core.start - overlap)
            assert window.stop == min(n, core.stop + overlap)
            assert inner.start == core.start - window.start
            assert inner.stop - inner.start == core.stop - core.start
    assert (count == 1).all()


@pytest.mark.parametrize("filter", ["auto", "lattice", "exact"])
def test_blocks_that_see_everything_give_what_the_whole_gives(filter):
    image, labels, soft = problem(filter)
    for segmentation in (labels, soft):
        whole = refine(image, segmentation, filter=filter, **OPTIONS)
        found = refine_in_blocks(
            image, segmentation, block=30, overlap=90, marginals=True, filter=filter, **OPTIONS
        )
        assert found.n_blocks == (3 if filter == "exact" else 6)
        assert np.array_equal(found.label_ids, whole.label_ids)
        np.testing.assert_allclose(found.marginals, whole.marginals, atol=1e-6)
        assert np.array_equal(found.labels, whole.labels)
        assert found.status is whole.status


@pytest.mark.parametrize("filter", ["auto", "exact"])
def test_the_error_falls_with_the_overlap_and_stays_below_the_bound(filter):
    image, _, soft = problem(filter)
    whole = refine(image, soft, filter=filter, **OPTIONS)
    errors, seams, bounds = [], [], []
    for overlap in (3, 6, 9, 12, 15):
        found = refine_in_blocks(
            image, soft, block=(48, 30), overlap=overlap, marginals=True, bound=True,
            filter=filter, **OPTIONS,
        )
        error = distance(found.marginals, whole.marginals)
        assert error.max() <= found.seams.bound_largest
        assert error.mean() <= found.seams.bound_mean
        assert found.seams.pixels == 2 * len(image)
        assert found.seams.largest <= 2 * error.max() + found.seams.bound_largest
        errors.append(error.mean())
        seams.append(found.seams.mean)
        bounds.append(found.seams.bound_mean)
    for falling in (errors, seams, bounds):
        assert (np.diff(falling) < 0).all()
    assert errors[-1] < 1e-2 * errors[0]
    assert bounds[-1] < 1e-3
    assert seams[-1] < 1e-5


@given(seed=st.integers(0, 2**32 - 1), overlap=st.integers(0, 8), weight=st.floats(0.1, 4))
def test_no_pixel_exceeds_its_bound(seed, overlap, weight):
    rng = np.random.default_rng(seed)
    image, costs = rng.integers(0, 256, (4, 24, 1)), rng.random((4, 24, 3)) * rng.uniform(0.1, 8)
    mu = rng.uniform(0, 1, (3, 3))
    mu, mixed = -(mu @ mu.T), [[2, 1, 3], [1, 3, 0], [3, 0, 900]]
    model = DenseCRF(3, [
        Pairwise(Spatial(1.2), Potts(weight)),
        Pairwise(Spatial(1.0, normalization="none"), Potts(0.2)),
        Pairwise(Bilateral(2.0, 90.0, color_scale=1.0), crfield.Symmetric(mu)),
        Pairwise(Bilateral(covariance=mixed, color_scale=1.0), Potts(0.5)),
    ])
    how = {"filter": "exact", "tol": 0, "max_iter": 4}
    whole = model.infer(image, costs, **how).marginals
    for block in cut((4, 24), (4, 9), (overlap, overlap)):
        part = (image[block.window], costs[block.window])
        window = Window(tuple(s.start for s in block.window), (4, 24))
        seen = observe(part[1].shape[:-1], part[0], window=window)
        limit = SeamBound(
            model, seen, block, np.dtype(np.float64), Inference(filter="exact", threads=1)
        )
        found = model.infer(*part, window=window, callback=limit.follow, **how).marginals
        assert (distance(found, whole[block.window]) <= limit.on_grid() + 1e-12).all()


def test_the_bound_is_reached_where_all_beyond_is_certain_of_the_other_label():
    # Two labels, no normalization and no colors: nothing in the derivation is then left to spare.
    costs = np.tile([0.0, 2.0], (1, 12, 1))
    costs[:, 6:] = [60.0, 0.0]
    model = DenseCRF(2, [Pairwise(Spatial(1.0, normalization="none"), Potts(0.4))])
    how = {"filter": "exact", "tol": 0, "max_iter": 4}
    whole = model.infer(None, costs, **how).marginals
    block = cut((1, 12), (1, 6), (0, 0))[0]
    window = Window((0, 0), (1, 12))
    limit = SeamBound(
        model, observe((1, 6), window=window), block, np.dtype(np.float64),
        Inference(filter="exact", threads=1),
    )
    part = costs[block.window]
    found = model.infer(None, part, window=window, callback=limit.follow, **how).marginals
    np.testing.assert_allclose(distance(found, whole[block.window]), limit.on_grid(), rtol=1e-4)


def test_the_mean_bound_is_that_of_all_pixels_whatever_their_block():
    costs = np.random.default_rng(2).random((1, 7, 2))
    model, how = DenseCRF(2, [Pairwise(Spatial(1.5), Potts(1))]), Inference(tol=0, max_iter=3)
    probabilities = np.exp(-costs) / np.exp(-costs).sum(-1, keepdims=True)
    found = crfield.refine_blocks(
        None, probabilities, model=model, inference=how, block=(1, 4), overlap=0, bound=True
    )
    limits = []
    for block in cut((1, 7), (1, 4), (0, 0)):
        part, window = probabilities[block.window], Window((0, block.window[1].start), (1, 7))
        seen = observe(part.shape[:-1], window=window)
        limit = SeamBound(model, seen, block, part.dtype, how)
        model.infer(
            None, crfield.unary_from_probabilities(part), window=window, callback=limit.follow,
            tol=0, max_iter=3,
        )
        limits.append(limit.on_grid().ravel())
    assert [len(each) for each in limits] == [4, 3]
    assert found.seams.bound_mean == pytest.approx(np.concatenate(limits).mean())
    assert found.seams.bound_largest == pytest.approx(np.concatenate(limits).max())


def test_bounds_sum_kernels_as_inference_does():
    image, _, soft = problem("exact")
    model = DenseCRF(3, [Pairwise(Bilateral(3, 20), Potts(2))])
    block = cut(soft.shape[:2], soft.shape[:2], (0, 0))[0]
    seen = observe(soft.shape[:2], image, window=Window((0, 0), (60, 120)))
    bounds = []
    for filter in ("exact", "lattice", "exact"):
        how = Inference(filter=filter)
        bounds.append(SeamBound(model, seen, block, np.dtype(np.float64), how))
        bounds[-1].follow(1, soft.reshape(-1, 3), 0.0)
    exact, lattice, again = (bound.values for bound in bounds)
    assert np.array_equal(exact, again)
    assert not np.array_equal(exact, lattice)


def test_tails_are_the_weight_that_a_window_misses():
    kernel, whole, spacing = Spatial([2.0, 3.0]), (11, 17), np.array([1.0, 1.5])
    places = [np.arange(n) * step for n, step in zip(whole, spacing, strict=True)]
    along = [
        np.exp(-0.5 * ((x[:, None] - x) / width) ** 2)
        for x, width in zip(places, kernel.sigma, strict=True)
    ]
    weights = np.einsum("ab,cd->acbd", *along)
    for block in cut(whole, (5, 6), (2, 3)):
        beyond, least = tails(kernel, block, whole, spacing)
        every = weights[block.window]
        missed = every.sum((2, 3)) - every[..., block.window[0], block.window[1]].sum((2, 3))
        assert (beyond >= missed - 1e-12).all()
        assert beyond.max() <= 1.5 * missed.max() + 1e-12
        assert least <= weights.sum((2, 3)).min() + 1e-12


def test_default_overlap_is_twice_the_widest_sigma_and_at_least_8():
    model = DenseCRF(2, [
        Pairwise(Spatial([2.0, 30.0]), Potts(1)), Pairwise(Bilateral(10.2, 5), Potts(1)),
    ])
    assert default_overlap(model, 2) == (21, 60)
    assert default_overlap(model, 2, spacing=(1.0, 5.0)) == (21, 12)
    assert default_overlap(DenseCRF(2, [Pairwise(Spatial(3), Potts(1))]), 3) == (8, 8, 8)
    assert default_overlap(DenseCRF(2), 1) == (8,)


def test_share_outside_is_that_of_a_gaussian():
    model = DenseCRF(2, [Pairwise(Spatial(2), Potts(1)), Pairwise(Bilateral(10, 5), Potts(1))])
    assert outside_share(model, 20, grid_dim=1) == pytest.approx(0.0455, abs=1e-4)
    assert outside_share(model, 20) == pytest.approx(1 - (1 - 0.0455) ** 2, abs=1e-4)
    assert outside_share(model, 20, spacing=2.0) < 1e-3
    shares = [outside_share(model, overlap) for overlap in (0, 5, 10, 20, 40)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] == 1
    assert "overlap" in refusal(outside_share, model, -100)
    assert "spacing" in refusal(outside_share, model, 20, spacing=0)


def test_seams_are_compared_at_the_pixels_beyond_the_face():
    """Column 3 of six: the last that the first block sees, and the second one's second."""
    first, second = np.full((2, 2, 4, 2), 0.5)
    first[:, 3] = [[0.7, 0.3], [0.6, 0.4]]
    second[:, 1] = [[0.2, 0.8], [0.9, 0.1]]
    meter = SeamMeter()
    for block, marginals in zip(cut((2, 6), (2, 3), (0, 1)), (first, second), strict=True):
        meter.add(block, (2, 6), marginals)
    found = meter.seams()
    assert (found.pixels, found.differing) == (2, 0.5)
    assert found.mean == pytest.approx((0.5 + 0.3) / 2)
    assert found.largest == pytest.approx(0.5)


@pytest.mark.parametrize(("of_blocks", "expected"), [
    (("ROUNDING", "MAX_ITER", "CONVERGED"), "MAX_ITER"),
    (("CONVERGED", "ROUNDING", "CONVERGED"), "ROUNDING"),
    (("CONVERGED", "CONVERGED", "CONVERGED"), "CONVERGED"),
])
def test_the_status_is_that_of_the_block_that_got_least_far(of_blocks, expected, monkeypatch):
    image, labels, _ = problem()
    infer, names = DenseCRF.infer, iter(of_blocks)

    def told(*arguments, **options):
        result = infer(*arguments, **options)
        return dataclasses.replace(result, status=InferenceStatus[next(names)])

    monkeypatch.setattr(DenseCRF, "infer", told)
    found = refine_in_blocks(image, labels, block=(48, 30), overlap=0)
    assert found.status is InferenceStatus[expected]


def test_blocks_that_do_not_overlap_are_not_compared():
    image, labels, _ = problem()
    found = refine_in_blocks(image, labels, block=np.array(30), overlap=0)
    assert found.block == (30, 30)
    seams = found.seams
    assert (seams.pixels, seams.differing, seams.mean, seams.largest) == (0, None, None, None)
    assert "seams not compared" in repr(found)
    again = refine_in_blocks(image, labels, block=30, overlap=4)
    assert again.seams.differing is not None
    assert "% of labels differ at seams" in repr(again)


def test_colors_have_one_scale_and_labels_one_set_of_ids():
    image, labels, _ = problem()
    floats = (image / 255.0).astype(np.float32)
    floats[:, 60:] *= 255  # the left blocks alone would take this for an image within [0, 1]
    ids = np.where(labels == 2, 900, labels.astype(np.int32))
    whole = refine(floats, ids, **OPTIONS)
    found = refine_in_blocks(floats, ids, block=30, overlap=90, **OPTIONS)
    assert np.array_equal(found.labels, whole.labels)
    assert found.labels.dtype == np.uint16
    terms = [
        Pairwise(Spatial(1.5), Potts(3)), Pairwise(Bilateral(3, 20, color_scale=1.0), Potts(6)),
    ]
    same, other = (
        refine_in_blocks(floats, labels, block=30, overlap=6, marginals=True, **options)
        for options in (OPTIONS, {"model": DenseCRF(3, terms), "tol": 0, "max_iter": 6})
    )
    assert np.array_equal(same.marginals, other.marginals)
    assert found.label_ids.tolist() == [0, 1, 900]


def test_other_forms_of_segmentations_mean_what_they_mean_to_refine():
    image, _, soft = problem()
    few = np.zeros(image.shape[:2], bool)
    few[:40, :50] = True  # so few that the whole is summed exactly
    forms = [
        (soft[..., 0], {}), (np.moveaxis(soft, -1, 0), {"layout": "channels_first"}),
        (np.moveaxis(soft, -1, 0), {}), (np.log(soft) + 3.0, {"logits": True}),
        (soft[::4, ::4], {}), (soft[::3, ::3, 0], {}),
        ((soft.argmax(-1) == 0) * np.uint8(255), {}),
        (soft.astype(np.float32), {"algorithm": "cccp"}),
        ((soft.argmax(-1) == 0) * np.uint8(255), {"unknown": None}),
        (soft.argmax(-1), {"n_labels": 5}), (soft.argmax(-1), {"model": DenseCRF(4)}),
        (soft, {"mask": image[..., 0] > 30}), (soft, {"mask": few}),
        (soft, {"spacing": (2.0, 1.0)}),
    ]
    for segmentation, more in forms:
        both = {**OPTIONS, **more}
        whole = refine(image, segmentation, **both)
        found = refine_in_blocks(
            image, segmentation, block=45, overlap=90, marginals=True, **both
        )
        np.testing.assert_allclose(found.marginals, whole.marginals, atol=1e-6)
    volume = RNG.random((9, 10, 11)).astype(np.float32)
    front = RNG.random((9, 10, 11))
    plain = {"spatial": 1.0, "bilateral": (2, 20), "tol": 0}
    whole = refine(volume, front, **plain)
    found = refine_in_blocks(volume, front, block=(9, 10, 6), overlap=11, marginals=True, **plain)
    np.testing.assert_allclose(found.marginals, whole.marginals, atol=1e-6)


def test_a_block_without_a_masked_pixel_keeps_its_input():
    image, _, soft = problem()
    mask = np.zeros(image.shape[:2], bool)
    mask[:20, :20] = True
    found = refine_in_blocks(
        image, soft, block=30, overlap=0, mask=mask, marginals=True, bound=True, **OPTIONS
    )
    np.testing.assert_allclose(found.marginals[:, 60:], soft[:, 60:], atol=1e-9)


class Recorder:
    """An array in a file of its own, which remembers how much was asked of it at once."""

    def __init__(self, array):
        self._array, self.shape, self.dtype, self.largest = array, array.shape, array.dtype, 0

    def __getitem__(self, part):
        found = self._array[part]
        self.largest = max(self.largest, found.size)
        return found

    def __array__(self, *_, **__):
        raise AssertionError("read whole")


@pytest.mark.parametrize("floats", [False, True])
def test_never_more_than_a_window_is_read(floats):
    image, labels, soft = problem()
    stored = Recorder(image.astype(np.float32) / 255 if floats else image)
    other = Recorder(soft if floats else labels)
    expected = refine_in_blocks(np.asarray(stored._array), other._array, block=15, overlap=4)
    found = refine_in_blocks(stored, other, block=15, overlap=4)
    assert np.array_equal(found.labels, expected.labels)
    assert stored.largest <= 23 * 23 * 3
    assert other.largest <= 23 * 23 * 3


def test_arrays_of_other_packages_are_read_and_written_by_slices(tmp_path):
    image, labels, _ = problem()
    expected = refine_in_blocks(image, labels, block=30, overlap=5).labels
    mapped = np.lib.format.open_memmap(tmp_path / "image.npy", "w+", image.dtype, image.shape)
    mapped[:] = image
    assert np.array_equal(refine_in_blocks(mapped, labels, block=30, overlap=5).labels, expected)
    for name in ("torch", "xarray", "dask.array"):
        package = pytest.importorskip(name)
        wrap = getattr(package, {"torch": "from_numpy", "xarray": "DataArray"}.get(name, "array"))
        found = refine_in_blocks(wrap(image), wrap(labels), block=30, overlap=5)
        assert np.array_equal(found.labels, expected)
    zarr = pytest.importorskip("zarr")
    stored = zarr.create_array({}, shape=labels.shape, dtype="uint8", chunks=(16, 16))
    found = refine_in_blocks(image, labels, block=30, overlap=5, out=stored)
    assert found.labels is stored
    assert np.array_equal(stored[...], expected)


def test_nibabel_images_are_cut_before_they_are_turned(tmp_path):
    nibabel = pytest.importorskip("nibabel")
    scan = RNG.normal(size=(6, 20, 30)).astype(np.float32)
    coarse = RNG.integers(0, 2, scan.shape, dtype=np.uint8)
    for name, array in (("scan.nii", scan), ("coarse.nii.gz", coarse)):
        affine = np.diag([1.0, 1.0, 4.0, 1.0])
        nibabel.save(nibabel.Nifti1Image(array.T.copy(), affine), tmp_path / name)
    files = [nibabel.load(tmp_path / name) for name in ("scan.nii", "coarse.nii.gz")]
    options = {"spatial": 2, "bilateral": (3, 1), "block": 12}
    expected = refine_in_blocks(scan, coarse, spacing=(4, 1, 1), **options)
    found = refine_in_blocks(*files, **options)
    assert found.overlap == expected.overlap == (8, 8, 8)
    assert np.array_equal(found.labels, expected.labels)


def test_files_appear_when_they_are_complete(tmp_path):
    image, labels, _ = problem()
    out, soft = tmp_path / "labels.npy", tmp_path / "soft.npy"
    seen = []

    def watch(done, total):
        seen.append((done, total))
        assert not out.exists()
        assert not soft.exists()

    found = refine_in_blocks(
        image, labels, block=30, overlap=4, out=out, marginals=soft, callback=watch
    )
    assert seen == [(k, 6) for k in range(1, 7)]
    assert sorted(tmp_path.iterdir()) == [out, soft]
    assert np.array_equal(np.load(out), found.labels)
    assert np.array_equal(found.label_ids[np.load(soft).argmax(-1)], found.labels)
    assert not found.labels.flags.writeable


def test_the_callback_stops_and_leaves_no_file(tmp_path):
    image, labels, _ = problem()
    for out in (tmp_path / "labels.npy", None):
        found = refine_in_blocks(
            image, labels, block=30, overlap=4, out=out, callback=lambda done, _: done == 2
        )
        assert found.status is InferenceStatus.CALLBACK
        assert found.n_blocks == 2
        assert (found.labels is None) == (out is not None)
        assert "CALLBACK" in repr(found)
    assert not list(tmp_path.iterdir())


def test_a_killed_run_leaves_nothing_under_the_final_name(tmp_path):
    script = (
        "import os, numpy as np, crfield\n"
        "labels = np.arange(2500).reshape(50, 50) % 2\n"
        "stop = lambda done, total: os._exit(9) if done == 2 else None\n"
        "crfield.refine_blocks(None, labels, bilateral=None, block=20, out='out.npy', "
        "callback=stop)\n"
    )
    (tmp_path / "out.npy").write_bytes(b"what was there before")
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, check=False)
    assert done.returncode == 9
    assert (tmp_path / "out.npy").read_bytes() == b"what was there before"


def test_wrong_arguments_get_one_sentence(tmp_path):
    image, labels, soft = problem()

    def refused(*arguments, **options):
        return refusal(refine_in_blocks, *(arguments or (image, labels)), **options)

    assert "block" in refused(block=0)
    assert "block" in refused(block=(1, 2, 3))
    assert "overlap" in refused(overlap=-1)
    assert ".npy" in refused(out=tmp_path / "labels.png")
    assert "folder" in refused(out=tmp_path / "missing" / "labels.npy")
    assert "shape" in refused(out=np.zeros((3, 3), np.uint8))
    assert "wider" in refused(image, labels.astype(int) + 300, out=np.zeros(labels.shape, np.uint8))
    frozen = np.zeros(labels.shape, np.uint8)
    frozen.flags.writeable = False
    assert "read-only" in refused(out=frozen)
    (tmp_path / "other").mkdir()
    twice = tmp_path / "other" / ".." / "a.npy"
    assert "different files" in refused(out=str(tmp_path / "a.npy"), marginals=twice)
    assert "positive" in refused(spacing=0)
    assert "2 numbers" in refused(spacing=(1, 2, 3))
    assert "spacing" in refused(spacing="a")
    assert refused(spacing=0, overlap=4).startswith("spacing")  # before any block is begun
    assert "n_labels" in refused(n_labels=2**40)
    assert "GiB" in refused(n_labels=2**31 - 1)
    assert "callable" in refused(callback=3)
    message = refusal(crfield.refine_blocks, image, labels, inference={"max_iter": 3})
    assert "inference must be an Inference" in message
    assert "one size" in refused(image[:-1], labels)
    assert "color picture" in refused(image, image)
    assert "mask" in refused(mask=np.zeros(labels.shape))
    assert "labels" in refused(model=DenseCRF(3), n_labels=4)
    assert "concave" in refused(bound=True, algorithm="cccp")
    assert "at least one pixel" in refused(None, np.zeros((0, 4), int))
    feature = DenseCRF(3, [Pairwise(crfield.FeatureKernel("depth", 1), Potts(1))])
    assert "positions" in refused(model=feature)
    assert "context" in refused(model=DenseCRF(3).with_context())
    bad = soft.copy()
    bad[40, 70, 1] = np.nan
    assert "block that starts at (24, 60)" in refused(image, bad, block=30, overlap=4)


@pytest.fixture
def files(tmp_path, monkeypatch):
    """An image, labels and probabilities, in files of the current folder as well."""
    monkeypatch.chdir(tmp_path)
    image, labels, soft = problem()
    soft = soft.astype(np.float32)
    for name, array in (("image", image), ("labels", labels), ("soft", soft)):
        np.save(f"{name}.npy", array)
    return image, labels, soft


def command(image, *arguments):
    return main(["refine", image, *map(str, arguments)])


class TestCommand:
    def test_labels_and_probabilities(self, files, capsys):
        image, labels, soft = files
        for flag, name, segmentation in (
            ("--labels", "labels", labels), ("--probabilities", "soft", soft)
        ):
            assert command(
                "image.npy", flag, f"{name}.npy", "--block", 30, "--overlap", 6, "-o",
                f"out_{name}.npy", "--marginals", "--json",
            ) == 0
            found = refine_in_blocks(image, segmentation, block=30, overlap=6, marginals=True)
            assert np.array_equal(np.load(f"out_{name}.npy"), found.labels)
            assert np.array_equal(np.load(f"out_{name}_marginals.npy"), found.marginals)
            record = json.loads(capsys.readouterr().out)
            assert record["n_blocks"] == 6
            assert record["overlap"] == [6, 6]
            assert record["seams"]["pixels"] == found.seams.pixels
            assert sum(record["label_counts"].values()) == labels.size

    def test_volumes_keep_their_affine(self, tmp_path, monkeypatch):
        nibabel = pytest.importorskip("nibabel")
        monkeypatch.chdir(tmp_path)
        scan = RNG.normal(size=(4, 12, 20)).astype(np.float32)
        coarse = RNG.integers(0, 2, scan.shape, dtype=np.uint8)
        affine = np.diag([1.0, 2.0, 3.0, 1.0])
        for name, array in (("scan", scan), ("coarse", coarse), ("floats", coarse * 1.0)):
            nibabel.save(nibabel.Nifti1Image(array.T.copy(), affine), f"{name}.nii")
        expected = refine_in_blocks(scan, coarse, spacing=(3, 2, 1), block=10, spatial=2)
        for labels in ("coarse.nii", "floats.nii"):
            options = ("--block", 10, "--spatial", 2, "-o", "out.nii.gz", "-v", "--overwrite")
            assert command("scan.nii", "--labels", labels, *options) == 0
            written = nibabel.load("out.nii.gz")
            assert np.array_equal(written.affine, affine)
            assert np.array_equal(np.asarray(written.dataobj).T, expected.labels)

    def test_a_limit_that_is_given_holds(self, files, capsys):
        pixels = files[1].size
        for flag, name in (("--labels", "labels.npy"), ("--probabilities", "soft.npy")):
            given = ("image.npy", flag, name, "--block", 30, "-o", "o.npy", "--overlap", 4)
            assert command(*given, "--max-pixels", pixels - 1) == 2
            assert "--max-pixels" in capsys.readouterr().err
            assert not Path("o.npy").exists()
            assert command(*given, "--max-pixels", pixels) == 0
            Path("o.npy").unlink()

    @pytest.mark.usefixtures("files")
    def test_the_default_limit_is_not_for_blocks(self, monkeypatch):
        for module in ("crfield.cli.refine_blocks", "crfield.cli.refine_options"):
            monkeypatch.setattr(f"{module}.DEFAULT_MAX_PIXELS", 10)
        given = ("image.npy", "--labels", "labels.npy", "--block", 30)
        assert command(*given, "--overlap", 4, "-o", "o.npy") == 0

    @pytest.mark.usefixtures("files")
    def test_what_clashes_is_refused(self, capsys):
        for options, words in (
            (("--overlap", 5, "-o", "o.npy"), "--block"),
            (("--block", 30, "--overlay", "-o", "o.npy"), "--overlay"),
            (("--block", 30, "-o", "labels.npy"), "no input"),
        ):
            assert command("image.npy", "--labels", "labels.npy", *options) == 2
            assert words in capsys.readouterr().err
        assert not Path("o.npy").exists()
