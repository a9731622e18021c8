"""Files in and out: formats, limits, damage and atomic writes."""

import contextlib
import os
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from crfield._core.atomic import atomic_path
from crfield._core.validate import InputError
from crfield.blocks.parts import Source
from crfield.io.arrays import write_array
from crfield.io.images import (
    file_stem,
    file_suffix,
    open_array,
    pillow_unlimited,
    read_image,
    read_labels,
    read_probabilities,
    write_labels,
    write_picture,
)
from refusal import refusal

RNG = np.random.default_rng(0)
PALETTE = bytes(range(0, 30))  # ten colors


def palette_png(path, labels):
    picture = Image.fromarray(np.asarray(labels, np.uint8))
    picture.putpalette(PALETTE.ljust(768, b"\0"))
    picture.save(path)


def announce_png(path, width, height):
    """A PNG of a few bytes whose header announces any size."""

    def chunk(kind, data):
        checksum = struct.pack(">I", zlib.crc32(kind + data))
        return struct.pack(">I", len(data)) + kind + data + checksum

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    path.write_bytes(
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")
    )


def random_pixels(shape, dtype=np.uint8):
    return RNG.integers(0, np.iinfo(dtype).max + 1, shape, dtype=dtype)


class TestImages:
    @pytest.mark.parametrize(("name", "pixels"), [
        ("a.png", random_pixels((5, 7))), ("a.png", random_pixels((5, 7, 3))),
        ("a.png", random_pixels((5, 7), np.uint16)), ("a.tif", random_pixels((5, 7), np.uint16)),
    ])
    def test_gray_and_color_pixels_survive(self, tmp_path, name, pixels):
        Image.fromarray(pixels).save(tmp_path / name)
        read = read_image(tmp_path / name)
        np.testing.assert_array_equal(read.array, pixels, strict=True)
        assert (read.grid, read.spacing, read.turned) == ((5, 7), None, False)

    def test_exif_orientation_turns_the_image(self, tmp_path):
        pixels = random_pixels((8, 16))
        exif = Image.Exif()
        exif[0x0112] = 6  # to be shown a quarter turn clockwise
        Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
        read = read_image(tmp_path / "a.png")
        np.testing.assert_array_equal(read.array, np.rot90(pixels, -1))
        assert read.turned

    @pytest.mark.parametrize("mode", ["RGBA", "LA"])
    def test_transparent_pixels_become_white(self, tmp_path, mode):
        picture = Image.new("RGBA", (2, 1), (10, 10, 10, 255))
        picture.putpixel((1, 0), (10, 10, 10, 0))
        picture.convert(mode).save(tmp_path / "a.png")
        np.testing.assert_array_equal(read_image(tmp_path / "a.png").array, [[[10] * 3, [255] * 3]])

    def test_palette_image_is_read_as_its_colors(self, tmp_path):
        palette_png(tmp_path / "a.png", [[0, 2]])
        found = read_image(tmp_path / "a.png").array
        np.testing.assert_array_equal(found, [[[0, 1, 2], [6, 7, 8]]])

    def test_one_bit_image_is_black_and_white(self, tmp_path):
        Image.fromarray(np.array([[True, False]])).save(tmp_path / "a.png")
        np.testing.assert_array_equal(read_image(tmp_path / "a.png").array, [[255, 0]])

    def test_cmyk_jpeg_becomes_rgb(self, tmp_path):
        Image.new("CMYK", (4, 3)).save(tmp_path / "a.jpg")
        assert read_image(tmp_path / "a.jpg").array.shape == (3, 4, 3)


