"""`crfield learn` and `crfield evaluate` on a folder of small scenes."""

import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import crfield.cli.learn as learn_command
import crfield.cli.progress as progress_module
from crfield import DenseCRF, Pairwise, Potts, Spatial
from crfield.cli import main
from crfield.cli.progress import LearningProgress
from crfield.datasets import FolderDataset, synthetic_scenes
from crfield.learning import LearningReport
from failing_commands import failure
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


def learn(*words, output="model"):
    """The exit status of `crfield learn` on the images to learn from."""
    return main(["learn", "data", "--split", "train", "-o", output, *words])


def scores(capsys, *words):
    assert main(["evaluate", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.slow
def test_learning_beats_its_input_on_other_images(dataset, capsys):
    words = ["--max-iter", "6", "--tol", "0", "--jobs", "2", "--learn"]
    assert learn(*words, "unary,compatibility,kernel") == 0
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
    printed = capsys.readouterr().out
    for words in ("mean IoU", "IoU of boundaries", "calibration error"):
        assert re.search(rf"^{words} +\d+\.\d\d +\d+\.\d\d$", printed, re.M)


def test_evaluate_writes_what_the_model_finds(dataset, capsys):
    assert learn("--max-iter", "1", "--quiet", "--inference-max-iter", "3") == 0
    assert main(["evaluate", "model", "data", "--split", "test", "-o", "out/found"]) == 0
    examples, model = FolderDataset("data", "test"), DenseCRF.load("model")
    assert model.max_iter == 3
    assert len(list(Path("out/found").iterdir())) == len(examples) == 2
    for example in examples:
        expected = model.infer(example.image, example.unary, tol=0.0)
        assert expected.n_iter == 3
        with Image.open(f"out/found/{example.name}.png") as found:
            np.testing.assert_array_equal(np.asarray(found), expected.labels)
    capsys.readouterr()
    Path("taken").touch()
    assert "expected a folder" in failure(capsys, "evaluate", "model", "data", "-o", "taken")


def test_evaluate_refuses_images_without_a_labeled_pixel(dataset, capsys):
    assert learn("--max-iter", "0", "--quiet") == 0
    for path in Path("data/labels").iterdir():
        Image.fromarray(np.full_like(np.array(Image.open(path)), 255)).save(path)
    assert "must have labeled pixels" in failure(
        capsys, "evaluate", "model", "data", "--split", "test"
    )


def test_evaluate_takes_the_spacing_of_volumes(tmp_path, monkeypatch):
    nibabel = pytest.importorskip("nibabel")
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for folder in ("images", "labels", "guesses"):
        Path("data", folder).mkdir(parents=True)
        values = rng.integers(0, 2, (7, 6, 5), dtype=np.uint8)
        image = nibabel.Nifti1Image(values, np.diag([1.0, 1, 4, 1]))
        nibabel.save(image, f"data/{folder}/a.nii.gz")
    Path("data/dataset.json").write_text('{"unaries": {"folder": "guesses", "kind": "labels"}}')
    model = DenseCRF(2, [Pairwise(Spatial(1.5), Potts(4.0))], max_iter=3)
    model.save("model")
    assert main(["evaluate", "model", "data", "-o", "out"]) == 0
    [example] = FolderDataset("data")
    found, plain = (
        model.infer(example.image, example.unary, tol=0.0, spacing=spacing).labels
        for spacing in ((4, 1, 1), None)
    )
    np.testing.assert_array_equal(np.load("out/a.npy"), found)
    assert (found != plain).any()


def test_evaluate_says_what_is_missing_and_which_images_count(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_dataset("data", n_train=8, size=(16, 20))
    assert learn("--max-iter", "0", "--quiet") == 0
    for name in ("images", "labels"):
        shutil.copytree(f"data/{name}", name)
    folders = ["--images", "images", "--labels", "labels"]
    assert "with --probabilities" in failure(capsys, "evaluate", "model", *folders)
    n = len(FolderDataset("data"))
    assert main(["evaluate", "model", "data"]) == 0
    told = capsys.readouterr().err
    assert f"scored on all {n} images" in told
    assert main(["evaluate", "model", "data", "--split", "train"]) == 0
    assert not capsys.readouterr().err


@pytest.mark.slow
def test_a_model_learned_on_shrunken_images_is_for_the_full_size(dataset, capsys):
    words = ["--quiet", "--compatibility", "potts", "--max-iter"]
    assert learn(*words, "3", "--shrink", "2", output="small") == 0
    assert learn(*words, "0", output="1") == 0
    assert learn(*words, "0", "--shrink", "2", "--start", "1", output="2") == 0
    (spatial, bilateral), (same_spatial, same_bilateral) = (
        [term.kernel for term in DenseCRF.load(name).terms] for name in ("1", "2")
    )
    assert same_spatial.sigma == pytest.approx(spatial.sigma)
    assert same_bilateral.sigma_xy == pytest.approx(bilateral.sigma_xy)
    found = scores(capsys, "small", "data", "--split", "test")
    assert found["model"]["mean_iou"] > found["input"]["mean_iou"]
    assert learn("--shrink", "0", output="x") != 0
    assert "--shrink must be" in capsys.readouterr().err


@pytest.mark.slow
def test_an_interrupted_run_leaves_a_model_and_resumes(small_dataset, capsys, monkeypatch):
    words = ["--learn", "compatibility,kernel", "--compatibility", "potts", "--max-iter", "4",
             "--quiet"]
    assert learn(*words, output="whole") == 0
    save = DenseCRF.save
    saved = []

    def interrupt(model, path):
        save(model, path)
        saved.append(path)
        if len(saved) == 2:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(DenseCRF, "save", interrupt)
        assert learn(*words, output="part") == 130
    assert "--resume" in capsys.readouterr().err
    DenseCRF.load("part")
    assert learn(*words, "--resume", output="part") == 0
    assert Path("part").read_bytes() == Path("whole").read_bytes()


def test_validation_images_are_shrunk_like_the_others(dataset, capsys):
    DenseCRF(3, [Pairwise(Spatial(6.0), Potts(3.0))]).save("start")
    words = ["--start", "start", "--shrink", "2", "--max-iter", "0", "--json"]
    assert learn(*words, "--validation", "test") == 0
    [found] = json.loads(capsys.readouterr().out)["validation_ious"]
    assert main(["learn", "data", "--split", "test", "-o", "other", *words]) == 0
    assert json.loads(capsys.readouterr().out)["mean_ious"] == [found]


def test_validation_split_and_report(dataset, capsys):
    (dataset / "classes.txt").write_text("wall\nchair\nfloor lamp\n")
    words = ["--validation", "test", "--loss", "hamming", "--optimizer", "adam", "--json"]
    assert learn(*words, "--max-iter", "2") == 0
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
    assert learn("--max-iter", "1", "--quiet") == 0
    assert learn("--max-iter", "1", "--quiet", "--resume") == 0
    Path("model.checkpoint").unlink()
    assert learn("--max-iter", "1", "--quiet", "--resume") == 0
    assert capsys.readouterr() == ("", "")
    assert Path("model.report.html").exists()


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """Twelve photos, masks of 0 and 255 and coarse probabilities with the labels first, in folders
    of any names; nothing says what they are.
    """
    monkeypatch.chdir(tmp_path)
    # Workers take longer to start than to learn from images this small.
    monkeypatch.setattr("crfield.cli.learn.default_jobs", lambda: 1)
    for folder in ("photos", "masks", "softmax"):
        Path(folder).mkdir()
    for scene in synthetic_scenes(12, size=(48, 64), n_labels=2, seed=1):
        Image.fromarray(scene.image).save(f"photos/{scene.name}.jpg")
        Image.fromarray(255 * scene.mask.astype(np.uint8)).save(f"masks/{scene.name}.png")
        coarse = scene.probabilities.reshape(12, 4, 16, 4, 2).mean((1, 3))
        np.save(f"softmax/{scene.name}.npy", coarse.transpose(2, 0, 1))
    return ["--images", "photos/", "--labels", "masks", "--probabilities", "softmax"]


def test_folders_of_files_are_learned_from_without_a_description(folders, capsys):
    shutil.copy("photos/scene-1.jpg", "photos/extra.jpg")
    assert main(["learn", *folders, "-o", "model", "--max-iter", "2"]) == 0
    printed = capsys.readouterr()
    held_out = FolderDataset(images="photos", labels="masks", probabilities="softmax").hold_out()[1]
    n = len(held_out)
    are = "is" if n == 1 else "are"
    assert "crfield: 1 image without labels left out: 'extra'." in printed.err
    assert f"learning from {12 - n} of 12 images; {n} {are} held out, by name" in printed.err
    found = scores(capsys, "model", *folders, "--held-out")
    compared = re.search(
        "mean IoU on held-out images: classifier (.*) %, default refine .* %, learned (.*) %\n",
        printed.out,
    )
    assert compared.groups() == tuple(f"{found[k]['mean_iou']:.2f}" for k in ("input", "model"))
    page = Path("model.report.html").read_text("utf-8")
    assert f"the {n} held-out images" in page
    assert re.search(rf">images</t.>\s*<td[^>]*>{12 - n}<", page), "learned from"
    assert ">label 1<" in page
    assert main(["evaluate", "model", "--probs", "softmax", *folders[:4], "-o", "out"]) == 0
    assert len(list(Path("out").iterdir())) == 12
    with Image.open("out/scene-0.png") as written:
        assert set(np.unique(written)) == {0, 255}, "as in the masks"
    table = capsys.readouterr().out.splitlines()
    assert table[0].split() == ["IoU,", "%", "input", "model"]
    for label, line in enumerate(table[2:4]):
        assert line.startswith(f"label {label}  ")
    assert failure(capsys, "evaluate", "model", *folders, "--held-out", "--split", "x")


@pytest.mark.parametrize(("words", "said"), [
    (["--all"], ""), ([], "learning from all 4 images, too few to hold any out"),
])
def test_few_images_are_all_learned_from(folders, capsys, words, said):
    for path in sorted(Path("photos").iterdir())[4 if not words else 12 :]:
        path.unlink()
    assert main(["learn", *folders, "-o", "model", "--max-iter", "0", *words]) == 0
    printed = capsys.readouterr()
    assert said in printed.err
    assert "held out" not in printed.err
    assert "mean IoU on images learned from: " in printed.out


@pytest.mark.parametrize(("words", "expected"), [
    (["learn", ".", "-o", "m"], "--images photos --labels masks --probabilities softmax or create"),
    (["learn", "-o", "m"], "add --images IMAGES --labels LABELS --probabilities PROBABILITIES."),
    (["learn", "--images", "photos", "--labels", "masks", "-o", "m"],
     "name the folder of its probabilities with --probabilities."),
    (["learn", "--images", "photo", "--labels", "masks", "-o", "m"],
     "expected a folder photo, but there is none; add --images photos"),
])
def test_the_first_mistakes_are_answered_with_what_works(folders, capsys, words, expected):
    assert expected in failure(capsys, *words)


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
sys.exit(main(["learn", "data", "--split", "train", "-o", "model", *sys.argv[2:]]))
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
    words = ["--optimizer", "adam", "--max-iter", "2", "--quiet"]
    assert learn(*words, output="whole") == 0
    if existing:
        Path("model").write_text("something precious")
        words.append("--overwrite")
    program = [sys.executable, "-c", INTERRUPTIBLE, str(evaluation), *words]
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
    assert learn(*words, "--resume") == 0
    assert Path("model").read_bytes() == Path("whole").read_bytes()


@pytest.mark.parametrize("taken", ["", ".checkpoint", ".report.html"])
def test_a_file_that_cannot_be_written_is_said_before_learning(
    taken, small_dataset, capsys, monkeypatch
):
    monkeypatch.setattr(learn_command, "learn", lambda *_, **__: pytest.fail("learning began"))
    command = ["learn", "data", "--split", "train", "-o"]
    Path(f"model{taken}").mkdir()
    error = failure(capsys, *command, "model")
    assert f"cannot write model{taken}: it is not a regular file" in error
    error = failure(capsys, *command, "missing/model")
    assert "cannot write missing/model: no such file or directory" in error

    real_open = os.open

    def forbid(path, flags, *mode, **options):
        if flags & os.O_CREAT:
            raise PermissionError(13, "Permission denied")
        return real_open(path, flags, *mode, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", forbid)
        error = failure(capsys, *command, "other")
    assert "cannot write other: permission denied; choose a folder" in error
    assert {path.name for path in Path().iterdir()} == {"data", f"model{taken}"}


SMALL_DISK = """
import resource, sys
from crfield.cli import main
import crfield.cli.learn, scipy.optimize

largest = int(sys.argv[1])
resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
sys.exit(main(["learn", "data", "--split", "train", "-o", "model", *sys.argv[2:]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("fails", ["start", "model", "checkpoint", "report"])
def test_a_full_disk_costs_no_model(fails, small_dataset):
    """No file may grow beyond a limit, at which one of them fails; then there is room again."""
    pytest.importorskip("resource")
    words = ["--compatibility", "potts", "--optimizer", "adam", "--max-iter", "6", "--quiet",
             "--overwrite"]
    assert learn(*words, output="whole") == 0
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
        [sys.executable, "-B", "-c", SMALL_DISK, str(limit), *words],
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
    assert learn(*words, "--resume") == 0
    assert Path("model").read_bytes() == model
    assert Path("model.report.html").stat().st_size > 1000


@pytest.mark.slow
@pytest.mark.parametrize(("words", "expected"), [
    (["--split", "none"], "none"),
    (["--split", "train", "--l2", "unary"], "NAME=NUMBER"),
    (["--split", "train", "--learn", "all"], "learn must name some of"),
    (["--split", "train", "--start", "nothing"], "no such file"),
])
def test_wrong_requests(dataset, capsys, words, expected):
    assert expected in failure(capsys, "learn", "data", "-o", "model", *words)
    assert not Path("model").exists()


def test_a_model_for_other_labels_is_refused(dataset, capsys):
    DenseCRF(5).save("other")
    assert "5 labels" in failure(capsys, "evaluate", "other", "data")


def test_a_recalibration_in_context_from_the_command_line(small_dataset, capsys):
    words = ["--context", "position, color", "--max-iter", "2"]
    assert learn(*words, "--learn", "kernel") == 2
    assert "add unary to it" in capsys.readouterr().err
    assert learn(*words, "--recalibration", "scale") == 2
    assert "leave one of them out" in capsys.readouterr().err
    assert learn("--context", "weather") == 2
    assert "presence, position, color" in capsys.readouterr().err
    assert learn(*words, "--quiet") == 0
    assert DenseCRF.load("model").context == ("position", "color")
    assert "position 1 squared" in Path("model.report.html").read_text()
    assert learn("--max-iter", "0", "--quiet", output="plain") == 0
    given = ["--start", "plain", "--max-iter", "1", "--quiet"]
    assert learn(*given, "--context", "position", output="wider") == 0
    assert DenseCRF.load("wider").context == ("position",)
    assert learn(*given, "--recalibration", "scale", output="other") == 2
    assert "--start plain; leave one of them out" in capsys.readouterr().err
    assert main(["evaluate", "model", "data", "--split", "train"]) == 0


@pytest.mark.slow
def test_folds_choose_for_six_images_and_more(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_dataset("data", n_train=6, size=(24, 28))
    assert learn("--max-iter", "2") == 0
    lines = capsys.readouterr().err.splitlines()
    chosen = [line for line in lines if "by folds" in line]
    assert chosen == [
        f"choosing the {what} by folds of the images"
        for what in ("recalibration", "pairwise terms", "ridge")
    ]
    page = Path("model.report.html").read_text()
    assert "Chosen by folds" in page
    assert "scale, ridge" in page
    assert learn("--max-iter", "2", "--recalibration", "none", output="as_given") == 0
    assert DenseCRF.load("as_given").recalibration is None
    assert learn("--max-iter", "0", "--recalibration", "temperature", output="softer") == 0
    matrix = DenseCRF.load("softer").recalibration
    assert np.array_equal(matrix, matrix[0, 0] * np.eye(*matrix.shape))


@pytest.mark.slow
@pytest.mark.parametrize(("enough", "factor"), [(30_000, 1), (80, 2), (1, 16)])
def test_large_images_are_shrunk_unless_told_otherwise(small_dataset, monkeypatch, enough, factor):
    monkeypatch.setattr(learn_command, "_ENOUGH_PIXELS", enough)
    for words, expected in (([], factor), (["--shrink", "1"], 1)):
        assert learn("--max-iter", "1", "--quiet", "--overwrite", *words) == 0
        page = Path("model.report.html").read_text()
        assert re.search(rf"shrunk by</t.>\s*<td[^>]*>{expected}<", page)


def test_what_is_missing_is_said_before_work(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("crfield.learning.objective.find_spec", lambda name: None)
    monkeypatch.setattr("crfield._core.optimize.find_spec", lambda name: None)
    words = ["learn", str(tmp_path), "-o", str(tmp_path / "model")]
    assert "n_jobs=2 needs joblib" in failure(capsys, *words, "--jobs", "2")
    error = failure(capsys, *words, "--jobs", "1", "--optimizer", "lbfgs")
    assert "'lbfgs' needs scipy" in error
    assert not (tmp_path / "model").exists()


def test_a_model_comes_before_its_data_set(capsys, tmp_path):
    (tmp_path / "model").write_bytes(b"")
    error = failure(capsys, "evaluate", str(tmp_path), str(tmp_path / "model"))
    assert "expected MODEL and then DATASET" in error
