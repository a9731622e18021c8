"""Compatibilities: their matrices, the test for the guarantee, and the projection onto it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crfield import Diagonal, Potts, Symmetric


def matrices(n_labels, seed, scale=1.0):
    square = np.random.default_rng(seed).normal(size=(n_labels, n_labels)) * scale
    return square + square.T


def test_families():
    assert np.array_equal(Potts(3).matrix(3), 3 * (1 - np.eye(3)))
    assert np.array_equal(Diagonal([1, 2]).matrix(2), -np.diag([1.0, 2.0]))
    assert np.array_equal(Symmetric.l1(3, 2.0).matrix(3), [[0, 2, 4], [2, 0, 2], [4, 2, 0]])
    dominant = Symmetric.diagonally_dominant([[0, 1, -2], [1, 0, 3], [-2, 3, 0]], margin=0.5)
    assert np.array_equal(np.diag(dominant.matrix(3)), [-3.5, -4.5, -5.5])


@pytest.mark.parametrize("n_labels", [1, 2, 5, 21])
def test_the_papers_families_have_the_guarantee(n_labels):
    off = matrices(n_labels, 0)
    for compatibility in (
        Potts(2), Potts(0), Diagonal(np.arange(n_labels)), Symmetric.l1(n_labels),
        Symmetric.diagonally_dominant(off), Symmetric(-np.eye(n_labels) + 1e6),
    ):
        assert compatibility.is_concave(n_labels), compatibility
    if n_labels > 1:
        assert not Potts(-1).is_concave(n_labels)
        assert not Symmetric(np.eye(n_labels)).is_concave(n_labels)


def test_attractions_of_both_signs_are_judged_by_their_matrix():
    """x'mu x for x = (-1, 2, -1), which sums to 0, is -alpha_0 - 4 alpha_1 - alpha_2."""
    assert Diagonal([5.0, -1.0, 5.0]).is_concave(3)
    assert not Diagonal([1.0, -1.0, 1.0]).is_concave(3)
    assert Diagonal([1.0, -1.0, 1.0]).largest_eigenvalue(3) == pytest.approx(2 / 6)


@given(n_labels=st.integers(1, 8), seed=st.integers(0, 10**6), scale=st.floats(1e-3, 1e3))
def test_projection_is_the_nearest_with_the_guarantee(n_labels, seed, scale):
    mu = matrices(n_labels, seed, scale)
    projected = Symmetric(mu).project(n_labels)
    assert projected.is_concave(n_labels)
    again = projected.project(n_labels).matrix(n_labels)
    assert np.allclose(again, projected.matrix(n_labels), atol=1e-9 * scale)
    # Nearest: no other compatibility with the guarantee is closer.
    rng = np.random.default_rng(seed)
    distance = np.linalg.norm(projected.matrix(n_labels) - mu)
    for _ in range(20):
        other = projected.matrix(n_labels) + 0.1 * scale * matrices(n_labels, rng.integers(10**6))
        candidate = Symmetric(other).project(n_labels).matrix(n_labels)
        assert np.linalg.norm(candidate - mu) >= distance - 1e-9 * scale


@given(n_labels=st.integers(2, 8), seed=st.integers(0, 10**6), shift=st.floats(-1e3, 1e3))
def test_a_constant_changes_neither_test_nor_projection(n_labels, seed, shift):
    mu = Symmetric(matrices(n_labels, seed))
    moved = Symmetric(mu.matrix(n_labels) + shift)
    assert moved.largest_eigenvalue(n_labels) == pytest.approx(
        mu.largest_eigenvalue(n_labels), abs=1e-9
    )
    difference = moved.project(n_labels).matrix(n_labels) - mu.project(n_labels).matrix(n_labels)
    assert np.allclose(difference, shift, atol=1e-8)


def test_models_that_are_fine_are_left_alone():
    for compatibility in (Potts(3), Diagonal([1, 2, 3]), Symmetric.l1(3)):
        assert np.allclose(compatibility.project(3).matrix(3), compatibility.matrix(3), atol=1e-12)
