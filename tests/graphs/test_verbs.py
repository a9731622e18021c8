"""The verbs and their one result, over every kind of problem."""

import pickle

import numpy as np
import pytest

from crfield.graphs import (
    Chains,
    FactorGraph,
    GridFactors,
    PictorialStructure,
    Poses,
    PottsFactors,
    RayModel,
    Result,
    Status,
    TableFactors,
    best,
    infer,
    sample,
)

RNG = np.random.default_rng(0)
LOOP = [[0, 1], [1, 2], [2, 0]]
PROBLEMS = {
    "forest": FactorGraph(RNG.normal(size=(3, 2)), [PottsFactors(LOOP[:2], 0.5)]),
    "loop": FactorGraph(RNG.normal(size=(3, 2)), [PottsFactors(LOOP, 0.5)]),
    "grid": FactorGraph(RNG.normal(size=(12, 3)), [GridFactors((3, 4), 0.2, 0.2)]),
    "chains": Chains([RNG.normal(size=(4, 3)), RNG.normal(size=(1, 3))], RNG.normal(size=(3, 3))),
    "rays": RayModel(5, [0, 3, 5], [0, 1, 2, 3, 4], RNG.uniform(0.1, 1, 5), 0.3, 0.1),
    "poses": Poses(PictorialStructure([-1, 0], np.ones((2, 2)), 0.5), RNG.normal(size=(2, 4, 5))),
}
EXACT = ("forest", "chains", "poses")
FIELDS = (
    "marginals", "labels", "energy", "log_partition", "min_marginals", "transition_marginals",
    "log_odds", "depths", "empty", "positions", "orientations", "residuals", "n_iter", "status",
    "converged", "exact",
)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("name", PROBLEMS)
def test_one_result_for_every_problem(name, temperature):
    problem = PROBLEMS[name]
    found = infer(problem, temperature=temperature, max_iter=100)
    again = pickle.loads(pickle.dumps(infer(problem, temperature=temperature, max_iter=100)))
    assert isinstance(found, Result)
    assert found.problem is problem
    assert found.status is (Status.EXACT if name in EXACT else Status.CONVERGED)
    assert found.exact == (name in EXACT)
    assert found.n_iter == len(found.residuals)
    assert found.status.name in repr(found)
    assert "<" in found._repr_html_()
    assert (found.energy is None) == (found.log_partition is None) == (name == "rays")
    if temperature and name not in ("rays", "poses"):
        np.testing.assert_array_equal(found.labels, found.marginals.argmax(1))
    if name != "rays":
        assert (found.log_partition >= -np.asarray(found.energy) - 1e-9).all()
    for field in FIELDS:
        np.testing.assert_array_equal(getattr(again, field), getattr(found, field))


@pytest.mark.parametrize("name", PROBLEMS)
def test_the_best_labels_have_the_least_energy_that_is_found(name):
    problem = PROBLEMS[name]
    least = best(problem)
    np.testing.assert_array_equal(least.labels, infer(problem, temperature=0.0).labels)
    if name in EXACT:
        drawn = sample(problem, 20)
        energies = [
            problem.energy(*(problem.places(row) if name == "poses" else [row])) for row in drawn
        ]
        assert (np.array(energies) >= np.asarray(least.energy) - 1e-9).all()


def test_a_status_names_its_remedy():
    for name in ("loop", "grid", "rays"):
        stopped = infer(PROBLEMS[name], max_iter=2)
        assert stopped.status is Status.MAX_ITER
        assert stopped.n_iter == 2
    differ = np.where(np.eye(2) > 0, np.inf, 0.0)  # two colors cannot go round three corners
    forbidden = best(FactorGraph(np.zeros((3, 2)), [TableFactors(LOOP, differ)]))
    assert forbidden.status is Status.FORBIDDEN
    for status in (Status.MAX_ITER, Status.FORBIDDEN):
        assert ";" in status.value


def test_rounding_of_float32_grids_does_not_keep_them_from_converging():
    rng = np.random.default_rng(0)
    costs = (1e3 * rng.normal(size=(400, 4))).astype(np.float32)
    weights = 1e3 * rng.random((20, 19))
    found = infer(FactorGraph(costs, [GridFactors((20, 20), weights, weights.T)]), tol=1e-9)
    assert found.converged
    assert found.residuals[-1] > 1e-9
