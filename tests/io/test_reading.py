"""Files that must not be read: pipes, devices, endless ones, and those that change meanwhile."""

from __future__ import annotations

import errno
import gzip
import json
import os
import signal
import struct
import sys
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from PIL import Image, ImageFile

from crfield import DenseCRF, Pairwise, Potts, Spatial
from crfield._core import files, validate
from crfield._core.checkpoints import Checkpoint, read_state, write_state
from crfield._core.validate import InputError, shown
from crfield.datasets import FolderDataset
from crfield.graphs import FactorGraph, read_evidence, read_uai, table_factors, write_uai
from crfield.io import arrays
from crfield.io.arrays import write_array
from crfield.io.images import (
    open_array,
    read_image,
    read_labels,
    read_probabilities,
    write_labels,
)
from crfield.learning.report import is_report
from crfield.show.page import BEGIN
from refusal import refusal

posix = pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """What waits for a pipe fails instead of waiting forever."""
    if not hasattr(signal, "SIGALRM"):
        yield
        return

    def fail(*_: Any) -> None:
        raise AssertionError("waits for what never comes")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def write_dataset(root: Path) -> None:
    for folder in ("images", "labels", "unaries"):
        (root / folder).mkdir(parents=True)
    Image.fromarray(np.zeros((4, 5, 3), np.uint8)).save(root / "images" / "a.png")
    Image.fromarray(np.eye(4, 5, dtype=np.uint8)).save(root / "labels" / "a.png")
    np.savez(root / "unaries" / "all.npz", a=np.full((4, 5, 2), 0.5))
    (root / "dataset.json").write_text('{"n_labels": 2}')
    (root / "classes.txt").write_text("sky\ngrass\n")
    (root / "train.txt").write_text("a\n")


def read_dataset(path: Path) -> Any:
    return FolderDataset(path if path.is_dir() else path.parent, "train")[0].image


def write_model(path: Path) -> None:
    DenseCRF(2, [Pairwise(Spatial(3), Potts(1))]).save(path)


def write_volume(path: Path) -> None:
    write_labels(path, np.ones((2, 3, 4), np.uint8))


def write_graph(path: Path) -> None:
    write_uai(FactorGraph([[0, 1], [1, 0]], table_factors([([0, 1], np.eye(2))])), path)


def write_pixels(path: Path) -> None:
    Image.fromarray(np.zeros((4, 5), np.uint8)).save(path)


def resume(path: Path) -> Any:
    return Checkpoint(path, {"data": 1}, resume=True)


# The name of a file, how it is written and read, and which of `MAX_BYTES` counts.
READERS: list[tuple[str, Callable[[Path], Any], Callable[[Path], Any], str]] = [
    ("image.png", write_pixels, read_image, "image"),
    ("image.tif", write_pixels, read_image, "image"),
    ("volume.tif", write_volume, read_image, "image"),
    ("volume.nii", write_volume, read_image, "image"),
    ("labels.png", write_pixels, read_labels, "label map"),
    ("volume.nii.gz", write_volume, read_labels, "label map"),
    ("labels.npy", lambda p: np.save(p, np.ones((2, 3), int)), read_labels, "array"),
    ("p.npy", lambda p: np.save(p, np.ones((2, 3, 1))), read_probabilities, "array"),
    ("p.npz", lambda p: np.savez(p, a=np.ones((2, 3, 1))), read_probabilities, "array"),
    ("p.npy", lambda p: np.save(p, np.ones((2, 3, 1))), open_array, "array"),
    ("p.nii.gz", write_volume, open_array, "array"),
    ("model", write_model, DenseCRF.load, "model"),
    ("graph.uai", write_graph, read_uai, "graph"),
    ("graph.evid", lambda p: p.write_text("1 0 1"), read_evidence, "graph"),
    ("checkpoint", lambda p: Checkpoint(p, {"data": 1}, resume=False), resume, "checkpoint"),
    ("state", lambda p: write_state(p, {"data": 1}, 1.0),
     lambda p: read_state(p, {"data": 1}, resume=True), "checkpoint"),
    ("report.html", lambda p: p.write_text(BEGIN), is_report, "report"),
    ("dataset.json", lambda p: write_dataset(p.parent), read_dataset, "description"),
    ("other.json", lambda p: (write_dataset(p.parent), p.write_text("{}")),
     lambda p: FolderDataset(p.parent, description=p), "description"),
    ("classes.txt", lambda p: write_dataset(p.parent), read_dataset, "list"),
    ("train.txt", lambda p: write_dataset(p.parent), read_dataset, "list"),
    ("unaries/all.npz", lambda p: write_dataset(p.parents[1]),
     lambda p: read_dataset(p.parents[1]), "array"),
]
IDS = [f"{name}-{getattr(read, '__name__', 'read')}" for name, _, read, _ in READERS]


