"""What the fault tests share: inputs with known results, and what counts as a finding."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from crfield import Bilateral, DenseCRF, Pairwise, Potts, Spatial
from crfield.cli import main
from crfield.datasets import synthetic_scenes
from crfield.io.manifest import MANIFEST
from crfield.patterns import PatternCRF, PatternInputs, Patterns, learn_patterns
from tests.faults.processes import Ended, run_child

N_LABELS = 3
SIZE = (10, 12)
N_PHOTOS = 3
CHECKPOINT = ".checkpoint"
# In memory where possible: thousands of files are brought safely to the disk.
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@dataclass
class Findings:
    """What one try brought to light; `seen` is what the user was told."""

    lost: list[str] = field(default_factory=list)
    corrupted: list[str] = field(default_factory=list)
    unclear: list[str] = field(default_factory=list)
    seen: str = ""

    def __bool__(self) -> bool:
        return bool(self.lost or self.corrupted or self.unclear)


@dataclass(frozen=True)
class Kind:
    """A kind of fault: how it is provoked, a function that tries it once in an empty folder and
    adds to the findings, and what the user sees where nothing is printed.
    """

    name: str
    how: str
    attempt: Callable[[World, np.random.Generator, Path, Findings], None]
    seen: str = ""


KINDS: list[Kind] = []


def fault(name: str, how: str, seen: str = "") -> Callable[[Any], Any]:
    """Enter a function into the list of kinds."""

    def enter(attempt: Any) -> Any:
        KINDS.append(Kind(name, how, attempt, seen))
        return attempt

    return enter


class World:
    """Files to work on, and what comes of them if nothing goes wrong.

    may_mount : whether small file systems may be mounted, as the administrator, to fill them.
    """

    def __init__(self, root: Path, may_mount: bool = False) -> None:
        self.root = root.resolve()
        self.may_mount = may_mount and os.geteuid() == 0
        self.root.chmod(0o755)  # another user reads here
        self.data = write_dataset(self.root / "data", seed=1)
        self.start = self.root / "start.safetensors"
        self.model = DenseCRF(
            N_LABELS, [Pairwise(Spatial(2), Potts(1)), Pairwise(Bilateral(3, 20), Potts(1))]
        )
        self.model.save(self.start)
        self.photos, self.masks = self.root / "photos", self.root / "masks"
        write_photos(self.photos, self.masks)
        whole = self.root / "whole"
        whole.mkdir()
        with contextlib.redirect_stdout(io.StringIO()):  # imports what its children then have
            assert main(self.learn(whole / "model")) == main(self.refine(whole)) == 0
        ended = run_child(lambda: main(self.learn(whole / "model", "--overwrite")))
        assert ended.code == 0, ended.err
        self.learned, self.checkpoint = (
            (whole / name).read_bytes() for name in ("model", f"model{CHECKPOINT}")
        )
        ended = run_child(lambda: main(self.refine(whole, "--overwrite")))
        assert ended.code == 0, ended.err
        self.refined = {path.name: path.read_bytes() for path in whole.glob("scene-*")}
        self.inputs, self.truth, self.patterns = pattern_problem()
        self.pattern_bytes = self.learn_shapes(None)

    def learn(self, output: Path, *more: str, data: Path | None = None) -> list[str]:
        """Arguments of a short `crfield learn`."""
        return ["learn", str(data or self.data), "--split", "train", "--start", str(self.start),
                "--learn", "compatibility", "--optimizer", "adam", "--max-iter", "3", "--tol", "0",
                "--inference-max-iter", "2", "--jobs", "1", "--quiet", "-o", str(output), *more]

    def refine(self, folder: Path, *more: str) -> list[str]:
        """Arguments of `crfield refine` on a folder, with everything that it can write."""
        return ["refine", str(self.photos), "--labels", str(self.masks), "-o", str(folder),
                "--threads", "1", "--overlay", "--marginals", *more]

    def learn_shapes(self, checkpoint: Path | None) -> bytes:
        """Numbers that learning patterns ends with."""
        result = learn_patterns(
            self.patterns, self.inputs, self.truth, n_epochs=4, batch_size=2, seed=3,
            checkpoint=checkpoint, threads=1,
        )
        parts = (result.model.patterns.weights, result.model.patterns.bias, result.losses)
        return b"".join(np.ascontiguousarray(part).tobytes() for part in parts)

    def check_learned(self, found: Findings, model: Path, may_restart: bool = False) -> None:
        """Resume a run whose model is whole; it must end like one that was never disturbed.

        may_restart : whether the checkpoint may turn out to be of other data, and is started over.
        """
        check_model(found, model)
        ended = run_child(lambda: main(self.learn(model, "--resume")))
        if may_restart and ended.code == 2 and "belongs to another run" in ended.err:
            ended = run_child(lambda: main(self.learn(model, "--overwrite")))
        check_told(found, ended, (0,))
        if not model.exists() or model.read_bytes() != self.learned:
            found.lost.append(f"a resumed run ended with another model: {ended.err}")
        if model.with_name(model.name + CHECKPOINT).read_bytes() != self.checkpoint:
            found.lost.append("a resumed run ended with another checkpoint")

    def check_refined(self, found: Findings, folder: Path, all_there: bool) -> None:
        """Every result that has its name is the whole one."""
        for name, expected in self.refined.items():
            path = folder / name
            if path.exists() and path.read_bytes() != expected:
                found.corrupted.append(f"{name} is not what it should be")
            if all_there and not path.exists():
                found.lost.append(f"{name} is missing")

    def check_refined_again(self, found: Findings, folder: Path) -> None:
        """Results are whole; refined once more, undisturbed, every one is there."""
        self.check_refined(found, folder, all_there=False)
        check_told(found, run_child(lambda: main(self.refine(folder))), (0,))
        self.check_refined(found, folder, all_there=True)


def write_dataset(root: Path, seed: int) -> Path:
    """Two scenes with probabilities, as `FolderDataset` reads them."""
    for folder in ("images", "labels", "unaries"):
        (root / folder).mkdir(parents=True)
    names = []
    for scene in synthetic_scenes(2, size=SIZE, n_labels=N_LABELS, seed=seed):
        Image.fromarray(scene.image).save(root / "images" / f"{scene.name}.png")
        Image.fromarray(scene.mask).save(root / "labels" / f"{scene.name}.png")
        np.save(root / "unaries" / f"{scene.name}.npy", scene.probabilities)
        names.append(scene.name)
    (root / "train.txt").write_text("\n".join(names) + "\n")
    (root / "dataset.json").write_text(json.dumps({"n_labels": N_LABELS}))
    return root


def write_photos(photos: Path, masks: Path) -> None:
    """Images and label maps for `crfield refine`."""
    photos.mkdir()
    masks.mkdir()
    for scene in synthetic_scenes(N_PHOTOS, size=(24, 30), n_labels=N_LABELS, seed=2):
        Image.fromarray(scene.image).save(photos / f"{scene.name}.png")
        labels = np.asarray(scene.probabilities.argmax(-1), np.uint8)
        Image.fromarray(labels).save(masks / f"{scene.name}.png")


def pattern_problem() -> tuple[PatternInputs, Any, PatternCRF]:
    """Four small masks with noisy costs, and a model to learn."""
    rng = np.random.default_rng(0)
    truth = (rng.random((4, 5, 6)) < 0.5).astype(np.uint8)
    costs = np.stack([truth, 1 - truth], -1) + rng.normal(0, 0.5, (4, 5, 6, 2))
    patterns = Patterns(rng.normal(0, 0.1, (30, 3)).astype(np.float32), np.zeros(3, np.float32))
    return PatternInputs(costs.astype(np.float32)), truth, PatternCRF(patterns, grid=(5, 6))


def check_told(found: Findings, ended: Ended, codes: Sequence[int]) -> None:
    """Whether a process ended with one of the codes, and failed with a sentence of its own."""
    found.seen = found.seen or ended.told
    if ended.code not in codes:
        found.unclear.append(f"exit status {ended.code}: {ended.err[-2000:]}")
    elif "Traceback" in ended.err or "Exception ignored" in ended.err:
        found.unclear.append(ended.err[-2000:])
    elif ended.code > 0 and not re.search("crfield: .", ended.err):
        found.unclear.append(f"exit status {ended.code} without a word: {ended.err!r}")


def check_model(found: Findings, path: Path, known: Sequence[bytes] | None = None) -> None:
    """A model that has its name is whole, and if others are known one of them."""
    if not path.exists():
        return
    try:
        DenseCRF.load(path)
    except Exception as error:
        found.corrupted.append(f"{path.name} cannot be loaded: {error}")
    if known is not None and path.read_bytes() not in known:
        found.corrupted.append(f"{path.name} is neither the old nor the new one")


def check_no_litter(found: Findings, folder: Path) -> None:
    """Nothing unfinished is left in the folder."""
    litter = [path.name for path in folder.glob(".*") if path.is_file() and path.name != MANIFEST]
    if litter:
        found.unclear.append(f"left behind: {litter}")


def fresh(folder: Path) -> Path:
    """An empty folder of that name."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder
