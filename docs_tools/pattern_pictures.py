"""The pictures of docs/patterns.md, from the models that its blocks make."""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from crfield.patterns import infer
from crfield.patterns.pictures import mask_tiles, pattern_tiles
from crfield.show.pictures import side_by_side
from docs_tools.pages import run_tutorial, save_picture

SHOWN = slice(0, 8)


def results(names: dict[str, Any]) -> Image.Image:
    """Figures as they are, as they are seen and as each method finds them."""
    test = names["test"]
    panels = {
        "truth": names["test_masks"],
        "seen": names["test_images"],
        "unary": test.costs.argmin(-1),
        "pairwise": infer(names["pairwise_model"], test).labels,
        "patterns": infer(names["model"], test).labels,
    }
    return side_by_side(
        *(mask_tiles(panel[SHOWN], columns=2, scale=4) for panel in panels.values()),
        titles=list(panels),
    )


def learned(names: dict[str, Any]) -> Image.Image:
    """Patterns of the machine, and the clusters of the masks."""
    return side_by_side(
        *(
            pattern_tiles(patterns, names["grid"], n=24, columns=6, scale=3)
            for patterns in (names["rbm"].patterns, names["templates"])
        ),
        titles=['"sum": parts', '"min": templates'],
    )


def samples(names: dict[str, Any]) -> Image.Image:
    """Masks and what the machine takes for masks; posterior samples of two figures, with their
    means.
    """
    seen, chains = names["test_images"], names["chains"]
    posterior = np.concatenate([
        np.concatenate([seen[n][None], chains[n].mean(0)[None], chains[n, :2]]) for n in (1, 2)
    ])
    return side_by_side(
        mask_tiles(names["masks"][:8], columns=4, scale=4),
        mask_tiles(names["dreams"][:8], columns=4, scale=4),
        mask_tiles(posterior, columns=4, scale=4),
        titles=["masks", "samples of the prior", "seen, mean of 16 samples, two samples"],
    )


def steps(names: dict[str, Any]) -> Image.Image:
    """What inference starts from, and what is left after some steps of EM."""
    chosen = names["test"].take([1, 3, 5])
    found = [infer(names["model"], chosen, max_iter=n).labels for n in (0, 1, 2, 4, 50)]
    return side_by_side(
        *(mask_tiles(labels, columns=1, scale=4) for labels in found),
        mask_tiles(names["test_masks"][[1, 3, 5]], columns=1, scale=4),
        titles=["start", "1 step", "2 steps", "4 steps", "end", "truth"],
    )


def main() -> None:
    names = run_tutorial("patterns")
    for draw in (results, learned, steps, samples):
        save_picture(draw(names), f"patterns_{draw.__name__}")


if __name__ == "__main__":
    main()
