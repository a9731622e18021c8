"""A network learns the scores of rays from noisy photo-consistency, through belief propagation.

Cameras around a solid look at it; each pixel's ray crosses voxels, and the first occupied one is
what the pixel sees. For every voxel on a ray some neighboring views say how much their colors
agree there. They agree at the surface, but also where texture repeats; some views are noisy, some
do not see the place. A small convolutional network along the ray turns these features into log
scores, and `crfield.nn.propagate_rays` combines all rays of all views to a posterior of depth for
each (the setting of RayNet, Paschalidou et al. 2018). The expected error of depth is the loss; its
gradient goes back through belief propagation to the network.

Reported, in voxels and on solids that were not seen in training: the expected error of depth, and
the share of rays whose most probable depth is right to one voxel. `mean` stands for the mean
agreement times a factor that is best on the training solids, as one would do by hand; `alone` for
rays that do not share their voxels.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

from crfield.graphs import Camera, VoxelGrid
from crfield.nn import expected_depth_error, pad_rays, propagate_rays
from crfield.nn.structured.rays import RayBeliefs
from crfield.show.pictures import side_by_side, stack

# Noise of the views that are compared with, how often one sees the place, and how often texture
# repeats.
NOISE = (0.2, 0.3, 0.8, 1.6)
VISIBLE, REPEATED = 0.7, 0.6
FACTORS = (1.0, 2.0, 4.0, 8.0, 16.0)
PRIOR = 0.05


@dataclass(frozen=True)
class Rays:
    """All rays of a scene that meet the solid.

    features : (R, F, N); voxels : (R, N), -1 behind the last; distances : (R, N), of the middle of
    each voxel; truth : (R,), the depth; pixels : (R, 2), view and pixel of each; side : of a view.
    """

    features: Tensor
    voxels: Tensor
    distances: Tensor
    truth: Tensor
    pixels: NDArray[np.int64]
    side: int
    n_voxels: int


class Scores(nn.Module):
    """Log scores (R, N) from features (R, F, N): convolutions along the ray."""

    def __init__(self, n_features: int, width: int = 16) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(n_features, width, 3, padding=1), nn.ReLU(),
            nn.Conv1d(width, width, 3, padding=1), nn.ReLU(), nn.Conv1d(width, 1, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        scores: Tensor = self.layers(features)[:, 0]
        return scores


def make_solid(n: int, seed: int) -> NDArray[np.bool_]:
    """A union of balls in n^3 voxels."""
    rng = np.random.default_rng(seed)
    place = (np.moveaxis(np.indices((n, n, n)), 0, -1) + 0.5) / n - 0.5
    balls = zip(rng.uniform(-0.2, 0.2, (5, 3)), rng.uniform(0.12, 0.22, 5), strict=True)
    return np.any([np.linalg.norm(place - c, axis=-1) < r for c, r in balls], 0)


def look_at(solid: NDArray[np.bool_], n_views: int, side: int, seed: int) -> Rays:
    """The rays of cameras around a solid, and what comparing views says of their voxels."""
    n = len(solid)
    grid = VoxelGrid(solid.shape, (-n / 2,) * 3)
    starts, ways = [], []
    for view in range(n_views):
        height = 0.8 * (2 * (view + 0.5) / n_views - 1)
        angle, flat = view * math.pi * (3 - math.sqrt(5)), math.sqrt(1 - height**2)
        place = 2 * n * np.array([flat * np.cos(angle), flat * np.sin(angle), height])
        origins, directions = Camera.looking_at(
            place, (0, 0, 0), 2.5 * side, (side, side)
        ).rays()
        starts.append(origins)
        ways.append(directions)
    found = grid.traverse(np.concatenate(starts), np.concatenate(ways), distances=True)
    assert found.entries is not None
    assert found.exits is not None
    voxels = pad_rays(found.offsets, found.voxels)
    middles = pad_rays(found.offsets, (found.entries + found.exits) / 2, 0.0)
    occupied = torch.from_numpy(solid.reshape(-1))[voxels.clamp_min(0)] & (voxels >= 0)
    rows = occupied.any(1).nonzero()[:, 0]
    first = occupied[rows].int().argmax(1)
    voxels, middles = voxels[rows], middles[rows]
    truth = middles.gather(1, first[:, None])[:, 0]
    features = agreement(middles, truth, np.random.default_rng(seed))
    size = int((voxels >= 0).sum(1).max())
    return Rays(
        features[..., :size], voxels[:, :size], middles[:, :size].float(), truth.float(),
        np.stack(np.divmod(rows.numpy(), side * side), 1), side, grid.n_voxels,
    )


def agreement(distances: Tensor, truth: Tensor, rng: np.random.Generator) -> Tensor:
    """How much each of the other views agrees at each voxel, (R, F, N)."""
    n_rays, n = distances.shape
    offset = np.where(rng.random(n_rays) < 0.5, -1, 1) * rng.uniform(3, 8, n_rays)
    echo = truth.numpy() + np.where(rng.random(n_rays) < REPEATED, offset, 1e3)
    texture = rng.uniform(0.5, 1.5, (n_rays, 1))
    peaks = sum(
        np.exp(-((distances.numpy() - depth[:, None]) ** 2) / 2) for depth in (truth.numpy(), echo)
    )
    seen = rng.random((n_rays, len(NOISE), 1)) < VISIBLE
    noise = np.array(NOISE)[:, None] * rng.normal(size=(n_rays, len(NOISE), n))
    return torch.from_numpy(seen * (texture * peaks)[:, None] + noise).float()


def propagate(rays: Rays, log_scores: Tensor, *, alone: bool) -> RayBeliefs:
    """Beliefs of all rays, or of each by itself, with voxels of its own."""
    voxels, n_voxels = rays.voxels, rays.n_voxels
    if alone:
        own = torch.arange(voxels.numel()).reshape(voxels.shape)
        voxels, n_voxels = torch.where(voxels >= 0, own, -1), voxels.numel()
    prior = torch.full((n_voxels,), math.log(PRIOR / (1 - PRIOR)))
    return propagate_rays(log_scores, voxels, prior, max_iter=1 if alone else 3)


def train(scenes: list[Rays], n_updates: int, *, alone: bool) -> Scores:
    """A network whose scores give the least expected error of depth."""
    torch.manual_seed(0)
    network = Scores(len(NOISE))
    optimizer = torch.optim.Adam(network.parameters())
    for update in range(n_updates):
        for group in optimizer.param_groups:
            group["lr"] = 0.02 * 0.5 * (1 + math.cos(math.pi * update / n_updates))
        rays = scenes[update % len(scenes)]
        found = propagate(rays, network(rays.features), alone=alone)
        loss = expected_depth_error(found.depths, rays.distances, rays.truth)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return network


@torch.no_grad()
def measure(scenes: list[Rays], scores: nn.Module, *, alone: bool) -> tuple[float, float]:
    """Expected error of depth, in voxels, and percent of rays that are right to one voxel."""
    errors, right = [], []
    for rays in scenes:
        found = propagate(rays, scores(rays.features), alone=alone)
        errors.append(expected_depth_error(found.depths, rays.distances, rays.truth).item())
        likely = rays.distances.gather(1, found.depths.argmax(1, keepdim=True))[:, 0]
        right.append(((likely - rays.truth).abs() <= 1).float().mean().item())
    return float(np.mean(errors)), 100 * float(np.mean(right))


class Mean(nn.Module):
    """The mean agreement of all views times a factor."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, features: Tensor) -> Tensor:
        return self.factor * features.mean(1)