class TestLimitsAndDamage:
    def test_size_is_refused_from_the_header(self, tmp_path):
        announce_png(tmp_path / "bomb.png", 60_000, 60_000)
        message = refusal(read_image, tmp_path / "bomb.png")
        assert "3,600,000,000" in message
        assert "raise max_pixels" in message
        assert "bomb.png" in refusal(read_labels, tmp_path / "bomb.png")

    def test_limit_is_exact_and_can_be_raised(self, tmp_path):
        Image.new("L", (10, 10)).save(tmp_path / "a.png")
        assert read_image(tmp_path / "a.png", max_pixels=100).grid == (10, 10)
        refusal(read_image, tmp_path / "a.png", 99)

    def test_limit_replaces_that_of_pillow_and_leaves_it_alone(self, tmp_path, monkeypatch):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
        Image.new("L", (10, 10)).save(tmp_path / "a.png")
        assert read_image(tmp_path / "a.png").grid == (10, 10)
        assert Image.MAX_IMAGE_PIXELS == 4

    def test_limit_of_pillow_survives_readers_side_by_side(self, monkeypatch):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 4)
        first, second = pillow_unlimited(), pillow_unlimited()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert Image.MAX_IMAGE_PIXELS is None
        second.__exit__(None, None, None)
        assert Image.MAX_IMAGE_PIXELS == 4

    @pytest.mark.parametrize("name", ["a.png", "a.jpg", "a.tif", "a.bmp"])
    def test_truncated_file_is_named(self, tmp_path, name):
        path = tmp_path / name
        Image.fromarray(random_pixels((64, 64, 3))).save(path)
        path.write_bytes(path.read_bytes()[:2000])
        assert name in refusal(read_image, path)

    def test_not_an_image(self, tmp_path):
        (tmp_path / "a.png").write_text("hello")
        assert "PNG" in refusal(read_image, tmp_path / "a.png")

    def test_postscript_is_never_interpreted(self, tmp_path):
        (tmp_path / "a.eps").write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n")
        refusal(read_image, tmp_path / "a.eps")

    def test_missing_file_and_folder(self, tmp_path):
        assert "no such file" in refusal(read_image, tmp_path / "none.png")
        assert "folder" in refusal(read_labels, tmp_path)

    @given(noise=st.binary(min_size=0, max_size=40), position=st.integers(0, 200))
    def test_damaged_bytes_never_escape_as_another_error(self, tmp_path_factory, noise, position):
        path = tmp_path_factory.mktemp("damaged") / "a.png"
        palette_png(path, RNG.integers(0, 10, (16, 16)))
        content = bytearray(path.read_bytes())
        content[position : position + len(noise)] = noise
        path.write_bytes(content)
        for read in (read_image, read_labels):
            with contextlib.suppress(InputError):
                assert read(path, 10_000).array.size > 0


