"""Tables 1 and 2 of CHOPP on horses and birds at 32 x 32: unary, pairwise terms, patterns.

Everything is fixed in advance: 256 hidden units, RBMs pre-trained by `pretrain` as it comes on 12
versions of every training image, trade-offs that are best on the training images, joint learning
with the IoU loss for 60 epochs of which the validation images (a quarter of the training set)
choose one. Each study, one data set and one seed, is kept as JSON with its settings and the commit,
so that a run that was stopped goes on where it was; a study of others is refused.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.atomic import atomic_path
from crfield.patterns import (
    ConvolutionalPatterns,
    PatternCRF,
    PatternInputs,
    choose_tradeoffs,
    infer,
    learn_patterns,
    mask_scores,
    pretrain,
)
from experiments.common import RESULTS, markdown_table, parse_data_folder, provenance, report
from experiments.pattern_data import (
    CACHE,
    SOURCES,
    Part,
    PatternData,
    cache_path,
    load,
    prepare,
    save,
)

SEEDS = (0, 1, 2)
N_HIDDEN, N_CLUSTERS = 256, 64
N_EPOCHS, CD_EPOCHS = 60, 20
WINDOW, WINDOW_STRIDE, N_WINDOWS = 8, 4, 32


@dataclass(frozen=True)
class Setting:
    """A data set as the classifiers see it; a short study has the first rows, of one seed."""

    source: str
    gray: bool = False
    side: int = 32
    n_hidden: int = N_HIDDEN
    short: bool = False


STUDIES = {
    "horses_gray": Setting("horses", gray=True), "horses": Setting("horses"),
    "birds": Setting("birds"),
    "horses_gray_64": Setting("horses", gray=True, side=64, n_hidden=512, short=True),
}
PAPER = {
    "horses": {"unary": 51.2, "iPW": 57.4, "iPW+RBM": 67.2, "iPW+jRBM": 69.9},
    "birds": {
        "unary": 50.6, "PW": 53.2, "iPW": 55.9, "iPW+RBM": 56.5, "iPW+jRBM": 57.7,
        "iPW+ijRBM": 58.6,
    },
}
ROWS = (
    "unary", "PW", "iPW", "iPW+RBM", "iPW+jRBM", "iPW+ijRBM", "iPW+RBM, CD", "iPW+min",
    "iPW+jmin", "iPW+jconv",
)


@dataclass(frozen=True)
class Split:
    """Images of one part of the data with their masks."""

    inputs: PatternInputs
    masks: NDArray[np.uint8]

    def constant_only(self) -> Split:
        """The same without the types of pairwise terms that look at the image."""
        assert self.inputs.pairwise is not None
        return Split(replace(self.inputs, pairwise=self.inputs.pairwise[:, :1]), self.masks)

    def scores(self, model: PatternCRF) -> NDArray[np.float64]:
        """IoU of each image's MAP labels."""
        return mask_scores(infer(model, self.inputs).labels, self.masks)

    def pooled(self, model: PatternCRF) -> float:
        """IoU over all pixels of the MAP labels."""
        labels = infer(model, self.inputs).labels.astype(bool)
        truth = self.masks.astype(bool)
        return float((labels & truth).sum() / (labels | truth).sum())


def make_split(part: Part, scale: tuple[NDArray[Any], NDArray[Any]]) -> Split:
    """Costs, the three types of pairwise terms and phi(x), standardized."""
    mean, deviation = scale
    phi = (part.phi - mean) / (deviation * np.sqrt(part.phi.shape[1]))  # squares sum to about 1
    inputs = PatternInputs.from_images(
        part.costs, part.images, kinds=("constant", "contrast", "boundary"),
        boundary=part.boundary, features=phi.astype(np.float32),
    )
    return Split(inputs, part.masks)


