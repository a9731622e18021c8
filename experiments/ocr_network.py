"""A small convolutional network that gives the costs of letters, trained through a chain.

Network and table of transitions are moved together by the gradient of the negative log-likelihood
of whole words. Everything here was fixed with folds 0 to 7 for training and fold 8 for validation.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from crfield.nn import ChainCRF
from experiments.ocr_features import HEIGHT, LETTERS, WIDTH, Words

N_CHANNELS, N_HIDDEN, DROPOUT = 16, 128, 0.2
BATCH_SIZE, STEP_SIZE, DECAY = 32, 3e-3, 1e-3
# Few pairs of letters occur, and their costs have a long way to go.
TRANSITION_STEP_SIZE = 3 * STEP_SIZE


@dataclass(frozen=True)
class LetterData:
    """Words as tensors: images (T, 1, 16, 8) and classes (T,) of each."""

    images: list[Tensor]
    classes: list[Tensor]

    @classmethod
    def from_words(cls, words: Words) -> LetterData:
        """Of words whose features are pixels."""
        images = [
            torch.from_numpy(part.astype(np.float32)).reshape(-1, 1, HEIGHT, WIDTH)
            for part in words.features
        ]
        classes = [torch.from_numpy(np.searchsorted(LETTERS, part)) for part in words.letters]
        return cls(images, classes)

    def __len__(self) -> int:
        return len(self.images)


def letter_network() -> nn.Sequential:
    """Scores (N, 26) of images (N, 1, 16, 8); about 93,000 weights."""

    def block(n_in: int, n_out: int, stride: int) -> list[nn.Module]:
        # The normalization has a bias of its own.
        convolution = nn.Conv2d(n_in, n_out, 3, padding=1, stride=stride, bias=False)
        return [convolution, nn.BatchNorm2d(n_out), nn.ReLU()]

    n_last = 4 * N_CHANNELS
    return nn.Sequential(
        *block(1, N_CHANNELS, 1), *block(N_CHANNELS, 2 * N_CHANNELS, 2),
        *block(2 * N_CHANNELS, n_last, 2), nn.Flatten(),
        nn.Dropout(DROPOUT), nn.Linear(n_last * (HEIGHT // 4) * (WIDTH // 4), N_HIDDEN), nn.ReLU(),
        nn.Dropout(DROPOUT), nn.Linear(N_HIDDEN, len(LETTERS)),
    )


def shifted(images: Tensor) -> Tensor:
    """Each image (N, 1, H, W) moved by up to one pixel down and across, at random."""
    n, _, height, width = images.shape
    padded = nn.functional.pad(images[:, 0], (1, 1, 1, 1))
    down, right = torch.randint(0, 3, (2, n, 1, 1))
    rows = torch.arange(height)[None, :, None] + down
    columns = torch.arange(width)[None, None] + right
    return padded[torch.arange(n)[:, None, None], rows, columns][:, None]


@dataclass(frozen=True)
class LetterChain:
    """A network and a chain over its costs; without a chain every letter is on its own."""

    network: nn.Sequential
    chain: ChainCRF | None

    def loss(self, images: list[Tensor], classes: list[Tensor]) -> Tensor:
        """Negative log-likelihood of words, per letter."""
        scores = self.network(shifted(torch.cat(images)))
        if self.chain is None:
            return nn.functional.cross_entropy(scores, torch.cat(classes))
        lengths = [len(part) for part in classes]
        return self.chain.nll(
            _by_word(-scores, lengths), pad_sequence(classes, batch_first=True),
            lengths=torch.tensor(lengths), reduction="node_mean",
        )

    def predict(self, data: LetterData) -> Tensor:
        """The most probable classes (N,) of all letters, word after word."""
        self.network.eval()
        with torch.no_grad():
            costs = -self.network(torch.cat(data.images))
            if self.chain is None:
                return torch.argmin(costs, 1)
            lengths = [len(part) for part in data.classes]
            labels = self.chain.decode(_by_word(costs, lengths), lengths=torch.tensor(lengths))
            return labels[labels >= 0]


def _by_word(costs: Tensor, lengths: list[int]) -> Tensor:
    """Costs (N, L) of letters as (C, T, L), 0 behind the last letter of a word."""
    return pad_sequence(list(torch.split(costs, lengths)), batch_first=True)


def train(data: LetterData, *, with_chain: bool, n_epochs: int, seed: int) -> LetterChain:
    """Learn by AdamW on mini-batches of words, with steps that grow and then shrink to 0."""
    torch.manual_seed(seed)
    model = LetterChain(letter_network(), ChainCRF(len(LETTERS)) if with_chain else None)
    groups = [{"params": list(model.network.parameters()), "weight_decay": DECAY}]
    largest = [STEP_SIZE]
    if model.chain is not None:
        groups.append({"params": list(model.chain.parameters()), "weight_decay": 0.0})
        largest.append(TRANSITION_STEP_SIZE)
    optimizer = torch.optim.AdamW(groups, lr=STEP_SIZE)
    n_batches = len(data) // BATCH_SIZE
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, largest, total_steps=n_epochs * n_batches, pct_start=0.2
    )
    for epoch in range(n_epochs):
        model.network.train()
        total = 0.0
        for words in torch.randperm(len(data))[: n_batches * BATCH_SIZE].reshape(n_batches, -1):
            images = [data.images[i] for i in words]
            loss = model.loss(images, [data.classes[i] for i in words])
            optimizer.zero_grad()
            torch.autograd.backward(loss)
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"  epoch {epoch + 1}: {total / n_batches:.3f} per letter", flush=True)
    return model
