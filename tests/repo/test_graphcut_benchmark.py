"""The benchmark of graph cuts at a size that times nothing."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("an sdist comes without the benchmarks", allow_module_level=True)
sys.path.insert(0, str(ROOT))

from benchmarks import graphcut  # noqa: E402


def test_every_part_runs_and_is_written(tmp_path, capsys):
    assert graphcut.run(graphcut.TINY, list(graphcut.SECTIONS), tmp_path) == 0
    (path,) = tmp_path.iterdir()
    sections = json.loads(path.read_text())["sections"]
    assert set(sections) == set(graphcut.SECTIONS)
    assert len(sections["cuts"]["cases"]) == 5
    assert capsys.readouterr().out.count("\n## ") == len(sections)


def test_a_wrong_energy_is_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(graphcut.CutCase, "cut", lambda self: 0.0)
    assert graphcut.run(graphcut.TINY, ["cuts", "batch"], tmp_path) == 1
    assert capsys.readouterr().out.count("REFUSED") == 6
