"""A model's parameters at the start and as learned, side by side, as pieces of an HTML page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import groupby, zip_longest
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield.dense.compatibility import Diagonal, Potts
from crfield.dense.context import context_names
from crfield.dense.model import DenseCRF, Pairwise
from crfield.learning.widths import kernel_correlations, kernel_widths
from crfield.show import svg as _svg
from crfield.show.page import figure, heading, number, paragraph, row, table
from crfield.show.svg import Numbers

Matrix = NDArray[np.float64]

_MOST_CHANGES = 5
_EXPLANATION = (
    "A compatibility is the cost of two labels on a pair of pixels with kernel value 1: red pairs "
    "are costly, blue ones are drawn together, and a constant added to all entries changes "
    "nothing. A width is the difference in one feature, all others equal, at which a Gaussian "
    "kernel has fallen to 61 %."
)


def compare_terms(
    start: DenseCRF | None, model: DenseCRF, names: Sequence[str], grid_dim: int
) -> str:
    """For each pairwise term its compatibility and the shape of its kernel."""
    parts = [heading("Pairwise terms"), paragraph(_EXPLANATION)] if model.terms else []
    for title, before, after in _paired_terms(start, model):
        parts.append(heading(title, 3))
        parts.append(_compatibilities(before, after, names))
        parts.append(_kernel_shapes(before, after, grid_dim))
    return "".join(parts)


def compare_recalibrations(
    start: DenseCRF | None, model: DenseCRF, names: Sequence[str], grid_dim: int
) -> str:
    """The matrix that replaces a classifier's costs, if the model has one."""
    if model.recalibration is None:
        return ""
    before = None if start is None else start.recalibration
    return (
        heading("Recalibration of the unaries")
        + paragraph(
            "The cost of a row's label is the sum of the columns' costs, and context if there is "
            "any, times these factors, plus the constant."
        )
        + _heat_maps(before, model.recalibration, names, _columns(model, names, grid_dim))
    )


def _columns(model: DenseCRF, names: Sequence[str], grid_dim: int) -> list[str]:
    """Names of the columns of a recalibration."""
    added = model.recalibration.shape[1] - len(names) - 1
    without_color = len(context_names(model.context, names, grid_dim, 0))
    n_channels = (added - without_color) // 2
    return [*names, *context_names(model.context, names, grid_dim, n_channels), "constant"]


def parameter_table(start: DenseCRF | None, model: DenseCRF, grid_dim: int) -> str:
    """All parameters in numbers; matrices by their extremes."""
    rows = []
    for title, before, after in _paired_terms(start, model):
        old = {} if before is None else _term_parameters(before, model.n_labels, grid_dim)
        new = _term_parameters(after, model.n_labels, grid_dim)
        rows += [(title, name, old.get(name, "–"), value) for name, value in new.items()]
    old = {} if start is None else _recalibration_parameters(start)
    new = _recalibration_parameters(model)
    rows += [("Recalibration", name, old.get(name, "–"), value) for name, value in new.items()]
    if not rows:
        return ""
    # The part is named in its first row only.
    lines = [
        (part if k == 0 else "", *cells)
        for part, entries in groupby(rows, key=lambda entry: entry[0])
        for k, (_, *cells) in enumerate(entries)
    ]
    return heading("Parameters") + table(("part", "parameter", "start", "learned"), lines)


def start_and_learned(
    names: Sequence[str], before: Numbers | None, after: Numbers, *,
    decimals: int | None = None, width: int = 350,
) -> str:
    """Bars in pairs, or single ones where there is no start."""
    series = [] if before is None else [_svg.Curve("start", before, _svg.BEFORE)]
    series.append(_svg.Curve("learned", after))
    return _svg.bars(names, series, decimals=decimals, width=width)


def _paired_terms(
    start: DenseCRF | None, model: DenseCRF
) -> list[tuple[str, Pairwise | None, Pairwise]]:
    """Title, start and learned state of each term."""
    before = (None,) * len(model.terms) if start is None else start.terms
    return [
        (
            f"Term {k}: {now.kernel.describe()} kernel, {type(now.compatibility).__name__} "
            "compatibility",
            was, now,
        )
        for k, (was, now) in enumerate(zip(before, model.terms, strict=True), 1)
    ]


def _compatibilities(before: Pairwise | None, after: Pairwise, names: Sequence[str]) -> str:
    """Heat maps of w mu, and what changed most in words; of Potts the one number that it has."""
    cost = _potts_cost(after)
    if cost is not None:
        bars = start_and_learned(["different labels"], _potts_cost(before), cost)
        return row([figure("cost of any two different labels", bars)])
    mu = after.weight * after.compatibility.matrix(len(names))
    if before is None:
        return _heat_maps(None, mu, names, names)
    start = before.weight * before.compatibility.matrix(len(names))
    return _heat_maps(start, mu, names, names) + _largest_changes(start, mu, names)


