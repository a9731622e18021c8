"""Mean-field inference as a function that torch can differentiate and compile.

In eager mode one `autograd.Function` keeps what the way back needs until that has been gone.
Inside `torch.compile` the same run is a pair of registered operators: what the forward one built is
kept for the backward one if no more than a few runs lie between them, and computed again otherwise.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from crfield.dense.compatibility import matrix_of
from crfield.nn.dense.run import (
    NativeRun,
    RunSettings,
    TensorRun,
    by_compatibility,
)

Run = NativeRun | TensorRun


def mean_field(
    unary: Tensor, features: Sequence[Tensor], compatibilities: Sequence[Tensor],
    settings: RunSettings,
) -> Tensor:
    """Marginals (B, N, L), or their logarithms, of costs (B, N, L).

    features : for each term scaled features (B, N, D), or scaled coordinates along all axes.
    compatibilities : for each term, with its weight in it, a Potts weight (), attractions (L,) or
        a symmetric matrix (L, L).
    """
    if torch.compiler.is_compiling():
        keep = torch.is_grad_enabled() and any(
            x.requires_grad for x in (unary, *features, *compatibilities)
        )
        marginals, _ = compiled_forward(
            unary, list(features), list(compatibilities), list(settings.grid), settings.to_text(),
            keep,
        )
    else:
        marginals = _MeanField.apply(settings, len(features), unary, *features, *compatibilities)
    return marginals


def _start(
    unary: Tensor, features: Sequence[Tensor], compatibilities: Sequence[Tensor],
    settings: RunSettings, *, keep: bool,
) -> Run:
    unary = unary.detach()
    # The same objects where that is possible: operators on them may be remembered.
    features = [values.detach() if values.requires_grad else values for values in features]
    compatibilities = [values.detach() for values in compatibilities]
    if unary.device.type == "cpu" and settings.gradient == "unrolled":
        return NativeRun(unary, features, compatibilities, settings, keep=keep)
    from crfield.nn.dense.operators import build_operators  # only here are kernels needed
    from crfield.nn.dense.passes import FusedRun

    operators = build_operators(features, settings, len(unary), unary.dtype)
    kind = FusedRun if FusedRun.covers(unary, operators, compatibilities, settings) else TensorRun
    return kind(unary, operators, compatibilities, settings, keep=keep)


def _result(run: Run, settings: RunSettings, *, keep: bool) -> Tensor:
    marginals = run.marginals
    if settings.log_marginals:
        return marginals.clamp_min(torch.finfo(marginals.dtype).tiny).log_()
    # The caller may write to it; a run that is kept must not notice.
    return marginals.clone() if keep else marginals


def _by_inputs(
    rows: Sequence[Tensor | None], features: Sequence[Tensor], settings: RunSettings
) -> list[Tensor | None]:
    """From derivatives by each point's features to those by the features as they were given."""
    found: list[Tensor | None] = []
    for part, values, term in zip(rows, features, settings.terms, strict=True):
        if part is None:
            found.append(None)
        elif term.on_grid:
            found.append(sum_along_axes(part, settings.grid))
        else:
            found.append(part.reshape(values.shape))
    return found


def sum_along_axes(by_point: Tensor, grid: Sequence[int]) -> Tensor:
    """From derivatives by the coordinates of all points (B * N, d) to those by the axes."""
    points = by_point.reshape(-1, *grid, len(grid))
    parts = []
    for a in range(len(grid)):
        others = [k for k in range(1 + len(grid)) if k != 1 + a]
        parts.append(points[..., a].sum(others))
    return torch.cat(parts)


@torch.compiler.disable  # its numbers come from outside the graph
def pair_energy(
    q: Tensor, features: Sequence[Tensor], compatibilities: Sequence[Tensor], settings: RunSettings
) -> Tensor:
    """1/2 sum_m sum(q * K^(m) q mu^(m)) of marginals (B, N, L), self-pairs included."""
    energy: Tensor = _PairEnergy.apply(settings, len(features), q, *features, *compatibilities)
    return energy


def _holder(like: Tensor, held: object) -> Tensor:
    """A tensor to be saved for the way back, which lets go of what it holds afterwards."""
    holder = like.new_empty(0)
    holder.held = held  # type: ignore[attr-defined]
    return holder


class _PairEnergy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, settings: RunSettings, n_terms: int, q: Tensor, *inputs: Tensor
    ) -> Tensor:
        from crfield.nn.dense.operators import build_operators

        features, compatibilities = inputs[:n_terms], inputs[n_terms:]
        operators = build_operators(
            [values.detach() for values in features], settings, len(q), q.dtype
        )
        flat = q.reshape(-1, q.shape[-1])
        filtered = [operator.apply(flat) for operator in operators]
        ctx.settings, ctx.n_terms, ctx.shape = settings, n_terms, q.shape
        ctx.save_for_backward(_holder(q, operators), flat, *features, *compatibilities, *filtered)
        energy = q.new_zeros(())
        for part, compatibility in zip(filtered, compatibilities, strict=True):
            mu = matrix_of(compatibility, q.shape[-1])
            energy = energy + 0.5 * (mu * (flat.T @ part)).sum()
        return energy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        from crfield.nn.dense.operators import build_operators

        holder, q, *rest = ctx.saved_tensors
        n = ctx.n_terms
        features, compatibilities, filtered = rest[:n], rest[n : 2 * n], rest[2 * n :]
        operators = getattr(holder, "held", None)  # hooks on saved tensors may lose it
        if operators is None:
            operators = build_operators(features, ctx.settings, ctx.shape[0], q.dtype)
        by_q = torch.zeros_like(q)
        rows: list[Tensor | None] = []
        by_compatibilities = []
        for m, (operator, compatibility, part) in enumerate(
            zip(operators, compatibilities, filtered, strict=True)
        ):
            mu = matrix_of(compatibility, q.shape[1])
            back = part if operator.is_symmetric else operator.apply_transpose(q)
            by_q += 0.5 * (part + back) @ mu
            by_compatibilities.append(by_compatibility(0.5 * given * (q.T @ part), compatibility))
            if ctx.needs_input_grad[3 + m]:
                gradient = operator.start_gradient()
                gradient.add(0.5 * q @ mu, q, part)
                rows.append(given * gradient.total())
            else:
                rows.append(None)
        by_features = _by_inputs(rows, features, ctx.settings)
        return (None, None, (given * by_q).reshape(ctx.shape), *by_features, *by_compatibilities)


