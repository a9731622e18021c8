"""Inference: descent on random and hostile models, and agreement with brute force."""

import os

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
)
from crfield.dense.filters import KeptFilters, make_filter
from crfield.dense.meanfield import State, run_parallel
from refusal import refusal

N_MODELS = int(os.environ.get("CRFIELD_RANDOM_MODELS", "1000"))


def random_compatibility(rng, n_labels, strength):
    """A compatibility that is negative semidefinite up to a constant."""
    family = rng.integers(5)
    if family == 0:
        return Potts(strength)
    if family == 1:
        return Diagonal(strength * rng.uniform(0, 1, n_labels))
    if family == 2:
        return Symmetric.l1(n_labels, strength / n_labels)
    if family == 3:
        off = rng.normal(size=(n_labels, n_labels))
        return Symmetric.diagonally_dominant((off + off.T) * strength / n_labels)
    root = rng.normal(size=(n_labels, n_labels))
    constant = strength * rng.normal()
    return Symmetric(constant - strength * (root @ root.T) / n_labels)


def random_model(rng, method, hostile):
    """A DenseCRF on given features, with the features and a unary.

    Hostile models have strong compatibilities, often the tent kernel of a 2-D or 3-D grid CRF,
    which is not positive definite, and a unary along the kernel's most negative direction.
    """
    n, n_labels = int(rng.integers(2, 90)), int(rng.integers(1, 7))
    side, grid_dim = int(rng.integers(3, 6)), int(rng.integers(2, 4))
    if hostile:
        n = side**grid_dim
    terms, features = [], {}
    for number in range(int(rng.integers(1, 4))):
        name, dim, shape = f"f{number}", int(rng.integers(1, 4)), "gaussian"
        normalization = str(rng.choice(["symmetric", "none"]))
        strength = 10.0 ** rng.uniform(-1, 5 if hostile else 1.5)
        if normalization == "none":
            strength /= 10
        features[name] = rng.normal(size=(n, dim)) * 10.0 ** rng.uniform(-1, 0.7)
        if hostile and method == "exact" and rng.random() < 0.5:
            dim, shape = grid_dim, "tent"
            features[name] = np.indices((side,) * dim).reshape(dim, -1).T / 2.0
        kernel = FeatureKernel(name, dim, shape=shape, normalization=normalization)
        terms.append(Pairwise(kernel, random_compatibility(rng, n_labels, strength)))
    unary = rng.normal(size=(n, n_labels)) * 10.0 ** rng.uniform(-1, 1)
    if hostile and n_labels > 1:
        dense = make_filter(features["f0"], terms[0].kernel, method).to_dense()
        worst = np.linalg.eigh(dense)[1][:, 0]
        unary *= 1e-2
        unary[np.arange(n), (worst > 0).astype(int)] -= 10.0 ** rng.uniform(-1, 2)
    return DenseCRF(n_labels, terms), features, unary


def rise(result, n, n_labels):
    """The largest rise of the free energy, relative to |F| + N log L."""
    f = result.free_energies
    return float((np.diff(f) / (np.abs(f[:-1]) + n * np.log(max(n_labels, 2)))).max(initial=0.0))


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["concave", "cccp"])
@pytest.mark.parametrize("method", ["lattice", "exact"])
def test_free_energy_never_rises(algorithm, method):
    """1,000 random models, a third of them hostile; the safeguard must have been needed."""
    needed = 0
    for seed in range(N_MODELS):
        hostile = seed % 3 == 0
        crf, features, unary = random_model(np.random.default_rng(seed), method, hostile)
        dtype, limit = (np.float64, 1e-10) if hostile or seed % 2 else (np.float32, 1e-5)
        result = crf.infer(
            None, unary.astype(dtype), features=features, algorithm=algorithm, filter=method,
            max_iter=12, tol=0.0, threads=1,
        )
        n, n_labels = unary.shape
        assert rise(result, n, n_labels) <= limit, f"seed {seed}"
        assert np.isfinite(result.marginals).all()
        assert np.abs(result.marginals.sum(-1) - 1).max() < 1e-4
        needed += result.shifts > 0
    if method == "exact" and N_MODELS >= 1000:
        assert needed >= 5


