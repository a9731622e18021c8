"""What commands refuse to write: their inputs, files that exist, files of a run under way."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import crfield.cli.learn as learn_command
from crfield import DenseCRF, Pairwise, Potts, Spatial, datasets, refine_blocks
from crfield._core.checkpoints import Checkpoint
from crfield.cli import main
from crfield.cli.outputs import check_no_input_is_replaced, reserved
from crfield.learning import Learned, LearningReport
from crfield.learning.report import is_report
from small_dataset import write_dataset

LEARN = ["learn", "data", "--split", "train", "--validation", "test", "--quiet", "--max-iter", "0",
         "--jobs", "1"]


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data set, and links into it."""
    monkeypatch.chdir(tmp_path)
    root = write_dataset("data", n_train=2, n_test=1, size=(16, 20))
    (root / "other.json").write_text((root / "dataset.json").read_text())
    Path("linked").symlink_to(root / "images")
    Path("soft").symlink_to(root / "labels" / "scene-1.png")
    Path("hard").hardlink_to(root / "unaries" / "scene-2.npy")
    DenseCRF(3, [Pairwise(Spatial(2.0), Potts(1.0))]).save("start")
    DenseCRF(3).save("m.checkpoint")
    return root


@pytest.fixture
def photo(tmp_path, monkeypatch):
    """An image with labels and probabilities."""
    monkeypatch.chdir(tmp_path)
    scene = datasets.synthetic_scenes(1, size=(16, 20), n_labels=3, seed=4)[0]
    Image.fromarray(scene.image).save("photo.png")
    np.save("photo.npy", scene.image)
    np.save("probs.npy", scene.probabilities)
    Image.fromarray(scene.mask.astype(np.uint8)).save("mask.png")
    DenseCRF(3, [Pairwise(Spatial(2.0), Potts(1.0))]).save("model.npy")


def contents():
    return {path: path.read_bytes() for path in Path().rglob("*") if path.is_file()}


def refusal(capsys, *words):
    """The one line of a command that is refused and changes nothing."""
    before = contents()
    capsys.readouterr()
    assert main(words) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.count("\n") == 1
    assert contents() == before
    return said.err


class TestLearn:
    @pytest.fixture(autouse=True)
    def _no_work(self, monkeypatch):
        monkeypatch.setattr(learn_command, "_learn", lambda *_: pytest.fail("learning began"))

    @pytest.mark.parametrize("flags", [[], ["--overwrite"], ["--resume"]])
    @pytest.mark.parametrize("output", [
        "data/images/scene-0.png", "data/labels/scene-1.png", "data/unaries/scene-0.npy",
        "data/dataset.json", "data/train.txt", "data/test.txt", "data/images/scene-2.png",
        "data/../data/images/scene-0.png", "linked/scene-0.png", "soft", "hard",
    ])
    def test_no_file_of_the_data_becomes_a_model(self, data, capsys, output, flags):
        message = refusal(capsys, *LEARN, "-o", output, *flags)
        assert f"{output.replace('data/../', '')} is read by this command" in message.replace(
            "data/../", "")

    @pytest.mark.parametrize("words", [
        ["--start", "start", "-o", "start"], ["--start", "m.checkpoint", "-o", "m"],
        ["--dataset-json", "data/other.json", "-o", "data/other.json"],
    ])
    def test_nor_does_any_other_input(self, data, capsys, words):
        assert "is read by this command" in refusal(capsys, *LEARN, *words, "--overwrite")

    @pytest.mark.parametrize("output", ["data/new.txt", "linked/new.png", "data/labels/new.tif",
                                        "data/unaries/new.npz"])
    def test_nothing_new_gets_among_the_data(self, data, capsys, output):
        message = refusal(capsys, *LEARN, "-o", output)
        assert f"where this command looks for its inputs, but got {output}" in message

    def test_a_description_does_not_appear_by_accident(self, data, capsys):
        (data / "dataset.json").unlink()
        (data / "classes.txt").write_text("a\nb\nc\n")
        assert "looks for its inputs" in refusal(capsys, *LEARN, "-o", "data/dataset.json")

    @pytest.mark.parametrize("existing", ["out", "out.checkpoint", "out.report.html"])
    def test_files_that_exist_need_a_flag(self, data, capsys, existing):
        Path(existing).write_text("precious")
        message = refusal(capsys, *LEARN, "-o", "out")
        assert f"cannot write {existing}: it exists already" in message
        assert "--resume" in message
        assert "--overwrite" in message

    @pytest.mark.parametrize("output", ["", ".", "/"])
    def test_a_model_has_a_name(self, data, capsys, output):
        assert "--output must be the name of a file" in refusal(capsys, *LEARN, "-o", output)

    def test_to_resume_takes_a_model_or_a_checkpoint(self, data, capsys):
        Path("out").write_text("precious")
        assert "something else or damaged; add --overwrite" in refusal(
            capsys, *LEARN, "-o", "out", "--resume")
        Path("out").unlink()
        Path("out.report.html").write_text("precious")
        assert "out.report.html: it exists" in refusal(capsys, *LEARN, "-o", "out", "--resume")

    @pytest.mark.parametrize("content", ["", "precious", "<!doctype html>\n<html lang=\"en\">"])
    def test_nor_does_it_replace_a_page_of_others(self, data, capsys, content):
        DenseCRF(3).save("out")
        Path("out.report.html").write_text(content)
        message = refusal(capsys, *LEARN, "-o", "out", "--resume")
        assert "with the report of a model, but out.report.html is something else" in message
        assert "add --overwrite" in message


