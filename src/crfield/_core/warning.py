"""Warnings that point at the line of the caller."""

from __future__ import annotations

import sys
import warnings

# Torch calls a layer's methods itself, and so lies between them and whoever uses the layer.
_PASSED_OVER = ("crfield", "torch")


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn where crfield was called from, however deep in it this is."""
    # From Python 3.12 on, skip_file_prefixes of warnings.warn does the same.
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and _is_passed_over(frame.f_globals.get("__name__")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_passed_over(module: object) -> bool:
    return isinstance(module, str) and module.partition(".")[0] in _PASSED_OVER
