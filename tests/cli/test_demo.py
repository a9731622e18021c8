"""`crfield demo`, run as a user runs it on a plain installation, but learning only for a moment."""

import contextlib
import io
import re
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import crfield
from crfield import datasets
from crfield.cli import demo as demo_command
from crfield.cli import demo_learning, main


@dataclass(frozen=True)
class Demo:
    """The folder that the demo filled and what it printed."""

    folder: Path
    printed: str

    def scores(self):
        """The rows of its tables: their names, and the scores between 0 and 1 that follow."""
        found = {}
        for line in self.printed.splitlines():
            match = re.match(r"(\S.*?)((?:  +[01]\.\d{3})+)(?:  |$)", line)
            if match:
                found[" ".join(match[1].split())] = [float(word) for word in match[2].split()]
        return found


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    folder = tmp_path_factory.mktemp("demo") / "with a space"
    with pytest.MonkeyPatch.context() as patch:
        for optional in ("scipy", "scipy.optimize", "joblib"):
            patch.setitem(sys.modules, optional, None)
        patch.setattr(demo_learning, "N_LEARNED", 3)
        patch.setattr(demo_learning, "EPOCHS", 4)
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            assert main(["demo", "-o", str(folder)]) == 0
    return Demo(folder, printed.getvalue())


@pytest.mark.slow
def test_demo_writes_what_it_says(demo):
    scores = demo.scores()
    names = {path.name for path in demo.folder.glob("*.png")}
    assert f"Wrote {len(names)} pictures" in demo.printed
    assert {"overview.png", "learning.png", "learning-curve.png", "learning-kernel.png"} <= names
    for sample in datasets.sample_names():
        for given in ("labels", "probabilities"):
            before, after, _ = scores[f"{sample} {given}"]
            assert after > before
            assert {f"{sample}-{given}{end}.png" for end in ("", "-entropy", "-energy")} <= names


@pytest.mark.slow
def test_its_folder_may_have_any_name(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(datasets, "sample_names", list)
    monkeypatch.setattr(demo_command, "overview", lambda cases: Image.new("L", (1, 1)))
    monkeypatch.setattr(demo_learning, "N_LEARNED", 1)
    monkeypatch.setattr(demo_learning, "N_HELD_OUT", 2)
    monkeypatch.setattr(demo_learning, "EPOCHS", 1)
    assert main(["demo", "-o", str(tmp_path / "\x1b]0;owned\x07")]) == 0
    printed = capsys.readouterr().out
    assert "owned" in printed
    assert printed.replace("\n", "").isprintable()


@pytest.mark.slow
def test_learning_helps_where_it_did_not_learn(demo):
    held_out = {name: row for name, row in demo.scores().items() if len(row) == 4}
    assert set(held_out) == {f"{demo_learning.N_HELD_OUT} other scenes", *datasets.sample_names()}
    for given, customary, _, learned in held_out.values():
        assert learned > max(given, customary)


def test_no_scene_is_both_learned_from_and_held_out():
    learned_from, held_out = (
        {scene.image.tobytes() for scene in datasets.synthetic_scenes(n, seed=seed)}
        for n, seed in (
            (demo_learning.N_LEARNED, demo_learning.LEARNED_SEED),
            (demo_learning.N_HELD_OUT, demo_learning.HELD_OUT_SEED),
        )
    )
    assert not learned_from & held_out


@pytest.mark.slow
def test_printed_command_uses_the_learned_model(demo, tmp_path, monkeypatch):
    printed = next(line for line in demo.printed.splitlines() if "crfield refine" in line)
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(printed)[1:]) == 0
    with Image.open("held-out_refined.png") as picture:
        labels = np.array(picture)
    with Image.open(demo.folder / demo_learning.IMAGE) as picture:
        image = np.array(picture)
    probabilities = np.load(demo.folder / demo_learning.PROBABILITIES)
    learned = crfield.DenseCRF.load(demo.folder / demo_learning.MODEL)
    customary = demo_learning.customary_model(learned.n_labels)
    with_learned, with_customary = (
        crfield.refine(image, probabilities, model=model).labels for model in (learned, customary)
    )
    np.testing.assert_array_equal(labels, with_learned)
    assert (labels != with_customary).any()
