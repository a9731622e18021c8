"""What calibrated photographs say about the voxels of a grid, and back."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from calibrated_views import Floats, Scene, View
from crfield.graphs import Camera, RayModel, VoxelGrid, fuse_independent, infer
from crfield.graphs.vision.photo_consistency import (
    correlate_windows,
    first_hits,
    look_up,
    sample_bilinear,
    sweep_planes,
)

FUSION, PROPAGATION = "independent fusion", "belief propagation"
# Degrees between views that are compared: with few, all depths agree; with many, none do.
LEAST_ANGLE, BEST_ANGLE, LARGEST_ANGLE = 1, 20, 50
N_COMPARED, N_BLENDED, PIXELS_PER_VOXEL = 6, 3, 2


@dataclass(frozen=True)
class Settings:
    """Scores are exp(beta ncc), exp(beta empty) for an empty ray; prior of a voxel."""

    beta: float = 8.0
    empty: float = 0.4
    prior: float = 0.1


class Sight:
    """The rays of all pixels of a view through a grid, and the depths of the voxels on them."""

    def __init__(self, grid: VoxelGrid, view: View):
        self.view, self.size = view, view.camera.image_size
        origins, self.directions = view.camera.rays()
        crossed = grid.traverse(origins, self.directions, distances=True)
        self.offsets, self.voxels = crossed.offsets, crossed.voxels
        # Depth grows linearly along a ray, from 0 in the camera.
        self.per_length = view.camera.project(origins + self.directions)[1]
        middles = (crossed.entries + crossed.exits) / 2
        self.depths = (middles * self.per_length[self.ray]).astype(np.float32)

    @property
    def ray(self) -> NDArray[np.int64]:
        """Which one each voxel is on."""
        return np.repeat(np.arange(math.prod(self.size)), np.diff(self.offsets))

    @property
    def crosses(self) -> NDArray[np.bool_]:
        """Pixels (H, W) whose rays have voxels."""
        return (np.diff(self.offsets) > 0).reshape(self.size)

    def places(self, depths: Floats) -> Floats:
        """Points (R, 3) on all rays, at depths (H, W)."""
        lengths = depths.ravel() / self.per_length
        return self.view.camera.center + lengths[:, None] * self.directions

    def expect(self, first: Floats, none: Floats) -> tuple[Floats, Floats]:
        """Depths (H, W) expected where something is met, and the probability of that."""
        total = np.bincount(self.ray, first * self.depths, len(none))
        met = 1 - none
        return (total / np.maximum(met, 1e-9)).reshape(self.size), met.reshape(self.size)

    def first(self, occupied: Floats) -> tuple[Floats, Floats]:
        """The probability of each voxel on each ray being met first, and of none."""
        return first_hits(self.offsets, occupied.ravel()[self.voxels])

    def render(self, occupied: Floats) -> tuple[Floats, Floats]:
        """What is expected if voxels are occupied independently of each other."""
        return self.expect(*self.first(occupied))


class Photographs:
    """A scene at one resolution, and what its views say of its voxels."""

    def __init__(self, scene: Scene, side: int, n_held: int):
        spacing = float((scene.high - scene.low).max() / side)
        shape = np.ceil((scene.high - scene.low) / spacing - 1e-6).astype(int)
        self.scene, self.spacing = scene, spacing
        self.grid = VoxelGrid(shape.tolist(), scene.low, spacing)
        ends = np.stack([scene.low, scene.low + shape * spacing])
        self.corners = np.array(list(itertools.product(*ends.T)))
        self.middle = ends.mean(0)
        steps = self.middle + spacing * np.vstack([np.zeros(3), np.eye(3)])
        moves = np.array([np.diff(view.camera.project(steps)[0], axis=0) for view in scene.views])
        factor = max(1, round(np.median(np.linalg.norm(moves, axis=-1)) / PIXELS_PER_VOXEL))
        self.sights = [
            Sight(self.grid, view.shrunk(factor).cropped(self.corners)) for view in scene.views
        ]
        n = len(scene.views)
        self.held = [int((k + 0.25) * n / n_held) for k in range(n_held)]
        self.known = [k for k in range(n) if k not in self.held]

    def angles(self, camera: Camera) -> Floats:
        """Degrees between the view of a camera and all views."""
        ways = self.middle - [camera.center, *(view.camera.center for view in self.scene.views)]
        ways /= np.linalg.norm(ways, axis=1, keepdims=True)
        return np.degrees(np.arccos(np.clip(ways[1:] @ ways[0], -1, 1)))

    def neighbors(self, k: int, count: int) -> list[int]:
        """The known views that a view is best compared with."""
        angles = self.angles(self.sights[k].view.camera)
        near = [j for j in self.known if LEAST_ANGLE <= angles[j] <= LARGEST_ANGLE]
        if not near:
            name = self.sights[k].view.name
            raise SystemExit(f"No view is within {LARGEST_ANGLE} degrees of {name}.")
        return sorted(near, key=lambda j: abs(angles[j] - BEST_ANGLE))[:count]

    @cached_property
    def agreements(self) -> list[tuple[NDArray[np.float32], Floats, Floats]]:
        """For each known view the ncc of its voxels, each pixel's best ncc and its depth."""
        grays = [sight.view.image.mean(-1) for sight in self.sights]
        found = []
        for k in self.known:
            sight, camera = self.sights[k], self.sights[k].view.camera
            _, ends = camera.project(self.corners)
            depths = np.arange(ends.min(), ends.max() + self.spacing, self.spacing)
            near = self.neighbors(k, N_COMPARED)
            others = [(self.sights[j].view.camera, grays[j]) for j in near]
            volume = sweep_planes(camera, grays[k], others, depths)
            ncc = look_up(volume, depths, sight.ray, sight.depths)
            found.append((ncc, volume.max(0), depths[volume.argmax(0)]))
        return found

    def model(self, settings: Settings) -> RayModel:
        """All rays of all known views."""
        sights = [self.sights[k] for k in self.known]
        lengths = np.concatenate([np.diff(sight.offsets) for sight in sights])
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        ncc = np.concatenate([ncc for ncc, _, _ in self.agreements])
        # Scores count up to a factor for each ray: that of its best is 1.
        top = np.full(len(lengths), settings.empty, np.float32)
        crossing = lengths > 0
        top[crossing] = np.maximum(top[crossing], np.maximum.reduceat(ncc, offsets[:-1][crossing]))
        return RayModel(
            self.grid, offsets, np.concatenate([sight.voxels for sight in sights]),
            np.exp(settings.beta * (ncc - np.repeat(top, lengths))), settings.prior,
            np.exp(settings.beta * (settings.empty - top)),
        )

    def reconstruct(self, method: str, settings: Settings) -> Floats:
        """The probability of each voxel being occupied."""
        model = self.model(settings)
        return fuse_independent(model) if method == FUSION else infer(model).marginals

    def synthesize(self, k: int, occupied: Floats) -> Floats:
        """An image (H, W, 3) of a held-out view."""
        sight = self.sights[k]
        depths, met = sight.render(occupied)
        places = sight.places(depths)
        total, weights = 0.0, 1e-9
        for other in (self.sights[j] for j in self.neighbors(k, N_BLENDED)):
            pixels, there = other.view.camera.project(places)
            colors, inside = sample_bilinear(other.view.image, pixels)
            surface, _ = sample_bilinear(other.render(occupied)[0], pixels)
            # A view from which the place is hidden helps only where no other does.
            weight = inside * np.where(there < surface + 2 * self.spacing, 1, 1e-3)
            total = total + weight[:, None] * colors
            weights = weights + weight[:, None]
        image = (total / weights).reshape(sight.view.image.shape)
        return met[..., None] * image + (1 - met[..., None]) * self.scene.background

    @cached_property
    def counted(self) -> dict[int, NDArray[np.bool_]]:
        """Pixels (H, W) of held-out views that the other views can say something about."""
        found = {}
        for k in self.held:
            sight = self.sights[k]
            count = sight.crosses
            last = np.maximum(sight.offsets[1:] - 1, 0)
            for entry in (np.minimum(sight.offsets[:-1], last), last):
                # A ray between two places in an image stays in it.
                places = sight.places(sight.depths[entry])
                for j in self.neighbors(k, N_BLENDED):
                    other = self.sights[j]
                    pixels, _ = other.view.camera.project(places)
                    _, inside = sample_bilinear(other.view.image, pixels)
                    count = count & inside.reshape(sight.size)
            if self.scene.goes_on:
                above = sight.voxels[last] % self.grid.shape[2] > 0
                count = count & ~above.reshape(sight.size)
            found[k] = count
        return found

    def judge(self, occupied: Floats) -> dict[int, dict[str, float]]:
        """How near each held-out view comes to what was photographed."""
        figures = {}
        for k, count in self.counted.items():
            view, image = self.sights[k].view, self.synthesize(k, occupied)
            error = ((image - view.image)[count] ** 2).mean()
            ncc = correlate_windows(image.mean(-1), view.image.mean(-1), 3)[count]
            figures[k] = {"psnr": float(-10 * np.log10(error)), "ncc": float(ncc.mean())}
            if view.truth is not None:
                depth, met = self.sights[k].render(occupied)
                found = (met >= 0.5) & (np.abs(depth - view.truth) < 1.5 * self.spacing)
                right = np.where(np.isnan(view.truth), met < 0.5, found)
                figures[k]["depths_right"] = float(100 * right[count].mean())
        return figures


