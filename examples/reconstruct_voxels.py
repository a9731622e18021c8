"""Surfaces of solids from noisy depths: belief propagation over rays against independent fusion.

Solids are seen by cameras around them. The depth of each pixel has Gaussian noise, and for some
pixels, in front of the background as well, it is any depth at all. A ray's scores are the
likelihood of its measurement. `fuse_independent` sums what each ray says by itself; `infer_rays`
lets rays explain each other. Both get the prior that is best for them on the first solid; the
others are reported: intersection over union on the voxels in free sight of at least one camera.

--data is a folder with voxels96.npz (packed bits of 96^3 voxels for each name); without it solids
are made up.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crfield.graphs import Camera, RayModel, VoxelGrid, fuse_independent, infer_rays

PRIORS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4)
FUSION, PROPAGATION = "independent fusion", "belief propagation"
# What a ray that measured nothing leaves to each of its voxels.
MISSED = 0.01


@dataclass
class Scene:
    """A solid (n, n, n) and the rays of all pixels around it."""

    name: str
    solid: NDArray[np.bool_]
    n_views: int
    pixels: int

    def __post_init__(self) -> None:
        side = len(self.solid)
        self.grid = VoxelGrid(self.solid.shape, (-side / 2,) * 3)
        lines = []
        for view in range(self.n_views):
            height = 0.8 * (2 * (view + 0.5) / self.n_views - 1)
            angle, flat = view * math.pi * (3 - math.sqrt(5)), math.sqrt(1 - height**2)
            place = 2 * side * np.array([flat * np.cos(angle), flat * np.sin(angle), height])
            focal = self.pixels * 2 / 1.2
            camera = Camera.looking_at(place, (0, 0, 0), focal, (self.pixels, self.pixels))
            lines.append(camera.rays())
        origins, directions = (np.concatenate(parts) for parts in zip(*lines, strict=True))
        hits = self.grid.traverse(origins, directions, distances=True)
        crossed = np.diff(hits.offsets) > 0
        self.rays = self.grid.traverse(origins[crossed], directions[crossed], distances=True)
        self.starts = self.rays.offsets[:-1]
        self.ray = np.repeat(np.arange(len(self.starts)), np.diff(self.rays.offsets))
        self.middle = (self.rays.entries + self.rays.exits) / 2

    @cached_property
    def first(self) -> NDArray[np.int64]:
        """The entry at which each ray meets the solid, or past the last where it does not."""
        filled = np.flatnonzero(self.solid.ravel()[self.rays.voxels])
        found = np.full(len(self.starts), len(self.ray))
        np.minimum.at(found, self.ray[filled], filled)
        return found

    @cached_property
    def in_sight(self) -> NDArray[np.bool_]:
        """Voxels that some camera sees, up to the surface."""
        sight = np.zeros(self.solid.size, bool)
        sight[self.rays.voxels[np.arange(len(self.ray)) <= self.first[self.ray]]] = True
        return sight.reshape(self.solid.shape)

    def measure(self, noise: float, outliers: float, seed: int) -> tuple[NDArray[np.float32], ...]:
        """Scores of all voxels on all rays, and of rays that meet nothing."""
        rng = np.random.default_rng(seed)
        near, far = self.rays.entries[self.starts], self.rays.exits[self.rays.offsets[1:] - 1]
        hit = self.first < len(self.ray)
        depth = np.full(len(near), np.nan)
        depth[hit] = self.middle[self.first[hit]] + noise * rng.normal(size=hit.sum())
        wrong = rng.random(len(near)) < outliers
        depth[wrong] = rng.uniform(near, far)[wrong]
        missed, chance = np.isnan(depth), outliers / (far - near)
        error = (self.middle - depth[self.ray]) / noise
        density = np.exp(-(error**2) / 2) / (noise * math.sqrt(2 * math.pi))
        scores = np.where(missed[self.ray], MISSED, (1 - outliers) * density + chance[self.ray])
        empty = np.where(missed, 1 - outliers, chance)
        return scores.astype(np.float32), empty.astype(np.float32)

    def overlap(self, occupied: NDArray[np.bool_]) -> float:
        """Intersection over union in sight, in percent."""
        found, truth = occupied[self.in_sight], self.solid[self.in_sight]
        return float(100 * (found & truth).sum() / max(1, (found | truth).sum()))


def reconstruct(
    scene: Scene, measured: tuple[NDArray[np.float32], ...], method: str, prior: float
) -> NDArray[np.float64]:
    """The probability of each voxel being occupied."""
    scores, empty = measured
    model = RayModel(scene.grid, scene.rays.offsets, scene.rays.voxels, scores, prior, empty)
    return fuse_independent(model) if method == FUSION else infer_rays(model).marginals


def load_solids(folder: Path, shrink: int) -> dict[str, NDArray[np.bool_]]:
    """The solids of a folder, each block of shrink^3 voxels by majority."""
    with np.load(folder / "voxels96.npz") as packed:
        names = [name for name in packed.files if packed[name].size == 96**3 // 8]
        grids = {name: np.unpackbits(packed[name]).reshape(96, 96, 96) for name in names}
    n = 96 // shrink
    return {
        name: grid.reshape(n, shrink, n, shrink, n, shrink).mean((1, 3, 5)) >= 0.5
        for name, grid in grids.items()
    }


def made_solids(n: int, count: int) -> dict[str, NDArray[np.bool_]]:
    """Unions of balls."""
    place = (np.moveaxis(np.indices((n, n, n)), 0, -1) + 0.5) / n - 0.5
    solids = {}
    for seed in range(count):
        rng = np.random.default_rng(seed)
        balls = zip(rng.uniform(-0.22, 0.22, (5, 3)), rng.uniform(0.1, 0.2, 5), strict=True)
        inside = [np.linalg.norm(place - center, axis=-1) < radius for center, radius in balls]
        solids[f"balls {seed}"] = np.any(inside, 0)
    return solids


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with voxels96.npz")
    parser.add_argument("--shrink", type=int, choices=(1, 2, 3, 4), default=2)
    parser.add_argument("--views", type=int, default=12)
    parser.add_argument("--noise", type=float, default=0.5, help="of depths, in voxels")
    parser.add_argument(
        "--outliers", type=float, nargs="+", default=[0.02, 0.05, 0.1, 0.2], help="shares of pixels"
    )
    parser.add_argument("--quick", action="store_true", help="two small solids")
    parser.add_argument("-o", "--output", type=Path, default=Path("reconstruct_voxels"))
    options = parser.parse_args()
    if options.quick:
        solids = made_solids(16, 2)
    elif options.data is None:
        solids = made_solids(96 // options.shrink, 4)
    else:
        solids = load_solids(options.data, options.shrink)
    scenes = [
        Scene(name, solid, options.views, round(4 / 3 * len(solid)))
        for name, solid in solids.items()
    ]
    figures, pictures = [], []
    print(f"{len(scenes) - 1} solids, {options.views} views, noise {options.noise:g} voxels")
    print(f"{'outliers':10}{FUSION:>20}{PROPAGATION:>20}{'gain':>8}")
    for share in options.outliers:
        measured = [scene.measure(options.noise, share, k) for k, scene in enumerate(scenes)]
        row: dict[str, object] = {"outliers": share}
        means = []
        for method in (FUSION, PROPAGATION):
            tuned = {
                prior: scenes[0].overlap(
                    reconstruct(scenes[0], measured[0], method, prior) > 0.5
                )
                for prior in PRIORS
            }
            prior = max(tuned, key=lambda p: tuned[p])
            found = [
                reconstruct(scene, scores, method, prior)
                for scene, scores in zip(scenes[1:], measured[1:], strict=True)
            ]
            overlaps = {
                scene.name: scene.overlap(p > 0.5)
                for scene, p in zip(scenes[1:], found, strict=True)
            }
            means.append(float(np.mean(list(overlaps.values()))))
            row[method] = {"prior": prior, "iou": overlaps, "mean": means[-1]}
            pictures.append(found[0][:, len(found[0]) // 2])
        figures.append(row)
        gain = means[1] - means[0]
        print(f"{share:<10g}{means[0]:20.1f}{means[1]:20.1f}{gain:+8.1f}", flush=True)
    truth = scenes[1].solid[:, len(scenes[1].solid) // 2]
    rows = [
        np.hstack([truth, *pictures[2 * k : 2 * k + 2]]) for k in range(len(options.outliers))
    ]
    picture = Image.fromarray((255 * (1 - np.vstack(rows))).astype(np.uint8))
    options.output.mkdir(parents=True, exist_ok=True)
    enlarged = picture.resize((4 * picture.width, 4 * picture.height), Image.Resampling.NEAREST)
    enlarged.save(options.output / "slices.png")
    text = json.dumps({"noise": options.noise, "views": options.views, "levels": figures}, indent=2)
    (options.output / "figures.json").write_text(f"{text}\n", "utf-8")
    print(f"Slices (truth, {FUSION}, {PROPAGATION}) and figures are in {options.output}")


if __name__ == "__main__":
    main()
