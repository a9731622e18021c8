"""Mean-field inference on CPU tensors through the compiled core."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from crfield._core.threads import thread_count
from crfield._core.validate import FloatArray, InputError
from crfield.dense.compatibility import Compatibility, Diagonal, Potts, Symmetric
from crfield.dense.filters import KernelOperator, make_filter
from crfield.dense.gradient import backpropagate, backpropagate_fused
from crfield.dense.inputs import center_costs
from crfield.dense.kernels import LARGEST_FEATURE, Kernel
from crfield.dense.losses import Labels, Loss, Totals, softmax_jacobian
from crfield.dense.meanfield import Problem, State, Term
from crfield.dense.observation import GridFeatures
from crfield.dense.plan import Plan, make_problem
from crfield.nn.dense.settings import Settings, TermSettings
from crfield.nn.dense.tensor_run import Gradients, by_compatibility

_NO_TRUTH = np.empty(0, np.int64)
_NO_TOTALS = np.empty(0)


def build_native_operator(
    features: Tensor, term: TermSettings, settings: Settings, image: int
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
        scaled = GridFeatures(axes, None, np.empty(0), _numpy_dtype(features))
        if term.shape != "gaussian":
            scaled = scaled.dense()
    else:
        scaled = np.ascontiguousarray(features[image].numpy())
    kernel = Kernel(term.shape, term.normalization)
    operator = make_filter(
        scaled, kernel, settings.method, tol=settings.tol, threads=settings.threads
    )
    return operator, scaled


class NativeRun:
    """A batch, image by image, through n_iter updates, and back; see `TensorRun`."""

    def __init__(
        self, unary: Tensor, features: Sequence[Tensor], compatibilities: Sequence[Tensor],
        settings: Settings, *, keep: bool,
    ) -> None:
        self._settings = settings
        self._threads = thread_count(settings.threads)
        self._compatibilities = compatibilities
        self._inputs = (unary, features)
        self.marginals = torch.empty_like(unary, memory_format=torch.contiguous_format)
        self._images: list[tuple[Problem | Plan, list[State]]] | None = []
        keep = keep and not settings.checkpoint
        for image in range(len(unary)):
            problem, trace = self._infer(image, keep=keep)
            self.marginals[image] = torch.from_numpy(trace[-1].stored)
            if keep:
                self._images.append((problem, trace))
        if not keep:
            self._images = None
        # Costs without a softmax are NaN here and in every gradient, as in any other layer.
        self._bad: Tensor | None = None
        if not torch.isfinite(unary.sum()):
            bad = unary.isnan() | (unary == -torch.inf)
            self._bad = bad.any(-1) | (unary == torch.inf).all(-1)
            self.marginals[self._bad] = torch.nan

    def _infer(self, image: int, *, keep: bool) -> tuple[Problem | Plan, list[State]]:
        unary, features = self._inputs
        settings = self._settings
        costs, _ = center_costs(unary[image].contiguous().numpy(), self._threads)
        terms = []
        for values, compatibility, term in zip(
            features, self._compatibilities, settings.terms, strict=True
        ):
            operator, scaled = build_native_operator(values, term, settings, image)
            terms.append(Term(operator, as_compatibility(compatibility), 1.0, scaled))
        problem = make_problem(costs, terms, settings.algorithm, self._threads, keep_states=keep)
        trace = [problem.start(None, store=keep or settings.n_iter == 0)]
        for t in range(settings.n_iter):
            state = problem.step(trace[-1], 0.0, store=keep or t + 1 == settings.n_iter)
            trace = [*trace, state] if keep else [state]
        return problem, trace

    def backward(self, given: Tensor, widths: Sequence[bool]) -> Gradients:
        """From dL / d marginals (or d log marginals), (B, N, L)."""
        if self._bad is not None:
            given = given.masked_fill(self._bad[..., None], torch.nan)
        unary = torch.empty_like(given, memory_format=torch.contiguous_format)
        n_labels = given.shape[-1]
        by_mu = [np.zeros((n_labels, n_labels)) for _ in widths]
        by_features: list[list[FloatArray]] = [[] for _ in widths]
        for image in range(len(given)):
            problem, trace = (
                self._infer(image, keep=True) if self._images is None else self._images[image]
            )
            loss = _Incoming(given[image].contiguous().numpy(), self._settings.log_marginals)
            if isinstance(problem, Plan) and problem.algorithm == "concave":
                found = backpropagate_fused(
                    problem, trace, loss, _NO_TRUTH, _NO_TOTALS, widths=widths
                )
            else:
                if isinstance(problem, Plan):
                    problem, trace = self._readable(problem)
                found = backpropagate(problem, trace, loss, _NO_TRUTH, _NO_TOTALS, widths=widths)
            unary[image] = torch.from_numpy(found.unary)
            for m, part in enumerate(found.compatibility):
                by_mu[m] += part
            for m, rows in enumerate(found.features):
                if rows is not None:
                    by_features[m].append(rows)
        return Gradients(
            unary,
            [torch.from_numpy(np.concatenate(rows)) if rows else None for rows in by_features],
            [
                by_compatibility(torch.from_numpy(part).to(c.dtype), c)
                for part, c in zip(by_mu, self._compatibilities, strict=True)
            ],
        )

    def _readable(self, plan: Plan) -> tuple[Problem, list[State]]:
        """The run again, operator by operator: fused cccp and parallel updates have no way back."""
        problem = plan.readable()
        trace = [problem.start(None)]
        for _ in range(self._settings.n_iter):
            trace.append(problem.step(trace[-1], 0.0))
        return problem, trace


class _Incoming(Loss):
    """A loss of which only the gradient by the marginals, or by their logarithms, is known."""

    def __init__(self, given: FloatArray, of_logarithm: bool) -> None:
        object.__setattr__(self, "given", given)
        object.__setattr__(self, "of_logarithm", of_logarithm)

    def gradient(self, q: FloatArray, truth: Labels, totals: Totals) -> FloatArray:
        given: FloatArray = self.given  # type: ignore[attr-defined]
        if self.of_logarithm:  # type: ignore[attr-defined]
            return np.asarray(given / np.maximum(q, np.finfo(q.dtype).tiny))
        return given

    def softmax_gradient(self, q: FloatArray, truth: Labels, totals: Totals) -> FloatArray:
        given: FloatArray = self.given  # type: ignore[attr-defined]
        if self.of_logarithm:  # type: ignore[attr-defined]
            return np.asarray(q * given.sum(1, keepdims=True) - given)
        return softmax_jacobian(q, given)


class NativeOperator:
    """Compiled operators of a batch as one on tensors, for `TensorRun`."""

    def __init__(self, operators: Sequence[KernelOperator]) -> None:
        self.operators = operators
        self.is_symmetric = all(operator.is_symmetric for operator in operators)

    def apply(self, x: Tensor) -> Tensor:
        """K x."""
        return self._each(x, "apply")

    def apply_transpose(self, x: Tensor) -> Tensor:
        """K' x."""
        return self._each(x, "apply_transpose")

    def diagonal(self) -> Tensor:
        """K_ii."""
        return torch.from_numpy(np.concatenate([k.diagonal() for k in self.operators]))

    def start_gradient(self) -> NativeGradient:
        """A sum of derivatives by the features, to be added to."""
        return NativeGradient(self.operators)

    def _each(self, x: Tensor, name: str) -> Tensor:
        out = torch.empty_like(x, memory_format=torch.contiguous_format)
        rows = x.contiguous().numpy().reshape(len(self.operators), -1, x.shape[1])
        into = out.numpy().reshape(rows.shape)
        for operator, values, result in zip(self.operators, rows, into, strict=True):
            getattr(operator, name)(values, out=result)
        return out


