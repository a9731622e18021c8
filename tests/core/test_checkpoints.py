"""Records of a run on disk: what comes back, what is refused, and what ends a file."""

import numpy as np
import pytest

from crfield._core.checkpoints import Checkpoint, read_state, write_state
from refusal import refusal

POINTS = [np.array([1.0, 2.0]), np.array([3.0, -4.0]), np.array([np.pi, 1e-300])]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "run"


def fill(path):
    checkpoint = Checkpoint(path, {"seed": 1}, resume=False)
    for number, point in enumerate(POINTS):
        checkpoint.append(point, number, np.full((2, 2), number))
    return path.read_bytes()


def test_evaluations_come_back_in_order_until_the_course_differs(path):
    fill(path)
    again = Checkpoint(path, {"seed": 1}, resume=True)
    value, matrix = again.recall(POINTS[0])
    assert value.tolist() == [0.0]
    assert matrix.tolist() == [0.0] * 4
    assert again.recall(POINTS[1])[0] == 1.0
    assert again.recall(POINTS[0]) is None, "the next point was another one"
    assert again.recall(POINTS[2]) is None, "what came after it is dropped"
    again.append(POINTS[0], 7.0)
    resumed = Checkpoint(path, {"seed": 1}, resume=True)
    assert [float(record[1][0]) for record in resumed.records] == [0.0, 1.0, 7.0]


def test_a_point_is_known_to_the_last_bit(path):
    fill(path)
    close = POINTS[0] * (1 + 1e-16 + np.finfo(float).eps)
    assert Checkpoint(path, {"seed": 1}, resume=True).recall(close) is None


def test_without_resuming_a_file_starts_anew(path):
    whole = fill(path)
    assert Checkpoint(path, {"seed": 1}, resume=False).records == []
    assert whole.startswith(path.read_bytes())


def test_every_cut_and_every_altered_byte_ends_the_file_before_it(path):
    whole = fill(path)
    header = whole.index(b"\n") + 1
    length = (len(whole) - header) // len(POINTS)
    for end in range(header, len(whole), 5):
        path.write_bytes(whole[:end])
        kept = (end - header) // length
        assert len(Checkpoint(path, {"seed": 1}, resume=True).records) == kept
        assert path.read_bytes() == whole[: header + kept * length]
        altered = bytearray(whole)
        altered[end] ^= 64
        path.write_bytes(altered)
        assert len(Checkpoint(path, {"seed": 1}, resume=True).records) == kept


def test_another_run_is_refused_with_what_differs(path):
    whole = fill(path)
    for run, words in (({"seed": 2}, "other seed"), ({"seed": 1, "data": 3}, "other data")):
        assert words in refusal(Checkpoint, path, run, resume=True)
        assert path.read_bytes() == whole
    for content in (b"", b"no JSON\n", b"[1]\n", b"[" * 10_000 + b"\n"):
        path.write_bytes(content)
        assert "belongs to another run" in refusal(Checkpoint, path, {"seed": 1}, resume=True)


def test_a_state_replaces_the_one_before(path):
    assert read_state(path, {"seed": 1}, resume=True) is None
    for epoch in (1.0, 2.0):
        write_state(path, {"seed": 1}, [epoch], np.arange(6).reshape(2, 3), [])
    epoch, numbers, nothing = read_state(path, {"seed": 1}, resume=True)
    assert epoch.tolist() == [2.0]
    assert numbers.tolist() == [0, 1, 2, 3, 4, 5]
    assert len(nothing) == 0
    assert "other seed" in refusal(read_state, path, {"seed": 2}, resume=True)
    whole = path.read_bytes()
    header = whole[: whole.index(b"\n") + 1]
    for content in (header, whole[:-1], whole + b"\0", whole + whole[len(header) :]):
        path.write_bytes(content)
        assert "one whole state" in refusal(read_state, path, {"seed": 1}, resume=True)


def test_no_other_file_becomes_a_state(path):
    path.write_bytes(b"\x89PNG precious")
    for function, arguments, options in (
        (read_state, (), {"resume": False}), (write_state, ([1.0],), {}),
    ):
        message = refusal(function, path, {"seed": 1}, *arguments, **options)
        assert "must be a new file or replace a checkpoint" in message
    assert path.read_bytes() == b"\x89PNG precious"


def test_a_state_that_is_not_resumed_is_replaced(path):
    for seed in (1, 2):
        assert read_state(path, {"seed": seed}, resume=False) is None
        write_state(path, {"seed": seed}, [7.0])
    assert read_state(path, {"seed": 2}, resume=True)[0].tolist() == [7.0]
