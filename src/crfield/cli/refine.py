"""`crfield refine`: label maps and probabilities in files, sharpened along the image."""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import crfield
from crfield._core.validate import InputError
from crfield.cli.jobs import Job, Pairing, check_no_input_is_overwritten, pair_files
from crfield.cli.refine_blocks import refine_in_blocks
from crfield.cli.refine_options import (
    add_files,
    add_inference_options,
    add_model_options,
    refine_arguments,
)
from crfield.cli.words import counted, in_options
from crfield.dense.inputs import grid_hint, without_labels
from crfield.io.arrays import write_array
from crfield.io.images import (
    LABEL_SUFFIXES,
    PROBABILITY_SUFFIXES,
    ImageFile,
    check_output,
    default_suffix,
    file_stem,
    file_suffix,
    read_image,
    read_labels,
    read_probabilities,
    write_labels,
    write_picture,
)
from crfield.show import pictures
from crfield.unary.costs import UNKNOWN

DESCRIPTION = """\
Refine a segmentation so that its borders follow the edges of the image. Give the image and the
output of a network (--probabilities), a coarse label image (--labels) or one in which a few pixels
are painted (--scribbles). The refined labels are written as IMAGE_refined.png into the current
folder, or where -o says."""
EPILOG = """\
examples:
  crfield refine photo.jpg --labels mask.png --overlay
  crfield refine photo.jpg --labels mask.png --unknown none     a mask of 0 and 255
  crfield refine photo.jpg --scribbles strokes.png --overlay    a few strokes, 255 elsewhere
  crfield refine photo.jpg --probabilities softmax.npy --layout channels_first -o refined.png
  crfield refine photos/ --labels masks/ -o refined/ --json > report.json
  crfield refine scan.nii.gz --probabilities softmax.npy --spatial 1.5 --bilateral 3 10
  crfield refine scan.npy --probabilities softmax.npy --bilateral 3 10 --block 256 -o refined.npy

Files in folders are matched by their stems: photos/cat.jpg with masks/cat.png."""

Record = dict[str, Any]
_MOST_NAMED = 8  # labels in one sentence


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
        else (arguments.probabilities, PROBABILITY_SUFFIXES)
    )
    paired = pair_files(arguments.images, predictions, suffixes, arguments.output)
    inputs = [path for job in paired.jobs for path in (job.image, job.prediction)]
    inputs += [arguments.model] if arguments.model is not None else []

    refine_it = refine_file if getattr(arguments, "block", None) is None else refine_in_blocks

    def refine_one(job: Job) -> Record:
        return refine_it(job, arguments, keywords, inputs)

    if not paired.is_batch:
        record = refine_one(paired.jobs[0])
        print(json.dumps(record, indent=2) if arguments.json else _line(record))
        return 0
    records = _refine_all(paired, refine_one, quiet=arguments.json)
    if arguments.json:
        print(json.dumps(records, indent=2))
    return _report_failures(paired, records)


def _refine_all(paired: Pairing, refine_one: Callable[[Job], Record], quiet: bool) -> list[Record]:
    """Records of all images; what fails gets a record with its error."""
    from tqdm import tqdm

    records: list[Record] = [
        {"input": str(image), "error": f"{image} {reason}"}
        for image, reason in paired.failures.items()
    ]
    for job in tqdm(paired.jobs, unit="image", disable=not sys.stderr.isatty()):
        try:
            record = refine_one(job)
        except (InputError, OSError, MemoryError) as error:
            sentence = in_options(str(error)) or type(error).__name__
            record = {"input": str(job.image), "error": sentence}
        else:
            if not quiet:
                tqdm.write(_line(record))
        records.append(record)
    return records


def _report_failures(paired: Pairing, records: list[Record]) -> int:
    for path in paired.lonely_predictions:
        print(f"crfield: warning: there is no image for {path}.", file=sys.stderr)
    failed = [record for record in records if "error" in record]
    for record in failed:
        print(f"crfield: error: {record['error']}", file=sys.stderr)
    if failed:
        print(f"crfield: {len(failed)} of {len(records)} images failed.", file=sys.stderr)
    return 1 if failed else 0


