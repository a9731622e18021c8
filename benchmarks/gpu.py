"""Times and memory of the layer on a GPU: python -m benchmarks.gpu [--output FILE].

375 x 500 pixels, 21 labels, positions 3 px and positions with colors 80 px / 13, five iterations,
everything included: logits and image on the GPU go in, marginals come out, lattices are built anew.
"""

from __future__ import annotations

import argparse
import datetime
import json
import platform
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.cases import photo_case
from crfield import Bilateral, Inference, Pairwise, Potts, Spatial, __version__
from crfield.nn import DenseCRF

TERMS = (Pairwise(Spatial(3.0), Potts(3.0)), Pairwise(Bilateral(80.0, 13.0), Potts(10.0)))
SIZE, LABELS, ITERATIONS = (375, 500), 21, 5


def main() -> int:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, help="write the figures here as JSON")
    parser.add_argument("--repeats", type=int, default=200)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks/gpu.py needs a GPU", file=sys.stderr)
        return 1
    rows = []
    for filter, batch in (("auto", 1), ("auto", 8), ("exact", 1)):
        rows.append(measure(filter, batch, options.repeats))
        print(json.dumps(rows[-1]), flush=True)
    single = rows[0]["forward_ms"]
    figures = {
        "date": datetime.date.today().isoformat(), "crfield": __version__,
        "card": torch.cuda.get_device_name(), "torch": torch.__version__,
        "triton": _triton_version(), "python": platform.python_version(),
        "command": "python -m benchmarks.gpu", "size": [*SIZE, LABELS], "iterations": ITERATIONS,
        "rows": rows, "batch_of_8_over_one": rows[1]["forward_ms"] / single,
        "floor": floor(),
    }
    print(json.dumps(figures["floor"]))
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(figures, indent=1) + "\n")
    return 0


def measure(filter: str, batch: int, repeats: int) -> dict[str, Any]:
    """Median times and peak memory of one filter and batch size, and its distance from the CPU."""
    case = photo_case(SIZE, LABELS)
    image = torch.from_numpy(np.ascontiguousarray(np.moveaxis(case.image, -1, 0)))
    logits = torch.from_numpy(np.ascontiguousarray(np.moveaxis(-case.unary, -1, 0)))
    images, inputs = (
        torch.stack([x.roll(13 * k, -1) for k in range(batch)]).cuda() for x in (image, logits)
    )
    layer = DenseCRF(
        LABELS, TERMS, output="marginals",
        inference=Inference(
            filter=filter, filter_tol=1e-5 if filter == "exact" else 0.0, max_iter=ITERATIONS
        ),
    ).cuda()

    def forward() -> torch.Tensor:
        with torch.no_grad():
            found: torch.Tensor = layer(inputs, images)
            return found

    differentiable = inputs.clone().requires_grad_()

    def forward_backward(learned: bool) -> None:
        for name, parameter in layer.named_parameters():
            parameter.requires_grad_(learned or name.endswith(("weight", "compatibility")))
        layer(differentiable, images).square().sum().backward()

    found = forward()
    cpu = DenseCRF(
        LABELS, TERMS, inference=Inference(max_iter=ITERATIONS), output="marginals"
    )
    with torch.no_grad():
        wanted = cpu(inputs[:1].cpu(), images[:1].cpu())
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    forward()
    peak = torch.cuda.max_memory_allocated() - before
    slow = filter == "exact"
    row = {
        "filter": filter, "batch": batch,
        "difference_from_cpu_lattice": float((found[:1].cpu() - wanted).abs().mean()),
        "forward_ms": median_ms(forward, 5 if slow else repeats),
        "peak_forward_mb": peak / 1e6,
        "forward_backward_ms": median_ms(lambda: forward_backward(False), 3 if slow else repeats),
        "with_widths_ms": median_ms(lambda: forward_backward(True), 3 if slow else repeats),
    }
    return row


def median_ms(run: Callable[[], object], repeats: int) -> float:
    """The median time of a call until the GPU is done, in milliseconds."""
    for _ in range(min(repeats, 20)):  # the third run of its kind is recorded
        run()
    times = []
    for _ in range(repeats):
        begin, end = (
            torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            for _ in range(2)
        )
        torch.cuda.synchronize()
        begin.record()
        run()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return float(np.median(times))


def floor() -> dict[str, float]:
    """Bytes that one forward run of the lattice has to move, and the time a copy takes for them.

    In each of six passes the costs are read and the corners of both terms (4 and 6 of 8 bytes).
    """
    n = SIZE[0] * SIZE[1]
    moved = 6 * n * (4 * LABELS + 8 * 10) + n * 4 * LABELS
    source = torch.empty(2**30, dtype=torch.uint8, device="cuda")
    target = torch.empty_like(source)
    rate = 2.0 * source.numel() / (1e-3 * median_ms(lambda: target.copy_(source), 20))
    return {"bytes": moved, "copy_bytes_per_s": rate, "floor_ms": 1e3 * moved / rate}


def _triton_version() -> str:
    import triton

    return str(triton.__version__)


if __name__ == "__main__":
    sys.exit(main())
