"""The command line, run as a user runs it: files in, files out, exit codes and sentences."""

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import crfield
from crfield import Pairwise, Potts, Spatial, datasets
from crfield._core.validate import MemoryRefusal
from crfield.cli import main
from crfield.cli import refine as refine_command
from crfield.show import pictures
from failing_commands import failure

SCENE = datasets.synthetic_scenes(1, size=(32, 40), n_labels=3, seed=4)[0]
PALETTE = bytes(range(90, 150))


@pytest.fixture(autouse=True)
def scene_files(tmp_path, monkeypatch):
    """A folder to work in, with an image, its coarse labels and its probabilities."""
    monkeypatch.chdir(tmp_path)
    write_scene(Path(), Path(), "photo")
    np.save("probs.npy", SCENE.probabilities)
    return tmp_path


def coarse_labels():
    return datasets.coarsen(SCENE.mask, n_labels=3, block=4, seed=1).astype(np.uint8)


def write_scene(images, labels, stem):
    Image.fromarray(SCENE.image).save(images / f"{stem}.bmp")
    picture = Image.fromarray(coarse_labels())
    picture.putpalette(PALETTE.ljust(768, b"\0"))
    picture.save(labels / f"{stem}.png")


def make_folders(*stems):
    for folder in ("images", "masks"):
        Path(folder).mkdir()
    for stem in stems:
        write_scene(Path("images"), Path("masks"), stem)


def refine(*words):
    """The exit status of `crfield refine` on the photo."""
    return main(["refine", "photo.bmp", *words])


def read(path):
    with Image.open(path) as picture:
        return np.array(picture)


