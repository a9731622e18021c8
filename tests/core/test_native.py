"""The compiled core by itself: the per-variable solvers, and every build of the hot loops."""

import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

import reference
from crfield._core import _native


def solve(unary, old, mu_diagonal=None, mu_matrix=None, strength=1.0, threads=1):
    """One update with message 0, for all rows of unary."""
    dtype = unary.dtype
    out = np.full_like(unary, np.nan)
    full = mu_matrix is not None
    values = np.asarray(mu_matrix if full else mu_diagonal, dtype).ravel()
    sums = _native.update_marginals(
        unary, np.zeros_like(unary), old, [np.full(len(unary), strength, dtype)],
        np.zeros(1, dtype), values, full, out, threads,
    )
    return out, sums


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(
    n_labels=st.integers(1, 40), log_alpha=st.floats(-6, 4), spread=st.floats(0, 3),
    seed=st.integers(0, 10**6),
)
@example(n_labels=12, log_alpha=2.0, spread=0.0, seed=0)  # where rounding hides the last digits
def test_separable_solver_satisfies_the_kkt_conditions(dtype, n_labels, log_alpha, spread, seed):
    """log q + alpha q + e is the same for all labels, and q sums to one (KK13 eq. 8)."""
    rng = np.random.default_rng(seed)
    alpha = 10.0**log_alpha * rng.uniform(0, 1, n_labels)
    unary = (10.0**spread * rng.normal(size=(50, n_labels))).astype(dtype)
    old = rng.dirichlet(np.ones(n_labels), 50).astype(dtype)
    q, sums = solve(unary, old, mu_diagonal=alpha)
    assert np.abs(q.sum(1) - 1).max() < (1e-5 if dtype == np.float32 else 1e-12)
    energy = unary.astype(np.float64) - alpha * old
    worst = (10.0**spread + 10.0**log_alpha) * (2e-5 if dtype == np.float32 else 1e-10) + 1e-4 * (
        dtype == np.float32
    )
    for row in range(50):
        likely = q[row] > 1e-5
        residual = np.log(q[row, likely]) + alpha[likely] * q[row, likely] + energy[row, likely]
        assert np.ptp(residual) < worst
    entropy = np.where(q > 0, q * np.log(np.where(q > 0, q, 1)), 0).sum(dtype=np.float64)
    assert sums[0] == pytest.approx(entropy, abs=1e-4 if dtype == np.float32 else 1e-9)
    assert sums[1] == pytest.approx(float((q * unary).sum(dtype=np.float64)), rel=1e-4, abs=1e-3)
    assert sums[2] == pytest.approx(float(np.abs(q - old).max()), rel=1e-5, abs=1e-6)


@given(n_labels=st.integers(2, 9), scale=st.floats(-2, 1.5), seed=st.integers(0, 10**6))
def test_coupled_solver_finds_the_minimum(n_labels, scale, seed):
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(n_labels, n_labels)) * 10.0**scale
    mu = -(root @ root.T)
    centered = mu - mu.mean(0) - mu.mean(1)[:, None] + mu.mean()
    unary = rng.normal(size=(4, n_labels)) * 5
    old = rng.dirichlet(np.ones(n_labels), 4)
    q, _ = solve(unary, old, mu_matrix=centered)
    for row in range(4):
        energy = unary[row] + centered @ old[row]
        gradient = np.log(np.maximum(q[row], 1e-300)) + energy - centered @ q[row]
        # A convex problem: a feasible point with zero projected gradient is the minimum.
        level = (q[row] * gradient).sum()
        assert np.abs(q[row] * (gradient - level)).max() < 1e-6
        assert abs(q[row].sum() - 1) < 1e-12


