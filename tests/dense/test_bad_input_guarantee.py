"""Models without a guarantee of convergence are refused, and run where that is asked for."""

import numpy as np
import pytest

from crfield import DenseCRF, Diagonal, Pairwise, Potts, Spatial, Symmetric
from refusal import refusal
from small_problem import UNARY


def model(kernel, compatibility=None, n_labels=2, **options):
    return DenseCRF(n_labels, [Pairwise(kernel, compatibility or Potts(1.5), **options)])


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
