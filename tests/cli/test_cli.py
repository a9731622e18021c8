"""The command line, run as a user runs it: files in, files out, exit codes and sentences."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import crfield
from crfield import Pairwise, Potts, Spatial, datasets
from crfield.cli import main

SCENE = datasets.synthetic_scenes(1, size=(32, 40), n_labels=3, seed=4)[0]
PALETTE = bytes(range(90, 150))


@pytest.fixture(autouse=True)
def scene_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to work in, with an image, its coarse labels and its probabilities."""
    monkeypatch.chdir(tmp_path)
    write_scene(Path(), Path(), "photo")
    np.save("probs.npy", SCENE.probabilities)
    return tmp_path


def coarse_labels() -> Any:
    return datasets.coarsen(SCENE.mask, n_labels=3, block=4, seed=1).astype(np.uint8)


def write_scene(images: Path, labels: Path, stem: str) -> None:
    Image.fromarray(SCENE.image).save(images / f"{stem}.bmp")
    picture = Image.fromarray(coarse_labels())
    picture.putpalette(PALETTE.ljust(768, b"\0"))
    picture.save(labels / f"{stem}.png")


def make_folders(*stems: str) -> None:
    for folder in ("images", "masks"):
        Path(folder).mkdir()
    for stem in stems:
        write_scene(Path("images"), Path("masks"), stem)


def read(path: str | Path) -> Any:
    with Image.open(path) as picture:
        return np.array(picture)


