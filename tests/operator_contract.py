"""What every kernel operator must be, whatever it computes with: one contract for all of them.

An operator joins with an entry in the list of a subclass of `OperatorContract`: how it is built and
its matrix by brute force. It is then checked to be linear, equal to that matrix in all its methods,
symmetric where it says so, and to have the derivatives that central differences find.
"""

import contextlib
import dataclasses
import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import reference
from crfield.dense.kernels import NORMALIZATIONS

# Points, columns, dimensions and images: one of each, around tiles of 64, many columns, all
# dimensions up to nine and the lattice's largest.
POINTS = (
    (1, 1, 1, 1), (1, 5, 3, 3), (2, 2, 2, 2), (2, 21, 6, 1), (63, 1, 5, 1), (63, 33, 2, 1),
    (64, 2, 3, 1), (64, 21, 5, 2), (65, 5, 1, 1), (65, 150, 4, 1), (130, 21, 5, 1), (130, 2, 2, 3),
    *((90, 3, dim, 1) for dim in range(1, 10)), (40, 3, 16, 1),
)
FEW_POINTS = ((14, 3, 1, 1), (14, 3, 2, 1), (7, 3, 3, 2), (9, 2, 5, 1))
# The same of grids, with their lengths in the place of points.
GRIDS = (
    ((1,), 1, 1, 1), ((70,), 5, 1, 1), ((9, 11), 21, 2, 2), ((1, 7), 3, 2, 1), ((12, 5), 40, 2, 1),
    ((4, 5, 6), 3, 3, 1), ((2, 3, 2, 3), 2, 4, 1), ((2, 2, 2, 1, 2, 2), 4, 6, 1),
)
FEW_GRID_POINTS = (((17,), 3, 1, 1), ((5, 4), 3, 2, 2), ((3, 2, 4), 2, 3, 1))


@dataclass(frozen=True)
class Points:
    """Images of points with features (B, N, D), every number of which moves on its own."""

    features: np.ndarray

    @classmethod
    def draw(cls, n_points, dim, n_images=1, spread=1.3):
        rng = np.random.default_rng([n_points, dim, n_images])
        # Numbers that float32 holds exactly have the same matrix in every precision.
        features = np.float32(rng.normal(size=(n_images, n_points, dim)) * spread)
        return cls(features.astype(np.float64))

    @property
    def numbers(self):
        """All that moves, in one vector."""
        return self.features.ravel()

    def images(self):
        """The places of each image."""
        return [Points(features[None]) for features in self.features]

    def moved(self, numbers):
        return Points(numbers.reshape(self.features.shape))

    def by_number(self, gradient):
        """Derivatives by `numbers` from those by the features of all points (P, D)."""
        return gradient.ravel()


@dataclass(frozen=True)
class GridPoints:
    """Images of one grid, given by the coordinates along its axes, which move lines of points."""

    axes: tuple[np.ndarray, ...]
    n_images: int = 1

    @classmethod
    def draw(cls, lengths, n_images=1):
        steps = (0.43, 0.31, 0.57, 0.71, 0.39, 0.48)
        axes = [np.arange(n) * step - 0.37 for n, step in zip(lengths, steps, strict=False)]
        return cls(tuple(np.float32(axis).astype(np.float64) for axis in axes), n_images)

    @property
    def features(self):
        grid = np.stack(np.meshgrid(*self.axes, indexing="ij"), -1).reshape(-1, len(self.axes))
        return np.stack([grid] * self.n_images)

    @property
    def numbers(self):
        return np.concatenate(self.axes)

    def images(self):
        return [GridPoints(self.axes)] * self.n_images

    def moved(self, numbers):
        ends = np.cumsum([len(axis) for axis in self.axes])[:-1]
        return GridPoints(tuple(np.split(numbers, ends)), self.n_images)

    def by_number(self, gradient):
        lengths = [len(axis) for axis in self.axes]
        grid = gradient.reshape(self.n_images, *lengths, len(lengths)).sum(0)
        return np.concatenate([
            grid[..., a].sum(tuple(b for b in range(len(lengths)) if b != a))
            for a in range(len(lengths))
        ])


