"""Ray factors: messages, marginals and depths as enumeration finds them, for any threads."""

import itertools

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import ray_reference as reference
from crfield._core import _native
from crfield.graphs import RayModel, VoxelGrid, fuse_independent, infer, ray_messages

PRODUCTS = pytest.mark.parametrize("max_product", [False, True], ids=["sum", "max"])


def random_scores(rng, n):
    """Scores of several magnitudes, some of them 0."""
    scores = 10.0 ** rng.uniform(-6, 2, size=n)
    scores[rng.random(n) < 0.3] = 0
    return scores


def random_model(rng, n_voxels, rays, **options):
    """A float64 model with given voxels of each ray."""
    offsets = np.cumsum([0, *map(len, rays)])
    scores = rng.uniform(0.05, 1, size=offsets[-1]) ** 3
    return RayModel(
        n_voxels, offsets, np.concatenate(rays).astype(int), scores,
        rng.uniform(0.05, 0.9, size=n_voxels), rng.uniform(0, 0.3, size=len(rays)), **options,
    )


def logit(p):
    return np.log(p) - np.log1p(-p)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def close(left, right, tolerance=1e-12):
    np.testing.assert_allclose(left, right, rtol=tolerance, atol=tolerance)


def check_exact(result, max_product):
    """Marginals and depths are those of enumeration."""
    close(result.marginals, reference.marginals(result.problem, max_product))
    along, empty = reference.depths(result.problem, max_product)
    close(result.depths, along)
    close(result.empty, empty)


@PRODUCTS
@given(seed=st.integers(0, 10**6), n=st.integers(1, 8))
def test_messages_are_those_of_enumeration(max_product, seed, n):
    rng = np.random.default_rng(seed)
    incoming = rng.random((n, 2))
    certain = rng.random(n) < 0.3
    incoming[certain] = np.eye(2)[rng.integers(2, size=certain.sum())]
    scores = random_scores(rng, n)
    empty = float(rng.choice([0.0, rng.random()]))
    found = ray_messages(incoming, scores, empty, temperature=1 - max_product)
    expected = reference.messages(
        reference.normalized(incoming, max_product), scores, empty, max_product
    )
    close(found, reference.normalized(expected, max_product))


@pytest.mark.slow
@PRODUCTS
def test_messages_of_twelve_voxels(max_product):
    rng = np.random.default_rng(3)
    incoming = rng.random((12, 2))
    incoming[4], incoming[9] = (1, 0), (0, 1)
    scores = random_scores(rng, 12)
    found = ray_messages(incoming, scores, 0.01, temperature=1 - max_product)
    expected = reference.messages(incoming, scores, 0.01, max_product)
    close(found, reference.normalized(expected, max_product))


@PRODUCTS
def test_messages_of_any_magnitude(max_product):
    plain = ray_messages([[1, 1], [1, 2]], [1.0, 0.5], 0.25, temperature=1 - max_product)
    for size in (1e-320, 1e-310, 1e30):
        scores = np.array([size, size / 2])
        found = ray_messages([[1, 1], [1, 2]], scores, size / 4, temperature=1 - max_product)
        close(found, plain, 1e-3 if size == 1e-320 else 1e-12)  # which has few digits itself
    huge = [[1e308, 1e308], [8e307, 1.6e308]]
    close(ray_messages(huge, [1.0, 0.5], 0.25, temperature=1 - max_product), plain)
    whole, exact = 2**24 + 1, float(2**24 + 1)
    even = [[1, 1], [1, 1]]
    close(ray_messages(even, [whole, 2**24]), ray_messages(even, [exact, 2.0**24]), 0)


def test_messages_that_rule_everything_out_are_zeros():
    found = ray_messages([[0, 1], [1, 1], [1, 1]], [0.0, 1.0, 1.0])
    close(found, [[1, 0], [0, 0], [0, 0]])


@PRODUCTS
@given(seed=st.integers(0, 10**6), n=st.integers(1, 9))
@settings(max_examples=25)
def test_one_ray_is_exact(max_product, seed, n):
    rng = np.random.default_rng(seed)
    order = rng.permutation(n + 2)[:n]
    scores = random_scores(rng, n)
    scores[rng.integers(n)] = 1.0
    model = RayModel(
        n + 2, [0, n], order, scores, rng.uniform(0.01, 0.99, size=n + 2), rng.random()
    )
    result = infer(model, damping=0, temperature=1 - max_product)
    assert result.converged
    assert result.n_iter == 2
    assert result.residuals[-1] == 0
    check_exact(result, max_product)


