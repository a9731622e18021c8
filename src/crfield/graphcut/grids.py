"""Binary labels of least energy on grids, exactly.

    E(y) = sum_p costs[p] y_p + sum_k sum_p weights[k, p] [y_p != y_q],    q = p + offsets[k],

with y in {0, 1}, is the capacity of a cut between a source (label 1) and a sink (label 0).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from crfield._core import _native
from crfield._core.resources import thread_count
from crfield._core.validate import InputError, as_array
from crfield.graphcut._checks import as_capacities, as_grid_weights, check_room, padded_cells
from crfield.graphcut.neighborhood import native_grid, offsets_for
from crfield.graphcut.results import BinaryResult, CutResult


def cut_grids(
    costs: Any, weights: Any, *, neighbors: int | None = None, backward: Any = None,
    threads: int | None = None,
) -> CutResult:
    """Minimize E(y) on each grid of a batch; the grids are spread over the threads.

    Parameters
    ----------
    costs : (B, *grid), the cost of label 1 minus that of label 0; 2 or 3 axes.
    weights : (B or 1, n_offsets, *grid), >= 0, the cost of different labels at p and q = p +
        offset, in the order of `grid_offsets`; entries whose q is off the grid are ignored.
    neighbors : 4, 8, 6 or 26; by default what `n_offsets` implies.
    backward : like `weights`; with it `weights` is the cost of y_p = 1 and y_q = 0, and `backward`
        that of y_p = 0 and y_q = 1.
    threads : native threads, all usable cores by default.

    Work is done in int32 or int64 if all numbers are whole, in float64 if any is float64, else in
    float32. The time is about linear in the number of cells if most labels follow from costs
    nearby. It grows faster if flow has to cross the whole grid.
    """
    n_threads = thread_count(threads)
    shape = as_array(costs, "costs").shape
    if len(shape) not in (3, 4) or 0 in shape[1:]:
        raise InputError(
            f"costs must have shape (B, *grid) with 2 or 3 grid axes that are not empty, got "
            f"{shape}; give a single grid a first axis of length 1."
        )
    batch, grid = shape[0], shape[1:]
    n_cells = math.prod(grid)
    offsets = offsets_for(as_array(weights, "weights").shape, grid, neighbors)
    both = {"weights": weights} if backward is None else {"weights": weights, "backward": backward}
    values, *capacities = as_capacities(
        costs=costs,
        **{name: as_grid_weights(w, name, (batch, 1), grid, offsets) for name, w in both.items()},
    )
    n_sets = max(map(len, capacities))
    planes = [
        (w if len(w) == n_sets else np.repeat(w, n_sets, 0)).reshape(n_sets, len(offsets), n_cells)
        for w in capacities
    ]
    check_room(
        min(n_threads, batch) * padded_cells(grid)
        * float((2 * len(offsets) + 1) * values.itemsize + 16),
        f"Cutting grids of {' x '.join(map(str, grid))} cells",
        "cut smaller grids or use fewer threads",
    )
    labels, energies = np.empty((batch, n_cells), np.uint8), np.empty(batch, np.float64)
    _native.cut_grids(
        values.reshape(batch, n_cells), planes[0], planes[-1], *native_grid(grid, offsets), labels,
        energies, n_threads,
    )
    return CutResult(labels.reshape(shape), energies)


def minimize_binary_grid(
    unary: Any, weights: Any, *, neighbors: int | None = None, backward: Any = None
) -> BinaryResult:
    """Minimize sum_p unary[p, y_p] + sum_k sum_p weights[k, p] [y_p != y_q] on one grid.

    unary : (*grid, 2); weights and backward : (n_offsets, *grid), as in `cut_grids`.
    """
    (values,) = as_capacities(unary=unary)
    if values.ndim not in (3, 4) or values.shape[-1] != 2 or values.size == 0:
        raise InputError(
            f"unary must have shape (*grid, 2) with 2 or 3 grid axes that are not empty, got "
            f"{values.shape}; give the costs of labels 0 and 1 at each cell."
        )
    if values.dtype == np.int32:
        values = values.astype(np.int64)
    cut = cut_grids(
        (values[..., 1] - values[..., 0])[None], as_array(weights, "weights")[None],
        neighbors=neighbors,
        backward=None if backward is None else as_array(backward, "backward")[None], threads=1,
    )
    wide = np.int64 if values.dtype == np.int64 else np.float64
    start = float(values[..., 0].sum(dtype=wide))
    return BinaryResult(cut.labels[0], start + float(cut.energies[0]))
