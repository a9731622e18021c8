"""MAP labels by EM with graph cuts (CHOPP section 4.2).

The E-step sets q to p*(h | y) of eq. 10; the M-step finds the labels that maximize the bound

    -E(y) >= -E_base(y) + sum_classes (c + W'y)'E_q[h] + T H(q)                            (eq. 11)

by a graph cut in which label 1 costs b_i + (W E_q[h])_i less (eq. 12). All images of a batch move
together, and those whose labels no longer improve leave it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.resources import thread_count
from crfield._core.validate import FloatArray, InputError, as_count
from crfield.graphcut import alpha_expansion_grid, cut_grids
from crfield.patterns.hidden import HiddenPosterior
from crfield.patterns.inputs import PatternInputs, disagreement_costs
from crfield.patterns.model import GridModel
from crfield.patterns.potential import PatternPotential

Labels = NDArray[Any]


class PatternStatus(Enum):
    """Why EM stopped; the value says what to do about it."""

    CONVERGED = "Converged: for every image another step finds no better labels."
    MAX_ITER = (
        "Stopped at max_iter while the labels of some images still changed; raise max_iter."
    )


@dataclass(frozen=True)
class PatternResult:
    """Labels and how they came about.

    Between EM steps scores[t - 1] <= bounds[t] <= scores[t]: the M-step raises the bound from where
    the last E-step made it tight, and the next E-step makes it tight again.

    Attributes
    ----------
    labels : (B, H, W).
    scores : (n_steps, B), log P(y | x) + log Z = -E(y | x) at the start and after each step; an
        image that has stopped repeats its last.
    bounds : (n_steps, B), the bound of eq. 11 on it after each M-step, with the q before it.
    n_iter : (B,), steps done.
    converged : (B,), whether the last step found no better labels.
    restart : (B,), the start that led to the labels: 0, or the number of the restart.
    """

    labels: NDArray[Any]
    scores: NDArray[np.float64]
    bounds: NDArray[np.float64]
    n_iter: NDArray[np.int64]
    converged: NDArray[np.bool_]
    restart: NDArray[np.int64]

    @property
    def energies(self) -> NDArray[np.float64]:
        """E(y | x) of the labels, (B,)."""
        return np.asarray(-self.scores[-1])

    @property
    def status(self) -> PatternStatus:
        """Why inference stopped, for the whole batch."""
        return PatternStatus.CONVERGED if self.converged.all() else PatternStatus.MAX_ITER

    def better(self, other: PatternResult) -> PatternResult:
        """For each image the lower in energy of this result and the `other`; this where equal."""
        wins = other.scores[-1] > self.scores[-1]
        n_steps = max(len(self.scores), len(other.scores))
        return PatternResult(
            np.where(wins[:, None, None], other.labels, self.labels),
            np.where(wins, _padded(other.scores, n_steps), _padded(self.scores, n_steps)),
            np.where(wins, _padded(other.bounds, n_steps), _padded(self.bounds, n_steps)),
            np.where(wins, other.n_iter, self.n_iter),
            np.where(wins, other.converged, self.converged),
            np.where(wins, other.restart, self.restart),
        )

    def __repr__(self) -> str:
        n, height, width = self.labels.shape
        return (
            f"PatternResult({n} images of {height}x{width}, at most {self.n_iter.max()} steps, "
            f"mean energy {-self.scores[0].mean():.6g} -> {self.energies.mean():.6g}, "
            f"{self.status.name})"
        )


def infer(
    model: GridModel, inputs: PatternInputs, *, init: Any = None, max_iter: int = 50,
    n_restarts: int = 0, seed: int = 0, threads: int | None = None,
) -> PatternResult:
    """Labels of high probability, from EM started at the MAP of the unary and pairwise terms.

    E-step E[h | y], M-step a graph cut with costs of y_i = 1 lowered by b_i + (W E[h])_i (CHOPP
    section 4.2); the bound -f >= (c + W'y)'E[h] + T H(q) never falls.

    Parameters
    ----------
    model : `PatternCRF` or `MultiLabelPatternCRF`. At temperature 1 the hidden units are summed
        out, at 0 they are maximized out.
    inputs : a batch of images.
    init : (B, H, W), labels to start from instead.
    max_iter : most EM steps for an image.
    n_restarts : so many more starts, at the MAP of randomly perturbed costs; for each image the
        labels of least energy are kept.
    seed : of the perturbation.
    threads : native threads, all usable cores by default.
    """
    if not isinstance(model, GridModel):
        raise InputError(
            f"model must be a PatternCRF or MultiLabelPatternCRF, got {type(model).__name__}; "
            "for example PatternCRF(Patterns(weights, bias), grid=(32, 32))."
        )
    model.check_inputs(inputs)
    n_threads = thread_count(threads)
    limit = as_count(max_iter, "max_iter", 0)
    problem = _Problem(
        model.potentials, model.class_costs(inputs), model.edge_weights(inputs), inputs.features,
        n_threads,
    )
    base = replace(problem, costs=model.pairwise_only().class_costs(inputs))
    start = base.cut(base.costs) if init is None else model.as_labels(init, inputs)
    result = _ascend(problem, start, limit, 0)
    for number, noise in enumerate(_perturbations(base.costs, n_restarts, seed), 1):
        result = result.better(_ascend(problem, base.cut(noise), limit, number))
    return result


@dataclass(frozen=True)
class _State:
    """Labels (B, H, W), their score -E (B,), and p*(h | y) for each pattern potential."""

    labels: Labels
    score: NDArray[np.float64]
    posteriors: tuple[HiddenPosterior, ...]

    def take(self, rows: NDArray[Any]) -> _State:
        return _State(
            self.labels[rows], self.score[rows], tuple(q.take(rows) for q in self.posteriors)
        )


@dataclass(frozen=True)
class _Problem:
    """A batch of images as the loop sees it: costs (B, H, W, L), weights (B or 1, n, H, W)."""

    potentials: tuple[tuple[int, PatternPotential], ...]
    costs: FloatArray
    weights: FloatArray
    features: FloatArray | None
    threads: int

    def take(self, rows: NDArray[Any]) -> _Problem:
        return replace(
            self, costs=self.costs[rows],
            weights=self.weights if len(self.weights) == 1 else self.weights[rows],
            features=None if self.features is None else self.features[rows],
        )

    def visit(
        self, labels: Labels, previous: tuple[HiddenPosterior, ...] = ()
    ) -> tuple[_State, NDArray[np.float64]]:
        """The E-step at `labels`, and the bound there under the posteriors of a state before."""
        score = -self._base_energies(labels)
        bound = score.copy()
        found = []
        for number, (label, patterns) in enumerate(self.potentials):
            a = patterns.activations((labels == label).reshape(len(labels), -1), self.features)
            q = patterns.posterior(a)
            score += q.bound(a)
            bound += (previous[number] if previous else q).bound(a)
            found.append(q)
        return _State(labels, score, tuple(found)), bound

    def m_step(self, state: _State) -> Labels:
        """The labels that maximize the bound for the posteriors of `state`."""
        costs = self.costs.copy()
        for (label, patterns), q in zip(self.potentials, state.posteriors, strict=True):
            costs[..., label] -= patterns.to_visible(q.expected).reshape(state.labels.shape)
        return self.cut(costs, state.labels)

    def cut(self, costs: FloatArray, start: Labels | None = None) -> Labels:
        """Labels of least energy for `costs`; more than two labels expand one by one from `start`,
        so that the energy does not rise."""
        if costs.shape[-1] == 2:
            difference = costs[..., 1] - costs[..., 0]
            return cut_grids(difference, self.weights, threads=self.threads).labels
        return np.array([
            alpha_expansion_grid(
                each, self.weights[n % len(self.weights)], init=None if start is None else start[n]
            ).labels
            for n, each in enumerate(costs)
        ])

    def _base_energies(self, labels: Labels) -> NDArray[np.float64]:
        chosen = np.take_along_axis(self.costs, labels[..., None], -1)
        pairwise = disagreement_costs(labels, self.weights[:, None])[:, 0]
        return np.asarray(chosen.sum((1, 2, 3), dtype=np.float64) + pairwise)


def _ascend(problem: _Problem, labels: Labels, max_iter: int, restart: int) -> PatternResult:
    """EM from `labels` for every image of the batch."""
    n = len(labels)
    state, score = problem.visit(labels)
    best = labels.copy()
    scores, bounds = [score], [score]
    n_iter = np.zeros(n, np.int64)
    converged = np.zeros(n, bool)
    active = np.arange(n)
    while len(active) and len(scores) <= max_iter:
        fresh, bound = problem.visit(problem.m_step(state), state.posteriors)
        # Ties and rounding could make EM go round in circles; a score that must rise cannot.
        rose = fresh.score > state.score
        n_iter[active] += 1
        converged[active[~rose]] = True
        bounds.append(scores[-1].copy())
        scores.append(scores[-1].copy())
        active = active[rose]
        bounds[-1][active] = bound[rose]
        scores[-1][active] = fresh.score[rose]
        best[active] = fresh.labels[rose]
        problem, state = problem.take(rose), fresh.take(rose)
    return PatternResult(
        best, np.array(scores), np.array(bounds), n_iter, converged, np.full(n, restart)
    )


def _perturbations(costs: FloatArray, n_restarts: int, seed: int) -> Iterator[FloatArray]:
    """Costs less Gumbel noise, whose least energy is a draw from the unary terms alone and a
    likely labeling with the pairwise ones (perturb and MAP)."""
    rng = np.random.default_rng(as_count(seed, "seed", 0))
    for _ in range(as_count(n_restarts, "n_restarts", 0)):
        yield costs - rng.gumbel(size=costs.shape).astype(costs.dtype)


def _padded(history: NDArray[np.float64], n_steps: int) -> NDArray[np.float64]:
    """The history with its last row repeated."""
    missing = np.repeat(history[-1:], n_steps - len(history), 0)
    return np.concatenate([history, missing])
