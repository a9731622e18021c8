"""A batch through the updates of mean-field inference and back, on the CPU or on any tensors.

Both use the loop of `crfield.dense.meanfield` and the way back of `crfield.dense.gradient`.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from crfield._core.resources import without_locks
from crfield._core.validate import FloatArray, InputError
from crfield.dense.filters import KernelOperator
from crfield.dense.filters.base import LARGEST_FEATURE, GridFeatures
from crfield.dense.filters.compiled import as_features, choose_filter
from crfield.dense.gradient import Gradients, backpropagate, backpropagate_fixed_point
from crfield.dense.meanfield import State, run_parallel
from crfield.dense.problem import FusedProblem, Problem, Sweeps, Term, center_costs, make_problem

GRADIENTS = ("unrolled", "implicit")


@dataclass(frozen=True)
class TermSettings:
    """What a run is told of a pairwise term.

    on_grid : whether its features are the coordinates along the axes of the grid, one axis after
        the other, rather than one row per point.
    """

    on_grid: bool
    shape: str
    normalization: str


@dataclass(frozen=True)
class RunSettings:
    """What a run is told besides tensors; travels through compiled graphs as text.

    max_iter : the number of updates.
    gradient : "unrolled" goes back through every iteration; "implicit" takes the last marginals for
        a fixed point and needs no others.
    recompute : whether marginals are computed again for the way back instead of kept.
    """

    grid: tuple[int, ...]
    terms: tuple[TermSettings, ...]
    algorithm: str
    filter: str
    filter_tol: float
    max_iter: int
    threads: int
    gradient: str
    recompute: bool
    log_marginals: bool
    deterministic: bool

    def to_text(self) -> str:
        """All but the grid in words, simple enough to be put together inside a compiled graph."""
        terms = ",".join(
            [f"{int(t.on_grid)}:{t.shape}:{t.normalization}" for t in self.terms]
        )
        flags = [self.recompute, self.log_marginals, self.deterministic]
        words = [
            terms, self.algorithm, self.filter, str(self.filter_tol), str(self.max_iter),
            str(self.threads), self.gradient, *[str(int(flag)) for flag in flags],
        ]
        return " ".join(words)

    @classmethod
    def from_text(cls, text: str, grid: Sequence[int]) -> RunSettings:
        """What `to_text` wrote."""
        terms, algorithm, filter, filter_tol, max_iter, threads, gradient, *flags = text.split(" ")
        parts = [part.split(":") for part in terms.split(",") if part]
        recompute, log_marginals, deterministic = (flag == "1" for flag in flags)
        return cls(
            grid=tuple(int(n) for n in grid),
            terms=tuple(
                TermSettings(on_grid == "1", shape, normalization)
                for on_grid, shape, normalization in parts
            ),
            algorithm=algorithm, filter=filter, filter_tol=float(filter_tol),
            max_iter=int(max_iter), threads=int(threads), gradient=gradient,
            recompute=recompute, log_marginals=log_marginals, deterministic=deterministic,
        )


def by_compatibility(by_mu: Tensor, compatibility: Tensor) -> Tensor:
    """From the derivative by mu (L, L) to that by what `matrix_of` takes."""
    if compatibility.ndim == 2:
        return by_mu
    own = by_mu.diagonal()
    return by_mu.sum() - own.sum() if compatibility.ndim == 0 else -own


@without_locks
class TensorRun:
    """One batch through all updates, and back.

    unary : (B, N, L) costs.
    compatibilities : of each term with its weight in it, in a form that `matrix_of` takes.
    keep : whether there will be a way back.
    """

    def __init__(
        self, unary: Tensor, operators: Sequence[KernelOperator],
        compatibilities: Sequence[Tensor], settings: RunSettings, *, keep: bool,
    ) -> None:
        if settings.algorithm == "cccp" and any(c.ndim == 2 for c in compatibilities):
            raise InputError(
                "cccp on a GPU, and implicit gradients of it, take Potts and Diagonal "
                'compatibilities, got a matrix; use algorithm="concave".'
            )
        self._shape = unary.shape
        self._unary = unary.reshape(-1, unary.shape[-1])
        self._settings = settings
        self._operators = operators
        self._compatibilities = compatibilities
        kept = keep and settings.gradient == "unrolled" and not settings.recompute
        trace = self._iterate(keep=kept)
        self._last = trace[-1]
        self._trace = trace if kept else None

    @property
    def marginals(self) -> Tensor:
        """(B, N, L)."""
        marginals: Tensor = self._last.marginals.reshape(self._shape)
        return marginals

    @functools.cached_property
    def _problem(self) -> Problem:
        terms = [Term(*pair) for pair in zip(self._operators, self._compatibilities, strict=True)]
        return Problem(self._unary, terms, self._settings.algorithm)

    def _iterate(self, *, keep: bool) -> list[State]:
        """All states, or only the last."""
        trace: list[State] = []
        outcome = run_parallel(
            self._problem, max_iter=self._settings.max_iter, trace=trace if keep else None
        )
        shift = 0.0 if self._settings.max_iter else None
        return trace if keep else [State(outcome.marginals, shift=shift)]

    def backward(self, given: Tensor, widths: Sequence[bool]) -> Gradients:
        """From dL / d marginals, or d log marginals, (B, N, L).

        widths : for each term, whether the gradient by its features is wanted.
        """
        by_log = self._by_log(given)
        if self._settings.gradient == "implicit" and self._settings.max_iter:
            found = backpropagate_fixed_point(self._problem, self._last, by_log, widths=widths)
        else:
            trace = self._iterate(keep=True) if self._trace is None else self._trace
            found = backpropagate(self._problem, trace, by_log, widths=widths)
        found.unary = found.unary.reshape(self._shape)
        found.compatibility = [
            by_compatibility(mu, c)
            for mu, c in zip(found.compatibility, self._compatibilities, strict=True)
        ]
        return found

    def _by_log(self, given: Tensor) -> Tensor:
        """dL / d log marginals as rows, from what came in."""
        given = given.reshape(self._unary.shape)
        return given if self._settings.log_marginals else self._last.marginals * given


def build_native_operator(
    features: Tensor, term: TermSettings, settings: RunSettings, image: int
) -> tuple[KernelOperator, FloatArray | GridFeatures]:
    """The operator of a term on one image of a batch, and the features it is made from."""
    scaled: FloatArray | GridFeatures
    if term.on_grid:
        axes = tuple(axis.double().numpy() for axis in features.split(list(settings.grid)))
        largest = float(features.abs().max())
        if not largest <= LARGEST_FEATURE:  # True for NaN as well
            raise InputError(
                f"positions divided by sigma must not exceed {LARGEST_FEATURE:.1e}, got "
                f"{largest:.3g}; use a larger sigma or a smaller spacing."
            )
        dtype = np.dtype(np.float64 if features.dtype == torch.float64 else np.float32)
        scaled = GridFeatures(axes, None, np.empty(0), dtype)
        if term.shape != "gaussian":
            scaled = scaled.dense()
    else:
        scaled = as_features(features[image].contiguous().numpy())
    operator = choose_filter(
        scaled, term, settings.filter, settings.filter_tol, settings.threads
    )
    return operator, scaled


class NativeRun:
    """A batch, image by image, through all updates, and back; see `TensorRun`."""

    def __init__(
        self, unary: Tensor, features: Sequence[Tensor], compatibilities: Sequence[Tensor],
        settings: RunSettings, *, keep: bool,
    ) -> None:
        self._settings = settings
        self._compatibilities = compatibilities
        self._inputs = (unary, features)
        self.marginals = torch.empty_like(unary, memory_format=torch.contiguous_format)
        self._images: list[tuple[Problem | FusedProblem, list[State]]] | None = None
        if keep and not settings.recompute:
            self._images = []
        for image in range(len(unary)):
            problem, trace = self._infer(image, keep=self._images is not None)
            self.marginals[image] = torch.from_numpy(trace[-1].marginals)
            if self._images is not None:
                self._images.append((problem, trace))
        # Costs without a softmax are NaN here and in every gradient, as in any other layer.
        self._bad: Tensor | None = None
        if not torch.isfinite(unary.sum()):
            bad = unary.isnan() | (unary == -torch.inf)
            self._bad = bad.any(-1) | (unary == torch.inf).all(-1)
            self.marginals[self._bad] = torch.nan

    def _infer(self, image: int, *, keep: bool) -> tuple[Problem | FusedProblem, list[State]]:
        """The problem of an image and all its states, or only the last."""
        unary, features = self._inputs
        settings = self._settings
        costs, _ = center_costs(unary[image].contiguous().numpy(), settings.threads)
        terms = []
        for values, compatibility, term in zip(
            features, self._compatibilities, settings.terms, strict=True
        ):
            operator, scaled = build_native_operator(values, term, settings, image)
            terms.append(Term(operator, compatibility.double().numpy(), scaled))
        problem = make_problem(
            costs, terms, settings.algorithm, settings.threads, keep_states=keep, watched=False
        )
        assert not isinstance(problem, Sweeps)
        trace: list[State] = []
        outcome = run_parallel(
            problem, max_iter=settings.max_iter, trace=trace if keep else None
        )
        return problem, trace if keep else [State(outcome.marginals)]

    def backward(self, given: Tensor, widths: Sequence[bool]) -> Gradients:
        """From dL / d marginals (or d log marginals), (B, N, L)."""
        if self._bad is not None:
            given = given.masked_fill(self._bad[..., None], torch.nan)
        unary = torch.empty_like(given, memory_format=torch.contiguous_format)
        by_mu: list[FloatArray | float] = [0.0] * len(widths)
        by_features: list[list[FloatArray]] = [[] for _ in widths]
        for image in range(len(given)):
            problem, trace = (
                self._infer(image, keep=True) if self._images is None else self._images[image]
            )
            by_log = given[image].contiguous().numpy()
            if not self._settings.log_marginals:
                by_log = by_log * trace[-1].marginals
            found = backpropagate(problem, trace, by_log, widths=widths)
            unary[image] = torch.from_numpy(found.unary)
            by_mu = [total + part for total, part in zip(by_mu, found.compatibility, strict=True)]
            for rows, part in zip(by_features, found.features, strict=True):
                if part is not None:
                    rows.append(part)
        return Gradients(
            unary,
            [
                by_compatibility(torch.as_tensor(part).to(c.dtype), c)
                for part, c in zip(by_mu, self._compatibilities, strict=True)
            ],
            [torch.from_numpy(np.concatenate(rows)) if rows else None for rows in by_features],
        )
