"""`crfield refine --block`: files that are read and written part by part."""

from __future__ import annotations

import argparse
import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np

import crfield
from crfield._core.foreign import is_spatial_image
from crfield._core.validate import InputError
from crfield.blocks.inputs import open_inputs
from crfield.blocks.parts import Source
from crfield.cli.jobs import Job, check_no_input_is_overwritten
from crfield.cli.progress import BlockProgress
from crfield.dense.meanfield import Inference
from crfield.io.arrays import check_size
from crfield.io.images import (
    DEFAULT_MAX_PIXELS,
    ImageFile,
    check_output,
    default_suffix,
    file_stem,
    file_suffix,
    open_array,
    read_image,
    read_labels,
    read_probabilities,
    write_labels,
)

_ROWS_AT_ONCE = 2**24  # labels that are counted at a time


def refine_in_blocks(
    job: Job, arguments: argparse.Namespace, keywords: dict[str, Any], inputs: list[Path]
) -> dict[str, Any]:
    """Refine one image block by block, write the labels and tell what happened."""
    for name in ("overlay", "side_by_side", "entropy"):
        if getattr(arguments, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} needs the whole image, which --block avoids; leave one of them out."
            )
    keywords = dict(keywords)
    image = open_array(job.image)
    image = read_image(job.image, arguments.max_pixels).array if image is None else image
    prediction = _open_prediction(job, arguments, keywords)
    nifti = next((each for each in (prediction, image) if is_spatial_image(each)), None)
    layout = keywords.get("layout", "channels_last")
    grid = open_inputs(image, prediction, None, layout).grid
    if arguments.max_pixels != DEFAULT_MAX_PIXELS:  # blocks are for images beyond the default
        check_size(job.image, grid, arguments.max_pixels)
    output = job.output_with(default_suffix(job.image, len(grid), nifti))
    check_output(output, len(grid))
    marginals = output.with_name(f"{file_stem(output)}_marginals.npy")
    extras = [marginals] if arguments.marginals else []
    check_no_input_is_overwritten((output, *extras), inputs)

    mapped = file_suffix(output).lower() == ".npy"
    start = time.perf_counter()
    names = [each.name for each in dataclasses.fields(Inference)]
    inference = Inference(**{name: keywords.pop(name) for name in names if name in keywords})
    with BlockProgress(job.image, verbose=arguments.verbose) as progress:
        result = crfield.refine_blocks(
            image, prediction, block=arguments.block, overlap=getattr(arguments, "overlap", None),
            out=output if mapped else None, marginals=marginals if extras else None,
            callback=progress, inference=inference, **keywords,
        )
    seconds = time.perf_counter() - start
    if not mapped:
        like = ImageFile(job.prediction, result.labels, result.labels.shape, nifti=nifti)
        write_labels(output, result.labels, like)
    return {
        "input": str(job.image),
        "prediction": str(job.prediction),
        "output": str(output),
        "also_written": [str(path) for path in extras],
        "n_blocks": result.n_blocks,
        "block": list(result.block),
        "overlap": list(result.overlap),
        "seams": dataclasses.asdict(result.seams),
        "status": str(result.status.value),
        "seconds": round(seconds, 6),
        "label_counts": _counts(result.labels),
    }


def _open_prediction(job: Job, arguments: argparse.Namespace, keywords: dict[str, Any]) -> Any:
    """Labels or probabilities; label maps that are stored as floats have to be read whole."""
    opened = open_array(job.prediction)
    if hasattr(arguments, "probabilities"):
        if is_spatial_image(opened):
            keywords.pop("layout", None)  # the labels of a NIfTI file lie along its last axis
        if opened is None:
            layout = keywords.get("layout", "channels_last")
            return read_probabilities(job.prediction, arguments.max_pixels, layout)
        return opened
    if opened is not None and Source(opened, str(job.prediction)).dtype.kind in "iub":
        return opened
    return read_labels(job.prediction, arguments.max_pixels).array


def _counts(labels: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    rows = max(1, _ROWS_AT_ONCE // max(1, labels[:1].size))
    for first in range(0, len(labels), rows):
        found = np.unique(labels[first : first + rows], return_counts=True)
        for label, count in zip(*found, strict=True):
            counts[str(label)] = counts.get(str(label), 0) + int(count)
    return counts
