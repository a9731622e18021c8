"""Wrong parameters are refused with one sentence, as are models without a guarantee of
convergence unless that is asked for; extreme parameters give their limit.
"""

import numpy as np
import pytest

import reference
from crfield import (
    Bilateral,
    DenseCRF,
    Diagonal,
    FeatureKernel,
    InferenceStatus,
    Pairwise,
    Potts,
    Spatial,
    Symmetric,
    refine,
    unary_from_features,
    unary_from_labels,
    unary_from_logits,
    unary_from_probabilities,
)
from refusal import refusal
from small_problem import GRID, IMAGE, LABELS, PROBABILITIES, UNARY, infer

ALGORITHMS = ("concave", "cccp", "parallel", "sequential")
FILTERS = ("lattice", "exact")


def model(kernel, compatibility=None, n_labels=2, **options):
    return DenseCRF(n_labels, [Pairwise(kernel, compatibility or Potts(1.5), **options)])


def iterate(kernel, unary, weight, n_iter):
    """q <- softmax(-u - K q mu) with Potts mu, from softmax(-u): "concave" in so many words."""
    flat = unary.reshape(-1, unary.shape[-1]).astype(np.float64)
    q = reference.softmax(-flat)
    for _ in range(n_iter):
        q = reference.softmax(-flat - weight * kernel @ (1.0 - q))
    return q.reshape(unary.shape)


def assert_close(result, expected, atol=1e-5):
    np.testing.assert_allclose(result.marginals, expected, rtol=0, atol=atol)


SIGMA = {
    "zero": (0.0, "positive"),
    "negative": (-1.0, "positive"),
    "one negative": ([1.0, -2.0], "got -2 at index (1,)"),
    "nan": (np.nan, "finite"),
    "infinite": (np.inf, "finite"),
    "none": (None, "numbers"),
    "three for two axes": ([1.0, 2.0, 3.0], "grid axis"),
    "matrix for three axes": (np.eye(3), "grid axis"),
    "not square": (np.ones((2, 3)), "square"),
    "no matrix": (np.ones((0, 0)), "square"),
    "cube": (np.ones((2, 2, 2)), "shape (2, 2, 2)"),
    "singular": ([[1.0, 1.0], [1.0, 1.0]], "positive definite"),
    "indefinite": ([[1.0, 2.0], [2.0, 1.0]], "positive definite"),
    "unsymmetric": ([[2.0, 0.5], [0.0, 2.0]], "unsymmetric"),
    "beyond the lattice": (1e-300, "larger width"),
    "tiny matrix": (1e-300 * np.eye(2), "larger width"),
}


@pytest.mark.parametrize("case", SIGMA)
def test_widths_that_make_no_kernel(case):
    sigma, words = SIGMA[case]
    assert words in refusal(lambda: model(Spatial(sigma)).infer(None, UNARY))
    refusal(lambda: model(Bilateral(sigma, 10)).infer(IMAGE, UNARY))


def test_nearly_singular_covariances_are_refused_where_they_are_given():
    rng = np.random.default_rng(1)
    for _ in range(100):
        factor = rng.normal(size=(3, 2))
        message = refusal(Bilateral, covariance=factor @ factor.T - 1e-14 * np.eye(3))
        assert "positive definite" in message


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", FILTERS)
@pytest.mark.parametrize("sigma", [1e-10, [1e-10, 1e-10], 1e-20 * np.eye(2)], ids=str)
def test_vanishing_width_leaves_each_pixel_alone(sigma, method, dtype):
    unary = UNARY.astype(dtype)
    crf = model(Spatial(sigma))
    options = {"filter": method, "max_iter": 4, "tol": 0}
    assert_close(crf.infer(None, unary, **options), iterate(np.eye(42), unary, 1.5, 4))
    for algorithm in ("cccp", "parallel"):
        alone = crf.infer(None, unary, algorithm=algorithm, **options)
        assert_close(alone, reference.softmax(-unary))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("method", FILTERS)
