"""Data sets in folders: what is read, how unaries become costs, and what is refused."""

import dataclasses
import json
import pickle
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from PIL import Image

from crfield import InputError, unary_from_labels, unary_from_logits
from crfield._core.files import open_regular
from crfield.datasets import FolderDataset, Shrunk
from crfield.io.images import write_labels
from crfield.unary.resizing import resize_linearly
from refusal import refusal
from small_dataset import write_dataset

RNG = np.random.default_rng(0)
SIZE = (6, 8)
NAMES = ("apple", "pear", "plum")
CLASSES = "background\nfruit\nwhole tree\n"
N_LABELS = 3


def probabilities(grid, n_labels=N_LABELS):
    scores = RNG.random((*grid, n_labels)) + 0.05
    return (scores / scores.sum(-1, keepdims=True)).astype(np.float32)


def save_image(path, size=SIZE):
    Image.fromarray(RNG.integers(0, 256, (*size, 3), dtype=np.uint8)).save(path)


def save_labels(path, labels):
    Image.fromarray(np.asarray(labels, np.uint8)).save(path)


def cut(length):
    """To leave only the first bytes of a file."""
    return lambda path: path.write_bytes(path.read_bytes()[:length])


@pytest.fixture
def root(tmp_path):
    """Three images with labels and classes, two of them in the split `learn`."""
    for folder in ("images", "labels"):
        (tmp_path / folder).mkdir()
    for name in NAMES:
        save_image(tmp_path / "images" / f"{name}.png")
        labels = RNG.integers(0, N_LABELS, SIZE)
        labels[0, 0] = 255
        save_labels(tmp_path / "labels" / f"{name}.png", labels)
    (tmp_path / "classes.txt").write_text(CLASSES)
    (tmp_path / "learn.txt").write_text("plum\n\n  apple \n")
    (tmp_path / "README.txt").write_text("no split\n")
    return tmp_path


@pytest.fixture
def with_unaries(root):
    """Probabilities of all images, one `.npy` each."""
    (root / "unaries").mkdir()
    for name in NAMES:
        np.save(root / "unaries" / f"{name}.npy", probabilities(SIZE))
    return root


def remove_apple(root):
    """Make room for other files of `apple`, which is alone in the split `learn` then."""
    for folder in ("images", "labels"):
        (root / folder / "apple.png").unlink()
    (root / "learn.txt").write_text("apple\n")


def describe(root, **keys):
    (root / "dataset.json").write_text(json.dumps(keys))


def save_guesses(root, **more):
    """Labels of all images, some unknown, as unaries."""
    (root / "guesses").mkdir()
    guesses = {name: RNG.choice([0, 1, 2, 255], SIZE) for name in NAMES}
    for name, labels in guesses.items():
        save_labels(root / "guesses" / f"{name}.png", labels)
    describe(root, unaries={"folder": "guesses", "kind": "labels", **more})
    return guesses


def stored(root, name):
    return np.load(root / "unaries" / f"{name}.npy")


def unary_from(root, values, **unaries):
    """The costs of `apple` where its file holds these values and `unaries` describes them."""
    np.save(root / "unaries" / "apple.npy", values)
    return FolderDataset(root, description={"unaries": unaries} if unaries else None)[0].unary


