"""Log-linear models of chains, grids and graphs with the interface of scikit-learn estimators.

What is learned are costs; `coef_`, `intercept_` and the tables of pairs are scores, their
negatives, as scikit-learn has them.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from crfield._core.estimator import Estimator
from crfield._core.optimize import OPTIMIZERS
from crfield._core.validate import (
    LARGEST_COST,
    InputError,
    as_choice,
    as_count,
    as_floats,
    as_positive_number,
    as_within,
    check_finite,
    shown,
)
from crfield._core.warning import warn
from crfield.graphs.chains import Chains, Labels, join_chains
from crfield.graphs.engines.chains import minimize_chains, sum_chains
from crfield.graphs.factors import Doubles, GridFactors, as_variables
from crfield.graphs.feature_graph import FeatureGraph, FeatureTerm, Weights
from crfield.graphs.inference import infer
from crfield.graphs.log_linear import (
    MINI_BATCHES,
    TRAININGS,
    ChainExamples,
    Course,
    Descent,
    Examples,
    Expectations,
    GraphExamples,
    Likelihood,
    chain_batch,
    largest_cost,
)
from crfield.graphs.results import Result
from crfield.graphs.settings import Propagation

DECODINGS = ("map", "marginals")
DEFAULT_INFERENCE = Propagation()
_LEAST_TOL = 1e-2
LARGEST_FEATURE, LARGEST_PENALTY = 1e100, 1e30

Shape = tuple[int, ...]

_DOUBLE = np.dtype(np.float64)


@dataclass(eq=False, kw_only=True)
class _LogLinearClassifier(Estimator):
    """What estimators of chains, graphs and grids have in common."""

    l2: float | None = None
    optimizer: str = "lbfgs"
    max_iter: int = 200
    tol: float | None = 1e-5
    training: str = "joint"
    batch_size: int = 16
    step_size: float = 0.01
    random_state: int = 0
    threads: int | None = None
    progress: bool = False

    # What a sample and its places are called in messages.
    _sample: ClassVar[str]
    _place: ClassVar[str]

    @abstractmethod
    def _read(self, X: Any) -> tuple[Any, list[Shape]]:
        """Samples, checked, and the shape of the labels of each."""

    @abstractmethod
    def _examples(self, samples: Any, labels: list[Labels], n_classes: int) -> Examples:
        """Samples with their labels."""

    @abstractmethod
    def _keep_pairs(self, scores: Weights) -> None:
        """Keep the tables of pairs."""

    @abstractmethod
    def predict(self, X: Any) -> list[NDArray[Any]]:
        """Labels of each sample."""

    def fit(self, X: Any, y: Any) -> Self:
        """Learn from samples and the labels of each."""
        learn = TRAININGS[as_choice(self.training, "training", TRAININGS)]
        samples, shapes = self._read(X)
        descent = Descent(
            as_choice(self.optimizer, "optimizer", OPTIMIZERS),
            as_count(self.max_iter, "max_iter"), self._tol_for(shapes),
            as_count(self.batch_size, "batch_size"),
            as_positive_number(self.step_size, "step_size"),
            as_count(self.random_state, "random_state", 0), bool(self.progress),
        )
        classes, labels = _number_labels(y, shapes, self._sample, self._place)
        l2 = 1.0 / len(shapes) if self.l2 is None else as_within(
            self.l2, "l2", 0, LARGEST_PENALTY,
            "None, one over the number of samples, is a common choice",
        )
        examples = self._examples(samples, labels, len(classes))
        likelihood = Likelihood(examples, l2)
        found = learn(likelihood, descent)
        self.classes_ = classes
        coef, intercept, *pairs = (0.0 - w for w in found.weights)
        self.coef_, self.intercept_ = coef.T.copy(), intercept[0]
        self._keep_pairs(tuple(pairs))
        self.n_features_in_ = len(coef)
        self.n_iter_, self.objective_ = found.course.n_iter, np.array(found.course.values)
        self.part_weights_ = found.part_weights
        last = found.part_course
        self.part_objective_ = None if last is None else np.array(last.values)
        self.expectations_: Expectations = likelihood.expectations(found.weights)
        if self.optimizer not in MINI_BATCHES:
            self._warn_of(found.course, descent.tol)
        if last is not None:
            self._warn_of(last, descent.tol)
        self._warn_more(examples)
        return self

    def _tol_for(self, shapes: list[Shape]) -> float:
        """`tol`, checked, for samples whose labels have these shapes."""
        return as_positive_number(self.tol, "tol")

    def _warn_of(self, course: Course, tol: float) -> None:
        if course.converged:
            return
        if course.n_iter >= self.max_iter:
            text = (
                f"learning stopped after max_iter={self.max_iter} iterations before it converged; "
                "raise max_iter or l2."
            )
        else:
            text = (
                f"learning found no step that leads down after {course.n_iter} iterations, at a "
                f"gap of {course.gap:.2g} where tol={tol:g} is asked for; {self._remedy()}."
            )
        warn(text)

    def _remedy(self) -> str:
        """What helps where no step leads down."""
        return "scale the features to numbers of about 1, or raise tol"

    def _warn_more(self, examples: Any) -> None:
        """Say what else went wrong in learning."""

    def score(self, X: Any, y: Any) -> float:
        """The share of right labels, counted over all samples together."""
        found = self.predict(X)
        known = _as_label_arrays(y, [part.shape for part in found], self._sample, self._place)
        if _kind_of(known[0]) != _kind_of(self.classes_):
            raise InputError(
                f"y must hold labels of the kind that fit had, {_kind_of(self.classes_)}s, got "
                f"{_kind_of(known[0])}s; convert them."
            )
        right = sum(int((f == k).sum()) for f, k in zip(found, known, strict=True))
        return right / sum(part.size for part in found)

    def _check_features(self, found: int) -> None:
        if found != self.n_features_in_:
            raise InputError(
                f"X must have {self.n_features_in_} features like the {self._sample}s of fit, got "
                f"{found}; compute the same features."
            )


@dataclass(eq=False, kw_only=True)
class ChainClassifier(_LogLinearClassifier):
    """Labels every node of a chain from its features and from its neighbors' labels.

    P(y | X) is proportional to exp(sum_t (X W + b)[t, y_t] + sum_t A[y_t, y_{t+1}]). A sample is a
    chain: X is a list of arrays (T, F) and y a list of (T,), of any lengths.

    Parameters
    ----------
    l2 : strength of the penalty, 0 to 1e30: the mean over chains of -log P(y | X) plus
        l2 / 2 (|W|^2 + |A|^2) is minimized. None for 1 / n_chains. An inverse strength C of
        scikit-learn's LogisticRegression is l2 = 1 / (C n_chains).
    optimizer : "lbfgs", "cg", "gd" (gradient descent with a line search), or "adam" and "sgd" on
        mini-batches; with "piecewise" training these two learn the classifier only, and "cg" the
        weights of the parts.
    max_iter : iterations, or epochs of mini-batches.
    tol : the largest difference per chain of an expected and an observed feature to stop at; it is
        divided by the feature's largest number, or the root of l2, if beyond 1.
    training : "joint" learns everything by maximum conditional likelihood; "piecewise" a
        classifier of single nodes and a table of pairs, then one weight for each.
    batch_size, step_size : chains in a mini-batch, and the length of a step, of "adam" and "sgd".
    random_state : whole number, the order of mini-batches.
    threads : native threads, by default as many as there are cores.
    progress : whether to show a bar while learning.

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
    part_weights_ : (2,), the weights v of piecewise training, else None.
    part_objective_ : the mean negative log-likelihood of chains at the start and after each step
        towards these weights, else None.

    Examples
    --------
    >>> model = ChainClassifier(l2=0.1).fit([features], [labels])  # doctest: +SKIP
    """

    _sample, _place = "chain", "node"

    def _read(self, X: Any) -> tuple[Any, list[Shape]]:
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
        features = _as_doubles(rows, "X")
        _check_size(features, "X")
        return (features, offsets), [(int(length),) for length in np.diff(offsets)]

    def _examples(self, samples: Any, labels: list[Labels], n_classes: int) -> Examples:
        features, offsets = samples
        return ChainExamples(
            features, np.concatenate(labels), offsets, n_classes, self.threads
        )

    def _keep_pairs(self, scores: Weights) -> None:
        self.transition_coef_ = scores[0][0]

    def predict(self, X: Any) -> list[NDArray[Any]]:
        """The most probable labels of each chain as a whole, a list of (T,)."""
        batch = self._batch(X)
        return batch.split(self.classes_[minimize_chains(batch, self.threads)[0]])

    def predict_proba(self, X: Any) -> list[Doubles]:
        """The marginals of each node's labels, a list of (T, L)."""
        batch = self._batch(X)
        _, marginals, _ = sum_chains(batch, 1.0, None, self.threads)
        return batch.split(marginals)

    def _batch(self, X: Any) -> Chains:
        self._check_fitted("coef_")
        (features, offsets), _ = self._read(X)
        self._check_features(features.shape[1])
        weights = -self.coef_.T, -self.intercept_[None], -self.transition_coef_[None]
        with np.errstate(over="ignore", invalid="ignore"):
            batch = chain_batch(features, offsets, weights)
        _check_scores(float(np.abs(batch.costs).max()))
        return batch


