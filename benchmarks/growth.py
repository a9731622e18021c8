"""How time grows with the number of pixels and of labels, and how far it is from its floors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial

import numpy as np

from benchmarks.cases import ITERATIONS, Case, Scale, check_case, photo_case, tiled_case
from benchmarks.measure import (
    Candidates,
    Section,
    copy_bandwidth,
    fastest,
    milliseconds,
    ratio,
    times,
)
from crfield.dense.filters import GridFilter, TableFilter
from crfield.dense.meanfield import Inference
from crfield.dense.observation import observe
from crfield.dense.problem import build_terms
from experiments.common import STANDARD

FLOAT_BYTES, INDEX_BYTES = 4, 4
# Arithmetic of a softmax for each label: maximum, difference, exponential, sum, scaling.
SOFTMAX_OPERATIONS = 25
GRID_CORNERS = 2


def growth(scale: Scale) -> Section:
    """Time for each pixel as the image grows, and for each label as their number does."""
    section = Section("growth", "Growth, 1 thread")
    by_size = [
        _grown(scale, count, tiles)
        for count, sizes in ((scale.few_labels, scale.tiles_few_labels),
                             (scale.many_labels, scale.tiles_many_labels))
        for tiles in sizes
    ]
    by_labels = [photo_case(scale.growth, count) for count in scale.label_counts]
    every = {case.name: case for case in (*by_size, *by_labels)}  # the smallest is in both
    candidates: Candidates = {
        name: case.infer for name, case in every.items()
        if section.accepts(partial(check_case, case)) is not None
    }
    # One after the other: between turns a system may take back the memory of the large ones.
    seconds = {name: fastest({name: run}, scale.repeats)[name] for name, run in candidates.items()}

    rows = []
    for case in by_size:
        smallest = next(other for other in by_size if other.n_labels == case.n_labels)
        each, first = (_per_pixel(seconds, one) for one in (case, smallest))
        if each is not None:
            rows.append([
                case.name, f"{case.n_variables / 1e6:.1f}", milliseconds(seconds[case.name]),
                f"{1e9 * each:.0f}", times(ratio(each, first)),
            ])
    section.add_table(
        ["case", "megapixels", "ms", "ns per pixel", "ratio to the smallest"], rows
    )
    rows = []
    for case in by_labels:
        if case.name in seconds:
            took, first = seconds[case.name], seconds.get(by_labels[0].name)
            rows.append([
                case.name, milliseconds(took), milliseconds(took / case.n_labels),
                times(ratio(took, first)),
            ])
    section.add_table(["case", "ms", "ms per label", "ratio to the fewest labels"], rows)
    section.data["seconds"] = seconds
    return section


@dataclass(frozen=True)
class TableSize:
    """One term's lattice or grid.

    corners : rows of the table that a point sees: of its simplex, or of its line of a grid.
    rows : of the table of vertices.
    blur_operations : for each entry of the table: four per axis and order of a lattice, eight
        per axis of a grid.
    """

    corners: int
    rows: int
    blur_operations: int


@dataclass(frozen=True)
class Floor:
    """The least that one iteration has to do.

    memory_bytes : what cannot stay in a cache: the costs are read, and each point's corners and
        weights and two scales for every term; the tables are read and written once.
    cache_bytes : what goes through the caches: a row of the table for every corner of every point
        is read by the slice, and read and written by the splat.
    operations : a multiplication and an addition for each label and corner in both, the softmax,
        and the blur.
    """

    memory_bytes: int
    cache_bytes: int
    operations: int


def iteration_floor(n: int, n_labels: int, tables: Sequence[TableSize]) -> Floor:
    """The floor of N points and L labels with float32 tables, rows padded to 2, 4 or 8 numbers."""
    width = 2 if n_labels <= 2 else 4 if n_labels <= 4 else 8
    row_bytes = FLOAT_BYTES * ((n_labels + width - 1) // width * width)
    memory = n * n_labels * FLOAT_BYTES
    cache, operations = 0, n * n_labels * SOFTMAX_OPERATIONS
    for table in tables:
        # The corners along a grid's lines are the same for every line.
        known = 0 if table.corners == GRID_CORNERS else table.corners * (INDEX_BYTES + FLOAT_BYTES)
        memory += n * (known + 2 * FLOAT_BYTES)
        memory += 2 * table.rows * row_bytes
        cache += 3 * n * table.corners * row_bytes
        operations += 4 * n * table.corners * n_labels
        operations += table.blur_operations * table.rows * n_labels
    return Floor(memory, cache, operations)


def floors(scale: Scale) -> Section:
    """An iteration beside the time in which its data could be read at the speed of a copy."""
    section = Section("floors", "An iteration and its floors (estimates), 1 thread")
    bandwidth = copy_bandwidth(scale.copied_bytes, scale.repeats)
    rows, figures = [], []
    for count in (scale.few_labels, scale.many_labels):
        case = photo_case(scale.photo, count)
        if section.accepts(partial(check_case, case)) is None:
            continue
        tables = table_sizes(case)
        floor = iteration_floor(case.n_variables, count, tables)
        seconds = fastest(
            {"none": partial(case.infer, n_iter=0), "all": partial(case.infer)}, scale.repeats
        )
        each = (seconds["all"] - seconds["none"]) / ITERATIONS
        least = floor.memory_bytes / bandwidth
        rows.append([
            case.name, ", ".join(f"{size.corners} x {size.rows}" for size in tables),
            f"{floor.memory_bytes / 1e6:.0f}", f"{floor.cache_bytes / 1e6:.0f}",
            f"{floor.operations / 1e6:.0f}", milliseconds(least), milliseconds(each),
            times(ratio(each, least)), f"{floor.operations / each / 1e9:.1f}" if each > 0 else "",
        ])
        figures.append({
            "case": case.name, "tables": [asdict(size) for size in tables],
            "floor": asdict(floor), "memory_seconds": least, "per_iteration": each,
        })
    section.add_table(
        ["case", "corners x vertices", "memory, MB", "caches, MB", "Mops", "memory floor, ms",
         "an iteration, ms", "iteration / floor", "Gops/s"],
        rows,
    )
    section.tables.append(f"A copy in memory moves {bandwidth / 1e9:.1f} GB/s on one thread.")
    section.data.update(copy_bytes_per_second=bandwidth, cases=figures)
    return section


def table_sizes(case: Case) -> list[TableSize]:
    """The tables that the case's terms work through."""
    observation = observe(case.unary.shape[:-1], case.image)
    model = STANDARD.model(case.n_labels)
    sizes = []
    for term in build_terms(
        model.terms, observation, np.dtype(np.float32), Inference(threads=1)
    ):
        kernel = term.operator
        assert isinstance(kernel, TableFilter)
        dim = kernel.n_features
        sizes.append(
            TableSize(GRID_CORNERS, kernel.n_vertices, 8 * dim) if isinstance(kernel, GridFilter)
            else TableSize(dim + 1, kernel.n_vertices, 2 * 4 * (dim + 1))
        )
    return sizes


def _grown(scale: Scale, n_labels: int, tiles: int) -> Case:
    return tiled_case(photo_case(scale.growth, n_labels), tiles)


def _per_pixel(seconds: dict[str, float], case: Case) -> float | None:
    return ratio(seconds.get(case.name), case.n_variables)
