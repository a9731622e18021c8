"""Arrays of other packages give, bit for bit, what NumPy arrays give."""

import io
import tempfile
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

import crfield
from crfield._core.validate import as_array
from crfield.estimators import DenseCRFClassifier
from crfield.metrics import confusion_matrix
from crfield.show import pictures
from refusal import refusal

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (12, 14, 3), dtype=np.uint8)
LABELS = RNG.integers(0, 3, (12, 14), dtype=np.uint8)
SOFT = RNG.dirichlet(np.ones(3), (12, 14)).astype(np.float32)
MODEL = crfield.DenseCRF(3, [crfield.Pairwise(crfield.Bilateral(4, 30), crfield.Potts(2))])


def as_torch(array):
    return pytest.importorskip("torch").from_numpy(array.copy())


def as_parameter(array):
    parameter = pytest.importorskip("torch").nn.Parameter
    return parameter(as_torch(array), requires_grad=array.dtype.kind == "f")


def as_zarr(array):
    zarr = pytest.importorskip("zarr")
    stored = zarr.create_array({}, shape=array.shape, dtype=array.dtype, chunks=(5,) * array.ndim)
    stored[...] = array
    return stored


def as_memory_map(array):
    with tempfile.TemporaryFile() as stream:
        mapped = np.memmap(stream, array.dtype, "w+", shape=array.shape)
    mapped[...] = array
    return mapped


KINDS = {
    "torch": as_torch,
    "torch with gradient": lambda a: as_torch(a).requires_grad_(a.dtype.kind == "f"),
    "torch parameter": as_parameter,
    "xarray": lambda a: pytest.importorskip("xarray").DataArray(a),
    "zarr": as_zarr,
    "dask": lambda a: pytest.importorskip("dask.array").from_array(a, chunks=5),
    # A list forgets the type of its numbers, which here decides what they mean.
    "list": lambda a: [list(row) for row in a],
    "memory map": as_memory_map,
    "strided": lambda a: np.repeat(a, 2, axis=0)[::2],
}
EVERY_KIND = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


@pytest.mark.slow
@EVERY_KIND
def test_refine_takes_images_labels_and_probabilities_of_every_kind(kind):
    for segmentation in (LABELS, SOFT):
        expected = crfield.refine(IMAGE, segmentation, bilateral=(4, 20))
        found = crfield.refine(kind(IMAGE), kind(segmentation), bilateral=(4, 20))
        assert np.array_equal(found.marginals, expected.marginals)
        assert np.array_equal(found.labels, expected.labels)


@EVERY_KIND
def test_models_costs_pictures_and_estimators_take_them_too(kind):
    costs = crfield.unary_from_probabilities(SOFT)
    weights = np.eye(3, dtype=np.float32)
    for function, arguments in [
        (crfield.unary_from_probabilities, (SOFT,)), (crfield.unary_from_logits, (SOFT,)),
        (crfield.unary_from_features, (SOFT, weights)),
        (partial(crfield.unary_from_labels, n_labels=3), (LABELS,)),
        (partial(confusion_matrix, n_labels=3), (LABELS, LABELS)),
        (MODEL.energy, (IMAGE, LABELS, costs)),
        (pictures.show, (IMAGE,)), (pictures.colorize, (LABELS,)),
        (pictures.overlay, (IMAGE, LABELS)), (pictures.entropy_map, (SOFT,)),
    ]:
        other = function(*(kind(array) for array in arguments))
        assert np.array_equal(np.asarray(other), np.asarray(function(*arguments)))
    expected = MODEL.infer(IMAGE, costs, mask=LABELS > 0, init=SOFT)
    found = MODEL.infer(kind(IMAGE), kind(costs), mask=kind(LABELS > 0), init=kind(SOFT))
    assert np.array_equal(found.marginals, expected.marginals)
    crf = DenseCRFClassifier(bilateral=(4, 20), learn=())
    plain = crf.fit([(IMAGE, SOFT)], [LABELS]).predict_proba([(IMAGE, SOFT)])[0]
    same = crf.fit([(kind(IMAGE), kind(SOFT))], [kind(LABELS)])
    assert np.array_equal(same.predict_proba([(kind(IMAGE), kind(SOFT))])[0], plain)