class TestContents:
    def test_all_images_with_labels_sorted(self, root):
        save_image(root / "images" / "unlabeled.png")
        dataset = FolderDataset(root)
        assert dataset.names == NAMES
        assert len(dataset) == 3
        assert dataset.n_labels == 3
        assert dataset.void == 255
        assert dataset.class_names == ("background", "fruit", "whole tree")
        assert dataset.unary_kind is None

    def test_hidden_files_are_no_examples(self, root):
        for folder in ("images", "labels"):
            (root / folder / "._plum.png").write_bytes(b"what a file manager leaves behind")
        assert FolderDataset(root).names == NAMES

    def test_example_holds_the_files(self, root):
        example = FolderDataset(str(root))[1]
        assert example.name == "pear"
        for array, folder in ((example.image, "images"), (example.truth, "labels")):
            np.testing.assert_array_equal(array, Image.open(root / folder / "pear.png"))
        assert example.unary is None
        assert example.features is None

    def test_split_keeps_its_order(self, root):
        dataset = FolderDataset(root, "learn")
        assert dataset.names == ("plum", "apple")
        assert [example.name for example in dataset] == ["plum", "apple"]
        assert "learn" in repr(dataset)

    def test_subsets_and_slices_are_data_sets(self, with_unaries):
        dataset = FolderDataset(with_unaries)
        assert dataset.subset([2, 0]).names == ("plum", "apple")
        assert dataset.subset(np.array([-1])).names == ("plum",)
        assert dataset[1:].names == ("pear", "plum")
        assert dataset[::-1][0].name == "plum"
        np.testing.assert_array_equal(dataset[1:][0].unary, dataset[1].unary)
        assert dataset.names == NAMES
        with pytest.raises(IndexError):
            dataset[3]
        assert "at most 2" in refusal(dataset.subset, [0, 3])

    def test_numbered_classes_leave_void_out(self, root):
        (root / "classes.txt").write_text("1 fruit\n0 ground\n2 whole tree\n255 void (or hidden)\n")
        assert FolderDataset(root).class_names == ("ground", "fruit", "whole tree")

    @pytest.mark.parametrize("lines", ["tree\nfruit\ntree\n", "2 tree\n0 tree\n1 fruit\n"])
    def test_a_name_for_two_classes_is_refused(self, root, lines):
        (root / "classes.txt").write_text(lines)
        assert "'tree' for classes 0 and 2" in refusal(FolderDataset, root)

    def test_groups_stay_together(self, root):
        (root / "groups.txt").write_text("".join(f"{name} basket\n" for name in NAMES[:2]))
        dataset = FolderDataset(root)
        assert [example.group for example in dataset] == ["basket", "basket", None]
        with_costs = dataclasses.replace(dataset[0], unary=np.zeros((*SIZE, 2)))
        assert Shrunk([with_costs], 2)[0].group == "basket"
        assert root / "groups.txt" in set(dataset.files())
        with pytest.raises(InputError, match="split must be one of"):
            FolderDataset(root, "groups")
        for wrong in ("apple\n", "apple a\napple b\n"):
            (root / "groups.txt").write_text(wrong)
            assert "write one line NAME GROUP" in refusal(FolderDataset, root)

    def test_films_are_held_out_whole(self, tmp_path):
        write_dataset(tmp_path / "data", n_train=12, size=(8, 9))
        names = FolderDataset(tmp_path / "data").names
        for n_films in (1, 2, 6):
            films = {name: f"film{k % n_films}" for k, name in enumerate(names)}
            (tmp_path / "data" / "groups.txt").write_text(
                "".join(f"{name} {film}\n" for name, film in films.items())
            )
            kept, held = FolderDataset(tmp_path / "data").hold_out()
            assert kept.names
            assert held.names or n_films == 1
            assert not {films[n] for n in kept.names} & {films[n] for n in held.names}

    def test_number_of_labels_without_classes(self, root):
        (root / "classes.txt").unlink()
        assert FolderDataset(root, description={"n_labels": 4}).class_names == ("0", "1", "2", "3")
        assert FolderDataset(root).n_labels == 3, "as the label maps show"
        assert FolderDataset(root, n_labels=5).n_labels == 5
        (root / "unaries").mkdir()
        for name in NAMES:
            np.save(root / "unaries" / f"{name}.npy", probabilities(SIZE, 4))
        assert FolderDataset(root, n_labels=5).n_labels == 4, "as the unaries have planes"
        for name in NAMES:
            save_labels(root / "labels" / f"{name}.png", np.zeros(SIZE))
        assert "two labels or more" in refusal(
            FolderDataset, root, description={"unaries": None}
        )

    def test_description_in_the_root_and_from_outside(self, root, tmp_path):
        (root / "images").rename(root / "photos")
        describe(root, images="photos", void=254)
        save_labels(root / "labels" / "apple.png", np.full(SIZE, 254))
        dataset = FolderDataset(root)
        assert dataset.void == 254
        assert (dataset[0].truth == 254).all()
        outside = tmp_path / "outside.json"
        outside.write_text(json.dumps({"void": 255}))
        for description in (outside, str(outside), {"void": 255}):
            assert FolderDataset(root, description=description).void == 255

    def test_volumes(self, root):
        pytest.importorskip("tifffile")
        pytest.importorskip("nibabel")
        grid = (3, 6, 8)
        remove_apple(root)
        write_labels(root / "images" / "apple.tif", RNG.integers(0, 256, grid))
        write_labels(root / "labels" / "apple.nii.gz", RNG.integers(0, N_LABELS, grid))
        (root / "unaries").mkdir()
        coarse = probabilities((1, 3, 4))
        np.save(root / "unaries" / "apple.npy", coarse)
        example = FolderDataset(root, "learn")[0]
        assert example.image.shape == example.truth.shape == grid
        assert example.unary.shape == (*grid, N_LABELS)
        np.testing.assert_allclose(np.exp(-example.unary[2, 0, 0]), coarse[0, 0, 0], rtol=1e-5)

    def test_nifti_images_bring_their_spacing(self, root):
        nibabel = pytest.importorskip("nibabel")
        remove_apple(root)
        scan = nibabel.Nifti1Image(RNG.random((4, 5, 6)).astype(np.float32), np.diag([1, 2, 3, 1]))
        nibabel.save(scan, root / "images" / "apple.nii.gz")
        write_labels(root / "labels" / "apple.nii.gz", RNG.integers(0, N_LABELS, (6, 5, 4)))
        assert FolderDataset(root, "learn")[0].spacing == (3.0, 2.0, 1.0)

    @pytest.mark.parametrize("kind", ["labels", "probabilities"])
    def test_nifti_in_another_orientation_is_brought_to_that_of_its_scan(self, root, kind):
        nibabel = pytest.importorskip("nibabel")
        remove_apple(root)
        (root / "unaries").mkdir()
        affine = np.diag([1.0, 2.0, 3.0, 1.0])
        turn = np.array([[2, -1], [0, 1], [1, -1]])
        scan = RNG.random((4, 5, 6)).astype(np.float32)
        truth = RNG.integers(0, N_LABELS, scan.shape, dtype=np.uint8)
        given = truth if kind == "labels" else probabilities(scan.shape)
        for folder, values in (("images", scan), ("labels", truth), ("unaries", given)):
            image = nibabel.Nifti1Image(values, affine)
            image = image if folder == "images" else image.as_reoriented(turn)
            nibabel.save(image, root / folder / "apple.nii.gz")
        example = FolderDataset(root, "learn")[0]
        assert np.array_equal(example.truth, truth.T)
        if kind == "labels":
            assert np.array_equal(example.unary.argmin(-1), truth.T)
        else:
            expected = given.transpose(2, 1, 0, 3)
            np.testing.assert_allclose(np.exp(-example.unary), expected, rtol=1e-4)
        elsewhere = nibabel.Nifti1Image(truth, affine + np.eye(4)[[0], :].T * [[0, 0, 0, 9]])
        nibabel.save(elsewhere, root / "labels" / "apple.nii.gz")
        message = refusal(FolderDataset(root, "learn").check)
        assert "apple.nii.gz to lie where" in message
        assert "9 mm" in message

    def test_listing_the_package_does_not_import_pillow(self):
        script = "import sys, crfield.datasets; print('PIL' in sys.modules)"
        output = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
        assert output.stdout.strip() == b"False"


