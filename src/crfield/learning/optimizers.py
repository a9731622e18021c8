"""Minimizers over a parameter vector; each is a deterministic function of the values it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from typing import Any

import numpy as np

from crfield._core.validate import InputError, as_choice
from crfield.learning.objective import Point
from crfield.learning.parameters import Vector

OPTIMIZERS = ("gd", "cg", "lbfgs", "adam", "sgd")

# (vector, indices of a mini-batch or None for all) -> the objective there
Evaluate = Callable[[Vector, Sequence[int] | None], Point]
# the same in the coordinates of the optimizer: value and gradient
Slope = Callable[[Vector, Sequence[int] | None], tuple[float, Vector]]
# called after each iteration with the vector; True stops
Progress = Callable[[Vector], bool]


# A step must keep this share of the decrease that the slope promises, is shortened so many times at
# most, and moves no parameter by more than so many typical changes.
_ENOUGH, _MOST_CUTS, _LONGEST = 1e-4, 10, 2.0


class Stopped(Exception):
    """Raised through an optimizer that offers no other way to stop it."""


def check_optimizer(optimizer: str) -> None:
    """Refuse an optimizer that does not exist, or that needs what is not installed."""
    as_choice(optimizer, "optimizer", OPTIMIZERS)
    if optimizer == "lbfgs" and find_spec("scipy") is None:
        raise InputError(
            "the optimizer 'lbfgs' needs SciPy, which is not installed; "
            "pip install crfield[learn], or use 'cg'."
        )


def minimize(
    evaluate: Evaluate, start: Vector, scale: Vector, optimizer: str, max_iter: int,
    progress: Progress, *, n_examples: int, batch_size: int = 8, step_size: float = 0.1,
    seed: int = 0,
) -> None:
    """Run an optimizer; `progress` sees every iterate, so that the caller keeps the one it wants.

    It works on z with x = start + scale z, so that one step size serves all parameters.
    "gd" is gradient descent with a line search, "cg" Polak-Ribiere's, "lbfgs" SciPy's; "adam" and
    "sgd" (momentum 0.9) take mini-batches in an order that depends on `seed` alone, `max_iter`
    epochs of them.
    """
    check_optimizer(optimizer)

    def slope(z: Vector, indices: Sequence[int] | None) -> tuple[float, Vector]:
        point = evaluate(start + scale * z, indices)
        return point.value, scale * point.gradient

    def watch(z: Vector) -> bool:
        return progress(start + scale * z)

    origin = np.zeros_like(start)
    if optimizer in ("gd", "cg"):
        _run_line_searches(slope, origin, max_iter, watch, conjugate=optimizer == "cg")
    elif optimizer == "lbfgs":
        _run_lbfgs(slope, origin, max_iter, watch)
    else:
        _run_stochastic(
            slope, origin, optimizer, max_iter, watch, n_examples, batch_size, step_size, seed
        )


def _run_line_searches(
    slope: Slope, start: Vector, max_iter: int, progress: Progress, *, conjugate: bool
) -> None:
    """Along the gradient, or conjugate to it (Polak-Ribiere with restarts). The line search asks
    for a decrease only: on a lattice the loss has kinks, where no step meets conditions on slopes.
    """
    z = start
    value, gradient = slope(z, None)
    direction = -gradient
    step = 1.0 / max(float(np.linalg.norm(gradient)), 1e-300)
    for _ in range(max_iter):
        along = float(gradient @ direction)
        if along >= 0.0:
            direction, along = -gradient, -float(gradient @ gradient)
        if along == 0.0:
            return
        longest = _LONGEST / float(np.abs(direction).max())
        found = _search(slope, z, value, along, direction, min(step, longest), longest)
        if found is None:
            return
        z, value, fresh, step = found
        if progress(z.copy()):
            return
        direction = -fresh + direction * (
            max(float(fresh @ (fresh - gradient)) / float(gradient @ gradient), 0.0)
            if conjugate else 0.0
        )
        gradient = fresh
        # Begin where the same first-order decrease would be.
        step *= along / min(float(gradient @ direction), -1e-300)


def _search(
    slope: Slope, z: Vector, value: float, along: float, direction: Vector, step: float,
    longest: float,
) -> tuple[Vector, float, Vector, float] | None:
    """A point below `value` on the line, its value, gradient and step; None if there seems none.

    along : the slope of the line at z, negative.
    """
    for _ in range(_MOST_CUTS):
        there = z + step * direction
        lower, gradient = slope(there, None)
        if lower <= value + _ENOUGH * step * along:
            ahead = float(gradient @ direction)
            if ahead < 0.5 * along and step < longest:  # still falling steeply: look further, once
                longer = min(step * (along / (along - ahead) if ahead > along else 4.0), longest)
                further = z + longer * direction
                farther, other = slope(further, None)
                if farther < lower:
                    return further, farther, other, longer
            return there, lower, gradient, step
        parabola = -along * step**2 / (2.0 * (lower - value - along * step))
        step = float(np.clip(parabola, 0.1 * step, 0.5 * step))
    return None


def _run_lbfgs(slope: Slope, start: Vector, max_iter: int, progress: Progress) -> None:
    from scipy.optimize import minimize as scipy_minimize

    def callback(z: Vector) -> None:
        if progress(np.array(z)):
            raise Stopped

    options: dict[str, Any] = {"maxiter": max_iter}
    with suppress(Stopped):
        scipy_minimize(
            lambda z: slope(z, None), start, jac=True, method="L-BFGS-B", options=options,
            callback=callback,
        )


def _run_stochastic(
    slope: Slope, start: Vector, optimizer: str, max_iter: int, progress: Progress,
    n_examples: int, batch_size: int, step_size: float, seed: int,
) -> None:
    rng = np.random.default_rng(seed)
    x = start.copy()
    first, second = np.zeros_like(x), np.zeros_like(x)
    steps = 0
    for _ in range(max_iter):
        order = rng.permutation(n_examples)
        for begin in range(0, n_examples, batch_size):
            batch = [int(i) for i in order[begin : begin + batch_size]]
            _, g = slope(x, batch)
            steps += 1
            if optimizer == "adam":
                first = 0.9 * first + 0.1 * g
                second = 0.999 * second + 0.001 * g * g
                corrected = second / (1 - 0.999**steps)
                x = x - step_size * (first / (1 - 0.9**steps)) / (np.sqrt(corrected) + 1e-8)
            else:
                first = 0.9 * first + g
                x = x - step_size * first
        if progress(x):
            return
