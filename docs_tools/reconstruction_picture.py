"""The picture of docs/reconstruction.md, from what its blocks make."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from crfield.graphs import RayModel, fuse_independent, infer
from crfield.show.pictures import side_by_side, stack
from docs_tools.pages import run_tutorial, save_picture

UNSEEN = np.array([176, 200, 222])
HEIGHT = 216


def slices(names: dict[str, Any]) -> Image.Image:
    """The solid and what both methods make of it, each with its best prior, at one height."""
    found = {"truth": names["solid"].astype(float)}
    for title, name in (("fusion", "fusion"), ("belief propagation", "propagation")):
        rays, prior = names["rays"], names["best"][name][1]
        model = RayModel(
            names["grid"], rays.offsets, rays.voxels, names["scores"], prior, names["empty_scores"]
        )
        found[title] = (
            fuse_independent(model) if name == "fusion" else infer(model).marginals
        )
    panels = []
    for occupied in found.values():
        chance, seen = (volume[:, :, 17].T[::-1, :, None] for volume in (occupied,
                                                                         names["in_sight"]))
        gray = 255 * (1 - chance)
        panels.append(np.where(seen, gray, UNSEEN).astype(np.uint8))
    return side_by_side(*panels, titles=list(found), height=HEIGHT)


def depths(names: dict[str, Any]) -> Image.Image:
    """Of the first camera: near is bright, and black is where nothing was met."""
    met = names["met"] > 0.5
    found = {
        "true depth": np.where(names["known"], names["truth"], np.nan),
        "as measured": np.where(names["saw"], names["measured"], np.nan),
        "as expected": np.where(met, names["expected"], np.nan),
    }
    panels = []
    for depth in found.values():
        far = (depth[: 48 * 48].reshape(48, 48) - 50) / 28
        panels.append(np.where(np.isnan(far), 0, 255 * (1 - 0.85 * np.clip(far, 0, 1))))
    return side_by_side(
        *(panel.astype(np.uint8) for panel in panels), titles=list(found), height=HEIGHT
    )


def main() -> None:
    names = run_tutorial("reconstruction")
    save_picture(stack(slices(names), depths(names)), "reconstruction")


if __name__ == "__main__":
    main()
