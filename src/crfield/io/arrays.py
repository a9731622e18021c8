"""Arrays in `.npy`, `.npz`, NIfTI and multi-page TIFF files, their size checked before decoding.

Volumes are `(Z, H, W[, C])`: NIfTI's `(X, Y, Z[, C])` is turned round on reading and on writing.
The packages for NIfTI and TIFF are optional and imported only when such a file turns up.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any, BinaryIO

import numpy as np
import numpy.typing as npt

from crfield._core.alignment import beside_scan
from crfield._core.atomic import atomic_path
from crfield._core.files import open_regular, size_of
from crfield._core.foreign import UnusableArray, turned_shape, turned_voxels
from crfield._core.optional import require
from crfield._core.validate import InputError, check_memory, shown, shown_names

Array = npt.NDArray[Any]
ShapeCheck = Callable[[tuple[int, ...]], None]
# Of a volume: refuses a grid, or a shape with the channels last.
VolumeCheck = Callable[[tuple[int, ...], tuple[int, ...]], None]

# Of a TIFF file, so that it takes a few seconds at most: pages, pages of different kinds, and
# channels per page in the sense of OME-XML.
_MAX_PAGES, _MAX_MIXED_PAGES, _MAX_PAGE_CHANNELS = 2**17, 2**10, 16
# Bytes of memory that the tags of a page may take while decoders read them, and what a value of
# each type takes: texts are copied a few times, of numbers objects are made. By the type's number:
# texts and bytes are 1, 2 and 7, and those without memory are none.
_MAX_TAG_MEMORY = 2**28
_TAG_MEMORY = np.array(
    [0, 5, 5, 40, 80, 160, 20, 5, 40, 80, 160, 80, 160, 80, 0, 0, 160, 160, 160, 0], float
)
_MAX_EXTENSIONS = 2**26  # bytes of a NIfTI file between its header and its voxels
_MAX_HEADER = 2**16  # bytes of the header of a .npy
# Bytes of the list of members of a .npz, some 500,000 of them, and how much memory each byte takes.
_MAX_LIST, _LIST_MEMORY = 2**25, 16


def check_size(path: Path, grid: Sequence[int], max_pixels: int) -> None:
    """Refuse a file whose header announces more than `max_pixels` pixels."""
    pixels = math.prod(grid)
    if pixels > max_pixels:
        size = " x ".join(str(extent) for extent in grid)
        raise InputError(
            f"expected at most {max_pixels:,} pixels, but {path} announces {pixels:,} ({size}); "
            "make it smaller, or raise max_pixels if you trust the file."
        )


def label_dtype(smallest: int, largest: int) -> np.dtype[Any]:
    """The smallest type of whole numbers that label files of all kinds can hold for this range."""
    kinds = (np.uint8, np.uint16, np.int16, np.int32, np.int64)
    return np.dtype(next(
        kind for kind in kinds
        if int(np.iinfo(kind).min) <= smallest and largest <= int(np.iinfo(kind).max)
    ))


def read_npy(path: Path, check_shape: ShapeCheck) -> Array:
    """Array of a `.npy`, once its shape has passed `check_shape`."""
    # Not mapped into memory: a file that others cut short meanwhile would end the program.
    with open_regular(path, "array") as stream:
        _refuse_npz(stream, path)
        _check_header(stream, path, size_of(stream), check_shape)
        stream.seek(0)
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


class StoredArray:
    """The array of a `.npy` file, of any shape, read part by part: cut it by slices of step 1.

    Nothing is mapped into memory: a file that is cut short meanwhile is refused.
    """

    def __init__(self, path: Path) -> None:
        with open_regular(path, "array") as stream:
            _refuse_npz(stream, path)
            self.shape, self._turned, self.dtype = _header(stream, size_of(stream))
            self._start = stream.tell()
        if self.dtype.kind not in "fiub":
            raise InputError(
                f"expected real numbers in {path}, but it holds {shown(self.dtype)}; convert them "
                "first."
            )
        self._path = path

    def __getitem__(self, part: Any) -> Array:
        given = part if isinstance(part, tuple) else (part,)
        slices = (*given, *[slice(None)] * (len(self.shape) - len(given)))
        bounds = [range(n)[each] for n, each in zip(self.shape, slices, strict=True)]
        # Fortran's order is that of C with the axes turned round.
        shape, bounds = (self.shape[::-1], bounds[::-1]) if self._turned else (self.shape, bounds)
        found = self._read(shape, bounds)
        return found.T if self._turned else found

    def _read(self, shape: tuple[int, ...], bounds: Sequence[range]) -> Array:
        """The part of an array in C order, run by run of what lies together in the file."""
        found = np.empty(tuple(map(len, bounds)), self.dtype)
        if found.size == 0:
            return found
        split = len(shape)  # all axes from here on are whole
        while split > 0 and len(bounds[split - 1]) == shape[split - 1]:
            split -= 1
        outer, run = max(0, split - 1), math.prod(found.shape[max(0, split - 1):])
        # Bytes from one index to the next along each axis.
        steps = [math.prod(shape[axis + 1:]) * self.dtype.itemsize for axis in range(len(shape))]
        first = self._start + sum(b.start * n for b, n in zip(bounds, steps, strict=True))
        rows = found.reshape(-1, run).view(np.uint8)
        with open_regular(self._path, "array") as stream:
            for row, index in zip(rows, np.ndindex(found.shape[:outer]), strict=True):
                stream.seek(first + sum(k * n for k, n in zip(index, steps, strict=False)))
                if stream.readinto(row.data) < row.size:  # type: ignore[attr-defined]
                    raise InputError(
                        f"cannot read {self._path}: it was cut short meanwhile; copy it again."
                    )
        return found


def read_npz(path: Path, names: Sequence[str], check_shape: ShapeCheck) -> Array:
    """The only array of a `.npz`, or the first of `names`, once its shape has passed."""
    with open_regular(path, "array") as stream, open_archive(stream, path) as archive:
        held = [member.removesuffix(".npy") for member in archive.namelist()]
        chosen = held if len(held) == 1 else [name for name in names if name in held]
        if not chosen:
            raise InputError(
                f"expected one array in {path}, or one named {' or '.join(names)}, but it holds "
                f"{shown_names(held) or 'none'}; save that array alone."
            )
        return read_member(archive, path, chosen[0], check_shape)


def open_archive(stream: BinaryIO, path: Path) -> zipfile.ZipFile:
    """The archive in an open `.npz`, once its list of members is not too long."""
    return zipfile.ZipFile(_InPieces(stream, path))


class _InPieces(io.BufferedIOBase):
    """A file of which nobody reads very much at once: `zipfile` asks for as long a list of members
    as the file announces.
    """

    def __init__(self, stream: BinaryIO, path: Path) -> None:
        self._stream, self._path = stream, path
        self.seek, self.tell = stream.seek, stream.tell  # type: ignore[method-assign]

    def seekable(self) -> bool:
        return True

    def read(self, size: int | None = -1, /) -> bytes:
        size = -1 if size is None else size
        if size > _MAX_LIST:
            raise InputError(
                f"expected a list of at most {_MAX_LIST >> 20} MiB of what is in {self._path}, but "
                f"it announces {size >> 20} MiB; split it."
            )
        if size > 2**20:  # what is in it is read in smaller pieces
            check_room(self._path, _LIST_MEMORY * size)
        return self._stream.read(size)


def read_member(archive: zipfile.ZipFile, path: Path, name: str, check_shape: ShapeCheck) -> Array:
    """One array of an open `.npz`, once its shape has passed `check_shape`."""
    member = f"{name}.npy"
    with archive.open(member) as stream:
        _check_header(stream, path, archive.getinfo(member).file_size, check_shape)
    with archive.open(member) as stream:
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def write_array(path: Path, array: Array) -> None:
    """Write an array as `.npy`."""
    with atomic_path(path) as temporary, temporary.open("wb") as stream:
        np.save(_Writer(stream), array, allow_pickle=False)


class _Writer:
    """A stream that NumPy cannot write to behind Python's back, where a full disk goes unnoticed
    if all but the last few bytes had room.
    """

    def __init__(self, stream: IO[bytes]) -> None:
        self.write = stream.write


def _refuse_npz(stream: IO[bytes], path: Path) -> None:
    if stream.read(4) == b"PK\3\4":
        raise InputError(f"expected one array in {path}, but it is a .npz; rename it to .npz.")
    stream.seek(0)


def _header(
    stream: IO[bytes], n_bytes: int, check_shape: ShapeCheck | None = None
) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, whether in Fortran's order, and type of a `.npy` of no more bytes than there are."""
    if np.lib.format.read_magic(stream) == (1, 0):
        shape, turned, dtype = np.lib.format.read_array_header_1_0(stream)
    else:
        # NumPy reads all that is announced, up to 4 GiB, before it looks at the length.
        length = int.from_bytes(stream.read(4), "little")
        if length > _MAX_HEADER:
            raise ValueError(f"a header of {length} bytes")
        stream.seek(np.lib.format.MAGIC_LEN)
        shape, turned, dtype = np.lib.format.read_array_header_2_0(stream)
    if dtype.hasobject:
        raise ValueError("Python objects, which are never unpickled")
    if check_shape is not None:
        check_shape(shape)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize > n_bytes:
        raise ValueError(f"an array of shape {shape} in {n_bytes} bytes")
    return shape, turned, dtype


