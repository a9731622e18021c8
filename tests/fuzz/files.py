"""Every kind of file that crfield reads: whole, damaged, and written by someone who means harm."""

import functools
import hashlib
import io
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load, save

from crfield import DenseCRF, datasets
from crfield._core import checkpoints
from crfield.graphs import FactorGraph, read_evidence, read_uai, table_factors, write_uai
from crfield.io.images import read_image, read_labels, read_probabilities, write_labels
from crfield.io.models import _digest
from crfield.patterns import PatternCRF, PatternInputs, Patterns, learn_patterns
from tests.fuzz.calls import Call, require
from tests.fuzz.mutations import damaged, falsified_text, falsify
from tests.fuzz.values import Maker

MAX_PIXELS = 10_000
PICTURES = (".png", ".tif", ".jpg", ".bmp", ".gif", ".ppm", ".webp", ".nii", ".nii.gz", ".jp2")
Reader = Callable[[Path], Any]


def content_of(suffix: str, write: Callable[[Path], Any]) -> bytes:
    """What `write` puts into a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{suffix}"
        write(path)
        return path.read_bytes()


def read_call(
    content: bytes, suffix: str, read: Reader, check: Callable[[Any], None], kind: str,
    instead: int | None = None,
) -> Call:
    """A call that reads a file with this content, or `no_file` of the seed `instead`."""

    def run() -> Any:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"file{suffix}"
            path.write_bytes(content)
            if instead is not None:
                no_file(Maker([instead]), path)
            return read(path)

    digest = hashlib.sha256(content).hexdigest()
    return Call(run, check, {"kind": kind, "bytes": digest, "length": len(content)})


def no_file(maker: Maker, path: Path) -> None:
    """Put a pipe, a device, a folder, or a file without end in the place of a file."""
    path.unlink()
    kind = maker.pick(["pipe", "device", "folder", "hole"])
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to(maker.pick(["/dev/zero", "/dev/null", "/proc/self/status"]))
    elif kind == "folder":
        path.mkdir()
    else:
        path.touch()
        os.truncate(path, maker.pick([2**29, 2**33, 2**41]))


def make_load(maker: Maker) -> Call:
    gentle = Maker([int(maker.rng.integers(2**31))], hostile=False)
    n_labels = gentle.count(1, 5)
    terms = [gentle.term(n_labels, 2, 3, {"f": 2}) for _ in range(gentle.count(0, 2))]
    dense = content_of("", DenseCRF(n_labels, terms).save)
    kind: Any = maker.pick([DenseCRF, DenseCRF, PatternCRF])
    content = dense if kind is DenseCRF else pattern_files()[0]
    other = pattern_files()[0] if kind is DenseCRF else dense
    if maker.hostile and maker.chance(0.4):
        content = falsified(maker, content)
    else:
        content = damaged(maker, content, other)
    return read_call(
        content, ".safetensors", kind.load,
        lambda model: require(isinstance(model, kind), "no model"), kind.__name__,
    )


def falsified(maker: Maker, content: bytes) -> bytes:
    """Something wrong in the description or the tensors, under a checksum that fits it."""
    tensors = load(content)
    length = int.from_bytes(content[:8], "little")
    document = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["crfield"])
    model = document["model"]
    falsify(maker, model)
    if tensors and maker.chance(0.4):
        name = maker.pick(sorted(tensors))
        tensors[name] = maker.pick([
            np.full_like(tensors[name], np.nan) if tensors[name].dtype.kind == "f" else
            np.zeros((3, 1, 2), np.int64), tensors[name].astype(np.float16), np.zeros(0),
            np.full(tensors[name].shape, -1.0), np.zeros((2, 3, 4)), np.full(3, 1e300),
        ])
    document = {"model": model, "sha256": _digest(model, tensors)}
    return bytes(save(tensors, {"crfield": json.dumps(document)}))


def falsified_state(maker: Maker, content: bytes) -> bytes:
    """Wrong numbers in the checkpoint of learning patterns, under a checksum that fits them."""
    header = content[: content.index(b"\n") + 1]
    decoded = checkpoints._decode(header, content, len(header))
    assert decoded is not None
    arrays = list(decoded[0])
    number = int(maker.rng.integers(len(arrays)))
    shape = arrays[number].shape
    arrays[number] = maker.pick([
        np.zeros(0), np.full(3, 1e300),
        *(np.full(shape, value) for value in (np.nan, np.inf, -1.0, 0.5, 1e300)),
    ])
    return header + checkpoints._encode(header, tuple(arrays))


@functools.cache
def pattern_files() -> tuple[bytes, bytes, bytes]:
    """A pattern model, and the checkpoint of learning it after one epoch and after two."""
    return content_of("", pattern_model().save), *(
        content_of("", lambda path, n=n: learn_shapes(path, n)) for n in (1, 2)
    )


def pattern_model() -> PatternCRF:
    weights = np.linspace(-1, 1, 12).reshape(6, 2)
    return PatternCRF(Patterns(weights, np.zeros(2)), grid=(2, 3))


def learn_shapes(checkpoint: Path, n_epochs: int) -> Any:
    """Learn it for a while, or go on."""
    masks = np.array([[[0, 1, 1], [0, 0, 1]], [[1, 1, 0], [1, 0, 0]]], np.uint8)
    inputs = PatternInputs(np.stack([masks, 1 - masks], -1).astype(np.float64))
    result = learn_patterns(
        pattern_model(), inputs, masks, n_epochs=n_epochs, batch_size=1, seed=1,
        checkpoint=checkpoint, threads=1,
    )
    return result.losses


def make_checkpoint(maker: Maker) -> Call:
    """The checkpoint of learning patterns, and that of learning."""
    if maker.chance(0.5):
        content = pattern_files()[1]
        if maker.hostile and maker.chance(0.5):
            content = falsified_state(maker, content)
        else:
            content = damaged(maker, content, pattern_files()[2])
        return read_call(
            content, "", lambda path: learn_shapes(path, 2),
            lambda losses: require(np.isfinite(losses).all(), "losses that are no numbers"),
            "checkpoint",
        )

    def points(path: Path, resume: bool = True) -> Any:
        checkpoint = checkpoints.Checkpoint(path, {"data": 1}, resume=resume)
        found = []
        for number in range(3):
            point = np.full(2, float(number))
            known = checkpoint.recall(point)
            if known is None:
                checkpoint.append(point, number, np.eye(2))
            found.append(float(number) if known is None else float(known[0][0]))
        return found

    content = damaged(maker, content_of("", lambda path: points(path, False)), b"{}\n" * 40)
    return read_call(
        content, "", points, lambda found: require(found == [0.0, 1.0, 2.0], f"{found}"),
        "checkpoint",
    )


def make_image(maker: Maker) -> Call:
    """read_image, read_labels and read_probabilities of every format."""
    rng = maker.rng
    reader: Any = maker.pick([read_image, read_image, read_labels, read_probabilities])
    if reader is read_probabilities:
        suffix = maker.pick([".npy", ".npz", ".nii", ".nii.gz"])
        values: Any = rng.dirichlet(np.ones(3), (2, 4, 5)).astype(maker.pick(["f4", "f8", ">f4"]))
        values = values if suffix.startswith(".nii") else values[0]
    elif reader is read_labels:
        suffix = maker.pick([".png", ".tif", ".bmp", ".gif", ".npy", ".nii", ".nii.gz"])
        deep = suffix in (".nii", ".nii.gz") or (suffix == ".tif" and maker.chance(0.5))
        values = rng.integers(0, 5, (2, 5, 6) if deep else (5, 6)).astype(np.uint8)
    else:
        suffix = maker.pick(PICTURES)
        values = rng.integers(0, 256, maker.pick([(5, 6), (5, 6, 3)])).astype(np.uint8)
    contents = [content_of(suffix, lambda path: write_values(path, values)) for _ in range(2)]
    content = damaged(maker, *contents)

    def read(path: Path) -> Any:
        found = reader(path, MAX_PIXELS)
        return found if isinstance(found, np.ndarray) else found.array

    def check(array: Any) -> None:
        require(array.dtype.kind in "uif", f"an array of {array.dtype}")
        require(array.size <= 600 * MAX_PIXELS, f"an array of shape {array.shape}")

    instead = maker.count(0, 2**31) if maker.hostile and maker.chance(0.05) else None
    return read_call(content, suffix, read, check, f"{reader.__name__} {suffix}", instead)


def write_values(path: Path, values: Any) -> None:
    """Write an array in the format of the name."""
    suffix = "".join(path.suffixes)
    if suffix == ".npy":
        np.save(path, values)
    elif suffix == ".npz":
        np.savez_compressed(path, probabilities=values)
    elif suffix.startswith(".nii"):
        import nibabel

        nibabel.save(nibabel.Nifti1Image(values.T, np.eye(4), dtype=values.dtype), path)
    elif values.ndim == 3 and suffix == ".tif" and values.shape[-1] != 3:
        write_labels(path, values)
    else:
        stream = io.BytesIO()
        formats = {".jpg": "JPEG", ".tif": "TIFF", ".ppm": "PPM", ".jp2": "JPEG2000"}
        Image.fromarray(values).save(stream, formats.get(suffix, suffix[1:].upper()))
        path.write_bytes(stream.getvalue())


def make_uai(maker: Maker) -> Call:
    rng = maker.rng
    if maker.chance(0.4):
        words = [str(n) for n in maker.pick([[2, 0, 1, 3, 0], [1, 2, 0, 1, 3, 0], [0]])]
        content = damaged(maker, " ".join(words).encode(), b"1 2 3 4 5")
        return read_call(
            content, ".evid", lambda path: sorted(read_evidence(path).items()),
            lambda found: require(isinstance(found, list), "no evidence"), "evidence",
        )
    sizes = [maker.count(1, 3) for _ in range(maker.count(1, 4))]
    tables = [
        ([v, v + 1], rng.uniform(0, 3, (sizes[v], sizes[v + 1]))) for v in range(len(sizes) - 1)
    ]
    graph = FactorGraph([rng.uniform(0, 2, n) for n in sizes], table_factors(tables))
    contents = [content_of(".uai", lambda path: write_uai(graph, path)) for _ in range(2)]
    content = damaged(maker, *contents)

    def read(path: Path) -> Any:
        return read_uai(path).costs

    return read_call(
        content, ".uai", read,
        lambda costs: require(not np.isnan(costs).any(), "costs that are no numbers"), "uai",
    )


def make_folder(maker: Maker) -> Call:
    """FolderDataset with damaged descriptions, lists, images or unaries."""
    scene = datasets.synthetic_scenes(1, size=(8, 9), n_labels=3, seed=maker.count(0, 99))[0]
    description = {"n_labels": 3, "void": 255,
                   "unaries": {"folder": "unaries", "kind": "probabilities", "scale": 1.0}}
    hit = maker.pick(["dataset.json", "dataset.json", "train.txt", "classes.txt", "unaries/a.npy",
                      "labels/a.png", "images/a.png"])
    seed = maker.count(0, 2**31)

    def run() -> Any:
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            for folder in ("images", "labels", "unaries"):
                (root / folder).mkdir()
            Image.fromarray(scene.image).save(root / "images/a.png")
            Image.fromarray(scene.mask).save(root / "labels/a.png")
            np.save(root / "unaries/a.npy", scene.probabilities)
            (root / "train.txt").write_text("a\n")
            (root / "classes.txt").write_text("sky\ngrass\ncow\n")
            (root / "dataset.json").write_text(json.dumps(description))
            if maker.hostile:
                own = Maker([seed], hostile=True)  # the same damage every time
                if own.chance(0.1):
                    no_file(own, root / hit)
                elif hit == "dataset.json" and own.chance(0.7):
                    (root / hit).write_text(falsified_text(own, (root / hit).read_text()))
                else:
                    (root / hit).write_bytes(damaged(own, (root / hit).read_bytes(), b"\0" * 99))
            example = datasets.FolderDataset(root, "train")[0]
            return [example.image, example.unary, example.truth]

    def check(found: Any) -> None:
        require(found[1] is None or np.isfinite(found[1]).all(), "unaries that are not finite")

    return Call(run, check, {"hit": hit, "seed": seed})
