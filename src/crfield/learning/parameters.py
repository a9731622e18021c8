"""A model's parameters as one vector, and gradients carried back to it.

Positive numbers (weights, attractions, widths) are logarithms in the vector; covariances are
Cholesky factors with logarithmic diagonals. A symmetric compatibility is its upper triangle; with
`project` the model uses the nearest matrix that has the convergence guarantee,
mu - PmuP + NSD(PmuP), and the gradient goes through the projection.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from crfield._core.optimize import Vector
from crfield._core.validate import InputError, as_not_negative, shown
from crfield.dense.compatibility import (
    Compatibility,
    Diagonal,
    Potts,
    Symmetric,
    project,
    project_gradient,
)
from crfield.dense.kernels import Kernel
from crfield.dense.model import DenseCRF, no_recalibration

# What can be learned; "off_diagonal" regularizes a part of "compatibility", of a symmetric mu.
LEARNABLE = ("unary", "compatibility", "kernel", "weight")

# Of an entry of the recalibration, of its constants, of its entries for the presence of labels and
# for positions and colors, of logarithms, and of the entries of a symmetric mu as shares of its
# largest.
_TYPICAL_CHANGE = {
    "unary": 0.05, "constant": 0.3, "presence": 0.1, "place": 0.5, "compatibility": 0.3,
    "entry": 0.3, "kernel": 0.3, "weight": 0.3,
}


def as_ridge(l2: Any) -> dict[str, float]:
    """The strength of the ridge of some groups of parameters, none of them negative."""
    known = (*LEARNABLE, "off_diagonal")
    if not isinstance(l2, Mapping) or not set(l2) <= set(known):
        got = ", ".join(map(str, l2)) if isinstance(l2, Mapping) else shown(l2)
        raise InputError(
            f"l2 must name some of {', '.join(known)}, got {got}; "
            'give each its strength, for example {"unary": 0.001}.'
        )
    return {name: as_not_negative(value, f"l2 of {name}") for name, value in l2.items()}


def ridge_for_one(l2: float, n_examples: int) -> dict[str, float]:
    """The ridge of each group of parameters that is `l2` for one image, for so many images."""
    return dict.fromkeys((*LEARNABLE, "off_diagonal"), l2 / n_examples)


def recalibration_scale(model: DenseCRF) -> Vector:
    """By how much each entry of a model's recalibration (L, F + 1) typically changes."""
    n = model.n_labels
    scale = np.full(model.recalibration.shape, _TYPICAL_CHANGE["unary"])
    scale[:, n:-1] = _TYPICAL_CHANGE["place"]
    if "presence" in model.context:
        scale[:, n : 2 * n] = _TYPICAL_CHANGE["presence"]
    scale[:, -1] = _TYPICAL_CHANGE["constant"]
    return scale


@dataclass(frozen=True)
class ModelGradient:
    """Gradients of one image or the sum over many, by the model's raw quantities.

    recalibration : (L, L + 1).
    compatibility : for each term dL / d(w mu), (L, L).
    widths : for each term g'f, (D, D), with g the gradient by the scaled features f.
    """

    recalibration: Vector
    compatibility: list[Vector]
    widths: list[Vector]

    def __add__(self, other: ModelGradient) -> ModelGradient:
        return ModelGradient(
            self.recalibration + other.recalibration,
            [a + b for a, b in zip(self.compatibility, other.compatibility, strict=True)],
            [a + b for a, b in zip(self.widths, other.widths, strict=True)],
        )


