"""`crfield refine`: label maps and probabilities in files, sharpened along the image."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import numpy.typing as npt

import crfield
from crfield._core.validate import InputError, MemoryRefusal
from crfield.cli.jobs import Job, pair_files
from crfield.cli.masks import check_mask
from crfield.cli.outputs import among_results, reserved
from crfield.cli.progress import shows_bar, told_iteration
from crfield.cli.refine_blocks import (
    course_of_blocks,
    refine_in_blocks,
    run_blocks,
    tell_single_label,
)
from crfield.cli.refine_folder import Claim, Record, refine_folder
from crfield.cli.refine_options import (
    add_files,
    add_inference_options,
    add_model_options,
    extra_outputs,
    refine_arguments,
)
from crfield.cli.words import counted, say
from crfield.dense.inputs import find_form, grid_hint, without_labels, without_ones
from crfield.io.arrays import write_array
from crfield.io.images import (
    LABEL_SUFFIXES,
    NIFTI_SUFFIXES,
    PROBABILITY_SUFFIXES,
    SOFT_MASK_SUFFIXES,
    ImageFile,
    check_output,
    default_suffix,
    file_suffix,
    read_image,
    read_labels,
    read_probabilities,
    write_labels,
    write_picture,
)
from crfield.show import pictures
from crfield.unary.costs import MASK, UNKNOWN, Segmentation, look_soft, read_segmentation

DESCRIPTION = """\
Refine a segmentation so that its borders follow the edges of the image. Give the image and the
output of a network (--probabilities), a coarse label image (--labels) or one in which a few pixels
are painted (--scribbles). The refined labels are written as IMAGE_refined.png into the current
folder, or where -o says: in a folder they have the names of the images."""
EPILOG = """\
examples:
  crfield refine photo.jpg --labels mask.png --overlay
  crfield refine photo.jpg --scribbles strokes.png --overlay    a few strokes, 255 elsewhere
  crfield refine photo.jpg --probabilities network.npy --logits -o refined.png
  crfield refine photos/ --labels masks/ -o refined/ --json > report.json
  crfield refine scan.nii.gz --probabilities softmax.npy
  crfield refine scan.npy --probabilities softmax.npy --block 256 -o refined.npy

Files in folders are matched by their stems: photos/cat.jpg with masks/cat.png."""

_MOST_NAMED = 8  # labels in one sentence
_REAL_AREA = 0.01  # share of an image from which a label is no speck
_VANISHED = 0.01  # a label has that keeps less than this share of its area
# Pixels of a picture beyond which blocks take less memory and no more time; and those of a block
# along each axis: of 24 megapixels and 3 labels an eighth of the memory and 3/4 of the time, while
# 2 labels in 100,000 differ.
_LARGE, _BLOCK = 20_000_000, 1024

Result = crfield.InferenceResult | crfield.BlockResult


def add_command(commands: Any) -> None:
    """Add the subcommand `refine`."""
    parser = commands.add_parser(
        "refine",
        help="make a segmentation follow the image",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        # Options that are not given stay out of the namespace, so that the defaults of
        # `crfield.refine` hold and clashes between given options can be told.
        argument_default=argparse.SUPPRESS,
    )
    parser.set_defaults(run=run)
    add_files(parser)
    add_model_options(parser)
    add_inference_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Refine one image or many; the exit code is 1 if some of many failed."""
    keywords = refine_arguments(arguments)
    if arguments.model is not None:
        keywords["model"] = crfield.DenseCRF.load(arguments.model)
    labels = getattr(arguments, "labels", getattr(arguments, "scribbles", None))
    if hasattr(arguments, "scribbles"):
        keywords["scribbles"] = True
    predictions, suffixes = (
        (labels, LABEL_SUFFIXES)
        if labels is not None
        else (arguments.probabilities, (*PROBABILITY_SUFFIXES, *SOFT_MASK_SUFFIXES))
    )
    paired = pair_files(arguments.images, predictions, suffixes, arguments.output)
    refine_it = refine_file if getattr(arguments, "block", None) is None else refine_in_blocks
    if paired.is_batch:
        return refine_folder(paired, refine_it, arguments, keywords, _line)

    @contextmanager
    def claim(outputs: Sequence[Path]) -> Iterator[None]:
        inputs = [Path(name) for name in paired.pairs[0]]
        inputs += [] if arguments.model is None else [arguments.model]
        with (
            reserved(outputs, inputs=inputs, overwrite=arguments.overwrite),
            among_results(outputs[0]),
        ):
            yield

    record = refine_it(paired.job(paired.pairs[0]), arguments, keywords, claim)
    if arguments.json:
        print(json.dumps(record, indent=2))
    else:
        say(_line(record))
    return 0


