"""Checks on what users pass in: every failure is one sentence with expected, received, remedy."""

from __future__ import annotations

import dataclasses
import math
import operator
import os
from collections.abc import Iterable, Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core import _native
from crfield._core.foreign import (
    UnusableArray,
    is_from,
    is_spatial_image,
    picture_pixels,
    plain_array,
    voxel_spacing,
)

FloatArray = NDArray[np.floating[Any]]


# Beyond this (1e30 as float32 rounds it) a cost drowns everything else, and two of them overflow.
LARGEST_COST = float(np.float32(1e30))
# Times the largest row sum of a kernel this still leaves room for other costs in float32.
LARGEST_COMPATIBILITY = 1e20

# The compiled core counts labels in 32 bits.
MAX_LABELS = 2**31 - 1

# Every machine has this much; asking how much is left takes longer than using it.
_SMALL_MEMORY = 2**20

_LIMIT_FILES = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


_LONGEST, _LONGEST_NAME, _LONGEST_VALUE = 1000, 400, 60  # characters in messages
_FEW_NUMBERS = 4  # that are shown one by one
_FEW = 5  # names in messages

# What NumPy converts without help.
_PLAIN = (np.ndarray, float, int, list, tuple)


class InputError(ValueError):
    """A wrong input; the message says what was expected, what came and what to do.

    Whatever it quotes, it is one line of printable characters that is not endless: names of files
    and what is in them may hold control codes of terminals, and megabytes.
    """

    # Not in __init__, which the compiler of PyTorch could not follow.
    def __str__(self) -> str:
        message = _without_middle(super().__str__(), _LONGEST)
        return _without_middle(printable(message), _LONGEST)


def first_index(bad: NDArray[np.bool_]) -> tuple[int, ...]:
    """Index of the first true entry of `bad`."""
    return tuple(int(i) for i in np.unravel_index(int(np.argmax(bad)), bad.shape))


def refuse_where(
    bad: NDArray[np.bool_], values: NDArray[Any], requirement: str, remedy: str
) -> None:
    """Refuse values that are bad somewhere, quoting the first of them: what they must be, what came
    and what to do.
    """
    if bad.any():
        index = first_index(bad)
        value = f"{values[index]:g}" if values.dtype.kind == "f" else str(values[index])
        where = f" at index {index}" if values.ndim else ""
        raise InputError(f"{requirement}, got {value}{where}; {remedy}.")


def as_array(values: Any, name: str) -> NDArray[Any]:
    """An array of real numbers, not copied where it is in memory already.

    NumPy, Pillow, torch (of any device), xarray, zarr, dask and h5py arrays, lists and memory maps;
    nibabel images are turned to (Z, H, W[, C]), and palette pictures give their indices.
    """
    if isinstance(values, str) and name != "image" and not _may_be_file(values):
        raise InputError(
            f"{name} must hold real numbers, got the text {shown(values)}; pass numbers without "
            "quotes."
        )
    if isinstance(values, str | PurePath):
        is_scan = str(values).lower().endswith((".nii", ".nii.gz"))
        opener = "nibabel.load" if is_scan else "PIL.Image.open"
        raise InputError(
            f"{name} must hold real numbers, got the name of a file, {shown(str(values))}; "
            f"open it first, for example with {opener}."
        )
    try:
        plain = values if type(values) in _PLAIN else plain_array(values)
        if not isinstance(plain, np.ndarray):
            _check_stored(plain, name)
        array = np.asarray(plain)
    except InputError:
        raise
    except UnusableArray as error:
        raise InputError(f"{name} must be an array of numbers, got {error}.") from None
    except (ValueError, TypeError, RuntimeError) as error:
        raise InputError(
            f"{name} must be an array of numbers, got a {type(values).__name__} that does not form "
            f"one; {_remedy(values, error)}."
        ) from None
    if array.dtype.kind not in "fiub":
        raise InputError(
            f"{name} must hold real numbers, got dtype {array.dtype}; convert it to numbers first."
        )
    if not array.flags.c_contiguous:
        # A broadcast view can be far larger than what it looks at.
        _check_copy(array, name, array.dtype)
    return array


