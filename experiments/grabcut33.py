"""Objects from scribbles: IoU on photos whose scribbles were drawn by people.

Constants were chosen on the first set of scribbles; the second took no part. Pixels close to the
border, marked 255 in the true labels, do not count.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

import crfield
from crfield.app.settings import Settings
from crfield.refinement import potts_model
from experiments.common import markdown_table, provenance, report

Labels = NDArray[np.uint8]
Row = tuple[float, float, float, float]
HEADER = ("scribbles", "colors", "+ CRF", "colors and distances", "+ CRF")


def main() -> None:
    """Score both sets of scribbles and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds grabcut33/")
    folder = parser.parse_args().data / "grabcut33"
    facts = provenance()
    lines = (folder / "list.txt").read_text("utf-8").splitlines()
    names = [line.split()[0] for line in lines if line.strip()]
    table = []
    for number, role in ((1, "chosen on"), (2, "held out")):
        rows = [_scores(folder, name, number) for name in tqdm(names, desc=f"set {number}")]
        means = [f"{100 * value:.1f}" for value in np.mean(rows, axis=0)]
        table.append([f"set {number} ({role})", *means])
    report("Scribbles to objects", [
        f"Mean IoU of the object on {len(names)} photos, in percent, with the settings that "
        "`crfield app` starts with.",
        markdown_table(HEADER, table),
    ], facts)


def _scores(data: Path, name: str, number: int) -> Row:
    """IoU of the costs' and the CRF's labels, without distances and with them."""
    image = np.asarray(Image.open(data / "images" / f"{name}.jpg").convert("RGB"))
    truth = np.asarray(Image.open(data / "labels" / f"{name}.png"))
    scribbles = np.asarray(Image.open(data / f"scribbles{number}" / f"{name}.png"))
    start = Settings()
    crf = potts_model(
        2, start.spatial, start.spatial_weight, start.bilateral, start.bilateral_weight
    )
    scores: list[float] = []
    for nearness in (0.0, start.nearness):
        unary = crfield.unary_from_scribbles(
            image, scribbles, 2, components=start.components, strength=start.strength,
            nearness=nearness,
        )
        result = crf.infer(image, unary, max_iter=start.max_iter, tol=start.tol)
        scores += [_iou(unary.argmin(-1), truth), _iou(result.labels, truth)]
    return scores[0], scores[1], scores[2], scores[3]


def _iou(labels: NDArray[Any], truth: Labels) -> float:
    known = truth != 255
    both = (labels == 1) & (truth == 1) & known
    either = ((labels == 1) | (truth == 1)) & known
    return float(both.sum() / either.sum())


if __name__ == "__main__":
    main()