def refine_file(
    job: Job, arguments: argparse.Namespace, keywords: dict[str, Any], claim: Claim
) -> Record:
    """Refine one image, write everything asked for, within `claim` of it, and tell what happened.
    """
    if file_suffix(job.image).lower() == ".npy":
        raise InputError(
            f"expected a picture or a scan, but {job.image} is an array, which is read in blocks; "
            "add --block 512."
        )
    image = read_image(job.image, arguments.max_pixels)
    segmentation, prediction, like = _read_prediction(job, image, arguments, keywords)
    keywords = {**keywords, "unknown": segmentation.unknown}
    like = like if like.palette or like.mode else replace(like, palette=_palette(keywords))
    output = job.output_with(default_suffix(job.image, len(image.grid), like.nifti))
    check_output(output, len(image.grid))
    extras = extra_outputs(output, arguments)
    with claim((output, *extras.values())):
        start = time.perf_counter()
        read = {**keywords, "layout": "channels_last", "logits": segmentation.logits}
        result = _refined(job, image, prediction, arguments, read)
        seconds = time.perf_counter() - start
        write_labels(output, result.labels, like)
        before = segmentation.given_labels(prediction)
        _write_extras(extras, image, before, result, like, keywords)
    _warn_of_lost_labels(job.prediction, before, result.labels, keywords)
    ids, counts = np.unique(result.labels, return_counts=True)
    return {
        "input": str(job.image),
        "prediction": str(job.prediction),
        "output": str(output),
        "also_written": [str(path) for path in extras.values()],
        **_course(result, keywords),
        **tell_single_label(result, arguments),
        "seconds": round(seconds, 6),
        "label_counts": {str(i): int(n) for i, n in zip(ids, counts, strict=True)},
    }


def _refined(
    job: Job, image: ImageFile, prediction: npt.NDArray[Any], arguments: argparse.Namespace,
    keywords: dict[str, Any],
) -> Result:
    """The whole image at once, or in blocks where it is large, or larger than memory allows."""
    may_be_cut = "scribbles" not in keywords and not getattr(keywords.get("model"), "context", ())
    if not (may_be_cut and len(image.grid) == 2 and math.prod(image.grid) > _LARGE):
        try:
            return crfield.refine(
                image.array, prediction,
                # Volumes of colors would be taken for several images without it.
                spacing=image.spacing or (1.0,) * len(image.grid), progress=shows_bar(arguments),
                callback=told_iteration(job.image) if arguments.verbose else None, **keywords,
            )
        except MemoryRefusal:
            if not may_be_cut:
                raise
    return run_blocks(
        job, image.array, prediction, arguments, keywords, spacing=image.spacing,
        block=_BLOCK if len(image.grid) == 2 else None,
        marginals=arguments.marginals or arguments.entropy,
    )


def _course(result: Result, keywords: dict[str, Any]) -> dict[str, Any]:
    """How it went, for the record of an image.

    settles : whether inference was asked to go on until it converges, which it need not otherwise:
        a number of iterations that is usual, or with which the model was learned, is enough.
    """
    if isinstance(result, crfield.BlockResult):
        return course_of_blocks(result)
    learned = getattr(keywords.get("model"), "max_iter", None) is not None
    return {
        "n_iter": int(result.n_iter),
        "settles": "tol" in keywords and ("max_iter" in keywords or not learned),
        "converged": bool(result.converged),
        "status": str(result.status.value),
        "free_energies": [float(energy) for energy in result.free_energies],
    }