@pytest.mark.parametrize("sigma", [1e10, 1e300, [1e10, 1e12], 1e20 * np.eye(2)], ids=str)
def test_endless_width_joins_all_pixels(sigma, method, dtype):
    unary = UNARY.astype(dtype)
    result = model(Spatial(sigma)).infer(None, unary, filter=method, max_iter=4, tol=0)
    assert_close(result, iterate(np.full((42, 42), 1 / 42), unary, 1.5, 4))


def test_endless_width_without_normalization_counts_all_pixels():
    kernel = Spatial(1e10, normalization="none")
    result = model(kernel, Potts(0.05)).infer(None, UNARY, filter="exact", max_iter=4, tol=0)
    assert_close(result, iterate(np.ones((42, 42)), UNARY, 0.05, 4))


@pytest.mark.parametrize("method", FILTERS)
def test_vanishing_color_width_joins_equal_colors_only(method):
    shade = np.where(LABELS > 0, 200, 30).astype(np.uint8)
    result = model(Bilateral(1e10, 1e-10)).infer(shade, UNARY, filter=method, max_iter=4, tol=0)
    same = (shade.reshape(-1, 1) == shade.reshape(1, -1)).astype(float)
    assert_close(result, iterate(same / same.sum(1, keepdims=True), UNARY, 1.5, 4))


@pytest.mark.parametrize("method", FILTERS)
@pytest.mark.parametrize("algorithm", ["concave", "cccp", "parallel"])
def test_one_pixel(algorithm, method):
    unary = np.array([[[0.2, 1.0]]])
    result = model(Spatial(3)).infer(None, unary, algorithm=algorithm, filter=method, max_iter=3)
    n_iter = 3 if algorithm == "concave" else 0  # only "concave" counts pairs of i with itself
    assert_close(result, iterate(np.ones((1, 1)), unary, 1.5, n_iter), atol=2e-3)


@pytest.mark.parametrize("compatibility", [Potts(2), Diagonal([1]), Symmetric([[0.5]])])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_one_label(algorithm, compatibility):
    result = model(Spatial(2), compatibility, 1).infer(None, UNARY[..., :1], algorithm=algorithm)
    assert (result.marginals == 1).all()
    assert result.converged
    assert np.isfinite(result.free_energies).all()
    assert refine(IMAGE, np.full(GRID, 7)).labels.tolist() == np.full(GRID, 7).tolist()


@pytest.mark.parametrize("shape", [(0, 5, 2), (5, 0, 2), (0, 2)])
def test_no_pixels(shape):
    empty = np.zeros(shape)
    assert "at least one variable" in refusal(model(Spatial(2)).infer, None, empty)
    assert "at least one variable" in refusal(refine, None, empty, bilateral=None)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("compatibility", [Potts(1), Diagonal([1, 2, 3]), Symmetric.l1(3)])
def test_enormous_costs_decide(compatibility, algorithm, dtype):
    wanted = LABELS
    for away, chosen in [(1e30, -1e30), (1e30, 0.0), (0.0, -1e30)]:
        costs = np.where(np.arange(3) == wanted[..., None], chosen, away).astype(dtype)
        crf = model(Spatial(2), compatibility, 3)
        result = crf.infer(None, costs, algorithm=algorithm, mask=LABELS < 2)
        assert np.array_equal(result.labels, wanted)
        assert np.isfinite(result.marginals).all()
        assert np.isfinite(result.free_energies).all()
    assert "1e+30" in refusal(crf.infer, None, 10 * np.abs(costs))
    assert "1e+30" in refusal(crf.infer, None, -10 * np.abs(costs))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_enormous_weights_decide_and_larger_ones_are_refused(dtype):
    unary = np.where(np.arange(2) == 0, 0.0, 1.0) + 0 * UNARY.astype(dtype)
    result = model(Spatial(2), Potts(1e10), weight=1e10).infer(None, unary)
    assert np.isfinite(result.free_energies).all()
    assert (result.labels == 0).all()
    for weight, mu in [(1e31, 1.0), (-1e31, 1.0), (1e20, 1e20), (1e300, 1e300)]:
        for compatibility in (Potts(mu), Diagonal([mu, 1]), Symmetric([[0, mu], [mu, 0]])):
            assert "1e+20" in refusal(Pairwise, Spatial(2), compatibility, weight)


