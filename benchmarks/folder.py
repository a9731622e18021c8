"""How long `crfield refine` takes for a folder of many small images.

The plan is the time until the first result is there; the rate is that of the thousand images that
were done first, and of the thousand that were done last. Files are made in a temporary folder,
100,000 of 64 x 64 pixels by default, and removed again. With --masks the label maps hold 0 and 255,
so that the command has to find out whether they are masks.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from crfield.datasets import synthetic_scenes
from experiments.common import markdown_table

SIDE, N_LABELS, VARIANTS = 64, 3, 50
COUNTED = 1000  # images at either end


def png(array: np.ndarray) -> bytes:
    """A picture as the bytes of a file."""
    stream = io.BytesIO()
    Image.fromarray(array).save(stream, "PNG", compress_level=1)
    return stream.getvalue()


def make(folder: Path, count: int, masks: bool) -> None:
    """Photos and label maps of so many scenes, of which some are alike."""
    scenes = synthetic_scenes(VARIANTS, size=(SIDE, SIDE), n_labels=N_LABELS, seed=0)
    files = []
    for scene in scenes:
        labels = scene.probabilities.argmax(-1)
        stored = np.where(labels > 0, 255, 0) if masks else labels
        files.append((png(scene.image), png(stored.astype(np.uint8))))
    for name in ("photos", "masks"):
        (folder / name).mkdir()
    for number in range(count):
        for name, data in zip(("photos", "masks"), files[number % VARIANTS], strict=True):
            (folder / name / f"{number:06d}.png").write_bytes(data)


def refine(folder: Path, jobs: int) -> np.ndarray:
    """When each result was there, in order, in seconds after the start."""
    out = folder / f"refined-{jobs}"
    out.mkdir()
    began = time.time_ns()
    subprocess.run(
        [
            sys.executable, "-m", "crfield", "refine", str(folder / "photos"), "--labels",
            str(folder / "masks"), "-o", str(out), "--threads", "1", "--jobs", str(jobs),
        ],
        check=True, stdout=subprocess.DEVNULL,
    )
    done = [(path.stat().st_mtime_ns - began) / 1e9 for path in out.glob("*.png")]
    return np.sort(done)


def measure(count: int, masks: bool) -> list[list[str]]:
    """A row of the table for one job and one for two, of so many images with labels or masks."""
    rows, rates = [], []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, count, masks)
        for jobs in (1, 2):
            done = refine(folder, jobs)
            first, last = (
                (COUNTED - 1) / (some[-1] - some[0]) for some in (done[:COUNTED], done[-COUNTED:])
            )
            rates.append((count - 1) / (done[-1] - done[0]))
            rows.append([
                str(jobs), f"{done[0]:.1f}", f"{first:.0f}", f"{last:.0f}", f"{last / first:.2f}",
                f"{rates[-1]:.0f}", f"{rates[-1] / rates[0]:.2f}",
            ])
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=100_000, metavar="N")
    parser.add_argument("--masks", action="store_true", help="label maps of 0 and 255")
    arguments = parser.parse_args()
    count = max(arguments.images, 2 * COUNTED)
    kind = "masks of 0 and 255" if arguments.masks else f"{N_LABELS} labels"
    print(f"{count} images of {SIDE} x {SIDE} pixels, {kind}, one thread each\n")
    print(markdown_table(
        ["jobs", "plan s", f"first {COUNTED} 1/s", f"last {COUNTED} 1/s", "last over first",
         "all 1/s", "over one job"],
        measure(count, arguments.masks),
    ))


if __name__ == "__main__":
    main()
