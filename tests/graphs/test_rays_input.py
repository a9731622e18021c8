"""Wrong grids, cameras, rays and models are refused in one sentence."""

import numpy as np
import pytest

from crfield._core import _native
from crfield.graphs import (
    Camera,
    RayModel,
    VoxelGrid,
    fuse_independent,
    infer,
    k_best,
    ray_messages,
    sample,
)
from refusal import refusal

GOOD = {
    "grid": 4, "offsets": [0, 3, 5], "voxels": [0, 1, 2, 3, 1], "scores": [1.0, 2.0, 0.0, 1.0, 1.0],
    "prior": 0.3, "empty_scores": 0.0,
}


def test_the_good_model_is_accepted():
    model = RayModel(**GOOD)
    assert (model.n_rays, model.n_voxels, model.shape) == (2, 4, (4,))
    np.testing.assert_array_equal(model.seen(), True)
    assert RayModel(**{**GOOD, "grid": VoxelGrid((1, 2, 2))}).shape == (1, 2, 2)


@pytest.mark.parametrize(("changes", "words"), [
    ({"scores": [1.0, -2.0, 0.0, 1.0, 1.0]}, "between 0 and 1e+30, got -2 at index (1,)"),
    ({"scores": [1.0, 2.0, np.nan, 1.0, 1.0]}, "scores must be finite, got nan at index (2,)"),
    ({"scores": [1.0, 2.0, np.inf, 1.0, 1.0]}, "got inf"),
    ({"scores": np.array([1e31, 1, 1, 1, 1])}, "got 1e+31"),
    ({"scores": [1.0, 2.0]}, "one number for each of 5 entries"),
    ({"scores": [0, 0, 0, 1, 1]}, "got 0 as the largest of ray 0"),
    ({"scores": np.array([1, 1, 1, 1e-40, 0])}, "largest of ray 1"),
    ({"scores": "abc"}, "scores must hold real numbers"),
    ({"empty_scores": -1}, "empty_scores must lie between"),
    ({"empty_scores": [1, 2, 3]}, "one for each of 2 rays"),
    ({"voxels": [0, 1, 4, 3, 1]}, "between 0 and 3, got 4 at index 2"),
    ({"voxels": [0, 1, -1, 3, 1]}, "got -1 at index 2"),
    ({"voxels": [0, 1, 1, 3, 1]}, "got 1 twice on ray 0"),
    ({"voxels": [0, 1, 2, 1, 1]}, "got 1 twice on ray 1"),
    ({"voxels": [0.0, 1, 2, 3, 1]}, "voxels must be whole numbers"),
    ({"voxels": [[0, 1, 2, 3, 1]]}, "of shape (1, 5)"),
    ({"offsets": [0, 6, 5]}, "offsets must not fall, got 6 and then 5 at ray 1"),
    ({"offsets": [0, 3, 4]}, "from 0 to the 5 entries of voxels, got 0 to 4"),
    ({"offsets": [1, 3, 5]}, "got 1 to 5"),
    ({"offsets": [0]}, "R >= 1 rays"),
    ({"offsets": [], "voxels": [], "scores": []}, "R >= 1 rays"),
    ({"prior": 0.0}, "prior must be at least 1e-300 and less than 1, got 0"),
    ({"prior": 1e-310}, "got 1e-310"),
    ({"prior": 1.0}, "got 1"),
    ({"prior": [0.1, 0.2, 1.5, 0.1]}, "got 1.5 at index (2,)"),
    ({"prior": [0.1, 0.2]}, "one for each of 4 voxels"),
    ({"prior": np.nan}, "prior must be finite"),
    ({"grid": 0}, "number of voxels must be at least 1"),
    ({"grid": 2**31}, "at most 2147483647"),
    ({"grid": "4"}, "must be a whole number"),
])
def test_models(changes, words):
    assert words in refusal(RayModel, **{**GOOD, **changes})


