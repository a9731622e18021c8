"""Log-linear chains: exact gradients, the optimum's expectations, scikit-learn's conventions."""

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

from chain_reference import enumerate_chain
from crfield.estimators import NotFittedError
from crfield.graphs import ChainClassifier, chain_loss
from crfield.graphs.log_linear import ChainExamples, Descent, Likelihood, fit, fit_piecewise
from refusal import refusal

TRUE_TABLE = np.array([[1.5, 0.0, -2.0], [-1.0, 1.0, 0.5], [0.5, -1.5, 1.0]])


def made_up_chains(rng, n_chains=40, n_features=4):
    """Chains of three states, each drawn given its features and the state before."""
    n_states = len(TRUE_TABLE)
    weights = np.random.default_rng(0).standard_normal((n_features, n_states))
    X, y = [], []
    for length in rng.integers(1, 12, size=n_chains):
        features = rng.standard_normal((length, n_features))
        scores = features @ weights
        states = [int(rng.choice(n_states, p=softmax(scores[0])))]
        for row in scores[1:]:
            states.append(int(rng.choice(n_states, p=softmax(row + TRUE_TABLE[states[-1]]))))
        X.append(features)
        y.append(np.array(states))
    return X, y


def softmax(x):
    e = np.exp(x - x.max())
    return e / e.sum()


def training_chains(X, y):
    offsets = np.cumsum([0, *map(len, X)]).astype(np.int64)
    return ChainExamples(np.concatenate(X), np.concatenate(y).astype(np.int32), offsets, 3)


def loss_at(data, weights, l2=0.0):
    """The objective at weights, which are costs, and its gradient for each term."""
    likelihood = Likelihood(data, l2)
    value, gradient = likelihood(likelihood.to_vector(weights), None)
    return value, likelihood.from_vector(gradient)


def slopes(function, x, step=1e-5):
    """Central differences of a function of an array."""
    slope = np.empty_like(x)
    for index in np.ndindex(x.shape):
        ends = []
        for sign in (1, -1):
            moved = x.copy()
            moved[index] += sign * step
            ends.append(function(moved))
        slope[index] = (ends[0] - ends[1]) / (2 * step)
    return slope


@pytest.mark.parametrize("per_edge", [False, True])
def test_the_loss_is_enumerated_and_its_gradient_the_central_differences(per_edge):
    rng = np.random.default_rng(1)
    lengths = [4, 1, 3]
    costs = rng.standard_normal((8, 3))
    tables = rng.standard_normal((5, 3, 3) if per_edge else (3, 3))
    labels = rng.integers(0, 3, size=8)
    found = chain_loss(costs, tables, labels, lengths=lengths)
    expected, node, edge = 0.0, 0, 0
    for length in lengths:
        part = tables[edge : edge + length - 1] if per_edge else tables
        every = enumerate_chain(costs[node : node + length], part)
        states = labels[node : node + length]
        truth = (every.labels == states).all(1)
        expected += every.energies[truth][0] + every.log_partition
        node, edge = node + length, edge + length - 1
    assert found.value == pytest.approx(expected, abs=1e-10)
    by_costs = slopes(lambda c: chain_loss(c, tables, labels, lengths=lengths).value, costs)
    by_tables = slopes(lambda t: chain_loss(costs, t, labels, lengths=lengths).value, tables)
    np.testing.assert_allclose(found.by_costs, by_costs, atol=1e-6)
    np.testing.assert_allclose(found.by_transitions, by_tables, atol=1e-6)


def test_the_gradient_by_parameters_is_that_of_central_differences():
    rng = np.random.default_rng(2)
    data = training_chains(*made_up_chains(rng, n_chains=6))
    likelihood = Likelihood(data, 0.3)
    x = rng.standard_normal(likelihood.scale.shape)
    _, gradient = likelihood(x, None)
    differences = slopes(lambda v: likelihood(v, None)[0], x)
    np.testing.assert_allclose(gradient, differences, atol=1e-6)


def test_chains_that_are_taken_are_those_chains():
    X, y = made_up_chains(np.random.default_rng(3), n_chains=5)
    some = training_chains(X, y).take([3, 0, 3])
    np.testing.assert_array_equal(some.features, np.concatenate([X[3], X[0], X[3]]))
    np.testing.assert_array_equal(some.labels, np.concatenate([y[3], y[0], y[3]]))
    np.testing.assert_array_equal(np.diff(some.offsets), [len(X[3]), len(X[0]), len(X[3])])


