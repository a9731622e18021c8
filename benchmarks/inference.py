"""Time dense-CRF inference: crfield against pydensecrf, in one run, after checking they agree.

Each call takes a uint8 image and float32 costs and gives marginals, everything included. The runs
of all candidates are interleaved and the fastest of each is kept.
"""

from __future__ import annotations

import argparse
import datetime
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from experiments.common import (
    HAS_PYDENSECRF,
    REPOSITORY,
    STANDARD,
    Float32,
    label_major,
    markdown_table,
    provenance,
    run_pydensecrf,
)

from crfield import Bilateral, InferenceResult, Spatial, unary_from_labels
from crfield._parallel import usable_cores
from crfield.datasets import load_sample
from crfield.features import observe
from crfield.filters import KernelOperator, make_filter

HEIGHT, WIDTH = 375, 500
LABEL_COUNTS = (2, 21)
ITERATIONS = 5
SEED = 0
LARGEST_MEAN_DIFFERENCE = 1e-2
PYDENSECRF = "pydensecrf, 1 thread"
ONE_THREAD = "crfield concave, 1 thread"

Candidates = dict[str, Callable[[], Any]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7, help="runs of each (default: 7)")
    arguments = parser.parse_args()
    if arguments.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {arguments.repeats}.")
    facts = provenance()
    print("\n".join(f"{key}: {value}" for key, value in facts.items()))
    print(f"\n{HEIGHT} x {WIDTH}, {STANDARD.describe()}, {ITERATIONS} iterations; "
          f"fastest of {arguments.repeats} interleaved runs.")

    image = sample_image()
    measured = []
    for n_labels in LABEL_COUNTS:
        unary = sample_unary(n_labels)
        if HAS_PYDENSECRF:
            check_agreement(image, unary)
        seconds = fastest(
            inference_candidates(image, unary) | filter_candidates(image, unary),
            arguments.repeats,
        )
        print(f"\n{n_labels} labels\n{timing_table(seconds)}")
        measured.append({"n_labels": n_labels, "seconds": seconds})
    if not HAS_PYDENSECRF:
        print("\nFor the ratio to pydensecrf: pip install pydensecrf2, then run this again.")
    print(f"\nWritten to {write_json(facts, arguments.repeats, measured).relative_to(REPOSITORY)}")


def sample_image() -> NDArray[np.uint8]:
    """The coffee photo at the size of a VOC image."""
    photo = Image.fromarray(load_sample("coffee").image)
    return np.array(photo.resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC))


def sample_unary(n_labels: int) -> Float32:
    """Costs (H, W, L) of the photo's mask with noise: a classifier that is unsure."""
    mask = Image.fromarray(load_sample("coffee").mask)
    labels = np.array(mask.resize((WIDTH, HEIGHT), Image.Resampling.NEAREST)) % n_labels
    costs = unary_from_labels(labels, n_labels, confidence=0.5 if n_labels > 2 else 0.7)
    noise = np.random.default_rng(SEED).normal(0.0, 1.0, costs.shape)
    return (costs + noise).astype(np.float32)


def infer(
    image: NDArray[np.uint8], unary: Float32, algorithm: str, threads: int
) -> InferenceResult:
    """crfield's inference with exactly the benchmark's iterations."""
    return STANDARD.model(unary.shape[-1]).infer(
        image, unary, algorithm=algorithm, filter="lattice", max_iter=ITERATIONS, tol=0.0,
        threads=threads,
    )


def check_agreement(image: NDArray[np.uint8], unary: Float32) -> None:
    """Refuse to time two libraries that do not compute the same thing."""
    result = infer(image, unary, "concave", 1)
    theirs = run_pydensecrf(image, label_major(unary), STANDARD, ITERATIONS)
    ours = label_major(result.marginals.astype(np.float32))
    difference = float(np.abs(ours - theirs).mean())
    if result.n_iter != ITERATIONS or not difference < LARGEST_MEAN_DIFFERENCE:
        raise SystemExit(
            f"expected {ITERATIONS} iterations and marginals within {LARGEST_MEAN_DIFFERENCE:g} of "
            f"pydensecrf's on average, got {result.n_iter} and {difference:.3g} for "
            f"{unary.shape[-1]} labels; nothing was timed."
        )
    print(f"{unary.shape[-1]} labels: mean difference from pydensecrf's marginals {difference:.2g}")


def inference_candidates(image: NDArray[np.uint8], unary: Float32) -> Candidates:
    """Whole inferences; each library gets the costs in its own layout."""
    candidates: Candidates = {}
    if HAS_PYDENSECRF:
        candidates[PYDENSECRF] = partial(
            run_pydensecrf, image, label_major(unary), STANDARD, ITERATIONS
        )
    candidates[ONE_THREAD] = partial(infer, image, unary, "concave", 1)
    if usable_cores() > 1:
        candidates[f"crfield concave, {usable_cores()} threads"] = partial(
            infer, image, unary, "concave", usable_cores()
        )
    candidates["crfield cccp, 1 thread"] = partial(infer, image, unary, "cccp", 1)
    return candidates


def filter_candidates(image: NDArray[np.uint8], unary: Float32) -> Candidates:
    """The two lattices on one thread: building them, normalisation included, and applying them."""
    observation = observe(image.shape[:2], image)
    q: Float32 = np.exp(-unary.reshape(-1, unary.shape[-1]))
    q /= q.sum(axis=1, keepdims=True)
    candidates: Candidates = {}
    for name, kernel in (("spatial", Spatial(3)), ("bilateral", Bilateral(80, 13))):
        features = np.ascontiguousarray(kernel.scaled_features(observation), np.float32)
        build = partial(make_filter, features, kernel, "lattice", threads=1)
        operator: KernelOperator = build()
        out = np.empty_like(q)
        candidates[f"{name} lattice, build"] = build
        candidates[f"{name} lattice, apply"] = partial(operator.apply, q, out)
    return candidates


def fastest(candidates: Candidates, repeats: int) -> dict[str, float]:
    """The shortest time of each candidate in seconds; one untimed round comes first."""
    best = dict.fromkeys(candidates, np.inf)
    for repeat in range(repeats + 1):
        for name, run in candidates.items():
            began = time.perf_counter()
            run()
            took = time.perf_counter() - began
            if repeat:
                best[name] = min(best[name], took)
    return best


def timing_table(seconds: dict[str, float]) -> str:
    """Milliseconds, and how many times as fast as pydensecrf and as slow as "concave"."""
    reference = seconds.get(PYDENSECRF)
    rows = []
    for name, took in seconds.items():
        whole = "lattice" not in name
        speed = f"{reference / took:.2f} x" if reference and whole else ""
        share = f"{took / seconds[ONE_THREAD]:.2f}"
        rows.append([name, f"{1e3 * took:.1f}", speed, share])
    header = ["", "ms", "speed over pydensecrf", "time / concave on 1 thread"]
    return markdown_table(header, rows)


def write_json(
    facts: dict[str, str], repeats: int, measured: list[dict[str, Any]]
) -> Path:
    """Keep the figures for later comparison; the folder is not under version control."""
    folder = REPOSITORY / "benchmarks" / "results"
    folder.mkdir(exist_ok=True)
    path = folder / f"inference-{datetime.datetime.now():%Y%m%d-%H%M%S}.json"
    content = {
        **facts, "grid": [HEIGHT, WIDTH], "setting": STANDARD.describe(),
        "iterations": ITERATIONS, "repeats": repeats, "seed": SEED, "measured": measured,
    }
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    return path


if __name__ == "__main__":
    main()