class TestUnaries:
    def test_probabilities_become_costs(self, with_unaries):
        dataset = FolderDataset(with_unaries)
        assert dataset.unary_kind == "probabilities"
        unary = dataset[0].unary
        assert unary.dtype == np.float32
        np.testing.assert_allclose(np.exp(-unary), stored(with_unaries, "apple"), rtol=1e-5)

    def test_certain_probabilities_give_finite_costs(self, with_unaries):
        unary = unary_from(with_unaries, np.eye(3)[np.zeros(SIZE, int)])
        np.testing.assert_allclose(unary[..., 1:], -np.log(1e-5), rtol=1e-4)

    def test_rounded_probabilities_are_normalized(self, with_unaries):
        rounded = np.rint(probabilities(SIZE) * 20).astype(np.uint8)
        unary = unary_from(with_unaries, rounded, kind="probabilities", scale=1 / 20)
        np.testing.assert_allclose(np.exp(-unary).sum(-1), 1, rtol=1e-3)

    @pytest.mark.parametrize(("kind", "scale"), [("log_probabilities", -0.05), ("costs", 0.05)])
    def test_scaled_bytes(self, with_unaries, kind, scale):
        values = RNG.integers(0, 200, (*SIZE, N_LABELS), dtype=np.uint8)
        unary = unary_from(with_unaries, values, folder="unaries", kind=kind, scale=scale)
        expected = 0.05 * values
        if kind == "log_probabilities":
            expected += np.log(np.exp(-expected).sum(-1, keepdims=True))
        np.testing.assert_allclose(unary, expected, atol=1e-5)

    def test_features_are_no_costs(self, with_unaries):
        describe(with_unaries, unaries={"kind": "features", "scale": 2})
        values = RNG.normal(size=(3, 4, 7)).astype(np.float16)
        np.save(with_unaries / "unaries" / "apple.npy", values)
        dataset = FolderDataset(with_unaries)
        example = dataset[0]
        assert example.unary is None
        assert example.features.shape == (*SIZE, 7)
        np.testing.assert_allclose(example.features[0, 0], 2 * values[0, 0].astype(np.float32))
        assert len(list(dataset.problems())) == 2
        assert "expected 7 features as for 'apple', but 'pear' has 3" in refusal(dataset.check)

    @pytest.mark.parametrize(("layout", "axis"), [(None, -1), ("channels_first", 0)])
    def test_one_feature_is_no_foreground(self, with_unaries, layout, axis):
        describe(with_unaries, unaries={"kind": "features", "layout": layout})
        values = RNG.normal(size=SIZE).astype(np.float32)
        np.save(with_unaries / "unaries" / "apple.npy", np.expand_dims(values, axis))
        np.testing.assert_array_equal(FolderDataset(with_unaries)[0].features[..., 0], values)

    def test_labels_with_a_confidence(self, root):
        guesses = save_guesses(root, confidence=0.9)
        for example in FolderDataset(root):
            expected = unary_from_labels(guesses[example.name], N_LABELS, confidence=0.9)
            np.testing.assert_array_equal(example.unary, expected)

    def test_pages_and_volumes(self, root):
        tifffile = pytest.importorskip("tifffile")
        nibabel = pytest.importorskip("nibabel")
        (root / "unaries").mkdir()
        values = {name: probabilities(SIZE) for name in NAMES}
        pages = np.moveaxis(values["apple"], -1, 0)
        tifffile.imwrite(root / "unaries" / "apple.tif", pages, photometric="minisblack")
        turned = nibabel.Nifti1Image(values["pear"].transpose(1, 0, 2), np.eye(4))
        nibabel.save(turned, root / "unaries" / "pear.nii.gz")
        np.save(root / "unaries" / "plum.npy", values["plum"])
        for example in FolderDataset(root):
            np.testing.assert_allclose(np.exp(-example.unary), values[example.name], rtol=1e-4)

    @pytest.mark.parametrize("key", ["pear", "probabilities", "anything"])
    def test_one_archive_an_image(self, with_unaries, key):
        values = stored(with_unaries, "pear")
        (with_unaries / "unaries" / "pear.npy").unlink()
        np.savez(with_unaries / "unaries" / "pear.npz", **{key: values})
        np.testing.assert_allclose(np.exp(-FolderDataset(with_unaries)[1].unary), values, rtol=1e-5)

    def test_null_leaves_them_out(self, with_unaries):
        assert FolderDataset(with_unaries, description={"unaries": None})[0].unary is None

    def test_coarse_probabilities_stay_normalized(self, with_unaries):
        coarse = probabilities((2, 3))
        unary = unary_from(with_unaries, coarse)
        assert unary.shape == (*SIZE, N_LABELS)
        np.testing.assert_allclose(np.exp(-unary).sum(-1), 1, rtol=1e-5)
        np.testing.assert_allclose(np.exp(-unary[0, 0]), coarse[0, 0], rtol=1e-5)

    def test_coarse_log_probabilities_are_normalized_after_interpolation(self, with_unaries):
        coarse = np.log(probabilities((2, 3)))
        unary = unary_from(with_unaries, coarse, kind="log_probabilities")
        np.testing.assert_allclose(np.exp(-unary).sum(-1), 1, rtol=1e-5)


