"""Several classes with a set of patterns each (CHOPP section 6).

    E(y | x) = l^u sum_i u_i(y_i) + sum_k l_k sum_ij p^k_ij [y_i != y_j]
               + sum_l (f_l([y = l]) - b_l'[y = l])
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import FloatArray, InputError, as_floats, check_magnitude, shown
from crfield.patterns.inputs import PatternInputs
from crfield.patterns.model import GridModel
from crfield.patterns.potential import PatternPotential


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
