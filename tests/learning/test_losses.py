"""Losses over marginals: their values, and their gradients against central differences."""

from __future__ import annotations

import numpy as np
import pytest

from crfield.dense.gradient import softmax_jacobian
from crfield.learning.losses import (
    ExpectedHamming,
    IntersectionOverUnion,
    LogLikelihood,
    RobustLogLikelihood,
    class_weights,
)
from refusal import refusal

LOSSES = [LogLikelihood, RobustLogLikelihood, ExpectedHamming, IntersectionOverUnion]


def example(seed=0, n=20, n_labels=4):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, n_labels - 1, n)  # the last label never occurs
    truth[3] = 255
    return rng.dirichlet(np.ones(n_labels), n), truth, rng.uniform(0.5, 2, n_labels)


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients(loss_type, weighted):
    q, truth, weights = example()
    loss = loss_type(weights if weighted else None)
    by_log = loss.log_gradient(q, truth, loss.totals(q, truth))
    analytic = by_log / q
    for index in np.ndindex(q.shape):
        moved = q.copy()
        moved[index] += 1e-6
        above = loss.value(loss.totals(moved, truth))
        moved[index] -= 2e-6
        numeric = (above - loss.value(loss.totals(moved, truth))) / 2e-6
        assert analytic[index] == pytest.approx(numeric, rel=1e-5, abs=1e-9)
    assert not analytic[3].any()
    jacobian_product = q * ((q * analytic).sum(1, keepdims=True) - analytic)
    assert np.allclose(softmax_jacobian(q, by_log), jacobian_product, atol=1e-12)


@pytest.mark.parametrize("loss_type", LOSSES)
def test_images_add_up_to_a_data_set(loss_type):
    """Split into images, totals and gradients are those of the whole."""
    q, truth, weights = example(1)
    loss = loss_type(weights)
    whole = loss.totals(q, truth)
    parts = [slice(0, 7), slice(7, 8), slice(8, None)]
    assert np.allclose(sum(loss.totals(q[p], truth[p]) for p in parts), whole)
    gradient = np.concatenate([loss.log_gradient(q[p], truth[p], whole) for p in parts])
    assert np.allclose(gradient, loss.log_gradient(q, truth, whole))


def test_values_on_hard_labels_are_the_measures():
    q, truth, _ = example(2)
    hard = np.eye(4)[q.argmax(1)]
    known = truth != 255
    wrong = (hard.argmax(1) != truth)[known].mean()
    assert ExpectedHamming().value(ExpectedHamming().totals(hard, truth)) == pytest.approx(wrong)
    per_label = []
    for label in range(3):
        inside = (hard.argmax(1) == label) & (truth == label)
        union = ((hard.argmax(1) == label) & known) | (truth == label)
        per_label.append(inside.sum() / union.sum())
    iou = IntersectionOverUnion()
    assert 1 - iou.value(iou.totals(hard, truth)) == pytest.approx(np.mean(per_label))


def test_log_likelihood_survives_certain_mistakes():
    q = np.array([[1.0, 0.0]], np.float32)
    loss = LogLikelihood()
    totals = loss.totals(q, np.array([1]))
    assert np.isfinite(loss.value(totals))
    by_log = loss.log_gradient(q, np.array([1]), totals)
    assert np.allclose(softmax_jacobian(q, by_log), [[-1.0, 1.0]])


def test_class_weights_interpolate():
    counts = [100, 1, 0]
    assert np.allclose(class_weights(counts, 0), [1, 1, 0])
    assert np.allclose(class_weights(counts, 1), [0.01, 1, 0])
    assert np.allclose(class_weights(counts), [100**-0.25, 1, 0])


@pytest.mark.parametrize("bad", [[-1.0, 1.0], [0.0, 0.0], [[1.0]], [np.nan]])
def test_bad_weights_are_refused(bad):
    refusal(ExpectedHamming, bad)


def test_truth_is_checked():
    q, truth, _ = example()
    assert "one label per variable" in refusal(ExpectedHamming().totals, q, truth[:-1])
    assert "0..3" in refusal(ExpectedHamming(void=None).totals, q, truth)
