"""Where learning stands, as a file: written whole after every epoch, read by a run that goes on."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray, InputError, as_count, as_scalar
from crfield.io.models import incomplete, read_document, write_document

FORMAT = "crfield.patterns.learning"
VERSION = 1
_GROUPS = ("parameters", "mean", "square", "best")
_MOST = 2**31 - 1  # epochs, steps and passes


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


def read_progress(
    path: str | os.PathLike[str], purpose: dict[str, Any], like: dict[str, FloatArray],
    chains: tuple[int, ...],
) -> Progress | None:
    """The state in a file, None if there is no such file; one made for another run is refused.

    like : parameters by group, of the right shapes.
    chains : (B, n_chains, H, W), the right shape of the chains.
    """
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
        epoch, step, best_epoch, n_passes = (
            as_count(model[name], name, 0, _MOST)
            for name in ("epoch", "step", "best_epoch", "n_passes")
        )
        losses, scores = (
            [as_scalar(value, name) for value in model[name]] for name in ("losses", "scores")
        )
        state = Progress(
            epoch, step, parts["parameters"], parts["mean"], parts["square"], parts["best"],
            best_epoch, losses, scores, tensors["chains"], n_passes,
        )
        _check_shapes(state, like, chains)
        return state
    except (KeyError, TypeError, AttributeError) as error:
        raise incomplete(path, error) from None


def _check_shapes(state: Progress, like: dict[str, FloatArray], chains: tuple[int, ...]) -> None:
    """Raise KeyError for arrays that do not belong to the model, which a checksum may hide."""
    for group in _GROUPS:
        arrays = getattr(state, group)
        for name in like.keys() | arrays.keys():
            found, right = arrays[name], like[name]
            if found.shape != right.shape or found.dtype != right.dtype:
                raise KeyError(f"{group}.{name} of shape {right.shape}")
            if not np.isfinite(found).all():
                raise KeyError(f"finite numbers in {group}.{name}")
    if state.chains.shape != chains or state.chains.dtype != np.uint8 or state.chains.max() > 1:
        raise KeyError(f"chains of shape {chains}")
    if len(state.losses) != state.epoch:
        raise KeyError(f"{state.epoch} losses")