@pytest.mark.parametrize("algorithm", ["concave", "cccp"])
def test_safeguard_is_what_makes_hostile_models_descend(algorithm, monkeypatch):
    """Without the watch the free energy of the same models does rise."""
    models = [random_model(np.random.default_rng(s), "exact", hostile=True) for s in range(60)]

    def rising():
        return sum(
            rise(crf.infer(None, unary, features=features, algorithm=algorithm, max_iter=12,
                           tol=0.0), *unary.shape) > 1e-6
            for crf, features, unary in models
        )

    assert rising() == 0
    monkeypatch.setattr("crfield.dense.model.check_guarantee", lambda *arguments: False)
    assert rising() > 0


class Climb:
    """A descent of 100 variables and 3 labels whose steps rise by `by` unless they are shifted."""

    def __init__(self, free_energy, by, dtype):
        self.unary, self._free_energy, self._by = np.zeros((100, 3), dtype), free_energy, by

    def start(self, marginals, *, store):
        return State(self.unary, self._free_energy)

    def step(self, old, shift, *, store):
        return State(self.unary, old.free_energy + (0.0 if shift else self._by))

    def readable(self):
        return self


@pytest.mark.parametrize("free_energy", [0.0, -300.0])
@pytest.mark.parametrize(("dtype", "rounding"), [(np.float32, 1e-6), (np.float64, 1e-12)])
def test_rises_of_the_size_of_rounding_are_accepted(free_energy, dtype, rounding):
    most = rounding * (abs(free_energy) + 100 * np.log(3))
    for share, shifts in ((0.9, 0), (1.1, 1)):
        climb = Climb(free_energy, share * most, dtype)
        assert run_parallel(climb, max_iter=1, guarded=True).shifts == shifts


def small_problem(seed, n=7, n_labels=3):
    """A two-term model with its kernel matrices, for N small enough to enumerate."""
    rng = np.random.default_rng(seed)
    f, g = rng.normal(size=(n, 2)), rng.normal(size=(n, 1))
    root = rng.normal(size=(n_labels, n_labels))
    mu = -root @ root.T
    crf = DenseCRF(n_labels, [
        Pairwise(FeatureKernel("f", 2, normalization="none"), Potts(1.3)),
        Pairwise(FeatureKernel("g", 1), Symmetric(mu), weight=0.4),
    ])
    pairs = [
        (reference.kernel_matrix(f), 1.3 * (1 - np.eye(n_labels))),
        (reference.normalized(reference.kernel_matrix(g), "symmetric"), 0.4 * mu),
    ]
    return crf, {"f": f, "g": g}, rng.normal(size=(n, n_labels)), pairs


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["concave", "cccp", "parallel", "sequential"])
@pytest.mark.parametrize("seed", range(3))
def test_free_energy_is_the_objective(algorithm, seed):
    crf, features, unary, pairs = small_problem(seed)
    result = crf.infer(None, unary, features=features, algorithm=algorithm, max_iter=4, tol=0.0)
    q = result.marginals
    self_pairs = algorithm == "concave"
    expected = reference.free_energy(q, unary, pairs, self_pairs)
    assert result.free_energies[-1] == pytest.approx(expected, abs=1e-9)
    start = reference.free_energy(reference.softmax(-unary), unary, pairs, self_pairs)
    assert result.free_energies[0] == pytest.approx(start, abs=1e-9)
    if not self_pairs:
        divergence = reference.kl_divergence(q, unary, pairs)
        assert divergence >= 0
        log_z = reference.log_partition(unary, pairs)
        assert result.free_energies[-1] + log_z == pytest.approx(divergence, abs=1e-9)


@pytest.mark.parametrize("seed", range(5))
def test_updates_match_their_equations(seed):
    """KK11 eq. 6 and KK13 eq. 10 and 8, four iterations, against plain loops."""
    crf, features, unary, pairs = small_problem(seed, n=12)

    def message(q, self_pairs):
        total = np.zeros_like(q)
        for kernel, mu in pairs:
            k = kernel if self_pairs else kernel - np.diag(np.diag(kernel))
            total += k @ q @ mu
        return total

    expected = {name: reference.softmax(-unary) for name in ("concave", "parallel", "cccp")}
    own = [np.einsum("i,lk->ilk", np.diag(kernel), mu) for kernel, mu in pairs]
    for _ in range(4):
        q = expected
        q["concave"] = reference.softmax(-unary - message(q["concave"], True))
        q["parallel"] = reference.softmax(-unary - message(q["parallel"], False))
        e = unary + message(q["cccp"], True)
        matrices = sum(own)
        # Written with P mu P in place of mu: the rest of mu q is a fixed vector plus a constant,
        # because q sums to one.
        centering = np.eye(3) - 1 / 3
        q["cccp"] = np.array([
            reference.solve_kkt(
                e[i] - (m - centering @ m @ centering) @ np.full(3, 1 / 3),
                centering @ m @ centering,
            )
            for i, m in enumerate(matrices)
        ])
    for name, q in expected.items():
        result = crf.infer(
            None, unary, features=features, algorithm=name, max_iter=4, tol=0.0, check=True
        )
        assert np.abs(result.marginals - q).max() < 1e-9, name