def refine_file(
    job: Job, arguments: argparse.Namespace, keywords: dict[str, Any], inputs: list[Path]
) -> Record:
    """Refine one image, write everything asked for and tell what happened."""
    if file_suffix(job.image).lower() == ".npy":
        raise InputError(
            f"expected a picture or a scan, but {job.image} is an array, which is read in blocks; "
            "add --block 512."
        )
    image = read_image(job.image, arguments.max_pixels)
    prediction, like = _read_prediction(job, image, arguments, keywords)
    output = job.output_with(default_suffix(job.image, len(image.grid), like.nifti))
    check_output(output, len(image.grid))
    extras = _extra_outputs(output, arguments)
    check_no_input_is_overwritten((output, *extras.values()), inputs)

    start = time.perf_counter()
    result = crfield.refine(
        image.array,
        prediction,
        spacing=image.spacing,
        callback=_show_iteration(job) if arguments.verbose else None,
        **keywords,
    )
    seconds = time.perf_counter() - start

    write_labels(output, result.labels, like)
    _write_extras(extras, image, prediction, result, like, keywords)
    _warn_of_lost_labels(job.prediction, prediction, result.labels, keywords)
    ids, counts = np.unique(result.labels, return_counts=True)
    learned_iterations = getattr(keywords.get("model"), "max_iter", None)
    return {
        "input": str(job.image),
        "prediction": str(job.prediction),
        "output": str(output),
        "also_written": [str(path) for path in extras.values()],
        "n_iter": int(result.n_iter),
        "as_learned": "max_iter" not in keywords and learned_iterations is not None,
        "converged": bool(result.converged),
        "status": str(result.status.value),
        "free_energies": [float(energy) for energy in result.free_energies],
        "seconds": round(seconds, 6),
        "label_counts": {str(i): int(n) for i, n in zip(ids, counts, strict=True)},
    }


def _read_prediction(
    job: Job, image: ImageFile, arguments: argparse.Namespace, keywords: dict[str, Any]
) -> tuple[npt.NDArray[Any], ImageFile]:
    """Labels or probabilities, and the file whose kind the result takes after."""
    palette = _palette(keywords)
    if hasattr(arguments, "probabilities"):
        layout = keywords.get("layout", "channels_last")
        values = read_probabilities(job.prediction, arguments.max_pixels, layout)
        label_axis = -1 if layout == "channels_last" else 0
        foreground = values.ndim == 2 and values.shape == image.grid
        _check_grids(job, image, values.shape, None if foreground else label_axis)
        return values, replace(image, palette=palette)
    labels = read_labels(job.prediction, arguments.max_pixels)
    _check_grids(job, image, labels.grid, None)
    _check_two_labels(labels, keywords)
    if labels.mode is None:  # neither .npy nor volumes have colors to keep
        labels = replace(labels, palette=palette, nifti=labels.nifti or image.nifti)
    return labels.array, labels


def _check_grids(
    job: Job, image: ImageFile, shape: tuple[int, ...], label_axis: int | None
) -> None:
    """Refuse a prediction of other pixels; `label_axis` is 0, -1 or None."""
    if image.grid == without_labels(shape, label_axis):
        return
    remedy = grid_hint(shape, image.array.shape, label_axis)
    if image.turned:
        remedy += "; the image was turned as its EXIF orientation says"
    raise InputError(
        f"expected {job.prediction} to cover the pixels of {job.image}, "
        f"{' x '.join(map(str, image.grid))}, but it has shape {shape}; {remedy}."
    )


def _check_two_labels(labels: ImageFile, keywords: dict[str, Any]) -> None:
    """Refuse a map of one label, and tell the usual reason: a mask of 0 and 255."""
    unknown = keywords.get("unknown", UNKNOWN)
    ids = np.unique(labels.array)
    known = ids[ids != unknown] if unknown is not None else ids
    if len(known) >= 2 or keywords.get("model") is not None:
        return
    if len(ids) == 2:
        raise InputError(
            f"expected at least two labels, but {labels.path} holds {ids[0]} and {ids[1]}, of "
            f"which {unknown} means unknown; add --unknown none if {unknown} is a label too."
        )
    raise InputError(
        f"expected at least two labels, but {labels.path} holds only {ids[0]}; "
        "there is nothing to refine in it."
    )


