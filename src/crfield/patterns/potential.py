"""Compositional high-order pattern potentials over binary labels (CHOPP section 4).

    f(y; T) = -T log sum_h exp((y'W h + c'h) / T)                                          (eq. 4)

T = 1 is a restricted Boltzmann machine with its hidden units summed out, T -> 0 the pattern
potential, where they are maximized out. What differs between one set of patterns for the whole
image and windows that slide over it is W alone; everything else is here, once.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from crfield._core.threads import without_locks
from crfield._core.validate import (
    FloatArray,
    InputError,
    as_choice,
    as_count,
    as_floats,
    as_scalar,
    check_magnitude,
    shown,
)
from crfield.graphcut._checks import check_not_negative
from crfield.patterns._checks import as_masks, as_rows, as_temperature, as_vector
from crfield.patterns.cardinality import AtMost
from crfield.patterns.hidden import (
    AnyNumber,
    ExactlyOne,
    HiddenPosterior,
    HiddenRule,
    posterior,
)

COMPOSITIONS = ("sum", "min")


@without_locks
@dataclass(frozen=True, eq=False)
class PatternPotential(ABC):
    """f(y; T) with activations a(y, x) = c(x) + W'y, c(x) = c0 + W0'phi(x) (CHOPP section 4.1).

    Methods take label maps y (B, I), features phi (B, F) where there are image weights, and hidden
    units h (B, n_hidden) with a factor `scale` (B,), 1 by default.

    weights : W (I, J), or what it is made of; float32 or float64, and the others take its type.
    bias : c0 (J,), or one number for all.
    composition : "sum" leaves every hidden unit free, "min" has exactly one active.
    temperature : T >= 0; 0 is the limit T -> 0.
    max_active : at most so many hidden units are active, None for no limit; for "sum" only.
    sparsity : cost >= 0 of each active hidden unit, taken off its bias.
    image_weights : W0 (F, J), or None for biases that do not depend on the image.

    Arrays that have the right type already are kept, not copied; leave them as they are.
    """

    weights: FloatArray
    bias: FloatArray
    _: KW_ONLY
    composition: str = "sum"
    temperature: float = 1.0
    max_active: int | None = None
    sparsity: float = 0.0
    image_weights: FloatArray | None = None

    @property
    @abstractmethod
    def n_visible(self) -> int:
        """Number of labels I."""

    @property
    @abstractmethod
    def n_hidden(self) -> int:
        """Number of hidden units, over all positions."""

    @property
    def known_grid(self) -> tuple[int, int] | None:
        """Height and width of the label map, where the patterns depend on them."""
        return None

    @abstractmethod
    def to_visible(self, h: Any) -> FloatArray:
        """W h, (B, I), from h (B, n_hidden)."""

    @abstractmethod
    def weight_gradient(self, y: Any, h: Any, scale: Any = None) -> FloatArray:
        """sum_n scale_n y_n h_n' in the shape of the weights; `scale` (B,) is 1 by default."""

    @abstractmethod
    def _to_hidden(self, y: NDArray[Any]) -> FloatArray:
        """W'y, (B, n_hidden)."""

    @abstractmethod
    def _shared(self, h: FloatArray) -> FloatArray:
        """(B, n_hidden) summed over the units that share a bias, (B, J)."""

    @abstractmethod
    def _spread(self, c: FloatArray) -> FloatArray:
        """(B, J) repeated for the units that share a bias, (B, n_hidden)."""

    def __repr__(self) -> str:
        parts = [f"{self.n_hidden} hidden units over {self.n_visible} labels", self.composition]
        if self.temperature != 1.0:
            parts.append(f"temperature {self.temperature}")
        if self.image_weights is not None:
            parts.append(f"{len(self.image_weights)} features")
        return f"{type(self).__name__}({', '.join(parts)})"

    @property
    def dtype(self) -> np.dtype[Any]:
        """float32 or float64, which the weights have."""
        return self.weights.dtype

    @property
    def parameters(self) -> dict[str, FloatArray]:
        """"weights" W, "bias" (J,) and, where there are any, "image_weights" (F, J)."""
        found = {"weights": self.weights, "bias": self.bias}
        return found if self.image_weights is None else {
            **found, "image_weights": self.image_weights
        }

    def with_parameters(self, parameters: Mapping[str, Any]) -> Self:
        """The same potential with other numbers; the keys are those of `parameters`."""
        return replace(self, **parameters)

    def at_temperature(self, temperature: float) -> Self:
        """The same patterns at another temperature: 1 sums h out, 0 maximizes it out."""
        return replace(self, temperature=temperature)

    @cached_property
    def rule(self) -> HiddenRule:
        """Which h are allowed."""
        if self.composition == "min":
            return ExactlyOne()
        if self.max_active is None or self.max_active >= self.n_hidden:  # which all units keep to
            return AnyNumber()
        return AtMost(self.max_active)

    def activations(self, y: Any, features: Any = None) -> FloatArray:
        """a = c(x) + W'y, (B, n_hidden), from y (B, I) in {0, 1} and features phi (B, F)."""
        masks = as_masks(y, self.n_visible)
        return self._to_hidden(masks) + self.hidden_bias(len(masks), features)

    def hidden_bias(self, n: int, features: Any = None) -> FloatArray:
        """c(x) = c0 + W0'phi(x) less the sparsity, (n or 1, n_hidden); features (n, F).

        Features are ignored where there are no image weights.
        """
        c = (self.bias - self.dtype.type(self.sparsity))[None]
        if self.image_weights is not None:
            phi = self._features(features)
            if len(phi) not in (1, n):
                raise InputError(
                    f"features must have one row per image ({n}), got {len(phi)}; "
                    "pass features and labels of the same images."
                )
            c = c + phi @ self.image_weights
        return self._spread(c)

    def energies(self, y: Any, features: Any = None) -> NDArray[np.float64]:
        """f(y; T) = -T log sum_h exp((c + W'y)'h / T), (B,): CHOPP eq. 4."""
        return -self.rule.log_partition(self.activations(y, features), self.temperature)

    def posterior(self, activations: FloatArray) -> HiddenPosterior:
        """p*(h | y) of eq. 10 with its entropy; `posterior(a).bound(a)` is -f(y; T)."""
        return posterior(self.rule, activations, self.temperature)

    def expected_hidden(self, y: Any, features: Any = None) -> FloatArray:
        """E[h | y] (B, n_hidden) under eq. 10: the E-step, eq. 7 at T = 1.

        At temperature 0 it is one best h; of equals the inactive unit or the first one wins.
        """
        return self.rule.expected(self.activations(y, features), self.temperature)

    def sample_hidden(
        self, y: Any, rng: np.random.Generator, features: Any = None
    ) -> NDArray[np.uint8]:
        """One draw of h (B, n_hidden) from eq. 10 for each row, with random numbers of `rng`."""
        return self.rule.sample(self.activations(y, features), self.temperature, rng)

    def lower_bound(
        self, y: Any, q: HiddenPosterior, features: Any = None
    ) -> NDArray[np.float64]:
        """(c + W'y)'E_q[h] + T H(q) <= -f(y; T), (B,): eq. 9 with the T it lacks."""
        return q.bound(self.activations(y, features))

    def bias_gradient(self, h: Any, scale: Any = None) -> FloatArray:
        """sum_n scale_n h_n in the shape of the bias, (J,)."""
        return np.asarray(self._scaled(h, scale)[1].sum(0))

    def image_gradient(self, features: Any, h: Any, scale: Any = None) -> FloatArray:
        """sum_n scale_n phi_n h_n' in the shape of the image weights, (F, J)."""
        return np.asarray(self._features(features).T @ self._scaled(h, scale)[1])

    def _features(self, features: Any) -> FloatArray:
        assert self.image_weights is not None
        if features is None:
            raise InputError(
                "features must be given because these patterns have image weights, got None; "
                f"pass an array (B, {len(self.image_weights)})."
            )
        return as_rows(features, len(self.image_weights), "features", self.dtype)

    def _scaled(self, h: Any, scale: Any) -> tuple[FloatArray, FloatArray]:
        """scale_n h_n for each hidden unit, and summed over units that share a bias."""
        rows = as_rows(h, self.n_hidden, "h", self.dtype)
        if scale is not None:
            rows = rows * as_vector(scale, len(rows), "scale", self.dtype)[:, None]
        return rows, self._shared(rows)

    def _check(self, weights: FloatArray) -> None:
        """Validate what all kinds of patterns have, and store it in the type of the weights."""
        if weights.size == 0:
            raise InputError(
                f"weights must hold at least one number, got shape {weights.shape}; "
                "leave the patterns out of the model instead."
            )
        n_patterns = weights.shape[-1]
        as_choice(self.composition, "composition", COMPOSITIONS)
        sparsity = np.asarray(as_scalar(self.sparsity, "sparsity"))
        check_not_negative(sparsity, "sparsity", "raise the bias to make units more active")
        if self.max_active is not None and self.composition == "min":
            raise InputError(
                f"max_active must be None with composition 'min', got {shown(self.max_active)}; "
                "'min' has exactly one active unit."
            )
        stored: dict[str, Any] = {
            "weights": weights,
            "bias": as_vector(self.bias, n_patterns, "bias", weights.dtype),
            "temperature": as_temperature(self.temperature),
            "sparsity": float(sparsity),
        }
        if self.max_active is not None:
            stored["max_active"] = as_count(self.max_active, "max_active")
        if self.image_weights is not None:
            image_weights = as_floats(self.image_weights, "image_weights", weights.dtype)
            if image_weights.ndim != 2 or image_weights.shape[1] != n_patterns:
                raise InputError(
                    f"image_weights must have shape (F, {n_patterns}), one column per pattern, got "
                    f"{image_weights.shape}; transpose it if its rows are the patterns."
                )
            stored["image_weights"] = image_weights
        for name in ("weights", "bias", "sparsity", "image_weights"):
            if name in stored:
                check_magnitude(np.asarray(stored[name]), name)
        for name, value in stored.items():
            object.__setattr__(self, name, value)