@posix
@pytest.mark.parametrize(("name", "write", "read", "kind"), READERS, ids=IDS)
def test_pipes_and_devices_are_refused_at_once(name, write, read, kind, tmp_path):
    path = tmp_path / name
    write(path)
    read(path)
    path.unlink()
    os.mkfifo(path)
    in_folder = name.startswith("unaries")  # what is no file is not even looked for there
    expected = "there are none" if in_folder else f"{path}: it is a pipe, not a regular file"
    assert expected in refusal(read, path)
    for device in ("/dev/zero", "/dev/null", "/dev/tty"):
        path.unlink()
        path.symlink_to(device)
        message = refusal(read, path)
        assert "there are none" in message or "a device, not a" in message or (
            device == "/dev/tty" and "no such device" in message
        )


@pytest.mark.parametrize(("name", "write", "read", "kind"), READERS, ids=IDS)
def test_files_beyond_the_limit_of_their_kind_are_refused(
    name, write, read, kind, tmp_path, monkeypatch
):
    path = tmp_path / name
    write(path)
    monkeypatch.setitem(files.MAX_BYTES, kind, 1)
    assert f"expected at most 1 bytes in the {kind} " in refusal(read, path)


def test_limits_are_stated_before_anything_is_read(tmp_path, monkeypatch):
    write_dataset(tmp_path)
    os.truncate(tmp_path / "dataset.json", 3 * 2**30)  # without taking room on the disk

    def never(*_: Any) -> None:
        raise AssertionError("nothing may be read")

    monkeypatch.setattr(files, "read_whole", never)
    message = refusal(FolderDataset, tmp_path)
    assert "at most 1 MiB in the description" in message
    assert "but it has 3 GiB" in message


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_files_that_hide_their_size_are_refused(tmp_path):
    write_dataset(tmp_path)
    (tmp_path / "dataset.json").unlink()
    (tmp_path / "dataset.json").symlink_to("/proc/self/status")
    assert "more than the 0 bytes that it announces" in refusal(FolderDataset, tmp_path)


@posix
def test_a_description_that_is_no_file_is_not_left_out(tmp_path):
    write_dataset(tmp_path)
    (tmp_path / "dataset.json").unlink()
    (tmp_path / "dataset.json").symlink_to(tmp_path / "nothing")
    assert "no such file" in refusal(FolderDataset, tmp_path)


def test_models_are_not_mapped(tmp_path, monkeypatch):
    path = tmp_path / "model"
    write_model(path)

    def mapping(*_: Any, **__: Any) -> None:
        raise AssertionError("a file that is cut short while it is mapped ends the program")

    monkeypatch.setattr(safetensors, "safe_open", mapping)
    assert DenseCRF.load(path).n_labels == 2


@pytest.mark.parametrize("name", ["a.bmp", "a.ppm", "a.tif", "packed.tif", "a.png"])
@pytest.mark.parametrize("read", [read_image, read_labels])
def test_pictures_are_decoded_from_bytes(name, read, tmp_path, monkeypatch):
    path = tmp_path / name
    options = {"compression": "tiff_lzw"} if name == "packed.tif" else {}
    picture = Image.fromarray(np.arange(20, dtype=np.uint8).reshape(4, 5))
    picture.save(path, **options)
    decoded = []
    load = ImageFile.ImageFile.load

    def watched(self: Any, *arguments: Any) -> Any:
        if self.fp is not None:  # else it is done
            decoded.append(hasattr(self.fp, "getvalue") and not self.filename)
        return load(self, *arguments)

    monkeypatch.setattr(ImageFile.ImageFile, "load", watched)
    np.testing.assert_array_equal(read(path).array, np.array(picture))
    assert decoded
    assert all(decoded), "Pillow maps raw pixels of named files, libtiff those of descriptors"


def test_reading_leaves_no_file_open(tmp_path):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    before = len(os.listdir("/proc/self/fd"))
    for number, (name, write, read, _) in enumerate(READERS):
        path = tmp_path / str(number) / name
        path.parent.mkdir(parents=True, exist_ok=name.startswith("unaries"))
        if name.startswith("unaries"):
            path.parent.rmdir()
        write(path)
        read(path)
    assert len(os.listdir("/proc/self/fd")) == before


