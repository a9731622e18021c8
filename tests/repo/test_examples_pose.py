"""The example of pose estimation runs from the command line and writes what it promises."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from PIL import Image

import crfield

ROOT = Path(__file__).resolve().parents[2]


def test_estimate_pose(tmp_path):
    package = str(Path(crfield.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    folder = tmp_path / "new"
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "estimate_pose.py"), "--quick", "-o", str(folder)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads((folder / "figures.json").read_text("utf-8"))
    rows = {line[:18].strip(): line[18:].split() for line in done.stdout.splitlines()}
    found = figures["found"]["all parts"]
    assert [f"{share:.1f}" for share in found.values()] == rows["all parts"]
    assert 0 <= found["detections"] + 20 < found["positions"] < found["orientations"] <= 100
    assert set(figures["scales"]) == {"detections", "positions", "orientations"}
    assert {"trunk", "head", "right shin"} <= set(figures["found"])
    with Image.open(folder / "poses.png") as picture:
        assert picture.width == 6 * (4 * 64 + 8) + 8
        picture.load()
