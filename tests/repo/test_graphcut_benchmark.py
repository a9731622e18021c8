"""The benchmark of graph cuts at a size that times nothing."""

import json

from benchmarks import graphcut


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