def test_half_tensors_are_taken_as_their_values():
    torch = pytest.importorskip("torch")
    for kind in (torch.float16, torch.bfloat16):
        soft = torch.from_numpy(SOFT).to(kind)
        expected = crfield.refine(IMAGE, soft.float().numpy(), bilateral=(4, 20))
        found = crfield.refine(IMAGE, soft, bilateral=(4, 20))
        assert np.array_equal(found.marginals, expected.marginals)
    image = torch.from_numpy(IMAGE / 255).to(torch.bfloat16)
    assert as_array(image, "image").dtype == np.float32


class OnAnotherDevice:
    """What a CUDA tensor does when NumPy asks it for its values."""

    __module__ = "torch"
    layout = "torch.strided"
    device = SimpleNamespace(type="cuda")
    is_quantized = False

    def __init__(self, array):
        self._array = array

    def __array__(self, *_, **__):
        raise TypeError("can't convert cuda:0 device type tensor to numpy")

    def detach(self):
        return self

    def cpu(self):
        return as_torch(self._array)


def test_tensors_on_a_gpu_are_fetched():
    pytest.importorskip("torch")
    expected = crfield.refine(IMAGE, SOFT, bilateral=(4, 20)).marginals
    found = crfield.refine(OnAnotherDevice(IMAGE), OnAnotherDevice(SOFT), bilateral=(4, 20))
    assert np.array_equal(found.marginals, expected)


def test_tensors_without_an_array_of_numbers_are_refused():
    torch = pytest.importorskip("torch")
    tensor = torch.from_numpy(SOFT)
    assert "to_dense" in refusal(crfield.unary_from_probabilities, tensor.to_sparse())
    assert "meta" in refusal(crfield.unary_from_probabilities, tensor.to("meta"))
    assert "real numbers" in refusal(crfield.unary_from_probabilities, tensor.to(torch.complex64))


def turned_exif(picture):
    """The same picture, stored on its side with a note to turn it."""
    exif = Image.Exif()
    exif[0x0112] = 6
    stream = io.BytesIO()
    picture.transpose(Image.Transpose.ROTATE_90).save(stream, "PNG", exif=exif)
    return Image.open(stream)


def test_pillow_pictures_of_every_mode():
    color = Image.fromarray(IMAGE)
    gray = np.ascontiguousarray(IMAGE[..., 0])
    words = gray.astype(np.uint16) * 257
    half = Image.fromarray(gray).convert("LA")
    half.putalpha(Image.fromarray(np.full_like(gray, 128)))
    opaque = color.copy()
    opaque.putalpha(255)
    palette = color.quantize(7)
    over_white = np.asarray(
        Image.alpha_composite(Image.new("RGBA", color.size, "white"), half.convert("RGBA"))
    )[..., :3]
    for picture, plain in [
        (color, IMAGE), (turned_exif(color), IMAGE), (Image.fromarray(gray), gray),
        (Image.fromarray(words), words), (half, over_white), (opaque, IMAGE),
        (palette, np.asarray(palette.convert("RGB"))),
    ]:
        expected = crfield.refine(plain, SOFT, bilateral=(4, 20)).marginals
        assert np.array_equal(crfield.refine(picture, SOFT, bilateral=(4, 20)).marginals, expected)
        assert np.array_equal(np.asarray(pictures.show(picture)), np.asarray(pictures.show(plain)))


def test_label_pictures_give_indices_upright():
    labels = Image.fromarray(LABELS)
    indexed = labels.copy()
    indexed.putpalette([9, 9, 9, 200, 0, 0, 0, 0, 200])
    expected = crfield.refine(IMAGE, LABELS, bilateral=(4, 20)).marginals
    for picture in (labels, indexed, turned_exif(labels), turned_exif(indexed)):
        found = crfield.refine(IMAGE, picture, bilateral=(4, 20)).marginals
        assert np.array_equal(found, expected)
    colors = refusal(crfield.refine, IMAGE, Image.fromarray(IMAGE))
    assert "color picture" in colors


