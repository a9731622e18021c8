"""The drop-in for pydensecrf: against the original if it is installed, against formulas always."""

import inspect
import re
import warnings
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from array_forms import FORMS, read_only
from crfield.compat.pydensecrf import densecrf, eigen, utils
from crfield.dense.filters.compiled import LatticeFilter
from refusal import refusal

NORMALIZATIONS = ("none", "before", "after", "symmetric")
W, H, L = 7, 5, 3
RNG = np.random.default_rng(0)
UNARY = RNG.normal(size=(L, W * H)).astype(np.float32)
IMAGE = RNG.integers(0, 255, (H, W, 3), dtype=np.uint8)


@pytest.fixture(scope="module")
def original():
    """The installed pydensecrf's modules by name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # compiled for another NumPy
        pytest.importorskip("pydensecrf")
        import pydensecrf.densecrf
        import pydensecrf.eigen
        import pydensecrf.utils
    return pydensecrf


def small_field(module=densecrf):
    field = module.DenseCRF2D(W, H, L)
    field.setUnaryEnergy(UNARY)
    return field


def random_compatibility(rng, kind, n_labels):
    if kind == "number":
        return float(rng.uniform(-1, 4))
    shape = n_labels if kind == "vector" else (n_labels, n_labels)
    return rng.normal(0, 1.5, shape).astype(np.float32)


def filled_field(package, image, unary, compats, normalization, two_d):
    """A field with a spatial and a bilateral term, made by one of the two ways."""
    h, w = image.shape[:2]
    rule = package.densecrf.NormalizationType(normalization)
    # Without normalization every pixel has as many neighbors as the kernel is wide.
    first, second = (c * (0.02 if normalization == 0 else 1.0) for c in compats)
    if two_d:
        field = package.densecrf.DenseCRF2D(w, h, unary.shape[0])
        field.setUnaryEnergy(unary)
        field.addPairwiseGaussian(sxy=(3, 2), compat=first, normalization=rule)
        field.addPairwiseBilateral(
            sxy=(20, 30), srgb=(13, 15, 11), rgbim=image, compat=second, normalization=rule
        )
        return field
    field = package.densecrf.DenseCRF(w * h, unary.shape[0])
    field.setUnaryEnergy(unary)
    spatial = package.utils.create_pairwise_gaussian(sdims=(3, 2), shape=(h, w))
    field.addPairwiseEnergy(spatial, first, normalization=rule)
    bilateral = package.utils.create_pairwise_bilateral(
        sdims=(20, 30), schan=(13, 15, 11), img=image, chdim=2
    )
    field.addPairwiseEnergy(bilateral, second, normalization=rule)
    return field


class Ours:
    densecrf, utils = densecrf, utils


@settings(max_examples=25)
@given(
    w=st.integers(5, 40), h=st.integers(5, 40), n_labels=st.integers(2, 6), two_d=st.booleans(),
    kinds=st.tuples(*[st.sampled_from(["number", "vector", "matrix"])] * 2),
    normalization=st.integers(0, 3), n_iter=st.integers(0, 6), seed=st.integers(0, 9999),
)
def test_marginals_are_the_originals(
    original, w, h, n_labels, two_d, kinds, normalization, n_iter, seed
):
    rng = np.random.default_rng(seed)
    image = np.sort(rng.integers(0, 256, (h, w, 3)), 1).astype(np.uint8)  # gradients, so neighbors
    unary = rng.normal(0, 2, (n_labels, w * h)).astype(np.float32)
    compats = [random_compatibility(rng, kind, n_labels) for kind in kinds]
    ours, theirs = (
        np.array(
            filled_field(package, image, unary, compats, normalization, two_d).inference(n_iter)
        )
        for package in (Ours, original)
    )
    assert ours.shape == theirs.shape == (n_labels, w * h)
    assert ours.dtype == theirs.dtype
    assert ours.strides == theirs.strides
    assert np.abs(ours - theirs).mean() < 1e-4


@pytest.mark.parametrize("normalization", range(4))
def test_steps_and_divergence_are_the_originals(original, normalization):
    compats = [3.0, RNG.normal(size=(L, L)).astype(np.float32)]
    fields = [
        filled_field(package, IMAGE, UNARY, compats, normalization, True)
        for package in (Ours, original)
    ]
    states = [field.startInference() for field in fields]
    assert [np.array(part).shape for part in states[0]] == [
        np.array(part).shape for part in states[1]
    ]
    for n_iter in range(5):
        ours, theirs = (np.array(state[0]) for state in states)
        assert np.abs(ours - theirs).max() < 1e-5
        assert np.abs(ours - fields[0].inference(n_iter)).max() < 1e-6
        mine, other = (
            field.klDivergence(state[0]) for field, state in zip(fields, states, strict=True)
        )
        assert isinstance(mine, float)
        assert mine == pytest.approx(other, rel=1e-5)
        for field, state in zip(fields, states, strict=True):
            assert field.stepInference(*state) is None


def test_pixels_fill_up_fours_as_in_the_original(original):
    """Pixels on both sides of the vertex at 0, which exists only if a pixel is there."""
    features = np.array([[-1.0, 1.0, 1.1, 9.0]], np.float32)
    for n in (3, 4):
        points = features[:, :n].copy()
        marginals = []
        for module in (densecrf, original.densecrf):
            field = module.DenseCRF(n, L)
            field.setUnaryEnergy(UNARY[:, :n].copy())
            field.addPairwiseEnergy(points, 5.0)
            marginals.append(np.array(field.inference(4)))
        assert np.abs(marginals[0] - marginals[1]).max() < 1e-5


def test_unaries_are_the_originals(original):
    weights = RNG.normal(size=(L, 4)).astype(np.float32)
    features = RNG.normal(size=(4, W * H)).astype(np.float32)
    for make in (
        lambda module: module.ConstUnary(UNARY),
        lambda module: module.LogisticUnary(weights, features),
    ):
        marginals = []
        for module in (densecrf, original.densecrf):
            field = small_field(module)
            field.setUnary(make(module))
            marginals.append(np.array(field.inference(0)))
        assert np.allclose(*marginals, atol=1e-6)


def test_kernel_type_plays_no_part(original):
    for module in (densecrf, original.densecrf):
        results = []
        for kernel in module.KernelType:
            field = small_field(module)
            field.addPairwiseBilateral(5, 40, IMAGE, 4, kernel, module.NORMALIZE_SYMMETRIC)
            results.append(np.array(field.inference(3)))
        assert np.array_equal(results[0], results[1])
        assert np.array_equal(results[0], results[2])


def test_utilities_are_the_originals(original):
    labels = RNG.integers(0, 4, (5, 6))
    softmax = RNG.dirichlet(np.ones(4), (5, 6)).transpose(2, 0, 1)
    volume = RNG.normal(size=(3, 4, 5)).astype(np.float32)
    calls = [
        ("unary_from_labels", (labels, 3, 0.7), {}),
        ("unary_from_labels", (labels, 4, 0.6), {"zero_unsure": False}),
        ("unary_from_softmax", (softmax,), {}),
        ("unary_from_softmax", (softmax, 0.8), {"clip": 0.1}),
        ("unary_from_softmax", (softmax,), {"scale": 1, "clip": None}),
        ("create_pairwise_gaussian", ((3, 2, 5), (4, 6, 3)), {}),
        ("create_pairwise_gaussian", ([7.0], [9]), {}),
        ("create_pairwise_bilateral", ((3, 2), (13, 14, 15), IMAGE), {"chdim": 2}),
        ("create_pairwise_bilateral", ((3, 2), 13, np.moveaxis(IMAGE, 2, 0)), {"chdim": 0}),
        ("create_pairwise_bilateral", ((3, 2, 4), (0.01,), volume), {}),
        ("create_pairwise_bilateral", ((3, 2), 0.5, volume), {"chdim": -2}),
    ]
    for name, arguments, options in calls:
        ours = getattr(utils, name)(*arguments, **options)
        theirs = getattr(original.utils, name)(*arguments, **options)
        assert ours.shape == theirs.shape, name
        assert ours.dtype == theirs.dtype == np.float32, name
        assert ours.flags.c_contiguous, name
        assert np.allclose(ours, theirs, rtol=1e-6, atol=1e-7), name


def test_every_public_name_exists(original):
    found = []
    for name, ours in (("densecrf", densecrf), ("utils", utils), ("eigen", eigen)):
        for key, value in vars(getattr(original, name)).items():
            if key.startswith("_") or key in ("Number", "np", "warning"):  # what it imports
                continue
            found.append(key)
            mine = getattr(ours, key)
            if isinstance(value, int):
                assert (mine, mine.name) == (int(value), value.name)
            if inspect.isclass(value):
                assert {m for m in dir(value) if not m.startswith("_")} <= set(dir(mine)), key
    assert {"DenseCRF2D", "LogisticUnary", "NO_NORMALIZATION", "FULL_KERNEL", "eigen", "matrixXf",
            "create_pairwise_bilateral", "softmax_to_unary"} <= set(found)


def mean_field(unary, terms, n_iter):
    """Marginals (L, N) and the divergence in float64, from dense kernels and full matrices."""
    u = unary.astype(np.float64).T
    q = reference.softmax(-u)
    for _ in range(n_iter):
        q = reference.softmax(-u - sum(kernel @ q @ mu for kernel, mu in terms))
    value = float((q * np.log(q)).sum() + (q * u).sum())
    value += sum(float((q * (kernel @ q @ mu)).sum()) for kernel, mu in terms)
    return q.T, value


COMPATIBILITIES = {
    "number": (1.5, -1.5 * np.eye(L)),
    "vector": ([1.0, -2.0, 0.5], np.diag([1.0, -2.0, 0.5])),
    "matrix": ([[0, 1, 2], [3, -1, 0], [0, 2, 1]], [[0, 2, 1], [2, -1, 1], [1, 1, 1]]),
}


@pytest.mark.parametrize("kind", COMPATIBILITIES)
def test_pixels_in_far_groups(kind):
    """Equal pixels share a kernel value, far ones none: normalized it is 1 / group, lattice or not.
    """
    compat, mu = COMPATIBILITIES[kind]
    group = np.repeat([0, 1, 2], [4, 6, 5])
    kernel = (group[:, None] == group) / np.bincount(group)[group][:, None]
    features = np.stack([group * 100.0, group * -70.0])
    unary = RNG.normal(size=(L, len(group)))
    for normalization in (1, 2, 3):
        field = densecrf.DenseCRF(len(group), L)
        field.setUnaryEnergy(unary)
        field.addPairwiseEnergy(features, compat, normalization=normalization)
        for n_iter in range(4):
            expected, value = mean_field(unary, [(kernel, np.array(mu, float))], n_iter)
            q = field.inference(n_iter)
            assert np.allclose(q, expected, atol=1e-5)
            assert field.klDivergence(q) == pytest.approx(value, rel=1e-4)


def test_scale_without_normalization():
    """One pixel on a 1-D lattice at 0 has two vertices, where (1/2, 1, 1/2) twice leaves 5/4."""
    field = densecrf.DenseCRF(1, 2)
    field.setUnaryEnergy([[1], [0]])
    field.addPairwiseEnergy([[0]], 2, normalization=densecrf.NO_NORMALIZATION)
    own = 1.25 / (1 + 0.5)
    expected, value = mean_field(np.array([[1], [0]]), [(np.array([[own]]), -2 * np.eye(2))], 3)
    assert np.allclose(field.inference(3), expected, atol=1e-6)
    assert field.klDivergence(field.inference(3)) == pytest.approx(value, rel=1e-5)


@pytest.mark.parametrize("normalization", range(4))
def test_against_the_dense_lattice(normalization):
    """x comes before y, and the terms add up."""
    y, x = np.indices((H, W)).reshape(2, -1)
    features = np.stack([x / 2.0, y / 3.0], 1).astype(np.float32)
    colors = IMAGE.reshape(-1, 3) / 40.0
    kernels = []
    for points in (features, np.concatenate([features, colors], 1, dtype=np.float32)):
        n, dim = points.shape
        filled_up = np.concatenate([points, np.zeros((1, dim), np.float32)])  # 35 is not 9 times 4
        lattice = LatticeFilter(filled_up, normalization="none", one_order=True)
        kernel = lattice.to_dense()[:n, :n] / float(lattice.pre[0]) ** 2
        kernel *= 2 ** (dim + 1) / (1 + 2.0**-dim)
        kernels.append(reference.normalized(kernel, NORMALIZATIONS[normalization]))
    weight = 0.2 if normalization == 0 else 2.0
    field = small_field()
    field.addPairwiseGaussian((2, 3), weight, normalization=normalization)
    field.addPairwiseBilateral((2, 3), 40, IMAGE, -weight * np.eye(L), normalization=normalization)
    expected, value = mean_field(UNARY, [(k, -weight * np.eye(L)) for k in kernels], 4)
    assert np.allclose(field.inference(4), expected, atol=1e-5)
    assert field.klDivergence(field.inference(4)) == pytest.approx(value, rel=1e-4)


@pytest.mark.parametrize("form", [*FORMS, "float64"])
def test_arrays_of_any_form(form):
    unary = np.round(UNARY * 4).astype(np.float32)
    features = utils.create_pairwise_gaussian((3, 3), (H, W))
    compat = np.array([[0, 1, 1], [1, 0, 1], [1, 1, 0]], np.float32)

    def run(change):
        field = densecrf.DenseCRF2D(W, H, L)
        field.setUnaryEnergy(change(unary))
        field.addPairwiseEnergy(change(features), change(compat))
        field.addPairwiseBilateral(change(np.full((1, 2), 3.0))[0], 20, change(IMAGE), compat)
        q = field.inference(2)
        return q, field.klDivergence(change(q))

    plain, changed = run(lambda a: a), run({**FORMS, "float64": np.float64}[form])
    assert np.array_equal(plain[0], changed[0])
    assert plain[1] == pytest.approx(changed[1], rel=1e-6)


def test_whole_numbers_and_what_else_may_be_passed():
    field = densecrf.DenseCRF2D(float(W), np.int64(H), L)
    field.setUnaryEnergy(np.round(UNARY).astype(np.int32))
    field.addPairwiseGaussian(np.inf, np.float32(2))  # an infinite width drops the positions
    field.addPairwiseGaussian(3, np.array(2), kernel=2, normalization=3)
    field.addPairwiseBilateral((3, 4), [13, 14, 15], IMAGE.astype(float), 2)
    assert np.allclose(field.inference(3.0).sum(0), 1, atol=1e-5)
    assert not np.isnan(field.inference(0)).any()


def test_what_was_passed_is_copied_and_left_alone():
    unary, image, features = (
        np.asfortranarray(UNARY), IMAGE.astype(np.float32), np.asfortranarray(UNARY[:2])
    )
    field = densecrf.DenseCRF2D(W, H, L)
    field.setUnaryEnergy(unary)
    field.addPairwiseBilateral(3, 13, image, 3)
    field.addPairwiseEnergy(features, 3)
    assert np.array_equal(unary, UNARY)
    assert np.array_equal(image, IMAGE)
    before = field.inference(3)
    for array in (unary, image, features):
        array[...] = 0
    assert np.array_equal(field.inference(3), before)
    utils.create_pairwise_bilateral((3, 3), 13, IMAGE.astype(np.float32), 2)
    channels = np.ones((2, 3, 4), np.float32)
    utils.create_pairwise_bilateral((3, 3), 13, channels, 0)
    assert (channels == 1).all()


def test_steps_change_the_callers_array():
    field = small_field()
    field.addPairwiseGaussian(3, 3)
    q, first, second = field.startInference()
    kept, wide = q, np.ascontiguousarray(q, np.float64)
    field.stepInference(q, first, second)
    field.stepInference(wide)
    assert kept is q
    assert np.allclose(q, field.inference(1), atol=1e-6)
    assert np.array_equal(wide, q)


def test_an_infinite_cost_forbids_a_label():
    field = small_field()
    field.setUnaryEnergy(with_entry(UNARY, np.inf))
    field.addPairwiseGaussian(3, 3)
    q = field.inference(3)
    assert q[0, 3] == 0.0
    assert np.allclose(q.sum(0), 1.0)


def test_a_unary_may_be_used_twice_and_classes_extended():
    class Own(densecrf.DenseCRF2D):
        pass

    unary = densecrf.ConstUnary(UNARY)
    for _ in range(2):
        field = Own(W, H, L)
        field.setUnary(unary)
        assert np.allclose(field.inference(0).T, reference.softmax(-UNARY.T.astype(float)))
    weights, features = RNG.normal(size=(L, 4)), RNG.normal(size=(4, W * H))
    field.setUnaryEnergy(weights, features)
    assert np.allclose(
        field.inference(0).T, reference.softmax(-(weights @ features).T), atol=1e-6
    )


def test_nothing_to_do():
    field = densecrf.DenseCRF2D(0, 5, 2)
    field.setUnaryEnergy(np.empty((2, 0)))
    field.addPairwiseGaussian(3, 3)
    assert field.inference(2).shape == (2, 0)
    single = densecrf.DenseCRF(2, 1)
    single.setUnaryEnergy([[3, 4]])
    assert np.array_equal(single.inference(2), [[1, 1]])


def with_entry(array, value):
    array = array.astype(np.float64)
    array.flat[3] = value
    return array


def call(name, *arguments, **options):
    """What calls a method of a field that has a unary."""
    return lambda: getattr(small_field(), name)(*arguments, **options)


def bilateral(*arguments):
    return call("addPairwiseBilateral", *arguments)


def channels(*arguments):
    return partial(utils.create_pairwise_bilateral, *arguments)


FEATURES = utils.create_pairwise_gaussian((3, 3), (H, W))
REFUSED = {
    "no unary": (lambda: densecrf.DenseCRF(4, 2).inference(2), "call setUnaryEnergy first"),
    "no unary to start": (densecrf.DenseCRF(4, 2).startInference, "call setUnaryEnergy first"),
    "no unary to compare": (
        lambda: densecrf.DenseCRF(4, 2).klDivergence(np.ones((2, 4))), "call setUnaryEnergy first"
    ),
    "negative size": (lambda: densecrf.DenseCRF(-3, 2), "nvar must be at least 0"),
    "no labels": (lambda: densecrf.DenseCRF(3, 0), "nlabels must be at least 1"),
    "half a pixel": (lambda: densecrf.DenseCRF2D(2.5, 3, 2), "w must be a whole number"),
    "negative height": (lambda: densecrf.DenseCRF2D(2, -3, 2), "h must be at least 0"),
    "negative steps": (call("inference", -1), "niter must be at least 0"),
    "half steps": (call("inference", 2.5), "niter must be a whole number"),
    "unary transposed": (call("setUnaryEnergy", UNARY.T), r"got \(35, 3\); transpose it"),
    "unary in 3-D": (call("setUnaryEnergy", UNARY.reshape(L, H, W)), r"must have shape \(3, 35\)"),
    "unary labels last": (
        call("setUnaryEnergy", UNARY.reshape(L, H, W).transpose(1, 2, 0)),
        r"use its transpose\(2, 0, 1\)\.reshape\(3, -1\)",
    ),
    "unary labels": (
        call("setUnaryEnergy", UNARY[:2]), "the field has 3 labels, got costs for 2; make it with"
    ),
    "unary object labels": (
        call("setUnary", densecrf.ConstUnary(UNARY[:2])), "the field has 3 labels, got costs for 2"
    ),
    "label void": (
        lambda: utils.unary_from_labels([1, 255], 3, 0.7), r"mark void as label 0, np\.where"
    ),
    "channel width": (
        lambda: utils.create_pairwise_bilateral((3, 3), (13, 13), IMAGE[..., :1], 2),
        r"schan must be one number, got \(13, 13\); give one number",
    ),
    "unary too long": (call("setUnaryEnergy", UNARY[:, :-1]), r"got \(3, 34\)"),
    "unary nan": (call("setUnaryEnergy", with_entry(UNARY, np.nan)), r"got nan at index \(0, 3\)"),
    "unary -inf": (call("setUnaryEnergy", with_entry(UNARY, -np.inf)), r"got -inf at index \(0, 3"),
    "unary huge": (call("setUnaryEnergy", with_entry(UNARY, 1e35)), "must not exceed 1e\\+30"),
    "unary none": (call("setUnaryEnergy", None), "u must hold real numbers"),
    "unary ragged": (call("setUnaryEnergy", [[1.0], [1.0, 2.0]]), "does not form"),
    "unary object none": (call("setUnary", None), "use setUnaryEnergy for an array"),
    "unary object array": (call("setUnary", UNARY), "use setUnaryEnergy for an array"),
    "unary object plain": (call("setUnary", densecrf.Unary()), "must be a ConstUnary"),
    "unary object size": (call("setUnary", densecrf.ConstUnary(UNARY[:, :9])), r"got \(3, 9\)"),
    "logistic sizes": (
        lambda: densecrf.LogisticUnary(np.ones((3, 4)), np.ones((5, 35))), r"shape \(4, any\)"
    ),
    "image swapped": (bilateral(3, 13, IMAGE.transpose(1, 0, 2), 3), "takes the width first"),
    "image gray": (bilateral(3, 13, IMAGE[..., 0], 3), "create_pairwise_bilateral"),
    "image alpha": (bilateral(3, 13, np.zeros((H, W, 4)), 3), r"got \(5, 7, 4\)"),
    "image nan": (bilateral(3, 13, with_entry(IMAGE, np.nan), 3), "img must be finite"),
    "image none": (bilateral(3, 13, None, 3), "rgbim must hold real numbers"),
    "width zero": (call("addPairwiseGaussian", 0, 3), "sxy must be positive"),
    "width negative": (call("addPairwiseGaussian", (3, -3), 3), "got -3"),
    "width nan": (call("addPairwiseGaussian", np.nan, 3), "got nan"),
    "width tiny": (call("addPairwiseGaussian", 1e-20, 3), "larger widths"),
    "widths three": (call("addPairwiseGaussian", (3, 3, 3), 3), "one number or 2 numbers"),
    "widths one": (call("addPairwiseGaussian", (3,), 3), "one number or 2 numbers"),
    "color width": (bilateral(3, (3, 0, 3), IMAGE, 3), "srgb must be positive"),
    "compat short": (call("addPairwiseGaussian", 3, np.ones(2)), r"got shape \(2,\)"),
    "compat wide": (call("addPairwiseGaussian", 3, np.ones((2, 3))), r"got shape \(2, 3\)"),
    "compat large": (call("addPairwiseGaussian", 3, np.ones((4, 4))), "a matrix 3 by 3"),
    "compat 3-D": (call("addPairwiseGaussian", 3, np.ones((3, 3, 3))), "a matrix 3 by 3"),
    "compat nan": (call("addPairwiseGaussian", 3, np.nan), "compat must be finite"),
    "compat huge": (call("addPairwiseGaussian", 3, 1e21), "must not exceed"),
    "compat none": (call("addPairwiseGaussian", 3, None), "compat must hold real numbers"),
    "features short": (call("addPairwiseEnergy", FEATURES[:, :9], 3), r"shape \(any, 35\)"),
    "features transposed": (call("addPairwiseEnergy", FEATURES.T, 3), r"got \(35, 2\)"),
    "features none": (call("addPairwiseEnergy", FEATURES[:0], 3), "1 to 16 rows, got 0"),
    "features many": (call("addPairwiseEnergy", np.zeros((17, 35)), 3), "1 to 16 rows, got 17"),
    "features nan": (
        call("addPairwiseEnergy", with_entry(FEATURES, np.nan), 3), "features must be finite"
    ),
    "features huge": (call("addPairwiseEnergy", FEATURES * 1e20, 3), "features must not exceed"),
    "normalization": (
        call("addPairwiseGaussian", 3, 3, normalization=7), r"NORMALIZE_SYMMETRIC \(3\), got 7"
    ),
    "kernel": (call("addPairwiseGaussian", 3, 3, kernel="x"), "kernel must be one of CONST"),
    "step on a list": (call("stepInference", UNARY.tolist()), "what startInference returned"),
    "step read-only": (call("stepInference", read_only(UNARY)), "must be a writable array"),
    "step size": (call("stepInference", UNARY[:2].copy()), r"Q must have shape \(3, 35\)"),
    "divergence size": (call("klDivergence", UNARY[:2]), r"Q must have shape \(3, 35\)"),
    "divergence nan": (call("klDivergence", with_entry(UNARY, np.nan)), "Q must be finite"),
    "label high": (lambda: utils.unary_from_labels([1, 4], 3, 0.7), r"in 0\.\.3, got 4 at"),
    "label zero-based": (lambda: utils.unary_from_labels([1, 3], 3, 0.7, False), r"in 0\.\.2"),
    "label negative": (lambda: utils.unary_from_labels([-1, 3], 3, 0.7), "got -1 at"),
    "label half": (lambda: utils.unary_from_labels([0.5, 1], 3, 0.7), "got 0.5 at"),
    "label nan": (lambda: utils.unary_from_labels([np.nan, 1], 3, 0.7), "labels must be finite"),
    "certainty": (lambda: utils.unary_from_labels([1], 3, 1.0), "gt_prob must lie"),
    "softmax nan": (lambda: utils.unary_from_softmax([[np.nan], [1]]), "sm must be finite"),
    "softmax logits": (lambda: utils.unary_from_softmax([[-7.0], [4.0]]), "apply a softmax"),
    "softmax zero": (lambda: utils.unary_from_softmax([[0.0], [1.0]], clip=None), "clip=1e-5"),
    "softmax scale": (lambda: utils.unary_from_softmax([[0.5], [0.5]], scale=2), "at most 1"),
    "softmax clip": (lambda: utils.unary_from_softmax([[0.5], [0.5]], clip=0), "clip must be"),
    "softmax number": (lambda: utils.unary_from_softmax(0.5), "labels as its first axis"),
    "sdims short": (lambda: utils.create_pairwise_gaussian((3,), (4, 5)), "or 2 numbers"),
    "sdims zero": (lambda: utils.create_pairwise_gaussian((3, 0), (4, 5)), "must be positive"),
    "shape number": (lambda: utils.create_pairwise_gaussian((3,), 4), "a sequence of sizes"),
    "shape empty": (lambda: utils.create_pairwise_gaussian((), ()), "at least one size"),
    "shape negative": (lambda: utils.create_pairwise_gaussian((3,), (-4,)), "shape must be at"),
    "shape vast": (lambda: utils.create_pairwise_gaussian(3, (10**7, 10**7)), "GiB"),
    "channels unnamed": (channels((3, 3), 13, IMAGE), "name the channels' axis"),
    "channels short": (channels((3, 3), (13, 13), IMAGE, 2), "schan must be one"),
    "channels absent": (channels((3, 3), 13, IMAGE[..., :0], 2), "one channel"),
    "channel axis": (channels((3, 3), 13, IMAGE, 3), "chdim must be at least"),
    "image number": (channels(3, 13, 7), "must be an image"),
    "matrix": (lambda: eigen.matrixXf([1, 2]), "arr must have shape"),
    "vector": (lambda: eigen.vectorXf([[1, 2]]), "use matrixXf"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(case):
    run, words = REFUSED[case]
    assert re.search(words, refusal(run))


def test_probabilities_may_overshoot_a_little():
    costs = utils.unary_from_softmax([[1.02, -0.02], [-0.02, 1.02]])
    assert np.allclose(costs, -np.log([[1, 1e-5], [1e-5, 1]]))


def test_deprecated_names():
    with pytest.warns(DeprecationWarning, match="unary_from_labels"):
        costs = utils.compute_unary([0, 1, 2], 2)
    assert np.array_equal(costs, utils.unary_from_labels([0, 1, 2], 2, 0.5))
    with pytest.warns(DeprecationWarning, match="unary_from_softmax"):
        costs = utils.softmax_to_unary([[0.2], [0.8]], 0.5)
    assert np.allclose(costs[:, 0], -np.log([0.35, 0.65]))


def test_matrices_are_arrays():
    matrix, vector = eigen.matrixXf(UNARY), eigen.vectorXf([1, 2])
    assert matrix.flags.f_contiguous
    assert np.array_equal(matrix, UNARY)
    assert vector.dtype == eigen.MatrixXf().dtype == eigen.VectorXf().dtype == np.float32


def test_colors_between_0_and_1_are_warned_of(recwarn):
    field = densecrf.DenseCRF2D(W, H, L)
    with pytest.warns(UserWarning, match="rgbim lies within 0 and 1.* pass rgbim [*] 255") as found:
        field.addPairwiseBilateral(3, 13, IMAGE / 255.0, 3)
    assert found[0].filename == __file__
    recwarn.clear()
    field.addPairwiseBilateral(3, 13 / 255, IMAGE / 255.0, 3)
    field.addPairwiseBilateral(3, 13, IMAGE, 3)
    assert not recwarn.list