class TestOneImage:
    def test_labels_are_those_of_the_library_with_the_palette_of_the_input(self, capsys):
        assert refine("--labels", "photo.png") == 0
        expected = crfield.refine(SCENE.image, coarse_labels())
        np.testing.assert_array_equal(read("photo_refined.png"), expected.labels)
        assert (expected.labels != coarse_labels()).any()
        with Image.open("photo_refined.png") as written:
            assert bytes(written.getpalette() or ())[: len(PALETTE)] == PALETTE
        assert "photo.bmp -> photo_refined.png" in capsys.readouterr().out

    def test_options_reach_the_library(self):
        assert refine(
            "--labels", "photo.png", "-o", "out.npy", "--marginals", "--spatial", "2",
            "--spatial-weight", "1.5", "--bilateral", "20", "30", "--bilateral-weight", "4",
            "--confidence", "0.6", "--unknown", "2", "--algorithm", "cccp", "--filter", "lattice",
            "--max-iter", "3", "--tol", "1e-9", "--threads", "1",
        ) == 0
        expected = crfield.refine(
            SCENE.image, coarse_labels(), spatial=2.0, spatial_weight=1.5, bilateral=(20.0, 30.0),
            bilateral_weight=4.0, confidence=0.6, unknown=2, algorithm="cccp", filter="lattice",
            max_iter=3, tol=1e-9, threads=1,
        )
        np.testing.assert_array_equal(np.load("out.npy"), expected.labels)
        np.testing.assert_array_equal(np.load("out_marginals.npy"), expected.marginals)

    @pytest.mark.parametrize("term", ["spatial", "bilateral"])
    def test_terms_can_be_left_out(self, term):
        given = ["--probabilities", "probs.npy", "-o", "out.npy", "--marginals"]
        assert refine(*given, f"--no-{term}") == 0
        expected = crfield.refine(SCENE.image, SCENE.probabilities, **{term: None})
        assert expected.marginals.shape == (32, 40, 3)
        np.testing.assert_array_equal(np.load("out_marginals.npy"), expected.marginals)

    def test_both_layouts_of_probabilities_agree(self):
        np.savez("first.npz", probs=np.moveaxis(SCENE.probabilities, -1, 0))
        assert refine("--probabilities", "probs.npy", "-o", "last.png") == 0
        first = ["--probabilities", "first.npz", "--layout", "channels_first"]
        assert refine(*first, "-o", "first.png") == 0
        np.testing.assert_array_equal(read("first.png"), read("last.png"))
        expected = crfield.refine(SCENE.image, SCENE.probabilities)
        np.testing.assert_array_equal(read("last.png"), expected.labels)

    @pytest.mark.parametrize("form", ["first", "coarse", "logits", "nifti", "pages"])
    def test_probabilities_as_they_come(self, form):
        p, name, more = SCENE.probabilities, "given.npy", []
        first = np.moveaxis(p, -1, 0)
        if form == "nifti":
            nibabel = pytest.importorskip("nibabel")
            name = "given.nii"
            nibabel.save(nibabel.Nifti1Image(p.transpose(1, 0, 2), np.eye(4)), name)
        elif form == "pages":
            name = "given.tif"
            tifffile = pytest.importorskip("tifffile")
            tifffile.imwrite(name, first, photometric="minisblack")
        elif form == "coarse":
            p = p[::4, ::4]
            np.save(name, np.moveaxis(p, -1, 0))
        else:
            more = ["--logits"] if form == "logits" else []
            np.save(name, 30 + np.log(p) if more else first)
        given = ["--probabilities", name, *more]
        assert refine(*given, "-o", "out.npy", "--marginals", "--side-by-side") == 0
        expected = crfield.refine(SCENE.image, p)
        np.testing.assert_allclose(np.load("out_marginals.npy"), expected.marginals, atol=1e-4)
        assert refine(*given, "-o", "blocks.npy", "--block", "40") == 0
        np.testing.assert_array_equal(np.load("blocks.npy"), np.load("out.npy"))

    def test_pictures_beside_the_result(self):
        Path("out").mkdir()
        given = ["--probabilities", "probs.npy", "-o", "out"]
        assert refine(*given, "--overlay", "--side-by-side", "--entropy") == 0
        names = {path.name for path in Path("out").iterdir()}
        written = {f"photo_{name}.png" for name in ("overlay", "side_by_side", "entropy")}
        assert names == written | {"photo.png"}
        result = crfield.refine(SCENE.image, SCENE.probabilities)
        tinted = np.asarray(pictures.overlay(SCENE.image, result.labels))
        overlay = read("out/photo_overlay.png")
        np.testing.assert_array_equal(overlay[:32, :40], tinted)
        assert len(overlay) > 32  # the legend of three labels
        assert read("out/photo_side_by_side.png").shape[1] > 3 * 40

    def test_large_images_are_refined_in_blocks(self, monkeypatch, capsys):
        given = ["--labels", "photo.png", "--bilateral", "2", "5", "--overlay", "--marginals"]
        assert refine(*given, "-o", "whole.png") == 0
        monkeypatch.setattr(refine_command, "_LARGE", 1000)
        monkeypatch.setattr(refine_command, "_BLOCK", 24)
        capsys.readouterr()
        assert refine(*given, "-o", "blocks.png") == 0
        assert "blocks.png: 4 blocks, " in capsys.readouterr().out
        assert (read("blocks.png") != read("whole.png")).mean() < 0.01
        np.testing.assert_allclose(
            np.load("blocks_marginals.npy"), np.load("whole_marginals.npy"), atol=0.05
        )
        assert len(read("blocks_overlay.png")) > 32
        painted = np.full((32, 40), 255, np.uint8)
        painted[10:12], painted[20:22] = 0, 1
        Image.fromarray(painted).save("strokes.png")
        assert refine("--scribbles", "strokes.png", "-o", "strokes_refined.png") == 0
        assert "block" not in capsys.readouterr().out

    def test_what_does_not_fit_is_refined_in_blocks(self, monkeypatch, capsys):
        def refuse(*_):
            raise MemoryRefusal("too large")

        monkeypatch.setattr("crfield.refinement.check_room", refuse)
        assert refine("--labels", "photo.png") == 0
        assert ": 1 block, " in capsys.readouterr().out
        blocks = read("photo_refined.png")
        monkeypatch.setattr("crfield.refinement.check_room", lambda *_: None)
        np.testing.assert_array_equal(
            blocks, crfield.refine(SCENE.image, coarse_labels()).labels
        )

    def test_json_is_the_whole_of_stdout(self, capsys):
        words = ["--json", "-v", "--max-iter", "4", "--tol", "0"]
        assert refine("--labels", "photo.png", *words) == 0
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

    @pytest.mark.parametrize(("options", "words"), [
        (["--max-iter", "3"], ": 3 iterations, 0"),
        (["--max-iter", "1", "--tol", "0"], ": 1 iteration, not converged to --tol (raise --max"),
        (["--max-iter", "90", "--tol", "0.01"], " iterations, converged, "),
    ])
    def test_the_line_says_why_it_stopped(self, capsys, options, words):
        assert refine("--labels", "photo.png", *options) == 0
        assert words in capsys.readouterr().out

    @pytest.mark.filterwarnings("always")
    def test_photos_of_zero_mean_get_a_warning(self, capsys):
        np.save("normal.npy", (SCENE.image - SCENE.image.mean()) / SCENE.image.std())
        words = ["normal.npy", "--probabilities", "probs.npy", "-o", "out.npy", "--block", "16"]
        assert main(["refine", *words]) == 0
        lines = capsys.readouterr().err.splitlines()
        warned = [line for line in lines if "image looks normalized to zero mean" in line]
        assert len(warned) == 1
        assert warned[0].endswith("pass the image as it was before, 0 to 1 or 0 to 255.")

    @pytest.mark.filterwarnings("always")
    def test_labels_that_are_gone_get_a_warning(self, capsys):
        labels = coarse_labels()
        labels[labels == 2] = 1
        labels[5, 5] = 2
        labels[20, 20] = 255  # unknown, not lost
        Image.fromarray(labels).save("speck.png")
        assert refine("--labels", "speck.png", "--confidence", "0.6") == 0
        assert capsys.readouterr().err == ""
        labels[::4, ::4] = 2  # 80 pixels, each alone
        Image.fromarray(labels).save("specks.png")
        given = ["--labels", "specks.png", "--overwrite"]
        assert refine(*given, "--spatial-weight", "20") == 0
        assert capsys.readouterr().err == (
            "crfield: warning: in the result of specks.png, label 2 shrinks from 6.3 % of the "
            "image to 0 %; lower --bilateral-weight or --spatial-weight.\n"
        )
        assert refine(*given, "--spatial-weight", "0", "--bilateral-weight", "0") == 0
        assert capsys.readouterr().err == ""

    def test_saved_model(self, capsys):
        model = crfield.DenseCRF.load(save_model())
        given = ["--probabilities", "probs.npy", "-o", "out.npy", "--marginals"]
        assert refine(*given, "--model", "model.safetensors") == 0
        expected = crfield.refine(SCENE.image, SCENE.probabilities, model=model)
        np.testing.assert_array_equal(np.load("out_marginals.npy"), expected.marginals)
        replace(model, algorithm="parallel", max_iter=2).save("model.safetensors")
        assert refine(*given, "--model", "model.safetensors", "--overwrite") == 0
        assert ": 2 iterations, 0" in capsys.readouterr().out
        expected = crfield.refine(
            SCENE.image, SCENE.probabilities, model=model, algorithm="parallel", max_iter=2
        )
        np.testing.assert_array_equal(np.load("out_marginals.npy"), expected.marginals)

    def test_partner_is_found_in_a_folder(self):
        make_folders("photo", "other")
        assert refine("--labels", "masks", "-o", "out.png") == 0
        assert Path("out.png").exists()