def _potts_cost(term: Pairwise | None) -> list[float] | None:
    if term is None or not isinstance(term.compatibility, Potts):
        return None
    return [term.weight * term.compatibility.weight]


def _heat_maps(
    before: Matrix | None, after: Matrix, rows: Sequence[str], columns: Sequence[str]
) -> str:
    """A matrix at the start and as learned on one scale, and the difference on its own."""
    if before is None or np.allclose(before, after, rtol=0.0, atol=1e-12 * _largest(after)):
        maps = [("learned" if before is None else "unchanged", after, _largest(after))]
    else:
        limit, change = max(_largest(before), _largest(after)), after - before
        maps = [
            ("start", before, limit), ("learned", after, limit),
            ("change", change, _largest(change)),
        ]
    return row([
        figure(name, _svg.heat_map(values, rows, columns, limit=scale))
        for name, values, scale in maps
    ])


def _largest(values: Matrix) -> float:
    return float(np.abs(values).max())


def _largest_changes(before: Matrix, after: Matrix, names: Sequence[str]) -> str:
    change = np.abs(np.triu(after - before))
    order = np.argsort(-change, axis=None, kind="stable")[:_MOST_CHANGES]
    entries = [divmod(int(i), len(names)) for i in order]
    listed = "; ".join(
        f"{names[a] if a == b else f'{names[a]} and {names[b]}'}: "
        f"{number(before[a, b], 3)} → {number(after[a, b], 3)}"
        for a, b in entries
        if change[a, b] > 0.01 * change.max()
    )
    return paragraph(f"Changed most: {listed}.") if listed else ""


def _kernel_shapes(before: Pairwise | None, after: Pairwise, grid_dim: int) -> str:
    """Bars of the widths, the contour in the plane, and correlations where there are any."""
    figures, maps = [], []
    old = [] if before is None else kernel_widths(before.kernel, grid_dim)
    for was, now in zip_longest(old, kernel_widths(after.kernel, grid_dim)):
        bars = start_and_learned(now.names, None if was is None else was.values, now.values)
        caption = f"widths in {now.title}, {now.unit}"
        figures.append(figure(caption, bars))
        if now.title == "distance" and grid_dim == 2:
            contours = _svg.ellipses(
                None if was is None else _in_plane(was.covariance), _in_plane(now.covariance),
                names=("down", "across"), unit=now.unit,
            )
            figures.append(figure("contour at 61 % around a pixel", contours))
    correlations = [] if before is None else kernel_correlations(before.kernel, grid_dim)
    for pair, (features, matrix) in zip_longest(
        correlations, kernel_correlations(after.kernel, grid_dim)
    ):
        if np.any(matrix != np.eye(len(matrix))):
            maps.append(paragraph("Correlations between the features:"))
            maps.append(_heat_maps(None if pair is None else pair[1], matrix, features, features))
    return row(figures) + "".join(maps)


def _in_plane(covariance: Matrix) -> Matrix:
    return covariance if len(covariance) == 2 else covariance[0, 0] * np.eye(2)


def _term_parameters(term: Pairwise, n_labels: int, grid_dim: int) -> dict[str, str]:
    values: dict[str, float] = {}
    for group in kernel_widths(term.kernel, grid_dim):
        for name, width in zip(group.names, group.values, strict=True):
            values[f"width in {group.title}, {name} ({group.unit})"] = float(width)
    if term.weight != 1.0:
        values["weight"] = term.weight
    compatibility = term.compatibility
    if isinstance(compatibility, Potts):
        values["cost of different labels"] = compatibility.weight
    elif isinstance(compatibility, Diagonal):
        values |= _extremes("gain of a shared label", compatibility.alpha)
    else:
        mu = compatibility.matrix(n_labels)
        values |= _extremes("cost of a shared label", np.diag(mu))
        values |= _extremes("cost of different labels", mu[~np.eye(n_labels, dtype=bool)])
    return {name: number(value) for name, value in values.items()}


def _recalibration_parameters(model: DenseCRF) -> dict[str, str]:
    if model.recalibration is None:
        return {}
    n = model.n_labels
    factors, constants = model.recalibration[:, :n], model.recalibration[:, -1]
    context = model.recalibration[:, n:-1]
    values = _extremes("factor on a label's own cost", np.diag(factors))
    values |= _extremes("factor on another label's cost", factors[~np.eye(n, dtype=bool)])
    values |= _extremes("factor on context", context)
    values |= _extremes("constant", constants)
    return {name: number(value) for name, value in values.items()}


def _extremes(name: str, values: Matrix) -> dict[str, float]:
    statistics: tuple[tuple[str, Callable[[Matrix], Any]], ...] = (
        ("least", np.min), ("mean", np.mean), ("largest", np.max)
    )
    return {f"{name}, {word}": float(take(values)) for word, take in statistics if values.size}