@pytest.mark.parametrize("seed", range(4))
def test_sequential_and_cccp_share_fixed_points(seed):
    crf, features, unary, pairs = small_problem(seed, n=10)
    for algorithm in ("cccp", "sequential"):
        result = crf.infer(
            None, unary, features=features, algorithm=algorithm, max_iter=5000, tol=1e-13
        )
        assert result.status is InferenceStatus.CONVERGED
        q = result.marginals
        total = sum((k - np.diag(np.diag(k))) @ q @ mu for k, mu in pairs)
        assert np.abs(q - reference.softmax(-unary - total)).max() < 1e-9
        other = "sequential" if algorithm == "cccp" else "cccp"
        stays = crf.infer(
            None, unary, features=features, algorithm=other, init=q, max_iter=20, tol=0.0
        )
        assert np.abs(stays.marginals - q).max() < 1e-8


def test_energy_counts_every_pair_once():
    crf, features, unary, pairs = small_problem(0, n=6)
    for labels in reference.enumerate_states(6, 3)[::37]:
        assert crf.energy(None, labels, unary, features=features) == pytest.approx(
            reference.energy(labels, unary, pairs), abs=1e-9
        )


def test_adding_a_constant_to_mu_changes_nothing():
    crf, features, unary, _ = small_problem(1)
    shifted = DenseCRF(3, [
        Pairwise(t.kernel, Symmetric(t.compatibility.matrix(3) + 7.5), t.weight) for t in crf.terms
    ])
    for algorithm in ("concave", "cccp", "parallel"):
        a = crf.infer(None, unary, features=features, algorithm=algorithm)
        b = shifted.infer(None, unary, features=features, algorithm=algorithm)
        assert np.abs(a.marginals - b.marginals).max() < 1e-8


def test_statuses_and_stopping():
    crf, features, unary, _ = small_problem(2)

    def infer(**options):
        return crf.infer(None, unary, features=features, **options)

    assert infer(max_iter=1, tol=0.0).status is InferenceStatus.MAX_ITER
    done = infer(max_iter=1000, tol=1e-6)
    assert done.converged
    assert done.n_iter < 1000
    assert len(done.free_energies) == done.n_iter + 1
    stopped = infer(max_iter=50, tol=0.0, callback=lambda t, q, f: t == 3)
    assert (stopped.status, stopped.n_iter) == (InferenceStatus.CALLBACK, 3)
    none = infer(max_iter=0)
    assert np.abs(none.marginals - reference.softmax(-unary)).max() < 1e-12
    again = infer(init=done.marginals, max_iter=3, tol=1e-4)
    assert again.n_iter == 1


@pytest.mark.parametrize(("seed", "rank"), [(16, 5), (53, 7), (64, 5), (85, 6)])
def test_coupled_updates_sum_to_one_whatever_the_weight(seed, rank):
    """Huge steps in log q: the constant that normalizes them must not drown in them."""
    rng = np.random.default_rng(seed)
    assert rng.integers(1, 9) == rank
    weight = 10.0 ** rng.uniform(10, 17)
    root = rng.normal(size=(9, rank))
    image = rng.uniform(0, 255, (7, 2, 3))
    crf = DenseCRF(9, [
        Pairwise(Bilateral(3, 30, normalization="none"), Symmetric(-weight * root @ root.T)),
        Pairwise(Spatial(2), Potts(0.2)),
    ])
    for filter in ("exact", "lattice"):
        unary = np.full((7, 2, 9), 0.5, np.float32)
        result = crf.infer(image, unary, algorithm="cccp", filter=filter, max_iter=4)
        assert np.abs(result.marginals.sum(-1) - 1).max() < 1e-5


