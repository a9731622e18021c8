"""Images, label maps and probabilities in files: read with limits, written whole or not at all.

Pillow reads pictures, `tifffile` multi-page TIFF volumes and `nibabel` NIfTI volumes; the last
two are optional and imported only when such a file turns up. Volumes are `(Z, H, W[, C])`.
"""

from __future__ import annotations

import errno
import io
import os
import threading
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from crfield._core.atomic import atomic_path
from crfield._core.foreign import picture_pixels, voxel_spacing
from crfield._core.validate import InputError
from crfield.io.arrays import (
    StoredArray,
    check_size,
    label_dtype,
    read_nifti,
    read_npy,
    read_npz,
    read_tiff_volume,
    require,
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
PROBABILITY_SUFFIXES = (".npy", ".npz", *NIFTI_SUFFIXES)
OUTPUT_SUFFIXES = (".png", *TIFF_SUFFIXES, *NIFTI_SUFFIXES, ".npy")

# Only formats that Pillow decodes itself: EPS, for one, would start Ghostscript.
_PILLOW_FORMATS = ("PNG", "JPEG", "TIFF", "BMP", "WEBP", "GIF", "PPM", "JPEG2000")
_LOSSY_FORMATS = ("JPEG", "MPO", "JPEG2000")
# What keeps a whole file from being read, and what to do about it.
_NOT_THE_FILES_FAULT = {
    errno.ENOENT: "check the name and its rights", errno.EACCES: "check the name and its rights",
    errno.EPERM: "check the name and its rights", errno.EIO: "check the disk",
    errno.EMFILE: "raise the limit with ulimit -n", errno.ENFILE: "close other programs",
}


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


def read_image(path: Path, max_pixels: int = DEFAULT_MAX_PIXELS) -> ImageFile:
    """Read a gray or color image or volume, upright and without transparency."""
    with decoding(path):
        if (volume := _read_volume(path, max_pixels)) is not None:
            return replace(volume, array=_real_pixels(path, volume.array))
        with _open_picture(path, max_pixels) as picture:
            turned = picture.getexif().get(0x0112, 1) != 1
            array = picture_pixels(picture)
    return ImageFile(path, array, array.shape[:2], turned=turned)


def read_labels(path: Path, max_pixels: int = DEFAULT_MAX_PIXELS) -> ImageFile:
    """Read an integer label map; a palette image gives its indices and keeps its palette."""
    with decoding(path):
        if _has_suffix(path, (".npy",)):
            array = read_npy(path, lambda shape: check_size(path, shape, max_pixels))
            return _as_label_map(ImageFile(path, array, array.shape))
        if (volume := _read_volume(path, max_pixels)) is not None:
            return _as_label_map(volume)
        with _open_picture(path, max_pixels) as picture:
            if picture.format in _LOSSY_FORMATS:
                raise InputError(
                    f"expected a label image in a lossless format, but {path} is a JPEG, which "
                    "changes label ids; save the labels as PNG."
                )
            if picture.mode not in ("1", "L", "P", "I", "F") and "I;16" not in picture.mode:
                raise InputError(
                    f"expected a single-channel or palette label image, but {path} is "
                    f"{picture.mode}; save the label ids, not their colors, as a grayscale or "
                    "palette PNG."
                )
            upright = ImageOps.exif_transpose(picture)
            palette = bytes(upright.getpalette("RGB") or ()) if upright.mode == "P" else None
            array = np.array(upright)
            mode = picture.mode
    return _as_label_map(ImageFile(path, array, array.shape, palette, mode))


def read_probabilities(
    path: Path, max_pixels: int = DEFAULT_MAX_PIXELS, layout: str = "channels_last",
    max_labels: int | None = None, may_be_foreground: bool = False,
) -> npt.NDArray[np.floating[Any]]:
    """Read floating-point label probabilities, `(*grid, L)` or, channels first, `(L, *grid)`.

    A `.npz` must hold one array, or one named `probabilities` or `probs`. The labels of a
    four-dimensional NIfTI lie along its last axis; they come back in the layout asked for. Files
    that announce more than `max_labels` are refused. With `may_be_foreground` an array (H, W) will
    do, the probability of the second of two labels.
    """
    channels_first = layout == "channels_first"

    def check_shape(shape: tuple[int, ...]) -> None:
        if may_be_foreground and len(shape) == 2:
            return check_size(path, shape, max_pixels)
        if len(shape) not in (3, 4):
            axes = "(L, H, W) or (L, Z, H, W)" if channels_first else "(H, W, L) or (Z, H, W, L)"
            raise InputError(
                f"expected probabilities of shape {axes} in {path}, but its array has shape "
                f"{shape}; add the missing axis, as np.stack([1 - p, p], -1) does for a "
                "foreground's probability p, or drop the others."
            )
        check_size(path, shape[1:] if channels_first else shape[:-1], max_pixels)
        n_labels = shape[0 if channels_first else -1]
        if max_labels is not None and n_labels > max_labels:
            raise InputError(
                f"expected at most {max_labels} labels in {path}, but it announces {n_labels}; "
                "leave some out."
            )

    with decoding(path):
        if _has_suffix(path, NIFTI_SUFFIXES):
            array = read_nifti(path, max_pixels)[0]
            array = np.moveaxis(array, -1, 0) if channels_first else array
            check_shape(array.shape)
        elif _has_suffix(path, (".npz",)):
            array = read_npz(path, ("probabilities", "probs"), check_shape)
        elif _has_suffix(path, (".npy",)):
            array = read_npy(path, check_shape)
        else:
            raise InputError(
                f"expected probabilities in a .npy, .npz or NIfTI file, but got {path}; save them "
                "with numpy.save, or read it as labels."
            )
    if not np.issubdtype(array.dtype, np.floating):
        raise InputError(
            f"expected floating-point probabilities in {path}, but its values are {array.dtype}; "
            "convert them to float32 between 0 and 1."
        )
    return array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32, copy=False)