def as_image(image: Any) -> NDArray[Any]:
    """An image (*grid[, C]) as an array of real numbers, from whatever `as_array` takes; Pillow
    pictures upright, in colors and without transparency.
    """
    if type(image) is not np.ndarray and is_from(image, "PIL"):
        return picture_pixels(image)
    return as_array(image, "image")


def image_spacing(image: Any, grid_dim: int) -> tuple[float, ...] | None:
    """The size of a voxel that an image brings along: a nibabel image's, (d,); None otherwise."""
    known = not isinstance(image, np.ndarray | None) and is_spatial_image(image)
    return voxel_spacing(image, grid_dim) if known else None


def image_size(grid: Sequence[int], spacing: Iterable[float] | None = None) -> float:
    """The longest side of a grid (d,), in pixels or in the units of its `spacing`, but of a strip
    or a panorama only twice the next: nothing in it is larger than it is high.
    """
    # Without NumPy, so that the compiler of PyTorch can follow; of no side it is 1.
    steps = [1.0] * len(grid) if spacing is None else spacing
    sides = sorted((n * step for n, step in zip(grid, steps, strict=True)), reverse=True)
    return min((k * side for k, side in enumerate(sides[:2], 1)), default=1.0)


def as_floats(values: Any, name: str, dtype: np.dtype[Any] | None = None) -> FloatArray:
    """A C-contiguous, native-endian float32 or float64 copy-if-needed of `values`, all finite.

    float64 stays float64; every other numeric type becomes float32 unless `dtype` is given.
    """
    array = as_array(values, name)
    if dtype is None:
        dtype = working_dtype(array)
    if array.dtype != dtype:
        _check_copy(array, name, dtype)
    check_finite(array, name)
    with np.errstate(over="ignore"):
        result = np.asarray(array, dtype=dtype, order="C")
    if result is not array:
        check_finite(result, f"{name} as {dtype}")
    return result


def working_dtype(array: NDArray[Any]) -> np.dtype[Any]:
    """The type that work on `array` is done in: float64 for float64, float32 for the others."""
    double = array.dtype.kind == "f" and array.dtype.itemsize == 8
    return np.dtype(np.float64 if double else np.float32)


def as_whole_numbers(
    values: Any, name: str, shape: tuple[int | str, ...], remedy: str
) -> NDArray[np.integer[Any]]:
    """Whole numbers of this shape, in which a word stands for any size."""
    array = as_array(values, name)
    fits = array.ndim == len(shape) and all(
        isinstance(side, str) or side == n for side, n in zip(shape, array.shape, strict=True)
    )
    if not fits or array.dtype.kind not in "iu":
        wanted = str(shape).replace("'", "")
        raise InputError(
            f"{name} must be whole numbers of shape {wanted}, got {array.dtype} of shape "
            f"{array.shape}; {remedy}."
        )
    return array


def check_finite(array: NDArray[Any], name: str) -> None:
    """Refuse NaN and infinity, naming the first offending index."""
    if array.dtype.kind != "f" or array.size == 0:
        return
    # A finite sum proves that every entry is finite and reads the array once, without a mask.
    with np.errstate(over="ignore", invalid="ignore"):
        total = array.sum(dtype=np.float64)
    if math.isfinite(total):
        return
    refuse_where(
        ~np.isfinite(array), array, f"{name} must be finite", "replace or mask such values"
    )


def check_magnitude(costs: FloatArray, name: str) -> None:
    """Refuse costs that leave no room for others beside them."""
    largest = float(max(costs.max(initial=0.0), -costs.min(initial=0.0)))
    if not largest <= LARGEST_COST:
        raise InputError(
            f"{name} must not exceed {LARGEST_COST:g} in magnitude, got {largest:.3g}; "
            "a cost of 1e6 forbids a label just as well."
        )


