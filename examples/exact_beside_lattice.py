"""How far the layer's fast sums are from sums over all pairs of pixels, and what each costs.

A photo that ships with the package, and probabilities as a coarse and noisy network would give
them, go through the same layer twice: with `filter="exact"` every pair of pixels counts, with
`filter="auto"` a grid and a lattice stand in for them. On a CPU the photo is made small first,
since the pairs grow with the square of its pixels; a GPU takes it as it is.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from crfield import Inference
from crfield.datasets import load_sample, noisy_probabilities, sample_names
from crfield.nn import DenseCRF
from crfield.show.pictures import colorize, side_by_side

# Up to about 2000 pixels "auto" sums exactly as well.
SMALL_WIDTH, SMALLEST_WIDTH = 96, 64


def run(layer: DenseCRF, logits: Tensor, image: Tensor) -> tuple[Tensor, float]:
    """Marginals and seconds; on a GPU a first run, which compiles its kernels, is not timed."""
    if logits.is_cuda:
        layer(logits, image)
        torch.cuda.synchronize()
    start = time.perf_counter()
    marginals = layer(logits, image)
    if logits.is_cuda:
        torch.cuda.synchronize()
    return marginals, time.perf_counter() - start


@torch.no_grad()
def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--photo", choices=sample_names(), default="coffee")
    parser.add_argument("--width", type=int, help="make the photo this wide")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="the smallest width")
    parser.add_argument("-o", "--output", type=Path, default=Path("exact_beside_lattice"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"

    sample = load_sample(options.photo)
    height, width = sample.mask.shape
    if options.width or options.quick or device == "cpu":
        shrunk = options.width or (SMALLEST_WIDTH if options.quick else SMALL_WIDTH)
        height, width = round(shrunk * height / width), shrunk
    size = (width, height)
    photo = np.array(Image.fromarray(sample.image).resize(size, Image.Resampling.BOX))
    mask = np.array(Image.fromarray(sample.mask).resize(size, Image.Resampling.NEAREST))
    probabilities = noisy_probabilities(mask, sample.n_labels, block=max(2, size[0] // 32))

    image = torch.from_numpy(photo).permute(2, 0, 1)[None].to(device)
    logits = torch.from_numpy(probabilities).log().permute(2, 0, 1)[None].to(device)
    marginals, seconds = {}, {}
    for filter in ("exact", "auto"):
        inference = Inference(filter=filter, threads=options.threads)
        layer = DenseCRF(sample.n_labels, inference=inference, output="marginals").to(device)
        marginals[filter], seconds[filter] = run(layer, logits, image)

    apart = (marginals["exact"] - marginals["auto"]).abs()
    worst = apart.amax(1)[0] / apart.max().clamp_min(1e-30)
    labels = {name: values.argmax(1)[0].cpu().numpy() for name, values in marginals.items()}
    figures = {
        "photo": options.photo, "device": device, "size": list(size), "labels": sample.n_labels,
        "mean_difference": float(apart.mean()), "max_difference": float(apart.max()),
        "differing_labels": float((labels["exact"] != labels["auto"]).mean()),
        "seconds": seconds,
    }
    print(f"{options.photo}, {size[0]} x {size[1]} pixels, {sample.n_labels} labels, {device}")
    print(f"marginals apart  mean {apart.mean():.2g}  max {apart.max():.2g}")
    print(f"labels apart     {100 * figures['differing_labels']:.3f} %")
    print(f"seconds          exact {seconds['exact']:.4f}  auto {seconds['auto']:.4f}")

    options.output.mkdir(parents=True, exist_ok=True)
    side_by_side(
        photo, colorize(probabilities.argmax(-1)), colorize(labels["exact"]),
        colorize(labels["auto"]), (255 * worst).byte().cpu().numpy(),
        titles=("photo", "given", "exact", "auto", f"apart, white {apart.max():.2g}"), height=240,
    ).save(options.output / "exact_beside_lattice.png")
    (options.output / "exact_beside_lattice.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
