"""What is timed: photos and volumes with noisy costs, one model, and the two libraries on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crfield import InferenceResult, unary_from_labels
from crfield._core.resources import usable_cores
from crfield.datasets import load_sample
from experiments.common import (
    HAS_PYDENSECRF,
    STANDARD,
    Float32,
    label_major,
    run_pydensecrf,
)

try:
    from pydensecrf import densecrf, utils
except ImportError:
    densecrf = utils = None

Bytes = NDArray[np.uint8]
Labels = NDArray[np.integer[Any]]

ITERATIONS = 5
SEED = 0
LARGEST_MEAN_DIFFERENCE = 1e-2
# "auto" filters exactly up to 2048 variables; a small copy of a case must lie above that.
SMALL_GRID = (60, 80)
SMALL_VOLUME = (12, 18, 20)


class Disagreement(Exception):
    """A result that must not be timed, because it is not the result that was asked for."""


@dataclass(frozen=True)
class Scale:
    """How large the cases are and how often they run."""

    repeats: int = 7
    photo: tuple[int, int] = (375, 500)
    volume: tuple[int, int, int] = (64, 128, 128)
    label_counts: tuple[int, ...] = (2, 5, 21, 50)
    few_labels: int = 2
    many_labels: int = 21
    # 0.2 megapixels, which become 0.8, 3.2 and 12.8 when the photo is tiled.
    growth: tuple[int, int] = (400, 500)
    tiles_few_labels: tuple[int, ...] = (1, 2, 4, 8)
    tiles_many_labels: tuple[int, ...] = (1, 2, 4)
    copied_bytes: int = 1 << 28


FULL = Scale()
QUICK = replace(
    FULL, repeats=2, label_counts=(2, 21), volume=(24, 64, 64), tiles_few_labels=(1, 2),
    tiles_many_labels=(1,), copied_bytes=1 << 26,
)
# For the tests: every line of the benchmark runs, but the figures mean nothing.
TINY = Scale(
    repeats=1, photo=(46, 50), volume=(10, 15, 16), label_counts=(2, 3), many_labels=3,
    growth=(46, 45), tiles_few_labels=(1, 2), tiles_many_labels=(1,),
    copied_bytes=1 << 16,
)


@dataclass(frozen=True)
class Case:
    """A uint8 image (H, W, 3) or volume (Z, H, W) and float32 costs (*grid, L)."""

    name: str
    image: Bytes
    unary: Float32

    @property
    def n_labels(self) -> int:
        """Number of labels L."""
        return int(self.unary.shape[-1])

    @property
    def n_variables(self) -> int:
        """Number of pixels or voxels N."""
        return self.unary.size // self.n_labels

    @cached_property
    def costs(self) -> Float32:
        """The costs in pydensecrf's layout (L, N); each library gets its own."""
        return label_major(self.unary)

    def infer(
        self, threads: int = 1, *, algorithm: str = "concave", filter: str = "auto",
        n_iter: int = ITERATIONS,
    ) -> InferenceResult:
        """crfield with a fixed number of iterations."""
        return STANDARD.model(self.n_labels).infer(
            self.image, self.unary, algorithm=algorithm, filter=filter, max_iter=n_iter, tol=0.0,
            threads=threads,
        )

    def infer_pydensecrf(self, n_iter: int = ITERATIONS) -> Float32:
        """pydensecrf's marginals (L, N), its features included."""
        if self.image.shape != self.unary.shape[:-1]:
            return run_pydensecrf(self.image, self.costs, STANDARD, n_iter)
        spatial, bilateral = STANDARD.spatial, STANDARD.bilateral
        assert spatial is not None
        grid = self.image.shape
        field = densecrf.DenseCRF(self.n_variables, self.n_labels)
        field.setUnaryEnergy(self.costs)
        features = utils.create_pairwise_gaussian([spatial[0]] * len(grid), grid)
        field.addPairwiseEnergy(features, compat=spatial[1])
        features = utils.create_pairwise_bilateral(
            [bilateral[0]] * len(grid), [bilateral[1]], self.image
        )
        field.addPairwiseEnergy(features, compat=bilateral[2])
        return np.asarray(field.inference(n_iter), np.float32)

    def small_copy(self) -> Case:
        """A part where there are edges, as large as the exact filter can do."""
        grid = self.unary.shape[:-1]
        wanted = SMALL_GRID if len(grid) == 2 else SMALL_VOLUME
        counts = [min(count, side) for count, side in zip(wanted, grid, strict=True)]
        starts = [(side - count) // 4 for count, side in zip(counts, grid, strict=True)]
        part = tuple(slice(a, a + count) for a, count in zip(starts, counts, strict=True))
        return Case(
            f"{' x '.join(map(str, counts))}, {self.n_labels} labels",
            np.ascontiguousarray(self.image[part]), np.ascontiguousarray(self.unary[part]),
        )


def photo_case(grid: tuple[int, int], n_labels: int, sample: str = "coffee") -> Case:
    """A photo that ships with the package, scaled to the grid."""
    height, width = grid
    photo = Image.fromarray(load_sample(sample).image).convert("RGB")
    image = np.array(photo.resize((width, height), Image.Resampling.BICUBIC))
    return Case(f"{height} x {width}, {n_labels} labels", image,
                noisy_costs(photo_labels(grid, n_labels, sample), n_labels))


def photo_labels(grid: tuple[int, int], n_labels: int, sample: str = "coffee") -> Labels:
    """The photo's mask, scaled to the grid."""
    height, width = grid
    mask = Image.fromarray(load_sample(sample).mask)
    return np.array(mask.resize((width, height), Image.Resampling.NEAREST)) % n_labels


def volume_case(grid: tuple[int, int, int], n_labels: int = 3) -> Case:
    """A gray volume: a window that moves over a photo from one slice to the next."""
    depth, height, width = grid
    larger = (height + depth, width + depth)
    photo = photo_case(larger, 2)
    gray = np.array(Image.fromarray(photo.image).convert("L"))
    # Labels that follow the image: where they do not, five iterations end in the middle of a change
    # that small differences of the filter bring forward or put off.
    labels = gray // (256 // n_labels + 1)
    windows = [(slice(z, z + height), slice(z, z + width)) for z in range(depth)]
    return Case(
        f"{depth} x {height} x {width}, {n_labels} labels",
        np.stack([gray[window] for window in windows]),
        noisy_costs(np.stack([labels[window] for window in windows]), n_labels),
    )


def tiled_case(case: Case, times: int) -> Case:
    """The case repeated `times` along both axes: more variables of the same kind."""
    height, width = case.image.shape[:2]
    return cropped_tiles(case, (times * height, times * width))


def cropped_tiles(case: Case, grid: tuple[int, int]) -> Case:
    """As many copies of the case as fill the grid."""
    height, width = case.image.shape[:2]
    rows, columns = np.arange(grid[0])[:, None] % height, np.arange(grid[1]) % width
    return Case(
        f"{grid[0]} x {grid[1]}, {case.n_labels} labels", case.image[rows, columns],
        case.unary[rows, columns],
    )


def noisy_costs(labels: Labels, n_labels: int) -> Float32:
    """Costs (*grid, L) of labels with noise: a classifier that is unsure."""
    costs = unary_from_labels(labels, n_labels, confidence=0.5 if n_labels > 2 else 0.7)
    noise = np.random.default_rng(SEED).normal(0.0, 1.0, costs.shape)
    return (costs + noise).astype(np.float32)


def mean_difference(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """Mean absolute difference of two arrays of marginals."""
    return float(np.abs(ours - theirs).mean())


def require_agreement(name: str, reference: str, difference: float) -> float:
    """Refuse a case whose marginals are not those of the reference."""
    if not difference < LARGEST_MEAN_DIFFERENCE:  # also not a number
        raise Disagreement(
            f"{name}: marginals must lie within {LARGEST_MEAN_DIFFERENCE:g} of {reference} on "
            f"average, got {difference:.3g}; not timed."
        )
    return difference


def check_case(
    case: Case, algorithm: str = "concave", thread_counts: Sequence[int] = (1,)
) -> float:
    """The mean difference from pydensecrf, or from the exact filter where there is no pydensecrf
    or none of its results to compare with; refuses what is too far away.
    """
    if HAS_PYDENSECRF and algorithm == "concave":
        reference, theirs = "pydensecrf's", case.infer_pydensecrf().T.reshape(case.unary.shape)
    else:
        case = case.small_copy()
        exact = case.infer(usable_cores(), algorithm=algorithm, filter="exact")
        reference, theirs = "the exact filter's", np.asarray(exact.marginals, np.float32)
    largest = 0.0
    for threads in thread_counts:
        result = case.infer(threads, algorithm=algorithm)
        if result.n_iter != ITERATIONS:
            raise Disagreement(
                f"{case.name}: expected {ITERATIONS} iterations, got {result.n_iter}; not timed."
            )
        difference = mean_difference(result.marginals, theirs)
        largest = max(largest, require_agreement(case.name, reference, difference))
    return largest
