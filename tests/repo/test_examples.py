"""The examples run from the command line and write what they promise."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

pytest.importorskip("torch", reason="the examples need torch")

ROOT = Path(__file__).resolve().parents[2]


def run_example(name, folder):
    """What `name --quick` prints, and the figures that it writes; its picture can be read."""
    import crfield

    package = str(Path(crfield.__file__).resolve().parents[1])
    path = os.pathsep.join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / f"{name}.py"), "--quick", "-o", str(folder)],
        env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, timeout=300,
    )
    assert done.returncode == 0, done.stderr
    (picture,) = folder.glob("*.png")
    with Image.open(picture) as opened:
        opened.load()
    (figures,) = folder.glob("*.json")
    return done.stdout, json.loads(figures.read_text("utf-8"))


def test_train_segmentation(tmp_path):
    printed, figures = run_example("train_segmentation", tmp_path / "new")
    rows = {line[:12].strip(): line[12:].split() for line in printed.splitlines()}
    for method in ("net", "piecewise", "end to end", "interleaved"):
        numbers = [float(word) for word in rows[method]]
        assert len(numbers) == 3
        assert all(0 < number <= 100 for number in numbers)
        assert len(figures["mean_iou"][method]["test"]) == len(figures["seeds"]) == 1
    assert set(figures["models"][0]) == {"piecewise", "end to end", "interleaved"}


def test_exact_beside_lattice(tmp_path):
    printed, figures = run_example("exact_beside_lattice", tmp_path / "new")
    assert "labels apart" in printed
    assert 0 < figures["mean_difference"] < 0.02
    assert figures["mean_difference"] < figures["max_difference"] <= 1
    assert 0 <= figures["differing_labels"] < 0.05
    assert all(math.isfinite(s) and s > 0 for s in figures["seconds"].values())


def test_reconstruct_voxels(tmp_path):
    printed, figures = run_example("reconstruct_voxels", tmp_path / "new")
    assert "belief propagation" in printed
    level = figures["levels"][3]
    assert level["outliers"] == 0.2
    fusion, propagation = (
        [level[rule][method]["mean"] for rule in ("one prior", "own bound", "own prior")]
        for method in ("independent fusion", "belief propagation")
    )
    assert all(0 < value <= 100 for value in fusion + propagation)
    assert propagation[0] > fusion[0]
    assert propagation[2] > fusion[2] + 5
    assert "1 solid," in printed
    assert f"{figures['levels'][-1]['outliers']:7.3f}*" in printed
    one = level["one prior"]
    assert one["independent fusion"]["prior"] == one["belief propagation"]["prior"]
    assert "balls 0" not in one["belief propagation"]["iou"], "which the prior was chosen on"


@pytest.mark.parametrize(("words", "message"), [
    (["--views", "0"], "--views must be at least 1"),
    (["--noise", "0"], "--noise must lie between"),
    (["--noise", "nan"], "--noise must lie between"),
    (["--outliers", "0.1", "0"], "--outliers must lie between"),
    (["--quick", "--data", "."], "takes no --data"),
    (["--data", "nowhere"], "must hold voxels96.npz"),
])
def test_reconstruct_voxels_refuses(words, message, capsys, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    monkeypatch.setattr(sys, "argv", ["reconstruct_voxels.py", *words])
    import reconstruct_voxels

    with pytest.raises(SystemExit) as left:
        reconstruct_voxels.main()
    assert left.value.code == 2
    assert message in capsys.readouterr().err
