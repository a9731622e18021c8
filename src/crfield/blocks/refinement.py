"""Images and volumes larger than memory, refined in overlapping blocks.

Each block is computed from a window that reaches `overlap` pixels beyond it on every side, and all
blocks share the model, the label ids, the scale of colors and the positions of the filters' nodes.
What is left is what a window does not see; `crfield.blocks.seams` measures and bounds it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.alignment import beside_scan
from crfield._core.validate import FloatArray, InputError, image_spacing, shown
from crfield.blocks.inputs import BlockInputs, count_selected, open_inputs, same_everywhere
from crfield.blocks.parts import Block, Target, as_sides, check_apart, cut, open_target
from crfield.blocks.seams import SeamBound, SeamMeter, Seams, check_bound, default_overlap
from crfield.dense.meanfield import Inference
from crfield.dense.model import DenseCRF
from crfield.dense.observation import Window, observe
from crfield.dense.results import InferenceStatus
from crfield.io.arrays import label_dtype
from crfield.refinement import (
    check_layout,
    check_model,
    check_room,
    look_at_photo,
    model_for,
    rescaled,
)
from crfield.unary.costs import CONFIDENCE, Segmentation
from crfield.unary.defaults import Terms

# Pixels of a block along each axis, by the number of axes.
SIDES = {1: 262144, 2: 512, 3: 128}

BlockCallback = Callable[[int, int], Any]


@dataclass(frozen=True, eq=False)
class BlockResult:
    """Labels of a whole image, block by block.

    Attributes
    ----------
    labels : (*grid,) ids of the most probable labels: the array that was given, a new one, or a
        read-only memory map of the file; None if a file was asked for and `callback` stopped.
    marginals : (*grid, L) likewise, None unless they were asked for.
    label_ids : (L,), the id that each column of the marginals stands for.
    n_blocks : blocks done.
    block, overlap : (d,) pixels of a block, and beyond it on every side, along each axis.
    seams : how far blocks disagree.
    status : of the block that got least far; CALLBACK if `callback` stopped.
    """

    labels: Any
    marginals: Any
    label_ids: NDArray[np.int64]
    n_blocks: int
    block: tuple[int, ...]
    overlap: tuple[int, ...]
    seams: Seams
    status: InferenceStatus

    def __repr__(self) -> str:
        differing = self.seams.differing
        seams = (
            "seams not compared" if differing is None
            else f"{100 * differing:.3g} % of labels differ at seams"
        )
        return (
            f"BlockResult({self.n_blocks} blocks of at most {'x'.join(map(str, self.block))}, "
            f"overlap {'x'.join(map(str, self.overlap))}, {len(self.label_ids)} labels, "
            f"{seams}, {self.status.name})"
        )


def refine_blocks(
    image: Any,
    probabilities_or_labels: Any,
    *,
    block: Any = None,
    overlap: Any = None,
    out: Any = None,
    marginals: Any = None,
    bound: bool = False,
    callback: BlockCallback | None = None,
    model: DenseCRF | None = None,
    scale: float | str | None = None,
    spatial: Any = "auto",
    spatial_weight: float | str = "auto",
    bilateral: Any = "auto",
    bilateral_weight: float | str = "auto",
    inference: Inference | None = None,
    confidence: float = CONFIDENCE,
    unknown: int | str | None = "auto",
    n_labels: int | None = None,
    layout: str | None = None,
    logits: bool = False,
    mask: Any = None,
    spacing: Any = None,
) -> BlockResult:
    """Refine a segmentation that need not fit into memory, in overlapping blocks.

    Parameters
    ----------
    image : (*grid[, C]), from anything that can be cut by slices: a memory map, zarr, h5py, dask or
        xarray array, a nibabel image as (Z, H, W[, C]); or None if no kernel looks at it.
    probabilities_or_labels : (*grid, L), (*grid,) or a label map (*grid,), of the same kinds.
    block : pixels of a block along all axes or (d,) along each; None is 512 in 2-D, 128 in 3-D.
    overlap : pixels beyond a block on every side that it is computed from; None is twice the widest
        positional sigma, at least 8. Memory is that of `refine` on block + 2 overlap.
    out : where labels go: None for a new array, an array (*grid,) that can be assigned by slices,
        or the name of a .npy file, which appears when it is complete.
    marginals : where marginals (*grid, L) go likewise; None drops them, True makes a new array.
    bound : whether to bound the error too, for about one more filter per term and iteration.
    callback : called as callback(blocks done, blocks in all) after each block; True stops.
    inference : an `Inference`; None is its defaults, those of `refine`. Blocks stop at `tol` each
        by itself; with tol=0 all take `max_iter` iterations.
    mask : boolean (*grid,), of the same kinds, or None.
    Other parameters are those of `refine`.

    Returns
    -------
    BlockResult.

    Examples
    --------
    >>> scan = np.load("scan.npy", mmap_mode="r")                       # doctest: +SKIP
    >>> refine_blocks(scan, coarse, block=128, out="refined.npy")       # doctest: +SKIP
    """
    check_layout(layout)
    check_model(model)
    how = _checked(inference, callback)
    check_apart(out, marginals)
    inputs = open_inputs(
        image, beside_scan(probabilities_or_labels, image), mask, layout, logits,
        n_labels if model is None else model.n_labels,
    )
    grid = inputs.grid
    if spacing is None:
        spacing = image_spacing(image, len(grid))
    spacing = observe(grid, spacing=spacing).spacing
    sides = as_sides(SIDES.get(len(grid), 64) if block is None else block, "block", len(grid), 1)
    cores = cut(grid, sides, (0,) * len(grid))
    if model is not None and n_labels is None and inputs.values.dtype.kind != "f":
        n_labels = model.n_labels
    model = rescaled(model, scale, grid, spacing)
    segmentation = inputs.segmentation(cores, confidence, unknown, n_labels)
    crf = model_for(
        segmentation, model, Terms(spatial, spatial_weight, bilateral, bilateral_weight), grid,
        spacing, lambda: inputs.structure(segmentation, cores, spacing),
    )
    middle = cores[len(cores) // 2].core
    part, inside = (
        None if each is None else each.read(middle) for each in (inputs.image, inputs.mask)
    )
    look_at_photo(crf, tuple(side.stop - side.start for side in middle), part, inside)
    crf = same_everywhere(crf, inputs, cores)
    margins = (
        default_overlap(crf, len(grid), spacing) if overlap is None
        else as_sides(overlap, "overlap", len(grid), 0)
    )
    if bound:
        check_bound(crf, crf.chosen_algorithm(how.algorithm))
    work = _Work(inputs, segmentation, crf, spacing, how, bound, count_selected(inputs, cores))
    labels, soft, stopped = _write_all(
        work, cut(grid, sides, margins), out, None if marginals is False else marginals, callback
    )
    return BlockResult(
        labels=labels, marginals=soft, label_ids=segmentation.ids, n_blocks=work.n_done,
        block=sides, overlap=margins, seams=work.seams(),
        status=InferenceStatus.CALLBACK if stopped else work.status,
    )


def _checked(inference: Any, callback: Any) -> Inference:
    """How to infer, once it and the callback are what they should be."""
    if callback is not None and not callable(callback):
        raise InputError(
            f"callback must be callable, got {shown(callback)}; pass a function of (done, total)."
        )
    if inference is not None and not isinstance(inference, Inference):
        raise InputError(
            f"inference must be an Inference, got {shown(inference)}; "
            "for example Inference(max_iter=5)."
        )
    return Inference() if inference is None else inference


def _write_all(
    work: _Work, blocks: Sequence[Block], out: Any, marginals: Any,
    callback: BlockCallback | None,
) -> tuple[Any, Any, bool]:
    """Labels and marginals of all blocks where they were asked for, and whether `callback` stopped
    before the last one.
    """
    grid, ids = work.inputs.grid, work.segmentation.ids
    kept = None if marginals is True else marginals
    dtype = label_dtype(int(ids[0]), int(ids[-1]))
    soft: Target | None = None
    stopped = False
    try:
        with ExitStack() as files:
            labels = files.enter_context(open_target(out, grid, dtype, "out"))
            if marginals is not None:
                soft = files.enter_context(
                    open_target(kept, (*grid, len(ids)), work.inputs.work_dtype, "marginals")
                )
            for done, each in enumerate(blocks, 1):
                q = work.marginals(each)
                labels.write(each.core, ids[q.argmax(-1)].astype(dtype))
                if soft is not None:
                    soft.write(each.core, q)
                if callback is not None and callback(done, len(blocks)) and done < len(blocks):
                    raise _Stopped
    except _Stopped:
        stopped = True
    return (
        _written(out, labels, stopped),
        None if soft is None else _written(kept, soft, stopped), stopped,
    )


class _Stopped(Exception):
    """Leaves the files of an unfinished result unwritten."""


class _Work:
    """Inference on one block after another, and what is learned about the seams meanwhile."""

    def __init__(
        self, inputs: BlockInputs, segmentation: Segmentation, model: DenseCRF, spacing: Any,
        inference: Inference, bound: bool, n_selected: int | None,
    ) -> None:
        self.inputs, self.segmentation = inputs, segmentation
        self._model, self._inference = model, inference
        self._spacing, self._n_selected = spacing, n_selected
        self._meter = SeamMeter()
        self._bounds: list[tuple[int, float, float]] | None = [] if bound else None
        self._statuses: set[InferenceStatus] = set()
        self.n_done = 0

    def marginals(self, block: Block) -> FloatArray:
        """The marginals of a block's core, (*core, L)."""
        start = tuple(part.start for part in block.core)
        try:
            found = self._infer(block)
        except InputError as error:
            raise InputError(f"in the block that starts at {start}: {error}") from None
        self._meter.add(block, self.inputs.grid, found)
        self.n_done += 1
        return found[block.inner]

    def _infer(self, block: Block) -> FloatArray:
        inputs, model = self.inputs, self._model
        values, image, mask = inputs.parts(block.window)
        check_room(model, self.segmentation, values, image, mask)
        unary = self.segmentation.costs(values, mask)
        origin = tuple(part.start for part in block.window)
        window = Window(origin, inputs.grid, self._n_selected)
        if mask is not None and not mask.any():
            model, image, mask = replace(model, terms=()), None, None
        limits: SeamBound | None = None
        if self._bounds is not None:
            seen = observe(
                unary.shape[:-1], image, spacing=self._spacing, mask=mask, window=window
            )
            limits = SeamBound(model, seen, block, unary.dtype, self._inference)
        result = model.infer(
            image, unary, mask=mask, spacing=self._spacing, window=window,
            callback=None if limits is None else limits.follow, **vars(self._inference),
        )
        if self._bounds is not None and limits is not None:
            core = limits.on_grid()[block.inner]
            self._bounds.append((core.size, float(core.mean()), float(core.max())))
        self._statuses.add(result.status)
        return result.marginals

    @property
    def status(self) -> InferenceStatus:
        """That of the block that got least far."""
        order = (InferenceStatus.MAX_ITER, InferenceStatus.ROUNDING)
        return next((s for s in order if s in self._statuses), InferenceStatus.CONVERGED)

    def seams(self) -> Seams:
        """What is known of the seams so far."""
        found = self._meter.seams()
        if not self._bounds:
            return found
        sizes, means, largest = zip(*self._bounds, strict=True)
        return replace(
            found, bound_mean=float(np.average(means, weights=sizes)), bound_largest=max(largest)
        )


def _written(out: Any, target: Target, stopped: bool) -> Any:
    """What was written to, or the file that has taken its place."""
    if not isinstance(out, str | os.PathLike):
        return target.array
    return None if stopped else np.load(out, mmap_mode="r", allow_pickle=False)
