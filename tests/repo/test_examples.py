"""The examples run from the command line, write what they promise and refuse what is wrong."""

import math
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image

import read_letters
import reconstruct_voxels
import segment_grids
from example_runs import run_quick

needs_torch = pytest.mark.skipif(find_spec("torch") is None, reason="the example needs torch")


@pytest.mark.slow
@needs_torch
def test_train_segmentation(tmp_path):
    printed, figures = run_quick("train_segmentation", tmp_path / "new")
    rows = {line[:12].strip(): line[12:].split() for line in printed.splitlines()}
    found = {
        method: [found["val"][0], found["test"][0], found["test"][0]]
        for method, found in figures["mean_iou"].items()
    }
    assert list(found) == ["net", "piecewise", "end to end", "interleaved"]
    assert len(figures["seeds"]) == 1
    for method, numbers in found.items():
        assert [float(word) for word in rows[method]] == pytest.approx(numbers, abs=0.005)
    # Three labels: a net that has learned nothing scores 33 or less, and a CRF raises its score by
    # 6 or more where terms are learned and used.
    net = np.array(found.pop("net"))
    assert (net > 40).all()
    for method, numbers in found.items():
        assert (np.array(numbers) > net + 3).all(), method
    models = figures["models"][0]
    assert set(models) == set(found)
    assert len({str(model) for model in models.values()}) == 3, "each was learned another way"


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


@pytest.mark.slow
def test_scenes_are_segmented_better_together(tmp_path):
    printed, rows = run_quick("segment_grids", tmp_path)
    assert "right and below" in printed
    assert f"figures are in {tmp_path}\n" in printed
    for row in rows:  # none is hidden
        for text in row["warnings"]:
            assert f"* {row['model']}: {text}\n" in printed
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


@pytest.mark.slow
@pytest.mark.skipif(find_spec("scipy") is None, reason="learning needs SciPy")
def test_a_chain_reads_more_than_letters_alone(tmp_path):
    printed, (alone, chain) = run_quick("read_letters", tmp_path / "new")
    assert "120 words to learn from, 120 to test" in printed
    assert 0.3 < alone["letters"] < chain["letters"] - 0.02 < 1
    assert f"{100 * chain['letters']:.1f}" in printed
    with Image.open(tmp_path / "new" / "words.png") as picture:
        assert picture.height == 8 * (read_letters.LETTER_HEIGHT + 2 * 22 + read_letters.GAP)


def test_words_of_the_first_fold_are_told_from_the_others(tmp_path):
    folder = tmp_path / "ocr_letters"
    folder.mkdir()
    bits = np.random.default_rng(0).integers(0, 2, (7, 128), np.uint8)
    np.savez(
        folder / "letters.npz", X_packed=np.packbits(bits, axis=1), y=np.arange(7, dtype=np.uint8),
        word_offsets=np.array([0, 2, 5, 7]), fold=np.array([0, 4, 0], np.uint8),
    )
    (images, letters), (others, other_letters) = read_letters.load_words(tmp_path)
    assert sorted("".join(word) for word in letters) == ["ab", "fg"]
    assert ["".join(word) for word in other_letters] == ["cde"]
    np.testing.assert_array_equal(others[0].reshape(3, -1), bits[2:5])
    for word, text in zip(images, letters, strict=True):
        start = "abcdefg".index(text[0])
        np.testing.assert_array_equal(word, bits[start : start + 2].reshape(2, 16, 8))


def test_wrong_letters_are_red():
    images = [np.zeros((2, 8, 6))]
    right, wrong = (
        np.asarray(read_letters.draw_readings(images, [["A", "B"]], {"chain": [list(read)]}))
        for read in ("AB", "AC")
    )

    def is_red(picture):
        return (picture[..., 0].astype(int) - picture[..., 1] > 100).any()

    assert is_red(wrong)
    assert not is_red(right)


@pytest.mark.parametrize(("example", "words", "message"), [
    (reconstruct_voxels, ["--views", "0"], "--views must be at least 1"),
    (reconstruct_voxels, ["--noise", "0"], "--noise must lie between"),
    (reconstruct_voxels, ["--noise", "nan"], "--noise must lie between"),
    (reconstruct_voxels, ["--outliers", "0.1", "0"], "--outliers must lie between"),
    (reconstruct_voxels, ["--quick", "--data", "."], "takes no --data"),
    (reconstruct_voxels, ["--data", "nowhere"], "must hold voxels96.npz"),
    (segment_grids, ["--data", "."], "--data must hold snakes/snakes.npz"),
    (read_letters, ["--data", "."], "--data must hold ocr_letters/letters.npz"),
])
def test_wrong_words_are_refused(example, words, message, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [f"{example.__name__}.py", *words])
    with pytest.raises(SystemExit) as left:
        example.main()
    assert left.value.code == 2
    assert message in capsys.readouterr().err
