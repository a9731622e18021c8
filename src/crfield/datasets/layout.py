"""What the folder of a data set says about itself: description, classes, splits and files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crfield._core.validate import InputError, as_choice, as_count, as_scalar, as_within, shown
from crfield.io.images import by_stem, files_in
from crfield.unary.costs import CUSTOMARY_CONFIDENCE

DESCRIPTION_FILE = "dataset.json"
CLASSES_FILE = "classes.txt"
UNARY_KINDS = ("probabilities", "log_probabilities", "costs", "features", "labels")

# Label maps have 8 or 16 bits per pixel.
_MAX_LABELS = 2**16
_NOT_SPLITS = ("classes", "readme")


@dataclass(frozen=True)
class UnaryDescription:
    """Where the unaries of a data set are and what kind they are.

    Attributes
    ----------
    folder : relative to the root of the data set.
    kind : one of `UNARY_KINDS`.
    scale : stored numbers times `scale` are what `kind` says.
    confidence : probability of a label of the kind "labels".
    """

    folder: str = "unaries"
    kind: str = "probabilities"
    scale: float = 1.0
    confidence: float = CUSTOMARY_CONFIDENCE


@dataclass(frozen=True)
class Description:
    """What `dataset.json` says, with defaults for what it leaves out."""

    n_labels: int | None = None
    void: int | None = 255
    images: str = "images"
    labels: str = "labels"
    unaries: UnaryDescription | None = None


def read_description(root: Path, override: Mapping[str, Any] | Path | None) -> Description:
    """The description in the root; keys of `override`, a mapping or JSON file, replace its own."""
    in_root = root / DESCRIPTION_FILE
    keys: dict[str, Any] = {}
    if in_root.is_file():
        keys |= _checked(_read_json(in_root), _CHECKS, str(in_root))
    if isinstance(override, Path):
        keys |= _checked(_read_json(override), _CHECKS, str(override))
    elif override is not None:
        keys |= _checked(override, _CHECKS, "description")
    if "unaries" not in keys and (root / UnaryDescription.folder).is_dir():
        keys["unaries"] = UnaryDescription()
    return Description(**keys)


def read_class_names(path: Path, void: int | None) -> tuple[str, ...]:
    """Names of the classes 0, 1, ... from lines `grass` or `1 grass`, without a numbered void."""
    lines = read_lines(path)
    numbered = [re.fullmatch(r"([0-9]{1,9})\s+(\S.*)", line) for line in lines]
    if not lines or not all(numbered):
        return tuple(lines)
    entries = [(int(match[1]), match[2]) for match in numbered if match]
    entries = sorted(entry for entry in entries if entry[0] != void)
    for expected, (index, name) in enumerate(entries):
        if index != expected:
            raise InputError(
                f"{path} must number its classes 0, 1, 2 and so on, got {index} {name!r} in place "
                f"of {expected}; correct the numbers or leave them all out."
            )
    return tuple(name for _, name in entries)


def read_split(root: Path, split: str) -> list[str]:
    """The names in `split`.txt, in its order."""
    known = sorted(
        path.stem for path in root.glob("*.txt") if path.stem.lower() not in _NOT_SPLITS
    )
    if split not in known:
        raise InputError(
            f"split must be one of {', '.join(map(repr, known)) or '(none)'} in {root}, got "
            f"{shown(split)}; pick one of them or write the names of its images to a text file."
        )
    path = root / f"{split}.txt"
    names = read_lines(path)
    if not names:
        raise InputError(f"{path} must name at least one image, got none; write one name per line.")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(f"{path} must name an image once, got {name!r} twice; remove one.")
        seen.add(name)
    return names


def read_lines(path: Path) -> list[str]:
    """Lines of a text file, stripped, without empty ones."""
    return [line.strip() for line in _read_text(path).splitlines() if line.strip()]


def files_by_name(folder: Path, suffixes: Collection[str]) -> dict[str, list[Path]]:
    """Files of a folder that end in one of `suffixes`, by their name without it."""
    if not folder.is_dir():
        raise InputError(
            f"expected a folder {folder}, but there is none; create it, or name another one in "
            f"{DESCRIPTION_FILE}."
        )
    return by_stem(files_in(folder, suffixes))


def one_each(found: Mapping[str, list[Any]], names: Iterable[str], what: str) -> dict[str, Any]:
    """The place of each name; it is an error if there is none or more than one."""
    missing = [name for name in names if name not in found]
    if missing:
        more = len(missing) - 1
        others = f" and {more} other name{'s' if more > 1 else ''}" if more else ""
        remedy = "add the file or take the name out of the split"
        if (stem := missing[0].rpartition(".")[0]) in found:
            remedy = f"names go without a suffix: {stem}"
        raise InputError(
            f"expected {what} for {shown(missing[0])}{others}, but there is nothing of the kind; "
            f"{remedy}."
        )
    for name in names:
        if len(found[name]) > 1:
            first, second = found[name][:2]
            raise InputError(
                f"expected one file with {what} for {shown(name)}, but got {first} and {second}; "
                "remove or rename one."
            )
    return {name: found[name][0] for name in names}


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except OSError as error:
        reason = (error.strerror or "no access").lower()
        raise InputError(f"cannot read {path}: {reason}; check the file and its rights.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path} must be UTF-8 text, got other bytes; save it again.") from error


def _read_json(path: Path) -> Any:
    try:
        return json.loads(_read_text(path))
    except InputError:
        raise
    except (ValueError, RecursionError) as error:
        detail = " ".join(str(error).split())
        raise InputError(f"{path} must hold JSON, got text ({detail}); correct it.") from error


def _checked(values: Any, checks: Mapping[str, Callable[..., Any]], origin: str) -> dict[str, Any]:
    known = ", ".join(map(repr, checks))
    if not isinstance(values, Mapping):
        raise InputError(
            f"{origin} must be an object with the keys {known}, got {shown(values)}; "
            "put braces around the keys."
        )
    for key in values:
        if key not in checks:
            raise InputError(
                f"{origin} must have no other keys than {known}, got {shown(key)}; "
                "correct or remove it."
            )
    return {key: checks[key](value, f"{key!r} in {origin}") for key, value in values.items()}


def _as_folder(value: Any, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(
            f"{name} must be the name of a folder, got {shown(value)}; give it as a string."
        )
    return value


def _as_scale(value: Any, name: str) -> float:
    scale = as_scalar(value, name)
    if scale == 0:
        raise InputError(f"{name} must not be zero, got 0; use 1 to take numbers as they are.")
    return scale


def _or_none(check: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, name: None if value is None else check(value, name)


_UNARY_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "folder": _as_folder,
    "kind": lambda value, name: as_choice(value, name, UNARY_KINDS),
    "scale": _as_scale,
    "confidence": lambda value, name: as_within(value, name, 0, 1, "try 0.7", ends=False),
}
_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "n_labels": lambda value, name: as_count(value, name, maximum=_MAX_LABELS),
    "void": _or_none(lambda value, name: as_count(value, name, -1, _MAX_LABELS - 1)),
    "images": _as_folder,
    "labels": _as_folder,
    "unaries": _or_none(
        lambda value, name: UnaryDescription(**_checked(value, _UNARY_CHECKS, name))
    ),
}
