"""`crfield learn` and `crfield evaluate` on a folder of small scenes."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import crfield.cli.learn as learn_command
import crfield.cli.progress as progress_module
from crfield import DenseCRF
from crfield.cli import main
from crfield.cli.progress import LearningProgress
from crfield.datasets import FolderDataset
from crfield.learning import LearningReport
from small_dataset import write_dataset

pytest.importorskip("scipy")


@pytest.fixture
def dataset(tmp_path, monkeypatch):
    """Six scenes as files, four to learn from and two to score on."""
    monkeypatch.chdir(tmp_path)
    return write_dataset("data", n_train=4, n_test=2)


@pytest.fixture
def small_dataset(tmp_path, monkeypatch):
    """Two scenes of a few hundred pixels."""
    monkeypatch.chdir(tmp_path)
    return write_dataset("data", n_train=2, size=(16, 20))


def scores(capsys, *words):
    assert main(["evaluate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_learning_beats_its_input_on_other_images(dataset, capsys):
    command = ["learn", "data", "--split", "train", "-o", "model", "--max-iter", "6", "--tol", "0",
               "--jobs", "2", "--learn", "unary,compatibility,kernel"]
    assert main(command) == 0
    printed = capsys.readouterr()
    assert re.search(r"model: loss .* mean IoU .* on train; see model.report.html\n", printed.out)
    assert printed.out.endswith("\nstopped: --max-iter was reached\n")
    lines = printed.err.splitlines()
    assert len(lines) == 7
    for number, line in enumerate(lines):
        assert re.match(rf"{number}/6  loss 0\.\d{{4}}  mean IoU \d+\.\d\d %", line)
        assert line.endswith(" left") == (0 < number < 6)
    assert {path.name for path in Path().iterdir()} == {
        "data", "model", "model.checkpoint", "model.report.html"}
    found = scores(capsys, "model", "data", "--split", "test")
    assert found["model"]["mean_iou"] > found["input"]["mean_iou"]
    assert main(["evaluate", "model", "data", "--split", "test"]) == 0
    assert capsys.readouterr().out.count("mean IoU") == 2


def test_evaluate_writes_what_the_model_finds(dataset, capsys):
    command = ["learn", "data", "--split", "train", "-o", "model", "--max-iter", "1", "--quiet",
               "--inference-max-iter", "3"]
    assert main(command) == 0
    assert main(["evaluate", "model", "data", "--split", "test", "-o", "out/found"]) == 0
    examples, model = FolderDataset("data", "test"), DenseCRF.load("model")
    assert model.max_iter == 3
    assert len(list(Path("out/found").iterdir())) == len(examples) == 2
    for example in examples:
        expected = model.infer(example.image, example.unary, tol=0.0)
        assert expected.n_iter == 3
        with Image.open(f"out/found/{example.name}_refined.png") as found:
            np.testing.assert_array_equal(np.asarray(found), expected.labels)
    capsys.readouterr()
    Path("taken").touch()
    assert main(["evaluate", "model", "data", "-o", "taken"]) == 2
    assert "expected a folder" in capsys.readouterr().err


@pytest.mark.slow
def test_a_model_learned_on_shrunken_images_is_for_the_full_size(dataset, capsys):
    command = ["learn", "data", "--split", "train", "--quiet", "--compatibility", "potts"]
    assert main([*command, "-o", "small", "--shrink", "2", "--max-iter", "3"]) == 0
    assert main([*command, "-o", "1", "--max-iter", "0"]) == 0
    assert main([*command, "-o", "2", "--shrink", "2", "--start", "1", "--max-iter", "0"]) == 0
    (spatial, bilateral), (same_spatial, same_bilateral) = (
        [term.kernel for term in DenseCRF.load(name).terms] for name in ("1", "2")
    )
    assert same_spatial.sigma == pytest.approx(spatial.sigma)
    assert same_bilateral.sigma_xy == pytest.approx(bilateral.sigma_xy)
    found = scores(capsys, "small", "data", "--split", "test")
    assert found["model"]["mean_iou"] > found["input"]["mean_iou"]
    assert main([*command, "-o", "x", "--shrink", "0"]) != 0
    assert "--shrink must be" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupted_run_leaves_a_model_and_resumes(small_dataset, capsys, monkeypatch):
    command = ["learn", "data", "--split", "train", "--learn", "compatibility,kernel",
               "--compatibility",
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


def test_validation_split_and_report(dataset, capsys):
    (dataset / "classes.txt").write_text("wall\nchair\nfloor lamp\n")
    command = ["learn", "data", "--split", "train", "--validation", "test", "-o", "model",
               "--loss", "hamming", "--optimizer", "adam", "--max-iter", "2", "--json"]
    assert main(command) == 0
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert [len(facts[name]) for name in ("losses", "mean_ious", "validation_ious")] == [3, 3, 3]
    assert f"validation {100 * facts['validation_ious'][-1]:.2f} %" in printed.err
    page = Path("model.report.html").read_text("utf-8")
    for words in ("floor lamp", "Validation images", "<td class=\"number\">ExpectedHamming</td>",
                  f"{facts['losses'][0]:.4f} → {facts['losses'][facts['best_iteration']]:.4f}"):
        assert words in page


@pytest.mark.slow
def test_quiet_prints_nothing(small_dataset, capsys):
    command = ["learn", "data", "--split", "train", "-o", "model", "--max-iter", "1", "--quiet"]
    assert main(command) == 0
    assert main([*command, "--resume"]) == 0
    Path("model.checkpoint").unlink()
    assert main([*command, "--resume"]) == 0
    assert capsys.readouterr() == ("", "")
    assert Path("model.report.html").exists()


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def course(n):
    """The report after iteration n - 1."""
    return LearningReport(losses=[0.5] * n, mean_ious=[0.25] * n, validation_ious=[0.75] * n)


def test_on_a_terminal_one_line_is_redrawn(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    stream = Terminal()
    with LearningProgress(2, 5, stream=stream) as progress:
        progress._bar.mininterval = 0
        progress.visit(3)
        for iteration in range(3):
            progress.iteration_done(iteration, course(iteration + 1))
            progress.visit(iteration)
    shown = stream.getvalue()
    assert shown.count("\n") == 1
    assert shown.endswith("\n")
    assert "0/2 |        | image 4/5" in shown
    assert "1/2 |████    | loss 0.5000  mean IoU 25.00 %  validation 75.00 %" in shown
    assert shown.rstrip().rsplit("\r", 1)[-1].split("| ")[-1].strip() == (
        "loss 0.5000  mean IoU 25.00 %  validation 75.00 %"), "the end does not speak of an image"


def test_the_time_left_counts_what_was_computed(monkeypatch):
    """Two iterations come from the checkpoint; then two are computed, of 30 and 50 seconds."""
    clock = iter([0.0, 0.1, 0.2, 0.3, 30.3, 80.3])
    monkeypatch.setattr(progress_module.time, "monotonic", lambda: next(clock))
    stream = io.StringIO()
    with LearningProgress(10, 5, stream=stream) as progress:
        for iteration in range(5):
            if iteration > 2:
                progress.visit(0)
            progress.iteration_done(iteration, course(iteration + 1))
    lines = stream.getvalue().splitlines()
    assert [line.endswith(" left") for line in lines] == [False, False, False, True, True]
    assert lines[3].endswith("  03:30 left")
    assert lines[4].endswith("  04:00 left")


INTERRUPTIBLE = """
import signal, sys
from crfield.cli import main
from crfield.learning import DatasetObjective

