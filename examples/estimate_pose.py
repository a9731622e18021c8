"""Poses of stick figures in clutter: part detectors alone, and held together by a tree.

Figures of ten limbs are drawn into noisy images with bars that look like limbs, and a block hides
some of each figure. A limb has a position, its joint nearest to the trunk, and one of a few
orientations. Its detector is a linear filter learned from patches of training images (the filter
that tells two Gaussians of equal covariance apart, whose response is a log-odds), turned to each
orientation. The geometry is learned from the training poses by `PictorialStructure.fit`.

- `detections`: each part where its own detector responds most.
- `positions`: the tree that knows where parts are from each other.
- `orientations`: the tree that knows it for each orientation of the parent, and how limbs bend.

Left and right limbs look alike, so that detectors alone can hardly find more than half of them.
A part counts as found within 4 pixels of the truth. How much detectors count beside geometry is
chosen on validation images; the test images are reported.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from crfield.graphs import PictorialStructure, Poses, infer
from crfield.graphs import best as best_pose
from crfield.show.pictures import label_palette, side_by_side, stack

Array = NDArray[np.float64]
USUAL_SIZE, ZOOM = 84, 4
SCALES = (0.1, 0.2, 0.4, 0.8)
# The share of parts that are hidden: where a detector sees nothing its odds count no less.
HIDDEN = 0.15
TOLERANCE = 4.0


@dataclass(frozen=True)
class Limb:
    """How a limb hangs on its parent: lengths in pixels, angles in radians, 0 pointing down.

    along, aside : where its joint is, as a share of the parent's length, and pixels to the side.
    angles : the least and the greatest turn from the parent's direction.
    """

    name: str
    parent: int
    length: float
    half_width: float
    along: float = 1.0
    aside: float = 0.0
    angles: tuple[float, float] = (-0.25, 0.25)


LIMBS = (
    Limb("trunk", -1, 20, 3.5),
    Limb("head", 0, 5, 4.0, 0.0, 0.0, (np.pi - 0.3, np.pi + 0.3)),
    Limb("left upper arm", 0, 10, 1.6, 0.05, -4.5, (-2.0, -0.2)),
    Limb("left forearm", 2, 10, 1.3, 1.0, 0.0, (-1.4, 0.2)),
    Limb("right upper arm", 0, 10, 1.6, 0.05, 4.5, (0.2, 2.0)),
    Limb("right forearm", 4, 10, 1.3, 1.0, 0.0, (-0.2, 1.4)),
    Limb("left thigh", 0, 12, 2.2, 1.0, -3.0, (-0.7, 0.1)),
    Limb("left shin", 6, 12, 1.6, 1.0, 0.0, (-0.1, 0.7)),
    Limb("right thigh", 0, 12, 2.2, 1.0, 3.0, (-0.1, 0.7)),
    Limb("right shin", 8, 12, 1.6, 1.0, 0.0, (-0.7, 0.1)),
)
PARENTS = [limb.parent for limb in LIMBS]
LENGTHS = np.array([limb.length for limb in LIMBS])


@dataclass
class Pose:
    """Joints (P, 2), angles (P,) and ends of limbs (P, 2)."""

    positions: Array
    angles: Array
    ends: Array


@dataclass
class Figure:
    """A pose, an image (S, S) of it, and which parts the block hides."""

    pose: Pose
    image: Array
    hidden: NDArray[np.bool_]


def direction(angles: Array) -> Array:
    """Steps (..., 2) in rows and columns."""
    return np.stack([np.cos(angles), np.sin(angles)], -1)


def bar(size: int, start: Array, end: Array, half_width: float) -> Array:
    """How much of each pixel a bar with round ends covers."""
    place = np.moveaxis(np.indices((size, size)), 0, -1) - start
    way = end - start
    share = np.clip(place @ way / max(float(way @ way), 1e-9), 0, 1)
    distance = np.linalg.norm(place - share[..., None] * way, axis=-1)
    return np.asarray(np.clip(half_width + 0.5 - distance, 0, 1))


def draw_pose(rng: np.random.Generator, size: int) -> Pose:
    """A random pose in an image of this size."""
    positions, angles = np.empty((len(LIMBS), 2)), np.empty(len(LIMBS))
    unit = size / USUAL_SIZE
    lengths = LENGTHS * unit * rng.uniform(0.9, 1.1)
    for p, limb in enumerate(LIMBS):
        q = limb.parent
        if q < 0:
            angles[p] = rng.normal(0, 0.15)
            positions[p] = size * np.array([rng.uniform(0.25, 0.33), rng.uniform(0.42, 0.58)])
            continue
        angles[p] = angles[q] + rng.uniform(*limb.angles)
        along, aside = direction(angles[q]), direction(angles[q] + np.pi / 2)
        joint = positions[q] + limb.along * lengths[q] * along + limb.aside * unit * aside
        positions[p] = joint + rng.normal(0, 0.4, 2)
    return Pose(positions, angles, positions + lengths[:, None] * direction(angles))


def draw_figure(rng: np.random.Generator, size: int, noise: float, n_bars: int) -> Figure:
    """A random pose, bars behind it and before it, a block that hides some of it, and noise."""
    pose = draw_pose(rng, size)
    image = np.full((size, size), 0.4)

    def paint(cover: Array, brightness: float) -> None:
        image[:] = image * (1 - cover) + brightness * cover

    def clutter(count: int) -> None:
        for _ in range(count):
            start = rng.uniform(0, size, 2)
            end = start + rng.uniform(8, 22) * direction(rng.uniform(0, 2 * np.pi))
            paint(bar(size, start, end, rng.uniform(1.0, 2.5)), rng.uniform(0.65, 0.95))

    clutter(n_bars)
    for start, end, limb in zip(pose.positions, pose.ends, LIMBS, strict=True):
        paint(bar(size, start, end, limb.half_width), rng.uniform(0.75, 0.9))
    clutter(n_bars // 4)
    target = pose.positions[rng.integers(2, len(LIMBS))] + rng.normal(0, 2, 2)
    low, high = target - rng.uniform(4, 8, 2), target + rng.uniform(4, 8, 2)
    rows, columns = np.indices(image.shape)
    block = (rows >= low[0]) & (rows <= high[0]) & (columns >= low[1]) & (columns <= high[1])
    image[block] = rng.uniform(0.2, 0.6)
    middles = (pose.positions + pose.ends) / 2
    hidden = ((middles >= low) & (middles <= high)).all(1)
    return Figure(pose, image + noise * rng.normal(size=image.shape), hidden)


class Detectors:
    """Linear filters for all parts, turned to all orientations."""

    REACH = 20  # of a filter from its joint, in pixels

    def __init__(self, figures: list[Figure], n_orientations: int, rng: np.random.Generator):
        along, across = np.meshgrid(np.arange(-5.0, 17), np.arange(-6.0, 7), indexing="ij")
        self.grid = np.stack([along.ravel(), across.ravel()], -1)
        self.angles = 2 * np.pi * np.arange(n_orientations) / n_orientations
        size = len(figures[0].image)
        self.level = float(np.mean([figure.image.mean() for figure in figures]))
        others = np.concatenate([
            self.patches(figure.image, rng.uniform(0, size, (60, 2)), rng.uniform(0, 7, 60))
            for figure in figures
        ])
        own = np.stack([
            self.patches(figure.image, figure.pose.positions, figure.pose.angles)
            for figure in figures
        ])
        means, base = own.mean(0), others.mean(0)
        covariance = np.cov(others.T)
        covariance += 0.05 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
        filters = np.linalg.solve(covariance, (means - base).T).T
        self.bias = -0.5 * ((means + base) * filters).sum(1)
        kernels = np.stack([
            [self.kernel(weights, angle) for angle in self.angles] for weights in filters
        ])
        self.padded = size + 2 * self.REACH
        self.spectra = np.conj(np.fft.rfft2(kernels, (self.padded, self.padded)))

    def places(self, angle: Array) -> Array:
        """Steps (..., n, 2) from the joint to the points of a patch."""
        frame = np.stack([direction(angle), direction(angle + np.pi / 2)], -2)
        return np.asarray(self.grid @ frame)

    def patches(self, image: Array, positions: Array, angles: Array) -> Array:
        """What is seen at some positions, each turned upright, (N, n)."""
        reach = self.REACH + 2
        padded = np.pad(image - self.level, reach)
        places = np.clip(positions[:, None] + reach + self.places(angles), 0, len(padded) - 2)
        low = places.astype(int)
        total = np.zeros(places.shape[:2])
        for corner in np.ndindex(2, 2):
            share = np.where(corner, places - low, 1 - places + low).prod(-1)
            total += share * padded[low[..., 0] + corner[0], low[..., 1] + corner[1]]
        return total

    def kernel(self, weights: Array, angle: float) -> Array:
        """The filter of an image, 2 REACH + 1 wide, that does what weights do to a patch."""
        places = self.REACH + self.places(np.array(angle))
        low = places.astype(int)
        found = np.zeros((2 * self.REACH + 1, 2 * self.REACH + 1))
        for corner in np.ndindex(2, 2):
            share = np.where(corner, places - low, 1 - places + low).prod(-1)
            np.add.at(found, (low[:, 0] + corner[0], low[:, 1] + corner[1]), share * weights)
        return found

    def log_odds(self, image: Array) -> Array:
        """Of each part being there rather than not, (P, K, S, S)."""
        padded = np.pad(image - self.level, self.REACH)
        responses = np.fft.irfft2(np.fft.rfft2(padded) * self.spectra, padded.shape)
        size = len(image)
        return np.asarray(responses[..., :size, :size] + self.bias[:, None, None, None])


def costs_of(log_odds: Array, scale: float) -> Array:
    """Costs of parts that are hidden with some probability, whatever the image looks like."""
    return -np.logaddexp(np.log(1 - HIDDEN) + scale * log_odds, np.log(HIDDEN))


@dataclass
class Estimator:
    """Poses by a tree, or without one."""

    model: PictorialStructure | None
    scale: float

    def find(self, log_odds: Array) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Positions (P, 2) and orientations (P,)."""
        costs = costs_of(log_odds, self.scale)
        if self.model is None:
            found = np.unravel_index(costs.reshape(len(costs), -1).argmin(1), costs.shape[1:])
            return np.stack(found[1:], -1), found[0]
        if self.model.n_orientations > 1:
            pose = best_pose(Poses(self.model, costs))
            return pose.positions, pose.orientations
        positions = best_pose(Poses(self.model, costs.min(1))).positions
        parts = np.arange(len(costs))
        return positions, costs[parts, :, positions[:, 0], positions[:, 1]].argmin(1)