def test_a_model_is_replaced_when_told_to(data, capsys, monkeypatch):
    def learned(start, *_, **options):
        report = LearningReport(losses=[1.0], mean_ious=[0.5], best_model=start, start_model=start)
        options["callback"](0, report)
        return Learned(start, report)

    monkeypatch.setattr(learn_command, "learn", learned)
    command = [*LEARN, "--start", "start", "-o", "out"]
    for end in ("", ".report.html"):
        Path(f"out{end}").write_text("precious")
    assert main([*command, "--overwrite"]) == 0
    assert DenseCRF.load("out").n_labels == 3
    assert is_report(Path("out.report.html"))
    before = Path("out").read_bytes()
    assert "it exists already" in refusal(capsys, *command)
    assert main([*command, "--resume"]) == 0
    assert Path("out").read_bytes() == before
    assert not list(Path().glob(".*"))


class TestRefine:
    @pytest.mark.parametrize("block", [[], ["--block", "8"]], ids=["whole", "blocks"])
    @pytest.mark.parametrize(("link", "to", "output"), [
        ("hard.npy", "photo.png", "hard.npy"), ("hard.npy", "probs.npy", "hard.npy"),
        ("soft.npy", "model.npy", "soft.npy"), ("out_marginals.npy", "photo.png", "out.npy"),
    ])
    def test_no_input_by_any_name(self, photo, capsys, link, to, output, block):
        Path(link).symlink_to(to) if link == "soft.npy" else Path(link).hardlink_to(to)
        message = refusal(
            capsys, "refine", "photo.png", "--probabilities", "probs.npy", "--model", "model.npy",
            "--marginals", "--overwrite", "-o", output, *block)
        assert f"{link} is read by this command, as {to}" in message

    @pytest.mark.parametrize("block", [[], ["--block", "8"]], ids=["whole", "blocks"])
    @pytest.mark.parametrize("existing", ["out.npy", "out_marginals.npy"])
    def test_files_that_exist(self, photo, capsys, existing, block):
        Path(existing).write_text("precious")
        words = ["refine", "photo.png", "--probabilities", "probs.npy", "--marginals", "-o",
                 "out.npy", *block]
        assert f"cannot write {existing}: it exists already; add --overwrite" in refusal(
            capsys, *words)
        assert main([*words, "--overwrite"]) == 0
        assert np.load("out.npy").shape == (16, 20)
        assert np.load("out_marginals.npy").shape == (16, 20, 3)


def test_evaluate_replaces_nothing(data, capsys):
    command = ["evaluate", "start", "data", "--split", "test", "-o"]
    assert main([*command, "found"]) == 0
    assert "found/scene-2.png: it exists already" in refusal(capsys, *command, "found")
    assert main([*command, "found", "--overwrite"]) == 0
    Path("taken").mkdir()
    Path("taken/scene-2.npy").hardlink_to("data/unaries/scene-2.npy")
    Path("taken/scene-2.png").hardlink_to("start")
    for _ in range(2):
        assert "is read by this command, as" in refusal(capsys, *command, "taken", "--overwrite")
        Path("taken/scene-2.png").unlink(missing_ok=True)
    for folder in ("data/images", "linked", "data/unaries"):
        assert "looks for its inputs" in refusal(capsys, *command, folder)


def test_graph_replaces_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    Path("model.uai").write_text("MARKOV\n1\n2\n1\n1 0\n2\n1 3\n")
    Path("seen").write_text("1\n0 1\n")
    Path("out.MAR").hardlink_to("seen")
    command = ["graph", "model.uai", "--evidence", "seen"]
    message = refusal(capsys, *command, "--out", "out", "--overwrite")
    assert "out.MAR is read by this command, as seen" in message
    Path("out.PR").write_text("precious")
    assert "out.PR: it exists" in refusal(capsys, *command, "--task", "pr", "--out", "out.PR")
    assert main([*command, "--task", "pr", "--out", "out.PR", "--overwrite"]) == 0
    assert Path("out.PR").read_text().startswith("PR")


def test_the_demo_wants_an_empty_folder(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("crfield.cli.demo._show", lambda folder: pytest.fail("it began"))
    Path("mine").mkdir()
    Path("mine/overview.png").write_text("precious")
    assert "there is overview.png in it; add --overwrite" in refusal(capsys, "demo", "-o", "mine")


def test_two_outputs_that_are_one_file(tmp_path):
    Path(tmp_path / "a").touch()
    Path(tmp_path / "b").symlink_to("a")
    with pytest.raises(ValueError, match="expected outputs that are different files"):
        check_no_input_is_replaced([tmp_path / "a", tmp_path / "b"], [])


def test_a_checkpoint_replaces_nothing_else(tmp_path):
    path = tmp_path / "photo.png"
    for content in (b"\x89PNG\r\n\x1a\n", b'{"n_labels": 3}'):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="checkpoint must be a new file or replace"):
            Checkpoint(path, {"data": 1}, resume=False)
        assert path.read_bytes() == content
    path.unlink()
    for data in (1, 2):
        Checkpoint(path, {"data": data}, resume=False)
    assert b'"data": 2' in path.read_bytes()