def failure(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one line on stderr of a command that is refused."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("crfield: error: ")
    assert captured.err.endswith(".\n")
    return captured.err


class TestOneImage:
    def test_labels_are_those_of_the_library_with_the_palette_of_the_input(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["refine", "photo.bmp", "--labels", "photo.png"]) == 0
        expected = crfield.refine(SCENE.image, coarse_labels())
        np.testing.assert_array_equal(read("photo_refined.png"), expected.labels)
        assert (expected.labels != coarse_labels()).any()
        with Image.open("photo_refined.png") as written:
            assert bytes(written.getpalette() or ())[: len(PALETTE)] == PALETTE
        assert "photo.bmp -> photo_refined.png" in capsys.readouterr().out

    def test_options_reach_the_library(self) -> None:
        assert main([
            "refine", "photo.bmp", "--labels", "photo.png", "-o", "out.npy", "--marginals",
            "--spatial", "2", "--spatial-weight", "1.5", "--bilateral", "20", "30",
            "--bilateral-weight", "4", "--confidence", "0.6", "--unknown", "2",
            "--algorithm", "cccp", "--filter", "lattice", "--max-iter", "3", "--tol", "1e-9",
            "--threads", "1",
        ]) == 0
        expected = crfield.refine(
            SCENE.image, coarse_labels(), spatial=2.0, spatial_weight=1.5, bilateral=(20.0, 30.0),
            bilateral_weight=4.0, confidence=0.6, unknown=2, algorithm="cccp", filter="lattice",
            max_iter=3, tol=1e-9, threads=1,
        )
        np.testing.assert_array_equal(np.load("out.npy"), expected.labels)
        np.testing.assert_array_equal(np.load("out_marginals.npy"), expected.marginals)

    @pytest.mark.parametrize("term", ["spatial", "bilateral"])
    def test_terms_can_be_left_out(self, term: str) -> None:
        given = ["refine", "photo.bmp", "--probabilities", "probs.npy", "-o", "out.npy"]
        assert main([*given, "--marginals", f"--no-{term}"]) == 0
        expected = crfield.refine(SCENE.image, SCENE.probabilities, **{term: None})
        assert expected.marginals.shape == (32, 40, 3)
        np.testing.assert_array_equal(np.load("out_marginals.npy"), expected.marginals)

    def test_both_layouts_of_probabilities_agree(self) -> None:
        np.savez("first.npz", probs=np.moveaxis(SCENE.probabilities, -1, 0))
        assert main(["refine", "photo.bmp", "--probabilities", "probs.npy", "-o", "last.png"]) == 0
        assert main([
            "refine", "photo.bmp", "--probabilities", "first.npz", "--layout", "channels_first",
            "-o", "first.png",
        ]) == 0
        np.testing.assert_array_equal(read("first.png"), read("last.png"))
        expected = crfield.refine(SCENE.image, SCENE.probabilities)
        np.testing.assert_array_equal(read("last.png"), expected.labels)

    def test_pictures_beside_the_result(self) -> None:
        Path("out").mkdir()
        assert main([
            "refine", "photo.bmp", "--probabilities", "probs.npy", "-o", "out", "--overlay",
            "--side-by-side", "--entropy",
        ]) == 0
        names = {path.name for path in Path("out").iterdir()}
        pictures = {f"photo_refined_{name}.png" for name in ("overlay", "side_by_side", "entropy")}
        assert names == pictures | {"photo_refined.png"}
        assert read("out/photo_refined_overlay.png").shape == (32, 40, 3)
        assert read("out/photo_refined_side_by_side.png").shape[1] > 3 * 40

    def test_json_is_the_whole_of_stdout(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main([
            "refine", "photo.bmp", "--labels", "photo.png", "--json", "-v", "--max-iter", "4",
            "--tol", "0",
        ]) == 0
        captured = capsys.readouterr()
        record = json.loads(captured.out)
        expected = crfield.refine(SCENE.image, coarse_labels(), max_iter=4, tol=0)
        assert record["input"] == "photo.bmp"
        assert record["output"] == "photo_refined.png"
        assert record["n_iter"] == expected.n_iter
        assert record["converged"] == expected.converged
        assert record["status"] == expected.status.value
        np.testing.assert_allclose(record["free_energies"], expected.free_energies, rtol=1e-6)
        assert sum(record["label_counts"].values()) == 32 * 40
        assert captured.err.count("iteration") == expected.n_iter

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (["--max-iter", "3", "--tol", "0"], ": 3 iterations (the limit; raise "),
            (["--max-iter", "1", "--tol", "0"], ": 1 iteration (the limit; raise "),
            (["--max-iter", "90", "--tol", "0.5"], " iterations, converged, "),
        ],
    )
    def test_the_line_says_why_it_stopped(
        self, capsys: pytest.CaptureFixture[str], options: list[str], words: str
    ) -> None:
        assert main(["refine", "photo.bmp", "--labels", "photo.png", *options]) == 0
        assert words in capsys.readouterr().out

    @pytest.mark.filterwarnings("always")
    def test_labels_that_are_gone_get_a_warning(self, capsys: pytest.CaptureFixture[str]) -> None:
        labels = coarse_labels()
        labels[labels == 2] = 1
        labels[5, 5] = 2
        labels[20, 20] = 255  # unknown, not lost
        Image.fromarray(labels).save("speck.png")
        assert main(["refine", "photo.bmp", "--labels", "speck.png"]) == 0
        assert capsys.readouterr().err == (
            "crfield: warning: label 2 of speck.png is gone from the result; "
            "lower --bilateral-weight or --spatial-weight.\n"
        )
        soft = np.full((32, 40, 4), 0.1)
        np.put_along_axis(soft, np.where(labels > 3, 0, labels)[..., None].astype(int), 0.7, -1)
        soft[9, 9] = [0.1, 0.1, 0.1, 0.7]
        np.save("soft.npy", np.moveaxis(soft, -1, 0))
        given = ["refine", "photo.bmp", "--probabilities", "soft.npy", "--layout", "channels_first"]
        assert main(given) == 0
        assert "warning: labels 2, 3 of soft.npy are gone" in capsys.readouterr().err
        assert main([*given, "--spatial-weight", "0", "--bilateral-weight", "0"]) == 0
        assert capsys.readouterr().err == ""

    def test_saved_model(self, capsys: pytest.CaptureFixture[str]) -> None:
        model = crfield.DenseCRF.load(save_model())
        given = ["refine", "photo.bmp", "--probabilities", "probs.npy", "-o", "out.npy"]
        assert main([*given, "--marginals", "--model", "model.safetensors"]) == 0
        expected = crfield.refine(SCENE.image, SCENE.probabilities, model=model)
        np.testing.assert_array_equal(np.load("out_marginals.npy"), expected.marginals)
        replace(model, algorithm="parallel", max_iter=2).save("model.safetensors")
        assert main([*given, "--marginals", "--model", "model.safetensors"]) == 0
        assert "2 iterations, as learned" in capsys.readouterr().out
        expected = crfield.refine(
            SCENE.image, SCENE.probabilities, model=model, algorithm="parallel", max_iter=2
        )
        np.testing.assert_array_equal(np.load("out_marginals.npy"), expected.marginals)

    def test_partner_is_found_in_a_folder(self) -> None:
        make_folders("photo", "other")
        assert main(["refine", "photo.bmp", "--labels", "masks", "-o", "out.png"]) == 0
        assert Path("out.png").exists()


