"""Label compatibilities mu(a, b): the cost of labels a and b on a pair with kernel value 1.

What the guarantee of KK13 section 3 asks of mu is that it is symmetric and negative semidefinite
on differences of distributions, lambda_max(P mu P) <= 0 with P = I - 11'/L: adding a constant to mu
does not change the model, and this test does not see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    InputError,
    as_count,
    as_floats,
    as_not_negative,
    as_scalar,
    check_memory,
    shown_numbers,
)
from crfield.dense.namespace import Array, library_of

# Eigenvalues of a learned or rounded mu are trusted to this share of its norm.
_RELATIVE_TOLERANCE = 1e-9

# Eigenvalues that differ by less than this share of the largest are taken for one, by the bytes of
# their type.
_SAME_EIGENVALUES = {4: 1e-6, 8: 1e-12}

Matrix = NDArray[np.float64]


@dataclass(frozen=True, eq=False, repr=False)
class Compatibility:
    """What all compatibilities mu (L, L) share; `n_labels` is L in all methods."""

    kind: ClassVar[str] = ""
    array_fields: ClassVar[tuple[str, ...]] = ()

    @property
    def numbers(self) -> Matrix:
        """What says mu in the fewest numbers, for `matrix_of`: w (), alpha (L,) or mu (L, L)."""
        return np.asarray(getattr(self, self.array_fields[0]), np.float64)

    def matrix(self, n_labels: int) -> Matrix:
        """mu as an (L, L) array."""
        mu: Matrix = matrix_of(self.numbers, n_labels)
        return mu

    def __repr__(self) -> str:
        numbers = self.numbers
        text = f"{len(numbers)} labels" if numbers.ndim else shown_numbers(numbers)
        return f"{type(self).__name__}({text})"

    def check_size(self, n_labels: int) -> None:
        """Refuse a compatibility made for another number of labels."""

    def largest_eigenvalue(self, n_labels: int) -> float:
        """lambda_max(P mu P); the convergence guarantee needs it to be <= 0."""
        return largest_eigenvalue(self.matrix(n_labels))

    def is_concave(self, n_labels: int) -> bool:
        """Whether lambda_max(P mu P) <= 0 up to rounding."""
        return is_concave(self.numbers, n_labels)

    def project(self, n_labels: int) -> Symmetric:
        """The nearest compatibility with the guarantee: mu - P mu P + NSD(P mu P)."""
        return Symmetric(project(self.matrix(n_labels))[0])


@dataclass(frozen=True, eq=False, repr=False)
class Potts(Compatibility):
    """mu = w (1 - I): every pair of different labels costs `weight`."""

    weight: float = 1.0
    kind: ClassVar[str] = "potts"
    array_fields: ClassVar[tuple[str, ...]] = ("weight",)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weight", as_scalar(self.weight, "weight"))


@dataclass(frozen=True, eq=False, repr=False)
class Diagonal(Compatibility):
    """mu = -diag(alpha): a pair that shares label l gains alpha_l."""

    alpha: Any = None
    kind: ClassVar[str] = "diagonal"
    array_fields: ClassVar[tuple[str, ...]] = ("alpha",)

    def __post_init__(self) -> None:
        alpha = as_floats(self.alpha, "alpha", np.dtype(np.float64))
        if alpha.ndim != 1 or alpha.size == 0:
            raise InputError(
                f"alpha must have one number per label, got shape {alpha.shape}; pass (L,)."
            )
        object.__setattr__(self, "alpha", alpha.copy())

    def check_size(self, n_labels: int) -> None:
        if len(self.alpha) != n_labels:
            raise InputError(
                f"alpha must have {n_labels} numbers, one per label, got {len(self.alpha)}; "
                "match n_labels."
            )


@dataclass(frozen=True, eq=False, repr=False)
class Symmetric(Compatibility):
    """Any symmetric mu (L, L), given as `values`."""

    values: Any = None
    kind: ClassVar[str] = "symmetric"
    array_fields: ClassVar[tuple[str, ...]] = ("values",)

    def __post_init__(self) -> None:
        mu = as_floats(self.values, "compatibility", np.dtype(np.float64))
        if mu.ndim != 2 or mu.shape[0] != mu.shape[1] or mu.size == 0:
            raise InputError(
                f"compatibility must be a square matrix (L, L), got shape {mu.shape}; "
                "give one row and one column per label."
            )
        with np.errstate(over="ignore"):
            skew = np.abs(mu - mu.T)
        if skew.max() > 1e-6 * max(float(np.abs(mu).max()), 1e-30):
            a, b = np.unravel_index(int(skew.argmax()), mu.shape)
            raise InputError(
                f"compatibility must be symmetric, got mu[{a}, {b}] = {mu[a, b]:g} and "
                f"mu[{b}, {a}] = {mu[b, a]:g}; use (mu + mu.T) / 2."
            )
        object.__setattr__(self, "values", 0.5 * mu + 0.5 * mu.T)

    @classmethod
    def l1(cls, n_labels: int, weight: float = 1.0) -> Symmetric:
        """mu(a, b) = weight |a - b| for `n_labels` ordered labels (KK13 section 3)."""
        labels = np.arange(as_count(n_labels, "n_labels"))
        with np.errstate(over="ignore"):  # what is too large is refused
            return cls(as_scalar(weight, "weight") * np.abs(labels[:, None] - labels[None, :]))

    @classmethod
    def diagonally_dominant(cls, off_diagonal: Any, margin: float = 0.0) -> Symmetric:
        """`off_diagonal` costs (L, L) with mu(l, l) = -sum_{k != l} |mu(l, k)| - margin.

        Negative diagonally dominant matrices always have the guarantee (KK13 section 3).
        """
        mu = cls(off_diagonal).values.copy()
        np.fill_diagonal(mu, 0.0)
        slack = as_not_negative(margin, "margin")
        np.fill_diagonal(mu, -np.abs(mu).sum(1) - slack)
        return cls(mu)

    def check_size(self, n_labels: int) -> None:
        if len(self.values) != n_labels:
            raise InputError(
                f"compatibility must be ({n_labels}, {n_labels}) for {n_labels} labels, got "
                f"{self.values.shape}; match n_labels."
            )


COMPATIBILITIES: dict[str, type[Compatibility]] = {
    c.kind: c for c in (Potts, Diagonal, Symmetric)
}


def matrix_of(numbers: Array, n_labels: int) -> Array:
    """mu (L, L), an array or a tensor.

    numbers : a Potts weight (), attractions (L,) with mu = -diag, or mu (L, L).
    n_labels : L.
    """
    if numbers.ndim == 2:
        return numbers
    check_memory(
        32.0 * n_labels**2, f"A matrix of {n_labels} by {n_labels} labels",
        "use fewer labels, or an algorithm that needs none",
    )
    library = library_of(numbers)
    if numbers.ndim == 1:
        return -library.diag(numbers)
    row = library.broadcast_to(numbers, (n_labels,))
    return row[None] - library.diag(row)


def largest_eigenvalue(mu: Matrix) -> float:
    """lambda_max(P mu P) of a symmetric mu (L, L)."""
    return float(np.linalg.eigvalsh(center(mu))[-1])


def is_concave(numbers: Matrix, n_labels: int) -> bool:
    """Whether lambda_max(P mu P) <= 0 up to rounding, for the mu of `matrix_of`.

    numbers, n_labels : as for `matrix_of`, () to (L, L).
    """
    if numbers.ndim < 2 and (numbers >= 0).all():
        return True
    mu = matrix_of(numbers, n_labels)
    allowance = _RELATIVE_TOLERANCE * n_labels * max(float(np.abs(mu).max(initial=0.0)), 1e-30)
    return largest_eigenvalue(mu) <= allowance


def center(mu: Array) -> Array:
    """P mu P with P = I - 11'/L, (L, L) like mu, an array or a tensor."""
    return mu - mu.mean(0)[None] - mu.mean(1)[:, None] + mu.mean()


