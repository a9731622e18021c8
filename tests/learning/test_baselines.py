"""What learning is compared with: each method finds what it should on data of known models."""

import numpy as np
import pytest

import reference
from crfield import Bilateral, DenseCRF, Diagonal, Inference, Pairwise, Potts, Spatial, Symmetric
from crfield.estimators import TrainingImage
from crfield.learning import (
    Learned,
    Parameters,
    approximate_likelihood,
    generative_kernel,
    grid_search,
    learn,
    local_search,
    perturbed,
    piecewise,
    potts_grid,
    random_search,
)
from crfield.learning.baselines import likelihood_gradient
from crfield.metrics import class_accuracy, confusion_matrix, mean_iou, pixel_accuracy
from refusal import refusal
from small_dataset import sampled_images

pytest.importorskip("scipy")

EXACT = Inference("concave", "exact", max_iter=3)
NO_RIDGE = {"unary": 0.0, "compatibility": 0.0, "off_diagonal": 0.0, "kernel": 0.0}


def score(model, examples, metric=mean_iou, inference=EXACT):
    """The score by the public way of inference."""
    counts = sum(
        confusion_matrix(
            e.truth,
            model.infer(
                e.image, e.unary, filter=inference.filter, max_iter=inference.max_iter, tol=0.0
            ).labels,
            model.n_labels,
        )
        for e in examples
    )
    return metric(counts)


def grid_kernel(size, sigma):
    """Independent K of Spatial(sigma) on a grid."""
    points = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), -1).reshape(-1, len(size))
    return reference.normalized(reference.kernel_matrix(points / sigma), "symmetric")


def exact_gradient(unary, truth, kernels, mus, term):
    """d log P(truth) / d mu(a, b) of one term with mu(a, b) = mu(b, a) tied, by enumeration."""

    def log_likelihood(upper):
        moved = [*mus[:term], reference.tied(np.triu(upper)), *mus[term + 1 :]]
        pairs = list(zip(kernels, moved, strict=True))
        return -reference.energy(truth, unary, pairs) - reference.log_partition(unary, pairs)

    # The entries below the diagonal, which do not count, have the derivative 0.
    return reference.tied(reference.central_differences(log_likelihood, np.triu(mus[term]), 1e-5))


@pytest.mark.parametrize("algorithm", ["concave", "cccp", "parallel"])
def test_likelihood_gradient_is_exact_where_mean_field_is(algorithm):
    """At mu = 0 the variables are independent, however strong the kernels; near it almost."""
    rng = np.random.default_rng(1)
    size, sigmas = (2, 2), (0.8, 1.7)
    unary, truth = rng.normal(size=(*size, 3)), rng.integers(0, 3, size)
    kernels = [grid_kernel(size, sigma) for sigma in sigmas]
    root = rng.normal(size=(2, 3, 3))
    full = [-(r @ r.T) for r in root]

    def gradients(strength):
        mus = [strength * mu for mu in full]
        model = DenseCRF(
            3, [Pairwise(Spatial(s), Symmetric(mu)) for s, mu in zip(sigmas, mus, strict=True)]
        )
        found, _ = likelihood_gradient(
            model, [TrainingImage(None, unary, truth)], Inference(algorithm, "exact", max_iter=60)
        )
        flat = unary.reshape(-1, 3), truth.reshape(-1)
        exact = [exact_gradient(*flat, kernels, mus, term) for term in range(2)]
        return [reference.tied(g) for g in found.compatibility], exact

    for approximate, exact in zip(*gradients(0.0), strict=True):
        assert np.abs(exact).max() > 0.05
        assert np.allclose(approximate, exact, atol=1e-8)
    for approximate, exact in zip(*gradients(0.02), strict=True):
        assert np.abs(approximate - exact).max() < 0.1 * np.abs(exact).max()


def test_likelihood_gradient_of_every_family_and_of_the_weight():
    """dl / d vector at mu near 0 against enumeration, through each family's parametrization."""
    rng = np.random.default_rng(2)
    size, tiny = (1, 4), 1e-7
    unary, truth = rng.normal(size=(*size, 2)), np.array([[0, 1, 1, 0]])
    kernel = grid_kernel(size, 1.3)
    exact = 1.5 * exact_gradient(
        unary.reshape(-1, 2), truth.reshape(-1), [kernel], [np.zeros((2, 2))], 0
    )
    cases = [
        (Potts(tiny), [tiny * exact[0, 1]]),
        (Diagonal([tiny, 2 * tiny]), -np.diag(exact) * [tiny, 2 * tiny]),
        (Symmetric(np.zeros((2, 2))), exact[np.triu_indices(2)]),
    ]
    for compatibility, expected in cases:
        model = DenseCRF(2, [Pairwise(Spatial(1.3), compatibility, weight=1.5)])
        parameters = Parameters(model, ("compatibility",), project=False)
        found, _ = likelihood_gradient(
            model, [TrainingImage(None, unary, truth)], Inference("parallel", "exact", max_iter=5)
        )
        assert np.allclose(parameters.chain(parameters.start, found, 2), expected, rtol=1e-5)


