"""What `learn_patterns` is asked for, checked before any work is done."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import InputError, as_choice, as_count, as_scalar, check_memory, shown
from crfield.patterns._checks import as_masks
from crfield.patterns.files import describe
from crfield.patterns.gradients import GROUPS, parameters_of
from crfield.patterns.inputs import PatternInputs
from crfield.patterns.measures import LOSSES, Loss, as_loss
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
    if "unary_weight" in names and not model.unary_weight > 0:
        raise InputError(
            f"unary_weight must be positive to be learned, got {model.unary_weight:g}; "
            "give the unary costs the other sign, or leave it out of learn."
        )
    present = parameters_of(model)
    least = 2 if as_choice(objective, "objective", OBJECTIVES) == "expected_loss" else 1
    rate = as_scalar(learning_rate, "learning_rate")
    decay = as_scalar(weight_decay, "weight_decay")
    if rate <= 0 or decay < 0:
        raise InputError(
            f"learning_rate must be positive and weight_decay not negative, got {rate:g} and "
            f"{decay:g}; 0.001 and 0 are a start."
        )
    chains, batch = as_count(n_chains, "n_chains", least), as_count(batch_size, "batch_size")
    _check_room(inputs, chains, min(batch, len(inputs)))
    return Task(
        inputs, _as_truth(masks, inputs, "masks"), _as_validation(validation, model),
        as_loss(loss), objective, tuple(n for n in GROUPS if n in names and n in present),
        chains, batch, rate, decay,
        as_count(seed, "seed", 0), threads,
    )


def _check_room(inputs: PatternInputs, n_chains: int, n_images: int) -> None:
    """Refuse batches of which memory cannot hold the inputs, a copy for each chain."""
    arrays = [a for a in (inputs.costs, inputs.pairwise, inputs.features) if a is not None]
    one_image = sum(a.nbytes / len(inputs) for a in arrays if len(a) == len(inputs))
    check_memory(
        2 * one_image * n_chains * n_images,
        f"Learning with {n_chains} chains for each of {n_images} images",
        "use fewer chains or a smaller batch_size",
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
    """What a checkpoint belongs to: settings, and digests of model and data."""
    data: dict[str, NDArray[Any]] = {}
    sets = {"training": (task.inputs, task.masks), "validation": task.validation}
    for title, given in sets.items():
        if given is None:
            continue
        inputs, masks = given
        parts = {
            "costs": inputs.costs, "pairwise": inputs.pairwise, "features": inputs.features,
            "masks": masks,
        }
        data |= {f"{title}.{name}": part for name, part in parts.items() if part is not None}
    return {
        "model": _digest(*describe(model)), "data": _digest({}, data),
        "objective": task.objective, "groups": list(task.groups), "loss": _name_of(task.loss),
        "n_chains": task.n_chains, "batch_size": task.batch_size,
        "learning_rate": task.learning_rate, "weight_decay": task.weight_decay, "seed": task.seed,
    }


def _digest(description: dict[str, Any], arrays: Mapping[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _name_of(loss: Loss) -> str:
    """The word for one of our losses; for others, whose code cannot be compared, where it is."""
    for word, known in LOSSES.items():
        if loss is known:
            return word
    kind = loss if hasattr(loss, "__qualname__") else type(loss)
    return f"{kind.__module__}.{kind.__qualname__}"


def as_losses(values: Any, n: int) -> NDArray[np.float64]:
    losses = np.asarray(values)
    if losses.shape != (n,) or losses.dtype.kind not in "biuf" or not np.isfinite(losses).all():
        raise InputError(
            f"loss must give one finite number for each of {n} rows of labels, got "
            f"{shown(values)}; return an array of shape ({n},)."
        )
    return losses.astype(np.float64)
