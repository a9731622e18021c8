"""Wheels for every Python >= 3.11 found here and an sdist, each tried in an empty environment.

A wheel built for the stable ABI (Python >= 3.12) is also installed into every later Python. In each
environment the package is imported and refines an image, away from the source tree; in the newest
Python most of the test suite runs against the installed wheel.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SUPPORTED = ("3.11", "3.12", "3.13")

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


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run a command; stop with its output if it fails."""
    done = subprocess.run([str(c) for c in command], cwd=cwd, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}")
    print("".join(done.stdout.splitlines(keepends=True)[-1:]), end="", flush=True)


def try_install(python: str, package: Path, folder: Path) -> Path:
    """Install one file into a fresh environment, use it from an empty folder; its Python."""
    environment = folder / f"try-{Path(package).name}-{Path(python).parent.parent.name}"
    run(python, "-m", "venv", environment)
    bin_folder = environment / ("Scripts" if os.name == "nt" else "bin")
    run(bin_folder / "python", "-m", "pip", "install", "-q", package)
    run(bin_folder / "python", "-c", SMOKE, package.name, cwd=folder)
    run(bin_folder / "crfield", "--version", cwd=folder)
    return bin_folder / "python"


def run_tests(python: Path, folder: Path) -> None:
    """The test suite, or most of it, against an installed package."""
    run(python, "-m", "pip", "install", "-q", "--upgrade", "pip")
    group = f"{ROOT / 'pyproject.toml'}:test"
    run(python, "-m", "pip", "install", "-q", "-c", ROOT / "constraints.txt", "--group", group)
    # Few random examples, and nothing that takes long and does not depend on the interpreter:
    # `make test` runs everything.
    os.environ["CRFIELD_EXAMPLES"] = "10"
    skipped = ("test_killed_runs.py", "test_distributed.py", "test_benchmarks.py", "test_demo.py")
    run(
        python, "-m", "pytest", "-c", ROOT / "pyproject.toml", "-p", "no:cacheprovider",
        *(f"--ignore={ROOT / 'tests' / name}" for name in skipped), ROOT / "tests", cwd=folder,
    )


def main() -> None:
    pythons = find_pythons()
    print("found Python", ", ".join(pythons))
    if not pythons:
        sys.exit("no Python >= 3.11 with venv was found")
    dist = ROOT / "dist"
    shutil.rmtree(dist, ignore_errors=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        builder = folder / "builder"
        run(next(iter(pythons.values())), "-m", "venv", builder)
        run(builder / "bin" / "python", "-m", "pip", "install", "-q", "build")
        run(builder / "bin" / "python", "-m", "build", "-s", "-o", dist, ROOT)
        stable: Path | None = None
        for version, python in pythons.items():
            if stable is None or version < "3.12":
                before = set(dist.glob("*.whl"))
                run(python, "-m", "venv", folder / f"wheel-{version}")
                pip = folder / f"wheel-{version}" / "bin" / "python"
                run(pip, "-m", "pip", "wheel", "-q", "--no-deps", "-w", dist, ROOT)
                (wheel,) = set(dist.glob("*.whl")) - before
                stable = wheel if "abi3" in wheel.name else None
            else:
                wheel = stable
            tried = try_install(python, wheel, folder)
            if python == list(pythons.values())[-1]:
                # Its wheel may come from another Python; `make test` runs in the first one.
                run_tests(tried, folder)
        (sdist,) = dist.glob("*.tar.gz")
        try_install(next(iter(pythons.values())), sdist, folder)
    for package in sorted(dist.iterdir()):
        print(f"{package.name}: {package.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