def test_void_pixels_are_in_neither_sum_but_in_inference():
    rng = np.random.default_rng(4)
    size = (3, 4)
    unary, truth = rng.normal(size=(*size, 3)), rng.integers(0, 3, size)
    truth[1, 1:3] = 255
    model = DenseCRF(3, [Pairwise(Spatial(1.2), Potts(0.8))])
    found, counts = likelihood_gradient(model, [TrainingImage(None, unary, truth)], EXACT)
    q = model.infer(None, unary, filter="exact", max_iter=3, tol=0.0).marginals.reshape(-1, 3)
    known = truth.reshape(-1) != 255
    kernel = grid_kernel(size, 1.2)[known][:, known]
    np.fill_diagonal(kernel, 0.0)
    t = np.eye(3)[truth.reshape(-1)[known]]
    expected = 0.5 * (q[known].T @ kernel @ q[known] - t.T @ kernel @ t)
    assert np.allclose(found.compatibility[0], expected)
    assert abs(found.compatibility[0].sum()) < 1e-12
    assert counts.sum() == known.sum()


@pytest.mark.slow
def test_likelihood_finds_the_potts_weights_that_labels_were_drawn_from():
    def two_terms(spatial, bilateral):
        return DenseCRF(3, [
            Pairwise(Spatial(1.5), Potts(spatial)), Pairwise(Bilateral(6, 40), Potts(bilateral)),
        ])

    examples = sampled_images(two_terms(1.0, 3.0), EXACT, n=10, seed=4)
    start = two_terms(0.3, 0.3)
    result = approximate_likelihood(start, examples, inference=EXACT, l2=NO_RIDGE, max_iter=50)
    weights = [term.compatibility.weight for term in result.model.terms]
    assert weights == pytest.approx([1.0, 3.0], rel=0.2)
    assert isinstance(result, Learned)
    report = result.report
    assert report.gradient_norms[-1] < 0.02 * report.gradient_norms[0]
    assert len(report.mean_ious) == report.n_evaluations == report.best_iteration + 1 <= 51
    assert score(result.model, examples) > score(start, examples)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["diagonal", "symmetric"])
def test_likelihood_matches_the_pairs_of_labels(family):
    """At the maximum as many pairs of each kind are expected as there are."""
    truth = {"diagonal": Diagonal([1.0, 2.0, 4.0]), "symmetric": Symmetric.l1(3, 2.0)}[family]
    start = {"diagonal": Diagonal(np.full(3, 0.5)), "symmetric": Symmetric(-0.5 * np.eye(3))}
    true, model = (
        DenseCRF(3, [Pairwise(Bilateral(6, 40), mu)]) for mu in (truth, start[family])
    )
    examples = sampled_images(true, EXACT, n=8)
    result = approximate_likelihood(model, examples, inference=EXACT, l2=NO_RIDGE, max_iter=60)
    before, _ = likelihood_gradient(model, examples, EXACT)
    after, _ = likelihood_gradient(result.model, examples, EXACT)
    part = np.diag if family == "diagonal" else np.asarray
    assert np.abs(part(after.compatibility[0])).max() < 0.05 * np.abs(
        part(before.compatibility[0])
    ).max()
    learned = result.model.terms[0].compatibility
    assert type(learned) is type(truth)
    assert learned.is_concave(3)
    assert score(result.model, examples) > score(model, examples)
    if family == "diagonal":
        assert learned.alpha == pytest.approx(truth.alpha, rel=0.4)


def test_ridge_progress_and_jobs_of_the_likelihood():
    true = DenseCRF(2, [Pairwise(Bilateral(6, 40), Potts(3.0))])
    examples = sampled_images(true, EXACT, n=3, size=(8, 9))
    model = DenseCRF(2, [Pairwise(Bilateral(6, 40), Potts(0.5))])

    def weight(**options):
        result = approximate_likelihood(model, examples, inference=EXACT, max_iter=8, **options)
        return result.model.terms[0].compatibility.weight

    assert weight(l2={"compatibility": 100.0}) == pytest.approx(0.5, rel=0.1) != weight()
    assert weight(callback=lambda iteration, report: iteration == 0) == 0.5
    pytest.importorskip("joblib")
    from joblib import parallel_config

    with parallel_config(backend="threading"):
        assert weight(n_jobs=2) == weight()


