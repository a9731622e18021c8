"""Warnings point at the line that called crfield."""

import inspect
import warnings
from pathlib import Path

import numpy as np
import pytest

import crfield
from crfield.compat.pydensecrf import utils
from crfield.estimators import DenseCRFClassifier
from crfield.graphs import ChainClassifier, GridClassifier, Propagation

RNG = np.random.default_rng(0)
IMAGE = RNG.integers(0, 256, (12, 14, 3), np.uint8)
SOFT = RNG.random((12, 14, 2))
SOFT /= SOFT.sum(-1, keepdims=True)
GRAYS = np.arange(12 * 14).reshape(12, 14)
MASK = np.where(GRAYS % 2, 255, 0)
SMOOTH = [crfield.Pairwise(crfield.Spatial(2.0), crfield.Potts(1.0))]
PAIRS = [(IMAGE, SOFT)] * 2
CHAINS, STATES = RNG.normal(size=(4, 5, 2)), RNG.integers(0, 2, (4, 5))
GRIDS, MAPS = RNG.normal(size=(2, 4, 5, 2)), RNG.integers(0, 2, (2, 4, 5))

CALLS = {
    "refine": lambda: crfield.refine(IMAGE, GRAYS, max_iter=1),
    "refine of several": lambda: crfield.refine([IMAGE], [GRAYS], max_iter=1),
    "refine of a foreground": lambda: crfield.refine(IMAGE, MASK / 255, max_iter=1),
    "refine_blocks": lambda: crfield.refine_blocks(IMAGE / 128 - 1, SOFT),
    "unary_from_labels": lambda: crfield.unary_from_labels(MASK, 2),
    "infer": lambda: crfield.DenseCRF(2, SMOOTH).infer(None, SOFT),
    "compute_unary": lambda: utils.compute_unary(np.ones((3, 4), int), 2),
    "softmax_to_unary": lambda: utils.softmax_to_unary(SOFT),
    "DenseCRFClassifier": lambda: DenseCRFClassifier(
        learn=(), validation_fraction=0.5
    ).fit(PAIRS, [MASK // 255] * 2),
    "ChainClassifier": lambda: ChainClassifier(max_iter=1).fit(CHAINS, STATES),
    "GridClassifier": lambda: GridClassifier(
        max_iter=1, inference=Propagation(max_iter=1)
    ).fit(GRIDS, MAPS),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_warnings_name_the_line_of_the_caller(call):
    lines, first = inspect.getsourcelines(call)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    assert found
    for each in found:
        assert each.filename == __file__
        assert first <= each.lineno < first + len(lines)


@pytest.mark.parametrize("module", ["crfield_tools", "torchvision.ops"])
def test_callers_may_have_names_that_begin_alike(module):
    code = compile("call(mask, 2)", "own.py", "exec")
    with pytest.warns(UserWarning, match="255 marks unknown pixels") as found:
        exec(code, {"__name__": module, "call": crfield.unary_from_labels, "mask": MASK})
    assert [each.filename for each in found] == ["own.py"]


def test_there_is_one_way_to_warn():
    package = Path(crfield.__file__).parent
    direct = {path.name for path in package.rglob("*.py") if "warnings.warn(" in path.read_text()}
    assert direct == {"warning.py"}