def open_array(path: Path) -> Any:
    """A `.npy` file or a NIfTI image whose values are read when it is cut, without mapping it into
    memory; None for other files, which can only be read whole.
    """
    with decoding(path):
        if _has_suffix(path, (".npy",)):
            return StoredArray(path)
        if _has_suffix(path, NIFTI_SUFFIXES):
            return require("nibabel", "nifti", "NIfTI files").load(path, mmap=False)
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
        picture.save(content, Image.registered_extensions().get(temporary.suffix.lower()))
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
        require("nibabel", "nifti", "NIfTI files")
    elif suffix in TIFF_SUFFIXES and ndim == 3:
        require("tifffile", "tiff", "TIFF volumes")


def _has_suffix(path: Path, suffixes: Sequence[str]) -> bool:
    return file_suffix(path).lower() in suffixes


@contextmanager
def decoding(path: Path, name: object = None) -> Iterator[None]:
    """Turn whatever a decoder raises into one sentence that names the file, or what is in it."""
    name = path if name is None else name
    try:
        if path.is_dir():
            raise InputError(f"expected a file, but {path} is a folder; name a file inside it.")
        yield
    except InputError:
        raise
    except UnidentifiedImageError as error:
        known = ", ".join(_PILLOW_FORMATS)
        raise InputError(
            f"cannot read {path}: expected one of the formats {known}; it is something else or "
            "damaged, convert it to PNG."
        ) from error
    except MemoryError as error:
        raise InputError(f"not enough memory to read {name}; make it smaller.") from error
    except Exception as error:  # damaged bytes can make a decoder raise anything at all
        if isinstance(error, OSError) and error.errno in _NOT_THE_FILES_FAULT:
            reason = (error.strerror or "no access").lower()
            remedy = _NOT_THE_FILES_FAULT[error.errno]
            raise InputError(f"cannot read {name}: {reason}; {remedy}.") from error
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        raise InputError(
            f"cannot read {name}: it is damaged, cut short or not what its name says ({detail}); "
            "copy or export it again."
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
def _open_picture(path: Path, max_pixels: int) -> Iterator[Image.Image]:
    """Open a picture with the caller's limit in place of Pillow's own."""
    Image.init()
    formats = [name for name in _PILLOW_FORMATS if name in Image.OPEN]  # some are optional parts
    with pillow_unlimited(), Image.open(path, formats=formats) as picture:
        check_size(path, (picture.height, picture.width), max_pixels)
        yield picture


def _read_volume(path: Path, max_pixels: int) -> ImageFile | None:
    """Read what Pillow cannot: NIfTI, TIFF of several pages and TIFF of unusual pixels."""
    if _has_suffix(path, NIFTI_SUFFIXES):
        array, grid, nifti = read_nifti(path, max_pixels)
        return ImageFile(path, array, grid, nifti=nifti)
    if _has_suffix(path, TIFF_SUFFIXES):
        try:
            with _open_picture(path, max_pixels) as picture:
                several_pages = getattr(picture, "n_frames", 1) > 1
        except UnidentifiedImageError:
            several_pages = True
        if several_pages:
            return ImageFile(path, *read_tiff_volume(path, max_pixels))
    return None


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
