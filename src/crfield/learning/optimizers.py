"""Minimisers over a parameter vector; each is a deterministic function of the values it gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from crfield._validate import InputError, as_choice
from crfield.learning.objective import Point
from crfield.learning.parameters import Vector

OPTIMIZERS = ("cg", "lbfgs", "adam", "sgd")

# (vector, indices of a mini-batch or None for all) -> the objective there
Evaluate = Callable[[Vector, Sequence[int] | None], Point]
# called after each iteration with the vector; True stops
Progress = Callable[[Vector], bool]


class Stopped(Exception):
    """Raised through an optimiser that offers no other way to stop it."""


def minimize(
    evaluate: Evaluate, start: Vector, optimizer: str, max_iter: int, progress: Progress, *,
    n_examples: int, batch_size: int = 8, step_size: float = 0.02, seed: int = 0,
) -> None:
    """Run an optimiser; `progress` sees every iterate, so that the caller keeps the one it wants.

    "cg" (Polak-Ribiere) and "lbfgs" are SciPy's, with its line searches; "adam" and "sgd" (momentum
    0.9) take mini-batches in an order that depends on `seed` alone, `max_iter` epochs of them.
    """
    as_choice(optimizer, "optimizer", OPTIMIZERS)
    if optimizer in ("cg", "lbfgs"):
        _run_scipy(evaluate, start, optimizer, max_iter, progress)
    else:
        _run_stochastic(
            evaluate, start, optimizer, max_iter, progress, n_examples, batch_size, step_size, seed
        )


def _run_scipy(
    evaluate: Evaluate, start: Vector, optimizer: str, max_iter: int, progress: Progress
) -> None:
    try:
        from scipy.optimize import minimize as scipy_minimize
    except ImportError:
        raise InputError(
            f"the optimizer {optimizer!r} needs SciPy, which is not installed; "
            "pip install crfield[learn], or use 'adam'."
        ) from None

    def function(x: Vector) -> tuple[float, Vector]:
        point = evaluate(x, None)
        return point.value, point.gradient

    def callback(x: Vector) -> None:
        if progress(np.array(x)):
            raise Stopped

    options: dict[str, Any] = {"maxiter": max_iter}
    method = {"cg": "CG", "lbfgs": "L-BFGS-B"}[optimizer]
    try:
        scipy_minimize(function, start, jac=True, method=method, options=options, callback=callback)
    except Stopped:
        return


def _run_stochastic(
    evaluate: Evaluate, start: Vector, optimizer: str, max_iter: int, progress: Progress,
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
            g = evaluate(x, batch).gradient
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
