"""The examples run from the command line and write what they promise."""

from __future__ import annotations

import math
import sys
from importlib.util import find_spec

import pytest
from PIL import Image

import reconstruct_voxels
from example_runs import run_quick

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="the example needs torch")


@pytest.mark.slow
@needs_torch
def test_train_segmentation(tmp_path):
    printed, figures = run_quick("train_segmentation", tmp_path / "new")
    rows = {line[:12].strip(): line[12:].split() for line in printed.splitlines()}
    for method in ("net", "piecewise", "end to end", "interleaved"):
        numbers = [float(word) for word in rows[method]]
        assert len(numbers) == 3
        assert all(0 < number <= 100 for number in numbers)
        assert len(figures["mean_iou"][method]["test"]) == len(figures["seeds"]) == 1
    assert set(figures["models"][0]) == {"piecewise", "end to end", "interleaved"}


@pytest.mark.slow
@needs_torch
def test_exact_beside_lattice(tmp_path):
    printed, figures = run_quick("exact_beside_lattice", tmp_path / "new")
    assert "labels apart" in printed
    assert 0 < figures["mean_difference"] < 0.02
    assert figures["mean_difference"] < figures["max_difference"] <= 1
    assert 0 <= figures["differing_labels"] < 0.05
    assert all(math.isfinite(s) and s > 0 for s in figures["seconds"].values())


@pytest.mark.slow
@needs_torch
def test_reconstruct_voxels(tmp_path):
    printed, figures = run_quick("reconstruct_voxels", tmp_path / "new")
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


@pytest.mark.slow
@needs_torch
def test_crf_as_rnn(tmp_path):
    printed, figures = run_quick("crf_as_rnn", tmp_path / "new")
    assert "learned costs of labels" in printed
    scores = figures["mean_iou"]
    assert all(0 < value <= 100 for value in scores.values())
    assert scores["trained end to end"] > scores["network"] + 5
    assert scores["trained end to end"] > scores["network, trained longer"]
    assert list(figures["by_number_of_updates"]) == ["0", "1", "2", "3", "5", "10"]


@pytest.mark.slow
@needs_torch
def test_learn_ray_scores(tmp_path):
    printed, figures = run_quick("learn_ray_scores", tmp_path / "new")
    assert "depth error" in printed
    errors = {name: row["depth_error"] for name, row in figures.items()}
    assert errors["learned, together"] < 0.5 * errors["mean, together"]
    assert errors["learned, together"] < 0.5 * errors["learned, alone"]
    assert errors["learned, together"] < 0.3 * errors["before training"]
    assert figures["learned, together"]["right"] > 85


@pytest.mark.slow
def test_estimate_pose(tmp_path):
    printed, figures = run_quick("estimate_pose", tmp_path / "new")
    rows = {line[:18].strip(): line[18:].split() for line in printed.splitlines()}
    found = figures["found"]["all parts"]
    assert [f"{share:.1f}" for share in found.values()] == rows["all parts"]
    assert 0 <= found["detections"] + 20 < found["positions"] < found["orientations"] <= 100
    assert set(figures["scales"]) == {"detections", "positions", "orientations"}
    assert {"trunk", "head", "right shin"} <= set(figures["found"])
    with Image.open(tmp_path / "new" / "poses.png") as picture:
        assert picture.width == 6 * (4 * 64 + 8) + 8


@pytest.mark.parametrize(("words", "message"), [
    (["--views", "0"], "--views must be at least 1"),
    (["--noise", "0"], "--noise must lie between"),
    (["--noise", "nan"], "--noise must lie between"),
    (["--outliers", "0.1", "0"], "--outliers must lie between"),
    (["--quick", "--data", "."], "takes no --data"),
    (["--data", "nowhere"], "must hold voxels96.npz"),
])
def test_reconstruct_voxels_refuses(words, message, capsys, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["reconstruct_voxels.py", *words])
    with pytest.raises(SystemExit) as left:
        reconstruct_voxels.main()
    assert left.value.code == 2
    assert message in capsys.readouterr().err
