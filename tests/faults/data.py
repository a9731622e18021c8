"""Faults of files: checkpoints, models, images and data sets damaged or exchanged."""

import os
import shutil
import signal
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image

from crfield import DenseCRF, Pairwise, Spatial, Symmetric
from crfield.cli import main
from crfield.io.images import read_image, read_labels, read_probabilities, write_labels
from tests.faults.kills import point
from tests.faults.processes import at_call, count_calls, run_child, told
from tests.faults.world import (
    CHECKPOINT,
    Findings,
    World,
    check_no_litter,
    check_told,
    fault,
    write_dataset,
)
from tests.fuzz import mutations
from tests.fuzz.values import Maker

Rng = np.random.Generator


def damaged(content: bytes, rng: Rng, other: bytes = b"") -> bytes:
    """The content with one to three things wrong."""
    return mutations.damaged(Maker([int(rng.integers(2**31))], hostile=True), content, other)


@cache
def other_data(world: World) -> Path:
    """Another data set, with its own learned model and checkpoint beside it."""
    data = write_dataset(world.root / "other", seed=5)
    ended = run_child(lambda: main(world.learn(data / "model", data=data)))
    assert ended.code == 0, ended.err
    return data


@fault("damaged checkpoint of learning", "the checkpoint of a run cut, emptied, with bits turned "
       "over, parts doubled or dropped, or taken from another data set; then `--resume`")
