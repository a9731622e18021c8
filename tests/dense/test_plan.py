"""The fused form of inference against the readable one; the grid filter against the exact sum."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crfield import Bilateral, DenseCRF, Diagonal, Inference, Pairwise, Potts, Spatial, Symmetric
from crfield._core import _native
from crfield.dense import model as dense
from crfield.dense.filters import ExactFilter, GridFilter, LatticeFilter, make_filter
from crfield.dense.gradient import backpropagate
from crfield.dense.observation import observe
from crfield.dense.problem import FusedProblem, NativeProblem, build_terms, make_problem
from crfield.estimators import TrainingImage
from crfield.learning.losses import LogLikelihood
from crfield.learning.objective import unroll

RNG = np.random.default_rng(0)


def unfused(*arguments, **options):
    return make_problem(*arguments, **{**options, "fused": False})


@pytest.fixture
def readable_only(monkeypatch):
    """A switch after which nothing is fused."""
    return lambda: monkeypatch.setattr(dense, "make_problem", unfused)


def picture(shape, seed):
    rng = np.random.default_rng(seed)
    ramp = np.linspace(0, 180, shape[-1])
    return (rng.integers(0, 60, (*shape, 3)) + ramp[:, None]).astype(np.uint8)


def random_compatibility(kind, n_labels, rng):
    if kind == "potts":
        return Potts(rng.uniform(0, 8))
    if kind == "diagonal":
        return Diagonal(rng.uniform(0, 8, n_labels))
    root = rng.normal(size=(n_labels, n_labels))
    return Symmetric(-(root @ root.T) / n_labels)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("algorithm", ["concave", "cccp", "parallel"])
@given(
    n_labels=st.integers(1, 40), kind=st.sampled_from(["potts", "diagonal", "symmetric"]),
    threads=st.integers(1, 3), tol=st.sampled_from([0.0, 1e-3]), volume=st.booleans(),
    normalization=st.sampled_from(["symmetric", "none"]), seed=st.integers(0, 10**6),
)
def test_fused_and_readable_inference_agree(
    dtype, algorithm, n_labels, kind, threads, tol, volume, normalization, seed
):
    rng = np.random.default_rng(seed)
    grid = (5, 20, 25) if volume else (50, 47)
    image = picture(grid, seed)
    unary = rng.normal(0, 2, (*grid, n_labels)).astype(dtype)
    weight = 1.0 if normalization == "symmetric" else 0.01
    if algorithm == "cccp" and kind == "symmetric":
        kind = "potts"  # the coupled solver has no fused form
    if algorithm == "parallel" and seed % 2:
        weight = -0.1 * weight  # which it need not descend for
    crf = DenseCRF(n_labels, [
        Pairwise(Spatial(rng.uniform(1, 6)), random_compatibility(kind, n_labels, rng)),
        Pairwise(
            Bilateral(15, 20, normalization=normalization),
            random_compatibility(kind, n_labels, rng), weight,
        ),
    ])
    options = {"algorithm": algorithm, "max_iter": 4, "tol": tol, "threads": threads}
    fused = crf.infer(image, unary, **options)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dense, "make_problem", unfused)
        readable = crf.infer(image, unary, **options)
    single = dtype == np.float32
    assert fused.n_iter == readable.n_iter
    assert np.abs(fused.marginals - readable.marginals).max() < (1e-5 if single else 1e-12)
    scale = np.abs(readable.free_energies).max() + unary[..., 0].size
    difference = np.abs(fused.free_energies - readable.free_energies).max()
    assert difference < (1e-5 if single else 1e-12) * scale
    again = crf.infer(image, unary, **options)
    assert np.array_equal(again.marginals, fused.marginals)
    assert np.array_equal(again.free_energies, fused.free_energies)


def test_what_a_plan_covers():
    image = picture((50, 50), 0)
    observation = observe((50, 50), image)

    def covered(algorithm, *terms, filter="auto"):
        crf = DenseCRF(3, terms)
        settings = Inference(filter=filter, threads=1)
        built = build_terms(crf.terms, observation, np.dtype(np.float32), settings)
        return FusedProblem.covers(built, algorithm, 3)

    potts = Pairwise(Bilateral(20, 20), Potts(2))
    full = Pairwise(Spatial(3), Symmetric(-np.eye(3)))
    lopsided = Pairwise(Spatial(3, normalization="before"), Potts(2))
    assert covered("concave", potts, full)
    assert covered("cccp", potts)
    repulsive = Pairwise(Spatial(3), Potts(-2))
    assert covered("parallel", repulsive)
    assert not covered("cccp", repulsive)
    assert not covered("cccp", potts, full)
    assert not covered("parallel", potts, full)
    assert not covered("concave", lopsided)
    assert not covered("concave", potts, filter="exact")
    assert not covered("concave")


@pytest.mark.parametrize("watched", [False, True])
def test_a_rise_falls_back_to_the_readable_form(readable_only, monkeypatch, watched):
    """From where it rose if the marginals are at hand, from the start otherwise."""
    image = picture((60, 60), 1)
    unary = np.random.default_rng(3).normal(0, 1, (60, 60, 4)).astype(np.float32)
    crf = DenseCRF(4, [Pairwise(Bilateral(4, 60), Potts(3))])
    seen = []

    def infer():
        seen.clear()
        return crf.infer(
            image, unary, algorithm="concave", max_iter=6, tol=0.0, threads=1,
            callback=(lambda i, q, energy: seen.append(i) and False) if watched else None,
        )

    total, rises = FusedProblem._energy, []

    def rising_once(self, *parts):
        rises.append(len(rises) == 3)
        return total(self, *parts) + 1e5 * rises[-1]

    monkeypatch.setattr(FusedProblem, "_energy", rising_once)
    fused = infer()
    assert rises == [False, False, False, True]
    assert seen == ([1, 2, 3, 4, 5, 6] if watched else [])
    assert len(fused.free_energies) == 7
    assert (np.diff(fused.free_energies) < 0).all()
    readable_only()
    readable = infer()
    assert fused.shifts == readable.shifts == 0
    assert np.abs(fused.marginals - readable.marginals).max() <= (1e-5 if watched else 0)


@pytest.mark.parametrize("threads", range(1, 8))
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_seen_wherever_it_is(threads, bad):
    values = RNG.normal(size=(60_000, 3)).astype(np.float32)
    assert _native.largest(values, threads) == np.abs(values).max()
    for row in (0, 10_000, 29_999, 41_000, 59_999):
        spoiled = values.copy()
        spoiled[row, 1] = bad
        assert np.isnan(_native.largest(spoiled, threads))


def test_the_callback_sees_every_state():
    image = picture((50, 50), 0)
    unary = RNG.normal(size=(50, 50, 5)).astype(np.float32)
    seen = []
    crf = DenseCRF(5, [Pairwise(Bilateral(20, 20), Potts(2))])
    result = crf.infer(
        image, unary, max_iter=3, tol=0.0,
        callback=lambda i, q, energy: seen.append((i, q.copy(), energy)) and False,
    )
    assert [i for i, _, _ in seen] == [1, 2, 3]
    assert np.array_equal(seen[-1][1].reshape(50, 50, 5), result.marginals)
    assert seen[-1][2] == result.free_energies[-1]


@pytest.mark.parametrize("shape", [(200,), (40, 60), (12, 15, 18)])
@pytest.mark.parametrize("normalization", ["symmetric", "none", "before", "after"])
def test_the_grid_filter_is_close_to_the_exact_sum(shape, normalization):
    sigma = np.array([3.0, 2.0, 4.0])[: len(shape)]
    kernel = Spatial(sigma, normalization=normalization)
    features = kernel.grid_features(observe(shape), np.dtype(np.float64))
    grid = GridFilter(features, normalization=normalization)
    exact = ExactFilter(features.dense(), normalization=normalization)
    lattice = LatticeFilter(features.dense(), normalization=normalization)
    x = RNG.normal(size=(features.shape[0], 2))
    wanted = exact.apply(x)
    error = np.linalg.norm(grid.apply(x) - wanted) / np.linalg.norm(wanted)
    assert error < 0.12
    assert error < np.linalg.norm(lattice.apply(x) - wanted) / np.linalg.norm(wanted) + 0.01


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(70,), (9, 11), (4, 5, 6)])
def test_the_grid_filter_as_a_matrix(shape, dtype):
    """Without negative eigenvalues, and with the row sums it reports."""
    kernel = Spatial(2.3, normalization="none")
    features = kernel.grid_features(observe(shape), np.dtype(dtype))
    operator = GridFilter(features, normalization="none", threads=2)
    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    dense_matrix = operator.to_dense()
    scale = dense_matrix.max()
    symmetric = 0.5 * (dense_matrix + dense_matrix.T).astype(np.float64)
    assert np.linalg.eigvalsh(symmetric)[0] > -10 * tolerance * scale
    assert operator.pre is not None
    plain = operator.row_sums() * operator.pre**2
    assert np.allclose(plain, dense_matrix.sum(1), rtol=10 * tolerance)
    mass = dense_matrix[features.shape[0] // 2].sum()
    if len(shape) == 1:
        assert mass == pytest.approx(np.sqrt(2 * np.pi) * 2.3, rel=0.02)


def test_which_filter_is_chosen():
    def chosen(kernel, grid, image=None, method="auto"):
        features = kernel.grid_features(observe(grid, image), np.dtype(np.float32))
        return type(make_filter(features, kernel, method))

    assert chosen(Spatial(3), (60, 60)) is GridFilter
    assert chosen(Spatial([3, 5]), (60, 60)) is GridFilter
    assert chosen(Spatial(0.1), (60, 60)) is LatticeFilter  # more nodes than points
    assert chosen(Spatial(3), (60, 60), method="lattice") is LatticeFilter
    assert chosen(Spatial(3), (6, 6)) is ExactFilter
    assert chosen(Bilateral(30, 10), (60, 60), picture((60, 60), 0)) is LatticeFilter
    assert Spatial(np.eye(2)).grid_features(observe((60, 60)), np.dtype(np.float32)) is None


@pytest.mark.parametrize("image_type", [np.uint8, np.float32, np.float64, np.uint16, np.bool_])
def test_features_made_on_the_fly_are_the_dense_ones(image_type):
    image = picture((50, 45), 2)
    image = image > 100 if image_type == np.bool_ else image.astype(image_type)
    image.flags.writeable = False
    observation = observe((50, 45), image, spacing=[1.0, 2.0])
    kernel = Bilateral([20, 30], [10, 20, 30])
    for dtype in (np.float32, np.float64):
        features = kernel.grid_features(observation, np.dtype(dtype))
        assert np.allclose(features.dense(), kernel.scaled_features(observation), rtol=1e-6)
        x = RNG.normal(size=(features.shape[0], 3)).astype(dtype)
        made, given_ = LatticeFilter(features), LatticeFilter(features.dense())
        assert made.n_vertices == given_.n_vertices
        assert np.allclose(made.apply(x), given_.apply(x), atol=1e-6)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(
    n_labels=st.integers(2, 40), kind=st.sampled_from(["potts", "diagonal", "symmetric"]),
    normalization=st.sampled_from(["symmetric", "none"]), dims=st.integers(1, 3),
    threads=st.integers(1, 3), n_iter=st.integers(0, 5), seed=st.integers(0, 10**6),
)
def test_fused_and_readable_gradients_agree(
    dtype, n_labels, kind, normalization, dims, threads, n_iter, seed
):
    rng = np.random.default_rng(seed)
    grid = [(2200,), (46, 49), (11, 14, 15)][dims - 1]
    truth = rng.integers(0, n_labels, grid)
    example = TrainingImage(
        picture(grid, seed), rng.normal(0, 2, (*grid, n_labels)).astype(dtype), truth
    )
    weights = (1.0, 0.7) if normalization == "symmetric" else (0.1, 0.02)
    crf = DenseCRF(n_labels, [
        Pairwise(kernel, random_compatibility(kind, n_labels, rng), weight)
        for kernel, weight in zip((
            Spatial(rng.uniform(1, 6), normalization=normalization),
            Bilateral(15, 20, normalization=normalization),
        ), weights, strict=True)
    ])
    loss = LogLikelihood()
    totals = loss.weight_totals(truth.reshape(-1), n_labels)
    inference = Inference("concave", max_iter=n_iter, threads=threads)
    fused = unroll(crf, example, inference, keep_states=True)
    readable = unroll(crf, example, inference, keep_states=True, fused=False)
    assert isinstance(fused.problem, FusedProblem)
    assert isinstance(readable.problem, NativeProblem)
    flat = truth.reshape(-1)
    wanted = [True, bool(rng.integers(2))]

    def gradients(run):
        by_log = loss.log_gradient(run.marginals, flat, totals)
        found = backpropagate(run.problem, run.trace, by_log, widths=wanted)
        return found.unary, *found.compatibility, *found.features

    tolerance = 1e-5 if dtype == np.float32 else 1e-12
    for a, b in zip(gradients(fused), gradients(readable), strict=True):
        assert (a is None) == (b is None)
        assert a is None or np.abs(a - b).max() <= tolerance * np.abs(b).max()


def test_a_plan_refuses_to_go_back_from_nothing():
    unary = np.zeros((4, 3), np.float32)
    lattice = LatticeFilter(RNG.normal(size=(4, 2)).astype(np.float32))
    plan = _native.Plan32(
        unary, [(lattice.native, lattice.pre, lattice.post, None, -np.ones(3, np.float32))], 0, 1
    )
    by_mu = np.zeros((1, 3, 3))
    with pytest.raises(ValueError, match="nothing to go back from"):
        plan.step_back(-1, unary, None, True, unary.copy(), by_mu)
    with pytest.raises(ValueError, match="unknown state"):
        plan.step_back(0, unary, unary, True, unary.copy(), by_mu)
    plan.step(-1, 0, None, None)
    plan.step_back(0, unary, unary, True, unary.copy(), by_mu)
    with pytest.raises(ValueError, match="wrong shape"):
        plan.step_back(0, unary, unary, True, unary.copy(), np.zeros((2, 3, 3)))


@pytest.mark.parametrize("threads", [1, 3])
def test_a_lattice_built_in_tiles_is_the_same(threads):
    """Large grids are embedded tile by tile, and long lines are gone through in pieces."""
    shape = (190, 1500)
    image = picture(shape, 4)
    features = Bilateral(30, 20).grid_features(observe(shape, image), np.dtype(np.float32))
    in_tiles = LatticeFilter(features, threads=threads)
    in_order = LatticeFilter(features.dense(), threads=threads)
    assert in_tiles.n_vertices == in_order.n_vertices
    x = RNG.normal(size=(features.shape[0], 2)).astype(np.float32)
    assert np.abs(in_tiles.apply(x) - in_order.apply(x)).max() < 1e-5
    assert np.abs(in_tiles.diagonal() - in_order.diagonal()).max() < 1e-6


def test_long_lines_are_fused_in_pieces(readable_only):
    shape = (9, 2600)
    image = picture(shape, 5)
    unary = RNG.normal(size=(*shape, 3)).astype(np.float32)
    crf = DenseCRF(3, [Pairwise(Spatial(3), Potts(2)), Pairwise(Bilateral(20, 20), Potts(3))])
    options = {"max_iter": 4, "tol": 0.0, "filter": "lattice"}
    fused = [crf.infer(image, unary, threads=t, **options).marginals for t in (1, 2)]
    readable_only()
    readable = crf.infer(image, unary, **options).marginals
    for marginals in fused:
        assert np.abs(marginals - readable).max() < 1e-5


def test_many_states_can_be_kept():
    example = TrainingImage(
        picture((50, 48), 0), RNG.normal(size=(50, 48, 2)).astype(np.float32),
        np.zeros((50, 48), int),
    )
    crf = DenseCRF(2, [Pairwise(Spatial(6), Potts(1))])
    run = unroll(crf, example, Inference("concave", max_iter=1030, threads=1), keep_states=True)
    assert isinstance(run.problem, FusedProblem)
    assert len(run.trace) == 1031
