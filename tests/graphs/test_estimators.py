"""Estimators of chains, graphs and grids: what is learned, scikit-learn's conventions, refusals."""

import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from crfield.estimators import NotFittedError
from crfield.graphs import ChainClassifier, GraphClassifier, GridClassifier, Propagation
from made_chains import loss_at, made_up_chains, training_chains
from refusal import refusal


@pytest.mark.slow
@pytest.mark.parametrize(("optimizer", "slack"), [("cg", 1e-3), ("adam", 2e-2), ("sgd", 2e-2)])
def test_every_optimizer_comes_to_the_same_model(optimizer, slack):
    X, y = made_up_chains(np.random.default_rng(5), n_chains=60)
    best = ChainClassifier(l2=2 / 60).fit(X, y)
    settings = {"l2": 2 / 60, "optimizer": optimizer, "max_iter": 100, "step_size": 0.02}
    other = ChainClassifier(**settings).fit(X, y)
    assert best.objective_[-1] < other.objective_[-1] + 1e-5
    assert other.objective_[-1] < best.objective_[-1] + slack
    again = ChainClassifier(**settings).fit(X, y)
    np.testing.assert_array_equal(again.coef_, other.coef_)
    shuffled = ChainClassifier(random_state=1, **settings).fit(X, y)
    assert np.array_equal(shuffled.coef_, other.coef_) == (optimizer == "cg")


def test_neighbors_help_where_features_say_little():
    rng = np.random.default_rng(6)
    X, y = [], []
    for length in rng.integers(1, 15, size=300):
        jumps = rng.random(length) < 0.15
        y.append(np.cumsum(rng.integers(0, 3, size=length) * jumps) % 3)
        X.append(np.eye(3)[y[-1]] + rng.standard_normal((length, 3)))
    learned, held_out = (
        [[row[None] for part in parts[some] for row in part] for parts in (X, y)]
        for some in (slice(200), slice(200, None))
    )
    alone_score = ChainClassifier().fit(*learned).score(*held_out)
    joint = ChainClassifier().fit(X[:200], y[:200])
    piecewise = ChainClassifier(training="piecewise").fit(X[:200], y[:200])
    assert joint.score(X[200:], y[200:]) > alone_score + 0.08
    assert piecewise.score(X[200:], y[200:]) > alone_score + 0.06
    assert joint.objective_[-1] > 0
    assert all(weight > 0 for weight in piecewise.part_weights_)


def test_labels_of_any_kind_and_words():
    rng = np.random.default_rng(8)
    X, y = made_up_chains(rng)
    names = np.array(["noun", "verb", "other"])
    plain = ChainClassifier().fit(X, y)
    named = ChainClassifier().fit(X, [names[part].tolist() for part in y])
    assert named.classes_.tolist() == sorted(names)
    assert named.score(X, [names[part] for part in y]) == pytest.approx(plain.score(X, y), abs=0.02)
    words = ChainClassifier().fit(X, ["".join("abc"[state] for state in part) for part in y])
    for ours, theirs in zip(words.predict(X), plain.predict(X), strict=True):
        assert ours.tolist() == ["abc"[state] for state in theirs]
    for probabilities, features in zip(plain.predict_proba(X), X, strict=True):
        assert probabilities.shape == (len(features), 3)
        np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-12)
    assert plain.coef_.shape == (3, 4)
    assert plain.transition_coef_.shape == (3, 3)


def test_one_class_only():
    crf = ChainClassifier().fit([np.ones((3, 2))], [[7, 7, 7]])
    assert crf.predict([np.zeros((2, 2))])[0].tolist() == [7, 7]


def test_scikit_learn_can_clone_and_search():
    X, y = made_up_chains(np.random.default_rng(9))
    crf = ChainClassifier(l2=0.3, training="piecewise")
    assert clone(crf).get_params() == crf.get_params()
    assert crf.set_params(l2=2.0).l2 == 2.0
    search = GridSearchCV(ChainClassifier(), {"l2": [5.0, 0.05]}, cv=2).fit(X, y)
    assert search.best_params_["l2"] in (5.0, 0.05)
    assert len(search.predict(X)) == len(X)


def test_a_run_cut_short_says_so():
    X, y = made_up_chains(np.random.default_rng(10))
    with pytest.warns(UserWarning, match="raise max_iter"):
        ChainClassifier(max_iter=2).fit(X, y)


