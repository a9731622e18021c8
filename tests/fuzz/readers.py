"""One target per reader: bytes in, an answer or a refusal out.

`run.py` damages the seeds of a target, which needs nothing but NumPy; `atheris_target.py` lets
coverage guide what becomes of them.
"""

import functools
import io
import json
import struct
import tempfile
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from safetensors.numpy import load, save

from crfield import DenseCRF, InputError, Pairwise, Potts, Spatial, datasets, graphs
from crfield._core import checkpoints
from crfield.app.limits import Limits
from crfield.app.opening import decode_image, decode_initial, decode_model, split_request
from crfield.app.settings import Settings
from crfield.io.images import (
    open_array,
    read_image,
    read_labels,
    read_probabilities,
    write_labels,
)
from crfield.io.models import _digest
from crfield.patterns import PatternCRF
from tests.fuzz.calls import Call, Wrong, check_marginals, has_form, require
from tests.fuzz.files import (
    MAX_PIXELS,
    content_of,
    learn_shapes,
    pattern_files,
    pattern_model,
    write_values,
)
from tests.fuzz.mutations import damaged
from tests.fuzz.values import Maker

# What a reader is allowed for one input; `run.py` and libFuzzer enforce both.
SECONDS, MEGABYTES = 10, 1024
# A graph that was read is inferred only up to this many states, so that no case takes long.
MOST_STATES = 200
RUN = {"data": 1}
GRID = (5, 6)


@dataclass(frozen=True)
class Target:
    """`seeds` are whole files; `read` gets any bytes and returns what was read, or refuses."""

    seeds: Callable[[], list[bytes]]
    read: Callable[[bytes], Any]


