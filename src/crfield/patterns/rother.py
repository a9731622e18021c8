"""The linear deviation patterns of Rother et al. (2009) as pattern potentials (CHOPP section 3).

    g_j(y) = min{d_j(y) + theta_0j, theta_maxj},    d_j(y) = w_j'y + K_j,

composed by their sum or their minimum. With W = -w and c = theta_max - theta_0 - K each is
theta_max + min{0, -(W_j'y + c_j)}, a hidden unit that is maximized out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray, InputError, as_choice, as_floats
from crfield.graphcut._checks import check_not_negative
from crfield.patterns._checks import as_masks, as_vector
from crfield.patterns.potential import COMPOSITIONS, Patterns


@dataclass(frozen=True, eq=False)
class DeviationPatterns:
    """J patterns with a cost for every label that deviates, bounded above.

    weights : w (I, J); w_ij > 0 is the cost of y_i = 1 where the pattern has 0, w_ij < 0 takes off
        that of y_i = 0 where it has 1.
    offsets : K (J,); None for sum_i max(-w_ij, 0), with which a pattern deviates from itself by 0.
    theta_0 : (J,), cost of the pattern itself.
    theta_max : (J,), the most that a pattern costs.
    composition : "sum" of the patterns, or "min", the cheapest one.
    """

    weights: FloatArray
    offsets: Any = None
    theta_0: Any = 0.0
    theta_max: Any = 1.0
    composition: str = "sum"

    def __post_init__(self) -> None:
        weights = as_floats(self.weights, "weights")
        if weights.ndim != 2 or weights.size == 0:
            raise InputError(
                f"weights must have shape (I, J), labels by patterns, got {weights.shape}; "
                "flatten the label map."
            )
        as_choice(self.composition, "composition", COMPOSITIONS)
        offsets = np.maximum(-weights, 0).sum(0) if self.offsets is None else self.offsets
        n, dtype = weights.shape[1], weights.dtype
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "offsets", as_vector(offsets, n, "offsets", dtype))
        object.__setattr__(self, "theta_0", as_vector(self.theta_0, n, "theta_0", dtype))
        object.__setattr__(self, "theta_max", as_vector(self.theta_max, n, "theta_max", dtype))

    @classmethod
    def from_targets(
        cls, targets: Any, costs: Any = 1.0, *, theta_0: Any = 0.0, theta_max: Any = 1.0,
        composition: str = "sum",
    ) -> DeviationPatterns:
        """Patterns with targets (J, I) in {0, 1}: d_j(y) = sum_i costs_ji [y_i != targets_ji]."""
        shape = np.shape(targets)
        masks = as_masks(targets, int(np.prod(shape[1:])), "targets")
        each = as_floats(costs, "costs")
        check_not_negative(each, "costs", "flip the target where deviating is better")
        if each.shape not in ((), shape, masks.shape):
            raise InputError(
                f"costs must have the shape of the targets {shape}, got {each.shape}; "
                "pass one number for the same cost everywhere."
            )
        each = np.broadcast_to(each if each.ndim == 0 else each.reshape(masks.shape), masks.shape)
        signed = np.where(masks != 0, -each, each).T
        return cls(signed, None, theta_0, theta_max, composition)

    @property
    def targets(self) -> NDArray[np.uint8]:
        """The labels that each pattern asks for, (J, I)."""
        return (self.weights < 0).T.astype(np.uint8)

    def values(self, y: Any) -> NDArray[np.float64]:
        """sum_j or min_j of min{d_j(y) + theta_0j, theta_maxj}, (B,), from y (B, I)."""
        masks = as_masks(y, len(self.weights)).astype(self.weights.dtype)
        deviations = masks @ self.weights + self.offsets
        each = np.minimum(deviations + self.theta_0, self.theta_max)
        reduced = each.sum(1, dtype=np.float64) if self.composition == "sum" else each.min(1)
        return np.asarray(reduced, np.float64)

    def to_patterns(self) -> tuple[Patterns, float]:
        """Patterns at temperature 0 and a constant: values(y) = f(y; 0) + constant.

        The constant is sum_j theta_maxj, or min_j theta_maxj for "min", where a unit with weights 0
        and bias 0 is added last: it is the active one when no pattern is cheaper.
        """
        if self.composition == "sum":
            bias = self.theta_max - self.theta_0 - self.offsets
            return (
                Patterns(-self.weights, bias, temperature=0.0),
                float(self.theta_max.sum(dtype=np.float64)),
            )
        highest = self.theta_max.min()
        weights = np.pad(-self.weights, ((0, 0), (0, 1)))
        bias = np.append(highest - self.theta_0 - self.offsets, self.weights.dtype.type(0))
        return (
            Patterns(weights, bias, composition="min", temperature=0.0), float(highest)
        )

    @classmethod
    def from_patterns(cls, patterns: Patterns) -> DeviationPatterns:
        """Deviation patterns with values(y) = f(y; 0), whatever the temperature of `patterns`.

        "sum" gets theta_max = 0; "min" needs a unit with weights 0, whose bias is -theta_max.
        """
        if not isinstance(patterns, Patterns):
            raise InputError(
                f"patterns must be Patterns, got {type(patterns).__name__}; "
                "use to_dense() of convolutional ones."
            )
        if patterns.max_active is not None or patterns.image_weights is not None:
            raise InputError(
                "patterns must have neither max_active nor image_weights to be deviation patterns, "
                "got one that has; evaluate it as it is."
            )
        weights = -patterns.weights
        bias = patterns.hidden_bias(1)[0]
        theta_max = weights.dtype.type(0)
        if patterns.composition == "min":
            constant = ~weights.any(0)
            if not constant.any() or constant.all():
                raise InputError(
                    "patterns composed by 'min' must have a unit with weights 0 beside others, got "
                    f"{int(constant.sum())} of {len(bias)}; its bias is what caps the cost."
                )
            theta_max = -bias[constant].max()
            weights, bias = weights[:, ~constant], bias[~constant]
        offsets = np.maximum(-weights, 0).sum(0)
        return cls(weights, offsets, -bias - offsets, theta_max, patterns.composition)
