"""Arrays that are wrong or too large are refused in one sentence; odd forms change nothing."""

import math
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from array_forms import FORMS
from crfield import (
    Bilateral,
    DenseCRF,
    Diagonal,
    InputError,
    Pairwise,
    Potts,
    Spatial,
    refine,
    unary_from_features,
    unary_from_labels,
    unary_from_logits,
    unary_from_probabilities,
)
from crfield._core import validate as _validate
from refusal import refusal
from small_problem import (
    FEATURES,
    GRID,
    IMAGE,
    LABELS,
    MODEL,
    POSITIONS,
    PROBABILITIES,
    RNG,
    UNARY,
    infer,
)

# Every place where an array comes in, with an array that is right there.
PLACES = {
    "unary": (UNARY, lambda a: infer(unary=a)),
    "image": (IMAGE, lambda a: infer(image=a)),
    "features['f']": (FEATURES, lambda a: infer(features={"f": a})),
    "init": (np.full((*GRID, 2), 0.5), lambda a: infer(init=a)),
    "positions": (POSITIONS, lambda a: infer(positions=a)),
    "spacing": (np.array([1.0, 2.0]), lambda a: infer(spacing=a)),
    "probabilities": (PROBABILITIES, unary_from_probabilities),
    "logits": (PROBABILITIES, unary_from_logits),
    "features": (FEATURES, lambda a: unary_from_features(a, np.ones((3, 2)))),
    "weights": (np.ones((3, 2)), lambda a: unary_from_features(FEATURES, a)),
    "sigma": (np.array([2.0, 3.0]), Spatial),
    "covariance": (np.eye(5), lambda a: Bilateral(covariance=a)),
}


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", PLACES)
def test_first_number_that_is_not_finite_is_named(place, value):
    plain, call = PLACES[place]
    call(plain)
    wrong = plain.astype(np.float64)
    wrong.flat[[-2, -1]] = value
    message = refusal(call, wrong)
    assert message.startswith(f"{place} must be finite, got {value}")
    index = tuple(int(i) for i in np.unravel_index(wrong.size - 2, wrong.shape))
    assert f"at index {index}" in message


def test_refine_names_the_first_nan():
    soft = PROBABILITIES.copy()
    soft[2, 3, 1] = np.nan
    assert "got nan at index (2, 3, 1)" in refusal(refine, IMAGE, soft)
    foreground = PROBABILITIES[..., 0].copy()
    foreground[4, 5] = np.nan
    assert "got nan at index (4, 5)" in refusal(refine, IMAGE, foreground)


def test_float64_beyond_float32_is_refused_where_float32_is_used():
    assert "float32" in refusal(infer, init=np.full((*GRID, 2), 1e300))


NOT_NUMBERS = {
    "ragged": [[1.0, 2.0], [3.0]],
    "string": "abc",
    "strings": np.array(["a", "b"]),
    "none": None,
    "complex": np.array([[1j, 2.0]]),
    "objects": np.array([None, 1.0], object),
    "dates": np.zeros((*GRID, 2), "M8[s]"),
    "empty": [],
    "empty rows": [[], []],
    "scalar": 1.0,
}
ACCEPTED = {
    *((place, "none") for place in ("init", "positions", "spacing", "mask")),
    ("spacing", "scalar"),
    ("sigma", "scalar"),
}
CALLS = {
    **{name: call for name, (_, call) in PLACES.items()},
    "refine": lambda a: refine(IMAGE, a),
    "refine image": lambda a: refine(a, PROBABILITIES),
    "labels": lambda a: unary_from_labels(a, 2),
    "energy labels": lambda a: MODEL.energy(IMAGE, a, UNARY, features={"f": FEATURES}),
    "mask": lambda a: infer(mask=a),
}


@pytest.mark.parametrize("kind", NOT_NUMBERS)
@pytest.mark.parametrize("place", CALLS)
def test_what_is_not_an_array_of_numbers_is_refused(place, kind):
    if (place, kind) in ACCEPTED:
        CALLS[place](NOT_NUMBERS[kind])
    else:
        refusal(CALLS[place], NOT_NUMBERS[kind])


