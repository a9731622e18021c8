"""Packages that only a part of the library needs."""

from __future__ import annotations

import importlib
from typing import Any

from crfield._core.validate import InputError


def missing(needed: str, *packages: str, otherwise: str = "") -> str:
    """The sentence on packages that are not installed. It names them rather than an extra, so that
    the command works wherever this package came from.

    needed : who needs them, with the verb: "NIfTI files need".
    packages : their names on the index.
    otherwise : what to do instead of installing them.
    """
    instead = f", or {otherwise}" if otherwise else ""
    command = f"pip install {' '.join(packages)}"
    return f"{needed} {' and '.join(packages)} to be installed; {command}{instead}."


def require(module: str, needed: str) -> Any:
    """Import an optional package, or tell how to get it."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(missing(needed, module)) from error