class NativeGradient:
    """The sums of derivatives of a batch's compiled operators."""

    def __init__(self, operators: Sequence[KernelOperator]) -> None:
        self._sums = [operator.start_gradient() for operator in operators]

    def add(self, u: Tensor, v: Tensor, filtered_v: Tensor, filtered_u: Tensor) -> None:
        """Add d sum(u * K v)."""
        n = len(self._sums)
        parts = [np.split(x.contiguous().numpy(), n) for x in (u, v, filtered_v)]
        for total, a, b, filtered in zip(self._sums, *parts, strict=True):
            total.add(a, b, filtered, np.empty_like(a))

    def add_diagonal(self, s: Tensor) -> None:
        """Add d sum_i s_i K_ii."""
        for total, part in zip(self._sums, np.split(s.numpy(), len(self._sums)), strict=True):
            total.add_diagonal(part)

    def total(self) -> Tensor:
        """The sum (P, D)."""
        return torch.from_numpy(np.concatenate([total.total() for total in self._sums]))


def as_compatibility(values: Tensor) -> Compatibility:
    """The compatibility that `matrix_of` reads from a tensor."""
    array = values.double().numpy()
    if array.ndim == 0:
        return Potts(float(array))
    return Diagonal(array) if array.ndim == 1 else Symmetric(array)


def _numpy_dtype(x: Tensor) -> np.dtype[np.floating]:  # type: ignore[type-arg]
    return np.dtype(np.float64 if x.dtype == torch.float64 else np.float32)
