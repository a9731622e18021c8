"""Semantic segmentation on grids, where neighbors' labels are learned from data.

Without data, noisy images of a scene (sky above, ground below, houses that stand on it) are
labeled by a classifier of single pixels, by a `GridClassifier` whose tables of neighbors are the
same in all directions, and by one that tells right from below.

With --data, the snakes of Nowozin et al. (2011): eleven parts of a snake that looks alike in every
part, so that a label can only be known by counting from the head. The colors of a pixel and of its
neighbors are known. A `GraphClassifier` whose edges have features, the colors at both ends, is
added.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crfield.graphs import GraphClassifier, GridClassifier, Propagation
from crfield.show.pictures import colorize, label_palette, side_by_side, stack

Features = list[NDArray[np.float64]]
Labels = list[NDArray[np.int64]]

# Learning looks at many graphs, none of which needs all digits.
INFERENCE = Propagation(max_iter=60, tol=1e-3)

TITLE_WIDTH = 160  # of the longest name of a model in the picture, in pixels


def draw_scene(rng: np.random.Generator, height: int, width: int) -> NDArray[np.int64]:
    """Labels (H, W): houses with roofs on the ground, before the sky."""
    labels = np.zeros((height, width), np.int64)
    horizon = int(rng.integers(height // 2, 3 * height // 4))
    labels[horizon:] = 1
    for _ in range(int(rng.integers(1, 4))):
        size = int(rng.integers(height // 6, height // 3))
        left = int(rng.integers(0, width - size))
        top = horizon - size
        labels[top:horizon, left:left + size] = 2
        labels[max(0, top - size // 3):top, left:left + size] = 3
    return labels


def make_scenes(count: int, size: int, noise: float, seed: int) -> tuple[Features, Labels]:
    """Colors (H, W, 3) of four labels that overlap in noise, and the labels."""
    rng = np.random.default_rng(seed)
    colors = np.array([[0.5, 0.7, 0.9], [0.4, 0.6, 0.3], [0.7, 0.6, 0.5], [0.6, 0.3, 0.3]])
    labels = [draw_scene(rng, size, size + size // 4) for _ in range(count)]
    return [colors[y] + rng.normal(0, noise, (*y.shape, 3)) for y in labels], labels


def load_snakes(folder: Path) -> dict[str, tuple[Features, Labels]]:
    """One-hot colors (H, W, 5) and labels of the training and the test grids."""
    out = {}
    with np.load(folder / "snakes" / "snakes.npz") as data:
        colors = np.unique(data["X_train"], axis=0)
        for part in ("train", "test"):
            shapes = data[f"shape_{part}"].astype(np.int64)
            bounds = np.cumsum(shapes.prod(1))[:-1]
            codes = (data[f"X_{part}"][:, None] == colors).all(2).astype(np.float64)
            X = [x.reshape(*s, -1) for x, s in zip(np.split(codes, bounds), shapes, strict=True)]
            y = [
                v.reshape(s).astype(np.int64)
                for v, s in zip(np.split(data[f"Y_{part}"], bounds), shapes, strict=True)
            ]
            out[part] = X, y
    return out


def with_neighbors(grid: NDArray[np.float64]) -> NDArray[np.float64]:
    """Features of the 3 x 3 pixels around each, zeros outside."""
    height, width = grid.shape[:2]
    padded = np.pad(grid, ((1, 1), (1, 1), (0, 0)))
    return np.concatenate(
        [padded[i:i + height, j:j + width] for i in range(3) for j in range(3)], -1
    )


def as_graph(grid: NDArray[np.float64]) -> tuple[Any, Any, Any]:
    """Nodes with the features of 3 x 3 pixels; edges with a block of features for each direction:
    a constant and the colors at both ends."""
    height, width, n = grid.shape
    pixels = np.arange(height * width).reshape(height, width)
    flat = grid.reshape(-1, n)
    edges, features = [], []
    for direction, (a, b) in enumerate(
        ((pixels[:, :-1], pixels[:, 1:]), (pixels[:-1], pixels[1:]))
    ):
        pairs = np.stack([a.ravel(), b.ravel()], 1)
        own = np.concatenate([np.ones((len(pairs), 1)), flat[pairs[:, 0]], flat[pairs[:, 1]]], 1)
        block = np.zeros((len(pairs), 2, own.shape[1]))
        block[:, direction] = own
        edges.append(pairs)
        features.append(block.reshape(len(pairs), -1))
    nodes = with_neighbors(grid).reshape(height * width, -1)
    return nodes, np.concatenate(edges), np.concatenate(features)


def measure(
    name: str, model: Any, train: tuple[Any, Labels], test: tuple[Any, Labels]
) -> tuple[dict[str, Any], Labels]:
    """Fit, predict, and how it went; labels in the shapes of the truth."""
    start = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(*train)
    seconds = time.perf_counter() - start
    found = model.predict(test[0])
    right = [(f.ravel() == y.ravel()) for f, y in zip(found, test[1], strict=True)]
    things = [y.ravel() > 0 for y in test[1]]
    row = {
        "model": name,
        "accuracy": float(np.concatenate(right).mean()),
        "without label 0": float(np.concatenate(right)[np.concatenate(things)].mean()),
        "seconds": seconds,
        "warnings": [str(warning.message) for warning in caught],
    }
    return row, [np.asarray(f) for f in found]


def compare_scenes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """The three models on made scenes, with a picture."""
    train = make_scenes(options.images, options.size, options.noise, 0)
    test = make_scenes(options.images, options.size, options.noise, 1)
    rows, pictures = [], []
    single = GraphClassifier(l2=options.l2, max_iter=options.max_iter)
    none = np.zeros((0, 2), np.int64)

    def nodes(grids: Features) -> list[Any]:
        return [(grid.reshape(-1, grid.shape[2]), none) for grid in grids]

    flat = [y.ravel() for y in train[1]], [y.ravel() for y in test[1]]
    row, found = measure("pixels alone", single, (nodes(train[0]), flat[0]),
                         (nodes(test[0]), flat[1]))
    rows.append(row)
    pictures.append([f.reshape(y.shape) for f, y in zip(found, test[1], strict=True)])
    for name, directed in (("one table", False), ("right and below", True)):
        model = GridClassifier(
            l2=options.l2, max_iter=options.max_iter, directed=directed, tol=0.05,
            inference=INFERENCE,
        )
        row, found = measure(name, model, train, test)
        rows.append(row)
        pictures.append(found)
    names = [row["model"] for row in rows]
    write_picture(options.output / "scenes.png", test, names, pictures, options.zoom)
    return rows


def compare_snakes(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Models on the snakes: pixels, directed tables, tables that depend on colors."""
    data = load_snakes(options.data)
    count = 30 if options.quick else None
    (X, y), (X_test, y_test) = (
        (features[:count], labels[:count]) for features, labels in (data["train"], data["test"])
    )
    none = np.zeros((0, 2), np.int64)

    def nodes(grids: Features) -> list[Any]:
        return [(with_neighbors(g).reshape(g.shape[0] * g.shape[1], -1), none) for g in grids]

    flat = [v.ravel() for v in y], [v.ravel() for v in y_test]
    settings = {"l2": options.l2, "max_iter": options.max_iter, "tol": 1e-2,
                "inference": INFERENCE}
    rows = []
    row, single = measure("3 x 3 pixels alone", GraphClassifier(l2=options.l2, max_iter=200),
                          (nodes(X), flat[0]), (nodes(X_test), flat[1]))
    rows.append(row)
    row, grids = measure("grid, right and below", GridClassifier(**settings),
                         ([with_neighbors(g) for g in X], y),
                         ([with_neighbors(g) for g in X_test], y_test))
    rows.append(row)
    row, edges = measure("edges that see colors", GraphClassifier(directed=True, **settings),
                         ([as_graph(g) for g in X], flat[0]),
                         ([as_graph(g) for g in X_test], flat[1]))
    rows.append(row)
    pictures = [
        [f.reshape(v.shape) for f, v in zip(found, y_test, strict=True)]
        for found in (single, grids, edges)
    ]
    colors = [grid[..., :3] for grid in X_test]
    names = [row["model"] for row in rows]
    path = options.output / "snakes.png"
    write_picture(path, (colors, y_test), names, pictures, 4 * options.zoom)
    return rows


