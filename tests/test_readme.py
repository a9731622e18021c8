"""The README's Python and shell examples run as printed."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from crfield import InferenceStatus, unary_from_probabilities
from crfield.cli import main

README = Path(__file__).resolve().parents[1] / "README.md"


def blocks(language):
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text("utf-8"), re.M | re.S)
    return [text for name, text in fenced if name == language]


@pytest.fixture
def scene():
    """Arrays under the names that the README uses."""
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet(np.ones(21), (12, 16)).astype(np.float32)
    labels = rng.integers(0, 4, (12, 16))
    labels[0] = 255
    return {
        "image": rng.integers(0, 255, (12, 16, 3), dtype=np.uint8),
        "probabilities": probabilities,
        "probabilities_lhw": np.moveaxis(probabilities, -1, 0),
        "labels": labels,
        "mask": np.where(labels > 1, 255, 0).astype(np.uint8),
        "foreground_probability": rng.random((12, 16)),
        "volume": rng.random((3, 12, 16)),
        "volume_probabilities": rng.dirichlet(np.ones(2), (3, 12, 16)),
        "unary": unary_from_probabilities(probabilities),
        "depth": rng.random((12, 16, 1)),
    }


def test_python_examples(scene, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    found = blocks("python")
    assert len(found) >= 3
    for block in found:
        exec(compile("import crfield\n" + block, "README.md", "exec"), scene)
    assert scene["result"].labels.shape == (12, 16)
    assert (tmp_path / "model.safetensors").exists()
    assert capsys.readouterr().out.strip() in {status.value for status in InferenceStatus}


def test_shell_examples(scene, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    nibabel = pytest.importorskip("nibabel")
    Image.fromarray(scene["image"]).save("photo.jpg")
    Image.fromarray(scene["mask"] // 255).save("mask.png")
    for folder in ("photos", "masks"):
        Path(folder).mkdir()
    Path("photos/cat.jpg").write_bytes(Path("photo.jpg").read_bytes())
    Path("masks/cat.png").write_bytes(Path("mask.png").read_bytes())
    volume = nibabel.Nifti1Image(scene["volume"].T.astype(np.float32), np.eye(4))
    nibabel.save(volume, "scan.nii.gz")
    np.save("probs.npy", scene["volume_probabilities"].astype(np.float32))
    commands = [
        shlex.split(line, comments=True)
        for block in blocks("") for line in block.splitlines()
        if line.startswith("crfield refine") and "--model" not in line
    ]
    assert len(commands) >= 4
    for words in commands:
        words = [word for word in words[1:] if word not in (">", "report.json")]
        assert main(words) == 0, (words, capsys.readouterr().err)
