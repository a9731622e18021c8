"""Three inference algorithms compared on 100 images: KK13 section 5.1.

"parallel" is the algorithm of Kraehenbuehl and Koltun (2011), "cccp" the convergent one of KK13
section 3.1, "concave" the faster convergent one of section 3.2.
"""

from __future__ import annotations

import argparse
import itertools
import time
from pathlib import Path

import numpy as np
from tqdm import tqdm

from crfield import InferenceResult, refine, unary_from_labels
from crfield.metrics import confusion_matrix, mean_iou, pixel_accuracy
from experiments.common import (
    MEAN_IOU,
    PAPER,
    VOC_LABELS,
    Labels,
    load_image,
    load_labels,
    markdown_table,
    names_in,
    parse_data_folder,
    percent_different,
    provenance,
    report,
)

ITERATIONS = 5
CONFIDENCE = 0.7
# Seconds per image in the paper, on one core of a 3.2 GHz Core i7.
PAPER_SECONDS = {"parallel": 0.72, "cccp": 2.49, "concave": 0.69}
ALGORITHMS = tuple(PAPER_SECONDS)
PAIRS = tuple(itertools.combinations(ALGORITHMS, 2))
PAPER_MEAN_DIFFERENCE = 2e-5
PAPER_PERCENT_DIFFERENT = 0.013

NETWORK = "network's labels"
ITS_OWN = "`refine`, its own constants"
CUSTOMARY = "`refine`, customary constants"


class Comparison:
    """Figures of all images, gathered one image at a time."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {name: [] for name in ALGORITHMS}
        self.mean_differences: dict[tuple[str, str], list[float]] = {pair: [] for pair in PAIRS}
        self.percents: dict[tuple[str, str], list[float]] = {pair: [] for pair in PAIRS}
        rows = (NETWORK, *ALGORITHMS, ITS_OWN, CUSTOMARY)
        self.confusions = {row: np.zeros((VOC_LABELS, VOC_LABELS), np.int64) for row in rows}

    def add_image(self, folder: Path, name: str, repeats: int) -> None:
        """Run everything on one image."""
        image = load_image(folder / "images" / f"{name}.jpg")
        truth = load_labels(folder / "labels" / f"{name}.png")
        predicted = load_labels(folder / "psp_pred" / f"{name}.png")
        unary = unary_from_labels(predicted, VOC_LABELS, confidence=CONFIDENCE)
        model = PAPER.model(VOC_LABELS)

        results: dict[str, InferenceResult] = {}
        fastest = dict.fromkeys(ALGORITHMS, np.inf)
        for _ in range(repeats):
            for algorithm in ALGORITHMS:
                began = time.perf_counter()
                results[algorithm] = model.infer(
                    image, unary, algorithm=algorithm, max_iter=ITERATIONS, tol=0.0, threads=1
                )
                took = time.perf_counter() - began
                fastest[algorithm] = min(fastest[algorithm], took)

        for algorithm in ALGORITHMS:
            self.seconds[algorithm].append(fastest[algorithm])
        for pair in PAIRS:
            one, other = (results[algorithm] for algorithm in pair)
            gap = np.abs(one.marginals.astype(np.float64) - other.marginals)
            self.mean_differences[pair].append(float(gap.mean()))
            self.percents[pair].append(percent_different(one.labels, other.labels))

        labels: dict[str, Labels] = {name: result.labels for name, result in results.items()}
        labels[NETWORK] = predicted
        labels[ITS_OWN] = refine(image, predicted).labels
        labels[CUSTOMARY] = refine(
            image, predicted, bilateral=(80, 13), bilateral_weight=10, confidence=0.7
        ).labels
        for row, found in labels.items():
            self.confusions[row] += confusion_matrix(truth, found, VOC_LABELS)

    def difference_table(self) -> str:
        """Each pair of algorithms: averages over the images, and the worst image."""
        rows = []
        for pair in PAIRS:
            means, percents = self.mean_differences[pair], self.percents[pair]
            rows.append([
                " / ".join(pair), f"{np.mean(means):.2g}", f"{np.max(means):.2g}",
                f"< {PAPER_MEAN_DIFFERENCE:g}", f"{np.mean(percents):.4f}",
                f"{np.max(percents):.4f}", f"< {PAPER_PERCENT_DIFFERENT:g}",
            ])
        return markdown_table(
            ["pair", "mean abs. difference", "worst image", "paper", "% other MAP label",
             "worst image", "paper"],
            rows,
        )

    def time_table(self) -> str:
        """Mean seconds per image, and how they compare with "concave"."""
        means = {name: float(np.mean(self.seconds[name])) for name in ALGORITHMS}
        return markdown_table(
            ["algorithm", "s per image", "of concave", "paper, s per image", "of concave"],
            [
                [name, f"{means[name]:.3f}", f"{means[name] / means['concave']:.2f}",
                 f"{PAPER_SECONDS[name]:.2f}",
                 f"{PAPER_SECONDS[name] / PAPER_SECONDS['concave']:.2f}"]
                for name in ALGORITHMS
            ],
        )

    def accuracy_table(self) -> str:
        """Pixel accuracy and mean IoU over the whole set."""
        return markdown_table(
            ["labels", "pixel accuracy %", "mean IoU %"],
            [
                [row, f"{100 * pixel_accuracy(counts):.2f}", f"{100 * mean_iou(counts):.2f}"]
                for row, counts in self.confusions.items()
            ],
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--repeats", type=int, default=3, help="runs of each algorithm on each image (default: 3)"
    )
    arguments = parse_data_folder(parser, "voc_sbd100")
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}.")
    facts = provenance() | MEAN_IOU
    folder = arguments.data / "voc_sbd100"
    names = names_in(folder / "list.txt")
    comparison = Comparison()
    for name in tqdm(names, desc="images"):
        comparison.add_image(folder, name, arguments.repeats)
    report(
        "Inference algorithms (KK13 section 5.1)",
        [
            f"{len(names)} images, {VOC_LABELS} labels, a network's hard labels with confidence "
            f"{CONFIDENCE:g}; Potts, {PAPER.describe()}; {ITERATIONS} iterations. The paper's "
            "figures are for PASCAL VOC with TextonBoost unaries.",
            "Marginals of each pair, averaged over images, pixels and labels, and MAP labels:",
            comparison.difference_table(),
            "Time on one thread, lattice included: the fastest of "
            f"{arguments.repeats} interleaved runs on each image, averaged over the images; the "
            "paper's on one core of a 3.2 GHz Core i7:",
            comparison.time_table(),
            "Against the ground truth, void left out. The constants of `refine` were chosen on the "
            "first 50 of these images (see refine_defaults); the customary ones are spatial 3 px, "
            "weight 3, and bilateral 80 px / 13, weight 10, confidence 0.7. Both run for 10 "
            "iterations at most, on the labels that occur:",
            comparison.accuracy_table(),
        ],
        facts,
    )


if __name__ == "__main__":
    main()
