"""The README's Python blocks and commands run as printed, in order, on a reader's files."""

import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crfield.datasets import synthetic_scenes
from docs_tools.pages import read_blocks, run_page

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
SIZE, N_LABELS = (12, 16), 4


def arrays(scene):
    """Arrays under the names that the README uses."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(21), SIZE).astype(np.float32)
    strokes = np.where(np.arange(SIZE[0])[:, None] % 3 == 0, scene.mask, 255)
    strokes = strokes.astype(np.uint8)
    return {"image": scene.image, "probabilities": probabilities, "strokes": strokes}


def write_files(scenes, names):
    """A photo, its labels and strokes, and three folders to learn from, in the current folder."""
    first = scenes[0]
    for folder in ("photos", "masks", "softmax"):
        Path(folder).mkdir()
    Image.fromarray(first.image).save("photo.jpg")
    Image.fromarray(names["strokes"]).save("strokes.png")
    Image.fromarray(first.mask).save("mask.png")
    np.save("softmax.npy", first.probabilities)
    for scene in scenes:
        Image.fromarray(scene.image).save(f"photos/{scene.name}.jpg")
        Image.fromarray(scene.mask).save(f"masks/{scene.name}.png")
        np.save(f"softmax/{scene.name}.npy", scene.probabilities)


def test_every_block_and_command_runs(tmp_path, monkeypatch):
    pytest.importorskip("scipy", reason="the README learns a model")
    scenes = synthetic_scenes(5, size=SIZE, n_labels=N_LABELS, seed=0)
    monkeypatch.chdir(tmp_path)
    # With images this small, workers take longer to start than to learn.
    monkeypatch.setattr("crfield.cli.learn.default_jobs", lambda: 1)
    names = arrays(scenes[0])
    write_files(scenes, names)
    # Every block may be the first that a reader tries.
    exec("import crfield", names)
    run_page(README, names)
    assert names["result"].labels.shape == SIZE
    for written in ("model.safetensors", "photo_refined.png", "photo_refined_overlay.png"):
        assert (tmp_path / written).exists(), written


def test_there_is_something_to_run():
    blocks = read_blocks(README.read_text("utf-8"))
    assert sum(block.language == "python" for block in blocks) >= 2
    commands = "\n".join(block.text for block in blocks if block.language != "python")
    for command in ("refine", "learn", "evaluate"):
        assert re.search(rf"^crfield {command} ", commands, re.M), command


def test_it_is_short():
    """What does not fit into 120 lines belongs to the documentation."""
    assert len(README.read_text("utf-8").splitlines()) <= 120


def test_links_lead_somewhere():
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", README.read_text("utf-8")):
        if re.match(r"https?:", target):
            continue
        folder = ROOT / Path(target).parts[0]
        # An sdist comes without experiments, benchmarks and pictures.
        missing = not folder.is_dir() or not (ROOT / "docs" / "images").is_dir()
        assert missing or (ROOT / target).exists(), target
