"""Pictures of docs/{learning,volumes,nn,graphs}.md, from what their blocks make; names choose."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from PIL import Image

from crfield import refine
from crfield.show.pictures import colorize, entropy_map, line_plot, show, side_by_side, stack
from docs_tools.pages import run_tutorial, save_picture


def learning(names: dict[str, Any]) -> Image.Image:
    """A scene of the test before and after learning, above the losses of training."""
    scene = names["scenes"][6]

    def labels(model: Any) -> Any:
        return refine(scene.image, scene.probabilities, model=model, max_iter=5).labels

    maps = {
        "classifier": scene.probabilities.argmax(-1), "start": labels(names["start"]),
        "learned": labels(names["learned"].model), "truth": scene.mask,
    }
    row = side_by_side(
        show(scene.image), *map(colorize, maps.values()), titles=["image", *maps], height=144
    )
    curve = line_plot(
        names["learned"].report.losses, title="loss of the training images", xlabel="iteration",
        ylabel="1 - mean IoU, relaxed", size=(round(0.75 * row.width), 260),
    )
    return stack(row, curve)


def volumes(names: dict[str, Any]) -> Image.Image:
    """A slice of the scan and a cut through all slices, with voxels as long as they are."""
    found = {
        "scan": names["image"], "network": names["found"]["network"],
        "slice by slice": names["found"]["slice by slice"], "3-D": names["found"]["3-D"],
        "3-D, learned": names["refined"].labels, "truth": names["truth"],
    }
    z, y = names["image"].shape[0] // 2 + 2, names["image"].shape[1] // 2 - 2
    length = round(names["spacing"][0])
    rows = []
    cuts = {name: volume[::-1, y].repeat(length, 0) for name, volume in found.items()}
    slices = {name: volume[z] for name, volume in found.items()}
    for planes, titles, height in ((slices, list(found), 168), (cuts, (), 120)):
        panels = [show(p) if name == "scan" else colorize(p) for name, p in planes.items()]
        rows.append(side_by_side(*panels, titles=titles, height=height))
    return stack(*rows)


def nn(names: dict[str, Any]) -> Image.Image:
    """Scenes as the network inside the model and as the whole model labels them."""
    rows = []
    for number in (0, 1):
        marginals = names["both"][number].softmax(0).permute(1, 2, 0).numpy()
        panels = {
            "image": show(names["scenes"][number].image),
            "network": colorize(names["alone"][number].argmax(0).numpy()),
            "network and CRF": colorize(marginals.argmax(-1)),
            "entropy": entropy_map(marginals),
            "truth": colorize(names["scenes"][number].mask),
        }
        titles = list(panels) if number == 0 else ()
        rows.append(side_by_side(*panels.values(), titles=titles, height=176))
    return stack(*rows)


def graphs(names: dict[str, Any]) -> Image.Image:
    """Noisy squares, what pixels alone and the learned grid make of them."""
    rows = []
    labels = names["model"].predict(names["X_test"])
    for number in (1, 4):
        seen = names["X_test"][number][..., 0]
        panels = {
            "seen": show(np.rint(255 * np.clip((seen + 1.5) / 4, 0, 1)).astype(np.uint8)),
            "pixels alone": colorize((seen > 0.5).astype(int)),
            "marginals": show(np.rint(255 * names["beliefs"][number][..., 1]).astype(np.uint8)),
            "labels": colorize(labels[number].astype(int)),
            "truth": colorize(names["y_test"][number]),
        }
        titles = list(panels) if number == 1 else ()
        rows.append(side_by_side(*panels.values(), titles=titles, height=168))
    return stack(*rows)


def main() -> None:
    drawn = {draw.__name__: draw for draw in (learning, volumes, nn, graphs)}
    for name in sys.argv[1:] or drawn:
        save_picture(drawn[name](run_tutorial(name)), name)


if __name__ == "__main__":
    main()
