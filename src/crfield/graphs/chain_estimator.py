"""A log-linear chain with the interface of a scikit-learn estimator, one sample a chain."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.estimator import Estimator
from crfield._core.validate import (
    LARGEST_COST,
    InputError,
    as_choice,
    as_count,
    as_floats,
    as_positive_number,
    check_finite,
)
from crfield.graphs._estimator_checks import (
    LARGEST_FEATURE,
    as_label_arrays,
    as_strength,
    check_kind,
    number_classes,
)
from crfield.graphs.chain_learning import ChainModel, Course, TrainingChains, learn_chains
from crfield.graphs.chain_training import learn_piecewise, match_expectations
from crfield.graphs.chains import Chains, Doubles, Offsets, join_chains
from crfield.graphs.engines.chains import minimize_chains, sum_chains
from crfield.learning.optimizers import OPTIMIZERS

TRAININGS = ("joint", "piecewise")

_DOUBLE = np.dtype(np.float64)


@dataclass(eq=False, kw_only=True)
class ChainCRF(Estimator):
    """Labels every node of a chain from its features and from its neighbors' labels.

    P(y | X) is proportional to exp(sum_t (X W + b)[t, y_t] + sum_t A[y_t, y_{t+1}]). A sample is a
    chain: X is a list of arrays (T, F) and y a list of (T,), of any lengths.

    Parameters
    ----------
    C : inverse strength of the ridge, 1e-30 to 1e30: C sum_chains -log P(y | X) +
        1/2 (|W|^2 + |A|^2) is minimized, as by scikit-learn's LogisticRegression.
    optimizer : "lbfgs", "cg", "gd" (gradient descent with a line search), or "adam" and "sgd" on
        mini-batches; with "piecewise" training these two learn the classifier only, and "cg" the
        weights of the parts.
    max_iter : iterations, or epochs of mini-batches.
    tol : the largest difference of an expected and an observed feature, a chain, to stop at; it is
        divided by the feature's largest number, or the root of 1 / (C n_chains), if beyond 1.
    training : "joint" learns everything by maximum conditional likelihood; "piecewise" a
        classifier of single nodes and a table of pairs, then one weight for each.
    batch_size, step_size : chains in a mini-batch, and the length of a step, of "adam" and "sgd".
    random_state : whole number, the order of mini-batches.
    threads : native threads, by default as many as there are cores.

    Attributes
    ----------
    classes_ : (L,) labels in the order of the columns of `predict_proba`.
    coef_ : (L, F), W transposed.
    intercept_ : (L,), b.
    transition_coef_ : (L, L), A: the score of each pair of successive classes.
    n_features_in_, n_iter_ : number of features, and of iterations.
    objective_ : the mean over chains of what is minimized, at the start and after each iteration;
        of piecewise training that of the classifier, summed over the nodes of a chain.
    expectations_ : observed against expected features, an `Expectations`.
    part_weights_ : (v_1, v_2) of piecewise training, else None.
    part_objective_ : the mean negative log-likelihood of chains at the start and after each step
        towards these weights, else None.

    Examples
    --------
    >>> crf = ChainCRF(C=0.1).fit([features], [labels])  # doctest: +SKIP
    """

    C: float = 1.0
    optimizer: str = "lbfgs"
    max_iter: int = 200
    tol: float = 1e-5
    training: str = "joint"
    batch_size: int = 16
    step_size: float = 0.01
    random_state: int = 0
    threads: int | None = None

    def fit(self, X: Any, y: Any) -> ChainCRF:
        """Learn from features (T, F) and labels (T,) of each chain."""
        as_choice(self.optimizer, "optimizer", OPTIMIZERS)
        as_choice(self.training, "training", TRAININGS)
        features, offsets = _join_features(X)
        classes, labels = number_classes(_join_labels(y, offsets))
        data = TrainingChains(features, labels, offsets)
        l2 = 1.0 / (as_strength(self.C) * len(data))
        settings: dict[str, Any] = {
            "l2": l2, "optimizer": self.optimizer, "threads": self.threads,
            "max_iter": as_count(self.max_iter, "max_iter"),
            "tol": as_positive_number(self.tol, "tol"),
            "batch_size": as_count(self.batch_size, "batch_size"),
            "step_size": as_positive_number(self.step_size, "step_size"),
            "seed": as_count(self.random_state, "random_state", 0),
        }
        if self.training == "piecewise":
            model, course, parts = learn_piecewise(data, len(classes), **settings)
        else:
            start = ChainModel.zeros(features.shape[1], len(classes))
            model, course = learn_chains(start, data, **settings)
            parts = None
        self.part_weights_ = None if parts is None else parts.weights
        self.part_objective_ = None if parts is None else np.array(parts.course.values)
        self.classes_ = classes
        self.coef_, self.intercept_ = model.weights.T.copy(), model.bias
        self.transition_coef_ = model.transitions
        self.n_features_in_ = features.shape[1]
        self.n_iter_, self.objective_ = course.n_iter, np.array(course.values)
        self.expectations_ = match_expectations(model, data, l2, self.threads)
        if self.optimizer not in ("adam", "sgd"):
            self._warn_of(course)
        if parts is not None:
            self._warn_of(parts.course)
        return self

    def _warn_of(self, course: Course) -> None:
        if course.converged:
            return
        if course.n_iter >= self.max_iter:
            text = (
                f"learning stopped after max_iter={self.max_iter} iterations before it converged; "
                "raise max_iter, or lower C."
            )
        else:
            text = (
                f"learning found no step that leads down after {course.n_iter} iterations, at a "
                f"gap of {course.gap:.2g} where tol={self.tol:g} is asked for; scale the features "
                "to numbers of about 1, or raise tol."
            )
        warnings.warn(text, stacklevel=3)

    def predict(self, X: Any) -> list[NDArray[Any]]:
        """The most probable labels of each chain as a whole, a list of (T,)."""
        batch = self._batch(X)
        labels, _ = minimize_chains(batch, self.threads)
        return batch.split(self.classes_[labels])

    def predict_proba(self, X: Any) -> list[Doubles]:
        """The marginals of each node's labels, a list of (T, L)."""
        batch = self._batch(X)
        _, marginals, _ = sum_chains(batch, 1.0, None, self.threads)
        return np.split(marginals, batch.offsets[1:-1])

    def score(self, X: Any, y: Any) -> float:
        """The share of nodes with the right label, counted over all chains together."""
        batch = self._batch(X)
        truth = _join_labels(y, batch.offsets)
        check_kind(truth, self.classes_)
        labels, _ = minimize_chains(batch, self.threads)
        return float((self.classes_[labels] == truth).mean())

    def _batch(self, X: Any) -> Chains:
        self._check_fitted("coef_")
        features, offsets = _join_features(X)
        if features.shape[1] != self.n_features_in_:
            raise InputError(
                f"X must have {self.n_features_in_} features like the chains of fit, got "
                f"{features.shape[1]}; compute the same features."
            )
        model = ChainModel(self.coef_.T, self.intercept_, self.transition_coef_)
        with np.errstate(over="ignore", invalid="ignore"):
            batch = model.batch(features, offsets)
        most = float(np.abs(batch.costs).max())
        if not most <= LARGEST_COST:
            raise InputError(
                f"X must give scores of at most {LARGEST_COST:g}, got {most:.3g}; scale the "
                "features like those of fit."
            )
        return batch


