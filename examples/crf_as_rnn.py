"""A dense CRF as the recurrent last layer of a small convolutional network, trained end to end.

One mean-field update is the cell of a recurrent network: it is applied again and again with the
same parameters, and the gradient of the loss goes back through all updates to the parameters of the
CRF and to the network below. As Zheng et al. (2015) do it, the network is trained alone first, then
network and CRF together with 5 updates, and 10 updates are made on new images.

Printed are mean intersection over union on test images of the network alone, of the same network
with the CRF as it starts, of the network after more training alone, and of both after as much
training together; then what each number of updates of the trained CRF gives, and the learned costs
of labels that look alike side by side. Images are noisy colored shapes.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from crfield import Bilateral, Inference, Pairwise, Potts, Spatial, Symmetric
from crfield.datasets import synthetic_scenes
from crfield.metrics import confusion_matrix, mean_iou
from crfield.nn import DenseCRF
from crfield.show.pictures import colorize, label_palette, side_by_side, stack

N_LABELS = 5
TRAINING_UPDATES, TEST_UPDATES = 5, 10
STEPS = (0, 1, 2, 3, 5, 10)
NETWORK, STARTING = "network", "network, CRF as it starts"
LONGER, TRAINED = "network, trained longer", "trained end to end"


class Segmenter(nn.Module):
    """Two convolutions of 3 x 3 pixels and a classifier, then, if asked for, the CRF."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(3, width, 3, padding=1), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, N_LABELS, 1),
        )
        differ = 1.0 - np.eye(N_LABELS)
        # A matrix of its own for the colors: which labels may lie side by side is learned.
        self.crf = DenseCRF(N_LABELS, [
            Pairwise(Spatial(2.0), Potts(1.0)), Pairwise(Bilateral(8.0, 60.0), Symmetric(differ)),
        ], inference=Inference(max_iter=TRAINING_UPDATES, threads=torch.get_num_threads()))

    def forward(self, colors: Tensor, *, with_crf: bool = True) -> Tensor:
        logits: Tensor = self.net(colors / 127.5 - 1.0)
        return self.crf(logits, colors) if with_crf else logits


def train(
    model: Segmenter, colors: Tensor, labels: Tensor, n_updates: int, *, with_crf: bool
) -> None:
    """Adam on the cross-entropy of random batches; its rate falls to 0."""
    rng = torch.Generator().manual_seed(int(with_crf))
    groups = [{"params": list(model.net.parameters()), "rate": 0.01}]
    if with_crf:
        groups.append({"params": list(model.crf.parameters()), "rate": 0.03})
    optimizer = torch.optim.Adam(groups)
    for update in range(n_updates):
        for group in optimizer.param_groups:
            group["lr"] = group["rate"] * 0.5 * (1 + math.cos(math.pi * update / n_updates))
        chosen = torch.randperm(len(labels), generator=rng)[:4]
        logits = model(colors[chosen], with_crf=with_crf)
        loss = nn.functional.cross_entropy(logits, labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def predict(model: Segmenter, colors: Tensor, n_updates: int) -> Tensor:
    """Labels (N, H, W) after so many updates; after none they are the network's own."""
    trained = model.crf.inference
    model.crf.inference = replace(trained, max_iter=n_updates)
    found = [
        model(some, with_crf=n_updates > 0).argmax(1) for some in colors.split(4)
    ]
    model.crf.inference = trained
    return torch.cat(found)


def score(labels: Tensor, predicted: Tensor) -> float:
    """Mean intersection over union, in percent."""
    return 100 * mean_iou(confusion_matrix(labels.numpy(), predicted.numpy(), N_LABELS))


def scenes(count: int, size: int, noise: float, seed: int) -> tuple[Tensor, Tensor]:
    """Colors (N, 3, H, W) from 0 to 255 and labels (N, H, W)."""
    made = synthetic_scenes(count, size=(size, size), n_labels=N_LABELS, noise=noise, seed=seed)
    colors = torch.from_numpy(np.stack([s.image for s in made])).permute(0, 3, 1, 2).float()
    return colors, torch.from_numpy(np.stack([s.mask for s in made])).long()


def draw(colors: Tensor, labels: Tensor, predicted: dict[str, Tensor]) -> Image.Image:
    """Input, truth and what was found, one image per row."""
    palette = label_palette(N_LABELS)
    rows = []
    for index in range(min(3, len(labels))):
        photo = colors[index].permute(1, 2, 0).round().byte().numpy()
        maps = [labels[index], *(found[index] for found in predicted.values())]
        rows.append(side_by_side(
            photo, *(colorize(found.numpy(), palette) for found in maps),
            titles=("input", "truth", *predicted) if not rows else (), height=192,
        ))
    return stack(*rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--updates", type=int, default=200, help="of each part of the training")
    parser.add_argument("--noise", type=float, default=80.0, help="in gray levels")
    parser.add_argument("--size", type=int, default=48, help="side of the images")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--quick", action="store_true", help="few images and updates")
    parser.add_argument("-o", "--output", type=Path, default=Path("crf_as_rnn"))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    n_updates = 25 if options.quick else options.updates
    n_train, n_test = (6, 4) if options.quick else (20, 40)
    start = time.perf_counter()
    colors, labels = scenes(n_train + n_test, options.size, options.noise, options.seed)
    seen, unseen = slice(n_train), slice(n_train, None)

    model = Segmenter(8 if options.quick else 16)
    train(model, colors[seen], labels[seen], n_updates, with_crf=False)
    predicted = {
        NETWORK: predict(model, colors[unseen], 0),
        STARTING: predict(model, colors[unseen], TEST_UPDATES),
    }
    alone = copy.deepcopy(model)
    train(alone, colors[seen], labels[seen], n_updates, with_crf=False)
    predicted[LONGER] = predict(alone, colors[unseen], 0)
    train(model, colors[seen], labels[seen], n_updates, with_crf=True)
    predicted[TRAINED] = predict(model, colors[unseen], TEST_UPDATES)
    scores = {name: score(labels[unseen], found) for name, found in predicted.items()}
    steps = {n: score(labels[unseen], predict(model, colors[unseen], n)) for n in STEPS}

    print(f"mean IoU in percent on {n_test} test images")
    for name, value in scores.items():
        print(f"{name:28}{value:8.1f}")
    print("\nupdates of the trained CRF  " + "".join(f"{n:8}" for n in steps))
    print(f"{'mean IoU':28}" + "".join(f"{value:8.1f}" for value in steps.values()))
    learned = model.crf.to_model()
    costs = learned.terms[1].weight * learned.terms[1].compatibility.matrix(N_LABELS)
    print("\nlearned costs of labels that look alike side by side")
    print("\n".join("".join(f"{cost:8.2f}" for cost in row) for row in costs))
    print(f"{time.perf_counter() - start:.0f} s")
    options.output.mkdir(parents=True, exist_ok=True)
    draw(colors[unseen], labels[unseen], predicted).save(options.output / "crf_as_rnn.png")
    figures = {
        "updates": n_updates, "mean_iou": scores, "by_number_of_updates": steps,
        "terms": [str(term) for term in learned.terms],
    }
    (options.output / "figures.json").write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    print(f"Pictures and figures are in {options.output}")


if __name__ == "__main__":
    main()
