"""`crfield learn` and `crfield evaluate` on a folder of small scenes."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crfield import DenseCRF
from crfield.cli import main
from crfield.datasets import synthetic_scenes

pytest.importorskip("scipy")


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """Six scenes as files, four to learn from and two to score on."""
    monkeypatch.chdir(tmp_path)
    root = Path("data")
    for folder in ("images", "labels", "unaries"):
        (root / folder).mkdir(parents=True)
    names = []
    for scene in synthetic_scenes(6, size=(48, 56), n_labels=3, seed=1):
        Image.fromarray(scene.image).save(root / "images" / f"{scene.name}.png")
        Image.fromarray(scene.mask).save(root / "labels" / f"{scene.name}.png")
        np.save(root / "unaries" / f"{scene.name}.npy", scene.probabilities)
        names.append(scene.name)
    (root / "train.txt").write_text("\n".join(names[:4]) + "\n")
    (root / "test.txt").write_text("\n".join(names[4:]) + "\n")
    description = {"n_labels": 3, "unaries": {"folder": "unaries", "kind": "probabilities"}}
    (root / "dataset.json").write_text(json.dumps(description))
    return root


def scores(capsys, *words):
    assert main(["evaluate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_learning_beats_its_input_on_other_images(dataset, capsys):
    command = ["learn", "data", "--split", "train", "-o", "model", "--max-iter", "6", "--jobs", "2",
               "--learn", "unary,compat,kernel"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert "loss" in printed.out
    assert "mean IoU" in printed.err
    report = json.loads(Path("model.json").read_text())
    assert report["losses"][report["best_iteration"]] < report["losses"][0]
    found = scores(capsys, "model", "data", "--split", "test")
    assert found["model"]["mean_iou"] > found["input"]["mean_iou"]
    assert main(["evaluate", "model", "data", "--split", "test"]) == 0
    assert capsys.readouterr().out.count("mean IoU") == 2


def test_an_interrupted_run_leaves_a_model_and_resumes(dataset, capsys, monkeypatch):
    command = ["learn", "data", "--split", "train", "--learn", "compat,kernel", "--compatibility",
               "potts", "--max-iter", "4", "--quiet"]
    assert main([*command, "-o", "whole"]) == 0

    save = DenseCRF.save
    saved = []

    def interrupt(model, path):
        save(model, path)
        saved.append(path)
        if len(saved) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DenseCRF, "save", interrupt)
        assert main([*command, "-o", "part"]) == 130
    assert "--resume" in capsys.readouterr().err
    DenseCRF.load("part")
    assert main([*command, "-o", "part", "--resume"]) == 0
    assert Path("part").read_bytes() == Path("whole").read_bytes()


def test_validation_split_is_used(dataset, capsys):
    command = ["learn", "data", "--split", "train", "--validation", "test", "-o", "model",
               "--loss", "hamming", "--optimizer", "adam", "--max-iter", "2"]
    assert main(command) == 0
    assert len(json.loads(Path("model.json").read_text())["validation_ious"]) == 3


@pytest.mark.parametrize(("words", "expected"), [
    (["--split", "none"], "none"),
    (["--split", "train", "--l2", "unary"], "GROUP=NUMBER"),
    (["--split", "train", "--learn", "all"], "learn must name some of"),
    (["--split", "train", "--start", "nothing"], "does not exist"),
])
def test_wrong_requests(dataset, capsys, words, expected):
    assert main(["learn", "data", "-o", "model", *words]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert not Path("model").exists()


def test_a_model_for_other_labels_is_refused(dataset, capsys):
    DenseCRF(5).save("other")
    assert main(["evaluate", "other", "data"]) == 2
    assert "5 labels" in capsys.readouterr().err
