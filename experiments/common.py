"""What the experiments and the benchmark share: settings, data, pydensecrf, and how to report."""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import crfield
from crfield._core.resources import instruction_set, usable_cores
from crfield.io.images import read_image, read_labels
from crfield.refinement import potts_model

try:
    from pydensecrf import densecrf as pydensecrf
except ImportError:
    pydensecrf = None

Float32 = NDArray[np.float32]
Labels = NDArray[np.integer[Any]]

HAS_PYDENSECRF = pydensecrf is not None
REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "experiments" / "results"
VOC_LABELS = 21
# For the facts of a report with mean IoUs.
MEAN_IOU = {"mean IoU": "over the labels that occur in the truth of the images scored"}


@dataclass(frozen=True)
class Setting:
    """Potts terms: spatial (pixels, weight), if any, and bilateral (pixels, color, weight)."""

    name: str
    spatial: tuple[float, float] | None
    bilateral: tuple[float, float, float]

    def model(self, n_labels: int) -> crfield.DenseCRF:
        """The setting as a crfield model."""
        width, weight = self.spatial or (None, 0.0)
        return potts_model(
            n_labels, width, weight, self.bilateral[:2], self.bilateral[2]
        )

    def describe(self) -> str:
        """The terms in words."""
        pixels, color, weight = self.bilateral
        bilateral = f"bilateral {pixels:g} px / {color:g}, weight {weight:g}"
        if self.spatial is None:
            return f"{bilateral}, alone"
        return f"spatial {self.spatial[0]:g} px, weight {self.spatial[1]:g} + {bilateral}"


STANDARD = Setting("std", spatial=(3, 3), bilateral=(80, 13, 10))
PAPER = Setting("paper", spatial=None, bilateral=(40, 15, 5))


def label_major(unary: Float32) -> Float32:
    """Costs (H, W, L) in the layout that pydensecrf takes, (L, N)."""
    return np.ascontiguousarray(unary.reshape(-1, unary.shape[-1]).T)


def run_pydensecrf(
    image: NDArray[np.uint8], costs: Float32, setting: Setting, n_iter: int
) -> Float32:
    """Marginals (L, N) of pydensecrf for costs (L, N), with its default normalization."""
    height, width = image.shape[:2]
    field = pydensecrf.DenseCRF2D(width, height, costs.shape[0])
    field.setUnaryEnergy(costs)
    if setting.spatial is not None:
        field.addPairwiseGaussian(sxy=setting.spatial[0], compat=setting.spatial[1])
    pixels, color, weight = setting.bilateral
    field.addPairwiseBilateral(sxy=pixels, srgb=color, rgbim=image, compat=weight)
    return np.asarray(field.inference(n_iter), np.float32)


def parse_data_folder(parser: argparse.ArgumentParser, *needed: str) -> argparse.Namespace:
    """Parse the command line with `--data DIR`, where DIR must hold the folders `needed`."""
    folders = " and ".join(f"{name}/" for name in needed)
    parser.add_argument(
        "--data", type=Path, required=True, metavar="DIR", help=f"folder that holds {folders}"
    )
    arguments = parser.parse_args()
    for name in needed:
        if not (arguments.data / name).is_dir():
            parser.error(
                f"--data must be a folder that holds {folders}, got {arguments.data} without "
                f"{name}/; name the folder that the README describes."
            )
    return arguments


def names_in(path: Path) -> list[str]:
    """The names in a list file, one per line."""
    return path.read_text(encoding="utf-8").split()


def load_image(path: Path) -> NDArray[np.uint8]:
    """An image as (H, W, 3) uint8."""
    return np.asarray(read_image(path).array, np.uint8)


def load_labels(path: Path) -> Labels:
    """A label map (H, W)."""
    return read_labels(path).array


def percent_different(labels: Labels, others: Labels) -> float:
    """Percentage of pixels with different labels."""
    return 100.0 * float(np.mean(labels != others))


def provenance() -> dict[str, str]:
    """What a figure depends on: code, versions, machine and date; names no person and no path."""
    facts = {
        "date": datetime.date.today().isoformat(),
        "crfield": crfield.__version__,
        "commit": _commit(),
        "pydensecrf2": _version("pydensecrf2"),
        "Python": platform.python_version(),
        "NumPy": np.__version__,
        "CPU": f"{_cpu_model()}, {usable_cores()} cores usable, {instruction_set()} code",
        "system": f"{platform.system()} {platform.machine()}",
    }
    return {key: value for key, value in facts.items() if value}


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A Markdown table: the first column to the left, all others to the right."""
    cells = [list(header), *(list(row) for row in rows)]
    widths = [max(3, *(len(row[i]) for row in cells)) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        padded = [row[0].ljust(widths[0])]
        padded += [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        return f"| {' | '.join(padded)} |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(cells[0]), line(rule), *map(line, cells[1:])])


def report(title: str, paragraphs: Sequence[str], facts: dict[str, str]) -> None:
    """Print the paragraphs and write them to results/SCRIPT.md with the command and the facts."""
    print("\n\n".join(paragraphs))
    script = Path(sys.argv[0]).stem
    listed = "\n".join(f"- {key}: {value}" for key, value in facts.items())
    text = "\n\n".join([f"# {title}", *paragraphs, "## Made by", f"`{_command()}`", listed])
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{script}.md").write_text(text + "\n", encoding="utf-8")


def _command() -> str:
    """The command line with the data folder, which is the reader's own, as DIR."""
    words = list(sys.argv[1:])
    for index, word in enumerate(words):
        if word.startswith("--data="):
            words[index] = "--data=DIR"
        elif index and words[index - 1] == "--data":
            words[index] = "DIR"
    return " ".join(["python", "-m", f"experiments.{Path(sys.argv[0]).stem}", *words])


def _commit() -> str:
    """The short commit, with a note on changes outside the results; empty outside a checkout."""
    head = _git("rev-parse", "--short", "HEAD")
    if head and _git("status", "--porcelain", "--", ".", ":!experiments/results"):
        return f"{head} with uncommitted changes"
    return head


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False
        )
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _cpu_model() -> str:
    if os.path.exists("/proc/cpuinfo"):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown CPU"