def _join_features(X: Any) -> tuple[Doubles, Offsets]:
    if isinstance(X, np.ndarray) and X.ndim == 2:
        raise InputError(
            f"X must be a list of arrays (T, F), got one array of shape {X.shape}; "
            "put a single chain in a list."
        )
    # np.array(chains, dtype=object), as chains of several lengths are often kept.
    is_object = isinstance(X, np.ndarray) and X.dtype.kind == "O"
    rows, offsets = join_chains(X.tolist() if is_object else X, None, "X", "F")
    if rows.shape[1] == 0:
        raise InputError("X must have at least one feature, got none; use a constant 1.")
    with np.errstate(over="ignore", invalid="ignore"):
        total = rows.sum(dtype=np.float64)
    if not np.isfinite(total):
        for c, part in enumerate(np.split(rows, offsets[1:-1])):
            check_finite(part, f"X[{c}]")
    features: Doubles = as_floats(rows, "X", _DOUBLE).astype(np.float64, copy=False)
    most = float(np.abs(features).max())
    if most > LARGEST_FEATURE:
        raise InputError(
            f"X must not exceed {LARGEST_FEATURE:g} in magnitude, got {most:.3g}; scale the "
            "features to numbers of about 1."
        )
    return features, offsets


def _join_labels(y: Any, offsets: Offsets) -> NDArray[Any]:
    """The labels of all nodes, (N,)."""
    shapes = [(int(length),) for length in np.diff(offsets)]
    return np.concatenate(as_label_arrays(y, shapes, "chain", "node"))