def test_coupled_and_separable_agree_on_potts():
    rng = np.random.default_rng(0)
    unary = rng.normal(size=(30, 5)) * 3
    old = rng.dirichlet(np.ones(5), 30)
    potts = 4.0 * (1 - np.eye(5))
    centered = potts - potts.mean(0) - potts.mean(1)[:, None] + potts.mean()
    separable, _ = solve(unary, old, mu_diagonal=np.full(5, 4.0))
    coupled, _ = solve(unary, old, mu_matrix=centered)
    assert np.abs(separable - coupled).max() < 1e-9
    plain = np.array([reference.solve_kkt(u - 4 * o, -4 * np.eye(5))
                      for u, o in zip(unary, old, strict=True)])
    assert np.abs(separable - plain).max() < 1e-9


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("kind", [0, 1, 2])
@pytest.mark.parametrize("n_labels", [1, 2, 4, 5, 21, 40])
def test_message_matches_the_matrix_product(kind, n_labels, dtype):
    rng = np.random.default_rng(n_labels)
    x = rng.normal(size=(101, n_labels)).astype(dtype)
    scale = rng.uniform(size=101).astype(dtype)
    square = rng.normal(size=(n_labels, n_labels))
    values, mu = [
        (np.array([2.5]), 2.5 * (1 - np.eye(n_labels))),
        (square[0], np.diag(square[0])),
        ((square + square.T).ravel(), square + square.T),
    ][kind]
    out = rng.normal(size=x.shape).astype(dtype)
    expected = out - 0.5 * scale[:, None] * (x @ mu)
    fresh = np.full_like(out, np.nan)
    _native.add_message(kind, values.astype(dtype), x, scale, -0.5, False, out, 2)
    _native.add_message(kind, values.astype(dtype), x, scale, -0.5, True, fresh, 2)
    atol = 2e-5 if dtype == np.float32 else 1e-12
    assert np.allclose(out, expected, atol=atol)
    assert np.allclose(fresh, -0.5 * scale[:, None] * (x @ mu), atol=atol)
    assert _native.center_rows(x, fresh, 2) == pytest.approx(x.min(1).sum(), abs=1e-4)
    assert np.array_equal(fresh, x - x.min(1, keepdims=True))


def test_arguments_are_checked_by_the_bindings():
    x = np.zeros((4, 2), np.float32)
    lattice = _native.Lattice32(x, False, 1)
    with pytest.raises(ValueError, match="rows"):
        lattice.apply(np.zeros((5, 2), np.float32), None, None, np.zeros((5, 2), np.float32), 1)
    with pytest.raises(ValueError, match="shape"):
        lattice.apply(x, None, None, np.zeros((4, 3), np.float32), 1)
    with pytest.raises(ValueError, match="threads"):
        lattice.apply(x, None, None, x.copy(), 0)
    with pytest.raises(TypeError):
        lattice.apply(np.zeros((4, 2)), None, None, x.copy(), 1)


@pytest.mark.slow
@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_every_build_of_the_hot_loops_agrees(isa, tmp_path):
    """Each instruction set gives the default's numbers; one that is missing here falls back."""
    script = """
import sys, numpy as np
from crfield import DenseCRF, Pairwise, Spatial, Bilateral, Potts, Diagonal
from crfield._core import _native
rng = np.random.default_rng(0)
image = rng.integers(0, 255, (31, 45, 3), dtype=np.uint8)
unary = rng.normal(size=(31, 45, 7)).astype(np.float32)
crf = DenseCRF(7, [Pairwise(Spatial(2), Potts(2)),
                   Pairwise(Bilateral(20, 30), Diagonal(np.arange(7) / 3.0))])
parts = []
for filter in ("lattice", "exact"):
    for algorithm in ("concave", "cccp"):
        parts.append(crf.infer(image, unary, filter=filter, algorithm=algorithm).marginals)
np.save(sys.argv[1], np.stack(parts))
print(_native.isa())
"""
    results = {}
    for name in ("default", isa):
        environment = {k: v for k, v in os.environ.items() if k != "CRFIELD_ISA"}
        if name != "default":
            environment["CRFIELD_ISA"] = name
        target = tmp_path / f"{name}.npy"
        subprocess.run(
            [sys.executable, "-c", script, str(target)], env=environment, check=True,
            capture_output=True, timeout=300,
        )
        results[name] = np.load(target)
    assert np.abs(results["default"] - results[isa]).max() < 1e-4
