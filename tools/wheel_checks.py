"""What a wheel and an sdist must be like before they are published."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

LARGEST_WHEEL = 5e6  # bytes
SLOWEST_IMPORT = 0.3  # seconds
INTERPRETERS = 5

TIMED_IMPORT = """
import time
start, used = time.perf_counter(), time.process_time()
import crfield
print(time.perf_counter() - start, time.process_time() - used)
"""


def run(
    *command: str | Path, cwd: Path | None = None, umask: int = -1,
    env: dict[str, str] | None = None,
) -> str:
    """What a command prints; stop with it if the command fails."""
    done = subprocess.run(
        [str(c) for c in command], cwd=cwd, umask=umask, env={**os.environ, **(env or {})},
        capture_output=True, text=True,
    )
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def check_same(first: Path, second: Path) -> None:
    """Refuse two builds of one thing that differ in a byte, and name what differs in them."""
    digests = [hashlib.sha256(path.read_bytes()).hexdigest() for path in (first, second)]
    if digests[0] != digests[1]:
        parts = [_members(path) for path in (first, second)]
        names = sorted(n for n in parts[0].keys() | parts[1] if parts[0].get(n) != parts[1].get(n))
        sys.exit(f"two builds of {first.name} differ in: {', '.join(names) or 'order or headers'}")
    print(f"  built twice, same bytes: {first.name} sha256 {digests[0][:16]}...", flush=True)


def check_contents(wheel: Path, sdist: Path) -> None:
    """The wheel holds what the sdist has under src/, one compiled module, and its metadata."""
    prefix = f"{sdist.name.removesuffix('.tar.gz')}/src/"
    wanted = {name.removeprefix(prefix) for name in _members(sdist) if name.startswith(prefix)}
    found = {name for name in _members(wheel) if ".dist-info/" not in name}
    compiled = {name for name in found - wanted if name.startswith("crfield/_core/_native.")}
    missing, stray = sorted(wanted - found), sorted(found - wanted - compiled)
    if missing or stray or len(compiled) != 1:
        sys.exit(f"{wheel.name}: missing {missing}, not in the sdist {stray}, compiled {compiled}")


def check_size(wheel: Path) -> None:
    """Refuse a wheel over the limit."""
    if wheel.stat().st_size > LARGEST_WHEEL:
        sys.exit(f"{wheel.name} has {wheel.stat().st_size / 1e6:.2f} MB, more than 5 MB")


def repair(tools: Path, wheel: Path, folder: Path) -> Path:
    """The wheel with its manylinux tag, which it must earn without taking libraries in."""
    # auditwheel calls patchelf by name; folders take their permissions from the umask.
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    run(tools / "auditwheel", "repair", "-w", folder, wheel, umask=0o022, env={"PATH": path})
    start = "-".join(wheel.name.split("-")[:4])
    (repaired,) = folder.glob(f"{start}-manylinux*.whl")
    taken_in = [name for name in _members(repaired) if ".libs/" in name]
    if taken_in:
        sys.exit(f"{wheel.name} needs libraries that manylinux has not: {taken_in}")
    print(f"  auditwheel: {repaired.name.rpartition('-')[2].removesuffix('.whl')}", flush=True)
    return repaired


def time_import(python: Path, folder: Path) -> float:
    """Seconds of `import crfield`, the best of a few fresh interpreters.

    Refused is what takes longer of the processor, so that other work on the machine does no harm.
    """
    run(python, "-c", TIMED_IMPORT, cwd=folder)  # writes the bytecode
    prints = [run(python, "-c", TIMED_IMPORT, cwd=folder).split() for _ in range(INTERPRETERS)]
    seconds, used = (min(map(float, column)) for column in zip(*prints, strict=True))
    if used > SLOWEST_IMPORT:
        sys.exit(f"import crfield takes {used:.2f} s, more than {SLOWEST_IMPORT} s")
    return seconds


def _members(package: Path) -> dict[str, str]:
    """The files of a wheel or an sdist with a digest of each."""
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            contents = {n: wheel.read(n) for n in wheel.namelist() if not n.endswith("/")}
    else:
        with tarfile.open(package) as sdist:
            files = [entry for entry in sdist.getmembers() if entry.isfile()]
            contents = {entry.name: sdist.extractfile(entry).read() for entry in files}
    return {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