def as_positive(values: Any, name: str) -> NDArray[np.float64]:
    """A float64 array of finite positive numbers, any shape."""
    array: NDArray[np.float64] = as_floats(values, name, np.dtype(np.float64)).astype(np.float64)
    refuse_where(
        ~(array > 0), array, f"{name} must be positive", "use a number greater than zero"
    )
    return array


def as_positive_number(value: Any, name: str) -> float:
    """One positive number."""
    return float(as_positive(as_scalar(value, name), name))


def as_within(
    value: Any, name: str, low: float, high: float, remedy: str, *, ends: bool = True
) -> float:
    """A number between `low` and `high`; whether it may be one of these, `ends` says."""
    number = as_scalar(value, name)
    if not (low <= number <= high if ends else low < number < high):
        raise InputError(
            f"{name} must lie between {low:g} and {high:g}, got {number:g}; {remedy}."
        )
    return number


def as_not_negative(value: Any, name: str, remedy: str = "use 0 or more") -> float:
    """A number of at least 0."""
    number = as_scalar(value, name)
    if number < 0:
        raise InputError(f"{name} must not be negative, got {number:g}; {remedy}.")
    return number


def as_damping(damping: Any) -> float:
    """The share of an old message that stays, within [0, 1)."""
    kept = as_scalar(damping, "damping")
    if not 0 <= kept < 1:
        raise InputError(
            f"damping must be 0 or more and less than 1, got {kept:g}; 0.5 is a common choice."
        )
    return kept


def as_path(path: Any) -> Path:
    """A file name."""
    try:
        return Path(path)
    except TypeError:
        raise InputError(
            f"path must be a file name, got {shown(path)}; pass a string or a Path."
        ) from None


def as_scalar(value: Any, name: str) -> float:
    """A finite Python float."""
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        result = float(value)
    except (TypeError, ValueError, OverflowError):
        raise InputError(
            f"{name} must be a number, got {shown(value)}; pass one number."
        ) from None
    if not math.isfinite(result):
        raise InputError(f"{name} must be finite, got {result}; pass a finite number.")
    return result


def as_count(value: Any, name: str, minimum: int = 1, maximum: int | None = None) -> int:
    """An integer within [minimum, maximum]."""
    try:
        result = operator.index(value)
    except TypeError:
        raise InputError(
            f"{name} must be a whole number, got {shown(value)}; pass an int."
        ) from None
    if result < minimum or (maximum is not None and result > maximum):
        upper = "" if maximum is None else f" and at most {maximum}"
        raise InputError(
            f"{name} must be at least {minimum}{upper}, got {shown(result)}; "
            "choose a value in that range."
        )
    return result


def as_choice(value: Any, name: str, choices: Iterable[str]) -> str:
    """One of a few words."""
    known = tuple(choices)
    if not isinstance(value, str) or value not in known:
        raise InputError(
            f"{name} must be one of {', '.join(map(repr, known))}, got {shown(value)}; "
            "pick one of them."
        )
    return value


def shown(value: Any) -> str:
    """`value` as a message quotes it: on one line, printable and short; names of files and what an
    exception says without quotes.
    """
    if isinstance(value, PurePath):
        text = _without_middle(str(value), _LONGEST_NAME)
        return _without_middle(printable(text), _LONGEST_NAME)
    said = isinstance(value, BaseException)
    most = 3 * _LONGEST_VALUE if said else _LONGEST_VALUE
    text = (str(value) or type(value).__name__) if said else repr(value)
    text = printable(" ".join(text[: 10 * most].split()))
    return text if len(text) <= most else f"{text[: most - 3]}..."


def shown_names(names: Sequence[str]) -> str:
    """A list of `names` as a message quotes it: the first few of them."""
    few = ", ".join(map(shown, names[:_FEW]))
    return few if len(names) <= _FEW else f"{few} and {len(names) - _FEW} others"


