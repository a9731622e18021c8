"""Time rays through voxels: traversal, and belief propagation over all rays.

Nothing is timed whose voxels or messages are not those that NumPy finds in float64 for some of the
rays, or whose fusion is not what NumPy finds; the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.cases import Disagreement
from benchmarks.measure import Section, fastest, milliseconds, run_sections
from crfield._core.resources import usable_cores
from crfield.graphs import Camera, RayModel, VoxelGrid, fuse_independent, infer
from experiments.common import REPOSITORY, provenance

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
# For the tests: every line runs, but the figures mean nothing.
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


def infer_all(model: RayModel, max_iter: int, temperature: float, threads: int) -> Any:
    """Beliefs of voxels, and depths of rays."""
    result = infer(model, max_iter=max_iter, tol=0.0, temperature=temperature, threads=threads)
    return result.log_odds, result.depths


def some_rays(n_rays: int, count: int = 50) -> NDArray[np.int64]:
    """Numbers of rays spread over all of them."""
    return np.unique(np.linspace(0, n_rays - 1, count).astype(np.int64))


def check_all(case: RayCase, n_iter: int) -> float:
    """The largest error of a message; refuses wrong traversal and fusion as well."""
    check_traversal(case)
    check_fusion(case.model)
    return max(check_messages(case.model, n_iter, max_product) for max_product in (False, True))


def check_messages(model: RayModel, n_iter: int, max_product: bool) -> float:
    """The largest error of last messages of some rays, by the recursion in NumPy."""
    before, after = (
        infer(model, max_iter=n, damping=0.0, tol=0.0, temperature=1 - max_product)
        for n in (n_iter - 1, n_iter)
    )
    odds, worst = before.log_odds.ravel(), 0.0
    for ray in some_rays(model.n_rays):
        part = slice(*model.offsets[ray : ray + 2])
        x = np.clip(odds[model.voxels[part]] - before.messages[part], -60, 60)
        pairs = np.column_stack([np.ones_like(x), np.exp(x)])
        pairs /= (pairs.max if max_product else pairs.sum)(axis=1, keepdims=True)
        expected = expected_messages(
            pairs, model.scores[part], float(model.empty_scores[ray]), max_product
        )
        worst = max(worst, float(np.abs(expected - after.messages[part]).max(initial=0.0)))
    require(worst, "messages of max-product" if max_product else "messages of sum-product")
    return worst


def expected_messages(
    pairs: NDArray[np.float64], scores: NDArray[Any], empty: float, max_product: bool
) -> NDArray[np.float64]:
    """log mu(1) / mu(0) of one ray's voxels from what they say, (N, 2), by the recursion."""
    join = np.maximum if max_product else np.add
    passed, collected, fronts = 1.0, 0.0, []
    for (free, occupied), score in zip(pairs, scores.astype(np.float64), strict=True):
        fronts.append((collected, passed, score))
        collected, passed = join(collected, occupied * passed * score), passed * free
    beyond, found = empty, np.empty(len(pairs))
    for i in reversed(range(len(pairs))):
        before, through, score = fronts[i]
        found[i] = np.log(join(before, through * score) / join(before, through * beyond))
        beyond = join(pairs[i, 1] * score, pairs[i, 0] * beyond)
    return np.clip(found, -60, 60)


def check_traversal(case: RayCase) -> None:
    """Some rays must have the voxels between their crossings with all planes of the grid."""
    found = case.grid.traverse(case.origins, case.directions, distances=True)
    assert found.entries is not None
    assert found.exits is not None
    sides = np.array(case.grid.shape)
    for ray in some_rays(len(case.origins)):
        start = (case.origins[ray] - case.grid.origin) / case.grid.spacing
        step = case.directions[ray] / case.grid.spacing
        planes = [
            (np.arange(side + 1) - start[axis]) / step[axis]
            for axis, side in enumerate(sides) if step[axis]
        ]
        at = np.sort(np.concatenate([[0.0], *planes]))
        at = at[at >= 0]
        middle = (at[1:] + at[:-1])[np.diff(at) > 1e-9] / 2
        cells = np.floor(start + middle[:, None] * step).astype(int)
        inside = cells[((cells >= 0) & (cells < sides)).all(1)]
        expected = np.ravel_multi_index(tuple(inside.T), case.grid.shape)
        part = slice(*found.offsets[ray : ray + 2])
        # At an edge of voxels rounding decides whether the ones beside it are met.
        listed = found.voxels[part][found.exits[part] - found.entries[part] > 1e-9]
        if not np.array_equal(listed, expected):
            raise Disagreement(
                f"ray {ray} must have {len(expected)} voxels, got {len(listed)}; not timed."
            )


def check_fusion(model: RayModel, rays_a_turn: int = 10_000) -> None:
    """All voxels must have the sum of what single rays say."""
    prior = np.log(model.prior / (1 - model.prior))
    total = prior.copy()
    for first in range(0, model.n_rays, rays_a_turn):
        ends = model.offsets[first : first + rays_a_turn + 1]
        s, cells = (values[ends[0] : ends[-1]] for values in (model.scores, model.voxels))
        ray = np.repeat(np.arange(len(ends) - 1), np.diff(ends))
        empty = model.empty_scores[first : first + len(ends) - 1]
        p = s / (np.bincount(ray, s, len(empty)) + empty)[ray]
        before = np.concatenate([[0.0], np.cumsum(p)])
        before = before[:-1] - before[ends[:-1] - ends[0]][ray]
        occupied = p + model.prior[cells] * before
        said = np.clip(np.log(occupied / (1 - occupied)) - prior[cells], -60, 60)
        total += np.bincount(cells, said, model.n_voxels)
    found = fuse_independent(model).ravel()
    require(float(np.abs(found - 1 / (1 + np.exp(-total))).max()), "probabilities of fusion")


def require(worst: float, name: str) -> None:
    """Refuse an error that is too large."""
    if not worst <= TOLERANCE:
        raise Disagreement(f"{name} must be within {TOLERANCE:g}, got {worst:g}; not timed.")


def all_parts(scale: Scale) -> Section:
    """Traversal, inference and fusion on one thread and on all."""
    section = Section("rays", "Rays through voxels")
    case = ball_case(scale)
    error = section.accepts(partial(check_all, case, scale.n_iter))
    if error is None:
        return section
    rows, seconds = [], {}
    for threads in sorted({1, usable_cores()}):
        took = fastest({
            "traversal": partial(
                case.grid.traverse, case.origins, case.directions, threads=threads
            ),
            f"sum-product, {scale.n_iter} iterations": partial(
                infer_all, case.model, scale.n_iter, 1.0, threads
            ),
            f"max-product, {scale.n_iter} iterations": partial(
                infer_all, case.model, scale.n_iter, 0.0, threads
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
    repeats = parser.parse_args(words).repeats
    if repeats < 1:
        parser.error(f"--repeats must be at least 1, got {repeats}; use 3.")
    return run(Scale(repeats=repeats), RESULTS)


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
