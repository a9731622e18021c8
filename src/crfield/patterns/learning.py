"""Learning all parameters of a pattern model from images with masks (CHOPP section 4.3).

Expected-loss training lowers E_y[l(y, y*)] under p(y | x): some Markov chains per image go on from
update to update, and each update follows one full pass of Gibbs sampling (eq. 15). Conditional
contrastive divergence, which raises the likelihood near the truth, is there for comparison.

Parameters are named arrays; trade-offs are positive and move in logarithms. With E(y) the energy of
eq. 5, the gradient of any expectation over labels is a sum of -dE(y)/dgamma with a number for each
labeling (eqs. 13 to 15).
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.atomic import check_writable
from crfield._core.checkpoints import Record, damaged, digest, read_state, write_state
from crfield._core.optimize import Adam
from crfield._core.validate import (
    LARGEST_COST,
    FloatArray,
    InputError,
    as_choice,
    as_count,
    as_not_negative,
    as_positive_number,
    check_memory,
    shown,
)
from crfield.patterns._checks import as_masks
from crfield.patterns.files import describe
from crfield.patterns.inference import infer
from crfield.patterns.inputs import PatternInputs
from crfield.patterns.measures import LOSSES, MaskLoss, as_loss, mask_scores
from crfield.patterns.model import PatternCRF
from crfield.patterns.sampling import ORDER_OF_IMAGES, Chains, check_samplable

Arrays = dict[str, FloatArray]

LEARNABLE = (
    "weights", "bias", "image_weights", "visible_bias", "unary_weight", "pairwise_weights",
)
OBJECTIVES = ("expected_loss", "contrastive_divergence")

_EPSILON = 1e-12  # of Adam: gradients of single pixels are small
_LEAST_SHARE = 0.01  # of the unary weight, that a pairwise weight starts from
_TRADEOFFS = ("unary_weight", "pairwise_weights")
_MOST = 2**31 - 1  # epochs, steps and passes


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
    validation: tuple[PatternInputs, Any] | None = None, loss: str | MaskLoss = "iou",
    objective: str = "expected_loss", learn: Collection[str] = LEARNABLE, n_epochs: int = 30,
    n_chains: int = 2, batch_size: int = 100, step_size: float = 1e-3, l2: float = 0.0,
    seed: int = 0, checkpoint: str | os.PathLike[str] | None = None, resume: bool = True,
    progress: bool = False, threads: int | None = None,
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
    learn : what to learn, some of "weights", "bias", "image_weights", "visible_bias",
        "unary_weight" and "pairwise_weights".
    n_epochs : passes over the images.
    n_chains : Markov chains per image, at least 2 for an expected loss.
    batch_size : images per update.
    step_size : of Adam.
    l2 : pulls patterns and image weights to 0, by the share step_size l2 of them in each step,
        apart from the gradient that Adam sees.
    seed : of the order of images and of all samples.
    checkpoint : a file that keeps the state after every epoch; a run that was killed and started
        again with the same arguments goes on from there, to the same result. A loss of your own is
        told from others by the name of its function alone.
    resume : whether to go on from an existing checkpoint.
    progress : show a progress bar.
    threads : native threads, all usable cores by default.
    """
    names = _as_names(learn)
    if "pairwise_weights" in names and isinstance(model, PatternCRF):
        weights = model.pairwise_weights
        least = _LEAST_SHARE * (model.unary_weight if model.unary_weight > 0 else 1.0)
        model = replace(model, pairwise_weights=np.where(weights > 0, weights, least))
    _check_learnable(model, inputs, names)
    least_chains = 2 if as_choice(objective, "objective", OBJECTIVES) == "expected_loss" else 1
    task = _Task(
        inputs=inputs, masks=_as_truth(masks, inputs, "masks"),
        validation=_as_validation(validation, model), loss=as_loss(loss), objective=objective,
        learn=tuple(n for n in LEARNABLE if n in names and n in parameters_of(model)),
        n_chains=as_count(n_chains, "n_chains", least_chains),
        batch_size=as_count(batch_size, "batch_size"),
        step_size=as_positive_number(step_size, "step_size"), l2=as_not_negative(l2, "l2"),
        seed=as_count(seed, "seed", 0), threads=threads,
    )
    task.check_room()
    total = as_count(n_epochs, "n_epochs", 0)
    state, run = None, {}
    if checkpoint is not None:
        check_writable(Path(checkpoint))
        run = task.name_run(model)
        record = read_state(checkpoint, run, resume=resume)
        state = None if record is None else _State.restored(record, checkpoint, model, task)
    if state is None:
        state = _State.start(model, task)
    if state.epoch > total:
        raise InputError(
            f"n_epochs must be at least {state.epoch}, which the checkpoint holds, got {total}; "
            "use another file, or resume=False to start again."
        )
    bar = _progress_bar(total, state.epoch) if progress else None
    while state.epoch < total:
        state = _run_epoch(model, task, state)
        if checkpoint is not None:
            write_state(checkpoint, run, *state.record())
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