@posix
def test_what_is_refused_is_closed(tmp_path, monkeypatch):
    if not os.path.isdir("/proc/self/fd"):
        pytest.skip("needs /proc")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "large").write_bytes(bytes(9))
    monkeypatch.setitem(files.MAX_BYTES, "list", 8)
    before = len(os.listdir("/proc/self/fd"))
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "large"):
        refusal(files.open_regular, path, "list")
    assert len(os.listdir("/proc/self/fd")) == before


class TestPages:
    """TIFF files whose pages are many, repeat, or are not there."""

    TAGS = ((256, 4, 1), (257, 4, 1), (258, 3, 8), (259, 3, 1), (262, 3, 1), (273, 4, None),
            (277, 3, 1), (278, 4, 1), (279, 4, 1))
    SIZE = 2 + 12 * len(TAGS) + 4

    def tiff(self, n: int, width: Callable[[int], int] = lambda page: 1, last: int = 0) -> bytes:
        """Pages of one row; `last` is where the last of them leads to."""
        parts = [struct.pack("<2sHI", b"II", 42, 8)]
        for page in range(n):
            position = 8 + page * self.SIZE
            parts.append(struct.pack("<H", len(self.TAGS)))
            for tag, kind, value in self.TAGS:
                value = width(page) if tag == 256 else 8 if value is None else value
                parts.append(struct.pack("<HHII", tag, kind, 1, value))
            parts.append(struct.pack("<I", position + self.SIZE if page < n - 1 else last))
        return b"".join(parts)

    @pytest.fixture
    def path(self, tmp_path):
        pytest.importorskip("tifffile")
        return tmp_path / "pages.tif"

    def test_many_pages_take_time_in_proportion(self, path, monkeypatch):
        from PIL import TiffImagePlugin

        seeks = []
        seek = TiffImagePlugin.TiffImageFile._seek
        monkeypatch.setattr(
            TiffImagePlugin.TiffImageFile, "_seek",
            lambda self, frame: (seeks.append(frame), seek(self, frame))[1],
        )
        path.write_bytes(self.tiff(3000))
        assert read_image(path).array.shape == (3000, 1, 1)
        assert len(seeks) < 5, "Pillow's count of pages is quadratic"

    def test_too_many_pages_are_refused(self, path, monkeypatch):
        monkeypatch.setattr(arrays, "_MAX_PAGES", 100)
        path.write_bytes(self.tiff(101))
        assert "at most 100 pages" in refusal(read_image, path)

    def test_pages_of_many_kinds_are_refused(self, path):
        path.write_bytes(self.tiff(1025, lambda page: 1 + page % 2))
        assert "at most 1,024 pages where they are of different kinds" in refusal(read_image, path)

    @pytest.mark.parametrize("page", [0, 1, 150, 199])
    def test_pages_in_a_circle_are_refused(self, page, path):
        path.write_bytes(self.tiff(200, last=8 + page * self.SIZE))
        message = refusal(read_labels, path)
        assert "pages that repeat or overlap" in message

    def test_big_tiffs_of_both_byte_orders(self, path):
        import tifffile

        volume = np.arange(24, dtype=np.uint16).reshape(2, 3, 4)
        for options in ({"bigtiff": True}, {"byteorder": ">"}):
            tifffile.imwrite(path, volume, photometric="minisblack", **options)
            np.testing.assert_array_equal(read_image(path).array, volume)

    @pytest.mark.parametrize("read", [read_image, read_labels, read_probabilities])
    @pytest.mark.parametrize(
        ("kind", "count", "announced"), [(1, 2**30, "5120"), (3, 2**24, "640"), (7, 2**26, "320")]
    )
    @pytest.mark.parametrize("page", [0, 2])
    def test_tags_are_not_read_without_end(
        self, page, kind, count, announced, read, path, monkeypatch
    ):
        data = bytearray(self.tiff(3))
        last = 8 + page * self.SIZE + 2 + 12 * (len(self.TAGS) - 1)
        data[last : last + 12] = struct.pack("<HHII", 700, kind, count, len(data))
        path.write_bytes(data)
        os.truncate(path, len(data) + 2**30)  # without taking room on the disk

        def never(*_: Any, **__: Any) -> None:
            raise AssertionError("no decoder may see it")

        monkeypatch.setattr(Image, "open", never)
        message = refusal(read, path)
        assert "expected tags of a page that take at most 256 MiB" in message
        assert f"announce {announced} MiB" in message

    def test_tags_that_do_not_fit_into_memory(self, path, monkeypatch):
        monkeypatch.setattr(validate, "available_memory", lambda: 2.0**26)
        picture = Image.fromarray(np.zeros((4, 5), np.uint8))
        picture.save(path, tiffinfo={700: bytes(2**20)})
        assert read_image(path).array.shape == (4, 5)
        picture.save(path, tiffinfo={700: bytes(2**24)})
        assert "needs about 0.1 GiB" in refusal(read_image, path)

    def ome(self, path: Path, frames: int, inside: str) -> None:
        import tifffile

        text = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            '<OME xmlns="http://www.openmicroscopy.org/Schemas/OME/2016-06"><Image ID="Image:0">'
            '<Pixels ID="Pixels:0" DimensionOrder="XYZCT" Type="uint8" SizeX="4" SizeY="3" '
            f'SizeZ="2" SizeC="1" SizeT="{frames}"><Channel ID="c" SamplesPerPixel="1"/>{inside}'
            "</Pixels></Image></OME>"
        )
        tifffile.imwrite(
            path, np.ones((2, 3, 4), np.uint8), metadata=None, photometric="minisblack",
            description=text,
        )

    def test_pages_that_are_announced_are_not_listed_first(self, path, monkeypatch):
        import tifffile

        self.ome(path, 1, "<TiffData/>")
        assert read_image(path).array.shape == (2, 3, 4)
        self.ome(path, 10**9, "<TiffData/>")  # whose list would take 16 GB
        monkeypatch.setattr(tifffile.TiffFile, "series", None)
        assert "some that are not in it" in refusal(read_image, path)

    def test_no_file_makes_another_one_be_read(self, path, tmp_path):
        other = tmp_path / "other.tif"
        self.ome(other, 1, "<TiffData/>")
        parts = [
            f'<TiffData FirstZ="{z}" IFD="{z}" PlaneCount="1"><UUID FileName="{name}">'
            f"urn:uuid:{z}</UUID></TiffData>" for z, name in ((0, path.name), (1, other))
        ]
        self.ome(path, 1, "".join(parts))
        if hasattr(os, "mkfifo"):
            other.unlink()
            os.mkfifo(other)
        assert read_image(path).array.shape == (2, 3, 4)  # its own pages