def test_grid_search_scores_every_candidate_and_keeps_the_best():
    true = DenseCRF(3, [Pairwise(Bilateral(6, 40), Potts(3.0))])
    examples = sampled_images(true, EXACT, n=4)
    candidates = list(potts_grid(3, bilateral=[(6, 40), (1, 200)], weights=[0.0, 3.0]))
    scorers = {"iou": mean_iou, "accuracy": pixel_accuracy, "class_accuracy": class_accuracy}
    for metric, scorer in scorers.items():
        result = grid_search(candidates, examples, inference=EXACT, metric=metric)
        expected = [score(model, examples, scorer) for model in candidates]
        assert result.report.scores == pytest.approx(expected)
        assert result.report.candidates == candidates
        assert result.report.best_iteration == int(np.argmax(expected)) == 1
        assert result.report.candidates[result.report.best_iteration] is candidates[1]
        assert result.model.terms is candidates[1].terms
        assert result.report.n_evaluations == len(result.report.mean_ious) == 4
    twins = list(potts_grid(3, bilateral=[(6, 40)], weights=[3.0, 3.0]))
    assert grid_search(twins, examples, inference=EXACT).report.best_iteration == 0
    seen = []
    stopped = grid_search(
        candidates, examples, inference=EXACT,
        callback=lambda number, report: seen.append(number) or number == 1,
    )
    assert seen == [0, 1]
    assert len(stopped.report.scores) == 2


def test_potts_grid_holds_every_combination_once():
    models = list(
        potts_grid(4, spatial=[1, 3], bilateral=[(20, 5), (40, 10), (80, 10)], weights=[1, 2])
    )
    found = {
        (
            s.kernel.sigma, s.compatibility.weight,
            b.kernel.sigma_xy, b.kernel.sigma_color, b.compatibility.weight,
        )
        for s, b in (model.terms for model in models)
    }
    assert len(models) == len(found) == 2 * 2 * 3 * 2
    assert all(model.n_labels == 4 for model in models)
    assert [len(m.terms) for m in potts_grid(2, spatial=[1.0], weights=[1, 2, 3])] == [1, 1, 1]


@pytest.mark.slow
def test_searches_without_a_grid_improve_on_their_start():
    true = DenseCRF(3, [Pairwise(Bilateral(6, 40), Potts(3.0))])
    examples = sampled_images(true, EXACT, n=4)
    wrong = DenseCRF(3, [Pairwise(Bilateral(2, 90), Potts(0.5))])
    local = local_search(wrong, examples, inference=EXACT, max_evaluations=40)
    report = local.report
    assert report.scores[0] == pytest.approx(score(wrong, examples))
    assert len(report.scores) <= 40
    assert max(report.scores) == report.scores[report.best_iteration]
    assert score(local.model, examples) == pytest.approx(max(report.scores))
    gap = score(true, examples) - report.scores[0]
    assert max(report.scores) > report.scores[0] + 0.7 * gap

    def drawn(seed):
        return random_search(
            perturbed(wrong), examples, n_candidates=15, seed=seed, inference=EXACT
        ).report

    assert drawn(0).scores == drawn(0).scores != drawn(1).scores
    assert max(drawn(0).scores) > report.scores[0]


def test_perturbed_multiplies_what_is_positive():
    model = DenseCRF(2, [Pairwise(Bilateral(6, 40), Potts(3.0))])
    rng = np.random.default_rng(0)
    draws = [perturbed(model, spread=0.3)(rng).terms[0] for _ in range(400)]
    for values, center in [
        ([t.compatibility.weight for t in draws], 3.0), ([t.kernel.sigma_xy for t in draws], 6.0)
    ]:
        assert np.mean(np.log(values)) == pytest.approx(np.log(center), abs=0.05)
        assert np.std(np.log(values)) == pytest.approx(0.3, rel=0.15)
    only = perturbed(model, learn=("compatibility",))(rng).terms[0]
    assert only.kernel.sigma_xy == 6.0


def differences(example, n_labels=3):
    """All differences (position, color) between pixels with one label, by brute force."""
    size = example.truth.shape
    points = np.stack(np.meshgrid(*map(np.arange, size), indexing="ij"), -1)
    f = np.concatenate([points, example.image], -1)
    found = []
    for label in range(n_labels):
        own = f[example.truth == label]
        pairs = own[:, None] - own[None]
        found.append(pairs[~np.eye(len(own), dtype=bool)])
    return np.concatenate(found)


