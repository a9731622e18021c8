"""Follow six calls through the rooms of the package, for the map in docs/how_it_works.md.

`python -m docs_tools.walks` runs the six calls and prints which files of the package each enters,
in order of the first visit, with the functions through which it enters them. With `--write` it puts
these lists into the page, between `<!-- walk: NAME -->` and `<!-- end -->`.
tests/repo/test_walks.py compares the page with the calls.

A walk is a function below that prepares its arguments and returns the call. It is made and run once
before it is followed, so that lazy imports are done. To add one, write it, enter it in `WALKS` and
put its markers in the page.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import json
import re
import struct
import sys
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import crfield

ROOT = Path(crfield.__file__).parent
PAGE = Path(__file__).resolve().parents[1] / "docs" / "how_it_works.md"
MAX_FUNCTIONS = 3  # of a file, those that are entered first
Walk = dict[str, list[str]]  # file -> functions
Call = Callable[[], object]

_MARKED = r"(?ms)(^<!-- walk: {name} -->\n)(.*?)(^<!-- end -->$)"


def refine() -> Call:
    """A photo and a network's probabilities."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (40, 50, 3), dtype=np.uint8)
    probabilities = rng.dirichlet(np.ones(4), (40, 50)).astype(np.float32)
    return lambda: crfield.refine(image, probabilities)


def learn() -> Call:
    """All parameters of a model on three made-up scenes."""
    from types import SimpleNamespace

    from crfield import Bilateral, DenseCRF, Pairwise, Potts, Spatial, unary_from_probabilities
    from crfield.datasets import synthetic_scenes
    from crfield.learning import learn

    scenes = synthetic_scenes(3, size=(24, 32), n_labels=3, seed=0)
    examples = [
        SimpleNamespace(
            image=scene.image, truth=scene.mask,
            unary=unary_from_probabilities(scene.probabilities),
        )
        for scene in scenes
    ]
    model = DenseCRF(
        3, [Pairwise(Spatial(3.0), Potts(1.0)), Pairwise(Bilateral(20.0, 30.0), Potts(3.0))]
    )
    return lambda: learn(model, examples, max_iter=2)


def layer() -> Call:
    """A layer of a network on the CPU, forward and backward."""
    import torch

    from crfield.nn import DenseCRF

    torch.manual_seed(0)
    crf = DenseCRF(4)
    image = torch.rand(1, 3, 24, 32) * 255
    logits = torch.randn(1, 4, 24, 32, requires_grad=True)
    return lambda: crf(logits, image).sum().backward()


def chain() -> Call:
    """An estimator of words."""
    from crfield.graphs import ChainClassifier

    rng = np.random.default_rng(0)
    sequences = [rng.normal(size=(5, 3)) for _ in range(6)]
    labels = [rng.integers(0, 2, 5) for _ in range(6)]
    return lambda: ChainClassifier(max_iter=3).fit(sequences, labels)


def graph() -> Call:
    """Belief propagation on three variables in a row."""
    from crfield.graphs import FactorGraph, TableFactors, infer

    rng = np.random.default_rng(0)
    factors = TableFactors(np.array([[0, 1], [1, 2]]), rng.normal(size=(2, 2)))
    model = FactorGraph(rng.normal(size=(3, 2)), [factors])
    return lambda: infer(model)


def playground() -> Call:
    """A stroke on the page of `crfield app`: what the server does with the request."""
    from crfield.app.connections import Connections
    from crfield.app.routes import create_app

    app = create_app(Connections())
    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (24, 32, 3), dtype=np.uint8)
    painted = np.full((24, 32), 255, np.uint8)
    painted[2:5, 2:20], painted[15:18, 5:25] = 0, 1
    settings = json.dumps({"n_labels": 2, "max_iter": 2}).encode()
    body = struct.pack("<I", len(settings)) + settings + painted.tobytes()
    opened = asyncio.run(_post(app, "/api/images", _png(pixels)))
    path = f"/api/images/{json.loads(opened)['id']}/refine"
    return lambda: asyncio.run(_post(app, path, body))


WALKS: dict[str, Callable[[], Call]] = {
    "refine": refine, "learn": learn, "layer": layer, "chain": chain, "graph": graph,
    "playground": playground,
}


