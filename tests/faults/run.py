"""Provoke faults, each kind many times at other points, and write the table docs/faults.md.

After every try nothing may be lost (files that were there, work that was done), nothing corrupted
(a file under its final name is whole), and nothing unclear (a sentence, never a traceback, a hang
or rubbish left behind). Findings are printed with the command that repeats them; exit status 1.
"""

import argparse
import collections
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tests.faults import blocks, data, disk, kills, outputs, system  # noqa: F401
from tests.faults.world import KINDS, SCRATCH, Findings, Kind, World, fresh

TABLE = Path(__file__).parents[2] / "docs" / "faults.md"
HEADER = """\
# Faults

Which faults were provoked, how often, and what came of them. Every try strikes at another point,
chosen at random from a seed. *Lost*: a file that was there before is gone, or work that was on the
disk does not come back. *Corrupted*: a file under its final name is incomplete, or a result differs
in any bit from that of an undisturbed run. *Unclear*: anything but a sentence that says what
happened, such as a traceback, a crash, or half-written files left by a run that could have removed
them. `python -m tests.faults.run` makes this table again, with `--kind` one line of it;
`tests/faults/test_faults.py` does a few tries of every kind.

A run that is killed outright leaves at most one hidden file, `.<16 hex digits>.<suffix>`, beside
the file that it was writing, and one empty `.<16 hex digits>.lock` beside each of its outputs;
nothing ever reads them, the lock ends with the process, and they may be deleted.

A run in blocks that writes `labels.npy` leaves `.labels.npy.partial` and the record of finished
blocks, `.labels.npy.blocks`, also after Ctrl-C and errors: the same run goes on from them, another
run with that output replaces them, and they may be deleted.

Arrays that `refine_blocks` writes to a .npy file are mapped into memory, with their room on the
disk taken first, and so is the array that it returns. If another program cuts such a file short
meanwhile, the system ends the process (SIGBUS), and the call has to be made again. Files that
crfield only reads are never mapped.

"""


@dataclass
class Line:
    kind: Kind
    tries: int = 0
    lost: int = 0
    corrupted: int = 0
    unclear: int = 0
    seen: collections.Counter[str] = field(default_factory=collections.Counter)

    def add(self, found: Findings) -> None:
        self.tries += 1
        self.lost += bool(found.lost)
        self.corrupted += bool(found.corrupted)
        self.unclear += bool(found.unclear)
        if found.seen:
            self.seen[found.seen] += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=20, help="of each kind (default: 20)")
    parser.add_argument("--seed", type=int, default=0, help="which points (default: 0)")
    parser.add_argument("--kind", help="only kinds whose names contain this; writes no table")
    parser.add_argument("--try", dest="only", type=int, help="only this try of the kind")
    parser.add_argument("--no-table", action="store_true", help="leave docs/faults.md alone")
    arguments = parser.parse_args()
    chosen = [kind for kind in KINDS if arguments.kind is None or arguments.kind in kind.name]
    lines = []
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name, warnings.catch_warnings():
        world = World(Path(name), may_mount=True)
        for kind in chosen:
            began = time.monotonic()
            numbers = range(arguments.tries) if arguments.only is None else [arguments.only]
            lines.append(run_kind(kind, world, arguments.seed, numbers))
            print(f"{kind.name}: {lines[-1].tries} tries in {time.monotonic() - began:.0f} s",
                  flush=True)
    if arguments.kind is None and not arguments.no_table:
        TABLE.write_text(HEADER + table(lines), encoding="utf-8")
    print(f"\n{table(lines)}")
    return int(any(line.lost or line.corrupted or line.unclear for line in lines))


def run_kind(kind: Kind, world: World, seed: int, numbers: range | list[int]) -> Line:
    line = Line(kind)
    for number in numbers:
        found = attempt(kind, world, seed, number)
        line.add(found)
        if found:
            print(f"\nFINDING: {kind.name}\n{found}\nRepeat with: python -m tests.faults.run "
                  f"--seed {seed} --kind {kind.name!r} --try {number}", flush=True)
    return line


def attempt(kind: Kind, world: World, seed: int, number: int) -> Findings:
    """One try, in an empty folder; what the user sees without the folder's name."""
    folder = fresh(world.root / "try" / "here")
    rng = np.random.default_rng([seed, number, *kind.name.encode()])
    found = Findings(seen=kind.seen)
    kind.attempt(world, rng, folder, found)
    for long, short in ((f"{folder}/", ""), (f"{folder.parent}/", ""), (f"{world.root}/", "")):
        found.seen = found.seen.replace(long, short)
    return found


def table(lines: list[Line]) -> str:
    """All kinds in Markdown."""
    rows = ["| fault | how it is provoked | tries | lost | corrupted | unclear "
            "| what the user sees, for example |", "|---|---|---|---|---|---|---|"]
    for line in lines:
        seen = line.seen.most_common(1)[0][0] if line.seen else "nothing: it goes on"
        shown = seen.replace("|", "\\|")
        rows.append(
            f"| {line.kind.name} | {line.kind.how} | {line.tries} | {line.lost} | "
            f"{line.corrupted} | {line.unclear} | {shown} |"
        )
    total = sum(line.tries for line in lines)
    failed = sum(line.lost + line.corrupted + line.unclear for line in lines)
    return "\n".join(rows) + f"\n\n{len(lines)} kinds, {total} tries, {failed} findings.\n"


if __name__ == "__main__":
    sys.exit(main())
