"""Wheels for every Python >= 3.11 found here and an sdist, checked and tried in empty environments.

A wheel built for the stable ABI (Python >= 3.12) is also installed into every later Python. In each
environment the package is imported and refines an image, away from the source tree; in the newest
Python the tests of what depends on the interpreter run against the installed wheel.

The sdist, and the wheel of one Python, are built a second time out of the unpacked sdist: in
another folder, with other permissions and times, compiled from scratch in an environment of its
own. Both builds must have the same bytes. With `--environment` the first of the two wheels is built
in that environment, as `make install` does, and uses again what is compiled there already.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from wheel_checks import check_contents, check_same, check_size, repair, run, time_import

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ("3.11", "3.12", "3.13")
ROOMS = ("cli", "core", "dense", "graphcut", "graphs")  # whose tests a new wheel must pass

SMOKE = """
import sys, numpy as np, crfield
heavy = {"torch", "sklearn", "matplotlib", "dask", "joblib", "scipy.optimize"} & set(sys.modules)
assert not heavy, heavy
rng = np.random.default_rng(0)
image = rng.integers(0, 255, (60, 80, 3), dtype=np.uint8)
labels = (np.arange(80) > 40)[None].repeat(60, 0).astype(np.uint8)
result = crfield.refine(image, labels)
assert result.labels.shape == (60, 80) and (np.diff(result.free_energies) <= 1e-3).all()
print("  ok:", sys.argv[1], "on Python", sys.version.split()[0])
"""


def find_pythons() -> dict[str, str]:
    """Interpreters by version, from PATH and from pyenv's folder."""
    found: dict[str, str] = {}
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for version in SUPPORTED:
        installed = sorted(pyenv.glob(f"{version}*/bin/python"))
        candidates = [shutil.which(f"python{version}"), *installed]
        for candidate in filter(None, candidates):
            probe = subprocess.run(
                [candidate, "-c", "import sys, venv; print('%d.%d' % sys.version_info[:2])"],
                capture_output=True, text=True, check=False,
            )
            if probe.returncode == 0 and probe.stdout.strip() == version:
                found[version] = str(candidate)
                break
    return found


def make_environment(python: str, folder: Path, group: str | None = None) -> Path:
    """The folder of programs of a new environment, with a group of dependencies if one is named."""
    run(python, "-m", "venv", folder)
    programs = folder / ("Scripts" if os.name == "nt" else "bin")
    if group is not None:
        install_group(programs / "python", group)
    return programs


def install_group(python: Path, group: str) -> None:
    """Install a group of pyproject.toml; the pip that comes with Python may not know groups.

    Where `CRFIELD_LOCK` names a file of hashes, what is in it is installed, which is all groups.
    """
    if lock := os.environ.get("CRFIELD_LOCK"):
        run(python, "-m", "pip", "install", "-q", "--require-hashes", "-r", lock)
        return
    run(python, "-m", "pip", "install", "-q", "--upgrade", "pip")
    name = f"{ROOT / 'pyproject.toml'}:{group}"
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", "--group", name)


def build_sdist(tools: Path, dist: Path, folder: Path) -> Path:
    """The sdist, which must come out again when it is unpacked and built."""
    run(tools / "python", "-m", "build", "-s", "-o", dist, ROOT)
    (sdist,) = dist.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        for entry in archive.getmembers():
            entry.mode &= 0o700
            entry.mtime = 1.0e9
            archive.extract(entry, folder / "unpacked", filter="tar")
    (source,) = (folder / "unpacked").iterdir()
    (source / "PKG-INFO").unlink()  # is written by the build
    run(tools / "python", "-m", "build", "-s", "-o", folder / "again", source, umask=0o077)
    check_same(sdist, folder / "again" / sdist.name)
    return sdist


def build_wheel(
    python: Path, dist: Path, source: Path, *options: str, umask: int = -1,
    env: dict[str, str] | None = None,
) -> Path:
    """A wheel of a source tree or an sdist."""
    before = set(dist.glob("*.whl"))
    command = (python, "-m", "pip", "wheel", "-q", "--no-deps", *options, "-w", dist, source)
    run(*command, umask=umask, env=env)
    (wheel,) = set(dist.glob("*.whl")) - before
    return wheel


