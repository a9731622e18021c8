"""Wrong factor graphs get one sentence each: what was expected, what came, what to do."""


import numpy as np
import pytest

from crfield import InputError
from crfield.graphs import (
    DistanceFactors,
    FactorGraph,
    FeatureGraph,
    FeatureTerm,
    GridFactors,
    PatternFactors,
    PottsFactors,
    RayFactors,
    TableFactors,
    infer,
    k_best,
    log_linear_loss,
    sample,
    table_factors,
)
from refusal import refusal

FREE = np.zeros((3, 2))
LOOP = FactorGraph(FREE, [PottsFactors([[0, 1], [1, 2], [0, 2]], 1.0)])
DATA = FeatureGraph(np.array([2]), (FeatureTerm([[0]]),))


@pytest.mark.parametrize(("build", "message"), [
    (lambda: FactorGraph(np.zeros((0, 2))), r"shape \(N, L\), N and L >= 1"),
    (lambda: FactorGraph([]), "at least one variable"),
    (lambda: FactorGraph(np.zeros(3)), r"shape \(N, L\)"),
    (lambda: FactorGraph("abc"), "array .N, L. or a list"),
    (lambda: FactorGraph([[0.0], []]), r"costs\[1\] must have shape \(L,\)"),
    (lambda: FactorGraph([[0.0, np.nan]]), "got nan at index"),
    (lambda: FactorGraph(np.full((2, 2), -np.inf)), "got -inf at index"),
    (lambda: FactorGraph([[0.0], [np.inf, np.inf]]), "got none for variable 1"),
    (lambda: FactorGraph(FREE, PottsFactors([[0, 1]], 1.0)), "must be a list of factors"),
    (lambda: FactorGraph(FREE, ["x"]), r"factors\[0\] must be factors"),
    (lambda: FactorGraph(FREE, [PottsFactors([[0, 3]], 1.0)]), "variables 0 to 2, got 3"),
    (lambda: FactorGraph(FREE, [TableFactors([[0, 1]], np.zeros((2, 3)))]),
     "3 states for variable 1, which has 2"),
    (lambda: FactorGraph([[0.0, 0.0], [0.0]], [PottsFactors([[0, 1]], 1.0)]),
     "2 states for variable 1, which has 1"),
    (lambda: FactorGraph([[0.0] * 3], [RayFactors([0, 1], [0], [1.0])]),
     "2 states for variable 0, which has 3"),
    (lambda: TableFactors([[0, 0]], np.zeros((2, 2))), "must differ"),
    (lambda: TableFactors([[0, -1]], np.zeros((2, 2))), "numbered from 0, got -1"),
    (lambda: TableFactors([[0.5, 1.0]], np.zeros((2, 2))), "whole numbers"),
    (lambda: TableFactors([[0, 1]], np.zeros(2)), "must have 2 axes"),
    (lambda: TableFactors([[0, 1]], np.zeros((3, 2, 2))), "table for each of 1 factors"),
    (lambda: TableFactors([[0, 1]], np.zeros((0, 2))), "at least one number"),
    (lambda: TableFactors([[0, 1]], [["a", "b"], ["c", "d"]]), "real numbers"),
    (lambda: PottsFactors([[0, 1, 2]], 1.0), r"shape \(M, 2\)"),
    (lambda: PottsFactors([[0, 1]], [1.0, 2.0]), r"one number or have shape \(1,\)"),
    (lambda: PottsFactors([[0, 1]], np.inf), "must be finite"),
    (lambda: DistanceFactors([[0, 1]], -1.0), "weights must not be negative"),
    (lambda: DistanceFactors([[0, 1]], 1.0, -1.0), "ceilings must not be negative"),
    (lambda: DistanceFactors([[0, 1]], 1.0, 1.0, 3), "power must be at least 1"),
    (lambda: GridFactors((2, 0)), "W must be at least 1"),
    (lambda: GridFactors(4), r"shape must be \(H, W\)"),
    (lambda: GridFactors((2, 3), np.ones((2, 3))), r"one number or have shape \(2, 2\)"),
    (lambda: GridFactors((2, 3), horizontal_table=np.ones((2, 3))), r"\(L, L\)"),
    (lambda: PatternFactors([[0, 1]], np.ones((1, 3)), np.zeros(1)), r"\(J, 2\)"),
    (lambda: PatternFactors([[0, 1]], np.ones((1, 2)), np.zeros(2)), "biases must have"),
    (lambda: PatternFactors([[0, 1]], np.ones((1, 2)), np.zeros(1), "max"), "composition"),
    (lambda: RayFactors([0, 2], [0], [1.0]), "run from 0 to the 1 variables"),
    (lambda: RayFactors([0, 1, 1], [0], [1.0]), "1 and then 1 at ray 1"),
    (lambda: RayFactors([0, 2], [0, 0], [1.0, 1.0]), "once, got ray 0 twice"),
    (lambda: RayFactors([0, 1], [0], [-1.0]), "scores must not be negative"),
    (lambda: table_factors([((0, 1), np.zeros(2))]), "an axis for each of its variables"),
    (lambda: FeatureTerm([[0]], np.zeros((2, 1))), r"features must have shape \(1, D\)"),
])
def test_wrong_models_are_refused(build, message):
    with pytest.raises(InputError, match=message) as caught:
        build()
    assert len(str(caught.value).split(". ")) == 1


