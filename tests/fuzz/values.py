"""Random arguments for the fuzzer: mostly right ones in odd forms, now and then wrong ones.

`odd(p)` is the switch: it is never true in a gentle case, so that enough cases get through, and
true with probability p in a hostile one.
"""

from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

import crfield
from crfield import Bilateral, Diagonal, FeatureKernel, Potts, Spatial, Symmetric
from crfield.dense.compatibility import Compatibility
from crfield.dense.kernels import NORMALIZATIONS, SHAPES, Kernel

Array = NDArray[Any]
Choice = TypeVar("Choice")

WRONG_NUMBERS: tuple[Any, ...] = (
    float("nan"), float("inf"), -float("inf"), 0, -1, -1e-300, 1e308, 10**400, "3", b"3", None, [],
    [1, 2], 1j, True, np.float32("nan"), np.array([1.0]), np.array([[2.0]]), object, {},
)
WRONG_COUNTS: tuple[Any, ...] = (0, -1, 1.5, 2.0, "2", None, 2**31, 2**63, 10**30, np.nan, [3], 2j)
WRONG_WORDS: tuple[Any, ...] = ("", "Exact", None, 0, b"auto", ["auto"], "auto\n", object())
WRONG_ARRAYS: tuple[Any, ...] = (
    None, "abc", 1.0, [], [[]], [[1.0], [1.0, 2.0]], {"a": 1}, np.array("x"), np.array([None]),
    np.zeros((2, 2), complex), np.zeros((2, 2), "M8[s]"), np.zeros((0, 3)), np.zeros((3, 0)),
    np.zeros(0), np.zeros((1,) * 9), np.broadcast_to(np.zeros(()), (10**6, 10**6, 2)),
    np.broadcast_to(np.uint8(0), (10**7, 10**7)),
)
SPECIAL_FLOATS = (np.nan, np.inf, -np.inf, 1e31, -1e31, 1e38, 1e300, -1e300, 1e-45, 5e-324)
FLOAT_TYPES = ("f4", "f4", "f4", "f8", "f8", "f2", ">f4", ">f8", "longdouble")
WHOLE_TYPES = ("u1", "u1", "i8", "i4", "u2", "i1", ">i2", "u8", "bool")