def test_a_model_keeps_copies_that_cannot_be_written_to():
    scores, prior = np.ones(3), np.full(3, 0.5)
    offsets, voxels = np.array([0, 3]), np.array([0, 1, 2], np.int32)
    model = RayModel(3, offsets, voxels, scores, prior, [0.0])
    expected = infer(model).marginals
    for values in (model.offsets, model.voxels, model.scores, model.prior, model.empty_scores):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 1
    scores[:] = prior[:] = np.nan
    voxels[:] = 2**31 - 1
    offsets[:] = -1
    np.testing.assert_array_equal(infer(model).marginals, expected)


@pytest.mark.parametrize(("name", "values"), [
    ("voxels", np.array([0, 2**31 - 1, 2], np.int32)), ("voxels", np.array([0, -1, 2], np.int32)),
    ("offsets", np.array([0, 10**9, 3])), ("offsets", np.array([-(10**9), 3, 3])),
])
def test_the_core_looks_at_lists_itself(name, values):
    model = RayModel(3, [0, 3, 3], [0, 1, 2], np.ones(3), 0.5, 1.0)
    setattr(model, name, values)
    for function in (infer, fuse_independent):
        with pytest.raises(ValueError, match="out of range"):
            function(model)
    with pytest.raises(ValueError, match="out of range"):
        _native.count_rays(
            model.offsets, model.voxels, np.empty(3, np.int32), np.empty(3, np.int32)
        )


def test_what_memory_cannot_hold_is_refused_before_work(monkeypatch):
    monkeypatch.setattr("crfield._core.validate.available_memory", lambda: 2.0**22)
    assert "1500000000 voxels" in refusal(RayModel, **{**GOOD, "grid": 1_500_000_000})
    assert "centers" in refusal(VoxelGrid((100, 100, 100)).centers)
    camera = Camera(np.eye(3, 4), (1000, 1000))
    assert "rays" in refusal(camera.rays)
    assert "rays" in refusal(camera.rays, np.zeros((10**5, 2)))
    assert len(camera.rays([[1, 2]])[0]) == 1
    RayModel(**GOOD)


def test_inference():
    assert "RayModel or Poses for infer, got int" in refusal(infer, 5)
    assert "must be a RayModel" in refusal(fuse_independent, None)
    model = RayModel(**GOOD)
    assert "max_iter must be at least 1" in refusal(infer, model, max_iter=0)
    assert "temperature must be 1 or 0 for a RayModel" in refusal(infer, model, temperature=0.5)
    assert "must be 'auto' or 'flooding'" in refusal(infer, model, schedule="exact")
    for setting in ({"convex": True}, {"init": infer(model)}):
        assert "convex must be False and init None" in refusal(infer, model, **setting)
    assert "got RayModel" in refusal(k_best, model, 2)
    assert "got RayModel" in refusal(sample, model)
    assert "damping must be 0 or more" in refusal(infer, model, damping=1.0)
    assert "damping must be 0 or more" in refusal(infer, model, damping=-0.1)
    assert "tol must not be negative" in refusal(infer, model, tol=-1.0)
    assert "threads must be" in refusal(infer, model, threads=0)
    assert "threads must be" in refusal(fuse_independent, model, threads=0)


def test_messages():
    good = [[0.5, 0.5], [0.1, 0.9]]
    assert "shape (2, 2), got (1, 2)" in refusal(ray_messages, [[1, 0]], [1, 1])
    assert "no pair of zeros" in refusal(ray_messages, [[0, 0], [1, 1]], [1, 1])
    assert "no negative message" in refusal(ray_messages, [[-1, 2], [1, 1]], [1, 1])
    assert "scores must lie between" in refusal(ray_messages, good, [1, -1])
    assert "empty_scores must" in refusal(ray_messages, good, [1, 1], -1.0)
    assert "temperature must be 1 or 0" in refusal(ray_messages, good, [1, 1], temperature=2.0)
    assert "incoming must be finite" in refusal(ray_messages, [[np.nan, 1], [1, 1]], [1, 1])