def _read_prediction(
    job: Job, image: ImageFile, arguments: argparse.Namespace, keywords: dict[str, Any]
) -> tuple[Segmentation, npt.NDArray[Any], ImageFile]:
    """What the labels or probabilities mean, their values at the size of the image, labels last,
    and the file whose kind the result takes after.
    """
    model = keywords.get("model")
    n_labels = None if model is None else model.n_labels
    shape = (*image.grid, 1)  # of an image with one channel: a volume's slices are no channels
    if hasattr(arguments, "probabilities"):
        layout = keywords.get("layout")
        values = read_probabilities(
            job.prediction, arguments.max_pixels, layout, beside=image
        )
        if not any(
            find_form(values.shape, shape, layout, known)
            for known in (n_labels, None)
        ):
            _check_grids(job, image, values.shape, 0 if layout == "channels_first" else -1)
        found, values = read_segmentation(
            values, shape, layout=layout, logits=keywords.get("logits", False),
            likely_labels=n_labels,
        )
        return found, values, image
    labels = read_labels(job.prediction, arguments.max_pixels, image)
    if labels.nifti is None:
        array = without_ones(labels.array, shape)
        labels = replace(labels, array=array, grid=array.shape)
    _check_grids(job, image, labels.grid, None)
    check_mask(job.prediction, [labels.array], arguments, keywords)
    _check_ids(labels, keywords)
    options = {name: keywords[name] for name in ("scribbles", "unknown") if name in keywords}
    found, values = read_segmentation(labels.array, shape, n_labels=n_labels, **options)
    return found, values, replace(labels, nifti=labels.nifti or image.nifti)


def _check_grids(
    job: Job, image: ImageFile, shape: tuple[int, ...], label_axis: int | None
) -> None:
    """Refuse a prediction of other pixels; `label_axis` is 0, -1 or None."""
    if image.grid == without_labels(shape, label_axis):
        return
    is_nifti = image.nifti is not None and file_suffix(job.prediction).lower() in NIFTI_SUFFIXES
    if is_nifti and label_axis is not None:
        remedy = "store the labels along the last axis, (X, Y, Z, labels)"
    else:
        remedy = grid_hint(shape, image.array.shape, label_axis)
    if image.turned:
        remedy += "; the image was turned as its EXIF orientation says"
    points = "voxels" if len(image.grid) > 2 else "pixels"
    raise InputError(
        f"expected {job.prediction} to cover the {points} of {job.image}, "
        f"{' x '.join(map(str, image.grid))}, but it has shape {shape}; {remedy}."
    )


def _check_ids(labels: ImageFile, keywords: dict[str, Any]) -> None:
    """Refuse a picture of grays, and a map that shows one label beside unknown pixels, or none, and
    tell the usual reason: a mask of 0 and 255. A network may well find one label everywhere.
    """
    unknown, painted = keywords.get("unknown", UNKNOWN), keywords.get("scribbles", False)
    ids = np.unique(labels.array)
    if labels.mode == "L" and not painted and "model" not in keywords and look_soft(ids):
        raise InputError(
            f"expected label ids, but {labels.path} holds {len(ids)} grays and looks like a soft "
            f"mask; pass it with --probabilities {quote(str(labels.path))}, or save it with a "
            "palette if they are ids."
        )
    is_open = "unknown" not in keywords and not painted
    if is_open and (len(ids) == 1 or set(ids.tolist()) == MASK):
        return
    known = ids[ids != unknown] if unknown is not None else ids
    is_whole = len(known) == len(ids) and not painted
    if len(known) >= 2 or is_whole or keywords.get("model") is not None:
        return
    if len(ids) == 2 and not painted:
        raise InputError(
            f"expected at least two labels, but {labels.path} holds {ids[0]} and {ids[1]}, of "
            f"which {unknown} means unknown; add --unknown none if {unknown} is a label too."
        )
    wanted, remedy = (
        ("at least two labels", "paint some pixels of each") if painted
        else ("labels", f"add --unknown none if {ids[0]} is one")
    )
    raise InputError(
        f"expected {wanted}, but {labels.path} holds only {ids[0]}"
        f"{f' beside {unknown}, unpainted' if len(ids) == 2 else ''}; {remedy}."
    )


