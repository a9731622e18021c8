"""Messages between neighboring pixels, all of one direction at once.

Messages of a direction are numbered by edges: (B, L, H, W - 1) to the right and to the left,
(B, L, H - 1, W) down and up. What an edge costs is (B or 1, 1, H or 1, W or 1) for Potts weights,
(B or 1, L, L, H or 1, W or 1) for tables.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from crfield._core.validate import InputError
from crfield.nn.structured.messages import Propagation, damped, send_potts, shifted, soft_maximum

_ROWS, _COLUMNS = 2, 3  # axes of the costs
_AXES = (_COLUMNS, _ROWS)  # along which horizontal and vertical edges lead


def as_pair(values: Tensor, name: str, costs: Tensor, edges: tuple[int, int]) -> Tensor:
    """What neighbors cost, from any of the forms of `crfield.nn.structured.grids`."""
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


@dataclass(frozen=True)
class GridRun:
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
            scores = first[:, :, None] + second[:, None] - as_table(pair, first.shape[1])
            found.append(torch.exp((scores - joint[:, None, None]) / self.temperature))
        return found[0], found[1]

    def differing(self, direction: int) -> Tensor:
        """P(x_i != x_j) of Potts edges, (B, 1, ...), for a temperature above 0."""
        first, second = self.cavities[direction]
        equal = torch.exp((first + second - self.joint[direction][:, None]) / self.temperature)
        return (1 - equal.sum(1, keepdim=True)).clamp_min(0.0)


def run_grid(
    costs: Tensor, horizontal: Tensor, vertical: Tensor, settings: Propagation
) -> GridRun:
    """Flooding: every iteration sends all messages, damped on their logarithms."""
    pairs = (horizontal, vertical)
    messages = []
    for axis in _AXES:
        silence = torch.zeros_like(costs.narrow(axis, 0, costs.shape[axis] - 1))
        messages.append((silence, silence))
    residuals = costs.new_zeros(len(costs))
    for _ in range(settings.n_iter):
        beliefs = _collect(costs, messages)
        changes = []
        for direction, axis in enumerate(_AXES):
            forth, back = messages[direction]
            first, second = _cavities(beliefs, axis, forth, back)
            new = (
                shifted(send(first, pairs[direction], settings.temperature), 1),
                shifted(send(second, _flipped(pairs[direction]), settings.temperature), 1),
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
        forth = send(first, pairs[direction], settings.temperature)
        joint.append(soft_maximum(second + forth, 1, settings.temperature))
    own = soft_maximum(beliefs, 1, settings.temperature)[:, None]
    return GridRun(beliefs, own, cavities, joint, residuals, settings.temperature)


def send(scores: Tensor, pair: Tensor, temperature: float) -> Tensor:
    """Messages of pixels with these scores (B, L, ...) to their neighbors."""
    if pair.ndim == 4:
        return send_potts(scores, pair, temperature)
    return soft_maximum(scores[:, :, None] - pair, 1, temperature)


def as_table(pair: Tensor, n_labels: int) -> Tensor:
    """Potts weights as tables."""
    if pair.ndim == 5:
        return pair
    differ = 1 - torch.eye(n_labels, dtype=pair.dtype, device=pair.device)
    return differ[:, :, None, None] * pair[:, :, None]


def energies(costs: Tensor, horizontal: Tensor, vertical: Tensor, labels: Tensor) -> Tensor:
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


def expected_energy(run: GridRun, costs: Tensor, horizontal: Tensor, vertical: Tensor) -> Tensor:
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