@dataclass(eq=False, kw_only=True)
class _LoopyClassifier(_LogLinearClassifier):
    """What estimators of graphs and of grids have in common.

    P(y | X) is proportional to exp(sum_v (X W + b)[v, y_v] + sum_e phi_e'A[y_u, y_v]). Inference is
    exact on forests; on loops marginals and log Z are those of belief propagation.
    """

    max_iter: int = 100
    tol: float | None = None
    decode: str = "map"
    inference: Propagation = DEFAULT_INFERENCE

    @abstractmethod
    def _pair_terms(self) -> list[bool]:
        """Of each term of pairs whether its tables are symmetric."""

    def _tol_for(self, shapes: list[Shape]) -> float:
        if self.tol is not None:
            return super()._tol_for(shapes)
        n_nodes = sum(map(math.prod, shapes)) / len(shapes)
        return max(_LEAST_TOL, self._propagation().tol * n_nodes)

    def _examples(self, samples: Any, labels: list[Labels], n_classes: int) -> Examples:
        as_choice(self.decode, "decode", DECODINGS)
        graphs = [_with_states(terms, n_classes) for terms in samples]
        shapes = [
            (term.n_features, *[n_classes] * term.variables.shape[1]) for term in graphs[0].terms
        ]
        symmetric = [False, False, *self._pair_terms()]
        return GraphExamples(graphs, labels, shapes, symmetric, self._inference(1.0))

    def _keep_pairs(self, scores: Weights) -> None:
        self.pair_coef_ = scores

    def _remedy(self) -> str:
        bound = "" if self.inference.convex else ", or use convex=True in inference"
        return super()._remedy() + bound

    def _warn_more(self, examples: Any) -> None:
        if not examples.last.converged:
            warn(
                "belief propagation did not converge at the last weights (last change "
                f"{examples.last.residuals[-1]:.2g}); raise max_iter or tol of inference, or l2."
            )

    def predict(self, X: Any) -> list[NDArray[Any]]:
        """Labels of each sample, in the shape of its variables.

        With decode="map" those of least energy together (exact on forests, max-product on loops),
        with "marginals" the most probable label of each variable.
        """
        t = 0.0 if as_choice(self.decode, "decode", DECODINGS) == "map" else 1.0
        return [
            self.classes_[result.labels].reshape(shape) for result, shape in self._infer(X, t)
        ]

    def predict_proba(self, X: Any) -> list[Doubles]:
        """Marginals of each sample, in the shape of its variables and labels last."""
        return [
            result.marginals.reshape(*shape, -1).astype(np.float64, copy=False)
            for result, shape in self._infer(X, 1.0)
        ]

    def _infer(self, X: Any, temperature: float) -> list[tuple[Result, Shape]]:
        self._check_fitted("coef_")
        weights = (-self.coef_.T, -self.intercept_[None], *(-part for part in self.pair_coef_))
        samples, shapes = self._read(X)
        out = []
        for terms, shape in zip(samples, shapes, strict=True):
            self._check_features(terms[0].n_features)
            if len(terms) != len(weights):
                raise InputError(
                    "directed must be as it was when the model was fitted, got another value; fit "
                    "again."
                )
            for term, w in zip(terms, weights, strict=True):
                if term.n_features != len(w):
                    raise InputError(
                        f"X must have {len(w)} edge features like the {self._sample}s of fit, got "
                        f"{term.n_features}; compute the same features."
                    )
            _check_scores(sum(
                largest_cost(w, term.largest) for term, w in zip(terms, weights, strict=True)
            ))
            graph = _with_states(terms, len(self.classes_)).graph(weights)
            out.append((infer(graph, **self._inference(temperature)), shape))
        return out

    def _inference(self, temperature: float) -> dict[str, Any]:
        """Arguments of `infer`."""
        return {
            "temperature": temperature, **vars(self._propagation()), "threads": self.threads
        }

    def _propagation(self) -> Propagation:
        if not isinstance(self.inference, Propagation):
            raise InputError(
                f"inference must be a Propagation, got {shown(self.inference)}; pass "
                "Propagation(max_iter=...)."
            )
        return self.inference


