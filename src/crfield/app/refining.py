"""From scribbles or a segmentation, and settings, to a refinement."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from crfield._core import _native
from crfield._core.validate import FloatArray, InputError
from crfield.app.settings import Settings
from crfield.app.workspace import Bytes, Initial, OpenImage, Refinement
from crfield.dense.filters import KeptFilters
from crfield.dense.model import DenseCRF
from crfield.dense.results import InferenceResult, InferenceStatus
from crfield.refinement import model_for
from crfield.show.pictures import entropy_bytes
from crfield.unary.costs import UNKNOWN, Segmentation
from crfield.unary.defaults import Terms
from crfield.unary.scribbles import paint_over, scribble_costs

LARGE = 2_000_000  # pixels: more take seconds, and gigabytes for filters
StepCallback = Callable[[dict[str, Any]], None]


class CancelledError(Exception):
    """The page has cancelled the refinement."""


def refine_image(
    image: OpenImage, settings: Settings, scribbles: Bytes, model: DenseCRF | None,
    callback: StepCallback, cancelled: threading.Event, kept: KeptFilters | None = None,
) -> Refinement:
    """Run inference, telling `callback` of every iteration, until done or `cancelled`."""
    is_large = math.prod(image.grid) > LARGE
    started = time.perf_counter()
    initial = image.initial if settings.source == "initial" else None
    segmentation, unary = _read(image, initial, settings, scribbles)
    if cancelled.is_set():
        raise CancelledError
    costs_done = time.perf_counter()
    terms = Terms(
        settings.spatial, settings.spatial_weight, settings.bilateral, settings.bilateral_weight
    )
    crf = model_for(segmentation, model, terms, image.grid)
    times = [time.perf_counter()]

    def after_iteration(iteration: int, marginals: FloatArray, free_energy: float) -> bool:
        times.append(time.perf_counter())
        callback({
            "iteration": iteration, "max_iter": settings.max_iter, "free_energy": free_energy,
            "milliseconds": 1e3 * (times[-1] - started),
        })
        return cancelled.is_set()

    try:
        result = crf.infer(
            image.pixels, unary, algorithm=settings.algorithm, max_iter=settings.max_iter,
            tol=settings.tol, callback=after_iteration, kept=None if is_large else kept,
        )
    finally:
        if is_large:
            _native.drop_idle_blocks()  # gigabytes, which the next small image has no use for
    if result.status is InferenceStatus.CALLBACK:
        raise CancelledError
    labels = result.marginals.argmax(-1).astype(np.uint8)
    before = unary.argmin(-1).astype(np.uint8)
    entropy = entropy_bytes(result.marginals)
    ended = time.perf_counter()
    summary = {
        "free_energies": [float(value) for value in result.free_energies],
        "n_iter": result.n_iter,
        "converged": result.converged,
        "status": _status(result),
        "n_labels": unary.shape[-1],
        "counts": np.bincount(labels.ravel(), minlength=unary.shape[-1]).tolist(),
        "milliseconds": {
            "unary": 1e3 * (costs_done - started),
            "inference": 1e3 * (times[-1] - costs_done),
            "total": 1e3 * (ended - started),
            "steps": [1e3 * step for step in np.diff(times).tolist()],
        },
    }
    return Refinement(labels, before, entropy, summary, scribbles, settings, initial)


def _read(
    image: OpenImage, initial: Initial | None, settings: Settings, scribbles: Bytes
) -> tuple[Segmentation, FloatArray]:
    """Scribbles alone, or a segmentation, and its costs (H, W, L) with the scribbles over it."""
    if settings.source == "scribbles":
        painted = Segmentation("scribbles", np.arange(settings.n_labels), counted=True)
        return painted, scribble_costs(
            painted, scribbles, image.pixels, components=settings.components,
            strength=settings.strength, nearness=settings.nearness, colors=image.colors,
        )
    if initial is None:
        raise InputError(
            "there is no segmentation to start from; load a label map or probabilities, or paint."
        )
    given = replace(initial.segmentation, confidence=settings.confidence)
    unary = given.costs(initial.values)
    return given, paint_over(unary, scribbles) if (scribbles != UNKNOWN).any() else unary


def _status(result: InferenceResult) -> str:
    """Why inference stopped, in the words of the page."""
    if result.status is not InferenceStatus.MAX_ITER:
        return str(result.status.value)
    return f"Done: {result.n_iter} iterations."