def test_kept_filters_change_nothing():
    """Inference after inference on one image, then on others: the same bits as with new filters."""
    rng = np.random.default_rng(4)
    kept = KeptFilters()
    images = [rng.integers(0, 255, (50, 60, 3)).astype(np.uint8) for _ in range(2)]
    built = []
    for number in range(12):
        image = images[number // 4 % 2]
        width = 8.0 + 1e-12 * (number % 2)
        crf = DenseCRF(3, [
            Pairwise(Spatial(2.0), Potts(1.0 + number)),
            Pairwise(Bilateral([width, 9.0], 20.0), Potts(3.0)),
        ])
        unary = rng.normal(size=(50, 60, 3))
        spacing = (1.0, 2.0) if number > 9 else None
        options = {"max_iter": 4, "spacing": spacing, "threads": 1}
        found = crf.infer(image, unary, kept=kept, **options)
        expected = crf.infer(image, unary, **options)
        assert np.array_equal(found.marginals, expected.marginals)
        assert np.array_equal(found.free_energies, expected.free_energies)
        built.append(len(kept._made))
    assert built == [2, 3, 3, 3] * 2 + [2, 3, 2, 3]
    made = []
    for _ in range(2):
        for sigma in range(1, 9):  # as many kernels as are kept
            DenseCRF(3, [Pairwise(Spatial(sigma), Potts(1.0))]).infer(None, unary, kept=kept)
        made.append(dict(kept._made))
    assert len(made[0]) == 8
    assert made[0] == made[1], "the same filters"
    named = DenseCRF(3, [Pairwise(FeatureKernel("f", 1, sigma=1.0), Potts(1.0))])
    for depth in (rng.random((50, 60, 1)), rng.random((50, 60, 1))):
        given = {"features": {"f": depth}}
        found = named.infer(images[0], unary, kept=kept, **given)
        assert np.array_equal(found.marginals, named.infer(images[0], unary, **given).marginals)
    message = refusal(named.infer, images[0], unary, kept={}, **given)
    assert "kept must be a KeptFilters" in message


def test_kept_filters_are_those_of_the_settings():
    """Of one image, in turn exact, without small pairs, on a lattice, and in single precision."""
    rng = np.random.default_rng(5)
    unary, kept = rng.normal(size=(20, 30, 3)), KeptFilters()
    crf = DenseCRF(3, [Pairwise(Spatial(2.0, normalization="none"), Potts(1.0))])
    found = []
    for options in (
        {"filter": "exact"}, {"filter": "exact", "filter_tol": 0.3}, {"filter": "lattice"},
    ):
        for costs in (unary, unary.astype(np.float32)):
            result = crf.infer(None, costs, max_iter=3, kept=kept, **options).marginals
            assert np.array_equal(result, crf.infer(None, costs, max_iter=3, **options).marginals)
            found.append(result)
    assert len(kept._made) == 6
    assert np.abs(found[0] - found[2]).max() > 1e-3, "small pairs count"


@pytest.mark.parametrize("compatibility", [Potts(5000.0), Diagonal([5000.0, 5000.0])])
def test_updates_in_turn_take_energies_of_any_size(compatibility):
    """Numbers whose exponentials are 0 or infinite: the variables agree on the likelier label."""
    unary = np.array([[0.0, 1.0], [0.0, 1.0], [0.5, 0.0]])
    crf = DenseCRF(2, [Pairwise(FeatureKernel("f", 1, normalization="none"), compatibility)])
    result = crf.infer(
        None, unary, features={"f": np.zeros((3, 1))}, algorithm="sequential", max_iter=20
    )
    np.testing.assert_allclose(result.marginals, [[1.0, 0.0]] * 3, atol=1e-12)
    assert np.isfinite(result.free_energies).all()
    assert (np.diff(result.free_energies) <= 1e-9 * 5000).all()


@pytest.mark.parametrize("algorithm", ["concave", "cccp", "parallel", "sequential"])
def test_free_energies_are_those_of_the_costs_as_given(algorithm):
    """A constant of each variable adds up, in the result and for the callback alike."""
    rng = np.random.default_rng(6)
    unary, constant = rng.normal(size=(6, 7, 3)), rng.uniform(500, 1000, (6, 7, 1))
    crf = DenseCRF(3, [Pairwise(Spatial(2.0), Potts(1.0))])

    def infer(costs):
        seen = []
        result = crf.infer(
            None, costs, algorithm=algorithm, max_iter=3, tol=0.0,
            callback=lambda i, q, energy: seen.append(energy) and False,
        )
        return result.free_energies, seen

    plain, _ = infer(unary)
    found, seen = infer(unary + constant)
    np.testing.assert_allclose(found, plain + constant.sum(), rtol=1e-12)
    assert seen == found[1:].tolist()
