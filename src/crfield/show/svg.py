"""Charts as SVG text, for pages that need neither scripts nor other files.

Every chart is one `<svg>` element whose size is fixed by what it shows; texts are escaped here.
"""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Matrix = NDArray[np.float64]
Numbers = Sequence[float] | NDArray[np.float64]
Color = tuple[int, int, int]

INK, PALE_INK, GRID_LINE = "#24292f", "#6b7280", "#e5e7eb"
BEFORE, AFTER, OTHER = "#9ca3af", "#2563eb", "#d97706"
RED: Color = (200, 52, 60)
BLUE: Color = (37, 99, 215)

# Axes are for numbers up to here; NaN is not below it either.
_BEYOND = 1e100
_FONT = 12.0
_LONGEST_NAME = 18
# A letter of the sans-serif fonts that browsers choose is about this much of the font size wide.
_LETTER = 0.56


@dataclass(frozen=True)
class Curve:
    """A series of values; in charts over their index those that are not finite, or beyond 1e100,
    are left out.
    """

    name: str
    values: Numbers
    color: str = AFTER


def line_chart(
    curves: Sequence[Curve], *, mark: int | None = None, size: tuple[int, int] = (350, 210)
) -> str:
    """Curves over the iterations 0, 1, 2, ...; `mark` draws a line at one of them.

    Positive values that span more than a factor of 20 get a logarithmic axis.
    """
    values = [v for curve in curves for v in curve.values if abs(v) < _BEYOND]
    logarithmic = bool(values) and 0.0 < 20 * min(values) < max(values)
    shown = [_points(curve.values, logarithmic) for curve in curves]
    heights = [height for points in shown for _, height in points] or [0.0]
    last = max([len(curve.values) - 1 for curve in curves] + [1])
    y_ticks = round_ticks(min(heights), max(heights), 5)
    names = [_as_power(t) for t in y_ticks] if logarithmic else tick_names(y_ticks)
    low, high = min(y_ticks[0], *heights), max(y_ticks[-1], *heights)
    width, height = size
    left, right = 14 + max(map(_text_width, names)), width - 14
    top, bottom = (30 if len(curves) > 1 else 12), height - 38

    def x(index: float) -> float:
        return left + index / last * (right - left)

    def y(value: float) -> float:
        return bottom - (value - low) / (high - low) * (bottom - top)

    parts = []
    for tick, name in zip(y_ticks, names, strict=True):
        parts.append(_line(left, y(tick), right, y(tick), GRID_LINE))
        parts.append(_text(left - 6, y(tick) + 4, name, anchor="end", color=PALE_INK))
    parts.append(_line(left, bottom, right, bottom, PALE_INK))
    for tick in round_ticks(0, last, 8, whole=True):
        parts.append(_line(x(tick), bottom, x(tick), bottom + 4, PALE_INK))
        parts.append(_text(x(tick), bottom + 17, f"{tick:g}", anchor="middle", color=PALE_INK))
    parts.append(_text((left + right) / 2, height - 4, "iteration", anchor="middle"))
    if mark is not None:
        parts.append(_line(x(mark), top, x(mark), bottom, PALE_INK, dashes="3 3"))
    for curve, points in zip(curves, shown, strict=True):
        parts.append(_curve([(x(index), y(value)) for index, value in points], curve.color))
    if len(curves) > 1:
        parts.append(_legend([(curve.name, curve.color) for curve in curves], left, 14))
    return _svg(width, height, parts, ", ".join(curve.name for curve in curves))


def bars(
    names: Sequence[str], series: Sequence[Curve], *, decimals: int | None = None, width: int = 350
) -> str:
    """Bars from 0, for each name one of each series, below their legend, with values in so many
    decimals or three digits.

    Values that are not finite have no bar.
    """
    form = "{:.3g}" if decimals is None else f"{{:.{decimals}f}}"
    rows = [tuple(each.values) for each in series]
    written = [
        " → ".join(form.format(row[i]) if math.isfinite(row[i]) else "–" for row in rows)
        for i in range(len(names))
    ]
    left = 10 + max(map(_text_width, map(_short, names)))
    room = width - left - 14 - max(map(_text_width, written))
    largest = max([v for row in rows for v in row if math.isfinite(v)] + [1e-300])
    thick = 7.0
    pitch = thick * len(rows) + 8
    parts = []
    for i, name in enumerate(names):
        top = 4 + i * pitch
        middle = top + thick * len(rows) / 2 + 4
        parts.append(_name(left - 6, middle, name, "end"))
        end = left
        for k, (row, color) in enumerate(zip(rows, [c.color for c in series], strict=True)):
            length = room * (max(row[i], 0.0) / largest) if math.isfinite(row[i]) else 0.0
            parts.append(
                f'<rect x="{left:.1f}" y="{top + k * thick:.1f}" width="{length:.1f}" '
                f'height="{thick - 1:.1f}" fill="{color}"/>'
            )
            end = max(end, left + length)
        parts.append(_text(end + 6, middle, written[i], color=PALE_INK))
    key = legend((each.name, each.color) for each in series)
    return key + _svg(width, round(8 + len(names) * pitch), parts, "bars")


