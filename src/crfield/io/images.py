"""Images, label maps and probabilities in files: read with limits, written whole or not at all.

Pillow reads pictures, `tifffile` multi-page TIFF volumes and `nibabel` NIfTI volumes; the last
two are optional and imported only when such a file turns up. Volumes are `(Z, H, W[, C])`.
"""

from __future__ import annotations

import io
import math
import os
import threading
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from crfield._core.atomic import atomic_path
from crfield._core.files import SYSTEM_FAULTS, cannot_read, open_regular, read_whole
from crfield._core.foreign import picture_pixels, voxel_spacing
from crfield._core.optional import require
from crfield._core.validate import InputError, shown
from crfield.io.arrays import (
    ShapeCheck,
    StoredArray,
    check_room,
    check_size,
    count_pages,
    label_dtype,
    open_nifti,
    read_nifti,
    read_npy,
    read_npz,
    read_tiff_volume,
    write_array,
    write_nifti,
    write_tiff_volume,
)

DEFAULT_MAX_PIXELS = 100_000_000
TIFF_SUFFIXES = (".tif", ".tiff")
NIFTI_SUFFIXES = (".nii", ".nii.gz")
PICTURE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".webp", ".gif", ".ppm", ".pgm", ".jp2")
IMAGE_SUFFIXES = (*PICTURE_SUFFIXES, *TIFF_SUFFIXES, *NIFTI_SUFFIXES)
LABEL_SUFFIXES = (".png", ".bmp", ".gif", ".pgm", *TIFF_SUFFIXES, *NIFTI_SUFFIXES, ".npy")
PROBABILITY_SUFFIXES = (".npy", ".npz", *NIFTI_SUFFIXES, *TIFF_SUFFIXES)
SOFT_MASK_SUFFIXES = (".png", ".pgm", ".bmp")  # gray pictures of a foreground's probability
OUTPUT_SUFFIXES = (".png", *TIFF_SUFFIXES, *NIFTI_SUFFIXES, ".npy")

# Only formats that Pillow decodes itself: EPS, for one, would start Ghostscript.
_PILLOW_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP", "GIF", "PPM", "JPEG2000")
_LOSSY_FORMATS = ("JPEG", "MPO", "JPEG2000")
# Bytes of memory per pixel, with the copies of Pillow and NumPy, of a byte that stays one and of
# everything else, colors and transparency above all.
_BYTE_ROOM, _ROOM = 6.0, 25.0


@dataclass(frozen=True)
class ImageFile:
    """The pixels of a file, with what has to survive until a result is written.

    `array` is `(*grid)` or `(*grid, C)`; `palette` holds the RGB bytes of a palette image, `mode`
    the Pillow mode of a label picture, `nifti` the nibabel image with its affine and header, and
    `turned` tells that an EXIF orientation was applied.
    """

    path: Path
    array: npt.NDArray[Any]
    grid: tuple[int, ...]
    palette: bytes | None = None
    mode: str | None = None
    nifti: Any = None
    turned: bool = False

    @property
    def spacing(self) -> tuple[float, ...] | None:
        """Size of a voxel along each axis of the grid, where the file tells it."""
        return None if self.nifti is None else voxel_spacing(self.nifti, len(self.grid))


def file_stem(path: Path) -> str:
    """Name without folder and suffix, where `.nii.gz` counts as one suffix."""
    return path.name.removesuffix(file_suffix(path)) or path.name


def file_suffix(path: Path) -> str:
    """Suffix as it is written in the name, where `.nii.gz` counts as one."""
    return path.name[-7:] if path.name.lower().endswith(".nii.gz") else path.suffix


def files_in(folder: Path, suffixes: Collection[str]) -> list[Path]:
    """Files of a folder that end in one of `suffixes`, sorted, without hidden ones."""
    with os.scandir(folder) as entries:
        paths = sorted(folder / entry.name for entry in entries if entry.is_file())
    return [
        path for path in paths
        if file_suffix(path).lower() in suffixes and not path.name.startswith(".")
    ]


def by_stem(files: Iterable[Path]) -> dict[str, list[Path]]:
    """Files by their stems, in the order in which they come."""
    found: dict[str, list[Path]] = {}
    for file in files:
        found.setdefault(file_stem(file), []).append(file)
    return found


