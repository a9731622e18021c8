"""Minimizers of a function of one vector, given its value and gradient.

Each is a deterministic function of the values that it gets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.optional import missing
from crfield._core.validate import InputError, as_choice

DETERMINISTIC = ("gd", "cg", "lbfgs")
OPTIMIZERS = (*DETERMINISTIC, "adam", "sgd")

Vector = NDArray[np.float64]
# (vector, indices of a mini-batch or None for all examples) -> value and gradient there
Evaluate = Callable[[Vector, Sequence[int] | None], tuple[float, Vector]]
# called after each iteration with the vector; True stops
Callback = Callable[[Vector], bool]

# A step must keep this share of the decrease that the slope promises, is shortened so many times at
# most, and moves no parameter by more than so many units of its scale.
_ENOUGH, _MOST_CUTS, _LONGEST = 1e-4, 10, 2.0


class Stopped(Exception):
    """Raised through an optimizer that offers no other way to stop it."""


@dataclass(frozen=True)
class Batches:
    """How "adam" and "sgd" go through the examples.

    n_examples : how many there are.
    batch_size : examples per step.
    step_size : of a step, in units of the parameters' scale.
    seed : of the order of the examples, drawn anew in each epoch.
    """

    n_examples: int
    batch_size: int = 8
    step_size: float = 0.1
    seed: int = 0


@dataclass(frozen=True, eq=False)
class Adam:
    """State of Adam (Kingma and Ba 2015) for one array of parameters.

    n_steps : steps so far.
    mean, square : running averages of the gradient and of its square.
    epsilon : keeps the quotient of the two finite.
    """

    n_steps: int
    mean: NDArray[Any]
    square: NDArray[Any]
    epsilon: float = 1e-8

    def step(self, gradient: NDArray[Any], step_size: float) -> tuple[Adam, NDArray[Any]]:
        """The next state, and what to subtract from the parameters."""
        n = self.n_steps + 1
        mean = 0.9 * self.mean + 0.1 * gradient
        square = 0.999 * self.square + 0.001 * gradient * gradient
        spread = np.sqrt(square / (1 - 0.999**n)) + self.epsilon
        return Adam(n, mean, square, self.epsilon), step_size * (mean / (1 - 0.9**n)) / spread


def check_optimizer(optimizer: str) -> None:
    """Refuse an optimizer that does not exist, or that needs what is not installed."""
    as_choice(optimizer, "optimizer", OPTIMIZERS)
    if optimizer == "lbfgs" and find_spec("scipy") is None:
        raise InputError(missing("the optimizer 'lbfgs' needs", "scipy", otherwise="use 'cg'"))


def minimize(
    evaluate: Evaluate, start: Vector, optimizer: str, *, max_iter: int, callback: Callback,
    batches: Batches, scale: Vector | None = None,
) -> None:
    """Run an optimizer; `callback` sees every iterate, so that the caller keeps the one it wants.

    "gd" is gradient descent with a line search, "cg" nonlinear conjugate gradient (Polak-Ribiere),
    "lbfgs" SciPy's L-BFGS; "adam" and "sgd" (momentum 0.9) take mini-batches.

    Parameters
    ----------
    evaluate : value and gradient at a vector, over all examples or those of a mini-batch.
    start : (P,) where to begin; it is not itself reported to `callback`.
    max_iter : most iterations; epochs for "adam" and "sgd".
    callback : called with the vector after each iteration or epoch; True stops.
    batches : how "adam" and "sgd" go through the examples.
    scale : (P,) by how much each parameter typically changes, 1 by default. The optimizer works on
        z with x = start + scale z, so that one step size serves all parameters.
    """
    check_optimizer(optimizer)
    units = np.ones_like(start) if scale is None else scale

    def slope(z: Vector, indices: Sequence[int] | None) -> tuple[float, Vector]:
        value, gradient = evaluate(start + units * z, indices)
        return value, units * gradient

    def watch(z: Vector) -> bool:
        return callback(start + units * z)

    origin = np.zeros_like(start)
    if optimizer in ("gd", "cg"):
        _run_line_searches(slope, origin, max_iter, watch, conjugate=optimizer == "cg")
    elif optimizer == "lbfgs":
        _run_lbfgs(slope, origin, max_iter, watch)
    else:
        _run_stochastic(slope, origin, optimizer, max_iter, watch, batches)


def _run_line_searches(
    slope: Evaluate, start: Vector, max_iter: int, callback: Callback, *, conjugate: bool
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
        if callback(z.copy()):
            return
        direction = -fresh + direction * (
            max(float(fresh @ (fresh - gradient)) / float(gradient @ gradient), 0.0)
            if conjugate else 0.0
        )
        gradient = fresh
        # Begin where the same first-order decrease would be.
        step *= along / min(float(gradient @ direction), -1e-300)


def _search(
    slope: Evaluate, z: Vector, value: float, along: float, direction: Vector, step: float,
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


def _run_lbfgs(slope: Evaluate, start: Vector, max_iter: int, callback: Callback) -> None:
    from scipy.optimize import minimize as scipy_minimize

    def watch(z: Vector) -> None:
        if callback(np.array(z)):
            raise Stopped

    options: dict[str, Any] = {"maxiter": max_iter}
    with suppress(Stopped):
        scipy_minimize(
            lambda z: slope(z, None), start, jac=True, method="L-BFGS-B", options=options,
            callback=watch,
        )


def _run_stochastic(
    slope: Evaluate, start: Vector, optimizer: str, max_iter: int, callback: Callback,
    batches: Batches,
) -> None:
    rng = np.random.default_rng(batches.seed)
    x, momentum = start, np.zeros_like(start)
    adam = Adam(0, momentum, momentum)
    for _ in range(max_iter):
        order = rng.permutation(batches.n_examples)
        for begin in range(0, len(order), batches.batch_size):
            _, gradient = slope(x, [int(i) for i in order[begin : begin + batches.batch_size]])
            if optimizer == "adam":
                adam, change = adam.step(gradient, batches.step_size)
            else:
                momentum = 0.9 * momentum + gradient
                change = batches.step_size * momentum
            x = x - change
        if callback(x):
            return
