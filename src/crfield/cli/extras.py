"""What `crfield refine` writes and says beside the labels."""

from __future__ import annotations

import argparse
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from crfield.io.arrays import write_array
from crfield.io.images import ImageFile, file_stem, write_picture
from crfield.show import pictures

_MOST_NAMED = 8  # labels in one sentence


def extra_outputs(output: Path, arguments: argparse.Namespace) -> dict[str, Path]:
    """Files asked for beside the labels, by the name of their option."""
    suffixes = {"overlay": "png", "side_by_side": "png", "entropy": "png", "marginals": "npy"}
    return {
        name: output.with_name(f"{file_stem(output)}_{name}.{suffix}")
        for name, suffix in suffixes.items()
        if getattr(arguments, name)
    }


def write_extras(
    paths: dict[str, Path],
    image: ImageFile,
    prediction: npt.NDArray[Any],
    result: Any,
    like: ImageFile,
    keywords: dict[str, Any],
) -> None:
    """Write the files that `extra_outputs` names."""
    stored = like.palette or palette_of(keywords)
    palette = np.frombuffer(stored.ljust(768, b"\0"), np.uint8).reshape(-1, 3)
    if "overlay" in paths:
        tinted = pictures.overlay(image.array, result.labels, palette=palette)
        write_picture(paths["overlay"], tinted)
    if "side_by_side" in paths:
        before = given_labels(prediction, keywords)
        shown = [pictures.colorize(labels, palette) for labels in (before, result.labels)]
        photo = pictures.show(image.array, len(image.grid))
        row = pictures.side_by_side(photo, *shown, titles=("image", "input", "refined"))
        write_picture(paths["side_by_side"], row)
    if "entropy" in paths:
        write_picture(paths["entropy"], pictures.entropy_map(result.marginals))
    if "marginals" in paths:
        write_array(paths["marginals"], result.marginals)


def palette_of(keywords: dict[str, Any]) -> bytes:
    """Colors for ids 0 to 255, where unknown pixels look empty."""
    palette = pictures.label_palette(256)
    unknown = keywords.get("unknown", 255)
    if unknown is not None and 0 <= unknown < 256:
        palette[unknown] = 224
    return palette.tobytes()


def given_labels(prediction: npt.NDArray[Any], keywords: dict[str, Any]) -> npt.NDArray[Any]:
    """A label map as it came, or the likeliest labels (*grid,) of probabilities."""
    if prediction.dtype.kind != "f":
        return prediction
    axis = 0 if keywords.get("layout") == "channels_first" else -1
    return np.asarray(prediction.argmax(axis))


def warn_of_lost_labels(
    path: Path, prediction: npt.NDArray[Any], found: npt.NDArray[Any], keywords: dict[str, Any]
) -> None:
    """Warn of labels that the input holds and the result `found` (*grid,) does not."""
    lost = np.setdiff1d(given_labels(prediction, keywords), found)
    if prediction.dtype.kind != "f":
        lost = lost[lost != keywords.get("unknown", 255)]
    if not len(lost):
        return
    names = ", ".join(map(str, lost[:_MOST_NAMED])) + (", ..." if len(lost) > _MOST_NAMED else "")
    remedy = "" if "model" in keywords else "; lower --bilateral-weight or --spatial-weight"
    some = f"labels {names} of {path} are" if len(lost) > 1 else f"label {names} of {path} is"
    warnings.warn(f"{some} gone from the result{remedy}.", stacklevel=2)