def labeled_patches(n=2, size=(9, 11), seed=5):
    """Images whose colors follow their labels, and some void pixels of a wild color."""
    rng = np.random.default_rng(seed)
    mean = np.array([[60.0, 60, 60], [160, 90, 120], [90, 180, 200]])
    root = np.array([[12.0, 0, 0], [4, 8, 0], [0, 3, 5]])
    made = []
    for _ in range(n):
        truth = np.kron(rng.integers(0, 3, (3, 4)), np.ones((3, 3), int))[: size[0], : size[1]]
        image = mean[truth] + rng.normal(size=(*size, 3)) @ root.T
        truth[0, :3], image[0, :3] = 255, 5000.0
        onehot = np.eye(3)[np.where(truth == 255, 0, truth)]
        made.append(TrainingImage(image, -onehot + 1.2 * rng.normal(size=(*size, 3)), truth))
    return made


@pytest.mark.parametrize("start", [
    Bilateral(7.0, 3.0), Bilateral([1.0, 20.0], [4.0, 5.0, 60.0]), Bilateral(2.0, 40 * np.eye(3)),
    Bilateral(covariance=np.diag([4.0, 9, 100, 100, 400]) + 1.0), Spatial([1.0, 2.0]),
])
def test_generative_widths_are_the_moments_of_differences_within_a_label(start):
    examples = labeled_patches()
    model = DenseCRF(3, [Pairwise(Spatial(1), Potts(0.1)), Pairwise(start, Potts(1.0), 2.0)])
    result = generative_kernel(
        model, examples, term=1, pairs=60_000, weights=[0.5], inference=EXACT
    )
    moment = np.mean([(d.T @ d) / len(d) for d in map(differences, examples)], axis=0)
    variances = np.diag(moment)
    fixed, term = result.model.terms
    assert fixed is model.terms[0]
    assert (term.weight, term.compatibility.weight) == (2.0, 0.5)
    kernel = term.kernel
    if isinstance(start, Spatial):
        assert kernel.sigma == pytest.approx(np.sqrt(variances[:2]), rel=0.02)
    elif start.covariance is not None:
        scale = np.sqrt(np.outer(variances, variances))
        assert np.allclose(kernel.covariance / scale, moment / scale, atol=0.03)
    else:
        pairs = [(kernel.sigma_xy, moment[:2, :2]), (kernel.sigma_color, moment[2:, 2:])]
        for width, block in pairs:
            expected = {
                0: np.sqrt(np.diag(block).mean()), 1: np.sqrt(np.diag(block)), 2: block
            }[np.ndim(width)]
            assert np.shape(width) == np.shape(expected)
            assert np.allclose(width, expected, rtol=0.03, atol=0.03 * np.max(expected))
        assert np.ndim(kernel.sigma_color) == np.ndim(start.sigma_color)


def test_generative_widths_do_not_depend_on_the_start_and_the_weight_is_searched():
    examples = labeled_patches()
    results = [
        generative_kernel(
            DenseCRF(3, [Pairwise(Bilateral(*widths), Potts(1.0))]), examples, pairs=500,
            weights=[0.0, 1.0, 4.0], inference=EXACT, seed=7,
        )
        for widths in [(1.0, 1.0), (50.0, 300.0)]
    ]
    kernels = [r.model.terms[0].kernel for r in results]
    assert kernels[0].sigma_xy == pytest.approx(kernels[1].sigma_xy)
    assert kernels[0].sigma_color == pytest.approx(kernels[1].sigma_color)
    scores = results[0].report.scores
    assert len(scores) == 3
    assert max(scores) > scores[0]
    assert results[0].model.terms[0].compatibility.weight == [0, 1, 4][int(np.argmax(scores))]


def test_equal_label_pairs_are_all_equally_likely():
    from crfield.learning.baselines.generative import _equal_label_pairs

    labels = np.array([2, 255, 0, 2, 1, 0, 2, 255])
    first, second = _equal_label_pairs(labels, 80_000, np.random.default_rng(0))
    counts = np.zeros((8, 8))
    np.add.at(counts, (first, second), 1)
    allowed = (labels[:, None] == labels) & (labels != 255) & ~np.eye(8, dtype=bool)
    assert allowed.sum() == 8
    assert np.allclose(counts, allowed * 10_000, atol=500)


