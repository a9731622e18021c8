"""The dense CRF: unary costs of each variable and kernel terms between all pairs of variables.

    E(x) = sum_i u_i(x_i) + sum_{i<j} sum_m w^(m) mu^(m)(x_i, x_j) k^(m)(f_i, f_j)

(KK13 eq. 1 and 2).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from crfield._core.resources import thread_count
from crfield._core.validate import (
    LARGEST_COMPATIBILITY,
    MAX_LABELS,
    FloatArray,
    InputError,
    as_array,
    as_choice,
    as_count,
    as_floats,
    as_positive,
    as_positive_number,
    as_scalar,
    as_whole_numbers,
    check_memory,
    refuse_where,
    short_repr,
    shown,
    working_dtype,
)
from crfield.dense.compatibility import Compatibility
from crfield.dense.context import CONTEXTS, as_contexts, context_features, context_names
from crfield.dense.files import load_fields, save_model
from crfield.dense.filters import KeptFilters
from crfield.dense.inputs import (
    as_costs,
    as_start,
    check_inference_memory,
    grid_of,
    warn_of_probabilities,
)
from crfield.dense.kernels import Kernel
from crfield.dense.meanfield import ALGORITHMS, Callback, Inference, run_parallel
from crfield.dense.observation import Observation, Window, observe
from crfield.dense.problem import build_terms, center_costs, check_guarantee, make_problem
from crfield.dense.results import InferenceResult, InferenceStatus

# What `infer` does if neither its caller nor the model says.
DEFAULT_ALGORITHM, DEFAULT_MAX_ITER = "concave", 10


@dataclass(frozen=True, eq=False, repr=False)
class Pairwise:
    """One pairwise term: weight mu(x_i, x_j) k(f_i, f_j), mu the compatibility, k the kernel."""

    kernel: Kernel
    compatibility: Compatibility
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.kernel, Kernel):
            raise InputError(
                f"kernel must be Spatial, Bilateral or FeatureKernel, got {shown(self.kernel)}; "
                "for example Pairwise(Spatial(3), Potts(3))."
            )
        if not isinstance(self.compatibility, Compatibility):
            raise InputError(
                "compatibility must be Potts, Diagonal or Symmetric, got "
                f"{shown(self.compatibility)}; for example Pairwise(Spatial(3), Potts(3))."
            )
        weight = as_scalar(self.weight, "weight")
        largest = float(np.abs(self.compatibility.numbers).max())
        if not abs(weight) * largest <= LARGEST_COMPATIBILITY:
            raise InputError(
                f"weight times compatibility must not exceed {LARGEST_COMPATIBILITY:g} in "
                f"magnitude, got {weight:.3g} times {largest:.3g}; use smaller ones."
            )
        object.__setattr__(self, "weight", weight)

    def __repr__(self) -> str:
        return short_repr(self, "kernel", "compatibility")


@dataclass(frozen=True, eq=False, repr=False)
class DenseCRF:
    """A fully connected CRF over images, volumes or points; holds parameters only.

    Parameters
    ----------
    n_labels : number of labels L.
    terms : `Pairwise` terms; none makes the variables independent.
    recalibration : (L, L + 1) matrix R or None. Costs c are replaced by R [c, 1] before inference:
        a logistic unary (KK13 section 4.2) on a classifier's log-probabilities.
    context : what else the recalibration sees, some of "presence" (of each label in the image),
        "position" and "color": R is (L, L + F + 1) then and the costs become R [c, context, 1].
        `with_context` makes a model that can learn it.
    algorithm, max_iter : what `infer` does unless told otherwise, "concave" and 10 if None.
        They are part of a learned model, whose parameters suit them.
    size : the longest side of the images that the widths suit, by which `refine(scale="auto")`
        knows how to rescale them; None if it is not known.

    Examples
    --------
    >>> crf = DenseCRF(21, terms=[Pairwise(Spatial(3), Potts(3)),
    ...                           Pairwise(Bilateral(80, 13), Potts(10))])
    >>> result = crf.infer(image, unary)             # doctest: +SKIP
    """

    n_labels: int
    terms: Sequence[Pairwise] = ()
    recalibration: Any = None
    context: Sequence[str] = ()
    algorithm: str | None = None
    max_iter: int | None = None
    size: float | None = None

    def __post_init__(self) -> None:
        count = as_count(self.n_labels, "n_labels", maximum=MAX_LABELS)
        object.__setattr__(self, "n_labels", count)
        if self.algorithm is not None:
            as_choice(self.algorithm, "algorithm", ALGORITHMS)
        if self.max_iter is not None:
            object.__setattr__(self, "max_iter", as_count(self.max_iter, "max_iter", 0))
        if self.size is not None:
            object.__setattr__(self, "size", as_positive_number(self.size, "size"))
        try:
            terms = tuple(self.terms)
        except TypeError:
            raise InputError(
                f"terms must be a list of Pairwise, got {shown(self.terms)}; "
                "for example [Pairwise(Spatial(3), Potts(3))]."
            ) from None
        for number, term in enumerate(terms):
            if not isinstance(term, Pairwise):
                raise InputError(
                    f"terms[{number}] must be a Pairwise, got {type(term).__name__}; "
                    "for example Pairwise(Spatial(3), Potts(3))."
                )
            term.compatibility.check_size(self.n_labels)
        object.__setattr__(self, "terms", terms)
        contexts = () if self.context == () else as_contexts(self.context)
        object.__setattr__(self, "context", contexts)
        if self.recalibration is not None:
            matrix = as_floats(self.recalibration, "recalibration", np.dtype(np.float64)).copy()
            wide = bool(contexts) and matrix.ndim == 2 and matrix.shape[1] > count + 1
            if matrix.shape != (count, count + 1) and not (wide and len(matrix) == count):
                more = f"more than {count + 1} columns" if contexts else f"{count + 1} columns"
                raise InputError(
                    f"recalibration must have {count} rows and {more}, got shape {matrix.shape}; "
                    "give one row per label, with the constant last."
                )
            object.__setattr__(self, "recalibration", matrix)
        elif contexts:
            raise InputError(
                f"context is for the recalibration to look at, got {', '.join(contexts)} without "
                "one; use model.with_context(...)."
            )

    def infer(
        self,
        image: Any,
        unary: Any,
        *,
        features: Mapping[str, Any] | None = None,
        algorithm: str | None = None,
        filter: str = "auto",
        filter_tol: float = 0.0,
        max_iter: int | None = None,
        tol: float = 1e-3,
        threads: int | None = None,
        init: Any = None,
        callback: Callback | None = None,
        mask: Any = None,
        spacing: Any = None,
        positions: Any = None,
        layout: str = "channels_last",
        window: Window | None = None,
        kept: KeptFilters | None = None,
        check: bool = True,
    ) -> InferenceResult:
        """Approximate marginals of the labels.

        Parameters
        ----------
        image : (*grid,) or (*grid, C) array, or None if no kernel looks at it.
        unary : (*grid, L) costs; float64 is computed in float64, everything else in float32.
        features : named features (N, D) for `FeatureKernel` terms.
        algorithm : "concave" (KK13 3.2), "cccp" (KK13 3.1), "parallel" (KK11, no guarantee) or
            "sequential" (one variable at a time, small N); None is the model's.
        filter : "auto", "lattice" or "exact"; `filter_tol` lets "exact" skip pairs below it.
        max_iter, tol : stop after so many iterations, None for the model's number, or when no
            marginal moves by more than tol.
        threads : native threads, None for all cores.
        init : (*grid, L) marginals to start from instead of softmax(-unary).
        callback : called as callback(iteration, marginals (N, L), free_energy); True stops.
        mask : boolean (*grid,); variables outside keep softmax(-unary) and exert no influence.
        spacing : distance between grid neighbors along each axis, for anisotropic volumes.
        positions : (N, d) coordinates for sets of points without a grid.
        layout : "channels_first" for unary (and init) of shape (L, *grid).
        window : where the grid lies in a larger one that it is a part of, a
            `crfield.dense.observation.Window`; filters then work as they would on the whole.
        kept : a `crfield.dense.filters.KeptFilters`, to build the filters of an image once
            while its unaries change.
        check : False runs "concave" on models that have no guarantee of convergence.
        """
        n_threads = thread_count(threads)
        inference = Inference(
            self.algorithm if algorithm is None else algorithm, filter, filter_tol,
            self.max_iter if max_iter is None else max_iter, tol, n_threads,
        )
        _check_options(callback, kept)
        values = as_array(unary, "unary")
        observation = observe(
            grid_of(values.shape, self.n_labels, layout), image, features, spacing, positions, mask,
            window,
        )
        check_inference_memory(working_dtype(values), self.n_labels, len(self.terms), observation)
        given, most = as_costs(values, layout, observation, n_threads)
        warn_of_probabilities(given, most)
        costs = self.recalibrate(self.unary_features(given, observation))
        start = None if init is None else as_start(init, costs, layout, observation)
        return self._descend(
            costs, most if costs is given else None, observation, inference, start, callback, kept,
            check=check,
        )

    def _descend(
        self, costs: FloatArray, most: float | None, observation: Observation,
        inference: Inference, start: FloatArray | None, callback: Callback | None,
        kept: KeptFilters | None, *, check: bool,
    ) -> InferenceResult:
        """Inference on checked costs (*grid, L), `most` a bound on them if one is known."""
        algorithm = inference.algorithm or DEFAULT_ALGORITHM
        max_iter = DEFAULT_MAX_ITER if inference.max_iter is None else inference.max_iter
        assert inference.threads is not None
        flat = observation.select(costs.reshape(-1, self.n_labels))
        centered, offset = center_costs(flat, inference.threads, most)
        terms = build_terms(self.terms, observation, costs.dtype, inference, kept)
        guarded = check_guarantee(terms, algorithm, self.n_labels, check)
        problem = make_problem(
            centered, terms, algorithm, inference.threads, fused=start is None
        )
        outcome = run_parallel(
            problem, init=start, max_iter=max_iter, tol=inference.tol, guarded=guarded,
            callback=None if callback is None else _with_offset(callback, offset),
        )
        return InferenceResult(
            marginals=self._to_grid(outcome.marginals, costs, observation),
            free_energies=outcome.free_energies + offset,
            n_iter=outcome.n_iter,
            converged=outcome.status is InferenceStatus.CONVERGED,
            status=outcome.status,
            label_ids=np.arange(self.n_labels),
            shifts=outcome.shifts,
            image=observation.image,
        )

    def energy(
        self,
        image: Any,
        labels: Any,
        unary: Any,
        *,
        features: Mapping[str, Any] | None = None,
        filter: str = "auto",
        filter_tol: float = 0.0,
        threads: int | None = None,
        mask: Any = None,
        spacing: Any = None,
        positions: Any = None,
        layout: str = "channels_last",
    ) -> float:
        """E(x) of labels (*grid,), every pair of different variables counted once.

        E(x) = sum_i u_i(x_i) + sum_{i<j} sum_m mu^(m)(x_i, x_j) k^(m)(f_i, f_j); image, unary and
        the rest are as for `infer`.
        """
        n_threads = thread_count(threads)
        inference = Inference(filter=filter, filter_tol=filter_tol, threads=n_threads)
        values = as_array(unary, "unary")
        grid = grid_of(values.shape, self.n_labels, layout)
        x = as_whole_numbers(labels, "labels", grid, "pass one label per variable")
        refuse_where(
            (x < 0) | (x >= self.n_labels), x, f"labels must lie in 0..{self.n_labels - 1}",
            "every variable needs a label",
        )
        observation = observe(grid, image, features, spacing, positions, mask)
        check_inference_memory(
            working_dtype(values), self.n_labels, len(self.terms), observation
        )
        given, _ = as_costs(values, layout, observation, n_threads)
        costs = self.recalibrate(self.unary_features(given, observation))
        chosen = observation.select(x.reshape(-1)).astype(np.intp)
        flat = observation.select(costs.reshape(-1, self.n_labels))
        onehot = np.zeros(flat.shape, costs.dtype)
        onehot[np.arange(len(chosen)), chosen] = 1.0
        total = float(flat[np.arange(len(chosen)), chosen].sum(dtype=np.float64))
        for term in build_terms(self.terms, observation, costs.dtype, inference):
            mu = term.matrix(self.n_labels)
            pairs = onehot.T.astype(np.float64) @ term.operator.apply(onehot)
            own = (term.operator.diagonal() * np.diag(mu)[chosen]).sum(dtype=np.float64)
            total += 0.5 * (float((mu * pairs).sum()) - float(own))
        return total

    def chosen_algorithm(self, algorithm: str | None) -> str:
        """The algorithm asked for, or the model's if that is None."""
        if algorithm is None:
            return DEFAULT_ALGORITHM if self.algorithm is None else self.algorithm
        return as_choice(algorithm, "algorithm", ALGORITHMS)

    def unary_features(self, costs: FloatArray, observation: Observation) -> FloatArray:
        """What the recalibration sees of costs (*grid, L): the costs, then the context.

        observation : the image and what else was given, checked.
        """
        if not self.context:
            return costs
        added = context_features(self.context, costs, observation)
        features = np.concatenate([costs.reshape(len(added), -1), added], axis=1)
        if features.shape[1] + 1 != self.recalibration.shape[1]:
            raise InputError(
                f"the recalibration has {self.recalibration.shape[1]} columns, but this image "
                f"gives it {features.shape[1] + 1} numbers per variable; use images with the "
                "dimensions and channels of those that the model was made for."
            )
        return features.reshape(*costs.shape[:-1], -1)

    def recalibrate(self, features: FloatArray) -> FloatArray:
        """R [h, 1] (*grid, L) for features h of `unary_features`, or the costs as they are."""
        if self.recalibration is None:
            return features
        matrix = self.recalibration.astype(features.dtype)
        return np.ascontiguousarray(features @ matrix[:, :-1].T + matrix[:, -1])

    def with_context(
        self, context: Sequence[str] = CONTEXTS, grid_dim: int = 2, n_channels: int = 3
    ) -> DenseCRF:
        """The same model with a recalibration that can learn to use more than the costs.

        Parameters
        ----------
        context : some of "presence", "position" and "color".
        grid_dim, n_channels : of the images that it will see.
        """
        if self.context:
            raise InputError(
                f"the model looks at {', '.join(self.context)} already; "
                "add context to one that does not."
            )
        n, contexts = self.n_labels, as_contexts(context)
        added = len(context_names(contexts, [""] * n, grid_dim, n_channels))
        matrix = no_recalibration(n) if self.recalibration is None else self.recalibration
        widened = np.insert(matrix, [n] * added, 0.0, axis=1)
        return replace(self, recalibration=widened, context=contexts)

    def rescaled(self, factor: float, grid_dim: int = 2) -> DenseCRF:
        """The same model for images whose sides are `factor` times as many pixels: widths in space
        grow with them, colors and weights stay, because normalized kernels average.

        grid_dim : how many of a joint covariance's features are positions.
        """
        positive = float(as_positive(as_scalar(factor, "factor"), "factor"))
        terms = [
            replace(term, kernel=term.kernel.rescaled(positive, grid_dim)) for term in self.terms
        ]
        return replace(self, terms=terms, size=None if self.size is None else positive * self.size)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a safetensors file at `path`; it appears whole or not at all."""
        save_model(path, self)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> DenseCRF:
        """Read a model that `save` wrote to `path`; nothing in the file is executed."""
        fields = load_fields(path)
        return cls(**{**fields, "terms": [Pairwise(**term) for term in fields["terms"]]})

    def __repr__(self) -> str:
        return short_repr(self, "n_labels", "terms")

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from crfield.show.notebook import model_table

        return model_table(self.n_labels, self.terms)

    def _to_grid(
        self, marginals: FloatArray, costs: FloatArray, observation: Observation
    ) -> FloatArray:
        if observation.selected is None:
            return marginals.reshape(costs.shape).astype(costs.dtype, copy=False)
        flat = costs.reshape(-1, self.n_labels)
        whole = np.exp(flat.min(1, keepdims=True) - flat)
        whole /= whole.sum(1, keepdims=True)
        whole[observation.selected] = marginals
        return np.asarray(whole.reshape(costs.shape))


def no_recalibration(n_labels: int) -> FloatArray:
    """The recalibration (L, L + 1) that leaves costs as they are."""
    check_memory(
        24.0 * n_labels**2, f"a recalibration of {n_labels} labels", "use fewer labels"
    )
    return np.eye(n_labels, n_labels + 1)


def _check_options(callback: Any, kept: Any) -> None:
    if callback is not None and not callable(callback):
        raise InputError(
            f"callback must be callable, got {shown(callback)}; pass a function of (iteration, "
            "marginals, free_energy)."
        )
    if kept is not None and not isinstance(kept, KeptFilters):
        raise InputError(
            f"kept must be a KeptFilters, got {shown(kept)}; make one with KeptFilters()."
        )


def _with_offset(callback: Callback, offset: float) -> Callback:
    """The callback, told the free energy of the unary as given rather than centered."""
    return lambda iteration, marginals, energy: callback(iteration, marginals, energy + offset)
