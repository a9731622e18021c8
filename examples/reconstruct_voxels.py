"""Surfaces of solids from noisy depths: belief propagation over rays against independent fusion.

Solids are seen by cameras around them. The depth of each pixel has Gaussian noise, and for some
pixels, in front of the background as well, it is any depth at all. A ray's scores are the
likelihood of its measurement. `fuse_independent` sums what each ray says by itself; `infer`
lets rays explain each other. Reported is the intersection over union on voxels in free sight of a
camera, for some shares of outliers and for the share at which fusion has 80%:

    one prior    both methods with the prior that is best for fusion, occupied above 1/2
    own bound    that prior, and for each method the bound on its probabilities that is best for it;
                 one below the prior keeps all that no ray has ruled out
    own prior    for each method the prior that is best for it, occupied above 1/2

What is best, and the share with 80%, is found on solids that are not among those reported.

--data is a folder with voxels96.npz (packed bits of 96^3 voxels for each name), or with a folder
voxel_shapes that has it; without it solids are made up.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from crfield.graphs import Camera, RayModel, VoxelGrid, fuse_independent, infer
from crfield.show.pictures import captioned, side_by_side, stack

PRIORS = (0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
BOUNDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
RULES = ("one prior", "own bound", "own prior")
# What fusion should reach, in percent, and the shares of outliers within which that is looked for.
TARGET, LEAST_SHARE, LARGEST_SHARE = 80.0, 0.001, 0.6
METHODS = FUSION, PROPAGATION = "independent fusion", "belief propagation"
SIDE = 240  # of a slice in the picture, about
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
    return fuse_independent(model) if method == FUSION else infer(model).marginals


def load_solids(folder: Path, shrink: int) -> dict[str, NDArray[np.bool_]]:
    """The solids of a folder, each block of shrink^3 voxels by majority."""
    place = folder / "voxels96.npz"
    with np.load(place if place.exists() else folder / "voxel_shapes" / place.name) as packed:
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


@dataclass
class Comparison:
    """Both methods on scenes, the first `n_tuning` of which decide what is best."""

    scenes: list[Scene]
    n_tuning: int
    noise: float

    def found(
        self, share: float, method: str, prior: float, first: int = 0, end: int | None = None
    ) -> dict[str, NDArray[np.float64]]:
        """The probabilities of some of the scenes."""
        return {
            scene.name: reconstruct(scene, scene.measure(self.noise, share, k), method, prior)
            for k, scene in list(enumerate(self.scenes))[first:end]
        }

    def overlaps(
        self, found: dict[str, NDArray[np.float64]], bound: float = 0.5
    ) -> dict[str, float]:
        """The overlap of each scene."""
        return {
            scene.name: scene.overlap(found[scene.name] > bound)
            for scene in self.scenes if scene.name in found
        }

    def best_prior(self, share: float, method: str) -> tuple[float, float]:
        """The best prior for a method on the first scenes, and their mean overlap with it."""
        means = {
            prior: mean(self.overlaps(self.found(share, method, prior, end=self.n_tuning)))
            for prior in PRIORS
        }
        return max(means.items(), key=lambda item: item[1])

    def level(self, share: float) -> dict[str, Any]:
        """Figures by rule and method, and both reconstructions of the first reported scene."""
        row: dict[str, Any] = {"outliers": share, "pictures": [], **{rule: {} for rule in RULES}}
        common = self.best_prior(share, FUSION)[0]
        for method in METHODS:
            own = self.best_prior(share, method)[0]
            tuning = self.found(share, method, common, end=self.n_tuning)
            bound = max(BOUNDS, key=lambda limit: mean(self.overlaps(tuning, limit)))
            found = self.found(share, method, common, self.n_tuning)
            other = self.found(share, method, own, self.n_tuning)
            row["pictures"].append(next(iter(found.values())))
            for rule, prior, limit, volumes in zip(
                RULES, (common, common, own), (0.5, bound, 0.5), (found, found, other), strict=True
            ):
                overlaps = self.overlaps(volumes, limit)
                row[rule][method] = {
                    "prior": prior, "bound": limit, "mean": mean(overlaps), "iou": overlaps,
                }
        return row

    def share_of_target(self) -> float | None:
        """The share of outliers at which fusion has the overlap aimed at, if there is one."""
        low, high = LEAST_SHARE, LARGEST_SHARE
        if not self.best_prior(high, FUSION)[1] < TARGET <= self.best_prior(low, FUSION)[1]:
            return None
        while high > 1.1 * low:
            middle = math.sqrt(low * high)
            if self.best_prior(middle, FUSION)[1] >= TARGET:
                low = middle
            else:
                high = middle
        return math.sqrt(low * high)


def mean(overlaps: dict[str, float]) -> float:
    """Over all scenes."""
    return sum(overlaps.values()) / len(overlaps)


def parsed_options() -> argparse.Namespace:
    """The command line, checked."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder with voxels96.npz")
    parser.add_argument("--shrink", type=int, choices=(1, 2, 3, 4), default=2)
    parser.add_argument("--views", type=int, default=12)
    parser.add_argument("--noise", type=float, default=0.3, help="of depths, in voxels")
    parser.add_argument(
        "--outliers", type=float, nargs="+", default=[0.02, 0.05, 0.1, 0.2], help="shares of pixels"
    )
    parser.add_argument("--quick", action="store_true", help="two small solids")
    parser.add_argument("-o", "--output", type=Path, default=Path("reconstruct_voxels"))
    options = parser.parse_args()
    if options.views < 1:
        parser.error(f"--views must be at least 1, got {options.views}; use 12.")
    if not 0.05 <= options.noise <= 100:
        parser.error(f"--noise must lie between 0.05 and 100, got {options.noise:g}; use 0.3.")
    for share in options.outliers:
        if not LEAST_SHARE <= share <= LARGEST_SHARE:
            parser.error(
                f"--outliers must lie between {LEAST_SHARE} and {LARGEST_SHARE}, got {share:g}; "
                "use shares like 0.05 0.1."
            )
    if options.quick and options.data is not None:
        parser.error("--quick makes its own solids and takes no --data; leave one of them out.")
    if options.data is not None and not any(
        (options.data / name).is_file() for name in ("voxels96.npz", "voxel_shapes/voxels96.npz")
    ):
        parser.error(f"--data must hold voxels96.npz, got {options.data}; check the folder.")
    return options