@dataclass(eq=False, kw_only=True)
class GraphClassifier(_LoopyClassifier):
    """Labels the nodes of graphs from their features and their neighbors' labels.

    P(y | X) is proportional to exp(sum_v (X W + b)[v, y_v] + sum_e phi_e'A[y_u, y_v]). A sample is
    a tuple (features (N, F), edges (E, 2)) or (features, edges, edge_features (E, D)); y is a list
    of labels (N,).

    Parameters
    ----------
    l2, optimizer, max_iter, tol, training, batch_size, step_size, random_state, threads, progress :
        as of `ChainClassifier`, with graphs for chains; "piecewise" training learns classifiers of
        single edges where edges have features. A `tol` of None is 0.01, or as much per node as the
        `tol` of `inference`, 0.0001, where that is more: no difference can be known better.
    decode : what `predict` returns, "map" or "marginals".
    directed : whether A may tell an edge's first node from its second; else A is symmetric.
    inference : how belief propagation on graphs with loops is done, a `Propagation`.

    Attributes
    ----------
    pair_coef_ : a tuple with A (D, L, L).
    The others are those of `ChainClassifier`, which has `transition_coef_` instead.
    """

    directed: bool = False

    _sample, _place = "graph", "node"

    def _pair_terms(self) -> list[bool]:
        return [not self.directed]

    def _read(self, X: Any) -> tuple[Any, list[Shape]]:
        samples: list[tuple[FeatureTerm, ...]] = []
        for i, part in enumerate(_as_list(X, "graphs")):
            if not isinstance(part, tuple | list) or len(part) not in (2, 3):
                raise InputError(
                    f"X[{i}] must be (features, edges) or (features, edges, edge_features), got "
                    f"{shown(part)}; pass a tuple."
                )
            features = _as_features(part[0], f"X[{i}][0]", 2)
            edges = as_variables(part[1], 2, f"X[{i}][1]")
            if edges.size and edges.max() >= len(features):
                raise InputError(
                    f"X[{i}][1] must name nodes 0 to {len(features) - 1}, got {edges.max()}; "
                    "give every node a row of features."
                )
            phi = None
            if len(part) == 3:
                phi = as_floats(part[2], f"X[{i}][2]", _DOUBLE)
                if phi.ndim != 2 or phi.shape[1] == 0 or len(phi) != len(edges):
                    raise InputError(
                        f"X[{i}][2] must have shape ({len(edges)}, D), a row for each edge, got "
                        f"{phi.shape}; match edges."
                    )
            samples.append((*_node_terms(features), FeatureTerm(edges, phi)))
        _check_alike(samples)
        return samples, [(len(terms[0]),) for terms in samples]


