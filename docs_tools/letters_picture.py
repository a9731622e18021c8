"""The picture of docs/letters.md, from the models that its blocks make."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from crfield.show.pictures import side_by_side
from docs_tools.pages import run_tutorial, save_picture
from examples.read_letters import CELL, GAP, INK, draw_readings, picture_of

N_WORDS = 6


def readings(names: dict[str, Any]) -> Image.Image:
    """The first words of the test, with what letters alone and the chain make of them."""
    images, truth = (names[key][:N_WORDS] for key in ("test_images", "test_letters"))
    alone = [
        np.concatenate(names["alone"].predict(names["cut"]([word])))
        for word in names["test"][:N_WORDS]
    ]
    return draw_readings(images, truth, {"alone": alone, "chain": names["read"][:N_WORDS]})


def marginals(names: dict[str, Any], n: int) -> Image.Image:
    """A word with the probability of each reading of its letters."""
    images, chance = names["test_images"][n], names["marginals"][n]
    classes, step = names["chain"].classes_, 15
    top = picture_of(images[0]).height + GAP
    sheet = Image.new("RGB", (30 + CELL * len(images), top + step * len(classes)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=12)
    for t, letter in enumerate(images):
        left = 30 + t * CELL
        sheet.paste(picture_of(letter), (left, 0))
        for row, value in enumerate(chance[t]):
            shade = tuple(round(255 - value * (255 - part)) for part in (29, 78, 216))
            box = (left, top + row * step, left + CELL - 4, top + (row + 1) * step - 2)
            draw.rectangle(box, fill=shade, outline="#e5e7eb")
    for row, letter in enumerate(classes):
        draw.text((15, top + (row + 0.5) * step), letter, fill=INK, font=font, anchor="mm")
    return sheet


def main() -> None:
    names = run_tutorial("letters")
    picture = side_by_side(
        readings(names), marginals(names, names["n"]),
        titles=["first words of the test", "marginals of a doubtful word"],
    )
    save_picture(picture, "letters")


if __name__ == "__main__":
    main()