@pytest.mark.parametrize(("options", "words"), [
    ({"unary": UNARY[..., :1]}, "(*grid, 2)"),
    ({"unary": UNARY[0, 0]}, "(*grid, 2)"),
    ({"unary": np.zeros((5, 7, 2))}, "features['f'] must have shape (35, D)"),
    ({"image": IMAGE[:5]}, "one size"),
    ({"image": IMAGE[None]}, "one size"),
    ({"image": np.moveaxis(IMAGE, -1, 0)}, "channels come first"),
    *(({"features": wrong}, "map names to arrays") for wrong in ([FEATURES], FEATURES, "f", 3)),
    ({"features": {}}, "features must hold 'f'"),
    ({"features": {"g": FEATURES}}, "got g"),
    ({"features": {"f": FEATURES[:-1]}}, "(42, D)"),
    ({"features": {"f": FEATURES[:, :1]}}, "2 columns"),
    ({"features": {"f": FEATURES[:, 0]}}, "one row of features per variable"),
    ({"init": np.full((*GRID, 3), 1 / 3)}, "the unary's shape"),
    ({"init": np.full((*GRID, 2), 0.4)}, "sum to 1"),
    ({"init": np.full((*GRID, 2), [-0.5, 1.5])}, "values from -0.5"),
    ({"init": np.zeros((*GRID, 2))}, "sum to 1"),
    ({"positions": POSITIONS[:-1]}, "(42, d)"),
    ({"positions": POSITIONS[:, 0]}, "(42, d)"),
    ({"spacing": [1.0, 1.0, 1.0]}, "2 numbers"),
    ({"spacing": [1.0, 0.0]}, "positive"),
    ({"spacing": -1.0}, "positive"),
    ({"image": None}, "image must be given for a model with a Bilateral kernel"),
    ({"mask": np.ones(GRID)}, "boolean array"),
    ({"mask": np.ones((6, 6), bool)}, "boolean array of shape (6, 7)"),
    ({"mask": np.zeros(GRID, bool)}, "at least one variable"),
])
def test_wrong_shapes_and_masks(options, words):
    assert words in refusal(infer, **options)


@pytest.mark.parametrize("call", [
    lambda: infer(image=IMAGE.transpose(1, 0, 2)),
    lambda: infer(image=IMAGE[..., 0].T),
    lambda: infer(mask=np.ones((7, 6), bool)),
    lambda: infer(init=np.full((7, 6, 2), 0.5)),
    lambda: refine(IMAGE, PROBABILITIES.transpose(1, 0, 2)),
    lambda: refine(IMAGE, LABELS.T),
    lambda: refine(np.zeros((5, 6, 7)), np.zeros((5, 7, 6), int), unknown=None),
])
def test_swapped_width_and_height_are_called_so(call):
    assert "width and height look swapped" in refusal(call)


def test_labels_first_without_layout_is_called_so():
    first = np.moveaxis(UNARY, -1, 0)
    soft = np.moveaxis(PROBABILITIES, -1, 0)
    assert 'layout="channels_first"' in refusal(infer, unary=first)
    assert 'layout="channels_last"' in refusal(infer, layout="channels_first")
    assert 'layout="channels_first"' in refusal(refine, None, soft, bilateral=None)


SCAN, LARGE_SCAN = np.zeros((4, 5, 6)), np.zeros((7, 8, 9))
PHOTO, COARSE = np.zeros((24, 32, 3), np.uint8), np.full((5, 6, 8), 0.2)