@dataclass(eq=False, kw_only=True)
class GridClassifier(_LoopyClassifier):
    """Labels the pixels of grids from their features and their neighbors' labels.

    P(y | X) is proportional to exp(sum_v (X W + b)[v, y_v] + sum_e A_e[y_u, y_v]), e over the pairs
    of 4-neighbors. X is a list of arrays (H, W, F), y a list of (H, W), of any sizes.

    Parameters
    ----------
    directed : whether A differs between edges to the right and edges downwards, and tells their
        first pixel from their second; else all edges share one symmetric table.
    The others are those of `GraphClassifier`.

    Attributes
    ----------
    pair_coef_ : A (1, L, L) of edges to the right and downwards, or one for both.
    The others are those of `GraphClassifier`.
    """

    directed: bool = True

    _sample, _place = "grid", "pixel"

    def _pair_terms(self) -> list[bool]:
        return [False, False] if self.directed else [True]

    def _read(self, X: Any) -> tuple[Any, list[Shape]]:
        samples: list[tuple[FeatureTerm, ...]] = []
        shapes: list[Shape] = []
        for i, part in enumerate(_as_list(X, "grids")):
            grid = _as_features(part, f"X[{i}]", 3)
            height, width = grid.shape[:2]
            edges = GridFactors((height, width)).edges
            n_right = height * (width - 1)
            parts = [edges[:n_right], edges[n_right:]] if self.directed else [edges]
            pixels = grid.reshape(-1, grid.shape[2])
            samples.append((*_node_terms(pixels), *map(FeatureTerm, parts)))
            shapes.append((height, width))
        _check_alike(samples)
        return samples, shapes