@torch.no_grad()
def draw(rays: Rays, methods: dict[str, tuple[nn.Module, bool]]) -> Image.Image:
    """The depths that two views see: truth, and the expectation of each method."""
    found = {"truth": rays.truth}
    for name, (scores, alone) in methods.items():
        depths = propagate(rays, scores(rays.features), alone=alone).depths
        found[name] = (depths * rays.distances).sum(1) / depths.sum(1)
    low, high = rays.truth.min().item() - 1, rays.truth.max().item() + 1
    panels = []
    for depth in found.values():
        picture = np.full((2, rays.side * rays.side), 255, np.uint8)
        share = ((depth.numpy() - low) / (high - low)).clip(0, 1)
        for k, view in enumerate((0, rays.pixels[:, 0].max() // 2)):
            chosen = rays.pixels[:, 0] == view
            picture[k, rays.pixels[chosen, 1]] = (20 + 200 * share[chosen]).astype(np.uint8)
        views = picture.reshape(2, rays.side, rays.side)
        panels.append(without_margins(views))
    shown = side_by_side(*panels, titles=tuple(found), height=480)
    words = (
        f"two views; gray is depth, from {low:.0f} voxels (dark) to {high:.0f} (light); white: "
        "nothing is met"
    )
    footer = Image.new("RGB", (shown.width, 40), "white")
    font = ImageFont.load_default(size=20)
    ImageDraw.Draw(footer).text((shown.width / 2, 16), words, "black", font, anchor="mm")
    return stack(shown, footer)


def without_margins(views: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Views (V, H, W) below each other, one white row between, without what is white around."""
    columns = np.flatnonzero((views < 255).any((0, 1)))
    parts = []
    for view in views[..., columns.min():columns.max() + 1]:
        rows = np.flatnonzero((view < 255).any(1))
        parts += [np.full_like(view[:1], 255), view[rows.min():rows.max() + 1]]
    return np.concatenate(parts[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=100)
    parser.add_argument("--views", type=int, default=10)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="small solids, few updates")
    parser.add_argument("-o", "--output", type=Path, default=Path("learn_ray_scores"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    start = time.perf_counter()
    n, n_views, n_updates = (24, options.views, options.updates)
    if options.quick:
        n, n_views, n_updates = (12, 6, 30)
    scenes = [look_at(make_solid(n, k), n_views, 5 * n // 6, k) for k in range(5)]
    seen, unseen = scenes[:3], scenes[3:]

    methods: dict[str, tuple[nn.Module, bool]] = {}
    for alone in (True, False):
        how = "alone" if alone else "together"
        best = min(FACTORS, key=lambda f: measure(seen, Mean(f), alone=alone)[0])
        methods[f"mean, {how}"] = Mean(best), alone
        methods[f"learned, {how}"] = train(seen, n_updates, alone=alone), alone
    torch.manual_seed(0)
    before = measure(unseen, Scores(len(NOISE)), alone=False)
    results = {"before training": before} | {
        name: measure(unseen, scores, alone=alone) for name, (scores, alone) in methods.items()
    }
    n_rays = sum(len(rays.truth) for rays in unseen)
    print(f"{n_rays} rays of {len(unseen)} test solids, {n}^3 voxels")
    print(f"{'':20}{'depth error':>14}{'right, %':>12}")
    for name, (error, right) in results.items():
        print(f"{name:20}{error:14.2f}{right:12.1f}")
    print(f"{time.perf_counter() - start:.0f} s")
    options.output.mkdir(parents=True, exist_ok=True)
    draw(unseen[0], methods).save(options.output / "depths.png")
    figures = {
        name: {"depth_error": error, "right": right} for name, (error, right) in results.items()
    }
    (options.output / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    print(f"Depths and figures are in {options.output}")


if __name__ == "__main__":
    main()
