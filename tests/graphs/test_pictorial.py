"""Poses of least energy, marginals and samples equal enumeration of all poses."""

from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crfield.graphs import PictorialStructure, Poses, best, infer, k_best, sample
from pose_reference import AllPoses, pose_energy
from refusal import refusal

# Trees, forests, chains; children before parents too.
FORESTS = [(-1,), (-1, 0), (1, -1), (-1, -1), (-1, 0, 0), (1, 2, -1), (2, 2, -1), (-1, 0, -1)]


def random_model(seed, parents, n_orientations=1, grid=(2, 3), sizes=(1, 1), ruled_out=0.0):
    """Arguments of a model and costs (P, K, H, W)."""
    rng = np.random.default_rng(seed)
    n_parts = len(parents)
    offsets = rng.uniform(-2, 2, (n_parts, *sizes, 2))
    weights = rng.choice([0.0, 0.3, 1.0, 4.0], (n_parts, *sizes, 2))
    transitions = rng.normal(size=(n_parts, n_orientations, n_orientations))
    costs = rng.normal(scale=2.0, size=(n_parts, n_orientations, *grid))
    costs[rng.random(costs.shape) < ruled_out] = np.inf
    costs[:, 0, 0, 0] = np.minimum(costs[:, 0, 0, 0], 3.0)  # so that some pose is possible
    return (parents, offsets, weights, transitions), costs


def spread(arguments):
    """Arguments of a model with offsets and weights for all pairs of orientations."""
    parents, offsets, weights, transitions = arguments
    shape = (*transitions.shape, 2)
    return parents, np.broadcast_to(offsets, shape), np.broadcast_to(weights, shape), transitions


def enumerated(arguments, costs):
    return AllPoses(*spread(arguments), costs)


def check_against_enumeration(arguments, costs):
    truth = enumerated(arguments, costs)
    model = PictorialStructure(*arguments)
    poses = Poses(model, costs)
    found, sums = best(poses), infer(poses)
    _, energy = truth.best()
    assert found.energy == pytest.approx(energy, rel=1e-12, abs=1e-12)
    states = np.column_stack([found.orientations, found.positions]).tolist()
    own = pose_energy(*spread(arguments), costs, states)
    assert own == pytest.approx(energy, rel=1e-12, abs=1e-12)
    assert found.log_partition == -found.energy
    assert sums.log_partition == pytest.approx(truth.log_partition, abs=1e-9)
    np.testing.assert_allclose(sums.marginals, truth.marginals(), rtol=0, atol=1e-9)
    at = np.arange(len(costs))
    likeliest = sums.marginals[at, sums.orientations, *sums.positions.T]
    np.testing.assert_array_equal(likeliest, sums.marginals.max((1, 2, 3)))
    np.testing.assert_array_equal(found.marginals[at, found.orientations, *found.positions.T], 1)
    assert found.marginals.sum() == len(costs)
    np.testing.assert_allclose(found.min_marginals, truth.min_marginals(), rtol=0, atol=1e-9)
    return model, found, sums


@settings(max_examples=40, deadline=None)
@given(
    st.integers(0, 10**6), st.sampled_from(FORESTS),
    st.sampled_from([(1, 3), (2, 3), (4, 2), (1, 1)]), st.sampled_from([0.0, 0.5]),
)
def test_positions(seed, parents, grid, ruled_out):
    arguments, costs = random_model(seed, parents, grid=grid, ruled_out=ruled_out)
    model, found, sums = check_against_enumeration(arguments, costs)
    flat = Poses(model, costs[:, 0])
    np.testing.assert_array_equal(infer(flat).marginals, sums.marginals[:, 0])
    np.testing.assert_array_equal(best(flat).min_marginals, found.min_marginals[:, 0])
    # The short form of the same geometry.
    _, offsets, weights, _ = arguments
    short = PictorialStructure(parents, offsets[:, 0, 0], weights[:, 0, 0])
    transitions = sum(model.transitions[p, 0, 0] for p in range(len(parents)) if parents[p] >= 0)
    assert best(Poses(short, costs[:, 0])).energy == pytest.approx(
        found.energy - transitions, abs=1e-12
    )


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2), (2, 1), (2, 2)])
@pytest.mark.parametrize("parents", [(-1, 0), (1, 2, -1), (2, -1, 1), (-1, 0, -1)])
def test_orientations(parents, sizes):
    for seed in range(2):
        arguments, costs = random_model(seed, parents, 2, (2, 2), sizes, 0.3 * seed)
        check_against_enumeration(arguments, costs)


def test_four_parts_on_a_coarse_grid():
    check_against_enumeration(*random_model(3, (-1, 0, 0, 1), grid=(2, 4)))