def _check_header(stream: IO[bytes], path: Path, n_bytes: int, check_shape: ShapeCheck) -> None:
    """Refuse an array of the wrong shape, of more bytes than there are, or than memory holds."""
    shape, _, dtype = _header(stream, n_bytes, check_shape)
    check_room(path, math.prod(shape) * dtype.itemsize)


def check_room(path: Path, n_bytes: float) -> None:
    """Refuse a file that takes more memory to read than there is."""
    check_memory(n_bytes, f"reading {path}", "make it smaller")


def open_nifti(stream: BinaryIO, path: Path) -> Any:
    """The nibabel image in an open file, of which nothing but the header has been read."""
    nibabel = require("nibabel", "NIfTI files need")
    # Not by its name: nibabel would open it once more, as a pipe if it has become one.
    packed = path.name.lower().endswith(".gz")
    source: Any = gzip.GzipFile(fileobj=stream) if packed else stream
    begin = source.read(nibabel.Nifti2Header.sizeof_hdr)
    kinds = (nibabel.Nifti1Image, nibabel.Nifti2Image)
    kind = next((k for k in kinds if k.header_class.may_contain_header(begin)), None)
    if kind is None:
        raise ValueError("no NIfTI header")
    header = kind.header_class(begin[: kind.header_class.sizeof_hdr], check=False)
    # Extensions lie before the voxels and are read with the header, however long they are.
    offset = float(header["vox_offset"])
    if not 0 <= offset <= _MAX_EXTENSIONS:
        raise ValueError(f"voxels that begin at byte {offset:.0f}")
    source.seek(0)
    holder = nibabel.FileHolder(fileobj=source)
    return kind.from_file_map({"header": holder, "image": holder}, mmap=False)