class _MeanField(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, settings: RunSettings, n_terms: int, unary: Tensor, *inputs: Tensor
    ) -> Tensor:
        features, compatibilities = inputs[:n_terms], inputs[n_terms:]
        keep = any(ctx.needs_input_grad)
        run = _start(unary, features, compatibilities, settings, keep=keep)
        if keep:
            ctx.settings, ctx.n_terms = settings, n_terms
            ctx.save_for_backward(_holder(unary, run), unary, *inputs)
        return _result(run, settings, keep=keep)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, given: Tensor) -> tuple[Tensor | None, ...]:
        holder, unary, *inputs = ctx.saved_tensors
        features, compatibilities = inputs[: ctx.n_terms], inputs[ctx.n_terms :]
        widths = list(ctx.needs_input_grad[3 : 3 + ctx.n_terms])
        run = getattr(holder, "held", None)  # hooks on saved tensors may lose it
        if run is None:
            run = _start(unary, features, compatibilities, ctx.settings, keep=True)
        found = run.backward(given, widths)
        by_features = _by_inputs(found.features, features, ctx.settings)
        return (None, None, found.unary, *by_features, *found.compatibility)


# Runs of compiled graphs that wait for their way back, by number.
_WAITING: OrderedDict[int, Run] = OrderedDict()
_MOST_WAITING = 2
_counter = 0


@torch.library.custom_op("crfield::mean_field", mutates_args=())
def compiled_forward(
    unary: Tensor, features: list[Tensor], compatibilities: list[Tensor], grid: list[int],
    settings: str, keep: bool,
) -> tuple[Tensor, Tensor]:
    """`mean_field` and the number under which the run waits, if it is to be kept."""
    global _counter
    parsed = RunSettings.from_text(settings, grid)
    run = _start(unary, features, compatibilities, parsed, keep=keep)
    if keep:
        _counter += 1
        _WAITING[_counter] = run
        while len(_WAITING) > _MOST_WAITING:
            _WAITING.popitem(last=False)
    return _result(run, parsed, keep=keep), torch.tensor(_counter)


@compiled_forward.register_fake
def _(
    unary: Tensor, features: list[Tensor], compatibilities: list[Tensor], grid: list[int],
    settings: str, keep: bool,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(unary), torch.empty((), dtype=torch.int64)


@torch.library.custom_op("crfield::mean_field_backward", mutates_args=())
def compiled_backward(
    given: Tensor, number: Tensor, unary: Tensor, features: list[Tensor],
    compatibilities: list[Tensor], grid: list[int], settings: str, widths: list[bool],
) -> list[Tensor]:
    """dL by unary, the features that are wanted (empty otherwise) and the compatibilities."""
    parsed = RunSettings.from_text(settings, grid)
    run = _WAITING.pop(int(number), None)
    if run is None:
        run = _start(unary, features, compatibilities, parsed, keep=True)
    found = run.backward(given.contiguous(), widths)
    by_features = _by_inputs(found.features, features, parsed)
    known = [
        by if by is not None else torch.zeros_like(values) if wanted else given.new_empty(0)
        for by, values, wanted in zip(by_features, features, widths, strict=True)
    ]
    return [found.unary, *known, *found.compatibility]


@compiled_backward.register_fake
def _(
    given: Tensor, number: Tensor, unary: Tensor, features: list[Tensor],
    compatibilities: list[Tensor], grid: list[int], settings: str, widths: list[bool],
) -> list[Tensor]:
    return [
        torch.empty_like(unary),
        *(
            torch.empty_like(values) if wanted else given.new_empty(0)
            for values, wanted in zip(features, widths, strict=True)
        ),
        *(torch.empty_like(c) for c in compatibilities),
    ]


def _remember(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    unary, features, compatibilities, grid, settings, _ = inputs
    ctx.n_terms, ctx.settings, ctx.grid = len(features), settings, list(grid)
    ctx.widths = [values.requires_grad for values in features]
    ctx.save_for_backward(output[1], unary, *features, *compatibilities)


def _compiled_gradient(ctx: Any, given: Tensor, _: Tensor) -> tuple[Any, ...]:
    number, unary, *rest = ctx.saved_tensors
    features, compatibilities = rest[: ctx.n_terms], rest[ctx.n_terms :]
    found = compiled_backward(
        given, number, unary, features, compatibilities, ctx.grid, ctx.settings, ctx.widths
    )
    by_features = [
        g if w else None for g, w in zip(found[1 : 1 + ctx.n_terms], ctx.widths, strict=True)
    ]
    return found[0], by_features, found[1 + ctx.n_terms :], None, None, None


compiled_forward.register_autograd(_compiled_gradient, setup_context=_remember)
