"""Rays in torch: the beliefs of the native sum-product, and gradients that reach the scores."""

import numpy as np
import pytest

from torch_device import torch

# isort: split
from crfield.graphs import RayModel, VoxelGrid, infer
from crfield.nn import expected_depth_error, pad_rays, propagate_rays
from refusal import refusal


def some_model(seed=0, n_rays=12):
    """A small model with rays that share voxels, one of them without any."""
    rng = np.random.default_rng(seed)
    grid = VoxelGrid((3, 4, 3))
    starts = np.array([1.5, 2.0, 1.5]) + 6 * rng.normal(size=(n_rays, 3))
    found = grid.traverse(starts, rng.uniform(0, 3, size=(n_rays, 3)) - starts, distances=True)
    lists = [np.append(found.offsets, found.offsets[-1]), found.voxels]
    scores = rng.uniform(0.01, 1, size=len(found.voxels)) ** 3
    prior = rng.uniform(0.1, 0.6, size=grid.n_voxels)
    model = RayModel(grid, *lists, scores, prior, rng.uniform(0.01, 0.3, size=n_rays + 1))
    return model, (found.entries + found.exits) / 2


def tensors(model):
    """Log-scores, voxels, the prior's log-odds and empty log-scores."""
    prior = torch.tensor(model.prior)
    return (
        pad_rays(model.offsets, np.log(model.scores), 0.0), pad_rays(model.offsets, model.voxels),
        torch.logit(prior), torch.from_numpy(np.log(model.empty_scores)),
    )


MODEL, _ = some_model()
SCORES, VOXELS, PRIOR, EMPTY = tensors(MODEL)


@pytest.mark.parametrize("max_iter", [1, 4])
@pytest.mark.parametrize("damping", [0.0, 0.5])
def test_beliefs_are_those_of_the_native_core(max_iter, damping):
    options = {"max_iter": max_iter, "damping": damping}
    found = propagate_rays(SCORES, VOXELS, PRIOR, empty_log_scores=EMPTY, **options)
    wanted = infer(MODEL, **options, tol=0)
    np.testing.assert_allclose(found.log_odds, wanted.log_odds.ravel(), atol=1e-10)
    np.testing.assert_allclose(found.depths[VOXELS >= 0], wanted.depths, atol=1e-12)
    np.testing.assert_allclose(found.empty, wanted.empty, atol=1e-12)
    assert found.depths[VOXELS < 0].abs().max() == 0
    assert found.empty[-1] == 1


def test_without_an_empty_score_every_ray_meets_something():
    found = propagate_rays(SCORES, VOXELS, PRIOR)
    np.testing.assert_allclose(found.depths[:-1].sum(1), 1)
    np.testing.assert_array_equal(found.empty, [0] * (len(SCORES) - 1) + [1])


def test_a_long_ray_in_float32_does_not_underflow():
    n = 2000
    prior = torch.full((n,), 0.3)
    scores = torch.full((1, n), -200.0)
    scores[0, -1] = 0.0
    scores.requires_grad_()
    found = propagate_rays(scores, torch.arange(n)[None], prior)
    assert found.log_odds.isfinite().all()
    (gradient,) = torch.autograd.grad(found.log_odds.sum() + found.depths[0, -1], scores)
    assert gradient.isfinite().all()


def test_gradients():
    model, middles = some_model(1, 5)
    scores, voxels, prior, empty = tensors(model)
    distances = pad_rays(model.offsets, middles, 0.0)
    truth = distances[:, 1].clone()
    truth[-1] = torch.nan
    weights = torch.linspace(-1, 1, len(prior), dtype=torch.float64)

    def loss(scores, prior, empty):
        found = propagate_rays(scores, voxels, prior, empty_log_scores=empty)
        return expected_depth_error(found.depths, distances, truth) + weights @ found.log_odds

    inputs = [values.clone().requires_grad_() for values in (scores, prior, empty)]
    assert torch.autograd.gradcheck(loss, inputs)


def test_scores_can_be_learned():
    model, middles = some_model(2)
    scores, voxels, prior, empty = tensors(model)
    distances = pad_rays(model.offsets, middles, 0.0)
    last = (voxels >= 0).sum(1) - 1
    truth = torch.where(last >= 0, distances.gather(1, last.clamp(0)[:, None])[:, 0], torch.nan)
    learned = scores.clone().requires_grad_()
    optimizer = torch.optim.Adam([learned], lr=0.2)
    errors = []
    for _ in range(40):
        optimizer.zero_grad()
        found = propagate_rays(learned, voxels, prior, empty_log_scores=empty)
        error = expected_depth_error(found.depths, distances, truth)
        error.backward()
        optimizer.step()
        errors.append(error.item())
    assert errors[-1] < 0.3 * errors[0]


