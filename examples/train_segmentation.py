"""What training a network and its CRF together gains over training them one after the other.

A small convolutional network learns to segment from few images, once on its own and in three ways
with a `crfield.nn.DenseCRF` as its last layer. They share the first half of the network's training
and see the same images in the same order; the network is updated equally often in all of them, and
so is the CRF wherever there is one.

- `net`: the network alone.
- `piecewise`: the network alone; then the CRF on its frozen output.
- `end to end`: in the second half network and CRF are trained together, the gradient going back
  through all mean-field updates.
- `interleaved`: in the second half blocks of updates of the network and of the CRF take turns.
  Before each block of the network, inference without gradient finds what its neighbors tell every
  pixel; that is added to the network's output and held while the network learns, so that it is
  trained within the CRF at the price of a network alone.

Without `--data` the images are noisy colored shapes, made anew for every seed; with it they come
from a folder as `crfield.datasets.FolderDataset` reads it, such as CamVid, with the splits `train`,
`val` and `test`. Nothing is chosen on test images.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from crfield import Bilateral, Inference, Pairwise, Potts, Spatial
from crfield.datasets import FolderDataset, synthetic_scenes
from crfield.metrics import confusion_matrix, mean_iou
from crfield.nn import DenseCRF, LogLikelihood
from crfield.show.pictures import colorize, label_palette, side_by_side, stack

METHODS = ("net", "piecewise", "end to end", "interleaved")
NET_RATE, CRF_RATE = 0.01, 0.03
BLOCK = 20  # updates of the network, then of the CRF, when they are interleaved
VOID = 255

Module = TypeVar("Module", bound=nn.Module)
Found = dict[str, tuple["Net", DenseCRF | None]]


@dataclass(frozen=True)
class Images:
    """Colors (N, 3, H, W) from 0 to 255 and labels (N, H, W)."""

    colors: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)


@dataclass(frozen=True)
class Data:
    """What to learn from, what to look at on the way, and what counts."""

    n_labels: int
    train: Images
    val: Images
    test: Images


class Net(nn.Module):
    """Convolutions of 3 x 3 pixels, each followed by a rectifier, and a linear classifier."""

    def __init__(self, n_labels: int, width: int, dilations: Sequence[int]) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels = 3
        for dilation in dilations:
            layers += [
                nn.Conv2d(channels, width, 3, padding=dilation, dilation=dilation), nn.ReLU()
            ]
            channels = width
        self.layers = nn.Sequential(*layers, nn.Conv2d(width, n_labels, 1))

    def forward(self, colors: Tensor) -> Tensor:
        logits: Tensor = self.layers(colors / 127.5 - 1.0)
        return logits


class Learner(Generic[Module]):
    """A module and its optimizer, whose rate falls to 0 over a known number of updates."""

    def __init__(self, module: Module, rate: float, n_updates: int) -> None:
        self.module = module
        self._rate, self._n_updates, self._done = rate, n_updates, 0
        self._optimizer = torch.optim.Adam(module.parameters())

    def update(self) -> None:
        """Follow the gradient and forget it."""
        share = self._done / self._n_updates
        for group in self._optimizer.param_groups:
            group["lr"] = self._rate * 0.5 * (1.0 + math.cos(math.pi * share))
        self._optimizer.step()
        self._optimizer.zero_grad()
        self._done += 1


@dataclass(frozen=True)
class Batch:
    """Some images, half of them mirrored."""

    chosen: Tensor
    mirrored: Tensor

    def of(self, values: Tensor) -> Tensor:
        """The rows of `values` (N, ..., W) that belong to the batch."""
        rows = values[self.chosen]
        shape = (-1,) + (1,) * (rows.ndim - 1)
        return torch.where(self.mirrored.view(shape), rows.flip(-1), rows)


def batches(n_images: int, n_batches: int, size: int, seed: int) -> Iterator[Batch]:
    """Random batches, the same ones for the same seed."""
    rng = torch.Generator().manual_seed(seed)
    for _ in range(n_batches):
        chosen = torch.randperm(n_images, generator=rng)[:size]
        yield Batch(chosen, torch.rand(len(chosen), generator=rng) < 0.5)


class Training:
    """The four ways to train on one set of images.

    n_updates : of the network; half as many of the CRF.
    """

    def __init__(self, images: Images, n_updates: int, batch_size: int, seed: int) -> None:
        self.images, self.batch_size, self.seed = images, batch_size, seed
        self.half = n_updates // 2
        self.loss = LogLikelihood(void=VOID)

    def train(self, net: Net, crf: DenseCRF) -> Found:
        """The trained network, and the CRF behind it, of each method."""
        first = Learner(net, NET_RATE, 2 * self.half)
        self._alone(first, self._batches(0))
        found: Found = {}
        for method in METHODS:
            net_learner = copy.deepcopy(first)
            crf_learner = Learner(copy.deepcopy(crf), CRF_RATE, self.half)
            if method == "net":
                self._alone(net_learner, self._batches(1))
                found[method] = (net_learner.module, None)
                continue
            if method == "piecewise":
                net_learner.module = found["net"][0]
                self._frozen(net_learner.module, crf_learner, self._batches(1))
            elif method == "end to end":
                self._together(net_learner, crf_learner)
            else:
                self._interleaved(net_learner, crf_learner)
            found[method] = (net_learner.module, crf_learner.module)
        return found

    def _batches(self, half: int) -> list[Batch]:
        seed = 2 * self.seed + half
        return list(batches(len(self.images), self.half, self.batch_size, seed))

    def _alone(
        self, net: Learner[Net], given: Sequence[Batch], hints: Tensor | None = None
    ) -> None:
        """Updates of the network; `hints` (N, L, H, W) are added to its output."""
        for batch in given:
            logits = net.module(batch.of(self.images.colors))
            if hints is not None:
                logits = logits + batch.of(hints)
            self.loss(logits, batch.of(self.images.labels)).backward()
            net.update()

    def _frozen(self, net: Net, crf: Learner[DenseCRF], given: Sequence[Batch]) -> None:
        """Updates of the CRF on the output of the network."""
        for batch in given:
            colors = batch.of(self.images.colors)
            with torch.no_grad():
                logits = net(colors)
            self.loss(crf.module(logits, colors), batch.of(self.images.labels)).backward()
            crf.update()

    def _together(self, net: Learner[Net], crf: Learner[DenseCRF]) -> None:
        for batch in self._batches(1):
            colors = batch.of(self.images.colors)
            marginals = crf.module(net.module(colors), colors)
            self.loss(marginals, batch.of(self.images.labels)).backward()
            net.update()
            crf.update()

    def _interleaved(self, net: Learner[Net], crf: Learner[DenseCRF]) -> None:
        given = self._batches(1)
        for start in range(0, len(given), BLOCK):
            block = given[start : start + BLOCK]
            self._frozen(net.module, crf, block)
            self._alone(net, block, self._messages(net.module, crf.module))

    @torch.no_grad()
    def _messages(self, net: Net, crf: DenseCRF) -> Tensor:
        """What inference adds to the logits of every image, up to a constant per pixel."""
        found = []
        for colors in self.images.colors.split(self.batch_size):
            logits = net(colors)
            found.append(crf(logits, colors) - logits)
        return torch.cat(found)


@torch.no_grad()
def predict(net: Net, crf: DenseCRF | None, colors: Tensor) -> Tensor:
    """The most probable labels (N, H, W)."""
    found = []
    for some in colors.split(4):
        logits = net(some)
        found.append((logits if crf is None else crf(logits, some)).argmax(1))
    return torch.cat(found)


def score(images: Images, predicted: Tensor, n_labels: int) -> float:
    """Mean intersection over union of all images together, in percent."""
    return 100 * mean_iou(
        confusion_matrix(images.labels.numpy(), predicted.numpy(), n_labels, void=VOID)
    )


def made_up(seed: int, counts: Sequence[int], *, size: int, noise: float) -> Data:
    """Scenes of colored shapes under noise; `counts` of them to train, validate and test."""
    n_labels = 5
    scenes = synthetic_scenes(
        sum(counts), size=(size, size), n_labels=n_labels, noise=noise, seed=seed
    )
    colors = torch.from_numpy(np.stack([s.image for s in scenes])).permute(0, 3, 1, 2).float()
    labels = torch.from_numpy(np.stack([s.mask for s in scenes])).long()
    parts = zip(colors.split(list(counts)), labels.split(list(counts)), strict=True)
    return Data(n_labels, *(Images(*part) for part in parts))


def from_folder(root: Path, counts: Sequence[int], *, shrink: int) -> Data:
    """Evenly spaced images of each split of a folder, at a fraction of their size."""
    parts = []
    for split, count in zip(("train", "val", "test"), counts, strict=True):
        dataset = FolderDataset(root, split)
        chosen = np.linspace(0, len(dataset) - 1, min(count, len(dataset))).round().astype(int)
        colors, labels = [], []
        for example in dataset.subset(chosen.tolist()):
            image = torch.from_numpy(np.asarray(example.image)).permute(2, 0, 1).float()
            colors.append(nn.functional.avg_pool2d(image, shrink))
            h, w = colors[-1].shape[1:]
            middle = slice(shrink // 2, None, shrink)
            truth = np.asarray(example.truth)[middle, middle][:h, :w].astype(np.int64)
            labels.append(torch.from_numpy(truth))
        parts.append(Images(torch.stack(colors), torch.stack(labels)))
    return Data(dataset.n_labels, *parts)


def starting_layer(n_labels: int, spatial: float, bilateral: tuple[float, float]) -> DenseCRF:
    """A CRF whose weights, compatibilities and widths are then learned."""
    terms = [
        Pairwise(Spatial(spatial), Potts(1.0)), Pairwise(Bilateral(*bilateral), Potts(2.0))
    ]
    return DenseCRF(
        n_labels, terms, inference=Inference(max_iter=5, threads=torch.get_num_threads())
    )


def draw(
    images: Images, predicted: dict[str, Tensor], n_labels: int, n_rows: int = 3
) -> Image.Image:
    """Input, truth and what each method made of it, one image per row."""
    palette = np.zeros((256, 3), np.uint8)
    palette[:n_labels] = label_palette(n_labels)
    columns = ("net", "piecewise", "end to end")
    rows: list[Image.Image] = []
    for index in range(min(n_rows, len(images))):
        photo = images.colors[index].permute(1, 2, 0).round().byte().numpy()
        maps = [images.labels[index], *(predicted[name][index] for name in columns)]
        rows.append(
            side_by_side(
                photo, *(colorize(labels.numpy(), palette) for labels in maps),
                titles=("input", "truth", *columns) if not rows else (), height=192,
            )
        )
    return stack(*rows)


def table(scores: dict[str, dict[str, list[float]]], seeds: Sequence[int]) -> str:
    """Mean intersection over union on validation and test images, and of each seed on test."""
    head = f"{'':12}{'val':>8}{'test':>8}   test with seed " + "".join(f"{s:>8}" for s in seeds)
    lines = [head]
    for method in METHODS:
        val, test = scores[method]["val"], scores[method]["test"]
        each = "".join(f"{value:8.2f}" for value in test)
        lines.append(f"{method:12}{np.mean(val):8.2f}{np.mean(test):8.2f}{'':18}{each}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder of images instead of made-up ones")
    parser.add_argument("--shrink", type=int, default=3, help="how many of its pixels make one")
    parser.add_argument("--counts", type=int, nargs=3, metavar=("TRAIN", "VAL", "TEST"))
    parser.add_argument("--updates", type=int, help="updates of the network")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--size", type=int, default=48, help="side of the made-up images")
    parser.add_argument("--noise", type=float, default=80.0, help="of them, in gray levels")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="one seed, few updates")
    parser.add_argument("-o", "--output", type=Path, default=Path("segmentation"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    seeds = options.seeds[:1] if options.quick else options.seeds
    n_updates = options.updates or (40 if options.quick else 300)
    counts = options.counts or ((4, 4, 4) if options.quick else (16, 16, 40))

    start = time.perf_counter()
    scores: dict[str, dict[str, list[float]]] = {m: {"val": [], "test": []} for m in METHODS}
    models: list[dict[str, list[str]]] = []
    picture = None
    for seed in seeds:
        torch.manual_seed(seed)
        if options.data is None:
            data = made_up(seed, counts, size=options.size, noise=options.noise)
            net = Net(data.n_labels, 16, (1, 1))
            crf = starting_layer(data.n_labels, 2.0, (8.0, 60.0))
        else:
            data = from_folder(options.data, counts, shrink=options.shrink)
            net = Net(data.n_labels, 32, (1, 2, 4, 8))
            crf = starting_layer(data.n_labels, 2.0, (20.0, 15.0))
        trained = Training(data.train, n_updates, 4, seed).train(net, crf)
        predicted = {}
        for method, (net_found, crf_found) in trained.items():
            for name, images in (("val", data.val), ("test", data.test)):
                predicted[method] = predict(net_found, crf_found, images.colors)
                scores[method][name].append(score(images, predicted[method], data.n_labels))
        models.append({
            method: [str(term) for term in layer.to_model().terms]
            for method, (_, layer) in trained.items() if layer is not None
        })
        picture = picture or draw(data.test, predicted, data.n_labels)
    seconds = time.perf_counter() - start

    print("mean IoU in percent")
    print(table(scores, seeds))
    print(f"{seconds:.0f} s")
    options.output.mkdir(parents=True, exist_ok=True)
    assert picture is not None
    picture.save(options.output / "segmentation.png")
    figures = {
        "seeds": seeds, "updates": n_updates, "images": list(counts), "seconds": seconds,
        "mean_iou": scores, "models": models,
    }
    (options.output / "segmentation.json").write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
