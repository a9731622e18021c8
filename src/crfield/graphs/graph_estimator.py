"""Log-linear models of graphs and grids with the interface of scikit-learn estimators."""

from __future__ import annotations

import warnings
from abc import abstractmethod
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
    shown,
)
from crfield.graphs._estimator_checks import as_label_arrays, as_strength, check_kind
from crfield.graphs._graph_samples import (
    as_features,
    as_list,
    check_alike,
    largest_score,
    node_graph,
    number_labels,
    with_states,
)
from crfield.graphs.chain_learning import Course
from crfield.graphs.factors import Doubles, GridFactors, as_variables
from crfield.graphs.graph_learning import (
    GraphExpectations,
    LabeledGraphs,
    Objective,
    learn_graphs,
    learn_graphs_piecewise,
)
from crfield.graphs.inference import infer
from crfield.graphs.log_linear import FeatureGraph, Term, Weights
from crfield.graphs.results import Result
from crfield.learning.optimizers import OPTIMIZERS

TRAININGS = ("joint", "piecewise")
DECODINGS = ("map", "marginals")

_DOUBLE = np.dtype(np.float64)


@dataclass(eq=False, kw_only=True)
class _StructuredCRF(Estimator):
    """What estimators on graphs and on grids have in common.

    P(y | X) is proportional to exp(sum_v (X W + b)[v, y_v] + sum_e phi_e'A[y_u, y_v]). Inference is
    exact on forests; on loops marginals and log Z are those of belief propagation, reweighted if
    `convex`.
    """

    C: float = 1.0
    optimizer: str = "lbfgs"
    max_iter: int = 100
    tol: float = 1e-2
    training: str = "joint"
    decode: str = "map"
    convex: bool = True
    n_iter: int = 1000
    damping: float = 0.2
    inference_tol: float = 1e-4
    batch_size: int = 16
    step_size: float = 0.01
    random_state: int = 0
    threads: int | None = None

    @abstractmethod
    def _graphs(self, X: Any) -> list[tuple[FeatureGraph, tuple[int, ...]]]:
        """A graph with one state a variable for each example, and the shape of its labels."""

    @abstractmethod
    def _pair_terms(self) -> tuple[bool, ...]:
        """Of each pair term whether its tables are symmetric."""

    def _fit(self, X: Any, y: Any) -> None:
        as_choice(self.optimizer, "optimizer", OPTIMIZERS)
        as_choice(self.training, "training", TRAININGS)
        as_choice(self.decode, "decode", DECODINGS)
        examples = self._graphs(X)
        classes, labels = number_labels(y, [shape for _, shape in examples])
        n_states = len(classes)
        graphs = [with_states(graph, n_states) for graph, _ in examples]
        pairs = self._pair_terms()
        data = LabeledGraphs(
            tuple(graphs), tuple(labels), (False, False, *pairs),
            (True, False, *[True] * len(pairs)),
        )
        shapes = [
            (term.n_features, *[n_states] * term.variables.shape[1]) for term in graphs[0].terms
        ]
        l2 = 1.0 / (as_strength(self.C) * len(data))
        objective = Objective(data, shapes, l2, self._inference(1.0))
        settings: dict[str, Any] = {
            "optimizer": self.optimizer, "max_iter": as_count(self.max_iter, "max_iter"),
            "tol": as_positive_number(self.tol, "tol"),
            "batch_size": as_count(self.batch_size, "batch_size"),
            "step_size": as_positive_number(self.step_size, "step_size"),
            "seed": as_count(self.random_state, "random_state", 0),
        }
        parts = None
        if self.training == "piecewise":
            weights, course, parts = learn_graphs_piecewise(objective, **settings)
        else:
            weights, course = learn_graphs(objective, **settings)
        self.part_weights_: Doubles | None = parts
        self.classes_ = classes
        self.n_features_in_ = graphs[0].terms[0].n_features
        self._keep(weights, course, objective)

    def _keep(self, weights: Weights, course: Course, objective: Objective) -> None:
        self.coef_, self.intercept_ = weights[0].T.copy(), weights[1][0]
        self.pair_coef_ = weights[2:]
        self.n_iter_, self.objective_ = course.n_iter, np.array(course.values)
        self.expectations_: GraphExpectations = objective.expectations(weights)
        remedies = []
        if self.optimizer not in ("adam", "sgd") and not course.converged:
            remedies.append(
                f"learning stopped after max_iter={self.max_iter} iterations before it converged; "
                "raise max_iter, or lower C" if course.n_iter >= self.max_iter else
                f"learning stopped where no step led down, at a difference of {course.gap:.2g}; "
                "raise tol" + ("" if self.convex else ", or use convex=True")
            )
        if not objective.has_settled:
            remedies.append(
                "belief propagation did not converge at the last weights (last change "
                f"{objective.last_residual:.2g}); raise n_iter or inference_tol, or lower C"
            )
        for remedy in remedies:
            warnings.warn(f"{remedy}.", stacklevel=4)

    def predict(self, X: Any) -> list[NDArray[Any]]:
        """Labels of each example, in the shape of its variables.

        With decode="map" those of least energy together (exact on forests, max-product on loops),
        with "marginals" the most probable label of each variable.
        """
        t = 0.0 if as_choice(self.decode, "decode", DECODINGS) == "map" else 1.0
        return [
            self.classes_[result.labels].reshape(shape) for result, shape in self._infer(X, t)
        ]

    def predict_proba(self, X: Any) -> list[Doubles]:
        """Marginals of each example, in the shape of its variables and labels last."""
        return [
            result.marginals.reshape(*shape, -1).astype(np.float64, copy=False)
            for result, shape in self._infer(X, 1.0)
        ]

    def score(self, X: Any, y: Any) -> float:
        """The share of variables with the right label, counted over all examples together."""
        found = self.predict(X)
        known = as_label_arrays(y, [labels.shape for labels in found], "sample", "variable")
        check_kind(known[0], self.classes_)
        right = [int((f == k).sum()) for f, k in zip(found, known, strict=True)]
        return sum(right) / sum(labels.size for labels in found)

    def _infer(self, X: Any, temperature: float) -> list[tuple[Result, tuple[int, ...]]]:
        self._check_fitted("coef_")
        weights = (self.coef_.T, self.intercept_[None], *self.pair_coef_)
        out = []
        for graph, shape in self._graphs(X):
            if graph.terms[0].n_features != self.n_features_in_:
                raise InputError(
                    f"X must have {self.n_features_in_} features like the examples of fit, got "
                    f"{graph.terms[0].n_features}; compute the same features."
                )
            full = with_states(graph, len(self.classes_))
            if len(full.terms) != len(weights):
                raise InputError(
                    "directed must be as it was when the model was fitted, got another value; fit "
                    "again."
                )
            for term, w in zip(full.terms, weights, strict=True):
                if term.n_features != len(w):
                    raise InputError(
                        f"X must have {len(w)} edge features like the examples of fit, got "
                        f"{term.n_features}; compute the same features."
                    )
            most = sum(
                largest_score(term, w) for term, w in zip(full.terms, weights, strict=True)
            )
            if not most <= LARGEST_COST:
                raise InputError(
                    f"X must give scores of at most {LARGEST_COST:g}, got up to {most:.3g}; scale "
                    "the features like those of fit."
                )
            result = infer(full.graph(weights), **self._inference(temperature))
            out.append((result, shape))
        return out

    def _inference(self, temperature: float) -> dict[str, Any]:
        return {
            "temperature": temperature, "max_iter": as_count(self.n_iter, "n_iter"),
            "damping": self.damping, "tol": as_positive_number(self.inference_tol, "inference_tol"),
            "convex": self.convex, "threads": self.threads,
        }


