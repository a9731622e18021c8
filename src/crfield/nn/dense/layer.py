"""A dense CRF as the last layer of a network."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from crfield._core.resources import thread_count
from crfield._core.validate import InputError, as_choice, as_positive, image_size, shown
from crfield.dense.compatibility import Potts
from crfield.dense.kernels import Bilateral, Spatial, warn_of_normalized
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
from crfield.nn.tensors import can_look, check_logits, check_tensor, memory_format_of
from crfield.unary.defaults import BILATERAL, BILATERAL_WEIGHT, SIZES, SPATIAL, SPATIAL_WEIGHT

OUTPUTS = ("logits", "marginals")
DEFAULT_MAX_ITER = 5

# Those of `refine` for probabilities.
_DEFAULT_TERMS = (
    Pairwise(Spatial(SPATIAL), Potts(SPATIAL_WEIGHT)),
    Pairwise(Bilateral(*BILATERAL["probabilities"]), Potts(BILATERAL_WEIGHT["probabilities"])),
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
        60 px / 8, weight 3, those of `refine` for images of the `size` 320.
    inference : algorithm ("concave", KK13 3.2, "cccp", KK13 3.1, or "parallel", KK11), filter,
        filter_tol, max_iter and threads of a `crfield.Inference`; "concave" and 5 updates if it
        does not say. A layer always does max_iter updates, so that its `tol` is not used.
    output : "logits" (logarithms of the marginals, for a cross-entropy) or "marginals".
    learn : which of "weight", "compatibility" and "kernel" are learned. What must stay positive
        moves by a factor: a `Potts(0)` stays 0.
    gradient : "unrolled" goes back through all updates; "implicit" takes the result for a fixed
        point, which needs the memory of one update and enough of them to converge.
    recompute : compute the marginals again on the way back instead of keeping them.
    spacing : distance between grid neighbors along each axis, for anisotropic volumes, where a call
        does not give its own.
    size : the longest side of images that the widths in space are for; for others they grow in
        proportion. None keeps given terms as they are. To learn from crops
        of the images that the layer is for, give the terms.
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
        spacing: Any = None, size: float | None = None, deterministic: bool | None = None,
        **unknown: Any,
    ) -> None:
        super().__init__()
        _refuse_unknown(unknown)
        if terms is None and size is None:
            size = SIZES["probabilities"]
        model = Model(n_labels, _DEFAULT_TERMS if terms is None else terms, size=size)
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
        self.spacing = _as_spacing(spacing)
        self.size = model.size
        names = _as_names(learn)
        self._check_terms(model)
        self._remembered: tuple[object, _Values] | None = None
        self._known_kinds: set[tuple[object, ...]] = set()
        self.terms = nn.ModuleList(
            PairwiseParameters(term, self.n_labels, names) for term in model.terms
        )

    @classmethod
    def from_model(cls, model: Model, **options: Any) -> DenseCRF:
        """The layer of a `crfield.DenseCRF`, `model`; `options` as for the constructor.

        The algorithm and the number of updates are those that the model was learned with, if it
        was, unless an `inference` among the options says otherwise. Widths are those of the model
        for images of every size, as in `model.infer`; `size=model.size` rescales them.
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
            algorithm=self.inference.algorithm, max_iter=self.inference.max_iter, size=self.size,
        )

    def forward(
        self, logits: Tensor, image: Tensor | None = None, *,
        features: Mapping[str, Tensor] | None = None, spacing: Any = None,
    ) -> Tensor:
        """Logarithms of the marginals, or the marginals, (B, L, *grid), in the memory format of the
        logits.

        Parameters
        ----------
        logits : (B, L, *grid) of the variables taken alone, a grid of one to three dimensions.
            A pixel whose logits have no softmax, as NaN, comes out as NaN.
        image : (B, C, *grid), for kernels that look at it: integers, or floating-point values on
            the scale of the kernels' widths or within [0, 1].
        features : named (B, D, *grid) tensors for `FeatureKernel` terms.
        spacing : of the grids of this batch, instead of the layer's.
        """
        check_tensor(logits, "logits")
        with torch.autocast(logits.device.type, enabled=False):
            result = mean_field(*self.prepare(logits, image, features, spacing))
        # Losses and view() count on the order in memory; a copy takes 2 % of a call at most.
        return result.transpose(1, 2).reshape(logits.shape).to(logits.dtype).contiguous(
            memory_format=memory_format_of(logits)
        )

    def prepare(
        self, logits: Tensor, image: Tensor | None, features: Mapping[str, Tensor] | None,
        spacing: Any = None,
    ) -> tuple[Tensor, list[Tensor], list[Tensor], RunSettings]:
        """Costs (B, N, L), of each term features (B, N, D) and compatibility (L, L), and settings.

        Arguments are those of `forward`.
        """
        grid = self._check(logits, image, features)
        # Half precision has too few digits for sums over an image.
        work = logits.dtype if logits.dtype == torch.float64 else torch.float32
        unary = logits.to(work).flatten(2).transpose(1, 2).neg().contiguous()
        known = self._values(grid, self._steps(grid, spacing), unary)
        scaled = [
            scaled_features(
                term.kernel, widths, positions, grid, image, features or {}, unary
            ).contiguous()
            for term, widths, positions in zip(
                self._parts(), known.widths, known.positions, strict=True
            )
        ]
        return unary, scaled, known.compatibilities, self._settings(grid)

    def _steps(self, grid: tuple[int, ...], spacing: Any) -> list[float]:
        """Distances along each axis of the grid, in the units of the widths."""
        steps = list((self.spacing if spacing is None else _as_spacing(spacing)) or (1.0,))
        if len(steps) not in (1, len(grid)):
            raise InputError(
                f"spacing must be one number or {len(grid)} numbers for this grid, got "
                f"{len(steps)}; give one distance for each grid axis."
            )
        steps = steps * (len(grid) // len(steps))
        if self.size is None:
            return steps
        growth = image_size(grid, steps) / self.size
        return [step / growth for step in steps]

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
        size = "" if self.size is None else f", size={self.size:g}"
        return (
            f"{self.n_labels}, inference={self.inference}, output={self.output!r}, "
            f"gradient={self.gradient!r}{size}"
        )

    def get_extra_state(self) -> Tensor:
        """What the state holds beside parameters: the size that widths are for, (), 0 for None."""
        return torch.tensor(self.size or 0.0, dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """Take over the size () of a state."""
        self.size = float(state) or None

    @property
    def inference(self) -> Inference:
        """How inference is done, with an algorithm and a number of updates."""
        return self._inference

    @inference.setter
    def inference(self, inference: Inference | None) -> None:
        self._inference = _as_inference(inference)
        self._threads = thread_count(self._inference.threads)

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
            max_iter=max_iter, threads=self._threads, gradient=self.gradient,
            recompute=self.recompute, log_marginals=self.output == "logits",
            deterministic=deterministic,
        )

    def _check(
        self, logits: Tensor, image: Tensor | None, features: Mapping[str, Tensor] | None
    ) -> tuple[int, ...]:
        check_logits(logits)
        shape = tuple(logits.shape)
        if not 3 <= len(shape) <= 5 or shape[1] != self.n_labels:
            elsewhere = shape[-1:] + (shape[:1] if len(shape) == 3 else ())
            if 3 <= len(shape) <= 5 and self.n_labels not in elsewhere:
                raise InputError(
                    f"the layer is for {self.n_labels} labels, got {shape[1]} in logits of shape "
                    f"{shape}; make it with n_labels={shape[1]}, or put the labels second."
                )
            raise InputError(
                f"logits must have shape (B, {self.n_labels}, *grid) with a grid of one to three "
                f"dimensions, got {shape}; put the batch first and the labels second."
            )
        if image is not None:
            check_tensor(image, "image", logits)
            self._look_at(image)
        if features is not None and not isinstance(features, Mapping):
            raise InputError(
                f"features must be a dict of named tensors, got {type(features).__name__}; "
                'pass features={"name": tensor}.'
            )
        return shape[2:]

    def _look_at(self, image: Tensor) -> None:
        """Warn of a normalized image, once for each kind of image."""
        kind = (image.dtype, image.shape[1:2])
        if torch.compiler.is_compiling() or kind in self._known_kinds:
            return
        found = image.dtype.is_floating_point and bool((image < 0).any()) and warn_of_normalized(
            image.detach().float(), (part.kernel for part in self._parts())
        )
        if found or not can_look(image):  # a GPU has to be waited for, so only the first image is
            self._known_kinds.add(kind)

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


def _refuse_unknown(options: Mapping[str, Any]) -> None:
    """Refuse keywords that a layer does not have, and say where those of inference belong."""
    for name, value in options.items():
        remedy = "see help(crfield.nn.DenseCRF)"
        if name in (field.name for field in fields(Inference)):
            remedy = f"pass inference=Inference({name}={shown(value)})"
        raise TypeError(f"a layer has no option {name!r}, got {name}={shown(value)}; {remedy}.")


def _as_spacing(spacing: Any) -> tuple[float, ...] | None:
    if spacing is None:
        return None
    return tuple(np.atleast_1d(as_positive(spacing, "spacing")).ravel().tolist())


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
