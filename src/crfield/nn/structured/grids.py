"""Belief propagation on 4-connected grids of pixels whose costs come from any network.

E(x) = sum_i costs[x_i, i] + sum_(i, j) pair(x_i, x_j) over neighbors along rows (horizontal) and
columns (vertical), in the forms of `propagate_grid`; Potts weights take O(L) per message. Messages
of a direction are numbered by edges: (B, L, H, W - 1) to the right and to the left,
(B, L, H - 1, W) down and up. Inside, what an edge costs is (B or 1, 1, H or 1, W or 1) for Potts
weights, (B or 1, L, L, H or 1, W or 1) for tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from crfield._core.validate import InputError, as_choice, as_count, as_scalar
from crfield.nn.structured.inputs import (
    REDUCTIONS,
    check_beside,
    check_costs,
    check_range,
    check_values,
    reduce,
    working_dtype,
)
from crfield.nn.structured.messages import (
    Beliefs,
    MessageSettings,
    as_message_settings,
    damped,
    send_potts,
    shifted,
    soft_maximum,
)

COMPATIBILITIES = ("potts", "tables", "none")
OUTPUTS = ("marginals", "logits")

_ROWS, _COLUMNS = 2, 3  # axes of the costs
_AXES = (_COLUMNS, _ROWS)  # along which horizontal and vertical edges lead


def propagate_grid(
    costs: Tensor, horizontal: Tensor, vertical: Tensor, *, max_iter: int = 20,
    damping: float = 0.5, temperature: float = 1.0,
) -> Beliefs:
    """Sum-product (temperature > 0) or max-product (0) belief propagation, unrolled.

    E(x) = sum_i costs[x_i, i] + sum_(i, j) pair(x_i, x_j) over neighbors.

    costs : (B, L, H, W).
    horizontal : what neighbors in a row cost: a Potts weight w, for w [x_i != x_j], or a map
        (B or 1, H, W - 1) of them, a table (L, L), the left label first, or one for each edge,
        (B or 1, L, L, H, W - 1).
    vertical : likewise in a column, with (H - 1, W), the upper label first.
    max_iter, damping : iterations send all messages at once and damp their logarithms.
    """
    settings = as_message_settings(max_iter, damping, temperature)
    return _beliefs(_run_grid(*_as_problem(costs, horizontal, vertical), settings))


class GridCRF(nn.Module):
    """Grids whose costs come from a network; what neighbors cost is learned along.

    E(x) = sum_i costs[x_i, i] + sum_(i, j) pair(x_i, x_j), P(x) = exp(-E(x) / T) / Z.

    Methods take costs (B, L, H, W), labels (B, H, W), and where given horizontal and vertical costs
    of neighbors in place of the learned ones, as for `propagate_grid`.

    Parameters
    ----------
    n_labels : number of labels L.
    compatibility : "potts" to learn one weight for `horizontal` and one for `vertical` neighbors,
        "tables" to learn tables (L, L), "none" where every call brings its own.
    weight : what different labels cost at first.
    max_iter, damping, temperature : of sum-product; `decode` has the same with temperature 0.
    unrolled : whether `log_partition` and `nll` are differentiated through the iterations. Else the
        result is taken for a fixed point, where derivatives are beliefs: that needs no memory for
        iterations, and enough of them to converge. Marginals are always unrolled.
    output : of `forward`, "marginals" or "logits", their logarithms.
    """

    horizontal: nn.Parameter | None
    vertical: nn.Parameter | None

    def __init__(
        self, n_labels: int, *, compatibility: str = "potts", weight: float = 1.0,
        max_iter: int = 20, damping: float = 0.5, temperature: float = 1.0, unrolled: bool = False,
        output: str = "marginals",
    ) -> None:
        super().__init__()
        self.n_labels = as_count(n_labels, "n_labels")
        self.compatibility = as_choice(compatibility, "compatibility", COMPATIBILITIES)
        start = torch.tensor(as_scalar(weight, "weight"), dtype=torch.get_default_dtype())
        self.settings = as_message_settings(max_iter, damping, temperature)
        self.unrolled = bool(unrolled)
        self.output = as_choice(output, "output", OUTPUTS)
        if self.compatibility == "tables":
            start = start * (1 - torch.eye(self.n_labels))
        for name in ("horizontal", "vertical"):
            value = None if self.compatibility == "none" else nn.Parameter(start.clone())
            self.register_parameter(name, value)

    def forward(
        self, costs: Tensor, horizontal: Tensor | None = None, vertical: Tensor | None = None
    ) -> Tensor:
        """Marginals, or their logarithms, (B, L, H, W)."""
        found = self.infer(costs, horizontal, vertical)
        return found.marginals if self.output == "marginals" else found.log_beliefs

    def infer(
        self, costs: Tensor, horizontal: Tensor | None = None, vertical: Tensor | None = None
    ) -> Beliefs:
        """Beliefs, log Z and residuals, all differentiable through the iterations."""
        problem = self._prepare(costs, horizontal, vertical)
        return _beliefs(_run_grid(*problem, self.settings))

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
        return _run_grid(*problem, self.settings).edge_beliefs(*problem[1:])

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
        return _energies(*problem, _as_labels(labels, costs)).to(problem[0].dtype)

    def nll(
        self, costs: Tensor, labels: Tensor, horizontal: Tensor | None = None,
        vertical: Tensor | None = None, *, reduction: str = "mean",
    ) -> Tensor:
        """-log P(labels) with the Bethe log Z, (B,) or (); `reduction` as for `tree_nll`.

        Its derivative by a cost is observed minus belief; nodes are pixels here.
        """
        self._check_temperature("nll")
        how = as_choice(reduction, "reduction", REDUCTIONS)
        problem = self._prepare(costs, horizontal, vertical)
        value = _energies(*problem, _as_labels(labels, costs)) + self._log_partition(problem)
        n_pixels = costs.shape[0] * costs.shape[2] * costs.shape[3]
        return reduce(value / self.settings.temperature, how, n_pixels).to(problem[0].dtype)

    @torch.no_grad()
    def decode(
        self, costs: Tensor, horizontal: Tensor | None = None, vertical: Tensor | None = None
    ) -> Tensor:
        """Labels (B, H, W) of least energy as max-product sees them."""
        settings = self.settings._replace(temperature=0.0)
        run = _run_grid(*self._prepare(costs, horizontal, vertical), settings)
        return run.beliefs.argmax(1)

    def extra_repr(self) -> str:
        max_iter, damping, temperature = self.settings
        return (
            f"n_labels={self.n_labels}, compatibility={self.compatibility!r}, max_iter={max_iter}, "
            f"damping={damping:g}, temperature={temperature:g}, unrolled={self.unrolled}"
        )

    def _log_partition(self, problem: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """In float64."""
        if self.unrolled:
            return _run_grid(*problem, self.settings).log_partition
        with torch.no_grad():
            run = _run_grid(*problem, self.settings)
        # At a fixed point log Z does not change with messages (Yedidia et al. 2005), so that its
        # derivatives are those of -E with the beliefs held.
        expected = _expected_energy(run, *problem)
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
                'horizontal and vertical must be given to a module with compatibility="none", got '
                "None; pass both, or let the module learn its own."
            )
        return _as_problem(costs, *given)

    def _check_temperature(self, name: str) -> None:
        if self.settings.temperature == 0:
            raise InputError(f"{name} must have a temperature above 0, got 0; 1 is the usual one.")


@dataclass(frozen=True)
class _Run:
    """Where belief propagation stopped.

    beliefs : (B, L, H, W), scores of all pixels; own : (B, 1, H, W), their soft maximum.
    cavities : for horizontal and vertical edges the scores of their first and second pixels,
        without what the other one says.
    joint : the soft maximum of all pairs of labels of an edge, (B, H, W - 1) and (B, H - 1, W).
    """

    beliefs: Tensor
    own: Tensor
    cavities: Sequence[tuple[Tensor, Tensor]]
    joint: Sequence[Tensor]
    residuals: Tensor
    temperature: float

    @property
    def log_beliefs(self) -> Tensor:
        """Logarithms of marginals, at temperature 0 the scores behind the best."""
        return (self.beliefs - self.own) / (self.temperature or 1.0)

    @property
    def log_partition(self) -> Tensor:
        """T log Z (B,) in float64: what edges know, less what pixels are counted too often."""
        n_rows, n_columns = self.beliefs.shape[2:]
        degrees = self.own.new_zeros(n_rows, n_columns)
        for axis in (0, 1):
            size = degrees.shape[axis] - 1
            degrees.narrow(axis, 0, size).add_(1)
            degrees.narrow(axis, 1, size).add_(1)
        total = ((1 - degrees) * self.own[:, 0]).sum((1, 2), dtype=torch.float64)
        for part in self.joint:
            total = total + part.sum((1, 2), dtype=torch.float64)
        return total

    def edge_beliefs(self, horizontal: Tensor, vertical: Tensor) -> tuple[Tensor, Tensor]:
        """P(x_i = k, x_j = l), (B, L, L, ...), for a temperature above 0."""
        found = []
        for pair, (first, second), joint in zip(
            (horizontal, vertical), self.cavities, self.joint, strict=True
        ):
            scores = first[:, :, None] + second[:, None] - _as_table(pair, first.shape[1])
            found.append(torch.exp((scores - joint[:, None, None]) / self.temperature))
        return found[0], found[1]

    def differing(self, direction: int) -> Tensor:
        """P(x_i != x_j) of Potts edges, (B, 1, ...), for a temperature above 0."""
        first, second = self.cavities[direction]
        equal = torch.exp((first + second - self.joint[direction][:, None]) / self.temperature)
        return (1 - equal.sum(1, keepdim=True)).clamp_min(0.0)


def _run_grid(
    costs: Tensor, horizontal: Tensor, vertical: Tensor, settings: MessageSettings
) -> _Run:
    """Flooding: every iteration sends all messages, damped on their logarithms."""
    pairs = (horizontal, vertical)
    messages = []
    for axis in _AXES:
        silence = torch.zeros_like(costs.narrow(axis, 0, costs.shape[axis] - 1))
        messages.append((silence, silence))
    residuals = costs.new_zeros(len(costs))
    for _ in range(settings.max_iter):
        beliefs = _collect(costs, messages)
        changes = []
        for direction, axis in enumerate(_AXES):
            forth, back = messages[direction]
            first, second = _cavities(beliefs, axis, forth, back)
            new = (
                shifted(_send(first, pairs[direction], settings.temperature), 1),
                shifted(_send(second, _flipped(pairs[direction]), settings.temperature), 1),
            )
            for fresh, stale in zip(new, (forth, back), strict=True):
                changes.append((fresh - stale).detach().abs().flatten(1))
            messages[direction] = (
                damped(forth, new[0], settings.damping), damped(back, new[1], settings.damping)
            )
        change = torch.cat(changes, 1)
        residuals = change.amax(1) if change.shape[1] else residuals
    beliefs = _collect(costs, messages)
    cavities, joint = [], []
    for direction, axis in enumerate(_AXES):
        first, second = _cavities(beliefs, axis, *messages[direction])
        cavities.append((first, second))
        forth = _send(first, pairs[direction], settings.temperature)
        joint.append(soft_maximum(second + forth, 1, settings.temperature))
    own = soft_maximum(beliefs, 1, settings.temperature)[:, None]
    return _Run(beliefs, own, cavities, joint, residuals, settings.temperature)


def _send(scores: Tensor, pair: Tensor, temperature: float) -> Tensor:
    """Messages of pixels with these scores (B, L, ...) to their neighbors."""
    if pair.ndim == 4:
        return send_potts(scores, pair, temperature)
    return soft_maximum(scores[:, :, None] - pair, 1, temperature)


def _as_table(pair: Tensor, n_labels: int) -> Tensor:
    """Potts weights as tables."""
    if pair.ndim == 5:
        return pair
    differ = 1 - torch.eye(n_labels, dtype=pair.dtype, device=pair.device)
    return differ[:, :, None, None] * pair[:, :, None]


def _energies(costs: Tensor, horizontal: Tensor, vertical: Tensor, labels: Tensor) -> Tensor:
    """E(labels), (B,) in float64; labels : (B, H, W)."""
    total = costs.gather(1, labels[:, None]).sum((1, 2, 3), dtype=torch.float64)
    for axis, pair in zip(_AXES, (horizontal, vertical), strict=True):
        size = costs.shape[axis] - 1
        first = labels.narrow(axis - 1, 0, size)
        second = labels.narrow(axis - 1, 1, size)
        if pair.ndim == 4:
            paid = pair[:, 0] * (first != second)
        else:
            tables = pair.expand(len(labels), -1, -1, *first.shape[1:])
            places = [torch.arange(n, device=labels.device) for n in first.shape]
            item, row, column = torch.meshgrid(*places, indexing="ij")
            paid = tables[item, first, second, row, column]
        total = total + paid.sum((1, 2), dtype=torch.float64)
    return total


def _expected_energy(run: _Run, costs: Tensor, horizontal: Tensor, vertical: Tensor) -> Tensor:
    """The mean of E under the beliefs of a run, (B,) in float64; differentiable by the costs."""
    total = (run.log_beliefs.exp() * costs).sum((1, 2, 3), dtype=torch.float64)
    pairs = (horizontal, vertical)
    tables: tuple[Tensor | None, ...] = (None, None)
    if any(pair.ndim == 5 for pair in pairs):
        tables = run.edge_beliefs(horizontal.detach(), vertical.detach())
    for direction, (pair, table) in enumerate(zip(pairs, tables, strict=True)):
        chance = run.differing(direction) if pair.ndim == 4 or table is None else table
        total = total + (chance * pair).flatten(1).sum(1, dtype=torch.float64)
    return total


def _flipped(pair: Tensor) -> Tensor:
    return pair if pair.ndim == 4 else pair.transpose(1, 2)


def _collect(costs: Tensor, messages: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """Scores of all pixels: minus their costs, plus all messages to them."""
    pad = torch.nn.functional.pad
    (right, left), (down, up) = messages
    sideways = pad(right, (1, 0)) + pad(left, (0, 1))
    return sideways + pad(down, (0, 0, 1, 0)) + pad(up, (0, 0, 0, 1)) - costs


def _cavities(beliefs: Tensor, axis: int, forth: Tensor, back: Tensor) -> tuple[Tensor, Tensor]:
    """Scores of the first and the second pixel of each edge without each other's messages."""
    size = beliefs.shape[axis] - 1
    return beliefs.narrow(axis, 0, size) - back, beliefs.narrow(axis, 1, size) - forth


