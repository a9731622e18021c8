"""What estimators on graphs take and give, checked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_floats, shown
from crfield.graphs._estimator_checks import LARGEST_FEATURE, as_label_arrays, number_classes
from crfield.graphs.factors import Doubles
from crfield.graphs.log_linear import FeatureGraph, Term

_DOUBLE = np.dtype(np.float64)


def node_graph(features: Doubles, pairs: list[Term]) -> FeatureGraph:
    """Nodes with features and a bias, and pair terms; numbers of states come later."""
    nodes = np.arange(len(features), dtype=np.int32)[:, None]
    return FeatureGraph(
        np.ones(len(features), np.int64), (Term(nodes, features), Term(nodes), *pairs)
    )


def with_states(graph: FeatureGraph, n_states: int) -> FeatureGraph:
    """The same with so many states a variable."""
    return FeatureGraph(np.full_like(graph.n_states, n_states), graph.terms)


def as_list(X: Any, what: str) -> Sequence[Any]:
    """Samples as a list; arrays with a sample in each row will do."""
    if isinstance(X, np.ndarray) and (X.dtype == object or X.ndim == 4) and len(X):
        return list(X)
    if not isinstance(X, Sequence) or isinstance(X, str | bytes) or not X:
        raise InputError(
            f"X must be a list of {what}, got {shown(X)}; put a single one in a list."
        )
    return X


def as_features(values: Any, name: str, ndim: int) -> Doubles:
    """Features of nodes (N, F), or of pixels (H, W, F)."""
    array: Doubles = as_floats(values, name, _DOUBLE).astype(np.float64, copy=False)
    if array.ndim != ndim or array.size == 0:
        expected = "(H, W, F)" if ndim == 3 else "(N, F)"
        remedy = "use a constant 1 where there are no features"
        if array.ndim == ndim - 1:
            remedy = "add the axis of features with [..., None]"
        raise InputError(
            f"{name} must have shape {expected} with at least one of each, got {array.shape}; "
            f"{remedy}."
        )
    most = float(np.abs(array).max())
    if most > LARGEST_FEATURE:
        raise InputError(
            f"{name} must not exceed {LARGEST_FEATURE:g} in magnitude, got {most:.3g}; scale the "
            "features to numbers of about 1."
        )
    return array


def check_alike(graphs: list[FeatureGraph]) -> None:
    """Refuse samples with different numbers of features."""
    counts = [feature_count(term) for term in graphs[0].terms]
    for i, graph in enumerate(graphs):
        found = [feature_count(term) for term in graph.terms]
        if found != counts:
            raise InputError(
                f"X[{i}] must have as many features as X[0] ({counts}), got {found}; "
                "compute the same features for all."
            )


def feature_count(term: Term) -> int:
    """0 for a constant."""
    return 0 if term.features is None else term.n_features


def largest_score(term: Term, weights: Doubles) -> float:
    """A bound on the magnitude of what features times weights (D, ...) give."""
    largest = 1.0 if term.features is None else float(np.abs(term.features).max(initial=0.0))
    return largest * float(np.abs(weights).sum(0).max(initial=0.0))


def number_labels(
    y: Any, shapes: list[tuple[int, ...]]
) -> tuple[NDArray[Any], list[NDArray[np.int32]]]:
    """Classes in order, and the number of each label of each sample."""
    parts = as_label_arrays(y, shapes, "sample", "variable")
    classes, numbers = number_classes(np.concatenate([part.reshape(-1) for part in parts]))
    bounds = np.cumsum([part.size for part in parts])[:-1]
    return classes, np.split(numbers, bounds)