def heat_map(
    values: Matrix, row_names: Sequence[str], column_names: Sequence[str], *, limit: float,
    negative: bool = True, unit: str = "",
) -> str:
    """A matrix (R, C) in colors: 0 is clear, red up to `limit`, blue down to -`limit`.

    Without `negative` values are at least 0 and blue. Numbers are written into cells that have
    room for them.
    """
    n_rows, n_columns = values.shape
    cell = min(56.0, max(7.4, 270.0 / max(n_rows, n_columns)))
    font = min(_FONT, 0.9 * cell)
    left = 8 + max(_text_width(_short(name), font) for name in row_names)
    top = 8 + max(_text_width(_short(name), font) for name in column_names)
    right, bottom = left + cell * n_columns, top + cell * n_rows
    share = np.clip(np.nan_to_num(values) / max(limit, 1e-300), -1.0, 1.0)
    colors = _tints(share, RED if negative else BLUE)
    parts = [_image(colors, left, top, right - left, bottom - top)]
    parts.append(
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{right - left:.1f}" '
        f'height="{bottom - top:.1f}" fill="none" stroke="{GRID_LINE}"/>'
    )
    for i, name in enumerate(row_names):
        parts.append(_name(left - 5, top + (i + 0.5) * cell + 0.35 * font, name, "end", font))
    for j, name in enumerate(column_names):
        at = left + (j + 0.5) * cell + 0.35 * font
        parts.append(_name(at, top - 5, name, "start", font, turned=True))
    decimals = 0 if unit == "%" or limit == 0 else min(8, max(0, 2 - round(math.log10(limit))))
    inner = min(11.0, 0.36 * cell)
    texts = [[_fixed(v, decimals) if math.isfinite(v) else "" for v in row] for row in values]
    if cell >= 26 and max(_text_width(text, inner) for row in texts for text in row) < 0.95 * cell:
        for i, j in np.ndindex(values.shape):
            ink = "#ffffff" if abs(share[i, j]) > 0.55 else INK
            at = (left + (j + 0.5) * cell, top + (i + 0.5) * cell + 0.36 * inner)
            parts.append(_text(*at, texts[i][j], "middle", ink, inner))
    parts += _color_scale(left, bottom + 8, limit, negative, decimals, unit)
    return _svg(max(right + 4, left + 150), bottom + 40, parts, "heat map")


def ellipses(before: Matrix | None, after: Matrix, *, names: tuple[str, str], unit: str) -> str:
    """Contours |C^-1/2 x| = 1 of covariances (2, 2) around one point, the first axis down."""
    drawn = [(after, AFTER)] if before is None else [(before, BEFORE), (after, AFTER)]
    reach = max(math.sqrt(max(c[0, 0], c[1, 1])) for c, _ in drawn)
    ticks = round_ticks(-reach, reach, 4)
    radius, left, top = 95.0, 52.0, 10.0
    scale = radius / max(reach, -ticks[0])
    center = (left + radius, top + radius)
    turn = np.linspace(0, 2 * np.pi, 73)
    circle = np.stack([np.sin(turn), np.cos(turn)])
    parts = []
    for tick, name in zip(ticks, tick_names(ticks), strict=True):
        across, down = center[0] + tick * scale, center[1] + tick * scale
        parts.append(_line(across, top, across, top + 2 * radius, GRID_LINE))
        parts.append(_line(left, down, left + 2 * radius, down, GRID_LINE))
        parts.append(_text(across, top + 2 * radius + 16, name, "middle", PALE_INK))
        parts.append(_text(left - 6, down + 4, name, "end", PALE_INK))
    for covariance, color in drawn:
        down, across = np.linalg.cholesky(covariance) @ circle * scale
        path = " ".join(
            f"{center[0] + a:.1f},{center[1] + d:.1f}" for d, a in zip(down, across, strict=True)
        )
        parts.append(
            f'<polygon points="{path}" fill="{color}" fill-opacity="0.12" stroke="{color}" '
            'stroke-width="2"/>'
        )
    caption = f"{names[1]}, {unit}"
    parts.append(_text(center[0], top + 2 * radius + 34, caption, "middle"))
    parts.append(_text(12, center[1], f"{names[0]}, {unit}", "middle", turned=True))
    return _svg(left + 2 * radius + 14, top + 2 * radius + 42, parts, "kernel before and after")


def legend(names_and_colors: Iterable[tuple[str, str]]) -> str:
    """Names beside squares of their colors, as a small picture."""
    entries = list(names_and_colors)
    width = sum(_text_width(name) + 32 for name, _ in entries)
    return _svg(width, 18, [_legend(entries, 2, 13)], "legend")


def _points(values: Numbers, logarithmic: bool) -> list[tuple[int, float]]:
    return [
        (index, math.log10(value) if logarithmic else float(value))
        for index, value in enumerate(values)
        if abs(value) < _BEYOND
    ]