def test_forbidden_pairs_of_orientations():
    (parents, offsets, weights, transitions), costs = random_model(0, (-1, 0, 1), 2, (2, 2))
    transitions[1, 0, 1] = transitions[2, 1, 1] = np.inf
    _, found, _ = check_against_enumeration((parents, offsets, weights, transitions), costs)
    assert np.isfinite(found.energy)


def test_far_apart_costs_keep_their_marginals():
    """Where everything near has no chance, probabilities come from terms far below 1e-300."""
    costs = np.zeros((2, 1, 60))
    costs[0, 0, 1:] = costs[1, 0, :59] = np.inf
    costs[0, 0, 1] = costs[1, 0, 58] = 1.0
    poses = Poses(PictorialStructure((-1, 0), 0.0, 2.0), costs)
    found = best(poses)
    energies = np.array([
        [2.0 * (x - y) ** 2 + costs[0, 0, y] + costs[1, 0, x] for x in (58, 59)] for y in (0, 1)
    ])
    weights = np.exp(energies.min() - energies)
    np.testing.assert_allclose(
        infer(poses).marginals[0, 0, :2], weights.sum(1) / weights.sum(), rtol=1e-9
    )
    np.testing.assert_array_equal(found.positions, [[0, 1], [0, 58]])
    np.testing.assert_array_equal(found.min_marginals[1, 0, 58:], energies.min(0))


def test_energies_of_many_poses():
    arguments, costs = random_model(1, (-1, 0, 0), 2, (3, 3), (2, 2))
    rng = np.random.default_rng(0)
    positions, turns = rng.integers(3, size=(4, 5, 3, 2)), rng.integers(2, size=(4, 5, 3))
    energies = Poses(PictorialStructure(*arguments), costs).energy(positions, turns)
    assert energies.shape == (4, 5)
    states = np.concatenate([turns[..., None], positions], -1)
    for index in np.ndindex(4, 5):
        expected = pose_energy(*arguments, costs, states[index].tolist())
        assert energies[index] == pytest.approx(expected, abs=1e-12)


def test_samples_have_the_marginals_and_the_pairs_of_the_model():
    arguments, costs = random_model(5, (-1, 0, 1), 2, (1, 2), (2, 2))
    truth, model = enumerated(arguments, costs), PictorialStructure(*arguments)
    problem = Poses(model, costs)
    code = sample(problem, 4000, seed=1)
    positions, turns = problem.places(code)
    np.testing.assert_array_equal(
        np.ravel_multi_index((turns, positions[..., 0], positions[..., 1]), costs.shape[1:]), code
    )
    poses = np.array(truth.poses)
    shares = (code[:, None] == poses).all(-1).mean(0)
    deviation = np.sqrt(truth.probabilities / 4000)
    assert (np.abs(shares - truth.probabilities) < 5 * deviation + 1e-3).all()
    np.testing.assert_array_equal(sample(problem, 4000, seed=1), code)
    ruled_out = costs.copy()
    ruled_out[:, :, :, 1] = np.inf
    left = Poses(model, ruled_out)
    assert (left.places(sample(left, 20))[0] == 0).all()


def test_results_do_not_depend_on_threads():
    arguments, costs = random_model(2, (-1, 0, 0), 3, (33, 41), (3, 3))
    poses = Poses(PictorialStructure(*arguments), costs)
    one, three = (infer(poses, threads=t) for t in (1, 3))
    np.testing.assert_array_equal(one.marginals, three.marginals)
    np.testing.assert_allclose(one.marginals.sum((1, 2, 3)), 1, rtol=1e-12)
    assert one.min_marginals is None
    one, three = (best(poses, threads=t) for t in (1, 3))
    np.testing.assert_array_equal(one.min_marginals, three.min_marginals)
    np.testing.assert_array_equal(one.positions, three.positions)


def test_a_long_chain_of_parts():
    n = 2000
    rng = np.random.default_rng(0)
    model = PictorialStructure(np.arange(n) - 1, (0.0, 0.5) * np.ones((n, 2)), 0.1)
    found = infer(Poses(model, rng.normal(size=(n, 1, 4))))
    assert found.positions.shape == (n, 2)
    np.testing.assert_allclose(found.marginals.sum((1, 2)), 1, rtol=1e-9)


def test_maximum_likelihood_of_positions():
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(40, 3, 2)) * (3, 5) + [[0, 0], [4, 9], [-7, 2]]
    positions[:5, 2] = np.nan
    model = PictorialStructure.fit(positions, (-1, 0, 1))
    for part in (1, 2):
        steps = positions[5:, part] if part == 2 else positions[:, part]
        steps = steps - positions[len(positions) - len(steps) :, part - 1]
        np.testing.assert_allclose(model.offsets[part, 0, 0], steps.mean(0))
        np.testing.assert_allclose(model.weights[part, 0, 0], 1 / (2 * steps.var(0)))
    assert model.n_orientations == 1
    rigid = PictorialStructure.fit(np.zeros((4, 2, 2)), (-1, 0), least_deviation=0.25)
    np.testing.assert_array_equal(rigid.weights[1], 8.0)


