"""Time rays through voxels: traversal, and belief propagation over all rays.

Nothing is timed whose messages are not those that NumPy finds in float64 for some of the rays; the
exit status is 1 then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cases import Disagreement
from benchmarks.measure import Section, fastest, milliseconds, run_sections
from experiments.common import REPOSITORY, provenance

from crfield._parallel import usable_cores
from crfield.graphs import Camera, RayModel, VoxelGrid, fuse_independent, infer_rays

RESULTS = REPOSITORY / "benchmarks" / "results"
# Float32 messages, in log-odds.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Scale:
    """How large the case is and how often it runs."""

    repeats: int = 3
    side: int = 96
    n_views: int = 20
    pixels: int = 100
    n_iter: int = 10


FULL = Scale()
# For the tests: every line runs, and nothing of it is worth reading.
TINY = Scale(repeats=1, side=8, n_views=3, pixels=6, n_iter=3)


@dataclass(frozen=True)
class RayCase:
    """Rays of all pixels of cameras around a grid, and noisy scores of a ball in it."""

    grid: VoxelGrid
    origins: NDArray[np.float64]
    directions: NDArray[np.float64]
    model: RayModel


def ball_case(scale: Scale) -> RayCase:
    """Every ray crosses the grid; each has its highest scores near where it meets the ball."""
    side, rng = scale.side, np.random.default_rng(0)
    grid = VoxelGrid((side, side, side), (-side / 2,) * 3)
    lines = []
    for angle in np.arange(scale.n_views) * 2.4:
        place = 2.0 * side * np.array([np.cos(angle), np.sin(angle), 0.5 * np.sin(3 * angle)])
        # The corner pixels see the ball that fits into the grid.
        focal = 0.5 * scale.pixels * np.sqrt(2) * np.linalg.norm(place) / (0.49 * side)
        camera = Camera.looking_at(place, (0, 0, 0), float(focal), (scale.pixels, scale.pixels))
        lines.append(camera.rays())
    origins, directions = (np.concatenate(parts) for parts in zip(*lines, strict=True))
    found = grid.traverse(origins, directions)
    center = grid.centers().reshape(-1, 3)
    surface = np.exp(-np.abs(np.linalg.norm(center, axis=1) - 0.3 * side))
    scores = surface[found.voxels] + 0.05 * rng.random(len(found.voxels))
    model = RayModel(
        grid, found.offsets, found.voxels, scores.astype(np.float32), 0.05, 0.02
    )
    return RayCase(grid, origins, directions, model)


def check_messages(model: RayModel, n_iter: int, n_rays: int = 50) -> float:
    """The largest error of last messages of some rays, by the recursion in NumPy."""
    before = infer_rays(model, n_iter - 1, damping=0.0, tol=0.0)
    after = infer_rays(model, n_iter, damping=0.0, tol=0.0)
    odds, worst = before.log_odds.ravel(), 0.0
    for ray in np.linspace(0, model.n_rays - 1, n_rays).astype(int):
        part = slice(*model.offsets[ray : ray + 2])
        s = model.scores[part].astype(np.float64)
        x = odds[model.voxels[part]] - before.messages[part]
        m = 1 / (1 + np.exp(-np.clip(x, -60, 60)))
        free = np.concatenate([[1.0], np.cumprod(1 - m)])
        first = m * free[:-1] * s
        collected = np.cumsum(first) - first
        beyond, behind = np.empty(len(s)), float(model.empty_scores[ray])
        for i in reversed(range(len(s))):
            beyond[i] = behind
            behind = m[i] * s[i] + (1 - m[i]) * behind
        expected = np.log((collected + free[:-1] * s) / (collected + free[:-1] * beyond))
        worst = max(worst, float(np.abs(expected - after.messages[part]).max(initial=0.0)))
    if not worst <= TOLERANCE:
        raise Disagreement(f"messages must be within {TOLERANCE:g}, got {worst:g}; not timed.")
    return worst


def all_parts(scale: Scale) -> Section:
    """Traversal, inference and fusion on one thread and on all."""
    section = Section("rays", "Rays through voxels")
    case = ball_case(scale)
    error = section.accepts(partial(check_messages, case.model, scale.n_iter))
    if error is None:
        return section
    rows, seconds = [], {}
    for threads in sorted({1, usable_cores()}):
        took = fastest({
            "traversal": partial(
                case.grid.traverse, case.origins, case.directions, threads=threads
            ),
            f"sum-product, {scale.n_iter} iterations": partial(
                infer_rays, case.model, scale.n_iter, tol=0.0, threads=threads
            ),
            f"max-product, {scale.n_iter} iterations": partial(
                infer_rays, case.model, scale.n_iter, tol=0.0, max_product=True, threads=threads
            ),
            "independent fusion": partial(fuse_independent, case.model, threads=threads),
        }, scale.repeats)
        rows += [[name, str(threads), milliseconds(time)] for name, time in took.items()]
        seconds[threads] = took
    section.add_table(["what", "threads", "ms"], rows)
    section.data.update(
        side=scale.side, rays=case.model.n_rays, entries=len(case.model.voxels), seconds=seconds,
        message_error=error,
    )
    return section


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=FULL.repeats)
    return run(Scale(repeats=parser.parse_args(words).repeats), RESULTS)


def run(scale: Scale, folder: Path) -> int:
    """Measure, print and write to the folder; 1 if the messages were wrong."""
    return run_sections(
        [partial(all_parts, scale)], folder, provenance(),
        [f"{scale.n_views} views of {scale.pixels} x {scale.pixels} pixels of {scale.side}^3 "
         f"voxels; fastest of {scale.repeats} interleaved runs."],
        {"repeats": scale.repeats},
    )


if __name__ == "__main__":
    sys.exit(main())
