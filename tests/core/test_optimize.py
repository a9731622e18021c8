"""Every optimizer on a function whose least value is known."""

from itertools import pairwise

import numpy as np
import pytest

from crfield._core.optimize import OPTIMIZERS, Adam, Batches, minimize
from refusal import refusal

pytest.importorskip("scipy")

TARGETS = np.array([[1.0, -2.0, 30.0], [3.0, 0.0, 50.0], [2.0, -1.0, 10.0], [2.0, -1.0, 30.0]])
SCALE = np.array([1.0, 1.0, 10.0])


def evaluate(x, indices):
    """Mean squared distance to some of the targets, in units of the scale."""
    away = (x - TARGETS[slice(None) if indices is None else indices]) / SCALE
    return float((away**2).sum(1).mean()), 2 * away.mean(0) / SCALE


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_least_value_is_found_and_every_iterate_is_seen(optimizer):
    seen = []
    minimize(
        evaluate, np.zeros(3), optimizer, max_iter=200, callback=lambda x: seen.append(x) or False,
        batches=Batches(4, batch_size=4, step_size=0.1), scale=SCALE,
    )
    np.testing.assert_allclose(seen[-1], TARGETS.mean(0), rtol=1e-3)
    if optimizer in ("adam", "sgd"):
        assert len(seen) == 200
    assert evaluate(seen[0], None)[0] < evaluate(np.zeros(3), None)[0]


@pytest.mark.parametrize("optimizer", ["gd", "cg"])
def test_a_step_too_long_is_cut_to_the_least_value_of_the_parabola(optimizer):
    """The first step moves by one unit, from 0.3 past the least value at 0 to where x^2 is more."""
    asked, seen = [], []
    minimize(
        lambda x, i: asked.append(float(x[0])) or (float(x @ x), 2 * x), np.array([0.3]), optimizer,
        max_iter=1, callback=lambda x: seen.append(float(x[0])) or False, batches=Batches(1),
    )
    assert asked[:2] == pytest.approx([0.3, -0.7])
    assert seen == pytest.approx([0.0], abs=1e-12)


@pytest.mark.parametrize("optimizer", ["gd", "cg"])
def test_a_look_further_counts_only_where_it_is_lower(optimizer):
    """At 1 it still falls as steeply as at 0, and at 2 it is between the two again."""
    seen = []
    minimize(
        lambda x, i: ({0: 0.0, 1: -1.0, 2: -0.5}[round(float(x[0]))], np.array([-1.0])),
        np.zeros(1), optimizer, max_iter=1,
        callback=lambda x: seen.append(float(x[0])) or False, batches=Batches(1),
    )
    assert seen == [1.0]


@pytest.mark.parametrize("optimizer", ["gd", "cg"])
def test_no_step_moves_a_parameter_by_more_than_two_of_its_units(optimizer):
    asked = []
    slope = np.array([100.0, 1.0, 0.0])
    minimize(
        lambda x, i: asked.append(x) or (-float(slope @ x), -slope), np.zeros(3), optimizer,
        max_iter=3, callback=lambda x: False, batches=Batches(1), scale=SCALE,
    )
    longest = max(np.abs((after - before) / SCALE).max() for before, after in pairwise(asked))
    assert longest <= 2.0 + 1e-12
    assert asked[-1][0] == pytest.approx(6.0), "of what falls for ever each step is the longest"


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_callback_and_max_iter_end_it(optimizer):
    for most, asked in ((3, 9), (9, 2)):
        seen = []
        minimize(
            lambda x, i: (float((x**4).sum() + x.sum()), 4 * x**3 + 1), np.full(2, 3.0), optimizer,
            max_iter=most, callback=lambda x, n=asked, s=seen: s.append(x) or len(s) == n,
            batches=Batches(1, step_size=0.01),
        )
        assert len(seen) == min(most, asked)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_mini_batches_cover_the_examples_in_an_order_of_the_seed(optimizer):
    def order(seed):
        asked = []
        minimize(
            lambda x, i: asked.append(i) or evaluate(x, i), np.zeros(3), optimizer, max_iter=2,
            callback=lambda x: False, batches=Batches(4, batch_size=3, seed=seed),
        )
        return asked

    batches = order(0)
    assert [len(batch) for batch in batches] == [3, 1, 3, 1]
    assert sorted(batches[0] + batches[1]) == sorted(batches[2] + batches[3]) == [0, 1, 2, 3]
    assert order(0) == batches != order(1)


def test_sgd_has_momentum():
    """x_t+1 = x_t - step m_t with m_t = 0.9 m_t-1 + g_t, written out."""
    seen = []
    minimize(
        evaluate, np.zeros(3), "sgd", max_iter=4, callback=lambda x: seen.append(x) or False,
        batches=Batches(4, batch_size=4, step_size=0.1),
    )
    x = m = np.zeros(3)
    for found in seen:
        m = 0.9 * m + evaluate(x, None)[1]
        x = x - 0.1 * m
        np.testing.assert_allclose(found, x, rtol=1e-12)


def test_directions_are_those_of_polak_and_ribiere():
    """d = -g + max(g'(g - g_0) / g_0'g_0, 0) d_0; a product below 0 starts anew along -g.

    The slopes are made up: the value falls wherever the search goes, and the second slope is in
    the way of the first, so that g'(g - g_0) is positive, the third a share of it, so that it is
    negative.
    """
    slopes = [np.array(g) for g in ([1.0, 0.0], [0.5, -0.8], [0.4, -0.64], [0.4, -0.64])]
    asked = []

    def made_up(x, indices):
        asked.append(x)
        # Each step is taken at once: flat enough ahead that the search looks no further.
        return -float(len(asked)), slopes[min(len(asked), len(slopes)) - 1]

    seen = [np.zeros(2)]
    minimize(
        made_up, seen[0], "cg", max_iter=3, callback=lambda x: seen.append(x) or False,
        batches=Batches(1),
    )
    first, second, third = (
        (b - a) / np.linalg.norm(b - a) for a, b in pairwise(seen[:4])
    )
    g0, g1, g2 = slopes[:3]
    np.testing.assert_allclose(first, [-1, 0], atol=1e-12)
    wanted = -g1 + g1 @ (g1 - g0) / (g0 @ g0) * -g0
    np.testing.assert_allclose(second, wanted / np.linalg.norm(wanted), atol=1e-12)
    assert g2 @ (g2 - g1) < 0
    np.testing.assert_allclose(third, -g2 / np.linalg.norm(g2), atol=1e-12)


def test_adam_is_that_of_its_paper():
    """Kingma and Ba 2015, algorithm 1, written out."""
    rng = np.random.default_rng(0)
    state = Adam(0, np.zeros(2), np.zeros(2), 1e-8)
    m = v = np.zeros(2)
    for t in range(1, 6):
        g = rng.normal(size=2)
        state, change = state.step(g, 0.01)
        m, v = 0.9 * m + (1 - 0.9) * g, 0.999 * v + (1 - 0.999) * g**2
        wanted = 0.01 * (m / (1 - 0.9**t)) / (np.sqrt(v / (1 - 0.999**t)) + 1e-8)
        np.testing.assert_allclose(change, wanted, rtol=1e-12)
    assert state.n_steps == 5


def test_an_optimizer_that_does_not_exist_is_refused():
    message = refusal(
        minimize, evaluate, np.zeros(3), "newton", max_iter=1, callback=bool, batches=Batches(4)
    )
    assert "optimizer" in message
    assert "'lbfgs'" in message
