"""Where learning stands, as a file: written whole after every epoch, read by a run that goes on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._validate import FloatArray, InputError
from crfield.modelfile import incomplete, read_document, write_document

FORMAT = "crfield.patterns.learning"
VERSION = 1
_GROUPS = ("parameters", "mean", "square", "best")


@dataclass(frozen=True, eq=False)
class Progress:
    """State after some epochs.

    epoch, step : how many epochs and updates are done.
    parameters, mean, square, best : by group; Adam's averages, and the best parameters so far.
    losses, scores : of the epochs.
    chains : (B, n_chains, H, W) labels; n_passes : of sampling so far.
    """

    epoch: int
    step: int
    parameters: dict[str, FloatArray]
    mean: dict[str, FloatArray]
    square: dict[str, FloatArray]
    best: dict[str, FloatArray]
    best_epoch: int
    losses: list[float]
    scores: list[float]
    chains: NDArray[np.uint8]
    n_passes: int


def write_progress(
    path: str | os.PathLike[str], state: Progress, purpose: dict[str, Any]
) -> None:
    """Write the state; the file appears whole or not at all."""
    tensors: dict[str, NDArray[Any]] = {
        f"{group}.{name}": np.asarray(value, order="C")
        for group in _GROUPS for name, value in getattr(state, group).items()
    }
    tensors["chains"] = state.chains
    model = {
        "format": FORMAT, "version": VERSION, "purpose": purpose, "epoch": state.epoch,
        "step": state.step, "best_epoch": state.best_epoch, "losses": state.losses,
        "scores": state.scores, "n_passes": state.n_passes,
    }
    write_document(path, model, tensors)


def read_progress(path: str | os.PathLike[str], purpose: dict[str, Any]) -> Progress | None:
    """The state in a file, None if there is no such file; one made for another run is refused."""
    if not Path(path).exists():
        return None
    model, tensors = read_document(path, FORMAT, VERSION)
    try:
        other = [k for k, value in purpose.items() if model["purpose"].get(k) != value]
        if other:
            raise InputError(
                f"checkpoint {path} was written for other {', '.join(other)}; use another file, "
                "or resume=False to start again."
            )
        parts: dict[str, dict[str, FloatArray]] = {group: {} for group in _GROUPS}
        for key, value in tensors.items():
            group, _, name = key.partition(".")
            if group in parts:
                parts[group][name] = value
        return Progress(
            model["epoch"], model["step"], parts["parameters"], parts["mean"], parts["square"],
            parts["best"], model["best_epoch"], model["losses"], model["scores"],
            tensors["chains"], model["n_passes"],
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise incomplete(path, error) from None
