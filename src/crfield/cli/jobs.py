"""Which files belong together: images, their predictions and the names of the results."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from crfield._core.validate import InputError
from crfield.io.images import (
    IMAGE_SUFFIXES,
    NIFTI_SUFFIXES,
    OUTPUT_SUFFIXES,
    PICTURE_SUFFIXES,
    SOFT_MASK_SUFFIXES,
    file_stem,
    file_suffix,
)

_RESULT_SUFFIXES = (".png", ".tif", ".npy", ".nii.gz")  # what `default_suffix` can answer


@dataclass(frozen=True)
class Job:
    """An image, its probabilities or labels, and where the result goes.

    `output` is the file that the user named; without it the result goes to `folder`, under the
    name of the image and `ending`.
    """

    image: Path
    prediction: Path
    folder: Path
    ending: str
    output: Path | None = None

    def output_with(self, suffix: str) -> Path:
        """File of the refined labels, with `suffix` unless the user has chosen the name."""
        return self.output or self.folder / f"{file_stem(self.image)}{self.ending}{suffix}"


@dataclass(frozen=True)
class Pairing:
    """The images of one command with their predictions.

    `pairs` has the names of files that belong together: there may be very many. `failures` maps
    images without a partner to the reason, and `searched` are the folders that were looked through.
    In a folder that the user named, results have the names of their images; in the current one,
    `_refined` comes behind them.
    """

    pairs: list[tuple[str, str]]
    failures: dict[str, str]
    lonely_predictions: list[str]
    is_batch: bool
    folder: Path
    output: Path | None
    is_named: bool
    searched: list[Path]

    def job(self, pair: tuple[str, str]) -> Job:
        """What is to be done with one of the pairs."""
        return Job(Path(pair[0]), Path(pair[1]), self.folder, self.ending, self.output)

    @property
    def ending(self) -> str:
        """What comes behind the name of an image in that of its result."""
        return "" if self.is_named else "_refined"


def pair_files(
    images: Sequence[Path], predictions: Path, suffixes: Sequence[str], output: Path | None
) -> Pairing:
    """Pair images with predictions by file stem; `suffixes` tells which files are predictions."""
    searched = [image for image in images if image.is_dir()]
    is_batch = len(images) > 1 or bool(searched)
    if is_batch and not predictions.exists():
        raise InputError(f"expected a folder {predictions}, but there is none; check its name.")
    if is_batch and not predictions.is_dir():
        raise InputError(
            f"expected a folder of predictions for several images, but got {predictions}; "
            "name the folder whose files have the same stems as the images."
        )
    if not is_batch and not predictions.is_dir():
        folder, file = _single_output(output)
        pair = (str(images[0]), str(predictions))
        return Pairing([pair], {}, [], False, folder, file, output is not None, [])
    partners: dict[str, list[str]] = {}
    for stem, path in _files(predictions, suffixes):
        partners.setdefault(stem, []).append(path)
    pairs: list[tuple[str, str]] = []
    failures: dict[str, str] = {}
    taken: dict[str, str] = {}
    n_alone = 0
    for stem, image in (file for given in images for file in _files(given, IMAGE_SUFFIXES)):
        found = [path for path in partners.get(stem, []) if path != image]
        if ".npz" in suffixes:  # beside an array, a picture is something else than a soft mask
            found = [path for path in found if not _is_picture(path)] or found
        if stem in taken:
            failures[image] = f"has the same stem as {taken[stem]}; rename one of them."
        elif len(found) == 1:
            pairs.append((image, found[0]))
        elif found:
            names = ", ".join(map(os.path.basename, found))
            failures[image] = f"has several partners in {predictions} ({names}); keep one."
        else:
            failures[image] = f"has no partner in {predictions}; add {stem}{suffixes[0]} there."
            n_alone += 1
        taken.setdefault(stem, image)
    if failures and not is_batch:
        image, reason = next(iter(failures.items()))
        raise InputError(f"{image} {reason}")
    if is_batch and not pairs and n_alone == len(failures):
        _refuse_names(next(iter(failures)), predictions, next(iter(partners.values()))[0], suffixes)
    folder, file = (output_folder(output), None) if is_batch else _single_output(output)
    # Images named one by one may well be a choice among those that have predictions.
    lonely = [path for stem, paths in partners.items() if stem not in taken for path in paths]
    return Pairing(
        pairs, failures, lonely if searched else [], is_batch, folder, file, output is not None,
        [*searched, predictions],
    )


def _is_picture(path: str) -> bool:
    return split_name(path)[1].lower() in SOFT_MASK_SUFFIXES


def _refuse_names(
    image: str, predictions: Path, other: str, suffixes: Sequence[str]
) -> NoReturn:
    """Say how files are matched, where none matches; `other` is one of the predictions."""
    stem, suffix = split_name(os.path.basename(other))
    is_soft = ".npz" in suffixes
    own = split_name(os.path.basename(image))[0] + (suffix or suffixes[0])
    raise InputError(
        f"expected {'probabilities' if is_soft else 'label maps'} with the names of their images, "
        f"but no image has a partner in {predictions}, where one is named {stem}{suffix}; the "
        f"{'probabilities' if is_soft else 'label map'} of {image} must be named {own} in that "
        "folder."
    )


def possible_results(pair: tuple[str, str], ending: str) -> list[str]:
    """Names that the refined labels of a pair may get: a picture's are a picture, the format of
    others shows when they are read. `ending` comes behind the name of the image.
    """
    stem, suffix = split_name(os.path.basename(pair[0]))
    is_picture = suffix.lower() in PICTURE_SUFFIXES and not _is_nifti(pair[1])
    ends = (".png",) if is_picture else _RESULT_SUFFIXES
    return [f"{stem}{ending}{end}" for end in ends]


def split_name(name: str) -> tuple[str, str]:
    """Stem and suffix of a file's name, as `file_stem` and `file_suffix` tell them of a path."""
    suffix = name[-7:] if name.lower().endswith(".nii.gz") else os.path.splitext(name)[1]
    return name.removesuffix(suffix) or name, suffix


def _is_nifti(name: str) -> bool:
    return name.lower().endswith(NIFTI_SUFFIXES)


def _files(path: Path, suffixes: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The file itself with its stem, or the files of a folder with one of the suffixes, sorted,
    without hidden ones. They are strings, because paths take five times the memory.
    """
    if not path.is_dir():
        yield file_stem(path), str(path)
        return
    with os.scandir(path) as entries:
        names = [
            entry.name for entry in entries
            if not entry.name.startswith(".") and split_name(entry.name)[1].lower() in suffixes
            and entry.is_file()
        ]
    if not names:
        raise InputError(
            f"expected files ending in {', '.join(suffixes)} in the folder {path}, but there are "
            "none; check the folder."
        )
    prefix = str(path / "x")[:-1]
    for name in sorted(names):
        yield split_name(name)[0], prefix + name


def _single_output(output: Path | None) -> tuple[Path, Path | None]:
    """Folder and, where `output` names a file, that file."""
    if output is None:
        return Path(), None
    if output.is_dir() or (not output.suffix and not output.exists()):
        return output_folder(output), None
    return output.parent, output


def output_folder(output: Path | None) -> Path:
    """The folder for the results of several images, which is made where it is missing."""
    if output is None:
        return Path()
    if file_suffix(output).lower() in OUTPUT_SUFFIXES or output.is_file():
        raise InputError(
            f"expected a folder for the results of several images, but got {output}; "
            "name a folder with -o."
        )
    output.mkdir(parents=True, exist_ok=True)
    return output
