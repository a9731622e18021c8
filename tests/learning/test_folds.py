"""Choices by folds of the images: which fold, which option, and that little data change little."""

from types import SimpleNamespace

import numpy as np
import pytest

from crfield import DenseCRF, Inference, Pairwise, Potts, Spatial
from crfield.estimators import TrainingImage
from crfield.learning import choose_start, learn, make_loss, write_report
from crfield.learning.folds import bundled, choose, fold_numbers
from crfield.learning.objective import N_FOLDS, can_choose
from crfield.learning.parameters import ridge_for_one
from crfield.learning.strength import STRENGTHS
from crfield.metrics import mean_iou
from refusal import refusal
from small_dataset import training_images

pytest.importorskip("scipy")

INFERENCE = Inference("concave", "exact", max_iter=3, threads=1)
START = DenseCRF(3, [Pairwise(Spatial(1.0), Potts(0.5))])


def films(sizes):
    return [SimpleNamespace(group=f"film {k}") for k, n in enumerate(sizes) for _ in range(n)]


def test_folds_are_even_and_keep_groups_together():
    alone = fold_numbers([None] * 20)
    assert sorted(np.bincount(alone)) == [6, 7, 7]
    assert np.array_equal(alone, fold_numbers([None] * 20))
    assert not np.array_equal(alone, fold_numbers([None] * 20, seed=1))
    sizes = [5, 1, 4, 2, 3, 3]
    folds = fold_numbers(films(sizes))
    for part in np.split(folds, np.cumsum(sizes)[:-1]):
        assert len(set(part)) == 1
    assert sorted(np.bincount(folds)) == [6, 6, 6]


@pytest.mark.parametrize(("sizes", "n_labels", "expected"), [
    ([1] * 5, 3, False), ([1] * 6, 3, True), ([5, 5], 3, False), ([3, 3, 1], 3, True),
    ([1] * 6, 128, True), ([1] * 6, 129, False),
])
def test_few_images_or_groups_or_many_labels_cannot_choose(sizes, n_labels, expected):
    examples = films(sizes)
    for example in examples:
        example.unary = np.zeros((2, 2, n_labels))
    assert can_choose(examples) == expected


def test_images_without_labels_are_refused():
    void = [e._replace(truth=np.full(e.truth.shape, 255)) for e in noise(6)]
    loss = make_loss("iou", void, 3)
    for call in (
        lambda: choose_start(3, void, loss), lambda: learn(START, void, inference=INFERENCE)
    ):
        assert "must have labeled pixels" in refusal(call)
    part = [*void[:1], *noise(8)]
    assert choose_start(3, part, loss).learned_from(range(9)).n_labels == 3


def test_bundles_hold_every_image_once():
    counts = np.random.default_rng(0).integers(0, 9, (250, 2, 2))
    bundles = bundled(list(counts))
    assert bundles.shape == (100, 2, 2)
    assert np.array_equal(bundles.sum(0), counts.sum(0))
    assert np.array_equal(bundled(list(counts[:7])), counts[:7])


def option(right):
    """Counts of images with 10,000 pixels of each of two labels, of which so many are right."""
    return np.array([[[r, 10_000 - r], [10_000 - r, r]] for r in np.rint(right).astype(int)])


@pytest.mark.parametrize(("ahead", "taken"), [(-1.0, "a"), (0.3, "a"), (0.7, "b"), (5.0, "b")])
def test_the_option_that_changes_less_is_taken_unless_it_is_clearly_behind(ahead, taken):
    """The second option is ahead by so many standard errors of the difference."""
    rng = np.random.default_rng(0)
    right, change = 8000 + 800 * rng.normal(size=60), 100 * rng.normal(size=60)
    change += ahead * change.std() / np.sqrt(60) - change.mean()
    options = [option(right), option(right + change)]
    choice = choose("width", "ab", options)
    assert choice.options[choice.chosen] == taken
    assert choice.scores == [mean_iou(each.sum(0)) for each in options]


def noise(n, size=(6, 7), seed=0):
    rng = np.random.default_rng(seed)
    return [
        TrainingImage(
            rng.uniform(0, 255, (*size, 3)), rng.normal(size=(*size, 3)), rng.integers(0, 3, size)
        )
        for _ in range(n)
    ]


def test_the_ridge_that_folds_choose_is_the_one_that_is_used(tmp_path):
    examples = training_images(6, (20, 24))
    options = {"learn": ("unary", "compatibility"), "inference": INFERENCE, "max_iter": 2}
    told = []
    found = learn(START, examples, told=lambda *words: told.append(words), **options)
    (choice,) = found.report.choices
    assert choice.what == "ridge for one image"
    assert len(choice.scores) == len(STRENGTHS) + 1
    steps = N_FOLDS * len(choice.scores)
    assert told == [("ridge", k, steps) for k in range(steps)]
    assert choice.chosen > 0, "made-up scenes are worth learning from"
    l2 = ridge_for_one(STRENGTHS[choice.chosen - 1], len(examples))
    assert found.report.settings["l2"] == l2
    again = learn(START, examples, l2=l2, **options)
    assert again.report.choices == []
    assert np.array_equal(again.model.recalibration, found.model.recalibration)
    page = tmp_path / "report.html"
    write_report(page, found)
    assert "Chosen by folds" in page.read_text()
    assert f"{100 * choice.scores[0]:.2f} %" in page.read_text()


def test_where_there_is_nothing_to_learn_the_start_stays():
    found = learn(START, noise(9), learn=("unary",), inference=INFERENCE)
    assert found.report.choices[0].chosen == 0
    assert "folds" in found.report.stopped
    assert np.array_equal(found.model.recalibration, np.eye(3, 4))


def test_few_images_get_the_usual_ridge():
    found = learn(START, noise(5), learn=("unary",), inference=INFERENCE, max_iter=1)
    assert found.report.choices == []
    assert found.report.settings["l2"]["unary"] > 0


def test_folds_go_on_from_a_checkpoint_to_the_same_bits(tmp_path):
    class Killed(Exception):
        pass

    examples = training_images(6, (20, 24))
    options = {"learn": ("unary", "compatibility"), "inference": INFERENCE, "max_iter": 2}
    whole = learn(START, examples, **options)

    def die(what, done, total):
        if done == total - 2:
            raise Killed

    with pytest.raises(Killed):
        learn(START, examples, checkpoint=tmp_path / "c", told=die, **options)
    before = (tmp_path / "c").stat().st_size
    assert before > 10_000
    resumed = learn(START, examples, checkpoint=tmp_path / "c", **options)
    assert np.array_equal(resumed.model.recalibration, whole.model.recalibration)
    assert resumed.report.losses == whole.report.losses
    assert resumed.report.n_evaluations == whole.report.n_evaluations


def test_a_loss_with_weights_of_labels_works_in_folds():
    examples = training_images(6, (20, 24))
    found = learn(
        START, examples, loss=make_loss("hamming", examples, 3), learn=("compatibility",),
        inference=INFERENCE, max_iter=1,
    )
    assert len(found.report.choices) == 1
