"""Time inference on chains, against PyTorch in one run.

With pytorch-crf (MIT; pip install pytorch-crf) it is compared with that library's negative
log-likelihood, without it with the same forward recursion written here; either is the forward pass
alone, without marginals or gradients. Nothing is timed whose partition functions differ from
PyTorch's; the exit status is 1 then.
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

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.cases import Disagreement
from benchmarks.measure import (
    Candidates,
    Section,
    fastest,
    milliseconds,
    ratio,
    run_sections,
    times,
)
from experiments.common import REPOSITORY, Float32, provenance

from crfield.graphs import best_chains, chain_loss, infer_chains, k_best_chains, sample_chains
from crfield.graphs._chain_inputs import as_batch
from crfield.graphs.chains import sum_batch

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


@dataclass(frozen=True)
class Scale:
    """How often the cases run and how large they are: chains, nodes, states."""

    repeats: int = 15
    sizes: tuple[tuple[int, int, int], ...] = ((64, 100, 26), (256, 20, 10), (8, 1000, 50))


FULL = Scale()
# For the tests: every line runs, and nothing of it is worth reading.
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

    def sums(self, threads: int | None) -> np.ndarray[Any, np.dtype[np.float64]]:
        """log Z, all marginals and expected transitions; gives log Z."""
        batch = as_batch(self.costs, self.transitions, None)
        return sum_batch(batch, 1.0, None, threads)[0]

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
        """The negative log-likelihood, if PyTorch finds the same."""
        ours = chain_loss(self.costs, self.transitions, self.labels.reshape(-1)).value
        theirs = ours if torch is None else self.peer()()
        if not abs(ours - theirs) <= 1e-5 * abs(ours):
            raise Disagreement(
                f"{self.name}: losses must be equal, got {ours} and {theirs}; not timed."
            )
        return ours


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
            LABELS: partial(infer_chains, case.costs, case.transitions, threads=1),
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
        asked: Candidates = {
            "best labels": partial(best_chains, case.costs, case.transitions, threads=1),
            "5 best": partial(k_best_chains, case.costs, case.transitions, 5, threads=1),
            "10 samples": partial(
                sample_chains, case.costs, case.transitions, n_samples=10, threads=1
            ),
        }
        seconds = fastest(asked, min(scale.repeats, 5))
        rows.append([case.name, *map(milliseconds, seconds.values())])
        figures.append({"case": case.name, "seconds": seconds})
    section.add_table(["case", "best labels, ms", "5 best, ms", "10 samples, ms"], rows)
    section.data["cases"] = figures
    return section


SECTIONS: dict[str, Callable[[Scale], Section]] = {"sums": sums, "others": others}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=FULL.repeats)
    parser.add_argument("--only", choices=SECTIONS, action="append", metavar="NAME")
    arguments = parser.parse_args(words)
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
