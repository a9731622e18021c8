"""The example of handwritten words at a small size, and what it reads and draws."""

import json
import sys

import numpy as np
import pytest
from PIL import Image

import read_letters
from example_runs import run_script

pytest.importorskip("scipy", reason="learning needs SciPy")


@pytest.mark.slow
def test_a_chain_reads_more_than_letters_alone(tmp_path):
    done = run_script("read_letters", "--quick", "-o", tmp_path / "new")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "120 words to learn from, 120 to test" in done.stdout
    alone, chain = json.loads((tmp_path / "new" / "figures.json").read_text("utf-8"))
    assert 0.3 < alone["letters"] < chain["letters"] - 0.02 < 1
    assert f"{100 * chain['letters']:.1f}" in done.stdout
    with Image.open(tmp_path / "new" / "words.png") as picture:
        assert picture.height == 8 * (read_letters.LETTER_HEIGHT + 2 * 22 + read_letters.GAP)


def test_words_of_the_first_fold_are_told_from_the_others(tmp_path):
    folder = tmp_path / "ocr_letters"
    folder.mkdir()
    bits = np.random.default_rng(0).integers(0, 2, (7, 128), np.uint8)
    np.savez(
        folder / "letters.npz", X_packed=np.packbits(bits, axis=1), y=np.arange(7, dtype=np.uint8),
        word_offsets=np.array([0, 2, 5, 7]), fold=np.array([0, 4, 0], np.uint8),
    )
    (images, letters), (others, other_letters) = read_letters.load_words(tmp_path)
    assert sorted("".join(word) for word in letters) == ["ab", "fg"]
    assert ["".join(word) for word in other_letters] == ["cde"]
    np.testing.assert_array_equal(others[0].reshape(3, -1), bits[2:5])
    for word, text in zip(images, letters, strict=True):
        start = "abcdefg".index(text[0])
        np.testing.assert_array_equal(word, bits[start : start + 2].reshape(2, 16, 8))


def test_wrong_letters_are_red():
    images = [np.zeros((2, 8, 6))]
    right, wrong = (
        np.asarray(read_letters.draw_readings(images, [["A", "B"]], {"chain": [list(read)]}))
        for read in ("AB", "AC")
    )

    def is_red(picture):
        return (picture[..., 0].astype(int) - picture[..., 1] > 100).any()

    assert is_red(wrong)
    assert not is_red(right)


def test_folder_without_letters_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["read_letters.py", "--data", str(tmp_path)])
    with pytest.raises(SystemExit) as left:
        read_letters.main()
    assert left.value.code == 2
    assert "--data must hold ocr_letters/letters.npz" in capsys.readouterr().err