@pytest.mark.parametrize(("image", "given", "words"), [
    (IMAGE, LABELS[:4], "labels have shape (4, 7), the image (6, 7, 3); bring both"),
    (IMAGE, np.eye(4, dtype=int)[LABELS][..., :2], ".argmax(-1)"),
    (IMAGE, PROBABILITIES[:4], "probabilities have shape (4, 7, 4), the image"),
    (IMAGE[None], LABELS, "drop the first axis of the image"),
    (np.moveaxis(IMAGE, -1, 0), LABELS, "the image's channels come first"),
    (SCAN, SCAN.T.astype(int), "axes look reversed"),
    (SCAN, np.full((6, 5, 4, 2), 0.5), "axes look reversed"),
    (LARGE_SCAN, np.full((2, 9, 8, 7), 0.5), "pass both as nibabel images, or the array in (Z, Y,"),
    (LARGE_SCAN, np.full((2, 9, 8, 7), 0.5), "must cover the voxels of the volume"),
    (np.moveaxis(PHOTO, -1, 0), COARSE, "the image's channels come first"),
    (np.stack([PHOTO.transpose(2, 0, 1)] * 2), np.stack([COARSE] * 2), "the images' channels come"),
    (np.stack([PHOTO] * 4), np.stack([COARSE] * 5), "for each of the 4 images"),
    (PHOTO[None], np.stack([COARSE] * 2)[0], "drop the first axis of the image"),
    (PHOTO.transpose(1, 0, 2), COARSE, "pass the opened picture if the photo is turned (EXIF), or"),
    (PHOTO, np.full((12, 30, 5), 0.2), "by one factor along all sides"),
])
def test_a_segmentation_of_another_size_is_told_what_to_do(image, given, words):
    assert words in refusal(refine, image, given)


@pytest.mark.parametrize("name", ["flower.jpg", Path("flower.jpg")])
def test_names_of_files_are_called_so(name):
    assert "got the name of a file, 'flower.jpg'; open it" in refusal(refine, name, LABELS)
    assert "got the name of a file, 'flower.jpg'; open it" in refusal(refine, IMAGE, name)


def test_labels_first_with_layout_gives_the_same_result():
    init = np.full((*GRID, 2), [0.3, 0.7])
    plain = infer(init=init)
    first = infer(
        unary=np.moveaxis(UNARY, -1, 0), init=np.moveaxis(init, -1, 0), layout="channels_first"
    )
    assert np.array_equal(plain.marginals, first.marginals)
    assert np.array_equal(
        refine(IMAGE, PROBABILITIES).marginals,
        refine(IMAGE, np.moveaxis(PROBABILITIES, -1, 0), layout="channels_first").marginals,
    )


@pytest.mark.parametrize(("call", "words"), [
    (lambda: unary_from_labels(LABELS, 2), "got 2 at index"),
    (lambda: unary_from_labels(LABELS - 1, 3), "got -1 at index"),
    (lambda: unary_from_labels(np.full(GRID, 255), 3, unknown=None), "got 255 at index (0, 0)"),
    (lambda: unary_from_labels(LABELS.astype(float), 3), ".astype(int)"),
    (lambda: unary_from_labels(LABELS, 3, unknown="a"), "unknown must be a whole number"),
    (lambda: unary_from_labels(LABELS, 3, confidence=1.5), "confidence"),
    (lambda: unary_from_labels(LABELS, 3, confidence=np.nan), "confidence"),
    (lambda: refine(IMAGE, LABELS.astype(float)), ".astype(int)"),
    (lambda: refine(IMAGE, IMAGE), "looks like a color picture"),
    (lambda: refine(IMAGE[..., 0], IMAGE), "looks like a color picture"),
    (lambda: refine(IMAGE, np.full(GRID, 255, np.uint8), unknown=255), "unknown=None"),
    (lambda: refine(IMAGE, np.where(LABELS > 0, 255, 3)), "unknown=None"),
    (lambda: refine(IMAGE, LABELS.astype(np.uint64) + np.uint64(2**63)), "below 2**63"),
    (lambda: refine(IMAGE, np.zeros((0, 7), int)), "at least one pixel"),
    (lambda: refine(IMAGE, PROBABILITIES, model=MODEL), "4"),
    (lambda: refine(IMAGE, PROBABILITIES, model="model.safetensors"), "DenseCRF.load"),
    (lambda: refine(IMAGE, 2 * PROBABILITIES), "probabilities"),
    (lambda: refine(IMAGE, PROBABILITIES - 0.5), "[0, 1]"),
    (lambda: MODEL.energy(IMAGE, LABELS, UNARY), "0..1"),
    (lambda: MODEL.energy(IMAGE, LABELS.astype(float), UNARY), "whole numbers"),
])
def test_labels_and_probabilities_out_of_range(call, words):
    assert words in refusal(call)