class Parameters:
    """The learned part of a model as a vector.

    model : the start; what is not learned keeps its value.
    learn : some of "unary" (the recalibration), "compatibility", "kernel" (widths) and "weight" (of
        the terms).
    project : keep compatibilities within the convergence guarantee.
    prior : the model that the ridge pulls to, of the same form; the start by default.
    """

    def __init__(
        self, model: DenseCRF, learn: Iterable[str], *, project: bool = True,
        prior: DenseCRF | None = None,
    ) -> None:
        self.learn = _as_learnable(learn)
        n = model.n_labels
        if "unary" in self.learn and model.recalibration is None:
            model = dataclasses.replace(model, recalibration=no_recalibration(n))
        self.model = model
        self.project = project
        # The model of the last vector, which is often asked for twice.
        self._latest: tuple[bytes, DenseCRF] | None = None
        self._pieces: list[tuple[str, int | None, str, Vector]] = []
        if "unary" in self.learn:
            self._pieces.append(("unary", None, "recalibration", model.recalibration.ravel()))
        for number, term in enumerate(model.terms):
            if "compatibility" in self.learn:
                values = _encode_compatibility(term.compatibility, n)
                self._pieces.append(("compatibility", number, "", values))
            if "kernel" in self.learn:
                for name in _learned_widths(term.kernel):
                    values = _encode_widths(getattr(term.kernel, name))
                    self._pieces.append(("kernel", number, name, values))
            if "weight" in self.learn:
                self._pieces.append(("weight", number, "", _encode_weight(term.weight)))
        if not self._pieces:
            raise InputError(
                "the model must have a pairwise term to learn the parameters of, got none; "
                "add a term or learn unary."
            )
        self.start = np.concatenate([piece[3] for piece in self._pieces])
        self.scale = np.concatenate([self._scale(piece) for piece in self._pieces])
        self.prior = self.start
        if prior is not None:
            self.prior = Parameters(prior, self.learn).start
            if self.prior.shape != self.start.shape:
                raise InputError(
                    f"prior must have the form of the model, got {len(self.prior)} parameters "
                    f"rather than {len(self.start)}; use the same families and forms of widths."
                )

    def _scale(self, piece: tuple[str, int | None, str, Vector]) -> Vector:
        """By how much each entry of a piece moves before the marginals change notably."""
        group, number, _, values = piece
        if number is None:
            return recalibration_scale(self.model).ravel()
        scale = np.full(values.shape, _TYPICAL_CHANGE[group])
        if group == "compatibility":
            compatibility = self.model.terms[number].compatibility
            if isinstance(compatibility, Symmetric):  # not logarithms: relative to the matrix
                scale[:] = _TYPICAL_CHANGE["entry"] * max(float(np.abs(values).max()), 1.0)
        return scale

    def decay(self, l2: Mapping[str, float]) -> Vector:
        """The ridge (P,) of each entry, for changes measured in its typical change.

        l2 : the ridge of each group; "off_diagonal" is its own group of a symmetric mu.
        """
        ridge = as_ridge(l2)
        parts = []
        for group, number, _, values in self._pieces:
            coefficient = np.full(values.shape, ridge.get(group, 0.0))
            if group == "compatibility" and number is not None:
                compatibility = self.model.terms[number].compatibility
                if isinstance(compatibility, Symmetric):
                    rows, columns = np.triu_indices(self.model.n_labels)
                    coefficient[rows != columns] = ridge.get(
                        "off_diagonal", ridge.get("compatibility", 0.0)
                    )
            parts.append(coefficient)
        return np.asarray(np.concatenate(parts) / self.scale**2)

    def build(self, vector: Vector) -> DenseCRF:
        """The model with the values of the vector (P,)."""
        key = vector.tobytes()
        if self._latest is None or self._latest[0] != key:
            try:
                with np.errstate(over="raise"):
                    self._latest = key, self._build(vector)
            except FloatingPointError:
                raise InputError(
                    "parameters must stay finite while they are learned, got a step beyond all "
                    "numbers; lower step_size."
                ) from None
        return self._latest[1]

    def _build(self, vector: Vector) -> DenseCRF:
        recalibration = self.model.recalibration
        changes: list[dict[str, Any]] = [{} for _ in self.model.terms]
        widths: list[dict[str, Any]] = [{} for _ in self.model.terms]
        for (group, number, name, _), values in zip(self._pieces, self._split(vector), strict=True):
            if number is None:
                recalibration = values.reshape(recalibration.shape)
                continue
            term = self.model.terms[number]
            if group == "compatibility":
                changes[number][group] = self._compatibility(term.compatibility, values)
            elif group == "weight":
                changes[number][group] = float(np.exp(values[0]))
            else:
                widths[number][name] = _decode_widths(values, getattr(term.kernel, name))
        terms = []
        for term, changed, wide in zip(self.model.terms, changes, widths, strict=True):
            if wide:
                changed["kernel"] = dataclasses.replace(term.kernel, **wide)
            terms.append(dataclasses.replace(term, **changed) if changed else term)
        return dataclasses.replace(self.model, terms=terms, recalibration=recalibration)

    def chain(self, vector: Vector, gradient: ModelGradient, grid_dim: int) -> Vector:
        """dL / d vector (P,) from the gradient by the model's raw quantities.

        grid_dim : number of axes of the grid.
        """
        parts = []
        current = self.build(vector).terms
        for (group, number, name, _), values in zip(self._pieces, self._split(vector), strict=True):
            if number is None:
                parts.append(gradient.recalibration.ravel())
                continue
            term = self.model.terms[number]
            by_product = gradient.compatibility[number]  # dL / d(w mu)
            weight, mu = current[number].weight, current[number].compatibility
            if group == "compatibility":
                parts.append(
                    self._chain_compatibility(term.compatibility, values, weight * by_product)
                )
            elif group == "weight":
                product = weight * mu.matrix(self.model.n_labels)
                parts.append(np.array([(by_product * product).sum()]))
            else:
                inner = gradient.widths[number]
                blocks = dict(term.kernel.width_blocks(len(inner), grid_dim))
                block = inner[blocks[name], blocks[name]]
                parts.append(_chain_widths(values, getattr(term.kernel, name), block))
        return np.concatenate(parts)

    def _split(self, vector: Vector) -> list[Vector]:
        ends = np.cumsum([len(piece[3]) for piece in self._pieces])[:-1]
        return np.split(vector, ends)

    def _compatibility(self, like: Compatibility, values: Vector) -> Compatibility:
        if isinstance(like, Potts):
            return Potts(float(np.exp(values[0])))
        if isinstance(like, Diagonal):
            return Diagonal(np.exp(values))
        mu = Symmetric(_from_triangle(values))
        return mu.project(len(mu.values)) if self.project else mu

    def _chain_compatibility(self, like: Compatibility, values: Vector, by_mu: Vector) -> Vector:
        if isinstance(like, Potts):
            # b sums to 0 over labels, so that the whole of G does: sum over a != b is -trace.
            return np.array([-np.trace(by_mu) * np.exp(values[0])])
        if isinstance(like, Diagonal):
            return np.asarray(-np.diag(by_mu) * np.exp(values))
        symmetric = 0.5 * (by_mu + by_mu.T)
        if self.project:
            symmetric = project_gradient(symmetric, *project(_from_triangle(values))[1])
        rows, columns = np.triu_indices(len(symmetric))
        return np.asarray(symmetric[rows, columns] * np.where(rows == columns, 1.0, 2.0))


