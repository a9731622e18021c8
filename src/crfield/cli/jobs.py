"""Which files belong together: images, their predictions and the names of the results."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from crfield._core.validate import InputError
from crfield.io.images import (
    IMAGE_SUFFIXES,
    OUTPUT_SUFFIXES,
    by_stem,
    file_stem,
    file_suffix,
    files_in,
)


@dataclass(frozen=True)
class Job:
    """An image, its probabilities or labels, and where the result goes.

    `output` is the file that the user named; without it the result goes to `folder`, under the
    name of the image.
    """

    image: Path
    prediction: Path
    folder: Path
    output: Path | None = None

    def output_with(self, suffix: str) -> Path:
        """File of the refined labels, with `suffix` unless the user has chosen the name."""
        return self.output or self.folder / f"{file_stem(self.image)}_refined{suffix}"


@dataclass(frozen=True)
class Pairing:
    """The jobs of one command; `failures` maps images without one to the reason."""

    jobs: list[Job]
    failures: dict[Path, str]
    lonely_predictions: list[Path]
    is_batch: bool


def pair_files(
    images: Sequence[Path], predictions: Path, suffixes: Sequence[str], output: Path | None
) -> Pairing:
    """Pair images with predictions by file stem; `suffixes` tells which files are predictions."""
    is_batch = len(images) > 1 or images[0].is_dir()
    image_files = [file for image in images for file in _files(image, IMAGE_SUFFIXES)]
    if is_batch and not predictions.is_dir():
        raise InputError(
            f"expected a folder of predictions for several images, but got {predictions}; "
            "name the folder whose files have the same stems as the images."
        )
    if not is_batch and not predictions.is_dir():
        folder, file = _single_output(output)
        return Pairing([Job(images[0], predictions, folder, file)], {}, [], False)
    folder, file = (output_folder(output), None) if is_batch else _single_output(output)
    partners = by_stem(_files(predictions, suffixes))
    jobs: list[Job] = []
    failures: dict[Path, str] = {}
    taken: dict[str, Path] = {}
    for image in image_files:
        stem = file_stem(image)
        found = partners.get(stem, [])
        if stem in taken:
            failures[image] = f"has the same stem as {taken[stem]}; rename one of them."
        elif len(found) == 1:
            jobs.append(Job(image, found[0], folder, file))
        elif found:
            names = ", ".join(path.name for path in found)
            failures[image] = f"has several partners in {predictions} ({names}); keep one."
        else:
            failures[image] = f"has no partner in {predictions}; add {stem}{suffixes[0]} there."
        taken.setdefault(stem, image)
    if failures and not is_batch:
        image, reason = next(iter(failures.items()))
        raise InputError(f"{image} {reason}")
    # Images named one by one may well be a choice among those that have predictions.
    whole_folder = any(image.is_dir() for image in images)
    lonely = [path for stem, paths in partners.items() if stem not in taken for path in paths]
    return Pairing(jobs, failures, lonely if whole_folder else [], is_batch)


def check_no_input_is_overwritten(outputs: Iterable[Path], inputs: Iterable[Path]) -> None:
    """Refuse to write over any file that the command reads."""
    protected = {os.path.realpath(path) for path in inputs}
    for path in outputs:
        if os.path.realpath(path) in protected:
            raise InputError(
                f"expected an output that is no input, but {path} is read by this command; "
                "choose another name or folder for it."
            )


def _files(path: Path, suffixes: Sequence[str]) -> list[Path]:
    """The file itself, or the files of a folder with one of the suffixes."""
    if not path.is_dir():
        return [path]
    files = files_in(path, suffixes)
    if not files:
        raise InputError(
            f"expected files ending in {', '.join(suffixes)} in the folder {path}, but there are "
            "none; check the folder."
        )
    return files


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
