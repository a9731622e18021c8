"""The picture of docs/letters.md, from the models that its blocks make."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from pages import run_tutorial, save_picture
from PIL import Image, ImageDraw, ImageFont

from crfield.pictures import side_by_side

N_WORDS, SCALE, CELL, GAP, LINE = 6, 6, 40, 10, 22
NAMES_WIDTH = 62
INK, WRONG, PALE = "#24292f", "#c81e1e", "#6b7280"


def picture_of(letter: NDArray[np.float32]) -> Image.Image:
    """A letter (8, 6), dark ink on light paper."""
    grey = np.clip(255 * (1 - (letter + 0.5) / 2), 0, 255).astype(np.uint8)
    size = (letter.shape[1] * SCALE, letter.shape[0] * SCALE)
    return Image.fromarray(grey).resize(size, Image.Resampling.NEAREST)


def readings(names: dict[str, Any], chosen: list[int]) -> Image.Image:
    """Words as they are seen, with what letters alone and the chain make of them; red is wrong."""
    images, truth = names["test_images"], names["test_letters"]
    height = images[0].shape[1] * SCALE + 2 * LINE + GAP
    width = NAMES_WIDTH + CELL * max(len(truth[n]) for n in chosen)
    sheet = Image.new("RGB", (width, height * len(chosen)), "white")
    draw, font = ImageDraw.Draw(sheet), ImageFont.load_default(size=18)
    small = ImageFont.load_default(size=14)
    for row, n in enumerate(chosen):
        top = row * height
        for t, letter in enumerate(images[n]):
            sheet.paste(picture_of(letter), (NAMES_WIDTH + t * CELL, top))
        top += images[n].shape[1] * SCALE + LINE // 2
        for name in ("alone", "chain"):
            found = np.concatenate(names["alone"].predict(names["cut"]([names["test"][n]])))
            if name == "chain":
                found = names["read"][n]
            draw.text((4, top), name, fill=PALE, font=small, anchor="lm")
            for t, (ours, theirs) in enumerate(zip(found, truth[n], strict=True)):
                place = (NAMES_WIDTH + t * CELL + 3 * SCALE, top)
                colour = INK if ours == theirs else WRONG
                draw.text(place, ours, fill=colour, font=font, anchor="mm")
            top += LINE
    return sheet


def marginals(names: dict[str, Any], n: int) -> Image.Image:
    """A word with the probability of each reading of its letters."""
    images, chance = names["test_images"][n], names["marginals"][n]
    classes, step = names["chain"].classes_, 15
    top = images.shape[1] * SCALE + GAP
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
        readings(names, list(range(N_WORDS))), marginals(names, names["n"]),
        titles=["first words of the test", "marginals of a doubtful word"],
    )
    save_picture(picture, "letters")


if __name__ == "__main__":
    main()