def is_found(positions: NDArray[np.int64], figure: Figure) -> NDArray[np.bool_]:
    """Which parts are where they should be."""
    distances = np.linalg.norm(positions - figure.pose.positions, axis=1)
    return np.asarray(distances <= TOLERANCE)


def learn_trees(poses: list[Pose], n_orientations: int) -> dict[str, PictorialStructure | None]:
    """The geometry that each method knows."""
    positions = np.stack([pose.positions for pose in poses])
    turns = np.stack([pose.angles for pose in poses]) * n_orientations / (2 * np.pi)
    return {
        "detections": None,
        "positions": PictorialStructure.fit(positions, PARENTS),
        "orientations": PictorialStructure.fit(
            positions, PARENTS, orientations=np.rint(turns).astype(int) % n_orientations,
            n_orientations=n_orientations, depends_on="parent",
        ),
    }


def choose_scale(
    tree: PictorialStructure | None, figures: list[Figure], responses: list[Array]
) -> float:
    """How much the detectors should count."""
    if tree is None:
        return 1.0
    found = [
        np.mean([
            is_found(Estimator(tree, scale).find(odds)[0], figure)
            for figure, odds in zip(figures, responses, strict=True)
        ])
        for scale in SCALES
    ]
    return SCALES[int(np.argmax(found))]


