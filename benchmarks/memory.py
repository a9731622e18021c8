"""Peak memory of one inference, each in a process of its own.

Run as a program this is that process: it loads the inputs, infers once, and prints what it took.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import Scale, cropped_tiles, photo_case
from benchmarks.measure import Section, ratio, times
from crfield._core.resources import usable_cores
from experiments.common import HAS_PYDENSECRF, REPOSITORY

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]

HUGE = (10_000, 10_000)
BASE = (375, 500)


def peak_memory(scale: Scale) -> Section:
    """How much each library needs beyond image and costs."""
    section = Section("memory", "Peak memory beyond the inputs")
    if resource is None:
        section.tables.append("This system does not tell its processes' peak memory.")
        return section
    rows, figures = [], []
    for count in (scale.few_labels, scale.many_labels):
        found = {"crfield": in_own_process("crfield", scale.photo, count, 1)}
        if HAS_PYDENSECRF:
            found["pydensecrf"] = in_own_process("pydensecrf", scale.photo, count, 1)
        growth = {name: entry["growth_bytes"] for name, entry in found.items()}
        inputs = found["crfield"]["input_bytes"]
        rows.append([
            f"{scale.photo[0]} x {scale.photo[1]}, {count} labels", _mebibytes(inputs),
            _mebibytes(growth["crfield"]), _mebibytes(growth.get("pydensecrf")),
            times(ratio(growth.get("pydensecrf"), growth["crfield"])),
        ])
        figures.append({"grid": scale.photo, "n_labels": count, "processes": found})
    section.add_table(
        ["case", "inputs, MiB", "crfield, MiB", "pydensecrf, MiB", "pydensecrf / crfield"], rows
    )
    section.data["cases"] = figures
    return section


def huge_inference(scale: Scale) -> Section:
    """An image of a hundred megapixels with two labels, on all threads."""
    section = Section("huge", f"{HUGE[0]:,} x {HUGE[1]:,}, 2 labels, all threads")
    found = in_own_process("crfield", HUGE, 2, usable_cores())
    section.add_table(
        ["seconds", "peak, GiB", "of which inputs, GiB"],
        [[f"{found['seconds']:.1f}", f"{found['peak_bytes'] / 2**30:.2f}",
          f"{found['input_bytes'] / 2**30:.2f}"]],
    )
    section.data.update(found)
    return section


def in_own_process(
    library: str, grid: tuple[int, int], n_labels: int, threads: int
) -> dict[str, Any]:
    """Infer once in a fresh process; what it reports."""
    words = [library, str(grid[0]), str(grid[1]), str(n_labels), str(threads)]
    # The child must find the same crfield, wherever this process has it from.
    places = os.pathsep.join([str(REPOSITORY), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.memory", *words], cwd=REPOSITORY, text=True,
        capture_output=True, env={**os.environ, "PYTHONPATH": places}, check=False,
    )
    if done.returncode:
        raise SystemExit(f"measuring the memory of {' '.join(words)} failed:\n{done.stderr}")
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", choices=("crfield", "pydensecrf"))
    for name in ("height", "width", "n_labels", "threads"):
        parser.add_argument(name, type=int)
    arguments = parser.parse_args()
    base = photo_case(BASE, arguments.n_labels)
    case = cropped_tiles(base, (arguments.height, arguments.width))
    if arguments.library == "pydensecrf":
        _ = case.costs
    reset_peak()
    before = memory_now()
    began = time.perf_counter()
    if arguments.library == "pydensecrf":
        result: Any = case.infer_pydensecrf()
    else:
        result = case.infer(arguments.threads)
    seconds = time.perf_counter() - began
    peak = peak_so_far()
    del result
    print(json.dumps({
        "seconds": seconds, "peak_bytes": peak, "growth_bytes": max(peak - before, 0),
        "input_bytes": case.image.nbytes + case.unary.nbytes,
    }))


def reset_peak() -> None:
    """Forget the peak of loading the inputs; only Linux can, elsewhere it stays in the figure."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def memory_now() -> int:
    """Bytes of this process in memory."""
    return _status_bytes("VmRSS") or peak_so_far()


def peak_so_far() -> int:
    """The most bytes that this process has had in memory.

    Not ru_maxrss where that can be helped: on Linux a child starts with the peak of its parent.
    """
    found = _status_bytes("VmHWM")
    if found or resource is None:
        return found
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _status_bytes(name: str) -> int:
    try:
        lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


def _mebibytes(n_bytes: int | None) -> str:
    return "" if n_bytes is None else f"{n_bytes / 2**20:.0f}"


if __name__ == "__main__":
    main()