def read_nifti(
    stream: BinaryIO, path: Path, check: VolumeCheck, scan: Any = None, scan_name: object = None
) -> tuple[Array, tuple[int, ...], Any]:
    """Voxels `(*grid[, C])`, their grid and the nibabel image that knows affine and header, once
    their shape has passed `check`; in the orientation of `scan`, another nibabel image, if any.
    """
    image = beside_scan(open_nifti(stream, path), scan, path, scan_name)
    shape = image.shape
    turned = turned_shape(shape)
    check(turned[:3], turned)
    check_room(path, math.prod(shape) * (8.0 + image.get_data_dtype().itemsize))
    try:
        voxels, grid_dim = turned_voxels(image.dataobj)
    except UnusableArray as error:
        raise InputError(f"expected one volume, but {path} is {error}.") from error
    return voxels, voxels.shape[:grid_dim], image


def write_nifti(path: Path, labels: Array, reference: Any) -> None:
    """Write labels `(Z, H, W)` with the affine and the units of `reference`, if there is one."""
    nibabel = require("nibabel", "NIfTI files need")
    if reference is None:
        # Without an affine, which would say that they lie where they do not.
        image = nibabel.Nifti1Image(labels.T, None, dtype=labels.dtype)
    else:
        header = reference.header.copy()
        header["cal_min"] = header["cal_max"] = 0  # the display window of the image, not of labels
        image = type(reference)(labels.T, reference.affine, header, dtype=labels.dtype)
    nibabel.save(image, path)


def read_tiff_volume(
    stream: BinaryIO, path: Path, check: VolumeCheck
) -> tuple[Array, tuple[int, ...]]:
    """Pixels `(*grid[, C])` of the first series of a TIFF file, and their grid, once their shape
    has passed `check`.
    """
    tifffile = require("tifffile", "multi-page TIFF files need")
    n_pages = count_pages(stream, path)
    # Series that name other files end with this one: what a file says must not open another.
    alone = {"_multifile": False, "is_mmstack": False, "is_ndtiff": False}
    stream.seek(0)
    with tifffile.TiffFile(stream, name=path.name, **alone) as tiff:
        if n_pages > _MAX_MIXED_PAGES:
            tiff._series_generic = lambda: _refuse_mixed(path)
        # Before the series is asked for: tifffile makes a list of all that are announced.
        if tiff.is_ome and _ome_pages(tiff.ome_metadata) > n_pages * _MAX_PAGE_CHANNELS:
            raise _incomplete(path)
        series = tiff.series[0]
        channel = next((axis for axis in "SC" if axis in series.axes), None)
        position = series.axes.index(channel) if channel is not None else None
        grid = tuple(n for axis, n in enumerate(series.shape) if axis != position)
        check(grid, grid if position is None else (*grid, series.shape[position]))
        if not 2 <= len(grid) <= 3:
            raise InputError(
                f"expected a TIFF with two or three axes and channels, but {path} has the axes "
                f"{shown(series.axes)} of shape {shown(series.shape)}; extract one volume from it."
            )
        if any(page is None for page in series):
            raise _incomplete(path)
        check_room(path, series.nbytes)
        pixels = series.asarray()
    return (pixels if position is None else np.moveaxis(pixels, position, -1)), grid