def test_maximum_likelihood_of_orientations():
    """Of all models of this family none makes the examples more likely."""
    rng = np.random.default_rng(0)
    turns = rng.integers(2, size=(60, 2))
    positions = rng.normal(size=(60, 2, 2)) * (1, 2)
    positions[:, 1] += turns[:, :1] * (4, 0) + turns[:, 1:] * (0, 6)

    def surprise(model):
        zero = np.zeros((2, 2, 1, 1))
        steps = positions[:, 1] - positions[:, 0]
        j, k = turns.T
        weights, offsets = (
            values[1, j % values.shape[1], k % values.shape[2]]
            for values in (model.weights, model.offsets)
        )
        assert Poses(model, zero).energy(np.zeros((2, 2), int), [0, 1]).shape == ()
        return (model.transitions[1, j, k] + (weights * (steps - offsets) ** 2).sum(1)).sum()

    surprises = {}
    for dependence, sizes in (
        ("both", (2, 2)), ("own", (1, 2)), ("parent", (2, 1)), ("neither", (1, 1))
    ):
        model = PictorialStructure.fit(
            positions, (-1, 0), orientations=turns, depends_on=dependence, pseudo_count=1e-9
        )
        assert model.offsets.shape == (2, *sizes, 2)
        surprises[dependence] = surprise(model)
        for j, k in np.ndindex(*sizes):
            chosen = (turns % sizes == (j, k)).all(1)
            steps = (positions[:, 1] - positions[:, 0])[chosen]
            np.testing.assert_allclose(model.offsets[1, j, k], steps.mean(0))
            np.testing.assert_allclose(model.weights[1, j, k], 1 / (2 * steps.var(0)))
        # exp(-E) is a density: with the Gaussians' normalizers rows of transitions sum to 1.
        density = np.exp(-model.transitions[1]) * np.sqrt(np.pi / model.weights[1]).prod(-1)
        np.testing.assert_allclose(density.sum(1), 1.0)
    assert surprises["both"] < min(surprises["own"], surprises["parent"]) < surprises["neither"]


def test_rare_orientations_take_the_numbers_of_all():
    positions = np.zeros((4, 2, 2))
    positions[:, 1] = [[1, 1], [2, 5], [3, 3], [6, 3]]
    model = PictorialStructure.fit(
        positions, (-1, 0), orientations=[[0, 0], [0, 0], [0, 0], [0, 1]], n_orientations=3,
        depends_on="own",
    )
    np.testing.assert_allclose(model.offsets[1, 0, 0], [2, 3])
    for rare in (1, 2):
        np.testing.assert_allclose(model.offsets[1, 0, rare], [3, 3])
    assert model.transitions.shape == (2, 3, 3)
    assert np.isfinite(model.transitions).all()


GOOD = {"parents": [-1, 0], "offsets": [[0, 0], [1, 2]], "weights": 1.0, "transitions": None}


@pytest.mark.parametrize(("changes", "words"), [
    ({"parents": []}, "parents must be a list of whole numbers"),
    ({"parents": [-1.0, 0.0]}, "got float64"),
    ({"parents": [[-1, 0]]}, "of shape (1, 2)"),
    ({"parents": [-1, 2]}, "0 to 1, or -1, got 2 for part 1"),
    ({"parents": [-1, 1]}, "got 1 for part 1"),
    ({"parents": [-2, 0]}, "got -2 for part 0"),
    ({"parents": [1, 0]}, "got a cycle through or above part 0"),
    ({"offsets": [[0, 0]]}, "offsets must have shape (2, 2)"),
    ({"offsets": [[0, 0], [np.nan, 0]]}, "offsets must be finite"),
    ({"weights": -1.0}, "weights must lie between 0 and 1e+12, got -1"),
    ({"weights": [1.0, 2.0]}, "weights must have shape (2, 2)"),
    ({"weights": np.ones((2, 3, 1, 2)), "transitions": np.zeros((2, 2, 2))}, "one number of"),
    ({"offsets": np.ones((2, 3, 2, 2))}, "one number of orientations"),
    ({"transitions": np.zeros((2, 2))}, "transitions must have shape (P, K, K), got (2, 2)"),
    ({"transitions": np.zeros((3, 2, 2))}, "transitions must have shape (2, K, K)"),
    ({"transitions": np.zeros((2, 2, 3))}, "got (2, 2, 3)"),
    ({"transitions": np.full((2, 1, 1), np.nan)}, "transitions must be +inf or within 1e+30"),
])
def test_bad_models(changes, words):
    assert words in refusal(PictorialStructure, **{**GOOD, **changes})


