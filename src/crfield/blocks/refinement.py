"""Images and volumes larger than memory, refined in overlapping blocks.

Each block is computed from a window that reaches `overlap` pixels beyond it on every side, and all
blocks share the model, the label ids, the scale of colors and the positions of the filters' nodes.
What is left is what a window does not see; `crfield.blocks.seams` measures and bounds it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from crfield._core.alignment import beside_scan
from crfield._core.atomic import file_to_replace
from crfield._core.progress import shown_progress
from crfield._core.validate import (
    FloatArray,
    InputError,
    as_path,
    image_spacing,
    shown,
)
from crfield.blocks.inputs import BlockInputs, count_selected, open_inputs, same_everywhere
from crfield.blocks.parts import (
    Block,
    Target,
    as_sides,
    check_apart,
    cut,
    is_file,
    open_target,
)
from crfield.blocks.record import Finished, Record, digest, digest_of_run
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
    progress: bool = False,
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
        or the name of a .npy file, which appears when it is complete. If it is cut short, by a
        signal or an error, the same call goes on after the blocks that were finished, to the same
        result; another call with this name starts anew.
    marginals : where marginals (*grid, L) go likewise; None drops them, True makes a new array,
        which cannot go on after the program has ended.
    bound : whether to bound the error too, for about one more filter per term and iteration.
    callback : called as callback(blocks done, blocks in all) after each block; True stops, and
        leaves nothing to go on from.
    progress : whether to show a bar of the blocks.
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
    check_apart(
        out, marginals,
        {"image": image, "probabilities_or_labels": probabilities_or_labels, "mask": mask},
    )
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
    blocks = cut(grid, sides, margins)
    bar = shown_progress("block", len(blocks), callback) if progress else nullcontext(callback)
    with bar as told:
        labels, soft, stopped = _write_all(
            work, blocks, out, None if marginals is False else marginals, told,
            work.run(sides, margins),
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
    callback: BlockCallback | None, run: str,
) -> tuple[Any, Any, bool]:
    """Labels and marginals of all blocks where they were asked for, and whether `callback` stopped
    before the last one; `run` names the run in its record.
    """
    grid, ids = work.inputs.grid, work.segmentation.ids
    kept = None if marginals is True else marginals
    dtype = label_dtype(int(ids[0]), int(ids[-1]))
    soft: Target | None = None
    stopped = False
    files = [file_to_replace(as_path(each)) for each in (out, kept) if is_file(each)]
    # Marginals in an array are lost with the program, and labels do not tell them.
    active = marginals is None or is_file(kept)
    record = Record(files, run, work.inputs.work_dtype, active)
    work.is_recorded = record.active
    try:
        with ExitStack() as opened:
            # Left in the reverse order: labels get their name before the marginals from which they
            # could be made again, and the record goes last.
            opened.enter_context(record)
            if marginals is not None:
                soft = opened.enter_context(open_target(
                    kept, (*grid, len(ids)), work.inputs.work_dtype, "marginals", record.keeps
                ))
            labels = opened.enter_context(open_target(out, grid, dtype, "out", record.keeps))
            results = _Results(ids, dtype, labels, soft)
            record.go_on(lambda number, entry: (
                number < len(blocks) and _still_holds(work, results, blocks[number], entry)
            ))
            for done, each in enumerate(blocks[record.n_finished :], record.n_finished + 1):
                results.write(each, work.marginals(each))
                if record.active:
                    results.sync()
                    record.append(work.finished(each, results.digest(each)))
                if callback is not None and callback(done, len(blocks)) and done < len(blocks):
                    record.give_up()
                    raise _Stopped
    except _Stopped:
        stopped = True
    except BaseException as error:
        if not record.remains:
            raise
        note = (
            f"{record.n_finished} of {len(blocks)} blocks are finished and kept; run the same "
            "again to go on"
        )
        if isinstance(error, InputError):
            raise InputError(f"{str(error).rstrip('.')}; {note}.") from error
        error.add_note(f"{note}.")
        raise
    return (
        _written(out, labels, stopped),
        None if soft is None else _written(kept, soft, stopped), stopped,
    )


def _still_holds(work: _Work, results: _Results, block: Block, entry: Finished) -> bool:
    """Whether a block that was finished earlier need not be done again; if so, all is as if it had
    been done now.
    """
    if work.digest(block) != entry.seen or results.digest(block) != entry.written:
        return False
    results.restore(block)
    work.restore(block, entry)
    return True


class _Stopped(Exception):
    """Leaves the files of an unfinished result unwritten."""


class _Results:
    """Labels (*grid,) and, where they were asked for, marginals (*grid, L).

    A later run goes on from the marginals if they are in a file, and otherwise from the labels.
    """

    def __init__(
        self, ids: NDArray[np.int64], dtype: np.dtype[Any], labels: Target, soft: Target | None
    ) -> None:
        self._ids, self._dtype, self._labels, self._soft = ids, dtype, labels, soft
        self._stored = labels if soft is None else soft

    def write(self, block: Block, marginals: FloatArray) -> None:
        """Write the result of a block, marginals (*core, L)."""
        self._labels.write(block.core, self._ids[marginals.argmax(-1)].astype(self._dtype))
        if self._soft is not None:
            self._soft.write(block.core, marginals)

    def sync(self) -> None:
        """Bring what a later run goes on from to the disk."""
        self._stored.sync()

    def digest(self, block: Block) -> str:
        """A digest of what is stored of a block."""
        return digest(self._stored.read(block.core))

    def restore(self, block: Block) -> None:
        """Have the labels of a block whose marginals are there."""
        if self._soft is not None:
            found = self._soft.read(block.core)
            self._labels.write(block.core, self._ids[found.argmax(-1)].astype(self._dtype))


class _Work:
    """Inference on one block after another, and what is learned about the seams meanwhile.

    is_recorded : whether `finished` will be asked for.
    """

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
        self._seen, self._last = "", InferenceStatus.CONVERGED  # of the block that was done last
        self.is_recorded = False
        self.n_done = 0

    def run(self, sides: tuple[int, ...], margins: tuple[int, ...]) -> str:
        """A digest of everything that results depend on, besides what `digest` looks at."""
        return digest_of_run(
            model=self._model, inference=self._inference, segmentation=self.segmentation,
            spacing=self._spacing, n_selected=self._n_selected, bound=self._bounds is not None,
            grid=self.inputs.grid, dtype=self.inputs.work_dtype.str,
            block=sides, overlap=margins,
        )

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

    def digest(self, block: Block) -> str:
        """A digest of what a block is computed from."""
        return digest(*self.inputs.parts(block.window))

    def finished(self, block: Block, written: str) -> Finished:
        """What there is to know of the block that was done last, with the digest of its result."""
        return Finished(
            self._seen, written, self._last,
            None if self._bounds is None else self._bounds[-1],
            self._meter.sums, self._meter.layers(block),
        )

    def restore(self, block: Block, finished: Finished) -> None:
        """Be as after this block."""
        self._meter.restore(block, finished.sums, finished.layers)
        if self._bounds is not None and finished.bound is not None:
            self._bounds.append(finished.bound)
        self._statuses.add(finished.status)
        self.n_done += 1

    def _infer(self, block: Block) -> FloatArray:
        inputs, model = self.inputs, self._model
        values, image, mask = inputs.parts(block.window)
        if self.is_recorded:
            self._seen = digest(values, image, mask)
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
        self._last = result.status
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
    if not is_file(out):
        return target.array
    return None if stopped else np.load(out, mmap_mode="r", allow_pickle=False)