@pytest.mark.parametrize(("run", "message"), [
    (lambda: infer(FREE), "problem must be a FactorGraph, Chains, RayModel or Poses for infer"),
    (lambda: infer(LOOP, temperature=-1.0), "temperature"),
    (lambda: infer(LOOP, schedule="random"), "schedule must be one of"),
    (lambda: infer(LOOP, schedule="exact"), "must have no loops"),
    (lambda: infer(LOOP, max_iter=0), "max_iter must be at least 1"),
    (lambda: infer(LOOP, damping=1.0), "damping must be 0 or more and less than 1"),
    (lambda: infer(LOOP, tol=-1.0), "tol must not be negative"),
    (lambda: k_best(LOOP, 2), "no loops"),
    (lambda: k_best(FactorGraph(FREE), 0), "k must be at least 1"),
    (lambda: sample(LOOP), "no loops"),
    (lambda: sample(FactorGraph(FREE), temperature=0.0), "temperature"),
    (lambda: LOOP.energy([0, 1]), "shape (3,)"),
    (lambda: LOOP.energy([0, 1, 2]), "variable 2 must lie between 0 and 1, got 2"),
    (lambda: infer(LOOP).factor_marginals(1), "group must be at least 0 and at most 0"),
    (lambda: FactorGraph(FREE).energy([0, 0, 0], "a"), "temperature must be a number"),
    (lambda: FactorGraph(FREE).energy([0, 0, 0], -1), "temperature must be 0 or at least"),
    (lambda: sample(FactorGraph(FREE), temperature=0), "use best for 0"),
    (lambda: infer(
        FactorGraph(FREE, [RayFactors([0, 3], [0, 1, 2], [1.0] * 3)])
    ).factor_marginals(), "RayFactors must have tables of joint states"),
    (lambda: infer(FactorGraph(
        [[0.0, np.inf], [0.0, np.inf]], [TableFactors([[0, 1]], [[np.inf, 0.0], [0.0, 0.0]])]
    )), "forbid all of them"),
    (lambda: infer(FactorGraph(
        np.zeros((2, 2)), [TableFactors([[0, 1]], np.full((2, 2), np.inf))]
    ), temperature=0.0), "forbid all of them"),
])
def test_wrong_questions_are_refused(run, message):
    assert message in refusal(run)


@pytest.mark.parametrize(("run", "message"), [
    (lambda: FeatureGraph(np.array([2, 2]), (1,)), "terms must be a list of FeatureTerm"),
    (lambda: FeatureGraph(np.zeros(0, int), ()), "at least one variable"),
    (lambda: log_linear_loss(None, (), []), "data must be a FeatureGraph"),
    (lambda: log_linear_loss(DATA, None, [0]), "weights must be 1 arrays"),
    (lambda: log_linear_loss(DATA, ("ab",), [0]), "weights[0] must hold real numbers"),
    (lambda: log_linear_loss(DATA, (np.zeros((1, 2)),), [0], like=3), "like a Result"),
])
def test_wrong_log_linear_models_are_refused(run, message):
    assert message in refusal(run)


def test_weights_may_be_nested_lists():
    assert log_linear_loss(DATA, ([[0.0, 0.0]],), [0]).value == pytest.approx(np.log(2))


def test_sizes_that_cannot_fit_are_refused():
    for build in (
        lambda: infer(FactorGraph([np.zeros(10**6)] + [np.zeros(2)] * 20000)),
        lambda: GridFactors((10**6, 10**6)),
        lambda: PatternFactors(
            np.arange(10**6).reshape(-1, 10), np.ones((30000, 10)), np.zeros(30000)
        ),
    ):
        assert "GiB can be had" in refusal(build)
    edges = np.broadcast_to(np.array([[0, 1]]), (10, 2))
    graph = FactorGraph(np.zeros((2, 2)), [PottsFactors(edges, 1.0)])
    assert not graph.is_forest  # edges may join the same variables twice
    assert "GiB can be had" in refusal(k_best, FactorGraph(np.zeros((1000, 2))), 10**12)


def test_layouts_of_arrays_do_not_matter():
    rng = np.random.default_rng(0)
    costs = np.asfortranarray(rng.normal(size=(4, 3)))
    table = rng.normal(size=(3, 3)).T
    edges = np.array([[0, 1], [1, 2], [2, 3]], np.uint8)[::-1]
    one = infer(FactorGraph(costs, [TableFactors(edges, table)]))
    two = infer(FactorGraph(
        np.ascontiguousarray(costs), [TableFactors(edges.astype(int), table.copy())]
    ))
    np.testing.assert_array_equal(one.marginals, two.marginals)
    costs[:] = 0  # a graph keeps what it was given
    assert infer(one.problem).log_partition == pytest.approx(two.log_partition)


def test_terms_on_variables_without_costs():
    data = FeatureGraph(np.array([2, 3]), ())
    assert data.graph(()).n_variables == 2
