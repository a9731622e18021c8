"""Filters of one image that are used again while its unaries change."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:  # kernels are made of what this room has
    from crfield.dense.kernels import Kernel
    from crfield.dense.observation import Observation

_Made = TypeVar("_Made")
_MOST = 8  # kernels of one image


class KeptFilters:
    """What `DenseCRF.infer` built for the kernels of an image, for the next call on the same image.

    For somebody who paints labels or tries weights: building a lattice takes about as long as five
    iterations. Another image, grid or spacing begins anew; that an image was changed in place is
    not noticed. Not for several threads at a time.
    """

    def __init__(self) -> None:
        self._image: Any = None
        self._place: Any = None
        self._made: dict[Any, Any] = {}

    def recall(
        self, observation: Observation, kernel: Kernel, settings: Any,
        make: Callable[[Kernel], _Made],
    ) -> _Made:
        """`make(kernel)`, or what it gave for the observation's image, this kernel and settings."""
        seen = observation
        if seen.features or seen.positions is not None or seen.selected is not None or seen.window:
            return make(kernel)
        place = (seen.grid, None if seen.spacing is None else tuple(seen.spacing.tolist()))
        if self._image is not seen.image or self._place != place:
            self._made = {}
            self._image, self._place = seen.image, place
        key = (_parameters(kernel), settings)
        if key not in self._made:
            if len(self._made) >= _MOST:
                self._made = {}
            self._made[key] = make(kernel)
        found: _Made = self._made[key]
        return found


def _parameters(kernel: Kernel) -> tuple[Any, ...]:
    """All that tells a kernel from others, arrays by their bytes."""
    values = (getattr(kernel, field.name) for field in dataclasses.fields(kernel))
    return (kernel.kind, *(
        (v.shape, v.dtype.str, v.tobytes()) if isinstance(v, np.ndarray) else v for v in values
    ))