class Maker:
    """Random values from one seed, wrong ones among them if hostile; None leaves that to chance."""

    def __init__(self, seed: Sequence[int], hostile: bool | None = None) -> None:
        self.rng = np.random.default_rng(list(seed))
        drawn = bool(self.rng.random() < 0.45)
        self.hostile = drawn if hostile is None else hostile

    def odd(self, probability: float) -> bool:
        """Whether to do something wrong here."""
        return bool(self.rng.random() < probability) and self.hostile

    def chance(self, probability: float) -> bool:
        """Whether to do something unusual that is right."""
        return bool(self.rng.random() < probability)

    def pick(self, choices: Sequence[Choice]) -> Choice:
        return choices[int(self.rng.integers(len(choices)))]

    def count(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, high + 1))

    def grid(self) -> tuple[int, ...]:
        """The shape of an image, a volume or a set of points."""
        if self.odd(0.05):
            return self.pick([(0,), (0, 3), (3, 0), (2, 0, 2), (), (1,) * 6])
        kind = self.pick(["points", "pixel", "row", "column", "small", "small", "image", "volume",
                          "deep", "large"])
        side = self.count(2, 14)
        return {
            "points": (self.count(1, 200),), "pixel": (1, 1), "row": (1, self.count(1, 60)),
            "column": (self.count(1, 60), 1), "small": (side, self.count(2, 14)),
            "image": (self.count(15, 40), self.count(15, 40)),
            "volume": (self.count(1, 6), self.count(1, 9), self.count(1, 9)),
            "deep": (2, 3, 2, self.count(1, 4)),
            # Above the size at which "auto" turns to the lattice, if there is time for it.
            "large": (46, 46) if self.chance(0.2) else (side, side),
        }[kind]

    def n_labels(self, n_variables: int) -> int:
        """Fewer labels for larger images, so that no case takes long."""
        most = 70 if n_variables <= 400 else 12
        return self.pick([1, 2, 2, 3, self.count(1, most), self.count(1, min(most, 9))])

    def floats(self, shape: tuple[int, ...]) -> Array:
        """Costs, features, colors: any floats of a sane size, with worse ones now and then."""
        rng = self.rng
        kind = self.pick(
            ["even", "even", "normal", "zero", "same", "whole", "wide", "tiny", "large"]
        )
        values = {
            "even": lambda: rng.uniform(0, 4, shape), "normal": lambda: rng.normal(0, 3, shape),
            "zero": lambda: np.zeros(shape), "same": lambda: np.full(shape, rng.normal()),
            "whole": lambda: np.round(rng.uniform(-5, 5, shape)),
            "wide": lambda: rng.normal(size=shape) * 10.0 ** rng.uniform(-20, 4, shape),
            "tiny": lambda: rng.uniform(0, 1e-40, shape),
            "large": lambda: rng.uniform(-1, 1, shape) * 10.0 ** rng.uniform(2, 29),
        }[kind]()
        if self.odd(0.2) and values.size:
            where = rng.integers(0, values.size, self.count(1, 3))
            values.flat[where] = self.pick(SPECIAL_FLOATS)
        return values

    def typed(self, values: Array, types: Sequence[str] = FLOAT_TYPES) -> Array:
        """The values in another type, which may not hold them."""
        dtype = np.dtype(self.pick(types))
        with np.errstate(all="ignore"):
            if dtype.kind in "iub" and values.dtype.kind == "f":
                values = np.nan_to_num(np.clip(values, 0, 100))
            return values.astype(dtype)

    def formed(self, array: Array) -> Any:
        """The same numbers in another memory layout, or a list of them."""
        form = self.pick(["plain"] * 5 + ["fortran", "strided", "reversed", "read-only", "list"])
        if form == "fortran":
            return np.asfortranarray(array)
        if form == "strided" and array.ndim:
            wide = np.zeros((*array.shape[:-1], 2 * array.shape[-1]), array.dtype)
            wide[..., ::2] = array
            return wide[..., ::2]
        if form == "reversed" and array.ndim:
            return np.ascontiguousarray(array[::-1])[::-1]
        if form == "read-only":
            array = np.array(array)
            array.flags.writeable = False
        elif form == "list" and array.size <= 600 and array.dtype != np.longdouble:
            return array.tolist()
        return array

    def array(self, shape: tuple[int, ...], types: Sequence[str] = FLOAT_TYPES) -> Any:
        """Floats of this shape in some type and form, now and then of another shape."""
        if self.odd(0.06):
            return self.pick(WRONG_ARRAYS)
        if self.odd(0.06):
            shape = self.pick([shape[::-1], (*shape, 2), shape[1:], (*shape[:-1], 1), (1, *shape)])
        return self.formed(self.typed(self.floats(shape), types))

    def image(self, grid: tuple[int, ...]) -> Any:
        """An image of any type, with 1 to 4 channels or none."""
        shape = grid if self.chance(0.3) else (*grid, self.pick([1, 3, 3, 3, 2, 4]))
        if self.odd(0.1) or self.chance(0.3):
            return self.array(shape)
        colors = self.rng.integers(0, 256, shape)
        if self.chance(0.3):
            return self.formed(self.typed(colors / 255.0))
        return self.formed(colors.astype(self.pick(["u1", "u1", "u1", "u2", "i4", "bool"])))

    def number(self, low: float, high: float) -> Any:
        """A positive number, evenly over the powers of ten between the bounds."""
        if self.odd(0.08):
            return self.pick(WRONG_NUMBERS)
        if self.odd(0.2):
            low, high = 1e-12, 1e12
        value = 10.0 ** float(self.rng.uniform(np.log10(low), np.log10(high)))
        return self.pick([value, value, np.float32(value), max(1, round(value))])

    def widths(self, dim: int) -> Any:
        """One number, one per dimension, or a covariance."""
        form = self.pick(["one", "one", "each", "covariance"])
        if form == "one" or dim == 0:
            return self.number(0.3, 300)
        if self.odd(0.1):
            dim += self.pick([-1, 1])
        if form == "each":
            return np.array([10.0 ** self.rng.uniform(-0.5, 2) for _ in range(dim)])
        return self.covariance(dim)

    def covariance(self, dim: int) -> Array:
        """A positive definite matrix, or one that should be."""
        factor = self.rng.normal(size=(dim, dim))
        matrix = factor @ factor.T + np.eye(dim)
        if self.odd(0.3):
            matrix = self.pick([factor, -matrix, 0 * matrix, matrix * 1e-320, matrix * 1e300])
        return np.asarray(matrix)

    def word(self, choices: Sequence[str]) -> Any:
        return self.pick(WRONG_WORDS) if self.odd(0.02) else self.pick(choices)

    def kernel(self, grid_dim: int, channels: int, features: dict[str, int]) -> Kernel:
        """A kernel that fits the data; `features` are names and dimensions to choose from."""
        forms: dict[str, Any] = {
            "shape": "gaussian" if self.chance(0.75) else self.word(SHAPES),
            "normalization": (
                self.pick(["symmetric", "none"]) if self.chance(0.9) else self.word(NORMALIZATIONS)
            ),
        }
        kind = self.pick(["spatial", "bilateral", "feature"])
        if kind == "bilateral" and channels:
            if self.chance(0.15):
                return Bilateral(covariance=self.covariance(grid_dim + channels), **forms)
            if channels == 3 and self.chance(0.2):
                forms["color_space"] = "lab"
            if self.chance(0.2):
                forms["color_scale"] = self.number(1e-3, 1e3)
            return Bilateral(self.widths(grid_dim), self.widths(channels), **forms)
        if kind == "feature" and features:
            name = self.pick(sorted(features))
            dim = features[name]
            widths = {"sigma": self.widths(dim)}
            if self.chance(0.2):
                widths = {"covariance": self.covariance(dim)}
            return FeatureKernel(name, dim, **widths, **forms)
        return Spatial(self.widths(grid_dim), **forms)

    def compatibility(self, n_labels: int) -> Compatibility:
        """An attractive compatibility, or any."""
        if self.odd(0.05):
            n_labels = max(1, n_labels + self.pick([-1, 1]))
        kind = self.pick(["potts", "potts", "diagonal", "l1", "projected"])
        strength = self.number(1e-3, 30)
        if kind == "potts":
            return Potts(-1.0 if self.odd(0.1) else strength)
        if kind == "diagonal":
            alpha = self.rng.uniform(0, 5, n_labels)
            return Diagonal(-alpha if self.odd(0.1) else alpha)
        if kind == "l1":
            return Symmetric.l1(n_labels, strength)
        square = self.rng.normal(size=(n_labels, n_labels))
        any_mu = Symmetric(square + square.T)
        return any_mu if self.odd(0.2) else any_mu.project(n_labels)

    def term(self, n_labels: int, grid_dim: int, channels: int, features: dict[str, int]) -> Any:
        """A pairwise term; weights up to what the library says it takes."""
        low, high = self.pick([(1e-2, 10.0)] * 8 + [(1e-30, 1e-3), (1e3, 1e20), (1e25, 1e30)])
        weight = self.number(low, high)
        if self.odd(0.05):
            return self.pick([None, "term", 3, Potts(1)])
        return crfield.Pairwise(
            self.kernel(grid_dim, channels, features), self.compatibility(n_labels), weight
        )