@dataclass(frozen=True, eq=False, repr=False)
class Patterns(PatternPotential):
    """Patterns that each see all labels (eq. 4).

    Parameters
    ----------
    weights : W (I, J), float32 or float64; the other arrays take its type.
    bias : c0 (J,), or one number for all.
    """

    def __post_init__(self) -> None:
        weights = as_floats(self.weights, "weights")
        if weights.ndim != 2:
            raise InputError(
                f"weights must have shape (I, J), labels by patterns, got {weights.shape}; "
                "flatten the label map."
            )
        self._check(weights)

    @property
    def n_visible(self) -> int:
        return int(self.weights.shape[0])

    @property
    def n_hidden(self) -> int:
        return int(self.weights.shape[1])

    def to_visible(self, h: Any) -> FloatArray:
        return as_rows(h, self.n_hidden, "h", self.dtype) @ self.weights.T

    def weight_gradient(self, y: Any, h: Any, scale: Any = None) -> FloatArray:
        masks = as_masks(y, self.n_visible).astype(self.dtype)
        return np.asarray(masks.T @ self._scaled(h, scale)[0])

    def _to_hidden(self, y: NDArray[Any]) -> FloatArray:
        return y.astype(self.dtype, copy=False) @ self.weights

    def _shared(self, h: FloatArray) -> FloatArray:
        return h

    def _spread(self, c: FloatArray) -> FloatArray:
        return c