@dataclass(eq=False, kw_only=True)
class GraphCRF(_StructuredCRF):
    """Labels the nodes of graphs from their features and their neighbors' labels.

    P(y | X) is proportional to exp(sum_v (X W + b)[v, y_v] + sum_e phi_e'A[y_u, y_v]). A sample is
    a tuple (features (N, F), edges (E, 2)) or (features, edges, edge_features (E, D)); y is a list
    of labels (N,).

    Parameters
    ----------
    C : inverse strength of the ridge, 1e-30 to 1e30: C sum -log P(y | X) + 1/2 (|W|^2 + |A|^2) is
        minimized.
    optimizer : "lbfgs", "cg", "gd" (gradient descent with a line search), or "adam" and "sgd" on
        mini-batches.
    max_iter : iterations, or epochs of mini-batches.
    tol : the largest difference of an expected and an observed feature, an example, to stop at,
        with features in units of their largest value.
    training : "joint", or "piecewise": classifiers of single nodes and of single edges, then one
        weight for each.
    decode : what `predict` returns, "map" or "marginals".
    directed : whether A may tell an edge's first node from its second; else A is symmetric.
    convex : whether log Z of graphs with loops is the convex upper bound of reweighted propagation,
        so that learning has one optimum and cannot run away; else Bethe's approximation.
    n_iter, damping, inference_tol : of belief propagation on graphs with loops.
    batch_size, step_size, random_state : of "adam" and "sgd".
    threads : native threads, by default as many as there are cores.

    Attributes
    ----------
    classes_ : (L,).
    coef_ : (L, F), W transposed.
    intercept_ : (L,), b.
    pair_coef_ : a tuple with A (D, L, L).
    n_iter_, objective_, expectations_, part_weights_ : as of `ChainCRF`.
    """

    directed: bool = False

    def fit(self, X: Any, y: Any) -> GraphCRF:
        """Learn from graphs and the labels of their nodes."""
        self._fit(X, y)
        return self

    def _pair_terms(self) -> tuple[bool, ...]:
        return (not self.directed,)

    def _graphs(self, X: Any) -> list[tuple[FeatureGraph, tuple[int, ...]]]:
        out: list[tuple[FeatureGraph, tuple[int, ...]]] = []
        for i, part in enumerate(as_list(X, "graphs")):
            if not isinstance(part, tuple | list) or len(part) not in (2, 3):
                raise InputError(
                    f"X[{i}] must be (features, edges) or (features, edges, edge_features), got "
                    f"{shown(part)}; pass a tuple."
                )
            features = as_features(part[0], f"X[{i}][0]", 2)
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
            out.append((node_graph(features, [Term(edges, phi)]), (len(features),)))
        check_alike([graph for graph, _ in out])
        return out


