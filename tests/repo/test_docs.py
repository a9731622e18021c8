"""The pages of docs/ run as printed, block after block, in an empty folder, and tell no tales."""

import re
from pathlib import Path

import pytest

from docs_tools.pages import (
    DOCS,
    PYTHON,
    SCRIPT_FOLDERS,
    check_command,
    inline_commands,
    read_blocks,
    read_commands,
    run_command,
    run_page,
)

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = (*SCRIPT_FOLDERS, "native", "src")
PAGES = {path.relative_to(DOCS).as_posix(): path for path in sorted(DOCS.rglob("*.md"))}
TUTORIALS = (
    "graphs", "learning", "letters", "nn", "patterns", "poses", "reconstruction", "uai", "volumes",
)
SKELETON = (
    "The data", "The model", "Inference", "Learning", "Reading the result", "What can go wrong",
    "Where to go next",
)
# What comes with the extras; a page that imports one of these is skipped where it is missing.
OPTIONAL = {
    "dask", "joblib", "matplotlib", "nibabel", "scipy", "sklearn", "starlette", "tifffile", "torch",
    "xarray", "zarr",
}
# What a page needs without importing it.
NEEDED = {
    "app.md": ("starlette", "uvicorn"), "graphs.md": ("scipy",), "learning.md": ("scipy", "joblib"),
    "letters.md": ("scipy",), "volumes.md": ("scipy",),
}


def packages(name):
    """The optional packages that a page needs."""
    blocks = [b.text for b in read_blocks(PAGES[name].read_text("utf-8")) if b.language == PYTHON]
    imported = set(re.findall(r"^\s*(?:import|from) (\w+)", "\n".join(blocks), re.M)) & OPTIONAL
    if any("crfield.nn" in text for text in blocks):
        imported.add("torch")
    return sorted(imported | set(NEEDED.get(name, ())))


@pytest.mark.slow
@pytest.mark.parametrize("name", PAGES)
def test_every_block_and_command_runs(name, tmp_path, monkeypatch):
    for package in packages(name):
        pytest.importorskip(package, reason=f"{name} needs {package}")
    monkeypatch.chdir(tmp_path)
    # With images this small, workers take longer to start than to learn.
    monkeypatch.setattr("crfield.cli.learn.default_jobs", lambda: 1)
    run_page(PAGES[name])


@pytest.mark.parametrize("path", [*PAGES.values(), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
def test_commands_in_running_text_exist(path):
    for line in inline_commands(path.read_text("utf-8")):
        check_command(line)


@pytest.mark.parametrize("name", PAGES)
def test_files_named_on_a_page_exist(name):
    text = re.sub(r"^( *)```.*?^\1```$", "", PAGES[name].read_text("utf-8"), flags=re.M | re.S)
    for file in re.findall(rf"`((?:{'|'.join(FOLDERS)})/[\w./-]+\.\w+)`", text):
        assert (ROOT / file).is_file(), file
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
        if not re.match(r"https?:|mailto:", target):
            path = PAGES[name].parent / target
            assert path.is_file() or not (DOCS / "images").is_dir(), target


@pytest.mark.parametrize("name", TUTORIALS)
def test_tutorials_share_their_skeleton(name):
    text = PAGES[f"{name}.md"].read_text("utf-8")
    intro, *_ = text.split("\n## ", 1)
    assert "At the end of this page you" in intro
    assert re.search(r"!\[[^\]]{20,}\]\(images/\w+\.png\)", intro), "a picture comes first"
    assert "Every block on this page runs as it stands" in intro
    found = [h for h in re.findall(r"^## (.+)$", text, re.M) if h in SKELETON]
    assert tuple(found) == SKELETON
    assert "](notation.md" in text
    blocks = read_blocks(text)
    assert sum(b.language == PYTHON for b in blocks) + sum(map(len, map(read_commands, blocks))) > 7


def test_one_page_says_how_to_install():
    """Beside the README, in the same words, so that they change in one place."""
    own = re.compile(r"pip install .*\[.*")
    told = {name: own.findall(page.read_text("utf-8")) for name, page in PAGES.items()}
    assert own.findall((ROOT / "README.md").read_text("utf-8")) == told.pop("start.md")
    assert not any(told.values())


@pytest.mark.parametrize(("text", "message"), [
    ("```python\n1\n", "not closed"),
    ("```pycon\n>>> 1\n```\n", "nothing runs blocks in 'pycon'"),
    ("```\nrm -rf /\n```\n", "a command that no test knows"),
    ("```\nmake nothing\n```\n", "no nothing"),
    ("```sh\npip install '.[nothing]'\n```\n", "no extra nothing"),
    ("```\npython examples/nothing.py\n```\n", "no such file"),
    ("```text\ncrfield refine --nothing\n```\n", "exit code 2"),
    ("- a list\n\n  ```python\n  1 / 0\n  ```\n", "division by zero"),
])
def test_nothing_is_skipped_in_silence(text, message, tmp_path):
    page = tmp_path / "page.md"
    page.write_text(text, "utf-8")
    with pytest.raises((ValueError, AssertionError, ZeroDivisionError), match=re.escape(message)):
        run_page(page)


def test_commands_that_wait_are_parsed_and_the_others_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert run_command("crfield --version") == run_command("crfield --version > version.txt") != ""
    assert (tmp_path / "version.txt").read_text("utf-8").startswith("crfield ")
    assert run_command("crfield demo -o out") == ""
    assert not (tmp_path / "out").exists()
    with pytest.raises(AssertionError, match="no such option"):
        check_command("crfield learn data --nothing")
    with pytest.raises(AssertionError, match="no such command"):
        check_command("crfield nothing")