def miscalibrated():
    true = DenseCRF(3, [Pairwise(Bilateral(6, 40), Potts(2.0))])
    return [
        TrainingImage(e.image, 0.4 * e.unary + np.array([0.0, 1.5, -1.0]), e.truth)
        for e in sampled_images(true, EXACT)
    ]


@pytest.mark.slow
def test_piecewise_recalibrates_alone_then_leaves_the_unary(tmp_path):
    examples = miscalibrated()
    model = DenseCRF(3, [Pairwise(Bilateral(3, 80), Potts(0.5))])
    result = piecewise(
        model, examples, loss="log_likelihood", inference=EXACT, l2=NO_RIDGE, max_iter=12,
        checkpoint=tmp_path / "run",
    )
    alone = learn(
        DenseCRF(3), examples, loss="log_likelihood", learn=("unary",), inference=EXACT,
        l2=NO_RIDGE, max_iter=12,
    )
    assert np.array_equal(result.model.recalibration, alone.model.recalibration)
    first = len(alone.report.losses)
    losses = result.report.losses
    assert losses[:first] == alone.report.losses
    assert min(losses[:first]) < 0.8 * losses[0]
    assert result.report.best_iteration >= first
    best = losses[result.report.best_iteration]
    assert best == min(losses[first:]) < 0.95 * min(losses[:first])
    assert result.report.stopped
    term = result.model.terms[0]
    assert term.compatibility.weight > 1.0
    assert term.kernel.sigma_color != 80
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.pairwise", "run.unary"]
    compat = piecewise(
        model, examples, loss="log_likelihood", inference=EXACT, max_iter=2,
        learn=("compatibility",),
    )
    assert compat.model.terms[0].kernel.sigma_color == 80


def test_wrong_requests_are_refused():
    potts = Pairwise(Bilateral(3, 80), Potts(0.5))
    model = DenseCRF(3, [potts])
    examples = labeled_patches(1)
    (good,) = examples
    for call in (approximate_likelihood, generative_kernel, piecewise, local_search):
        assert "pairwise terms" in refusal(call, DenseCRF(3), examples)
    sequential = Inference("sequential")
    for call in (approximate_likelihood, generative_kernel, local_search):
        assert "got algorithm 'sequential'" in refusal(call, model, examples, inference=sequential)
        assert "(*grid, 4)" in refusal(call, DenseCRF(4, [potts]), examples)
        small = TrainingImage(good.image, good.unary, good.truth[1:])
        assert "truth must have the unary's grid" in refusal(call, model, [small])
        other = TrainingImage(good.image, good.unary, np.where(good.truth == 0, 7, good.truth))
        assert "truth must hold labels from 0 to 2" in refusal(call, model, [other])
        broken = TrainingImage(good.image, np.full_like(good.unary, np.nan), good.truth)
        assert "unary must be finite" in refusal(call, model, [broken])
        ragged = TrainingImage(good.image, [*good.unary.tolist()[1:], -1], good.truth)
        assert "give every row the same length" in refusal(call, model, [ragged])
    void = TrainingImage(good.image, good.unary, np.full_like(good.truth, 255))
    assert "labeled pixels" in refusal(grid_search, [model], [void])
    assert "labeled pixels" in refusal(approximate_likelihood, model, [void])
    assert "two pixels with one label" in refusal(generative_kernel, model, [void])
    assert "at least one image" in refusal(grid_search, [model], [])
    assert "at least one candidate" in refusal(grid_search, [], examples)
    assert "several models" in refusal(grid_search, model, examples)
    assert "must be DenseCRF" in refusal(grid_search, [3], examples)
    assert "metric" in refusal(grid_search, [model], examples, metric="speed")
    assert "sampler" in refusal(random_search, model, examples)
    assert "potts_grid needs" in refusal(potts_grid, 3)
    assert "step_size" in refusal(approximate_likelihood, model, examples, step_size=0)
    assert "spread" in refusal(local_search, model, examples, spread=-1)
    assert "term" in refusal(generative_kernel, model, examples, term=1)
    assert "of its own" in refusal(piecewise, model, examples, learn=("unary", "compatibility"))
    for term in (
        Pairwise(Spatial(2, shape="tent"), Potts(1)), Pairwise(Spatial(2), Diagonal([1, 1, 1]))
    ):
        assert "use another term" in refusal(generative_kernel, DenseCRF(3, [term]), examples)
    gray = TrainingImage(np.repeat(good.image[..., :1], 3, -1), good.unary, good.truth)
    whole = DenseCRF(3, [Pairwise(Bilateral(3, np.eye(3)), Potts(1))])
    assert "sigma_color cannot be estimated" in refusal(generative_kernel, whole, [gray])