class Study:
    """All rows of the tables for one data set and seed."""

    def __init__(self, data: PatternData, setting: Setting, seed: int) -> None:
        phi = data.train.phi
        scale = phi.mean(0), phi.std(0) + 1e-3
        self.augmented = make_split(data.augmented, scale)
        self.parts = {
            "train": make_split(data.train, scale),
            "validation": make_split(data.validation, scale),
            "test": make_split(data.test, scale),
        }
        self.setting, self.seed = setting, seed
        self.grid, self.n_features = data.train.masks.shape[1:], phi.shape[1]
        self.rows: dict[str, dict[str, Any]] = {}

    def run(self) -> dict[str, dict[str, Any]]:
        """Every row, in the order of the tables."""
        self._add("unary", lambda: self._base([0.0, 0.0, 0.0]))
        constant = {name: part.constant_only() for name, part in self.parts.items()}
        self._add("PW", lambda: self._choose(self._base([1.0]), constant["train"]), constant)
        pairwise = self._add("iPW", lambda: self._choose(self._base([1.0, 1.0, 1.0])))
        masks = self.augmented.masks
        rbm = pretrain(masks, self.setting.n_hidden, seed=self.seed)
        start = self._add("iPW+RBM", lambda: self._choose(rbm.add_to(pairwise)))
        self._add("iPW+jRBM", lambda: self._learn(start))
        if self.setting.short:
            return self.rows
        self._add("iPW+ijRBM", lambda: self._learn(start.with_image_weights(self.n_features)))
        self._add("iPW+RBM, CD", lambda: self._learn(
            start, objective="contrastive_divergence", n_epochs=CD_EPOCHS
        ))
        clusters = pretrain(masks, N_CLUSTERS, composition="min", seed=self.seed)
        start = self._add("iPW+min", lambda: self._choose(clusters.add_to(pairwise)))
        self._add("iPW+jmin", lambda: self._learn(start))
        self._add("iPW+jconv", lambda: self._learn(self._windows(pairwise)))
        return self.rows

    def _base(self, weights: list[float]) -> PatternCRF:
        return PatternCRF(None, pairwise_weights=weights, grid=self.grid)

    def _choose(self, model: PatternCRF, train: Split | None = None) -> PatternCRF:
        train = train or self.parts["train"]
        return choose_tradeoffs(model, train.inputs, train.masks).model

    def _learn(
        self, model: PatternCRF, *, objective: str = "expected_loss", n_epochs: int = N_EPOCHS
    ) -> PatternCRF:
        validation = self.parts["validation"]
        found = learn_patterns(
            model, self.augmented.inputs, self.augmented.masks,
            validation=(validation.inputs, validation.masks), objective=objective,
            n_epochs=n_epochs, seed=self.seed,
        )
        self._epochs = found.best_epoch
        return found.model

    def _windows(self, pairwise: PatternCRF) -> PatternCRF:
        """Small random windows, first learned by contrastive divergence."""
        rng = np.random.default_rng(self.seed)
        windows = 0.1 * rng.normal(size=(WINDOW, WINDOW, N_WINDOWS)).astype(np.float32)
        bias = np.zeros(N_WINDOWS, np.float32)
        patterns = ConvolutionalPatterns(windows, bias, self.grid, stride=WINDOW_STRIDE)
        start = replace(pairwise, patterns=patterns, visible_bias=0.0)
        return self._learn(start, objective="contrastive_divergence", n_epochs=CD_EPOCHS)

    def _add(
        self, name: str, make: Callable[[], PatternCRF], parts: dict[str, Split] | None = None
    ) -> PatternCRF:
        parts = parts or self.parts
        self._epochs = 0
        began = time.monotonic()
        model = make()
        seconds = time.monotonic() - began
        self.rows[name] = {
            **{title: 100 * float(part.scores(model).mean()) for title, part in parts.items()},
            "test_pooled": 100 * parts["test"].pooled(model),
            "unary_weight": model.unary_weight, "pairwise_weights": model.pairwise_weights.tolist(),
            "epochs": self._epochs, "seconds": seconds,
        }
        row = self.rows[name]
        print(f"{name:12} test {row['test']:.2f} validation {row['validation']:.2f} "
              f"epochs {self._epochs} {seconds:.0f} s", flush=True)
        return model


def study_path(name: str, seed: int, cache: Path) -> Path:
    """Where a study is kept."""
    return cache / f"pattern_tables_{name}_{seed}.json"


def settings_of(name: str, seed: int) -> dict[str, Any]:
    """All that the numbers of a study follow from, besides the data and the code."""
    return {
        **asdict(STUDIES[name]), "seed": seed, "n_clusters": N_CLUSTERS, "n_epochs": N_EPOCHS,
        "cd_epochs": CD_EPOCHS, "window": WINDOW, "window_stride": WINDOW_STRIDE,
        "n_windows": N_WINDOWS,
    }


def read_study(path: Path, settings: dict[str, Any], commit: str | None) -> dict[str, Any]:
    """A study as it was kept, of these settings and, unless None, of this commit."""
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if found.get("settings") != settings:
        raise SystemExit(
            f"{path} must be of the settings {settings}, got {found.get('settings')}; "
            "delete it to make the study anew."
        )
    if commit is not None and found.get("commit") != commit:
        raise SystemExit(
            f"{path} must be of commit {commit!r}, got {found.get('commit')!r}; delete it to make "
            "the study anew, or pass --any-commit."
        )
    return found