def test_as_many_labels_as_channels_are_labels():
    soft = RNG.dirichlet(np.ones(3), GRID)
    assert refine(IMAGE, soft).marginals.shape == (*GRID, 3)
    assert refine(IMAGE[:3, :3] / 255, soft[:3, :3]).marginals.shape == (3, 3, 3)
    volume = RNG.integers(0, 256, (3, 6, 7), dtype=np.uint8)
    assert refine(volume, RNG.random((3, 6, 7))).marginals.shape == (3, 6, 7, 2)
    assert refine(IMAGE[..., 0], RNG.random(GRID)).marginals.shape == (*GRID, 2)


@pytest.mark.parametrize("form", FORMS)
def test_memory_layout_does_not_matter(form):
    arrays = {
        "unary": UNARY.astype(np.float64),
        "image": IMAGE.astype(np.int64),
        "init": np.full((*GRID, 2), 0.5),
        "positions": POSITIONS,
        "mask": LABELS > 0,
    }
    plain = infer(**arrays)
    change = FORMS[form]
    changed = infer(
        features={"f": change(FEATURES)}, **{name: change(a) for name, a in arrays.items()}
    )
    assert np.array_equal(changed.marginals, plain.marginals)
    from_labels = refine(IMAGE, change(LABELS.astype(np.int16)))
    assert np.array_equal(from_labels.marginals, refine(IMAGE, LABELS).marginals)


@pytest.mark.parametrize("dtype", [np.float16, np.int8, np.uint8, np.int64, np.bool_, ">f4", ">i2"])
def test_number_types_do_not_matter(dtype):
    unary = RNG.integers(0, 2, (*GRID, 2)).astype(dtype)
    plain = infer(unary=unary.astype(np.float32), init=np.full((*GRID, 2), 0.5))
    changed = infer(unary=unary, init=np.full((*GRID, 2), 0.5, np.float16))
    assert changed.marginals.dtype == np.float32
    assert np.array_equal(changed.marginals, plain.marginals)


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32, np.int64, ">f8"])
def test_image_types_do_not_matter(dtype):
    changed = infer(image=IMAGE.astype(dtype))
    np.testing.assert_array_equal(changed.marginals, infer(image=IMAGE).marginals)


def test_bool_images_and_labels():
    black_and_white = IMAGE[..., 0] > 128
    as_bytes = np.where(black_and_white, 255, 0).astype(np.uint8)
    assert np.array_equal(
        infer(image=black_and_white).marginals, infer(image=as_bytes).marginals
    )
    assert np.array_equal(
        refine(IMAGE, black_and_white).marginals,
        refine(IMAGE, black_and_white.astype(int)).marginals,
    )


def huge(shape, dtype=np.float32):
    """An array of any size in a few bytes."""
    return np.broadcast_to(np.zeros((), dtype), shape)