def read_image(
    path: Path, max_pixels: int = DEFAULT_MAX_PIXELS, flat: bool = False
) -> ImageFile:
    """Read a gray or color image or volume, upright and without transparency; volumes of more than
    one slice are refused where it is to be `flat`.
    """
    with decoding(path), open_regular(path, "image") as stream:
        if (volume := _read_volume(stream, path, max_pixels, flat)) is not None:
            return replace(volume, array=_real_pixels(path, volume.array))
        with _open_picture(stream, path, max_pixels) as picture:
            _check_decoded(path, picture, ("1", "L"))
            turned = picture.getexif().get(0x0112, 1) != 1
            array = picture_pixels(picture)
    return ImageFile(path, array, array.shape[:2], turned=turned)


def read_labels(
    path: Path, max_pixels: int = DEFAULT_MAX_PIXELS, beside: ImageFile | None = None
) -> ImageFile:
    """Read an integer label map; a palette image gives its indices and keeps its palette. A NIfTI
    map comes in the orientation of the scan that it is read `beside`.
    """
    with decoding(path):
        if _has_suffix(path, (".npy",)):
            array = read_npy(path, lambda shape: check_size(path, shape, max_pixels))
            return _as_label_map(ImageFile(path, array, array.shape))
    with decoding(path), open_regular(path, "label map") as stream:
        if (volume := _read_volume(stream, path, max_pixels, beside=beside)) is not None:
            return _as_label_map(volume)
        with _open_picture(stream, path, max_pixels) as picture:
            if picture.format in _LOSSY_FORMATS:
                raise InputError(
                    f"expected a label image in a lossless format, but {path} is a JPEG, which "
                    "changes label ids for good; export or paint the labels again as PNG."
                )
            _check_decoded(path, picture, ("1", "L", "P"))
            upright = _single_channel(ImageOps.exif_transpose(picture), path)
            palette = bytes(upright.getpalette("RGB") or ()) if upright.mode == "P" else None
            array = np.array(upright)
            mode = upright.mode
    return _as_label_map(ImageFile(path, array, array.shape, palette, mode))


def read_probabilities(
    path: Path, max_pixels: int = DEFAULT_MAX_PIXELS, layout: str | None = None,
    max_labels: int | None = None, beside: ImageFile | None = None,
) -> npt.NDArray[np.floating[Any]]:
    """Read floating-point label probabilities or logits, `(*grid, L)` or `(L, *grid)`, or of a
    foreground `(*grid)`, as they are stored; `layout` says if the first of them are meant.

    The labels of a four-dimensional NIfTI file lie along its last axis; they come back in the
    `layout` that was asked for, and in the orientation of the scan that they are read `beside`. A
    `.npz` must hold one array, or one named `probabilities` or `probs`. Files that announce more
    than `max_labels` are refused. Of a gray picture, black is 0 and white 1.
    """

    def check_shape(shape: tuple[int, ...]) -> None:
        if len(shape) not in (2, 3, 4):
            raise InputError(
                f"expected probabilities of shape (H, W, L), (L, H, W) or, of a foreground, (H, W) "
                f"in {path}, but its array has shape {shape}; drop the axes that are not needed."
            )
        known = "channels_last" if is_nifti and len(shape) == 4 else layout
        grids = [shape] if len(shape) == 2 else [
            grid for grid, name in ((shape[1:], "channels_first"), (shape[:-1], "channels_last"))
            if known in (None, name)
        ]
        # Where the layout is not known yet, what fits in one of them may pass.
        check_size(path, min(grids, key=math.prod), max_pixels)
        n_labels = -(-math.prod(shape) // max(1, *map(math.prod, grids)))
        if max_labels is not None and n_labels > max_labels:
            raise InputError(
                f"expected at most {max_labels} labels in {path}, but it announces {n_labels}; "
                "leave some out."
            )

    if _has_suffix(path, SOFT_MASK_SUFFIXES):
        return _read_soft_mask(path, max_pixels)
    is_nifti = _has_suffix(path, NIFTI_SUFFIXES)
    array = read_array(path, ("probabilities", "probs"), check_shape, beside)
    if is_nifti and array.ndim == 4 and layout == "channels_first":
        array = np.moveaxis(array, -1, 0)
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(
            f"expected floating-point probabilities in {path}, but its values are {array.dtype}; "
            "convert them to float32 between 0 and 1, or read it as labels if they are label ids."
        )
    return array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32, copy=False)