def damaged_checkpoint_of_learning(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    model = folder / "model"
    checkpoint = folder / f"model{CHECKPOINT}"
    foreign = (other_data(world) / f"model{CHECKPOINT}").read_bytes()
    content = foreign if rng.random() < 0.2 else damaged(world.checkpoint, rng, foreign)
    checkpoint.write_bytes(content)
    ended = run_child(lambda: main(world.learn(model, "--resume")))
    check_told(found, ended, (0, 2))
    if ended.code == 2:
        if checkpoint.read_bytes() != content:
            found.lost.append("a checkpoint that was refused changed")
        checkpoint.unlink()
        check_told(found, run_child(lambda: main(world.learn(model, "--overwrite"))), (0,))
    world.check_learned(found, model)


@fault("damaged checkpoint of patterns", "the checkpoint of `learn_patterns` damaged in the same "
       "ways; then the same call")
def damaged_checkpoint_of_patterns(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    path = folder / "checkpoint"
    world.learn_shapes(path)
    content = damaged(path.read_bytes(), rng, world.start.read_bytes())
    path.write_bytes(content)

    def go_on() -> int:
        if world.learn_shapes(path) != world.pattern_bytes:
            print("another result")
        return 0

    ended = run_child(lambda: told(go_on))
    check_told(found, ended, (0, 2))
    if "another result" in ended.out:
        found.corrupted.append("a damaged checkpoint was gone on from")
    if ended.code == 2 and path.read_bytes() != content:
        found.lost.append("a checkpoint that was refused changed")


@fault("damaged model", "the file of a model damaged in the same ways; then `refine --model`")
def damaged_model(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    path = folder / "given.safetensors"
    path.write_bytes(damaged(world.learned, rng, world.start.read_bytes()))
    whole = folder / "whole.safetensors"
    whole.write_bytes(world.learned)
    results = [folder / f"{name}.png" for name in ("damaged", "expected")]
    name = next(iter(sorted(path.stem for path in world.photos.iterdir())))
    codes = []
    for model, result in zip((path, whole), results, strict=True):
        command = ["refine", str(world.photos / f"{name}.png"), "--labels",
                   str(world.masks / f"{name}.png"), "--model", str(model), "--scale", "1",
                   "-o", str(result)]
        ended = run_child(lambda command=command: main(command))  # type: ignore[misc]
        check_told(found, ended, (0, 2))
        codes.append(ended.code)
    if codes[0] == 0 and results[0].read_bytes() != results[1].read_bytes():
        found.corrupted.append("a damaged model was taken for a whole one")
    if codes[0] == 2 and results[0].exists():
        found.corrupted.append("labels of a model that was refused")


@fault("data changed between runs", "an image, a label map or unaries change after a run was "
       "killed; then `--resume`")
def changed_between(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    model, data = folder / "model", folder / "data"
    shutil.copytree(world.data, data)
    kill = at_call(point(world, "learn", rng), lambda: os._exit(3))
    run_child(lambda: main(world.learn(model, data=data)), kill)
    kind = str(rng.choice(["images", "labels", "unaries"]))
    target = sorted((data / kind).iterdir())[int(rng.integers(2))]
    other = sorted((other_data(world) / kind).iterdir())[0]
    shutil.copy(other, target)
    ended = run_child(lambda: main(world.learn(model, "--resume", data=data)))
    check_told(found, ended, (0, 2))
    fresh = folder / "fresh"
    check_told(found, run_child(lambda: main(world.learn(fresh, data=data))), (0,))
    if ended.code == 0 and model.read_bytes() != fresh.read_bytes():
        found.corrupted.append(f"results of old and new {kind} were mixed")


@fault("data vanish or break during the run", "an image, a label map, unaries or the data set's "
       "folder is removed, cut or damaged at a random call within `crfield learn`; then restored, "
       "and `--resume`")
def broken_meanwhile(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    model, data = folder / "model", folder / "data"
    shutil.copytree(world.data, data)
    kind = str(rng.choice(["images", "labels", "unaries", "all"]))
    target = data if kind == "all" else sorted((data / kind).iterdir())[int(rng.integers(2))]
    way = str(rng.choice(["remove", "cut", "damage"]))

    def spoil() -> None:
        if kind == "all":
            shutil.rmtree(data)
        elif way == "remove":
            target.unlink()
        elif way == "cut":
            os.truncate(target, int(rng.integers(0, target.stat().st_size)))
        else:
            target.write_bytes(damaged(target.read_bytes(), rng, world.learned))

    # Everything is read at the beginning, in the first few thousand calls.
    when = int(rng.integers(1, 40_000)) if rng.random() < 0.7 else point(world, "learn", rng)
    ended = run_child(lambda: main(world.learn(model, data=data)), at_call(when, spoil))
    check_told(found, ended, (0, 2))
    check_no_litter(found, folder)
    shutil.rmtree(data, ignore_errors=True)
    world.check_learned(found, model, may_restart=True)


@fault("damaged images in a folder", "an image or a label map of several is damaged, and all are "
       "refined")
def damaged_image(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    photos, masks, results = (folder / name for name in ("photos", "masks", "results"))
    shutil.copytree(world.photos, photos)
    shutil.copytree(world.masks, masks)
    victim = sorted((photos if rng.random() < 0.5 else masks).iterdir())[int(rng.integers(3))]
    victim.write_bytes(damaged(victim.read_bytes(), rng, world.start.read_bytes()))
    command = ["refine", str(photos), "--labels", str(masks), "-o", str(results), "--threads", "1"]
    check_told(found, run_child(lambda: main(command)), (0, 1))
    check_no_litter(found, results)
    for name, expected in world.refined.items():
        if name.count("_") == 0 and not name.startswith(victim.stem):
            path = results / name
            if not path.exists() or path.read_bytes() != expected:
                found.lost.append(f"{name}, whose files are whole, is not there")


@fault("a file cut short while it is read", "a model, a picture (raw or packed), a volume or an "
       "array is cut at a random call of its reader")
def cut_while_read(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    pixels = rng.integers(0, 255, (300, 400), dtype=np.uint8)
    name = str(rng.choice(["model", "a.bmp", "a.ppm", "a.tif", "packed.tif", "a.npy", "a.nii"]))
    path = folder / name
    if name == "model":  # of more than a page of memory
        DenseCRF(100, [Pairwise(Spatial(2), Symmetric(1 - np.eye(100)))]).save(path)
    elif name == "a.npy":
        np.save(path, np.full((300, 400, 2), 0.5))
    elif name == "a.nii":
        write_labels(path, pixels[None])
    else:
        options = {"compression": "tiff_lzw"} if name == "packed.tif" else {}
        Image.fromarray(pixels).save(path, **options)
    reader = {"model": DenseCRF.load, "a.npy": read_probabilities, "a.nii": read_labels}
    read = reader.get(name, read_image)
    size = int(rng.integers(0, path.stat().st_size // 2))
    last = count_calls(lambda: read(path))
    cut = at_call(int(rng.integers(1, last)), lambda: os.truncate(path, size))
    check_told(found, run_child(lambda: told(lambda: int(read(path) is None)), cut), (0, 2))


@fault("pipes and devices in the place of files", "an image, a label map, a model, a description "
       "or a split is a pipe without a writer, or a link to /dev/zero")
def no_regular_file(world: World, rng: Rng, folder: Path, found: Findings) -> None:
    photos, masks = folder / "photos", folder / "masks"
    data, model = folder / "data", folder / "given"
    shutil.copytree(world.photos, photos)
    shutil.copytree(world.masks, masks)
    shutil.copytree(world.data, data)
    model.write_bytes(world.learned)
    name = sorted(photos.iterdir())[0].name
    split = sorted(data.glob("*.txt"))[-1]
    victims = (photos / name, masks / name, model, data / "dataset.json", split)
    victim = victims[int(rng.integers(len(victims)))]
    victim.unlink(missing_ok=True)
    if rng.random() < 0.5:
        os.mkfifo(victim)
    else:
        victim.symlink_to("/dev/zero")
    command = ["refine", str(photos / name), "--labels", str(masks / name), "--model", str(model),
               "-o", str(folder / "out.png")]
    if data in victim.parents:
        command = world.learn(folder / "model", data=data)
    # Whoever waits for the pipe is ended, and found.
    ended = run_child(lambda: main(command), lambda: signal.alarm(60))
    check_told(found, ended, (0, 2) if victim == split else (2,))
    check_no_litter(found, folder)
