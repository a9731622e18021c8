"""Time dense-CRF inference and learning, against pydensecrf where that is installed, in one run.

Nothing is timed whose marginals do not agree with pydensecrf's or the exact filter's; the exit
status is 1 then. `make bench` runs everything.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.cases import FULL, ITERATIONS, QUICK, SEED, Scale
from benchmarks.growth import floors, growth
from benchmarks.learning import loss_and_gradient
from benchmarks.measure import Section, run_sections
from benchmarks.memory import huge_inference, peak_memory
from benchmarks.speed import (
    build_and_iterations,
    cccp_against_concave,
    exact_against_lattice,
    two_images_at_once,
    whole_inference,
)
from experiments.common import HAS_PYDENSECRF, REPOSITORY, STANDARD, provenance

RESULTS = REPOSITORY / "benchmarks" / "results"
SECTIONS: dict[str, Callable[[Scale], Section]] = {
    "inference": whole_inference,
    "parts": build_and_iterations,
    "memory": peak_memory,
    "growth": growth,
    "algorithms": cccp_against_concave,
    "learning": loss_and_gradient,
    "exact": exact_against_lattice,
    "throughput": two_images_at_once,
    "floors": floors,
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true",
        help=f"smaller cases and the fastest of {QUICK.repeats} runs instead of {FULL.repeats}",
    )
    parser.add_argument(
        "--only", choices=SECTIONS, action="append", metavar="NAME",
        help=f"only this part, may be repeated; one of {', '.join(SECTIONS)}",
    )
    parser.add_argument(
        "--huge", action="store_true", help="only a 10,000 x 10,000 image with two labels"
    )
    arguments = parser.parse_args(words)
    scale = QUICK if arguments.quick else FULL
    parts = [huge_inference] if arguments.huge else [
        SECTIONS[name] for name in SECTIONS if name in (arguments.only or SECTIONS)
    ]
    return run(scale, parts, RESULTS)


def run(scale: Scale, parts: Sequence[Callable[[Scale], Section]], folder: Path) -> int:
    """Measure the parts, print them and write them to the folder; 1 if a case was refused."""
    notes = [
        f"{STANDARD.describe()}, {ITERATIONS} iterations; fastest of {scale.repeats} interleaved "
        "runs."
    ]
    if not HAS_PYDENSECRF:
        notes.append(
            "For comparison with pydensecrf: pip install pydensecrf2, then run this again."
        )
    settings = {
        "setting": STANDARD.describe(), "iterations": ITERATIONS, "repeats": scale.repeats,
        "seed": SEED,
    }
    return run_sections(
        [partial(part, scale) for part in parts], folder, provenance(), notes, settings
    )


if __name__ == "__main__":
    sys.exit(main())
