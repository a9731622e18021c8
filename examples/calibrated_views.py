"""Photographs with cameras: read from the Middlebury and the aerial multi-view data, or made up."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crfield.graphs import Camera

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True)
class View:
    """A photograph (H, W, 3) within 0 and 1, and its camera; true depths (H, W), NaN for none."""

    name: str
    camera: Camera
    image: Floats
    truth: Floats | None = None

    def shrunk(self, factor: int) -> View:
        """Blocks of factor^2 pixels made one."""
        height, width = (length // factor for length in self.image.shape[:2])
        blocks = self.image[: height * factor, : width * factor]
        image = blocks.reshape(height, factor, width, factor, 3).mean((1, 3))
        # The center of a block of 2 pixels is at 0.5.
        shift = (1 / factor - 1) / 2
        scale = [[1 / factor, 0, shift], [0, 1 / factor, shift], [0, 0, 1]]
        truth = self.truth
        if truth is not None:
            truth = truth[factor // 2 :: factor, factor // 2 :: factor][:height, :width]
        return self._moved(np.array(scale), image, truth)

    def cropped(self, points: Floats, margin: int = 4) -> View:
        """The part of the image that shows the points, and a margin."""
        pixels, _ = self.camera.project(points)
        left, top = np.maximum(np.floor(pixels.min(0)).astype(int) - margin, 0)
        right, bottom = np.ceil(pixels.max(0)).astype(int) + margin + 1
        part = slice(top, bottom), slice(left, right)
        truth = None if self.truth is None else self.truth[part]
        shift = np.array([[1, 0, -left], [0, 1, -top], [0, 0, 1]])
        return self._moved(shift, self.image[part], truth)

    def _moved(self, pixels: Floats, image: Floats, truth: Floats | None) -> View:
        camera = Camera(pixels @ self.camera.projection, image.shape[:2])
        return replace(self, camera=camera, image=image, truth=truth)


@dataclass(frozen=True)
class Scene:
    """Views of what is in a box from `low` to `high`, with `background` where nothing is.

    goes_on : whether there is more behind the box, except below it.
    """

    name: str
    low: Floats
    high: Floats
    views: list[View]
    background: Floats
    goes_on: bool = False


def find_scenes(folder: Path) -> dict[str, Path]:
    """Folders of calibrated views in a folder, or itself, by name."""
    found = sorted(path.parent for path in folder.rglob("*par.txt"))
    return {path.name: path for path in found}


def read_scene(folder: Path) -> Scene:
    """Views "name K R t" of *par.txt in the box of README.txt (Middlebury) or scene_info.xml."""
    views = []
    (listed,) = folder.glob("*par.txt")
    for line in listed.read_text("utf-8").splitlines()[1:]:
        name, *words = line.split() or [""]
        if len(words) != 21:
            continue
        with Image.open(folder / name) as opened:
            image = np.asarray(opened.convert("RGB"), np.float32) / 255
        k, r, t = np.split(np.array(words, float), [9, 18])
        camera = Camera.from_calibration(
            k.reshape(3, 3), r.reshape(3, 3), t, image.shape[:2]
        )
        views.append(View(name, camera, image))
    info = folder / "scene_info.xml"
    if info.exists():
        text = info.read_text("utf-8")
        ends = [
            [float(re.findall(rf'{end}{axis}="\s*([-+.\d]+)', text)[0]) for axis in "xyz"]
            for end in ("min", "max")
        ]
        background = np.mean([view.image.mean((0, 1)) for view in views], 0)
    else:
        text = (folder / "README.txt").read_text("utf-8")
        number = r"(-?[.\d]+)"
        ends = [
            [float(word) for word in words]
            for words in re.findall(rf"^\({number} {number} {number}\)", text, re.M)
        ]
        background = np.zeros(3)  # photographed before black
    low, high = np.array(ends)
    return Scene(folder.name, low, high, views, background, info.exists())


def make_scene(n_views: int = 18, pixels: int = 96, seed: int = 0) -> Scene:
    """A turned box with a texture, before black, seen from all around; depths are known."""
    rng = np.random.default_rng(seed)
    angle = 0.5
    turn = np.array([
        [math.cos(angle), math.sin(angle), 0], [-math.sin(angle), math.cos(angle), 0], [0, 0, 1]
    ])
    half = np.array([0.3, 0.22, 0.35])
    waves, phases = rng.normal(0, 25, (3, 24, 3)), rng.uniform(0, 2 * math.pi, (3, 24))
    views = []
    for k in range(n_views):
        way = 2 * math.pi * k / n_views
        height = 0.9 + 0.5 * (k % 2)
        place = np.array([2.5 * math.cos(way), 2.5 * math.sin(way), height])
        camera = Camera.looking_at(place, (0, 0, 0), 2.4 * pixels, (pixels, pixels))
        origins, directions = (part @ turn.T for part in camera.rays())
        # A ray is in the box from where it has entered the last of three pairs of planes.
        slabs = np.sort([(side * half - origins) / directions for side in (-1, 1)], axis=0)
        near, far = slabs[0].max(1), slabs[1].min(1)
        hit = near < far
        points = origins + near[:, None] * directions
        tones = np.cos(np.einsum("cwa,na->ncw", waves, points) + phases).sum(-1) / 6
        image = np.where(hit[:, None], np.clip(0.55 + 0.2 * tones, 0.05, 1), 0)
        image = image + 0.01 * rng.normal(size=image.shape)
        per_length = camera.project(place + camera.rays()[1])[1]
        truth = np.where(hit, near * per_length, np.nan)
        size = camera.image_size
        views.append(View(f"view {k}", camera, image.reshape(*size, 3), truth.reshape(size)))
    return Scene("box", np.full(3, -0.5), np.full(3, 0.5), views, np.zeros(3))