class TestLabels:
    def test_palette_is_kept(self, tmp_path):
        labels = RNG.integers(0, 10, (5, 6))
        palette_png(tmp_path / "a.png", labels)
        read = read_labels(tmp_path / "a.png")
        np.testing.assert_array_equal(read.array, labels)
        write_labels(tmp_path / "b.png", labels[::-1], like=read)
        with Image.open(tmp_path / "b.png") as written:
            assert written.mode == "P"
            assert bytes(written.getpalette() or ())[:30] == PALETTE
            np.testing.assert_array_equal(np.asarray(written), labels[::-1])

    def test_label_beyond_a_short_palette_survives(self, tmp_path):
        picture = Image.fromarray(np.array([[0, 1]], np.uint8))
        picture.putpalette(PALETTE[:6])
        picture.save(tmp_path / "a.png")
        read = read_labels(tmp_path / "a.png")
        write_labels(tmp_path / "b.png", np.array([[1, 200]]), like=read)
        np.testing.assert_array_equal(read_labels(tmp_path / "b.png").array, [[1, 200]])

    @pytest.mark.parametrize("name", ["a.png", "a.tif", "a.npy"])
    @pytest.mark.parametrize("largest", [3, 255, 256, 65535])
    def test_written_labels_are_read_again(self, tmp_path, name, largest):
        labels = np.array([[0, 1], [2, largest]])
        write_labels(tmp_path / name, labels)
        np.testing.assert_array_equal(read_labels(tmp_path / name).array, labels)

    def test_one_bit_mask_stays_one(self, tmp_path):
        Image.fromarray(np.array([[True, False]])).save(tmp_path / "a.png")
        read = read_labels(tmp_path / "a.png")
        np.testing.assert_array_equal(read.array, [[1, 0]])
        write_labels(tmp_path / "b.png", read.array, like=read)
        with Image.open(tmp_path / "b.png") as written:
            assert written.mode == "1"
            np.testing.assert_array_equal(np.asarray(written), [[True, False]])

    @pytest.mark.parametrize("mode", ["RGB", "RGBA"])
    def test_colored_labels_are_refused(self, tmp_path, mode):
        Image.new(mode, (2, 2), (255, 255, 254)).save(tmp_path / "a.png")
        message = refusal(read_labels, tmp_path / "a.png")
        assert f"single-channel or palette image, but {tmp_path / 'a.png'} holds col" in message

    @pytest.mark.parametrize("mode", ["RGB", "RGBA", "LA"])
    def test_gray_in_several_channels_is_gray(self, tmp_path, mode):
        mask = np.array([[0, 255, 0], [7, 0, 255]], np.uint8)
        picture = Image.fromarray(mask).convert(mode)
        picture.save(tmp_path / "a.png")
        read = read_labels(tmp_path / "a.png")
        np.testing.assert_array_equal(read.array, mask)
        assert read.mode == "L"
        if mode != "RGB":
            picture.putalpha(Image.fromarray(mask))
            picture.save(tmp_path / "a.png")
            assert "transparent" in refusal(read_labels, tmp_path / "a.png")

    def test_jpeg_labels_are_refused_both_ways(self, tmp_path):
        Image.new("L", (8, 8)).save(tmp_path / "a.jpg")
        assert "JPEG" in refusal(read_labels, tmp_path / "a.jpg")
        assert ".png" in refusal(write_labels, tmp_path / "b.jpg", np.zeros((2, 2), int))

    def test_npy_labels(self, tmp_path):
        np.save(tmp_path / "whole.npy", np.array([[0.0, 7.0]]))
        np.testing.assert_array_equal(read_labels(tmp_path / "whole.npy").array, [[0, 7]])
        assert read_labels(tmp_path / "whole.npy").array.dtype == np.int64
        np.save(tmp_path / "a.npy", np.array([[0.0, 0.5]]))
        assert "read it as probabilities" in refusal(read_labels, tmp_path / "a.npy")
        np.save(tmp_path / "b.npy", np.zeros((2, 2, 2, 2), int))
        assert "(2, 2, 2, 2)" in refusal(read_labels, tmp_path / "b.npy")
        np.save(tmp_path / "c.npy", np.array([[np.nan]]))
        refusal(read_labels, tmp_path / "c.npy")

    def test_negative_or_large_ids_need_npy(self, tmp_path):
        for labels in (np.array([[-1, 0]]), np.array([[0, 70_000]])):
            assert ".npy" in refusal(write_labels, tmp_path / "a.png", labels)
            write_labels(tmp_path / "a.npy", labels)
            np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), labels)


