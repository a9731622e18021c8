"""Options of `crfield refine`, and the arguments of `crfield.refine` that they stand for."""

from __future__ import annotations

import argparse
import inspect
import math
from pathlib import Path
from typing import Any

import crfield
from crfield._core.resources import MAX_JOBS
from crfield._core.validate import InputError, as_count
from crfield.dense.model import DEFAULT_ALGORITHM, DEFAULT_MAX_ITER
from crfield.io.images import DEFAULT_MAX_PIXELS, file_stem
from crfield.unary.costs import UNKNOWN
from crfield.unary.defaults import (
    BILATERAL,
    BILATERAL_WEIGHT,
    SPATIAL,
    SPATIAL_WEIGHT,
    VOLUME_BILATERAL_WEIGHT,
    VOLUME_SPATIAL_WEIGHT,
)

# Their names in the parsed arguments are those of the parameters of `crfield.refine`.
MODEL_OPTIONS = ("spatial", "spatial_weight", "bilateral", "bilateral_weight")
LABEL_OPTIONS = ("confidence", "unknown")
OTHER_OPTIONS = (
    "scale", "algorithm", "filter", "max_iter", "tol", "threads", "layout", "logits",
)
# Files beside the labels, by the names of their options, with their suffixes.
EXTRAS = {"overlay": "png", "side_by_side": "png", "entropy": "png", "marginals": "npy"}


def refine_arguments(arguments: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `crfield.refine` that the user has given, refused where they clash."""
    given = vars(arguments)
    as_count(arguments.jobs, "--jobs", maximum=MAX_JOBS)
    for term in ("spatial", "bilateral"):
        _refuse(given, (term, f"{term}_weight"), f"no_{term}", f"--no-{term}")
    terms = (*MODEL_OPTIONS, "no_spatial", "no_bilateral")
    _refuse(given, terms, "model", "--model, which brings its own terms")
    _refuse(given, LABEL_OPTIONS, "probabilities", "--probabilities, which needs no confidence")
    if "overlap" in given and "block" not in given:
        raise InputError("--overlap has no meaning without --block; add --block or leave it out.")
    for kind in ("labels", "scribbles"):
        _refuse(given, ("layout",), kind, f"--{kind}, which have no axis of labels")
        _refuse(given, ("logits",), kind, f"--{kind}, which are no scores")
    _refuse(given, ("confidence",), "scribbles", "--scribbles, which are certain")
    _refuse(given, ("block",), "scribbles", "--scribbles, which need the whole image")
    names = (*MODEL_OPTIONS, *LABEL_OPTIONS, *OTHER_OPTIONS)
    left_out = {term: None for term in ("spatial", "bilateral") if f"no_{term}" in given}
    return {name: given[name] for name in names if name in given} | left_out


def wanted_extras(arguments: argparse.Namespace) -> dict[str, str]:
    """Those of `EXTRAS` that were asked for."""
    return {name: suffix for name, suffix in EXTRAS.items() if getattr(arguments, name)}


def extra_outputs(output: Path, arguments: argparse.Namespace) -> dict[str, Path]:
    """Files asked for beside the labels, by the name of their option."""
    return {
        name: output.with_name(f"{file_stem(output)}_{name}.{suffix}")
        for name, suffix in wanted_extras(arguments).items()
    }


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
        "--probabilities", "--probs", type=Path, metavar="FILE",
        help="probabilities of each label: .npy, .npz, NIfTI or TIFF of shape (H, W, labels) or "
        "(labels, H, W), at the size of the image or coarser, or a soft mask, a gray PNG; or a "
        "folder",
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
        help="axes of the probabilities: (H, W, labels) or (labels, H, W) (default: recognized by "
        "the size of the image)")
    add("--logits", action="store_true",
        help="the numbers of --probabilities are a network's scores before the softmax")
    outputs = parser.add_argument_group("results")
    add = outputs.add_argument
    add("-o", "--output", type=Path, default=None, metavar="OUT",
        help="file of the refined labels, or a folder; for several images a folder")
    add("--overwrite", action="store_true", default=False,
        help="replace files that exist; in a folder, also refine again what is done and has not "
        "changed")
    flags = {
        "--overlay": "also write the image tinted with the labels, *_overlay.png",
        "--side-by-side": "also write image, input and result in a row, *_side_by_side.png",
        "--entropy": "also write a picture of where the result is unsure, *_entropy.png",
        "--marginals": "also write the probability of every label, *_marginals.npy",
        "--json": "print a report as JSON instead of a line",
    }
    for flag, text in flags.items():
        add(flag, action="store_true", default=False, help=text)
    add("-v", "--verbose", action="store_true", default=False,
        help="show every iteration or block, and a line per image")


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Which conditional random field to use."""
    group = parser.add_argument_group("model")
    add = group.add_argument
    add("--model", type=Path, metavar="FILE", default=None,
        help="a saved model, in place of the options below")
    add("--scale", type=_scale, metavar="X",
        help="multiply the widths of the --model by X, for images of another size than it was "
        "learned from; auto: by the size of each image in theirs (default: 1)")
    add("--spatial", type=_positive, metavar="S",
        help=f"pixels over which neighbors should agree (default: {SPATIAL:g} on a photo of about "
        "400 pixels per side, in proportion on others)")
    add("--spatial-weight", type=float, metavar="W",
        help=f"how much they should (default: {SPATIAL_WEIGHT:g}, in volumes "
        f"{VOLUME_SPATIAL_WEIGHT:g})")
    add("--bilateral", type=_positive, nargs=2, metavar=("XY", "RGB"),
        help="distance in pixels and difference in color (of 0 to 255, or in the units of a scan) "
        "over which similar pixels should agree (default: as wide as suits the size of the image, "
        f"with colors {BILATERAL['labels'][1]:g} with --labels, {BILATERAL['scribbles'][1]:g} with "
        f"--scribbles, {BILATERAL['probabilities'][1]:g} with --probabilities; in volumes by what "
        "the segmentation shows)")
    add("--bilateral-weight", type=float, metavar="W",
        help=f"how much they should (default: {BILATERAL_WEIGHT['labels']:g}, with --probabilities "
        f"{BILATERAL_WEIGHT['probabilities']:g}, in volumes {VOLUME_BILATERAL_WEIGHT:g})")
    add("--no-spatial", action="store_true", help="leave the spatial term out")
    add("--no-bilateral", action="store_true", help="leave the bilateral term out")
    add("--confidence", type=float, metavar="C",
        help="how far to trust the input, with --labels: probability that a label is right; 0.6 "
        "suits blobs drawn by hand "
        f"{_default('confidence')}")
    add("--unknown", type=_label_or_none, metavar="N",
        help="with --labels: id of pixels to be filled in, or none if every id is a label "
        f"(default: {UNKNOWN}, but none for masks, which hold 0 and {UNKNOWN} and nothing else)")


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
    add("--threads", type=_count, metavar="N",
        help="threads per image (default: one per core, shared by the --jobs)")
    add("--jobs", type=int, default=1, metavar="N",
        help="images at a time, of several (default: %(default)s)")
    add("--block", type=_count, metavar="N",
        help="refine in overlapping blocks of N pixels per side, as large images are anyway; "
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


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"expected a positive number, got {text!r}")
    return value


def _scale(text: str) -> float | str:
    return text if text == "auto" else _positive(text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a whole number from 1 on, got {text!r}")
    return int(text)


def _label_or_none(text: str) -> int | None:
    try:
        return None if text.lower() == "none" else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected a label id or none, got {text!r}") from None