def write_picture(
    path: Path, test: tuple[Any, Labels], names: list[str], pictures: list[Labels], zoom: int
) -> None:
    """Rows of image, truth and what each model found, of the first three test images."""
    palette = label_palette(int(max(y.max() for y in test[1])) + 1)
    width = max(TITLE_WIDTH, *(zoom * labels.shape[1] for labels in test[1][:3]))
    lines = []
    for i in range(min(3, len(test[1]))):
        image = np.clip(255 * np.asarray(test[0][i])[..., :3], 0, 255).astype(np.uint8)
        shown = [
            Image.fromarray(image),
            *(colorize(labels[i], palette) for labels in (test[1], *pictures)),
        ]
        panels = []
        for part in shown:
            enlarged = part.resize(
                (zoom * part.width, zoom * part.height), Image.Resampling.NEAREST
            )
            panels.append(Image.new("RGB", (width, enlarged.height), "white"))
            panels[-1].paste(enlarged, ((width - enlarged.width) // 2, 0))
        lines.append(
            side_by_side(*panels, titles=["image", "truth", *names] if i == 0 else ())
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    stack(*lines).save(path)


def parsed_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--data", type=Path, help="folder with snakes/snakes.npz (default: made scenes)")
    add("--images", type=int, default=5, help="training and test scenes (default: %(default)s)")
    add("--size", type=int, default=24, help="rows of a scene (default: %(default)s)")
    add("--noise", type=float, default=0.35, help="noise of colors (default: %(default)s)")
    add("--l2", type=float, help="strength of the penalty (default: 1 / images)")
    add("--max-iter", type=int, default=80, help="iterations (default: %(default)s)")
    add("--zoom", type=int, default=5, help="screen pixels per pixel (default: %(default)s)")
    add("--quick", action="store_true", help="two small scenes, or a few snakes")
    add("-o", "--output", type=Path, default=Path("segment_grids"),
        help="folder (default: %(default)s)")
    options = parser.parse_args()
    if options.quick:
        options.images, options.size, options.max_iter = 2, 16, 12
    if options.images < 1 or options.size < 16 or options.noise < 0 or options.zoom < 1:
        parser.error("images and zoom must be at least 1, size at least 16, noise at least 0")
    if options.data is not None and not (options.data / "snakes" / "snakes.npz").is_file():
        parser.error(f"--data must hold snakes/snakes.npz, got {options.data}; check the folder.")
    return options


def main() -> None:
    """Print a table, write a picture and the figures."""
    options = parsed_options()
    rows = compare_snakes(options) if options.data else compare_scenes(options)
    print(f"{'model':26}{'accuracy':>10}{'without 0':>11}{'seconds':>9}")
    for row in rows:
        note = " *" if row["warnings"] else ""
        print(f"{row['model']:26}{100 * row['accuracy']:10.1f}{100 * row['without label 0']:11.1f}"
              f"{row['seconds']:9.1f}{note}")
    for row in rows:
        for text in row["warnings"]:
            print(f"* {row['model']}: {text}")
    (options.output / "figures.json").write_text(json.dumps(rows, indent=2) + "\n", "utf-8")
    print(f"Labels of test images and figures are in {options.output}")


if __name__ == "__main__":
    main()