@dataclass(eq=False, kw_only=True)
class GridCRF(_StructuredCRF):
    """Labels the pixels of grids from their features and their neighbors' labels.

    P(y | X) is proportional to exp(sum_v (X W + b)[v, y_v] + sum_e A_e[y_u, y_v]), e over the pairs
    of 4-neighbors. X is a list of arrays (H, W, F), y a list of (H, W), of any sizes.

    Parameters
    ----------
    directed : whether A differs between edges to the right and edges downwards, and tells their
        first pixel from their second; else all edges share one symmetric table.
    The others are those of `GraphCRF`.

    Attributes
    ----------
    classes_ : (L,).
    coef_ : (L, F), W transposed.
    intercept_ : (L,), b.
    pair_coef_ : A (1, L, L) of edges to the right and downwards, or one for both.
    n_iter_, objective_, expectations_, part_weights_ : as of `ChainCRF`.
    """

    directed: bool = True

    def fit(self, X: Any, y: Any) -> GridCRF:
        """Learn from grids of features and of labels."""
        self._fit(X, y)
        return self

    def _pair_terms(self) -> tuple[bool, ...]:
        return (False, False) if self.directed else (True,)

    def _graphs(self, X: Any) -> list[tuple[FeatureGraph, tuple[int, ...]]]:
        out: list[tuple[FeatureGraph, tuple[int, ...]]] = []
        for i, part in enumerate(as_list(X, "grids")):
            grid = as_features(part, f"X[{i}]", 3)
            height, width = shape = grid.shape[:2]
            edges = GridFactors((height, width)).edges
            n_right = height * (width - 1)
            parts = [edges[:n_right], edges[n_right:]] if self.directed else [edges]
            terms = [Term(part) for part in parts]
            out.append((node_graph(grid.reshape(-1, grid.shape[2]), terms), shape))
        check_alike([graph for graph, _ in out])
        return out