class TestRecognized:
    """What the files show need not be described."""

    @pytest.mark.parametrize("grid", [SIZE, (3, 4), (2, 2)])
    @pytest.mark.parametrize("counted", [True, False])
    def test_channels_first(self, with_unaries, grid, counted):
        if not counted:
            (with_unaries / "classes.txt").unlink()
        values = probabilities(grid)
        expected = unary_from(with_unaries, values)
        first = np.moveaxis(values, -1, 0)
        for stored in (first, values[None], first[None]):  # of a batch of one, too
            np.testing.assert_array_equal(unary_from(with_unaries, stored), expected)

    def test_scores_that_may_be_anything_are_those_that_are_named(self, with_unaries):
        scores = RNG.uniform(0.0, 9.0, (*SIZE, 3))
        assert "pass logits=True" in refusal(unary_from, with_unaries, scores)
        found = FolderDataset(with_unaries, logits=True)[0].unary
        np.testing.assert_allclose(found, unary_from_logits(scores), atol=1e-5)

    def test_axes_in_doubt_are_asked_about(self, with_unaries):
        values = RNG.normal(size=(3, 2, 3))
        np.save(with_unaries / "unaries" / "apple.npy", values)
        assert 'pass layout="channels_first" or' in refusal(lambda: FolderDataset(with_unaries)[0])
        last, first = (
            FolderDataset(with_unaries, layout=layout)[0].unary
            for layout in ("channels_last", "channels_first")
        )
        assert (last[0, 0].argmin(), first[0, 0].argmin()) == (
            values[0, 0].argmax(), values[:, 0, 0].argmax())
        assert "layout must be one of" in refusal(FolderDataset, with_unaries, layout="first")

    def test_logits(self, with_unaries):
        logits = RNG.normal(size=(*SIZE, 3))
        expected = unary_from(with_unaries, logits, kind="logits")
        np.testing.assert_allclose(expected, unary_from_logits(logits), atol=1e-5)
        np.testing.assert_array_equal(unary_from(with_unaries, logits), expected)

    def test_foregrounds(self, with_unaries):
        (with_unaries / "classes.txt").write_text("back\nfront\n")
        save_labels(with_unaries / "labels" / "apple.png", RNG.integers(0, 2, SIZE))
        p = RNG.random((3, 4)).astype(np.float32)
        both = np.stack([1 - p, p], -1)
        np.testing.assert_allclose(unary_from(with_unaries, p), unary_from(with_unaries, both))

    @pytest.mark.parametrize("suffix", ["png", "npy"])
    def test_label_maps_as_unaries(self, root, suffix):
        guesses = save_guesses(root)
        for name, labels in guesses.items():
            (root / "guesses" / f"{name}.png").unlink()
            write_labels(root / "guesses" / f"{name}.{suffix}", labels)
        expected = FolderDataset(root)[0].unary if suffix == "png" else unary_from_labels(
            guesses["apple"], N_LABELS)
        (root / "dataset.json").unlink()
        dataset = FolderDataset(root, probabilities=root / "guesses")
        assert dataset.unary_kind == "labels"
        np.testing.assert_array_equal(dataset[0].unary, expected)

    @pytest.mark.parametrize("axes", [0, -1])
    def test_axes_of_one_in_label_maps_do_not_matter(self, root, axes):
        guesses = save_guesses(root)
        for name, labels in guesses.items():
            (root / "guesses" / f"{name}.png").unlink()
            np.save(root / "guesses" / f"{name}.npy", np.expand_dims(labels, axes))
        (root / "dataset.json").unlink()
        dataset = FolderDataset(root, probabilities=root / "guesses")
        assert dataset.unary_kind == "labels"
        expected = unary_from_labels(guesses["apple"], N_LABELS)
        np.testing.assert_array_equal(dataset[0].unary, expected)

    @pytest.mark.parametrize("with_classes", [True, False])
    def test_masks_of_0_and_255(self, root, with_classes):
        (root / "classes.txt").write_text("back\nfront\n")
        if not with_classes:
            (root / "classes.txt").unlink()
        masks = {name: RNG.choice([0, 255], SIZE) for name in NAMES}
        (root / "guesses").mkdir()
        for name, mask in masks.items():
            for folder in ("labels", "guesses"):
                save_labels(root / folder / f"{name}.png", mask)
        dataset = FolderDataset(root, "learn", probabilities=root / "guesses")
        assert (dataset.n_labels, dataset.void) == (2, None)
        for example in dataset:
            truth = masks[example.name] == 255
            np.testing.assert_array_equal(example.truth, truth)
            np.testing.assert_array_equal(example.unary.argmin(-1), truth)

    def test_255_is_void_beside_other_labels_or_where_it_is_said(self, root):
        (root / "classes.txt").write_text("back\nfront\n")
        for name, other in zip(NAMES, (0, 0, 1), strict=True):
            save_labels(root / "labels" / f"{name}.png", RNG.choice([other, 255], SIZE))
        assert FolderDataset(root).void == 255
        save_labels(root / "labels" / f"{NAMES[2]}.png", RNG.choice([0, 255], SIZE))
        assert FolderDataset(root).void is None
        assert FolderDataset(root, description={"void": 255}).void == 255


