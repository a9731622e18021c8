"""The tutorials run as printed, block after block, in an empty folder."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from crfield.cli import main

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.mark.parametrize(
    ("name", "needed"),
    [("learning.md", "scipy"), ("nn.md", "torch"), ("patterns.md", "numpy")],
)
def test_every_block_of_a_tutorial(name, needed, tmp_path, monkeypatch, capsys):
    pytest.importorskip(needed, reason=f"{name} needs {needed}")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    ran = 0
    text = (DOCS / name).read_text("utf-8")
    for language, block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S):
        if language == "python":
            exec(compile(block, name, "exec"), names)
            ran += 1
            continue
        for line in block.splitlines():
            if line.startswith("crfield "):
                assert main(shlex.split(line)[1:]) == 0, (line, capsys.readouterr().err)
                ran += 1
    assert ran >= 4