def _node_terms(features: Doubles) -> tuple[FeatureTerm, FeatureTerm]:
    """Features and a bias of each node."""
    nodes = np.arange(len(features), dtype=np.int32)[:, None]
    return FeatureTerm(nodes, features), FeatureTerm(nodes)


def _with_states(terms: tuple[FeatureTerm, ...], n_states: int) -> FeatureGraph:
    """Nodes with so many states each."""
    return FeatureGraph(np.full(len(terms[0]), n_states, np.int64), terms)


def _as_list(X: Any, what: str) -> Sequence[Any]:
    """Samples as a list; arrays with a sample in each row will do."""
    if isinstance(X, np.ndarray) and (X.dtype == object or X.ndim == 4) and len(X):
        return list(X)
    if not isinstance(X, Sequence) or isinstance(X, str | bytes) or not X:
        raise InputError(
            f"X must be a list of {what}, got {shown(X)}; put a single one in a list."
        )
    return X


def _as_doubles(values: Any, name: str) -> Doubles:
    return as_floats(values, name, _DOUBLE).astype(np.float64, copy=False)


def _as_features(values: Any, name: str, ndim: int) -> Doubles:
    """Features of nodes (N, F), or of pixels (H, W, F)."""
    array = _as_doubles(values, name)
    if array.ndim != ndim or array.size == 0:
        expected = "(H, W, F)" if ndim == 3 else "(N, F)"
        remedy = "use a constant 1 where there are no features"
        if array.ndim == ndim - 1:
            remedy = "add the axis of features with [..., None]"
        raise InputError(
            f"{name} must have shape {expected} with at least one of each, got {array.shape}; "
            f"{remedy}."
        )
    _check_size(array, name)
    return array


