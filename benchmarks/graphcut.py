"""Time graph cuts, against SciPy and, where it is installed, PyMaxflow, in one run.

Nothing is timed whose energy is not the one that SciPy finds for the same whole numbers; the exit
status is 1 then. PyMaxflow (GPL) is compared with, never needed: pip install PyMaxflow.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import maximum_flow

from benchmarks.cases import Disagreement, photo_case, volume_case
from benchmarks.measure import (
    Candidates,
    Section,
    fastest,
    milliseconds,
    ratio,
    run_sections,
    times,
)
from crfield.graphcut import (
    alpha_expansion_grid,
    contrast_weights,
    cut_grids,
    grid_offsets,
)
from crfield.graphcut.neighborhood import pairs_region
from experiments.common import REPOSITORY, Float32, provenance

try:
    import maxflow
except ImportError:
    maxflow = None

RESULTS = REPOSITORY / "benchmarks" / "results"
OURS, SCIPY, PYMAXFLOW = "crfield", "SciPy", "PyMaxflow"
# Float costs become whole numbers of this many steps per unit, which SciPy needs.
STEPS = 1000


@dataclass(frozen=True)
class Scale:
    """How large the cases are and how often they run."""

    repeats: int = 7
    photo: tuple[int, int] = (375, 500)
    volume: tuple[int, int, int] = (32, 64, 64)
    tile: int = 32


FULL = Scale()
# For the tests: every line runs, but the figures mean nothing.
TINY = Scale(repeats=1, photo=(30, 40), volume=(4, 8, 8), tile=8)


@dataclass(frozen=True)
class CutCase:
    """Costs of label 1 (*grid,) and weights (n_offsets, *grid): whole numbers, kept as float32."""

    name: str
    costs: Float32
    weights: Float32

    @property
    def offsets(self) -> tuple[tuple[int, ...], ...]:
        """The half neighborhood."""
        return grid_offsets(self.costs.ndim, 2 * len(self.weights))

    def cut(self) -> float:
        """crfield on one thread, from arrays to labels; gives the energy."""
        return float(cut_grids(self.costs[None], self.weights[None], threads=1).energies[0])

    @property
    def energy_of_no_flow(self) -> float:
        """What a flow is added to for the energy of its cut."""
        return float(self.costs[self.costs < 0].sum(dtype=np.float64))

    @cached_property
    def scipy_graph(self) -> tuple[Any, int]:
        """SciPy's sparse matrix of capacities, source and sink being the last two nodes."""
        n = self.costs.size
        index = np.arange(n).reshape(self.costs.shape)
        flat = self.costs.ravel()
        ones, zeros = np.flatnonzero(flat < 0), np.flatnonzero(flat > 0)
        tails, heads = [np.full(len(ones), n), zeros], [ones, np.full(len(zeros), n + 1)]
        values = [-flat[ones], flat[zeros]]
        for offset, plane in zip(self.offsets, self.weights, strict=True):
            here = pairs_region(self.costs.shape, offset)
            there = pairs_region(self.costs.shape, tuple(-step for step in offset))
            for p, q in ((index[here], index[there]), (index[there], index[here])):
                tails.append(p.ravel())
                heads.append(q.ravel())
                values.append(plane[here].ravel())
        capacities = np.concatenate(values).astype(np.int32)
        ends = (np.concatenate(tails), np.concatenate(heads))
        graph = coo_array((capacities, ends), shape=(n + 2, n + 2)).tocsr()
        graph.indices, graph.indptr = (a.astype(np.int32) for a in (graph.indices, graph.indptr))
        return graph, n

    def cut_scipy(self) -> float:
        """SciPy's flow through its ready-made graph; gives the energy."""
        graph, source = self.scipy_graph
        flow = maximum_flow(graph, source, source + 1).flow_value
        return float(flow) + self.energy_of_no_flow

    def cut_pymaxflow(self) -> float:
        """PyMaxflow, from arrays to labels; gives the energy."""
        graph = maxflow.Graph[float](self.costs.size, self.weights.size)
        nodes = graph.add_grid_nodes(self.costs.shape)
        for offset, plane in zip(self.offsets, self.weights, strict=True):
            structure = np.zeros((3,) * self.costs.ndim)
            structure[tuple(1 + step for step in offset)] = 1
            graph.add_grid_edges(nodes, plane, structure, symmetric=True)
        graph.add_grid_tedges(nodes, np.maximum(-self.costs, 0), np.maximum(self.costs, 0))
        flow = graph.maxflow()
        graph.get_grid_segments(nodes)
        return float(flow) + self.energy_of_no_flow

    def candidates(self) -> Candidates:
        """The libraries to time."""
        known: Candidates = {OURS: self.cut, SCIPY: self.cut_scipy}
        if maxflow is not None:
            known[PYMAXFLOW] = self.cut_pymaxflow
        return known

    def check(self) -> float:
        """The energy, if all libraries agree on it."""
        energies = {name: float(run()) for name, run in self.candidates().items()}
        if len(set(energies.values())) > 1:
            raise Disagreement(f"{self.name}: energies must be equal, got {energies}; not timed.")
        return energies[OURS]


def photo_cut(grid: tuple[int, int], neighbors: int, strength: float) -> CutCase:
    """Figure and ground of a photo, from noisy costs and contrast weights."""
    case = photo_case(grid, 2)
    return _whole_numbers(
        f"{grid[0]} x {grid[1]}, {neighbors} neighbors, weight {strength:g}",
        case.unary[..., 1] - case.unary[..., 0],
        strength * contrast_weights(case.image, neighbors),
    )


