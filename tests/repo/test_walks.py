"""The walks in docs/how_it_works.md are those that the calls take."""

import re

import pytest

from docs_tools import walks

NEEDED = {"learn": ("scipy",), "layer": ("torch",), "chain": ("scipy",),
          "playground": ("starlette", "uvicorn")}

# Most files that each walk may enter: data goes down through the rooms and comes back once.
LIMITS = {"refine": 14, "learn": 18, "layer": 12, "chain": 8, "graph": 7}


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
