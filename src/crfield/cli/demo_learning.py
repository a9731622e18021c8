"""The learning part of `crfield demo`: customary against learned parameters.

Nothing here needs SciPy or joblib, so that a plain installation can run it.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

import crfield
from crfield import datasets
from crfield.cli.demo_cases import (
    INPUT_TITLES,
    PANEL_WIDTH,
    Case,
    Labels,
    comparison,
    customary_model,
    refine_scene,
)
from crfield.cli.tables import columns
from crfield.cli.words import say
from crfield.dense.compatibility import Potts
from crfield.dense.kernels import Bilateral, Spatial
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF
from crfield.dense.observation import observe
from crfield.io.arrays import write_array
from crfield.learning import Learned, LearningReport, learn
from crfield.metrics import confusion_matrix, mean_iou
from crfield.show import pictures

NOTE = """\
Held out: nothing was learned from these images. The scenes come from the same generator as those
learned from, with another seed; the photos are of another kind altogether, where refine()'s own
constants, chosen on real images, have the advantage. `crfield learn` learns from your own data."""
N_LABELS = 5
N_LEARNED, LEARNED_SEED = 6, 1
N_HELD_OUT, HELD_OUT_SEED = 12, 0
EPOCHS = 15
# As many iterations as `crfield refine` does: their number is part of a learned model.
INFERENCE = Inference(max_iter=10)
MODEL, IMAGE, PROBABILITIES = "learned.safetensors", "held-out.png", "held-out.npy"


def run(folder: Path, photos: Sequence[Case]) -> dict[str, Image.Image]:
    """Learn, print what came of it, save the model; the pictures by name."""
    start = customary_model(N_LABELS)
    learned = learn_from_scenes(start)
    print(f"Customary -> learned:\n{describe_change(start, learned.model)}\n")
    scenes = [
        refine_scene(scene)
        for scene in datasets.synthetic_scenes(N_HELD_OUT, n_labels=N_LABELS, seed=HELD_OUT_SEED)
    ]
    print(score_table(scenes, photos, learned.model))
    print(f"\n{NOTE}")
    image, probabilities, model = (folder / name for name in (IMAGE, PROBABILITIES, MODEL))
    learned.model.save(model)
    write_array(probabilities, scenes[0].given)
    command = ["refine", image, "--probabilities", probabilities, "--model", model]
    print()
    say(f"The learned model is {model}. To use it on one of these scenes:")
    print()
    say(f"  crfield {shlex.join(map(str, [*command, '--side-by-side']))}")
    print()
    return {
        IMAGE: Image.fromarray(scenes[0].sample.image),
        "learning.png": overview([*photos, *scenes[:2]], learned.model),
        "learning-curve.png": pictures.line_plot(
            [100 * value for value in learned.report.mean_ious],
            title=f"Learning from {N_LEARNED} scenes", xlabel="epoch", ylabel="mean IoU %",
        ),
        "learning-kernel.png": reach(datasets.load_sample("camera"), start, learned.model),
    }


def learn_from_scenes(start: DenseCRF) -> Learned:
    """Two Potts weights and three widths, by the gradient of the relaxed IoU."""
    scenes = datasets.synthetic_scenes(N_LEARNED, n_labels=N_LABELS, seed=LEARNED_SEED)
    examples = [
        datasets.Example(
            name=scene.name, image=scene.image, truth=scene.mask,
            unary=crfield.unary_from_probabilities(scene.probabilities),
        )
        for scene in scenes
    ]
    print(f"\nLearning weights and widths from {N_LEARNED} scenes, from the customary ones on:")

    def tell(epoch: int, report: LearningReport) -> None:
        if epoch % 5 == 0 or epoch == EPOCHS:
            print(
                f"  epoch {epoch:2d}/{EPOCHS}  loss {report.losses[-1]:.4f}  "
                f"mean IoU {report.mean_ious[-1]:.3f}", flush=True,
            )

    return learn(
        start, examples, learn=("compatibility", "kernel"), loss="iou", optimizer="adam",
        inference=INFERENCE, max_iter=EPOCHS, tol=0.0, batch_size=3, callback=tell,
    )


def describe_change(start: DenseCRF, model: DenseCRF) -> str:
    """Every learned number, before and after, a line for each term."""
    lines = []
    for old, new in zip(start.terms, model.terms, strict=True):
        assert isinstance(old.compatibility, Potts)
        assert isinstance(new.compatibility, Potts)
        if isinstance(old.kernel, Bilateral) and isinstance(new.kernel, Bilateral):
            widths = f"bilateral {old.kernel.sigma_xy:.3g} px -> {new.kernel.sigma_xy:.3g} px"
            widths += f" and color {old.kernel.sigma_color:.3g} -> {new.kernel.sigma_color:.3g}"
        else:
            assert isinstance(old.kernel, Spatial)
            assert isinstance(new.kernel, Spatial)
            widths = f"spatial {old.kernel.sigma:.3g} px -> {new.kernel.sigma:.3g} px"
        weights = f"weight {old.compatibility.weight:.3g} -> {new.compatibility.weight:.3g}"
        lines.append(f"  {widths}, {weights}")
    return "\n".join(lines)


def score_table(scenes: Sequence[Case], photos: Sequence[Case], model: DenseCRF) -> str:
    """Mean IoU of the scenes together and of each photo, before and after."""
    groups = {f"{len(scenes)} other scenes": scenes}
    groups.update({case.sample.name: [case] for case in photos})
    rows = []
    for name, cases in groups.items():
        maps = [[case.before, case.customary, case.result.labels, apply(model, case)]
                for case in cases]
        scores = [mean_iou_of(cases, found) for found in zip(*maps, strict=True)]
        rows.append([name, *(f"{score:.3f}" for score in scores)])
    return columns(["held out", "input", "customary", "refine()", "learned"], rows, 1)


def mean_iou_of(cases: Sequence[Case], found: Sequence[Labels]) -> float:
    """Mean intersection over union, counted over all cases together."""
    return mean_iou(sum(
        confusion_matrix(case.sample.mask, labels, case.sample.n_labels)
        for case, labels in zip(cases, found, strict=True)
    ))


def apply(model: DenseCRF, case: Case) -> Labels:
    """The labels that the model gives; Potts terms fit any number of labels."""
    fitting = DenseCRF(case.sample.n_labels, model.terms)
    return crfield.refine(case.sample.image, case.given, model=fitting).labels


def overview(cases: Sequence[Case], model: DenseCRF) -> Image.Image:
    """Input, customary, learned and truth, a row for each case."""
    rows = []
    for index, case in enumerate(cases):
        panels: dict[str, Labels | None] = {
            INPUT_TITLES[case.input_name]: case.before, "customary": case.customary,
            "learned": apply(model, case), "truth": case.sample.mask,
        }
        rows.append(comparison(case, panels, PANEL_WIDTH, titled=index == 0))
    return pictures.stack(*rows)


def reach(sample: datasets.Sample, *models: DenseCRF) -> Image.Image:
    """How strongly the bilateral term of each model ties all pixels to one inside an object."""
    inside = np.argwhere(sample.mask == 1)
    row, column = inside[len(inside) // 2]
    marked = Image.fromarray(sample.image)
    around = (column - 7, row - 7, column + 7, row + 7)
    ImageDraw.Draw(marked).ellipse(around, outline="white", width=3)
    panels = [marked]
    for model in models:
        scaled = model.terms[1].kernel.scaled_features(observe(sample.mask.shape, sample.image))
        f = scaled.reshape(*sample.mask.shape, -1)
        strength = np.exp(-0.5 * np.square(f - f[row, column]).sum(axis=-1))
        panels.append(Image.fromarray(np.rint(255 * strength).astype(np.uint8)))
    return pictures.side_by_side(*panels, titles=("a pixel", "customary reach", "learned reach"))
