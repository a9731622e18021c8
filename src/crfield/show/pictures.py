"""Pictures of label maps, uncertainty and convergence, drawn with Pillow and NumPy alone.

Volumes `(Z, H, W)` are shown by their middle slice.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from crfield._core.validate import (
    MAX_LABELS,
    InputError,
    as_array,
    as_count,
    as_image,
    as_within,
    check_finite,
    check_memory,
    shown,
)
from crfield.show.palette import distinct_colors, uncertainty_ramp
from crfield.show.svg import AFTER, GRID_LINE, INK, PALE_INK, round_ticks, tick_names

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

_PAPER = "#ffffff"
_WIDEST = 10_000  # pixels of a chart
_MOST_IN_LEGEND = 40  # labels; those of least area are left out
_BACKGROUND_COLOR = (38, 43, 54)


def label_palette(n: int) -> Bytes:
    """`n` colors `(n, 3)`: a dark neutral one for label 0, then colors far from each other.

    A longer palette begins with the shorter one, so a label keeps its color.
    """
    n = as_count(n, "n", 1, MAX_LABELS)
    check_memory(11.0 * n, f"a palette of {n} colors", "ask for one color per label")
    chosen = distinct_colors(max(0, min(n, 256) - 1))
    palette = np.concatenate([np.array([_BACKGROUND_COLOR], np.uint8), chosen])
    return palette[np.arange(n) % 256]  # beyond 256 nobody can tell colors apart


def colorize(labels: Array, palette: Array | None = None) -> Image.Image:
    """A map of labels (*grid,) as a picture; ids beyond the palette (K, 3) start it again."""
    labels = as_array(labels, "labels")
    if labels.ndim not in (2, 3) or labels.dtype.kind not in "iub" or labels.size == 0:
        raise InputError(
            "labels must be whole numbers of shape (H, W) or (Z, H, W), got "
            f"{labels.dtype} of shape {labels.shape}; pass a label map."
        )
    return Image.fromarray(_label_colors(_middle_slice(labels, 2), palette))


def overlay(
    image: Array | Image.Image,
    labels: Array,
    alpha: float = 0.5,
    palette: Array | None = None,
    outlines: bool = True,
) -> Image.Image:
    """An image (*grid[, C]) tinted with the colors of its labels (*grid,).

    `alpha` is the share of the tint; `outlines` draws a light line where labels change; the palette
    is (K, 3).
    """
    share = as_within(alpha, "alpha", 0, 1, "try 0.5")
    labels = as_array(labels, "labels")
    picture = _display(image, labels.ndim).astype(np.float32)
    tint = np.asarray(colorize(labels, palette), dtype=np.float32)
    if picture.shape != tint.shape:
        raise InputError(
            f"image and labels must cover the same pixels, got {picture.shape[:2]} and "
            f"{tint.shape[:2]}; resize one of them."
        )
    blended = (1 - share) * picture + share * tint
    if outlines:
        borders = _borders(_middle_slice(labels, 2))
        blended[borders] = 0.15 * blended[borders] + 0.85 * 255
    return Image.fromarray(np.rint(blended).astype(np.uint8))


def with_legend(
    picture: Image.Image, labels: Array, palette: Array | None = None,
    names: Mapping[int, str] | None = None,
) -> Image.Image:
    """The picture with the colors of its labels (*grid,) and what they stand for below it.

    palette : (K, 3), as for `overlay`.
    names : of some of the labels; the others have their numbers.
    """
    labels = as_array(labels, "labels")
    ids, counts = np.unique(_middle_slice(labels, 2), return_counts=True)
    largest = np.sort(ids[np.argsort(-counts, kind="stable")][:_MOST_IN_LEGEND])
    colors = _label_colors(largest, palette)
    words = [(names or {}).get(int(i), str(i)) for i in largest]
    size = max(12, min(picture.size) // 30)
    font = ImageFont.load_default(size=size)
    places: list[tuple[int, int]] = []
    left, top, width = size // 2, size // 2, picture.width
    for word in words:
        needed = round(2.4 * size + font.getlength(word))
        if left > size and left + needed > picture.width:
            left, top = size // 2, top + round(1.6 * size)
        places.append((left, top))
        left += needed
        width = max(width, left)
    sheet = Image.new("RGB", (width, picture.height + top + round(1.6 * size)), _PAPER)
    sheet.paste(picture, (0, 0))
    draw = ImageDraw.Draw(sheet)
    for word, color, (x, y) in zip(words, colors.tolist(), places, strict=True):
        y += picture.height
        draw.rectangle((x, y, x + size, y + size), fill=tuple(color), outline=PALE_INK)
        draw.text((x + 1.4 * size, y + size / 2), word, fill=INK, font=font, anchor="lm")
    return sheet


def entropy_map(marginals: Array) -> Image.Image:
    """Uncertainty of marginals `(*grid, L)`: -sum_l q_l log q_l / log L, dark 0 to bright 1."""
    marginals = as_array(marginals, "marginals")
    if marginals.ndim not in (3, 4) or marginals.dtype.kind != "f" or marginals.size == 0:
        raise InputError(
            "marginals must be real numbers of shape (H, W, L) or (Z, H, W, L), got "
            f"{marginals.dtype} of shape {marginals.shape}; pass the marginals of a result."
        )
    return Image.fromarray(uncertainty_ramp()[entropy_bytes(_middle_slice(marginals, 3))])


def entropy_bytes(marginals: Array) -> Bytes:
    """-sum_l q_l log q_l / log L of marginals `(*grid, L)`, in 255ths, `(*grid)`."""
    marginals = as_array(marginals, "marginals")
    if marginals.ndim < 2 or marginals.dtype.kind != "f" or marginals.size == 0:
        raise InputError(
            f"marginals must be real numbers of shape (*grid, L), got {marginals.dtype} of shape "
            f"{marginals.shape}; pass the marginals of a result."
        )
    check_finite(marginals, "marginals")
    # Labels first: numbers of one label lie together, which is faster.
    q = np.clip(np.moveaxis(marginals, -1, 0), 0, 1).astype(np.float32, order="C")
    q = np.maximum(q, np.float32(1e-30))
    share = -(q * np.log(q)).sum(0) / max(math.log(len(q)), 1e-30)
    return np.asarray(np.rint(255 * share.clip(0, 1)), np.uint8)


def side_by_side(
    *pictures: Array | Image.Image, titles: Sequence[str] = (), height: int | None = None
) -> Image.Image:
    """The `pictures`, (H, W[, 3]) or of Pillow, in one row, scaled to one height, titles above."""
    if not pictures or (titles and len(titles) != len(pictures)):
        raise InputError(
            f"side_by_side needs pictures and as many titles or none, got {len(pictures)} pictures "
            f"and {len(titles)} titles; give each picture a title."
        )
    panels = [Image.fromarray(_display(picture, 2)) for picture in pictures]
    height = height or max(panel.height for panel in panels)
    panels = [_scaled_to(panel, height) for panel in panels]
    gap = 8
    font_size = min(24, max(13, height // 16))
    font = ImageFont.load_default(size=font_size)
    header = round(1.9 * font_size) if titles else gap
    width = sum(panel.width for panel in panels) + gap * (len(panels) + 1)
    sheet = Image.new("RGB", (width, header + height + gap), _PAPER)
    draw = ImageDraw.Draw(sheet)
    left = gap
    for index, panel in enumerate(panels):
        sheet.paste(panel, (left, header))
        if titles:
            middle = (left + panel.width / 2, header / 2)
            draw.text(middle, titles[index], fill=INK, font=font, anchor="mm")
        left += panel.width + gap
    return sheet


def captioned(picture: Image.Image, caption: str) -> Image.Image:
    """A copy of the picture with a caption on a dark plate in its lower left corner."""
    sheet = picture.convert("RGB")
    size = min(20, max(13, sheet.height // 16))
    font = ImageFont.load_default(size=size)
    margin = size // 2
    draw = ImageDraw.Draw(sheet)
    place = (margin + size // 2, sheet.height - margin - size)
    left, _, right, _ = draw.textbbox(place, caption, font=font, anchor="lm")
    plate = (left - size // 2, place[1] - 0.8 * size, right + size // 2, place[1] + 0.8 * size)
    draw.rounded_rectangle(plate, radius=size // 3, fill=INK)
    draw.text(place, caption, fill=_PAPER, font=font, anchor="lm")
    return sheet


def stack(*pictures: Image.Image) -> Image.Image:
    """The `pictures` below each other, on paper as wide as the widest."""
    width = max(picture.width for picture in pictures)
    sheet = Image.new("RGB", (width, sum(picture.height for picture in pictures)), _PAPER)
    top = 0
    for picture in pictures:
        sheet.paste(picture, ((width - picture.width) // 2, top))
        top += picture.height
    return sheet


def line_plot(
    values: Sequence[float] | Array,
    title: str = "",
    xlabel: str = "",
    ylabel: str = "",
    size: tuple[int, int] = (640, 400),
) -> Image.Image:
    """Line chart of `values` (n,) over 0, 1, 2, ..., such as the free energies of a run.

    title, xlabel, ylabel : what is written above, below and beside it.
    size : width and height in pixels.
    """
    heights = as_array(values, "values").astype(np.float64)
    if heights.ndim != 1 or len(heights) == 0:
        raise InputError(
            f"values must be one row of numbers, got shape {heights.shape}; pass a 1-D array."
        )
    check_finite(heights, "values")
    scale = 3  # drawn larger and reduced, which smooths every edge
    size = _as_size(size)
    width, height = (length * scale for length in size)
    title, xlabel, ylabel = map(str, (title, xlabel, ylabel))
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    small, large = (ImageFont.load_default(size=s * scale) for s in (13, 17))

    x_ticks = round_ticks(0, max(len(heights) - 1, 1), 8, whole=True)
    y_ticks = round_ticks(float(heights.min()), float(heights.max()), 6)
    y_names = tick_names(y_ticks)
    low, high = min(y_ticks[0], heights.min()), max(y_ticks[-1], heights.max())
    label_width = max(draw.textlength(name, font=small) for name in y_names)
    left = label_width + (44 if ylabel else 22) * scale
    right, top = width - 24 * scale, (52 if title else 20) * scale
    bottom = height - (56 if xlabel else 34) * scale

    def place(index: float, value: float) -> tuple[float, float]:
        across = index / max(len(heights) - 1, 1)
        return left + across * (right - left), bottom - (value - low) / (high - low) * (
            bottom - top
        )

    for tick, name in zip(y_ticks, y_names, strict=True):
        y = place(0, tick)[1]
        draw.line([(left, y), (right, y)], fill=GRID_LINE, width=scale)
        draw.text((left - 8 * scale, y), name, fill=PALE_INK, font=small, anchor="rm")
    draw.line([(left, bottom), (right, bottom)], fill=PALE_INK, width=scale)
    for tick in x_ticks:
        x = place(tick, low)[0]
        draw.line([(x, bottom), (x, bottom + 5 * scale)], fill=PALE_INK, width=scale)
        draw.text((x, bottom + 9 * scale), f"{tick:g}", fill=PALE_INK, font=small, anchor="mt")
    points = [place(index, value) for index, value in enumerate(heights)]
    if len(points) > 1:
        draw.line(points, fill=AFTER, width=2 * scale + 1, joint="curve")
    for point in points if len(points) <= 40 else ():
        draw.circle(point, 4 * scale, fill=_PAPER)
        draw.circle(point, 3 * scale, fill=AFTER)
    draw.text((width / 2, 26 * scale), title, fill=INK, font=large, anchor="mm")
    center = ((left + right) / 2, height - 16 * scale)
    draw.text(center, xlabel, fill=INK, font=small, anchor="mm")
    if ylabel:
        _text_upwards(sheet, ylabel, (16 * scale, round((top + bottom) / 2)), small)
    return sheet.resize(size, Image.Resampling.LANCZOS)


def show(image: Array | Image.Image, grid_axes: int = 2) -> Image.Image:
    """An image (*grid[, C]) of any real type, stretched to bytes where it is not made of them.

    grid_axes : how many axes the grid has.
    """
    return Image.fromarray(_display(image, grid_axes))


def _as_size(size: Any) -> tuple[int, int]:
    """Width and height of a chart."""
    try:
        width, height = size
    except (TypeError, ValueError):
        raise InputError(
            f"size must be width and height in pixels, got {shown(size)}; for example (640, 400)."
        ) from None
    return as_count(width, "size", 1, _WIDEST), as_count(height, "size", 1, _WIDEST)


def _middle_slice(array: Array, plane_axes: int) -> Array:
    return array[len(array) // 2] if array.ndim > plane_axes else array


def _display(image: Array | Image.Image, grid_axes: int) -> Bytes:
    """Image `(*grid[, C])` as bytes `(H, W, 3)`; other types than bytes are stretched to them."""
    pixels = as_image(image)
    if pixels.ndim not in (grid_axes, grid_axes + 1) or pixels.size == 0:
        raise InputError(
            f"image must be an array of {grid_axes} axes and perhaps channels, got {pixels.dtype} "
            f"of shape {pixels.shape}; pass one image."
        )
    check_finite(pixels, "image")
    if grid_axes == 3:
        pixels = _middle_slice(pixels, pixels.ndim - 1)
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    if pixels.dtype == bool:
        pixels = 255 * pixels.astype(np.uint8)
    if pixels.dtype != np.uint8:
        low, high = np.percentile(pixels, (0.5, 99.5))
        pixels = np.clip((pixels - low) / max(high - low, 1e-30), 0, 1)
        pixels = np.rint(255 * pixels).astype(np.uint8)
    if pixels.shape[-1] < 3:  # of two channels the first is shown
        pixels = np.repeat(pixels[..., :1], 3, axis=-1)
    return np.ascontiguousarray(pixels[..., :3])


def _label_colors(labels: Array, palette: Array | None) -> Bytes:
    colors = label_palette(256) if palette is None else np.asarray(palette, np.uint8)
    return colors[labels.astype(np.int64) % len(colors)]


def _borders(labels: Array) -> npt.NDArray[np.bool_]:
    """Pixels whose right or lower neighbor has another label."""
    changes = np.zeros(labels.shape, dtype=bool)
    changes[:, :-1] |= labels[:, :-1] != labels[:, 1:]
    changes[:-1] |= labels[:-1] != labels[1:]
    return changes


def _scaled_to(panel: Image.Image, height: int) -> Image.Image:
    width = max(1, round(panel.width * height / panel.height))
    if panel.height == height:
        return panel
    larger = height > panel.height
    return panel.resize(
        (width, height), Image.Resampling.NEAREST if larger else Image.Resampling.LANCZOS
    )


def _text_upwards(
    sheet: Image.Image, text: str, center: tuple[int, int], font: Any
) -> None:
    _, top, right, bottom = font.getbbox(text)
    strip = Image.new("RGB", (math.ceil(right), math.ceil(bottom + top)), _PAPER)
    ImageDraw.Draw(strip).text((0, 0), text, fill=INK, font=font)
    turned = strip.transpose(Image.Transpose.ROTATE_90)
    sheet.paste(turned, (center[0] - turned.width // 2, center[1] - turned.height // 2))