class TestFolders:
    def test_any_names_and_places(self, with_unaries, tmp_path, monkeypatch):
        expected = FolderDataset(with_unaries, "learn")
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (with_unaries / "images").rename(with_unaries / "photos")
        (with_unaries / "labels").rename(elsewhere / "masks")
        (with_unaries / "unaries").rename(elsewhere / "softmax")
        monkeypatch.chdir(with_unaries)
        folders = {"images": "photos", "labels": "elsewhere/masks",
                   "probabilities": elsewhere / "softmax"}
        dataset = FolderDataset(split="learn", **folders)
        assert dataset.names == expected.names
        assert dataset.class_names == expected.class_names
        assert {path.resolve() for path in dataset.files() if path.exists()} == {
            path.resolve() for path in with_unaries.rglob("*")
            if path.stem in ("apple", "plum", "classes", "learn")}
        assert dataset[0].unary.shape == (*SIZE, N_LABELS)
        # A description goes on saying what it says of others.
        described = {"void": 254, "unaries": {"folder": "gone", "kind": "costs"}}
        dataset = FolderDataset(description=described, **folders)
        assert (dataset.void, dataset.unary_kind) == (254, "costs")

    def test_a_missing_folder_names_those_that_look_right(self, with_unaries):
        for old, new in (("images", "photos"), ("labels", "masks"), ("unaries", "softmax")):
            (with_unaries / old).rename(with_unaries / new)
        (with_unaries / "photos" / "pear.png").rename(with_unaries / "photos" / "pear.jpg")
        message = refusal(FolderDataset, with_unaries)
        assert ", ".join(
            f"{kind}='{with_unaries / name}'" for kind, name in
            (("images", "photos"), ("labels", "masks"), ("probabilities", "softmax"))
        ) in message
        assert "images=IMAGES" in refusal(FolderDataset)

    def test_names_that_do_not_match_are_shown(self, with_unaries):
        for path in sorted((with_unaries / "unaries").iterdir()):
            path.rename(path.with_name(f"{path.stem}_softmax.npy"))
        message = refusal(FolderDataset, with_unaries)
        assert "name the files as the images, apple in place of apple_softmax" in message

    @pytest.mark.parametrize(("n", "fewest", "most"), [(4, 0, 0), (5, 1, 3), (60, 6, 18)])
    def test_about_every_fifth_is_held_out(self, root, n, fewest, most):
        names = [f"{k:02}" for k in range(n)]
        kept, held_out = dataset_of(root, names).hold_out()
        assert sorted(kept.names + held_out.names) == names
        assert fewest <= len(held_out) <= most

    def test_what_was_learned_from_is_never_held_out_later(self, root):
        names = [f"{k:02}" for k in range(60)]
        kept = set(dataset_of(root, names).hold_out()[0].names)
        held_out = {
            name for some in (names[:30], names[1:], names[::2])
            for name in dataset_of(root, some).hold_out()[1].names
        }
        assert held_out
        assert not kept & held_out

    def test_one_is_held_out_where_no_name_says_so(self, root):
        names = [f"{k:02}" for k in range(60)]
        kept = dataset_of(root, names).hold_out()[0].names[:7]
        assert len(dataset_of(root, kept).hold_out()[1]) == 1

    def test_images_without_labels_are_told(self, with_unaries):
        save_image(with_unaries / "images" / "quince.png")
        (with_unaries / "train.txt").write_text("apple\n")
        assert FolderDataset(with_unaries).unlabeled == ("quince",)
        assert FolderDataset(with_unaries, "train").unlabeled == ()


def dataset_of(root, names):
    """Images of these names, each with labels, in a split."""
    for name in names:
        save_image(root / "images" / f"{name}.png")
        save_labels(root / "labels" / f"{name}.png", np.zeros(SIZE))
    (root / "all.txt").write_text("\n".join(names))
    return FolderDataset(root, "all")


