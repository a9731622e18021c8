"""What a notebook shows of results and models: pictures of bounded size and short tables.

Texts are escaped, pictures are embedded as PNG, and there are no scripts.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crfield._core.validate import shown_numbers
from crfield.show import page as _page
from crfield.show import pictures

# Longest side of a picture in a preview, and the height that small ones are enlarged to.
LONGEST = 512
_COMFORTABLE = 160

Array = NDArray[Any]


def preview(marginals: Array, label_ids: Array, image: Array | None) -> Image.Image | None:
    """Image, labels and uncertainty in a row, or labels and uncertainty without an image.

    marginals : (*grid, L) of an image or a volume, which shows its middle slice; None comes back
        for other grids.
    label_ids : (L,) the ids whose colors are shown.
    image : (*grid[, C]) or None.
    """
    grid_dim = marginals.ndim - 1
    if grid_dim not in (2, 3) or 0 in marginals.shape:
        return None
    if grid_dim == 3:
        middle = len(marginals) // 2
        marginals = marginals[middle]
        image = None if image is None else image[middle]
    step = math.ceil(max(marginals.shape[:2]) / LONGEST)
    q = _reduced(marginals, step)
    labels = label_ids[q.argmax(-1)]
    height, width = labels.shape
    scale = min(LONGEST / max(height, width), max(1.0, _COMFORTABLE / height))
    size = max(1, round(scale * height))
    if image is None:
        panels = {"labels": pictures.colorize(labels)}
    else:
        photo = pictures.show(_reduced(image, step))
        panels = {"image": photo, "labels": pictures.overlay(photo, labels)}
    panels["uncertainty"] = pictures.entropy_map(q)
    return pictures.side_by_side(*panels.values(), titles=tuple(panels), height=size)


def figure(caption: str, picture: Image.Image | None) -> str:
    """A picture with its caption as HTML; the caption alone where there is no picture."""
    if picture is None:
        return _page.paragraph(caption)
    return _page.figure(caption, _page.picture(picture, "image, labels and uncertainty"))


def model_table(n_labels: int, terms: Any) -> str:
    """The terms of a dense model as HTML: kernel, widths, compatibility and weight."""
    rows = [
        (
            f"{number + 1}", term.kernel.describe(), _numbers(term.kernel),
            type(term.compatibility).__name__, _numbers(term.compatibility), f"{term.weight:g}",
        )
        for number, term in enumerate(terms)
    ]
    title = _page.paragraph(f"DenseCRF: {n_labels} labels, {len(rows)} pairwise terms")
    header = ("term", "kernel", "widths", "compatibility", "its numbers", "weight")
    return title + (_page.table(header, rows) if rows else "")


def facts(title: str, pairs: dict[str, str]) -> str:
    """A title and a table of names and values as HTML."""
    return _page.paragraph(title) + _page.table((), pairs.items())


def _reduced(array: Array, step: int) -> Array:
    """Means over squares of `step` pixels of (H, W[, C]), in the type of the array."""
    if step == 1:
        return array
    means: Array = array
    for axis in (0, 1):
        starts = np.arange(0, means.shape[axis], step)
        counts = np.diff(starts, append=means.shape[axis])  # the last square may be cut
        sums = np.add.reduceat(means, starts, axis, dtype=np.float64)
        means = sums / counts.reshape([-1 if a == axis else 1 for a in range(means.ndim)])
    return (means if array.dtype.kind == "f" else np.rint(means)).astype(array.dtype)


def _numbers(holder: Any) -> str:
    """The parameters of a kernel or a compatibility in a few words."""
    words = []
    for name in holder.array_fields:
        value = getattr(holder, name)
        if value is None:
            continue
        words.append(f"{name} {shown_numbers(value)}")
    return "; ".join(words)
