"""The walks in docs/how_it_works.md are those that the calls take."""

from __future__ import annotations

import re

import pytest

from docs_tools import walks

NEEDED = {"learn": ("scipy",), "layer": ("torch",), "chain": ("scipy",),
          "playground": ("starlette",)}

# Most files that each walk may enter: data goes down through the rooms and comes back once.
LIMITS = {"refine": 13, "learn": 18, "layer": 15, "chain": 7, "graph": 7}


@pytest.mark.parametrize("name", walks.WALKS)
def test_the_page_has_the_way_that_the_call_takes(name):
    for package in NEEDED.get(name, ()):
        pytest.importorskip(package, reason=f"the walk {name} needs {package}")
    taken = walks.walk(name)
    assert walks.read_walk(name) == taken, "python -m docs_tools.walks --write"
    assert list(walks.read_walk(name)) == list(taken), "python -m docs_tools.walks --write"


@pytest.mark.parametrize("name", LIMITS)
def test_walks_stay_short(name):
    """Of the list in the page, which the test above compares with the call."""
    assert len(walks.read_walk(name)) <= LIMITS[name]


def test_the_page_has_no_other_walks():
    found = re.findall(r"^<!-- walk: (\w+) -->$", walks.PAGE.read_text("utf-8"), re.M)
    assert found == list(walks.WALKS)


def test_threads_are_followed_and_names_are_readable():
    taken = walks.walk("graph")
    assert all(file.endswith(".py") and (walks.ROOT / file).is_file() for file in taken)
    assert all(len(functions) <= walks.MAX_FUNCTIONS for functions in taken.values())
    assert not any("<" in f or f.startswith("__") for names in taken.values() for f in names)


def test_every_room_is_in_the_plan():
    plan = walks.PAGE.read_text("utf-8").split("\n## The rooms\n")[1].split("\n## ")[0]
    for room in sorted(walks.ROOT.iterdir()):
        if not room.name.startswith("__") and (room.is_dir() or room.suffix == ".py"):
            assert f"`{room.name}{'/' if room.is_dir() else ''}`" in plan, room.name
