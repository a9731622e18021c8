"""Feed random and hostile input to the public entry points for a while.

Every case must end in a right answer, the same one twice, or in an InputError or MemoryError.
Anything else (another exception, a warning, marginals that are no probabilities, a changed
argument, a crash, a hang) is a finding: it is printed with the command that repeats it, and the
exit status is 1. Cases run in a process of their own, which is started again when it dies.
"""

import argparse
import collections
import dataclasses
import faulthandler
import json
import math
import resource
import shlex
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from crfield import DenseCRF, InputError
from tests.fuzz.calls import (
    Call,
    Wrong,
    has_form,
    make_energy,
    make_infer,
    make_model,
    make_operator,
    make_refine,
    make_unary,
)
from tests.fuzz.cuts import make_cut, make_patterns
from tests.fuzz.files import make_checkpoint, make_folder, make_image, make_load, make_uai
from tests.fuzz.graphs import make_chains, make_graph, make_pose, make_rays
from tests.fuzz.learning import make_dataset, make_learn, make_metric, make_picture, make_shim
from tests.fuzz.readers import MEGABYTES, SECONDS, TARGETS, make_read
from tests.fuzz.values import Maker

LEAST_VALID_SHARE = 1 / 3
# Warnings that random input deserves.
_LOOKS = (
    ".*looks (like a (soft mask|label map)|normalized)", "no pixel of the segmentation is",
    "the strokes hold", "the model was learned from images of",
)
VALID, REFUSED, FINDING = "valid", "refused", "finding"
# Entry points, and how often each is drawn.
MAKERS: dict[str, tuple[int, Callable[[Maker], Call]]] = {
    "infer": (20, make_infer), "refine": (8, make_refine), "energy": (4, make_energy),
    "unary": (5, make_unary), "model": (4, make_model), "operator": (4, make_operator),
    "graph": (10, make_graph), "chains": (7, make_chains), "pose": (5, make_pose),
    "rays": (6, make_rays), "cut": (8, make_cut), "patterns": (8, make_patterns),
    "learn": (3, make_learn), "metric": (5, make_metric), "picture": (4, make_picture),
    "dataset": (3, make_dataset), "shim": (6, make_shim), "load": (7, make_load),
    "checkpoint": (6, make_checkpoint), "image": (16, make_image), "uai": (7, make_uai),
    "folder": (5, make_folder), **{f"read {name}": (1, make_read(name)) for name in TARGETS},
}
# Address space that a process may have beyond what it starts with; one case may use `MEGABYTES`.
MOST_MEMORY = 6 << 30


