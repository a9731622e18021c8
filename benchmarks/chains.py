"""Time inference on chains, against PyTorch in one run.

With pytorch-crf (MIT; pip install pytorch-crf) it is compared with that library's negative
log-likelihood, without it with the same forward recursion written here; either is the forward pass
alone, without marginals or gradients. Nothing is timed that differs from PyTorch's loss, or from
what NumPy finds in float64: partition functions, marginals, the energies of the best labels, the
mean energy of samples. The exit status is 1 then.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import Disagreement
from benchmarks.chain_reference import reference_best, reference_sums
from benchmarks.measure import (
    Candidates,
    Section,
    fastest,
    milliseconds,
    ratio,
    run_sections,
    times,
)
from crfield.graphs import Chains, best, chain_loss, infer, k_best, sample
from crfield.graphs.engines.chains import sum_chains
from experiments.common import REPOSITORY, Float32, provenance

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]
try:
    from torchcrf import CRF
except ImportError:
    CRF = None

RESULTS = REPOSITORY / "benchmarks" / "results"
OURS, EVERY_CORE, LABELS = "crfield, 1 thread", "crfield, all threads", "crfield with labels"
PEER = "pytorch-crf" if CRF is not None else "PyTorch"
SUMS = "partition functions", "marginals", "expected transitions"
N_BEST, N_SAMPLES = 5, 10


@dataclass(frozen=True)
class Scale:
    """How often the cases run and how large they are: chains, nodes, states."""

    repeats: int = 15
    sizes: tuple[tuple[int, int, int], ...] = ((64, 100, 26), (256, 20, 10), (8, 1000, 50))


FULL = Scale()
# For the tests: every line runs, but the figures mean nothing.
TINY = Scale(repeats=1, sizes=((3, 5, 4), (2, 3, 2)))


@dataclass(frozen=True)
class ChainCase:
    """Chains of one length: costs (C, T, L), transitions (L, L), labels (C, T)."""

    costs: Float32
    transitions: Float32
    labels: np.ndarray[Any, np.dtype[np.int64]]

    @classmethod
    def random(cls, n_chains: int, length: int, n_states: int) -> ChainCase:
        """Costs and labels drawn at random."""
        rng = np.random.default_rng([n_chains, length, n_states])
        return cls(
            rng.standard_normal((n_chains, length, n_states), np.float32),
            rng.standard_normal((n_states, n_states), np.float32),
            rng.integers(0, n_states, size=(n_chains, length)),
        )

    @property
    def name(self) -> str:
        """Its size in words."""
        return "{} chains of {} nodes, {} states".format(*self.costs.shape)

    def sums(self, threads: int | None) -> tuple[Any, Any, Any]:
        """log Z, all marginals and expected transitions."""
        return sum_chains(Chains(self.costs, self.transitions), 1.0, None, threads)

    def labeled(self) -> tuple[Any, Any]:
        """The same, and labels of least energy."""
        chains = Chains(self.costs, self.transitions)
        return infer(chains, threads=1), best(chains, threads=1)

    def peer(self) -> Callable[[], float]:
        """PyTorch's negative log-likelihood of the labels, the sum over chains."""
        scores, table = torch.from_numpy(-self.costs), torch.from_numpy(-self.transitions)
        labels = torch.from_numpy(self.labels)
        if CRF is None:
            return partial(_torch_loss, scores, table, labels)
        crf = CRF(self.costs.shape[2], batch_first=True)
        with torch.no_grad():
            crf.start_transitions.zero_()
            crf.end_transitions.zero_()
            crf.transitions.copy_(table)

        def run() -> float:
            with torch.no_grad():
                return -float(crf(scores, labels, reduction="sum"))

        return run

    def check(self) -> float:
        """The negative log-likelihood, if PyTorch finds the same, and NumPy the same marginals."""
        ours = chain_loss(self.costs, self.transitions, self.labels.reshape(-1)).value
        theirs = ours if torch is None else self.peer()()
        self._require("losses", ours, theirs, 1e-5 * abs(ours))
        expected = reference_sums(self.costs, self.transitions)
        result, least = self.labeled()
        labeled = result.log_partition, result.marginals, result.transition_marginals
        for found in (self.sums(1), self.sums(None), labeled):
            for name, our, their in zip(SUMS, found, expected, strict=True):
                self._require(name, our, their, 1e-5 * max(1.0, float(np.abs(their).max())))
        self._check_energies(least, reference_best(self.costs, self.transitions, 1))
        return ours

    def check_others(self) -> float:
        """How far the mean energy of samples is from what is expected, in its deviations; the best
        labels must have the energies that NumPy finds."""
        least = reference_best(self.costs, self.transitions, N_BEST)
        self._check_energies(self.best(), least[:, :1])
        ranked = self.ranked()
        tolerance = 1e-5 * float(np.abs(least).max())
        for labels, energies, expected in zip(ranked.labels, ranked.energies, least, strict=True):
            expected = expected[np.isfinite(expected)]
            self._require("energies of the best", energies, expected, tolerance)
            if len(np.unique(labels, axis=0)) != len(expected):
                raise Disagreement(f"{self.name}: the best labels must differ; not timed.")
        for c, labels in enumerate(ranked.labels):
            self._require(
                "energies", self.energies(labels[:, None], [c])[:, 0], ranked.energies[c], tolerance
            )
        drawn = self.samples().reshape(N_SAMPLES, *self.labels.shape)
        # The first two derivatives of log Z by the inverse temperature.
        step = 1e-3
        at = [reference_sums(b * self.costs.astype(np.float64), b * self.transitions)[0].sum()
              for b in (1 - step, 1.0, 1 + step)]
        wanted, variance = (at[0] - at[2]) / (2 * step), (at[0] - 2 * at[1] + at[2]) / step**2
        deviation = (variance / N_SAMPLES) ** 0.5 + 1e-6 * abs(wanted)
        far = float(abs(self.energies(drawn).sum(1).mean() - wanted) / deviation)
        if not far <= 5:
            raise Disagreement(
                f"{self.name}: samples must have a mean energy near {wanted:g}, got one that is "
                f"{far:.1f} deviations away; not timed."
            )
        return far

    def best(self) -> Any:
        """Labels of least energy."""
        return best(Chains(self.costs, self.transitions), threads=1)

    def ranked(self) -> Any:
        """The best few labelings."""
        return k_best(Chains(self.costs, self.transitions), N_BEST, threads=1)

    def samples(self) -> Any:
        """Labels drawn at random."""
        return sample(Chains(self.costs, self.transitions), N_SAMPLES, threads=1)

    def energies(self, labels: Any, chains: Any = slice(None)) -> Any:
        """E(x) of labels (S, C, T), (S, C)."""
        costs = self.costs[chains].astype(np.float64)[None]
        nodes = np.take_along_axis(costs, labels[..., None], -1).sum((-2, -1))
        pairs = self.transitions.astype(np.float64)[labels[..., :-1], labels[..., 1:]]
        return nodes + pairs.sum(-1)

    def _check_energies(self, found: Any, expected: Any) -> None:
        tolerance = 1e-5 * float(np.abs(expected).max())
        self._require("least energies", found.energy, expected[:, 0], tolerance)
        labels = found.labels.reshape(1, *self.labels.shape)
        self._require("energies of labels", self.energies(labels)[0], expected[:, 0], tolerance)

    def _require(self, name: str, ours: Any, theirs: Any, tolerance: float) -> None:
        apart = float(np.abs(np.subtract(ours, theirs)).max(initial=0.0))
        if np.shape(ours) != np.shape(theirs) or not apart <= tolerance:
            raise Disagreement(
                f"{self.name}: {name} must be within {tolerance:.2g}, got {apart:.2g}; not timed."
            )