@dataclass(frozen=True)
class Operator:
    """How an operator is built, what it must be equal to, and how closely.

    build : (places, normalization, dtype, **options) -> an operator that takes and gives arrays.
    matrix : features (N, D) of one image -> K (N, N), not normalized.
    shapes : (points or lengths of a grid, columns, dimensions, images) to try; `small` are those
        for central differences.
    errors : largest relative error of results by dtype; `gradient_errors` are those of derivatives.
    normalizations : those it has; with `in_turn` every shape has one of them, not all.
    twin : builds the same operator in another way or precision, for float64 and one image, whose
        derivatives it must have; None where derivatives are refused.
    """

    name: str
    build: Callable[..., Any]
    matrix: Callable[[np.ndarray], np.ndarray]
    shapes: tuple[tuple[Any, ...], ...]
    small: tuple[tuple[Any, ...], ...] = ()
    errors: dict[Any, float] = dataclasses.field(
        default_factory=lambda: {np.float32: 1e-5, np.float64: 1e-12}
    )
    gradient_errors: dict[Any, float] = dataclasses.field(
        default_factory=lambda: {np.float32: 1e-4}
    )
    normalizations: tuple[str, ...] = NORMALIZATIONS
    in_turn: bool = False
    twin: Callable[..., Any] | None = None

    def places(self, shape):
        if isinstance(shape[0], tuple):
            return GridPoints.draw(shape[0], shape[3])
        return Points.draw(shape[0], shape[2], shape[3])

    def normalizations_of(self, shape):
        if not self.in_turn:
            return self.normalizations
        return self.normalizations[self.shapes.index(shape) % len(self.normalizations)],


@functools.lru_cache(maxsize=64)
def _lattice_matrix(content, dim):
    mass = (4 * np.pi / 3) ** (dim / 2) * np.sqrt(dim + 1)
    return mass * reference.lattice_matrix(np.frombuffer(content).reshape(-1, dim))


def scaled_lattice(features):
    """The lattice by brute force with the Gaussian's mass, computed once for all precisions."""
    return _lattice_matrix(np.ascontiguousarray(features).tobytes(), features.shape[1])


def dense_form(operator, places, normalization):
    """The matrix (P, P) by brute force: no image sees another."""
    n_images, n, _ = places.features.shape
    dense = np.zeros((n_images * n, n_images * n))
    for image, features in enumerate(places.features):
        own = slice(image * n, (image + 1) * n)
        dense[own, own] = reference.normalized(operator.matrix(features), normalization)
    return dense


@contextlib.contextmanager
def poisoned():
    """New memory holds NaN, or whole numbers that no table has rows for."""

    def spoilt(create):
        def made(*arguments, **options):
            new = create(*arguments, **options)
            if isinstance(new, np.ndarray):
                if new.dtype.kind == "f":
                    new.fill(np.nan)
            elif new.is_floating_point():
                new.fill_(math.nan)
            elif new.dtype != sys.modules["torch"].bool:
                new.fill_(sys.modules["torch"].iinfo(new.dtype).max)
            return new

        return made

    with pytest.MonkeyPatch.context() as patch:
        places = [(np, "empty"), (np, "empty_like")]
        if torch := sys.modules.get("torch"):
            places += [(torch, "empty"), (torch, "empty_like"), (torch.Tensor, "new_empty")]
        for owner, name in places:
            patch.setattr(owner, name, spoilt(getattr(owner, name)))
        yield


def assert_close(found, expected, error, what):
    """Equal in shape, and in value up to `error` times the largest number."""
    assert found.shape == expected.shape, what
    difference = np.abs(np.asarray(found, np.float64) - expected).max(initial=0.0)
    assert difference <= error * np.abs(expected).max(initial=1e-30), (what, difference)


def check_matrix(operator, places, normalization, dtype, n_columns, **options):
    """Every method but derivatives: the matrix by brute force, linearity, adjoint, symmetry."""
    what, error = (operator.name, normalization, np.dtype(dtype).name), operator.errors[dtype]
    expected = dense_form(operator, places, normalization)
    n = len(expected)
    rng = np.random.default_rng(n)
    x, y = rng.normal(size=(2, n, n_columns)).astype(dtype)
    with poisoned():
        kernel = operator.build(places, normalization, dtype, **options)
        applied, transposed = kernel.apply(x), kernel.apply_transpose(y)
        combined = kernel.apply((2 * x - 3 * y).astype(dtype))
        other, dense, diagonal = kernel.apply(y), kernel.to_dense(), kernel.diagonal()
    assert applied.dtype == transposed.dtype == dense.dtype == diagonal.dtype == dtype, what
    close = 4 * error
    assert_close(applied, expected @ x, close, (what, "apply"))
    assert_close(transposed, expected.T @ y, close, (what, "apply_transpose"))
    assert_close(diagonal, np.diag(expected), close, (what, "diagonal"))
    assert_close(dense, expected, close, (what, "to_dense"))
    assert_close(combined, 2.0 * applied - 3.0 * other, 2 * close, (what, "linear"))
    sides = [float((a.astype(np.float64) * b).sum()) for a, b in ((y, applied), (x, transposed))]
    scale = np.linalg.norm(y) * np.linalg.norm(expected @ x)
    assert abs(sides[0] - sides[1]) <= 10 * error * scale, (what, "adjoint")
    assert kernel.is_symmetric == (normalization in ("none", "symmetric")), what
    if kernel.is_symmetric:
        assert_close(dense, dense.T.astype(np.float64), close, (what, "symmetric"))
    largest = np.abs(np.linalg.eigvals(expected)).max(initial=0.0)
    assert largest <= kernel.spectral_bound() * (1 + 1e-5 + error), (what, "spectral_bound")


