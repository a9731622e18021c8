"""Chains drawn from a log-linear model, for tests of what is learned from them."""

import numpy as np

from crfield.graphs.log_linear import ChainExamples, Likelihood
from reference import softmax

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


def training_chains(X, y):
    offsets = np.cumsum([0, *map(len, X)]).astype(np.int64)
    return ChainExamples(np.concatenate(X), np.concatenate(y).astype(np.int32), offsets, 3)


def loss_at(data, weights, l2=0.0):
    """The objective at weights, which are costs, and its gradient for each term."""
    likelihood = Likelihood(data, l2)
    value, gradient = likelihood(likelihood.to_vector(weights), None)
    return value, likelihood.from_vector(gradient)