class TestProbabilities:
    def test_npy_and_npz(self, tmp_path):
        values = RNG.random((3, 4, 2))
        np.save(tmp_path / "a.npy", values)
        np.savez_compressed(tmp_path / "one.npz", anything=values)
        np.savez(tmp_path / "named.npz", image=np.zeros(3), probs=values)
        for name in ("a.npy", "one.npz", "named.npz"):
            read = read_probabilities(tmp_path / name)
            assert read.dtype == np.float64
            np.testing.assert_array_equal(read, values)
        np.save(tmp_path / "half.npy", values.astype(np.float16))
        assert read_probabilities(tmp_path / "half.npy").dtype == np.float32

    @pytest.mark.parametrize("dtype", ["uint8", "uint16"])
    def test_gray_pictures_are_soft_masks(self, tmp_path, dtype):
        white = np.iinfo(dtype).max
        grays = RNG.integers(0, white + 1, (5, 7), dtype)
        Image.fromarray(grays).save(tmp_path / "a.png")
        read = read_probabilities(tmp_path / "a.png")
        assert read.dtype == np.float32
        np.testing.assert_allclose(read, grays / white, rtol=1e-6)
        assert "5 x 7" in refusal(read_probabilities, tmp_path / "a.png", 34)

    def test_pictures_that_are_no_soft_masks(self, tmp_path):
        ids = RNG.integers(0, 5, (5, 7), np.uint8)
        picture = Image.fromarray(ids)
        picture.putpalette(bytes(range(60)))
        picture.save(tmp_path / "b.png")
        assert "read it as labels" in refusal(read_probabilities, tmp_path / "b.png")
        Image.fromarray(random_pixels((5, 7, 3))).save(tmp_path / "c.png")
        assert "holds colors (RGB)" in refusal(read_probabilities, tmp_path / "c.png")
        Image.fromarray(ids).save(tmp_path / "d.png", format="JPEG")
        assert "lossless" in refusal(read_probabilities, tmp_path / "d.png")

    def test_ambiguous_npz_is_refused(self, tmp_path):
        np.savez(tmp_path / "a.npz", x=np.zeros((2, 2, 2)), y=np.zeros((2, 2, 2)))
        assert "'x', 'y'" in refusal(read_probabilities, tmp_path / "a.npz")

    def test_wrong_type_and_rank(self, tmp_path):
        np.save(tmp_path / "a.npy", np.zeros((2, 2, 2), np.uint8))
        message = refusal(read_probabilities, tmp_path / "a.npy")
        assert "uint8" in message
        assert "read it as labels if they are label ids" in message
        np.save(tmp_path / "b.npy", np.zeros(2))
        assert "(H, W, L), (L, H, W)" in refusal(read_probabilities, tmp_path / "b.npy")
        message = refusal(read_probabilities, tmp_path / "b.pt")
        assert message.endswith("save it with numpy.save.")
        assert "read it as labels" in refusal(read_probabilities, tmp_path / "b.gif")

    def test_pickles_are_not_opened(self, tmp_path):
        np.save(tmp_path / "a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
        np.savez(tmp_path / "a.npz", a=np.empty((2, 2, 2), dtype=object))
        refusal(read_probabilities, tmp_path / "a.npy")
        refusal(read_probabilities, tmp_path / "a.npz")

    @pytest.mark.parametrize("name", ["a.npy", "a.npz"])
    def test_size_is_refused_from_the_header(self, tmp_path, name):
        values = np.zeros((4, 30, 40), np.float32)
        (np.save if name == "a.npy" else np.savez_compressed)(tmp_path / name, values)
        assert "4 x 30" in refusal(read_probabilities, tmp_path / name, 100)
        assert read_probabilities(tmp_path / name, 120).shape == (4, 30, 40)
        assert "30 x 40" in refusal(read_probabilities, tmp_path / name, 120, "channels_first")

    def test_a_npz_named_npy_is_refused(self, tmp_path):
        np.savez(tmp_path / "a.npz", a=np.zeros((2, 2, 2)))
        (tmp_path / "a.npz").rename(tmp_path / "a.npy")
        assert ".npz" in refusal(read_probabilities, tmp_path / "a.npy")

    def test_truncated_arrays_are_named(self, tmp_path):
        np.save(tmp_path / "a.npy", np.zeros((20, 20, 2)))
        np.savez(tmp_path / "a.npz", a=np.zeros((20, 20, 2)))
        for name in ("a.npy", "a.npz"):
            content = (tmp_path / name).read_bytes()
            (tmp_path / name).write_bytes(content[:1000])
            assert name in refusal(read_probabilities, tmp_path / name)


class TestVolumes:
    @pytest.mark.parametrize(("channels", "kind"), [((), "minisblack"), ((3,), "rgb")])
    def test_tiff_pages_are_slices(self, tmp_path, channels, kind):
        tifffile = pytest.importorskip("tifffile")
        volume = random_pixels((4, 6, 5, *channels))
        tifffile.imwrite(tmp_path / "a.tif", volume, photometric=kind)
        read = read_image(tmp_path / "a.tif")
        assert read.grid == (4, 6, 5)
        np.testing.assert_array_equal(read.array, volume)
        assert "4 x 6 x 5" in refusal(read_image, tmp_path / "a.tif", 100)
        if channels:
            refusal(read_labels, tmp_path / "a.tif")
        else:
            write_labels(tmp_path / "b.tif", volume.astype(int))
            np.testing.assert_array_equal(read_labels(tmp_path / "b.tif").array, volume)

    def test_nifti_keeps_affine_and_spacing(self, tmp_path):
        nibabel = pytest.importorskip("nibabel")
        affine = np.diag([0.5, 0.75, 3.0, 1.0])
        affine[:3, 3] = 7
        voxels = RNG.integers(0, 900, (5, 6, 4)).astype(np.int16)  # (X, Y, Z)
        nibabel.save(nibabel.Nifti1Image(voxels, affine), tmp_path / "a.nii.gz")
        read = read_image(tmp_path / "a.nii.gz")
        assert read.grid == (4, 6, 5)
        assert read.spacing == (3.0, 0.75, 0.5)
        assert read.array.dtype == np.float32
        np.testing.assert_array_equal(read.array, voxels.T)

        labels = RNG.integers(0, 3, (4, 6, 5))
        write_labels(tmp_path / "b.nii.gz", labels, like=read)
        written = nibabel.load(tmp_path / "b.nii.gz")
        np.testing.assert_array_equal(written.affine, affine)
        np.testing.assert_array_equal(np.asarray(written.dataobj).T, labels)
        assert written.get_data_dtype() == np.uint8
        np.testing.assert_array_equal(read_labels(tmp_path / "b.nii.gz").array, labels)

    def test_nifti_labels_keep_the_units_and_not_the_display_window(self, tmp_path):
        nibabel = pytest.importorskip("nibabel")
        scan = nibabel.Nifti1Image(np.zeros((5, 6, 4), np.int16), np.eye(4))
        scan.header.set_xyzt_units("mm", "sec")
        scan.header["cal_min"], scan.header["cal_max"] = 100, 900
        nibabel.save(scan, tmp_path / "a.nii")
        read = read_image(tmp_path / "a.nii")
        write_labels(tmp_path / "b.nii", np.ones((4, 6, 5), int), like=read)
        header = nibabel.load(tmp_path / "b.nii").header
        assert header.get_xyzt_units() == ("mm", "sec")
        assert (header["cal_min"], header["cal_max"]) == (0, 0)

    def test_nifti_probabilities_and_limits(self, tmp_path):
        nibabel = pytest.importorskip("nibabel")
        values = RNG.random((5, 6, 4, 3)).astype(np.float32)
        nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / "a.nii")
        expected = values.transpose(2, 1, 0, 3)
        np.testing.assert_array_equal(read_probabilities(tmp_path / "a.nii"), expected)
        first = read_probabilities(tmp_path / "a.nii", 120, "channels_first")
        np.testing.assert_array_equal(first, expected.transpose(3, 0, 1, 2))
        refusal(read_probabilities, tmp_path / "a.nii", 119)
        content = (tmp_path / "a.nii").read_bytes()
        (tmp_path / "a.nii").write_bytes(content[:700])
        assert "a.nii" in refusal(read_image, tmp_path / "a.nii")

    @pytest.mark.parametrize(("name", "package"), [("a.nii.gz", "nibabel"), ("a.tif", "tifffile")])
    def test_missing_packages_are_named(self, tmp_path, monkeypatch, name, package):
        pages = [Image.new("L", (3, 3))] * 2
        pages[0].save(tmp_path / "a.tif", save_all=True, append_images=pages[1:])
        (tmp_path / "a.nii.gz").touch()
        # None in sys.modules makes an import fail as if the package were not installed.
        monkeypatch.setitem(sys.modules, "nibabel", None)
        monkeypatch.setitem(sys.modules, "tifffile", None)
        assert f"pip install {package}." in refusal(read_image, tmp_path / name)
        message = refusal(write_labels, tmp_path / name, np.zeros((2, 2, 2), int))
        assert f"pip install {package}." in message

    def test_png_cannot_hold_a_volume(self, tmp_path):
        message = refusal(write_labels, tmp_path / "a.png", np.zeros((2, 2, 2), int))
        assert ".nii.gz" in message