@PRODUCTS
def test_disjoint_rays_and_trees_are_exact(max_product):
    rng = np.random.default_rng(5)
    for rays in (
        [[0, 1, 2], [5, 4, 3], [6], []],
        [[0, 1, 2], [3, 1, 4], [5, 4, 6], [7, 8, 0]],
        [[0], [0], [0, 1], [1, 2], [2, 3, 4]],
    ):
        model = random_model(rng, 9, rays)
        result = infer(model, max_iter=20, damping=0, tol=1e-13, temperature=1 - max_product)
        assert result.converged
        check_exact(result, max_product)
        best, weights = reference.all_states(model)
        if max_product:
            np.testing.assert_array_equal(result.labels, best[np.argmax(weights)] == 1)


def test_a_ray_of_two_thousand_voxels_does_not_underflow():
    rng = np.random.default_rng(7)
    n = 2000
    for kind in ("even", "last only", "one in the middle", "rising", "falling", "sparse"):
        scores = {
            "even": rng.uniform(0.5, 1, n),
            "last only": np.eye(n)[-1],
            "one in the middle": np.eye(n)[n // 2] * 1e-20,
            "rising": 10.0 ** np.linspace(-150, 0, n),
            "falling": 10.0 ** np.linspace(0, -150, n),
            "sparse": np.where(rng.random(n) < 0.01, rng.random(n), 0),
        }[kind]
        for empty in (0.0, 1e-3):
            prior = rng.uniform(0.3, 0.99, n)
            model = RayModel(n, [0, n], np.arange(n), scores, prior, empty)
            result = infer(model, damping=0)
            odds, along, none = reference.long_ray(prior, scores, empty)
            close(result.messages, np.clip(odds, -60, 60), 1e-10)
            close(result.depths, along, 1e-10)
            close(result.empty[0], none, 1e-10)
            close(result.depths.sum() + result.empty[0], 1)
            single = infer(
                RayModel(n, [0, n], np.arange(n), scores.astype(np.float32), prior, empty),
                damping=0,
            )
            assert single.depths.dtype == single.messages.dtype == np.float32
            if kind not in ("rising", "falling"):  # float32 has no 1e-150
                close(single.messages, result.messages, 2e-5)
                close(single.depths, result.depths, 2e-5)


@PRODUCTS
@given(seed=st.integers(0, 10**6))
@settings(max_examples=15)
def test_fixed_points_satisfy_the_equations(max_product, seed):
    rng = np.random.default_rng(seed)
    rays = [rng.permutation(8)[: rng.integers(1, 7)] for _ in range(6)]
    model = random_model(rng, 8, rays)
    result = infer(model, max_iter=2000, damping=0.5, tol=1e-11, temperature=1 - max_product)
    assume(result.converged or not max_product)  # which may go round for ever
    assert result.converged
    for (begin, end), (voxels, scores, empty) in zip(
        itertools.pairwise(model.offsets), reference.lists_of(model), strict=True
    ):
        occupied = sigmoid(result.log_odds[voxels] - result.messages[begin:end])
        pairs = np.column_stack([1 - occupied, occupied])
        expected = reference.messages(
            reference.normalized(pairs, max_product), scores, empty, max_product
        )
        close(result.messages[begin:end], np.log(expected[:, 1] / expected[:, 0]), 1e-8)
    total = logit(model.prior) + np.bincount(model.voxels, result.messages, 8)
    close(result.log_odds, total, 1e-12)


def test_damping_keeps_a_share_of_the_old_message():
    model = random_model(np.random.default_rng(1), 4, [[0, 1, 2], [2, 1, 3]])
    whole = infer(model, max_iter=1, damping=0)
    part = infer(model, max_iter=1, damping=0.25)
    close(part.messages, 0.75 * whole.messages)
    close(part.residuals, whole.residuals)
    assert infer(model, tol=0).n_iter == 10, "by default"
    settled = infer(model, max_iter=200, tol=1e-9)
    assert settled.converged
    assert settled.n_iter < 200


def test_rays_that_miss_leave_the_prior():
    model = RayModel(3, [0, 0, 0], [], [], [0.1, 0.5, 0.8])
    assert not model.seen().any()
    result = infer(model)
    assert result.converged
    close(result.marginals, model.prior)
    close(fuse_independent(model), model.prior)
    np.testing.assert_array_equal(result.empty, 1)
    assert result.depths.shape == (0,)


@PRODUCTS
@pytest.mark.parametrize("prior", [1e-15, 1e-25])
def test_improbable_voxels_count(prior, max_product):
    model = RayModel(3, [0, 3], [0, 1, 2], [1.0, 10 * prior, prior], [prior, 0.5, 0.5])
    result = infer(model, damping=0, temperature=1 - max_product)
    np.testing.assert_allclose(
        result.marginals, reference.marginals(model, max_product), rtol=1e-10
    )
    assert 0.01 < result.marginals[0] < 0.99


def test_fusion_sums_the_log_odds_of_single_rays():
    rng = np.random.default_rng(2)
    model = random_model(rng, 7, [[0, 1, 2, 3], [6, 2, 1], [4]])
    total = logit(model.prior)
    for voxels, scores, empty in reference.lists_of(model):
        p = scores / (scores.sum() + empty)
        behind = np.cumsum(p) - p
        occupied = p + model.prior[voxels] * behind
        total[voxels] += logit(occupied) - logit(model.prior[voxels])
    close(fuse_independent(model), sigmoid(total))


def test_contradicting_rays_stay_finite():
    n = 300
    model = RayModel(
        1, np.arange(n + 1), np.zeros(n, int), np.tile([1.0, 0.0], n // 2),
        0.5, np.tile([0.0, 1.0], n // 2),
    )
    result = infer(model, damping=0)
    assert np.isfinite(result.messages).all()
    close(result.marginals, [0.5])
    agreed = infer(RayModel(1, np.arange(n + 1), np.zeros(n, int), np.ones(n), 1e-20))
    close(agreed.marginals, [1.0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@PRODUCTS
def test_any_number_of_threads_gives_the_same_bits(dtype, max_product):
    rng = np.random.default_rng(9)
    grid = VoxelGrid((12, 11, 10), (-1.0, 0.5, 2.0), (0.3, 0.2, 0.4))
    middle = grid.origin + np.array(grid.shape) * grid.spacing / 2
    origins = middle + 5 * rng.normal(size=(1000, 3))
    directions = middle + rng.normal(size=(1000, 3)) - origins
    results = []
    for threads in (1, 2, 5):
        lists = grid.traverse(origins, directions, distances=True, threads=threads)
        scores = np.random.default_rng(1).random(len(lists.voxels)).astype(dtype)
        model = RayModel(grid, lists.offsets, lists.voxels, scores, 0.1, 0.01)
        result = infer(model, max_iter=6, damping=0.3, temperature=1 - max_product, threads=threads)
        results.append([
            lists.offsets, lists.voxels, lists.entries, lists.exits, result.log_odds, result.depths,
            result.empty, result.messages, result.residuals,
            fuse_independent(model, threads=threads),
        ])
    assert results[0][4].shape == grid.shape
    for other in results[1:]:
        for left, right in zip(results[0], other, strict=True):
            assert left.tobytes() == right.tobytes()


def test_rays_that_see_a_wall_make_it():
    grid = VoxelGrid((9, 9, 9))
    y, z = np.meshgrid(np.arange(9) + 0.5, np.arange(9) + 0.5)
    starts = np.column_stack([np.full(81, -2.0), y.ravel(), z.ravel()])
    lists = grid.traverse(starts, [1.0, 0.0, 0.0])
    np.testing.assert_array_equal(np.diff(lists.offsets), 9)
    scores = np.where(lists.voxels // 81 == 4, 1.0, 1e-3)
    result = infer(RayModel(grid, lists.offsets, lists.voxels, scores, 0.2))
    assert result.labels[4].all()
    assert not result.labels[:4].any()
    close(result.marginals[5:], 0.2, 0.05)
    close(result.depths.reshape(81, 9).sum(1), 1.0)
    np.testing.assert_array_equal(result.depths.reshape(81, 9).argmax(1), 4)


@PRODUCTS
@given(seed=st.integers(0, 10**6), n=st.integers(1, 9))
@example(seed=None, n=3)  # small weights are scaled up together, the last one among them
def test_depths_of_any_magnitude(max_product, seed, n):
    """w_i = score_i P(i is occupied) prod_(j < i) P(j is free), here by logarithms."""
    if seed is None:
        odds, scores, empty = np.full(3, 60.0), np.array([0.0, 0.0, 1e-27]), 1.0
    else:
        rng = np.random.default_rng(seed)
        odds = rng.choice([-60.0, 0.0, 20.0, 60.0], n)
        scores = 10.0 ** rng.uniform(-80, 0, n) * (rng.random(n) < 0.7)
        empty = 10.0 ** rng.uniform(-80, 0)
    free = -np.maximum(odds, 0) if max_product else -np.logaddexp(0, odds)
    occupied = free + odds
    before = np.concatenate([[0.0], np.cumsum(free)])
    with np.errstate(divide="ignore"):
        weights = before + np.append(occupied + np.log(scores), np.log(empty))
    join = np.max if max_product else np.logaddexp.reduce
    expected = np.exp(weights - join(weights))
    bits = 40
    depths, none = np.empty(n), np.empty(1)
    _native.depth_posteriors(
        np.array([0, n]), np.arange(n, dtype=np.int32), scores, np.array([empty]),
        np.round(odds * 2.0**bits).astype(np.int64), bits, np.zeros(n), max_product, depths, none,
        1,
    )
    assert np.allclose(np.append(depths, none), expected, rtol=1e-6, atol=1e-12)