def test_costs_made_from_extreme_numbers():
    assert np.isfinite(unary_from_probabilities(np.float32([[1, 0]]), clip=1e-300)).all()
    assert "1e+30" in refusal(unary_from_probabilities, np.float32([[1, 0]]), scale=1e300)
    np.testing.assert_array_equal(unary_from_logits(np.float32([[1e30, -1e30]]))[0, 0], 0)
    assert "1e+30" in refusal(unary_from_logits, np.float32([[3e38, -3e38]]))
    assert "1e+30" in refusal(unary_from_features, np.float32([[3e38, 3e38]]), [[2, 2], [2, -2]])
    for image, options in [(IMAGE * 1e305, {}), (IMAGE, {"spacing": 1e308})]:
        assert "larger width" in refusal(infer, image=image, **options)
    kernel = Bilateral(2, 2, color_scale=1e308)
    assert "larger width" in refusal(model(kernel).infer, IMAGE, UNARY)


@pytest.mark.parametrize(("make", "words"), [
    (lambda: Potts(np.nan), "weight must be finite"),
    (lambda: Potts("3"), "weight must be a number"),
    (lambda: Potts([1, 2]), "weight must be a number"),
    (lambda: Potts(10**400), "weight must be a number"),
    (lambda: Pairwise(Spatial(1), Potts(1), np.inf), "weight must be finite"),
    (lambda: Pairwise(Potts(1), Spatial(1)), "kernel must be"),
    (lambda: Pairwise(Spatial(1), np.eye(2)), "compatibility must be"),
    (lambda: Diagonal([1, np.nan]), "index (1,)"),
    (lambda: Diagonal([]), "(L,)"),
    (lambda: Diagonal(np.eye(2)), "(L,)"),
    (lambda: Symmetric([[0, np.inf], [1, 0]]), "index (0, 1)"),
    (lambda: Symmetric([[0, 1], [2, 0]]), "mu[0, 1] = 1 and mu[1, 0] = 2"),
    (lambda: Symmetric([[0, 1e308], [-1e308, 0]]), "symmetric"),
    (lambda: Symmetric(np.ones((2, 3))), "square"),
    (lambda: Symmetric(np.ones((0, 0))), "square"),
    (lambda: Symmetric(np.zeros(4)), "square"),
    (lambda: Symmetric([]), "square"),
    (lambda: Symmetric([[np.nan]]), "index (0, 0)"),
    (lambda: Symmetric.diagonally_dominant(np.eye(2), -1), "margin"),
    (lambda: model(Spatial(1), Diagonal([1, 1]), 3), "3 numbers"),
    (lambda: model(Spatial(1), Symmetric(np.eye(2)), 3), "(3, 3)"),
    (lambda: DenseCRF(0), "at least 1"),
    (lambda: DenseCRF(2.0), "whole number"),
    (lambda: DenseCRF(10**400), "at most"),
    (lambda: DenseCRF(2, None), "list of Pairwise"),
    (lambda: DenseCRF(2, Pairwise(Spatial(1), Potts(1))), "list of Pairwise"),
    (lambda: DenseCRF(2, [Spatial(1)]), "terms[0]"),
    (lambda: Spatial(1, shape="box"), "'gaussian', 'tent', 'sinc'"),
    (lambda: Spatial(1, normalization="yes"), "'symmetric'"),
    (lambda: Bilateral(1, 1, color_space="hsv"), "'rgb', 'lab'"),
    (lambda: Bilateral(1, 1, color_scale="x"), "color_scale"),
    (lambda: Bilateral(1), "sigma_xy and sigma_color"),
    (lambda: Bilateral(1, 1, covariance=np.eye(5)), "either"),
    (lambda: FeatureKernel("", 1), "non-empty"),
    (lambda: FeatureKernel("f", 0), "dim"),
    (lambda: FeatureKernel("f", 2, sigma=[1, 2, 3]), "(2)"),
    (lambda: FeatureKernel("f", 2, sigma=1, covariance=np.eye(2)), "both"),
    (lambda: unary_from_labels(LABELS, 0), "n_labels"),
    (lambda: unary_from_labels(LABELS, 10**30), "n_labels"),
    (lambda: unary_from_probabilities(PROBABILITIES, clip=0), "clip"),
    (lambda: unary_from_probabilities(PROBABILITIES, scale=-1), "scale"),
    (lambda: refine(IMAGE, LABELS, bilateral=3), "pair"),
    (lambda: refine(IMAGE, LABELS, spatial=0), "positive"),
    (lambda: refine(IMAGE, LABELS, layout="rows"), "layout"),
    (lambda: refine(None, LABELS), "image"),
    (lambda: model(Bilateral(2, 2, color_space="lab")).infer(IMAGE[..., 0], UNARY), "3 chan"),
])
def test_models_that_make_no_sense(make, words):
    assert words in refusal(make)


