"""`crfield learn` survives being killed: a resumed run ends as if nothing had happened."""

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from crfield import Bilateral, DenseCRF, Inference, Pairwise, Potts
from crfield.cli import main
from crfield.estimators import TrainingImage
from crfield.learning import DatasetObjective, learn
from refusal import refusal
from small_dataset import write_dataset

pytest.importorskip("scipy")

N_KILLS = 20
COMMAND = ["learn", "data", "--split", "train", "--learn", "unary,compatibility,kernel",
           "--optimizer", "adam", "--max-iter", "24", "--tol", "0", "--quiet"]
N_EVALUATIONS = 1 + 24 * 2  # the start; then a batch and all images in each epoch


def size_of(path):
    return path.stat().st_size if path.exists() else -1


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_twenty_kills_change_nothing(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_dataset("data", n_train=2, size=(16, 20))
    assert main([*COMMAND, "-o", "whole"]) == 0
    whole, checkpoint, model = Path("whole.checkpoint"), Path("part.checkpoint"), Path("part")
    header = whole.read_bytes().index(b"\n") + 1
    record = (whole.stat().st_size - header) // N_EVALUATIONS
    rng = random.Random(0)
    codes, sizes = [], []
    for number in range(N_KILLS):
        # The first run is killed as it starts, the second as soon as there is a checkpoint, the
        # others when it has grown by up to three records, some of them at once.
        growth = rng.choice((0, 1, 1, 1)) * rng.randint(1, 3 * record)
        goal = number - 1 if number < 2 else size_of(checkpoint) + growth
        with subprocess.Popen(
            [sys.executable, "-m", "crfield", *COMMAND, "-o", "part", "--resume"]
        ) as process:
            while process.poll() is None and size_of(checkpoint) < goal:
                pass
            process.kill()
        codes.append(process.returncode)
        sizes.append(size_of(checkpoint))
        if model.exists():
            DenseCRF.load(model)  # whole, whenever the kill came
        if sizes[-1] > header and rng.random() < 0.4:  # the last record did not all reach the disk
            os.truncate(checkpoint, rng.randint(max(header, sizes[-1] - record), sizes[-1]))
    assert codes.count(-signal.SIGKILL) >= N_KILLS // 2, codes
    assert len(set(sizes)) >= N_KILLS // 3, sizes
    n_known = (size_of(checkpoint) - header) // record
    computed, evaluate = [], DatasetObjective.__call__

    def count(objective, *arguments):
        computed.append(arguments)
        return evaluate(objective, *arguments)

    monkeypatch.setattr(DatasetObjective, "__call__", count)
    assert main([*COMMAND, "-o", "part", "--resume"]) == 0
    assert len(computed) == N_EVALUATIONS - n_known
    expected, found = load_file("whole"), load_file("part")
    assert expected.keys() == found.keys()
    for name in expected:
        assert expected[name].tobytes() == found[name].tobytes(), name
    assert checkpoint.read_bytes() == whole.read_bytes()


def test_resuming_before_there_is_a_checkpoint_begins_anew(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_dataset("data", n_train=2, size=(16, 20))
    command = [*COMMAND[:-1], "--max-iter", "1"]
    assert main([*command, "-o", "whole"]) == 0
    assert "starting anew" not in capsys.readouterr().err
    assert main([*command, "-o", "part", "--resume"]) == 0
    assert "no part.checkpoint to resume; starting anew" in capsys.readouterr().err
    assert Path("part").read_bytes() == Path("whole").read_bytes()
    assert main([*command, "-o", "part", "--resume"]) == 0
    assert "starting anew" not in capsys.readouterr().err


def run(checkpoint, resume=False):
    """A whole run on two images of noise; the parameters that it ends with."""
    rng = np.random.default_rng(0)
    examples = [
        TrainingImage(
            rng.uniform(0, 255, (6, 7, 3)), rng.normal(size=(6, 7, 2)), rng.integers(0, 2, (6, 7))
        )
        for _ in range(2)
    ]
    learned = learn(
        DenseCRF(2, [Pairwise(Bilateral(2, 60), Potts(1))]), examples, loss="hamming",
        learn=("unary", "compatibility", "kernel"),
        inference=Inference("concave", "exact", max_iter=2),
        max_iter=6, checkpoint=checkpoint, resume=resume,
    )
    kernel = learned.model.terms[0].kernel
    return [
        learned.model.terms[0].compatibility.weight, kernel.sigma_xy, kernel.sigma_color,
        *learned.model.recalibration.ravel(), *learned.report.losses,
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A checkpoint of a whole run, the length of its first line, and what the run ended with."""
    path = tmp_path_factory.mktemp("whole") / "checkpoint"
    expected = run(path)
    data = path.read_bytes()
    return data, data.index(b"\n") + 1, expected


@pytest.mark.slow
@settings(max_examples=30)
@given(data=st.data())
def test_a_checkpoint_cut_or_altered_anywhere_after_its_first_line(whole, tmp_path_factory, data):
    checkpoint, header, expected = whole
    path = tmp_path_factory.mktemp("cut") / "checkpoint"
    content = bytearray(checkpoint[: data.draw(st.integers(header, len(checkpoint)), "end")])
    if len(content) > header and data.draw(st.booleans(), "alter"):
        content[data.draw(st.integers(header, len(content) - 1), "where")] ^= 1
    path.write_bytes(content)
    assert run(path, resume=True) == expected
    assert path.read_bytes() == checkpoint


def test_a_checkpoint_without_its_first_line_is_refused(whole, tmp_path):
    checkpoint, header, _ = whole
    path = tmp_path / "checkpoint"
    for end in (0, 1, header - 1):
        path.write_bytes(checkpoint[:end])
        assert "belongs to another run" in refusal(run, path, resume=True)
        assert path.read_bytes() == checkpoint[:end]