def _as_power(exponent: float) -> str:
    """10^exponent as a reader writes it."""
    return f"{10.0**exponent:.1e}" if abs(exponent) > 4 else f"{10.0**exponent:.2g}"


def _curve(points: list[tuple[float, float]], color: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    drawn = f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="2"/>'
    dots = points if len(points) <= 40 else []
    return drawn + "".join(
        f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{color}"/>' for x, y in dots
    )


def _legend(entries: Sequence[tuple[str, str]], left: float, baseline: float) -> str:
    parts = []
    for name, color in entries:
        parts.append(
            f'<rect x="{left:.1f}" y="{baseline - 9:.1f}" width="10" height="10" fill="{color}" '
            f'stroke="{GRID_LINE}"/>'
        )
        parts.append(_text(left + 15, baseline, name))
        left += _text_width(name) + 32
    return "".join(parts)


def _color_scale(
    left: float, top: float, limit: float, negative: bool, decimals: int, unit: str
) -> list[str]:
    lowest = -1.0 if negative else 0.0
    strip = _tints(np.linspace(lowest, 1.0, 64)[None, :], RED if negative else BLUE)
    ends = [(left, lowest * limit, "start"), (left + 120, limit, "end")]
    ends += [(left + 60, 0.0, "middle")] if negative else []
    return [_image(strip, left, top, 120, 8)] + [
        _text(at, top + 21, _fixed(value, decimals) + unit, anchor, PALE_INK, 11)
        for at, value, anchor in ends
    ]


def _tints(share: Matrix, positive: Color) -> NDArray[np.uint8]:
    """Colors (..., 4), clear at 0 so that the page shows through, dark or light, and full at 1 and,
    in blue, at -1.
    """
    full = np.where(share[..., None] >= 0, np.array(positive), np.array(BLUE))
    opacity = np.rint(255 * np.abs(share)[..., None])
    return np.concatenate([full, opacity], axis=-1).astype(np.uint8)


def _image(
    pixels: NDArray[np.uint8], left: float, top: float, width: float, height: float
) -> str:
    """One pixel per cell, which takes far fewer bytes than one rectangle per cell."""
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "PNG", optimize=True)
    data = base64.b64encode(stream.getvalue()).decode("ascii")
    return (
        f'<image x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'preserveAspectRatio="none" style="image-rendering:pixelated" '
        f'href="data:image/png;base64,{data}"/>'
    )


def _line(x1: float, y1: float, x2: float, y2: float, color: str, dashes: str = "") -> str:
    pattern = f' stroke-dasharray="{dashes}"' if dashes else ""
    return (
        f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{color}"'
        f"{pattern}/>"
    )


def _text(
    x: float, y: float, text: str, anchor: str = "start", color: str = INK, size: float = _FONT,
    turned: bool = False, tooltip: str = "",
) -> str:
    """A text in one line; `turned` reads upwards."""
    turn = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if turned else ""
    title = f"<title>{html.escape(tooltip)}</title>" if tooltip else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}" '
        f'font-size="{size:.1f}"{turn}>{html.escape(text)}{title}</text>'
    )


def _name(
    x: float, y: float, name: str, anchor: str, size: float = _FONT, turned: bool = False
) -> str:
    """A name that a user chose: cut where it is long, and whole under the pointer."""
    short = _short(name)
    return _text(x, y, short, anchor, INK, size, turned, tooltip="" if short == name else name)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else f"{text[: _LONGEST_NAME - 1]}…"


def _fixed(value: float, decimals: int) -> str:
    rounded = round(float(value), decimals)
    return f"{rounded:.{decimals}f}" if rounded else "0"


def _text_width(text: str, size: float = _FONT) -> float:
    return _LETTER * size * len(text)


def _svg(width: float, height: float, parts: Iterable[str], label: str) -> str:
    return (
        f'<svg width="{width:.0f}" height="{height:.0f}" viewBox="0 0 {width:.0f} {height:.0f}" '
        f'role="img" aria-label="{html.escape(label, quote=True)}">{"".join(parts)}</svg>'
    )


def round_ticks(low: float, high: float, most: int, whole: bool = False) -> list[float]:
    """Round numbers covering [low, high] in at most about `most` steps of 1, 2 or 5."""
    if high - low <= max(1e-12 * max(abs(low), abs(high)), 1e-290):
        margin = 0.05 * abs(low) if abs(low) > 1e-280 else 1.0
        low, high = low - margin, high + margin
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(m * power for m in (1, 2, 5, 10) if m * power >= rough * (1 - 1e-9))
    step = max(step, 1.0) if whole else step
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if whole:
        last = math.floor(high / step)
    return [index * step for index in range(first, last + 1)]


def tick_names(ticks: Sequence[float]) -> list[str]:
    """The ticks in as few digits as tell them apart."""
    step, largest = ticks[1] - ticks[0], max(abs(tick) for tick in ticks)
    if largest >= 1e9 or step < 1e-6:
        digits = min(math.ceil(math.log10(largest / step) + 1e-9), 8)
        return [f"{tick:.{digits}e}" for tick in ticks]
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    return [f"{tick:,.{decimals}f}" for tick in ticks]
