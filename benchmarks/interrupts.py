"""How long the commands take to end after Ctrl-C, on images of nine megapixels of noise.

Each command runs to its end once, and is then interrupted at moments spread over that time, or over
a minute of it. Prints the longest time from the signal to the end of the process, and what was left
under the name of its output. Files are made in a temporary folder and removed again.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image

from crfield import Bilateral, DenseCRF, Pairwise, Potts, Spatial
from experiments.common import markdown_table

SIDE, N_LABELS, GRID = 3000, 3, 700
LONGEST = 60.0  # seconds of a command during which it is interrupted
INTERRUPTED = 130  # exit code
STARTED = 1.0  # seconds after which the command, and not the import of its packages, is under way
# A shell lets what runs in its background ignore the signal.
START = (
    "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
    "from crfield.cli import main; sys.exit(main())"
)


def make(folder: Path, side: int) -> None:
    """Two photos of noise with label images and probabilities, a grid of variables, a model."""
    rng = np.random.default_rng(0)
    for name in ("photos", "masks", "softmax"):
        (folder / name).mkdir()
    for stem in ("a", "b"):
        labels = rng.integers(0, N_LABELS, (side // 8 + 1, side // 8 + 1), dtype=np.uint8)
        labels = labels.repeat(8, 0).repeat(8, 1)[:side, :side]
        image = rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
        p = rng.dirichlet(np.ones(N_LABELS), (side, side)).astype(np.float32)
        Image.fromarray(image).save(folder / "photos" / f"{stem}.png", compress_level=1)
        Image.fromarray(labels).save(folder / "masks" / f"{stem}.png", compress_level=1)
        np.save(folder / "softmax" / f"{stem}.npy", p)
    n = GRID * GRID
    ids = np.arange(n).reshape(GRID, GRID)
    pairs = np.concatenate([
        np.stack([ids[:, :-1], ids[:, 1:]], -1).reshape(-1, 2),
        np.stack([ids[:-1], ids[1:]], -1).reshape(-1, 2),
    ])
    tables = rng.uniform(0.1, 1, (len(pairs), 4))
    lines = ["MARKOV", str(n), " ".join("2" * n), str(len(pairs))]
    lines += [f"2 {i} {j}" for i, j in pairs]
    lines += [f"4 {' '.join(f'{value:.3f}' for value in table)}" for table in tables]
    (folder / "grid.uai").write_text("\n".join(lines) + "\n", encoding="utf-8")
    terms = [Pairwise(Spatial(3), Potts(3)), Pairwise(Bilateral(60, 8), Potts(3))]
    DenseCRF(N_LABELS, terms).save(folder / "model.safetensors")


def commands(folder: Path) -> dict[str, list[str]]:
    """What is run, by a name; each writes `folder / "out"`, a folder or a file."""
    photo, out = str(folder / "photos" / "a.png"), str(folder / "out")
    data = [
        "--images", str(folder / "photos"), "--labels", str(folder / "masks"), "--probabilities",
        str(folder / "softmax"),
    ]
    labels = ["refine", photo, "--labels", str(folder / "masks" / "a.png"), "-o"]
    return {
        "refine, labels": [*labels, f"{out}.png"],
        "refine, in blocks": [*labels, f"{out}.npy", "--block", "1000"],
        "refine, exact": [*labels, f"{out}.png", "--filter", "exact"],
        "refine, probabilities": [
            "refine", photo, "--probabilities", str(folder / "softmax" / "a.npy"), "-o",
            f"{out}.png",
        ],
        "refine, a folder": [
            "refine", str(folder / "photos"), "--labels", str(folder / "masks"), "-o", out,
            "--jobs", "2",
        ],
        "learn": ["learn", *data, "-o", f"{out}.safetensors", "--all", "--shrink", "1"],
        "evaluate": ["evaluate", str(folder / "model.safetensors"), *data, "-o", out],
        "graph": ["graph", str(folder / "grid.uai"), "--out", out],
    }


def run(arguments: list[str], after: float | None) -> tuple[int, float]:
    """Exit code of a command, and the seconds that it took, from an interrupt if there is one."""
    process = subprocess.Popen(
        [sys.executable, "-c", START, *arguments], stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, text=True,
    )
    began = time.monotonic()
    try:
        process.communicate(timeout=LONGEST if after is None else after)
    except subprocess.TimeoutExpired:
        began = time.monotonic() if after is not None else began
        process.send_signal(signal.SIGINT)
        _, words = process.communicate()
        if process.returncode != INTERRUPTED or "Traceback" in words:
            print(f"{arguments}: {process.returncode}\n{words}", file=sys.stderr)
    return process.returncode, time.monotonic() - began


def left(folder: Path, known: set[Path]) -> set[str]:
    """Names of what a command left; it is removed."""
    found = set(folder.iterdir()) - known
    for path in found:
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    return {path.name for path in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--side", type=int, default=SIDE, metavar="N", help="pixels")
    parser.add_argument("--moments", type=int, default=12, metavar="N", help="per command")
    parser.add_argument("--only", metavar="WORD", default="", help="commands with this in the name")
    arguments = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make(folder, arguments.side)
        known = set(folder.iterdir())
        for title, command in commands(folder).items():
            if arguments.only not in title:
                continue
            code, whole = run(command, None)
            left(folder, known)
            waits, names = [], set()
            last = min(whole, LONGEST)
            for moment in np.linspace(STARTED, last, arguments.moments, endpoint=False):
                ended, wait = run(command, float(moment))
                found = left(folder, known)
                if ended == INTERRUPTED:
                    waits.append(wait)
                    names |= found
            rows.append([
                title, f"{whole:.1f}" if code == 0 else f"over {LONGEST:g}", str(len(waits)),
                f"{max(waits, default=0.0):.2f}", ", ".join(sorted(names)) or "nothing",
            ])
            print(rows[-1], file=sys.stderr)
    print(markdown_table(["command", "whole s", "interrupts", "longest s", "left"], rows))


if __name__ == "__main__":
    main()
