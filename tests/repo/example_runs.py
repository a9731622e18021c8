"""The examples as a reader runs them: from the command line, in a process of their own."""

import json
import os
import subprocess
import sys
from pathlib import Path

from PIL import Image

import crfield

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


def run_script(name, *words):
    """The finished process of `python examples/NAME.py WORDS`, with the crfield under test."""
    package = str(Path(crfield.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    return subprocess.run(
        [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, words)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
    )


def run_quick(name, folder):
    """What `name --quick` prints, and the figures that it writes; its pictures can be read."""
    done = run_script(name, "--quick", "-o", folder)
    assert (done.returncode, done.stderr) == (0, "")
    pictures = list(folder.glob("*.png"))
    assert pictures
    for picture in pictures:
        with Image.open(picture) as opened:
            opened.load()
    (figures,) = folder.glob("*.json")
    return done.stdout, json.loads(figures.read_text("utf-8"))