class TestWrites:
    def test_failure_leaves_the_old_file_and_no_other(self, tmp_path):
        path = tmp_path / "a.npy"
        write_array(path, np.arange(3))

        def stop_half_way():
            with atomic_path(path) as temporary:
                temporary.write_bytes(b"half")
                raise RuntimeError

        with pytest.raises(RuntimeError):
            stop_half_way()
        np.testing.assert_array_equal(np.load(path), np.arange(3))
        assert list(tmp_path.iterdir()) == [path]

    def test_success_leaves_only_the_file(self, tmp_path):
        write_picture(tmp_path / "a.png", Image.new("RGB", (2, 2)))
        assert [path.name for path in tmp_path.iterdir()] == ["a.png"]

    def test_missing_folder_and_folder_in_the_way(self, tmp_path):
        assert "a.npy" in refusal(write_array, tmp_path / "none" / "a.npy", np.zeros(1))
        (tmp_path / "b.npy").mkdir()
        assert "b.npy" in refusal(write_array, tmp_path / "b.npy", np.zeros(1))

    @pytest.mark.skipif(os.name == "nt", reason="links and modes of POSIX")
    def test_link_is_followed_and_umask_honored(self, tmp_path):
        (tmp_path / "link.npy").symlink_to(tmp_path / "real.npy")
        write_array(tmp_path / "link.npy", np.arange(2))
        assert (tmp_path / "link.npy").is_symlink()
        (tmp_path / "plain").touch()
        assert (tmp_path / "real.npy").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_nifti_suffix_counts_as_one():
    path = Path("folder") / "brain.1.nii.gz"
    assert (file_stem(path), file_suffix(path)) == ("brain.1", ".nii.gz")
    assert (file_stem(Path("a.b.png")), file_suffix(Path("a.b.png"))) == ("a.b", ".png")


