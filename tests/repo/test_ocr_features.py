"""Features, splits and network of the experiment on handwritten words, on words made up here."""

import numpy as np
import pytest

from experiments import ocr_letters
from experiments.ocr_features import (
    DESCRIPTIONS,
    LETTERS,
    Words,
    blur,
    fourier_features,
    load_words,
    oriented_gradients,
    with_neighbors,
)
from experiments.ocr_letters import Split, measure, share_right


def made_up_words(n, seed=0):
    """Words of "a" to "d", each a bar in another place and some noise; a "b" follows every "a"."""
    rng = np.random.default_rng(seed)
    features, letters = [], []
    for _ in range(n):
        classes = rng.integers(0, 4, rng.integers(2, 6))
        for t in range(1, len(classes)):
            if classes[t - 1] == 0:
                classes[t] = 1
        images = (rng.random((len(classes), 16, 8)) < 0.3).astype(float)
        for image, number in zip(images, classes, strict=True):
            image[4 * number : 4 * number + 2] = 1
        features.append(images.reshape(len(classes), -1))
        letters.append(LETTERS[classes])
    return Words(features, letters)


def test_blur_of_a_point_and_at_the_frame():
    images = np.zeros((2, 5, 4))
    images[0, 2, 1], images[1, 0, 0] = 16, 16
    assert np.array_equal(blur(images)[0, 1:4, :3], [[1, 2, 1], [2, 4, 2], [1, 2, 1]])
    assert np.array_equal(blur(images)[1, :2, :2], [[4, 2], [2, 1]])
    assert blur(images)[0].sum() == 16


@pytest.mark.parametrize(("turns", "direction"), [(0, 2), (1, 4), (2, 6), (3, 0)])
def test_an_edge_has_its_direction(turns, direction):
    # Ink in the lower half: values rise downwards, two of eight directions from "to the right".
    image = np.zeros((8, 8))
    image[4:] = 1
    found = oriented_gradients(np.rot90(image, -turns)[None]).reshape(8, 6, 6)
    middle = found[:, 3, 3]
    assert middle.argmax() == direction
    assert middle[direction] > 5 * np.delete(middle, direction).max()


def test_gradients_go_to_the_two_directions_beside_theirs():
    image = np.random.default_rng(0).random((3, 16, 8))
    coarse, fine = oriented_gradients(image, 4), oriented_gradients(image, 8)
    assert coarse.shape == (3, 4 * 10 * 6)
    assert fine.shape == (3, 8 * 10 * 6)
    # However many directions there are, lengths of gradients are shared out completely.
    sums = (part.reshape(3, -1, 60).sum(1) for part in (coarse, fine))
    assert np.allclose(*sums)
    assert not oriented_gradients(np.zeros((1, 16, 8))).any()


def test_neighbors_stay_within_their_word():
    rows = np.arange(1.0, 6)[:, None]
    found = with_neighbors(rows, np.array([3, 1, 1]), 10.0)
    assert found.tolist() == [[1, 0, 20], [2, 10, 30], [3, 20, 0], [4, 0, 0], [5, 0, 0]]


def test_waves_approximate_the_gaussian_kernel():
    points = np.random.default_rng(1).normal(size=(6, 5))
    waves = fourier_features(points, 20000, 2.0)
    squares = ((points[:, None] - points) ** 2).sum(-1)
    assert np.abs(waves @ waves.T - np.exp(-squares / 8)).max() < 0.03


def test_every_description_keeps_letters_apart_from_other_words():
    words = made_up_words(4)
    for name, describe in DESCRIPTIONS.items():
        both = words.described(describe)
        last = words.take(np.array([3])).described(describe)
        assert [len(part) for part in both.features] == words.lengths.tolist(), name
        assert np.allclose(both.features[3], last.features[0]), name


def test_words_as_they_are_stored(tmp_path):
    pixels = np.random.default_rng(2).integers(0, 2, (5, 128), dtype=np.uint8)
    np.savez(
        tmp_path / "letters.npz", X_packed=np.packbits(pixels, axis=1), y=[0, 1, 25, 2, 3],
        word_offsets=[0, 3, 5], fold=np.array([7, 8], np.uint8),
    )
    words, folds = load_words(tmp_path)
    assert ["".join(word) for word in words.letters] == ["abz", "cd"]
    assert np.array_equal(np.concatenate(words.features), pixels)
    assert folds.tolist() == [7, 8]
    assert len(words.apart()) == 5


def test_splits_test_on_words_that_are_not_trained_on():
    words = made_up_words(40)
    folds = np.arange(40, dtype=np.uint8) % 10
    own = [id(part) for part in words.features]
    for split, n_train, n_held in (
        (Split.one(words, folds, 3, 0), 4, 1), (Split.nine(words, folds, 9), 36, 4),
    ):
        train, test = ([id(part) for part in w.features] for w in (split.train, split.test))
        assert sorted(train + test) == sorted(own)
        assert (len(train), split.held.sum()) == (n_train, n_held)
    held = Split.nine(words, folds, 9).held
    assert folds[folds != 9][held].tolist() == [0, 0, 0, 0]


def test_share_of_letters_and_of_words():
    truth = Words([], [np.array(list("abc")), np.array(list("d"))])
    found = [np.array(list("axc")), np.array(list("d"))]
    assert share_right(found, truth) == (0.75, 0.5)


def test_rows_and_tables():
    pytest.importorskip("scipy", reason="learning needs SciPy")
    words = made_up_words(60)
    split = Split.one(words, np.arange(60, dtype=np.uint8) % 2, 0, 0)
    outcomes = [
        measure("letters alone", split, apart=True, strengths=(0.1, 1.0)),
        measure("chain", split, training="piecewise", strengths=(1.0,)),
        measure("chain", split, features="oriented gradients", strengths=(1.0,)),
    ]
    assert all(found.test > 0.9 and 0 < found.words <= found.test for found in outcomes)
    assert [found.gap is None for found in outcomes] == [False, True, False]
    assert ocr_letters.one_fold_table(outcomes).count("\n") == 4
    table = ocr_letters.nine_folds_table([*outcomes, outcomes[0]])
    assert table.count("\n") == 4
    assert "±" in table.splitlines()[2]
    scores = {"pixels": {"0.1": 0.5, "1.0": 0.625}}
    assert "C = 0.1" in ocr_letters.features_table(scores)


def test_network_learns_with_and_without_a_chain():
    torch = pytest.importorskip("torch", reason="the network needs PyTorch")
    from experiments.ocr_network import LetterData, shifted, train

    words = made_up_words(128)
    data = LetterData.from_words(words)
    truth = np.concatenate(words.letters)
    for with_chain in (False, True):
        model = train(data, with_chain=with_chain, n_epochs=4, seed=0)
        found = LETTERS[model.predict(data).numpy()]
        assert (found == truth).mean() > 0.9
        assert (model.chain is not None) == with_chain
    costs = model.chain.edge_costs.detach()
    # After an "a" comes a "b".
    assert costs[0, :4].argmin() == 1
    images = torch.zeros(50, 1, 16, 8)
    images[:, 0, 5, 4] = 1
    moved = shifted(images)
    assert moved.sum() == 50
    assert {tuple(place) for place in moved.nonzero()[:, 2:].tolist()} <= {
        (row, column) for row in (4, 5, 6) for column in (3, 4, 5)
    }