class TestVolumes:
    def test_nifti_in_nifti_out(self):
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

    @pytest.mark.parametrize("flag", ["--labels", "--probabilities"])
    @pytest.mark.parametrize("form", ["file", "folder", "blocks"])
    def test_a_segmentation_in_another_orientation_is_brought_to_that_of_the_scan(self, flag, form):
        nibabel = pytest.importorskip("nibabel")
        scene = datasets.synthetic_scenes(1, size=(8, 14, 12), n_labels=2, seed=1)[0]
        affine = np.array([[1, 0.1, 0, 5], [-0.1, 1.5, 0, -8], [0, 0, 3, 2], [0, 0, 0, 1.0]])
        given = scene.mask.astype(np.uint8) if flag == "--labels" else scene.probabilities
        Path("segs").mkdir()
        Path("scans").mkdir()
        scan = nibabel.Nifti1Image(scene.image.mean(axis=-1).astype(np.float32).T, affine)
        nibabel.save(scan, "scans/scan.nii.gz")
        voxels = given.T if given.ndim == 3 else given.transpose(2, 1, 0, 3)
        same = nibabel.Nifti1Image(voxels, affine)
        more = ["--block", "6", "--overlap", "3"] if form == "blocks" else []
        ends = ("scans", "segs") if form == "folder" else ("scans/scan.nii.gz", "segs/scan.nii.gz")
        found = []
        for turn in (None, [[2, -1], [0, 1], [1, -1]]):
            seg = same if turn is None else same.as_reoriented(np.array(turn))
            nibabel.save(seg, "segs/scan.nii.gz")
            out = f"out{len(found)}"
            assert main(["refine", ends[0], flag, ends[1], "-o", out, *more]) == 0
            found.append(nibabel.load(f"{out}/scan.nii.gz"))
        np.testing.assert_allclose(found[1].affine, affine, atol=1e-5)
        np.testing.assert_array_equal(found[1].dataobj, found[0].dataobj)

    def test_a_segmentation_of_another_place_is_refused(self, capsys):
        nibabel = pytest.importorskip("nibabel")
        labels = np.arange(60, dtype=np.uint8).reshape(3, 4, 5) % 2
        nibabel.save(nibabel.Nifti1Image(labels * 90.0, np.diag([1, 2, 3, 1])), "scan.nii")
        nibabel.save(nibabel.Nifti1Image(labels, np.diag([1, 2, 4, 1])), "seg.nii")
        for more in ([], ["--block", "4"]):
            assert main(["refine", "scan.nii", "--labels", "seg.nii", *more]) == 2
            assert (
                "expected seg.nii to lie where scan.nii does, but by their affines they are up to "
                "4.5 mm apart; resample it to the grid of the scan"
            ) in capsys.readouterr().err