def read_array(
    path: Path, names: Sequence[str], check_shape: ShapeCheck, beside: ImageFile | None = None
) -> npt.NDArray[Any]:
    """The numbers of a `.npy`, `.npz`, NIfTI or TIFF file once their shape has passed: NIfTI turned
    to `(Z, H, W[, L])`, pages of a TIFF first, or last where it calls them samples or channels.

    names : of the array in a `.npz` of several.
    beside : the scan to whose orientation NIfTI is brought.
    """
    with decoding(path):
        if _has_suffix(path, (".npz",)):
            return read_npz(path, names, check_shape)
        if _has_suffix(path, (".npy",)):
            return read_npy(path, check_shape)
        if _has_suffix(path, NIFTI_SUFFIXES):
            with open_regular(path, "array") as stream:
                return read_nifti(
                    stream, path, lambda _, shape: check_shape(shape), *_scan(beside)
                )[0]
        if _has_suffix(path, TIFF_SUFFIXES):
            with open_regular(path, "array") as stream:
                return read_tiff_volume(stream, path, lambda _, shape: check_shape(shape))[0]
    other = ", or read it as labels" if _has_suffix(path, LABEL_SUFFIXES) else ""
    raise InputError(
        f"expected an array in a .npy, .npz, NIfTI or TIFF file, but got {path}; save it with "
        f"numpy.save{other}."
    )


def open_array(path: Path) -> Any:
    """A `.npy` file or a NIfTI image whose values are read when it is cut, without mapping it into
    memory; None for other files, which can only be read whole.
    """
    with decoding(path):
        if _has_suffix(path, (".npy",)):
            return StoredArray(path)
        if _has_suffix(path, NIFTI_SUFFIXES):
            stream = open_regular(path, "array")
            try:
                image = open_nifti(stream, path)
            except BaseException:
                stream.close()
                raise
            weakref.finalize(image, stream.close)  # it is read as long as the image is there
            return image
    return None


def write_labels(path: Path, labels: npt.NDArray[Any], like: ImageFile | None = None) -> None:
    """Write a label map `(*grid)`, as the kind of file `like` was where the format allows."""
    check_output(path, labels.ndim)
    smallest, largest = int(labels.min(initial=0)), int(labels.max(initial=0))
    dtype = label_dtype(smallest, largest)
    labels = np.ascontiguousarray(labels, dtype=dtype)
    suffix = file_suffix(path).lower()
    if suffix == ".npy":
        write_array(path, labels)
    elif suffix in NIFTI_SUFFIXES:
        with atomic_path(path) as temporary:
            write_nifti(temporary, labels, like.nifti if like is not None else None)
    elif labels.ndim == 3:
        with atomic_path(path) as temporary:
            write_tiff_volume(temporary, labels)
    elif dtype.kind == "u":
        palette, mode = (like.palette, like.mode) if like is not None else (None, None)
        picture = Image.fromarray(labels)
        if dtype == np.uint8 and palette is not None:
            # Padded, since Pillow packs indices into as few bits as the palette's length needs.
            picture.putpalette(palette.ljust(768, b"\0"))
        elif mode == "1" and largest <= 1:
            picture = Image.fromarray(labels.astype(bool))
        write_picture(path, picture)
    else:
        raise InputError(
            f"expected labels between 0 and 65535 for {path}, but they run from {smallest} to "
            f"{largest}; write them to a .npy file."
        )


def write_picture(path: Path, picture: Image.Image) -> None:
    """Write a picture in the format of its suffix."""
    with atomic_path(path) as temporary:
        # Pillow takes it for done when a disk that fills up has kept only a part of it.
        content = io.BytesIO()
        # To press colors harder takes four times as long, and saves a seventh.
        level = 1 if picture.mode == "RGB" else 6
        kind = Image.registered_extensions().get(temporary.suffix.lower())
        picture.save(content, kind, compress_level=level)
        temporary.write_bytes(content.getbuffer())


def default_suffix(image: Path, grid_dim: int, nifti: Any) -> str:
    """Suffix for labels of an image whose name the user has not chosen."""
    if nifti is not None:
        return ".nii.gz"
    if grid_dim == 2:
        return ".png"
    return ".tif" if _has_suffix(image, TIFF_SUFFIXES) else ".npy"


