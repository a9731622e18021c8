"""`DenseCRF` and `DenseCRF2D` with pydensecrf's interface and results."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from crfield._core.validate import (
    LARGEST_COMPATIBILITY,
    MAX_LABELS,
    FloatArray,
    InputError,
    as_array,
    as_floats,
    check_magnitude,
    shown,
)
from crfield._core.warning import warn
from crfield.compat.pydensecrf import _meanfield, eigen
from crfield.compat.pydensecrf._inputs import as_rows, as_whole, as_widths
from crfield.compat.pydensecrf.utils import create_pairwise_bilateral, create_pairwise_gaussian
from crfield.dense.compatibility import Compatibility, Diagonal, Symmetric
from crfield.dense.filters.base import check_features
from crfield.dense.filters.compiled import MAX_DIM
from crfield.dense.problem import Term
from crfield.unary.costs import unary_from_features

__all__ = [
    "CONST_KERNEL",
    "DIAG_KERNEL",
    "FULL_KERNEL",
    "NORMALIZE_AFTER",
    "NORMALIZE_BEFORE",
    "NORMALIZE_SYMMETRIC",
    "NO_NORMALIZATION",
    "ConstUnary",
    "DenseCRF",
    "DenseCRF2D",
    "KernelType",
    "LogisticUnary",
    "NormalizationType",
    "Unary",
    "eigen",
]

_FORBIDDING_COST = np.float32(1e6)

_Choice = TypeVar("_Choice", bound=IntEnum)


class KernelType(IntEnum):
    """Which parameters of a kernel are learned; inference does not look at it."""

    CONST_KERNEL = 0
    DIAG_KERNEL = 1
    FULL_KERNEL = 2


class NormalizationType(IntEnum):
    """How a kernel is divided by its row sums."""

    NO_NORMALIZATION = 0
    NORMALIZE_BEFORE = 1
    NORMALIZE_AFTER = 2
    NORMALIZE_SYMMETRIC = 3


CONST_KERNEL, DIAG_KERNEL, FULL_KERNEL = KernelType
NO_NORMALIZATION, NORMALIZE_BEFORE, NORMALIZE_AFTER, NORMALIZE_SYMMETRIC = NormalizationType
_NORMALIZATION_NAMES = ("none", "before", "after", "symmetric")  # in their order


class Unary:
    """Costs of labels; make a `ConstUnary` or a `LogisticUnary`."""

    costs: FloatArray | None = None  # (N, L)


class ConstUnary(Unary):
    """The costs `u` (L, N)."""

    def __init__(self, u: Any) -> None:
        self.costs = _as_costs(u, (None, None))


class LogisticUnary(Unary):
    """The costs u = L f of a logistic model: weights `L` (labels, F), features `f` (F, N)."""

    def __init__(self, L: Any, f: Any) -> None:
        weights = as_rows(L, "L", (None, None)).T
        features = as_rows(f, "f", (weights.shape[1], None))
        self.costs = unary_from_features(features, weights)


class DenseCRF:
    """A dense CRF over `nvar` variables with `nlabels` labels."""

    def __init__(self, nvar: int, nlabels: int) -> None:
        self._nvar = as_whole(nvar, "nvar")
        self._nlabels = as_whole(nlabels, "nlabels", 1, MAX_LABELS)
        self._unary: FloatArray | None = None
        self._terms: list[Term] = []

    def setUnary(self, u: Unary) -> None:
        """Set the costs `u`, a `ConstUnary` or a `LogisticUnary`."""
        if not isinstance(u, Unary) or u.costs is None:
            raise InputError(
                f"u must be a ConstUnary or a LogisticUnary, got {shown(u)}; "
                "use setUnaryEnergy for an array."
            )
        self._check_labels(u.costs.T)
        if u.costs.shape != (self._nvar, self._nlabels):
            raise InputError(
                f"u must have shape {(self._nlabels, self._nvar)}, got {u.costs.T.shape}; "
                "give one row per label and one column per variable."
            )
        self._unary = u.costs

    def setUnaryEnergy(self, u: Any, f: Any = None) -> None:
        """Set the costs `u` (L, N), or those of a logistic model with weights u and features f."""
        if f is not None:
            self.setUnary(LogisticUnary(u, f))
            return
        self._check_labels(as_array(u, "u"))
        self._unary = _as_costs(u, (self._nlabels, self._nvar))

    def _check_labels(self, costs: NDArray[Any]) -> None:
        """Refuse costs (L, N) of all variables for another number of labels."""
        if costs.ndim == 2 and costs.shape[1] == self._nvar and len(costs) != self._nlabels:
            raise InputError(
                f"the field has {self._nlabels} labels, got costs for {len(costs)}; make it with "
                f"nlabels={len(costs)}, or give one row of costs per label."
            )

    def addPairwiseEnergy(
        self, features: Any, compat: Any, kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Add a term on features (D, N), divided by their widths.

        compat : a number w attracts equal labels, cost -w; a vector v costs v_l for two labels l;
            a matrix M costs (M + M')/2.
        kernel : accepted and, as in the original's inference, without effect.
        normalization : of the kernel, one of NO_NORMALIZATION, NORMALIZE_BEFORE, NORMALIZE_AFTER
            and NORMALIZE_SYMMETRIC.
        """
        _as_choice(kernel, "kernel", KernelType)
        rule = _as_choice(normalization, "normalization", NormalizationType)
        compatibility = _make_compatibility(compat, self._nlabels)
        points = as_rows(features, "features", (None, self._nvar))
        if not 1 <= points.shape[1] <= MAX_DIM:
            raise InputError(
                f"features must have 1 to {MAX_DIM} rows, got {points.shape[1]}; "
                "leave some out or project them."
            )
        check_features(points)
        operator = _meanfield.make_filter(points, _NORMALIZATION_NAMES[rule])
        self._terms.append(Term(operator, compatibility.numbers))

    def inference(self, niter: int) -> FloatArray:
        """Marginals (L, N) after `niter` steps from softmax(-u)."""
        return _meanfield.iterate(
            self._costs(), self._terms, None, as_whole(niter, "niter", 0, 2**31 - 1)
        ).T

    def startInference(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """softmax(-u) (L, N), for `stepInference`; the other two arrays stay empty."""
        return self.inference(0), eigen.MatrixXf(), eigen.MatrixXf()

    def stepInference(self, Q: FloatArray, tmp1: Any = None, tmp2: Any = None) -> None:
        """One step, which overwrites `Q` (L, N); `tmp1` and `tmp2` are not needed."""
        if not isinstance(Q, np.ndarray) or Q.dtype.kind != "f" or not Q.flags.writeable:
            raise InputError(
                f"Q must be a writable array of floats, got {shown(Q)}; "
                "pass what startInference returned."
            )
        unary = self._costs()
        Q[...] = _meanfield.iterate(unary, self._terms, self._marginals(Q), 1).T

    def klDivergence(self, Q: Any) -> float:
        """What the original calls the KL divergence: sum q log q + q'u + q' Psi q, q = `Q` (L, N).

        The pairs are not halved, which counts each of them twice, and log Z is left out.
        """
        return _meanfield.divergence(self._costs(), self._terms, self._marginals(Q))

    def _costs(self) -> FloatArray:
        if self._unary is None:
            raise InputError(
                "inference needs costs for the labels, got none; call setUnaryEnergy first."
            )
        return self._unary

    def _marginals(self, Q: Any) -> FloatArray:
        return as_rows(Q, "Q", (self._nlabels, self._nvar))


class DenseCRF2D(DenseCRF):
    """A dense CRF over the pixels of an image, row after row; the width `w` comes before `h`."""

    def __init__(self, w: int, h: int, nlabels: int) -> None:
        self._w, self._h = as_whole(w, "w"), as_whole(h, "h")
        super().__init__(self._w * self._h, nlabels)

    def addPairwiseGaussian(
        self, sxy: Any, compat: Any, kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Add a term on positions (x, y) divided by `sxy`, a number or one for x and one for y.

        The rest is as for `addPairwiseEnergy`.
        """
        widths = as_widths(sxy, "sxy", 2)
        features = create_pairwise_gaussian(widths[::-1], (self._h, self._w))
        self.addPairwiseEnergy(features[::-1], compat, kernel, normalization)

    def addPairwiseBilateral(
        self, sxy: Any, srgb: Any, rgbim: Any, compat: Any, kernel: int = DIAG_KERNEL,
        normalization: int = NORMALIZE_SYMMETRIC,
    ) -> None:
        """Add a term on positions (x, y) and the colors of an image `rgbim` (h, w, 3).

        They are divided by `sxy` and `srgb`, a number each or one per dimension; the rest is as for
        `addPairwiseEnergy`.
        """
        widths, color_widths = as_widths(sxy, "sxy", 2), as_widths(srgb, "srgb", 3)
        image = as_array(rgbim, "rgbim")
        wanted = (self._h, self._w, 3)
        if image.shape != wanted:
            if image.ndim == 3 and image.shape == (self._w, self._h, 3):
                remedy = "DenseCRF2D takes the width first: DenseCRF2D(w, h, nlabels)"
            elif image.shape == (3, self._h, self._w):
                remedy = "move its channels last with np.moveaxis(rgbim, 0, -1)"
            else:
                remedy = "use create_pairwise_bilateral for other channels"
            raise InputError(f"rgbim must have shape {wanted}, got {image.shape}; {remedy}.")
        features = create_pairwise_bilateral(widths[::-1], color_widths, image, chdim=2)
        is_unit = image.dtype.kind == "f" and image.size and 0 <= image.min() <= image.max() <= 1
        if is_unit and min(color_widths) > 1:
            warn(
                "rgbim lies within 0 and 1, where all colors are alike to widths of "
                f"{shown(srgb)}; pass rgbim * 255, or divide srgb by 255."
            )
        # The order of the features decides in which order the lattice is blurred.
        self.addPairwiseEnergy(features[[1, 0, 2, 3, 4]], compat, kernel, normalization)


def _as_choice(value: Any, name: str, choices: type[_Choice]) -> _Choice:
    try:
        return choices(value)
    except ValueError:
        known = ", ".join(f"{choice.name} ({choice.value})" for choice in choices)
        raise InputError(
            f"{name} must be one of {known}, got {shown(value)}; pick one of them."
        ) from None


def _as_costs(u: Any, shape: tuple[int | None, int | None]) -> FloatArray:
    """Costs (N, L) from (L, N); an infinite cost, -log 0, forbids a label as a large one does."""
    array = as_array(u, "u")
    if array.dtype.kind == "f":
        array = np.where(np.isposinf(array), _FORBIDDING_COST, array)
    costs = as_rows(array, "u", shape)
    check_magnitude(costs, "u")
    return costs


def _make_compatibility(compat: Any, n_labels: int) -> Compatibility:
    values = as_floats(compat, "compat", np.dtype(np.float64))
    if values.shape not in ((), (n_labels,), (n_labels, n_labels)):
        raise InputError(
            f"compat must be a number, {n_labels} numbers or a matrix {n_labels} by {n_labels}, "
            f"got shape {values.shape}; give one entry per label."
        )
    largest = float(np.abs(values).max())
    if largest > LARGEST_COMPATIBILITY:
        raise InputError(
            f"compat must not exceed {LARGEST_COMPATIBILITY:g} in magnitude, got {largest:.3g}; "
            "use smaller costs."
        )
    if values.ndim == 2:
        return Symmetric(0.5 * (values + values.T))
    # Potts as the original writes it, -w on the diagonal and not w off it: its klDivergence tells
    # the two apart.
    return Diagonal(-values if values.ndim else np.full(n_labels, float(values)))
