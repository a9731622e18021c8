"""Bars of long work: they follow what is done, and appear only where they were asked for."""

import numpy as np
import pytest

import crfield
from crfield import Inference, datasets
from crfield._core.progress import shown_progress
from crfield.estimators import DenseCRFClassifier, TrainingImage
from crfield.graphs import ChainClassifier, GraphClassifier, GridClassifier
from crfield.learning import learn

SCENE = datasets.synthetic_scenes(1, size=(16, 20), n_labels=3, seed=4)[0]
LABELS = SCENE.mask.astype(np.uint8)
EXAMPLE = TrainingImage(
    SCENE.image, crfield.unary_from_probabilities(SCENE.probabilities), SCENE.mask
)
MODEL = crfield.DenseCRF(3, [crfield.Pairwise(crfield.Spatial(2.0), crfield.Potts(1.0))])
FEATURES = np.random.default_rng(0).normal(size=(4, 5, 2))
EDGES = np.array([[0, 1], [1, 2], [2, 0]])


@pytest.fixture
def bars(monkeypatch):
    """The bars that were shown: unit, total, and how much was done at each move."""
    shown = []

    class Bar:
        def __init__(self, *, unit, total, **_):
            self.n, self.moves = 0, []
            shown.append((unit, total, self.moves))

        def __enter__(self):
            return self

        def __exit__(self, *_):
            pass

        def update(self, more):
            self.n += more
            self.moves.append(self.n)

    monkeypatch.setattr("tqdm.tqdm", Bar)
    return shown


@pytest.mark.parametrize(("work", "unit", "total", "moves"), [
    (lambda **show: crfield.refine(SCENE.image, LABELS, max_iter=3, tol=0, **show),
     "iteration", 3, [1, 2, 3]),
    (lambda **show: crfield.refine_blocks(
        SCENE.image, LABELS, block=12, inference=Inference(max_iter=1), **show),
     "block", 4, [1, 2, 3, 4]),
    (lambda **show: learn(MODEL, [EXAMPLE], max_iter=2, tol=0, **show),
     "iteration", 2, [0, 1, 2]),
    (lambda **show: DenseCRFClassifier(max_iter=1, **show).fit(
        [(SCENE.image, SCENE.probabilities)], [SCENE.mask]), "iteration", 1, [0, 1]),
    (lambda **show: ChainClassifier(max_iter=2, tol=1e-9, **show).fit(
        [FEATURES[0]], [[0, 1, 1, 0, 1]]), "iteration", 2, [0, 1, 2]),
    (lambda **show: GraphClassifier(max_iter=2, tol=1e-9, **show).fit(
        [(FEATURES[0, :3], EDGES)], [[0, 1, 1]]), "iteration", 2, [0, 1, 2]),
    (lambda **show: GridClassifier(max_iter=2, tol=1e-9, **show).fit(
        [FEATURES], [FEATURES[..., 0] > FEATURES[..., 1]]), "iteration", 2, [0, 1, 2]),
])
@pytest.mark.filterwarnings("ignore:learning")
def test_long_work_moves_a_bar(bars, work, unit, total, moves):
    work()
    assert bars == []
    work(progress=True)
    assert bars == [(unit, total, moves)]


def test_the_callback_is_called_beside_the_bar(bars):
    seen = []
    crfield.refine(
        SCENE.image, LABELS, tol=0, progress=True, callback=lambda n, *_: seen.append(n) or n == 2
    )
    assert seen == [1, 2]
    assert bars == [("iteration", 10, [1, 2])]
    with pytest.raises(crfield.InputError, match="callback must be callable"):
        crfield.refine(SCENE.image, LABELS, progress=True, callback=3)


def test_what_goes_on_begins_in_the_middle(bars):
    with shown_progress("block", 9) as told:
        told(7, 9)
    assert bars == [("block", 9, [7])]