class TestVolumes:
    def test_nifti_in_nifti_out(self) -> None:
        nibabel = pytest.importorskip("nibabel")
        scene = datasets.synthetic_scenes(1, size=(8, 14, 12), n_labels=2, seed=1)[0]
        affine = np.diag([1.0, 1.5, 3.0, 1.0])
        gray = scene.image.mean(axis=-1).astype(np.float32)
        coarse = datasets.coarsen(scene.mask, n_labels=2, block=2, seed=0)
        nibabel.save(nibabel.Nifti1Image(gray.T, affine), "scan.nii.gz")
        nibabel.save(nibabel.Nifti1Image(coarse.T.astype(np.uint8), affine), "seg.nii.gz")
        given = ["refine", "scan.nii.gz", "--labels", "seg.nii.gz", "--overlay", "--marginals"]
        assert main([*given, "--bilateral", "3", "10", "--bilateral-weight", "1"]) == 0
        written = nibabel.load("scan_refined.nii.gz")
        np.testing.assert_array_equal(written.affine, affine)
        expected = crfield.refine(
            gray, coarse, spacing=(3.0, 1.5, 1.0), bilateral=(3, 10), bilateral_weight=1
        )
        np.testing.assert_array_equal(np.asarray(written.dataobj).T, expected.labels)
        np.testing.assert_array_equal(np.load("scan_refined_marginals.npy"), expected.marginals)
        assert read("scan_refined_overlay.png").shape == (14, 12, 3)