TWICE = VOXELS.clone()
TWICE[0, 1] = TWICE[0, 0]


@pytest.mark.parametrize(("change", "words"), [
    ({"log_scores": SCORES[0]}, "must have shape (R, N)"),
    ({"log_scores": torch.full_like(SCORES, torch.nan)}, "log_scores must be finite"),
    ({"log_scores": torch.full_like(SCORES, -1e31)}, "must not exceed 1e+20"),
    ({"log_scores": SCORES.numpy()}, "must be a tensor"),
    # What sums along rays cannot hold:
    ({"log_scores": SCORES.half()}, "float32 or float64"),
    ({"log_scores": SCORES.bfloat16()}, "float32 or float64"),
    ({"log_scores": SCORES.long()}, "float32 or float64"),
    ({"voxels": VOXELS[:, 1:]}, "voxels must be whole"),
    ({"voxels": SCORES}, "voxels must be whole"),
    ({"voxels": VOXELS >= 0}, "must be whole"),
    ({"voxels": TWICE}, f"got {int(TWICE[0, 0])} twice on ray 0"),
    ({"prior_log_odds": PRIOR[:5]}, "voxels must be less than 5"),
    ({"prior_log_odds": PRIOR[None]}, "shape (V,)"),
    ({"prior_log_odds": PRIOR.long()}, "floating-point"),
    ({"empty_log_scores": EMPTY[1:]}, "one number for each ray"),
    ({"damping": 1.0}, "damping must be"),
    ({"max_iter": 0}, "max_iter must be"),
])
def test_wrong_input_is_refused(change, words):
    right = {"log_scores": SCORES, "voxels": VOXELS, "prior_log_odds": PRIOR}
    assert words in refusal(propagate_rays, **{**right, **change})


def test_voxels_of_narrow_types_are_the_same_voxels():
    prior = torch.zeros(300)
    voxels = torch.tensor([[3, 1, 2]])
    wide = propagate_rays(torch.zeros(1, 3), voxels, prior)
    narrow = propagate_rays(torch.zeros(1, 3), voxels.to(torch.uint8), prior)
    assert torch.equal(wide.log_odds, narrow.log_odds)
    for dtype in (torch.int64, torch.int8):
        padded = torch.tensor([[3, 1, 2, -1]], dtype=dtype)
        found = propagate_rays(torch.zeros(1, 4), padded, prior)
        assert torch.equal(wide.log_odds, found.log_odds)


def test_lists_are_padded_or_refused():
    unsigned = pad_rays(np.array([0, 2, 3], np.uint64), np.arange(3, dtype=np.uint32))
    assert unsigned.tolist() == [[0, 1], [2, -1]]
    assert "from 0 to the 2 entries of values" in refusal(pad_rays, [0, 3], [1, 2])
    assert "got 1 to 2" in refusal(pad_rays, [1, 2], [1, 2])
    assert "fill must be a whole number" in refusal(pad_rays, [0, 2], [1, 2], np.nan)
    assert "fill must be a number" in refusal(pad_rays, [0, 2], [1, 2], "x")
    swapped = pad_rays([0, 1, 3], np.array([1.5, 2, 3], ">f8"), np.nan)
    assert swapped.dtype == torch.float64
    assert swapped.isnan().sum() == 1
    assert "shapes (R, N)" in refusal(expected_depth_error, *[torch.zeros(2)] * 2, torch.zeros(2))
    assert "match them" in refusal(expected_depth_error, SCORES, SCORES, PRIOR)
    whole = torch.ones(2, 3, dtype=torch.long)
    assert "floating-point" in refusal(expected_depth_error, whole, whole, torch.zeros(2))
    assert "must not fall" in refusal(pad_rays, np.array([0, 5, 3], np.uint64), np.arange(3))
    assert "whole numbers" in refusal(pad_rays, [0.0, 2.0], [1, 2])
    assert "whole numbers" in refusal(pad_rays, 2, [1, 2])
    assert "R >= 1 rays" in refusal(pad_rays, [], [])
    assert "shape (E,)" in refusal(pad_rays, [0, 2], [[1, 2]])
    assert "real numbers" in refusal(pad_rays, [0, 2], ["a", "b"])
    uneven = np.append(np.arange(10**6), 2 * 10**6)
    assert "GiB" in refusal(pad_rays, uneven, np.broadcast_to(0.0, 2 * 10**6))