@pytest.mark.parametrize(("name", "values"), [
    ("algorithm", ["bp", 3, np.array(["concave", "cccp"])]),
    ("filter", ["fft", None, ["exact"]]),
    ("layout", ["rows", None]),
    ("filter_tol", [-0.1, 1.0, np.nan, "x", None]),
    ("max_iter", [-1, 2.0, "3", np.nan]),
    ("tol", [-1e-9, np.nan, np.inf, "x", None, [1, 2]]),
    ("threads", [0, -1, 2.0, 10**6, "all", np.array([1, 2])]),
    ("callback", [3, "print", [print]]),
])
def test_options_out_of_range(name, values):
    for value in values:
        assert name in refusal(infer, **{name: value})
        terms_do_not_matter = DenseCRF(2).infer
        assert name in refusal(terms_do_not_matter, None, UNARY, **{name: value})


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_no_iterations_give_the_softmax_of_the_unary(algorithm):
    result = infer(algorithm=algorithm, max_iter=0)
    assert_close(result, reference.softmax(-UNARY), atol=1e-6)
    assert (result.n_iter, len(result.free_energies), result.converged) == (0, 1, False)
    assert result.status is InferenceStatus.MAX_ITER


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_callbacks_may_stop_raise_and_look_but_not_touch(algorithm):
    stopped = infer(algorithm=algorithm, tol=0, callback=lambda *_: True)
    assert (stopped.n_iter, stopped.status) == (1, InferenceStatus.CALLBACK)
    assert not stopped.converged

    def fail(iteration, marginals, free_energy):
        raise LookupError(f"iteration {iteration}")

    with pytest.raises(LookupError, match="iteration 1"):
        infer(algorithm=algorithm, callback=fail)

    def touch(iteration, marginals, free_energy):
        marginals[:] = np.nan

    with pytest.raises(ValueError, match="read-only"):
        infer(algorithm=algorithm, callback=touch)
    seen = []
    plain = infer(algorithm=algorithm, tol=0, max_iter=3)
    watched = infer(
        algorithm=algorithm, tol=0, max_iter=3, callback=lambda i, q, f: seen.append((i, q, f))
    )
    assert np.array_equal(plain.marginals, watched.marginals)
    assert [i for i, _, _ in seen] == [1, 2, 3]
    assert [f for _, _, f in seen] == pytest.approx(watched.free_energies[1:].tolist())
    assert not np.array_equal(seen[0][1], seen[1][1])  # what was kept does not change


def test_a_model_does_not_follow_the_arrays_it_was_made_from():
    sigma, alpha = np.array([2.0, 3.0]), np.array([1.0, 2.0])
    crf = model(Spatial(sigma), Diagonal(alpha))
    before = crf.infer(None, UNARY).marginals
    sigma[:], alpha[:] = np.nan, np.nan
    assert np.array_equal(crf.infer(None, UNARY).marginals, before)