def _torch_loss(scores: Any, table: Any, labels: Any) -> float:
    """log Z less the score of the labels, a step for all chains at a time."""
    with torch.no_grad():
        forward = scores[:, 0]
        for step in range(1, scores.shape[1]):
            forward = torch.logsumexp(forward[:, :, None] + table, 1) + scores[:, step]
        score = scores.gather(2, labels[:, :, None]).sum()
        score += table[labels[:, :-1], labels[:, 1:]].sum()
        return float(torch.logsumexp(forward, 1).sum() - score)


def sums(scale: Scale) -> Section:
    """Everything that learning needs, against the forward pass alone."""
    section = Section("sums", "log Z, all marginals and expected transitions, float32")
    rows, figures = [], []
    for size in scale.sizes:
        case = ChainCase.random(*size)
        loss = section.accepts(case.check)
        if loss is None:
            continue
        candidates: Candidates = {
            OURS: partial(case.sums, 1), EVERY_CORE: partial(case.sums, None),
            LABELS: case.labeled,
        }
        if torch is not None:
            candidates[PEER] = case.peer()
        seconds = fastest(candidates, scale.repeats)
        rows.append([
            case.name, *(milliseconds(seconds[name]) for name in (OURS, EVERY_CORE, LABELS)),
            "" if torch is None else milliseconds(seconds[PEER]),
            times(ratio(seconds.get(PEER), seconds[OURS])),
        ])
        figures.append({"case": case.name, "loss": loss, "seconds": seconds})
    section.add_table(
        ["case", f"{OURS}, ms", f"{EVERY_CORE}, ms", f"{LABELS}, ms", f"{PEER}, forward alone, ms",
         "how much faster"],
        rows,
    )
    section.data["cases"] = figures
    return section


def others(scale: Scale) -> Section:
    """What else can be asked of chains."""
    section = Section("others", "Labels and samples, 1 thread, float32")
    rows, figures = [], []
    for size in scale.sizes:
        case = ChainCase.random(*size)
        if section.accepts(case.check_others) is None:
            continue
        asked: Candidates = {
            "best labels": case.best, f"{N_BEST} best": case.ranked,
            f"{N_SAMPLES} samples": case.samples,
        }
        seconds = fastest(asked, min(scale.repeats, 5))
        rows.append([case.name, *map(milliseconds, seconds.values())])
        figures.append({"case": case.name, "seconds": seconds})
    section.add_table(
        ["case", "best labels, ms", f"{N_BEST} best, ms", f"{N_SAMPLES} samples, ms"], rows
    )
    section.data["cases"] = figures
    return section


SECTIONS: dict[str, Callable[[Scale], Section]] = {"sums": sums, "others": others}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=FULL.repeats)
    parser.add_argument("--only", choices=SECTIONS, action="append", metavar="NAME")
    arguments = parser.parse_args(words)
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}; use 15.")
    return run(Scale(repeats=arguments.repeats), arguments.only or list(SECTIONS), RESULTS)


def run(scale: Scale, names: Sequence[str], folder: Path) -> int:
    """Measure the parts, print them and write them to the folder; 1 if a case was refused."""
    facts = provenance()
    if torch is not None:
        facts["PyTorch"] = f"{torch.__version__}, {torch.get_num_threads()} threads"
    facts["compared with"] = PEER if torch is not None else "nothing"
    notes = [f"Fastest of {scale.repeats} interleaved runs."]
    if CRF is None:
        notes.append(
            "For comparison with pytorch-crf: pip install pytorch-crf, then run this again."
        )
    return run_sections(
        [partial(SECTIONS[name], scale) for name in names], folder, facts, notes,
        {"repeats": scale.repeats},
    )


if __name__ == "__main__":
    sys.exit(main())
