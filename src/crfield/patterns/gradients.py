"""Parameters of a pattern model as named arrays, and the gradient of what its labels bring in.

Trade-offs are positive and move in logarithms. With E(y) the energy of eq. 5, the gradient of any
expectation over labels is a sum of -dE(y)/dgamma with a number for each labeling (eqs. 13 to 15).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray, InputError
from crfield.patterns._checks import as_masks
from crfield.patterns.inputs import PatternInputs
from crfield.patterns.model import PatternCRF

Parameters = dict[str, FloatArray]

GROUPS = (
    "weights", "bias", "image_weights", "visible_bias", "unary_weight", "pairwise_weights",
)


def parameters_of(model: PatternCRF) -> Parameters:
    """All numbers of a model by group; logarithms of the trade-offs, -inf for pairwise ones that
    are 0, and no unary weight that is not positive."""
    found: Parameters = {} if model.patterns is None else dict(model.patterns.parameters)
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
    if "unary_weight" in parameters:
        unary_weight = float(np.exp(parameters["unary_weight"]))
    return replace(
        model, patterns=patterns, visible_bias=parameters["visible_bias"],
        unary_weight=unary_weight, pairwise_weights=np.exp(parameters["pairwise_weights"]),
    )


def weighted_scores(
    model: PatternCRF, inputs: PatternInputs, labels: Any, scale: Any
) -> Parameters:
    """sum_n scale_n (-dE(y_n | x_n) / dgamma) for every group gamma (eq. 14).

    labels : (n, H, W), one labeling for each of the inputs.
    scale : (n,).
    """
    masks = as_masks(labels, model.visible_bias.size, "labels")
    factor = np.asarray(scale, np.float64)
    found: Parameters = {}
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
