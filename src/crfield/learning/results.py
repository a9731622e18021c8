"""What a classifier, default refinement and a learned model make of the same images: their scores,
and pictures of a few, as pieces of an HTML page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crfield.dense.model import DenseCRF
from crfield.learning.objective import Confusion, Example
from crfield.metrics import confusion_matrix, iou_per_label, mean_iou, pixel_accuracy
from crfield.refinement import refine
from crfield.show import pictures
from crfield.show import svg as _svg
from crfield.show.page import figure, heading, paragraph, picture, row, tile

Labels = NDArray[np.integer[Any]]

# So many are shown, this wide or high; of many or large images only some are scored, for which
# there are at most so many costs.
_SHOWN, _SIDE, _MOST_COSTS = 6, 256, 1e8
_COLORS = {"classifier": _svg.BEFORE, "default refine": _svg.OTHER, "learned": _svg.AFTER}
_VOID_GRAY = 224


def compare_results(
    model: DenseCRF, examples: Sequence[Example], what: str, names: Sequence[str],
    void: int | None,
) -> tuple[dict[str, float], str]:
    """The mean IoU of each of the three; and the section of a page with these, the IoU of each
    label, and six images before and after.

    what : what the page calls the examples.
    names : of the labels.
    """
    n = model.n_labels
    affordable = max(_SHOWN, int(_MOST_COSTS / np.size(examples[0].unary)))
    scored = _evenly(range(len(examples)), affordable)
    shown = set(_evenly(scored, _SHOWN))
    totals = {name: np.zeros((n, n), np.int64) for name in _COLORS}
    rows, seen = [], np.zeros(n, bool)
    for index in scored:
        example = examples[index]
        found = {
            "classifier": np.asarray(example.unary).argmin(-1),
            "default refine": _refined(example),
            "learned": model.infer(
                example.image, example.unary, tol=0.0, spacing=getattr(example, "spacing", None)
            ).labels,
        }
        counts = {k: confusion_matrix(example.truth, v, n, void) for k, v in found.items()}
        totals = {k: totals[k] + counts[k] for k in totals}
        if index in shown:
            rows.append(_before_and_after(example, found, counts, void))
            for matrix in counts.values():
                seen |= matrix.any(axis=0) | matrix.any(axis=1)
    means = {k: mean_iou(counts) for k, counts in totals.items()}
    ious = {k: 100 * iou_per_label(counts) for k, counts in totals.items()}
    occurring = np.isfinite(list(ious.values())).any(axis=0)
    series = [_svg.Curve(k, ious[k][occurring], color) for k, color in _COLORS.items()]
    of_bars = [names[int(label)] for label in np.flatnonzero(occurring)]
    some = f"{len(scored)} of the {len(examples)} {what}" if len(scored) < len(examples) else (
        f"the {len(examples)} {what}"
    )
    palette = pictures.label_palette(n)
    legends = [
        _svg.legend([(name, f"#{bytes(color).hex()}")])
        for name, color, is_seen in zip(names, palette, seen, strict=True) if is_seen
    ]
    return means, "".join([
        heading("Results"),
        paragraph(
            f"Scores on {some}, at full size: what the classifier gives, what refine makes of it "
            "with its default constants, and what the learned model does."
        ),
        row([tile(f"mean IoU, {k}", _percent(share)) for k, share in means.items()]),
        row([figure("IoU of each label that occurs, %", _svg.bars(
            of_bars, series, decimals=1, width=620
        ))] if of_bars else []),
        heading("Before and after", 3), row(legends), *rows,
    ])


def _evenly(indices: Sequence[int], most: int) -> list[int]:
    """At most so many of the indices, spread over all of them."""
    chosen = np.linspace(0, len(indices) - 1, min(most, len(indices))).round().astype(int)
    return [indices[k] for k in chosen]


def _refined(example: Example) -> Labels:
    """What `refine` makes of a classifier's output with its defaults: of labels where the costs
    are those of labels, else of probabilities.
    """
    costs = np.asarray(example.unary)
    least, most = costs.min(-1), costs.max(-1)
    sure = most > least
    given = getattr(example, "spacing", None)
    # Volumes of colors would be taken for several images without one.
    options: dict[str, Any] = {"spacing": 1 if given is None else given, "layout": "channels_last"}
    if sure.any() and len(np.unique(least[sure])) == 1 == len(np.unique(most[sure])):
        labels = np.where(sure, costs.argmin(-1), -1)
        if len(np.unique(labels[sure])) == 1:  # nothing to refine
            return np.asarray(costs.argmin(-1))
        return np.asarray(refine(example.image, labels, unknown=-1, **options).labels)
    probabilities = np.exp(least[..., None] - costs)
    probabilities /= probabilities.sum(-1, keepdims=True)
    return np.asarray(refine(example.image, probabilities, **options).labels)


def _before_and_after(
    example: Example, found: dict[str, Labels], counts: dict[str, Confusion], void: int | None
) -> str:
    """Image, the classifier's labels, those of the model and the truth in a row."""
    truth = np.asarray(example.truth)
    if truth.ndim not in (2, 3):
        return ""
    palette = pictures.label_palette(256)
    if void is not None:
        palette[void % 256] = _VOID_GRAY
    name = str(getattr(example, "name", "image"))
    photo = _small(pictures.show(example.image, truth.ndim), Image.Resampling.LANCZOS)
    figures = [figure(name, picture(photo, name, "JPEG"))]
    panels = {
        f"{kind}: {_percent(pixel_accuracy(counts[kind]))} of pixels": found[kind]
        for kind in ("classifier", "learned")
    }
    for caption, labels in {**panels, "truth": truth}.items():
        drawn = _small(pictures.colorize(labels, palette), Image.Resampling.NEAREST)
        figures.append(figure(caption, picture(drawn, f"{name}: {caption}")))
    return row(figures)


def _small(image: Image.Image, resampling: Image.Resampling) -> Image.Image:
    scale = _SIDE / max(image.size)
    return image.resize([max(1, round(scale * side)) for side in image.size], resampling)


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %" if math.isfinite(share) else "–"
