"""Costs from labels, probabilities, logits and logistic features."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from crfield import (
    Bilateral,
    DenseCRF,
    Pairwise,
    Potts,
    Spatial,
    unary_from_features,
    unary_from_labels,
    unary_from_logits,
    unary_from_probabilities,
)
from refusal import refusal


@given(n_labels=st.integers(2, 9), confidence=st.floats(0.05, 0.99), seed=st.integers(0, 999))
def test_labels(n_labels, confidence, seed):
    labels = np.random.default_rng(seed).integers(0, n_labels, (5, 6))
    labels[2, 3] = 255
    p = np.exp(-unary_from_labels(labels, n_labels, confidence=confidence).astype(float))
    assert np.allclose(p.sum(-1), 1.0, atol=1e-5)
    known = labels != 255
    chosen = np.take_along_axis(p, np.where(known, labels, 0)[..., None], -1)[..., 0]
    assert np.allclose(chosen[known], confidence, atol=1e-5)
    assert np.allclose(p[2, 3], 1.0 / n_labels, atol=1e-6)


def test_unknown_may_be_any_value_or_none():
    labels = np.array([[0, 1, 2]])
    flat = unary_from_labels(labels, 3, unknown=1)
    assert np.allclose(flat[0, 1], np.log(3))
    assert np.ptp(unary_from_labels(labels, 3, unknown=None)[0, 1]) > 0
    assert "got 255 at index" in refusal(unary_from_labels, np.array([[0, 255]]), 3, unknown=None)


def test_probabilities_are_clipped_and_scaled():
    p = np.array([[1.0, 0.0], [0.25, 0.75]])
    assert np.allclose(unary_from_probabilities(p, clip=1e-3)[0, 1], -np.log(1e-3))
    assert np.allclose(unary_from_probabilities(p, scale=0.5)[1], -0.5 * np.log(p[1]))
    assert unary_from_probabilities(p).dtype == np.float64
    single = p.astype(np.float32)
    assert unary_from_probabilities(single).dtype == np.float32
    least = np.finfo(np.float32).tiny  # below it no clip is told from 0
    assert np.allclose(unary_from_probabilities(single, clip=1e-60)[0, 1], -np.log(least))


def test_logits_and_features_are_log_linear():
    rng = np.random.default_rng(0)
    z = rng.normal(size=(3, 4, 5)) * 30
    p = np.exp(-unary_from_logits(z))
    assert np.allclose(p.reshape(-1, 5), reference.softmax(z.reshape(-1, 5)), atol=1e-12)
    h, weights = rng.normal(size=(3, 4, 6)), rng.normal(size=(5, 6))
    assert np.allclose(unary_from_features(h, weights), np.einsum("abf,lf->abl", h, weights))
    assert "one row of weights per label" in refusal(unary_from_features, h, weights.T)


def test_recalibration_is_a_logistic_unary_inside_the_model(tmp_path):
    rng = np.random.default_rng(1)
    costs, matrix = rng.normal(size=(4, 5, 3)), rng.normal(size=(3, 4))
    image = rng.integers(0, 255, (4, 5, 3), dtype=np.uint8)
    terms = [Pairwise(Bilateral(3, 40), Potts(1))]
    with_constant = np.concatenate([costs, np.ones((4, 5, 1))], -1)
    plain = DenseCRF(3, terms).infer(image, unary_from_features(with_constant, matrix))
    model = DenseCRF(3, terms, matrix)
    model.save(tmp_path / "model.safetensors")
    for saved in (model, DenseCRF.load(tmp_path / "model.safetensors")):
        result = saved.infer(image, costs)
        assert np.allclose(result.marginals, plain.marginals, atol=1e-12)
        assert np.allclose(result.free_energies, plain.free_energies)
    labels = plain.labels
    assert model.energy(image, labels, costs) == pytest.approx(
        DenseCRF(3, terms).energy(image, labels, unary_from_features(with_constant, matrix))
    )
    assert "3 rows and 4 columns" in refusal(DenseCRF, 3, terms, np.eye(3))


def test_masks_of_0_and_255_are_noticed():
    with pytest.warns(UserWarning, match="pass labels > 0"):
        unary_from_labels(np.array([[0, 255], [0, 255]]), 2)


def test_probabilities_in_the_place_of_costs_are_noticed():
    crf = DenseCRF(3, [Pairwise(Spatial(2), Potts(1))])
    p = np.random.default_rng(0).dirichlet(np.ones(3), (9, 8))
    with pytest.warns(UserWarning, match="unary looks like probabilities"):
        crf.infer(None, p)
    crf.infer(None, unary_from_probabilities(p))
    crf.infer(None, np.eye(3)[p.argmax(-1)])