def _as_learnable(learn: Any) -> tuple[str, ...]:
    """Names of what is learned, at least one."""
    given: tuple[Any, ...] = ()
    if isinstance(learn, Iterable) and not isinstance(learn, str):
        with suppress(TypeError):  # an array without axes is iterable and is not
            given = tuple(islice(learn, 1 + len(LEARNABLE)))  # the last is for a message
    if not given or any(not isinstance(name, str) or name not in LEARNABLE for name in given):
        raise InputError(
            f"learn must name some of {', '.join(LEARNABLE)}, got {shown(learn)}; "
            "for example unary, compatibility and kernel."
        )
    return given


def _encode_weight(weight: float) -> Vector:
    if weight <= 0:
        raise InputError(
            f"weights to be learned must start above 0, got {weight:g}; start from a small "
            "positive number."
        )
    return np.log([weight])


def _encode_compatibility(compatibility: Compatibility, n_labels: int) -> Vector:
    if isinstance(compatibility, (Potts, Diagonal)):
        values = np.atleast_1d(
            compatibility.weight if isinstance(compatibility, Potts) else compatibility.alpha
        )
        if (values <= 0).any():
            raise InputError(
                "compatibilities to be learned must start above 0, got "
                f"{float(values.min()):g}; start from a small positive number."
            )
        return np.asarray(np.log(values), np.float64)
    mu = compatibility.matrix(n_labels)
    return np.asarray(mu[np.triu_indices(n_labels)])


def _from_triangle(values: Vector) -> Vector:
    n = int((np.sqrt(8 * len(values) + 1) - 1) / 2)
    mu = np.zeros((n, n))
    mu[np.triu_indices(n)] = values
    return mu + np.triu(mu, 1).T


def _learned_widths(kernel: Kernel) -> list[str]:
    if kernel.shape != "gaussian":
        raise InputError(
            f"only Gaussian kernels can be learned, got shape {kernel.shape!r}; "
            "leave 'kernel' out of what is learned."
        )
    return [name for name in kernel.array_fields if getattr(kernel, name) is not None]


def _encode_widths(widths: Any) -> Vector:
    array = np.asarray(widths, np.float64)
    if array.ndim < 2:
        return np.log(np.atleast_1d(array))
    factor = np.linalg.cholesky(array)
    np.fill_diagonal(factor, np.log(np.diag(factor)))
    return np.asarray(factor[np.tril_indices(len(factor))], np.float64)


def _factor(values: Vector, like: Vector) -> Vector:
    factor = np.zeros_like(like)
    factor[np.tril_indices(len(like))] = values
    np.fill_diagonal(factor, np.exp(np.diag(factor)))
    return factor


def _decode_widths(values: Vector, like: Any) -> Any:
    array = np.asarray(like, np.float64)
    if array.ndim == 0:
        return float(np.exp(values[0]))
    if array.ndim == 1:
        return np.exp(values)
    factor = _factor(values, array)
    return factor @ factor.T


def _chain_widths(values: Vector, like: Any, inner: Vector) -> Vector:
    """From g'f to the encoded widths: f = raw / sigma gives df_d / dlog sigma_d = -f_d, and
    f = C^-1 raw gives dL / dC = -C^-T (g'f), C the Cholesky factor.
    """
    array = np.asarray(like, np.float64)
    if array.ndim == 0:
        return np.array([-np.trace(inner)])
    if array.ndim == 1:
        return np.asarray(-np.diag(inner))
    factor = _factor(values, array)
    by_factor = -np.linalg.solve(factor.T, inner)
    by_factor[np.diag_indices(len(factor))] *= np.diag(factor)
    return np.asarray(by_factor[np.tril_indices(len(factor))])