class TestPartByPart:
    @given(
        shape=st.lists(st.integers(1, 6), max_size=4), order=st.sampled_from("CF"),
        kind=st.sampled_from(["u1", "<i4", ">f8"]), data=st.data(),
    )
    def test_parts_of_npy_files(self, tmp_path_factory, shape, order, kind, data):
        array = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind, order=order)
        path = tmp_path_factory.getbasetemp() / "parts.npy"
        np.save(path, array)
        stored = open_array(path)
        assert not isinstance(stored, np.ndarray)
        assert (stored.shape, stored.dtype) == (array.shape, array.dtype)
        given_axes = data.draw(st.integers(0, len(shape)))
        ends = [sorted(data.draw(st.tuples(*[st.integers(0, n)] * 2))) for n in shape[:given_axes]]
        part = tuple(slice(*pair) for pair in ends)
        np.testing.assert_array_equal(stored[part], array[part])

    def test_npy_that_is_cut_short(self, tmp_path):
        path = tmp_path / "a.npy"
        np.save(path, np.zeros((300, 300)))
        stored = open_array(path)
        os.truncate(path, 200_000)
        assert stored[:10].shape == (10, 300)
        assert "cut short" in refusal(stored.__getitem__, (slice(290, 300), slice(0, 5)))
        assert "a.npy" in refusal(open_array, path)

    def test_npy_of_other_things(self, tmp_path):
        for name, array in (("text", np.array(["a"])), ("objects", np.array([None])),
                            ("records", np.zeros(2, "i4,f4"))):
            np.save(tmp_path / f"{name}.npy", array, allow_pickle=True)
            assert f"{name}.npy" in refusal(open_array, tmp_path / f"{name}.npy")
        np.savez(tmp_path / "a.npz", np.zeros(3))
        (tmp_path / "a.npz").rename(tmp_path / "b.npy")
        assert ".npz" in refusal(open_array, tmp_path / "b.npy")

    @pytest.mark.parametrize("name", ["a.nii", "a.nii.gz"])
    def test_nifti_that_is_cut_short(self, tmp_path, name):
        nibabel = pytest.importorskip("nibabel")
        voxels = RNG.integers(0, 1000, (20, 30, 40)).astype(np.int16)
        nibabel.save(nibabel.Nifti1Image(voxels, np.eye(4)), tmp_path / name)
        image = open_array(tmp_path / name)
        assert not isinstance(image.dataobj.get_unscaled(), np.memmap)
        stored = Source(image, "image")
        size = (tmp_path / name).stat().st_size
        np.testing.assert_array_equal(stored.read((slice(30, 40),)), voxels.T[30:])
        os.truncate(tmp_path / name, size // 2)
        assert "cut short" in refusal(stored.read, (slice(30, 40),))
