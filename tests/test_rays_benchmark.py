"""The benchmark of rays at a size that times nothing."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
if not (ROOT / "benchmarks").is_dir():
    pytest.skip("an sdist comes without the benchmarks", allow_module_level=True)
sys.path.insert(0, str(ROOT))

from benchmarks import rays  # noqa: E402


def test_every_part_runs_and_is_written(tmp_path, capsys):
    assert rays.run(rays.TINY, tmp_path) == 0
    (path,) = tmp_path.iterdir()
    section = json.loads(path.read_text())["sections"]["rays"]
    assert section["rays"] == 108
    assert section["entries"] > 108
    assert 0 < section["message_error"] < 1e-3
    assert "sum-product, 3 iterations" in capsys.readouterr().out


def test_wrong_messages_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rays, "TOLERANCE", 0.0)
    assert rays.run(rays.TINY, tmp_path) == 1
    assert "REFUSED" in capsys.readouterr().out
