"""The pictures of docs/kernels.md: what each parameter does to the cup of coffee."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

import crfield
from crfield import Bilateral, DenseCRF, Pairwise, Potts, Spatial
from crfield.datasets import load_sample, noisy_probabilities
from crfield.dense.kernels import Kernel
from crfield.dense.observation import observe
from crfield.metrics import confusion_matrix, mean_iou
from crfield.show.palette import uncertainty_ramp
from crfield.show.pictures import (
    captioned,
    entropy_map,
    line_plot,
    overlay,
    side_by_side,
    stack,
)

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
PANEL = (250, 167)
SAMPLE = load_sample("coffee")
PROBABILITIES = noisy_probabilities(SAMPLE.mask, SAMPLE.n_labels, seed=0)
LISTENER = (150, 110)  # a pixel of the saucer


def refined(**options: Any) -> crfield.InferenceResult:
    """The sample after `refine`; one thread gives the same pictures on every machine."""
    return crfield.refine(SAMPLE.image, PROBABILITIES, threads=1, **options)


def panel(labels: NDArray[Any]) -> Image.Image:
    """Labels over the photo, with their score."""
    score = mean_iou(confusion_matrix(SAMPLE.mask, labels, SAMPLE.n_labels))
    return captioned(reduced(overlay(SAMPLE.image, labels)), f"IoU {score:.2f}")


def reduced(picture: Image.Image) -> Image.Image:
    return picture.resize(PANEL, Image.Resampling.LANCZOS)


def row(options: dict[str, dict[str, Any]]) -> Image.Image:
    """One panel for each set of options."""
    panels = [panel(refined(**chosen).labels) for chosen in options.values()]
    return side_by_side(*panels, titles=tuple(options))


def inputs() -> Image.Image:
    return side_by_side(
        reduced(Image.fromarray(SAMPLE.image)),
        panel(PROBABILITIES.argmax(-1)),
        panel(refined().labels),
        captioned(reduced(overlay(SAMPLE.image, SAMPLE.mask)), "truth"),
        titles=("photo", "most probable label", "refine", "drawn by hand"),
    )


def listening(kernel: Kernel) -> Image.Image:
    """k(f_i, f_j) of one pixel i with every other pixel j, white 1, and the pixel itself."""
    features = kernel.scaled_features(observe(SAMPLE.mask.shape, SAMPLE.image))
    own = features[np.ravel_multi_index(LISTENER, SAMPLE.mask.shape)]
    values = np.exp(-0.5 * ((features - own) ** 2).sum(1)).reshape(SAMPLE.mask.shape)
    picture = Image.fromarray(uncertainty_ramp()[np.rint(255 * values).astype(int)])
    ImageDraw.Draw(picture).circle(LISTENER[::-1], 6, outline="#2563eb", width=2)
    return reduced(picture)


def listeners() -> Image.Image:
    photo = Image.fromarray(SAMPLE.image)
    ImageDraw.Draw(photo).circle(LISTENER[::-1], 6, outline="#2563eb", width=3)
    kernels = {
        "Spatial(20)": Spatial(20),
        "Bilateral(60, 8)": Bilateral(60, 8),
        "Bilateral(60, 20)": Bilateral(60, 20),
    }
    panels = [listening(kernel) for kernel in kernels.values()]
    return side_by_side(reduced(photo), *panels, titles=("the pixel", *kernels))


def spatial() -> Image.Image:
    return row({
        f"spatial={width}": {"spatial": width, "bilateral": None} for width in (1, 3, 8, 20)
    })


def bilateral() -> Image.Image:
    return stack(
        row({f"bilateral=({xy}, 8)": {"bilateral": (xy, 8)} for xy in (5, 20, 60, 200)}),
        row({f"bilateral=(20, {c})": {"bilateral": (20, c)} for c in (2, 8, 20, 60)}),
    )


def weights() -> Image.Image:
    return row({
        f"bilateral_weight={w}": {"bilateral": (20, 8), "bilateral_weight": w}
        for w in (0, 2, 6, 60)
    })


def iterations() -> Image.Image:
    steps = (0, 1, 2, 10)
    results = [refined(bilateral=(20, 8), max_iter=n, tol=0.0) for n in steps]
    unsure = [captioned(reduced(entropy_map(r.marginals)), "entropy") for r in results]
    return stack(
        side_by_side(
            *(panel(r.labels) for r in results), titles=[f"max_iter={n}" for n in steps]
        ),
        side_by_side(*unsure),
    )


def algorithms() -> Image.Image:
    """Free energies of a model with the guarantee, and of the original update on one without."""
    attracted = refined(bilateral=(20, 8), max_iter=12, tol=0.0)
    repelled = DenseCRF(SAMPLE.n_labels, [Pairwise(Spatial(3), Potts(-10))]).infer(
        SAMPLE.image, crfield.unary_from_probabilities(PROBABILITIES), algorithm="parallel",
        max_iter=12, tol=0.0, threads=1,
    )
    return side_by_side(
        curve(attracted.free_energies, '"concave", model of refine'),
        curve(repelled.free_energies, '"parallel", repulsive Potts(-10)'),
    )


def curve(values: Sequence[float] | NDArray[np.float64], title: str) -> Image.Image:
    thousands = np.asarray(values) / 1000
    return line_plot(thousands, title, "iteration", "free energy / 1000", (640, 340))


def main() -> None:
    for draw in (inputs, listeners, spatial, bilateral, weights, iterations, algorithms):
        path = IMAGES / f"kernels_{draw.__name__}.jpg"
        picture = draw()
        picture.save(path, quality=88, optimize=True)
        print(f"{path.name}: {picture.size}, {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main()