MODEL = PictorialStructure(**GOOD)
TURNING = PictorialStructure(**{**GOOD, "transitions": np.zeros((2, 3, 3))})


def test_bad_costs():
    call = partial(Poses, MODEL)
    assert "shape (2, H, W), got (3, 4, 4)" in refusal(call, np.zeros((3, 4, 4)))
    assert "got (2, 3, 4, 4)" in refusal(call, np.zeros((2, 3, 4, 4)))
    assert "got 0 x 4" in refusal(call, np.zeros((2, 0, 4)))
    assert "got nan at index (1, 0, 0)" in refusal(call, [[[0.0]], [[np.nan]]])
    assert "got -inf" in refusal(call, [[[0.0]], [[-np.inf]]])
    assert "got 2e+30" in refusal(call, [[[0.0]], [[2e30]]])
    assert "costs must be" in refusal(call, [[[0.0]], [[0.0], None]])
    impossible, flat = call([[[0.0]], [[np.inf]]]), call(np.zeros((2, 4, 4)))
    for verb in (infer, best, sample):
        assert "at least one pose, got none for the tree of part 0" in refusal(verb, impossible)
    assert "shape (2, 3, H, W), got (2, 4, 4)" in refusal(Poses, TURNING, np.zeros((2, 4, 4)))
    assert "body must be a PictorialStructure" in refusal(Poses, None, np.zeros((2, 4, 4)))
    assert "threads must be" in refusal(infer, flat, threads=0)
    assert "n_samples must be at least 1" in refusal(sample, flat, 0)
    assert "seed must be" in refusal(sample, flat, seed=-1)
    for verb in (infer, sample):
        assert "temperature must be 1" in refusal(verb, flat, temperature=0.5)
    assert "for k_best, got Poses" in refusal(k_best, flat, 2)
    message = refusal(infer, flat, schedule="residual")
    assert "schedule must be 'auto' or 'exact' for Poses" in message
    assert "factor_marginals is for factor graphs" in refusal(infer(flat).factor_marginals)


def test_bad_poses():
    model, turning = Poses(MODEL, np.zeros((2, 4, 5))), Poses(TURNING, np.zeros((2, 3, 4, 5)))
    places = [[0, 0], [3, 4]]
    assert "whole numbers of shape (..., 2, 2)" in refusal(model.energy, [[0.0, 0], [1, 1]])
    assert "of shape (3, 2)" in refusal(model.energy, [[0, 0], [1, 1], [2, 2]])
    assert "less than [4, 5], got 4 at index (1, 0)" in refusal(model.energy, [[0, 0], [4, 4]])
    assert "got -1 at index (0, 1)" in refusal(model.energy, [[0, -1], [0, 4]])
    assert "orientations must be given" in refusal(turning.energy, places)
    assert "less than 3, got 3" in refusal(turning.energy, places, [0, 3])
    assert "of shape (2,)" in refusal(turning.energy, places, [0, 0, 0])


@pytest.mark.parametrize(("changes", "words"), [
    ({"positions": np.zeros((0, 2, 2))}, "N >= 1 examples, got (0, 2, 2)"),
    ({"positions": np.zeros((4, 3, 2))}, "shape (N, 2, 2)"),
    ({"positions": np.full((4, 2, 2), np.inf)}, "finite or NaN"),
    ({"positions": np.full((4, 2, 2), np.nan)}, "part 1 together with its parent 0"),
    ({"parents": [1, 0]}, "got a cycle"),
    ({"orientations": np.zeros((4, 3), int)}, "whole numbers of shape (4, 2)"),
    ({"orientations": np.zeros((4, 2))}, "got float64"),
    ({"orientations": np.full((4, 2), -1)}, "got -1 to -1"),
    ({"orientations": np.full((4, 2), 3), "n_orientations": 3}, "less than n_orientations, 3"),
    ({"n_orientations": 0}, "n_orientations must be at least 1"),
    ({"depends_on": "child"}, "depends_on must be one of 'neither', 'own', 'parent', 'both'"),
    ({"least_deviation": 0.0}, "least_deviation must be positive"),
    ({"pseudo_count": -1.0}, "pseudo_count must be positive"),
])
def test_bad_examples(changes, words):
    good = {"positions": np.zeros((4, 2, 2)), "parents": [-1, 0]}
    assert words in refusal(PictorialStructure.fit, **{**good, **changes})