@pytest.mark.parametrize("optimizer", ["lbfgs", "cg"])
@pytest.mark.parametrize("factor", [1e4, 1e8, 1e50, 1e99])
def test_features_of_any_size_are_learned_from(factor, optimizer):
    X, y = made_up_chains(np.random.default_rng(12))
    # With hardly a penalty the labels say the same of features of any size.
    settings = {"l2": 1e-6 / len(X), "optimizer": optimizer, "max_iter": 2000}
    plain = ChainClassifier(**settings).fit(X, y)
    scaled = ChainClassifier(**settings).fit([factor * features for features in X], y)
    assert scaled.objective_[-1] == pytest.approx(plain.objective_[-1], abs=1e-3)
    assert scaled.objective_[-1] < scaled.objective_[0] - 1
    assert scaled.expectations_.largest_gap <= 2e-5


def test_learning_that_leads_nowhere_says_so():
    X, y = made_up_chains(np.random.default_rng(14))
    with pytest.warns(UserWarning, match="scale the features"):
        ChainClassifier(tol=1e-300, max_iter=5000).fit(X, y)


@pytest.mark.filterwarnings("ignore:overflow", "ignore:invalid")
@pytest.mark.parametrize("step_size", [1e6, 1e300])
def test_steps_out_of_the_range_of_numbers_are_refused(step_size):
    X, y = made_up_chains(np.random.default_rng(15))
    crf = ChainClassifier(optimizer="sgd", step_size=step_size)
    assert "smaller step_size" in refusal(crf.fit, X, y)


@pytest.mark.parametrize("l2", [2.5e28, 2.5e10, 2.5e-32])
def test_penalties_of_any_strength(l2):
    X, y = made_up_chains(np.random.default_rng(16))
    crf = ChainClassifier(l2=l2, max_iter=2000).fit(X, y)
    assert np.isfinite(crf.coef_).all()
    if l2 > 1:
        assert np.abs(crf.coef_).max() < 25 / l2
        # What is left are the shares of the labels.
        shares = np.bincount(np.concatenate(y)) / len(np.concatenate(y))
        np.testing.assert_allclose(crf.predict_proba(X[:1])[0][0], shares, atol=1e-4)


def test_the_default_penalty_is_the_one_of_an_inverse_strength_of_one():
    X, y = made_up_chains(np.random.default_rng(20), n_chains=20)
    np.testing.assert_array_equal(
        ChainClassifier().fit(X, y).coef_, ChainClassifier(l2=1 / 20).fit(X, y).coef_
    )


def test_piecewise_training_reports_both_of_its_courses():
    X, y = made_up_chains(np.random.default_rng(17))
    data = training_chains(X, y)
    crf = ChainClassifier(training="piecewise").fit(X, y)
    # The classifier of nodes starts from equal labels, as many times as a chain has nodes.
    assert crf.objective_[0] == pytest.approx(len(data.labels) / len(data) * np.log(3))
    weights = -crf.coef_.T, -crf.intercept_[None], -crf.transition_coef_[None]
    assert crf.part_objective_[-1] == pytest.approx(loss_at(data, weights)[0])
    assert crf.part_objective_[-1] <= crf.part_objective_[0]
    assert ChainClassifier().fit(X, y).part_objective_ is None
    # Mini-batches are for the classifier: the two weights are found in few steps over all chains.
    batches = ChainClassifier(training="piecewise", optimizer="adam", max_iter=50).fit(X, y)
    assert len(batches.objective_) == 51
    assert len(batches.part_objective_) < 40


