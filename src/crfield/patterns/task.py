"""What `learn_patterns` is asked for, checked before any work is done."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._validate import InputError, as_choice, as_count, as_scalar, shown
from crfield.patterns._checks import as_masks
from crfield.patterns.gradients import GROUPS, parameters_of
from crfield.patterns.inputs import PatternInputs
from crfield.patterns.measures import Loss, as_loss
from crfield.patterns.model import PatternCRF
from crfield.patterns.sampling import check_samplable

OBJECTIVES = ("expected_loss", "contrastive_divergence")


@dataclass(frozen=True)
class Task:
    """One call of `learn_patterns`, checked."""

    inputs: PatternInputs
    masks: NDArray[np.uint8]
    validation: tuple[PatternInputs, NDArray[np.uint8]] | None
    loss: Loss
    objective: str
    groups: tuple[str, ...]
    n_chains: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    seed: int
    threads: int | None


def checked_task(
    model: PatternCRF, inputs: PatternInputs, masks: Any, validation: Any, loss: str | Loss,
    objective: str, names: tuple[str, ...], n_chains: int, batch_size: int, learning_rate: float,
    weight_decay: float, seed: int, threads: int | None,
) -> Task:
    check_samplable(model, inputs)
    if model.patterns is not None and model.patterns.temperature != 1.0:
        raise InputError(
            f"temperature must be 1 for learning, got {model.patterns.temperature}; samples of "
            "other temperatures do not come from the model. Use model.at_temperature(1.0)."
        )
    for name in names:
        as_choice(name, "learn", GROUPS)
    present = parameters_of(model)
    least = 2 if as_choice(objective, "objective", OBJECTIVES) == "expected_loss" else 1
    rate = as_scalar(learning_rate, "learning_rate")
    decay = as_scalar(weight_decay, "weight_decay")
    if rate <= 0 or decay < 0:
        raise InputError(
            f"learning_rate must be positive and weight_decay not negative, got {rate:g} and "
            f"{decay:g}; 0.001 and 0 are a start."
        )
    return Task(
        inputs, _as_truth(masks, inputs, "masks"), _as_validation(validation, model),
        as_loss(loss), objective, tuple(n for n in GROUPS if n in names and n in present),
        as_count(n_chains, "n_chains", least), as_count(batch_size, "batch_size"), rate, decay,
        as_count(seed, "seed", 0), threads,
    )


def _as_validation(
    validation: Any, model: PatternCRF
) -> tuple[PatternInputs, NDArray[np.uint8]] | None:
    if validation is None:
        return None
    if not isinstance(validation, tuple) or len(validation) != 2:
        raise InputError(
            f"validation must be a pair (inputs, masks), got {type(validation).__name__}; "
            "pass the inputs of other images with their masks."
        )
    model.check_inputs(validation[0])
    return validation[0], _as_truth(validation[1], validation[0], "validation masks")


def _as_truth(masks: Any, inputs: PatternInputs, name: str) -> NDArray[np.uint8]:
    height, width = inputs.grid
    truth = as_masks(masks, height * width, name)
    if len(truth) != len(inputs):
        raise InputError(
            f"{name} must be one an image ({len(inputs)}), got {len(truth)}; match them."
        )
    return truth.astype(np.uint8).reshape(-1, height, width)


def purpose_of(model: PatternCRF, task: Task) -> dict[str, Any]:
    """What a checkpoint belongs to: settings, and a digest of model and data."""
    digest = hashlib.sha256()
    for name, value in sorted(parameters_of(model).items()):
        digest.update(name.encode())
        digest.update(np.ascontiguousarray(value).tobytes())
    for inputs, masks in ((task.inputs, task.masks), task.validation or (None, None)):
        if inputs is None:
            continue
        for part in (inputs.costs, inputs.pairwise, inputs.features, masks):
            digest.update(b"" if part is None else np.ascontiguousarray(part).tobytes())
            digest.update(b";")
    return {
        "data": digest.hexdigest(), "objective": task.objective, "groups": list(task.groups),
        "loss": getattr(task.loss, "__name__", "loss"), "n_chains": task.n_chains,
        "batch_size": task.batch_size, "learning_rate": task.learning_rate,
        "weight_decay": task.weight_decay, "seed": task.seed,
    }


def as_losses(values: Any, n: int) -> NDArray[np.float64]:
    losses = np.asarray(values)
    if losses.shape != (n,) or losses.dtype.kind not in "biuf" or not np.isfinite(losses).all():
        raise InputError(
            f"loss must give one finite number for each of {n} rows of labels, got "
            f"{shown(values)}; return an array of shape ({n},)."
        )
    return losses.astype(np.float64)