def volume_cut(grid: tuple[int, int, int], neighbors: int, strength: float) -> CutCase:
    """The same for a gray volume."""
    case = volume_case(grid, 2)
    return _whole_numbers(
        f"{' x '.join(map(str, grid))}, {neighbors} neighbors, weight {strength:g}",
        case.unary[..., 1] - case.unary[..., 0],
        strength * contrast_weights(case.image, neighbors),
    )


def _whole_numbers(name: str, costs: NDArray[Any], weights: NDArray[Any]) -> CutCase:
    return CutCase(
        name, np.rint(STEPS * costs).astype(np.float32), np.rint(STEPS * weights).astype(np.float32)
    )


def whole_cuts(scale: Scale) -> Section:
    """One grid at a time."""
    section = Section("cuts", "Cuts of one grid, 1 thread")
    cases = [
        photo_cut(scale.photo, 4, 1.0), photo_cut(scale.photo, 4, 5.0),
        photo_cut(scale.photo, 8, 2.0), volume_cut(scale.volume, 6, 1.0),
        volume_cut(scale.volume, 26, 0.3),
    ]
    rows, figures = [], []
    for case in cases:
        energy = section.accepts(case.check)
        if energy is None:
            continue
        seconds = fastest(case.candidates(), scale.repeats)
        others = [seconds.get(name) for name in (SCIPY, PYMAXFLOW)]
        rows.append([
            case.name, milliseconds(seconds[OURS]),
            *("" if other is None else milliseconds(other) for other in others),
            *(times(ratio(other, seconds[OURS])) for other in others),
        ])
        figures.append({"case": case.name, "seconds": seconds, "energy": energy})
    section.add_table(
        ["case", "crfield, ms", "SciPy, ms", "PyMaxflow, ms", "over SciPy", "over PyMaxflow"], rows
    )
    section.data["cases"] = figures
    return section


def many_small_cuts(scale: Scale) -> Section:
    """The tiles of a photo as a batch, and what each of them takes."""
    section = Section("batch", "Batches of small grids")
    case = photo_cut(scale.photo, 4, 1.0)
    if section.accepts(case.check) is None:
        return section
    costs = _tiles(case.costs, scale.tile)
    weights = np.stack([_tiles(plane, scale.tile) for plane in case.weights], 1)
    seconds = fastest(
        {
            name: partial(cut_grids, costs, weights, threads=threads)
            for name, threads in (("1 thread", 1), ("all threads", None))
        },
        scale.repeats,
    )
    rows = [
        [f"{len(costs)} grids of {scale.tile} x {scale.tile}, {name}", milliseconds(took),
         f"{1e3 * took / len(costs):.4f}"]
        for name, took in seconds.items()
    ]
    section.add_table(["case", "batch, ms", "a grid, ms"], rows)
    section.data.update(seconds=seconds, batch=len(costs), tile=scale.tile)
    return section


def _tiles(plane: Float32, side: int) -> Float32:
    """The whole tiles of an image, (n, side, side)."""
    rows, columns = (length // side for length in plane.shape)
    cropped = plane[: rows * side, : columns * side].reshape(rows, side, columns, side)
    return np.ascontiguousarray(cropped.swapaxes(1, 2).reshape(-1, side, side))


def expansions(scale: Scale) -> Section:
    """Many labels until no expansion helps."""
    section = Section("expansion", "Alpha-expansion on a photo, 4 neighbors, 1 thread")
    rows, figures = [], []
    for n_labels in (5, 21):
        case = photo_case(scale.photo, n_labels)
        weights = 2 * contrast_weights(case.image, 4)
        result = alpha_expansion_grid(case.unary, weights)
        took = fastest(
            {OURS: partial(alpha_expansion_grid, case.unary, weights)}, min(scale.repeats, 3)
        )[OURS]
        n_cuts = result.n_iter * n_labels
        rows.append([
            case.name, str(result.n_iter), milliseconds(took), milliseconds(took / n_cuts),
        ])
        figures.append({
            "case": case.name, "cycles": result.n_iter, "seconds": took,
            "energies": result.energies.tolist(),
        })
    section.add_table(["case", "cycles", "all, ms", "a move, ms"], rows)
    section.data["cases"] = figures
    return section


SECTIONS: dict[str, Callable[[Scale], Section]] = {
    "cuts": whole_cuts, "batch": many_small_cuts, "expansion": expansions,
}


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=FULL.repeats)
    parser.add_argument("--only", choices=SECTIONS, action="append", metavar="NAME")
    arguments = parser.parse_args(words)
    return run(Scale(repeats=arguments.repeats), arguments.only or list(SECTIONS), RESULTS)


def run(scale: Scale, names: Sequence[str], folder: Path) -> int:
    """Measure the parts, print them and write them to the folder; 1 if a case was refused."""
    notes = [f"Fastest of {scale.repeats} interleaved runs; SciPy gets its graph ready-made."]
    if maxflow is None:
        notes.append("For comparison with PyMaxflow: pip install PyMaxflow, then run this again.")
    return run_sections(
        [partial(SECTIONS[name], scale) for name in names], folder, provenance(), notes,
        {"repeats": scale.repeats},
    )


if __name__ == "__main__":
    sys.exit(main())