class TestMasks:
    """Label maps of 0 and 255 are masks of two labels, if all of the data set are."""

    @pytest.fixture
    def masks(self, root):
        (root / "classes.txt").write_text("background\nfruit\n")
        found = {name: RNG.choice([0, 255], SIZE) for name in NAMES}
        found["pear"][:] = 255
        for name, mask in found.items():
            save_labels(root / "labels" / f"{name}.png", mask)
        return found

    def test_true_labels(self, root, masks):
        for split in (None, "learn"):
            dataset = FolderDataset(root, split)
            assert dataset.void is None
            for example in dataset:
                np.testing.assert_array_equal(example.truth, masks[example.name] // 255)

    def test_one_among_others_is_void(self, root, masks):
        save_labels(root / "labels" / "pear.png", np.tile([0, 1, 255, 0], (6, 2)))
        dataset = FolderDataset(root, "learn")  # without pear
        assert dataset.void == 255
        np.testing.assert_array_equal(dataset[0].truth, masks["plum"])

    def test_what_is_described_holds(self, root, masks):
        describe(root, void=255)
        assert FolderDataset(root).void == 255
        (root / "classes.txt").write_text(CLASSES)
        (root / "dataset.json").unlink()
        assert FolderDataset(root).void == 255  # of three labels, only one is seen

    def test_void_that_is_described_holds_where_labels_are_not_counted(self, root, masks):
        (root / "classes.txt").unlink()
        describe(root, void=255)
        dataset = FolderDataset(root, "learn", n_labels=2)
        assert dataset.void == 255
        for example in dataset:
            np.testing.assert_array_equal(example.truth, masks[example.name])

    def test_unaries(self, root, masks):
        (root / "guesses").mkdir()
        for name, mask in masks.items():
            save_labels(root / "guesses" / f"{name}.png", mask)
        describe(root, unaries={"folder": "guesses", "kind": "labels"})
        for example in FolderDataset(root):
            np.testing.assert_array_equal(example.unary.argmin(-1), example.truth)


class TestSharedArchives:
    @pytest.fixture
    def shared(self, root):
        (root / "unaries").mkdir()
        self.values = {name: probabilities((3, 4)) for name in (*NAMES, "no_image")}
        first = {name: self.values[name] for name in ("apple", "no_image")}
        np.savez_compressed(root / "unaries" / "first.npz", **first)
        np.savez(root / "unaries" / "rest.npz", pear=self.values["pear"], plum=self.values["plum"])
        return root

    @pytest.fixture
    def openings(self, monkeypatch):
        opened = []

        def counting(path, kind):
            opened.append(path.name)
            return open_regular(path, kind)

        monkeypatch.setattr("crfield.datasets.unaries.open_regular", counting)
        return opened

    def check_values(self, dataset):
        for example in dataset:
            corner = np.exp(-example.unary[0, 0])
            np.testing.assert_allclose(corner, self.values[example.name][0, 0], rtol=1e-5)

    def test_keys_are_names_and_archives_open_once(self, shared, openings):
        dataset = FolderDataset(shared)
        self.check_values(dataset)
        self.check_values(dataset[1:])
        assert sorted(openings) == ["first.npz", "rest.npz"]

    def test_other_processes_open_their_own(self, shared, openings, monkeypatch):
        dataset = FolderDataset(shared)
        monkeypatch.setattr("os.getpid", lambda: -1)
        self.check_values(dataset)
        assert sorted(openings) == ["first.npz", "first.npz", "rest.npz", "rest.npz"]

    def test_travels_without_open_files(self, shared, openings):
        copied = pickle.loads(pickle.dumps(FolderDataset(shared, "learn")))
        assert copied.names == ("plum", "apple")
        self.check_values(copied)
        assert len(openings) == 4

    def test_only_the_key_asked_for_is_read(self, shared):
        path = shared / "unaries" / "rest.npz"
        data = bytearray(path.read_bytes())
        with zipfile.ZipFile(path) as archive:
            start = archive.getinfo("plum.npy").header_offset
        data[start + 200 : start + 260] = bytes(60)
        path.write_bytes(data)
        dataset = FolderDataset(shared)
        self.check_values(dataset[:2])
        message = refusal(lambda: dataset[2])
        assert f"cannot read 'plum' in {path}" in message
        assert list(dataset.problems()) == [message]

    def test_name_in_two_archives(self, shared):
        np.savez(shared / "unaries" / "second.npz", apple=self.values["apple"])
        message = refusal(FolderDataset, shared)
        for place in ("'apple' in ", "first.npz", "second.npz"):
            assert place in message

    def test_name_in_an_archive_and_in_a_file_of_its_own(self, shared):
        np.save(shared / "unaries" / "apple.npy", self.values["apple"])
        assert "apple.npy" in refusal(FolderDataset, shared, "learn")

    def test_split_does_not_open_the_archives_of_other_images(self, shared, openings):
        np.savez(shared / "unaries" / "no_split.npz", self.values["apple"])
        save_image(shared / "images" / "no_split.png")
        openings.clear()
        FolderDataset(shared, "learn").check()
        assert sorted(openings) == ["first.npz", "rest.npz"]

    def test_damaged_archive(self, shared):
        (shared / "unaries" / "more.npz").write_bytes(b"PK and so on")
        message = refusal(FolderDataset, shared)
        assert f"cannot read {shared / 'unaries' / 'more.npz'}" in message

    def test_announced_size_is_refused_before_it_is_allocated(self, shared):
        path = shared / "unaries" / "third.npz"
        header = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000, 1000000, 3), }"
        with zipfile.ZipFile(path, "w") as archive:
            member = b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header
            archive.writestr("huge.npy", member)
        save_image(shared / "images" / "huge.png")
        save_labels(shared / "labels" / "huge.png", np.zeros(SIZE))
        (shared / "huge.txt").write_text("huge")
        dataset = FolderDataset(shared, "huge")
        assert "(1000000, 1000000, 3), which is larger" in refusal(dataset.check)