@dataclass
class Ending:
    """How one case ended; `where` tells findings of one cause from others."""

    entry: str
    outcome: str
    where: str = ""
    text: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long (default: 60)")
    parser.add_argument("--cases", type=int, help="this many cases instead, however long they take")
    parser.add_argument("--seed", type=int, default=0, help="which cases (default: 0)")
    parser.add_argument("--only", choices=MAKERS, metavar="ENTRY", help="cases of this entry point")
    parser.add_argument("--case", type=int, help="run this one case of the seed, here")
    parser.add_argument("--child-from", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    end = math.inf if arguments.cases is None else arguments.cases
    if arguments.cases is not None:
        arguments.seconds = math.inf
    if arguments.case is not None:
        faulthandler.enable()
        ending = run_case(arguments.seed, arguments.case, arguments.only)
        print(f"{ending.entry}: {ending.outcome}\n{ending.text}")
        return int(ending.outcome == FINDING)
    if arguments.child_from is not None:
        run_child(arguments.seed, arguments.child_from, arguments.seconds, end, arguments.only)
        return 0
    return run_all(arguments.seed, arguments.seconds, end, arguments.only)


def run_all(seed: int, seconds: float, end: float = math.inf, only: str | None = None) -> int:
    """Cases of this seed for so many seconds, or up to number `end`."""
    counts: collections.Counter[tuple[str, str]] = collections.Counter()
    findings: dict[str, tuple[int, Ending]] = {}
    words = [] if only is None else ["--only", only]
    for number, ending in endings(seed, time.monotonic() + seconds, end, words):
        counts[ending.entry, ending.outcome] += 1
        if ending.outcome == FINDING and ending.where not in findings:
            findings[ending.where] = number, ending
            print(f"\nFINDING in {ending.entry}, {ending.where}\n{ending.text}\n"
                  "Repeat with: python -m tests.fuzz.run "
                  + shlex.join(["--seed", str(seed), "--case", str(number), *words]), flush=True)
    print(f"\nseed {seed}\n{'':21}{VALID:>9}{REFUSED:>9}{FINDING:>9}")
    entries = [*MAKERS, *sorted({entry for entry, _ in counts} - set(MAKERS))]
    for entry in entries:
        print(f"{entry:21}" + "".join(f"{counts[entry, o]:9}" for o in (VALID, REFUSED, FINDING)))
    total = sum(counts.values())
    valid = sum(count for (_, outcome), count in counts.items() if outcome == VALID)
    print(f"{total} cases, {100 * valid / max(total, 1):.0f}% valid, "
          f"{len(findings)} different findings")
    if valid < LEAST_VALID_SHARE * total or not total:
        print("Too few cases are valid to tell anything: tune the generators.", file=sys.stderr)
        return 1
    return 1 if findings else 0


def endings(
    seed: int, deadline: float, end: float, options: Sequence[str]
) -> Iterator[tuple[int, Ending]]:
    """Cases and how they ended, from one child after the other."""
    number = 0
    limit = [] if end == math.inf else ["--cases", str(end)]
    while (left := deadline - time.monotonic()) > 0 and number < end:
        with tempfile.TemporaryFile("w+") as errors:
            words = ["--seed", str(seed), "--child-from", str(number), "--seconds", str(left),
                     *limit, *options]
            child = subprocess.Popen(
                [sys.executable, "-X", "faulthandler", "-m", "tests.fuzz.run", *words],
                stdout=subprocess.PIPE, stderr=errors, text=True,
            )
            assert child.stdout is not None
            try:
                for line in child.stdout:
                    number, ending = json.loads(line)
                    if ending is not None:
                        yield number, Ending(**ending)
                        number += 1
                if child.wait() == 0:
                    return
            finally:
                child.kill()
            errors.seek(0)
            text = errors.read()[-6000:]
            kind = "hang" if "Timeout" in text else f"exit status {child.returncode}"
            yield number, Ending("died", FINDING, f"{kind}: {_native_frame(text)}", text)
            number += 1


def run_child(seed: int, first: int, seconds: float, end: float, only: str | None) -> None:
    """Run cases one after the other, telling before and after each."""
    began, number = time.monotonic(), first
    # AddressSanitizer takes address space by the terabyte and has a limit of its own.
    if "libasan" not in Path("/proc/self/maps").read_text():
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + MOST_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    while number < end and time.monotonic() - began < seconds:
        print(json.dumps([number, None]), flush=True)
        faulthandler.dump_traceback_later(SECONDS, exit=True)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ending = run_case(seed, number, only)
        faulthandler.cancel_dump_traceback_later()
        used = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
        if used > MEGABYTES << 20 and ending.outcome != FINDING:
            ending = Ending(ending.entry, FINDING, "memory", f"{used / 2**30:.1f} GiB were used")
        print(json.dumps([number, vars(ending)]), flush=True)
        number += 1


def run_case(seed: int, number: int, only: str | None = None) -> Ending:
    maker = Maker([seed, number])
    weights = np.array([weight for weight, _ in MAKERS.values()], float)
    entry = list(MAKERS)[int(maker.rng.choice(len(MAKERS), p=weights / weights.sum()))]
    return judge(maker, only or entry)


def judge(maker: Maker, entry: str) -> Ending:
    """How the same call of this entry point, made twice with random arguments, ends."""
    call: Call | None = None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            # `refine` says of input that it takes what it looks like.
            for said in _LOOKS:
                warnings.filterwarnings("ignore", said)
            call = MAKERS[entry][1](maker)
            before = snapshot(call.arguments)
            first = call.run()
            call.check(first)
            try:
                again = call.run()
            except InputError as error:
                raise Wrong(f"a result, then a refusal: {error}") from None
            if not same(first, again):
                raise Wrong("another result for the same input")
            if snapshot(call.arguments) != before:
                raise Wrong("an argument was changed")
    except InputError as error:
        if not has_form(str(error)):
            return Ending(entry, FINDING, "a message without form", described(call, str(error)))
        return Ending(entry, REFUSED)
    except MemoryError:
        return Ending(entry, REFUSED)
    except Exception as error:
        return Ending(entry, FINDING, place_of(error), described(call, traceback.format_exc()))
    return Ending(entry, VALID)


def same(one: Any, other: Any) -> bool:
    """Whether two results are equal bit by bit."""
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.tobytes() == other.tobytes())
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if dataclasses.is_dataclass(one) and not isinstance(one, DenseCRF):
        names = [field.name for field in dataclasses.fields(one) if field.name[0] != "_"]
        return all(same(getattr(one, name), getattr(other, name)) for name in names)
    # Models have no equality; that they were built twice is what counts.
    return type(one).__module__.startswith("crfield") or bool(one == other)


def snapshot(arguments: dict[str, Any]) -> dict[str, bytes]:
    """The arrays among the arguments, by name, as bytes."""
    arrays = {name: value for name, value in arguments.items() if isinstance(value, np.ndarray)}
    features = arguments.get("features")
    for name, values in features.items() if isinstance(features, dict) else ():
        if isinstance(values, np.ndarray):
            arrays[f"features.{name}"] = values
    return {
        name: array.tobytes() for name, array in arrays.items()
        if array.dtype != object and array.nbytes < 1 << 26
    }


def place_of(error: Exception) -> str:
    """The kind of exception and the line of the library that it came from."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [frame for frame in frames if "crfield" in Path(frame.filename).parts] or frames
    last = inside[-1]
    detail = str(error).partition(":")[0] if isinstance(error, Wrong) else ""
    return f"{type(error).__name__} {detail} at {Path(last.filename).name}:{last.lineno}"


def described(call: Call | None, text: str) -> str:
    """The text with the arguments in short."""
    lines = []
    for name, value in (call.arguments if call else {}).items():
        shown = repr(value)
        if isinstance(value, np.ndarray):
            shown = f"{value.dtype} {value.shape} {shown}"
        lines.append(f"  {name} = {' '.join(shown.split())[:300]}")
    return "\n".join([*lines, text])


def _native_frame(text: str) -> str:
    """The innermost Python line of a crash."""
    return next((line.strip() for line in text.splitlines() if 'File "' in line), "unknown place")


if __name__ == "__main__":
    sys.exit(main())