evaluate, calls, stop = DatasetObjective.__call__, [], int(sys.argv[1])

def wait_at_the_last(self, *arguments):
    calls.append(arguments)
    if len(calls) == stop:
        print("waiting", flush=True)
        signal.pause()
    return evaluate(self, *arguments)

DatasetObjective.__call__ = wait_at_the_last
signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background ignore it
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="needs signals between processes")
@pytest.mark.parametrize(("evaluation", "existing", "expected"), [
    (1, False, "crfield: interrupted; model is not written yet; the same command with --resume "
     "goes on.\n"),
    (1, True, "crfield: interrupted; model is as it was; the same command with --resume goes "
     "on.\n"),
    (3, True, "crfield: interrupted; model holds the best model so far, of iteration 0; the same "
     "command with --resume goes on.\n"),
], ids=["at the start", "at the start of another", "after the start"])
def test_ctrl_c_says_what_is_left(small_dataset, evaluation, existing, expected):
    command = ["learn", "data", "--split", "train", "-o", "model", "--optimizer", "adam",
               "--max-iter", "2", "--quiet"]
    assert main(["learn", "data", "--split", "train", "-o", "whole", *command[6:]]) == 0
    if existing:
        Path("model").write_text("something precious")
    program = [sys.executable, "-c", INTERRUPTIBLE, str(evaluation), *command]
    with subprocess.Popen(
        program, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout.readline() == "waiting\n"
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    assert process.returncode == 130
    assert error == expected
    if evaluation > 1:
        assert DenseCRF.load("model").n_labels == 3
    else:
        assert Path("model").exists() == existing
        assert not existing or Path("model").read_text() == "something precious"
    assert main([*command, "--resume"]) == 0
    assert Path("model").read_bytes() == Path("whole").read_bytes()


@pytest.mark.parametrize("taken", ["", ".checkpoint", ".report.html"])
def test_a_file_that_cannot_be_written_is_said_before_learning(
    taken, small_dataset, capsys, monkeypatch
):
    monkeypatch.setattr(learn_command, "learn", lambda *_, **__: pytest.fail("learning began"))
    command = ["learn", "data", "--split", "train", "-o"]
    Path(f"model{taken}").mkdir()
    assert main([*command, "model"]) == 2
    assert f"cannot write model{taken}: it is not a regular file" in capsys.readouterr().err
    assert main([*command, "missing/model"]) == 2
    assert "cannot write missing/model: no such file or directory" in capsys.readouterr().err

    def forbid(*_):
        raise PermissionError(13, "Permission denied")

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", forbid)
        assert main([*command, "other"]) == 2
    assert "cannot write other: permission denied; choose a folder" in capsys.readouterr().err
    assert {path.name for path in Path().iterdir()} == {"data", f"model{taken}"}


SMALL_DISK = """
import resource, sys
from crfield.cli import main
import crfield.cli.learn, scipy.optimize

largest = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
sys.exit(main(sys.argv[2:]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["start", "model", "checkpoint", "report"])
def test_a_full_disk_costs_no_model(fails, small_dataset):
    """No file may grow beyond a limit, at which one of them fails; then there is room again."""
    pytest.importorskip("resource")
    command = ["learn", "data", "--split", "train", "--compatibility", "potts", "--optimizer",
               "adam", "--max-iter", "6", "--quiet", "-o"]
    assert main([*command, "whole"]) == 0
    checkpoint, model, report = (
        Path(f"whole{end}").read_bytes() for end in (".checkpoint", "", ".report.html"))
    header = checkpoint.index(b"\n") + 1
    assert header + 300 < len(model) < len(checkpoint) - 200 < len(report) - 1000
    limit, culprit = {
        "start": (header // 2, "model.checkpoint"), "model": (len(model) - 100, "model"),
        "checkpoint": (len(checkpoint) - 50, "model.checkpoint"),
        "report": (len(report) // 2, "model.report.html"),
    }[fails]
    old = DenseCRF(3)
    old.save("model")
    before = Path("model").read_bytes()
    Path("model.report.html").write_text("old")
    assert len(before) < limit or fails == "start"
    done = subprocess.run(
        [sys.executable, "-B", "-c", SMALL_DISK, str(limit), *command, "model"],
        capture_output=True, text=True, check=False,
    )
    assert done.returncode == 2
    assert done.stderr.endswith(
        f"crfield: error: cannot write {culprit}: file too large; make room there.\n")
    assert ("with --resume goes on" in done.stderr) == (fails in ("checkpoint", "report"))
    assert Path("model.report.html").read_text() == "old"
    if fails in ("start", "model"):
        assert Path("model").read_bytes() == before
    else:
        assert Path("model").read_bytes() != before
        DenseCRF.load("model")
    assert not [path.name for path in Path().iterdir() if path.name.startswith(".")]
    assert main([*command, "model", "--resume"]) == 0
    assert Path("model").read_bytes() == model
    assert Path("model.report.html").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize(("words", "expected"), [
    (["--split", "none"], "none"),
    (["--split", "train", "--l2", "unary"], "NAME=NUMBER"),
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


def test_a_recalibration_in_context_from_the_command_line(small_dataset, capsys):
    command = ["learn", "data", "--split", "train", "-o", "model", "--max-iter", "2", "--quiet"]
    assert main([*command, "--context", "position,color"]) == 2
    assert "add unary to it" in capsys.readouterr().err
    assert main([*command, "--learn", "unary,kernel", "--context", "position, color"]) == 0
    assert DenseCRF.load("model").context == ("position", "color")
    assert "position 1 squared" in Path("model.report.html").read_text()
    assert main(["evaluate", "model", "data", "--split", "train"]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("enough", "factor"), [(30_000, 1), (80, 2), (1, 16)])
def test_large_images_are_shrunk_unless_told_otherwise(small_dataset, monkeypatch, enough, factor):
    monkeypatch.setattr(learn_command, "_ENOUGH_PIXELS", enough)
    command = ["learn", "data", "--split", "train", "-o", "model", "--max-iter", "1", "--quiet"]
    for words, expected in (([], factor), (["--shrink", "1"], 1)):
        assert main([*command, *words]) == 0
        page = Path("model.report.html").read_text()
        assert re.search(rf"shrunk by</t.>\s*<td[^>]*>{expected}<", page)


def test_what_is_missing_is_said_before_work(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("crfield.learning.objective.find_spec", lambda name: None)
    monkeypatch.setattr("crfield._core.optimize.find_spec", lambda name: None)
    words = ["learn", str(tmp_path), "-o", str(tmp_path / "model")]
    assert main([*words, "--jobs", "2"]) == 2
    assert "n_jobs=2 needs joblib" in capsys.readouterr().err
    assert main([*words, "--jobs", "1", "--optimizer", "lbfgs"]) == 2
    assert "'lbfgs' needs SciPy" in capsys.readouterr().err
    assert not (tmp_path / "model").exists()


def test_a_model_comes_before_its_data_set(capsys, tmp_path):
    (tmp_path / "model").write_bytes(b"")
    assert main(["evaluate", str(tmp_path), str(tmp_path / "model")]) == 2
    assert "expected MODEL and then DATASET" in capsys.readouterr().err