def find_study(
    name: str, seed: int, data_folder: Path, cache: Path, any_commit: bool = False
) -> dict[str, Any]:
    """A study as it was kept, or made now: its settings, commit and rows."""
    path = study_path(name, seed, cache)
    settings, commit = settings_of(name, seed), provenance().get("commit", "")
    if path.is_file():
        return read_study(path, settings, None if any_commit else commit)
    setting = STUDIES[name]
    source, gray, side = SOURCES[setting.source], setting.gray, setting.side
    kept = cache_path(setting.source, seed, cache, gray, side)
    if not kept.is_file():
        save(prepare(data_folder / source.folder, source, seed, gray=gray, side=side), kept)
    print(f"{name}, seed {seed}", flush=True)
    data = load(setting.source, seed, cache, gray=gray, side=side)
    study = {"settings": settings, "commit": commit, "rows": Study(data, setting, seed).run()}
    with atomic_path(path) as temporary:
        temporary.write_text(json.dumps(study, indent=1) + "\n", encoding="utf-8")
    return study


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--studies", nargs="+", choices=tuple(STUDIES), default=list(STUDIES))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(SEEDS))
    parser.add_argument("--cache", type=Path, default=CACHE, metavar="DIR", help="where to keep it")
    parser.add_argument(
        "--any-commit", action="store_true", help="take kept studies of other commits too"
    )
    arguments = parse_data_folder(parser)
    found = {
        name: [
            find_study(name, seed, arguments.data, arguments.cache, arguments.any_commit)
            for seed in arguments.seeds[: 1 if STUDIES[name].short else None]
        ]
        for name in arguments.studies
    }
    tables = [_table(name, [each["rows"] for each in found[name]]) for name in found]
    if set(found) != set(STUDIES) or tuple(arguments.seeds) != SEEDS:
        print("\n\n".join([*tables, "Only some of the studies: no report is written."]))
        return
    commits = sorted({each["commit"] for studies in found.values() for each in studies})
    report(
        "Patterns on horses and birds", [_introduction(), *tables],
        provenance() | {"commits of the studies": ", ".join(commits)},
    )
    (RESULTS / "pattern_tables.json").write_text(json.dumps(found, indent=1) + "\n")


def _introduction() -> str:
    return (
        "Test IoU of the object in percent, mean over the images (and over all pixels at once), "
        "mean and standard deviation over seeds of network, augmentation, pre-training and "
        "sampling. The paper does not say which of both it reports. Splits: horses 150 to learn "
        "from, 50 for validation, 128 to test; birds 263, 87, 150. The unary is a network of 64 "
        "hidden units on 107 filter responses without position; boundaries come from a logistic "
        "detector on oriented gradients instead of Pb. For `horses_gray` the network and the "
        "detector see no colors, which brings the unary near the paper's. The birds are those of "
        "CUB, not of PASCAL VOC; there are no data for persons. "
        f"RBMs have {N_HIDDEN} hidden units (512 at 64 x 64), `min` has {N_CLUSTERS} clusters, "
        f"`jconv` has {N_WINDOWS} windows of {WINDOW} x {WINDOW} at every {WINDOW_STRIDE}th pixel, "
        f"learned by {CD_EPOCHS} epochs of contrastive divergence and then by expected loss. `CD` "
        "is conditional contrastive divergence in place of the expected loss. What `pretrain` does "
        "by default was chosen on the validation images of the horses."
    )


def _table(name: str, studies: list[dict[str, Any]]) -> str:
    setting = STUDIES[name]
    paper = PAPER[setting.source] if setting.side == 32 else {}

    def cell(row: str, key: str) -> str:
        values = [study[row][key] for study in studies]
        spread = f" ± {np.std(values, ddof=1):.1f}" if len(values) > 1 else ""
        return f"{np.mean(values):.1f}{spread}"

    rows = [
        [
            row, cell(row, "test"), cell(row, "test_pooled"), cell(row, "validation"),
            cell(row, "train"), f"{paper[row]:.1f}" if row in paper else "",
        ]
        for row in ROWS if all(row in study for study in studies)
    ]
    header = ["", "test", "all pixels", "validation", "train", "paper"]
    runs = "1 seed" if len(studies) == 1 else f"{len(studies)} seeds"
    return f"## {name}, {runs}\n\n{markdown_table(header, rows)}"


if __name__ == "__main__":
    main()
