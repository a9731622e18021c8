"""The example of grids at a small size, and its pure functions."""

import json
import sys

import numpy as np
import pytest

import segment_grids
from example_runs import run_script


@pytest.mark.slow
def test_scenes_are_segmented_better_together(tmp_path):
    done = run_script("segment_grids", "--quick", "-o", tmp_path)
    assert done.returncode == 0, done.stderr
    assert "right and below" in done.stdout
    assert done.stderr == ""
    assert f"figures are in {tmp_path}\n" in done.stdout
    rows = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    for row in rows:  # none is hidden
        for text in row["warnings"]:
            assert f"* {row['model']}: {text}\n" in done.stdout
    assert [row["model"] for row in rows] == ["pixels alone", "one table", "right and below"]
    assert rows[2]["accuracy"] > rows[0]["accuracy"]
    assert (tmp_path / "scenes.png").stat().st_size > 1000


def test_snakes_are_read(tmp_path):
    folder = tmp_path / "snakes"
    folder.mkdir()
    rng = np.random.default_rng(0)
    colors = rng.integers(0, 2, (22, 3)).astype(np.uint8) * 255
    np.savez(
        folder / "snakes.npz", shape_train=np.array([[3, 4], [2, 5]], np.uint8),
        X_train=colors, Y_train=np.arange(22, dtype=np.uint8) % 3,
        shape_test=np.array([[3, 4]], np.uint8), X_test=colors[:12],
        Y_test=np.zeros(12, np.uint8),
    )
    data = segment_grids.load_snakes(tmp_path)
    X, y = data["train"]
    assert [x.shape[:2] for x in X] == [(3, 4), (2, 5)]
    np.testing.assert_array_equal(X[0].sum(-1), 1)
    assert y[1].ravel().tolist() == [v % 3 for v in range(12, 22)]


def test_folder_without_snakes_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["segment_grids.py", "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        segment_grids.main()
    assert left.value.code == 2
    assert "--data must hold snakes/snakes.npz" in capsys.readouterr().err


def test_edges_see_the_colors_at_their_ends():
    grid = np.arange(6.0).reshape(2, 3, 1)
    nodes, edges, features = segment_grids.as_graph(grid)
    assert nodes.shape == (6, 9)
    assert edges.tolist()[:2] == [[0, 1], [1, 2]]
    assert features[0].tolist() == [1, 0, 1, 0, 0, 0]  # to the right: constant, here, there
    assert features[-1].tolist() == [0, 0, 0, 1, 2, 5]  # downwards


def test_neighbors_outside_are_zero():
    found = segment_grids.with_neighbors(np.ones((2, 2, 1)))
    assert found[0, 0].tolist() == [0, 0, 0, 0, 1, 1, 0, 1, 1]