def _extra_outputs(output: Path, arguments: argparse.Namespace) -> dict[str, Path]:
    """Files asked for beside the labels, by the name of their option."""
    suffixes = {"overlay": "png", "side_by_side": "png", "entropy": "png", "marginals": "npy"}
    return {
        name: output.with_name(f"{file_stem(output)}_{name}.{suffix}")
        for name, suffix in suffixes.items()
        if getattr(arguments, name)
    }


def _write_extras(
    paths: dict[str, Path],
    image: ImageFile,
    prediction: npt.NDArray[Any],
    result: Any,
    like: ImageFile,
    keywords: dict[str, Any],
) -> None:
    """Write the files that `_extra_outputs` names."""
    stored = like.palette or _palette(keywords)
    palette = np.frombuffer(stored.ljust(768, b"\0"), np.uint8).reshape(-1, 3)
    if "overlay" in paths:
        tinted = pictures.overlay(image.array, result.labels, palette=palette)
        write_picture(paths["overlay"], tinted)
    if "side_by_side" in paths:
        before = _given_labels(prediction, image.grid, keywords.get("layout", "channels_last"))
        shown = [pictures.colorize(labels, palette) for labels in (before, result.labels)]
        photo = pictures.show(image.array, len(image.grid))
        row = pictures.side_by_side(photo, *shown, titles=("image", "input", "refined"))
        write_picture(paths["side_by_side"], row)
    if "entropy" in paths:
        write_picture(paths["entropy"], pictures.entropy_map(result.marginals))
    if "marginals" in paths:
        write_array(paths["marginals"], result.marginals)


def _given_labels(
    values: npt.NDArray[Any], grid: tuple[int, ...], layout: str = "channels_last"
) -> npt.NDArray[Any]:
    """The labels (*grid,) that the `values` of a segmentation show by themselves: those of a map as
    they are, the likeliest of probabilities (*grid, L), or (L, *grid) in the `layout`
    "channels_first", and 1 where a foreground (*grid,) is likelier than not.
    """
    if values.dtype.kind != "f":
        return values
    if values.shape == grid:
        return np.asarray(values > 0.5, np.int64)
    return np.asarray(values.argmax(0 if layout == "channels_first" else -1))


def _palette(keywords: dict[str, Any]) -> bytes:
    """Colors for ids 0 to 255, where unknown pixels look empty."""
    palette = pictures.label_palette(256)
    unknown = keywords.get("unknown", UNKNOWN)
    if unknown is not None and 0 <= unknown < 256:
        palette[unknown] = 224
    return palette.tobytes()


def _warn_of_lost_labels(
    path: Path, prediction: npt.NDArray[Any], found: npt.NDArray[Any], keywords: dict[str, Any]
) -> None:
    """Warn of labels that the input holds and the result `found` (*grid,) does not."""
    layout = keywords.get("layout", "channels_last")
    lost = np.setdiff1d(_given_labels(prediction, found.shape, layout), found)
    if prediction.dtype.kind != "f":
        lost = lost[lost != keywords.get("unknown", UNKNOWN)]
    if not len(lost):
        return
    names = ", ".join(map(str, lost[:_MOST_NAMED])) + (", ..." if len(lost) > _MOST_NAMED else "")
    remedy = "" if "model" in keywords else "; lower --bilateral-weight or --spatial-weight"
    some = f"labels {names} of {path} are" if len(lost) > 1 else f"label {names} of {path} is"
    warnings.warn(f"{some} gone from the result{remedy}.", stacklevel=2)


def _show_iteration(job: Job) -> Callable[[int, Any, float], None]:
    from tqdm import tqdm

    def show(iteration: int, _marginals: Any, free_energy: float) -> None:
        line = f"{job.image}: iteration {iteration}, free energy {free_energy:.6g}"
        tqdm.write(line, file=sys.stderr)

    return show


def _line(record: Record) -> str:
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
    if record["status"] == crfield.InferenceStatus.MAX_ITER.value:
        learned = record["as_learned"]
        steps += ", as learned" if learned else " (the limit; raise --max-iter to go on)"
    else:
        steps += ", converged" if record["converged"] else ", as far as rounding allows"
    return f"{record['input']} -> {record['output']}: {steps}, {record['seconds']:.2f} s"