def follow(call: Call) -> Walk:
    """The files of the package that a call enters, each with its first functions.

    Threads that the call starts are followed as well. Files are ordered by the first visit of the
    calling thread, then by those of the other threads.
    """
    visits: dict[int, list[tuple[str, str]]] = {}
    stacks: dict[int, list[str]] = {}
    root = f"{ROOT}/"

    def trace(frame: FrameType, event: str, _: Any) -> None:
        file = frame.f_code.co_filename
        if event not in ("call", "return") or not file.startswith(root):
            return
        thread = threading.get_ident()
        stack = stacks.setdefault(thread, [])
        if event == "call":
            if not stack and "<locals>" in frame.f_code.co_qualname:
                file = ""  # a decorator's: what it wraps is the call
            elif not stack or stack[-1] != file:
                visit = (file.removeprefix(root), frame.f_code.co_qualname)
                visits.setdefault(thread, []).append(visit)
            stack.append(file)
        elif stack:
            stack.pop()

    threading.setprofile(trace)
    sys.setprofile(trace)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    walk: Walk = {}
    for file, function in (visit for thread in visits.values() for visit in thread):
        functions, name = walk.setdefault(file, []), _readable(function)
        if name is not None and name not in functions:
            functions.append(name)
    return {file: functions[:MAX_FUNCTIONS] for file, functions in walk.items()}


def walk(name: str) -> Walk:
    """One of the six walks."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # three iterations are enough to see the way
        WALKS[name]()()
        return follow(WALKS[name]())


def listed(steps: Walk) -> str:
    """A walk as the list in the page: file, functions, and what the file says that it is."""
    lines = []
    for file, functions in steps.items():
        names = ", ".join(f"`{function}`" for function in functions)
        lines.append(f"1. `{file}`: {names}{'. ' if names else ''}*{_first_sentence(file)}*")
    return "\n" + "\n".join(lines) + "\n\n"


def read_walk(name: str) -> Walk:
    """The list that the page has of a walk."""
    found = re.search(_MARKED.format(name=name), PAGE.read_text("utf-8"))
    if found is None:
        raise ValueError(f"{PAGE.name} has no markers of the walk {name!r}")
    steps: Walk = {}
    for line in re.findall(r"^1\. (.+)$", found[2], re.M):
        file, *functions = re.findall(r"`([^`]+)`", re.sub(r"\*.*\*$", "", line))
        steps[file] = functions
    return steps


def write_walks() -> None:
    """Put all walks into the page."""
    text = PAGE.read_text("utf-8")
    for name in WALKS:
        steps = listed(walk(name))
        text, n_found = re.subn(
            _MARKED.format(name=name), lambda found, new=steps: found[1] + new + found[3], text
        )
        if n_found != 1:
            raise ValueError(f"{PAGE.name} has {n_found} markers of the walk {name!r}")
    PAGE.write_text(text, "utf-8")


def _readable(function: str) -> str | None:
    """A function's name for readers: a class for its special methods, None for what has no name."""
    if "<" in function:
        return None
    owner, _, name = function.rpartition(".")
    return owner or None if name.startswith("__") else function


def _first_sentence(file: str) -> str:
    """The first sentence of a module's docstring."""
    docstring = ast.get_docstring(ast.parse((ROOT / file).read_text("utf-8"))) or ""
    sentence = re.split(r"(?<=\.)\s|\n\n", docstring, maxsplit=1)[0]
    return " ".join(sentence.replace("*", "\\*").split())


def _png(pixels: np.ndarray) -> bytes:
    import io

    from PIL import Image

    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG")
    return stream.getvalue()


async def _post(app: Any, path: str, body: bytes) -> bytes:
    """The answer of an ASGI application to a request that its own page could send."""
    sent: list[dict[str, Any]] = []
    waiting = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> dict[str, Any]:
        if waiting:
            return waiting.pop()
        await asyncio.sleep(3600)  # the page keeps the connection open
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST",
        "scheme": "http", "path": path, "raw_path": path.encode(), "query_string": b"",
        "root_path": "", "client": ("127.0.0.1", 50000), "server": ("127.0.0.1", 8000),
        "headers": [(b"host", b"127.0.0.1:8000"), (b"x-crfield", b"1")],
    }
    await app(scope, receive, send)
    answer = b"".join(message.get("body", b"") for message in sent)
    if sent[0]["status"] != 200:
        raise RuntimeError(f"{path}: {answer.decode(errors='replace')}")
    return answer


def main() -> None:
    """Print the walks, or write them into the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--write", action="store_true", help=f"rewrite the lists in {PAGE.name}")
    if parser.parse_args().write:
        write_walks()
        return
    for name in WALKS:
        steps = walk(name)
        print(f"{name}: {len(steps)} files")
        for file, functions in steps.items():
            print(f"  {file}: {', '.join(functions)}")


if __name__ == "__main__":
    main()