def _check_size(features: Doubles, name: str) -> None:
    most = float(np.abs(features).max())
    if most > LARGEST_FEATURE:
        raise InputError(
            f"{name} must not exceed {LARGEST_FEATURE:g} in magnitude, got {most:.3g}; scale the "
            "features to numbers of about 1."
        )


def _check_scores(most: float) -> None:
    if not most <= LARGEST_COST:
        raise InputError(
            f"X must give scores of at most {LARGEST_COST:g}, got up to {most:.3g}; scale the "
            "features like those of fit."
        )


def _check_alike(samples: list[tuple[FeatureTerm, ...]]) -> None:
    """Refuse samples with different numbers of features, 0 for a constant."""
    counts = [
        [0 if term.features is None else term.n_features for term in terms] for terms in samples
    ]
    for i, found in enumerate(counts):
        if found != counts[0]:
            raise InputError(
                f"X[{i}] must have as many features as X[0] ({counts[0]}), got {found}; "
                "compute the same features for all."
            )


def _number_labels(
    y: Any, shapes: list[Shape], sample: str, place: str
) -> tuple[NDArray[Any], list[Labels]]:
    """Classes (L,) in order, and the number of each label of each sample."""
    parts = _as_label_arrays(y, shapes, sample, place)
    try:
        classes, numbers = np.unique(
            np.concatenate([part.reshape(-1) for part in parts]), return_inverse=True
        )
    except TypeError:
        raise InputError(
            "y must hold labels of one kind, got some that cannot be compared; "
            "use numbers or strings."
        ) from None
    bounds = np.cumsum([part.size for part in parts])[:-1]
    return classes, np.split(numbers.reshape(-1).astype(np.int32), bounds)


def _as_label_arrays(
    y: Any, shapes: Sequence[Shape], sample: str, place: str
) -> list[NDArray[Any]]:
    """The labels of each sample, in these shapes; what samples and their places are called."""
    if not isinstance(y, Sequence | np.ndarray) or isinstance(y, str | bytes):
        raise InputError(f"y must be a list of arrays of labels, got {shown(y)}; pass a list.")
    if len(y) != len(shapes):
        raise InputError(
            f"y must hold one array per {sample}, got {len(y)} for {len(shapes)} {sample}s; "
            "pass lists of one length."
        )
    if isinstance(y, np.ndarray) and y.dtype.kind == "O":
        y = y.tolist()
    parts: list[NDArray[Any]] = []
    for i, (part, shape) in enumerate(zip(y, shapes, strict=True)):
        labels = _as_labels(part, f"y[{i}]")
        if labels.shape != shape:
            raise InputError(
                f"y[{i}] must have shape {shape} like X[{i}], got {labels.shape}; "
                f"give one label per {place}."
            )
        if labels.dtype.kind == "f" and not np.isfinite(labels).all():
            raise InputError(
                f"y[{i}] must hold known labels, got NaN or infinity; leave such {sample}s out."
            )
        if _kind_of(labels) != _kind_of(parts[0] if parts else labels) or _is_mixed(part):
            raise InputError(
                f"y must hold labels of one kind, got numbers and strings at y[{i}]; use one of "
                "them."
            )
        parts.append(labels)
    return parts


def _as_labels(part: Any, name: str) -> NDArray[Any]:
    # A word is as good a list of labels as any other.
    try:
        return np.asarray(list(part) if isinstance(part, str) else part)
    except (ValueError, TypeError, RuntimeError):
        raise InputError(
            f"{name} must be an array of labels, got {shown(part)}, which does not form one; "
            "give every row the same length."
        ) from None


def _kind_of(labels: NDArray[Any]) -> str:
    """What labels are, in a word."""
    return {"U": "string", "S": "bytes", "O": "object"}.get(labels.dtype.kind, "number")


def _is_mixed(part: Any) -> bool:
    """Whether NumPy would write numbers of a list as strings."""
    if not isinstance(part, list | tuple):
        return False
    kinds = {isinstance(x, str) for x in part if not isinstance(x, list | tuple)}
    return len(kinds) > 1 or any(map(_is_mixed, part))