class TestBatch:
    def test_folders_are_matched_by_stem(self, capsys):
        make_folders("a", "b")
        assert main(["refine", "images", "--labels", "masks", "-o", "new/out", "--json"]) == 0
        records = json.loads(capsys.readouterr().out)
        assert [record["input"] for record in records] == [
            str(Path("images") / "a.bmp"), str(Path("images") / "b.bmp")
        ]
        expected = crfield.refine(SCENE.image, coarse_labels()).labels
        for stem in ("a", "b"):
            np.testing.assert_array_equal(read(f"new/out/{stem}.png"), expected)

    def test_pictures_beside_arrays_are_no_partners(self):
        Path("one").mkdir()
        Image.fromarray(SCENE.image).save("one/a.bmp")
        Image.fromarray(coarse_labels().astype(np.uint8)).save("one/a.png")
        np.save("one/a.npy", SCENE.probabilities)
        words = ["refine", "one/a.bmp", "--probabilities", "one", "-o", "out"]
        assert main(words) == 0
        expected = crfield.refine(SCENE.image, SCENE.probabilities).labels
        np.testing.assert_array_equal(read("out/a.png"), expected)

    def test_one_bad_file_does_not_stop_the_others(self, capsys):
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
        said = captured.err.splitlines()
        assert "no image for " + str(Path("masks") / "d.png") in said[0]
        assert said[1].startswith("out: 1 of 3 images refined, 2 failed, ")
        assert all(line.startswith("crfield: error: ") for line in said[2:])
        assert len(said) == 4
        assert [path.name for path in Path("out").glob("[!.]*")] == ["a.png"]

    def test_errors_speak_of_options(self, capsys):
        make_folders("a")
        given = ["refine", "images", "--labels", "masks", "--json", "--max-pixels", "10"]
        assert main(given) == 1
        assert "with --max-pixels" in json.loads(capsys.readouterr().out)[0]["error"]

    def test_listed_images(self, capsys):
        make_folders("a", "b", "c")
        assert main(["refine", "images/a.bmp", "images/b.bmp", "--labels", "masks"]) == 0
        captured = capsys.readouterr()
        assert captured.err == ""  # nobody asked for the image of masks/c.png
        assert captured.out.startswith("2 of 2 images refined, ")
        assert captured.out.count("\n") == 1
        assert Path("a_refined.png").exists()

    def test_names_of_results_and_writtendiffer(self, capsys):
        make_folders("a", "a_overlay")
        given = ["refine", "images", "--labels", "masks", "-o", "out"]
        assert "a_overlay.png would belong to both" in failure(capsys, *given, "--overlay")
        assert main(given) == 0

    def test_equal_stems_are_reported(self, capsys):
        make_folders("a")
        Image.fromarray(SCENE.image).save("images/a.png")
        assert main(["refine", "images", "--labels", "masks", "-o", "out"]) == 1
        assert "same stem" in capsys.readouterr().err

    def test_no_name_of_a_file_reaches_the_terminal_as_it_is(self, capsys):
        code = "\x1b]0;owned\x07"
        make_folders(f"a{code}", f"b{code}", f"c{code}", f"d{code}")
        Image.fromarray(SCENE.image).save(f"images/a{code}.png")
        Path(f"masks/b{code}.png").unlink()
        Path(f"images/c{code}.bmp").unlink()
        lost = coarse_labels()
        lost[:4, :4] = 7
        Image.fromarray(lost).save(f"masks/d{code}.png")
        command = ["refine", "images", "--labels", "masks", "-o"]
        assert main([*command, "out", "-v"]) == 1
        assert main([*command, "blocks", "-v", "--block", "32"]) == 1
        single = ["refine", f"images/d{code}.bmp", "--labels", f"masks/d{code}.png"]
        widths = ["--spatial", "3", "--spatial-weight", "30"]
        assert main([*single, *widths, "--confidence", "0.5"]) == 0
        said = "".join(capsys.readouterr())
        for words in ("same stem", "no partner", "no image for", "shrinks from", " -> ",
                      "block 1 of", "free energy"):
            assert words in said
        assert said.replace("\n", "").isprintable()

    def test_wrong_folders_are_refused(self, capsys):
        make_folders("a")
        assert "folder" in failure(capsys, "refine", "images", "--labels", "photo.png")
        assert "folder" in failure(capsys, "refine", "images", "--labels", "masks", "-o", "o.png")
        Path("empty").mkdir()
        assert "empty" in failure(capsys, "refine", "empty", "--labels", "masks")

    def test_names_that_never_match_are_told_the_rule(self, capsys):
        make_folders("a", "b")
        for stem in ("a", "b"):
            Path(f"masks/{stem}.png").rename(f"masks/{stem}_pred.png")
        message = failure(capsys, "refine", "images", "--labels", "masks")
        assert "where one is named a_pred.png; the label map of images/a.bmp must be" in message
        assert message.endswith(" a.png in that folder.\n")

    def test_images_are_not_their_own_partners(self):
        make_folders("a")
        np.save("images/a.npy", SCENE.probabilities)
        Image.fromarray(SCENE.image).save("images/a.png")
        Path("images/a.bmp").unlink()
        assert main(["refine", "images", "--probabilities", "images", "-o", "out"]) == 0
        assert Path("out/a.png").exists()


