"""The examples of deep structured models run from the command line and learn something."""

from __future__ import annotations

from test_examples import run_example


def test_crf_as_rnn(tmp_path):
    printed, figures = run_example("crf_as_rnn", tmp_path / "new")
    assert "learned costs of labels" in printed
    scores = figures["mean_iou"]
    assert all(0 < value <= 100 for value in scores.values())
    assert scores["trained end to end"] > scores["network"] + 5
    assert scores["trained end to end"] > scores["network, trained longer"]
    assert list(figures["by_number_of_updates"]) == ["0", "1", "2", "3", "5", "10"]


def test_learn_ray_scores(tmp_path):
    printed, figures = run_example("learn_ray_scores", tmp_path / "new")
    assert "depth error" in printed
    errors = {name: row["depth_error"] for name, row in figures.items()}
    assert errors["learned, together"] < 0.5 * errors["mean, together"]
    assert errors["learned, together"] < 0.5 * errors["learned, alone"]
    assert errors["learned, together"] < 0.3 * errors["before training"]
    assert figures["learned, together"]["right"] > 85
