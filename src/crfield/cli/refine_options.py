"""Options of `crfield refine`, and the arguments of `crfield.refine` that they stand for."""

from __future__ import annotations

import argparse
import inspect
import math
from pathlib import Path
from typing import Any

import crfield
from crfield._core.validate import InputError
from crfield.dense.model import DEFAULT_ALGORITHM, DEFAULT_MAX_ITER
from crfield.io.images import DEFAULT_MAX_PIXELS
from crfield.unary.defaults import BILATERAL

# Their names in the parsed arguments are those of the parameters of `crfield.refine`.
MODEL_OPTIONS = ("spatial", "spatial_weight", "bilateral", "bilateral_weight")
LABEL_OPTIONS = ("confidence", "unknown")
OTHER_OPTIONS = ("algorithm", "filter", "max_iter", "tol", "threads", "layout")


def refine_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `crfield.refine` that the user has given, refused where they clash."""
    given = vars(arguments)
    _refuse(given, MODEL_OPTIONS, "model", "--model, which brings its own terms")
    _refuse(given, LABEL_OPTIONS, "probabilities", "--probabilities, which needs no confidence")
    if "overlap" in given and "block" not in given:
        raise InputError("--overlap has no meaning without --block; add --block or leave it out.")
    _refuse(given, ("layout",), "labels", "--labels, which have no axis of labels")
    _refuse(given, ("layout",), "scribbles", "--scribbles, which have no axis of labels")
    _refuse(given, ("confidence",), "scribbles", "--scribbles, which are certain")
    _refuse(given, ("block",), "scribbles", "--scribbles, which need the whole image")
    names = (*MODEL_OPTIONS, *LABEL_OPTIONS, *OTHER_OPTIONS)
    return {name: given[name] for name in names if name in given}


def _refuse(given: dict[str, Any], names: tuple[str, ...], rival: str, why: str) -> None:
    clashing = [name for name in names if name in given]
    if clashing and given.get(rival) is not None:
        option = clashing[0].replace("_", "-")
        raise InputError(f"--{option} has no meaning with {why}; leave one of the two out.")


def add_files(parser: argparse.ArgumentParser) -> None:
    """What to read and what to write."""
    add = parser.add_argument
    add("images", nargs="+", type=Path, metavar="IMAGE",
        help="image (PNG, JPEG, TIFF, NIfTI, ...), several, or a folder of them")
    prediction = parser.add_mutually_exclusive_group(required=True)
    prediction.add_argument(
        "--probabilities", type=Path, metavar="FILE",
        help="probabilities of each label: .npy or .npz of shape (H, W, labels), or a folder",
    )
    prediction.add_argument(
        "--labels", type=Path, metavar="FILE",
        help="label image with one id per pixel (gray or palette PNG, TIFF, NIfTI, .npy), "
        "or a folder",
    )
    prediction.add_argument(
        "--scribbles", type=Path, metavar="FILE",
        help="label image in which only some pixels are painted and all others have the id of "
        "--unknown: what labels look like is learned from them; or a folder",
    )
    add("--layout", choices=("channels_last", "channels_first"),
        help="axes of the probabilities: (H, W, labels) or (labels, H, W); "
        "default: channels_last")
    outputs = parser.add_argument_group("results")
    add = outputs.add_argument
    add("-o", "--output", type=Path, default=None, metavar="OUT",
        help="file of the refined labels, or a folder; for several images a folder")
    flags = {
        "--overlay": "also write the image tinted with the labels, *_overlay.png",
        "--side-by-side": "also write image, input and result in a row, *_side_by_side.png",
        "--entropy": "also write a picture of where the result is unsure, *_entropy.png",
        "--marginals": "also write the probability of every label, *_marginals.npy",
        "--json": "print a report as JSON instead of one line per image",
    }
    for flag, text in flags.items():
        add(flag, action="store_true", default=False, help=text)
    add("-v", "--verbose", action="store_true", default=False, help="show every iteration")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which conditional random field to use."""
    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--model", type=Path, metavar="FILE", default=None,
        help="a saved model, in place of the options below")
    add("--spatial", type=_positive, metavar="S",
        help=f"pixels over which neighbors should agree {_default('spatial')}")
    add("--spatial-weight", type=float, metavar="W",
        help=f"how much they should {_default('spatial_weight')}")
    add("--bilateral", type=_positive, nargs=2, metavar=("XY", "RGB"),
        help="distance in pixels and difference in color (of 0 to 255, or in the units of a scan) "
        f"over which similar pixels should agree (default: {_pair('labels')} with --labels, "
        f"{_pair('scribbles')} with --scribbles, {_pair('probabilities')} with --probabilities)")
    add("--bilateral-weight", type=float, metavar="W",
        help=f"how much they should {_default('bilateral_weight')}")
    add("--no-spatial", dest="spatial", action="store_const", const=None,
        help="leave the spatial term out")
    add("--no-bilateral", dest="bilateral", action="store_const", const=None,
        help="leave the bilateral term out")
    add("--confidence", type=float, metavar="C",
        help="how far to trust the input, with --labels: probability that a label is right; 0.6 "
        "suits blobs drawn by hand "
        f"{_default('confidence')}")
    add("--unknown", type=_label_or_none, metavar="N",
        help="with --labels: id of pixels to be filled in, or none if every id is a label "
        f"{_default('unknown')}")


def add_inference_options(parser: argparse.ArgumentParser) -> None:
    """How to compute with it."""
    group = parser.add_argument_group("inference")
    add = group.add_argument
    add("--algorithm", choices=("concave", "cccp", "parallel"),
        help="mean-field update; the first two always converge (default: the --model's, else "
        f"{DEFAULT_ALGORITHM})")
    add("--filter", choices=("auto", "lattice", "exact"),
        help=f"how to sum over all pairs of pixels {_default('filter')}")
    add("--max-iter", type=int, metavar="N",
        help=f"most iterations (default: the --model's, else {DEFAULT_MAX_ITER})")
    add("--tol", type=float, metavar="T",
        help=f"stop when no probability changes by more {_default('tol')}")
    add("--threads", type=_count, metavar="N", help="threads (default: one per core)")
    add("--block", type=_count, metavar="N",
        help="refine in overlapping blocks of N pixels per side, for images larger than memory; "
        ".npy and NIfTI files are then read, and .npy files written, part by part")
    add("--overlap", type=_count, metavar="N",
        help="with --block: pixels beyond a block that it is computed from (default: twice the "
        "widest kernel)")
    add("--max-pixels", type=_count, default=DEFAULT_MAX_PIXELS, metavar="N",
        help="refuse larger images before decoding them (default: %(default)s)")


def _default(parameter: str) -> str:
    """The default of a parameter of `crfield.refine`, for a help text."""
    value = inspect.signature(crfield.refine).parameters[parameter].default
    values = value if isinstance(value, tuple) else (value,)
    shown = " ".join(f"{v:g}" if isinstance(v, float) else str(v) for v in values)
    return f"(default: {shown})"


def _pair(kind: str) -> str:
    """The widths of the bilateral term for a kind of segmentation."""
    return " ".join(f"{width:g}" for width in BILATERAL[kind])


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return value


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def _label_or_none(text: str) -> int | None:
    try:
        return None if text.lower() == "none" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a label id or none, got {text!r}") from None