def test_grids():
    grid = VoxelGrid((3, 3, 3))
    for values in (grid.origin, grid.spacing, Camera(np.eye(3, 4), (2, 2)).projection):
        with pytest.raises(ValueError, match="read-only"):
            values[0] = 0
    assert "three whole numbers" in refusal(VoxelGrid, (3, 3))
    assert "three whole numbers" in refusal(VoxelGrid, 3)
    assert "shape must be at least 1" in refusal(VoxelGrid, (3, 0, 3))
    assert "a grid may have" in refusal(VoxelGrid, (2000, 2000, 2000))
    assert "spacing must be positive" in refusal(VoxelGrid, (3, 3, 3), spacing=0)
    assert "one number or three" in refusal(VoxelGrid, (3, 3, 3), spacing=(1, 2))
    assert "unit of length" in refusal(VoxelGrid, (3, 3, 3), spacing=1e-310)
    assert "got 1e+200" in refusal(VoxelGrid, (3, 3, 3), spacing=(1, 1e200, 1))
    assert "origin must have shape (3,)" in refusal(VoxelGrid, (3, 3, 3), (1, 2))
    assert "origin must be finite" in refusal(VoxelGrid, (3, 3, 3), (1, 2, np.inf))


def test_lines():
    traverse = VoxelGrid((3, 3, 3)).traverse
    assert "(R, 3) or (3,)" in refusal(traverse, [[1, 2]], [1, 0, 0])
    assert "as many, got 2 and 3" in refusal(traverse, np.ones((2, 3)), np.ones((3, 3)))
    message = refusal(traverse, [0, 0, 0], [[1, 0, 0], [0, 0, 0]])
    assert "must not be zero, got [0.0, 0.0, 0.0] for ray 1" in message
    assert "between 1e-100 and 1e+100, got [5e-324" in refusal(traverse, [0, 0, 0], [5e-324, 0, 0])
    assert "for ray 0" in refusal(traverse, [0, 0, 0], [1, 1e300, 0])
    assert "directions must be finite" in refusal(traverse, [0, 0, 0], [np.nan, 0, 0])
    assert "threads must be" in refusal(traverse, [0, 0, 0], [1, 0, 0], threads=-1)
    assert len(traverse(np.zeros((0, 3)), np.zeros((0, 3))).voxels) == 0


def test_cameras():
    good = np.eye(3, 4)
    assert "shape (3, 4)" in refusal(Camera, np.eye(3), (4, 4))
    assert "invertible" in refusal(Camera, np.zeros((3, 4)), (4, 4))
    assert "invertible" in refusal(Camera, [[1, 2, 3, 0], [2, 4, 6, 0], [0, 0, 1, 0]], (4, 4))
    assert "invertible" in refusal(Camera, np.eye(3, 4, 1) + 1e-310 * np.eye(3, 4), (4, 4))
    assert "two whole numbers" in refusal(Camera, good, 4)
    assert "image_size must be at least 1" in refusal(Camera, good, (0, 4))
    assert "pixels must have shape (N, 2)" in refusal(Camera(good, (4, 4)).rays, [1, 2, 3])
    for name, shape, pose in (
        ("rotation", "(3, 3)", (np.eye(2), np.zeros(3))),
        ("translation", "(3,)", (np.eye(3), np.zeros(2))),
    ):
        message = refusal(Camera.from_calibration, np.eye(3), *pose, (4, 4))
        assert f"{name} must have shape {shape}" in message
    assert "up must not lie along" in refusal(Camera.looking_at, [0, 0, 1], [0, 0, 0], 10.0, (4, 4))
    message = refusal(Camera.looking_at, [1, 0, 1], [0, 0, 0], 0.0, (4, 4))
    assert "focal_length must be positive" in message
