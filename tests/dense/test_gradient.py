"""Gradients through inference, against central differences of the whole computation in float64."""

from __future__ import annotations

import numpy as np
import pytest

from crfield import Diagonal, FeatureKernel, Potts, Symmetric
from crfield.dense.filters import make_filter
from crfield.dense.gradient import backpropagate, softmax_jacobian
from crfield.dense.meanfield import run_parallel
from crfield.dense.problem import NativeProblem, Term
from crfield.learning.losses import (
    ExpectedHamming,
    IntersectionOverUnion,
    LogLikelihood,
    RobustLogLikelihood,
)

LOSSES = [LogLikelihood, RobustLogLikelihood, ExpectedHamming, IntersectionOverUnion]
N, L, ITERATIONS = 9, 3, 4


def example(family):
    rng = np.random.default_rng(0)
    root = rng.normal(size=(L, L))
    second = {
        "potts": Potts(1.7),
        "diagonal": Diagonal([0.5, 1.0, 2.0]),
        "symmetric": Symmetric(0.3 - root @ root.T),
    }[family]
    parameters = {
        "unary": rng.normal(size=(N, L)),
        "features": [rng.normal(size=(N, 2)), rng.normal(size=(N, 1)) * 1.5],
        "mu": [Potts(1.2).matrix(L), 0.8 * second.matrix(L)],
    }
    return parameters, [Potts(1.2), second], rng.integers(0, L, N)


def forward(parameters, compatibilities, algorithm, method, normalization, shift=0.0, free=None):
    """The problem and its trace; `free` replaces term number free[0]'s w mu by free[1]."""
    terms = []
    for m, features in enumerate(parameters["features"]):
        kernel = FeatureKernel("f", features.shape[1], normalization=normalization)
        compatibility, weight = compatibilities[m], (1.0, 0.8)[m]
        if free is not None and free[0] == m:
            compatibility, weight = Symmetric(free[1]), 1.0
        terms.append(Term(make_filter(features, kernel, method), compatibility, weight))
    problem = NativeProblem(parameters["unary"], terms, algorithm, 1, keep_states=True)
    trace = [problem.start(None)]
    for _ in range(ITERATIONS):
        trace.append(problem.step(trace[-1], shift))
    return problem, trace


def loss_of(loss, truth, *arguments, **options):
    _, trace = forward(*arguments, **options)
    return loss.value(loss.totals(trace[-1].marginals, truth))


def numeric(function, array, step=1e-6):
    gradient = np.zeros_like(array)
    for index in np.ndindex(array.shape):
        for sign in (1, -1):
            moved = array.copy()
            moved[index] += sign * step
            gradient[index] += sign * function(moved) / (2 * step)
    return gradient


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("family", ["potts", "diagonal", "symmetric"])
@pytest.mark.parametrize("algorithm", ["concave", "cccp", "parallel"])
def test_every_group_agrees_with_central_differences(algorithm, family, loss_type):
    check(algorithm, family, loss_type(), "exact", "symmetric")


@pytest.mark.parametrize("normalization", ["none", "before", "after"])
@pytest.mark.parametrize("algorithm", ["concave", "cccp", "parallel"])
def test_every_normalization(algorithm, normalization):
    check(algorithm, "potts", ExpectedHamming(), "exact", normalization)


@pytest.mark.parametrize("algorithm", ["concave", "cccp", "parallel"])
@pytest.mark.parametrize("family", ["potts", "symmetric"])
def test_the_lattice_is_differentiated_itself(algorithm, family):
    check(algorithm, family, RobustLogLikelihood(), "lattice", "symmetric")


@pytest.mark.parametrize("algorithm", ["concave", "cccp"])
@pytest.mark.parametrize("family", ["potts", "symmetric"])
def test_the_safeguards_shift_is_held_fixed(algorithm, family, monkeypatch):
    monkeypatch.setattr(
        "crfield.dense.filters.base.NormalizedOperator.spectral_bound", lambda operator: 1.3
    )
    check(algorithm, family, RobustLogLikelihood(), "exact", "symmetric", shift=0.25)


def check(algorithm, family, loss, method, normalization, shift=0.0):
    parameters, compatibilities, truth = example(family)
    setup = (algorithm, method, normalization, shift)
    problem, trace = forward(parameters, compatibilities, *setup)
    totals = loss.totals(trace[-1].marginals, truth)
    by_log = loss.log_gradient(trace[-1].marginals, truth, totals)
    found = backpropagate(problem, trace, by_log, widths=[True, True])

    def with_unary(unary):
        return loss_of(loss, truth, {**parameters, "unary": unary}, compatibilities, *setup)

    expected = numeric(with_unary, parameters["unary"])
    assert_close(found.unary, expected)
    for m in range(2):
        def with_features(features, m=m):
            moved = list(parameters["features"])
            moved[m] = features
            return loss_of(loss, truth, {**parameters, "features": moved}, compatibilities, *setup)

        expected = numeric(with_features, parameters["features"][m])
        assert_close(found.features[m], expected)

        # mu is symmetric: move tied entries together.
        tied = found.compatibility[m] + found.compatibility[m].T
        np.fill_diagonal(tied, np.diag(found.compatibility[m]))
        for a in range(L):
            for b in range(a, L):
                direction = np.zeros((L, L))
                direction[a, b] = direction[b, a] = 1e-6
                above, below = (
                    loss_of(loss, truth, parameters, compatibilities, *setup,
                            free=(m, parameters["mu"][m] + sign * direction))
                    for sign in (1, -1)
                )
                assert tied[a, b] == pytest.approx((above - below) / 2e-6, rel=1e-5, abs=2e-8)


def assert_close(found, expected):
    assert np.abs(found - expected).max() < 1e-6 * np.abs(expected).max() + 2e-9


def test_trace_of_the_guarded_loop_is_the_same_computation():
    parameters, compatibilities, _ = example("potts")
    problem, trace = forward(parameters, compatibilities, "concave", "exact", "symmetric")
    again = []
    run_parallel(problem, init=None, max_iter=ITERATIONS, tol=0.0, guarded=True, trace=again)
    assert len(again) == ITERATIONS + 1
    assert all(
        np.array_equal(a.marginals, b.marginals) for a, b in zip(trace, again, strict=True)
    )


def test_given_start_takes_no_gradient_from_the_unary():
    parameters, compatibilities, truth = example("potts")
    loss = ExpectedHamming()
    problem, _ = forward(parameters, compatibilities, "concave", "exact", "symmetric")
    q = np.random.default_rng(1).dirichlet(np.ones(L), N)
    trace = []
    run_parallel(problem, init=q, max_iter=1, tol=0.0, guarded=False, trace=trace)
    totals = loss.totals(trace[-1].marginals, truth)
    by_log = loss.log_gradient(trace[-1].marginals, truth, totals)
    found = backpropagate(problem, trace, by_log, widths=[False, False], from_unary=False)
    assert np.allclose(found.unary, softmax_jacobian(trace[-1].marginals, by_log))
    assert found.features == [None, None]