HOLD = """
import os, signal, sys
from pathlib import Path
from crfield.cli.outputs import among_results, reserved, reserved_folder
with eval(sys.argv[1]):
    print("held", flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@contextmanager
def held(what):
    """Another process that holds something, and is killed at the end."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, what], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield
        process.stdin.close()
    assert process.returncode == -signal.SIGKILL


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_a_second_run_is_told_and_a_crash_leaves_no_lock(photo, capsys):
    Path("folder").mkdir()
    Path("link").symlink_to("folder")
    command = ["refine", "photo.png", "--labels", "mask.png", "-o", "link/out.png"]
    with held("reserved([Path('folder/out.png')])"):
        assert "link/out.png: another run of crfield is writing there" in refusal(capsys, *command)
        assert main([*command[:-1], "folder/other.png"]) == 0
    assert main(command) == 0
    assert not list(Path("folder").glob(".*"))


@pytest.mark.skipif(os.name == "nt", reason="folders have no locks there")
@pytest.mark.parametrize("block", [[], ["--block", "8"]], ids=["whole", "blocks"])
def test_a_folder_and_a_single_result_in_it(photo, capsys, block):
    for name in ("photos", "masks", "out", "link"):
        Path(name).mkdir() if name != "link" else Path(name).symlink_to("out")
    for number in range(2):
        Path(f"photos/{number}.png").symlink_to("../photo.png")
        Path(f"masks/{number}.png").symlink_to("../mask.png")
    single = ["refine", "photo.png", "--labels", "mask.png", "-o", "link/0.png", *block]
    folder = ["refine", "photos", "--labels", "masks", "-o", "out", *block]
    with held("reserved_folder(Path('out'))"):
        assert "cannot write link/0.png: another run" in refusal(capsys, *single)
        assert main([*single[:5], "elsewhere.png", *block]) == 0
    Path("out/.crfield-manifest.jsonl").unlink(missing_ok=True)
    with held("among_results(Path('link/0.png'))"):
        assert "cannot write out: another run" in refusal(capsys, *folder)
        assert main([*single[:5], "out/other.png", *block]) == 0
    capsys.readouterr()
    with held("reserved([Path('out/1.png')])"):  # as commands do that write no whole folder
        assert main(folder) == 1
        assert "cannot write out/1.png: another run" in capsys.readouterr().err
    assert main(folder) == 0
    assert {path.name for path in Path("out").iterdir()} == {
        ".crfield-manifest.jsonl", "0.png", "1.png", "other.png"}


@pytest.mark.skipif(os.name == "nt", reason="needs SIGKILL")
def test_the_library_and_a_command_on_one_file(photo, capsys):
    image, labels = np.load("photo.npy"), np.asarray(Image.open("mask.png"))

    with held("reserved([Path('out.npy')])"), pytest.raises(ValueError, match="another run of"):
        refine_blocks(image, labels, block=8, out="out.npy")
    words = ["refine", "photo.png", "--labels", "mask.png", "-o", "out.npy"]
    begun, told = threading.Event(), threading.Event()

    def wait(*_):
        begun.set()
        told.wait(60)

    options = {"block": 8, "out": "out.npy", "callback": wait}
    library = threading.Thread(target=refine_blocks, args=(image, labels), kwargs=options)
    library.start()
    assert begun.wait(60)
    assert main(words) == 2
    assert "cannot write out.npy: another run" in capsys.readouterr().err
    told.set()
    library.join()
    assert np.load("out.npy").shape == (16, 20)
    assert not list(Path().glob(".*"))


@pytest.mark.parametrize("command", [
    ["learn", "data", "--split", "train", "-o", "out"],
    ["evaluate", "start", "data", "-o", "out"],
    ["graph", "model.uai", "--task", "pr", "--out", "out"],
    ["refine", "data/images", "--probabilities", "data/unaries", "-o", "out"],
    ["demo", "-o", "out"],
], ids=lambda command: command[0])
def test_every_command_waits_for_nobody(data, capsys, command):
    Path("model.uai").write_text("MARKOV\n1\n2\n1\n1 0\n2\n1 3\n")
    target = Path("out")
    if command[0] in ("evaluate", "refine", "demo"):
        target.mkdir()
        target = target / ".crfield-manifest.jsonl"
    with reserved([target]):
        assert "cannot write out: another run" in refusal(capsys, *command)


def test_where_there_are_no_locks_commands_run_without(photo, monkeypatch):
    fcntl = pytest.importorskip("fcntl")

    def refuse(*_):
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert main(["refine", "photo.png", "--labels", "mask.png", "-o", "out.png"]) == 0
