"""How far refinement in blocks is from that of the whole image, by the overlap of the blocks.

Photos that come with the package and a made-up volume are refined whole and in blocks, and the
error is compared with what blocks measure of each other at their seams and with its bound.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from crfield import Inference, refine, refine_blocks
from crfield.blocks.seams import outside_share
from crfield.datasets import load_sample, noisy_probabilities, sample_names
from crfield.refinement import potts_model
from experiments.common import markdown_table, provenance, report

SPATIAL_WEIGHT, BILATERAL_WEIGHT = 3.0, 6.0
OVERLAPS = (0.5, 1.0, 2.0, 3.0, 4.0, 5.0)
MAX_ITER = 10
HEADER = (
    "overlap, sigma", "beyond it %", "labels %", "mean", "largest", "seam labels %", "seam mean",
    "bound, mean", "bound, largest",
)


@dataclass(frozen=True)
class Case:
    """An image (*grid[, C]) with probabilities (*grid, L), widths, and the side of a block.

    spatial, bilateral : pixels, and (pixels, color).
    """

    name: str
    image: NDArray[Any]
    probabilities: NDArray[np.float64]
    spatial: float
    bilateral: tuple[float, float]
    block: int


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    facts = provenance()
    paragraphs = [
        f"After {MAX_ITER} iterations in float64 on the lattice, with the weights of `refine`. "
        "The overlap is in widths of the bilateral kernel; beyond it lies that share of the "
        "kernel's weight on positions (`outside_share`). Labels, mean and largest compare blocks "
        "with the whole image: the share of pixels with other labels, and the total variation "
        "between marginals. The seams are what neighboring blocks measure of each other there. "
        "The bound holds for every pixel of any image, exact sums provided; it is far above the "
        "error because it takes everything beyond a window to be as different as can be.",
    ]
    for case in cases():
        size = " x ".join(map(str, case.probabilities.shape[:-1]))
        paragraphs += [
            f"## {case.name}",
            f"{size}, {case.probabilities.shape[-1]} labels, spatial {case.spatial:g}, bilateral "
            f"{case.bilateral[0]:g} / {case.bilateral[1]:g}, blocks of {case.block}.",
            markdown_table(HEADER, rows(case)),
        ]
    report("Seams between blocks", paragraphs, facts)


def cases() -> list[Case]:
    """The photos with noisy probabilities, and balls in a volume."""
    found = []
    for name in sample_names():
        sample = load_sample(name)
        soft = noisy_probabilities(sample.mask, sample.n_labels, seed=0).astype(np.float64)
        found.append(Case(name, sample.image, soft, 3.0, (12.0, 8.0), 134))
    rng = np.random.default_rng(0)
    z, y, x = np.mgrid[:32, :60, :60]
    inside = ((z - 16) ** 2 * 4 + (y - 28) ** 2 + (x - 30) ** 2 < 22**2) & (
        (y - 20) ** 2 + (x - 40) ** 2 > 64
    )
    scan = (np.where(inside, 120.0, 80.0) + rng.normal(0, 10, inside.shape)).astype(np.float32)
    odds = np.where(inside, 0.8, -0.8) + rng.normal(0, 1.0, inside.shape)
    front = 1.0 / (1.0 + np.exp(-odds))
    both = np.stack([1.0 - front, front], -1)
    return [*found, Case("volume", scan, both, 1.5, (4.0, 15.0), 30)]


def rows(case: Case) -> list[list[str]]:
    """One row per overlap; all iterations are done."""
    model = potts_model(
        case.probabilities.shape[-1], case.spatial, SPATIAL_WEIGHT, case.bilateral, BILATERAL_WEIGHT
    )
    whole = refine(case.image, case.probabilities, model=model, max_iter=MAX_ITER, tol=0.0)
    table = []
    for sigmas in tqdm(OVERLAPS, desc=case.name):
        overlap = round(sigmas * case.bilateral[0])
        found = refine_blocks(
            case.image, case.probabilities, block=case.block, overlap=overlap, marginals=True,
            bound=True, inference=Inference(max_iter=MAX_ITER, tol=0.0), model=model,
        )
        error = 0.5 * np.abs(found.marginals - whole.marginals).sum(-1)
        seams = found.seams
        assert seams.differing is not None
        assert seams.mean is not None
        assert seams.bound_mean is not None
        assert seams.bound_largest is not None
        assert error.mean() <= seams.bound_mean
        assert error.max() <= seams.bound_largest
        grid_dim = case.probabilities.ndim - 1
        table.append([
            f"{sigmas:g}", f"{100 * outside_share(model, overlap, grid_dim=grid_dim):.2g}",
            f"{100 * (found.labels != whole.labels).mean():.2g}", f"{error.mean():.1e}",
            f"{error.max():.1e}", f"{100 * seams.differing:.2g}", f"{seams.mean:.1e}",
            f"{seams.bound_mean:.1e}", f"{seams.bound_largest:.1e}",
        ])
    return table


if __name__ == "__main__":
    main()
