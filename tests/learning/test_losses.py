"""Losses over marginals: their values, and their gradients against central differences."""

import numpy as np
import pytest

from crfield.dense.gradient import softmax_jacobian
from crfield.learning import losses
from crfield.learning.learner import LOSSES
from crfield.metrics import confusion_matrix, mean_iou, pixel_accuracy
from reference import central_differences
from refusal import refusal


def example(seed=0, n=20, n_labels=4):
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, n_labels - 1, n)  # the last label never occurs
    truth[3] = 255
    return rng.dirichlet(np.ones(n_labels), n), truth, rng.uniform(0.5, 2, n_labels)


@pytest.mark.parametrize("loss_type", LOSSES.values())
@pytest.mark.parametrize("weighted", [False, True])
def test_gradients(loss_type, weighted):
    q, truth, weights = example()
    loss = loss_type(weights if weighted else None)
    by_log = loss.log_gradient(q, truth, loss.totals(q, truth))
    analytic = by_log / q
    expected = central_differences(lambda moved: loss.value(loss.totals(moved, truth)), q)
    assert analytic == pytest.approx(expected, rel=1e-5, abs=1e-9)
    assert not analytic[3].any()
    jacobian_product = q * ((q * analytic).sum(1, keepdims=True) - analytic)
    assert np.allclose(softmax_jacobian(q, by_log), jacobian_product, atol=1e-12)


@pytest.mark.parametrize("loss_type", LOSSES.values())
def test_images_add_up_to_a_data_set(loss_type):
    """Split into images, totals and gradients are those of the whole."""
    q, truth, weights = example(1)
    loss = loss_type(weights)
    whole = loss.totals(q, truth)
    parts = [slice(0, 7), slice(7, 8), slice(8, None)]
    assert np.allclose(sum(loss.totals(q[p], truth[p]) for p in parts), whole)
    gradient = np.concatenate([loss.log_gradient(q[p], truth[p], whole) for p in parts])
    assert np.allclose(gradient, loss.log_gradient(q, truth, whole))


@pytest.mark.parametrize("seed", range(20))
def test_values_of_certain_labels_are_the_measures(seed):
    """Over a set of images, with labels that only the truth, only the prediction or neither has."""
    rng = np.random.default_rng(seed)
    true, found = (rng.permutation(6)[: rng.integers(1, 6)] for _ in range(2))
    truths = [rng.choice([*true, 255], n) for n in (1, 9, 30)]
    truths[1][:] = true[0]
    predicted = [rng.choice(found, len(truth)) for truth in truths]
    counts = sum(map(confusion_matrix, truths, predicted, [6] * 3))
    for loss, score in (
        (losses.IntersectionOverUnion(), mean_iou), (losses.ExpectedHamming(), pixel_accuracy)
    ):
        totals = sum(loss.totals(np.eye(6)[p], t) for t, p in zip(truths, predicted, strict=True))
        assert 1 - loss.value(totals) == pytest.approx(score(counts))


def test_log_likelihood_survives_certain_mistakes():
    q = np.array([[1.0, 0.0]], np.float32)
    loss = losses.LogLikelihood()
    totals = loss.totals(q, np.array([1]))
    assert np.isfinite(loss.value(totals))
    by_log = loss.log_gradient(q, np.array([1]), totals)
    assert np.allclose(softmax_jacobian(q, by_log), [[-1.0, 1.0]])


def test_class_weights_interpolate():
    counts = [100, 1, 0]
    assert np.allclose(losses.class_weights(counts, 0), [1, 1, 0])
    assert np.allclose(losses.class_weights(counts, 1), [0.01, 1, 0])
    assert np.allclose(losses.class_weights(counts), [100**-0.25, 1, 0])


@pytest.mark.parametrize("bad", [[-1.0, 1.0], [0.0, 0.0], [[1.0]], [np.nan]])
def test_bad_weights_are_refused(bad):
    refusal(losses.ExpectedHamming, bad)


def test_truth_is_checked():
    q, truth, _ = example()
    assert "one label per variable" in refusal(losses.ExpectedHamming().totals, q, truth[:-1])
    assert "0..3" in refusal(losses.ExpectedHamming(void=None).totals, q, truth)
