"""Log-linear models on graphs: exact gradients, what is learned, what is refused."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from crfield.graphs import (
    ChainClassifier,
    FeatureGraph,
    FeatureTerm,
    GraphClassifier,
    GridClassifier,
    Propagation,
    log_linear_loss,
)
from graph_reference import Reference

SEEDS = st.integers(0, 2**32 - 1)


def random_data(
    rng: np.random.Generator, loops: bool, scale: float = 1.0
) -> tuple[FeatureGraph, tuple[np.ndarray, ...], np.ndarray]:
    """Five variables of mixed sizes under terms of one, two and three variables."""
    n_states = np.array([2, 3, 3, 2, 3])
    pairs = [[1, 2], [2, 4], [1, 4]] if loops else [[1, 2], [2, 4]]
    terms = (
        FeatureTerm([[1], [2], [4]], rng.normal(size=(3, 2))),
        FeatureTerm([[0], [3]]),
        FeatureTerm(pairs, rng.normal(size=(len(pairs), 2))),
        FeatureTerm([[0, 1, 3]], rng.normal(size=(1, 2))),
    )
    weights = tuple(
        scale * rng.normal(size=shape)
        for shape in ((2, 3), (1, 2), (2, 3, 3), (2, 2, 3, 2))
    )
    return FeatureGraph(n_states, terms), weights, rng.integers(0, n_states).astype(np.int32)


def reference_loss(
    data: FeatureGraph, weights: tuple[np.ndarray, ...], labels: np.ndarray
) -> float:
    factors = []
    for term, w in zip(data.terms, weights, strict=True):
        for m, variables in enumerate(term.variables):
            phi = np.ones(1) if term.features is None else term.features[m]
            table = np.tensordot(phi, w, 1)
            factors.append((tuple(variables), lambda x, table=table: float(table[x])))
    reference = Reference([np.zeros(n) for n in data.n_states], factors)
    return reference.energy(tuple(labels)) + reference.log_partition(1.0)


def check_slopes(
    value: Callable[[tuple[np.ndarray, ...]], float], weights: tuple[np.ndarray, ...],
    gradient: tuple[np.ndarray, ...],
) -> None:
    """Every entry of the gradient against central differences of the value."""
    step = 1e-5
    for i, (w, slope) in enumerate(zip(weights, gradient, strict=True)):
        for index in np.ndindex(w.shape):
            values = []
            for sign in (1, -1):
                moved = w.copy()
                moved[index] += sign * step
                values.append(value((*weights[:i], moved, *weights[i + 1 :])))
            assert slope[index] == pytest.approx(
                (values[0] - values[1]) / (2 * step), abs=1e-6
            )


@settings(max_examples=5, deadline=None)
@given(SEEDS)
def test_loss_and_gradient_on_forests(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data, weights, labels = random_data(rng, loops=False)
    loss = log_linear_loss(data, weights, labels)
    assert loss.value == pytest.approx(reference_loss(data, weights, labels), abs=1e-9)
    check_slopes(lambda there: reference_loss(data, there, labels), weights, loss.gradient)


@pytest.mark.parametrize("seed", range(4))
def test_gradient_of_bethe_loss_on_loops(seed: int) -> None:
    rng = np.random.default_rng(seed)
    data, weights, labels = random_data(rng, loops=True, scale=0.5)
    settings_ = {"tol": 1e-12, "max_iter": 5000}
    loss = log_linear_loss(data, weights, labels, **settings_)
    assert loss.result.converged
    check_slopes(
        lambda there: log_linear_loss(data, there, labels, **settings_).value, weights,
        loss.gradient,
    )


def test_joined_graphs_have_the_sum_of_losses() -> None:
    rng = np.random.default_rng(0)
    data, weights, labels = random_data(rng, loops=False)
    other = random_data(rng, loops=True)
    both = FeatureGraph.join([data, other[0]])
    settled = {"convex": True, "tol": 1e-12, "max_iter": 5000}
    together = log_linear_loss(both, weights, np.concatenate([labels, other[2]]), **settled)
    one = log_linear_loss(data, weights, labels, **settled)
    two = log_linear_loss(other[0], weights, other[2], **settled)
    assert together.value == pytest.approx(one.value + two.value)
    for a, b, c in zip(together.gradient, one.gradient, two.gradient, strict=True):
        np.testing.assert_allclose(a, b + c, atol=1e-8)


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        ((), "must be 1 arrays"),
        ((np.zeros((1, 3)),), "3 states for variable 0, which has 2"),
        ((np.zeros((2, 2)),), "match term 0"),
        ((np.zeros((1, 2, 2)),), "match term 0"),
    ],
)
def test_weights_that_do_not_fit_are_refused(weights: object, message: str) -> None:
    data = FeatureGraph(np.array([2, 2, 3]), (FeatureTerm([[0], [1]], np.ones((2, 1))),))
    with pytest.raises(ValueError, match=message):
        log_linear_loss(data, weights, np.zeros(3, np.int32))
    with pytest.raises(ValueError, match="variables 0 to 2"):
        FeatureGraph(np.array([2, 2, 3]), (FeatureTerm([[3]]),))
    with pytest.raises(ValueError, match="n_states must be whole numbers"):
        FeatureGraph(np.array([2.0, 0.5]), ())


def test_small_features_do_no_harm() -> None:
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 2, 5) for _ in range(20)]
    edges = np.stack([np.arange(4), np.arange(1, 5)], 1)
    X = [
        (np.stack([y + rng.normal(0, 0.5, 5), 1e-10 * rng.normal(size=5)], 1), edges)
        for y in labels
    ]
    assert GraphClassifier().fit(X, labels).score(X, labels) > 0.75


def test_graphs_without_edges_among_others() -> None:
    alone = (np.array([[1.0], [-1.0]]), np.zeros((0, 2), int), np.zeros((0, 2)))
    joined = (np.array([[1.0], [-1.0]]), [[0, 1]], np.array([[1.0, 0.5]]))
    model = GraphClassifier(tol=0.1).fit([alone, joined], [[1, 0], [1, 0]])
    assert model.predict([alone])[0].tolist() == [1, 0]
    lonely = GraphClassifier(training="piecewise", tol=0.1).fit([alone[:2]], [[1, 0]])
    assert not lonely.pair_coef_[0].any()
    with pytest.raises(ValueError, match="as many features"):
        GraphClassifier().fit([alone, (joined[0], joined[1])], [[1, 0], [1, 0]])


def test_a_failed_fit_leaves_the_model_as_it_was() -> None:
    X, y = [np.ones((2, 2, 1))], [np.array([[0, 1], [0, 1]])]
    model = GridClassifier(tol=10.0).fit(X, y)
    model.l2 = -1.0
    with pytest.raises(ValueError, match="l2 must lie between"):
        model.fit(X, [np.array([[0, 1], [2, 1]])])
    assert model.predict(X)[0].shape == (2, 2)
    assert model.set_params(l2=1.0).fit(np.array(X), np.array(y)).classes_.tolist() == [0, 1]


def chain_examples(
    rng: np.random.Generator, count: int = 30
) -> tuple[list[np.ndarray], list[np.ndarray]]:
    features, labels = [], []
    for _ in range(count):
        length = int(rng.integers(2, 8))
        y = np.cumsum(rng.integers(0, 2, length)) % 3
        features.append(np.eye(3)[y] + rng.normal(0, 0.8, (length, 3)))
        labels.append(y)
    return features, labels


def as_graphs(features: list[np.ndarray]) -> list[tuple[np.ndarray, np.ndarray]]:
    edges = [np.stack([np.arange(len(f) - 1), np.arange(1, len(f))], 1) for f in features]
    return list(zip(features, edges, strict=True))


@pytest.mark.parametrize("optimizer", ["lbfgs", "cg", "gd"])
def test_a_chain_as_a_graph_learns_what_the_chain_learns(optimizer: str) -> None:
    X, y = chain_examples(np.random.default_rng(0))
    chain = ChainClassifier(tol=1e-6, max_iter=500).fit(X, y)
    graph = GraphClassifier(tol=1e-5, max_iter=3000, directed=True, optimizer=optimizer)
    graph.fit(as_graphs(X), y)
    np.testing.assert_allclose(graph.coef_, chain.coef_, atol=2e-3)
    np.testing.assert_allclose(graph.pair_coef_[0][0], chain.transition_coef_, atol=2e-3)
    assert graph.expectations_.largest_gap < 1e-4
    assert all(
        (a == b).all() for a, b in zip(graph.predict(as_graphs(X)), chain.predict(X), strict=True)
    )
    assert graph.score(as_graphs(X), y) == pytest.approx(chain.score(X, y))


def test_a_chain_as_a_graph_is_trained_piecewise_as_the_chain() -> None:
    X, y = chain_examples(np.random.default_rng(6))
    settings_ = {"training": "piecewise", "tol": 1e-6, "max_iter": 500}
    chain = ChainClassifier(**settings_).fit(X, y)
    graph = GraphClassifier(directed=True, **settings_).fit(as_graphs(X), y)
    np.testing.assert_allclose(graph.part_weights_, chain.part_weights_, atol=1e-3)
    np.testing.assert_allclose(graph.coef_, chain.coef_, atol=1e-3)
    np.testing.assert_allclose(graph.pair_coef_[0][0], chain.transition_coef_, atol=1e-3)
    assert graph.objective_[-1] == pytest.approx(chain.objective_[-1], abs=1e-6)
    assert graph.part_objective_[-1] == pytest.approx(chain.part_objective_[-1], abs=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_mini_batches_come_near_the_optimum(optimizer: str) -> None:
    X, y = chain_examples(np.random.default_rng(1))
    best = GraphClassifier(directed=True).fit(as_graphs(X), y).objective_[-1]
    model = GraphClassifier(directed=True, optimizer=optimizer, max_iter=60, batch_size=5)
    found = model.fit(as_graphs(X), y).objective_
    assert found[-1] < best + 0.2 * (found[0] - best)


def test_undirected_graphs_have_symmetric_tables() -> None:
    X, y = chain_examples(np.random.default_rng(2))
    model = GraphClassifier(max_iter=30, tol=1e-3).fit(as_graphs(X), y)
    table = model.pair_coef_[0][0]
    np.testing.assert_allclose(table, table.T)


def test_edge_features_choose_between_tables() -> None:
    rng = np.random.default_rng(3)
    X, y = [], []
    for _ in range(40):
        # Neighbors are equal over edges of one kind and different over the others.
        kinds = rng.integers(0, 2, 6)
        labels = np.concatenate([[0], np.cumsum(kinds) % 2]) ^ rng.integers(0, 2)
        edges = np.stack([np.arange(6), np.arange(1, 7)], 1)
        noisy = labels[:, None] + rng.normal(0, 1.0, (7, 1))
        X.append((noisy, edges, np.eye(2)[kinds]))
        y.append(labels)
    model = GraphClassifier(l2=0.1 / 40).fit(X, y)
    same, different = model.pair_coef_[0]
    assert np.trace(same) > np.trace(same[::-1])
    assert np.trace(different) < np.trace(different[::-1])
    assert model.score(X, y) > 0.85


def test_grids_learn_to_smooth() -> None:
    rng = np.random.default_rng(4)
    X, y = [], []
    for _ in range(6):
        labels = np.zeros((10, 12), int)
        top, left = rng.integers(0, 6, 2)
        labels[top : top + 5, left : left + 5] = 1
        X.append(np.stack([labels + rng.normal(0, 0.7, labels.shape)], -1))
        y.append(labels)
    model = GridClassifier(max_iter=60, tol=0.03, inference=Propagation(tol=1e-4)).fit(X[:4], y[:4])
    alone = np.mean([
        ((x[..., 0] > 0.5) == labels).mean() for x, labels in zip(X[4:], y[4:], strict=True)
    ])
    assert model.score(X[4:], y[4:]) > alone + 0.1
    assert len(model.pair_coef_) == 2
    assert model.predict_proba(X[:1])[0].shape == (10, 12, 2)
    np.testing.assert_allclose(model.predict_proba(X[:1])[0].sum(-1), 1)
    assert len(GridClassifier(l2=100.0, tol=1.0, directed=False).fit(X[:1], y[:1]).pair_coef_) == 1


@pytest.mark.filterwarnings("ignore:learning did not converge")
def test_piecewise_training_is_near_joint_training() -> None:
    X, y = chain_examples(np.random.default_rng(5), 60)
    graphs = as_graphs(X)
    joint = GraphClassifier(directed=True).fit(graphs[:40], y[:40])
    pieces = GraphClassifier(directed=True, training="piecewise").fit(graphs[:40], y[:40])
    assert pieces.part_weights_ is not None
    assert pieces.part_weights_.shape == (2,)
    assert pieces.score(graphs[40:], y[40:]) > joint.score(graphs[40:], y[40:]) - 0.05


@pytest.mark.parametrize(
    ("X", "y", "message"),
    [
        ([], [], "X must be a list of graphs"),
        ([np.zeros((2, 1))], [[0, 1]], r"must be \(features, edges\)"),
        ([(np.zeros((2, 1)), [[0, 2]])], [[0, 1]], "must name nodes 0 to 1"),
        ([(np.zeros((2, 1)), [[0, 1]])], [[0, 1, 1]], r"y\[0\] must have shape \(2,\)"),
        ([(np.zeros((2, 1)), [[0, 1]])], [], "one array per graph, got 0 for 1 graphs"),
        ([(np.zeros((2, 1)), [[0, 1]], np.zeros((2, 1)))], [[0, 1]], "a row for each edge"),
        ([(np.full((2, 1), np.nan), [[0, 1]])], [[0, 1]], "must be finite"),
        (
            [(np.zeros((2, 1)), [[0, 1]]), (np.zeros((2, 2)), [[0, 1]])], [[0, 1], [0, 1]],
            "as many features",
        ),
        ([(np.zeros((2, 1)), [[1, 1]])], [[0, 1]], "must differ"),
        (2 * [(np.zeros((2, 1)), [[0, 1]])], [[0, 1], ["a", "b"]], "labels of one kind"),
        ([(np.zeros((2, 1)), [[0, 1]])], [["a", 1]], "labels of one kind"),
        ([(np.zeros((2, 1)), [[0, 1]])], [[0, [1]]], r"y\[0\] must be an array of labels"),
        ([(np.full((2, 1), 1e200), [[0, 1]])], [[0, 1]], "must not exceed 1e\\+100"),
    ],
)
def test_wrong_graphs_are_refused(X: object, y: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GraphClassifier().fit(X, y)


def test_wrong_grids_and_settings_are_refused() -> None:
    X, y = [np.zeros((2, 2, 1))], [np.array([[0, 1], [0, 1]])]
    with pytest.raises(ValueError, match=r"\(H, W, F\)"):
        GridClassifier().fit([np.zeros((2, 2))], y)
    with pytest.raises(ValueError, match="optimizer must be one of"):
        GridClassifier(optimizer="newton").fit(X, y)
    with pytest.raises(ValueError, match="fit"):
        GridClassifier().predict(X)
    with pytest.raises(ValueError, match="l2 must lie between"):
        GridClassifier(l2=1e31).fit(X, y)
    with pytest.raises(ValueError, match="inference must be a Propagation"):
        GridClassifier(inference={"max_iter": 5}).fit(X, y)
    with pytest.raises(ValueError, match="max_iter must be"):
        Propagation(max_iter=0)
    with pytest.raises(ValueError, match="damping must be"):
        Propagation(damping=1.0)
    with pytest.raises(ValueError, match="tol must be positive"):
        Propagation(tol=0)
    with pytest.raises(ValueError, match="smaller step_size"):
        GridClassifier(optimizer="sgd", step_size=1e40, max_iter=3).fit([np.ones((2, 2, 1))], y)
    with pytest.raises(ValueError, match=r"y\[0\] must be an array of labels"):
        GridClassifier().fit(X, [[[0, 1], [0]]])
    with pytest.raises(ValueError, match="kind that fit had, numbers, got strings"):
        GridClassifier(tol=10.0).fit(X, y).score(X, [np.array([["a", "b"], ["a", "b"]])])
    far = GridClassifier(tol=0.01).fit([np.array([[[0.0], [1]], [[0], [1]]])], y)
    with pytest.raises(ValueError, match="X must give scores of at most"):
        far.predict([np.full((2, 2, 1), 1e90)])
    model = GridClassifier(tol=10.0).fit(X, y)
    with pytest.raises(ValueError, match="1 features like the grids of fit"):
        model.predict([np.zeros((2, 2, 3))])