def panel(
    image: Array, positions: Array | None = None, angles: Array | None = None,
    marginals: Array | None = None,
) -> Image.Image:
    """An image with sticks or with marginals (P, S, S) on it."""
    gray = np.repeat(np.clip(image, 0, 1)[..., None], 3, -1)
    palette = label_palette(len(LIMBS) + 1)[1:] / 255
    if marginals is not None:
        # Each part against its own maximum, a pixel wider so that sharp ones can be seen, and at
        # each pixel the part that is nearest to its maximum there.
        padded = np.pad(marginals, ((0, 0), (1, 1), (1, 1)))
        near = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2)).max((3, 4))
        near /= near.max((1, 2), keepdims=True)
        cover = near.max(0)[..., None]
        gray = 0.3 * gray * (1 - cover) + palette[near.argmax(0)] * cover
    picture = Image.fromarray((255 * gray).astype(np.uint8))
    sides = ZOOM * picture.width, ZOOM * picture.height
    picture = picture.resize(sides, Image.Resampling.NEAREST)
    if positions is not None and angles is not None:
        ends = positions + (LENGTHS * len(image) / USUAL_SIZE)[:, None] * direction(angles)
        draw = ImageDraw.Draw(picture)
        for color, start, end in zip(palette, positions, ends, strict=True):
            ink = tuple((255 * color).astype(int))
            # Pillow has columns first, and a pixel's middle at half.
            points = [tuple(ZOOM * (place[::-1] + 0.5)) for place in (start, end)]
            draw.line(points, fill=ink, width=ZOOM)
            x, y = points[0]
            draw.ellipse((x - ZOOM, y - ZOOM, x + ZOOM, y + ZOOM), fill=ink)
    return picture


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--train", type=int, default=150, help="figures to learn from")
    parser.add_argument("--test", type=int, default=30)
    parser.add_argument("--size", type=int, default=USUAL_SIZE, help="of images, in pixels")
    parser.add_argument("--orientations", type=int, default=12)
    parser.add_argument("--noise", type=float, default=0.15)
    parser.add_argument("--bars", type=int, default=8, help="of clutter")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--quick", action="store_true", help="a few small figures")
    parser.add_argument("-o", "--output", type=Path, default=Path("estimate_pose"))
    options = parser.parse_args()
    if options.quick:
        options.train, options.test, options.size, options.orientations = 60, 4, 64, 8
    rng = np.random.default_rng(options.seed)
    n_tuning = max(2, options.test // 5)
    figures = [
        draw_figure(rng, options.size, options.noise, options.bars)
        for _ in range(options.train + n_tuning + options.test)
    ]
    learning, rest = figures[: options.train], figures[options.train :]
    detectors = Detectors(learning, options.orientations, rng)
    responses = [detectors.log_odds(figure.image) for figure in rest]
    tuning, testing = rest[:n_tuning], rest[n_tuning:]
    # Poses without images are cheap to have: geometry is learned from some more of them.
    poses = [draw_pose(rng, options.size) for _ in range(4 * options.train)]
    trees = learn_trees(poses + [figure.pose for figure in learning], options.orientations)

    scales, best, found = {}, {}, {}
    for method, tree in trees.items():
        scales[method] = choose_scale(tree, tuning, responses[:n_tuning])
        estimator = Estimator(tree, scales[method])
        best[method] = [estimator.find(odds) for odds in responses[n_tuning:]]
        found[method] = np.stack([
            is_found(places, figure)
            for (places, _), figure in zip(best[method], testing, strict=True)
        ])
    hidden = np.stack([figure.hidden for figure in testing])
    rows = {
        limb.name: np.broadcast_to(np.arange(len(LIMBS)) == p, hidden.shape)
        for p, limb in enumerate(LIMBS)
    }
    rows |= {"hidden parts": hidden, "all parts": np.ones_like(hidden)}
    print(f"Parts within {TOLERANCE:g} pixels of the truth in {options.test} images, in percent")
    print(f"{'':18}" + "".join(f"{method:>14}" for method in trees))
    table: dict[str, dict[str, float]] = {}
    for name, mask in rows.items():
        if not mask.any():
            continue
        table[name] = {method: 100 * float(hits[mask].mean()) for method, hits in found.items()}
        print(f"{name:18}" + "".join(f"{share:14.1f}" for share in table[name].values()))

    tree = trees["orientations"]
    assert tree is not None
    titles = ("image", "truth", *trees, "marginals")
    rows_of_pictures = []
    for k, figure in enumerate(testing[:3]):
        costs = costs_of(responses[n_tuning + k], scales["orientations"])
        marginals = infer(Poses(tree, costs)).marginals
        sticks = [
            panel(figure.image, places.astype(float), detectors.angles[turned])
            for places, turned in (best[method][k] for method in trees)
        ]
        rows_of_pictures.append(side_by_side(
            panel(figure.image), panel(figure.image, figure.pose.positions, figure.pose.angles),
            *sticks, panel(figure.image, marginals=marginals.sum(1)),
            titles=titles if k == 0 else (),
        ))
    options.output.mkdir(parents=True, exist_ok=True)
    stack(*rows_of_pictures).save(options.output / "poses.png")
    text = json.dumps({"scales": scales, "found": table}, indent=2)
    (options.output / "figures.json").write_text(f"{text}\n", "utf-8")
    print(f"Pictures ({', '.join(titles)}) and figures are in {options.output};")
    print("a part has one color in all pictures, and its marginal is drawn against its maximum")


if __name__ == "__main__":
    main()