class TestRefusedFolders:
    def test_no_root(self, tmp_path):
        assert "a data set must be a folder" in refusal(FolderDataset, tmp_path / "nowhere")

    @pytest.mark.parametrize("folder", ["images", "labels"])
    def test_no_folder(self, root, folder):
        (root / folder).rename(root / "elsewhere")
        assert str(root / folder) in refusal(FolderDataset, root)

    @pytest.mark.parametrize("split", ["test", "README", "classes", "../learn", 3])
    def test_unknown_split_lists_the_known(self, root, split):
        (root / "val.txt").write_text("pear")
        assert "one of 'learn', 'val' in" in refusal(FolderDataset, root, split)

    @pytest.mark.parametrize(("name", "content", "message"), [
        ("learn.txt", b"\n  \n", "learn.txt must name at least one image"),
        ("learn.txt", b"\xff\xfe\x00", "learn.txt must be UTF-8"),
        ("learn.txt", b"plum\nplum\n", "'plum' twice"),
        ("learn.txt", b"apple.png\n", "names go without a suffix: apple"),
        ("classes.txt", b"", "must name at least one class, got 0"),
        ("classes.txt", b"0 a\n2 b\n", "got 2 'b' in place of 1"),
        ("classes.txt", b"0 a\n0 b\n", "got 0 'b' in place of 1"),
        ("dataset.json", b"{'n_labels': 3}", "dataset.json must hold JSON"),
        ("dataset.json", b"", "dataset.json must hold JSON"),
        ("dataset.json", b"[" * 100_000, "dataset.json must hold JSON"),
    ])
    def test_text_files_with_something_else(self, root, name, content, message):
        (root / name).write_bytes(content)
        assert message in refusal(FolderDataset, root, "learn")

    def test_nothing_in_common(self, root):
        for name in NAMES:
            (root / "labels" / f"{name}.png").unlink()
        assert "there are none" in refusal(FolderDataset, root)

    @pytest.mark.parametrize("folder", ["images", "labels"])
    def test_missing_files_are_named_and_counted(self, root, folder):
        (root / folder / "apple.png").unlink()
        message = refusal(FolderDataset, root, "learn")
        assert "'apple'," in message
        assert str(root / folder) in message
        (root / folder / "plum.png").unlink()
        assert "'plum' and 1 other name," in refusal(FolderDataset, root, "learn")

    def test_missing_unaries(self, with_unaries):
        (with_unaries / "unaries" / "pear.npy").unlink()
        message = refusal(FolderDataset, with_unaries)
        assert f"unaries in {with_unaries / 'unaries'} for 'pear'" in message
        assert FolderDataset(with_unaries, "learn")[0].unary is not None

    def test_two_files_of_one_name(self, root):
        save_image(root / "images" / "plum.jpg")
        message = refusal(FolderDataset, root)
        assert "plum.jpg" in message
        assert "plum.png" in message

    def test_classes_and_description_disagree(self, root):
        message = refusal(FolderDataset, root, description={"n_labels": 4})
        assert "classes.txt must name n_labels = 4 classes, got 3" in message

    @pytest.mark.parametrize(("description", "message"), [
        ([1], "must be an object with the keys 'n_labels'"),
        ({"nlabels": 3}, "no other keys than 'n_labels', 'void', 'images', 'labels',"),
        ({"n_labels": "3"}, "'n_labels' in {origin} must be a whole number, got '3'"),
        ({"n_labels": 0}, "'n_labels' in {origin} must be at least 1"),
        ({"n_labels": 10**9}, "'n_labels' in {origin} must be at least 1 and at most 65536"),
        ({"void": 1.5}, "'void' in {origin} must be a whole number, got 1.5"),
        ({"void": 2}, "'void' must be no label from 0 to 2, got 2"),
        ({"images": ["images"]}, "'images' in {origin} must be the name of a folder"),
        ({"labels": ""}, "'labels' in {origin} must be the name of a folder"),
        ({"unaries": "unaries"}, "'unaries' in {origin} must be an object with the keys"),
        ({"unaries": {"kinds": "costs"}}, "'unaries' in {origin} must have no other keys"),
        ({"unaries": {"kind": "logs"}}, "'kind' in 'unaries' in {origin} must be one of"),
        ({"unaries": {"scale": 0}}, "'scale' in 'unaries' in {origin} must not be zero"),
        ({"unaries": {"scale": 2.2e81}}, "'scale' in 'unaries' in {origin} must lie between"),
        ({"unaries": {"scale": -1e-40}}, "'scale' in 'unaries' in {origin} must lie between"),
        ({"unaries": {"scale": None}}, "'scale' in 'unaries' in {origin} must be a number"),
        ({"unaries": {"confidence": 1}}, "'confidence' in 'unaries' in {origin} must lie"),
        ({"unaries": {"folder": "nowhere"}}, "nowhere, but there is none"),
    ])
    def test_wrong_descriptions(self, root, description, message):
        from_outside = refusal(FolderDataset, root, description=description)
        assert message.format(origin="description") in from_outside
        path = root / "dataset.json"
        path.write_text(json.dumps(description))
        assert message.format(origin=path) in refusal(FolderDataset, root)

    def test_description_that_is_not_there(self, root):
        message = refusal(FolderDataset, root, description=root / "other.json")
        assert f"cannot read {root / 'other.json'}" in message


