"""How things are timed and reported."""

from __future__ import annotations

import datetime
import json
import math
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Disagreement
from experiments.common import markdown_table

Candidates = dict[str, Callable[[], Any]]


@dataclass
class Section:
    """What one part of the benchmark found.

    tables : Markdown, in the order of reading.
    data : the same numbers unrounded, for the JSON file.
    refused : why cases were not timed.
    """

    name: str
    title: str
    tables: list[str] = field(default_factory=list)
    data: dict[str, Any] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def add_table(self, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
        """Add a Markdown table, unless every case of it was refused."""
        kept = list(rows)
        if kept:
            self.tables.append(markdown_table(header, kept))

    def text(self) -> str:
        """The section as it is printed."""
        refusals = [f"REFUSED: {reason}" for reason in self.refused]
        return "\n\n".join([f"## {self.title}", *self.tables, *refusals])

    def accepts(self, check: Callable[[], float]) -> float | None:
        """What the check found, or None and a note in `refused` if the case must not be timed."""
        try:
            return check()
        except Disagreement as disagreement:
            self.refused.append(str(disagreement))
            return None


def fastest(candidates: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The shortest time of each candidate in seconds.

    The candidates take turns, so that whatever slows the machine slows all of them; one untimed
    round comes first.
    """
    best = dict.fromkeys(candidates, math.inf)
    for repeat in range(repeats + 1):
        for name, run in candidates.items():
            began = time.perf_counter()
            run()
            took = time.perf_counter() - began
            if repeat:
                best[name] = min(best[name], took)
    return best


def milliseconds(seconds: float) -> str:
    """Seconds as milliseconds with a digit after the point for small values."""
    return f"{1e3 * seconds:.1f}" if seconds < 10 else f"{1e3 * seconds:.0f}"


def ratio(numerator: float | None, denominator: float | None) -> float | None:
    """How many times one is the other, None where one is missing or there is nothing to divide."""
    if numerator is None or not denominator:
        return None
    return numerator / denominator


def times(value: float | None) -> str:
    """A ratio as a table shows it."""
    return "" if value is None else f"{value:.2f} x"


def copy_bandwidth(n_bytes: int, repeats: int) -> float:
    """Bytes per second that one thread reads and writes while NumPy copies an array."""
    source, target = np.ones(n_bytes, np.uint8), np.zeros(n_bytes, np.uint8)
    took = fastest({"copy": lambda: np.copyto(target, source)}, repeats)["copy"]
    return 2.0 * n_bytes / took


def run_sections(
    parts: Iterable[Callable[[], Section]], folder: Path, facts: Mapping[str, Any],
    notes: Iterable[str] = (), settings: Mapping[str, Any] | None = None,
) -> int:
    """Measure the parts, print them and write them to the folder; 1 if a case was refused.

    notes : lines for readers of the tables; settings : further entries of the file.
    """
    print("\n".join([*(f"{key}: {value}" for key, value in facts.items()), *notes]))
    sections = []
    for part in parts:
        sections.append(part())
        print(f"\n{sections[-1].text()}", flush=True)
    print(f"\nWritten to {write_json(folder, {**facts, **(settings or {})}, sections)}")
    refused = sum(len(section.refused) for section in sections)
    if refused:
        print(f"{refused} cases were refused, see above.", file=sys.stderr)
    return 1 if refused else 0


def write_json(folder: Path, facts: Mapping[str, Any], sections: Iterable[Section]) -> Path:
    """Keep the figures for later comparison."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"run-{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
    content = {
        **facts,
        "sections": {
            section.name: {
                "title": section.title, "refused": section.refused, **section.data,
            }
            for section in sections
        },
    }
    path.write_text(json.dumps(content, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    return path