def test_extensions_of_volumes_are_not_read_without_end(tmp_path):
    pytest.importorskip("nibabel")
    path = tmp_path / "volume.nii.gz"
    write_volume(path)
    header = bytearray(gzip.decompress(path.read_bytes()))
    header[108:112] = struct.pack("<f", 2.0**30)  # where the voxels begin
    header[348] = 1
    header[352:360] = struct.pack("<ii", 2**30 - 368, 6)
    path.write_bytes(gzip.compress(bytes(header)))
    for read in (read_labels, open_array):
        assert "voxels that begin at byte 1073741824" in refusal(read, path)


def test_headers_of_arrays_are_not_read_without_end(tmp_path, monkeypatch):
    header = b"\x93NUMPY\2\0" + struct.pack("<I", 2**30)
    plain, packed = tmp_path / "a.npy", tmp_path / "a.npz"
    plain.write_bytes(header)
    os.truncate(plain, 2**30 + len(header))  # without taking room on the disk
    with zipfile.ZipFile(packed, "w") as archive:
        archive.writestr("a.npy", header)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the header must not be read")

    monkeypatch.setattr(np.lib.format, "read_array_header_2_0", never)
    for read, path in (
        (read_labels, plain), (read_probabilities, plain), (open_array, plain),
        (read_probabilities, packed),
    ):
        assert "a header of 1073741824 bytes" in refusal(read, path)


def announce_members(path: Path, n_bytes: int) -> None:
    """An archive whose list of members has so many zeros, without taking room on the disk."""
    last = 0xFFFF, 0xFFFF, 0xFFFFFFFF, 0xFFFFFFFF
    with path.open("wb") as stream:
        stream.write(b"PK\3\4")
        stream.truncate(4 + n_bytes)
        end = stream.seek(4 + n_bytes)
        stream.write(struct.pack("<4sQ2H2L4Q", b"PK\6\6", 44, 45, 45, 0, 0, 1, 1, n_bytes, 4))
        stream.write(struct.pack("<4sLQL", b"PK\6\7", 0, end, 1))
        stream.write(struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, *last, 0))