class TestRefusals:
    @pytest.mark.parametrize(("arguments", "hint"), [
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
    ])
    def test_one_sentence(self, capsys, arguments, hint):
        before = {path: path.read_bytes() for path in Path().iterdir()}
        assert hint in failure(capsys, "refine", *arguments)
        assert {path: path.read_bytes() for path in Path().iterdir()} == before

    def test_model_replaces_the_terms(self, capsys):
        save_model()
        given = ("refine", "photo.bmp", "--probabilities", "probs.npy", "--bilateral-weight", "3")
        assert "--bilateral-weight" in failure(capsys, *given, "--model", "model.safetensors")

    def test_mask_of_0_and_255(self, capsys):
        mask = np.where(coarse_labels() > 0, 255, 0).astype(np.uint8)
        Image.fromarray(mask).save("mask.png")
        assert refine("--labels", "mask.png") == 0
        assert set(np.unique(read("photo_refined.png"))) == {0, 255}
        with Image.open("photo_refined.png") as written:
            assert written.mode == "L"

    @pytest.mark.parametrize("label", [0, 7, 255])
    def test_a_map_of_one_label_is_written_as_it_is(self, capsys, label):
        Image.new("L", (40, 32), label).save("mask.png")
        given = ["--labels", "mask.png", "--overlay"]
        assert refine(*given) == 0
        assert (read("photo_refined.png") == label).all()
        said = capsys.readouterr()
        assert said.out == (
            "photo.bmp -> photo_refined.png: mask.png holds a single label and was written as it "
            "was\n"
        )
        assert said.err == ""
        assert refine("--labels", "mask.png", "-o", "o.npy", "--block", "20", "--json") == 0
        assert json.loads(capsys.readouterr().out)["single_label"]
        assert (np.load("o.npy") == label).all()

    @pytest.mark.filterwarnings("always")
    def test_a_soft_mask_is_refused_with_the_option_that_takes_it(self, capsys):
        soft = np.rint(255 * SCENE.probabilities[..., 1]).astype(np.uint8)
        Image.fromarray(soft).save("soft mask.png")
        message = failure(capsys, "refine", "photo.bmp", "--labels", "soft mask.png")
        assert "but soft mask.png holds" in message
        assert "pass it with --probabilities 'soft mask.png'" in message
        assert refine("--probabilities", "soft mask.png", "-o", "out.npy") == 0
        expected = crfield.refine(SCENE.image, soft / np.float32(255))
        np.testing.assert_array_equal(np.load("out.npy"), expected.labels)
        np.save("soft.npy", soft)
        capsys.readouterr()
        assert refine("--labels", "soft.npy", "--max-iter", "1") == 0
        assert capsys.readouterr().err.count("looks like a soft mask") == 1

    def test_maps_that_show_nothing_are_refused(self, capsys):
        Image.new("L", (40, 32), 9).save("mask.png")
        given = ("refine", "photo.bmp", "--labels", "mask.png")
        message = failure(capsys, *given, "--unknown", "9")
        assert "expected labels, but mask.png holds only 9; add --unknown none" in message
        message = failure(capsys, "refine", "photo.bmp", "--scribbles", "mask.png")
        assert "at least two labels, but mask.png holds only 9; paint some pixels" in message

    def test_logits_without_a_word(self, capsys):
        np.save("scores.npy", 30 + np.log(SCENE.probabilities))
        message = failure(capsys, "refine", "photo.bmp", "--probabilities", "scores.npy")
        assert "add --logits" in message

    def test_sizes_must_agree(self, capsys):
        np.save("small.npy", SCENE.probabilities[::2])
        message = failure(capsys, "refine", "photo.bmp", "--probabilities", "small.npy")
        assert "32 x 40" in message
        assert "(16, 40, 3); resize them to the image" in message
        assert "only by one factor along all sides" in message

    def test_axes_in_another_order_are_called_so(self, capsys):
        np.save("swapped.npy", SCENE.probabilities.swapaxes(0, 1))
        message = failure(capsys, "refine", "photo.bmp", "--probabilities", "swapped.npy")
        assert "width and height look swapped: turn one of them by 90 degrees" in message

    def test_batches_of_one_are_taken_for_their_image(self):
        probabilities = SCENE.probabilities
        np.save("labels.npy", probabilities.argmax(-1)[None])
        result = crfield.refine(SCENE.image, probabilities.argmax(-1))
        for block in (("--overwrite",), ("--overwrite", "--block", "16")):
            assert refine("--probabilities", "probs.npy", "-o", "plain.png", *block) == 0
            for name, values in (
                ("last", probabilities), ("first", np.moveaxis(probabilities, -1, 0)),
            ):
                np.save(f"{name}.npy", values[None])
                assert refine("--probabilities", f"{name}.npy", "-o", f"{name}.png", *block) == 0
                np.testing.assert_array_equal(read(f"{name}.png"), read("plain.png"))
        assert refine("--labels", "labels.npy", "-o", "labels.png") == 0
        np.testing.assert_array_equal(read("labels.png"), result.labels)

    def test_arrays_are_read_in_blocks(self, capsys):
        np.save("photo.npy", SCENE.image)
        message = failure(capsys, "refine", "photo.npy", "--probabilities", "probs.npy")
        assert "add --block" in message

    def test_probabilities_of_the_foreground_alone(self):
        np.save("front.npy", SCENE.probabilities[..., 0])
        assert refine("--probabilities", "front.npy", "-o", "front.png") == 0
        result = crfield.refine(SCENE.image, SCENE.probabilities[..., 0])
        np.testing.assert_array_equal(read("front.png"), result.labels)

    @pytest.mark.parametrize(
        ("typed", "meant"), [("--labells", "--labels"), ("--sptial", "--spatial")]
    )
    def test_mistyped_options(self, capsys, typed, meant):
        assert refine("--probabilities", "probs.npy", typed, "3") == 2
        assert f"there is no {typed}; did you mean {meant}?" in capsys.readouterr().err

    def test_a_folder_that_is_not_there_is_made(self):
        assert refine("--labels", "photo.png", "-o", "new") == 0
        assert Path("new/photo.png").is_file()

    def test_exif_orientation_is_mentioned(self, capsys):
        exif = Image.Exif()
        exif[0x0112] = 6
        Image.fromarray(SCENE.image).save("turned.png", exif=exif)
        assert "EXIF" in failure(capsys, "refine", "turned.png", "--labels", "photo.png")

    @pytest.mark.parametrize("arguments", [
        ["refine", "photo.bmp"],
        ["refine", "photo.bmp", "--labels", "a", "--probabilities", "b"],
        ["refine", "photo.bmp", "--labels", "photo.png", "--unknown", "some"],
        ["refine", "photo.bmp", "--labels", "photo.png", "--spatial", "nan"],
        ["refine", "photo.bmp", "--labels", "photo.png", "--bilateral", "3", "-1"],
        ["refine", "photo.bmp", "--labels", "photo.png", "--threads", "0"],
        ["nonsense"],
        [],
    ])
    def test_wrong_usage(self, capsys, arguments):
        assert main(arguments) == 2
        assert "usage" in capsys.readouterr().err

    def test_interruption(self, capsys, monkeypatch):
        def interrupt(*_, **__):
            raise KeyboardInterrupt

        monkeypatch.setattr("crfield.cli.refine.read_image", interrupt)
        assert refine("--labels", "photo.png") == 130
        assert "Traceback" not in capsys.readouterr().err
        assert not Path("photo_refined.png").exists()


def save_model():
    """A saved model for three labels."""
    path = Path("model.safetensors")
    crfield.DenseCRF(3, [Pairwise(Spatial(2.0), Potts(2.0))]).save(path)
    return path


def test_version_and_help(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"crfield {crfield.__version__}\n"
    assert main(["refine", "--help"]) == 0
    assert "examples:" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="pipes of POSIX")
def test_closed_pipe_makes_no_noise():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "crfield", "refine", "photo.bmp", "--labels", "photo.png"]
    with os.fdopen(writer, "wb") as stdout:
        done = subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, check=False)
    assert done.stderr == b""
