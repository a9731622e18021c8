"""CRFs with pattern potentials on label maps (CHOPP sections 4.1 and 6).

    E(y | x) = l^u sum_i u_i(y_i) + sum_k l_k sum_ij p^k_ij [y_i != y_j] - b'y + f(y; T)   (eq. 5)

in costs, P(y | x) = exp(-E) / Z, so that the Potts terms p^k_ij >= 0 are added. Several classes
with a set of patterns each (section 6) have

    E(y | x) = l^u sum_i u_i(y_i) + sum_k l_k sum_ij p^k_ij [y_i != y_j]
               + sum_l (f_l([y = l]) - b_l'[y = l]).
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    FloatArray,
    InputError,
    as_array,
    as_count,
    as_floats,
    as_scalar,
    check_finite,
    check_magnitude,
    check_memory,
    refuse_where,
    shown,
)
from crfield.graphcut._checks import check_not_negative
from crfield.patterns._checks import as_grid, as_vector
from crfield.patterns.inputs import PatternInputs, disagreement_costs
from crfield.patterns.potential import PatternPotential


@dataclass(frozen=True, eq=False, kw_only=True)
class GridModel:
    """Unary and Potts costs on a grid, with trade-off weights.

    Methods take labels y (B, H, W) and the inputs of B images.

    unary_weight : l^u.
    pairwise_weights : l_k >= 0 (K,), one for each type of pairwise terms of the inputs.
    grid : height and width.
    """

    unary_weight: float = 1.0
    pairwise_weights: Any = ()
    grid: Any = None

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        raise NotImplementedError

    @property
    def potentials(self) -> tuple[tuple[int, PatternPotential], ...]:
        """The labels that have patterns of their own, with the patterns."""
        raise NotImplementedError

    def class_costs(self, inputs: PatternInputs) -> FloatArray:
        """Cost of each label at each pixel without the patterns, (B, H, W, L)."""
        raise NotImplementedError

    def pairwise_only(self) -> GridModel:
        """The model without its patterns and visible bias, from which inference starts."""
        raise NotImplementedError

    def weighted_costs(self, inputs: PatternInputs) -> FloatArray:
        """l^u u_i(l), (B, H, W, L), in the wider of the types of the costs and of the patterns."""
        types = [patterns.dtype for _, patterns in self.potentials]
        costs = inputs.costs.astype(np.result_type(inputs.costs, *types))
        with np.errstate(over="ignore"):  # which is refused
            costs *= costs.dtype.type(self.unary_weight)
        check_magnitude(costs, "unary_weight times costs")
        return costs

    def unary_costs(self, labels: Any, inputs: PatternInputs) -> NDArray[np.float64]:
        """sum_i u_i(y_i), (B,), without the weight."""
        chosen = np.take_along_axis(inputs.costs, self.as_labels(labels, inputs)[..., None], -1)
        return np.asarray(chosen.sum((1, 2, 3), dtype=np.float64))

    def pairwise_costs(self, labels: Any, inputs: PatternInputs) -> NDArray[np.float64]:
        """sum_ij p^k_ij [y_i != y_j], (B, K), without the weights."""
        maps = self.as_labels(labels, inputs)
        if inputs.pairwise is None:
            return np.zeros((len(maps), 0))
        return disagreement_costs(maps, inputs.pairwise)

    def edge_weights(self, inputs: PatternInputs) -> FloatArray:
        """sum_k l_k p^k, (B or 1, n_offsets, H, W): the Potts costs of a graph cut."""
        if inputs.pairwise is None:
            return np.zeros((1, 2, *inputs.grid), inputs.costs.dtype)
        weights = self.pairwise_weights.astype(inputs.pairwise.dtype)
        with np.errstate(over="ignore"):  # which is refused
            total = np.asarray(np.einsum("k,bkohw->bohw", weights, inputs.pairwise))
        check_magnitude(total, "pairwise_weights times pairwise")
        return total

    def base_energies(self, labels: Any, inputs: PatternInputs) -> NDArray[np.float64]:
        """The unary and pairwise costs with their weights, (B,)."""
        self.check_inputs(inputs)
        pairwise = self.pairwise_costs(labels, inputs) @ self.pairwise_weights
        return np.asarray(self.unary_weight * self.unary_costs(labels, inputs) + pairwise)

    def check_inputs(self, inputs: PatternInputs) -> None:
        """Refuse inputs that do not belong to this model."""
        if not isinstance(inputs, PatternInputs):
            raise InputError(
                f"inputs must be PatternInputs, got {type(inputs).__name__}; "
                "wrap the costs in PatternInputs(costs, pairwise, features)."
            )
        if inputs.grid != self.grid or inputs.n_labels != self.n_labels:
            raise InputError(
                f"inputs must have grid {self.grid} and {self.n_labels} labels, got {inputs.grid} "
                f"and {inputs.n_labels}; resize the images to the size of the patterns."
            )
        n_types = 0 if inputs.pairwise is None else inputs.pairwise.shape[1]
        if n_types != len(self.pairwise_weights):
            raise InputError(
                f"inputs must have {len(self.pairwise_weights)} types of pairwise terms, one "
                f"per weight, got {n_types}; give a weight of 0 to those that should not count."
            )

    def as_labels(
        self, labels: Any, inputs: PatternInputs, name: str = "labels"
    ) -> NDArray[Any]:
        """Labels as (B, H, W) integers; (B, I) is accepted too; messages call them `name`."""
        array = as_array(labels, name)
        n = len(inputs)
        if array.shape not in ((n, *self.grid), (n, self.grid[0] * self.grid[1])):
            raise InputError(
                f"{name} must have shape {(n, *self.grid)}, got {array.shape}; "
                "pass one label map per image."
            )
        check_finite(array, name)
        whole = array if array.dtype.kind in "iu" else array.astype(np.intp)
        bad = (whole < 0) | (whole >= self.n_labels) | (whole != array)
        refuse_where(
            bad, array, f"{name} must be whole numbers in 0..{self.n_labels - 1}",
            "threshold or renumber them",
        )
        return whole.reshape(n, *self.grid)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to `path`, safetensors with a JSON description; whole or not at all."""
        from crfield.patterns.files import save

        save(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a model that `save` wrote to `path`."""
        from crfield.patterns.files import load

        return load(path, cls)

    def _check_weights(self, known_grid: tuple[int, int] | None, n_visible: int | None) -> None:
        unary_weight = as_scalar(self.unary_weight, "unary_weight")
        check_magnitude(np.asarray(unary_weight), "unary_weight")
        object.__setattr__(self, "unary_weight", unary_weight)
        weights = as_floats(self.pairwise_weights, "pairwise_weights", np.dtype(np.float64))
        if weights.ndim != 1:
            raise InputError(
                f"pairwise_weights must have one number per type of terms, got shape "
                f"{weights.shape}; pass a list, empty for none."
            )
        check_not_negative(
            weights, "pairwise_weights", "graph cuts need terms that favor equal labels"
        )
        check_magnitude(weights, "pairwise_weights")
        object.__setattr__(self, "pairwise_weights", weights)
        if self.grid is None and known_grid is None:
            raise InputError("grid must be given, got None; pass (height, width) of the images.")
        grid = known_grid if self.grid is None else as_grid(self.grid)
        assert grid is not None
        if known_grid not in (None, grid) or n_visible not in (None, grid[0] * grid[1]):
            seen = known_grid or f"{n_visible} labels"
            raise InputError(
                f"grid must be that of the patterns ({seen}), got {grid}; "
                "use patterns made for this image size."
            )
        object.__setattr__(self, "grid", grid)


@dataclass(frozen=True, eq=False)
class PatternCRF(GridModel):
    """A binary CRF with pattern potentials (CHOPP eq. 5, as costs); holds parameters only.

    E(y) = l^u sum_i u_i(y_i) + sum_k l_k sum_ij p^k_ij [y_i != y_j] - b'y + f(y; T).

    Parameters
    ----------
    patterns : `Patterns` or `ConvolutionalPatterns` with f(y; T), or None.
    unary_weight, pairwise_weights, grid : see `GridModel`; convolutional patterns know their grid.
    visible_bias : b (I,), or one number for all.

    Examples
    --------
    >>> model = PatternCRF(Patterns(weights, bias), pairwise_weights=[0.5],
    ...                    grid=(32, 32))                                      # doctest: +SKIP
    >>> result = infer(model, PatternInputs(costs, pairwise))                  # doctest: +SKIP
    """

    patterns: PatternPotential | None
    _: KW_ONLY
    visible_bias: Any = 0.0

    def __post_init__(self) -> None:
        patterns = self.patterns
        if patterns is not None and not isinstance(patterns, PatternPotential):
            raise InputError(
                f"patterns must be Patterns or ConvolutionalPatterns, got "
                f"{type(patterns).__name__}; for example Patterns(weights, bias)."
            )
        self._check_weights(
            None if patterns is None else patterns.known_grid,
            None if patterns is None else patterns.n_visible,
        )
        dtype = np.dtype(np.float32) if patterns is None else patterns.dtype
        bias = as_vector(self.visible_bias, self.grid[0] * self.grid[1], "visible_bias", dtype)
        check_magnitude(bias, "visible_bias")
        object.__setattr__(self, "visible_bias", bias)

    @property
    def n_labels(self) -> int:
        return 2

    @property
    def potentials(self) -> tuple[tuple[int, PatternPotential], ...]:
        return () if self.patterns is None else ((1, self.patterns),)

    def energies(self, y: Any, inputs: PatternInputs) -> NDArray[np.float64]:
        """E(y | x), (B,), from y (B, H, W) or (B, I): eq. 5 in costs."""
        energies = self.base_energies(y, inputs)
        masks = self.as_labels(y, inputs).reshape(len(inputs), -1)
        energies -= masks @ self.visible_bias.astype(np.float64)
        if self.patterns is not None:
            energies += self.patterns.energies(masks, inputs.features)
        return energies

    def log_scores(self, y: Any, inputs: PatternInputs) -> NDArray[np.float64]:
        """log P(y | x) + log Z(x) = -E(y | x), (B,)."""
        return -self.energies(y, inputs)

    def class_costs(self, inputs: PatternInputs) -> FloatArray:
        self.check_inputs(inputs)
        costs = self.weighted_costs(inputs)
        costs[..., 1] -= self.visible_bias.reshape(self.grid)
        return costs

    def label_costs(self, inputs: PatternInputs) -> FloatArray:
        """Cost of label 1 less that of label 0, without the patterns, (B, H, W)."""
        costs = self.class_costs(inputs)
        return np.asarray(costs[..., 1] - costs[..., 0])

    def pairwise_only(self) -> PatternCRF:
        return replace(self, patterns=None, visible_bias=0.0)

    def with_image_weights(self, n_features: int) -> PatternCRF:
        """The same model with hidden biases that may depend on `n_features` of an image.

        W0 starts at 0. Features of mean 0 whose squares sum to about 1 suit `learn_patterns`.
        """
        if self.patterns is None:
            raise InputError(
                "a model must have patterns for their biases to depend on the image, got none; "
                "add them first, for example from pretrain."
            )
        n, n_patterns = as_count(n_features, "n_features"), self.patterns.bias.size
        check_memory(
            float(n) * n_patterns * self.patterns.dtype.itemsize,
            f"A matrix of {n} features by {n_patterns} patterns", "use fewer features",
        )
        zeros = np.zeros((n, n_patterns), self.patterns.dtype)
        return replace(self, patterns=replace(self.patterns, image_weights=zeros))

    def __repr__(self) -> str:
        return (
            f"PatternCRF({self.patterns!r}, unary_weight={self.unary_weight:g}, "
            f"pairwise_weights={[float(f'{w:.3g}') for w in self.pairwise_weights]}, "
            f"grid={self.grid})"
        )

    def at_temperature(self, temperature: Any) -> PatternCRF:
        """The same model with its patterns at another temperature."""
        if self.patterns is None:
            return self
        return replace(self, patterns=self.patterns.at_temperature(temperature))


@dataclass(frozen=True, eq=False)
class MultiLabelPatternCRF(GridModel):
    """A CRF over L labels in which each label's mask may have patterns; holds parameters only.

    E(x) = l^u sum_i u_i(x_i) + sum_k l_k sum_ij p^k_ij [x_i != x_j] + sum_l (f_l(y^l) - b_l'y^l),
    y^l_i = [x_i = l] (CHOPP eq. 5 for each label).

    Parameters
    ----------
    patterns : L entries, a potential or None for labels without.
    unary_weight, pairwise_weights, grid : see `GridModel`.
    visible_bias : b (L, I), or one number for all.
    """

    patterns: Sequence[PatternPotential | None]
    _: KW_ONLY
    visible_bias: Any = 0.0

    def __post_init__(self) -> None:
        patterns = tuple(self.patterns) if isinstance(self.patterns, Sequence) else ()
        known = [p for p in patterns if isinstance(p, PatternPotential)]
        if len(patterns) < 2 or len(known) + patterns.count(None) < len(patterns):
            raise InputError(
                "patterns must be a list with Patterns, ConvolutionalPatterns or None for each of "
                f"at least 2 labels, got {shown(self.patterns)}; for example [None, shapes]."
            )
        object.__setattr__(self, "patterns", patterns)
        grids = {p.known_grid for p in known} - {None}
        sizes = {p.n_visible for p in known}
        if len(grids) > 1 or len(sizes) > 1:
            raise InputError(
                f"patterns must be for label maps of one size, got sizes {sorted(sizes)}; "
                "use patterns made for the same grid."
            )
        self._check_weights(next(iter(grids), None), next(iter(sizes), None))
        dtype = np.result_type(np.float32, *(p.dtype for p in known))
        bias = as_floats(self.visible_bias, "visible_bias", dtype)
        check_magnitude(bias, "visible_bias")
        shape = (len(patterns), self.grid[0] * self.grid[1])
        if bias.shape not in ((), shape):
            raise InputError(
                f"visible_bias must have shape {shape}, labels by pixels, got {bias.shape}; "
                "pass 0 for none."
            )
        object.__setattr__(self, "visible_bias", np.broadcast_to(bias, shape).copy())

    @property
    def n_labels(self) -> int:
        return len(self.patterns)

    @property
    def potentials(self) -> tuple[tuple[int, PatternPotential], ...]:
        return tuple((label, p) for label, p in enumerate(self.patterns) if p is not None)

    def energies(self, labels: Any, inputs: PatternInputs) -> NDArray[np.float64]:
        """E(y | x), (B,), from labels (B, H, W) or (B, I)."""
        energies = self.base_energies(labels, inputs)
        flat = self.as_labels(labels, inputs).reshape(len(inputs), -1)
        bias = self.visible_bias[flat, np.arange(flat.shape[1])]
        energies -= bias.sum(1, dtype=np.float64)
        for label, patterns in self.potentials:
            energies += patterns.energies(flat == label, inputs.features)
        return energies

    def log_scores(self, labels: Any, inputs: PatternInputs) -> NDArray[np.float64]:
        """log P(y | x) + log Z(x) = -E(y | x), (B,)."""
        return -self.energies(labels, inputs)

    def class_costs(self, inputs: PatternInputs) -> FloatArray:
        self.check_inputs(inputs)
        costs = self.weighted_costs(inputs)
        costs -= np.moveaxis(self.visible_bias.reshape(-1, *self.grid), 0, -1)
        return costs

    def at_temperature(self, temperature: Any) -> MultiLabelPatternCRF:
        """The same model with its patterns at another temperature."""
        patterns = [p if p is None else p.at_temperature(temperature) for p in self.patterns]
        return replace(self, patterns=patterns)

    def pairwise_only(self) -> MultiLabelPatternCRF:
        return replace(self, patterns=(None,) * self.n_labels, visible_bias=0.0)
