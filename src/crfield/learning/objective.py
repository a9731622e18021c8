"""The loss of a model over a set of images, and its gradient by the parameter vector."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import reduce
from importlib.util import find_spec
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from crfield._core.checkpoints import digest
from crfield._core.optimize import Vector
from crfield._core.optional import missing
from crfield._core.resources import MAX_JOBS, Arena, lent_arena, thread_count
from crfield._core.validate import (
    FloatArray,
    InputError,
    as_array,
    as_floats,
    available_memory,
    check_magnitude,
    image_size,
    shown,
)
from crfield.dense.gradient import backpropagate
from crfield.dense.meanfield import Inference, State, run_parallel
from crfield.dense.model import DEFAULT_ALGORITHM, DenseCRF
from crfield.dense.observation import observe
from crfield.dense.problem import (
    FusedProblem,
    NativeProblem,
    Sweeps,
    build_terms,
    center_costs,
    make_problem,
)
from crfield.learning.losses import Loss, Totals
from crfield.learning.parameters import ModelGradient, Parameters
from crfield.metrics import confusion_matrix

# Iterations of inference while learning, unless the caller or the model says.
_MAX_ITER = 5
_SIZED = 16  # images that tell the size of all

# Threads of each job, unless the caller says. The more there are, the more processor time goes into
# putting their sums together: with jobs on every core a seventh at 2, a third at 4, as much again
# at 8 and twice as much again at 16, on images of 213 x 320.
_MOST_THREADS = 4

N_FOLDS = 3
# Fewer images than this leave too few in a fold to choose anything by.
_LEAST_IMAGES = 2 * N_FOLDS
# Counts of each true label by each found one are kept for many options and images.
_MOST_LABELS = 128

Confusion = NDArray[np.int64]
Result = TypeVar("Result")


class Example(Protocol):
    """One image to learn from.

    It may also have a `spacing`, the distance between grid neighbors along each axis (d,), and a
    `group` of images that choices by folds keep together, such as the frames of a film.
    """

    @property
    def image(self) -> Any:
        """(*grid[, C])."""

    @property
    def unary(self) -> Any:
        """Costs (*grid, L)."""

    @property
    def truth(self) -> Any:
        """True labels (*grid,)."""


@dataclass(frozen=True)
class Contribution:
    """What one image contributes to the loss and its gradient."""

    totals: Totals
    confusion: Confusion
    gradient: ModelGradient


@dataclass(frozen=True)
class Point:
    """The objective at one parameter vector."""

    value: float
    loss: float
    gradient: Vector
    confusion: Confusion


@dataclass(frozen=True)
class Unrolled:
    """Inference on one image with what going back through it needs.

    features : (N, F) that the recalibration sees, the example's costs first.
    trace : the states, the start included, if they were kept.
    """

    problem: NativeProblem | FusedProblem
    features: FloatArray
    marginals: FloatArray
    trace: list[State]


def settle(inference: Inference | None, model: DenseCRF) -> Inference:
    """How marginals are computed while learning, with nothing left open.

    What neither `inference` nor the model says is "concave", 5 iterations and a few threads,
    however many jobs there are: threads decide in which order sums are rounded, and what is learned
    must not depend on the number of jobs.
    """
    given = Inference() if inference is None else inference
    algorithm = given.algorithm or model.algorithm or DEFAULT_ALGORITHM
    if algorithm == "sequential":
        raise InputError(
            "learning goes back through parallel updates, got algorithm 'sequential'; "
            "use 'concave', 'cccp' or 'parallel'."
        )
    counts = (given.max_iter, model.max_iter, _MAX_ITER)
    return replace(
        given, algorithm=algorithm, max_iter=next(n for n in counts if n is not None),
        threads=min(thread_count(), _MOST_THREADS) if given.threads is None else given.threads,
    )


def with_inference(model: DenseCRF, inference: Inference) -> DenseCRF:
    """The model, made to infer like this from now on."""
    return replace(model, algorithm=inference.algorithm, max_iter=inference.max_iter)


def mean_size(examples: Sequence[Example]) -> float:
    """The mean size of the images of some of the examples, in the units of their spacing."""
    chosen = np.linspace(0, len(examples) - 1, min(len(examples), _SIZED)).astype(int)
    sized = (examples[int(index)] for index in chosen)
    grids = (observe(as_array(e.truth, "truth").shape, spacing=spacing_of(e)) for e in sized)
    return float(np.mean([image_size(each.grid, each.spacing) for each in grids]))


def unroll(
    model: DenseCRF, example: Example, inference: Inference, *, keep_states: bool,
    fused: bool = True, arena: Arena | None = None,
) -> Unrolled:
    """A fixed number of iterations on one image, without the safeguard, whose redone steps would
    make the loss jump. What comes out lives in the arena, if one is given.
    """
    assert inference.algorithm is not None
    assert inference.max_iter is not None
    assert inference.threads is not None
    check_example(model.n_labels, example)
    raw = as_floats(example.unary, "unary")
    check_magnitude(raw, "unary")
    observation = observe(raw.shape[:-1], example.image, spacing=spacing_of(example))
    features = model.unary_features(raw, observation)
    costs = model.recalibrate(features).reshape(-1, model.n_labels)
    centered, _ = center_costs(costs, inference.threads)
    terms = build_terms(model.terms, observation, raw.dtype, inference)
    problem = make_problem(
        centered, terms, inference.algorithm, inference.threads, keep_states=keep_states,
        watched=False, arena=arena, fused=fused,
    )
    assert not isinstance(problem, Sweeps)
    trace: list[State] = []
    n_iter = inference.max_iter if terms else 0  # independent variables are done at the start
    outcome = run_parallel(problem, max_iter=n_iter, trace=trace if keep_states else None)
    return Unrolled(problem, features.reshape(len(costs), -1), outcome.marginals, trace)


def spacing_of(example: Example) -> Any:
    """The distance between grid neighbors along each axis (d,), None where it is 1."""
    return getattr(example, "spacing", None)


def group_of(example: Example, index: int) -> str | int:
    """What an example belongs to: its group, or its own index."""
    group = getattr(example, "group", None)
    return index if group is None else str(group)


def can_choose(examples: Sequence[Example]) -> bool:
    """Whether there are enough images, groups of them, and few enough labels to choose by folds."""
    if len(examples) < _LEAST_IMAGES:
        return False
    shape = as_array(examples[0].unary, "unary").shape
    if shape and shape[-1] > _MOST_LABELS:
        return False
    groups = {group_of(examples[index], index) for index in range(len(examples))}
    return len(groups) >= N_FOLDS


def check_example(n_labels: int, example: Example) -> None:
    """Refuse costs for other labels, and a truth of another size or that is none."""
    costs, given = as_array(example.unary, "unary").shape, as_array(example.truth, "truth")
    truth, dtype = given.shape, given.dtype
    if dtype.kind not in "biu":
        raise InputError(
            f"truth must hold whole numbers, got {dtype}; pass one integer label per variable."
        )
    if len(costs) < 2 or costs[-1] != n_labels:
        raise InputError(
            f"unary must have shape (*grid, {n_labels}) for {n_labels} labels, got {costs}; match "
            "n_labels."
        )
    if truth != costs[:-1]:
        raise InputError(
            f"truth must have the unary's grid {costs[:-1]}, got {truth}; "
            "pass one true label per variable."
        )


def check_whole(n_labels: int, example: Example) -> None:
    """`check_example`, and refuse costs beyond all sense and an image or a spacing that does not go
    with the truth.
    """
    check_example(n_labels, example)
    check_magnitude(as_floats(example.unary, "unary"), "unary")
    grid = np.shape(example.truth)
    if math.prod(grid) == 0:
        raise InputError(f"truth must have at least one variable, got shape {grid}; leave it out.")
    observe(grid, example.image, spacing=spacing_of(example))


def count_labels(
    model: DenseCRF, example: Example, inference: Inference, void: int | None
) -> Confusion:
    """The (L, L) counts of each true label of an image by each inferred one."""
    with lent_arena() as arena:
        run = unroll(model, example, inference, keep_states=False, arena=arena)
        return _count(run.marginals, np.asarray(example.truth).reshape(-1), void)


def image_totals(
    model: DenseCRF, example: Example, inference: Inference, loss: Loss
) -> Totals:
    """What one image adds to the totals of the loss."""
    with lent_arena() as arena:
        run = unroll(model, example, inference, keep_states=False, arena=arena)
        return loss.totals(run.marginals, np.asarray(example.truth).reshape(-1))


def evaluate_image(
    model: DenseCRF, example: Example, inference: Inference, loss: Loss, totals: Totals,
    learn: Sequence[str],
) -> Contribution:
    """Infer on one image and go back through it, given the totals of all images."""
    with lent_arena() as arena:
        run = unroll(model, example, inference, keep_states=True, arena=arena)
        return _evaluate(run, example, loss, totals, learn)


def evaluate_at_once(
    model: DenseCRF, examples: Sequence[Example], indices: Sequence[int], inference: Inference,
    loss: Loss, learn: Sequence[str],
) -> list[Contribution]:
    """`evaluate_image` of images whose gradients need the totals of all of them.

    Their states wait for the totals while there is memory to spare, which saves the images that
    come first from being inferred twice.
    """
    spare = available_memory() / 8
    waiting: dict[int, Unrolled] = {}
    totals = []
    with ExitStack() as stack:
        for index in indices:
            example = examples[index]
            keep = spare > 0 and index not in waiting
            before = available_memory()
            with ExitStack() as until_totals:
                arena = (stack if keep else until_totals).enter_context(lent_arena())
                run = unroll(model, example, inference, keep_states=keep, arena=arena)
                totals.append(loss.totals(run.marginals, np.asarray(example.truth).reshape(-1)))
            if keep:
                waiting[index] = run
                # Going back takes about half as much again.
                states = run.marginals.nbytes * (len(run.trace) + 3)
                spare -= 1.5 * max(states, before - available_memory())
        of_all = np.sum(totals, axis=0)
        entries = []
        for place, index in enumerate(indices):
            if index in waiting:
                again = index in indices[place + 1 :]
                run = waiting[index] if again else waiting.pop(index)
                entries.append(_evaluate(run, examples[index], loss, of_all, learn))
                del run
            else:
                entries.append(
                    evaluate_image(model, examples[index], inference, loss, of_all, learn)
                )
        return entries


def _evaluate(
    run: Unrolled, example: Example, loss: Loss, totals: Totals, learn: Sequence[str]
) -> Contribution:
    q = run.marginals
    truth = np.asarray(example.truth).reshape(-1)
    gradient = _gradient(run, loss, truth, totals, learn)
    return Contribution(loss.totals(q, truth), _count(q, truth, loss.void), gradient)


def _count(q: FloatArray, truth: NDArray[Any], void: int | None) -> Confusion:
    return confusion_matrix(truth, q.argmax(1), q.shape[1], void=void)


def _gradient(
    run: Unrolled, loss: Loss, truth: NDArray[Any], totals: Totals, learn: Sequence[str]
) -> ModelGradient:
    terms = run.problem.terms
    widths = ["kernel" in learn] * len(terms)
    by_log = loss.log_gradient(run.marginals, truth, totals)
    found = backpropagate(run.problem, run.trace, by_log, widths=widths)
    n_labels = found.unary.shape[1]
    recalibration = np.zeros((n_labels, run.features.shape[1] + 1))
    if "unary" in learn:
        recalibration[:, :-1] = found.unary.T @ run.features
        recalibration[:, -1] = np.ones(len(found.unary), found.unary.dtype) @ found.unary
    return ModelGradient(
        recalibration,
        [np.asarray(g, np.float64) for g in found.compatibility],
        [
            np.zeros((0, 0)) if g is None or t.features is None
            else g.T.astype(np.float64) @ t.dense_features()
            for g, t in zip(found.features, terms, strict=True)
        ],
    )


def as_examples(examples: Any, name: str = "examples") -> Sequence[Example]:
    """Examples that can be counted and looked up again in every pass; at least one."""
    has_length = hasattr(examples, "__len__") and hasattr(examples, "__getitem__")
    if not has_length or hasattr(examples, "truth"):
        raise InputError(
            f"{name} must be a sequence of images, which are visited many times, got a "
            f"{type(examples).__name__}; pass a list."
        )
    if len(examples) == 0:
        raise InputError(f"{name} must hold at least one image, got none; check the split.")
    found: Sequence[Example] = examples
    return found


def check_labeled(counts: NDArray[Any], name: str = "examples") -> None:
    """Refuse examples without a labeled pixel, given how many of each label there are."""
    if not counts.any():
        raise InputError(
            f"{name} must have labeled pixels, got only void ones; check the true labels."
        )


def fingerprint(examples: Sequence[Example]) -> str:
    """A digest of images, costs and true labels, by which other data are told from these."""
    found = []
    for index in range(len(examples)):
        example = examples[index]
        given = {name: getattr(example, name) for name in ("truth", "unary", "image")}
        given["spacing"] = spacing_of(example)
        found.append(digest({}, {
            name: as_array(values, name) for name, values in given.items() if values is not None
        }))
    return digest({"examples": found}, {})


def check_jobs(n_jobs: Any) -> None:
    """Refuse a number of jobs that makes no sense, and several where joblib, which runs them, is
    missing.
    """
    if not isinstance(n_jobs, int | np.integer) or not 0 < abs(int(n_jobs)) <= MAX_JOBS:
        raise InputError(
            f"n_jobs must be a whole number from 1 to {MAX_JOBS}, or negative as in joblib, got "
            f"{shown(n_jobs)}; use 1, or -1 for every core."
        )
    if n_jobs != 1 and find_spec("joblib") is None:
        raise InputError(missing(f"n_jobs={n_jobs} needs", "joblib", otherwise="use n_jobs=1"))


def visit(
    function: Callable[..., Result], model: DenseCRF, examples: Sequence[Example],
    indices: Iterable[int], arguments: Sequence[Any], n_jobs: int,
) -> list[Result]:
    """function(model, example, *arguments) of some examples, `n_jobs` at a time, in their order."""
    if n_jobs == 1:
        return [function(model, examples[i], *arguments) for i in indices]
    check_jobs(n_jobs)
    from concurrent.futures.process import BrokenProcessPool

    from joblib import Parallel, delayed

    # Threads, because the work is in compiled code that releases the lock; a cluster's backend
    # takes precedence over the hint.
    try:
        return list(
            Parallel(n_jobs=n_jobs, prefer="threads")(
                delayed(function)(model, examples[i], *arguments) for i in indices
            )
        )
    except BrokenProcessPool:
        raise InputError(
            f"expected {n_jobs} jobs to go on, but a worker process was killed, most likely for "
            "want of memory; use fewer jobs or smaller images."
        ) from None


class DatasetObjective:
    """f(x) = loss(x) + sum_k l2_k ((x_k - prior_k) / scale_k)^2 over all of a set of examples.

    Images run in parallel through joblib (`n_jobs`), so that `joblib.parallel_config` can send them
    to a cluster; the sums are formed in the order of the examples, whatever finishes first.

    parameters : what x stands for.
    inference : how marginals are computed; see `settle` for what is left open.
    l2 : the ridge of each group of parameters, by default none.
    """

    def __init__(
        self, parameters: Parameters, examples: Sequence[Example], loss: Loss,
        inference: Inference | None = None, *, l2: dict[str, float] | None = None, n_jobs: int = 1,
    ) -> None:
        check_jobs(n_jobs)
        self.parameters = parameters
        self.examples = as_examples(examples)
        self.loss = loss
        self.inference = settle(inference, parameters.model)
        self.decay = parameters.decay(l2 or {})
        self.n_jobs = n_jobs

    def __call__(self, vector: Vector, indices: Sequence[int] | None = None) -> Point:
        """The objective at `vector`, over all examples or those of a mini-batch."""
        model = self.parameters.build(vector)
        chosen = range(len(self.examples)) if indices is None else indices
        entries = self._evaluate(model, chosen)
        gradient = reduce(operator.add, [entry.gradient for entry in entries])
        grid_dim = np.asarray(self.examples[chosen[0]].truth).ndim
        away = vector - self.parameters.prior
        loss = self.loss.value(np.sum([entry.totals for entry in entries], axis=0))
        return Point(
            value=loss + float((self.decay * away**2).sum()),
            loss=loss,
            gradient=self.parameters.chain(vector, gradient, grid_dim) + 2.0 * self.decay * away,
            confusion=np.sum([entry.confusion for entry in entries], axis=0),
        )

    def _evaluate(self, model: DenseCRF, chosen: Sequence[int]) -> list[Contribution]:
        learn = self.parameters.learn
        if not self.loss.separable and self.n_jobs == 1:
            return evaluate_at_once(
                model, self.examples, chosen, self.inference, self.loss, learn
            )
        given = (self.inference, self.loss)
        if self.loss.separable:
            totals = self._weight_totals(model, chosen)
        else:
            parts = visit(image_totals, model, self.examples, chosen, given, self.n_jobs)
            totals = np.sum(parts, axis=0)
        return visit(
            evaluate_image, model, self.examples, chosen, (*given, totals, learn), self.n_jobs
        )

    def _weight_totals(self, model: DenseCRF, chosen: Sequence[int]) -> Totals:
        return sum(
            (
                self.loss.weight_totals(
                    np.asarray(self.examples[i].truth).reshape(-1), model.n_labels
                )
                for i in chosen
            ),
            np.zeros(2),
        )