WITHOUT_GUARANTEE = {
    "repulsive": (Spatial(2), Potts(-1), {}, "negative semidefinite"),
    "negative weight": (Spatial(2), Potts(1), {"weight": -1}, "negative semidefinite"),
    "alpha": (Spatial(2), Diagonal([-1, 0.5]), {}, "negative semidefinite"),
    "indefinite mu": (Spatial(2), Symmetric([[2, 0], [0, 0]]), {}, "negative semidefinite"),
    "before": (Spatial(2, normalization="before"), Potts(1), {}, "normalization"),
    "after": (Spatial(2, normalization="after"), Potts(1), {}, "normalization"),
}


@pytest.mark.parametrize("case", WITHOUT_GUARANTEE)
def test_models_without_guarantee(case):
    kernel, compatibility, options, condition = WITHOUT_GUARANTEE[case]
    crf = model(kernel, compatibility, **options)
    for algorithm in ("concave", "cccp"):
        message = refusal(crf.infer, None, UNARY, algorithm=algorithm)
        assert condition in message
        assert "check=False" in message
    for algorithm in ("concave", "parallel"):
        result = crf.infer(None, UNARY, algorithm=algorithm, check=False)
        np.testing.assert_allclose(result.marginals.sum(-1), 1, atol=1e-5)
        assert (result.marginals >= 0).all()


@pytest.mark.parametrize("compatibility", [Potts(-2), Diagonal([-1, -1])])
def test_two_wrongs_are_attractive(compatibility):
    result = model(Spatial(2), compatibility, weight=-1).infer(None, UNARY.astype(float), tol=0)
    assert (np.diff(result.free_energies) <= 1e-10).all()


def test_many_labels_need_no_matrix(monkeypatch):
    def refuse(self, n_labels):
        raise AssertionError(f"{n_labels} x {n_labels} numbers for one")

    monkeypatch.setattr(Potts, "matrix", refuse)
    crf = model(Spatial(2), Potts(1), 40_000)  # (L, L) would take 12 GiB
    result = crf.infer(None, np.zeros((2, 40_000), np.float32), max_iter=1)
    np.testing.assert_allclose(result.marginals, 1 / 40_000, rtol=1e-3)


@pytest.mark.parametrize("normalization", ["none", "symmetric"])
def test_tent_in_two_dimensions_still_descends(normalization):
    checkerboard = np.indices((12, 12)).sum(0) % 2
    unary = np.stack([checkerboard, 1.0 - checkerboard], -1) * 0.1
    crf = model(Spatial(2, shape="tent", normalization=normalization), Potts(10))
    result = crf.infer(None, unary, init=0.98 * np.eye(2)[checkerboard] + 0.01, max_iter=30, tol=0)
    if normalization == "none":
        assert result.shifts > 0, "this kernel has negative eigenvalues that plain steps run into"
    assert (np.diff(result.free_energies) <= 1e-11 * np.abs(result.free_energies).max()).all()
    assert result.free_energies[-1] < result.free_energies[0]
    assert np.isfinite(result.marginals).all()


def test_sinc_with_row_sums_that_are_not_positive():
    # Six points where sinc is most negative, -0.217, around one where it is 1.
    positions = np.array([[0.0]] + 3 * [[4.4934], [-4.4934]])
    unary = np.linspace(0, 1, 14).reshape(7, 2)
    for normalization in ("symmetric", "before", "after"):
        crf = model(Spatial(1, shape="sinc", normalization=normalization))
        message = refusal(crf.infer, None, unary, positions=positions)
        assert "positive row sums" in message
    plain = model(Spatial(1, shape="sinc", normalization="none"))
    assert np.isfinite(plain.infer(None, unary, positions=positions).marginals).all()
    assert "Gaussian" in refusal(plain.infer, None, unary, positions=positions, filter="lattice")