def parameters_of(model: PatternCRF) -> Arrays:
    """All numbers of a model by group; logarithms of the trade-offs, -inf for pairwise ones that
    are 0, and no unary weight that is not positive."""
    found: Arrays = {} if model.patterns is None else dict(model.patterns.parameters)
    found["visible_bias"] = model.visible_bias
    if model.unary_weight > 0:
        found["unary_weight"] = np.log(np.float64(model.unary_weight))
    with np.errstate(divide="ignore"):
        found["pairwise_weights"] = np.log(model.pairwise_weights)
    return {name: np.asarray(value) for name, value in found.items()}


def with_parameters(model: PatternCRF, parameters: Mapping[str, FloatArray]) -> PatternCRF:
    """The model with other numbers."""
    patterns = model.patterns
    if patterns is not None:
        patterns = patterns.with_parameters({k: parameters[k] for k in patterns.parameters})
    unary_weight = model.unary_weight
    with np.errstate(over="ignore"):  # the model refuses weights without end
        if "unary_weight" in parameters:
            unary_weight = float(np.exp(parameters["unary_weight"]))
        pairwise_weights = np.exp(parameters["pairwise_weights"])
    return replace(
        model, patterns=patterns, visible_bias=parameters["visible_bias"],
        unary_weight=unary_weight, pairwise_weights=pairwise_weights,
    )


def weighted_scores(
    model: PatternCRF, inputs: PatternInputs, labels: Any, scale: Any
) -> Arrays:
    """sum_n scale_n (-dE(y_n | x_n) / dgamma) for every group gamma (eq. 14).

    labels : (n, H, W), one labeling for each of the inputs.
    scale : (n,).
    """
    masks = as_masks(labels, model.visible_bias.size, "labels")
    factor = np.asarray(scale, np.float64)
    found: Arrays = {}
    if model.patterns is not None:
        patterns = model.patterns
        h = patterns.expected_hidden(masks, inputs.features)
        found["weights"] = patterns.weight_gradient(masks, h, factor)
        found["bias"] = patterns.bias_gradient(h, factor)
        if patterns.image_weights is not None:
            found["image_weights"] = patterns.image_gradient(inputs.features, h, factor)
    found["visible_bias"] = factor.astype(model.visible_bias.dtype) @ masks
    maps = masks.reshape(-1, *model.grid)
    unary = model.unary_costs(maps, inputs)
    found["unary_weight"] = np.asarray(-model.unary_weight * (factor @ unary))
    found["pairwise_weights"] = -model.pairwise_weights * (
        factor @ model.pairwise_costs(maps, inputs)
    )
    return found