class TestBatch:
    def test_folders_are_matched_by_stem(self, capsys: pytest.CaptureFixture[str]) -> None:
        make_folders("a", "b")
        assert main(["refine", "images", "--labels", "masks", "-o", "new/out", "--json"]) == 0
        records = json.loads(capsys.readouterr().out)
        assert [record["input"] for record in records] == [
            str(Path("images") / "a.bmp"), str(Path("images") / "b.bmp")
        ]
        expected = crfield.refine(SCENE.image, coarse_labels()).labels
        for stem in ("a", "b"):
            np.testing.assert_array_equal(read(f"new/out/{stem}_refined.png"), expected)

    def test_one_bad_file_does_not_stop_the_others(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        make_folders("a", "b", "c", "d")
        Path("images/b.bmp").write_bytes(b"BM nonsense")
        Path("masks/c.png").unlink()
        Path("images/d.bmp").unlink()
        assert main(["refine", "images", "--labels", "masks", "-o", "out", "--json"]) == 1
        captured = capsys.readouterr()
        records = {Path(record["input"]).stem: record for record in json.loads(captured.out)}
        assert "error" not in records["a"]
        assert "b.bmp" in records["b"]["error"]
        assert "no partner" in records["c"]["error"]
        assert "2 of 3 images failed" in captured.err
        assert "no image for " + str(Path("masks") / "d.png") in captured.err
        assert [path.name for path in Path("out").iterdir()] == ["a_refined.png"]

    def test_errors_speak_of_options(self, capsys: pytest.CaptureFixture[str]) -> None:
        make_folders("a")
        given = ["refine", "images", "--labels", "masks", "--json", "--max-pixels", "10"]
        assert main(given) == 1
        assert "with --max-pixels" in json.loads(capsys.readouterr().out)[0]["error"]

    def test_listed_images(self, capsys: pytest.CaptureFixture[str]) -> None:
        make_folders("a", "b", "c")
        assert main(["refine", "images/a.bmp", "images/b.bmp", "--labels", "masks"]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""  # nobody asked for the image of masks/c.png
        assert captured.out.count("->") == 2
        assert Path("a_refined.png").exists()

    def test_equal_stems_are_reported(self, capsys: pytest.CaptureFixture[str]) -> None:
        make_folders("a")
        Image.fromarray(SCENE.image).save("images/a.png")
        assert main(["refine", "images", "--labels", "masks", "-o", "out"]) == 1
        assert "same stem" in capsys.readouterr().err

    def test_wrong_folders_are_refused(self, capsys: pytest.CaptureFixture[str]) -> None:
        make_folders("a")
        assert "folder" in failure(capsys, "refine", "images", "--labels", "photo.png")
        assert "folder" in failure(capsys, "refine", "images", "--labels", "masks", "-o", "o.png")
        Path("empty").mkdir()
        assert "empty" in failure(capsys, "refine", "empty", "--labels", "masks")


class TestRefusals:
    @pytest.mark.parametrize(
        ("arguments", "hint"),
        [
            (["none.jpg", "--labels", "photo.png"], "none.jpg"),
            (["photo.bmp", "--labels", "none.png"], "none.png"),
            (["photo.bmp", "--labels", "photo.bmp"], "single-channel or palette"),
            (["photo.bmp", "--labels", "photo.png", "-o", "photo.png"], "read by this command"),
            (["photo.bmp", "--labels", "photo.png", "-o", "./photo.bmp"], "photo.bmp"),
            (["photo.bmp", "--labels", "photo.png", "-o", "x.jpg"], "lossless"),
            (["photo.bmp", "--labels", "photo.png", "-o", "none/x.png"], "no folder"),
            (["photo.bmp", "--labels", "photo.png", "--max-pixels", "100"], "--max-pixels"),
            (["photo.bmp", "--labels", "photo.png", "--layout", "channels_first"], "--layout"),
            (["photo.bmp", "--probabilities", "probs.npy", "--confidence", "0.5"], "--confidence"),
            (["photo.bmp", "--labels", "photo.png", "--model", "none.safetensors"], "none"),
            (["photo.bmp", "--labels", "photo.png", "--max-iter", "-1"], "--max-iter must"),
            (["photo.bmp", "--labels", "photo.png", "--confidence", "3"], "--confidence must"),
            (["photo.bmp", "--labels", "probs.npy"], "pass it with --probabilities."),
            (["photo.bmp", "--probabilities", "photo.png"], "--labels"),
            (["photo.bmp", "--labels", "photo.png", "--spatial-weight", "nan"], "finite"),
        ],
    )
    def test_one_sentence(
        self, capsys: pytest.CaptureFixture[str], arguments: list[str], hint: str
    ) -> None:
        before = {path: path.read_bytes() for path in Path().iterdir()}
        assert hint in failure(capsys, "refine", *arguments)
        assert {path: path.read_bytes() for path in Path().iterdir()} == before

    def test_model_replaces_the_terms(self, capsys: pytest.CaptureFixture[str]) -> None:
        save_model()
        given = ("refine", "photo.bmp", "--probabilities", "probs.npy", "--bilateral-weight", "3")
        assert "--bilateral-weight" in failure(capsys, *given, "--model", "model.safetensors")

    def test_mask_of_0_and_255(self, capsys: pytest.CaptureFixture[str]) -> None:
        mask = np.where(coarse_labels() > 0, 255, 0).astype(np.uint8)
        Image.fromarray(mask).save("mask.png")
        assert "--unknown none" in failure(capsys, "refine", "photo.bmp", "--labels", "mask.png")
        arguments = ["refine", "photo.bmp", "--labels", "mask.png", "--unknown", "none"]
        assert main(arguments) == 0
        assert set(np.unique(read("photo_refined.png"))) == {0, 255}
        with Image.open("photo_refined.png") as written:
            assert written.mode == "L"

    def test_mask_of_one_label(self, capsys: pytest.CaptureFixture[str]) -> None:
        Image.new("L", (40, 32), 7).save("mask.png")
        assert "only 7" in failure(capsys, "refine", "photo.bmp", "--labels", "mask.png")

    def test_sizes_must_agree(self, capsys: pytest.CaptureFixture[str]) -> None:
        np.save("small.npy", SCENE.probabilities[::2])
        message = failure(capsys, "refine", "photo.bmp", "--probabilities", "small.npy")
        assert "32 x 40" in message
        assert "(16, 40, 3); bring both to one size" in message

    def test_axes_in_another_order_are_recognized(self, capsys: pytest.CaptureFixture[str]) -> None:
        probabilities = SCENE.probabilities
        for name, values, remedy in (
            ("first", np.moveaxis(probabilities, -1, 0), "add --layout channels_first"),
            ("swapped", probabilities.swapaxes(0, 1), "width and height look swapped"),
            ("batch", np.moveaxis(probabilities, -1, 0)[None], "which is that of a batch"),
        ):
            np.save(f"{name}.npy", values)
            message = failure(capsys, "refine", "photo.bmp", "--probabilities", f"{name}.npy")
            assert remedy in message

    def test_arrays_are_read_in_blocks(self, capsys: pytest.CaptureFixture[str]) -> None:
        np.save("photo.npy", SCENE.image)
        message = failure(capsys, "refine", "photo.npy", "--probabilities", "probs.npy")
        assert "add --block" in message

    def test_probabilities_of_the_foreground_alone(self) -> None:
        np.save("front.npy", SCENE.probabilities[..., 0])
        assert main(["refine", "photo.bmp", "--probabilities", "front.npy", "-o", "front.png"]) == 0
        result = crfield.refine(SCENE.image, SCENE.probabilities[..., 0])
        np.testing.assert_array_equal(read("front.png"), result.labels)

    @pytest.mark.parametrize(
        ("typed", "meant"), [("--labells", "--labels"), ("--sptial", "--spatial")]
    )
    def test_mistyped_options(
        self, capsys: pytest.CaptureFixture[str], typed: str, meant: str
    ) -> None:
        assert main(["refine", "photo.bmp", "--probabilities", "probs.npy", typed, "3"]) == 2
        assert f"there is no {typed}; did you mean {meant}?" in capsys.readouterr().err

    def test_a_folder_that_is_not_there_is_made(self) -> None:
        assert main(["refine", "photo.bmp", "--labels", "photo.png", "-o", "new"]) == 0
        assert Path("new/photo_refined.png").is_file()

    def test_exif_orientation_is_mentioned(self, capsys: pytest.CaptureFixture[str]) -> None:
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(SCENE.image).save("turned.png", exif=exif)
        assert "EXIF" in failure(capsys, "refine", "turned.png", "--labels", "photo.png")

    @pytest.mark.parametrize(
        "arguments",
        [
            ["refine", "photo.bmp"],
            ["refine", "photo.bmp", "--labels", "a", "--probabilities", "b"],
            ["refine", "photo.bmp", "--labels", "photo.png", "--unknown", "some"],
            ["refine", "photo.bmp", "--labels", "photo.png", "--spatial", "nan"],
            ["refine", "photo.bmp", "--labels", "photo.png", "--bilateral", "3", "-1"],
            ["refine", "photo.bmp", "--labels", "photo.png", "--threads", "0"],
            ["nonsense"],
            [],
        ],
    )
    def test_wrong_usage(self, capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
        assert main(arguments) == 2
        assert "usage" in capsys.readouterr().err

    def test_interruption(
        self, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(*_: Any, **__: Any) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr("crfield.cli.refine.read_image", interrupt)
        assert main(["refine", "photo.bmp", "--labels", "photo.png"]) == 130
        assert "Traceback" not in capsys.readouterr().err
        assert not Path("photo_refined.png").exists()


def save_model() -> Path:
    """A saved model for three labels."""
    path = Path("model.safetensors")
    crfield.DenseCRF(3, [Pairwise(Spatial(2.0), Potts(2.0))]).save(path)
    return path


def test_version_and_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"crfield {crfield.__version__}\n"
    assert main(["refine", "--help"]) == 0
    assert "examples:" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_closed_pipe_makes_no_noise() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "crfield", "refine", "photo.bmp", "--labels", "photo.png"]
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert done.stderr == b""
