"""`crfield refine`: label maps and probabilities in files, sharpened along the image."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import crfield
from crfield import pictures
from crfield._validate import InputError
from crfield.cli.jobs import Job, Plan, check_no_input_is_overwritten, plan_jobs
from crfield.cli.options import (
    add_files,
    add_inference_options,
    add_model_options,
    refine_arguments,
)
from crfield.imagefiles import (
    LABEL_SUFFIXES,
    PROBABILITY_SUFFIXES,
    TIFF_SUFFIXES,
    ImageFile,
    check_output,
    file_stem,
    file_suffix,
    read_image,
    read_labels,
    read_probabilities,
    write_array,
    write_labels,
    write_picture,
)

DESCRIPTION = """\
Refine a segmentation so that its borders follow the edges of the image. Give the image and either
the probabilities of a network (--probs) or a coarse label image (--labels). The refined labels are
written as IMAGE_refined.png into the current folder, or where -o says."""
EPILOG = """\
examples:
  crfield refine photo.jpg --labels mask.png --overlay
  crfield refine photo.jpg --labels mask.png --unknown none     a mask of 0 and 255
  crfield refine photo.jpg --probs softmax.npy --layout channels_first -o refined.png
  crfield refine photos/ --labels masks/ -o refined/ --json > report.json
  crfield refine scan.nii.gz --labels seg.nii.gz --spatial 2 --bilateral 10 20

Files in folders are matched by their stems: photos/cat.jpg with masks/cat.png."""

Record = dict[str, Any]


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
    labels = getattr(arguments, "labels", None)
    predictions, suffixes = (
        (labels, LABEL_SUFFIXES)
        if labels is not None
        else (arguments.probs, PROBABILITY_SUFFIXES)
    )
    plan = plan_jobs(arguments.images, predictions, suffixes, arguments.output)
    inputs = [path for job in plan.jobs for path in (job.image, job.prediction)]
    inputs += [arguments.model] if arguments.model is not None else []

    def refine_one(job: Job) -> Record:
        return refine_file(job, arguments, keywords, inputs)

    if not plan.is_batch:
        record = refine_one(plan.jobs[0])
        print(json.dumps(record, indent=2) if arguments.json else _line(record))
        return 0
    records = _refine_all(plan, refine_one, quiet=arguments.json)
    if arguments.json:
        print(json.dumps(records, indent=2))
    return _report_failures(plan, records)


def _refine_all(plan: Plan, refine_one: Callable[[Job], Record], quiet: bool) -> list[Record]:
    """Records of all images; what fails gets a record with its error."""
    from tqdm import tqdm

    records: list[Record] = [
        {"input": str(image), "error": f"{image} {reason}"}
        for image, reason in plan.failures.items()
    ]
    for job in tqdm(plan.jobs, unit="image", disable=not sys.stderr.isatty()):
        try:
            record = refine_one(job)
        except (InputError, OSError, MemoryError) as error:
            record = {"input": str(job.image), "error": str(error) or type(error).__name__}
        else:
            if not quiet:
                tqdm.write(_line(record))
        records.append(record)
    return records


def _report_failures(plan: Plan, records: list[Record]) -> int:
    for path in plan.lonely_predictions:
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
    image = read_image(job.image, arguments.max_pixels)
    prediction, like = _read_prediction(job, image, arguments, keywords)
    output = job.output_with(_default_suffix(image, like))
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
    ids, counts = np.unique(result.labels, return_counts=True)
    return {
        "input": str(job.image),
        "prediction": str(job.prediction),
        "output": str(output),
        "also_written": [str(path) for path in extras.values()],
        "n_iter": int(result.n_iter),
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
    if hasattr(arguments, "probs"):
        layout = keywords.get("layout", "channels_last")
        values = read_probabilities(job.prediction, arguments.max_pixels, layout)
        grid = values.shape[:-1] if layout == "channels_last" else values.shape[1:]
        _check_grids(job, image, grid)
        return values, replace(image, palette=palette)
    labels = read_labels(job.prediction, arguments.max_pixels)
    _check_grids(job, image, labels.grid)
    _check_two_labels(labels, keywords)
    if labels.mode is None:  # neither .npy nor volumes have colours to keep
        labels = replace(labels, palette=palette, nifti=labels.nifti or image.nifti)
    return labels.array, labels


def _check_grids(job: Job, image: ImageFile, grid: tuple[int, ...]) -> None:
    if image.grid == grid:
        return
    remedy = "resize one of them"
    if image.turned:
        remedy += "; the image was turned as its EXIF orientation says"
    raise InputError(
        f"expected {job.prediction} to cover the pixels of {job.image}, "
        f"{' x '.join(map(str, image.grid))}, but it covers {' x '.join(map(str, grid))}; "
        f"{remedy}."
    )


def _check_two_labels(labels: ImageFile, keywords: dict[str, Any]) -> None:
    """Refuse a map of one label, and tell the usual reason: a mask of 0 and 255."""
    unknown = keywords.get("unknown", 255)
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


def _default_suffix(image: ImageFile, like: ImageFile) -> str:
    """Suffix for a result whose name the user has not chosen."""
    if len(image.grid) == 2:
        return ".nii.gz" if like.nifti is not None else ".png"
    if like.nifti is not None:
        return ".nii.gz"
    return ".tif" if file_suffix(image.path).lower() in TIFF_SUFFIXES else ".npy"


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
    stored = like.palette or _palette(keywords)
    palette = np.frombuffer(stored.ljust(768, b"\0"), np.uint8).reshape(-1, 3)
    if "overlay" in paths:
        tinted = pictures.overlay(image.array, result.labels, palette=palette)
        write_picture(paths["overlay"], tinted)
    if "side_by_side" in paths:
        axis = 0 if keywords.get("layout") == "channels_first" else -1
        before = prediction.argmax(axis) if prediction.dtype.kind == "f" else prediction
        shown = [pictures.colorize(labels, palette) for labels in (before, result.labels)]
        photo = pictures.show(image.array, len(image.grid))
        row = pictures.side_by_side(photo, *shown, titles=("image", "input", "refined"))
        write_picture(paths["side_by_side"], row)
    if "entropy" in paths:
        write_picture(paths["entropy"], pictures.entropy_map(result.marginals))
    if "marginals" in paths:
        write_array(paths["marginals"], result.marginals)


def _palette(keywords: dict[str, Any]) -> bytes:
    """Colours for ids 0 to 255, where unknown pixels look empty."""
    palette = pictures.label_palette(256)
    unknown = keywords.get("unknown", 255)
    if unknown is not None and 0 <= unknown < 256:
        palette[unknown] = 224
    return palette.tobytes()


def _show_iteration(job: Job) -> Callable[[int, Any, float], None]:
    from tqdm import tqdm

    def show(iteration: int, _marginals: Any, free_energy: float) -> None:
        line = f"{job.image}: iteration {iteration}, free energy {free_energy:.6g}"
        tqdm.write(line, file=sys.stderr)

    return show


def _line(record: Record) -> str:
    state = "converged" if record["converged"] else "not converged"
    return (
        f"{record['input']} -> {record['output']}: {record['n_iter']} iterations, {state}, "
        f"{record['seconds']:.2f} s"
    )