def expected_loss_scale(losses: NDArray[np.float64]) -> NDArray[np.float64]:
    """What eq. 15 weighs samples by: (l_n - mean l) / (N - 1), for losses (B, N) of N samples."""
    n = losses.shape[1]
    if n < 2:
        raise InputError(
            f"n_chains must be at least 2 to compare losses, got {n}; use 2 or more chains."
        )
    return np.asarray((losses - losses.mean(1, keepdims=True)) / (n - 1))


def _as_names(learn: Any) -> tuple[str, ...]:
    if not isinstance(learn, Collection):
        raise InputError(
            f"learn must be some of {', '.join(map(repr, LEARNABLE))}, got {shown(learn)}; "
            "pass a list of them."
        )
    names = (learn,) if isinstance(learn, str) else tuple(learn)
    return tuple(as_choice(name, "learn", LEARNABLE) for name in names)


def _check_learnable(model: PatternCRF, inputs: PatternInputs, names: Collection[str]) -> None:
    """Refuse a model whose samples or parameters cannot be learned from."""
    check_samplable(model, inputs)
    if model.patterns is not None and model.patterns.temperature != 1.0:
        raise InputError(
            f"temperature must be 1 for learning, got {model.patterns.temperature:g}; samples of "
            "other temperatures do not come from the model. Use model.at_temperature(1.0)."
        )
    if "unary_weight" in names and not model.unary_weight > 0:
        raise InputError(
            f"unary_weight must be positive to be learned, got {model.unary_weight:g}; "
            "give the unary costs the other sign, or leave it out of learn."
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
            f"{name} must be one per image ({len(inputs)}), got {len(truth)}; match them."
        )
    return truth.astype(np.uint8).reshape(-1, height, width)


@dataclass(frozen=True, kw_only=True)
class _Task:
    """What `learn_patterns` was asked for, checked."""

    inputs: PatternInputs
    masks: NDArray[np.uint8]
    validation: tuple[PatternInputs, NDArray[np.uint8]] | None
    loss: MaskLoss
    objective: str
    learn: tuple[str, ...]
    n_chains: int
    batch_size: int
    step_size: float
    l2: float
    seed: int
    threads: int | None

    def check_room(self) -> None:
        """Refuse batches of which memory cannot hold the inputs, a copy for each chain."""
        inputs = self.inputs
        arrays = [a for a in (inputs.costs, inputs.pairwise, inputs.features) if a is not None]
        one_image = sum(a.nbytes / len(inputs) for a in arrays if len(a) == len(inputs))
        n_images = min(self.batch_size, len(inputs))
        check_memory(
            2 * one_image * self.n_chains * n_images,
            f"Learning with {self.n_chains} chains for each of {n_images} images",
            "use fewer chains or a smaller batch_size",
        )

    def score(self, model: PatternCRF) -> float:
        """Mean IoU of the MAP labels on the validation set."""
        assert self.validation is not None
        inputs, masks = self.validation
        labels = infer(model, inputs, threads=self.threads).labels
        return float(mask_scores(labels, masks).mean())

    def name_run(self, model: PatternCRF) -> dict[str, Any]:
        """What a checkpoint belongs to: settings, and digests of model and data."""
        data: dict[str, NDArray[Any]] = {}
        sets = {"training": (self.inputs, self.masks), "validation": self.validation}
        for title, given in sets.items():
            if given is None:
                continue
            inputs, masks = given
            parts = {
                "costs": inputs.costs, "pairwise": inputs.pairwise, "features": inputs.features,
                "masks": masks,
            }
            data |= {f"{title}.{name}": part for name, part in parts.items() if part is not None}
        settings = ("objective", "n_chains", "batch_size", "step_size", "l2", "seed")
        return {
            "model": digest(*describe(model)), "data": digest({}, data),
            "learn": list(self.learn), "loss": _name_of(self.loss),
            **{name: getattr(self, name) for name in settings},
        }


def _name_of(loss: MaskLoss) -> str:
    """The word for one of our losses; for others, whose code cannot be compared, where it is."""
    for word, known in LOSSES.items():
        if loss is known:
            return word
    kind = loss if hasattr(loss, "__qualname__") else type(loss)
    return f"{kind.__module__}.{kind.__qualname__}"