def test_tables_in_another_order_predict_the_same():
    X, y = made_up_chains(np.random.default_rng(18))
    crf = ChainClassifier().fit(X, y)
    before = crf.predict(X)
    crf.transition_coef_ = np.asfortranarray(crf.transition_coef_)
    crf.coef_ = np.asfortranarray(crf.coef_)
    for ours, theirs in zip(crf.predict(X), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_labels_of_several_kinds_are_refused():
    X = [np.ones((2, 1)), np.ones((2, 1))]
    assert "one kind" in refusal(ChainClassifier().fit, X, [[1, 2], ["a", "b"]])
    assert "one kind" in refusal(ChainClassifier().fit, X, [["a", "b"], ["a", 1]])
    crf = ChainClassifier().fit(X, ["ab", "ba"])
    assert "numbers; convert" in refusal(crf.score, X, [[1, 2], [2, 1]])


def test_features_that_leave_no_room_are_refused():
    X, y = made_up_chains(np.random.default_rng(19), n_chains=3)
    assert "must not exceed 1e+100" in refusal(ChainClassifier().fit, [1e101 * x for x in X], y)
    crf = ChainClassifier().fit(X, y)
    for function in (crf.predict, crf.predict_proba):
        assert "like those of fit" in refusal(function, [np.full((2, 4), 1e99)])


def test_wrong_input_is_refused():
    X, y = made_up_chains(np.random.default_rng(11), n_chains=3)
    for l2 in (-1, -1e-320, 1e31, np.inf, np.nan):
        assert "l2 must " in refusal(ChainClassifier(l2=l2).fit, X, y)
    assert "l2 must be a number" in refusal(ChainClassifier(l2=[1, 2]).fit, X, y)
    assert "optimizer" in refusal(ChainClassifier(optimizer="newton").fit, X, y)
    assert "training" in refusal(ChainClassifier(training="none").fit, X, y)
    assert "3 chains" in refusal(ChainClassifier().fit, X, y[:2])
    assert "y[0]" in refusal(ChainClassifier().fit, X, [y[0][:-1], *y[1:]])
    assert "in a list" in refusal(ChainClassifier().fit, X[0], y[0])
    assert "NaN" in refusal(ChainClassifier().fit, X[:1], [np.full(len(X[0]), np.nan)])
    assert "finite" in refusal(ChainClassifier().fit, [np.full((1, 2), np.inf)], [[0]])
    mixed = [np.array([1, "a"], dtype=object)]
    assert "one kind" in refusal(ChainClassifier().fit, [np.ones((2, 1))], mixed)
    assert "a parameter" in refusal(ChainClassifier().set_params, D=1)
    with pytest.raises(NotFittedError):
        ChainClassifier().predict(X)
    crf = ChainClassifier().fit(X, y)
    assert "4 features" in refusal(crf.predict, [np.ones((2, 5))])
    assert "threads" in refusal(ChainClassifier(threads=0).fit, X, y)
    spoilt = [x.copy() for x in X]
    spoilt[1][0, 2] = np.nan
    for call in (crf.predict, lambda X: ChainClassifier().fit(X, y)):
        assert "X[1] must be finite, got nan at index (0, 2)" in refusal(call, spoilt)
    sparse = pytest.importorskip("scipy.sparse")
    assert "X[0] must be a dense array" in refusal(crf.predict, [sparse.csr_matrix(X[0])])
    assert "call .toarray()" in refusal(crf.predict, sparse.csr_matrix(X[0]))


def test_object_arrays_are_lists_of_chains():
    X, y = made_up_chains(np.random.default_rng(12), n_chains=5)
    Xo, yo = np.empty(5, object), np.empty(5, object)
    Xo[:], yo[:] = X, y
    crf = ChainClassifier().fit(X, y)
    np.testing.assert_array_equal(ChainClassifier().fit(Xo, yo).coef_, crf.coef_)
    # Chains of one length become one array of numbers that are objects.
    X, y = [np.ones((3, 2)), np.zeros((3, 2))], [[0, 1, 1], [1, 0, 0]]
    found = ChainClassifier().fit(np.array(X, dtype=object), np.array(y, dtype=object))
    assert found.classes_.dtype.kind == "i"
    assert found.score(X, y) == found.score(np.array(X, dtype=object), y)


def test_small_features_do_no_harm():
    rng = np.random.default_rng(0)
    labels = [rng.integers(0, 2, 5) for _ in range(20)]
    edges = np.stack([np.arange(4), np.arange(1, 5)], 1)
    X = [
        (np.stack([y + rng.normal(0, 0.5, 5), 1e-10 * rng.normal(size=5)], 1), edges)
        for y in labels
    ]
    assert GraphClassifier().fit(X, labels).score(X, labels) > 0.75


def test_graphs_without_edges_among_others():
    alone = (np.array([[1.0], [-1.0]]), np.zeros((0, 2), int), np.zeros((0, 2)))
    joined = (np.array([[1.0], [-1.0]]), [[0, 1]], np.array([[1.0, 0.5]]))
    model = GraphClassifier(tol=0.1).fit([alone, joined], [[1, 0], [1, 0]])
    assert model.predict([alone])[0].tolist() == [1, 0]
    lonely = GraphClassifier(training="piecewise", tol=0.1).fit([alone[:2]], [[1, 0]])
    assert not lonely.pair_coef_[0].any()
    assert lonely.part_weights_.shape == (1,)
    mixed = [alone, (joined[0], joined[1])]
    assert "as many features" in refusal(GraphClassifier().fit, mixed, [[1, 0], [1, 0]])


def test_a_failed_fit_leaves_the_model_as_it_was():
    X, y = [np.ones((2, 2, 1))], [np.array([[0, 1], [0, 1]])]
    model = GridClassifier(tol=10.0).fit(X, y)
    model.l2 = -1.0
    assert "l2 must lie between" in refusal(model.fit, X, [np.array([[0, 1], [2, 1]])])
    assert model.predict(X)[0].shape == (2, 2)
    assert model.set_params(l2=1.0).fit(np.array(X), np.array(y)).classes_.tolist() == [0, 1]


def chain_examples(rng, count=30):
    features, labels = [], []
    for _ in range(count):
        length = int(rng.integers(2, 8))
        y = np.cumsum(rng.integers(0, 2, length)) % 3
        features.append(np.eye(3)[y] + rng.normal(0, 0.8, (length, 3)))
        labels.append(y)
    return features, labels


def as_graphs(features):
    edges = [np.stack([np.arange(len(f) - 1), np.arange(1, len(f))], 1) for f in features]
    return list(zip(features, edges, strict=True))


@pytest.mark.parametrize("optimizer", ["lbfgs", "cg", "gd"])
def test_a_chain_as_a_graph_learns_what_the_chain_learns(optimizer):
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


def test_a_chain_as_a_graph_is_trained_piecewise_as_the_chain():
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
def test_mini_batches_come_near_the_optimum(optimizer):
    X, y = chain_examples(np.random.default_rng(1))
    best = GraphClassifier(directed=True).fit(as_graphs(X), y).objective_[-1]
    model = GraphClassifier(directed=True, optimizer=optimizer, max_iter=60, batch_size=5)
    found = model.fit(as_graphs(X), y).objective_
    assert found[-1] < best + 0.2 * (found[0] - best)


def test_undirected_graphs_have_symmetric_tables():
    X, y = chain_examples(np.random.default_rng(2))
    model = GraphClassifier(max_iter=30, tol=1e-3).fit(as_graphs(X), y)
    table = model.pair_coef_[0][0]
    np.testing.assert_allclose(table, table.T)


@pytest.mark.parametrize("training", ["joint", "piecewise"])
def test_edge_features_choose_between_tables(training):
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
    model = GraphClassifier(l2=0.1 / 40, training=training).fit(X, y)
    same, different = model.pair_coef_[0]
    assert np.trace(same) > np.trace(same[::-1])
    assert np.trace(different) < np.trace(different[::-1])
    assert model.score(X, y) > 0.85


def test_grids_learn_to_smooth():
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


def test_large_grids_are_learned_as_well_as_messages_can_tell():
    rng = np.random.default_rng(5)
    smooth = rng.normal(size=(8, 8)).repeat(5, 0).repeat(5, 1)
    X, y = [np.stack([smooth + rng.normal(0, 0.8, (40, 40))], -1)], [(smooth > 0).astype(int)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = GridClassifier().fit(X, y)
    assert 1e-2 < model.expectations_.largest_gap <= 1600 * Propagation().tol


def test_many_grids_are_learned_as_well_as_one():
    rng = np.random.default_rng(5)
    y = (rng.random((20, 20)) < 0.5).astype(int)
    X = y[..., None] + rng.normal(0, 0.5, (20, 20, 1))
    model = GridClassifier(l2=1.0).fit([X] * 30, [y] * 30)
    assert model.expectations_.largest_gap <= 400 * Propagation().tol


@pytest.mark.parametrize("convex", [True, False])
def test_messages_with_one_fixed_point_are_gone_on_from(convex):
    rng = np.random.default_rng(8)
    model = GridClassifier(inference=Propagation(convex=convex))
    samples, _ = model._read([rng.normal(size=(6, 7, 2))])
    examples = model._examples(samples, [rng.integers(0, 2, 42, np.int32)], 2)
    weights = [rng.normal(size=shape) for shape in examples.shapes]
    first, _ = examples.loss(weights)
    n_iter = len(examples.last.residuals)
    again, _ = examples.loss(weights)
    assert again == pytest.approx(first, abs=1e-3)
    assert (len(examples.last.residuals) == 1) == convex
    assert n_iter > 5


def test_inference_is_done_as_asked():
    rng = np.random.default_rng(7)
    y = [(rng.random((4, 5)) < 0.5).astype(int) for _ in range(3)]
    X = [labels[..., None] + rng.normal(0, 0.5, (4, 5, 1)) for labels in y]
    bound, bethe = (
        GridClassifier(inference=Propagation(convex=convex)).fit(X, y) for convex in (True, False)
    )
    assert bound.objective_[-1] > bethe.objective_[-1] + 1e-3
    with pytest.warns(UserWarning, match="raise max_iter or tol of inference"):
        GridClassifier(tol=0.5, inference=Propagation(max_iter=2)).fit(X, y)


def test_piecewise_training_is_near_joint_training():
    X, y = chain_examples(np.random.default_rng(5), 60)
    graphs = as_graphs(X)
    joint = GraphClassifier(directed=True).fit(graphs[:40], y[:40])
    pieces = GraphClassifier(directed=True, training="piecewise").fit(graphs[:40], y[:40])
    assert pieces.part_weights_ is not None
    assert pieces.part_weights_.shape == (2,)
    assert pieces.score(graphs[40:], y[40:]) > joint.score(graphs[40:], y[40:]) - 0.05


@pytest.mark.parametrize(("X", "y", "message"), [
    ([], [], "X must be a list of graphs"),
    ([np.zeros((2, 1))], [[0, 1]], "must be (features, edges)"),
    ([(np.zeros((2, 1)), [[0, 2]])], [[0, 1]], "must name nodes 0 to 1"),
    ([(np.zeros((2, 1)), [[0, 1]])], [[0, 1, 1]], "y[0] must have shape (2,)"),
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
    ([(np.zeros((2, 1)), [[0, 1]])], [[0, [1]]], "y[0] must be an array of labels"),
    ([(np.full((2, 1), 1e200), [[0, 1]])], [[0, 1]], "must not exceed 1e+100"),
])
def test_wrong_graphs_are_refused(X, y, message):
    assert message in refusal(GraphClassifier().fit, X, y)


def test_wrong_grids_and_settings_are_refused():
    X, y = [np.zeros((2, 2, 1))], [np.array([[0, 1], [0, 1]])]
    assert "(H, W, F)" in refusal(GridClassifier().fit, [np.zeros((2, 2))], y)
    assert "optimizer must be one of" in refusal(GridClassifier(optimizer="newton").fit, X, y)
    assert "fit" in refusal(GridClassifier().predict, X)
    assert "l2 must lie between" in refusal(GridClassifier(l2=1e31).fit, X, y)
    wrong = GridClassifier(inference={"max_iter": 5})
    assert "inference must be a Propagation" in refusal(wrong.fit, X, y)
    assert "max_iter must be" in refusal(Propagation, max_iter=0)
    assert "damping must be" in refusal(Propagation, damping=1.0)
    assert "tol must be positive" in refusal(Propagation, tol=0)
    wild = GridClassifier(optimizer="sgd", step_size=1e40, max_iter=3)
    assert "smaller step_size" in refusal(wild.fit, [np.ones((2, 2, 1))], y)
    assert "y[0] must be an array of labels" in refusal(GridClassifier().fit, X, [[[0, 1], [0]]])
    far = GridClassifier(tol=0.01).fit([np.array([[[0.0], [1]], [[0], [1]]])], y)
    assert "X must give scores of at most" in refusal(far.predict, [np.full((2, 2, 1), 1e90)])
    model = GridClassifier(tol=10.0).fit(X, y)
    words = [np.array([["a", "b"], ["a", "b"]])]
    assert "kind that fit had, numbers, got strings" in refusal(model.score, X, words)
    assert "1 features like the grids of fit" in refusal(model.predict, [np.zeros((2, 2, 3))])
