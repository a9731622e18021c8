"""Gradients through inference, against central differences of the whole computation in float64."""

import numpy as np
import pytest

from crfield import Diagonal, FeatureKernel, Potts, Symmetric
from crfield.dense.filters import make_filter
from crfield.dense.gradient import (
    backpropagate,
    backpropagate_fixed_point,
    softmax_jacobian,
)
from crfield.dense.meanfield import run_parallel
from crfield.dense.problem import NativeProblem, Term
from crfield.learning.learner import LOSSES
from crfield.learning.losses import ExpectedHamming, RobustLogLikelihood
from reference import central_differences, tied

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
        mu = (1.0, 0.8)[m] * compatibilities[m].numbers
        if free is not None and free[0] == m:
            mu = Symmetric(free[1]).numbers
        terms.append(Term(make_filter(features, kernel, method), mu))
    problem = NativeProblem(parameters["unary"], terms, algorithm, 1, keep_states=True)
    trace = [problem.start(None)]
    for _ in range(ITERATIONS):
        trace.append(problem.step(trace[-1], shift))
    return problem, trace


def loss_of(loss, truth, *arguments, **options):
    _, trace = forward(*arguments, **options)
    return loss.value(loss.totals(trace[-1].marginals, truth))


@pytest.mark.slow
@pytest.mark.parametrize("loss_type", LOSSES.values())
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

    assert_close(found.unary, central_differences(with_unary, parameters["unary"]))
    for m in range(2):
        def with_features(features, m=m):
            moved = list(parameters["features"])
            moved[m] = features
            return loss_of(loss, truth, {**parameters, "features": moved}, compatibilities, *setup)

        expected = central_differences(with_features, parameters["features"][m])
        assert_close(found.features[m], expected)

        # mu is symmetric: move tied entries together.
        upper = np.triu_indices(L)

        def with_mu(entries, m=m, upper=upper):
            mu = np.zeros((L, L))
            mu[upper] = entries
            return loss_of(loss, truth, parameters, compatibilities, *setup, free=(m, tied(mu)))

        expected = central_differences(with_mu, parameters["mu"][m][upper])
        assert tied(found.compatibility[m])[upper] == pytest.approx(expected, rel=1e-5, abs=2e-8)


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


def test_gradients_at_a_fixed_point_are_a_geometric_series_or_refused():
    """Of two equal variables undecided between two labels each step back is w times the last."""
    kernel, by_log = FeatureKernel("f", 1, normalization="none"), np.array([[0.5, -0.5]] * 2)

    def by_unary(weight):
        terms = [Term(make_filter(np.zeros((2, 1)), kernel), Potts(weight).numbers)]
        problem = NativeProblem(np.zeros((2, 2)), terms, "concave", 1, keep_states=True)
        state = problem.step(problem.start(None), 0.0)
        return backpropagate_fixed_point(problem, state, by_log, widths=[False]).unary

    np.testing.assert_allclose(by_unary(0.5), -by_log / (1 - 0.5), rtol=1e-9)
    for weight in (1.0, 1.1):
        with pytest.raises(RuntimeError, match="does not settle"):
            by_unary(weight)
