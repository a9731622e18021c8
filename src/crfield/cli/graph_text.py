"""What `crfield graph` has found out as text: for people, and as UAI solution files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from crfield._core.validate import InputError, shown
from crfield.cli.words import counted

REMEDY = "try another --schedule or --damping, or observe more variables"

# The first of each of these are printed; --json and --out have them all.
_ROWS, _STATES, _LIKELIEST, _JOINT = 40, 8, 4, 60

Record = dict[str, Any]


def solution(record: Record, task: str, path: Path) -> str:
    """The text of a solution file: the task, then its solution on a line."""
    if task == "pr":
        return f"PR\n{record['log10_partition']!r}\n"
    if task == "mar":
        rows = (f"{len(row)} {' '.join(map(repr, row))}" for row in record["marginals"])
        return f"MAR\n{record['n_variables']} {' '.join(rows)}\n"
    states = record["map"]["states"]
    if states is None:
        raise InputError(f"no joint state to write to {path} was found; {REMEDY}.")
    # The competition of 2014 called it MAP, those before and after MPE.
    word = "MAP" if path.suffix.upper() == ".MAP" else "MPE"
    return f"{word}\n{len(states)} {' '.join(map(str, states))}\n"


def report(record: Record, outputs: dict[str, Path]) -> str:
    """The record as a person reads it."""
    loops = "with loops" if record["has_loops"] else "no loops"
    observed = {int(v) for v in record["observed"]}
    seen = f", {len(observed)} observed" if observed else ""
    lines = [
        f"{shown(Path(record['model']))}: {counted(record['n_variables'], 'variable')}, "
        f"{counted(record['n_factors'], 'joint table')}, {loops}{seen}"
    ]
    if "log_partition" in record:
        t = record["temperature"]
        at = "" if t == 1 else f" at temperature {t:g}"
        most = "at most " if record["is_upper_bound"] else ""
        lines.append(
            f"log Z{at}: {most}{record['log_partition']:z.6f} "
            f"(log10 {record['log10_partition']:z.6f}), {record['status']}"
        )
    elif "marginals" in record:
        lines.append(f"marginals: {record['status']}")
    if "map" in record:
        lines.append(f"MAP: {_map_text(record['map'], record.get('is_upper_bound', False))}")
    lines += _table(record, observed)
    if "k_best" in record:
        lines += ["", "    energy  best joint states"]
        lines += [f"{row['energy']:z10.4f}  {_states(row['states'])}" for row in record["k_best"]]
    if "samples" in record:
        lines += ["", "samples", *map(_states, record["samples"])]
    lines += [f"wrote {shown(path)}" for path in outputs.values()]
    return "\n".join(lines)


def _map_text(found: Record, is_upper_bound: bool) -> str:
    if found["states"] is None:
        return f"none found that the model allows; {REMEDY}"
    text = f"energy {found['energy']:z.6f}"
    if "log_probability" in found:
        about = "" if found["exact"] else "at least " if is_upper_bound else "about "
        text += f", log-probability {about}{found['log_probability']:z.6f}"
    text += f", {found['status']}"
    rounds = found["n_rounds_of_fixing"]
    return text + (f"; {counted(rounds, 'round')} of fixing variables" if rounds else "")


def _table(record: Record, observed: set[int]) -> list[str]:
    """A row for each variable."""
    states = record.get("map", {}).get("states")
    marginals = record.get("marginals")
    if states is None and marginals is None:
        return []
    columns = (["MAP"] if states else []) + (["marginals"] if marginals else [])
    lines = ["", "  ".join(["variable", *columns])]
    n = record["n_variables"]
    for v in range(min(n, _ROWS)):
        row = f"{v:>7}{'*' if v in observed else ' '}"
        row += f"  {states[v]:>3}" if states else ""
        lines.append(row + (f"  {_probabilities(marginals[v])}" if marginals else ""))
    if n > _ROWS:
        lines.append(f"... {n - _ROWS} more; --json and --out have them all")
    if observed:
        lines.append("* observed")
    return lines


def _probabilities(row: list[float]) -> str:
    if len(row) <= _STATES:
        return " ".join(f"{p:.4f}" for p in row)
    likeliest = np.argsort(-np.array(row), kind="stable")[:_LIKELIEST].tolist()
    return ", ".join(f"{s}: {row[s]:.4f}" for s in likeliest) + f", ... of {len(row)} states"


def _states(states: list[int]) -> str:
    text = " ".join(map(str, states[:_JOINT]))
    return text if len(states) <= _JOINT else f"{text} ... of {len(states)}"
