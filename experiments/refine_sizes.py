"""Whether the default widths of `crfield.refine` suit images of any size.

Images and inputs are shrunk or enlarged, refined by default, and the result is brought back to the
size of the truth: its marginals as `refine` enlarges probabilities that are coarser than an image,
and for comparison each label to its nearest pixels. Hard labels: a network's predictions on
voc_sbd100, those of the first 50 images, on which the constants were chosen, and of the last 50.
Probabilities: msrc21's unaries on eval.txt. What was computed is kept in cache/ and not computed
again.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

import crfield
from crfield import Inference, unary_from_probabilities
from crfield.datasets import FolderDataset
from crfield.learning.objective import Example
from crfield.metrics import mean_iou
from crfield.unary.resizing import resize_linearly
from experiments.common import (
    MEAN_IOU,
    REPOSITORY,
    markdown_table,
    parse_data_folder,
    provenance,
    report,
)
from experiments.msrc21_learning import DESCRIPTION as MSRC
from experiments.refine_defaults import (
    OF_LABELS,
    OF_PROBABILITIES,
    VOC,
    Constants,
    network_labels,
)
from experiments.rows import Rows

Labels = NDArray[np.integer[Any]]
SIZES = (0.5, 1.0, 2.0, 4.0)
CACHE = REPOSITORY / "experiments" / "cache" / "refine_sizes"


def resized(example: Example, size: float, hard: bool) -> tuple[NDArray[np.uint8], NDArray[Any]]:
    """The image with sides `size` times as long, and its hard labels or probabilities there."""
    height, width = (max(1, round(side * size)) for side in np.shape(example.truth))
    picture = Image.fromarray(np.asarray(example.image))
    image = np.asarray(picture.resize((width, height), Image.Resampling.BICUBIC))
    if hard:
        return image, nearest(network_labels(example), (height, width))
    scores = resize_linearly(-np.asarray(example.unary), (height, width))
    p = np.exp(scores - scores.max(-1, keepdims=True))
    return image, p / p.sum(-1, keepdims=True)


def nearest(labels: Labels, grid: tuple[int, ...]) -> Labels:
    """Labels (H, W) on another grid, at each point those of the nearest."""
    rows, columns = (
        np.minimum(((np.arange(n) + 0.5) * m / n).astype(np.intp), m - 1)
        for n, m in zip(grid, labels.shape, strict=True)
    )
    return labels[np.ix_(rows, columns)]


def enlarged(probabilities: NDArray[Any], grid: tuple[int, ...]) -> Labels:
    """The likeliest of probabilities (h, w, L) at each point of a grid (H, W)."""
    if any(n > m for n, m in zip(probabilities.shape, grid, strict=False)):
        return nearest(probabilities.argmax(-1), grid)
    scores = resize_linearly(-unary_from_probabilities(probabilities), grid)
    return np.asarray(scores.argmax(-1))


def given(example: Example, size: float, hard: bool) -> Labels:
    """The labels of the input at a size, brought to that of the truth."""
    _, values = resized(example, size, hard)
    grid = np.shape(example.truth)
    return nearest(values, grid) if hard else enlarged(values, grid)


def refined(
    example: Example, size: float, hard: bool, constants: Constants | None, soft: bool = True
) -> Labels:
    """The same after `refine`, with its defaults or with `constants` whatever the size; of the
    marginals, or if it is not `soft` of the labels.
    """
    image, values = resized(example, size, hard)
    options = {} if constants is None else constants.options()
    result = crfield.refine(image, values, threads=1, **options)
    grid = np.shape(example.truth)
    if soft:
        return np.asarray(result.label_ids)[enlarged(result.marginals, grid)]
    return nearest(np.asarray(result.labels), grid)


def row(name: str, examples: FolderDataset, fixed: Constants, jobs: int) -> list[list[str]]:
    """Rows of the table: the input, and what `refine` gains with growing and with fixed widths."""
    hard = fixed.confidence is not None
    rows = Rows(CACHE / name, examples, examples.n_labels, Inference(), jobs)
    table = [
        [f"{name}: input"], ["gain by default"], ["gain by default, labels to nearest pixels"],
        ["gain with widths that do not grow"],
    ]
    for size in SIZES:
        default = partial(refined, size=size, hard=hard, constants=None)
        before, *after = (
            100 * mean_iou(rows.other(f"{word} at {size:g}", infer).confusions.sum(0))
            for word, infer in (
                ("input", partial(given, size=size, hard=hard)), ("default", default),
                # Only of a shrunken image do the two differ.
                ("default", default) if size >= 1 else ("nearest", partial(default, soft=False)),
                ("fixed", partial(refined, size=size, hard=hard, constants=fixed)),
            )
        )
        cells = [f"{before:.2f}", *(f"{score - before:+.2f}" for score in after)]
        for line, cell in zip(table, cells, strict=True):
            line.append(cell)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=2, metavar="N", help="images at a time")
    arguments = parse_data_folder(parser, "voc_sbd100", "msrc21")
    voc = FolderDataset(arguments.data / "voc_sbd100", "list", description=VOC)
    evaluate = FolderDataset(arguments.data / "msrc21", "eval", description=MSRC)
    rows = [
        *row("VOC, first 50, labels", voc[:50], OF_LABELS, arguments.jobs),
        *row("VOC, last 50, labels", voc[50:], OF_LABELS, arguments.jobs),
        *row("MSRC-21 eval, probabilities", evaluate, OF_PROBABILITIES, arguments.jobs),
    ]
    report(
        "Sizes of images under `refine`",
        ["Mean IoU of the input in percent, and gains in points, by the size of the sides.",
         markdown_table(["", *(f"{size:g}x" for size in SIZES)], rows)],
        provenance() | MEAN_IOU,
    )


if __name__ == "__main__":
    main()
