"""Belief propagation on 4-connected grids of pixels whose costs come from any network.

E(x) = sum_i costs[x_i, i] + sum_(i, j) pair(x_i, x_j) over neighbors along rows (horizontal) and
columns (vertical). What neighbors cost is one of

    a number w or a map (B or 1, H, W - 1)    w [x_i != x_j], Potts, in O(L) a message;
    a table (L, L), or one for each edge, (B or 1, L, L, H, W - 1), the left label first;

for vertical neighbors with (H - 1, W), the upper label first. Iterations send all messages at
once and damp their logarithms.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from crfield._core.validate import InputError, as_choice, as_count, as_scalar
from crfield.nn.structured.grid_messages import (
    GridRun,
    as_pair,
    energies,
    expected_energy,
    run_grid,
)
from crfield.nn.structured.messages import as_propagation
from crfield.nn.structured.tree_inputs import (
    REDUCTIONS,
    check_beside,
    check_costs,
    check_range,
    check_values,
    reduce,
    working_dtype,
)

PAIRWISE = ("potts", "tables", "none")
OUTPUTS = ("marginals", "logits")


class GridBeliefs(NamedTuple):
    """What belief propagation found.

    log_beliefs : (B, L, H, W), logarithms of the marginals; at temperature 0 how much less good the
        best labeling with each label is, 0 for the best and negative for all others.
    log_partition : (B,), T log Z in the Bethe approximation.
    residuals : (B,), by how much the last iteration changed a log message at most, before damping;
        0 at a fixed point.
    """

    log_beliefs: Tensor
    log_partition: Tensor
    residuals: Tensor

    @property
    def marginals(self) -> Tensor:
        """exp(log_beliefs), (B, L, H, W)."""
        return self.log_beliefs.exp()

    @property
    def labels(self) -> Tensor:
        """The label of largest belief of each pixel, (B, H, W)."""
        return self.log_beliefs.argmax(1)


def propagate_grid(
    costs: Tensor, horizontal: Tensor, vertical: Tensor, *, n_iter: int = 20, damping: float = 0.5,
    temperature: float = 1.0,
) -> GridBeliefs:
    """Sum-product (temperature > 0) or max-product (0) belief propagation, unrolled.

    E(x) = sum_i costs[x_i, i] + sum_(i, j) pair(x_i, x_j) over neighbors.

    costs : (B, L, H, W).
    horizontal : what neighbors in a row cost: a Potts weight or a map (B or 1, H, W - 1) of them,
        a table (L, L), the left label first, or (B or 1, L, L, H, W - 1).
    vertical : likewise in a column, with (H - 1, W), the upper label first.
    n_iter, damping : iterations send all messages at once and damp their logarithms.
    """
    settings = as_propagation(n_iter, damping, temperature)
    return _beliefs(run_grid(*_as_problem(costs, horizontal, vertical), settings))


class GridCRF(nn.Module):
    """Grids whose costs come from a network; what neighbors cost is learned along.

    E(x) = sum_i costs[x_i, i] + sum_(i, j) pair(x_i, x_j), P(x) = exp(-E(x) / T) / Z.

    Methods take costs (B, L, H, W), labels (B, H, W), and where given horizontal and vertical costs
    of neighbors in place of the learned ones, as for `propagate_grid`.

    Parameters
    ----------
    n_labels : number of labels L.
    pairwise : "potts" to learn one weight for `horizontal` and one for `vertical` neighbors,
        "tables" to learn tables (L, L), "none" where every call brings its own.
    weight : what different labels cost at first.
    n_iter, damping, temperature : of sum-product; `decode` has the same with temperature 0.
    unrolled : whether `log_partition` and `nll` are differentiated through the iterations. Else the
        result is taken for a fixed point, where derivatives are beliefs: that needs no memory for
        iterations, and enough of them to converge. Marginals are always unrolled.
    output : of `forward`, "marginals" or "logits", their logarithms.
    """

    horizontal: nn.Parameter | None
    vertical: nn.Parameter | None

    def __init__(
        self, n_labels: int, *, pairwise: str = "potts", weight: float = 1.0, n_iter: int = 20,
        damping: float = 0.5, temperature: float = 1.0, unrolled: bool = False,
        output: str = "marginals",
    ) -> None:
        super().__init__()
        self.n_labels = as_count(n_labels, "n_labels")
        self.pairwise = as_choice(pairwise, "pairwise", PAIRWISE)
        start = torch.tensor(as_scalar(weight, "weight"), dtype=torch.get_default_dtype())
        self.settings = as_propagation(n_iter, damping, temperature)
        self.unrolled = bool(unrolled)
        self.output = as_choice(output, "output", OUTPUTS)
        if self.pairwise == "tables":
            start = start * (1 - torch.eye(self.n_labels))
        for name in ("horizontal", "vertical"):
            value = None if self.pairwise == "none" else nn.Parameter(start.clone())
            self.register_parameter(name, value)

    def forward(
        self, costs: Tensor, horizontal: Tensor | None = None, vertical: Tensor | None = None
    ) -> Tensor:
        """Marginals, or their logarithms, (B, L, H, W)."""
        found = self.infer(costs, horizontal, vertical)
        return found.marginals if self.output == "marginals" else found.log_beliefs

    def infer(
        self, costs: Tensor, horizontal: Tensor | None = None, vertical: Tensor | None = None
    ) -> GridBeliefs:
        """Beliefs, log Z and residuals, all differentiable through the iterations."""
        problem = self._prepare(costs, horizontal, vertical)
        return _beliefs(run_grid(*problem, self.settings))

    def marginals(
        self, costs: Tensor, horizontal: Tensor | None = None, vertical: Tensor | None = None
    ) -> Tensor:
        """P(x_i = l), (B, L, H, W)."""
        return self.infer(costs, horizontal, vertical).marginals

    def edge_marginals(
        self, costs: Tensor, horizontal: Tensor | None = None, vertical: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """P(x_i = k, x_j = l) of neighbors, (B, L, L, H, W - 1) and (B, L, L, H - 1, W)."""
        self._check_temperature("edge_marginals")
        problem = self._prepare(costs, horizontal, vertical)
        return run_grid(*problem, self.settings).edge_beliefs(*problem[1:])

    def log_partition(
        self, costs: Tensor, horizontal: Tensor | None = None, vertical: Tensor | None = None
    ) -> Tensor:
        """T log Z in the Bethe approximation, (B,)."""
        problem = self._prepare(costs, horizontal, vertical)
        return self._log_partition(problem).to(problem[0].dtype)

    def energies(
        self, costs: Tensor, labels: Tensor, horizontal: Tensor | None = None,
        vertical: Tensor | None = None,
    ) -> Tensor:
        """E(labels), (B,), of labels (B, H, W)."""
        problem = self._prepare(costs, horizontal, vertical)
        return energies(*problem, _as_labels(labels, costs)).to(problem[0].dtype)

    def nll(
        self, costs: Tensor, labels: Tensor, horizontal: Tensor | None = None,
        vertical: Tensor | None = None, *, reduction: str = "mean",
    ) -> Tensor:
        """-log P(labels) with the Bethe log Z; its derivative by a cost is observed minus belief.

        reduction : "none" for (B,), "sum", "mean" over the batch, or "node_mean", the sum over the
            number of pixels.
        """
        self._check_temperature("nll")
        how = as_choice(reduction, "reduction", REDUCTIONS)
        problem = self._prepare(costs, horizontal, vertical)
        value = energies(*problem, _as_labels(labels, costs)) + self._log_partition(problem)
        n_pixels = costs.shape[0] * costs.shape[2] * costs.shape[3]
        return reduce(value / self.settings.temperature, how, n_pixels).to(problem[0].dtype)

    @torch.no_grad()
    def decode(
        self, costs: Tensor, horizontal: Tensor | None = None, vertical: Tensor | None = None
    ) -> Tensor:
        """Labels (B, H, W) of least energy as max-product sees them."""
        settings = self.settings._replace(temperature=0.0)
        run = run_grid(*self._prepare(costs, horizontal, vertical), settings)
        return run.beliefs.argmax(1)

    def extra_repr(self) -> str:
        n_iter, damping, temperature = self.settings
        return (
            f"n_labels={self.n_labels}, pairwise={self.pairwise!r}, n_iter={n_iter}, "
            f"damping={damping:g}, temperature={temperature:g}, unrolled={self.unrolled}"
        )

    def _log_partition(self, problem: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """In float64."""
        if self.unrolled:
            return run_grid(*problem, self.settings).log_partition
        with torch.no_grad():
            run = run_grid(*problem, self.settings)
        # At a fixed point log Z does not change with messages (Yedidia et al. 2005), so that its
        # derivatives are those of -E with the beliefs held.
        expected = expected_energy(run, *problem)
        return run.log_partition - (expected - expected.detach())

    def _prepare(
        self, costs: Tensor, horizontal: Tensor | None, vertical: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        check_costs(costs, f"(B, {self.n_labels}, H, W)", 4)
        if costs.shape[1] != self.n_labels:
            raise InputError(
                f"costs must have shape (B, {self.n_labels}, H, W), got {tuple(costs.shape)}; put "
                "the labels second."
            )
        given = (
            self.horizontal if horizontal is None else horizontal,
            self.vertical if vertical is None else vertical,
        )
        if given[0] is None or given[1] is None:
            raise InputError(
                'horizontal and vertical must be given to a module with pairwise="none", got None; '
                "pass both, or let the module learn its own."
            )
        return _as_problem(costs, *given)

    def _check_temperature(self, name: str) -> None:
        if self.settings.temperature == 0:
            raise InputError(f"{name} must have a temperature above 0, got 0; 1 is the usual one.")


def _as_problem(costs: Tensor, horizontal: Any, vertical: Any) -> tuple[Tensor, Tensor, Tensor]:
    check_costs(costs, "(B, L, H, W)", 4)
    n_rows, n_columns = costs.shape[2:]
    for values, name in ((horizontal, "horizontal"), (vertical, "vertical")):
        check_beside(values, name, costs)
    pairs = (
        as_pair(horizontal, "horizontal", costs, (n_rows, n_columns - 1)),
        as_pair(vertical, "vertical", costs, (n_rows - 1, n_columns)),
    )
    dtype = working_dtype(costs, *pairs)
    costs, pairs = costs.to(dtype), (pairs[0].to(dtype), pairs[1].to(dtype))
    for values, name in zip((costs, *pairs), ("costs", "horizontal", "vertical"), strict=True):
        check_values(values, name)
    return costs, *pairs


def _as_labels(labels: Tensor, costs: Tensor) -> Tensor:
    check_beside(labels, "labels", costs)
    shape = (costs.shape[0], *costs.shape[2:])
    if tuple(labels.shape) != shape or labels.dtype.is_floating_point:
        raise InputError(
            f"labels must be whole numbers of shape {shape}, got {labels.dtype} of shape "
            f"{tuple(labels.shape)}; give one label a pixel."
        )
    check_range(labels.long(), costs.shape[1])
    return labels.long()


def _beliefs(run: GridRun) -> GridBeliefs:
    return GridBeliefs(run.log_beliefs, run.log_partition.to(run.beliefs.dtype), run.residuals)
