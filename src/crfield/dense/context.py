"""What a recalibration may look at beside a variable's own costs.

KK13 section 4.2 takes the unary as logistic in any features h_i of the variable. With context, h_i
is made of the variable's costs, of what the whole image seems to hold, of where the variable lies
and of its color.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from crfield._core.validate import FloatArray, InputError
from crfield.dense.observation import Observation

# presence : minus the logarithm of each label's mean probability over the image, L numbers.
# position : coordinates from -1/2 to 1/2 across the image, and their squares.
# color : intensities from -1/2 to 1/2, and their squares.
CONTEXTS = ("presence", "position", "color")

# A label that the classifier sees nowhere counts as this share of the image.
_LEAST_SHARE = 1e-3


def as_contexts(names: Any) -> tuple[str, ...]:
    """Names of contexts, each once and in the order of `CONTEXTS`."""
    listed = isinstance(names, Iterable) and not isinstance(names, str)
    given = list(names) if listed else [names]
    unknown = [name for name in given if name not in CONTEXTS]
    if unknown:
        raise InputError(
            f"context must name some of {', '.join(CONTEXTS)}, got {unknown[0]!r}; "
            "leave it out for a recalibration of the costs alone."
        )
    return tuple(name for name in CONTEXTS if name in given)


def context_names(
    contexts: Sequence[str], labels: Sequence[str], grid_dim: int, n_channels: int
) -> list[str]:
    """A name for each number that the contexts add."""
    names = []
    if "presence" in contexts:
        names += [f"presence of {label}" for label in labels]
    for context, count in (("position", grid_dim), ("color", n_channels)):
        if context in contexts:
            names += [f"{context} {k + 1}" for k in range(count)]
            names += [f"{context} {k + 1} squared" for k in range(count)]
    return names


def context_features(
    contexts: Sequence[str], costs: FloatArray, observation: Observation
) -> FloatArray:
    """The numbers (N, F) that the contexts add for each variable of the grid."""
    everything = dataclasses.replace(observation, selected=None)
    n_labels = costs.shape[-1]
    flat = costs.reshape(-1, n_labels)
    columns = []
    if "presence" in contexts:
        taking_part = observation.select(flat)
        p = np.exp(taking_part.min(1, keepdims=True) - taking_part)
        p /= p.sum(1, keepdims=True)
        share = p.mean(0, dtype=np.float64) + _LEAST_SHARE
        columns.append(np.broadcast_to(-np.log(share), flat.shape))
    if "position" in contexts:
        places = everything.coordinates()
        low, high = places.min(0), places.max(0)
        columns += _with_squares((places - low) / np.where(high > low, high - low, 1.0) - 0.5)
    if "color" in contexts:
        columns += _with_squares(everything.colors("rgb", None) / 255.0 - 0.5)
    if not columns:
        return np.empty((len(flat), 0), costs.dtype)
    return np.concatenate(columns, axis=1, dtype=costs.dtype)


def _with_squares(values: FloatArray) -> list[FloatArray]:
    return [values, values * values]
