"""Markdown pages whose blocks run: Python in one namespace, `crfield` lines as commands.

The tests run README.md and docs/ with it, the scripts that draw the tutorials' pictures as well.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import tempfile
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from crfield.cli import build_parser, main

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PYTHON, SHELL = "python", ("", "sh", "bash", "shell")
# Output and files, which nobody runs; a command among them is run all the same.
SHOWN = ("text", "json", "toml", "yaml", "mermaid", "html", "cpp")
# Commands that are parsed and not run, and why.
PARSED_ONLY = {
    "app": "it serves until it is stopped; tests/app/test_app_browser.py starts it",
    "demo": "it takes a while; tests/cli/test_demo.py runs it",
}
# What a reader's shell does and a test cannot: the arguments of these are looked at instead.
ALLOWED = ("pip", "python", "make", "cd", "git", "source", ".", "mkdocs", "jupyter")
SCRIPT_FOLDERS = ("benchmarks", "docs_tools", "examples", "experiments", "tests", "tools")


@dataclass(frozen=True)
class Block:
    """A fenced block: the first word after its fence, its text without the indent, its line."""

    language: str
    text: str
    line: int


def read_blocks(text: str) -> list[Block]:
    """The fenced blocks of a page, in lists and tabs as well."""
    found = re.finditer(r"^( *)```(\w*)[^\n]*\n(.*?)^\1```$", text, re.M | re.S)
    blocks = [
        Block(match[2], textwrap.dedent(match[3]), text.count("\n", 0, match.start()) + 1)
        for match in found
    ]
    if 2 * len(blocks) != len(re.findall(r"^ *(?:```|~~~)", text, re.M)):
        raise ValueError("a fence is not closed, or closed with another indent")
    return blocks


def read_commands(block: Block) -> list[str]:
    """The lines of a block for the shell, or the commands of this package in one that is shown."""
    if block.language == PYTHON:
        return []
    if block.language not in (*SHELL, *SHOWN):
        raise ValueError(f"line {block.line}: nothing runs blocks in {block.language!r}")
    lines = block.text.replace("\\\n", " ").splitlines()
    lines = [line.strip().removeprefix("$ ") for line in lines]
    if block.language in SHOWN:
        return [line for line in lines if line.startswith("crfield ")]
    return [line for line in lines if line and not line.startswith("#")]


def inline_commands(text: str) -> list[str]:
    """Commands in the running text, between backticks."""
    prose = re.sub(r"^( *)```.*?^\1```$", "", text, flags=re.M | re.S)
    spans = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    return [span for span in spans if re.match(r"(crfield|make|pip install|python) [^=]+$", span)]


def run_command(line: str) -> str:
    """What a command of this package prints; others are checked to be of a kind that is allowed."""
    words = shlex.split(line, comments=True)
    if words[0] != "crfield":
        check_command(line)
        return ""
    target = None
    if ">" in words:
        target = Path(words[words.index(">") + 1])
        words = words[: words.index(">")]
    if words[1] in PARSED_ONLY:
        build_parser().parse_args(words[1:])
        return ""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main(words[1:])
    if code != 0:
        raise AssertionError(f"{line}: exit code {code}")
    if target is not None:
        target.write_text(printed.getvalue(), "utf-8")
    return printed.getvalue()


def check_command(line: str) -> None:
    """Raise AssertionError where a command names a thing that is not there.

    Of this package these are subcommands and options, of `pip` extras, of `make` targets and of
    `python` scripts of this repository.
    """
    words = shlex.split(line, comments=True)
    if words[0] == "crfield":
        known = _subcommands()
        command = words[1] if words[1:] and not words[1].startswith("-") else None
        assert command is None or command in known, f"{line}: no such command"
        options = (known[command] if command else build_parser())._option_string_actions
        unknown = [word for word in words if word.startswith("-") and word not in options]
        assert not unknown, f"{line}: no such option {unknown}"
        return
    assert words[0] in ALLOWED, f"{line}: a command that no test knows; see docs_tools/pages.py"
    if words[0] == "pip" or words[:3] == ["python", "-m", "pip"]:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
        extras = re.findall(r"(?:\.|crfield|\.whl)\[([\w,-]+)\]", line)
        for extra in ",".join(extras).split(",") if extras else ():
            assert extra in project["optional-dependencies"], f"{line}: no extra {extra}"
    if words[0] == "make":
        makefile = (ROOT / "Makefile").read_text("utf-8")
        for target in (word for word in words[1:] if "=" not in word):
            assert re.search(rf"^{re.escape(target)}:", makefile, re.M), f"{line}: no {target}"
    if words[0] == "python":
        module = words[1] == "-m"
        script = f"{words[2].replace('.', '/')}.py" if module else words[1]
        ours = script.split("/")[0] in SCRIPT_FOLDERS
        assert ours or module, f"{line}: a script of the reader's"
        assert not ours or (ROOT / script).is_file(), f"{line}: no such file"


def _subcommands() -> dict[str, argparse.ArgumentParser]:
    actions = build_parser()._actions
    return next(a.choices for a in actions if isinstance(a, argparse._SubParsersAction))


def run_page(path: Path, names: dict[str, Any] | None = None) -> dict[str, Any]:
    """What the Python blocks of a page define, all blocks run in order in the current folder.

    A block of text after the word "prints" must be what the last command has printed.
    """
    names = {} if names is None else names
    text, printed = path.read_text("utf-8"), ""
    lines = text.splitlines()
    for block in read_blocks(text):
        if block.language == PYTHON:
            # Errors then show the line of the page.
            source = "\n" * block.line + block.text
            exec(compile(source, str(path), "exec"), names)
        for line in read_commands(block):
            printed = run_command(line)
        if block.language == "text" and lines[max(block.line - 3, 0)] == "prints":
            same = printed.strip() == block.text.strip()
            assert same, f"line {block.line}: the command now prints\n{printed}"
    return names


def run_tutorial(name: str) -> dict[str, Any]:
    """What the blocks of docs/NAME.md define, run in an empty folder."""
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return run_page(DOCS / f"{name}.md")


def save_picture(picture: Image.Image, name: str, n_colors: int = 128) -> None:
    """Write docs/images/NAME.png with a palette, which is a fraction of the size."""
    path = DOCS / "images" / f"{name}.png"
    # Colors that are rare, such as that of a few wrong letters, are kept.
    reduced = picture.convert("RGB").quantize(
        n_colors, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    )
    reduced.save(path, optimize=True)
    print(f"{path.name}: {picture.size}, {os.path.getsize(path) / 1000:.0f} kB")
