"""How far the lattice's labels are from those of exact inference.

Compares five iterations on a permutohedral lattice, crfield's and pydensecrf's, with five that
sum over all pairs of pixels (densecrf_examples/exact_labels.npz).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from crfield import unary_from_labels, unary_from_probabilities
from experiments.common import (
    HAS_PYDENSECRF,
    PAPER,
    STANDARD,
    VOC_LABELS,
    Float32,
    Labels,
    Setting,
    label_major,
    load_image,
    load_labels,
    markdown_table,
    parse_data_folder,
    percent_different,
    provenance,
    report,
    run_pydensecrf,
)

TEXTONBOOST = ("2_14_s", "4_11_s")
VOC = tuple(f"voca{number:03d}" for number in range(6))
ITERATIONS = 5
SETTINGS = (STANDARD, PAPER)


@dataclass(frozen=True)
class Case:
    """An image (H, W, 3) with its costs (H, W, 21)."""

    name: str
    image: NDArray[np.uint8]
    unary: Float32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--exact", action="store_true",
        help='also run filter="exact" on the two small images (minutes)',
    )
    parser.add_argument(
        "--exact-tol", type=float, nargs="+", default=[1e-7, 0.0], metavar="TOL",
        help="filter_tol of those runs; 0 skips no pair (default: 1e-7 0)",
    )
    arguments = parse_data_folder(parser, "densecrf_examples", "voc_sbd100")
    facts = provenance()
    with np.load(arguments.data / "densecrf_examples" / "exact_labels.npz") as file:
        exact = {key: file[key] for key in file.files}

    cases = load_cases(arguments.data)
    paragraphs = [
        "Percentage of pixels whose label differs from exact inference after "
        f"{ITERATIONS} iterations (21 labels, symmetric normalization). "
        + "; ".join(f"{s.name}: {s.describe()}" for s in SETTINGS) + ".",
        lattice_table(cases, exact),
    ]
    if arguments.exact:
        small = [case for case in cases if case.name in TEXTONBOOST]
        paragraphs += [
            'The same for `filter="exact"`, which sums over all pairs of pixels; `filter_tol` lets '
            "it skip tiles of pairs whose kernel value is below. The reference was computed in "
            "float32 elsewhere, so pixels with nearly equal labels may differ.",
            exact_table(small, exact, arguments.exact_tol),
        ]
    report("Accuracy of the lattice", paragraphs, facts)


def load_cases(data: Path) -> list[Case]:
    """TextonBoost's probabilities for two images, a network's hard labels for six."""
    examples, voc = data / "densecrf_examples", data / "voc_sbd100"
    cases = []
    for name in TEXTONBOOST:
        with np.load(examples / f"{name}_textonboost_unary.npz") as file:
            unary = unary_from_probabilities(file["prob"].astype(np.float32), clip=1e-5)
        cases.append(Case(name, load_image(examples / f"{name}.png"), unary))
    for name in VOC:
        labels = load_labels(voc / "psp_pred" / f"{name}.png")
        unary = unary_from_labels(labels, VOC_LABELS, confidence=0.7)
        cases.append(Case(name, load_image(voc / "images" / f"{name}.jpg"), unary))
    return cases


def lattice_table(cases: list[Case], exact: dict[str, Labels]) -> str:
    """Disagreement of each image, setting and library, and the means."""
    columns = [(setting, "crfield") for setting in SETTINGS]
    if HAS_PYDENSECRF:
        columns = [(s, library) for s in SETTINGS for library in ("crfield", "pydensecrf")]
    found = np.array([
        [
            percent_different(
                infer_on_lattice(case, setting, library), exact[f"{case.name}__{setting.name}"]
            )
            for setting, library in columns
        ]
        for case in tqdm(cases, desc="lattice")
    ])
    header = ["image", *(f"{setting.name}, {library} %" for setting, library in columns)]
    names = [*(case.name for case in cases), "mean"]
    values = np.vstack([found, found.mean(axis=0)])
    rows = ([n, *(f"{v:.3f}" for v in row)] for n, row in zip(names, values, strict=True))
    return markdown_table(header, rows)


def infer_on_lattice(case: Case, setting: Setting, library: str) -> Labels:
    """Labels (H, W) of one library."""
    if library == "pydensecrf":
        marginals = run_pydensecrf(case.image, label_major(case.unary), setting, ITERATIONS)
        labels: Labels = marginals.argmax(axis=0).reshape(case.image.shape[:2])
        return labels
    model = setting.model(case.unary.shape[-1])
    result = model.infer(
        case.image, case.unary, filter="lattice", max_iter=ITERATIONS, tol=0.0
    )
    return result.labels


def exact_table(cases: list[Case], exact: dict[str, Labels], tolerances: list[float]) -> str:
    """Disagreement of crfield's exact filter with the stored exact labels."""
    rows = []
    runs = [(case, setting, tol) for case in cases for setting in SETTINGS for tol in tolerances]
    for case, setting, tol in tqdm(runs, desc="exact"):
        began = time.perf_counter()
        labels = setting.model(case.unary.shape[-1]).infer(
            case.image, case.unary, filter="exact", filter_tol=tol, max_iter=ITERATIONS, tol=0.0
        ).labels
        seconds = time.perf_counter() - began
        reference = exact[f"{case.name}__{setting.name}"]
        rows.append([
            case.name, setting.name, f"{tol:g}", str(np.count_nonzero(labels != reference)),
            f"{percent_different(labels, reference):.4f}", f"{seconds:.0f}",
        ])
    return markdown_table(
        ["image", "setting", "filter_tol", "pixels different", "%", "seconds"], rows
    )


if __name__ == "__main__":
    main()
