"""Arrays of odd form give the result of the plain one; arrays that do not fit are refused."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

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
from small_problem import FEATURES, GRID, IMAGE, LABELS, MODEL, POSITIONS, RNG, UNARY, infer


def strided(array):
    wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
    wide[..., ::2] = array
    return wide[..., ::2]


def read_only(array):
    copy = array.copy()
    copy.flags.writeable = False
    return copy


FORMS = {
    "strided": strided,
    "reversed": lambda a: np.ascontiguousarray(a[::-1])[::-1],
    "Fortran": np.asfortranarray,
    "read-only": read_only,
    "big-endian": lambda a: a.astype(a.dtype.newbyteorder(">")),
    "list": np.ndarray.tolist,
}


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
