"""The picture of docs/uai.md, from what its blocks make."""

from __future__ import annotations

import math
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from crfield.show.pictures import label_palette, side_by_side
from docs_tools.pages import run_tutorial, save_picture

SCALE = 3  # drawn larger and reduced, which smooths every edge
SIZE = (380, 320)
INK, PALE, LINE = "#24292f", "#6b7280", "#e5e7eb"
NAMES = ("cloudy", "sprinkler", "rain", "wet grass")
PLACES = ((190, 46), (86, 160), (294, 160), (190, 274))
ARROWS = ((0, 1), (0, 2), (1, 3), (2, 3))
RADIUS = 42


def sheet() -> tuple[Image.Image, ImageDraw.ImageDraw]:
    page = Image.new("RGB", (SCALE * SIZE[0], SCALE * SIZE[1]), "white")
    return page, ImageDraw.Draw(page)


def text(draw: ImageDraw.ImageDraw, place: tuple[float, float], words: str, **options: Any) -> None:
    font = ImageFont.load_default(size=SCALE * options.pop("size", 15))
    draw.text((SCALE * place[0], SCALE * place[1]), words, font=font, **options)


def network(observed: set[int]) -> Image.Image:
    """Variables as circles, filled where they were observed, and the arrows of the tables."""
    page, draw = sheet()
    fill = tuple(int(value) for value in label_palette(3)[2])
    for first, second in ARROWS:
        (x, y), (u, v) = PLACES[first], PLACES[second]
        length = math.hypot(u - x, v - y)
        along = ((u - x) / length, (v - y) / length)
        start, end = (
            (SCALE * (x + along[0] * d), SCALE * (y + along[1] * d))
            for d in (RADIUS, length - RADIUS - 3)
        )
        draw.line([start, end], fill=PALE, width=2 * SCALE)
        side = (-along[1], along[0])
        head = [end] + [
            tuple(end[a] - SCALE * (11 * along[a] + sign * 5 * side[a]) for a in (0, 1))
            for sign in (-1, 1)
        ]
        draw.polygon(head, fill=PALE)
    for variable, (x, y) in enumerate(PLACES):
        draw.circle(
            (SCALE * x, SCALE * y), SCALE * RADIUS, outline=INK, width=2 * SCALE,
            fill=fill if variable in observed else "white",
        )
        text(draw, (x, y), NAMES[variable], fill=INK, anchor="mm")
    return page.resize(SIZE, Image.Resampling.LANCZOS)


def bars(before: Any, after: Any) -> Image.Image:
    """P(yes) of each variable, without and with the observations."""
    page, draw = sheet()
    colors = [tuple(int(value) for value in color) for color in label_palette(3)[1:]]
    left, width = 92, 236
    for share in (0.0, 0.5, 1.0):
        x = SCALE * (left + share * width)
        draw.line([(x, SCALE * 36), (x, SCALE * 298)], fill=LINE, width=SCALE)
        text(draw, (left + share * width, 308), f"{share:g}", fill=PALE, anchor="mm", size=13)
    for place, words, color in ((left, "before", 0), (left + 90, "after", 1)):
        box = (SCALE * place, SCALE * 10, SCALE * (place + 14), SCALE * 24)
        draw.rectangle(box, fill=colors[color])
        text(draw, (place + 20, 17), words, fill=INK, anchor="lm", size=14)
    for variable, name in enumerate(NAMES):
        top = 46 + 64 * variable
        text(draw, (left - 10, top + 22), name, fill=INK, anchor="rm")
        for row, chance in enumerate((before[variable], after[variable])):
            y, end = top + 24 * row, left + float(chance) * width
            box = (SCALE * left, SCALE * y, SCALE * end, SCALE * (y + 20))
            draw.rectangle(box, fill=colors[row])
            text(draw, (end + 6, y + 10), f"{chance:.2f}", fill=INK, anchor="lm", size=13)
    return page.resize(SIZE, Image.Resampling.LANCZOS)


def main() -> None:
    names = run_tutorial("uai")
    picture = side_by_side(
        network({0, 3}), bars(names["before"][:, 1], names["result"].marginals[:, 1]),
        titles=["the network, observed variables filled", "probability of yes"],
    )
    save_picture(picture, "uai")


if __name__ == "__main__":
    main()
