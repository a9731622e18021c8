"""`crfield demo`: refine the sample photos, learn, print how much better it gets, draw pictures."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image

from crfield import datasets
from crfield._core.validate import InputError
from crfield.cli import demo_learning
from crfield.cli.demo_cases import (
    INPUT_TITLES,
    PANEL_WIDTH,
    Case,
    comparison,
    refine_case,
    refine_scene,
)
from crfield.cli.jobs import output_folder
from crfield.cli.outputs import reserved_folder
from crfield.cli.tables import columns
from crfield.cli.words import say
from crfield.io.images import write_picture
from crfield.show import pictures

DESCRIPTION = """\
Refine the photos that come with crfield, from coarse labels and from noisy probabilities, then
learn a model's parameters on made-up scenes; print the mean intersection over union with the true
labels before and after, write pictures, and keep the learned model. Takes half a minute."""
NOTE = """\
IoU after: refine() with its own constants, which were chosen on other images. Customary: the
constants that most people use for this model. The inputs are made from the true labels, coarsened
and corrupted, and the photos were picked with the model in mind: a show, not a benchmark."""
N_SCENES = 3


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
        help="folder for the pictures and the model (default: %(default)s)",
    )
    parser.add_argument(
        "--overwrite", action="store_true", help="write into a folder that has files in it"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Run every case and learn; print the tables and write the pictures."""
    folder: Path = arguments.output
    output_folder(folder)
    with reserved_folder(folder):
        if not arguments.overwrite:
            _check_empty(folder)
        return _show(folder)


def _check_empty(folder: Path) -> None:
    """Refuse a folder in which pictures could replace others."""
    found = next((path for path in sorted(folder.iterdir()) if not path.name.startswith(".")), None)
    if found is not None:
        raise InputError(
            f"cannot write to {folder}: there is {found.name} in it; add --overwrite to replace "
            "files that have the demo's names, or name another folder with -o."
        )


def _show(folder: Path) -> int:
    photos = [case for name in datasets.sample_names() for case in refine_photo(name)]
    cases = [*photos, *map(refine_scene, datasets.synthetic_scenes(N_SCENES, seed=0))]
    print(table(cases))
    print(f"\n{NOTE}")
    drawn = {f"{case.slug}.png": _comparison(case) for case in cases}
    for case in cases:
        drawn[f"{case.slug}-entropy.png"] = pictures.entropy_map(case.result.marginals)
        drawn[f"{case.slug}-energy.png"] = pictures.line_plot(
            case.result.free_energies, f"{case.sample.name}, from {case.input_name}",
            xlabel="iteration", ylabel="free energy",
        )
    drawn["overview.png"] = overview([case for case in cases if case.input_name == "labels"])
    drawn |= demo_learning.run(
        folder, [case for case in photos if case.input_name == "probabilities"]
    )
    for name, picture in drawn.items():
        write_picture(folder / name, picture)
    say(
        f"Wrote {len(drawn)} pictures to {folder}; begin with {folder / 'overview.png'} and "
        f"{folder / 'learning.png'}."
    )
    return 0


def refine_photo(name: str) -> list[Case]:
    """Both cases of a photo: coarse labels, and noisy probabilities as of a network."""
    sample = datasets.load_sample(name)
    coarse = datasets.coarsen(sample.mask, n_labels=sample.n_labels, seed=0)
    noisy = datasets.noisy_probabilities(sample.mask, sample.n_labels, seed=0)
    return [
        refine_case(sample, "labels", coarse), refine_case(sample, "probabilities", noisy)
    ]


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
    return columns(header, rows, 2)


def overview(cases: Sequence[Case]) -> Image.Image:
    """One row per case, fit for the first screen of a page."""
    rows = [_comparison(case, PANEL_WIDTH, titled=index == 0) for index, case in enumerate(cases)]
    return pictures.stack(*rows)


def _comparison(case: Case, width: int | None = None, titled: bool = True) -> Image.Image:
    """Image, input, result and truth in a row."""
    panels = {
        "image": None, INPUT_TITLES[case.input_name]: case.before,
        "refined": case.result.labels, "truth": case.sample.mask,
    }
    return comparison(case, panels, width, titled)
