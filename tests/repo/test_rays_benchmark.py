"""The benchmark of rays at a size that times nothing."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
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


def test_wrong_max_product_is_refused(tmp_path, capsys, monkeypatch):
    right = rays.infer
    monkeypatch.setattr(
        rays, "infer", lambda model, **options: right(model, **{**options, "temperature": 1.0})
    )
    assert rays.run(rays.TINY, tmp_path) == 1
    assert "REFUSED: messages of max-product" in capsys.readouterr().out


def test_wrong_fusion_is_refused(tmp_path, capsys, monkeypatch):
    right = rays.fuse_independent
    monkeypatch.setattr(rays, "fuse_independent", lambda model, **options: right(model) + 0.01)
    assert rays.run(rays.TINY, tmp_path) == 1
    assert "REFUSED: probabilities of fusion" in capsys.readouterr().out


def test_wrong_traversal_is_refused(monkeypatch):
    case = rays.ball_case(rays.TINY)
    rays.check_traversal(case)
    right = rays.VoxelGrid.traverse
    monkeypatch.setattr(
        rays.VoxelGrid, "traverse",
        lambda self, origins, ways, **options: right(
            self, origins, np.roll(ways, 1, 0), **options
        ),
    )
    with pytest.raises(rays.Disagreement, match="not timed"):
        rays.check_traversal(case)


def test_no_repeats_are_refused(capsys):
    with pytest.raises(SystemExit):
        rays.main(["--repeats", "0"])
    assert "--repeats must be at least 1" in capsys.readouterr().err


def test_wrong_messages_are_refused(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rays, "TOLERANCE", 0.0)
    assert rays.run(rays.TINY, tmp_path) == 1
    assert "REFUSED" in capsys.readouterr().out