def _write_extras(
    paths: dict[str, Path],
    image: ImageFile,
    before: npt.NDArray[Any],
    result: Any,
    like: ImageFile,
    keywords: dict[str, Any],
) -> None:
    """Write the files that `extra_outputs` names."""
    stored = like.palette or _palette(keywords)
    palette = np.frombuffer(stored.ljust(768, b"\0"), np.uint8).reshape(-1, 3)
    if "overlay" in paths:
        tinted = pictures.overlay(image.array, result.labels, palette=palette)
        if len(np.unique(result.labels)) > 2:
            tinted = pictures.with_legend(tinted, result.labels, palette)
        write_picture(paths["overlay"], tinted)
    if "side_by_side" in paths:
        shown = [pictures.colorize(labels, palette) for labels in (before, result.labels)]
        photo = pictures.show(image.array, len(image.grid))
        row = pictures.side_by_side(photo, *shown, titles=("image", "input", "refined"))
        write_picture(paths["side_by_side"], row)
    if "entropy" in paths:
        write_picture(paths["entropy"], pictures.entropy_map(result.marginals))
    if "marginals" in paths:
        write_array(paths["marginals"], result.marginals)


def _palette(keywords: dict[str, Any]) -> bytes:
    """Colors for ids 0 to 255, where unknown pixels look empty."""
    palette = pictures.label_palette(256)
    unknown = keywords.get("unknown", UNKNOWN)
    if unknown is not None and 0 <= unknown < 256:
        palette[unknown] = 224
    return palette.tobytes()


def _warn_of_lost_labels(
    path: Path, before: npt.NDArray[Any], found: npt.NDArray[Any], keywords: dict[str, Any]
) -> None:
    """Warn of labels of real area in the input that vanish from the result, both (*grid,)."""
    lost = []
    for label, count in zip(*np.unique(before, return_counts=True), strict=True):
        if label == keywords["unknown"] or count < _REAL_AREA * found.size:
            continue
        kept = np.count_nonzero(found == label)
        if kept < _VANISHED * count:
            shares = (100 * count / found.size, 100 * kept / found.size)
            lost.append("label {} shrinks from {:.2g} % of the image to {:.2g} %".format(
                label, *shares
            ))
    if not lost:
        return
    names = ", ".join(lost[:_MOST_NAMED]) + (", ..." if len(lost) > _MOST_NAMED else "")
    remedy = "" if "model" in keywords else "; lower --bilateral-weight or --spatial-weight"
    # Not a warning of Python's, which keeps the text of each for as long as the process runs.
    say(f"crfield: warning: in the result of {path}, {names}{remedy}.", sys.stderr)


def _line(record: Record) -> str:
    if "single_label" in record:
        return (
            f"{record['input']} -> {record['output']}: {record['prediction']} holds a single label "
            "and was written as it was"
        )
    if "n_blocks" in record:
        share = record["seams"]["differing"]
        seams = "seams not compared" if share is None else (
            f"{100 * share:.2g} % of labels differ at their seams"
        )
        return (
            f"{record['input']} -> {record['output']}: {counted(record['n_blocks'], 'block')}, "
            f"{seams}, {record['seconds']:.2f} s"
        )
    steps = counted(record["n_iter"], "iteration")
    if record["status"] != crfield.InferenceStatus.MAX_ITER.value:
        steps += ", converged" if record["converged"] else ", as far as rounding allows"
    elif record["settles"]:
        steps += ", not converged to --tol (raise --max-iter)"
    return f"{record['input']} -> {record['output']}: {steps}, {record['seconds']:.2f} s"
