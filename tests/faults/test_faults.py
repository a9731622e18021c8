"""A few tries of every kind of fault that `run.py` knows: nothing lost, all explained."""

import os
import signal
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("scipy")
pytest.importorskip("joblib")
if not hasattr(os, "fork") or not sys.platform.startswith("linux"):
    pytest.skip("needs fork, limits and /proc as Linux has them", allow_module_level=True)

from crfield import DenseCRF, InputError
from crfield._core.checkpoints import Checkpoint
from crfield.cli import main
from crfield.io.arrays import read_npy
from crfield.learning.objective import fingerprint
from tests.faults import kills, processes
from tests.faults import run as faults
from tests.faults.world import SCRATCH, World

# In a fresh interpreter each, or with workers that have to start.
SLOW = ("nobody listens", "odd surroundings", "a worker is killed",
        "killed while refining several at a time")
QUICK = ("killed while saving a model", "killed while writing labels",
         "disk full while saving a model", "disk full while writing labels", "damaged model")


@pytest.fixture(scope="module")
def world():
    # Not pytest's folder, which is closed to other users.
    with tempfile.TemporaryDirectory(dir=SCRATCH) as name:
        yield World(Path(name))


@pytest.mark.slow
@pytest.mark.parametrize("kind", faults.KINDS, ids=lambda kind: kind.name.replace(" ", "-"))
def test_nothing_is_lost_corrupted_or_unclear(kind, world):
    tries = 1 if kind.name in SLOW else 20 if kind.name in QUICK else 2
    for number in range(tries):
        found = faults.attempt(kind, world, 100, number)
        assert not found, f"try {number} of {kind.name!r}, seed 100: {found}"


@pytest.mark.slow
def test_any_of_the_last_calls_of_saving_may_be_its_last(world, tmp_path):
    path, last = tmp_path / "model", kills.calls_of(world, "save")
    codes = set()
    # How many calls there are varies a little from process to process: on until one gets through.
    for number in range(max(1, last - 200), last + 500):
        path.write_bytes(world.learned)
        kill = processes.at_call(number, processes.send(signal.SIGKILL))
        codes.add(processes.run_child(lambda: world.model.save(path), kill).code)
        assert path.read_bytes() in (world.learned, world.start.read_bytes()), number
        if 0 in codes:
            break
    assert codes == {0, -signal.SIGKILL}


def test_the_table_in_the_documentation_is_clean():
    text = faults.TABLE.read_text(encoding="utf-8")
    rows = [row.split(" | ") for row in text.splitlines() if row.startswith("| ")][1:]
    assert [row[0].removeprefix("| ") for row in rows] == [kind.name for kind in faults.KINDS]
    assert [row[1] for row in rows] == [kind.how for kind in faults.KINDS]
    assert len(rows) >= 40
    for row in rows:
        assert int(row[2]) >= 20
        assert row[3:6] == ["0", "0", "0"], row


def test_terminated_runs_tidy_up_and_restore_the_signal(world, tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    assert main(["refine", str(tmp_path / "none.png"), "--labels", "none.png"]) == 2
    assert signal.getsignal(signal.SIGTERM) is before
    stop = processes.at_call(5000, processes.send(signal.SIGTERM))
    ended = processes.run_child(lambda: main(world.learn(tmp_path / "model")), stop)
    assert ended.code == 130
    assert ended.err.startswith("crfield: interrupted")


def test_a_changed_image_is_told_from_the_one_learned_from():
    rest = {"truth": np.zeros((2, 2), int), "unary": np.zeros((2, 2, 2))}
    images = np.zeros((2, 2, 3)), np.ones((2, 2, 3)), None
    assert len({fingerprint([SimpleNamespace(image=image, **rest)]) for image in images}) == 3


def test_records_of_another_run_end_a_checkpoint(tmp_path):
    path, vector = tmp_path / "checkpoint", np.zeros(2)
    first = Checkpoint(path, {"data": 1}, resume=False)
    second = Checkpoint(path, {"data": 2}, resume=False)
    first.append(vector, 1.0)  # into the file that the second run has begun anew
    second.append(vector, 2.0)
    resumed = Checkpoint(path, {"data": 2}, resume=True)
    assert resumed.records == []
    assert resumed.recall(vector) is None


def test_arrays_that_announce_more_than_there_is(tmp_path):
    path = tmp_path / "array.npy"
    for shape in ("(1000000, 1000000)", "(-1, 4)", "(4611686018427387904, 4)"):
        header = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}}}\n".encode()
        path.write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header + bytes(64))
        with pytest.raises(ValueError, match=r"in .* bytes"):
            read_npy(path, lambda shape: None)


@pytest.mark.parametrize("suffix", kills.LabelFile.SUFFIXES)
def test_a_disk_that_keeps_a_part_of_a_picture_does_not_pass_for_done(suffix, tmp_path):
    file = kills.LabelFile(np.random.default_rng(0), tmp_path, suffix)
    before = file.path.read_bytes()
    few = processes.limit_files(file.size - 100, kill=False)
    ended = processes.run_child(lambda: processes.told(file.replace), few)
    assert ended.code == 2
    assert "file too large; make room there" in ended.err
    assert file.path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == [file.path.name]


def test_unreadable_models_are_not_called_damaged(world):
    path = world.root / "closed"
    world.model.save(path)
    path.chmod(0)

    def load():
        processes.become_nobody()
        try:
            DenseCRF.load(path)
        except InputError as error:
            print(error)

    assert "permission denied" in processes.run_child(load).out
