"""The Python script that does what the page did."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from crfield.app.settings import Settings
from crfield.app.workspace import Initial, OpenImage, Refinement
from crfield.io.images import NIFTI_SUFFIXES
from crfield.unary.costs import UNKNOWN


def snippet(image: OpenImage, refinement: Refinement) -> str:
    """A script that computes the mask from the image's file and the files that the page saves."""
    settings, initial = refinement.settings, refinement.initial
    values = refinement.mask_values
    in_colors = values.dtype == np.uint8
    lines = [*_imports(image, initial, in_colors), "", _image_line(image)]
    if (refinement.scribbles != UNKNOWN).any():
        lines += ['scribbles = np.asarray(Image.open("scribbles.png"))  # 255: nothing painted']
    if initial is None:
        lines += [
            "unary = crfield.unary_from_scribbles(",
            f"    image, scribbles, {settings.n_labels}, components={settings.components},",
            f"    strength={settings.strength!r}, nearness={settings.nearness!r},",
            ")",
        ]
    else:
        lines += _initial_lines(initial, settings)
        if (refinement.scribbles != UNKNOWN).any():
            lines += ["unary = crfield.paint_over(unary, scribbles)"]
    lines += [
        *_model_lines(settings, len(values)),
        "result = crf.infer(",
        f"    image, unary, algorithm={settings.algorithm!r}, max_iter={settings.max_iter},",
        f"    tol={settings.tol!r},",
        ")",
        "print(result.status.value)",
        f"values = np.array({values.tolist()}, np.{values.dtype})",
        "mask = Image.fromarray(values[result.labels])",
    ]
    if in_colors:
        lines += [
            "palette = label_palette(256)",
            "palette[values] = label_palette(len(values))",
            "mask.putpalette(palette.tobytes())",
        ]
    return "\n".join([*lines, 'mask.save("mask.png")', ""])


def _imports(image: OpenImage, initial: Initial | None, in_colors: bool) -> Iterator[str]:
    readers = [] if image.sample is not None else ["read_image"]
    if initial is not None:
        readers.append(_reader(initial))
    if readers:
        yield from ("from pathlib import Path", "")
    yield from ("import numpy as np", "from PIL import Image", "", "import crfield")
    if image.sample is not None:
        yield "from crfield.datasets import load_sample"
    if readers:
        yield f"from crfield.io.images import {', '.join(readers)}"
    if in_colors:
        yield "from crfield.show.pictures import label_palette"
    if initial is not None:
        yield "from crfield.unary.costs import read_segmentation"


def _image_line(image: OpenImage) -> str:
    if image.sample is not None:
        return f"image = load_sample({image.sample!r}).image"
    shape = ", ".join(map(str, image.pixels.shape))
    slices = f".reshape({shape})" if image.name.lower().endswith(NIFTI_SUFFIXES) else ""
    return f"image = read_image(Path({image.name!r})).array{slices}"


def _reader(initial: Initial) -> str:
    """The function that reads the file of a segmentation."""
    return "read_labels" if initial.kind == "labels" else "read_probabilities"


def _initial_lines(initial: Initial, settings: Settings) -> Iterator[str]:
    given = initial.segmentation
    is_map = given.kind == "labels"
    yield f"values = {_reader(initial)}(Path({initial.name!r})){'.array' if is_map else ''}"
    if initial.name.lower().endswith(NIFTI_SUFFIXES):
        yield "values = values[0] if values.shape[0] == 1 else values  # a volume of one slice"
    if is_map:
        options = f", confidence={settings.confidence!r}, unknown={given.unknown}"
    else:
        options = ", logits=True" if initial.kind == "logits" else ""
    yield f"segmentation, values = read_segmentation(values, image.shape{options})"
    yield "unary = segmentation.costs(values)"


def _model_lines(settings: Settings, n_labels: int) -> Iterator[str]:
    if settings.model is not None:
        yield 'crf = crfield.DenseCRF.load("model.safetensors")'
        return
    yield f"crf = crfield.DenseCRF({n_labels}, ["
    if settings.spatial is not None:
        kernel, weight = f"Spatial({settings.spatial!r})", settings.spatial_weight
        yield f"    crfield.Pairwise(crfield.{kernel}, crfield.Potts({weight!r})),"
    if settings.bilateral is not None:
        pixels, colors = settings.bilateral
        kernel, weight = f"Bilateral({pixels!r}, {colors!r})", settings.bilateral_weight
        yield f"    crfield.Pairwise(crfield.{kernel}, crfield.Potts({weight!r})),"
    yield "])"