def shown_numbers(values: Any) -> str:
    """Parameters in a few words: 3, (1, 2), or 21 x 21 numbers."""
    array = np.asarray(values)
    if array.ndim > 1 or array.size > _FEW_NUMBERS:
        return f"{' x '.join(map(str, array.shape))} numbers"
    words = [f"{number:g}" for number in array.ravel().tolist()]
    return words[0] if array.ndim == 0 else f"({', '.join(words)}{',' * (len(words) == 1)})"


def short_repr(thing: Any, *first: str) -> str:
    """A dataclass in a line: its fields `first` where they are not None, and by name the others
    that do not have their default.
    """
    def word(value: Any) -> str:
        return shown_numbers(value) if isinstance(value, float | np.ndarray) else repr(value)

    values = {field.name: getattr(thing, field.name) for field in dataclasses.fields(thing)}
    words = [word(values[name]) for name in first if values[name] is not None]
    words += [
        f"{field.name}={word(values[field.name])}" for field in dataclasses.fields(thing)
        if field.name not in first
        and (isinstance(values[field.name], np.ndarray) or values[field.name] != field.default)
    ]
    return f"{type(thing).__name__}({', '.join(words)})"


def printable(text: str) -> str:
    """`text` with escapes in the place of what is no character to be seen."""
    if text.isprintable():
        return text
    return "".join(
        each if each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )


def _without_middle(text: str, most: int) -> str:
    """`text` of at most so many characters; names and sentences tell most at their ends."""
    if len(text) <= most:
        return text
    half = (most - 3) // 2
    return f"{text[: most - 3 - half]}...{text[len(text) - half :]}"


class MemoryRefusal(InputError):
    """Raised before work that does not fit into memory is begun."""


def check_memory(n_bytes: float, purpose: str, remedy: str) -> None:
    """Refuse work that cannot fit in this machine's memory, before anything is allocated."""
    if n_bytes <= _SMALL_MEMORY:
        return
    available = available_memory()
    if n_bytes > available:
        _native.drop_idle_blocks()  # which are there for the next image
        available = available_memory()
    if n_bytes > available:
        raise MemoryRefusal(
            f"{purpose} needs about {n_bytes / 2**30:.1f} GiB and {available / 2**30:.1f} GiB "
            f"can be had; {remedy}."
        )


def _may_be_file(text: str) -> bool:
    """Whether a text looks like the name of a file rather than like a number or a word."""
    try:
        float(text)
    except ValueError:
        return PurePath(text).suffix != "" or os.sep in text
    return False


def _check_stored(values: Any, name: str) -> None:
    """Refuse to load an array that lies elsewhere (a file, a graph of tasks) beyond memory."""
    n_bytes = getattr(values, "nbytes", None)
    if isinstance(n_bytes, int | float | np.number):
        check_memory(
            float(n_bytes), f"{name} of shape {getattr(values, 'shape', None)}",
            "work on it part by part with crfield.refine_blocks",
        )


def _remedy(values: Any, error: Exception) -> str:
    if not hasattr(values, "__array__"):
        return "give every row the same length"
    reason = " ".join(str(error).split())
    return f"convert it to a NumPy array first ({reason[:120]})"


def _check_copy(array: NDArray[Any], name: str, dtype: np.dtype[Any]) -> None:
    check_memory(
        float(array.size) * dtype.itemsize, f"{name} of shape {array.shape} as {dtype}",
        "pass a smaller array or work on parts of it",
    )


def available_memory() -> float:
    """Bytes of memory that can be had now, infinity where the system does not say."""
    return min(_free_memory(), _container_limit())


def _free_memory() -> float:
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return float(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, OSError, ValueError):
        return math.inf


def _container_limit() -> float:
    """What the container (Linux control group) that this process runs in may use."""
    for name in _LIMIT_FILES:
        try:
            with open(name, encoding="ascii") as text:
                return float(text.read())
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return math.inf


# Memory that the compiled core may hold on to between images.
if math.isfinite(available_memory()):
    _native.limit_idle_blocks(int(available_memory() / 16))
