"""CONTRIBUTING.md sends nobody to a file or a name that is not there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "src" / "crfield"
TEXT = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
PROSE = re.sub(r"^```.*?^```$", "", TEXT, flags=re.M | re.S)
PLACES = PROSE.split("## Where is what")[1].split("\n## ")[0]
PATH = r"[\w./]+\.(?:py|js|css|html|cpp|hpp|md|toml|yml|cff)"


def find(path):
    """The file that a path means, from the root or from the package; None if there is none."""
    return next((p for p in (ROOT / path, PACKAGE / path) if p.exists()), None)


@pytest.mark.parametrize("path", sorted(set(re.findall(rf"`({PATH})`", PROSE))))
def test_files_that_are_named_exist(path):
    folder = ROOT / path.split("/")[0]
    # An sdist comes without some of the folders.
    assert find(path) is not None or not (folder.is_dir() or (PACKAGE / folder.name).is_dir())


@pytest.mark.parametrize("row", re.findall(r"^\| (.+ \| `.+`.*) \|$", PLACES, re.M))
def test_names_are_in_the_files_they_are_said_to_be_in(row):
    _, places = row.split(" | ", 1)
    for part in places.split(";"):
        files, _, names = part.partition(": ")
        for path in re.findall(rf"`({PATH})`", files):
            text = find(path).read_text("utf-8")
            for name in re.findall(r"`(\w+)`", names):
                assert re.search(rf"\b{name}\b", text), f"{path} has no {name}"


@pytest.mark.parametrize(("name", "path"), re.findall(rf"`(\w+)`\s+of\s+`({PATH})`", PROSE))
def test_recipes_name_what_is_there(name, path):
    assert re.search(rf"\b{name}\b", find(path).read_text("utf-8")), f"{path} has no {name}"


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/how_it_works.md"])
def test_every_room_is_on_the_plan(page):
    plan = (ROOT / page).read_text("utf-8").split("\n## The rooms\n")[1].split("\n## ")[0]
    for room in sorted(PACKAGE.iterdir()):
        if room.name.startswith("__") or room.suffix not in ("", ".py"):
            continue
        name = f"{room.name}/" if room.is_dir() else room.name
        assert f"`{name}`" in plan, f"{name} is not on the plan of the rooms"


def test_there_is_something_to_find():
    assert len(re.findall(r"^\| (?!to find|---)", PLACES, re.M)) > 50