def check_output(path: Path, ndim: int) -> None:
    """Refuse, before any work is done, a file name that cannot hold a label map of `ndim` axes."""
    suffix = file_suffix(path).lower()
    if suffix not in OUTPUT_SUFFIXES:
        raise InputError(
            f"expected an output file ending in {', '.join(OUTPUT_SUFFIXES)}, but got {path}; "
            "choose one of these lossless formats."
        )
    if ndim == 3 and suffix == ".png":
        raise InputError(
            f"expected a volume format for a three-dimensional result, but got {path}; write to "
            "a file ending in .nii.gz, .tif or .npy."
        )
    if not path.parent.is_dir():
        raise InputError(f"cannot write {path}: there is no folder {path.parent}; create it first.")
    if suffix in NIFTI_SUFFIXES:
        require("nibabel", "NIfTI files need")
    elif suffix in TIFF_SUFFIXES and ndim == 3:
        require("tifffile", "TIFF volumes need")


def _has_suffix(path: Path, suffixes: Sequence[str]) -> bool:
    return file_suffix(path).lower() in suffixes


@contextmanager
def decoding(path: Path, name: object = None) -> Iterator[None]:
    """Turn whatever a decoder raises into one sentence that names the file, or what is in it."""
    name = shown(path) if name is None else str(name)
    try:
        yield
    except InputError:
        raise
    except UnidentifiedImageError as error:
        known = ", ".join(_PILLOW_FORMATS)
        raise InputError(
            f"cannot read {name}: expected one of the formats {known}; it is something else or "
            "damaged, convert it to PNG."
        ) from error
    except MemoryError as error:
        raise InputError(f"not enough memory to read {name}; make it smaller.") from error
    except Exception as error:  # damaged bytes can make a decoder raise anything at all
        if isinstance(error, OSError) and error.errno in SYSTEM_FAULTS:
            raise cannot_read(name, error) from error
        raise InputError(
            f"cannot read {name}: it is damaged, cut short or not what its name says "
            f"({shown(error)}); copy or export it again."
        ) from error


class _Limit:
    """Pillow's own limit, which belongs to the whole process, while it is lifted."""

    lock = threading.Lock()
    users = 0
    kept: int | None = None


@contextmanager
def pillow_unlimited() -> Iterator[None]:
    """Lift Pillow's limit on pixels; the last of all threads that asked for it puts it back."""
    with _Limit.lock:
        if _Limit.users == 0:
            _Limit.kept, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
        _Limit.users += 1
    try:
        yield
    finally:
        with _Limit.lock:
            _Limit.users -= 1
            if _Limit.users == 0:
                Image.MAX_IMAGE_PIXELS = _Limit.kept


@contextmanager
def _open_picture(
    stream: BinaryIO, path: Path, max_pixels: int, *, decode: bool = True
) -> Iterator[Image.Image]:
    """Open a picture with the caller's limit in place of Pillow's own; without `decode` only what
    its header says can be asked for.
    """
    Image.init()
    formats = [name for name in _PILLOW_FORMATS if name in Image.OPEN]  # some are optional parts
    # From bytes, because Pillow and libtiff map what they know the name or the descriptor of.
    source = io.BytesIO(read_whole(stream, path)) if decode else stream
    source.seek(0)
    if source.read(2) in (b"II", b"MM"):
        count_pages(source, path)
    source.seek(0)
    with pillow_unlimited(), Image.open(source, formats=formats) as picture:
        check_size(path, (picture.height, picture.width), max_pixels)
        yield picture


def _single_channel(picture: Image.Image, path: Path) -> Image.Image:
    """A picture of one number per pixel; one whose colors are all gray and opaque is taken as gray,
    as painting programs save masks.
    """
    if picture.mode in ("1", "L", "P", "I", "F") or "I;16" in picture.mode:
        return picture
    if picture.mode in ("LA", "RGB", "RGBA"):
        first, *others = picture.split()
        alpha = others.pop() if picture.mode.endswith("A") else None
        if all(first.tobytes() == other.tobytes() for other in others):
            if alpha is None or alpha.getextrema() == (255, 255):
                return first
            raise InputError(
                f"expected one label id per pixel, but {path} has pixels that are transparent; "
                "save it without transparency, as a gray or palette PNG."
            )
    raise InputError(
        f"expected a single-channel or palette image, but {path} holds colors ({picture.mode}); "
        "save the label ids, not their colors, as a gray or palette PNG."
    )


