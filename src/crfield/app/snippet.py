"""The Python script that does what the page did."""

from __future__ import annotations

import numpy as np

from crfield.app.settings import Settings
from crfield.app.workspace import Initial, OpenImage, Refinement
from crfield.unary.costs import UNKNOWN


def snippet(image: OpenImage, refinement: Refinement) -> str:
    """A script that computes the mask from the image's file and the files that the page saves."""
    settings, initial = refinement.settings, refinement.initial
    painted = bool((refinement.scribbles != UNKNOWN).any())
    names = _readers(image, initial)
    lines = ["import numpy as np", "from PIL import Image", "", "import crfield"]
    if image.sample is not None:
        lines += ["from crfield.datasets import load_sample"]
    if names:
        lines = ["from pathlib import Path", "", *lines]
        lines += [f"from crfield.io.images import {', '.join(names)}"]
    values = refinement.mask_values
    if values.dtype == np.uint8:
        lines += ["from crfield.show.pictures import label_palette"]
    if initial is not None:
        lines += ["from crfield.unary.segmentation import read_segmentation"]
    lines += [""]
    if image.sample is not None:
        lines += [f"image = load_sample({image.sample!r}).image"]
    else:
        pages = ""
        if image.name.lower().endswith((".tif", ".tiff")):
            shape = ", ".join(map(str, image.pixels.shape))
            pages = f".reshape(-1, {shape})[0]  # of several pages the first"
        lines += [f"image = read_image(Path({image.name!r})).array{pages}"]
    if painted:
        lines += ['scribbles = np.asarray(Image.open("scribbles.png"))  # 255: nothing painted']
    if initial is None:
        lines += [
            "unary = crfield.unary_from_scribbles(",
            f"    image, scribbles, {settings.n_labels}, components={settings.components},",
            f"    strength={settings.strength!r}, nearness={settings.nearness!r},",
            ")",
        ]
    else:
        given = initial.segmentation
        array, options = "", ""
        if given.kind == "labels":
            array = ".array"
            options = f", confidence={settings.confidence!r}, unknown={given.unknown}"
        lines += [
            f"values = read_{given.kind}(Path({initial.name!r})){array}",
            "segmentation, values = read_segmentation(",
            f"    values, image.shape{options}",
            ")",
            "unary = segmentation.costs(values)",
        ]
    if initial is not None and painted:
        lines += ["unary = crfield.paint_over(unary, scribbles)"]
    lines += [
        *_model_lines(settings, len(values)), *_ending(settings),
        f"values = np.array({values.tolist()}, np.{values.dtype})",
        "mask = Image.fromarray(values[result.labels])",
    ]
    if values.dtype == np.uint8:
        lines += [
            "palette = label_palette(256)",
            "palette[values] = label_palette(len(values))",
            "mask.putpalette(palette.tobytes())",
        ]
    return "\n".join([*lines, 'mask.save("mask.png")', ""])


def _readers(image: OpenImage, initial: Initial | None) -> list[str]:
    """The functions that read the files of a script."""
    names = [] if image.sample is not None else ["read_image"]
    if initial is not None:
        names.append(f"read_{initial.segmentation.kind}")
    return names


def _model_lines(settings: Settings, n_labels: int) -> list[str]:
    if settings.model is not None:
        return ['crf = crfield.DenseCRF.load("model.safetensors")']
    lines = [f"crf = crfield.DenseCRF({n_labels}, ["]
    if settings.spatial is not None:
        lines += [
            f"    crfield.Pairwise(crfield.Spatial({settings.spatial!r}), "
            f"crfield.Potts({settings.spatial_weight!r})),"
        ]
    if settings.bilateral is not None:
        pixels, colors = settings.bilateral
        lines += [
            f"    crfield.Pairwise(crfield.Bilateral({pixels!r}, {colors!r}), "
            f"crfield.Potts({settings.bilateral_weight!r})),"
        ]
    return [*lines, "])"]


def _ending(settings: Settings) -> list[str]:
    return [
        "result = crf.infer(",
        f"    image, unary, algorithm={settings.algorithm!r}, max_iter={settings.max_iter},",
        f"    tol={settings.tol!r},",
        ")",
        "print(result.status.value)",
    ]
