"""What the folder of a data set says about itself: description, classes, splits and files."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crfield._core.files import read_regular
from crfield._core.validate import (
    InputError,
    as_choice,
    as_count,
    as_scalar,
    as_within,
    shown,
    shown_names,
)
from crfield.dense.inputs import LAYOUTS
from crfield.io.images import LABEL_SUFFIXES, PICTURE_SUFFIXES, by_stem, file_suffix, files_in
from crfield.unary.costs import CUSTOMARY_CONFIDENCE

DESCRIPTION_FILE = "dataset.json"
CLASSES_FILE = "classes.txt"
GROUPS_FILE = "groups.txt"
UNARY_KINDS = ("probabilities", "logits", "log_probabilities", "costs", "features", "labels")

# Label maps have 8 or 16 bits per pixel.
_MAX_LABELS = 2**16
_NOT_SPLITS = ("classes", "groups", "readme")


@dataclass(frozen=True)
class UnaryDescription:
    """Where the unaries of a data set are and what kind they are.

    Attributes
    ----------
    folder : relative to the root of the data set.
    kind : one of `UNARY_KINDS`; None recognizes labels, probabilities and logits.
    layout : "channels_last" or "channels_first"; None recognizes it.
    scale : stored numbers times `scale` are what `kind` says.
    confidence : probability of a label of the kind "labels".
    """

    folder: str = "unaries"
    kind: str | None = None
    layout: str | None = None
    scale: float = 1.0
    confidence: float = CUSTOMARY_CONFIDENCE


@dataclass(frozen=True)
class Description:
    """What `dataset.json` says, with defaults for what it leaves out; `void_is_given` tells whether
    it says anything of `void`.
    """

    n_labels: int | None = None
    void: int | None = 255
    void_is_given: bool = False
    images: str = "images"
    labels: str = "labels"
    unaries: UnaryDescription | None = None


def read_description(root: Path, override: Mapping[str, Any] | Path | None) -> Description:
    """The description in the root; keys of `override`, a mapping or JSON file, replace its own."""
    in_root = root / DESCRIPTION_FILE
    keys: dict[str, Any] = {}
    if os.path.lexists(in_root):  # what is no file is refused rather than left out
        keys |= _checked(_read_json(in_root), _CHECKS, str(in_root))
    if isinstance(override, Path):
        keys |= _checked(_read_json(override), _CHECKS, str(override))
    elif override is not None:
        keys |= _checked(override, _CHECKS, "description")
    if "unaries" not in keys and (root / UnaryDescription.folder).is_dir():
        keys["unaries"] = UnaryDescription()
    return Description(**keys, void_is_given="void" in keys)


def read_class_names(path: Path, void: int | None) -> tuple[str, ...]:
    """Names of the classes 0, 1, ... from lines `grass` or `1 grass`, without a numbered void."""
    lines = read_lines(path)
    numbered = [re.fullmatch(r"([0-9]{1,9})\s+(\S.*)", line) for line in lines]
    if not lines or not all(numbered):
        return _each_once(lines, path)
    entries = [(int(match[1]), match[2]) for match in numbered if match]
    entries = sorted(entry for entry in entries if entry[0] != void)
    for expected, (index, name) in enumerate(entries):
        if index != expected:
            raise InputError(
                f"{path} must number its classes 0, 1, 2 and so on, got {index} {shown(name)} in "
                f"place of {expected}; correct the numbers or leave them all out."
            )
    return _each_once([name for _, name in entries], path)


def _each_once(names: list[str], path: Path) -> tuple[str, ...]:
    """The names, if none of them stands for two classes."""
    for number, name in enumerate(names):
        if name in names[:number]:
            raise InputError(
                f"{path} must name every class differently, got {shown(name)} for classes "
                f"{names.index(name)} and {number}; rename one of them."
            )
    return tuple(names)


def read_groups(path: Path) -> dict[str, str]:
    """The group of each name from lines `NAME GROUP`, whose last word is the group; nothing without
    such a file.
    """
    if not os.path.lexists(path):
        return {}
    groups: dict[str, str] = {}
    for line in read_lines(path):
        words = line.rsplit(maxsplit=1)
        if len(words) < 2 or words[0] in groups:
            raise InputError(
                f"{path} must give each image one group, got {shown(line)}; write one line NAME "
                "GROUP per image."
            )
        groups[words[0]] = words[1]
    return groups


def read_split(root: Path, split: str) -> list[str]:
    """The names in `split`.txt, in its order."""
    known = sorted(
        path.stem for path in root.glob("*.txt") if path.stem.lower() not in _NOT_SPLITS
    )
    if split not in known:
        raise InputError(
            f"split must be one of {shown_names(known) or '(none)'} in {root}, got "
            f"{shown(split)}; pick one of them or write the names of its images to a text file."
        )
    path = root / f"{split}.txt"
    names = read_lines(path)
    if not names:
        raise InputError(f"{path} must name at least one image, got none; write one name per line.")
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InputError(
                f"{path} must name an image once, got {shown(name)} twice; remove one."
            )
        seen.add(name)
    return names


def read_lines(path: Path) -> list[str]:
    """Lines of a text file, stripped, without empty ones."""
    return [line.strip() for line in _read_text(path, "list").splitlines() if line.strip()]


def files_by_name(
    folder: Path, suffixes: Collection[str], given: str | None = None
) -> dict[str, list[Path]]:
    """Files of a folder that end in one of `suffixes`, by their name without it.

    given : by which argument the caller has named the folder, None if not at all.
    """
    if not folder.is_dir():
        likely = _likely_folders(folder.parent)
        remedy = f"pass the folder, {given}={likely.get(given)!r}" if given in likely else (
            "check its name" if given else f"pass the folders, {_as_arguments(likely)} or create it"
        )
        raise InputError(f"expected a folder {folder}, but there is none; {remedy}.")
    return by_stem(files_in(folder, suffixes))


def _likely_folders(root: Path) -> dict[str, str]:
    """Folders in `root` that look like those of a data set, by the arguments for them."""
    likely: dict[str, str] = {}
    looks = {
        "probabilities": (".npy", ".npz"), "images": set(PICTURE_SUFFIXES) - set(LABEL_SUFFIXES),
        "labels": LABEL_SUFFIXES,
    }
    with suppress(OSError):  # it is only for a hint
        for folder in sorted(path for path in root.iterdir() if path.is_dir()):
            endings = {file_suffix(path).lower() for path in folder.iterdir()}
            kind = next((kind for kind, known in looks.items() if endings & set(known)), None)
            likely |= {kind: str(folder)} if kind else {}
    return likely


def _as_arguments(likely: Mapping[str, str]) -> str:
    """The arguments that name the folders of a data set, with those that are `likely`."""
    names = ("images", "labels", "probabilities")
    return ", ".join(f"{name}={likely.get(name, name.upper())!r}" for name in names)


def one_each(
    found: Mapping[str, list[Any]], names: Iterable[str], what: str,
    unmatched: Collection[str] = (),
) -> dict[str, Any]:
    """The place of each name; it is an error if there is none or more than one. `unmatched` are
    names that are there in place of the missing ones.
    """
    missing = [name for name in names if name not in found]
    if missing:
        more = len(missing) - 1
        others = f" and {more} other name{'s' if more > 1 else ''}" if more else ""
        remedy = "add the file, or leave that image out"
        if (stem := missing[0].rpartition(".")[0]) in found:
            remedy = f"names go without a suffix: {stem}"
        elif unmatched:
            remedy = f"name the files as the images, {missing[0]} in place of {min(unmatched)}"
        raise InputError(
            f"expected {what} for {shown(missing[0])}{others}, but there are none; "
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


def _read_text(path: Path, kind: str) -> str:
    try:
        return read_regular(path, kind, memory=4.0).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(
            f"{shown(path)} must be UTF-8 text, got other bytes; save it again."
        ) from error


def _read_json(path: Path) -> Any:
    text = _read_text(path, "description")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(
            f"{shown(path)} must hold JSON, got text ({shown(error)}); correct it."
        ) from error


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
    if not 1e-37 <= abs(scale) <= 1e37:  # numbers are stored in float32
        raise InputError(
            f"{name} must lie between 1e-37 and 1e37 in magnitude, got {scale:g}; "
            "use 1 to take numbers as they are."
        )
    return scale


def _or_none(check: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    return lambda value, name: None if value is None else check(value, name)


_UNARY_CHECKS: dict[str, Callable[[Any, str], Any]] = {
    "folder": _as_folder,
    "kind": _or_none(lambda value, name: as_choice(value, name, UNARY_KINDS)),
    "layout": _or_none(lambda value, name: as_choice(value, name, LAYOUTS)),
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
