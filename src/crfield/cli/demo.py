"""`crfield demo`: refine the sample photos, print how much better they got and draw pictures."""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.typing as npt
from PIL import Image

import crfield
from crfield import datasets, pictures
from crfield.imagefiles import write_picture
from crfield.metrics import confusion_matrix, mean_iou

DESCRIPTION = """\
Refine the photos that come with crfield, from coarse labels and from noisy probabilities, print
their mean intersection over union with the true labels before and after, and write pictures."""
NOTE = """\
IoU after: refine() with its own constants, which were chosen on other images. Customary: the
constants that most people use for this model. The inputs are made from the true labels, coarsened
and corrupted, and the photos were picked with the model in mind: a show, not a benchmark."""
PANEL_WIDTH = 320
N_SCENES = 3
CUSTOMARY: dict[str, Any] = {
    "spatial_weight": 3.0, "bilateral": (80.0, 13.0), "bilateral_weight": 10.0, "confidence": 0.7,
}
Labels = npt.NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A sample refined from one kind of input."""

    sample: datasets.Sample
    input_name: str
    before: Labels
    result: Any
    milliseconds: float
    customary: Labels

    @property
    def slug(self) -> str:
        """Beginning of the names of this case's pictures."""
        return f"{self.sample.name}-{self.input_name}"

    def iou(self, labels: Labels) -> float:
        """Mean intersection over union of `labels` with the true ones."""
        n_labels = len(self.sample.label_names)
        return mean_iou(confusion_matrix(self.sample.mask, labels, n_labels))


def add_command(commands: Any) -> None:
    """Add the subcommand `demo`."""
    parser = commands.add_parser(
        "demo",
        help="see what crfield does, on photos that come with it",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("crfield-demo"), metavar="DIR",
        help="folder for the pictures (default: %(default)s)",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run every case, then print the table and write the pictures."""
    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    cases = [case for name in datasets.sample_names() for case in refine_photo(name)]
    cases += [
        refine_case(scene, "probabilities", scene.probabilities)
        for scene in datasets.synthetic_scenes(N_SCENES, seed=0)
    ]
    print(table(cases))
    print(f"\n{NOTE}")
    drawn = {f"{case.slug}.png": _comparison(case) for case in cases}
    for case in cases:
        drawn[f"{case.slug}-entropy.png"] = pictures.entropy_map(case.result.marginals)
        drawn[f"{case.slug}-energy.png"] = _energy_curve(case)
    drawn["overview.png"] = overview([case for case in cases if case.input_name == "labels"])
    for name, picture in drawn.items():
        write_picture(folder / name, picture)
    print(f"\nWrote {len(drawn)} pictures to {folder}; begin with {folder / 'overview.png'}.")
    return 0


def refine_photo(name: str) -> list[Case]:
    """Both cases of a photo: coarse labels, and noisy probabilities as of a network."""
    sample = datasets.load_sample(name)
    coarse = datasets.coarsen(sample.mask, n_labels=sample.n_labels, seed=0)
    noisy = datasets.noisy_probabilities(sample.mask, sample.n_labels, seed=0)
    return [
        refine_case(sample, "labels", coarse), refine_case(sample, "probabilities", noisy)
    ]


def refine_case(sample: datasets.Sample, input_name: str, given: npt.NDArray[Any]) -> Case:
    """Refine one input with refine()'s constants, and with the customary ones for comparison."""
    before = given if input_name == "labels" else given.argmax(axis=-1)
    start = time.perf_counter()
    result = crfield.refine(sample.image, given)
    milliseconds = 1000 * (time.perf_counter() - start)
    customary = crfield.refine(sample.image, given, **CUSTOMARY).labels
    return Case(sample, input_name, before, result, milliseconds, customary)


def table(cases: Sequence[Case]) -> str:
    """What each case brought, in columns."""
    header = (
        "sample", "input", "IoU before", "IoU after", "customary", "iterations", "ms",
        "free energy",
    )
    rows = [
        (
            case.sample.name,
            case.input_name,
            f"{case.iou(case.before):.3f}",
            f"{case.iou(case.result.labels):.3f}",
            f"{case.iou(case.customary):.3f}",
            f"{case.result.n_iter}",
            f"{case.milliseconds:.0f}",
            f"{case.result.free_energies[0]:,.0f} -> {case.result.free_energies[-1]:,.0f}",
        )
        for case in cases
    ]
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    lines = [header, tuple("-" * width for width in widths), *rows]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if index < 2 else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def overview(cases: Sequence[Case]) -> Image.Image:
    """One row per case, fit for the first screen of a page."""
    rows = [_comparison(case, PANEL_WIDTH, titled=index == 0) for index, case in enumerate(cases)]
    return pictures.stack(*rows)


def _comparison(case: Case, width: int | None = None, titled: bool = True) -> Image.Image:
    """Image, input, result and truth in a row."""
    image, truth = case.sample.image, case.sample.mask
    before, after = case.before, case.result.labels
    panels = [Image.fromarray(image)]
    panels += [pictures.overlay(image, labels) for labels in (before, after, truth)]
    if width is not None:
        size = (width, round(width * image.shape[0] / image.shape[1]))
        panels = [panel.resize(size, Image.Resampling.LANCZOS) for panel in panels]
    for index, labels in ((1, before), (2, after)):
        panels[index] = pictures.captioned(panels[index], f"IoU {case.iou(labels):.2f}")
    names = {"labels": "coarse labels", "probabilities": "noisy probabilities"}
    titles = ("image", names[case.input_name], "refined", "truth") if titled else ()
    return pictures.side_by_side(*panels, titles=titles)


def _energy_curve(case: Case) -> Image.Image:
    return pictures.line_plot(
        case.result.free_energies,
        title=f"{case.sample.name}, from {case.input_name}",
        xlabel="iteration",
        ylabel="free energy",
    )