def test_lists_of_what_is_in_an_archive_are_not_read_without_end(tmp_path, monkeypatch):
    write_dataset(tmp_path)
    path = tmp_path / "unaries" / "all.npz"
    announce_members(path, 2**30)
    tracemalloc.start()
    for read, named in ((read_probabilities, path), (FolderDataset, tmp_path)):
        message = refusal(read, named)
        assert "expected a list of at most 32 MiB" in message
        assert "announces 1024 MiB" in message
    assert tracemalloc.get_traced_memory()[1] < 2**24
    tracemalloc.stop()
    announce_members(path, 2**24)
    monkeypatch.setattr(validate, "available_memory", lambda: 2.0**20)
    assert "needs about 0.2 GiB" in refusal(read_probabilities, path)


class TestMemory:
    """What a file takes is asked for before it is read."""

    @pytest.fixture(autouse=True)
    def little(self, monkeypatch):
        monkeypatch.setattr(validate, "available_memory", lambda: 2.0**20)

    @pytest.fixture
    def never(self, monkeypatch) -> Callable[[Any, str], None]:
        def fail(*_: Any, **__: Any) -> None:
            raise AssertionError("nothing may be decoded")

        return lambda holder, name: monkeypatch.setattr(holder, name, fail)

    @pytest.mark.parametrize("read", [read_image, read_labels])
    @pytest.mark.parametrize("name", ["a.nii", "a.nii.gz", "a.tif"])
    def test_volumes(self, name, read, tmp_path, never):
        path = tmp_path / name
        if path.suffix == ".tif":
            never(pytest.importorskip("tifffile").TiffPageSeries, "asarray")
        else:
            pytest.importorskip("nibabel")
            never(arrays, "turned_voxels")
        write_labels(path, np.zeros((16, 512, 512), np.uint8))
        assert f"reading {path} needs about 0.0 GiB" in refusal(read, path)

    @pytest.mark.parametrize("name", ["a.npy", "a.npz"])
    def test_arrays(self, name, tmp_path, never):
        path, array = tmp_path / name, np.zeros((512, 512, 2))
        if name == "a.npy":
            np.save(path, array)
        else:
            np.savez_compressed(path, array)
        never(np.lib.format, "read_array")
        assert f"reading {path} needs about 0.0 GiB" in refusal(read_probabilities, path)

    @pytest.mark.parametrize(
        ("mode", "of_image", "of_labels"),
        [("1", 6, 6), ("L", 6, 6), ("P", 25, 6), ("I;16", 25, 25), ("RGB", 25, None),
         ("RGBA", 25, None)],
    )
    def test_pictures(self, mode, of_image, of_labels, tmp_path, never, monkeypatch):
        path = tmp_path / "a.png"
        Image.new(mode, (1000, 2000)).save(path)
        never(ImageFile.ImageFile, "load")
        for read, per_pixel in ((read_image, of_image), (read_labels, of_labels)):
            if per_pixel is not None:
                n_bytes = per_pixel * 2e6
                monkeypatch.setattr(validate, "available_memory", lambda n=n_bytes: n - 1)
                assert f"reading {path} needs about 0.0 GiB" in refusal(read, path)
                monkeypatch.setattr(validate, "available_memory", lambda n=n_bytes: n)
                assert "nothing may be decoded" in refusal(read, path)

    def test_files_that_are_read_whole(self, tmp_path):
        path = tmp_path / "model"
        write_model(path)
        os.truncate(path, 2**24)
        assert f"reading {path} needs about" in refusal(DenseCRF.load, path)