def _refuse_mixed(path: Path) -> None:
    """What tifffile is to do instead of sorting pages of many sizes, which takes a time that grows
    with the square of their number.
    """
    raise InputError(
        f"expected at most {_MAX_MIXED_PAGES:,} pages where they are of different kinds, but "
        f"{path} has more; export those of one kind."
    )


def _incomplete(path: Path) -> InputError:
    return InputError(
        f"expected all pages of a volume in one file, but {path} names some that are not in it; "
        "export it as one file."
    )


def _ome_pages(text: str) -> int:
    """The most pages of an image that the OME-XML in a TIFF file announces, each channel one."""
    from xml.etree import ElementTree

    found = [
        [int(element.attrib.get(name, 1)) for name in ("SizeZ", "SizeC", "SizeT")]
        for element in ElementTree.fromstring(text).iter()
        if element.tag.rpartition("}")[2] == "Pixels"
    ]
    return max(map(math.prod, found), default=0)


def count_pages(stream: BinaryIO, path: Path) -> int:
    """How many pages a TIFF file has; refused are too many, lists of pages that lie in each other
    or lead in a circle, from which decoders do not come back, and tags that announce more than
    there can be: decoders read them all, whatever is asked for.
    """
    stream.seek(0)
    order, version = stream.read(2), stream.read(2)
    sign, kind = {b"II": "<", b"MM": ">"}.get(order), version.strip(b"\0")
    if sign is None or kind not in (b"*", b"+"):
        raise ValueError("no TIFF header")
    big = kind == b"+"
    size = sign + ("u8" if big else "u4")
    tag = np.dtype([("code", sign + "u2"), ("type", sign + "u2"), ("count", size), ("at", size)])
    count, link = struct.Struct(sign + "HQ"[big]), struct.Struct(sign + "IQ"[big])
    left, n_pages, memory = stream.seek(0, io.SEEK_END), 0, 0.0
    stream.seek(8 if big else 4)
    while (position := link.unpack(stream.read(link.size))[0]) != 0:
        n_pages += 1
        if n_pages > _MAX_PAGES:
            raise InputError(
                f"expected at most {_MAX_PAGES:,} pages in a TIFF, but {path} has more; split it."
            )
        stream.seek(position)
        n_bytes = tag.itemsize * count.unpack(stream.read(count.size))[0]
        left -= count.size + n_bytes + link.size
        if left < 0:
            raise ValueError("pages that repeat or overlap")
        memory = max(memory, _tag_memory(stream, n_bytes, tag))
        if memory > _MAX_TAG_MEMORY:
            raise InputError(
                f"expected tags of a page that take at most {_MAX_TAG_MEMORY >> 20} MiB, but those "
                f"in {path} announce {memory / 2**20:.0f} MiB; export it without metadata and "
                "layers."
            )
    check_room(path, memory)
    return n_pages


def _tag_memory(stream: BinaryIO, n_bytes: int, tag: np.dtype[Any]) -> float:
    """About how much memory the tags take of whose list the next `n_bytes` are."""
    if n_bytes > 2**16 * tag.itemsize:
        raise ValueError(f"a page of {n_bytes // tag.itemsize} tags")
    tags = np.frombuffer(stream.read(n_bytes), tag)
    kinds = np.minimum(tags["type"], len(_TAG_MEMORY) - 1)
    return float((_TAG_MEMORY[kinds] * tags["count"]).sum())


def write_tiff_volume(path: Path, labels: Array) -> None:
    """Write labels `(Z, H, W)` as the pages of a TIFF file."""
    tifffile = require("tifffile", "TIFF volumes need")
    # Not into the file itself: a disk that fills up with the last few bytes would go unnoticed.
    content = io.BytesIO()
    tifffile.imwrite(content, labels, photometric="minisblack", metadata={"axes": "ZYX"})
    path.write_bytes(content.getbuffer())