def try_input(target: Target, data: bytes) -> Any:
    """What the target reads; only a refusal in one sentence may come out as an InputError."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            return target.read(data)
        except InputError as error:
            if not has_form(str(error)):
                raise Wrong(f"a message without form: {error}") from error
            raise
        except MemoryError as error:
            raise Wrong("memory that was not checked") from error


def make_read(name: str) -> Callable[[Maker], Call]:
    """Calls of a target with a seed that is damaged in hostile cases."""

    def make(maker: Maker) -> Call:
        seeds = _seeds(name)
        data = damaged(maker, maker.pick(seeds), maker.pick(seeds))
        return Call(
            lambda: try_input(TARGETS[name], data), lambda found: None,
            {"target": name, "length": len(data), "bytes": data[:200]},
        )

    return make


@functools.cache
def _seeds(name: str) -> list[bytes]:
    return TARGETS[name].seeds()


@functools.cache
def _scratch(name: str) -> tempfile.TemporaryDirectory[str]:
    """A folder for as long as the process lives: one per case would take longer than its case."""
    return tempfile.TemporaryDirectory()


def file_of(data: bytes, suffix: str) -> Path:
    """A file with this content, until the next one of this suffix."""
    path = Path(_scratch("files").name) / f"file{suffix}"
    path.write_bytes(data)
    return path


def _in_file(suffix: str, *readers: Callable[[Path], Any]) -> Callable[[bytes], Any]:
    """A target's `read` that puts the bytes into a file and has every reader read it.

    Each may refuse what another takes; the last refusal comes out if all of them do.
    """

    def read(data: bytes) -> Any:
        found, refusal, path = [], None, file_of(data, suffix)
        for reader in readers:
            try:
                found.append(reader(path))
            except InputError as error:
                if not has_form(str(error)):
                    raise
                refusal = error
        if not found and refusal is not None:
            raise refusal
        return found

    return read


def _image(path: Path) -> Any:
    return _checked(read_image(path, MAX_PIXELS).array)


def _labels(path: Path) -> Any:
    return _checked(read_labels(path, MAX_PIXELS).array)


def _probabilities(path: Path) -> Any:
    return _checked(read_probabilities(path, MAX_PIXELS))


def _slices(path: Path) -> Any:
    """The first values of a file that is read in slices."""
    return np.array(open_array(path)[:2])


def _checked(array: Any) -> Any:
    require(array.dtype.kind in "uif", f"an array of {array.dtype}")
    require(array.size <= 600 * MAX_PIXELS, f"an array of shape {array.shape}")
    return array


def _pixels(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 5, shape).astype(np.uint8)


def _pictures() -> list[bytes]:
    """An image in every format that Pillow reads, gray, in color, with a palette and turned."""
    suffixes = (".png", ".jpg", ".bmp", ".gif", ".ppm", ".webp", ".jp2", ".tif")
    found = [
        content_of(suffix, lambda path, v=values: write_values(path, v))
        for suffix in suffixes for values in (40 * _pixels(*GRID), 40 * _pixels(*GRID, 3))
    ]
    return found + _palettes()


def _label_pictures() -> list[bytes]:
    """A label map in every format that keeps it."""
    plain = [_arrays(suffix, _pixels(*GRID))()[0] for suffix in (".png", ".bmp", ".gif", ".tif")]
    return plain + _palettes()


def _palettes() -> list[bytes]:
    """Pictures of palette indices, one of them turned."""
    picture, found = Image.fromarray(_pixels(*GRID)).convert("P"), []
    picture.putpalette(bytes(range(96)))
    exif = Image.Exif()
    exif[0x0112] = 6
    for options in ({"format": "PNG"}, {"format": "PNG", "exif": exif}, {"format": "GIF"}):
        stream = io.BytesIO()
        picture.save(stream, **options)
        found.append(stream.getvalue())
    return found


def _arrays(suffix: str, *arrays: Any) -> Callable[[], list[bytes]]:
    return lambda: [
        content_of(suffix, lambda path, v=values: write_values(path, v)) for values in arrays
    ]


def _tiffs() -> list[bytes]:
    volume, stream = _pixels(3, *GRID), io.BytesIO()
    pages = [Image.fromarray(page) for page in volume]
    pages[0].save(stream, "TIFF", save_all=True, append_images=pages[1:], compression="tiff_lzw")
    plain = _arrays(".tif", _pixels(*GRID), _pixels(*GRID, 3))()
    return [*plain, stream.getvalue(), content_of(".tif", lambda path: write_labels(path, volume))]


def _soft() -> Any:
    return np.random.default_rng(1).dirichlet(np.ones(3), GRID)


def _dense_model() -> DenseCRF:
    return DenseCRF(3, [Pairwise(Spatial(2.0), Potts(1.0), 0.5)])


def _use_model(model: DenseCRF) -> Any:
    """What a model that was taken infers on a small image; it may refuse that."""
    labels = min(model.n_labels, 50)
    unary = np.linspace(0, 1, GRID[0] * GRID[1] * labels).reshape(*GRID, labels)
    try:
        result = model.infer(_pixels(*GRID, 3), unary, max_iter=2, threads=1)
    except InputError:
        return None
    check_marginals(result, GRID, labels)
    return result.marginals


def _described_model(data: bytes) -> Any:
    """A model with this description, under a checksum that fits it."""
    return _use_model(DenseCRF.load(file_of(_with_checksum(data), ".safetensors")))


def _with_checksum(data: bytes) -> bytes:
    _, tensors = _parts()
    try:
        model = json.loads(data)
        document = {"model": model, "sha256": _digest(model, tensors)}
    except (ValueError, RecursionError, AttributeError, TypeError):
        document = {}
    return bytes(save(tensors, {"crfield": json.dumps(document)}))


@functools.cache
def _parts() -> tuple[dict[str, Any], dict[str, Any]]:
    """The description of a model and its tensors."""
    content = content_of("", _dense_model().save)
    length = int.from_bytes(content[:8], "little")
    document = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["crfield"])
    return document["model"], load(content)


def _points(path: Path) -> Any:
    checkpoint = checkpoints.Checkpoint(path, RUN, resume=True)
    for number in range(3):
        point = np.full(2, float(number))
        if checkpoint.recall(point) is None:
            checkpoint.append(point, number, np.eye(2))
    return [len(record) for record in checkpoint.records]


def _records(data: bytes) -> bytes:
    """A checkpoint of this run whose one record is the data, under a checksum that fits it."""
    header = checkpoints._header_of(RUN)
    return header + data + checkpoints._checksum(header, data)


def _checkpoint() -> list[bytes]:
    return [content_of("", lambda path: _points(path))]


def _uai_seeds() -> list[bytes]:
    graph = graphs.FactorGraph(
        [np.array([0.0, 1.0]), np.array([0.5, 0.0, 2.0]), np.zeros(2)],
        graphs.table_factors([([0, 1], np.ones((2, 3))), ([1, 2], np.eye(3, 2))]),
    )
    bayes = b"BAYES\n2\n2 2\n2\n1 0\n2 0 1\n\n2\n 0.4 0.6\n\n4\n 0.2 0.8\n 0.9 0.1\n"
    return [content_of(".uai", lambda path: graphs.write_uai(graph, path)), bayes]


def _uai(path: Path) -> Any:
    graph = graphs.read_uai(path)
    if len(graph.costs) > MOST_STATES:
        return graph.costs
    try:
        found = graphs.infer(graph, max_iter=3, threads=1)
    except InputError:
        return graph.costs
    require(all(np.isfinite(m).all() for m in found.marginals), "marginals that are no numbers")
    return graph.costs


def _folder(name: str) -> Callable[[bytes], Any]:
    """A data set in which the file of this name has other bytes."""

    def read(data: bytes) -> Any:
        root = Path(_scratch(name).name)
        if not (root / name).exists():
            for path, content in _folder_files().items():
                (root / path).parent.mkdir(exist_ok=True)
                (root / path).write_bytes(content)
        (root / name).write_bytes(data)
        dataset = datasets.FolderDataset(root, "train")
        example = dataset[0]
        finite = example.unary is None or np.isfinite(example.unary).all()
        require(finite, "unaries that are not finite")
        return [example.image, example.unary, example.truth, list(dataset.class_names)]

    return read


@functools.cache
def _folder_files() -> dict[str, bytes]:
    """A data set of two images."""
    described = {
        "n_labels": 3, "void": 255,
        "unaries": {"folder": "unaries", "kind": "probabilities", "scale": 1.0},
    }
    files = {
        "dataset.json": json.dumps(described).encode(), "train.txt": b"a\nb\n",
        "classes.txt": b"0 sky\n1 grass\n2 cow\n",
    }
    for name in "ab":
        files[f"images/{name}.png"] = _arrays(".png", 40 * _pixels(*GRID, 3))()[0]
        files[f"labels/{name}.png"] = _arrays(".png", _pixels(*GRID) % 3)()[0]
        files[f"unaries/{name}.npy"] = _arrays(".npy", _soft())()[0]
    return files


def _folder_target(name: str, *more: bytes) -> Target:
    return Target(lambda: [_folder_files()[name], *more], _folder(name))


def _request(data: bytes) -> Any:
    settings, scribbles = split_request(data, GRID, Limits())
    return [repr(settings), scribbles]


def _request_seeds() -> list[bytes]:
    bodies = [b"{}", json.dumps({
        "n_labels": 3, "spatial": 3.0, "bilateral": [50, 10], "max_iter": 5, "model": None,
        "algorithm": "cccp", "source": "initial",
    }).encode()]
    return [struct.pack("<I", len(body)) + body + bytes(GRID[0] * GRID[1]) for body in bodies]


def _upload(data: bytes) -> Any:
    """The same bytes as an image, labels, probabilities and a model of the playground."""
    limits, found = Limits(), []
    for decode in (
        lambda: decode_image(data, MAX_PIXELS),
        lambda: decode_initial(data, "labels", GRID, limits, "name").values,
        lambda: decode_initial(data, "probabilities", GRID, limits, "name").values,
        lambda: repr(decode_model(data)),
    ):
        try:
            found.append(decode())
        except InputError as error:
            require(has_form(str(error)), f"a message without form: {error}")
    if not found:
        raise InputError("expected an upload, got other bytes; send another.")
    return found


def _upload_seeds() -> list[bytes]:
    return [
        *_pictures()[::4], *_arrays(".npy", _pixels(*GRID), _soft())(),
        *_arrays(".npz", _soft())(), content_of("", _dense_model().save),
    ]


TARGETS: dict[str, Target] = {
    "picture": Target(_pictures, _in_file(".png", _image)),
    "label picture": Target(_label_pictures, _in_file(".png", _labels)),
    "tiff": Target(_tiffs, _in_file(".tif", _image, _labels)),
    "nifti": Target(
        _arrays(".nii", _pixels(2, *GRID), _pixels(2, *GRID) / 9.0),
        _in_file(".nii", _image, _labels, _probabilities),
    ),
    "nifti.gz": Target(
        _arrays(".nii.gz", _pixels(2, *GRID)), _in_file(".nii.gz", _image, _labels, _probabilities)
    ),
    "npy": Target(
        _arrays(".npy", _pixels(*GRID), _soft(), _soft().astype(">f4"), _pixels(2, *GRID)),
        _in_file(".npy", _labels, _probabilities, _slices),
    ),
    "npz": Target(
        _arrays(".npz", _soft(), _soft().astype("f4")), _in_file(".npz", _probabilities)
    ),
    "model": Target(
        lambda: [content_of("", _dense_model().save)],
        _in_file(".safetensors", lambda path: _use_model(DenseCRF.load(path))),
    ),
    "described model": Target(
        lambda: [json.dumps(_parts()[0]).encode()], _described_model
    ),
    "pattern model": Target(
        lambda: [content_of("", pattern_model().save)],
        _in_file(".safetensors", lambda path: repr(PatternCRF.load(path))),
    ),
    "checkpoint": Target(_checkpoint, _in_file("", _points)),
    "record": Target(
        lambda: [np.array([2, 1, 2], "<i8").tobytes() + bytes(24)],
        lambda data: _in_file("", _points)(_records(data)),
    ),
    "state": Target(
        lambda: [pattern_files()[1]], _in_file("", lambda path: learn_shapes(path, 2))
    ),
    "uai": Target(_uai_seeds, _in_file(".uai", _uai)),
    "evidence": Target(
        lambda: [b"2 0 1 3 0", b"1 2 0 1 3 0", b"0"],
        _in_file(".evid", lambda path: sorted(graphs.read_evidence(path).items())),
    ),
    "dataset.json": _folder_target("dataset.json", b'{"n_labels": 3, "void": null}'),
    "split": _folder_target("train.txt", b"\xef\xbb\xbfa\r\n\r\n b \r\n"),
    "classes": _folder_target("classes.txt", b"sky\ngrass\ncow\n"),
    "unaries": _folder_target("unaries/a.npy"),
    "true labels": _folder_target("labels/a.png"),
    "settings": Target(
        lambda: [seed[4 : -GRID[0] * GRID[1]] for seed in _request_seeds()],
        lambda data: repr(Settings.from_json(data, Limits())),
    ),
    "request": Target(_request_seeds, _request),
    "upload": Target(_upload_seeds, _upload),
}