def _as_problem(costs: Tensor, horizontal: Any, vertical: Any) -> tuple[Tensor, Tensor, Tensor]:
    check_costs(costs, "(B, L, H, W)", 4)
    n_rows, n_columns = costs.shape[2:]
    for values, name in ((horizontal, "horizontal"), (vertical, "vertical")):
        check_beside(values, name, costs)
    pairs = (
        _as_pair(horizontal, "horizontal", costs, (n_rows, n_columns - 1)),
        _as_pair(vertical, "vertical", costs, (n_rows - 1, n_columns)),
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
            f"{tuple(labels.shape)}; give one label per pixel."
        )
    check_range(labels.long(), costs.shape[1])
    return labels.long()


def _beliefs(run: _Run) -> Beliefs:
    return Beliefs(run.log_beliefs, run.log_partition.to(run.beliefs.dtype), run.residuals)


def _as_pair(values: Tensor, name: str, costs: Tensor, edges: tuple[int, int]) -> Tensor:
    """What neighbors cost, from any of the forms of `propagate_grid`."""
    n_items, n_labels = costs.shape[:2]
    shape = tuple(values.shape)
    if values.dtype.is_floating_point:
        if shape == ():
            return values.reshape(1, 1, 1, 1)
        if shape == (n_labels, n_labels):
            return values.reshape(1, n_labels, n_labels, 1, 1)
        if shape in ((1, *edges), (n_items, *edges)):
            return values[:, None]
        if shape[1:] == (n_labels, n_labels, *edges) and shape[0] in (1, n_items):
            return values
    square, size = f"({n_labels}, {n_labels})", f"{edges[0]}, {edges[1]}"
    raise InputError(
        f"{name} must be a floating-point number, a map ({n_items}, {size}), a table {square} or "
        f"tables ({n_items}, {n_labels}, {n_labels}, {size}), got {values.dtype} of shape {shape}; "
        "give what each pair of neighbors costs."
    )