class TestMessages:
    """What files say about themselves, in messages."""

    HOSTILE = "\x1b]0;owned\x07\x1b[2J\u202e" + "x" * 10**6

    def check(self, message: str) -> None:
        assert message.isprintable()
        assert "xxxx" in message
        assert len(message) < 500

    def test_keys_of_archives(self, tmp_path):
        path = tmp_path / "a.npz"
        with zipfile.ZipFile(path, "w") as archive:
            for number in range(300):
                archive.writestr(f"{self.HOSTILE[:600 * (99 if number < 3 else 1)]}{number}", b"")
        message = refusal(read_probabilities, path)
        self.check(message)
        assert "and 295 others" in message

    def test_descriptions(self, tmp_path):
        write_dataset(tmp_path)
        for description in (
            {self.HOSTILE[:10**5]: 1}, {"images": [self.HOSTILE[:10**5]]},
            {"n_labels": "xxxx" * 999}, {"unaries": {"kind": self.HOSTILE[:10**5]}},
            {"images": self.HOSTILE[:100]},
        ):
            (tmp_path / "dataset.json").write_text(json.dumps(description))
            self.check(refusal(FolderDataset, tmp_path))

    def test_names_in_lists(self, tmp_path):
        write_dataset(tmp_path)
        for names in (f"a\n{self.HOSTILE}", f"{self.HOSTILE}\n{self.HOSTILE}"):
            (tmp_path / "train.txt").write_text(names, encoding="utf-8")
            self.check(refusal(FolderDataset, tmp_path, "train"))
        (tmp_path / "dataset.json").unlink()
        (tmp_path / "classes.txt").write_text(f"0 a\n2 {self.HOSTILE}", encoding="utf-8")
        self.check(refusal(FolderDataset, tmp_path))

    @pytest.mark.parametrize("place", ["format", "kind", "version", "algorithm", "field"])
    def test_models(self, place, tmp_path):
        from safetensors.numpy import save

        from crfield.io.models import _digest

        path = tmp_path / "model"
        model: dict[str, Any] = {"format": "crfield.DenseCRF", "version": 3, "n_labels": 2}
        term = {"kernel": {"kind": "spatial", "sigma": 3.0},
                "compatibility": {"kind": "potts", "weight": 1.0}, "weight": 1.0}
        if place == "format":
            model["format"] = self.HOSTILE
        elif place == "kind":
            term["kernel"] = {"kind": self.HOSTILE}
        elif place == "version":
            model["version"] = self.HOSTILE
        elif place == "algorithm":
            model["algorithm"] = self.HOSTILE
        else:
            term["kernel"] = {"kind": "spatial", self.HOSTILE: 3}
        model["terms"] = [term]
        document = {"model": model, "sha256": _digest(model, {})}
        path.write_bytes(save({}, {"crfield": json.dumps(document)}))
        message = refusal(DenseCRF.load, path)
        assert message.isprintable()

    def test_names_of_files(self, tmp_path):
        for name in ("\x1b[31mred\n.png", "\u202egnp.exe.png", "a\udcff.png", "x" * 200 + "\x07"):
            for read in (read_image, DenseCRF.load, read_uai):
                message = refusal(read, tmp_path / name)
                assert message.isprintable()
        message = refusal(read_image, Path("y" * 10**6))
        assert len(message) < 600
        assert message.endswith(".")

    def test_files_that_the_system_refuses(self, tmp_path, monkeypatch):
        def refuse(*_: Any) -> None:
            raise OSError(errno.EIO, "Input/output error")

        write_dataset(tmp_path)
        dataset = FolderDataset(tmp_path)
        monkeypatch.setattr(np.lib.format, "read_magic", refuse)
        archive, array = tmp_path / "unaries" / "all.npz", tmp_path / "a.npy"
        said = "input/output error; check the disk."
        assert refusal(lambda: dataset[0]) == f"cannot read 'a' in {archive}: {said}"
        assert refusal(read_probabilities, archive) == f"cannot read {archive}: {said}"
        np.save(archive.with_name("a.npy"), np.ones((4, 5, 2)))
        archive.unlink()
        message = refusal(lambda: FolderDataset(tmp_path)[0])
        assert message == f"cannot read {archive.with_name('a.npy')}: {said}"
        np.save(array, np.ones((2, 3)))
        assert refusal(open_array, array) == f"cannot read {array}: {said}"

    def test_whatever_a_message_quotes(self):
        message = str(InputError(f"{self.HOSTILE}, got \n\t{self.HOSTILE}; leave it."))
        assert message.isprintable()
        assert len(message) <= 1000
        assert message.endswith("; leave it.")
        assert str(InputError(message)) == message
        assert shown(Path("plain/name.png")) == "plain/name.png"
        assert shown(ValueError()) == "ValueError"
        assert shown("a'b") == '"a\'b"'


def test_a_file_that_is_cut_short_meanwhile_is_refused(tmp_path):
    path = tmp_path / "a.npy"
    write_array(path, np.zeros((100, 100)))
    stored = open_array(path)
    os.truncate(path, 1000)
    assert "cut short meanwhile" in refusal(lambda: stored[:])
