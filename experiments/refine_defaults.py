"""Constants for `crfield.refine`, chosen on one half of real data and reported on the other.

Hard labels: a network's predictions on voc_sbd100, chosen on the first 50 images, reported on the
last 50. Probabilities: msrc21's unaries, chosen on every third image of learn.txt, reported on
every other image of eval.txt. A plain grid: nothing is learned by gradient here.
"""

from __future__ import annotations

import argparse
import itertools
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.common import (
    Labels,
    load_image,
    load_labels,
    markdown_table,
    names_in,
    parse_data_folder,
    provenance,
    report,
)

import crfield
from crfield._parallel import usable_cores
from crfield.metrics import confusion_matrix, mean_iou, pixel_accuracy

N_LABELS = 21
CUSTOMARY: dict[str, Any] = {
    "spatial_weight": 3.0, "bilateral": (80.0, 13.0), "bilateral_weight": 10.0, "confidence": 0.7,
}
SHOWN = 8


@dataclass(frozen=True)
class Case:
    """One image with what a network made of it and the truth."""

    image: NDArray[np.uint8]
    given: NDArray[Any]
    truth: Labels


Loader = Callable[[Path, str], Case]


def load_voc(folder: Path, name: str) -> Case:
    """A voc_sbd100 image with the network's hard labels."""
    return Case(
        load_image(folder / "images" / f"{name}.jpg"),
        load_labels(folder / "psp_pred" / f"{name}.png"),
        load_labels(folder / "labels" / f"{name}.png"),
    )


def load_msrc(folder: Path, name: str) -> Case:
    """An msrc21 image with the network's probabilities at full size."""
    image = load_image(next(folder.glob(f"images/{name}.*")))
    truth = load_labels(folder / "labels" / f"{name}.png")
    for split in ("val", "test"):
        with np.load(folder / "unaries" / f"{split}.npz") as unaries:
            if name in unaries:
                coarse = unaries[name].astype(np.float32) / -20.0
                break
    size = (image.shape[1], image.shape[0])
    planes = [
        np.asarray(Image.fromarray(coarse[..., label]).resize(size, Image.Resampling.BILINEAR))
        for label in range(coarse.shape[-1])
    ]
    scores = np.exp(np.stack(planes, -1))
    return Case(image, scores / scores.sum(-1, keepdims=True), truth)


def grid(soft: bool) -> Iterator[dict[str, Any]]:
    """The settings that are tried, the customary one first."""
    yield {k: v for k, v in CUSTOMARY.items() if not (soft and k == "confidence")}
    for pixels, color, weight in itertools.product(
        (30.0, 60.0), (3.0, 5.0, 8.0), (3.0, 6.0, 10.0)
    ):
        setting = {
            "spatial_weight": 3.0, "bilateral": (pixels, color), "bilateral_weight": weight
        }
        if soft:
            yield setting
        else:
            yield from ({**setting, "confidence": c} for c in (0.7, 0.9))


def argmax(given: NDArray[Any]) -> Labels:
    """The labels before refinement."""
    return given.argmax(-1) if given.ndim == 3 else given


def score(cases: list[Case], setting: dict[str, Any] | None) -> NDArray[np.int64]:
    """The confusion matrix over all cases, without refinement for None."""

    def one(case: Case) -> NDArray[np.int64]:
        labels = argmax(case.given)
        if setting is not None:
            labels = crfield.refine(case.image, case.given, threads=1, **setting).labels
        return confusion_matrix(case.truth, labels, N_LABELS)

    with ThreadPoolExecutor(usable_cores()) as pool:
        return np.asarray(np.sum(list(pool.map(one, cases)), axis=0))


def describe(setting: dict[str, Any] | None) -> str:
    """A setting in a table cell."""
    if setting is None:
        return "network alone"
    pixels, color = setting["bilateral"]
    words = (
        f"spatial 3 px x {setting['spatial_weight']:g}, bilateral {pixels:g} px / {color:g} x "
        f"{setting['bilateral_weight']:g}"
    )
    return words + (f", confidence {setting['confidence']:g}" if "confidence" in setting else "")


def choose(title: str, chosen_on: list[Case], reported_on: list[Case], soft: bool) -> list[str]:
    """The paragraphs of one search."""
    scored = []
    for setting in grid(soft):
        scored.append((mean_iou(score(chosen_on, setting)), setting))
        print(f"{100 * scored[-1][0]:.2f}  {describe(setting)}", flush=True)
    best = sorted(scored, key=lambda entry: -entry[0])[:SHOWN]
    rows = [[describe(None), f"{100 * mean_iou(score(chosen_on, None)):.2f}"]]
    rows += [[describe(setting), f"{100 * value:.2f}"] for value, setting in [scored[0], *best]]
    held_out = []
    candidate: dict[str, Any] | None
    for name, candidate in (("", None), ("customary: ", scored[0][1]), ("chosen: ", best[0][1])):
        confusion = score(reported_on, candidate)
        held_out.append([
            name + describe(candidate), f"{100 * mean_iou(confusion):.2f}",
            f"{100 * pixel_accuracy(confusion):.2f}",
        ])
    return [
        f"## {title}",
        f"Chosen on {len(chosen_on)} images; the customary setting and the best of {len(scored)}:",
        markdown_table(["setting", "mean IoU %"], rows),
        f"The same on {len(reported_on)} other images:",
        markdown_table(["setting", "mean IoU %", "pixel accuracy %"], held_out),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    arguments = parse_data_folder(parser, "voc_sbd100", "msrc21")
    voc, msrc = arguments.data / "voc_sbd100", arguments.data / "msrc21"

    def cases(load: Loader, folder: Path, names: list[str]) -> list[Case]:
        return [load(folder, name) for name in names]

    names = names_in(voc / "list.txt")
    paragraphs = choose(
        "Hard labels", cases(load_voc, voc, names[:50]), cases(load_voc, voc, names[50:]), False
    )
    paragraphs += choose(
        "Probabilities", cases(load_msrc, msrc, names_in(msrc / "learn.txt")[::3]),
        cases(load_msrc, msrc, names_in(msrc / "eval.txt")[::2]), True,
    )
    report("Constants of `refine`", paragraphs, provenance())


if __name__ == "__main__":
    main()