def _read_soft_mask(path: Path, max_pixels: int) -> npt.NDArray[np.float32]:
    """The foreground's probability `(H, W)` in a gray picture, from black to white."""
    with (
        decoding(path), open_regular(path, "image") as stream,
        _open_picture(stream, path, max_pixels) as picture,
    ):
        if picture.format in _LOSSY_FORMATS:
            raise InputError(
                f"expected probabilities in a lossless format, but {path} is a JPEG; save them as "
                "PNG or with numpy.save."
            )
        _check_decoded(path, picture, ())
        gray = _single_channel(ImageOps.exif_transpose(picture), path)
        if gray.mode not in ("1", "L", "I") and "I;16" not in gray.mode:
            raise InputError(
                f"expected a gray picture of 8 or 16 bits, or an array in a .npy, .npz, NIfTI or "
                f"TIFF file, but the pixels of {path} are of the kind {gray.mode}; read it as "
                "labels."
            )
        white = {"1": 1, "L": 255}.get(gray.mode, 65535)
        values: npt.NDArray[np.float32] = np.asarray(gray, np.float32) / np.float32(white)
    return values


def _scan(beside: ImageFile | None) -> tuple[Any, object]:
    """The nibabel image that a segmentation lies beside, if there is one, and its name."""
    return (None, None) if beside is None else (beside.nifti, beside.path)


def _check_decoded(path: Path, picture: Image.Image, bytes_in: Collection[str]) -> None:
    """Refuse a picture that takes more memory than there is; those of the modes `bytes_in` give a
    byte per pixel.
    """
    per_pixel = _BYTE_ROOM if picture.mode in bytes_in else _ROOM
    check_room(path, per_pixel * picture.width * picture.height)


def _read_volume(
    stream: BinaryIO, path: Path, max_pixels: int, flat: bool = False,
    beside: ImageFile | None = None,
) -> ImageFile | None:
    """Read what Pillow cannot: NIfTI, TIFF of several pages and TIFF of unusual pixels."""
    def check(grid: tuple[int, ...], _: tuple[int, ...]) -> None:
        check_size(path, grid, max_pixels)
        if flat and len(grid) > 2 and grid[0] > 1:
            raise InputError(
                f"expected a flat image, but {path} is a volume of "
                f"{' x '.join(map(str, grid))}; refine volumes with crfield.refine or on the "
                "command line."
            )

    if _has_suffix(path, NIFTI_SUFFIXES):
        array, grid, nifti = read_nifti(stream, path, check, *_scan(beside))
        return ImageFile(path, array, grid, nifti=nifti)
    if _has_suffix(path, TIFF_SUFFIXES):
        try:
            with _open_picture(stream, path, max_pixels, decode=False) as picture:
                several_pages = _has_second_page(picture)
        except UnidentifiedImageError:
            several_pages = True
        if several_pages:
            return ImageFile(path, *read_tiff_volume(stream, path, check))
    return None


def _has_second_page(picture: Image.Image) -> bool:
    # Not n_frames: Pillow counts in a time that grows with the square of their number.
    try:
        picture.seek(1)
    except EOFError:
        return False
    return True


def _real_pixels(path: Path, pixels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Bytes and words as they are, every other real type as float32."""
    if pixels.dtype in (np.uint8, np.uint16):
        return pixels.astype(pixels.dtype.newbyteorder("="))
    if np.issubdtype(pixels.dtype, np.complexfloating):
        raise InputError(
            f"expected real intensities, but {path} holds complex numbers; save their magnitude."
        )
    return pixels.astype(np.float32)


def _as_label_map(file: ImageFile) -> ImageFile:
    """Check that a file holds one whole number per pixel, whatever type they are stored in."""
    array, path = file.array, file.path
    if array.shape != file.grid or array.ndim not in (2, 3):
        raise InputError(
            f"expected one label per pixel, (H, W) or (Z, H, W), but {path} has shape "
            f"{array.shape}; save the label ids, not colors or probabilities."
        )
    if array.dtype == np.bool_:
        array = array.astype(np.uint8)
    elif np.issubdtype(array.dtype, np.floating):
        whole = array.astype(np.int64)
        if not np.array_equal(whole, array):
            raise InputError(
                f"expected whole numbers as labels, but {path} holds fractions; "
                "read it as probabilities."
            )
        array = whole
    elif not np.issubdtype(array.dtype, np.integer):
        raise InputError(f"expected whole numbers as labels, but {path} holds {array.dtype}.")
    return replace(file, array=array.astype(array.dtype.newbyteorder("=")))