def project(mu: Array) -> tuple[Array, tuple[Array, Array]]:
    """mu - P mu P + NSD(P mu P) of a symmetric mu (L, L), an array or a tensor, and the eigenvalues
    (L,) and eigenvectors (L, L) of P mu P, from which `project_gradient` goes back.
    """
    centered = center(mu)
    values, vectors = library_of(mu).linalg.eigh(centered)
    negative = (vectors * library_of(mu).clip(values, None, 0.0)) @ vectors.T
    return mu - centered + 0.5 * (negative + negative.T), (values, vectors)


def project_gradient(g: Array, values: Array, vectors: Array) -> Array:
    """The adjoint derivative of `project` (L, L), applied to g (L, L).

    values, vectors : (L,) and (L, L), of P mu P.

    By Daleckii and Krein, whose divided differences stay finite where eigenvalues coincide.

    values, vectors : (L,) and (L, L), eigenvalues and eigenvectors of the centered compatibility.
    """
    library = library_of(values)
    clipped, slope = library.clip(values, None, 0.0), library.clip(-library.sign(values), 0.0, None)
    gap = values[:, None] - values
    same = abs(gap) <= _SAME_EIGENVALUES[values.dtype.itemsize] * abs(values).max()
    divided = library.where(
        same, 0.5 * (slope[:, None] + slope),
        (clipped[:, None] - clipped) / library.where(same, library.ones_like(gap), gap),
    )
    inner = vectors @ (divided * (vectors.T @ g @ vectors)) @ vectors.T
    return g - center(g) + center(inner)