def main() -> None:
    options = parsed_options()
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
    compared = Comparison(scenes, max(1, len(scenes) // 4), options.noise)
    count = len(scenes) - compared.n_tuning
    print(
        f"{count} {'solid' if count == 1 else 'solids'}, {options.views} views, noise "
        f"{options.noise:g} voxels; IoU in % of {FUSION}, {PROPAGATION} and the gain"
    )
    print("own bound, own prior: what counts as occupied, or the prior, is chosen for each method")
    print(f"{'outliers':>8}{'prior':>7}" + "".join(f"{rule:>24}" for rule in RULES))
    target = compared.share_of_target()
    levels = []
    marked = [(share, " ") for share in options.outliers]
    if target is not None:
        marked.append((target, "*"))
    for share, mark in marked:
        levels.append(compared.level(share))
        line = f"{share:7.3f}{mark}{levels[-1]['one prior'][FUSION]['prior']:7g}"
        for rule in RULES:
            fusion, propagation = (levels[-1][rule][method]["mean"] for method in METHODS)
            line += f"{fusion:10.1f}{propagation:7.1f}{propagation - fusion:+7.1f}"
        print(line, flush=True)
    print(
        f"No share of outliers brings fusion to {TARGET:g}%." if target is None
        else f"* the share that brings fusion to {TARGET:g}%, found on other solids than these"
    )
    write(levels, scenes[compared.n_tuning].solid, options)


def write(levels: list[dict[str, Any]], solid: NDArray[np.bool_], options: Any) -> None:
    """Slices of the truth and of both reconstructions for each level, and all figures."""
    zoom = max(1, SIDE // len(solid))
    rows = []
    for k, level in enumerate(levels):
        panels = []
        for volume in (solid, *level.pop("pictures")):
            gray = (255 * (1 - volume[:, len(volume) // 2])).astype(np.uint8)
            size = zoom * gray.shape[1], zoom * gray.shape[0]
            enlarged = Image.fromarray(gray).resize(size, Image.Resampling.NEAREST)
            panels.append(ImageOps.expand(enlarged, 1, 160))
        panels[0] = captioned(panels[0], f"{100 * level['outliers']:.3g}% outliers")
        rows.append(side_by_side(*panels, titles=("truth", *METHODS) if k == 0 else ()))
    options.output.mkdir(parents=True, exist_ok=True)
    stack(*rows).save(options.output / "slices.png")
    text = json.dumps({"noise": options.noise, "views": options.views, "levels": levels}, indent=2)
    (options.output / "figures.json").write_text(f"{text}\n", "utf-8")
    print(f"Slices (truth, {FUSION}, {PROPAGATION}) and figures are in {options.output}")


if __name__ == "__main__":
    main()
