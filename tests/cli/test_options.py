"""Options that are mistyped, out of range or at odds with each other."""

from __future__ import annotations

import pytest

from crfield import InputError
from crfield.cli import main
from crfield.learning.objective import check_jobs, visit


@pytest.mark.parametrize(("words", "expected"), [
    (["--spatial", "3", "--no-spatial"], "--spatial has no meaning with --no-spatial"),
    (["--no-spatial", "--spatial", "3"], "--spatial has no meaning with --no-spatial"),
    (["--no-spatial", "--spatial-weight", "3"], "--spatial-weight has no meaning"),
    (["--no-bilateral", "--bilateral", "3", "4"], "--bilateral has no meaning with --no-bilateral"),
    (["--model", "m", "--no-bilateral"], "--no-bilateral has no meaning with --model"),
])
def test_contradictions_are_refused(capsys, words, expected):
    assert main(["refine", "photo.png", "--labels", "mask.png", *words]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.endswith("leave one of the two out.\n")


@pytest.mark.parametrize(("command", "typed", "meant"), [
    ("refine", "--iterations", "--max-iter"), ("learn", "--n-jobs", "--jobs"),
    ("refine", "--workers", "--jobs"), ("learn", "--force", "--overwrite"),
    ("graph", "--max-itr", "--max-iter"), ("refine", "--probabilites", "--probabilities"),
])
def test_hints_name_what_is_meant(capsys, command, typed, meant):
    assert main([command, "x", typed, "3"]) == 2
    assert f"there is no {typed}; did you mean {meant}?" in capsys.readouterr().err


@pytest.mark.parametrize(("words", "expected"), [
    (["--logits", "a b.npy"], "--logits takes no file: write --probabilities 'a b.npy' --logits"),
    (["--logits=a.npy"], "--logits takes no file: write --probabilities a.npy --logits"),
    (["--labels", "m/1.png", "m/2.png", "m/3.png"], "or a folder; give the folder: --labels m\n"),
    (["--probs", "1.npy", "2.npy", "--overlay"], "give the folder: --probs .\n"),
])
def test_files_too_many_are_told_where_they_go(capsys, words, expected):
    assert main(["refine", "photo.png", *words]) == 2
    assert expected in capsys.readouterr().err


def test_files_that_are_right_are_not_blamed(capsys):
    assert main(["refine", "--probs", "a.npy", "--logits", "photo.png", "--tol", "x"]) == 2
    assert "--tol" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("typed", ["--iterations", "--workers"])
def test_hints_are_close_or_absent(capsys, typed):
    assert main(["app", typed, "3"]) == 2
    assert "did you mean" not in capsys.readouterr().err


@pytest.mark.parametrize("jobs", ["0", "-2", "1000000"])
@pytest.mark.parametrize("command", [
    ["refine", "photos", "--labels", "masks"], ["learn", "data", "-o", "model"],
], ids=["refine", "learn"])
def test_numbers_of_jobs_that_make_no_sense(capsys, command, jobs):
    assert main([*command, "--jobs", jobs]) == 2
    assert capsys.readouterr().err == (
        f"crfield: error: --jobs must be at least 1 and at most 1024, got {jobs}; choose a value "
        "in that range.\n")


@pytest.mark.parametrize("n_jobs", [0, 1_000_000, -1_000_000, 2.5, "2", None])
def test_the_same_in_python(n_jobs):
    for function in (check_jobs, lambda n: visit(None, None, [], [], [], n)):
        with pytest.raises(InputError, match="n_jobs must be a whole number from 1 to 1024, "):
            function(n_jobs)