class TestRefusedFiles:
    def expect(self, root, path, *parts):
        """`apple` is refused with the name of the file; the other examples are not."""
        dataset = FolderDataset(root)
        message = refusal(lambda: dataset[0])
        for part in (str(path), *parts):
            assert part in message
        assert list(dataset.problems()) == [message]
        assert refusal(dataset.check) == message
        dataset[1:].check()

    @pytest.mark.parametrize(("name", "spoil", "parts"), [
        ("images/apple.png", cut(60), ["cannot read"]),
        ("labels/apple.png", lambda path: save_labels(path, np.zeros((6, 9))),
         ["(6, 8), got (6, 9)", "apple.png"]),
        ("labels/apple.png", lambda path: save_labels(path, np.pad([[3]], ((2, 3), (5, 2)))),
         ["from 0 to 2, got 3 at index (2, 5)", "void: 255"]),
        ("labels/apple.png", save_image, ["not their colors"]),
        # Objects are not unpickled.
        ("unaries/apple.npy", lambda path: np.save(path, np.array([{}])), ["cannot read"]),
        ("unaries/apple.npy", cut(300), ["cannot read"]),
    ])
    def test_files_that_are_damaged_or_do_not_fit(self, with_unaries, name, spoil, parts):
        spoil(with_unaries / name)
        self.expect(with_unaries, with_unaries / name, *parts)

    def test_image_that_went_away(self, root):
        dataset = FolderDataset(root)
        (root / "images" / "apple.png").unlink()
        assert "apple.png" in refusal(lambda: dataset[0])

    def test_void_that_is_switched_off(self, root):
        describe(root, void=None)
        assert "got 255 at index (0, 0)" in refusal(FolderDataset(root).check)

    @pytest.mark.parametrize(("values", "message"), [
        (np.full((*SIZE, 3), np.nan), "unaries must be finite, got nan at index (0, 0, 0)"),
        (np.full((*SIZE, 3), np.inf), "unaries must be finite"),
        (np.full((*SIZE, 3), 1e39), "unaries as float32 must be finite"),
        (np.full((*SIZE, 4), 0.25), "(6, 8, 3), or coarser, got (6, 8, 4) with 4 planes"),
        (np.full((4, *SIZE), 1 / 4), "with 8 planes"),
        (np.full(SIZE, 1.0), "got (6, 8); put the labels last"),
        (np.zeros((0, 4, 3)), "got (0, 4, 3)"),
        (np.full((*SIZE[::-1], 3), 1 / 3), "got (8, 6, 3), which is larger"),
        (np.full((*SIZE, 3), 2.0), "must lie in [0, 1], got 2 at index (0, 0, 0)"),
        (np.full((*SIZE, 3), 0.5), "must sum to 1 over the labels, got 1.5 at index (0, 0)"),
        (np.full((*SIZE, 3), "a"), "must hold real numbers"),
    ])
    def test_wrong_unaries(self, with_unaries, values, message):
        path = with_unaries / "unaries" / "apple.npy"
        np.save(path, values)
        self.expect(with_unaries, path, message)

    def test_archive_of_several_arrays(self, with_unaries):
        (with_unaries / "unaries" / "apple.npy").unlink()
        path = with_unaries / "unaries" / "apple.npz"
        np.savez(path, a=probabilities(SIZE), b=probabilities(SIZE))
        self.expect(with_unaries, path, "named apple or probabilities")

    def test_costs_taken_for_log_probabilities(self, with_unaries):
        describe(with_unaries, unaries={"kind": "log_probabilities"})
        message = refusal(lambda: FolderDataset(with_unaries)[0])
        assert "log-probabilities must not be positive" in message
        assert "apple.npy" in message

    def test_scale_that_overflows(self, with_unaries):
        describe(with_unaries, unaries={"kind": "costs", "scale": 1e35})
        assert "apple.npy: unaries times" in refusal(lambda: FolderDataset(with_unaries)[0])

    def test_wrong_labels_as_unaries(self, root):
        save_guesses(root)
        path = root / "guesses" / "apple.png"
        save_labels(path, np.full(SIZE, 7))
        self.expect(root, path, "labels must lie in 0..2", "got 7")
        save_labels(path, np.zeros((3, 4)))
        self.expect(root, path, "(6, 8), got (3, 4)")


class TestInterpolation:
    def test_by_hand(self):
        fine = resize_linearly(np.array([[0.0], [4.0]], np.float32), (4,))
        assert fine.ravel().tolist() == [0, 1, 3, 4]

    @given(
        hnp.arrays(
            np.float32,
            hnp.array_shapes(min_dims=3, max_dims=3, max_side=4),
            elements=st.floats(-8, 8, width=32),
        ),
        st.tuples(st.integers(0, 9), st.integers(0, 9)),
    )
    def test_agrees_with_pillow_plane_by_plane(self, coarse, larger_by):
        grid = (coarse.shape[0] + larger_by[0], coarse.shape[1] + larger_by[1])
        fine = resize_linearly(coarse, grid)
        assert fine.dtype == np.float32
        for plane in range(coarse.shape[-1]):
            picture = Image.fromarray(np.ascontiguousarray(coarse[..., plane]))
            expected = picture.resize(grid[::-1], Image.Resampling.BILINEAR)
            np.testing.assert_allclose(fine[..., plane], expected, atol=1e-5)

    @given(hnp.arrays(np.float32, (2, 3, 2, 4), elements=st.floats(0, 1, width=32)))
    def test_sums_over_planes_are_kept(self, coarse):
        coarse = coarse + np.float32(0.1)
        coarse /= coarse.sum(-1, keepdims=True)
        np.testing.assert_allclose(resize_linearly(coarse, (5, 3, 7)).sum(-1), 1, rtol=1e-5)