def test_at_the_optimum_the_model_expects_what_is_observed():
    data = training_chains(*made_up_chains(np.random.default_rng(4), n_chains=100))
    likelihood = Likelihood(data, 0.01)
    learned = fit(likelihood, Descent())
    found = likelihood.expectations(learned.weights)
    assert found.largest_gap < 1e-3
    nothing = likelihood.from_vector(np.zeros_like(likelihood.scale))
    assert likelihood.expectations(nothing).largest_gap > 0.1
    np.testing.assert_allclose(found.observed[1][0], np.bincount(data.labels), atol=1e-12)
    np.testing.assert_allclose(found.expected[1][0], np.bincount(data.labels), atol=0.1)
    assert found.observed[2].sum() == pytest.approx(found.expected[2].sum())
    assert learned.course.values[-1] < learned.course.values[0]


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


def test_neighbors_help_where_features_say_little():
    rng = np.random.default_rng(6)
    X, y = [], []
    for length in rng.integers(1, 15, size=300):
        jumps = rng.random(length) < 0.15
        y.append(np.cumsum(rng.integers(0, 3, size=length) * jumps) % 3)
        X.append(np.eye(3)[y[-1]] + rng.standard_normal((length, 3)))
    nodes = [row[None] for part in X[:200] for row in part]
    labels = [np.array([label]) for part in y[:200] for label in part]
    alone = ChainClassifier().fit(nodes, labels)
    alone_score = alone.score(
        [row[None] for part in X[200:] for row in part],
        [np.array([label]) for part in y[200:] for label in part],
    )
    joint = ChainClassifier().fit(X[:200], y[:200])
    piecewise = ChainClassifier(training="piecewise").fit(X[:200], y[:200])
    assert joint.score(X[200:], y[200:]) > alone_score + 0.08
    assert piecewise.score(X[200:], y[200:]) > alone_score + 0.06
    assert joint.objective_[-1] > 0
    assert all(weight > 0 for weight in piecewise.part_weights_)


def test_the_weights_of_the_parts_are_optimal():
    data = training_chains(*made_up_chains(np.random.default_rng(7), n_chains=50))
    found = fit_piecewise(Likelihood(data, 1.0), Descent())
    weights, (coef, bias, transitions) = found.part_weights, found.weights
    at = [
        loss_at(data, (a * coef, a * bias, b * transitions))[0]
        for a, b in ((1, 1), (1.05, 1), (0.95, 1), (1, 1.05), (1, 0.95))
    ]
    assert at[0] == min(at)
    # A strong penalty makes the classifier of nodes timid; its weight makes up for it.
    assert weights[0] > 1.2 * weights[1] > 0
    pairs = np.ones((3, 3))
    for begin, end in zip(data.offsets[:-1], data.offsets[1:], strict=True):
        np.add.at(pairs, (data.labels[begin : end - 1], data.labels[begin + 1 : end]), 1)
    pairs /= pairs.sum()
    information = np.log(pairs / pairs.sum(1)[:, None] / pairs.sum(0))
    np.testing.assert_allclose(transitions[0], -weights[1] * information, atol=1e-12)


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


@pytest.mark.parametrize("optimizer", ["lbfgs", "cg"])
@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-7])
def test_convergence_means_that_the_gradient_is_small(tol, optimizer):
    data = training_chains(*made_up_chains(np.random.default_rng(13)))
    descent = Descent(tol=tol, optimizer=optimizer, max_iter=1000)
    learned = fit(Likelihood(data, 0.1), descent)
    course = learned.course
    assert course.converged
    largest = np.maximum(np.abs(data.features).max(0), 1)[:, None]
    _, (by_coef, by_bias, by_transitions) = loss_at(data, learned.weights, 0.1)
    gaps = [by_coef / largest, by_bias, by_transitions]
    assert max(np.abs(gap).max() for gap in gaps) == pytest.approx(course.gap)
    assert course.gap <= tol
    assert len(course.values) == course.n_iter + 1


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
    assert "one kind" in refusal(
        ChainClassifier().fit, [np.ones((2, 1))], [np.array([1, "a"], dtype=object)]
    )
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