@dataclass(frozen=True, eq=False)
class _State:
    """Where learning stands after some epochs.

    parameters, best : by name, now and of the best epoch.
    adam : for each name that is learned.
    losses, scores : of the epochs.
    chains : (B, n_chains, H, W) labels; n_passes : of sampling so far.
    """

    epoch: int
    parameters: Arrays
    adam: dict[str, Adam]
    best: Arrays
    best_epoch: int
    losses: list[float]
    scores: list[float]
    chains: NDArray[np.uint8]
    n_passes: int

    @classmethod
    def start(cls, model: PatternCRF, task: _Task) -> _State:
        parameters = parameters_of(model)
        zeros = {name: np.zeros_like(parameters[name]) for name in task.learn}
        adam = {name: Adam(0, zero, zero, _EPSILON) for name, zero in zeros.items()}
        chains = Chains.start(
            model, task.inputs, task.n_chains, seed=task.seed, threads=task.threads
        )
        scores = [] if task.validation is None else [task.score(model)]
        return cls(
            0, parameters, adam, parameters, 0, [], scores, chains.labels, chains.n_passes
        )

    def record(self) -> list[NDArray[Any]]:
        """The state as arrays of numbers; `restored` reads them."""
        n_steps = max((state.n_steps for state in self.adam.values()), default=0)
        counts = np.array([self.epoch, self.best_epoch, self.n_passes, n_steps])
        averages = [a for state in self.adam.values() for a in (state.mean, state.square)]
        return [
            counts, np.array(self.losses), np.array(self.scores), np.packbits(self.chains),
            *self.parameters.values(), *self.best.values(), *averages,
        ]

    @classmethod
    def restored(
        cls, record: Record, path: str | os.PathLike[str], model: PatternCRF, task: _Task
    ) -> _State:
        """The state in a checkpoint; arrays that do not belong to the model are refused."""
        like = parameters_of(model)
        shape = (len(task.inputs), task.n_chains, *task.inputs.grid)
        averages = [like[name] for name in task.learn for _ in range(2)]
        right = [*like.values(), *like.values(), *averages]
        if [len(array) for array in record[4:]] != [array.size for array in right]:
            raise damaged(path)
        counts, losses, scores, packed = record[:4]
        with np.errstate(invalid="ignore"):
            whole = [array.astype(np.int64) for array in (counts, packed)]
        is_sound = (
            all(np.array_equal(*pair) for pair in zip(whole, (counts, packed), strict=True))
            and len(counts) == 4 and counts.min() >= 0 and counts.max() <= _MOST
            and len(packed) == -(-math.prod(shape) // 8)
            and packed.min() >= 0 and packed.max() <= 255
            and len(losses) == counts[0]
            and len(scores) == (0 if task.validation is None else counts[0] + 1)
            and all(np.isfinite(array).all() for array in (losses, scores))
        )
        if not is_sound:
            raise damaged(path)
        with np.errstate(over="ignore"):  # the model refuses numbers that are not finite
            arrays = [
                array.astype(each.dtype).reshape(each.shape)
                for array, each in zip(record[4:], right, strict=True)
            ]
        epoch, best_epoch, n_passes, n_steps = (int(count) for count in counts)
        n = len(like)
        moments = zip(arrays[2 * n :: 2], arrays[2 * n + 1 :: 2], strict=True)
        adam = {
            name: Adam(n_steps, mean, square, _EPSILON)
            for name, (mean, square) in zip(task.learn, moments, strict=True)
        }
        chains = np.unpackbits(whole[1].astype(np.uint8), count=math.prod(shape)).reshape(shape)
        return cls(
            epoch, dict(zip(like, arrays[:n], strict=True)), adam,
            dict(zip(like, arrays[n : 2 * n], strict=True)), best_epoch, list(losses),
            list(scores), chains, n_passes,
        )


def _run_epoch(model: PatternCRF, task: _Task, state: _State) -> _State:
    """One pass over the images in random order."""
    rng = np.random.default_rng([ORDER_OF_IMAGES, task.seed, state.epoch])
    order = rng.permutation(len(task.inputs))
    chains = Chains(state.chains, seed=task.seed, n_passes=state.n_passes)
    parameters, adam = dict(state.parameters), dict(state.adam)
    losses = []
    for first in range(0, len(order), task.batch_size):
        rows = order[first : first + task.batch_size]
        gradient, loss = _gradient(with_parameters(model, parameters), task, chains, rows)
        with np.errstate(over="ignore", invalid="ignore"):  # noticed below
            for name in task.learn:
                adam[name], change = adam[name].step(gradient[name], task.step_size)
                value = parameters[name]
                if name in ("weights", "image_weights"):
                    value = value * (1 - task.step_size * task.l2)
                parameters[name] = np.asarray(value - change, value.dtype)
        _check_course(parameters, task)
        losses.append(loss * len(rows))
    scores, best, best_epoch = list(state.scores), parameters, state.epoch + 1
    if task.validation is not None:
        scores.append(task.score(with_parameters(model, parameters)))
        if scores[-1] <= max(scores[:-1]):
            best, best_epoch = state.best, state.best_epoch
    return _State(
        state.epoch + 1, parameters, adam, best, best_epoch,
        [*state.losses, sum(losses) / len(order)], scores, chains.labels, chains.n_passes,
    )


def _gradient(
    model: PatternCRF, task: _Task, chains: Chains, rows: NDArray[np.intp]
) -> tuple[Arrays, float]:
    """dL / dgamma of the mean over some images, and the mean loss of the samples."""
    inputs, truth = task.inputs.take(rows), task.masks[rows].reshape(len(rows), -1)
    n_chains = chains.labels.shape[1]
    contrasts = task.objective == "contrastive_divergence"
    if contrasts:  # chains start anew at the truth
        chains.labels[rows] = task.masks[rows][:, None]
    samples = chains.advance(model, inputs, rows=rows, threads=task.threads)
    image = np.repeat(np.arange(len(rows)), n_chains)
    flat = samples.reshape(len(image), -1)
    losses = _as_losses(task.loss(flat, truth[image]), len(image)).reshape(len(rows), n_chains)
    if contrasts:
        scale = np.full(len(image), 1.0 / len(image))
    else:
        scale = expected_loss_scale(losses).ravel() / len(rows)
    gradient = weighted_scores(model, inputs.take(image), flat, scale)
    if contrasts:
        data = weighted_scores(model, inputs, truth, np.full(len(rows), 1.0 / len(rows)))
        gradient = {name: gradient[name] - data[name] for name in gradient}
    return gradient, float(losses.mean())


def _check_course(parameters: Arrays, task: _Task) -> None:
    """Refuse to go on with parameters that no model may have; trade-offs are logarithms."""
    for name in task.learn:
        limit = math.log(LARGEST_COST) if name in _TRADEOFFS else LARGEST_COST
        if not np.abs(parameters[name]).max(initial=0.0) <= limit:
            raise InputError(
                f"step_size must be small enough for the {name.replace('_', ' ')} to stay "
                f"finite, got {task.step_size:g}; divide it by 10."
            )


def _as_losses(values: Any, n: int) -> NDArray[np.float64]:
    losses = np.asarray(values)
    if losses.shape != (n,) or losses.dtype.kind not in "biuf" or not np.isfinite(losses).all():
        raise InputError(
            f"loss must give one finite number for each of {n} rows of labels, got "
            f"{shown(values)}; return an array of shape ({n},)."
        )
    return losses.astype(np.float64)


def _progress_bar(total: int, done: int) -> Any:
    from tqdm import tqdm

    return tqdm(total=total, initial=done, unit="epoch")
