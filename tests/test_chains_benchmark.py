"""The benchmark of chains at a size that times nothing."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("an sdist comes without the benchmarks", allow_module_level=True)
sys.path.insert(0, str(ROOT))

from benchmarks import chains  # noqa: E402


def test_every_part_runs_and_is_written(tmp_path, capsys):
    assert chains.run(chains.TINY, list(chains.SECTIONS), tmp_path) == 0
    (path,) = tmp_path.iterdir()
    sections = json.loads(path.read_text())["sections"]
    assert set(sections) == set(chains.SECTIONS)
    assert len(sections["sums"]["cases"]) == 2
    assert capsys.readouterr().out.count("\n## ") == len(sections)


def test_a_wrong_loss_is_refused(tmp_path, capsys, monkeypatch):
    pytest.importorskip("torch")
    monkeypatch.setattr(chains.ChainCase, "peer", lambda self: lambda: 0.0)
    assert chains.run(chains.TINY, ["sums"], tmp_path) == 1
    assert capsys.readouterr().out.count("REFUSED") == 2
