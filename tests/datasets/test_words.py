"""Made-up words: what is drawn, how it is spoilt, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from crfield.datasets.words import ALPHABET, COMMON_WORDS, letter_image, noisy_words
from refusal import refusal


def test_letters_differ_wherever_they_lie():
    placed = {}
    for letter in ALPHABET:
        image = letter_image(letter)
        assert image.shape == (7, 5)
        assert set(np.unique(image)) == {0, 1}
        # Without empty rows and columns around it, a letter can be told from moved others.
        rows, columns = np.flatnonzero(image.any(1)), np.flatnonzero(image.any(0))
        cut = image[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
        placed[cut.shape, cut.tobytes()] = letter
    assert "".join(placed.values()) == ALPHABET == "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def test_common_words_have_every_letter_and_no_word_twice():
    assert set("".join(COMMON_WORDS)) == set(ALPHABET)
    assert len(set(COMMON_WORDS)) == len(COMMON_WORDS)


@given(st.integers(0, 1000), st.lists(st.text(ALPHABET, min_size=1, max_size=6), min_size=1))
def test_without_noise_a_letter_is_moved_and_nothing_else(seed, words):
    images, letters = noisy_words(3, words=words, noise=0.0, seed=seed)
    for word, spelt in zip(images, letters, strict=True):
        assert "".join(spelt) in words
        assert word.shape == (len(spelt), 8, 6)
        assert word.dtype == np.float32
        for image, letter in zip(word, spelt, strict=True):
            drawn = letter_image(letter)
            assert any(
                np.array_equal(image, np.pad(drawn, ((i, 1 - i), (j, 1 - j))))
                for i in range(2) for j in range(2)
            )


def test_letters_lie_everywhere_on_their_grid():
    images = np.concatenate(noisy_words(50, words=["H"], noise=0.0).images)
    assert {(int(image.any(1).argmax()), int(image.any(0).argmax())) for image in images} == {
        (0, 0), (0, 1), (1, 0), (1, 1)
    }


def test_first_words_do_not_depend_on_how_many():
    few, many = noisy_words(5, seed=3), noisy_words(9, seed=3)
    for ours, theirs in zip(few.images, many.images[:5], strict=True):
        assert np.array_equal(ours, theirs)
    assert ["".join(word) for word in few.letters] == ["".join(word) for word in many.letters[:5]]
    assert not np.array_equal(noisy_words(1, seed=4).images[0], few.images[0])


def test_noise_has_the_deviation_that_was_asked_for():
    noisy, clean = (np.concatenate(noisy_words(200, noise=noise).images) for noise in (0.7, 0.0))
    assert (noisy - clean).std() == pytest.approx(0.7, rel=0.02)
    assert (noisy - clean).mean() == pytest.approx(0.0, abs=0.01)


def test_no_words_are_none():
    assert noisy_words(0) == ([], [])


@pytest.mark.parametrize(("call", "message"), [
    (lambda: noisy_words(-1), "n must be at least 0, got -1"),
    (lambda: noisy_words(1, noise=-0.5), "noise must not be negative, got -0.5"),
    (lambda: noisy_words(1, noise=float("nan")), "noise must be"),
    (lambda: noisy_words(1, words="WORD"), "words must be a list of words"),
    (lambda: noisy_words(1, words=[]), "words must be a list of words"),
    (lambda: noisy_words(1, words=["word"]), 'words must be made of the letters "A" to "Z"'),
    (lambda: noisy_words(1, words=["A", ""]), 'words must be made of the letters "A" to "Z"'),
    (lambda: noisy_words(1, words=[3]), 'words must be made of the letters "A" to "Z"'),
    (lambda: letter_image("a"), 'letter must be one of "A" to "Z"'),
])
def test_wrong_input(call, message):
    assert refusal(call).startswith(message)