class TestNibabel:
    def volume(self):
        nibabel = pytest.importorskip("nibabel")
        scan = RNG.normal(size=(4, 6, 5)).astype(np.float32)  # (Z, H, W)
        coarse = RNG.integers(0, 2, scan.shape, dtype=np.uint8)
        affine = np.diag([0.5, 1.0, 3.0, 1.0])  # of (X, Y, Z)
        return scan, coarse, lambda array: nibabel.Nifti1Image(array.T.copy(), affine)

    def test_axes_are_turned_and_the_spacing_is_taken(self):
        scan, coarse, image = self.volume()
        options = {"spatial": 1.5, "bilateral": (3, 2)}
        expected = crfield.refine(scan, coarse, spacing=(3.0, 1.0, 0.5), **options)
        found = crfield.refine(image(scan), image(coarse), **options)
        assert np.array_equal(found.marginals, expected.marginals)
        plain = crfield.refine(scan, coarse, **options)
        assert not np.array_equal(found.marginals, plain.marginals)
        own = crfield.refine(image(scan), image(coarse), spacing=1.0, **options)
        assert np.array_equal(own.marginals, plain.marginals)

    def test_models_take_the_spacing_as_well(self):
        scan, coarse, image = self.volume()
        costs = crfield.unary_from_labels(coarse, 2)
        model = crfield.DenseCRF(2, [crfield.Pairwise(crfield.Bilateral(3, 2), crfield.Potts(2))])
        expected = model.infer(scan, costs, spacing=(3.0, 1.0, 0.5)).marginals
        assert np.array_equal(model.infer(image(scan), costs).marginals, expected)
        positions = np.argwhere(np.ones(scan.shape)).astype(float)
        flat = model.infer(scan, costs).marginals
        placed = model.infer(image(scan), costs, positions=positions).marginals
        np.testing.assert_allclose(placed, flat, atol=1e-5)

    def test_labels_go_back_as_the_docstring_says(self):
        nibabel = pytest.importorskip("nibabel")
        scan, coarse, image = self.volume()
        given = image(scan)
        result = crfield.refine(given, image(coarse))
        back = nibabel.Nifti1Image(result.labels.T.astype("int16"), given.affine)
        assert back.shape == given.shape
        assert np.array_equal(as_array(back, "labels"), result.labels)

    def test_channels_records_and_what_is_no_volume(self):
        nibabel = pytest.importorskip("nibabel")
        channels = RNG.random((5, 6, 4, 3)).astype(np.float32)
        found = as_array(nibabel.Nifti1Image(channels, np.eye(4)), "image")
        assert np.array_equal(found, channels.transpose(2, 1, 0, 3))
        rgb = np.zeros((5, 6, 4), [("R", "u1"), ("G", "u1"), ("B", "u1")])
        rgb["G"] = 7
        assert as_array(nibabel.Nifti1Image(rgb, np.eye(4)), "image").shape == (4, 6, 5, 3)
        moving = nibabel.Nifti1Image(np.zeros((2, 2, 2, 2, 2), np.float32), np.eye(4))
        assert "one volume" in refusal(as_array, moving, "image")


def test_hidden_entries_are_not_taken_for_values():
    hidden = np.ma.masked_array(SOFT, mask=SOFT > 0.9)
    assert "filled" in refusal(crfield.unary_from_probabilities, hidden)
    nothing_hidden = np.ma.masked_array(SOFT)
    assert np.array_equal(
        crfield.unary_from_probabilities(nothing_hidden), crfield.unary_from_probabilities(SOFT)
    )


class Unwilling:
    """Has a shape and values, and does not give them away."""

    def __array__(self, *_, **__):
        raise TypeError("implicit conversion is not allowed; use .get()")


def test_the_reason_of_another_package_is_passed_on():
    assert "use .get()" in refusal(as_array, Unwilling(), "image")
    assert "same length" in refusal(as_array, [[1, 2], [3]], "image")


def test_stored_arrays_beyond_memory_are_refused_before_they_are_read():
    class Stored:
        shape, nbytes = (2**30, 2**20), 2**60

        def __array__(self, *_, **__):
            raise AssertionError("it was read")

    assert "refine_blocks" in refusal(as_array, Stored(), "image")