def try_install(python: str, package: Path, folder: Path) -> Path:
    """Install one file into a fresh environment, use it from an empty folder; its Python."""
    programs = make_environment(python, folder / f"try-{version_of(python)}")
    run(programs / "python", "-m", "pip", "install", "-q", package)
    print(run(programs / "python", "-c", SMOKE, package.name, cwd=folder), end="")
    run(programs / "crfield", "--version", cwd=folder)
    seconds = time_import(programs / "python", folder)
    print(f"  import: {seconds:.3f} s, best of fresh interpreters", flush=True)
    return programs / "python"


def run_tests(python: Path, folder: Path) -> None:
    """The fast tests of the rooms next to the interpreter and the core, on an installed package."""
    install_group(python, "test")
    # `make test` runs everything, and more examples of each.
    os.environ["CRFIELD_EXAMPLES"] = "10"
    print(run(
        python, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider",
        "-n", "auto", "--dist", "loadfile", "-m", "not slow",
        *(ROOT / "tests" / room for room in ROOMS), cwd=folder,
    ).splitlines()[-1], flush=True)


def version_of(python: str) -> str:
    return run(python, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()


class Release:
    """The sdist and the wheels in dist/, and what they were made with."""

    def __init__(self, pythons: dict[str, str], environment: str | None, folder: Path) -> None:
        self.pythons, self.environment, self.folder = pythons, environment, folder
        first = version_of(environment) if environment else ""
        self.twice = first if first in pythons else next(iter(pythons))
        self.dist = ROOT / "dist"
        shutil.rmtree(self.dist, ignore_errors=True)
        self.tools = make_environment(pythons[self.twice], folder / "tools", "release")
        self.sdist = build_sdist(self.tools, self.dist, folder)

    def make_wheel(self, version: str) -> Path:
        """The wheel of a Python, checked, with its manylinux tag where there is such a thing."""
        if version == self.twice and self.environment:
            python, options = Path(self.environment), ("--no-build-isolation",)
        else:
            fresh = make_environment(self.pythons[version], self.folder / f"wheel-{version}")
            python, options = fresh / "python", ()
        wheel = build_wheel(python, self.folder, ROOT, *options)
        if version == self.twice:
            other = make_environment(self.pythons[version], self.folder / "other")
            again = build_wheel(
                other / "python", self.folder / "again", self.sdist, umask=0o077,
                env={"CCACHE_DISABLE": "1"},
            )
            check_same(wheel, again)
        check_contents(wheel, self.sdist)
        if sys.platform == "linux":
            wheel = repair(self.tools, wheel, self.folder / "repaired")
        check_size(wheel)
        return Path(shutil.copy(wheel, self.dist))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--environment", help="Python of an environment that has the group `build`")
    parser.add_argument("--only", metavar="3.X", help="the wheel of this Python alone")
    parser.add_argument("--no-tests", action="store_true", help="leave the test suite out")
    options = parser.parse_args()
    started = time.monotonic()

    def step(what: str) -> None:
        print(f"{what} ({time.monotonic() - started:.0f} s)", flush=True)

    pythons = {v: p for v, p in find_pythons().items() if options.only in (None, v)}
    if not pythons:
        sys.exit("no Python >= 3.11 with venv was found")
    step(f"found Python {', '.join(pythons)}")
    # The time inside what auditwheel writes; all other archives have a fixed one anyway.
    os.environ.setdefault("SOURCE_DATE_EPOCH", "1577836800")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        release = Release(pythons, options.environment, folder)
        step("sdist")
        stable: Path | None = None
        # The Python of the environment first: of a stable ABI its wheel serves the others as well.
        for version in sorted(pythons, key=lambda v: (v != release.twice, v)):
            wheel = stable if version >= "3.12" else None
            if wheel is None:
                wheel = release.make_wheel(version)
                stable = wheel if "abi3" in wheel.name else stable
                step(f"wheel of Python {version}")
            tried = try_install(pythons[version], wheel, folder)
            # The newest: its wheel may come from another Python; `make test` runs in the first.
            if version == max(pythons) and not options.no_tests:
                run_tests(tried, folder)
            step(f"tried on Python {version}")
        packages = sorted(release.dist.iterdir())
        print(run(release.tools / "twine", "check", "--strict", *packages), end="")
    for package in packages:
        print(f"{package.name}: {package.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
