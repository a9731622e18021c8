"""Factor graphs whose costs are features times shared weights, and the loss of true labels.

Features phi (D,) of a factor choose from weights W (D, L_1, ..., L_K), shared by all factors of a
term,

    cost_f(y_f) = sum_d phi_d W[d, y_f],      L(W) = E(y) + log Z      (lecture, "CRF learning"),

and the derivative of L by W[d, s] is sum_f phi_d ([y_f = s] - p(y_f = s)), observed minus expected
features. The lecture writes scores, whose weights have the other sign. An evaluation is one
inference and one sum over all factors, joint states and features: O(N K C^F D) for N examples with
K factors of F variables with C states and D features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_array, as_floats, check_memory, shown
from crfield.graphs.conditioning import rows_of_costs
from crfield.graphs.factors import Doubles, TableFactors, Variables, as_numbers, as_variables
from crfield.graphs.graph import FactorGraph, check_graph
from crfield.graphs.inference import infer
from crfield.graphs.results import Result

Weights = tuple[Doubles, ...]

_DOUBLE = np.dtype(np.float64)


class FeatureTerm:
    """Factors that share weights.

    variables : (M, K), the variables of each factor.
    features : (M, D) float64, phi of each factor, or None for a constant 1 (D = 1).
    """

    def __init__(self, variables: Any, features: Any = None):
        self.variables: Variables = as_variables(variables)
        self.features: Doubles | None = None
        if features is not None:
            phi = as_floats(features, "features", _DOUBLE)
            if phi.ndim != 2 or len(phi) != len(self.variables):
                raise InputError(
                    f"features must have shape ({len(self.variables)}, D), got {phi.shape}; "
                    "give every factor a row."
                )
            self.features = phi.astype(np.float64, copy=False)

    def __len__(self) -> int:
        return len(self.variables)

    @property
    def n_features(self) -> int:
        """D."""
        return 1 if self.features is None else self.features.shape[1]

    @property
    def largest(self) -> Doubles | None:
        """The largest |phi_d| (D,), or None for a constant 1."""
        return None if self.features is None else np.abs(self.features).max(0, initial=0.0)

    def costs(self, weights: Doubles) -> Doubles:
        """phi w (M, L_1, ..., L_K), or (L_1, ..., L_K) where features are constant.

        weights : w (D, L_1, ..., L_K).
        """
        if self.features is None:
            return np.asarray(weights[0])
        flat = self.features @ weights.reshape(self.n_features, -1)
        return flat.reshape(len(self), *weights.shape[1:])

    def gather(self, joint: Doubles) -> Doubles:
        """sum_m phi[m, d] joint[m, ...]: the features that probabilities (M, ...) expect."""
        if self.features is None:
            return np.asarray(joint.sum(0)[None])
        flat = self.features.T @ joint.reshape(len(self), -1)
        return flat.reshape(self.n_features, *joint.shape[1:])

    def observe(self, labels: NDArray[np.int32], shape: tuple[int, ...]) -> Doubles:
        """The sums of features that labels (N,) have, (D, *shape) with shape (L_1, ..., L_K)."""
        states = np.ravel_multi_index(tuple(labels[self.variables].T), shape)
        out = np.zeros((self.n_features, int(np.prod(shape))))
        if self.features is None:
            out[0] = np.bincount(states, minlength=out.shape[1])
        else:
            np.add.at(out.T, states, self.features)
        return out.reshape(self.n_features, *shape)


@dataclass(frozen=True, eq=False)
class FeatureGraph:
    """The variables and terms of an example, or of several side by side.

    n_states : (N,), states of each variable.
    terms : all examples of a model have the same number of terms.
    """

    n_states: NDArray[np.int64]
    terms: tuple[FeatureTerm, ...]

    def __post_init__(self) -> None:
        counts = as_array(self.n_states, "n_states")
        if counts.ndim != 1 or counts.dtype.kind not in "iu" or counts.min(initial=1) < 1:
            raise InputError(
                f"n_states must be whole numbers >= 1 of shape (N,), got {counts.dtype} of shape "
                f"{counts.shape}; give the number of states of each variable."
            )
        if len(counts) == 0:
            raise InputError("n_states must name at least one variable, got none; add a variable.")
        if not isinstance(self.terms, Sequence) or not all(
            isinstance(term, FeatureTerm) for term in self.terms
        ):
            raise InputError(
                f"terms must be a list of FeatureTerm, got {shown(self.terms)}; make terms of "
                "factors and their features."
            )
        object.__setattr__(self, "n_states", counts.astype(np.int64))
        object.__setattr__(self, "terms", tuple(self.terms))
        for i, term in enumerate(self.terms):
            if term.variables.max(initial=-1) >= len(counts):
                raise InputError(
                    f"term {i} must name variables 0 to {len(counts) - 1}, got "
                    f"{term.variables.max()}; give all of them a number of states."
                )

    @classmethod
    def join(cls, parts: Sequence[FeatureGraph]) -> FeatureGraph:
        """Several graphs as one that falls into parts."""
        if len(parts) == 1:
            return parts[0]
        starts = np.cumsum([0, *(len(part.n_states) for part in parts)])[:-1]
        terms = []
        for i, first in enumerate(parts[0].terms):
            variables = np.concatenate([
                part.terms[i].variables + np.int32(start)
                for part, start in zip(parts, starts, strict=True)
            ])
            phi = None
            rows = [part.terms[i].features for part in parts]
            if len({row is None for row in rows}) > 1:
                raise InputError(
                    f"term {i} must have features in all examples or in none, got both; "
                    "use a constant 1 where there are none."
                )
            if first.features is not None:
                phi = np.concatenate([row for row in rows if row is not None])
            terms.append(FeatureTerm(variables, phi))
        return cls(np.concatenate([part.n_states for part in parts]), tuple(terms))

    def graph(self, weights: Weights, like: FactorGraph | None = None) -> FactorGraph:
        """The costs that weights give; `like` : a graph of the same terms, to save work."""
        if like is not None:
            check_graph(like)
        return self._graph(self.as_weights(weights), like)

    def _graph(self, weights: Weights, like: FactorGraph | None) -> FactorGraph:
        starts = np.cumsum(self.n_states) - self.n_states
        costs = np.zeros(int(self.n_states.sum()))
        factors = []
        for term, w in zip(self.terms, weights, strict=True):
            table = term.costs(w)
            if term.variables.shape[1] > 1:
                factors.append(TableFactors(term.variables, table))
            else:
                places = starts[term.variables] + np.arange(w.shape[1])
                np.add.at(costs, places, np.broadcast_to(table, places.shape))
        nodes = rows_of_costs(costs, self.n_states)
        return FactorGraph(nodes, factors) if like is None else like.with_costs(nodes, factors)

    def as_weights(self, weights: Any) -> Weights:
        """Checked weights (D, L_1, ..., L_K) of each term."""
        if not isinstance(weights, Sequence) or len(weights) != len(self.terms):
            raise InputError(
                f"weights must be {len(self.terms)} arrays, one per term, got {shown(weights)}; "
                "match the terms."
            )
        arrays = tuple(as_numbers(w, f"weights[{i}]") for i, w in enumerate(weights))
        for i, (term, w) in enumerate(zip(self.terms, arrays, strict=True)):
            order = term.variables.shape[1]
            if w.ndim != order + 1 or len(w) != term.n_features:
                raise InputError(
                    f"weights[{i}] must have shape ({term.n_features}, ...) with an axis for each "
                    f"of {order} variables, got {np.shape(w)}; match term {i}."
                )
            wrong = self.n_states[term.variables] != w.shape[1:]
            if wrong.any():
                m, k = (int(index) for index in np.argwhere(wrong)[0])
                v = int(term.variables[m, k])
                raise InputError(
                    f"weights[{i}] has {w.shape[k + 1]} states for variable {v}, which has "
                    f"{self.n_states[v]}; make a term of its own for such variables."
                )
        return arrays

    def apart(self, term: int, labels: NDArray[np.int32]) -> tuple[FeatureGraph, NDArray[np.int32]]:
        """Every factor of a term by itself, on variables of its own, and their labels (M K,).

        labels : (N,), of the whole graph.

        A term for each of its variables, with constant features, comes behind it.
        """
        chosen = self.terms[term]
        count, order = chosen.variables.shape
        own = np.arange(count * order, dtype=np.int32).reshape(count, order)
        flat = chosen.variables.reshape(-1)
        biases = (FeatureTerm(own[:, k:k + 1]) for k in range(order))
        terms = FeatureTerm(own, chosen.features), *biases
        return FeatureGraph(self.n_states[flat], terms), labels[flat]


@dataclass(frozen=True)
class LogLinearLoss:
    """L = E(y) + log Z, the negative log-likelihood of labels y, and what it is made of.

    value : E(y) + log Z, added up over all parts of the graph; with Bethe's log Z on loops.
    observed, expected : sums of features for each term, like its weights; the derivative by the
        weights is their difference.
    result : the inference it took.
    """

    value: float
    observed: Weights
    expected: Weights
    result: Result

    @property
    def gradient(self) -> Weights:
        """Observed minus expected features."""
        return tuple(o - e for o, e in zip(self.observed, self.expected, strict=True))


def log_linear_loss(
    data: FeatureGraph, weights: Weights, labels: NDArray[np.int32], *,
    like: Result | None = None, **inference: Any,
) -> LogLinearLoss:
    """L(W) = E(labels) + log Z and its gradient, exact on forests (L7, log-linear models).

    cost_f(y_f) = sum_d phi_d W[d, y_f]; the gradient is observed minus expected features.

    data : the example, or several side by side.
    weights : (D, L_1, ..., L_K) for each term.
    labels : (N,) true states.
    like : the result of an inference on the same graph with other weights, to save work.
    inference : settings of `infer`.
    """
    if not isinstance(data, FeatureGraph) or not isinstance(like, Result | None):
        raise InputError(
            "data must be a FeatureGraph, and like a Result or None, got "
            f"{type(data).__name__} and {type(like).__name__}; build a FeatureGraph of terms."
        )
    weights = data.as_weights(weights)
    graph = data._graph(weights, None if like is None else like.problem)
    labels = graph.as_labels(labels)
    result = infer(graph, **inference)
    observed, expected = [], []
    pair = 0
    for term, w in zip(data.terms, weights, strict=True):
        shape = w.shape[1:]
        if term.variables.shape[1] > 1:
            check_memory(
                8.0 * len(term) * float(np.prod(shape)), f"marginals of {len(term)} factors",
                "use fewer examples at a time",
            )
            expected.append(term.gather(result.factor_marginals(pair)))
            pair += 1
        else:
            rows = result.marginals[term.variables[:, 0], :shape[0]]
            expected.append(term.gather(rows.astype(np.float64, copy=False)))
        observed.append(term.observe(labels, shape))
    value = graph.energy(labels) + result.log_partition
    return LogLinearLoss(value, tuple(observed), tuple(expected), result)
