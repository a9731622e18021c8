"""Three small photos with hand-drawn masks, shipped inside the package."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import as_choice

if TYPE_CHECKING:
    from PIL import Image

_LABEL_NAMES = {
    "astronaut": ("background", "astronaut"),
    "camera": ("background", "photographer"),
    "coffee": ("floor", "table", "saucer", "cup", "coffee", "spoon"),
}


@dataclass(frozen=True, eq=False)
class Sample:
    """An image with its true labels.

    Attributes
    ----------
    name : what to call the sample.
    image : (*grid, 3) uint8 colors.
    mask : (*grid) uint8 true labels, indices into `label_names`.
    label_names : one name per label.
    """

    name: str
    image: NDArray[np.uint8]
    mask: NDArray[np.uint8]
    label_names: tuple[str, ...]

    @property
    def n_labels(self) -> int:
        """Number of labels."""
        return len(self.label_names)


def sample_names() -> tuple[str, ...]:
    """Names that `load_sample` knows."""
    return tuple(_LABEL_NAMES)


def load_sample(name: str) -> Sample:
    """The photo `name`, (H, W, 3), with its hand-drawn mask, (H, W)."""
    name = as_choice(name, "name", sample_names())
    image = _open_picture(f"{name}.jpg").convert("RGB")
    mask = _open_picture(f"{name}.png")
    return Sample(name, np.array(image), np.array(mask), _LABEL_NAMES[name])


def _open_picture(file_name: str) -> Image.Image:
    # Imported here so that listing the names does not import Pillow.
    from PIL import Image

    with resources.files(__package__).joinpath("photos", file_name).open("rb") as stream:
        picture = Image.open(stream)
        picture.load()
    return picture
