"""Learning all parameters of a pattern model from images with masks (CHOPP section 4.3).

Expected-loss training lowers E_y[l(y, y*)] under p(y | x): some Markov chains an image go on from
update to update, and each update follows one full pass of Gibbs sampling (eq. 15). Conditional
contrastive divergence, which raises the likelihood near the truth, is there for comparison.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.atomic import check_writable
from crfield._core.optimize import Adam
from crfield._core.validate import LARGEST_COST, InputError, as_count, shown
from crfield.patterns.checkpoints import Progress, read_progress, write_progress
from crfield.patterns.gradients import (
    GROUPS,
    Parameters,
    expected_loss_scale,
    parameters_of,
    weighted_scores,
    with_parameters,
)
from crfield.patterns.inference import infer
from crfield.patterns.inputs import PatternInputs
from crfield.patterns.measures import Loss, mask_scores
from crfield.patterns.model import PatternCRF
from crfield.patterns.sampling import ORDER_OF_IMAGES, Chains
from crfield.patterns.task import Task, as_losses, checked_task, purpose_of

_EPSILON = 1e-12  # of Adam: gradients of single pixels are small
_LEAST_SHARE = 0.01  # of the unary weight, that a pairwise weight starts from
_TRADEOFFS = ("unary_weight", "pairwise_weights")


@dataclass(frozen=True, eq=False)
class PatternLearningResult:
    """What was learned, and how it went.

    model : of the best epoch by validation, or of the last one without a validation set.
    last_model : of the last epoch.
    losses : (n_epochs,), mean loss of the samples in each epoch.
    scores : (n_epochs + 1,), mean IoU of the MAP labels on the validation set before the first and
        after each epoch.
    best_epoch : epochs until `model`.
    """

    model: PatternCRF
    last_model: PatternCRF
    losses: NDArray[np.float64]
    scores: NDArray[np.float64]
    best_epoch: int


def learn_patterns(
    model: PatternCRF, inputs: PatternInputs, masks: Any, *,
    validation: tuple[PatternInputs, Any] | None = None, loss: str | Loss = "iou",
    objective: str = "expected_loss", learn: Collection[str] = GROUPS, n_epochs: int = 30,
    n_chains: int = 2, batch_size: int = 100, learning_rate: float = 1e-3,
    weight_decay: float = 0.0, seed: int = 0, checkpoint: str | os.PathLike[str] | None = None,
    resume: bool = True, progress: bool = False, threads: int | None = None,
) -> PatternLearningResult:
    """Learn patterns, biases and trade-offs jointly from images and masks (CHOPP section 4.3).

    Parameters
    ----------
    model : where to start, for example from `pretrain`; at temperature 1. Pairwise weights move by
        factors, so that those that are 0 start at a hundredth of the unary weight instead.
    inputs, masks : the images, and their true labels (B, H, W) in {0, 1}.
    validation : inputs and masks that choose among the epochs by the mean IoU of MAP labels.
    loss : "iou", "hamming" or a function of labels (n, I) and masks (n, I) to losses (n,).
    objective : "expected_loss" (eqs. 13 to 15) or "contrastive_divergence", the conditional
        likelihood near the truth.
    learn : which groups of parameters move, see `GROUPS`.
    n_epochs : passes over the images.
    n_chains : Markov chains an image, at least 2 for an expected loss.
    batch_size : images an update.
    learning_rate : step size of Adam.
    weight_decay : pulls patterns and image weights to 0, as a share of them each step.
    seed : of the order of images and of all samples.
    checkpoint : a file that keeps the state after every epoch; a run that was killed and started
        again with the same arguments goes on from there, to the same result. A loss of your own is
        told from others by the name of its function alone.
    resume : whether to go on from an existing checkpoint.
    progress : show a progress bar.
    threads : native threads, all usable cores by default.
    """
    if not isinstance(learn, Collection):
        raise InputError(
            f"learn must be some of {', '.join(map(repr, GROUPS))}, got {shown(learn)}; "
            "pass a list of them."
        )
    names = (learn,) if isinstance(learn, str) else tuple(learn)
    if "pairwise_weights" in names and isinstance(model, PatternCRF):
        weights = model.pairwise_weights
        least = _LEAST_SHARE * (model.unary_weight if model.unary_weight > 0 else 1.0)
        model = replace(model, pairwise_weights=np.where(weights > 0, weights, least))
    task = checked_task(
        model, inputs, masks, validation, loss, objective, names, n_chains, batch_size,
        learning_rate, weight_decay, seed, threads,
    )
    total = as_count(n_epochs, "n_epochs", 0)
    state, purpose = None, {}
    if checkpoint is not None:
        check_writable(Path(checkpoint))
        purpose = purpose_of(model, task)
        shape = (len(task.inputs), task.n_chains, *task.inputs.grid)
        state = (
            read_progress(checkpoint, purpose, parameters_of(model), shape) if resume else None
        )
    if state is None:
        state = _start(model, task)
    if state.epoch > total:
        raise InputError(
            f"n_epochs must be at least {state.epoch}, which the checkpoint holds, got {total}; "
            "use another file, or resume=False to start again."
        )
    bar = _progress_bar(total, state.epoch) if progress else None
    while state.epoch < total:
        state = _run_epoch(model, task, state)
        if checkpoint is not None:
            write_progress(checkpoint, state, purpose)
        if bar is not None:
            score = f"{state.scores[-1]:.3f}" if state.scores else "-"
            bar.set_postfix_str(f"loss {state.losses[-1]:.3f}, validation IoU {score}")
            bar.update()
    if bar is not None:
        bar.close()
    return PatternLearningResult(
        with_parameters(model, state.best), with_parameters(model, state.parameters),
        np.array(state.losses), np.array(state.scores), state.best_epoch,
    )


def _start(model: PatternCRF, task: Task) -> Progress:
    parameters = parameters_of(model)
    zeros = {name: np.zeros_like(value) for name, value in parameters.items()}
    chains = Chains.start(
        model, task.inputs, task.n_chains, seed=task.seed, threads=task.threads
    )
    scores = [] if task.validation is None else [_score(model, task)]
    return Progress(
        0, 0, parameters, zeros, dict(zeros), parameters, 0, [], scores, chains.labels,
        chains.n_passes,
    )


def _run_epoch(model: PatternCRF, task: Task, state: Progress) -> Progress:
    """One pass over the images in random order."""
    rng = np.random.default_rng([ORDER_OF_IMAGES, task.seed, state.epoch])
    order = rng.permutation(len(task.inputs))
    chains = Chains(state.chains, seed=task.seed, n_passes=state.n_passes)
    parameters, step = state.parameters, state.step
    mean, square = state.mean, state.square
    losses = []
    for first in range(0, len(order), task.batch_size):
        rows = order[first : first + task.batch_size]
        current = with_parameters(model, parameters)
        gradient, loss = _gradient(current, task, chains, rows)
        step += 1
        with np.errstate(over="ignore", invalid="ignore"):  # noticed below
            parameters, mean, square = _adam(parameters, gradient, mean, square, step, task)
        _check_course(parameters, task)
        losses.append(loss * len(rows))
    scores, best, best_epoch = list(state.scores), parameters, state.epoch + 1
    if task.validation is not None:
        scores.append(_score(with_parameters(model, parameters), task))
        if scores[-1] <= max(scores[:-1]):
            best, best_epoch = state.best, state.best_epoch
    return Progress(
        state.epoch + 1, step, parameters, mean, square, best, best_epoch,
        [*state.losses, sum(losses) / len(order)], scores, chains.labels, chains.n_passes,
    )


def _gradient(
    model: PatternCRF, task: Task, chains: Chains, rows: NDArray[np.intp]
) -> tuple[Parameters, float]:
    """dL / dgamma of the mean over some images, and the mean loss of the samples."""
    inputs, truth = task.inputs.take(rows), task.masks[rows].reshape(len(rows), -1)
    n_chains = chains.labels.shape[1]
    contrasts = task.objective == "contrastive_divergence"
    if contrasts:  # chains start anew at the truth
        chains.labels[rows] = task.masks[rows][:, None]
    samples = chains.advance(model, inputs, rows=rows, threads=task.threads)
    image = np.repeat(np.arange(len(rows)), n_chains)
    flat = samples.reshape(len(image), -1)
    losses = as_losses(task.loss(flat, truth[image]), len(image)).reshape(len(rows), n_chains)
    if contrasts:
        scale = np.full(len(image), 1.0 / len(image))
    else:
        scale = expected_loss_scale(losses).ravel() / len(rows)
    gradient = weighted_scores(model, inputs.take(image), flat, scale)
    if contrasts:
        data = weighted_scores(model, inputs, truth, np.full(len(rows), 1.0 / len(rows)))
        gradient = {name: gradient[name] - data[name] for name in gradient}
    return gradient, float(losses.mean())


def _adam(
    parameters: Parameters, gradient: Parameters, mean: Parameters, square: Parameters, step: int,
    task: Task,
) -> tuple[Parameters, Parameters, Parameters]:
    """One step of Adam, with weight decay apart from the gradient."""
    moved, mean, square = dict(parameters), dict(mean), dict(square)
    for name in task.groups:
        state = Adam(step - 1, mean[name], square[name], _EPSILON)
        state, change = state.step(gradient[name], task.learning_rate)
        mean[name], square[name] = np.asarray(state.mean), np.asarray(state.square)
        value = parameters[name]
        if name in ("weights", "image_weights"):
            value = value * (1 - task.learning_rate * task.weight_decay)
        moved[name] = np.asarray(value - change, value.dtype)
    return moved, mean, square


def _check_course(parameters: Parameters, task: Task) -> None:
    """Refuse to go on with parameters that no model may have; trade-offs are logarithms."""
    for name in task.groups:
        limit = math.log(LARGEST_COST) if name in _TRADEOFFS else LARGEST_COST
        if not np.abs(parameters[name]).max(initial=0.0) <= limit:
            raise InputError(
                f"learning_rate must be small enough for the {name.replace('_', ' ')} to stay "
                f"finite, got {task.learning_rate:g}; divide it by 10."
            )


def _score(model: PatternCRF, task: Task) -> float:
    """Mean IoU of the MAP labels on the validation set."""
    assert task.validation is not None
    inputs, masks = task.validation
    labels = infer(model, inputs, threads=task.threads).labels
    return float(mask_scores(labels, masks).mean())


def _progress_bar(total: int, done: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, initial=done, unit="epoch")