def voxel_colors(grid: VoxelGrid, sights: list[Sight], occupied: Floats) -> Floats:
    """The mean (V, 3) over the pixels in which each voxel is met first, 0 if that is in none."""
    total, weights = np.zeros((grid.n_voxels, 3)), np.full(grid.n_voxels, 1e-9)
    for sight in sights:
        first, _ = sight.first(occupied)
        pixels = sight.view.image.reshape(-1, 3)[sight.ray]
        weights += np.bincount(sight.voxels, first, grid.n_voxels)
        for c in range(3):
            total[:, c] += np.bincount(sight.voxels, first * pixels[:, c], grid.n_voxels)
    return np.where(weights[:, None] < 0.01, 0, total / weights[:, None])


def draw_voxels(
    grid: VoxelGrid, occupied: Floats, colors: Floats, beside: View, degrees: float
) -> Floats:
    """Colored voxels (H, W, 3) before black, seen from beside a view of them."""
    middle = grid.origin + np.array(grid.shape) * grid.spacing / 2
    axis = np.linalg.inv(beside.camera.projection[:, :3])[:, 1]
    x, y, z = axis / np.linalg.norm(axis)
    cross = np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])
    angle = math.radians(degrees)
    turn = np.eye(3) + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross
    motion = np.block([[turn, (middle - turn @ middle)[:, None]], [0, 0, 0, 1]])
    camera = Camera(beside.camera.projection @ motion, beside.camera.image_size)
    sight = Sight(grid, replace(beside, camera=camera))
    # What no view has seen keeps its prior, and would be a dark fog.
    first, none = sight.first(np.where(colors.any(1), occupied.ravel(), 0))
    return np.stack([
        np.bincount(sight.ray, first * colors[sight.voxels, c], len(none)).reshape(sight.size)
        for c in range(3)
    ], -1)


def as_bytes(image: Floats) -> NDArray[np.uint8]:
    """For a picture: 0 to 255 instead of 0 to 1."""
    return np.rint(255 * np.clip(image, 0, 1)).astype(np.uint8)


def depth_picture(seen: tuple[Floats, Floats], ends: Floats) -> NDArray[np.uint8]:
    """Depths (H, W) and what is met: near is bright, and black is where nothing is."""
    depth, met = seen
    far = np.clip((depth - ends[0]) / (ends[1] - ends[0]), 0, 1)
    return as_bytes(np.where(met < 0.5, 0, 1 - 0.85 * far))
