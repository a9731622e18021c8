"""Objects cut out of photos: small images of one size with masks, also shifted and mirrored."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from crfield._core.validate import InputError, as_choice, as_count, as_within, shown
from crfield.datasets.folder import FolderDataset
from crfield.datasets.unaries import naming
from crfield.io.images import file_stem, read_image, read_labels

Labels = NDArray[np.integer[Any]]
FilePath = str | os.PathLike[str]

_CROPS = ("whole", "object")


@dataclass(frozen=True, eq=False)
class Silhouettes:
    """Images of one size with the masks of their objects.

    Attributes
    ----------
    images : (n, size, size, 3) uint8 colors.
    masks : (n, size, size) uint8, 1 in the object and 0 elsewhere.
    names : name of the file that each comes from; all versions of a file have its name.
    """

    images: NDArray[np.uint8]
    masks: NDArray[np.uint8]
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True)
class Augmentation:
    """More versions of each image, as CHOPP section 5.1 makes them.

    The window of an image is shifted `n_shifts` times; with `mirror`, every window is also seen
    in a mirror. The defaults make 12 versions, the image and 11 more.

    Attributes
    ----------
    n_shifts : number of shifted windows in addition to the first one.
    mirror : whether to mirror all of them.
    reach : shifts are drawn evenly up to this share of the window's sides.
    seed : the same seed gives the same shifts, whatever the size of the images.
    """

    n_shifts: int = 5
    mirror: bool = True
    reach: float = 0.1
    seed: int = 0

    def __post_init__(self) -> None:
        as_count(self.n_shifts, "n_shifts", minimum=0)
        as_count(self.seed, "seed", minimum=0)
        as_within(self.reach, "reach", 0, 0.5, "try 0.1")

    @property
    def factor(self) -> int:
        """Number of versions of each image."""
        return (1 + self.n_shifts) * (2 if self.mirror else 1)

    def shifts(self, index: int) -> NDArray[np.float64]:
        """(1 + n_shifts, 2) shifts down and right of image number `index`, the first is none."""
        rng = np.random.default_rng([self.seed, index])
        shifts = np.zeros((1 + self.n_shifts, 2))
        shifts[1:] = rng.uniform(-self.reach, self.reach, (self.n_shifts, 2))
        return shifts


def read_silhouettes(
    source: FilePath | Iterable[tuple[FilePath, FilePath]],
    *,
    size: int = 32,
    split: str | None = None,
    names: Sequence[str] | None = None,
    foreground: int | Sequence[int] | None = None,
    crop: str = "whole",
    margin: float = 0.0,
    augmentation: Augmentation | None = None,
) -> Silhouettes:
    """Read objects with their masks, all resized to one size whatever their aspect ratio.

    Pixels of the images are means over the area they cover; a pixel of a mask is 1 if at least
    half of it is object. Outside the image, a window repeats the image's border, and its mask is
    background.

    Parameters
    ----------
    source : a folder as `FolderDataset` reads it, or pairs of paths (image, mask).
    size : side of the results, in pixels.
    split, names : for a folder: which list to follow, and which names from it, in that order; None
        for all.
    foreground : label or labels of the object; void counts as background. None expects masks of 0
        and 1.
    crop : "whole" for whole images, "object" for the bounding boxes of the objects.
    margin : how far the window reaches beyond the box on each side, in shares of the box's sides.
    augmentation : which versions of each image to make; None takes each as it is. Versions of an
        image follow each other, `augmentation.factor` of them: the window, its shifts, then the
        mirrored ones in the same order.
    """
    size = as_count(size, "size")
    crop = as_choice(crop, "crop", _CROPS)
    margin = as_within(margin, "margin", 0, 10, "try 0.1")
    labels = None if foreground is None else _as_labels(foreground)
    versions = augmentation or Augmentation(n_shifts=0, mirror=False)
    images, masks, found = [], [], []
    for index, (name, image, truth) in enumerate(_read(source, split, names)):
        with naming(Path(name)):
            colors, mask = _as_colors(image), _as_mask(truth, labels)
        box = _object_box(mask, margin) if crop == "object" else ([0, 0], mask.shape)
        window = np.array(box, np.float64)
        for shift in versions.shifts(index):
            shifted = window + shift * (window[1] - window[0])
            images.append(_resized(colors, shifted, size))
            masks.append(_resized(255 * mask, shifted, size, beyond="constant") >= 128)
        if versions.mirror:
            images += [version[:, ::-1] for version in images[-1 - versions.n_shifts :]]
            masks += [version[:, ::-1] for version in masks[-1 - versions.n_shifts :]]
        found += [name] * versions.factor
    if not found:
        raise InputError("source must give at least one pair of files, got none; add some.")
    return Silhouettes(np.stack(images), np.stack(masks).astype(np.uint8), tuple(found))


def _read(
    source: FilePath | Iterable[tuple[FilePath, FilePath]],
    split: str | None,
    names: Sequence[str] | None,
) -> Iterator[tuple[str, NDArray[Any], Labels]]:
    """Name, image and labels of each pair; void labels are negative."""
    if isinstance(source, str | os.PathLike):
        dataset = FolderDataset(source, split, description={"unaries": None})
        for example in dataset if names is None else dataset.subset(_places(dataset, names)):
            truth = example.truth.astype(np.int64)
            yield example.name, example.image, np.where(truth == dataset.void, -1, truth)
        return
    if split is not None or names is not None:
        raise InputError(
            "split and names must be left out where source gives pairs of files, got one of them; "
            "pass only the pairs that are wanted."
        )
    for pair in source:
        try:
            image_path, mask_path = map(Path, pair)
        except (TypeError, ValueError):
            raise InputError(
                f"source must be a folder or pairs of file names, got {shown(pair)} among them; "
                "pass (image, mask) for each."
            ) from None
        image, truth = read_image(image_path), read_labels(mask_path).array
        if truth.shape != image.grid:
            raise InputError(
                f"{mask_path} must have the size of {image_path}, {image.grid}, got "
                f"{truth.shape}; export both in one size."
            )
        yield file_stem(image_path), image.array, truth


def _places(dataset: FolderDataset, names: Sequence[str]) -> list[int]:
    known = {name: place for place, name in enumerate(dataset.names)}
    for name in names:
        if name not in known:
            raise InputError(
                f"names must be among those of {dataset.root}, got {shown(name)}; correct it."
            )
    return [known[name] for name in names]


def _as_labels(foreground: int | Sequence[int]) -> list[int]:
    several = list(foreground) if isinstance(foreground, Iterable) else [foreground]
    if not several:
        raise InputError("foreground must name a label, got none; pass the labels of the object.")
    return [as_count(label, "foreground", minimum=0) for label in several]


def _as_colors(image: NDArray[Any]) -> NDArray[np.uint8]:
    """(H, W, 3) bytes of a gray or color photo."""
    if image.dtype != np.uint8 or image.ndim < 2 or image.shape[2:] not in ((), (3,)):
        raise InputError(
            f"the image must be a photo of 8 bits per channel, got {image.dtype} of shape "
            f"{image.shape}; save it as an 8-bit PNG or JPEG."
        )
    return image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=-1)


def _as_mask(truth: Labels, foreground: list[int] | None) -> NDArray[np.uint8]:
    if foreground is None and truth.max(initial=0) > 1:
        raise InputError(
            f"the mask must hold only 0 and 1, got the label {truth.max()}; "
            "say with foreground which labels are the object."
        )
    mask = np.isin(truth, foreground or [1])
    if not mask.any():
        raise InputError(
            f"the mask must show an object, got no pixel of {foreground or 1}; "
            "correct foreground or leave the image out."
        )
    return mask.astype(np.uint8)


def _object_box(mask: NDArray[np.uint8], margin: float) -> NDArray[np.float64]:
    """Upper left and lower right corner, (2, 2), of the object's box and its margin."""
    sides = [np.flatnonzero(mask.any(axis=1 - axis))[[0, -1]] for axis in range(2)]
    box = np.array(sides, np.float64).T + np.array([[0.0], [1.0]])
    reach = margin * (box[1] - box[0])
    return np.stack([box[0] - reach, box[1] + reach])


def _resized(
    picture: NDArray[np.uint8], window: NDArray[np.float64], size: int, beyond: str = "edge"
) -> NDArray[np.uint8]:
    """What a window, corners (2, 2), shows, (size, size[, 3])."""
    sides = np.array(picture.shape[:2])
    before = np.maximum(np.ceil(-window[0]), 0).astype(int)
    after = np.maximum(np.ceil(window[1] - sides), 0).astype(int)
    widths = [*zip(before, after, strict=True), *[(0, 0)] * (picture.ndim - 2)]
    # mypy knows the modes as literals only.
    padded = np.pad(picture, widths, mode=beyond)  # type: ignore[call-overload]
    (top, left), (bottom, right) = window + before
    resized = Image.fromarray(padded).resize(
        (size, size), Image.Resampling.BOX, box=(left, top, right, bottom)
    )
    return np.asarray(resized)
