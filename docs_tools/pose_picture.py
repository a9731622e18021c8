"""The picture of docs/poses.md, from what its blocks make."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from crfield.show.pictures import label_palette, side_by_side
from docs_tools.pages import run_tutorial, save_picture

SCALE = 4
LIMB = "#e5e7eb"


def heat(maps: NDArray[np.float64]) -> Image.Image:
    """Maps (parts, H, W) within 0 and 1, each in the color of its part."""
    dark, *colors = label_palette(len(maps) + 1).astype(float)
    sheet = np.broadcast_to(dark, (*maps.shape[1:], 3)).copy()
    for color, share in zip(colors, maps, strict=True):
        sheet += share[..., None] * (color - sheet)
    pixels = np.rint(sheet).astype(np.uint8).repeat(SCALE, 0).repeat(SCALE, 1)
    return Image.fromarray(pixels)


def skeleton(sheet: Image.Image, positions: NDArray[np.int64], parents: Any) -> Image.Image:
    """Limbs and joints at positions (parts, 2), drawn larger and reduced."""
    large = sheet.resize((3 * sheet.width, 3 * sheet.height), Image.Resampling.NEAREST)
    draw = ImageDraw.Draw(large)
    places = [(3 * SCALE * (column + 0.5), 3 * SCALE * (row + 0.5)) for row, column in positions]
    for part, parent in enumerate(parents):
        if parent >= 0:
            draw.line([places[parent], places[part]], fill=LIMB, width=9)
    for part, place in enumerate(places):
        color = tuple(int(value) for value in label_palette(len(places) + 1)[part + 1])
        draw.circle(place, 21, fill=LIMB)
        draw.circle(place, 16, fill=color)
    return large.resize(sheet.size, Image.Resampling.LANCZOS)


def main() -> None:
    names = run_tutorial("poses")
    costs, parents = names["costs"], names["body"].parents
    seen = heat(np.clip((6.0 - costs) / 6, 0, 1))
    pale = heat(0.5 * np.clip((5.0 - costs) / 6, 0, 1))
    marginals = names["pose"].marginals
    spread = heat((marginals / marginals.max((1, 2), keepdims=True)) ** 0.5)
    picture = side_by_side(
        seen, skeleton(pale, names["alone"], parents),
        skeleton(pale, names["pose"].positions, parents), spread,
        titles=["what detectors see", "each part alone", "tree of parts", "marginals"],
    )
    save_picture(picture, "poses", n_colors=256)


if __name__ == "__main__":
    main()
