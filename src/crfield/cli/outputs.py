"""What a command may write: none of its inputs, nothing of somebody else's unless told to, and
nothing that another run is writing.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from crfield._core.atomic import check_writable
from crfield._core.locks import hold, hold_folder
from crfield._core.validate import InputError
from crfield.io.manifest import MANIFEST

Identity = tuple[int, int]

REPLACE_IT = "add --overwrite to replace it, or choose another name or folder"


@contextmanager
def reserved(
    outputs: Sequence[Path],
    *,
    inputs: Iterable[Path] = (),
    searched: Mapping[Path, tuple[str, ...]] | None = None,
    overwrite: bool = False,
    remedy: str = REPLACE_IT,
) -> Iterator[None]:
    """Hold the files that a command is going to write, or refuse before any work is done.

    outputs : files, which are held against other runs until the end.
    inputs : files that the command reads.
    searched : folders in which it looks for inputs, with the endings of their names.
    overwrite : whether files that exist may be replaced; `remedy` says what to do if not.
    """
    check_no_input_is_replaced(outputs, inputs)
    check_not_among_inputs(outputs, searched or {})
    for path in outputs:
        check_writable(path)
    with ExitStack() as held:
        for path in outputs:
            held.enter_context(hold(Path(os.path.realpath(path)), path))
        if not overwrite:
            for path in outputs:
                check_free(path, remedy)
        yield


@contextmanager
def reserved_folder(folder: Path) -> Iterator[None]:
    """Hold a folder of results against other runs that write results there."""
    with hold_folder(folder, folder, alone=True), hold(folder / MANIFEST, folder):
        yield


@contextmanager
def among_results(path: Path) -> Iterator[None]:
    """Hold the folder of a single result against runs that write whole folders."""
    with hold_folder(Path(os.path.realpath(path)).parent, path, alone=False):
        yield


def check_free(path: Path, remedy: str = REPLACE_IT) -> None:
    """Refuse to write over a file that exists."""
    if os.path.lexists(path) and os.path.exists(path):
        raise InputError(f"cannot write {path}: it exists already; {remedy}.")


def identity(path: str | os.PathLike[str]) -> Identity | None:
    """What two names of one file have in common, links included; None if there is no file."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def check_no_input_is_replaced(
    outputs: Iterable[Path], inputs: Iterable[str | os.PathLike[str]]
) -> None:
    """Refuse to write over any file that the command reads, or twice over one file."""
    existing: dict[Identity, Path] = {}
    for path in outputs:
        if (known := identity(path)) is None:
            continue  # what does not exist is no input
        if known in existing:
            raise InputError(
                f"expected outputs that are different files, but {existing[known]} and {path} are "
                "one; remove the link."
            )
        existing[known] = path
    if not existing:
        return
    for read in inputs:
        known = identity(read)
        if known is not None and known in existing:
            path = existing[known]
            name = "" if os.fspath(read) == os.fspath(path) else f", as {os.fspath(read)}"
            raise InputError(
                f"expected an output that is no input, but {path} is read by this command{name}; "
                "choose another name or folder for it."
            )


def check_not_among_inputs(
    outputs: Iterable[Path], searched: Mapping[Path, tuple[str, ...]]
) -> None:
    """Refuse outputs that would be taken for inputs next time."""
    known = {identity(folder): (folder, endings) for folder, endings in searched.items()}
    for path in outputs:
        target = os.path.realpath(path)
        found = known.get(identity(os.path.dirname(target)))
        if found is not None and os.path.basename(target).lower().endswith(found[1]):
            raise InputError(
                f"expected an output outside of {found[0]}, where this command looks for its "
                f"inputs, but got {path}; choose another name or folder for it."
            )


def check_folder_apart(folder: Path, searched: Collection[Path]) -> None:
    """Refuse a folder of results in which the command looks for inputs."""
    known = {identity(each) for each in searched}
    if identity(folder) in known:
        raise InputError(
            f"expected a folder of results that holds no inputs, but this command looks for them "
            f"in {folder}; name another folder with -o."
        )
