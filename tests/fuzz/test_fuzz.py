"""The fuzzer's own cases, a few for every entry point and every kind of file that is read."""

import warnings

import pytest

from crfield import InputError

pytest.importorskip("resource", reason="limits as POSIX systems have them")
pytest.importorskip("nibabel")
pytest.importorskip("tifffile")
from tests.fuzz import run as fuzz
from tests.fuzz.calls import Call, Wrong
from tests.fuzz.mutations import damaged
from tests.fuzz.readers import Target, try_input
from tests.fuzz.values import Maker

CASES = 40


@pytest.mark.slow
@pytest.mark.parametrize("entry", fuzz.MAKERS)
def test_a_right_answer_or_a_refusal(entry):
    outcomes = []
    for number in range(CASES):
        ending = fuzz.judge(Maker([77, number], hostile=number % 2 == 1), entry)
        assert ending.outcome != fuzz.FINDING, f"case {number}: {ending.where}\n{ending.text}"
        outcomes.append(ending.outcome)
    assert outcomes[::2].count(fuzz.VALID) >= CASES / 4, "gentle cases must get through"


@pytest.mark.parametrize(("answers", "where"), [
    ([ZeroDivisionError(), 1], "ZeroDivisionError"), ([1, 2], "another result"),
    ([ValueError("no InputError"), 1], "ValueError"), ([float("nan"), 1], "Wrong"),
])
def test_findings_are_found(answers, where, monkeypatch):
    given = iter(answers)

    def run():
        answer = next(given)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def check(answer):
        if answer != answer:
            raise Wrong("no number")

    monkeypatch.setitem(fuzz.MAKERS, "broken", (1, lambda maker: Call(run, check, {})))
    ending = fuzz.judge(Maker([0]), "broken")
    assert ending.outcome == fuzz.FINDING
    assert where in ending.where + ending.text


def test_gentle_files_stay_whole_and_hostile_ones_do_not():
    content = bytes(range(256)) * 4
    assert damaged(Maker([1], hostile=False), content) == content
    maker = Maker([1], hostile=True)
    spoiled = [damaged(maker, content, b"other" * 50) for _ in range(60)]
    assert sum(data != content for data in spoiled) > 50
    assert len({len(data) for data in spoiled}) > 10


@pytest.mark.parametrize(("raised", "passes"), [
    (InputError("expected a file, got none; name one."), InputError),
    (InputError("no remedy"), Wrong),
    (MemoryError(), Wrong), (KeyError("name"), KeyError), (UserWarning("odd"), UserWarning),
])
def test_a_target_may_only_answer_or_refuse(raised, passes):
    def read(data):
        if isinstance(raised, Warning):
            warnings.warn(raised, stacklevel=1)
        raise raised

    with pytest.raises(passes) as found:
        try_input(Target(lambda: [b""], read), b"")
    assert type(found.value) is passes


def test_one_entry_point_can_be_run_alone():
    endings = [fuzz.run_case(5, number, "read settings") for number in range(20)]
    assert {ending.entry for ending in endings} == {"read settings"}
    assert {ending.outcome for ending in endings} == {fuzz.VALID, fuzz.REFUSED}
