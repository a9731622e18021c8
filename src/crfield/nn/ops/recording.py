"""Functions of operators and tensors as CUDA graphs, once images of one size keep coming.

A run is some forty small kernels, and a host takes longer to launch them than a GPU to run them.
From the third run of its kind on they are recorded and replayed as one launch, on tensors that stay
where they are: what goes in is copied there, what comes out is copied from there.
"""

from __future__ import annotations

import copy
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from crfield.nn.ops.tables.reference import TableOperator

_FIRST_RUNS, _PATIENCE = 2, 100
_MOST_KINDS, _MOST_GRAPHS = 16, 4
_lock = threading.Lock()
_seen: OrderedDict[tuple[Any, ...], int] = OrderedDict()
_graphs: OrderedDict[tuple[Any, ...], _Graph] = OrderedDict()


def replay(
    function: Callable[[Sequence[TableOperator], Sequence[Tensor]], list[Tensor]],
    plains: Sequence[TableOperator], tensors: Sequence[Tensor], options: tuple[Any, ...],
) -> list[Tensor]:
    """function(plains, tensors), as a graph where one was recorded.

    options : what else the function depends on.
    """
    first = tensors[0]
    if not first.is_cuda or torch.cuda.is_current_stream_capturing():
        return function(plains, tensors)
    key = (
        torch.cuda.current_stream(first.device).cuda_stream, first.device,
        tuple(x.shape for x in tensors),
        tuple((*plain.graph_key(), _capacity(plain)) for plain in plains), options,
    )
    with _lock:
        graph = _graphs.get(key)
        if graph is None:
            _seen[key] = _seen.pop(key, 0) + 1
            if _seen[key] <= _FIRST_RUNS:
                while len(_seen) > _MOST_KINDS:
                    _seen.popitem(last=False)
                return function(plains, tensors)
            try:
                graph = _graphs[key] = _Graph(function, plains, tensors)
            except torch.cuda.OutOfMemoryError:
                _seen[key] = -_PATIENCE
                return function(plains, tensors)
            while len(_graphs) > _MOST_GRAPHS:
                dropped, _ = _graphs.popitem(last=False)
                _seen[dropped] = -_PATIENCE  # sizes that take turns are not recorded over and over
        _graphs.move_to_end(key)
        return graph.replay(plains, tensors)


def _capacity(plain: TableOperator) -> int:
    """Rows of a table that serves this one and others of about its size."""
    step = max(1024, (1 << max(plain.n_rows - 1, 1).bit_length()) // 8)
    return -(-plain.n_rows // step) * step if plain.has_free_rows else plain.n_rows


class _Graph:
    """One kind of run, recorded."""

    def __init__(
        self, function: Callable[[Sequence[TableOperator], Sequence[Tensor]], list[Tensor]],
        plains: Sequence[TableOperator], tensors: Sequence[Tensor],
    ) -> None:
        self._plains = [_roomier(plain, _capacity(plain)) for plain in plains]
        self._tensors = [x.clone(memory_format=torch.contiguous_format) for x in tensors]
        self._device = tensors[0].device
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device):
            stream = torch.cuda.Stream(self._device)
            with torch.cuda.graph(
                self._graph, stream=stream, capture_error_mode="thread_local"
            ):
                self._found = function(self._plains, self._tensors)

    def replay(self, plains: Sequence[TableOperator], tensors: Sequence[Tensor]) -> list[Tensor]:
        """The function of other values."""
        self._copy_in(plains, tensors)
        with torch.cuda.device(self._device):
            self._graph.replay()
        return [found.clone(memory_format=torch.preserve_format) for found in self._found]

    def _copy_in(self, plains: Sequence[TableOperator], tensors: Sequence[Tensor]) -> None:
        pairs = list(zip(self._tensors, tensors, strict=True))
        for own, given in zip(self._plains, plains, strict=True):
            pairs += own.graph_inputs(given)
        torch._foreach_copy_([a for a, _ in pairs], [b for _, b in pairs], non_blocking=True)


def _roomier(plain: TableOperator, n_rows: int) -> TableOperator:
    """The operator on tensors of its own, with room for tables of so many rows."""
    own = copy.copy(plain)
    own.make_room(n_rows)
    return own