HUGE_CALLS = {
    "unary": lambda n: infer(unary=huge((n, n, 2))),
    "unary of bytes": lambda n: infer(unary=huge((n, n, 2), np.uint8)),
    "labels first": lambda n: infer(unary=huge((2, n, n)), layout="channels_first"),
    "many labels": lambda n: DenseCRF(n).infer(None, huge((n, n))),
    "inference": lambda n: DenseCRF(2, MODEL.terms[:1]).infer(None, np.zeros((n // 8, n // 8, 2))),
    "pairs of labels": lambda n: DenseCRF(n, MODEL.terms[:1]).energy(None, [0], np.zeros((1, n))),
    "diagonal": lambda n: Diagonal(np.ones(n)).matrix(n),
    "wide bytes": lambda n: infer(positions=np.zeros((42, 8 * n), np.uint8)),
    "channels": lambda n: infer(image=huge((*GRID, n * n // 8))),
    "byte channels": lambda n: infer(image=huge((*GRID, n * n // 8), np.uint8)),
    "features": lambda n: infer(features={"f": huge((42, n * n // 8))}),
    "positions": lambda n: infer(positions=huge((42, n * n // 8))),
    "init": lambda n: infer(init=huge((n, n, 2))),
    "mask": lambda n: infer(mask=huge((n, n, 4), bool)),
    "energy": lambda n: MODEL.energy(IMAGE, huge((n, n), int), huge((n, n, 2))),
    "labels": lambda n: unary_from_labels(huge((n, n), np.uint8), 3),
    "n_labels": lambda n: unary_from_labels(LABELS, n * n),
    "probabilities": lambda n: unary_from_probabilities(huge((n, n, 3))),
    "logits": lambda n: unary_from_logits(huge((n, n, 3), np.float64)),
    "scores": lambda n: unary_from_logits(np.zeros((n // 8, n // 8, 2), np.float32)),
    "feature rows": lambda n: unary_from_features(huge((n * n, 2)), np.ones((3, 2))),
    "refine": lambda n: refine(huge((n, n, 3), np.uint8), huge((n, n, 3))),
    "refine labels": lambda n: refine(huge((n, n, 3), np.uint8), huge((n, n), np.uint8)),
    "refine many": lambda n: refine(IMAGE, LABELS, n_labels=n * n),
}


@pytest.mark.parametrize("place", HUGE_CALLS)
def test_what_does_not_fit_is_refused_before_it_is_allocated(place, monkeypatch):
    infer()  # whatever is made once is made
    monkeypatch.setattr(_validate, "available_memory", lambda: 2.0**20)
    tracemalloc.start()
    try:
        message = refusal(HUGE_CALLS[place], 2000)
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
    assert "GiB" in message


@pytest.mark.skipif(
    math.isinf(_validate.available_memory()), reason="this system does not say what it has"
)
def test_terabytes_are_refused_at_once():
    message = refusal(infer, unary=huge((10**6, 10**6, 2)), image=None, features=None)
    assert "needs about 7450.6 GiB" in message


def test_a_container_has_what_its_limit_allows(tmp_path, monkeypatch):
    limit = tmp_path / "memory.max"
    monkeypatch.setattr(_validate, "_LIMIT_FILES", (str(tmp_path / "missing"), str(limit)))
    unlimited = _validate.available_memory()
    assert unlimited > 2**20
    limit.write_text("max\n")
    assert _validate.available_memory() > 2**20
    limit.write_text("4096\n")
    assert _validate.available_memory() == 4096


def test_dense_kernels_are_refused_before_they_are_allocated(monkeypatch):
    spatial = DenseCRF(2, MODEL.terms[:1])
    monkeypatch.setattr(_validate, "available_memory", lambda: 2.0**22)
    unary = np.zeros((40, 40, 2))
    spatial.infer(None, unary)
    message = refusal(spatial.infer, None, unary, algorithm="sequential")
    assert "Sequential inference on 1600 variables needs" in message


any_floats = st.sampled_from([np.float16, np.float32, np.float64]).flatmap(
    lambda dtype: hnp.arrays(dtype, (3, 2, 2), elements=hnp.from_dtype(np.dtype(dtype)))
)


@settings(max_examples=150)
@given(
    any_floats, any_floats, st.sampled_from(["concave", "cccp", "parallel", "sequential"]),
    st.sampled_from(["exact", "lattice"]),
)
def test_any_floats_give_probabilities_or_a_refusal(unary, image, algorithm, method):
    model = DenseCRF(2, [Pairwise(Spatial(1), Potts(2)), Pairwise(Bilateral(2, 10), Potts(1))])
    try:
        result = model.infer(image, unary, algorithm=algorithm, filter=method, max_iter=3)
    except InputError:
        return
    assert np.isfinite(result.free_energies).all()
    assert (result.marginals >= 0).all()
    np.testing.assert_allclose(result.marginals.sum(-1), 1, atol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e38])
def test_floats_that_could_lie_either_way_are_refused_without_a_warning(bad):
    values = np.full((6, 6, 6), bad, np.float32)
    values[0, 0] = -bad
    assert refusal(refine, np.zeros((6, 6, 3), np.uint8), values)
