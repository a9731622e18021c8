"""A dense CRF as the last layer of a network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from crfield._core.resources import thread_count
from crfield._core.validate import InputError, as_choice, as_positive, shown
from crfield.dense.compatibility import Potts
from crfield.dense.kernels import Bilateral, Spatial
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF as Model
from crfield.dense.model import Pairwise
from crfield.nn.dense.function import mean_field
from crfield.nn.dense.run import GRADIENTS, RunSettings, TermSettings
from crfield.nn.dense.term import (
    LEARNABLE,
    PairwiseParameters,
    is_on_grid,
    scaled_features,
    scaled_positions,
)
from crfield.nn.tensors import check_logits, check_tensor

OUTPUTS = ("logits", "marginals")
DEFAULT_MAX_ITER = 5

_DEFAULT_TERMS = (
    Pairwise(Spatial(3.0), Potts(3.0)), Pairwise(Bilateral(60.0, 10.0), Potts(5.0)),
)


class _Values(NamedTuple):
    """Of each term: widths by name, `scaled_positions`, and the weighted compatibility."""

    widths: list[dict[str, Tensor]]
    positions: list[Tensor | None]
    compatibilities: list[Tensor]


class DenseCRF(nn.Module):
    """Mean-field inference in a dense CRF, differentiable by its input and all its parameters.

    Parameters
    ----------
    n_labels : number of labels L, at least 2.
    terms : `crfield.Pairwise` terms; by default positions 3 px, weight 3, and positions and colors
        60 px / 10, weight 5.
    inference : algorithm ("concave", KK13 3.2, "cccp", KK13 3.1, or "parallel", KK11), filter,
        filter_tol, max_iter and threads of a `crfield.Inference`; "concave" and 5 updates if it
        does not say. A layer always does max_iter updates, so that its `tol` is not used.
    output : "logits" (logarithms of the marginals, for a cross-entropy) or "marginals".
    learn : which of "weight", "compatibility" and "kernel" are learned. What must stay positive
        moves by a factor: a `Potts(0)` stays 0.
    gradient : "unrolled" goes back through all updates; "implicit" takes the result for a fixed
        point, which needs the memory of one update and enough of them to converge.
    recompute : compute the marginals again on the way back instead of keeping them.
    spacing : distance between grid neighbors along each axis, for anisotropic volumes.
    deterministic : on a GPU, sum in a fixed order; None follows
        `torch.use_deterministic_algorithms`.

    Examples
    --------
    >>> layer = DenseCRF(21)
    >>> logits = layer(net(image), image)            # doctest: +SKIP
    """

    def __init__(
        self, n_labels: int, terms: Sequence[Pairwise] | None = None, *,
        inference: Inference | None = None, output: str = "logits",
        learn: Collection[str] = LEARNABLE, gradient: str = "unrolled", recompute: bool = False,
        spacing: Any = None, deterministic: bool | None = None,
    ) -> None:
        super().__init__()
        model = Model(n_labels, _DEFAULT_TERMS if terms is None else terms)
        self.n_labels = model.n_labels
        if self.n_labels < 2:
            raise InputError(
                "n_labels must be at least 2 in a layer, got 1; for one logit x per pixel use "
                "2 labels and torch.cat([torch.zeros_like(x), x], 1)."
            )
        self.inference = inference  # type: ignore[assignment]
        self.output = as_choice(output, "output", OUTPUTS)
        self.gradient = as_choice(gradient, "gradient", GRADIENTS)
        self.recompute = bool(recompute)
        self.deterministic = None if deterministic is None else bool(deterministic)
        self.spacing = None if spacing is None else tuple(
            np.atleast_1d(as_positive(spacing, "spacing")).ravel().tolist()
        )
        names = _as_names(learn)
        self._check_terms(model)
        self._remembered: tuple[object, _Values] | None = None
        self.terms = nn.ModuleList(
            PairwiseParameters(term, self.n_labels, names) for term in model.terms
        )

    @classmethod
    def from_model(cls, model: Model, **options: Any) -> DenseCRF:
        """The layer of a `crfield.DenseCRF`, `model`; `options` as for the constructor.

        The algorithm and the number of updates are those that the model was learned with, if it
        was, unless an `inference` among the options says otherwise.
        """
        if not isinstance(model, Model):
            raise InputError(
                f"model must be a crfield.DenseCRF, got {shown(model)}; "
                "open a file with crfield.DenseCRF.load(path)."
            )
        if model.recalibration is not None:
            raise InputError(
                "a layer has no recalibration, got a model with one; put a 1x1 convolution before "
                "the layer, or drop it with dataclasses.replace(model, recalibration=None)."
            )
        asked = options.pop("inference", None) or Inference()
        inference = replace(
            asked,
            algorithm=model.algorithm if asked.algorithm is None else asked.algorithm,
            max_iter=model.max_iter if asked.max_iter is None else asked.max_iter,
        )
        return cls(model.n_labels, model.terms, inference=inference, **options)

    def to_model(self) -> Model:
        """A `crfield.DenseCRF` with the values that the parameters have now."""
        return Model(
            self.n_labels, [term.to_term(concave=self._is_concave) for term in self._parts()],
            algorithm=self.inference.algorithm, max_iter=self.inference.max_iter,
        )

    def forward(
        self, logits: Tensor, image: Tensor | None = None, *,
        features: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Logarithms of the marginals, or the marginals, (B, L, *grid).

        Parameters
        ----------
        logits : (B, L, *grid) of the variables taken alone, a grid of one to three dimensions.
            A pixel whose logits have no softmax, as NaN, comes out as NaN.
        image : (B, C, *grid), for kernels that look at it: integers, or floating-point values on
            the scale of the kernels' widths or within [0, 1].
        features : named (B, D, *grid) tensors for `FeatureKernel` terms.
        """
        check_tensor(logits, "logits")
        with torch.autocast(logits.device.type, enabled=False):
            result = mean_field(*self.prepare(logits, image, features))
        return result.transpose(1, 2).reshape(logits.shape).to(logits.dtype)

    def prepare(
        self, logits: Tensor, image: Tensor | None, features: Mapping[str, Tensor] | None
    ) -> tuple[Tensor, list[Tensor], list[Tensor], RunSettings]:
        """Costs (B, N, L), of each term features (B, N, D) and compatibility (L, L), and settings.

        Arguments are those of `forward`.
        """
        grid = self._check(logits, image, features)
        # Half precision has too few digits for sums over an image.
        work = logits.dtype if logits.dtype == torch.float64 else torch.float32
        unary = logits.to(work).flatten(2).transpose(1, 2).neg().contiguous()
        spacing = [1.0] * len(grid) if self.spacing is None else list(self.spacing)
        if len(spacing) not in (1, len(grid)):
            raise InputError(
                f"spacing must be one number or {len(grid)} numbers for this grid, got "
                f"{len(spacing)}; give one distance for each grid axis."
            )
        spacing = spacing * (len(grid) // len(spacing))
        known = self._values(grid, spacing, unary)
        scaled = [
            scaled_features(
                term.kernel, widths, positions, grid, image, features or {}, unary
            ).contiguous()
            for term, widths, positions in zip(
                self._parts(), known.widths, known.positions, strict=True
            )
        ]
        return unary, scaled, known.compatibilities, self._settings(grid)

    def _values(self, grid: tuple[int, ...], spacing: Sequence[float], like: Tensor) -> _Values:
        """What follows from the parameters alone; without gradients it is remembered."""
        remembers = not torch.is_grad_enabled() and not torch.compiler.is_compiling()
        key: tuple[object, ...] = ()
        if remembers:
            # By value: there are ways to write to parameters that leave no trace on them.
            numbers = [
                x.reshape(-1) for p in self._parts()
                for x in (*p._parameters.values(), *p._buffers.values()) if x is not None
            ]
            key = (
                grid, tuple(spacing), self.inference.algorithm, like.dtype, like.device,
                tuple(id(p.kernel) for p in self._parts()),
                tuple(torch.cat(numbers).tolist()) if numbers else (),
            )
        if remembers and self._remembered is not None and self._remembered[0] == key:
            return self._remembered[1]
        parts = self._parts()
        widths = [{k: v.to(like) for k, v in p.decoded_widths().items()} for p in parts]
        values = _Values(
            widths,
            [
                scaled_positions(p.kernel, w, grid, spacing, like)
                for p, w in zip(parts, widths, strict=True)
            ],
            [p.weighted_compatibility(concave=self._is_concave).to(like) for p in parts],
        )
        if remembers:
            self._remembered = (key, values)
        return values

    def _apply(self, *arguments: Any, **options: Any) -> DenseCRF:
        self._remembered = None  # may lie on the device that the layer leaves
        return super()._apply(*arguments, **options)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_remembered": None}

    def extra_repr(self) -> str:
        return (
            f"n_labels={self.n_labels}, inference={self.inference}, output={self.output!r}, "
            f"gradient={self.gradient!r}"
        )

    @property
    def inference(self) -> Inference:
        """How inference is done, with an algorithm and a number of updates."""
        return self._inference

    @inference.setter
    def inference(self, inference: Inference | None) -> None:
        self._inference = _as_inference(inference)

    @property
    def _is_concave(self) -> bool:
        """Whether the algorithm has a guarantee, which compatibilities are kept within."""
        return self.inference.algorithm != "parallel"

    def _parts(self) -> Sequence[PairwiseParameters]:
        return [term for term in self.terms if isinstance(term, PairwiseParameters)]

    def _settings(self, grid: tuple[int, ...]) -> RunSettings:
        deterministic = self.deterministic
        if deterministic is None:
            deterministic = torch.are_deterministic_algorithms_enabled()
        inference = self.inference
        algorithm, max_iter = inference.algorithm, inference.max_iter
        assert algorithm is not None
        assert max_iter is not None
        return RunSettings(
            grid=grid,
            terms=tuple(
                TermSettings(is_on_grid(p.kernel), p.kernel.shape, p.kernel.normalization)
                for p in self._parts()
            ),
            algorithm=algorithm, filter=inference.filter, filter_tol=inference.filter_tol,
            max_iter=max_iter, threads=thread_count(inference.threads), gradient=self.gradient,
            recompute=self.recompute, log_marginals=self.output == "logits",
            deterministic=deterministic,
        )

    def _check(
        self, logits: Tensor, image: Tensor | None, features: Mapping[str, Tensor] | None
    ) -> tuple[int, ...]:
        check_logits(logits)
        shape = tuple(logits.shape)
        if not 3 <= len(shape) <= 5 or shape[1] != self.n_labels:
            raise InputError(
                f"logits must have shape (B, {self.n_labels}, *grid) with a grid of one to three "
                f"dimensions, got {shape}; put the batch first and the labels second."
            )
        if image is not None:
            check_tensor(image, "image", logits)
        if features is not None and not isinstance(features, Mapping):
            raise InputError(
                f"features must be a dict of named tensors, got {type(features).__name__}; "
                'pass features={"name": tensor}.'
            )
        return shape[2:]

    def _check_terms(self, model: Model) -> None:
        """Refuse kernels that cannot be summed or whose updates have no guarantee."""
        for number, term in enumerate(model.terms):
            if self.inference.filter == "lattice" and term.kernel.shape != "gaussian":
                raise InputError(
                    f"the lattice takes Gaussian kernels only, got shape {term.kernel.shape!r} in "
                    f'term {number}; use inference=Inference(filter="exact") or "auto".'
                )
            if self._is_concave and not term.kernel.is_symmetric:
                raise InputError(
                    f"term {number} has no convergence guarantee with "
                    f"{self.inference.algorithm!r}: its kernel's normalization must be 'symmetric' "
                    f"or 'none', got {term.kernel.normalization!r}; change it or use "
                    "inference=Inference('parallel')."
                )


def _as_inference(inference: Inference | None) -> Inference:
    """With an algorithm and a number of updates."""
    if inference is None:
        inference = Inference()
    if not isinstance(inference, Inference):
        raise InputError(
            f"inference must be a crfield.Inference, got {shown(inference)}; "
            'for example Inference("concave", max_iter=5).'
        )
    if inference.algorithm == "sequential":
        raise InputError(
            "a layer's updates are parallel, got algorithm 'sequential'; use 'concave', 'cccp' or "
            "'parallel'."
        )
    max_iter = inference.max_iter
    return replace(
        inference, algorithm=inference.algorithm or "concave",
        max_iter=DEFAULT_MAX_ITER if max_iter is None else max_iter,
    )


def _as_names(learn: Any) -> tuple[str, ...]:
    try:
        names = (learn,) if isinstance(learn, str) else tuple(learn)
    except TypeError:
        raise InputError(
            f"learn must be some of {', '.join(map(repr, LEARNABLE))}, got {shown(learn)}; "
            "() learns nothing."
        ) from None
    return tuple(as_choice(name, "learn", LEARNABLE) for name in names)