def derivative(kernel, pairs, s=None):
    """sum over the pairs of d sum(u * K v), plus d sum_i s_i K_ii, by the features (P, D)."""
    gradient = kernel.start_gradient()
    for u, v in pairs:
        by_product = gradient.add(u, v, kernel.apply(v))
        assert_close(by_product, kernel.apply_transpose(u), 1e-3, "the by-product K'u")
    if s is not None:
        gradient.add_diagonal(s)
    return gradient.total()


def columns_for(places, n_columns):
    """Numbers u, v (P, C) and s (P,) that float32 holds exactly."""
    n_images, n, _ = places.features.shape
    rng = np.random.default_rng([n_images, n, n_columns])
    u, v = np.float32(rng.normal(size=(2, n_images * n, n_columns))).astype(np.float64)
    return u, v, np.float32(rng.normal(size=n_images * n)).astype(np.float64)


class OperatorContract:
    """The tests; a subclass lists its operators."""

    operators: ClassVar[tuple[Operator, ...]]

    def pytest_generate_tests(self, metafunc):
        name = metafunc.function.__name__
        metafunc.parametrize(("operator", "shape"), [
            pytest.param(operator, shape, id=f"{operator.name} {shape}")
            for operator in self.operators if operator.twin or name == "test_matrix"
            for shape in (operator.small if name == "test_differences" else operator.shapes)
        ])

    def test_matrix(self, operator, shape):
        """All methods but the derivatives, in every precision."""
        places = operator.places(shape)
        for dtype in operator.errors:
            for normalization in operator.normalizations_of(shape):
                check_matrix(operator, places, normalization, dtype, shape[1])

    def test_derivatives_are_those_of_its_twin(self, operator, shape):
        """In every precision, against the twin's in float64, image by image."""
        places = operator.places(shape)
        u, v, s = columns_for(places, shape[1])
        for dtype, error in operator.gradient_errors.items():
            normalizations = operator.normalizations_of(shape)
            if error < operator.errors[dtype]:  # see below
                normalizations = tuple(dict.fromkeys(("none", *normalizations)))
            for normalization in normalizations:
                expected = np.concatenate([
                    derivative(operator.twin(image, normalization, np.float64), [(x, y)], own)
                    for image, x, y, own in zip(
                        places.images(), *(np.split(a, len(places.features)) for a in (u, v, s)),
                        strict=True,
                    )
                ])
                with poisoned():
                    kernel = operator.build(places, normalization, dtype)
                    found = derivative(
                        kernel, [(u.astype(dtype), v.astype(dtype))], s.astype(dtype)
                    )
                assert found.dtype == dtype
                # Row sums, which normalized kernels are divided by, have the error of all sums.
                own_error = error if normalization == "none" else max(error, operator.errors[dtype])
                # What cancels, such as the derivative of one point's K~ = 1, leaves its rounding.
                rounding = 30 * np.finfo(dtype).eps * np.linalg.norm(u)
                difference = np.linalg.norm(found - expected)
                allowed = own_error * np.linalg.norm(expected) + rounding
                assert difference <= allowed, (normalization, difference, allowed)


class DifferenceContract(OperatorContract):
    """For operators that work in float64: central differences too."""

    def test_differences(self, operator, shape):
        """By every number that the kernel is made from, alone and added up."""
        places = operator.places(shape)
        u, v, s = columns_for(places, shape[1])
        for normalization in operator.normalizations:
            def build(numbers, normalization=normalization):
                return operator.build(places.moved(numbers), normalization, np.float64)

            with poisoned():
                kernel = build(places.numbers)
                of_pair, of_other = (derivative(kernel, [p]) for p in ((u, v), (v, 2 * u)))
                of_diagonal = derivative(kernel, (), s)
                added = derivative(kernel, [(u, v), (v, 2 * u)], s)
            for gradient, function in (
                (of_pair, lambda numbers: float((u * build(numbers).apply(v)).sum())),
                (of_diagonal, lambda numbers: float((s * build(numbers).diagonal()).sum())),
            ):
                # A step that keeps points inside their simplices and cells.
                expected = reference.central_differences(function, places.numbers, 1e-6)
                scale = np.abs(expected).max() + 1e-3
                difference = np.abs(places.by_number(gradient) - expected).max()
                assert difference < 1e-6 * scale, (normalization, difference)
            assert_close(added, of_pair + of_other + of_diagonal, 1e-10, "sums of derivatives")
