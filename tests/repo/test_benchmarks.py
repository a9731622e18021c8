"""The benchmark's own arithmetic, its refusals and its files, at a size that times nothing."""

import dataclasses
import json
import math

import numpy as np
import pytest

from benchmarks import cases, folder, interrupts, memory, patterns, run, speed
from benchmarks.cases import TINY, Disagreement, photo_case, require_agreement
from benchmarks.growth import TableSize, iteration_floor, table_sizes
from benchmarks.measure import (
    Section,
    copy_bandwidth,
    fastest,
    milliseconds,
    ratio,
    times,
    write_json,
)
from crfield.cli import main


def test_candidates_take_turns_and_the_first_round_does_not_count():
    order = []
    best = fastest({name: lambda name=name: order.append(name) for name in "ab"}, repeats=2)
    assert order == list("ababab")
    assert set(best) == {"a", "b"}
    assert all(0 <= seconds < math.inf for seconds in best.values())


def test_ratios_and_how_they_are_shown():
    assert ratio(3.0, 2.0) == 1.5
    assert ratio(None, 2.0) is None
    assert ratio(3.0, None) is None
    assert ratio(3.0, 0.0) is None
    assert times(1.5) == "1.50 x"
    assert times(None) == ""
    assert milliseconds(0.01234) == "12.3"
    assert milliseconds(12.34) == "12340"


def test_a_section_prints_its_tables_and_refusals():
    section = Section("part", "A part")
    section.add_table(["case", "ms"], [["small", "1.0"], ["large", "12.0"]])
    section.add_table(["case", "ms"], [])

    def refuse():
        raise Disagreement("large: wrong; not timed.")

    assert section.accepts(lambda: 0.5) == 0.5
    assert section.accepts(refuse) is None
    assert section.text() == (
        "## A part\n\n| case  |   ms |\n| ----- | ---: |\n| small |  1.0 |\n| large | 12.0 |\n\n"
        "REFUSED: large: wrong; not timed."
    )


@pytest.mark.parametrize("difference", [0.01, 0.5, math.nan])
def test_what_disagrees_is_refused(difference):
    assert require_agreement("case", "the reference's", 0.0099) == 0.0099
    with pytest.raises(Disagreement, match="not timed"):
        require_agreement("case", "the reference's", difference)


def test_a_wrong_result_of_the_library_is_refused(monkeypatch):
    case = photo_case((46, 50), 2)

    def wrong(self, n_iter=5):
        return np.full((2, self.n_variables), 0.5, np.float32)

    monkeypatch.setattr(cases, "HAS_PYDENSECRF", True)
    monkeypatch.setattr(cases.Case, "infer_pydensecrf", wrong)
    with pytest.raises(Disagreement, match="pydensecrf"):
        cases.check_case(case)


def test_a_refusal_makes_the_run_fail_and_is_in_the_file(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cases, "LARGEST_MEAN_DIFFERENCE", 0.0)
    assert run.run(TINY, [speed.two_images_at_once], tmp_path) == 1
    assert "REFUSED" in capsys.readouterr().out
    (path,) = tmp_path.iterdir()
    content = json.loads(path.read_text())
    assert content["sections"]["throughput"]["refused"]
    assert "seconds" not in content["sections"]["throughput"]


def test_every_part_but_processes_of_its_own_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(cases, "LARGEST_MEAN_DIFFERENCE", 1.0)  # tiny photos are hard for lattices
    monkeypatch.setattr(cases, "SMALL_GRID", (20, 24))
    parts = [part for name, part in run.SECTIONS.items() if name != "memory"]
    assert run.run(TINY, parts, tmp_path / "new") == 0
    (path,) = (tmp_path / "new").iterdir()
    content = json.loads(path.read_text())
    assert set(content["sections"]) == set(run.SECTIONS) - {"memory"}
    assert {"CPU", "NumPy", "crfield", "repeats"} <= set(content)
    assert not any(section["refused"] for section in content["sections"].values())
    assert capsys.readouterr().out.count("\n## ") == len(parts)


@pytest.mark.slow
def test_peak_memory_comes_from_a_process_of_its_own():
    pytest.importorskip("resource", reason="Windows does not tell")
    report = memory.in_own_process("crfield", (20, 24), 2, 1)
    assert report["input_bytes"] == 20 * 24 * (3 + 2 * 4)
    assert report["peak_bytes"] >= report["growth_bytes"] >= 0
    with pytest.raises(SystemExit, match="failed"):
        memory.in_own_process("another", (20, 24), 2, 1)


def test_the_file_holds_numbers_only(tmp_path):
    section = Section("part", "A part", data={"seconds": {"a": math.nan}})
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path, {}, [section])


def test_floors_count_what_is_said():
    floor = iteration_floor(1000, 21, [TableSize(2, 10, 16), TableSize(6, 20, 48)])
    assert floor.memory_bytes == 1000 * (84 + 48 + 16) + 2 * 30 * 96
    assert floor.cache_bytes == 3 * 1000 * 8 * 96
    assert floor.operations == 1000 * 21 * (25 + 4 * 8) + 21 * (16 * 10 + 48 * 20)
    assert iteration_floor(1, 2, []).memory_bytes == 8
    assert copy_bandwidth(1 << 12, 1) > 0
    small = photo_case((60, 80), 2)
    assert [(size.corners, size.blur_operations) for size in table_sizes(small)] == [
        (2, 16), (6, 48)
    ]


def test_tiles_repeat_the_case():
    case = photo_case((46, 45), 2)
    twice = cases.tiled_case(case, 2)
    assert twice.image.shape == (92, 90, 3)
    assert twice.unary.flags.c_contiguous
    assert np.array_equal(twice.unary[46:, 45:], case.unary)


def test_unknown_parts_are_refused(capsys):
    with pytest.raises(SystemExit):
        run.main(["--only", "nothing"])
    assert "invalid choice" in capsys.readouterr().err


def test_patterns_are_timed(tmp_path, capsys, monkeypatch):
    assert patterns.run(patterns.TINY, tmp_path) == 0
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())["sections"]["patterns"]
    assert found["images_per_second"] > 0
    assert "images per second" in capsys.readouterr().out

    def falls(model, inputs, **options):
        return dataclasses.replace(result, scores=result.scores[::-1] - np.arange(2)[:, None])

    case = patterns.Case(patterns.TINY)
    result = patterns.infer(case.model, case.inputs, max_iter=1)
    monkeypatch.setattr(patterns, "infer", falls)
    assert patterns.run(patterns.TINY, tmp_path / "refused") == 1


@pytest.mark.slow
@pytest.mark.parametrize("masks", [False, True], ids=["labels", "masks"])
def test_every_image_of_a_folder_is_timed(monkeypatch, masks):
    monkeypatch.setattr(folder, "COUNTED", 3)
    rows = folder.measure(6, masks)
    assert [row[0] for row in rows] == ["1", "2"]
    assert all(float(cell) > 0 for row in rows for cell in row)


@pytest.mark.slow
def test_commands_that_are_interrupted_would_otherwise_end(tmp_path, monkeypatch):
    monkeypatch.setattr(interrupts, "GRID", 4)
    interrupts.make(tmp_path, side=24)
    known = set(tmp_path.iterdir())
    for name, command in interrupts.commands(tmp_path).items():
        assert main(command) == 0, name
        assert interrupts.left(tmp_path, known), name
        assert set(tmp_path.iterdir()) == known
