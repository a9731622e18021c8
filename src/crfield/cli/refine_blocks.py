"""`crfield refine --block`: files that are read and written part by part."""

from __future__ import annotations

import argparse
import dataclasses
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

import crfield
from crfield._core.alignment import beside_scan
from crfield._core.foreign import is_spatial_image
from crfield._core.validate import InputError
from crfield.blocks.inputs import open_inputs
from crfield.blocks.parts import Source
from crfield.cli.jobs import Job
from crfield.cli.masks import check_mask
from crfield.cli.progress import shows_bar, told_block
from crfield.cli.refine_folder import Claim
from crfield.cli.refine_options import extra_outputs
from crfield.cli.words import say
from crfield.dense.meanfield import Inference
from crfield.io.arrays import check_size
from crfield.io.images import (
    DEFAULT_MAX_PIXELS,
    ImageFile,
    check_output,
    default_suffix,
    file_suffix,
    open_array,
    read_image,
    read_labels,
    read_probabilities,
    write_labels,
)

_LABELS_AT_ONCE = 2**24  # that are looked at or counted


def refine_in_blocks(
    job: Job, arguments: argparse.Namespace, keywords: dict[str, Any], claim: Claim
) -> dict[str, Any]:
    """Refine one image block by block, write the labels, within `claim` of them, and tell what
    happened.
    """
    for name in ("overlay", "side_by_side", "entropy"):
        if getattr(arguments, name):
            option = f"--{name.replace('_', '-')}"
            raise InputError(
                f"{option} needs the whole image, which --block avoids; leave one of them out."
            )
    keywords = dict(keywords)
    image = open_array(job.image)
    image = read_image(job.image, arguments.max_pixels).array if image is None else image
    prediction = _open_prediction(job, image, arguments, keywords)
    nifti = next((each for each in (prediction, image) if is_spatial_image(each)), None)
    model = keywords.get("model")
    inputs = open_inputs(
        image, prediction, None, keywords.get("layout"),
        likely_labels=None if model is None else model.n_labels,
    )
    grid = inputs.grid
    if arguments.max_pixels != DEFAULT_MAX_PIXELS:  # blocks are for images beyond the default
        check_size(job.image, grid, arguments.max_pixels)
    check_mask(job.prediction, _parts(inputs.values), arguments, keywords)
    output = job.output_with(default_suffix(job.image, len(grid), nifti))
    check_output(output, len(grid))
    extras = extra_outputs(output, arguments)
    is_mapped = file_suffix(output).lower() == ".npy"
    with claim((output, *extras.values())), _what_is_kept_is_told():
        start = time.perf_counter()
        result = run_blocks(
            job, image, prediction, arguments, keywords, block=arguments.block,
            overlap=getattr(arguments, "overlap", None), out=output if is_mapped else None,
            marginals=extras.get("marginals"),
        )
        seconds = time.perf_counter() - start
        if not is_mapped:
            like = ImageFile(job.prediction, result.labels, result.labels.shape, nifti=nifti)
            write_labels(output, result.labels, like)
    return {
        "input": str(job.image),
        "prediction": str(job.prediction),
        "output": str(output),
        "also_written": [str(path) for path in extras.values()],
        **course_of_blocks(result),
        **tell_single_label(result, arguments),
        "seconds": round(seconds, 6),
        "label_counts": _counts(result.labels),
    }


def run_blocks(
    job: Job, image: Any, prediction: Any, arguments: argparse.Namespace, keywords: dict[str, Any],
    **options: Any,
) -> crfield.BlockResult:
    """`crfield.refine_blocks` with the keywords of `crfield.refine`, and its progress shown."""
    names = {each.name for each in dataclasses.fields(Inference)}
    inference = Inference(**{name: keywords[name] for name in names & keywords.keys()})
    return crfield.refine_blocks(
        image, prediction, inference=inference, progress=shows_bar(arguments),
        callback=told_block(job.image) if arguments.verbose else None,
        **{name: value for name, value in keywords.items() if name not in names}, **options,
    )


def course_of_blocks(result: crfield.BlockResult) -> dict[str, Any]:
    """How it went, for the record of an image."""
    return {
        "n_blocks": result.n_blocks,
        "block": list(result.block),
        "overlap": list(result.overlap),
        "seams": dataclasses.asdict(result.seams),
        "status": str(result.status.value),
    }


def tell_single_label(result: Any, arguments: argparse.Namespace) -> dict[str, bool]:
    """What the record of an image says where its label map left nothing to refine."""
    is_single = hasattr(arguments, "labels") and len(result.label_ids) == 1
    return {"single_label": True} if is_single else {}


@contextmanager
def _what_is_kept_is_told() -> Iterator[None]:
    """Say what an interrupted run goes on from."""
    try:
        yield
    except KeyboardInterrupt as stop:
        for note in getattr(stop, "__notes__", ()):
            say(f"crfield: {note}", sys.stderr)
        raise


def _open_prediction(
    job: Job, image: Any, arguments: argparse.Namespace, keywords: dict[str, Any]
) -> Any:
    """Labels or probabilities; label maps that are stored as floats have to be read whole."""
    opened = beside_scan(open_array(job.prediction), image, job.prediction, job.image)
    if hasattr(arguments, "probabilities"):
        if is_spatial_image(opened):
            keywords.pop("layout", None)  # the labels of a NIfTI file lie along its last axis
        if opened is None:
            layout = keywords.get("layout")
            return read_probabilities(job.prediction, arguments.max_pixels, layout)
        return opened
    if opened is not None and Source(opened, str(job.prediction)).dtype.kind in "iub":
        return opened
    scan = image if is_spatial_image(image) else None
    beside = ImageFile(job.image, np.empty(0), (), nifti=scan)
    return read_labels(job.prediction, arguments.max_pixels, beside).array


def _parts(source: Source) -> Iterator[NDArray[Any]]:
    rows = max(1, _LABELS_AT_ONCE // max(1, math.prod(source.shape[1:])))
    for first in range(0, source.shape[0], rows):
        yield source.read((slice(first, first + rows),))


def _counts(labels: Any) -> dict[str, int]:
    counts: dict[str, int] = {}
    for part in _parts(Source(labels, "labels")):
        found = np.unique(part, return_counts=True)
        for label, count in zip(*found, strict=True):
            counts[str(label)] = counts.get(str(label), 0) + int(count)
    return counts
